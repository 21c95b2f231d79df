"""Write the figures of README and docs from the store, so that none is typed by hand.

`python -m experiments figures` (`make figures`) rewrites what stands between the markers; a test holds documents and results together.
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
from experiments.arena import beyond
from experiments.beyond import constraints, refit, regression, robust
from experiments.cells import cells
from experiments.contests import LIFTED
from experiments.estimators import summary as default_estimators
from experiments.rendering import spread
from experiments.rendering import table as rendered
from experiments.settings import Settings
from experiments.store import RESULTS, Store, open_store
from experiments.tables import grid, made_on
from experiments.training import NETWORKS, seeds_of, summary

ROOT = Path(__file__).parents[1]
_PAGES = "training initialisation measurements learned-activations"
DOCUMENTS = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in _PAGES.split()))
SETS = ("mnist", "fashion", "cifar10", "adult", "california", "uci")
BEYOND = (robust, refit, constraints, regression)  # named by markers, as the functions below are
# Below every table until it is made again; remove it then.
OLDER = (
    "*Older figures: made before the first layer's initial weights were scaled with the inputs, before blocks were certified at every "
    "scale, and before small networks were trained on one thread.*"
)
MARKED = re.compile(r"(<!-- figures: ([\w, ]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def stored(name: str, device: str = "cpu") -> Store:
    return open_store(RESULTS, name, device)


def paper_model() -> list[str]:
    body = [
        [
            f"{row['network']}, `{row['activation']}`, lam {row['lam']:g}",
            f"{row['sweep_0']:.3f}",
            f"{row['last']:.3f} ± {row['spread']:.3f}",
            str(row["paper"]),
        ]
        for row in model.summary(stored("paper-model", "cuda"))
    ]
    return grid(["full batch, MNIST, test accuracy, mean of 3 seeds", "sweep 0", "lifted alone", "the paper's"], body)


def nnls() -> list[str]:
    title = f"`nnls`, 300 unknowns, 20,000 rows, float64, KKT 1e-6 ({made_on(stored('nnls'))})"
    body = [
        [
            f"{row['name']} (condition {row['conditioning']:.1g})",
            f"{row['ms_per_row']:.3f}",
            f"{row['times_scipy']:.0f} times",
            f"{row['times_sklearn']:.0f} times",
            f"{row['share_of_peak']:.0%}",
        ]
        for row in stored("nnls").values()
        if "times_scipy" in row
    ]
    header = [
        "ms per row",
        "faster than `scipy.optimize.nnls`",
        "than scikit-learn's coordinate descent",
        "of matrix peak",
    ]
    return grid([title, *header], body)


def sweep() -> list[str]:
    body = [
        [
            f"`{row['activation']}` ({made_on(store)})",
            f"{row['sweep_s']:.3g}",
            f"{row['sweep_over_adam']:.2f}",
            f"{row['first_over_adam']:.2f}",
        ]
        for store in (stored("sweep"), stored("sweep", "cuda"))
        for row in store.values()[:2]
    ]
    title = "one sweep of 784-300-10 on MNIST, blocks to KKT 1e-3"
    return grid([title, "seconds", "in Adam epochs of batch 100", "the first sweep, likewise"], body)


def _seconds(value: float) -> str:
    return "never" if value == float("inf") else f"{value:.2f}"


def training() -> list[str]:
    """Ours and the best known way of each opponent, all networks: the table of README."""
    names = ["lifted, automatic", "lifted, full batch", "Adam", "Adam, cosine", "SGD, cosine"]
    known, body = stored("training", "cuda"), []
    for data in ("mnist", "fashion"):
        for network in NETWORKS:
            found = {row["method"]: row for row in summary(known, f"{data} {network}")}
            if found:
                runs = seeds_of(known, f"{data} {network}", "lifted, full batch")
                control = statistics.mean(cell["accuracy"][0] for cell in runs)
                scores = [f"{found[name]['mean']:.4f}" if name in found else "" for name in names]
                body.append([f"{data} {network}", f"{control:.4f}", *scores])
    header = ["lifted, mini-batch", "lifted, full batch", "Adam", "Adam, cosine", "SGD, cosine"]
    title = "test accuracy at the last of 17 passes (full batch: 10 sweeps), mean of 5 seeds"
    return grid([title, "sweep 0, the control", *header], body)


def _methods(device: str, prefix: str, timed: bool) -> list[list[str]]:
    return [
        [
            row["method"],
            f"{row['first']:.4f}",
            f"{row['last']:.4f}",
            f"{row['mean']:.4f}",
            f"{row['spread']:.4f}",
            str(row["passes"]),
            f"{row['seconds']:.2f}",
            *([_seconds(row["to_.975_s"])] if timed else []),
            f"`{row['settings']}`",
        ]
        for row in summary(stored("training", device), prefix)
    ]


def _threads() -> str:
    (threads,) = {record.machine["threads"] for record in stored("training").find(task="race")}
    return f"{threads} CPU threads"


_COLUMNS = ["after the first", "at the last, median", "mean", "spread", "passes", "seconds"]


def race() -> list[str]:
    title = f"race to .975, MNIST 300, {_threads()}"
    return grid([title, *_COLUMNS, "seconds to .975", "settings"], _methods("cpu", "race", True))


def training_cpu() -> list[str]:
    title = f"MNIST 300, {_threads()}"
    return grid([title, *_COLUMNS, "seconds to .975", "settings"], _methods("cpu", "mnist 300", True))


def digits() -> list[str]:
    title = f"1,000 digits, 784-300-10, {_threads()}"
    return grid([title, *_COLUMNS, "settings"], _methods("cpu", "1000 digits", False))


def scikit() -> list[str]:
    """scikit-learn's network, on the CPU, on all networks."""
    known, body = stored("training"), list[list[str]]()
    for data in ("mnist", "fashion"):
        for network in NETWORKS:
            found = [row for row in summary(known, f"{data} {network}") if row["method"] == "scikit-learn MLP"]
            body += [[f"{data} {network}", str(r["seeds"]), f"{r['mean']:.4f}", f"{r['spread']:.4f}"] for r in found]
    return grid(["scikit-learn's MLPClassifier, 17 passes, test accuracy", "seeds", "mean", "spread"], body)


def training_gpu() -> list[str]:
    tables = []
    for data in ("mnist", "fashion"):
        for network in NETWORKS:
            body = _methods("cuda", f"{data} {network}", False)
            tables += [*grid([f"{data} {network}, one H200", *_COLUMNS, "settings"], body), ""] if body else []
    return tables[:-1]


def gpu() -> list[str]:
    body = [
        [
            f"batch {row['batch']}, {row['products']}" + (" in ours only" if row["products"] == "bfloat16" else ""),
            f"{row['ours_ms']:.1f}",
            f"{row['adam_ms']:.1f}",
            f"{row['ours_over_adam']:.2f}",
            f"{row['share_of_peak']:.2%}",
            f"{row['test_accuracy']:.4f}",
        ]
        for row in stored("gpu", "cuda").values(task="products")
    ]
    title = f"a pass over MNIST, 784-300-10 ({made_on(stored('gpu', 'cuda'))})"
    return grid([title, "ours, ms", "Adam, ms", "ratio", "of matrix peak", "test accuracy, 17 passes"], body)


def engines() -> list[str]:
    found = stored("gpu", "cuda").values(task="engines")
    body = [[f"batch {row['batch']}", *(f"{row[name]:.1f}" for name in row if name != "batch")] for row in found]
    names = [name for name in found[0] if name != "batch"]
    return grid(["ways to run a step: a pass, ms", *names], body)


def variants() -> list[str]:
    body = [
        [row["variant"], f"{row['pass 1']:.4f}", f"{row['pass 5']:.4f}", f"{row['seconds']:.1f}", str(row["halved"])]
        for row in stored("variants").values(task="variants")
    ]
    title = "MNIST 784-300-10, rows held back, one seed"
    return grid([title, "after pass 1", "after pass 5", "seconds", "times halved"], body)


def others() -> list[str]:
    body = stored("variants").values(task="sets")
    names = [name for name in body[0] if name not in ("set", "rows")]
    lines = [[f"{row['set']}, {row['rows']} rows", *(f"{row[name]:.4f}" for name in names)] for row in body]
    return grid(["accuracy or R² on rows held back", *names], lines)


def growth() -> list[str]:
    body = [
        [
            f"{row['rows']:,}",
            f"{row['set_up_s']:.2f}",
            f"{row['pass_s']:.3f}",
            f"{row['us_per_row']:.2f}",
            f"{row['share_of_peak']:.0%}",
        ]
        for row in stored("streaming").values(task="time")
    ]
    title = f"rows, MNIST 784-300-10 ({made_on(stored('streaming'))})"
    return grid([title, "set-up, s", "a pass, s", "µs per row", "of float32 matrix peak"], body)


def memory() -> list[str]:
    body = [
        [f"{row['rows']:,}", str(row["file_MiB"]), f"{row['peak_MiB']:.0f}", f"{row['us_per_row']:.2f}"]
        for row in stored("streaming").values(task="memory")
    ]
    return grid(["rows of 256 in a memory map", "file, MiB", "peak memory beyond the start, MiB", "µs per row"], body)


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
    body = [
        [
            row["start"],
            f"{row['accuracy']:.4f}",
            f"{row['spread']:.4f}",
            f"{row['seconds']:.2f}",
            f"{row['epochs']:.2f}",
        ]
        for row in stored("initialisation").values()
    ]
    title = f"784-300-100-10 on MNIST ({made_on(stored('initialisation'))})"
    return grid([title, "test accuracy, mean", "spread", "seconds, start included", "epochs of Adam"], body)


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
    """The rows of all data sets under one head."""
    found: dict[str, list[str]] = {}
    for name in SETS:
        text = comparison.table(comparison.arenas(RESULTS, name, "cuda"), name)
        for title, (head, rule, *rest) in tables(text).items():
            found.setdefault(title, [head, rule]).extend(rest)
    return stacked(found.values())


def regimes() -> list[str]:
    return stacked(tables(settings_tried.table(settings_tried.arenas(RESULTS, "cuda"))).values())


def contests() -> list[str]:
    """Where lifted weights stand at tuned settings."""
    body = []
    for arena in (arena for name in SETS for arena in comparison.arenas(RESULTS, name, "cuda")):
        rival, lead, deviations = arena.standing(arena.tested)
        scores = [spread(arena.tested(start).scores) for start in (LIFTED, rival)]
        body.append([comparison.titled(arena), *scores, rival, f"{lead:+.4f}", beyond(deviations)])
    head = "a standard network, all tuned, the same total time, 5 seeds"
    return grid([head, "from lifted weights", "from the best other", "", "lead", "deviations"], body)


def render(text: str) -> str:
    def fill(match: re.Match[str]) -> str:
        tables = ["\n".join(globals()[name.strip()]()) for name in match[2].split(",")]
        return match[1] + "\n\n".join([*tables, OLDER]) + "\n" + match[3]

    return MARKED.sub(fill, text)


def run(settings: Settings) -> None:
    """Tables of the repository's own results, and pictures."""
    for document in DOCUMENTS:
        document.write_text(render(document.read_text()))
    pictures.draw(settings.results)
