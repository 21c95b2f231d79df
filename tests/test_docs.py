"""Code printed in the documentation runs as printed."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import __main__ as experiments
from experiments import figures
from liftednn.cli import main

ROOT = Path(__file__).parents[1]


PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
RUN = [page for page in PAGES if "```python\n" in (ROOT / page).read_text()]
# Pages whose snippets take seconds.
_LONG = "estimators initialisation constraints learned-activations regression robust"
LONG = [f"docs/{name}.md" for name in _LONG.split()]


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] if each in LONG else []) for each in RUN])
def test_snippets_run_one_after_another(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)
    assert snippets
    scope: dict[str, object] = {"__name__": "snippet"}
    for snippet in snippets:
        exec(compile(snippet, name, "exec"), scope)
    assert capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("package", ["lightning", "transformers"])
def test_recipes_of_other_frameworks_run_where_these_are_installed(package: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    recipes = re.findall(r"```py\n(.*?)```", (ROOT / "docs/optimiser-recipes.md").read_text(), flags=re.DOTALL)
    (recipe,) = [each for each in recipes if each.startswith(f"import {package}\n")]
    done = subprocess.run([sys.executable, "-c", recipe], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["README.md", pytest.param("docs/command-line.md", marks=pytest.mark.slow)])
def test_commands_run_one_after_another(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this package in this process, which has imported torch already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    (commands,) = re.findall(r"```sh\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)
    others, ours = commands[: commands.index("liftednn fit")], commands[commands.index("liftednn fit") :].splitlines()
    done = subprocess.run(["bash", "-euc", others], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for program, *order in map(shlex.split, ours):
        with pytest.raises(SystemExit) as ended:
            main(order)
        assert (program, ended.value.code) == ("liftednn", 0)
    predicted = (tmp_path / "predictions.csv").read_text().splitlines()
    assert len(predicted) == len((tmp_path / "wine.csv").read_text().splitlines())
    assert (tmp_path / "weights.safetensors").exists()


@pytest.mark.parametrize("name", PAGES)
def test_commands_and_files_that_are_named_exist(name: str) -> None:
    text, makefile = (ROOT / name).read_text(), (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"no make target {target}"
    for experiment in re.findall(r"python -m experiments ([a-z]\S*?)[` ]", text):
        assert experiment in experiments.EXPERIMENTS | experiments.PAGES, f"no experiment {experiment}"
    for path in re.findall(r"`((?:liftednn|docs|tests|experiments|examples|blocks|results|data)/[\w/.-]+)`", text):
        assert (ROOT / path).exists() or (ROOT / "liftednn" / path).exists(), f"no file {path}"


def _anchors(page: Path) -> set[str]:
    """As GitHub names headings: lower case, no punctuation, hyphens for spaces."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md"])
def test_links_lead_to_files_and_headings(name: str) -> None:
    page = ROOT / name
    for link in re.findall(r"\]\((?!http)([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"no file {link}"
        assert not anchor or anchor in _anchors(target), f"no heading {link}"


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_named_by_links(name: str) -> None:
    assert not re.search(r"`[\w/-]+\.(?:md|py|jsonl)`", (ROOT / name).read_text())


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) < 120
    assert sum(line.startswith("|") for line in lines) <= 12


@pytest.mark.parametrize("document", figures.DOCUMENTS, ids=lambda path: path.name)
def test_the_figures_are_those_of_the_results(document: Path) -> None:
    text = document.read_text()
    assert figures.MARKED.search(text)
    assert figures.render(text) == text, "run `make figures`"
