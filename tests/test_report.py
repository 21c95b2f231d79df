"""The report as a page: its numbers are the cells' own statistics, no text of a cell becomes HTML, and its script does what it says.

The script is run by node, where that is there, on a document of a few lines; in a browser it is run by test_report_in_browser.py.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import kept

from experiments import __main__ as cli
from experiments import rendering
from experiments.cells import cells
from experiments.report import page, summary, write
from experiments.store import Store
from experiments.verdicts import EVEN, LEADS, LOSES, verdicts

NETS, RATES, SEEDS, EPOCHS = ("300", "500-150"), (1e-5, 1e-4), 3, 4
STARTS = ("Normal", "He", rendering.EUCLIDEAN, rendering.FENCHEL)
VERSIONS: dict[str, Any] = {"liftednn": "0.1", "torch": "2.13", "python": "3.11", "device": "cpu, x86_64"}
EVIL = "</script><script>alert(1)</script><!-- & <b>"


def cell(net: str, start: str, rate: float, seed: int, curve: list[float], **more: Any) -> dict[str, Any]:
    parameters = {"architecture": net, "start": start, "rate": rate, "epochs": 17, "batch": 100}
    facts = {"kind": "cell", "parameters": parameters | {"method": "adam"} | more, "seed": seed, "versions": VERSIONS}
    times = {"start_seconds": 1.5 + seed, "epoch_seconds_alone": 0.25, "seconds_alone": 3.0}
    times["group_training_seconds"] = 9.0
    return facts | {"accuracy": curve[-1], "curve": curve, "rows": 60_000} | times


def phase(net: str, start: str, seed: int, accuracy: float, **settings: Any) -> dict[str, Any]:
    parameters = {"architecture": net, "start": start, **settings}
    facts = {"kind": "phase", "parameters": parameters, "seed": seed, "versions": VERSIONS}
    return facts | {"accuracy": accuracy, "rows": 60_000, "start_seconds": 2.0}


def trial(net: str, number: int, after: float) -> dict[str, Any]:
    facts = {"kind": "trial", "parameters": {"architecture": net}, "number": number, "seed": 0, "versions": VERSIONS}
    scores = {"accuracy_alone": 0.9 - number / 100, "accuracy_after_epoch": after}
    return facts | {"lam": 0.5 * (number + 1), "passes": 2, "rows": 54_321} | scores


def made_up(path: Path) -> Store:
    """A store as table1 leaves it, of random figures."""
    draw = random.Random(0)
    facts = [{"kind": "plan", "epochs": EPOCHS, "rows": 54_321}]
    for net, start, rate, seed in itertools.product(NETS, STARTS, RATES, range(SEEDS)):
        facts.append(cell(net, start, rate, seed, [round(draw.uniform(0.1, 0.99), 4) for _ in range(EPOCHS + 1)]))
    for net, seed in itertools.product(NETS, range(SEEDS)):
        facts.append(phase(net, rendering.ALONE, seed, round(draw.uniform(0.8, 0.9), 4), lam=2.0, passes=3))
    facts += [trial("300", number, after) for number, after in enumerate([0.8, 0.95, 0.95, *[0.7] * 8])]
    return kept(path, *facts)


@pytest.fixture
def run(tmp_path: Path) -> Store:
    return made_up(tmp_path / "table1-cpu.jsonl")


def embedded(text: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="facts">(.*?)</script>', text, flags=re.DOTALL)
    facts: dict[str, Any] = json.loads(found)
    return facts


def script(text: str) -> str:
    return re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)[-1]


OTHER = f"""# Other

Words before.
{EVIL}

## First

|  | a | b |
| --- | --- | --- |
| x | **1** | 2 |
| y | 3 | 4 |

Words between.

## Second
| c |
| --- |

liftednn 0.1.
"""
BLOCKS = [
    {"text": f"Words before.\n{EVIL}"},
    {"heading": "First"},
    {"head": ["", "a", "b"], "rows": [["x", "**1**", "2"], ["y", "3", "4"]]},
    {"text": "Words between."},
    {"heading": "Second"},
    {"head": ["c"], "rows": []},
    {"text": "liftednn 0.1."},
]


def test_texts_and_tables_of_other_experiments_stand_below(run: Store, tmp_path: Path) -> None:
    text = write([run], [OTHER], tmp_path / "r.html").read_text()
    assert embedded(text)["others"] == [{"title": "Other", "blocks": BLOCKS}]
    assert EVIL not in text
    shown = 'get("others").children.map((each) => [each.name, each.textContent])'
    assert played(text, shown)[:3] == [["h3", "Other"], ["p", f"Words before.\n{EVIL}"], ["h4", "First"]]


def test_other_experiments_make_a_page_of_their_own(tmp_path: Path) -> None:
    text = write([], [OTHER], tmp_path / "r.html").read_text()
    assert embedded(text) == {"others": [{"title": "Other", "blocks": BLOCKS}], "verdicts": [], "threshold": 2.0}
    hidden = '["own", "contents-own", "summary", "elsewhere", "contents-others"].map((id) => get(id).hidden)'
    assert played(text, hidden) == [True, True, True, False, False]


def test_a_second_table1_stands_below_as_its_tables(run: Store, tmp_path: Path) -> None:
    again = made_up(tmp_path / "again.jsonl")
    facts = embedded(write([run, again], [], tmp_path / "r.html").read_text())
    (below,) = facts["others"]
    assert (facts["run"], below["title"]) == ("table1-cpu", "Table 1, again")
    assert {"heading": "Accuracy, rate 1e-5"} in below["blocks"]


COMPARISONS = """# {0}: scores

## Same epochs

|  | He | Lifted | lead over the best other | deviations |
| --- | --- | --- | --- | --- |
| {0}, 100 | 0.8 | **0.9** | +0.1000 | **+6.6** |
| {0}, 100-50 | **0.9** | 0.8 | -0.1000 | {1} |
"""
REGIMES = """# Settings

2 settings.

## Tried

|  | setting | lifted | best other |  | lead | deviations |
| --- | --- | --- | --- | --- | --- | --- |
| few epochs | mnist | 0.9 | 0.8 | He | +0.1 | **+2.1** |
| deep | mnist | 0.8 | 0.9 | LSUV | -0.1 | **-9.0** |
"""


# Tables with verdicts: two of compare and one of regimes.
JUDGED = [COMPARISONS.format("adult", "-2.0"), COMPARISONS.format("mnist", "**-2.0**"), REGIMES]


def test_verdicts_follow_the_name_and_kinds_group_the_rows(tmp_path: Path) -> None:
    adult, _, regimes = embedded(write([], JUDGED, tmp_path / "r.html").read_text())["others"]
    assert adult["blocks"][-1] == {
        "head": ["setting", "verdict", "lead over the best other", "deviations", "He", "Lifted"],
        "rows": [
            ["adult, 100", LEADS, "+0.1000", "**+6.6**", "0.8", "**0.9**"],
            ["adult, 100-50", EVEN, "-0.1000", "-2.0", "**0.9**", "0.8"],
        ],
    }
    assert regimes["blocks"][-1] == {
        "head": ["setting", "verdict", "lead", "deviations", "lifted", "best other", ""],
        "rows": [
            ["mnist", LEADS, "+0.1", "**+2.1**", "0.9", "0.8", "He"],
            ["mnist", LOSES, "-0.1", "**-9.0**", "0.8", "0.9", "LSUV"],
        ],
        "groups": ["few epochs", "deep"],
    }


def test_the_summary_counts_tables_with_the_same_headings_together(tmp_path: Path) -> None:
    """What is rounded to two deviations counts where it was more, which is where it is in bold."""
    compared, tried = embedded(write([], JUDGED, tmp_path / "r.html").read_text())["verdicts"]
    assert (compared["source"], tried["source"]) == ("adult, mnist", "Settings")
    assert (compared["text"], tried["text"]) == ("", "2 settings.")
    assert compared["lines"] == [
        {"title": "Same epochs", "at": "document-0-0", LEADS: 2, EVEN: 1, LOSES: 1}
        | {"largest": "largest lead: adult, 100 (+6.6); largest loss: mnist, 100-50 (-2.0)"}
    ]
    assert tried["lines"] == [
        {"title": "Tried", "at": "document-2-1", LEADS: 1, EVEN: 0, LOSES: 1}
        | {"largest": "largest lead: mnist (+2.1); largest loss: mnist (-9.0)"}
    ]
    text = (tmp_path / "r.html").read_text()
    assert "leads in 2 of 4, even in 1, loses in 1" in played(text, 'get("verdicts").textContent')


def test_table1_is_judged_by_the_deviation_of_a_difference(tmp_path: Path) -> None:
    """Two seeds at 0.8 -+ d have deviation d sqrt(2). Gaps of 0.05 with d = 0.01 are 0.05 / 0.02 = 2.5 deviations, of 0.03 they are 1.5."""
    gaps, facts = {"300": 0.05, "500-150": -0.05, "300-100": 0.03}, []
    for (net, gap), (seed, step) in itertools.product(gaps.items(), enumerate((-0.01, 0.01))):
        for start, mean in (("He", 0.8), ("PCA", 0.7), (rendering.EUCLIDEAN, 0.99), (rendering.FENCHEL, 0.8 + gap)):
            facts.append(cell(net, start, 1e-5, seed, [0.1, mean + step]))
    run = kept(tmp_path / "r.jsonl", *facts)
    (part,) = verdicts(summary(run) | {"others": []})
    assert part["lines"] == [
        {"title": "Rate 1e-5", "at": "accuracy", LEADS: 1, EVEN: 1, LOSES: 1}
        | {"largest": "largest lead: 300 (+2.5); largest loss: 500-150 (-2.5)"}
    ]
    assert part["text"].endswith("0 of our 3 figures that the paper prints too are within 0.015 of it.")


def test_one_seed_decides_nothing(tmp_path: Path) -> None:
    cells_ = (cell("300", start, 1e-5, 0, [0.1, 0.9]) for start in ("He", rendering.FENCHEL))
    assert verdicts(summary(kept(tmp_path / "r.jsonl", *cells_)) | {"others": []}) == []


def test_nothing_to_report_on_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("report", "--results", tmp_path, "--out", tmp_path / "r.html") == 2
    assert f"{tmp_path} has nothing to show: run table1, compare or regimes first" in capsys.readouterr().err
    kept(tmp_path / "table1-cpu.jsonl", trial("300", 0, 0.9))
    assert command("report", "--results", tmp_path, "--out", tmp_path / "r.html") == 2
    assert "table1-cpu.jsonl has no cells yet" in capsys.readouterr().err
    assert command("report", "--results", tmp_path, "--out", tmp_path / "r.txt") == 2
    assert "r.txt must end in .html" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def command(*arguments: object) -> Any:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(each) for each in arguments])
    return ended.value.code


def test_the_numbers_of_the_page_are_those_of_the_cells(run: Store, tmp_path: Path) -> None:
    facts = embedded(write([run], [], tmp_path / "r.html").read_text())
    files = list(cells(run))
    assert len(facts["cells"]) == len(NETS) * len(STARTS) * len(RATES)
    for entry in facts["cells"]:
        own = [f for f in files if f["kind"] == "cell" and f["parameters"]["architecture"] == entry["net"]]
        own = [
            f
            for f in own
            if (f["parameters"]["start"], f["parameters"]["rate"]) == (entry["start"], float(entry["rate"]))
        ]
        curves = np.array([f["curve"] for f in own])
        for name, expected in (("medians", np.median(curves, 0)), ("lows", curves.min(0)), ("highs", curves.max(0))):
            np.testing.assert_allclose(entry[name], expected, atol=1e-6)
        for facts_of, epoch in ((entry, -1), (entry["first"], 1)):
            expected = [curves[:, epoch].mean(), curves[:, epoch].std(ddof=1)]
            np.testing.assert_allclose([facts_of["mean"], facts_of["sd"]], expected, atol=1e-6)
        assert entry["n"] == SEEDS
        assert entry["start_seconds"] == np.median([f["start_seconds"] for f in own])
        paper = rendering.PAPER.get((entry["net"], entry["start"], float(entry["rate"])))
        assert entry["paper"] == (None if paper is None else str(paper))
    for entry in facts["alone"]:
        own = [f["accuracy"] for f in files if f["kind"] == "phase" and f["parameters"]["architecture"] == entry["net"]]
        np.testing.assert_allclose([entry["mean"], entry["sd"]], [np.mean(own), np.std(own, ddof=1)], atol=1e-6)
        assert entry["paper"] == str(rendering.PAPER[entry["net"], rendering.ALONE, None])


def test_search_choices_and_versions_are_reported(run: Store) -> None:
    facts = summary(run)
    assert [each["number"] for each in facts["trials"]] == list(range(11))
    assert {t["number"]: t["best"] for t in facts["trials"] if t["best"]} == {
        0: ["accuracy_alone"],
        1: ["accuracy_after_epoch"],
    }
    alone = {"start": rendering.ALONE, "lam": 2.0, "passes": 3}
    assert facts["settings"] == [{"architecture": net} | alone for net in NETS]
    (known,) = facts["versions"]
    assert known == VERSIONS | {"records": len(run.records) - 1, "seeds": "0, 1, 2"}
    assert (facts["rates"], facts["architectures"]) == (["1e-5", "1e-4"], list(NETS))


def test_one_seed_has_no_deviation_and_missing_cells_are_not_made_up(tmp_path: Path) -> None:
    run = kept(
        tmp_path / "r.jsonl", cell("300", "He", 1e-5, 0, [0.1, 0.5]), cell("300", "Normal", 2.5e-5, 0, [0.1, 0.6])
    )
    facts = summary(run)
    assert [(e["start"], e["rate"], e["sd"], e["first"]["sd"]) for e in facts["cells"]] == [
        ("He", "1e-5", None, None),
        ("Normal", "2.5e-05", None, None),
    ]


def test_curves_of_different_length_end_where_the_shortest_does(tmp_path: Path) -> None:
    run = kept(
        tmp_path / "r.jsonl", cell("300", "He", 1e-5, 0, [0.1, 0.5, 0.7]), cell("300", "He", 1e-5, 1, [0.3, 0.7])
    )
    (entry,) = summary(run)["cells"]
    assert (entry["medians"], entry["mean"]) == ([0.2, 0.6], 0.7)


def test_what_is_trained_as_printed_is_beside_the_papers_figures(tmp_path: Path) -> None:
    run = kept(tmp_path / "r.jsonl", cell("300", "Xavier" + rendering.LITERAL, 1e-5, 0, [0.1, 0.5], method="sgd"))
    facts = summary(run)
    assert facts["literal"] == ["Xavier" + rendering.LITERAL]
    assert facts["literal"][0] not in facts["columns"]
    assert facts["cells"][0]["paper"] == "0.923 ± 0.005"


def test_quick_figures_stand_without_the_papers(tmp_path: Path) -> None:
    quick = cell("300", "Xavier", 1e-5, 0, [0.1, 0.5]) | {"rows": 6000}
    text = page(summary(kept(tmp_path / "r.jsonl", quick)))
    assert embedded(text)["cells"][0]["paper"] is None
    assert "brackets" not in played(text, 'get("reading").textContent')
    assert "brackets" in played(page(summary(made_up(tmp_path / "m.jsonl"))), 'get("reading").textContent')


def test_nothing_in_a_cell_becomes_a_part_of_the_page(run: Store) -> None:
    clean = page(summary(run))
    odd = cell("300", EVIL, 1e-5, 0, [0.1, 0.2])
    text = page(summary(kept(run.path, odd | {"versions": {"device": EVIL + "@report.js@"}})))
    assert EVIL in [start["name"] for start in embedded(text)["starts"]]
    for sign in ("<script", "</script", "<!--", "<b>"):
        assert text.count(sign) == clean.count(sign)


def test_the_page_loads_nothing(run: Store) -> None:
    text = page(summary(run))
    assert not re.search(r'https?://|//\w+\.|@import|url\(|src=|href=(?!"#)', text)
    assert "innerHTML" not in text
    assert "@report" not in text
    assert "@facts" not in text


@pytest.mark.slow
def test_two_thousand_cells_stay_below_two_megabytes(tmp_path: Path) -> None:
    draw = random.Random(1)
    parts = itertools.product([str(n) for n in range(10)], rendering.COLUMNS[:10], (1e-6, 1e-5, 1e-4, 1e-3), range(5))
    run = kept(tmp_path / "r.jsonl", *(cell(*key, [draw.random() for _ in range(18)]) for key in parts))
    assert len(page(summary(run)).encode()) < 2_000_000


def test_the_command_writes_the_page(run: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("report", "--results", tmp_path, "--out", tmp_path / "r.html") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'r.html'}\n"
    facts = summary(run) | {"others": []}
    assert (tmp_path / "r.html").read_text() == page(facts | {"verdicts": verdicts(facts), "threshold": 2.0})


# As much of a document as the script uses, for where no browser is at hand.
DOCUMENT = """
class Node {
  constructor(name) { Object.assign(this, { name, attributes: {}, children: [], heard: {}, style: {}, value: "" }); }
  setAttribute(name, value) { this.attributes[name] = value; }
  append(...more) { this.children.push(...more); }
  replaceChildren(...more) { this.children = more; }
  addEventListener(name, work) { this.heard[name] = work; }
  getBoundingClientRect() { return { left: 0, top: 0, width: 480, height: 320 }; }
  get textContent() { return this.children.map((c) => (typeof c === "string" ? c : c.textContent)).join(""); }
  set textContent(text) { this.children = [text]; }
  all(name) { return this.children.flatMap((c) => (c instanceof Node ? [...(c.name === name ? [c] : []), ...c.all(name)] : [])); }
}
const known = {}, get = (id) => (known[id] ??= new Node(id));
globalThis.document = { getElementById: get, createElement: (n) => new Node(n), createElementNS: (_, n) => new Node(n) };
globalThis.window = { innerWidth: 800 };
globalThis.ResizeObserver = class { observe() {} };
const choose = (id, value) => { get(id).value = value; get(id).heard.change(); };
get("across").value = "epochs";
get("scale").value = "accuracy";
const [text, script] = JSON.parse(require("fs").readFileSync(0));
get("facts").textContent = text;
eval(script);
const drawn = () => JSON.stringify(get("figure").all("polyline").map((l) => l.attributes.points));
const lines = (id) => get(id).all("tr").map((r) => r.children.map((c) => c.textContent));
"""


def played(text: str, scenario: str) -> Any:
    """What a scenario, a JavaScript expression, gives after the page's own script has run."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    given = json.dumps([json.dumps(embedded(text)), script(text)])
    command = [node, "-e", f"{DOCUMENT}\nconsole.log(JSON.stringify({scenario}))"]
    return json.loads(subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout)


def test_the_script_is_complete(run: Store, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    (tmp_path / "page.js").write_text(script(page(summary(run))))
    subprocess.run([node, "--check", tmp_path / "page.js"], check=True)


def test_tables_are_those_of_the_cells(run: Store) -> None:
    head, *rows = played(page(summary(run)), 'lines("tables")')
    assert head == ["Initial weights", *NETS]
    assert [row[0] for row in rows] == [rendering.ALONE, *STARTS]
    facts = summary(run)
    entries = {(e["net"], e["start"], e["rate"]): e for e in facts["cells"] + facts["alone"]}
    for name, *figures in rows:
        for net, shown in zip(NETS, figures, strict=True):
            entry = entries[net, name, None if name == rendering.ALONE else "1e-5"]
            paper = f" [{entry['paper']}]" if entry["paper"] else ""
            assert shown == f"{entry['mean']:.4f} ± {entry['sd']:.4f}{paper}"
    bold = played(page(summary(run)), 'get("tables").all("strong").map((b) => b.textContent)')
    tops = [
        max(e["mean"] for (net, _, rate), e in entries.items() if net == n and rate in (None, "1e-5")) for n in NETS
    ]
    assert sorted(each[:6] for each in bold) == sorted(f"{top:.4f}" for top in tops)


def test_accuracies_after_one_epoch_are_those_of_the_cells(run: Store) -> None:
    kept(run.path, *(cell("300", rendering.MORE, 1e-5, seed, [0.5] * 7) for seed in range(SEEDS)))
    facts = summary(run)
    head, *rows = played(page(facts), 'lines("first")')
    assert head == ["Initial weights", *NETS]
    entries = {(e["start"], e["net"]): e for e in facts["cells"] if e["rate"] == "1e-5"}
    expected = [entries[start, net]["first"] for start in STARTS for net in NETS]
    assert [figure for row in rows for figure in row[1:]] == [f"{e['mean']:.4f} ± {e['sd']:.4f}" for e in expected]


def test_the_scale_begins_near_the_ends_or_shows_all(tmp_path: Path) -> None:
    """Ends at 0.90 and 0.95: the scale begins at 0.85, and the first guess at 0.1 lies below the picture."""
    curves = {"He": [0.1, 0.7, 0.9], rendering.FENCHEL: [0.94, 0.95, 0.95]}
    run = kept(tmp_path / "r.jsonl", *(cell("300", start, 1e-5, 0, curve) for start, curve in curves.items()))
    scenario = """(() => ["ends", "accuracy"].map((scale) => {
      choose("scale", scale);
      const lines = get("figure").all("polyline").map((each) => each.attributes.points.split(" ").map((p) => +p.split(",")[1]));
      const marks = get("figure").all("text").map((each) => each.textContent);
      return [marks[1], lines, get("figure").all("svg").length];
    }))()"""
    ends, whole = played(page(summary(run)), scenario)
    assert (ends[0], whole[0]) == ("0.86", "0.2")
    low, top = ends[1][0][-1], ends[1][1][-1]
    assert (top, low) == (26, 153)  # of a picture from 26 down to 280
    assert ends[1][0][0] > 280
    assert whole[1][0][0] == 280
    assert ends[2] == 2  # the inner one ends at its edges


def test_seconds_are_those_of_the_cells(run: Store) -> None:
    head, *rows = played(page(summary(run)), 'lines("seconds")')
    assert head == ["Initial weights", *NETS]
    assert rows == [[start, *["3.50"] * len(NETS)] for start in STARTS]  # 1.5 + seed 1, and 4 epochs of 0.25
    longer = kept(run.path, *(cell("300", rendering.MORE, 1e-4, seed, [0.5] * 7) for seed in range(SEEDS)))
    assert played(page(summary(longer)), 'lines("seconds")')[-1] == [rendering.MORE, "6 epochs, 4.00", ""]


def test_errors_on_a_logarithmic_scale(tmp_path: Path) -> None:
    """Equal ratios of errors are equal distances: 0.4, 0.2, 0.1, 0.05."""
    run = kept(tmp_path / "r.jsonl", cell("300", "He", 1e-5, 0, [0.6, 0.8, 0.9, 0.95]))
    scenario = """(() => {
      choose("scale", "error");
      const marks = get("figure").all("text").map((each) => each.textContent);
      return [get("measure").textContent, marks, get("figure").all("polyline")[0].attributes.points];
    })()"""
    measure, marks, points = played(page(summary(run)), scenario)
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert measure == "Test error"
    assert marks[1:4] == ["0.2", "0.1", "0.05"]
    np.testing.assert_allclose(np.diff(heights), np.mean(np.diff(heights)), atol=0.11)
    assert heights[0] > heights[-1]


def test_a_line_is_the_median_and_its_band_reaches_from_the_least_to_the_largest(tmp_path: Path) -> None:
    """Seeds end at 0.5, 0.6 and 0.9: the band is all of the scale, and the line is at 0.6, a quarter of the way up."""
    run = kept(
        tmp_path / "r.jsonl", *(cell("300", "He", 1e-5, seed, [0.7, end]) for seed, end in enumerate([0.5, 0.6, 0.9]))
    )
    scenario = """["polyline", "polygon"].map((name) => get("figure").all(name).map((each) =>
      each.attributes.points.split(" ").map((point) => +point.split(",")[1])))"""
    (line,), (band,) = played(page(summary(run)), scenario)
    top, bottom = 26, 280
    start, quarter = (bottom + top) / 2, bottom - (bottom - top) / 4
    np.testing.assert_allclose(line, [start, quarter], atol=0.06)
    np.testing.assert_allclose(band, [start, top, bottom, start], atol=0.06)


def test_filters_axis_and_legend_change_the_picture(run: Store) -> None:
    scenario = """(() => {
      const seen = [drawn()];
      choose("net", "500-150"); seen.push(drawn());
      const columns = lines("tables")[0].length;
      choose("rate", "1e-4"); seen.push(drawn());
      choose("across", "seconds"); seen.push(drawn());
      get("legend").all("button")[0].heard.click(); seen.push(drawn());
      return { seen, columns, pressed: get("legend").all("button").map((b) => b.attributes["aria-pressed"]) };
    })()"""
    found = played(page(summary(run)), scenario)
    assert len(set(found["seen"])) == 5
    assert [len(json.loads(each)) for each in found["seen"]] == [8, 4, 4, 4, 3]
    assert found["columns"] == 2
    assert found["pressed"] == ["false", "true", "true", "true"]


def test_pointing_at_a_line_reads_it(run: Store) -> None:
    scenario = """(() => {
      choose("net", "300");
      const [x, y] = get("figure").all("polyline")[1].attributes.points.split(" ")[2].split(",").map(Number);
      get("figure").all("svg")[0].heard.pointermove({ clientX: x, clientY: y });
      return get("tip").textContent;
    })()"""
    (entry,) = [e for e in summary(run)["cells"] if (e["net"], e["start"], e["rate"]) == ("300", "He", "1e-5")]
    median, low, high = (f"{entry[name][2]:.4f}" for name in ("medians", "lows", "highs"))
    told = ["He", "epoch 2, 3 s", f"median accuracy {median}", f"{low} to {high} (3 seeds)"]
    assert played(page(summary(run)), scenario).split("\n") == told


def test_a_name_is_text_and_one_cell_is_enough_for_a_page(tmp_path: Path) -> None:
    text = page(summary(kept(tmp_path / "r.jsonl", cell("300", EVIL, 1e-5, 0, [0.1, 0.2]))))
    assert played(text, 'get("legend").textContent') == EVIL
    assert played(text, 'get("trials").textContent') == "None is stored."
    assert "NaN" not in played(text, "drawn()")
    assert played(text, 'get("figure").all("text").map((t) => t.textContent)')[-3:] == ["0", "1", "epoch"]


def test_trials_and_plan_are_reported_in_full(run: Store) -> None:
    found = played(page(summary(run)), '[lines("trials"), lines("versions")]')
    assert found[0][0] == ["architecture", "number", "lam", "passes", "rows", "accuracy after epoch", "accuracy alone"]
    assert found[0][2] == ["300", "1", "1", "2", "54321", "0.95", "0.89"]
    assert found[1][-1] == ["4", "54321", "cpu"]
