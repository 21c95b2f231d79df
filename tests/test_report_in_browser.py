"""The report page in a headless Chromium: it opens without an error, tells a value when pointed at, and its choices change the picture.

`make chromium` puts a browser into place; LIFTEDNN_CHROMIUM names another.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_report import EVIL, NETS, cell, made_up, store

from liftednn.experiments.report import report, summary

sync = pytest.importorskip("playwright.sync_api")

OWN = Path(__file__).parents[1] / ".venv" / "chromium" / "chromium"
NAMES = ("chromium", "chromium-browser", "google-chrome")
ADVICE = "no Chromium is here: put one into .venv with `make chromium`, or name one in LIFTEDNN_CHROMIUM"


def chromium() -> str:
    named = os.environ.get("LIFTEDNN_CHROMIUM")
    if named is not None and shutil.which(named) is None:
        pytest.fail(f"LIFTEDNN_CHROMIUM is {named}, which is no program")
    found = named or next(filter(None, map(shutil.which, (str(OWN), *NAMES))), None)
    return found or pytest.skip(ADVICE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = chromium()
    with sync.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """The page of a made-up run. What it should never do is a failure at the end: complain, or ask for another file."""
    page, wrong = browser.new_page(viewport={"width": 1280, "height": 800}), []
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "o.md").write_text(
        "# Other\n\nWords.\n\n## Under\n\n|  | a |\n| --- | --- |\n| x | **1** |\n"
    )
    out = report([made_up(tmp_path / "run"), tmp_path / "other"], tmp_path / "r.html")
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if request.url != out.as_uri() else None)
    page.goto(out.as_uri())
    yield page
    page.close()
    assert wrong == []


def pointed(page: Any, place: int, epoch: int) -> str:
    """The text that pointing at an epoch of a line of the first picture gives."""
    page.select_option("#scale", "accuracy")  # all of it
    drawing = page.locator("#figure > svg").first
    drawing.scroll_into_view_if_needed()
    points = drawing.locator("polyline").nth(place).get_attribute("points")
    x, y = map(float, points.split()[epoch].split(","))
    box = drawing.bounding_box()
    unit = box["width"] / 480
    page.mouse.move(box["x"] + x * unit, box["y"] + y * unit)
    told: str = page.inner_text("#tip")
    return told


def test_it_opens_and_draws(opened: Any) -> None:
    assert opened.title() == "Lifted neural networks: the experiments"
    assert opened.input_value("#scale") == "ends"
    assert opened.locator("#figure > svg").count() == len(NETS)
    assert opened.locator("#figure polyline").count() == 4 * len(NETS)
    assert not opened.locator("#tip").is_visible()


def test_tables_of_other_commands_are_shown(opened: Any) -> None:
    assert opened.inner_text("#others h3") == "Other"
    assert opened.inner_text("#others p") == "Words."
    assert opened.inner_text("#others h4") == "Under"
    assert opened.inner_text("#others td strong") == "1"


def test_pointing_at_a_line_tells_its_value(opened: Any, tmp_path: Path) -> None:
    (entry,) = [
        e for e in summary(tmp_path / "run")["cells"] if (e["net"], e["start"], e["rate"]) == (NETS[0], "He", "1e-5")
    ]
    told = pointed(opened, 1, 2)
    assert told.split("\n") == [
        "He",
        "epoch 2, 3 s",
        f"accuracy {entry['means'][2]:.4f}",
        f"sd {entry['sds'][2]:.4f} (3 seeds)",
    ]
    opacities = (
        opened.locator("#figure > svg")
        .first.locator("polyline")
        .evaluate_all("lines => lines.map((line) => line.getAttribute('opacity'))")
    )
    assert opacities == ["0.25", "1", "0.25", "0.25"]
    opened.mouse.move(1, 1)
    assert not opened.locator("#tip").is_visible()


def test_every_choice_changes_the_picture(opened: Any) -> None:
    seen = [opened.inner_html("#figure")]
    for name, value in (
        ("net", "500-150"),
        ("rate", "1e-4"),
        ("across", "seconds"),
        ("scale", "accuracy"),
        ("scale", "error"),
    ):
        opened.select_option(f"#{name}", value)
        seen.append(opened.inner_html("#figure"))
    opened.locator("#legend button").first.click()
    seen.append(opened.inner_html("#figure"))
    assert len(set(seen)) == 7
    assert opened.locator("#figure > svg").count() == 1
    assert opened.locator("#figure polyline").count() == 3
    assert opened.locator("#tables th[scope=col]").all_inner_texts() == ["First weights", "500-150"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 420, 1280])
def test_nothing_is_wider_than_the_window_or_hard_to_read(opened: Any, width: int, scheme: str) -> None:
    """Tables scroll by themselves; the ink differs from the paper."""
    opened.emulate_media(color_scheme=scheme)
    opened.set_viewport_size({"width": width, "height": 700})
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    colours = opened.evaluate(
        "(({ color, backgroundColor }) => [color, backgroundColor])(getComputedStyle(document.body))"
    )
    ink, paper = (sum(map(int, colour[4:-1].split(","))) / 765 for colour in colours)
    assert (paper - ink if scheme == "light" else ink - paper) > 0.8
    assert pointed(opened, 0, 4).startswith("Normal")
    box = opened.locator("#tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width


def test_no_name_is_run(browser: Any, tmp_path: Path) -> None:
    page, asked = browser.new_page(), []
    page.on("dialog", lambda dialog: asked.append(dialog.message) or dialog.dismiss())  # type: ignore[func-returns-value]
    run = store(tmp_path / "run", cell("300", EVIL, 1e-5, 0, [0.1, 0.2]))
    (run / "plan.json").write_text("{}")
    out = report([run], tmp_path / "r.html")
    page.goto(out.as_uri())
    assert page.locator("#legend button").all_inner_texts() == [EVIL]
    assert asked == []
    page.close()


def test_a_page_without_table1_shows_the_others_alone(browser: Any, tmp_path: Path) -> None:
    page, wrong = browser.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    (tmp_path / "o.md").write_text("# Other\n\nWords.\n")
    page.goto(report([tmp_path], tmp_path / "r.html").as_uri())
    assert page.inner_text("#others p") == "Words."
    assert not page.locator("#choice").is_visible()
    assert not page.locator("#own").is_visible()
    assert wrong == []
    page.close()
