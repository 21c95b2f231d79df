"""A trained network in one file: tensors in safetensors format, with JSON in its header; no pickle.

In that JSON an object is a dictionary of its fields, and a key that begins with "!" marks what JSON cannot store:

    {"!class": "L2", "rho": 0.001}   {"!tuple": [2, 2]}   {"!float": "inf"}   {"!tensor": "field.0"}   {"!default": "phi"}

Only classes that liftednn exports, or that the caller names, are built from it. A checksum detects damaged files, and a file with a
valid checksum that does not describe a network is refused too.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednn import activations, losses, operators, penalties, robust
from liftednn.base import Affine, Divergence, Operator, Penalty
from liftednn.network import Layer, LiftedNetwork
from liftednn.runtime.files import read_tensors, rebuilding, write_tensors
from liftednn.training.result import Record

__all__ = ["Saved", "load", "save"]

_FORMAT, _VERSION = "liftednn-model", 1
# Dtypes that weights may have.
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_CURE = "take another copy, or save it again"
_KEYS = {"layers", "states", "history", "notes"}
_PACKAGES = (activations, losses, penalties, operators, robust)
_OWN: dict[str, type] = {
    **{
        name: kind
        for package in _PACKAGES
        for name in package.__all__
        if isinstance(kind := getattr(package, name), type)
    },
    **{kind.__name__: kind for kind in (Layer, Record)},
}


@dataclass(frozen=True)
class Saved:
    """What a file holds, as it was given to `save`: network, weights, states, history and notes; tensors are on the CPU.

    >>> network, weights = lnn.init.from_module(torch.nn.Linear(3, 2))
    >>> lnn.Saved(network, weights, states=None, history=[], notes={"rows": 100}).notes
    {'rows': 100}
    """

    network: LiftedNetwork
    weights: list[Affine]
    states: list[Tensor] | None
    history: list[Any]
    notes: dict[str, Any]


def save(
    path: str | Path,
    network: LiftedNetwork,
    weights: Sequence[tuple[Tensor, Tensor]],
    states: Sequence[Tensor] | None = None,
    history: Sequence[Record] = (),
    notes: dict[str, Any] | None = None,
) -> None:
    """Write a network and its weights to `path`, replacing a file that is there.

    weights   finite, all of one dtype: float16, bfloat16, float32 or float64
    states    those of a full-batch solution, to resume from
    history   the records of a run
    notes     your own data, as JSON can store it; NaN, infinity and tuples are allowed

    >>> from tempfile import TemporaryDirectory
    >>> network, weights = lnn.init.from_module(torch.nn.Linear(3, 2))
    >>> with TemporaryDirectory() as folder:
    ...     lnn.save(f"{folder}/model.safetensors", network, weights, notes={"rows": 100})
    ...     lnn.load(f"{folder}/model.safetensors").notes
    {'rows': 100}
    """
    _check_weights(network, weights)
    tensors = {
        f"weights.{number}.{name}": pair[at] for number, pair in enumerate(weights) for at, name in enumerate("wb")
    }
    tensors |= {f"states.{number}": state for number, state in enumerate(states or ())}
    text = _metadata_of(network, states, history, notes, tensors)
    whole = {name: _plain(tensor, name) for name, tensor in tensors.items()}
    write_tensors(path, f"{_FORMAT}-{_VERSION}", text, whole)


def _metadata_of(
    network: LiftedNetwork,
    states: Sequence[Tensor] | None,
    history: Sequence[Record],
    notes: dict[str, Any] | None,
    tensors: dict[str, Tensor],
) -> str:
    """All but the tensors, as JSON; tensors inside layers and notes are added to `tensors`."""
    try:
        metadata = {
            "layers": [_encode(layer, f"layer {number}", tensors) for number, layer in enumerate(network.layers)],
            "states": None if states is None else len(states),
            "history": [_encode(record, "history", tensors) for record in history],
            "notes": _encode(dict(notes or {}), "notes", tensors),
        }
        return json.dumps(metadata, allow_nan=False)
    except RecursionError as error:
        raise ValueError("notes or history are nested too deeply, or contain themselves: flatten them") from error


def load(path: str | Path, classes: Sequence[type] = ()) -> Saved:
    """Read what `save` wrote to `path`; returns a `Saved`. A damaged file, or one of another kind, is a ValueError.

    classes   your own classes that the network uses, such as a penalty; those of liftednn are known

    >>> from tempfile import TemporaryDirectory
    >>> network, weights = lnn.init.from_module(torch.nn.Linear(3, 2))
    >>> with TemporaryDirectory() as folder:
    ...     lnn.save(f"{folder}/model.safetensors", network, weights)
    ...     lnn.load(f"{folder}/model.safetensors").network == network
    True
    """
    known = _known(classes)
    metadata, tensors = read_tensors(path, "model file", _CURE, partial(_check_format, path))
    with rebuilding(path, _CURE):
        return _rebuilt(metadata, known, tensors)


def _rebuilt(metadata: dict[str, Any], known: dict[str, Callable[..., Any]], tensors: dict[str, Tensor]) -> Saved:
    if set(metadata) != _KEYS:
        raise ValueError(f"its metadata should have {sorted(_KEYS)}, and has {sorted(metadata)}: {_CURE}")
    network = LiftedNetwork([_decode(layer, known, tensors) for layer in metadata["layers"]])
    history, notes = (_decode(metadata[name], known, tensors) for name in ("history", "notes"))
    if not isinstance(history, list) or not isinstance(notes, dict):
        raise ValueError(f"its history should be a list and its notes a dictionary: {_CURE}")
    numbers = range(len(network.layers))
    weights = [Affine(tensors[f"weights.{number}.w"], tensors[f"weights.{number}.b"]) for number in numbers]
    count = metadata["states"]
    states = None if count is None else [tensors[f"states.{number}"] for number in range(count)]
    _check_weights(network, weights)
    _check_forward(network, weights)
    return Saved(network, weights, states, history, notes)


def _check_weights(network: LiftedNetwork, weights: Sequence[tuple[Tensor, Tensor]]) -> None:
    if len(weights) != len(network.layers):
        raise ValueError(
            f"the network has {len(network.layers)} layers, weights were given for {len(weights)}: give a pair (w, b) for each"
        )
    for number, (layer, (w, b)) in enumerate(zip(network.layers, weights, strict=True)):
        shape, units = layer.operator.weight_shape, (layer.operator.outputs,)
        if w.shape != shape or b.shape != units:
            raise ValueError(f"layer {number} takes w {shape} and b {units}, got {tuple(w.shape)} and {tuple(b.shape)}")
        for part in (w, b):
            _check_dense(part, f"layer {number}")
        if w.dtype not in _DTYPES or {w.dtype, b.dtype} != {weights[0][0].dtype}:
            allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
            raise ValueError(
                f"the weights of layer {number} are {w.dtype} and {b.dtype}, those of layer 0 {weights[0][0].dtype}: convert all "
                f"to one of {allowed}"
            )
        if not bool(w.isfinite().all() and b.isfinite().all()):
            raise ValueError(
                f"the weights of layer {number} hold NaN or infinity: train again, or take an earlier copy"
            )
    network.check_shared([Affine(*pair) for pair in weights])


def _check_forward(network: LiftedNetwork, weights: Sequence[Affine]) -> None:
    """Refuse a network that cannot predict a row of zeros, whatever is wrong with its layers' fields.

    In float64, since a layer may have parameters of another precision than the weights.
    """
    double = [Affine(w.double(), b.double()) for w, b in weights]
    zeros = double[0].w.new_zeros(1, network.in_width)
    if bool(network.scores(double, zeros).isnan().any()):
        raise ValueError(f"its scores are NaN, since a layer has a NaN among its parameters: {_CURE}")


def _check_dense(tensor: Tensor, name: str) -> None:
    if tensor.layout != torch.strided or tensor.is_complex():
        raise ValueError(f"{name} is sparse or complex, which a file cannot hold: give a dense, real tensor")


def _plain(tensor: Tensor, name: str) -> Tensor:
    """A copy on the CPU: safetensors does not store tensors that share memory."""
    _check_dense(tensor, name)
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _check_format(path: str | Path, given: str) -> None:
    version = re.fullmatch(rf"{_FORMAT}-([1-9][0-9]{{0,8}})", given)
    if version is None:
        raise ValueError(f"{path} is not a model of liftednn: name a file that `liftednn.save` wrote")
    if int(version[1]) > _VERSION:
        raise ValueError(
            f"{path} was written by a newer liftednn (its format is {version[1]}, this one reads up to {_VERSION}): upgrade"
        )


def _known(classes: Sequence[type]) -> dict[str, Callable[..., Any]]:
    for given in classes:
        if _OWN.get(given.__name__, given) is not given:
            raise ValueError(f"the class {given.__name__} has the name of one of liftednn: rename it")
    return {**_OWN, "Record": _record, "Pass": _record, **{given.__name__: given for given in classes}}


def _record(**fields: Any) -> Record:
    """A record, also as earlier versions wrote it: `Pass` for one of mini-batches, `sweep` for the number of a full one."""
    number = fields.pop("sweep", fields.pop("number", None))
    return Record(number=number, **fields)


def _encode(value: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """As JSON; `where` names the value in an error. Tensors inside it are added to `tensors`."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"!float": repr(float(value))}
    if isinstance(value, Tensor):
        name = f"field.{sum(name.startswith('field.') for name in tensors)}"
        tensors[name] = value
        return {"!tensor": name}
    if isinstance(value, list | tuple):
        items = [_encode(item, where, tensors) for item in value]
        return items if isinstance(value, list) else {"!tuple": items}
    if isinstance(value, dict):
        return {_key(key, where): _encode(item, f"{where}, {key!r}", tensors) for key, item in value.items()}
    return _encode_object(value, where, tensors)


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise ValueError(f"{where}: the key {key!r} is not a string, and JSON has only string keys: give {str(key)!r}")
    return f"!{key}" if key.startswith("!") else key


def _encode_object(value: Any, where: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    kind = type(value)
    storable = dataclasses.is_dataclass(value) or isinstance(value, Divergence | Penalty | Operator)
    if not storable or isinstance(value, type):
        raise ValueError(
            f"{where}: {value!r} cannot be stored, since a file holds numbers, strings, tensors and dataclasses; for a function, "
            "write a class that has it as a field's default, or as a method"
        )
    if _OWN.get(kind.__name__, kind) is not kind:
        raise ValueError(f"{where}: the class {kind.__name__} has the name of one of liftednn: rename it")
    if not dataclasses.is_dataclass(value) and vars(value):
        raise ValueError(f"{where}: {kind.__name__} has attributes but is not a dataclass: make it one, to store them")
    fields = [field for field in dataclasses.fields(value) if field.init] if dataclasses.is_dataclass(value) else []
    parts = {}
    for field in fields:
        part = getattr(value, field.name)
        same = callable(part) and part is field.default  # a function is not stored: the class has it as a default
        parts[field.name] = {"!default": field.name} if same else _encode(part, f"{where}, {field.name}", tensors)
    return {"!class": kind.__name__, **parts}


def _decode(value: Any, known: dict[str, Callable[..., Any]], tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, known, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    marks = [key for key in value if key.startswith("!") and not key.startswith("!!")]
    if marks and marks != ["!class"]:
        return _decode_marked(value, known, tensors)
    items = {key: _decode(item, known, tensors) for key, item in value.items() if not _left_out(key, item)}
    if not marks:
        return {key.removeprefix("!"): item for key, item in items.items()}
    if value["!class"] not in known:
        raise ValueError(
            f"liftednn has no class {value['!class']}; if it is yours, load(path, classes=[{value['!class']}])"
        )
    return known[value["!class"]](**items)


def _decode_marked(value: dict[str, Any], known: dict[str, Callable[..., Any]], tensors: dict[str, Tensor]) -> Any:
    """A float, tensor or tuple that JSON cannot store as such."""
    if len(value) == 1:
        ((mark, held),) = value.items()
        if mark == "!float" and held in ("nan", "inf", "-inf"):
            return float(held)
        if mark == "!tensor" and held in tensors:
            return tensors[held]
        if mark == "!tuple" and isinstance(held, list):
            return tuple(_decode(held, known, tensors))
    raise ValueError(f"{str(value)[:100]} is not a value that `save` writes: {_CURE}")


def _left_out(key: str, item: Any) -> bool:
    return key == "!class" or (isinstance(item, dict) and "!default" in item)
