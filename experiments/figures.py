"""Write the tables of README and docs from the stored results, and draw the pictures, so that no figure is typed by hand.

`python -m experiments figures` (`make figures`) rewrites what stands between the markers; a test checks that documents and results agree.
A marker names its tables: functions of this file.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from pathlib import Path

from experiments import compare as comparison
from experiments import paper_model as model
from experiments import pictures
from experiments import regimes as settings_tried
from experiments.cells import cells
from experiments.comparisons import LIFTED
from experiments.equal_time import bold_if_large
from experiments.estimators import summary as default_estimators
from experiments.extension_tables import (
    constraints,
    convolution,
    convolution_blocks,
    convolution_cpu,
    convolution_init,
    convolution_lam,
    defaults,
    optimiser_cost,
    optimisers,
    refit,
    regression,
    robust,
    robustness,
)
from experiments.markdown import filled, grid, made_on
from experiments.rendering import spread
from experiments.rendering import table as rendered
from experiments.settings import Settings
from experiments.store import RESULTS, Store, open_store
from experiments.training import NETWORKS, TO_GOAL, seeds_of, summary

ROOT = Path(__file__).parents[1]
_PAGES = "training initialisation measurements learned-activations convolutions defaults optimiser"
DOCUMENTS = tuple(ROOT / "docs" / f"{name}.md" for name in _PAGES.split())
SETS = ("mnist", "fashion", "cifar10", "adult", "california", "uci")
# Markers name them, as the functions below.
CONVOLUTION = (convolution, convolution_blocks, convolution_cpu, convolution_init, convolution_lam)
OPTIMISER = (optimisers, optimiser_cost, robustness)
OTHERS = (robust, refit, constraints, regression, defaults)
MARKED = re.compile(r"(<!-- figures: ([\w, ]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def stored(name: str, device: str = "cpu") -> Store:
    return open_store(RESULTS, name, device)


def paper_model() -> list[str]:
    columns = {
        "full batch, MNIST, test accuracy, mean of 3 seeds": "{network}, `{activation}`, lam {lam:g}",
        "pass 0": "{pass_0:.3f}",
        "lifted alone": "{last:.3f} ± {spread:.3f}",
        "the paper's": "{paper}",
    }
    return filled(columns, model.summary(stored("paper-model", "cuda")))


def nnls() -> list[str]:
    title = f"`nnls`, 300 unknowns, 20,000 rows, float64, KKT 1e-6 ({made_on(stored('nnls'))})"
    columns = {
        title: "{name} (condition {conditioning:.1g})",
        "ms per row": "{ms_per_row:.3f}",
        "faster than `scipy.optimize.nnls`": "{times_scipy:.0f} times",
        "than scikit-learn's coordinate descent": "{times_sklearn:.0f} times",
        "of matrix peak": "{share_of_peak:.0%}",
    }
    return filled(columns, (row for row in stored("nnls").values() if "times_scipy" in row))


def full_pass() -> list[str]:
    columns = {
        "one full pass over the blocks of 784-300-10 on MNIST, blocks to KKT 1e-3": "`{activation}` ({machine})",
        "seconds": "{pass_s:.3g}",
        "in epochs of torch's Adam, batch 100, not recorded as a graph": "{pass_over_adam:.2f}",
        "the first pass, likewise": "{first_over_adam:.2f}",
    }
    stores = (stored("full-pass", device) for device in ("cpu", "cuda"))
    return filled(columns, (row | {"machine": made_on(store)} for store in stores for row in store.values()[:2]))


def _networks() -> list[str]:
    return [f"{data} {network}" for data in ("mnist", "fashion") for network in NETWORKS]


def training() -> list[str]:
    """Ours and the best known way of each opponent, all networks: the table of README."""
    names = ["lifted, automatic", "lifted, full batch", "Adam", "Adam, cosine", "SGD, cosine"]
    known, body = stored("training", "cuda"), []
    for task in _networks():
        found = {row["method"]: row for row in summary(known, task)}
        if found:
            control = statistics.mean(run["accuracy"][0] for run in seeds_of(known, task, "lifted, full batch"))
            scores = [f"{found[name]['mean']:.4f}" if name in found else "" for name in names]
            body.append([task, f"{control:.4f}", *scores])
    title = "test accuracy at the last of 17 passes (full batch: 10 full passes), mean of 5 seeds"
    return grid([title, "pass 0, the control", "lifted, mini-batch", *names[1:]], body)


def _methods(device: str, task: str, title: str, timed: bool = False) -> list[str]:
    """One row per method of the training benchmark."""
    columns = {
        title: "{method}",
        "after the first": "{first:.4f}",
        "at the last, median": "{last:.4f}",
        "mean": "{mean:.4f}",
        "spread": "{spread:.4f}",
        "passes": "{passes}",
        "seconds": "{seconds:.2f}",
        **({"seconds to .975": "{reached}"} if timed else {}),
        "settings": "`{settings}`",
    }
    rows = summary(stored("training", device), task)
    return filled(columns, (row | {"reached": _seconds(row["to_.975_s"])} for row in rows))


def _seconds(value: float) -> str:
    return "never" if value == float("inf") else f"{value:.2f}"


def _threads() -> str:
    (threads,) = {record.machine["threads"] for record in stored("training").find(task=TO_GOAL)}
    return f"{threads} CPU threads"


def time_to_goal() -> list[str]:
    return _methods("cpu", TO_GOAL, f"{TO_GOAL}, MNIST 300, {_threads()}", timed=True)


def training_cpu() -> list[str]:
    return _methods("cpu", "mnist 300", f"MNIST 300, {_threads()}", timed=True)


def digits() -> list[str]:
    return _methods("cpu", "1000 digits", f"1,000 digits, 784-300-10, {_threads()}")


def scikit() -> list[str]:
    """scikit-learn's network, on the CPU, on all networks."""
    title = "scikit-learn's MLPClassifier, 17 passes, test accuracy"
    columns = {title: "{task}", "seeds": "{seeds}", "mean": "{mean:.4f}", "spread": "{spread:.4f}"}
    rows = (row | {"task": task} for task in _networks() for row in summary(stored("training"), task))
    return filled(columns, (row for row in rows if row["method"] == "scikit-learn MLP"))


def training_gpu() -> list[str]:
    known = [task for task in _networks() if summary(stored("training", "cuda"), task)]
    return stacked(_methods("cuda", task, f"{task}, one H200") for task in known)


def gpu() -> list[str]:
    columns = {
        f"a pass over MNIST, 784-300-10 ({made_on(stored('gpu', 'cuda'))})": "batch {batch}, {products}{where}",
        "ours, ms": "{ours_ms:.1f}",
        "Adam, ms": "{adam_ms:.1f}",
        "ratio": "{ours_over_adam:.2f}",
        "of matrix peak": "{share_of_peak:.2%}",
        "test accuracy, 17 passes": "{test_accuracy:.4f}",
    }
    rows = stored("gpu", "cuda").values(task="products")
    ours_only = {"bfloat16": " in ours only"}
    return filled(columns, (row | {"where": ours_only.get(row["products"], "")} for row in rows))


def engines() -> list[str]:
    rows = stored("gpu", "cuda").values(task="engines")
    ways = {name: f"{{{name}:.1f}}" for name in rows[0] if name != "batch"}
    return filled({"ways to run a step: a pass, ms": "batch {batch}", **ways}, rows)


def variants() -> list[str]:
    columns = {
        "MNIST 784-300-10, rows held back, one seed": "{variant}",
        "after pass 1": "{pass 1:.4f}",
        "after pass 5": "{pass 5:.4f}",
        "seconds": "{seconds:.1f}",
        "times halved": "{halved}",
    }
    return filled(columns, stored("variants").values(task="variants"))


def others() -> list[str]:
    rows = stored("variants").values(task="sets")
    names = [name for name in rows[0] if name not in ("set", "rows")]
    body = [[f"{row['set']}, {row['rows']} rows", *(f"{row[name]:.4f}" for name in names)] for row in rows]
    return grid(["accuracy or R² on rows held back", *names], body)


def growth() -> list[str]:
    columns = {
        f"rows, MNIST 784-300-10 ({made_on(stored('streaming'))})": "{rows:,}",
        "set-up, s": "{set_up_s:.2f}",
        "a pass, s": "{pass_s:.3f}",
        "µs per row": "{us_per_row:.2f}",
        "of float32 matrix peak": "{share_of_peak:.0%}",
    }
    return filled(columns, stored("streaming").values(task="time"))


def memory() -> list[str]:
    columns = {
        "rows of 256 in a memory map": "{rows:,}",
        "file, MiB": "{file_MiB}",
        "peak memory beyond the start, MiB": "{peak_MiB:.0f}",
        "µs per row": "{us_per_row:.2f}",
    }
    return filled(columns, stored("streaming").values(task="memory"))


def estimators() -> list[str]:
    found = default_estimators(stored("estimators"))
    body = [
        [
            f"{row['set']}, {row['rows']:,} rows of {row['columns']}",
            *(
                f"{row[who]:.4f} ± {row[f'{who} sd']:.4f}" if who in row else ""
                for who in ("lifted", "MLP", "MLP, raw")
            ),
            f"{row['lifted s']:.2f}",
            f"{row['MLP s']:.2f}",
        ]
        for row in found
    ]
    rank, ours, theirs = (statistics.mean(row[key] for row in found) for key in ("rank", "lifted s", "MLP s"))
    body.append(["mean rank, mean seconds", f"{rank:.2f}", f"{3 - rank:.2f}", "", f"{ours:.2f}", f"{theirs:.2f}"])
    title = "at their defaults: accuracy or R² on test rows, 5 seeds"
    return grid([title, "lifted", "scikit-learn's MLP", "its MLP, raw responses", "lifted, s", "MLP, s"], body)


def init() -> list[str]:
    columns = {
        f"784-300-100-10 on MNIST ({made_on(stored('initialisation'))})": "{start}",
        "test accuracy, mean": "{accuracy:.4f}",
        "spread": "{spread:.4f}",
        "seconds, start included": "{seconds:.2f}",
        "epochs of Adam": "{epochs:.2f}",
    }
    return filled(columns, stored("initialisation").values())


def tables(text: str) -> dict[str, list[str]]:
    """The tables of a text by the headings they stand under, which go into their first cells."""
    found = re.findall(r"## ([^\n]+)\n\n(\|.*?)\n(?:\n|\Z)", text, re.DOTALL)
    return {title: re.sub(r"\A\|[^|]*\|", f"| {title} |", body).splitlines() for title, body in found}


def stacked(found: Iterable[list[str]]) -> list[str]:
    return [line for body in found for line in (*body, "")][:-1]


def _of_table1(*titles: str) -> list[str]:
    found = tables(rendered(list(cells(stored("table1", "cuda"))))).items()
    return stacked(body for title, body in found if title.startswith(titles))


def table1() -> list[str]:
    """The tables of final accuracy."""
    return _of_table1("Accuracy, rate")


def readings() -> list[str]:
    """The paper's columns in other readings of its protocol."""
    return _of_table1("As printed", "Stochastic gradients", "The random columns")


def compare() -> list[str]:
    """The rows of all data sets in one table."""
    found: dict[str, list[str]] = {}
    for name in SETS:
        text = comparison.table(comparison.cases(RESULTS, name, "cuda"), name)
        for title, (head, rule, *rest) in tables(text).items():
            found.setdefault(title, [head, rule]).extend(rest)
    return stacked(found.values())


def regimes() -> list[str]:
    return stacked(tables(settings_tried.table(settings_tried.cases(RESULTS, "cuda"))).values())


def comparisons() -> list[str]:
    """Lifted initial weights against the best others, at tuned settings."""
    body = []
    for case in (case for name in SETS for case in comparison.cases(RESULTS, name, "cuda")):
        best_other, lead, deviations = case.standing(case.tested)
        scores = [spread(case.tested(start).scores) for start in (LIFTED, best_other)]
        body.append([comparison.titled(case), *scores, best_other, f"{lead:+.4f}", bold_if_large(deviations)])
    head = "a standard network, all tuned, the same total time, 5 seeds"
    return grid([head, "from lifted weights", "from the best other", "", "lead", "deviations"], body)


def render(text: str) -> str:
    def fill(match: re.Match[str]) -> str:
        names = [name.strip() for name in match[2].split(",")]
        tables = ["\n".join(globals()[name]()) for name in names]
        return match[1] + "\n\n".join(tables) + "\n" + match[3]

    return MARKED.sub(fill, text)


def run(settings: Settings) -> None:
    """Tables of the repository's own results, and pictures."""
    if settings.quick or settings.results != RESULTS:
        raise ValueError(
            "figures makes the documents from the repository's own results: leave out --quick and --results"
        )
    for document in DOCUMENTS:
        document.write_text(render(document.read_text()))
    pictures.draw(settings.results)
