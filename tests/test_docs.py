"""Code printed in the documentation runs as printed."""

import re
from pathlib import Path

import pytest

from benchmarks import figures

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/training.md"])
def test_snippets_run_one_after_another(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)
    assert snippets
    scope: dict[str, object] = {"__name__": "snippet"}
    for snippet in snippets:
        exec(compile(snippet, name, "exec"), scope)
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "docs/notation.md", "docs/how-to-choose.md", "docs/training.md"]
)
def test_commands_and_files_that_are_named_exist(name: str) -> None:
    text, makefile = (ROOT / name).read_text(), (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"no make target {target}"
    for path in re.findall(r"`((?:liftednn|docs|tests|benchmarks|blocks|results|data)/[\w/.-]+)`", text):
        assert (ROOT / path).exists() or (ROOT / "liftednn" / path).exists(), f"no file {path}"


@pytest.mark.parametrize("document", figures.DOCUMENTS, ids=lambda path: path.name)
def test_the_figures_are_those_of_the_results(document: Path) -> None:
    text = document.read_text()
    assert figures.MARKED.search(text)
    assert figures.render(text) == text, "run `make figures`"
