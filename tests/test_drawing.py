"""Pictures: one colour for a method, medians with a band from the least to the largest seed, and the same file from the same records."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import learned_activations, robust
from experiments import curves, drawing, pictures, rendering
from experiments.drawing import STYLES
from experiments.store import RESULTS, Store
from experiments.training import METHODS

SLOPES = tuple(f"{way} {start:g}" for way in ("from", "fixed at") for start in learned_activations.STARTS)


@pytest.mark.parametrize(
    "names",
    [rendering.COLUMNS, tuple(METHODS), robust.METHODS, SLOPES, curves.METHODS],
    ids=["initial weights", "training", "noise", "slopes", "estimators"],
)
def test_methods_of_a_picture_differ_in_grey_print(names: tuple[str, ...]) -> None:
    for kind in (1, 2):  # dashes and marks
        assert len({STYLES[name][kind] for name in names}) == len(names)


def test_a_method_has_one_colour_under_all_its_names() -> None:
    for same in (
        ("Lifted (Fenchel)", "lifted, automatic", "lifted, mini-batch", "lifted"),
        ("Lifted (euclidean)", "lifted, relu"),
    ):
        assert len({STYLES[name].colour for name in same}) == 1
    assert drawing.style("ab") == drawing.style("ba") != drawing.style("bb")


def test_a_line_is_the_median_and_its_band_the_range() -> None:
    curves = [[0.1, 0.9], [0.3, 0.7], [0.2, 0.8, 0.99]]
    assert drawing.over_seeds(curves) == ([0.2, 0.8], [0.1, 0.7], [0.3, 0.9])
    (((panel,),)) = drawing.new_figure(3, 2)[1]
    drawing.line(panel, "Adam", [1, 2], curves)
    (drawn,), (band,) = panel.lines, panel.collections
    assert (list(drawn.get_ydata()), drawn.get_color(), drawn.get_label()) == (
        [0.2, 0.8],
        STYLES["Adam"].colour,
        "Adam",
    )
    heights = {float(y) for _, y in band.get_paths()[0].vertices}
    assert heights == {0.1, 0.3, 0.7, 0.9}


def test_the_picture_of_training_has_one_line_per_method(tmp_path: Path) -> None:
    store = Store(tmp_path / "training-cpu.jsonl")
    for name, seed in itertools.product(("Adam", "lifted, automatic"), range(3)):
        value = {"accuracy": [0.9, 0.95 + 0.001 * seed], "seconds": [1.0, 2.0 + seed]}
        store.add(value, task="mnist 300", method=name, seed=seed)
    (panel,) = pictures.training(store, "mnist 300").axes
    assert sorted(line.get_label() for line in panel.lines) == ["Adam", "lifted, automatic"]
    assert all(list(line.get_xdata()) == [1.0, 3.0] for line in panel.lines)
    files = pictures.draw(tmp_path)
    first = [file.read_bytes() for file in files]
    assert [file.name for file in pictures.draw(tmp_path)] == ["training-cpu.png"]
    assert [file.read_bytes() for file in files] == first


@pytest.mark.slow
def test_the_picture_of_curves_has_medians_of_complete_levels(tmp_path: Path) -> None:
    store = Store(tmp_path / "curves-cpu.jsonl")
    for (place, level), seed in itertools.product(enumerate(curves.PANELS["heavy tails"].levels), range(3)):
        value = {"score": place + 0.1 * seed}
        store.add(value, panel="heavy tails", level=level, method="lifted", seed=seed)
    store.add({"score": 1.0}, panel="noise", level=0, method="MLP", seed=0)
    panels = {panel.get_title(): panel for panel in pictures.curves(store).axes}
    assert list(panels) == list(curves.PANELS)
    line, point = panels["heavy tails"].lines
    np.testing.assert_allclose([*line.get_ydata(), *point.get_ydata()], np.arange(5) + 0.1)
    assert [text.get_text() for text in panels["heavy tails"].get_xticklabels()][-2:] == ["3", "one cell\nof 1e12"]
    assert not panels["noise"].lines
    assert [file.name for file in pictures.draw(tmp_path)] == ["curves.png"]


ROOT = Path(__file__).parents[1]


def test_every_picture_of_the_documents_is_drawn_from_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the repository's own records, without a file being written."""
    named = {
        (page.parent / link).resolve()
        for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
        for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text())
    }
    saved: list[Path] = []
    monkeypatch.setattr(drawing, "save", lambda figure, files, dpi: saved.extend(files))
    assert pictures.draw(RESULTS) == saved
    assert named
    assert named <= set(saved)
    assert {file for folder in ("results", "docs") for file in (ROOT / folder).glob("*.png")} <= set(saved)


def drawn_examples(folder: Path) -> dict[str, Any]:
    """The panels of each picture, from records that are made up."""
    store = Store(folder / "examples-cpu.jsonl")
    store.add({"accuracy": 0.97, "filters": [[[0.5] * 8] * 8] * 16}, example="constraints", kind="free")
    for strength, units, seed in ((0.003, 100, 0), (0.003, 100, 1), (0.1, 14, 0), (0.1, 16, 1)):
        value = {"units": units, "accuracy": 0.9 + 0.02 * seed}
        store.add(value, example="constraints", kind="pruned", strength=strength, seed=seed)
    for learned, seed in itertools.product((True, False), range(2)):
        curve = {"slopes": [0.1, 0.3], "losses": [0.5 if learned else 0.7 + seed]}
        store.add(curve, example="slopes", start=0.1, learned=learned, seed=seed)
    store.add({"first": [0.5], "response": [3.0], "quantiles": [[1.0, 2.0, 4.0]]}, example="quantiles")
    store.add({"truth": [1.0, 2.0], "predicted": [1.5, 2.5]}, example="outliers", loss="huber")
    for seed in range(3):
        store.add({"accuracy": [0.9 - 0.1 * seed] * 6}, example="noise", method="plain", seed=seed)
    return {name: picture(store).axes for name, picture in pictures.EXAMPLES.items()}


def test_the_pictures_of_the_examples_show_what_is_stored(tmp_path: Path) -> None:
    panels = drawn_examples(tmp_path)
    (pruned,) = panels["constraints"][3].lines
    np.testing.assert_allclose(pruned.get_xydata(), [[100, 0.91], [15, 0.91]])
    assert panels["constraints"][0].get_title() == "free: 0.970"
    learned, fixed = panels["learned-activations"][1].lines
    assert [(each.get_label(), list(each.get_ydata())) for each in (learned, fixed)] == [
        ("from 0.1", [0.5]),
        ("fixed at 0.1", [0.7]),
    ]
    (responses,) = panels["regression"][0].lines
    assert responses.get_xydata().tolist() == [[0.5, 1.0]]
    assert panels["regression"][1].lines[0].get_xydata().tolist() == [[1.0, 1.5], [2.0, 2.5]]
    (plain,) = panels["robust"][0].lines
    np.testing.assert_allclose(plain.get_ydata(), [0.8] * 6)
