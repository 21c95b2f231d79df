"""Saved networks: what is saved comes back to the last bit, what cannot be saved is refused, and so is every damaged file."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import liftednn as lnn
from liftednn import activations, losses, operators, penalties, saving
from liftednn.data.tables import Encoding
from liftednn.runtime.files import beside, check_writable, digest, read_tensors
from liftednn.saving import load, save
from liftednn.training.result import Record

CLASSES = [
    getattr(package, name) for package in (activations, losses, penalties, operators) for name in package.__all__
]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network(activation: Any = "fenchel_relu", loss: Any = "softmax") -> lnn.LiftedNetwork:
    return lnn.LiftedNetwork.mlp([3, 4, 2], activation=activation, loss=loss, lam=0.1 + 0.2, rho=1e-3)


def weights_of(net: lnn.LiftedNetwork) -> list[lnn.Affine]:
    shapes = [layer.operator.weight_shape for layer in net.layers]
    return [lnn.Affine(draw(*shape, seed=place), draw(shape[0])) for place, shape in enumerate(shapes)]


def again(path: Path, net: lnn.LiftedNetwork, classes: Any = (), **more: Any) -> lnn.Saved:
    save(path, net, weights_of(net), **more)
    return load(path, classes)


def with_part(part: Any) -> lnn.LiftedNetwork:
    """A network that has `part` somewhere."""
    first, last = network().layers
    if isinstance(part, operators.AvgPool1d | operators.AvgPool2d):
        sizes = (8,) if isinstance(part, operators.AvgPool1d) else (4, 4)
        part = operators.Composed(operators.Dense(4, 2), part, (1, *sizes))
    if isinstance(part, lnn.Activation):
        return lnn.LiftedNetwork.mlp([3, 4, 2], activation=part)
    if isinstance(part, lnn.Loss):
        return lnn.LiftedNetwork([first, replace(last, divergence=part)])
    if isinstance(part, lnn.Operator):
        read = [lnn.Layer(operators.Dense(1, width), activations.ReLU(), reads=("x0",)) for width in part.in_widths]
        names = tuple(f"x{number}" for number in range(1, 1 + len(read)))
        return lnn.LiftedNetwork([*read, lnn.Layer(part, losses.SquaredError(), reads=names)])
    return lnn.LiftedNetwork([replace(first, penalty=part), last])


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: str(kind.__name__))
def test_every_exported_class_comes_back(kind: type, tmp_path: Path) -> None:
    net = with_part(kind())
    assert again(tmp_path / "model", net).network == net or kind is penalties.Mask


@pytest.mark.parametrize(
    "part",
    [
        activations.ReLU("l1"),
        activations.MaxPool((2, 1, 2, 3)),
        activations.FenchelLeakyReLU(0.1 + 0.2),
        losses.Split(losses.CrossEntropy(), activations.Simplex(), 0.7),
        losses.Split(losses.SquaredError(), activations.HardTanh()),
        penalties.GroupL2(1 / 3, "input"),
        operators.Dense(3, 5, bias=False),
    ],
    ids=repr,
)
def test_fields_come_back_exactly(part: Any, tmp_path: Path) -> None:
    net = with_part(part)
    assert again(tmp_path / "model", net).network == net


def test_a_mask_is_kept_as_a_tensor(tmp_path: Path) -> None:
    mask = draw(4, 3) > 0
    found = again(tmp_path / "model", with_part(penalties.Mask(mask, 0.5))).network.layers[0].penalty
    assert isinstance(found, penalties.Mask)
    assert found.mask is not None
    assert found.mask.dtype == torch.bool
    assert torch.equal(found.mask, mask)
    assert found.rho == 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_weights_and_states_come_back_to_the_last_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    net, buffer = network(), draw(100).to(dtype)
    buffer[:3] = torch.tensor([1e38, -0.0, 1e-42])
    weights = [
        lnn.Affine(buffer[:12].view(3, 4).T, buffer[12:16]),  # views of one buffer, one of them transposed
        lnn.Affine(buffer[16:24].view(2, 4), buffer[24:26].requires_grad_()),
    ]
    states = [torch.cat([buffer[:29], buffer.new_tensor([math.inf])]).view(10, 3), buffer[:0].view(0, 4)]
    save(tmp_path / "model", net, weights, states)
    found = load(tmp_path / "model")
    assert found.states is not None
    for a, b in zip(
        [*weights[0], *weights[1], *states], [*found.weights[0], *found.weights[1], *found.states], strict=True
    ):
        assert b.dtype == dtype
        assert not b.requires_grad
        assert torch.equal(a.contiguous().view(torch.uint8), b.view(torch.uint8))


@pytest.mark.gpu
def test_weights_on_a_gpu_are_saved_from_there(tmp_path: Path) -> None:
    net = network()
    weights = weights_of(net)
    save(tmp_path / "model", net, [lnn.Affine(w.cuda(), b.cuda()) for w, b in weights])
    assert torch.equal(load(tmp_path / "model").weights[0].w, weights[0].w)


def test_without_states_there_are_none(tmp_path: Path) -> None:
    found = again(tmp_path / "model", network())
    assert (found.states, found.history, found.notes) == (None, [], {})


def same(a: Any, b: Any) -> bool:
    """Equal, of the same types, NaN equal to itself."""
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and bool(a == b)


RECORDS = [
    Record(0, math.nan, (), -math.inf, 0.5, 0.1, (0.1, math.inf), (1e-300,), {"w1": 0.0, "x": math.nan}),
    Record(1, 3.0, (0.1 + 0.2, math.nan), 1e22, 0.5, 1.5, steps=2, rate=0.05),
    Record(2, -0.0, (), 1.0, 0.5, 1.5, steps=2, rate=0.05, validation_loss=0.25, validation_score=math.nan),
]


def test_history_comes_back_as_it_was(tmp_path: Path) -> None:
    found = again(tmp_path / "model", network(), history=RECORDS).history
    assert [type(record) for record in found] == [Record, Record, Record]
    for a, b in zip(RECORDS, found, strict=True):
        assert all(same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))


def test_the_history_of_real_runs_comes_back(tmp_path: Path) -> None:
    net, x, y = network(), draw(60, 3), torch.arange(60) % 2
    solution = lnn.BCD(passes=1).run(net, x, y)
    fit = lnn.MiniBatch(passes=2).run(net, x, y, validation=(x, y))
    save(tmp_path / "model", net, solution.weights, solution.states, [*solution.history, *fit.history])
    found = load(tmp_path / "model")
    assert found.history == [*solution.history, *fit.history]
    assert found.states is not None
    assert net.evaluate(found.weights, found.states) == net.evaluate(solution.weights, solution.states)


NOTES: dict[str, Any] = {
    "plain": [1, True, None, "ä \U0001f600", 2**70, 0.1 + 0.2, -0.0, {"deep": [[], {}]}],
    "odd": (math.inf, -math.inf, math.nan, ("tuple",)),
    "!class": "a key like one of the format's own",
    "!float": {"!tuple": 3, "!!": 4},
    "": "",
}


def test_notes_come_back_as_they_were(tmp_path: Path) -> None:
    assert same(again(tmp_path / "model", network(), notes=NOTES).notes, NOTES)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["!class", "!tuple", "!default"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_any_notes_come_back(notes: dict[str, Any]) -> None:
    text = json.dumps(saving._encode(notes, "notes", {}), allow_nan=False)
    assert same(saving._decode(json.loads(text), {}, {}), notes)


def test_numbers_of_numpy_come_back_as_python_s(tmp_path: Path) -> None:
    found = again(
        tmp_path / "model", network(), notes={"a": np.float32(0.5), "b": np.int64(3), "c": np.float64(math.inf)}
    )
    assert same(found.notes, {"a": 0.5, "b": 3, "c": math.inf})


def test_the_header_is_strict_json(tmp_path: Path) -> None:
    save(tmp_path / "model", network(), weights_of(network()), notes=NOTES)
    raw = (tmp_path / "model").read_bytes()
    head = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]

    def fail(constant: str) -> None:
        raise AssertionError(constant)

    assert head["format"] == "liftednn-model-1"
    assert json.loads(head["facts"], parse_constant=fail)["layers"][0]["penalty"] == {"!class": "L2", "rho": 1e-3}


@dataclass(frozen=True)
class Stretched(activations.FenchelReLU):
    scale: float = 2.0
    shape: Callable[[Tensor], Tensor] = torch.relu


class Bare(activations.Sigmoid):
    """A class of methods alone."""


class Stateful(lnn.Penalty):
    def __init__(self, strength: float) -> None:
        self.strength = strength

    def value(self, w: Tensor) -> Tensor:
        return w.sum()

    def prox(self, w: Tensor, step: float) -> Tensor:
        return w


def test_own_classes_come_back_where_they_are_named(tmp_path: Path) -> None:
    net = lnn.LiftedNetwork.mlp([3, 4, 4, 2], activation=[Stretched(0.3), Bare()])
    assert again(tmp_path / "model", net, [Stretched, Bare]).network == net
    with pytest.raises(ValueError, match=r"model cannot be rebuilt: .*no class Stretched.*classes=\[Stretched\]"):
        load(tmp_path / "model")


def test_a_class_with_the_name_of_another_is_refused(tmp_path: Path) -> None:
    impostor: Any = dataclass(frozen=True)(type("ReLU", (activations.FenchelReLU,), {}))
    with pytest.raises(ValueError, match="layer 0, divergence: the class ReLU has the name of one of liftednn: rename"):
        save(tmp_path / "model", network(impostor()), weights_of(network()))
    save(tmp_path / "model", network(), weights_of(network()))
    with pytest.raises(ValueError, match="the class ReLU has the name of one of liftednn: rename"):
        load(tmp_path / "model", [impostor])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"network": network(activations.Monotone(lambda u: u, lambda z: z))}, r"layer 0, divergence, phi: <function"),
        ({"network": with_part(Stateful(1.0))}, "Stateful has attributes but is not a dataclass: make it one"),
        ({"notes": {"a": {1: 2}}}, r"notes, 'a': the key 1 is not a string"),
        ({"notes": {"a": [print]}}, r"notes, 'a': <built-in function print> cannot be stored.*a field's default"),
        ({"notes": {"a": np.ones(2)}}, r"notes, 'a': array.* cannot be stored"),
        ({"notes": {"a": torch.ones(2).to_sparse()}}, "is sparse or complex"),
        ({"notes": {"a": activations.ReLU}}, "cannot be stored"),
        ({"weights": weights_of(network())[:1]}, "the network has 2 layers, weights were given for 1"),
        ({"weights": weights_of(network())[::-1]}, r"layer 0 takes w \(4, 3\) and b \(4,\), got \(2, 4\) and \(2,\)"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_what_cannot_be_stored_is_refused_and_nothing_is_written(
    change: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    given = {"network": network(), "weights": weights_of(network()), **change}
    with pytest.raises(ValueError, match=sentence):
        save(tmp_path / "model", **given)
    assert os.listdir(tmp_path) == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "model"
    save(path, network(), weights_of(network()), history=RECORDS, notes=NOTES)
    return path.read_bytes()


def test_a_truncated_file_is_refused(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model"
    for length in [*range(0, len(whole), 97), 4, 8, 9, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"model is not a complete model file"):
            load(path)


def test_one_wrong_bit_anywhere_is_noticed(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model"
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model (is|was|cannot)"):
            load(path)


def stored(path: Path, version: str, metadata: Any, tensors: dict[str, Tensor] | None = None) -> Path:
    """A file with a valid checksum; `metadata` as text, or as what JSON makes of them."""
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    save_file(tensors or {}, path, {"format": version, "facts": text, "sha256": digest(text, tensors or {})})
    return path


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path / "model", "liftednn-model-12", {})
    with pytest.raises(ValueError, match=r"model was written by a newer liftednn \(its format is 12.* upgrade"):
        load(path)


def test_a_file_of_an_earlier_version_loads_and_predicts() -> None:
    """Written by `liftednn fit` when the format was new: files of format 1 must load for as long as it is supported."""
    found = load(Path(__file__).parent / "files" / "model-1.safetensors")
    assert [type(layer.divergence).__name__ for layer in found.network.layers] == [
        "FenchelLeakyReLU",
        "SoftmaxCrossEntropy",
    ]
    assert [record.number for record in found.history] == [1, 2]
    encoding = Encoding.from_dict(found.notes["table"])
    assert (encoding.width, encoding.classes) == (3, ("no", "yes"))
    shares = found.network.scores(found.weights, torch.tensor([[0.2369, 0.0, 1.0]])).softmax(1)
    assert torch.allclose(shares, torch.tensor([[0.53271, 0.46729]]), atol=1e-4)


def changed(metadata: Any, where: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at one place; `gone`: without it."""
    copy = json.loads(json.dumps(metadata))
    inner = copy
    for key in where[:-1]:
        inner = inner[key]
    if value is gone:
        del inner[where[-1]]
    else:
        inner[where[-1]] = value
    return copy


def places_in(metadata: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of everything in nested dictionaries and lists."""
    parts = (
        metadata.items() if isinstance(metadata, dict) else enumerate(metadata) if isinstance(metadata, list) else ()
    )
    return [place for key, part in parts for place in ((*before, key), *places_in(part, (*before, key)))]


gone = object()
LIES = [
    gone, None, "x", -1, 10**400, True, [], {}, [[]], math.nan, {"!float": "nan"}, {"!tuple": 3}, {"!tensor": "none"},
    {"!tensor": []}, {"!tensor": "weights.0.b"}, {"!class": "Layer"}, {"!class": []}, {"!class": "LeakyReLU", "alpha": "a"}, {"!odd": 1},
]  # fmt: skip


def test_forged_facts_are_refused_or_give_a_network_that_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value in a file's metadata, replaced by every wrong one: nothing but a ValueError, or a network whose scores are numbers."""
    path, net = tmp_path / "model", network(activations.FenchelClip(0.0, 1.0))
    save(path, net, weights_of(net), notes={"a": (1, math.inf)})
    metadata, tensors = read_tensors(path, "", "", lambda _: None)
    refused = 0
    for where, lie in itertools.product(places_in(metadata), LIES):
        forged = changed(metadata, where, lie)
        monkeypatch.setattr(saving, "read_tensors", lambda *_, forged=forged: (forged, tensors))  # a file takes longer
        try:
            found = load(path)
        except ValueError:
            refused += 1
        else:
            assert not found.network.scores(found.weights, draw(2, 3)).isnan().any()
            assert isinstance(found.notes, dict)
    assert refused > 400


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({}, r"its metadata should have \['history', 'layers', 'notes', 'states'\], and has \[\]"),
        ({"layers": [], "history": [], "notes": {}, "states": None}, ""),
        ({"layers": [], "history": [], "notes": {}, "states": None, "more": 1}, "and has .*'more'"),
        ({"layers": [{"!class": "Layer", "colour": 1}], "history": [], "notes": {}, "states": None}, "colour"),
        (
            {"layers": [{"!class": "Checkpoint", "path": "a"}], "history": [], "notes": {}, "states": None},
            "no class Checkpoint",
        ),
        (
            {"layers": [{"!tensor": "none"}], "history": [], "notes": {}, "states": None},
            "not a value that `save` writes",
        ),
        ({"layers": 3, "history": [], "notes": {}, "states": None}, "TypeError"),
    ],
    ids=["empty", "no layers", "unknown key", "unknown field", "unknown class", "unknown tensor", "number"],
)
def test_a_header_that_makes_no_sense_is_refused(metadata: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"model cannot be rebuilt.*{reason}"):
        load(stored(tmp_path / "model", "liftednn-model-1", metadata))


@pytest.mark.parametrize("metadata", ["", "[", "3", "[]", "[" * 100_000, '{"layers": ' * 100_000])
def test_metadata_that_is_no_object_are_refused(metadata: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model is not a complete model file"):
        load(stored(tmp_path / "model", "liftednn-model-1", metadata))


def test_nesting_that_is_too_deep_is_neither_saved_nor_loaded(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(3000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply, or contain themselves: flatten them"):
        save(tmp_path / "model", network(), weights_of(network()), notes={"deep": deep})
    text = '{"layers": [], "history": [], "states": null, "notes": ' + "[" * 900 + "]" * 900 + "}"
    with pytest.raises(ValueError, match=r"model (cannot be rebuilt|is not a complete)"):
        load(stored(tmp_path / "model", "liftednn-model-1", text))


def odd_weights(change: Callable[[Tensor], Tensor]) -> list[lnn.Affine]:
    first, last = weights_of(network())
    return [first, lnn.Affine(last.w, change(last.b))]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda b: b / 0, "the weights of layer 1 hold NaN or infinity"),
        (lambda b: b * math.nan, "the weights of layer 1 hold NaN or infinity"),
        (
            lambda b: b.long(),
            "layer 1 are torch.float32 and torch.int64, .* to one of float16, bfloat16, float32, float64",
        ),
        (lambda b: b.double(), "layer 1 are torch.float32 and torch.float64"),
        (lambda b: b.to(torch.float8_e5m2), "layer 1 are torch.float32 and torch.float8_e5m2"),
    ],
    ids=["infinite", "nan", "integer", "another precision", "float8"],
)
def test_weights_that_are_no_finite_numbers_are_neither_saved_nor_loaded(
    change: Callable[[Tensor], Tensor], sentence: str, tmp_path: Path
) -> None:
    path, weights = tmp_path / "model", odd_weights(change)
    with pytest.raises(ValueError, match=sentence):
        save(path, network(), weights)
    assert not path.exists()
    save(path, network(), weights_of(network()))
    with safe_open(path, "pt") as file:
        metadata = file.metadata()["facts"]
    tensors = {
        f"weights.{place}.{name}": part
        for place, pair in enumerate(weights)
        for name, part in zip("wb", pair, strict=True)
    }
    with pytest.raises(ValueError, match=f"model cannot be rebuilt: .*{sentence}"):
        load(stored(path, "liftednn-model-1", metadata, tensors))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int32, torch.float8_e4m3fn, torch.bool], ids=str)
def test_weights_all_of_a_dtype_that_is_none_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    weights = [lnn.Affine(w.to(dtype), b.to(dtype)) for w, b in weights_of(network())]
    with pytest.raises(ValueError, match=r"convert all to one of float16|is sparse or complex"):
        save(tmp_path / "model", network(), weights)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"format": "liftednn-checkpoint-1"}], ids=str)
def test_a_safetensors_file_of_another_kind_is_refused(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "other", metadata)
    with pytest.raises(ValueError, match="other is not a model of liftednn"):
        load(tmp_path / "other")


def test_text_folders_and_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("to be or not to be, that is the question")
    with pytest.raises(ValueError, match=r"notes\.txt is not a complete model file"):
        load(tmp_path / "notes.txt")
    with pytest.raises(ValueError, match="is a folder: name a file in it"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none"):
        load(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "error", "sentence"),
    [("", ValueError, "is a folder"), ("none/model", FileNotFoundError, "there is no folder .*none: make it first")],
    ids=["folder", "missing folder"],
)
def test_an_unwritable_path_is_an_error(name: str, error: type[Exception], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=sentence):
        save(tmp_path / name, network(), weights_of(network()))


def test_what_is_no_ordinary_file_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        save(tmp_path / "pipe", network(), weights_of(network()))
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        load(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def full_disk(self: Path, data: bytes) -> None:
    with self.open("wb") as file:
        file.write(data[:100])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_old_file(whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    path.write_bytes(whole)
    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match=r"model could not be written: No space left on device; it is unchanged"):
        save(path, network(), weights_of(network()))
    assert path.read_bytes() == whole
    assert os.listdir(tmp_path) == ["model"]


def test_ctrl_c_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "model", network(), weights_of(network()))
    assert os.listdir(tmp_path) == []


def test_a_users_own_part_file_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "model.part").write_text("mine")
    save(tmp_path / "model", network(), weights_of(network()))
    assert (tmp_path / "model.part").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["model", "model.part"]


def test_two_runs_that_write_the_same_file_do_not_share_a_part(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with beside(path) as one, beside(path) as two:
        assert one != two
        one.write_text("one")
        two.write_text("two")
    assert path.read_text() == "one"  # the one that ends last
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("there", [True, False], ids=["to a file", "to none yet"])
def test_a_link_stays_and_what_it_points_to_is_written(there: bool, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    far, link = tmp_path / "far" / "model", tmp_path / "link"
    if there:
        far.write_text("old")
    link.symlink_to(far)
    check_writable(link)
    save(link, network(), weights_of(network()))
    assert link.is_symlink()
    assert load(far).network == network()
    assert os.listdir(tmp_path / "far") == ["model"]


def test_an_unwritable_folder_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(tmp_path / "model")
    assert os.listdir(tmp_path) == []

    def denied(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "touch", denied)  # since root may write anywhere
    with pytest.raises(PermissionError, match=r"model cannot be written \(Read-only file system\): name another file"):
        check_writable(tmp_path / "model")
    with pytest.raises(OSError, match=r"model could not be written: Read-only file system; it is unchanged"):
        save(tmp_path / "model", network(), weights_of(network()))


def test_a_file_is_readable_by_others_as_any_new_file_is(tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    save(tmp_path / "model", network(), weights_of(network()))
    assert (tmp_path / "model").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_a_file_of_another_kind_is_refused_before_its_tensors_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "other")
    monkeypatch.setattr(Tensor, "clone", None)
    with pytest.raises(ValueError, match="other is not a model of liftednn"):
        load(tmp_path / "other")
