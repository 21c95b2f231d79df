"""Every public class and function says what its parameters are, and has an example that runs."""

from __future__ import annotations

import doctest
import inspect
import re
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import liftednn as lnn


def public(path: str, module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    for name in sorted(module.__all__):
        found = getattr(module, name)
        yield from (
            public(f"{path}.{name}", found) if isinstance(found, types.ModuleType) else [(f"{path}.{name}", found)]
        )


PUBLIC = dict(public("liftednn", lnn))
CLASSES = {name: found for name, found in PUBLIC.items() if inspect.isclass(found)}
# Methods that users call on the classes of the package, besides those of the protocols.
CALLED = {
    f"{name}.{method}": getattr(CLASSES[f"liftednn.{name}"], method)
    for name, methods in {
        "BCD": ["run", "init"],
        "LiftedClassifier": ["fit", "partial_fit", "predict", "predict_log_proba", "predict_proba", "transform"],
        "LiftedNetwork": [
            "cnn",
            "evaluate",
            "mlp",
            "objective",
            "propagate",
            "prune",
            "scores",
            "with_lam",
            "with_penalty",
        ],
        "LiftedRegressor": ["fit", "partial_fit", "predict", "score", "transform"],
        "MiniBatch": ["run"],
        "Moments": ["of"],
    }.items()
    for method in methods
}


def docstring(found: Any) -> str:
    """Its own, not that of a base class."""
    return (vars(found).get("__doc__") if inspect.isclass(found) else found.__doc__) or ""


def undescribed(found: Any) -> set[str]:
    """Parameters whose names are not in the docstring before its example."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    given = [each.name for each in inspect.signature(found).parameters.values() if each.kind not in kinds]
    text = docstring(found).split(">>>")[0]
    named = [name for name in given if name != "self" and not name.startswith("_")]
    return {name for name in named if not re.search(rf"\b{name}\b", text)}


def methods(kind: type) -> dict[str, Any]:
    own = {name: getattr(kind, name) for name in vars(kind) if not name.startswith("_")}
    return {name: part for name, part in own.items() if inspect.isfunction(part) or inspect.ismethod(part)}


@pytest.mark.parametrize("name", PUBLIC)
def test_it_has_an_example(name: str) -> None:
    assert ">>>" in docstring(PUBLIC[name])


@pytest.mark.parametrize("name", PUBLIC)
def test_its_examples_run(name: str) -> None:
    """As written, after `import torch` and `import liftednn as lnn`."""
    found = PUBLIC[name]
    parts = [found, *methods(found).values()] if name in CLASSES else [found]
    runner = doctest.DocTestRunner()
    for text in map(docstring, parts):
        test = doctest.DocTestParser().get_doctest(text, {"torch": torch, "lnn": lnn}, name, None, None)
        said: list[str] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the same numbers in any order of tests
            runner.run(test, out=said.append)
        assert not runner.failures, "".join(said)


@pytest.mark.parametrize("name", [*PUBLIC, *CALLED])
def test_its_parameters_are_described(name: str) -> None:
    assert undescribed((PUBLIC | CALLED)[name]) == set()


@pytest.mark.parametrize("name", CLASSES)
def test_its_methods_are_described(name: str) -> None:
    """Those of a subclass may be described by the protocol."""
    kind = CLASSES[name]
    assert {each for each, part in methods(kind).items() if not inspect.getdoc(part)} == set()


def test_what_is_missing_is_found() -> None:
    def scale(x: float, factor: float) -> float:
        """x as it is.

        >>> scale(1, factor=2)
        2
        """
        return x * factor

    assert undescribed(scale) == {"factor"}
