"""Write the figures of the README from the committed results, so that none is typed by hand.

`python -m benchmarks.figures` (`make figures`) rewrites what stands between the markers; a test holds README and results together.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- figures: written by make figures -->", "<!-- end of figures -->"


def rows(name: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return loaded


def machine(name: str) -> str:
    seen = json.loads((RESULTS / f"{name}.json").read_text())["machine"]
    return f"{seen['device']}, {seen['threads']} threads" if seen["device"] == "cpu" else str(seen["device"])


def paper_model() -> list[str]:
    lines = ["| MNIST, test accuracy, mean of 3 seeds | sweep 0 | lifted alone | the paper's |", "|---|---|---|---|"]
    for row in rows("paper_model"):
        last = f"{row['last']:.3f} ± {row['spread']:.3f}"
        lines.append(
            f"| {row['network']}, `{row['activation']}`, lam {row['lam']:g} | {row['sweep_0']:.3f} | {last} | {row['paper']} |"
        )
    return lines


def nnls() -> list[str]:
    title = f"`nnls`, 300 unknowns, 20,000 rows, float64, KKT 1e-6 ({machine('nnls')})"
    return [
        f"| {title} | ms per row | faster than `scipy.optimize.nnls` | than scikit-learn's coordinate descent | of matrix peak |",
        "|---|---|---|---|---|",
        *(
            f"| {row['name']} (condition {row['conditioning']:.1g}) | {row['ms_per_row']:.3f} | {row['times_scipy']:.0f} times | "
            f"{row['times_sklearn']:.0f} times | {row['share_of_peak']:.0%} |"
            for row in rows("nnls")
            if "times_scipy" in row
        ),
    ]


def sweep() -> list[str]:
    return [
        "| one sweep of 784-300-10 on MNIST, blocks to KKT 1e-3 | seconds | in Adam epochs of batch 100 | the first sweep, likewise |",
        "|---|---|---|---|",
        *(
            f"| `{row['activation']}` ({machine(name)}) | {row['sweep_s']:.3g} | {row['sweep_over_adam']:.2f} | "
            f"{row['first_over_adam']:.2f} |"
            for name in ("sweep-cpu", "sweep-cuda")
            for row in rows(name)[:2]
        ),
    ]


def render(text: str) -> str:
    tables = "\n\n".join("\n".join(part()) for part in (paper_model, nnls, sweep))
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{tables}\n{END}", text, flags=re.DOTALL)


def main() -> None:
    README.write_text(render(README.read_text()))


if __name__ == "__main__":
    main()
