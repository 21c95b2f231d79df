"""Pictures: one colour for a method, medians with a band from the least to the largest seed, and the same file from the same records."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from experiments import drawing, pictures, rendering
from experiments.drawing import STYLES
from experiments.store import Store
from experiments.training import METHODS


@pytest.mark.parametrize("names", [rendering.COLUMNS, tuple(METHODS)], ids=["initial weights", "training"])
def test_methods_of_a_picture_differ_in_grey_print(names: tuple[str, ...]) -> None:
    for kind in (1, 2):  # dashes and marks
        assert len({STYLES[name][kind] for name in names}) == len(names)


def test_a_method_has_one_colour_under_all_its_names() -> None:
    for same in (
        ("Lifted (Fenchel)", "lifted, automatic", "lifted, mini-batch"),
        ("Lifted (euclidean)", "lifted, relu"),
    ):
        assert len({STYLES[name].colour for name in same}) == 1
    assert drawing.style("something new") == drawing.style("something new")


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
