"""Where lifted weights lead and where they lose, counted for the top of the report page.

A comparison compares lifted weights with the best of the other initial weights. The difference counts where it is more than
`equal_time.DEVIATIONS` standard deviations; otherwise the two are even. Table 1 is judged from its cells;
the tables of compare and regimes have differences that count in bold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from experiments.equal_time import bold_if_large, in_deviations
from experiments.rendering import CLOSE, FENCHEL

__all__ = ["EVEN", "LEADS", "LOSES", "verdicts", "with_verdicts"]

LEADS, EVEN, LOSES = "leads", "even", "loses"
_NAME, _VERDICT, _LEAD, _DEVIATIONS = "setting", "verdict", "lead", "deviations"

Facts = dict[str, Any]


class Comparison(NamedTuple):
    """`deviations` as compare and regimes write them: in bold where they are more than noise."""

    name: str
    deviations: str

    @property
    def verdict(self) -> str:
        if not self.deviations.startswith("**"):
            return EVEN
        return LEADS if self.deviations.startswith("**+") else LOSES

    @property
    def size(self) -> float:
        return float(self.deviations.strip("*"))

    def __str__(self) -> str:
        return f"{self.name} ({self.deviations.strip('*')})"


def with_verdicts(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Facts:
    """A table as a block of the page. One that has deviations gets a column of verdicts; it, the lead and the deviations follow the name,
    and the kind of a setting becomes the title of a group of rows."""
    if _DEVIATIONS not in head:
        return {"head": list(head), "rows": [list(row) for row in rows]}
    name = head.index(_NAME) if _NAME in head else 0
    front = [index for index, title in enumerate(head) if title == _DEVIATIONS or title.startswith(_LEAD)]
    rest = [index for index in range(name + 1, len(head)) if index not in front]
    judged = [Comparison(row[name], row[head.index(_DEVIATIONS)]).verdict for row in rows]
    lines = [
        [row[name], verdict, *(row[i] for i in (*front, *rest))] for row, verdict in zip(rows, judged, strict=True)
    ]
    block = {"head": [_NAME, _VERDICT, *(head[i] for i in (*front, *rest))], "rows": lines}
    return block | ({"groups": [row[0] for row in rows]} if name else {})


def verdicts(facts: Facts) -> list[Facts]:
    """One part for Table 1 and one for all documents with the same headings; each has counts by heading."""
    own = [_table1(facts)] if facts.get("cells") else []
    return [part for part in (*own, *_documents(facts["others"])) if part["lines"]]


def _table1(facts: Facts) -> Facts:
    text = (
        f"{FENCHEL} against the best of the initial weights that are not lifted, by architecture, after the last epoch."
    )
    lines = [_line(f"Rate {rate}", "accuracy", _comparisons(facts, rate)) for rate in facts["rates"]]
    return {
        "source": "Table 1",
        "text": text + _agreement(facts),
        "lines": _decided(lines),
    }


def _decided(lines: Iterable[Facts]) -> list[Facts]:
    """Those with a comparison."""
    return [line for line in lines if line[LEADS] + line[EVEN] + line[LOSES]]


def _comparisons(facts: Facts, rate: str) -> list[Comparison]:
    """Of one rate: one seed has no deviation, so it decides nothing."""
    found = []
    for net in facts["architectures"]:
        trained = [c for c in facts["cells"] if (c["net"], c["rate"]) == (net, rate) and c["sd"] is not None]
        ours = [cell for cell in trained if cell["start"] == FENCHEL]
        others = [cell for cell in trained if cell["start"] in facts["columns"] and "Lifted" not in cell["start"]]
        if ours and others:
            found.append(Comparison(net, _deviations(ours[0], max(others, key=lambda cell: float(cell["mean"])))))
    return found


def _deviations(ours: Facts, best: Facts) -> str:
    gap, noise = ours["mean"] - best["mean"], math.hypot(ours["sd"], best["sd"])
    return bold_if_large(in_deviations(gap, noise))


def _agreement(facts: Facts) -> str:
    """How many of the paper's figures are found again."""
    own = [*facts["alone"], *(cell for cell in facts["cells"] if cell["start"] in facts["columns"])]
    gaps = [abs(cell["mean"] - float(cell["paper"].split()[0])) for cell in own if cell["paper"] is not None]
    close = sum(gap <= CLOSE for gap in gaps)
    return f" {close} of our {len(gaps)} figures that the paper prints too are within {CLOSE:g} of it." if gaps else ""


def _documents(documents: Sequence[Facts]) -> list[Facts]:
    groups: dict[tuple[str, ...], list[int]] = {}
    judged = [_judged(index, document) for index, document in enumerate(documents)]
    for index, found in enumerate(judged):
        groups.setdefault(tuple(found), []).append(index)
    return [
        {
            "source": ", ".join(documents[i]["title"].split(":")[0] for i in own),
            "text": " ".join(_opening(documents[i]) for i in own).strip(),
            "lines": _decided(
                _line(title, judged[own[0]][title][0], [comparison for i in own for comparison in judged[i][title][1]])
                for title in titles
            ),
        }
        for titles, own in groups.items()
    ]


def _judged(index: int, document: Facts) -> dict[str, tuple[str, list[Comparison]]]:
    """By heading: the id of that heading on the page, and the comparisons of the table below it."""
    found: dict[str, tuple[str, list[Comparison]]] = {}
    title, anchor = document["title"], f"document-{index}"
    for number, block in enumerate(document["blocks"]):
        if "heading" in block:
            title, anchor = block["heading"], f"document-{index}-{number}"
        elif _VERDICT in block.get("head", ()):
            column = block["head"].index(_DEVIATIONS)
            found[title] = anchor, [Comparison(row[0], row[column]) for row in block["rows"]]
    return found


def _opening(document: Facts) -> str:
    """What it says before its first heading."""
    first = document["blocks"][0] if document["blocks"] else {}
    return str(first.get("text", ""))


def _line(title: str, anchor: str, comparisons: Sequence[Comparison]) -> Facts:
    counts = {verdict: sum(c.verdict == verdict for c in comparisons) for verdict in (LEADS, EVEN, LOSES)}
    largest = [
        f"largest {word}: {max(own, key=lambda comparison: abs(comparison.size))}"
        for verdict, word in ((LEADS, "lead"), (LOSES, "loss"))
        if (own := [comparison for comparison in comparisons if comparison.verdict == verdict])
    ]
    return {"title": title, "at": anchor} | counts | {"largest": "; ".join(largest)}
