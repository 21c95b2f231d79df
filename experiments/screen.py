"""What every benchmark ends with: a table on the screen and a JSON file under results/."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import liftednn
from liftednn.files import beside

RESULTS = Path(__file__).parents[1] / "results"


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Columns in the order of the first row's keys."""
    columns = list(rows[0])
    cells = [columns, *([_show(row.get(column, "")) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    print(f"\n{title}")
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def machine() -> dict[str, Any]:
    """What a timing depends on."""
    return {
        "liftednn": liftednn.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def store(name: str, rows: Any) -> Path:
    """Write results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    with beside(path) as part:
        part.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    print(f"written to {path.relative_to(RESULTS.parent)}")
    return path
