"""The report page in a headless Chromium: it opens without an error, shows a value when pointed at, and its choices change the picture.

`make chromium` puts a browser into place; LIFTEDNN_CHROMIUM names another.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from records import kept
from test_report import EVIL, NETS, cell, made_up

from experiments import compare, regimes
from experiments.report import report, summary, write
from experiments.store import RESULTS, Store

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


class Made(NamedTuple):
    run: Store
    html: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The page of a made-up run."""
    folder = tmp_path_factory.mktemp("made")
    other = "# Other\n\nWords.\n\n## Under\n\n|  | a |\n| --- | --- |\n| x | **1** |\n"
    run = made_up(folder / "run.jsonl")
    return Made(run, write([run], [other], folder / "r.html"))


@pytest.fixture
def opened(browser: Any, made: Made) -> Iterator[Any]:
    """What the page should never do is a failure at the end: complain, or ask for another file."""
    page, wrong, out = browser.new_page(viewport={"width": 1280, "height": 800}), [], made.html
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if request.url != out.as_uri() else None)
    page.goto(out.as_uri())
    yield page
    page.close()
    assert wrong == []


@pytest.fixture(scope="module")
def whole(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page of the repository's own results, whose tables are as wide as tables get."""
    page = browser.new_page()
    page.goto(report(RESULTS, tmp_path_factory.mktemp("whole") / "r.html").as_uri())
    yield page
    page.close()


def sized(page: Any, width: int, height: int) -> None:
    """The page is loaded anew, as it would open in such a window."""
    page.set_viewport_size({"width": width, "height": height})
    page.reload()
    drawn(page)


def drawn(page: Any) -> None:
    """By now the script has seen which tables are wide."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


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


def test_pointing_at_a_line_shows_its_value(opened: Any, made: Made) -> None:
    (entry,) = [e for e in summary(made.run)["cells"] if (e["net"], e["start"], e["rate"]) == (NETS[0], "He", "1e-5")]
    told = pointed(opened, 1, 2)
    assert told.split("\n") == [
        "He",
        "epoch 2, 3 s",
        f"median accuracy {entry['medians'][2]:.4f}",
        f"{entry['lows'][2]:.4f} to {entry['highs'][2]:.4f} (3 seeds)",
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
        ("scale", "accuracy"),
        ("net", "500-150"),
        ("rate", "1e-4"),
        ("across", "seconds"),
        ("scale", "error"),
    ):
        opened.select_option(f"#{name}", value)
        seen.append(opened.inner_html("#figure"))
    opened.locator("#legend button").first.click()
    seen.append(opened.inner_html("#figure"))
    assert len(set(seen)) == 7
    assert opened.locator("#figure > svg").count() == 1
    assert opened.locator("#figure polyline").count() == 3
    assert opened.locator("#tables th[scope=col]").all_inner_texts() == ["Initial weights", "500-150"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 420, 1280])
@pytest.mark.thin(3)
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
    run = kept(tmp_path / "run.jsonl", cell("300", EVIL, 1e-5, 0, [0.1, 0.2]))
    out = write([run], [], tmp_path / "r.html")
    page.goto(out.as_uri())
    assert page.locator("#legend button").all_inner_texts() == [EVIL]
    assert asked == []
    page.close()


def test_a_page_without_table1_shows_the_others_alone(browser: Any, tmp_path: Path) -> None:
    page, wrong = browser.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(write([], ["# Other\n\nWords.\n"], tmp_path / "r.html").as_uri())
    assert page.inner_text("#others p") == "Words."
    assert not page.locator("#choice").is_visible()
    assert not page.locator("#own").is_visible()
    assert wrong == []
    page.close()


# What is cut off of a table, and whether the reader can see that: by the words above it, and from the keyboard.
CLIPPED = """boxes => boxes.filter((box) => box.scrollWidth > box.clientWidth)
  .filter((box) => getComputedStyle(box).overflowX !== "auto" || box.tabIndex !== 0
    || !getComputedStyle(box, "::before").content.includes("Scroll sideways")).length"""
RIGHT_EDGES = "cells => cells.map((cell) => cell.getBoundingClientRect().right)"


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.thin(2)
def test_no_table_is_cut_without_a_sign_and_verdicts_are_in_sight(whole: Any, width: int) -> None:
    sized(whole, width, 900)
    whole.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
    drawn(whole)
    assert whole.locator(".scroll").evaluate_all(CLIPPED) == 0
    assert width == 1400 or whole.locator(".scroll[tabindex]").count() > 0
    edges = whole.locator("td.verdict").evaluate_all(RIGHT_EDGES)
    assert len(edges) == rows_with_a_lead()
    assert max(edges) <= width
    heads = whole.locator("#others table", has=whole.locator(".verdict")).locator("thead th:nth-child(2)")
    assert set(heads.all_inner_texts()) == {"verdict"}


def rows_with_a_lead() -> int:
    texts = [*compare.texts(RESULTS), *regimes.texts(RESULTS)]
    return sum(len(re.findall(r"\| [+-]\S+ \| \**[+-][\d.]+\** \|$", text, flags=re.MULTILINE)) for text in texts)


def test_names_stay_in_sight_while_a_table_is_scrolled(whole: Any) -> None:
    sized(whole, 390, 844)
    box = whole.locator("#others .scroll[tabindex]").first
    name = box.locator("tbody th").first
    before = name.bounding_box()["x"]
    box.evaluate("box => { box.scrollLeft = 200; }")
    assert box.evaluate("box => box.scrollLeft") == 200
    assert name.bounding_box()["x"] == before


def test_on_a_phone_curves_come_before_their_legend(whole: Any) -> None:
    sized(whole, 390, 844)
    top = {name: whole.locator(name).first.bounding_box()["y"] for name in ("#curves h2", "#figure polyline")}
    assert 0 < top["#figure polyline"] - top["#curves h2"] < 844
    assert not whole.locator("#legend").is_visible()
    whole.locator("#curves h2").evaluate("heading => heading.scrollIntoView()")
    key, drawing = (whole.locator(name).first.bounding_box() for name in ("#key", "#figure > svg"))
    assert drawing["y"] + drawing["height"] < key["y"]
    assert key["y"] + key["height"] <= 844
    whole.locator("#key summary").click()
    assert whole.locator("#legend").is_visible()


def test_every_link_leads_to_a_visible_part_of_the_page(whole: Any) -> None:
    sized(whole, 1400, 900)
    assert whole.locator("#legend").is_visible()
    links = whole.locator("a").evaluate_all("links => links.map((link) => link.getAttribute('href'))")
    assert whole.locator("#contents a").count() == whole.locator("#own h2, #others h3").count()
    for target in set(links):
        assert whole.locator(target).count() == 1
        assert whole.locator(target).is_visible()


def test_figures_of_ours_and_of_the_paper_are_apart(whole: Any) -> None:
    sized(whole, 1400, 900)
    texts = whole.locator("#tables td", has=whole.locator(".paper:not(:empty)")).all_text_contents()
    assert texts
    assert all(re.fullmatch(r"\d\.\d{4} ± \d\.\d{4} \[\d\.\d{3} ± \d\.\d{3}\]", text) for text in texts)
    cell = whole.locator("#tables td", has=whole.locator(".paper:not(:empty)")).first
    gap = cell.evaluate(
        """cell => { const range = document.createRange(); range.selectNodeContents(cell.firstChild);
          return cell.querySelector(".paper").getBoundingClientRect().left - range.getBoundingClientRect().right; }"""
    )
    assert gap >= 4
