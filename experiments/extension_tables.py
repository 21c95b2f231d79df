"""The tables of what goes beyond the paper, in Markdown: from the stores of robust, refit, constraints, regression and tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from experiments import constraints as constrained
from experiments import convolution as convolutional
from experiments import image_blocks, image_lam
from experiments import optimisers as optimiser_experiment
from experiments import refit as refits
from experiments import regression as regressions
from experiments import robust as robusts
from experiments import robustness as loops_trained
from experiments import tables as real_tables
from experiments.image_bench import SETTINGS
from experiments.markdown import filled, grid, made_on
from experiments.optimiser_cost import costs
from experiments.optimiser_tasks import PICTURED, TASKS
from experiments.store import RESULTS, existing, open_store

Row = dict[str, Any]


def columns(title: str, found: Sequence[Row], names: Sequence[str], form: str = ".4g") -> list[str]:
    """A table of some columns, the first under another name."""
    body = [[_shown(row.get(name, ""), form) for name in names] for row in found]
    return [*grid([title, *names[1:]], body), ""]


def _shown(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, float) else str(value)


def robust() -> list[str]:
    """The cost of a block, then for each set the accuracy at every level of noise, and where the robust networks win and lose."""
    store = open_store(RESULTS, "robust")
    lines = columns(
        "a W-step of 784-300 on MNIST", store.values(task="cost"), ("block", "rows", "seconds", "times ridge")
    )
    judged: list[Row] = []
    for name in robusts.SIZES:
        found = robusts.summary(store, name)
        judged += robusts.verdicts(found)
        own = [row | {"at": f"{row['noise']} {row['level']:g}"} for row in found]
        methods = [key for key in own[0] if key not in ("set", "noise", "level", "spreads", "at")]
        lines += columns(f"{name}, test accuracy, mean of 5 seeds", own, ("at", *methods), ".4f")
    judged = [row | {"clean": f"{row['clean']:+.4f}"} for row in judged if row["against"] != row["ours"]]
    return (
        lines
        + columns("by more than two deviations", judged, ("set", "ours", "against", "clean", "wins", "loses"))[:-1]
    )


def refit() -> list[str]:
    """Errors of the fixed slopes, and by how much per cent learned ones change that of slope 0.01."""
    found, learned = refits.summary(open_store(RESULTS, "refit")), ("learned, layer", "learned, unit")
    body = [
        [
            row["set"],
            *(f"{row[kind]:.4g}" for kind in ("ReLU", "slope 0.01", *learned)),
            *(f"{row[f'{kind}: change %']:+.1f} ± {row[f'{kind}: sd %']:.1f}" for kind in learned),
            *(f"{row[f'{kind}: median slope']:.3f}" for kind in learned),
            *(f"{row[f'{kind} s']:.1f}" for kind in ("slope 0.01", *learned)),
        ]
        for row in found
    ]
    head = ["RMSE on test rows, mean of 5 splits", "ReLU", "slope 0.01", "learned, layer", "learned, unit"]
    head += ["layer, %", "unit, %", "median slope, layer", "unit", "s, slope 0.01", "layer, s", "unit, s"]
    return [*grid(head, body), "", *(f"{refits.verdict(found, kind)}  " for kind in learned)]


def constraints() -> list[str]:
    """What a block costs, and what trainings reach."""
    store = open_store(RESULTS, "constraints")
    cost = (
        "shape",
        "penalty",
        "method",
        "iterations",
        "kkt",
        "violation",
        "times ridge, given",
        "times ridge, forming",
    )
    steps = columns("a W-step on MNIST, 60,000 rows", store.values(task="step"), cost, ".2g")
    reached = ("penalty", "accuracy", "sd", "violation", "units", "seconds")
    return steps + columns("784-300-10, 5 seeds", constrained.trainings(store), reached)[:-1]


def regression() -> list[str]:
    """Clean sets, outliers, quantiles."""
    found = regressions.tables(open_store(RESULTS, "regression"))
    methods = [key for key in found["mean rank"] if key in found["clean"][0]]
    body = [[row["set"], *(f"{row[who]:.4g} ± {row[f'{who} sd']:.2g}" for who in methods)] for row in found["clean"]]
    body.append(["mean rank", *(f"{found['mean rank'][who]:.2f}" for who in methods)])
    timed = [key.removesuffix(" s") for key in found["clean"][0] if key.endswith(" s")]
    means = {who: sum(row[f"{who} s"] for row in found["clean"]) / len(found["clean"]) for who in timed}
    body.append(["mean seconds", *(f"{means.get(who, means[who.split(',')[0]]):.2f}" for who in methods)])
    lines = [*grid(["RMSE on test rows, mean of 5 splits", *methods], body), ""]
    errors = ("set", "method", "rmse", "rmse sd", "mae", "mae sd")
    lines += columns("a tenth of the training responses moved", found["outliers"], errors)
    names = [key for key in found["quantiles"][0] if key.split()[0] in ("cover", "pinball")]
    return lines + columns("quantiles on the test rows", found["quantiles"], ("set", "method", *names))[:-1]


def defaults() -> list[str]:
    """For each part of the tables the mean ranks of all estimators, then the sets on which ours is behind."""
    store, lines, late = open_store(RESULTS, "tables"), list[str](), list[Row]()
    for part, names in real_tables.PARTS.items():
        if found := real_tables.means(store, names, real_tables.SPLITS):
            rows = real_tables.summary(found)
            lines += columns(f"{part}, {len(found)} of {len(names)} sets", rows, list(rows[0]), ".3g")
            late += [row | {"set": f"{row['set']}, {part}"} for row in real_tables.behind(found)]
    if found := real_tables.beside_deep(store):
        rows = real_tables.summary(found)
        title = f"beside deep networks, {len(found)} sets, {real_tables.DEEP_SPLITS} splits"
        lines += columns(title, rows, list(rows[0]), ".3g")
    if late:
        lines += columns(
            "behind the better of MLP and linear by more than .02 (accuracy) or .05 (R²)", late, list(late[0]), ".3f"
        )
    return lines[:-1] or ["Not measured yet: `python -m experiments tables` measures it."]


def convolution() -> list[str]:
    """Convolutional networks on a GPU, at equal passes and at the seconds of the lifted model."""
    store, lines = open_store(RESULTS, "convolution", "cuda"), list[str]()
    for part in convolutional.COMPARED:
        setting = SETTINGS[part]
        cells = {
            f"{setting.data}, {setting.network}": "{method}",
            "passes": "{passes}",
            "after the first": "{first:.4f}",
            "test accuracy, mean of seeds": "{mean:.4f} ± {deviation:.4f}",
            "seconds": "{seconds:.2f}",
            "chosen": "{settings}",
        }
        if found := convolutional.summary(store, part, setting.passes):
            lines += [*filled(cells, found), ""]
    return lines[:-1]


_NOT_MEASURED = "Not measured yet: `python -m experiments optimisers --device cuda` measures it."


def optimisers() -> list[str]:
    """Every task of the optimiser on a GPU, at equal passes and at our seconds."""
    store, lines = open_store(RESULTS, "optimisers", "cuda"), list[str]()
    for name, kind in TASKS.items():
        digits = 4 if kind.higher_is_better else 3
        scores = f"{{mean:.{digits}f}} ± {{deviation:.{digits}f}}"
        cells = {
            f"{name}: {kind.network}": "{method}",
            "passes": "{passes}",
            "seeds": "{seeds}",
            "after the first": f"{{first:.{digits}f}}",
            f"{kind.measure}, mean of seeds": scores,
            "seconds": "{seconds:.2f}",
            "chosen": "{settings}",
        }
        if found := optimiser_experiment.summary(store, name):
            lines += [*filled(cells, found), ""]
    if all(store.values(part=part, stage="test") for part in PICTURED):
        lines += [
            "![Test accuracy of ResNet-9 and of a vision transformer against seconds](../results/optimisers.png)",
            "",
        ]
    return lines[:-1] or [_NOT_MEASURED]


def optimiser_cost() -> list[str]:
    """A step of ResNet-9 on every machine that it was measured on."""
    lines: list[str] = []
    for store in existing(RESULTS, "optimisers"):
        if found := costs(store):
            columns_of = (
                "method",
                "steps",
                "ms",
                "times Adam",
                "seconds of a pass",
                "state, MB",
                "peak beyond Adam, MB",
            )
            title = f"a step of ResNet-9, 250 images ({made_on(store)})"
            lines += columns(title, found, columns_of, ".3g")
    return lines[:-1] or [_NOT_MEASURED]


def robustness() -> list[str]:
    """Small loops of the optimiser against AdamW's."""
    cells = {
        "loops": "{loops}",
        "in which AdamW learns": "{counted}",
        "silent collapses": "{silent}",
        "collapses with a warning": "{warned}",
        "warnings in runs that learn": "{needless}",
        "ahead or level": "{level:.0%}",
    }
    return filled(cells, loops_trained.summary(open_store(RESULTS, "robustness")))


def convolution_init() -> list[str]:
    """LeNet by Adam at small rates, from several initial weights."""
    cells = {
        f"LeNet on MNIST, {convolutional.INIT_PASSES} passes of Adam": "{start}",
        "rate": "{rate:g}",
        "the start itself": "{first:.4f}",
        "test accuracy, mean of seeds": "{mean:.4f} ± {deviation:.4f}",
    }
    found = convolutional.init_summary(open_store(RESULTS, "convolution", "cuda"))
    return filled(cells, found) if found else _unmeasured("--device cuda --only init")


def _unmeasured(options: str = "") -> list[str]:
    return [f"Not measured yet: `{' '.join(['python -m experiments convolution', options]).strip()}` measures it."]


def convolution_cpu() -> list[str]:
    """LeNet on a CPU: seconds to an accuracy."""
    goal = f"seconds to {convolutional.GOAL:g}, median"
    cells = {
        f"LeNet on MNIST, {convolutional.THREADS} CPU threads": "{method}",
        goal: "{to_goal_s:.1f}",
        "passes": "{passes}",
        "seconds of all": "{seconds:.1f}",
        "test accuracy, mean of seeds": "{mean:.4f} ± {deviation:.4f}",
        "chosen": "{settings}",
    }
    found = convolutional.goal_summary(open_store(RESULTS, "convolution"))
    return filled(cells, found) if found else _unmeasured()


def convolution_blocks() -> list[str]:
    """LeNet by block-coordinate descent."""
    cells = {
        "LeNet by exact blocks": "{pooling}, `{activation}`, lam {lam:g}",
        "digits": "{rows:,}",
        "pass 0": "{pass_0:.4f}",
        "last pass": "{shown}",
        "the lifted rule, pass 0 to the last": "{lifted_rule}",
        "the standard network on the same rows": "{same_rows}",
        "largest KKT residual": "{kkt:.1e}",
        "largest rise of the objective": "{rise:.0e}",
        "seconds of {passes} passes": "{seconds:.1f}",
        "peak memory, GiB": "{peak_gib:.1f}",
    }
    store, named = open_store(RESULTS, "convolution", "cuda"), {"bcd": "average pooling", "bcd-max": "max-pooling"}
    found = [
        row | {"pooling": named[part], "shown": _with_deviation(row | {"mean": row["last"]})}
        for part in named
        for row in image_blocks.summary(store, part)
    ]
    if not found:
        return _unmeasured("--device cuda --only bcd")
    return filled({title.format(**found[0]): text for title, text in cells.items()}, found)


def _with_deviation(row: Row) -> str:
    """A mean over seeds, with the deviation where there are several."""
    return f"{row['mean']:.4f}" + (f" ± {row['deviation']:.4f}" if row["seeds"] > 1 else "")


def convolution_lam() -> list[str]:
    """Mini-batches with lam from small to infinite, one table and a picture."""
    store, body = open_store(RESULTS, "convolution", "cuda"), list[list[str]]()
    for part, noise in itertools.product(convolutional.LAM_PARTS, image_lam.NOISES):
        setting, share = SETTINGS[part], f"{noise:.0%}"
        found = {row["lam"]: row for row in image_lam.summary(store, part) if row["random_labels"] == share}
        scores = [_with_deviation(found[lam]) if lam in found else "" for lam in image_lam.LAMS]
        if found:
            seeds = min(row["seeds"] for row in found.values())
            which = f"{setting.data}, {setting.network}, {setting.passes} passes, {share} random labels, {seeds} seeds"
            body.append([which, *scores])
    if not body:
        return _unmeasured("--device cuda --only lam-mnist --only lam-cifar")
    title = f"test accuracy, mean of seeds; lam in {image_lam.UNIT}"
    return [*grid([title, *image_lam.LAMS], body), "", "![Test accuracy against lam](../results/convolution-lam.png)"]
