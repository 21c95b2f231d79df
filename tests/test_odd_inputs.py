"""Odd inputs to the functions that train: each is read correctly, or refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
import scipy.sparse  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import liftednn as lnn
from liftednn.data.arrays import as_tensor

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 2
FRAME = pd.DataFrame(X.numpy(), columns=["a", "b", "c"])


def module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def network() -> lnn.LiftedNetwork:
    return lnn.LiftedNetwork.mlp([3, 4, 2], activation="fenchel_relu")


def weights_of(fit: Any) -> list[Tensor]:
    return [part for pair in fit.weights for part in pair]


CALLS: dict[str, Callable[[Any, Any], list[Tensor]]] = {
    "lifted_": lambda x, y: list(lnn.init.lifted_(module(), x, y, passes=1).parameters()),
    "MiniBatch": lambda x, y: weights_of(lnn.MiniBatch(passes=1).run(network(), x, y)),
    "BCD": lambda x, y: weights_of(lnn.BCD(passes=0).run(network(), x, y)),
    "automatic": lambda x, y: [torch.tensor([layer.lam for layer in lnn.automatic(network(), x, y).layers])],
}
ROWS: dict[str, tuple[Any, Any, str]] = {
    "text in a table": (FRAME.assign(a="x"), Y, "x cannot be read as numbers .its entries are of type object"),
    "dates": (np.zeros((12, 3), "M8[s]"), Y, "x cannot be read as numbers .its entries are of type datetime64"),
    "masked": (np.ma.masked_greater(X.numpy(), 0), Y, "x cannot be read as numbers .some entries are masked"),
    "too large an integer": (X, [2**70] * 12, "y cannot be read as numbers"),
    "scipy": (scipy.sparse.csr_array(X.numpy()), Y, r"x is a sparse matrix.*give x\.toarray"),
    "scipy y": (X, scipy.sparse.csr_array(Y.numpy()[:, None]), r"y is a sparse matrix.*give y\.toarray"),
    "sparse": (X.to_sparse(), Y, r"x is a sparse or nested tensor.*give x\.to_dense"),
    "complex": (X + 0j, Y, r"x holds torch\.complex64, and training needs real numbers"),
    "meta": (X.to("meta"), Y, "x is on the meta device"),
    "no rows": (torch.tensor(1.0), Y, r"x has (none|shape \(\))"),
    "large": (
        1e20 * X,
        Y,
        r"x holds numbers as large as 2.*e\+20, and sums of their squares overflow in torch\.float32",
    ),
    "one large": (torch.cat([X[1:], 1e20 * X[:1]]), Y, r"x holds numbers as large as"),
    "small": (1e-30 * X, Y, r"x holds numbers of at most .*e-30, whose squares are 0 in torch\.float32"),
}
ALONE: dict[str, tuple[Any, str]] = {
    "table": (FRAME, "without y, x must be an iterable of .x, y. batches, got DataFrame: give y too"),
    "series": (FRAME["a"], "got Series: give y too"),
    "scipy": (scipy.sparse.csr_array(X.numpy()), "got csr_array: give y too"),
    "samples": (
        DataLoader(TensorDataset(X, Y), batch_size=None),
        r"x of shape \(3,\) and y of shape \(\): give batches",
    ),
    "pairs of numbers": ([[1, 2], [3, 4]], r"x of shape \(\) and y of shape \(\)"),
    "other widths": ([(X, Y), (X[:, :2], Y)], "have different shapes"),
    "other responses": ([(X, Y), (X, torch.stack([Y, 1 - Y], 1))], "have different shapes"),
    "sparse": ([(X.to_sparse(), Y)], "x is a sparse or nested tensor"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("case", ROWS)
def test_what_is_no_matrix_of_real_numbers_is_refused(call: str, case: str) -> None:
    x, y, sentence = ROWS[case]
    with pytest.raises(ValueError, match=sentence):
        CALLS[call](x, y)


@pytest.mark.parametrize("call", ["lifted_", "MiniBatch", "automatic"])
@pytest.mark.parametrize("case", ALONE)
def test_what_gives_no_batches_is_refused(call: str, case: str) -> None:
    x, sentence = ALONE[case]
    with pytest.raises(ValueError, match=sentence):
        CALLS[call](x, None)


@pytest.mark.parametrize("call", CALLS)
def test_a_table_of_numbers_is_its_matrix(call: str) -> None:
    found = CALLS[call](FRAME, pd.Series(Y.numpy()))
    for a, b in zip(found, CALLS[call](X, Y), strict=True):
        assert torch.equal(a, b)


def test_prediction_takes_a_table_too() -> None:
    net, weights = lnn.init.from_module(module())
    assert torch.equal(lnn.predict.feedforward(net, weights, FRAME), lnn.predict.feedforward(net, weights, X))
    with pytest.raises(ValueError, match="x is a sparse matrix"):
        lnn.predict.feedforward(net, weights, scipy.sparse.csr_array(X.numpy()))


def test_float64_beyond_its_squares_is_refused() -> None:
    for call in ("MiniBatch", "BCD", "automatic"):
        with pytest.raises(ValueError, match=r"x holds numbers as large as .*e\+200.*torch\.float64"):
            CALLS[call](1e200 * X.double(), Y)
    with pytest.raises(ValueError, match=r"x holds NaN or infinity in torch\.float32"):
        CALLS["lifted_"](1e200 * X.double(), Y)


def test_responses_beyond_their_squares_are_refused() -> None:
    net = lnn.LiftedNetwork.mlp([3, 4, 1], activation="fenchel_relu", loss="squared")
    for trainer in (lnn.MiniBatch(passes=1), lnn.BCD(passes=0)):
        with pytest.raises(ValueError, match=r"y holds numbers as large as .*e\+20.*scale or standardise y"):
            trainer.run(net, X, 1e20 * X[:, 0])


def test_batches_of_two_precisions_are_trained_on_in_the_wider() -> None:
    fit = lnn.MiniBatch(passes=1).run(network(), [(X, Y), (X.double(), Y)])
    assert fit.weights[0].w.dtype == torch.float64


def test_arrays_that_torch_cannot_share_are_copied() -> None:
    locked = X.numpy().copy()
    locked.flags.writeable = False
    for given in (locked, X.numpy().astype(">f4"), X.numpy()[::-1][::-1], np.asfortranarray(X.numpy())):
        assert torch.equal(as_tensor(given, "x"), X)
    assert torch.equal(as_tensor(X[:1].numpy()[::-1], "x"), X[:1])  # contiguous, and its stride is negative


def tied(tie: Callable[[nn.Sequential], None]) -> nn.Sequential:
    made = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    tie(made)
    return made


def by_data(made: Any) -> None:
    made[2].weight.data = made[0].weight.data.t()


def by_parameter(made: Any) -> None:
    made[2].weight = nn.Parameter(made[0].weight.data.t())


def by_bias(made: Any) -> None:
    made[2].bias.data = made[0].bias.data[:3]


@pytest.mark.parametrize("tie", [by_data, by_parameter, by_bias])
def test_parameters_in_the_memory_of_another_one_are_refused(tie: Callable[[nn.Sequential], None]) -> None:
    with pytest.raises(ValueError, match=r"module\.2: Linear.* has weights that share memory with another parameter"):
        lnn.init.from_module(tied(tie))


def test_neighbours_in_one_vector_are_not_tied() -> None:
    made: Any = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    flat = torch.nn.utils.parameters_to_vector(made.parameters()).detach()
    taken = 0
    for part in made.parameters():
        part.data = flat[taken : taken + part.numel()].view_as(part)
        taken += part.numel()
    assert len(lnn.init.from_module(made)[1]) == 2
    assert torch.isfinite(CALLS["lifted_"](X, Y)[0]).all()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn], ids=str)
def test_weights_that_are_no_real_numbers_are_refused(dtype: torch.dtype) -> None:
    made = module()
    made[0].weight.data = made[0].weight.data.to(dtype)
    with pytest.raises(ValueError, match=rf"module\.0: Linear.* has weights of {dtype}: convert"):
        lnn.init.lifted_(made, X, Y)


def test_weights_without_memory_of_their_own_are_refused() -> None:
    made = module()
    made[0].weight.data = torch.zeros(1, 1).expand(4, 3)
    with pytest.raises(ValueError, match="some share memory"):
        lnn.init.lifted_(made, X, Y)


def test_what_is_no_module_is_refused() -> None:
    holed, cut, bare = module(), module(), module()
    holed.add_module("hole", None)
    cut[0].weight.data = torch.zeros(2, 3)
    bare[0].weight = None  # type: ignore[assignment]
    cases: list[tuple[Any, str]] = [
        (None, "module must be a torch.nn.Module such as a Sequential, got NoneType"),
        (nn.Linear, "got the class Linear"),
        (holed, r"module\.hole is None"),
        (cut, r"module\.0: Linear.* has a weight of another shape"),
        (bare, r"module\.0: Linear.* has a weight of another shape, or none"),
    ]
    for given, sentence in cases:
        with pytest.raises(ValueError, match=sentence):
            lnn.init.from_module(given)


PAIRS = [(torch.ones(4, 3), torch.zeros(4)), (torch.ones(2, 4), torch.zeros(2))]
OPTIONS: dict[str, tuple[Callable[[], object], str]] = {
    "network": (lambda: lnn.MiniBatch().run(module(), X, Y), "network must be a LiftedNetwork, got Sequential"),  # type: ignore[arg-type]
    "network of BCD": (lambda: lnn.BCD().run(None, X, Y), "network must be a LiftedNetwork, got NoneType"),  # type: ignore[arg-type]
    "network, automatic": (lambda: lnn.automatic(3, X, Y), "network must be a LiftedNetwork, got int"),  # type: ignore[arg-type]
    "step": (lambda: lnn.MiniBatch(step="a"), "step must be a number, got 'a'"),  # type: ignore[arg-type]
    "max_iter": (lambda: lnn.MiniBatch(passes=None), "passes must be a whole number of at least 1"),  # type: ignore[arg-type]
    "seed": (lambda: lnn.MiniBatch(seed=1.5), "seed must be a whole number below 2.64, got 1.5"),  # type: ignore[arg-type]
    "device": (lambda: lnn.MiniBatch(device="tpu"), "there is no device 'tpu' to train on"),
    "device, meta": (lambda: lnn.MiniBatch(device="meta"), "there is no device 'meta' to train on"),
    "half a pass": (lambda: lnn.BCD(passes=1.5), "passes must be a whole number of at least 0"),  # type: ignore[arg-type]
    "tol": (lambda: lnn.BCD(tol="a"), "tol must be non-negative, got 'a'"),  # type: ignore[arg-type]
    "tol, NaN": (lambda: lnn.BCD(tol=float("nan")), "tol must be non-negative, got nan"),
    "seed of BCD": (lambda: lnn.BCD(seed="a"), "seed must be a whole number"),  # type: ignore[arg-type]
    "callback": (lambda: lnn.BCD().run(network(), X, Y, callback=3), "callback must be None or a function"),  # type: ignore[arg-type]
    "validation": (lambda: lnn.MiniBatch().run(network(), X, Y, validation=X), "validation must be None, \\(x, y\\) or"),  # type: ignore[arg-type]
    "checkpoint": (lambda: lnn.MiniBatch().run(network(), X, Y, checkpoint="a"), "must be None or a Checkpoint"),  # type: ignore[arg-type]
    "moments": (
        lambda: lnn.MiniBatch().run(network(), X, Y, moments=lnn.moments.Moments.of(X[:, :2], X[:, :0])),
        "moments are of 2 inputs, and the network takes 3",
    ),
    "weights": (lambda: lnn.BCD().run(network(), X, Y, weights=3), "weights must be a sequence of pairs"),  # type: ignore[arg-type]
    "weights, complex": (
        lambda: lnn.BCD().run(network(), X, Y, weights=[(PAIRS[0][0] + 0j, PAIRS[0][1]), PAIRS[1]]),
        "a weight holds torch.complex64",
    ),
    "fixed": (lambda: lnn.MiniBatch().run(network(), X, Y, fixed=[None, None]), "fixed must be a sequence of pairs"),  # type: ignore[list-item]
    "sizes": (lambda: lnn.LiftedNetwork.mlp([3, 4.5, 2]), "sizes must be whole numbers"),  # type: ignore[list-item]
    "activation": (lambda: lnn.LiftedNetwork.mlp([3, 4, 2], nn.ReLU()), "activation must be a name"),  # type: ignore[arg-type]
    "loss": (lambda: lnn.LiftedNetwork.mlp([3, 4, 2], loss=nn.MSELoss()), "loss must be a name"),  # type: ignore[arg-type]
    "lam": (lambda: lnn.LiftedNetwork.mlp([3, 4, 2], lam=1e300), "lam must be positive, got 1e.300; it must also be below"),
    "rho": (lambda: lnn.LiftedNetwork.mlp([3, 4, 2], rho="a"), "rho must be non-negative and finite, got 'a'"),  # type: ignore[arg-type]
    "mask": (lambda: lnn.penalties.Mask([[1]]), "mask must be None or a tensor"),  # type: ignore[arg-type]
    "learn_activation": (
        lambda: lnn.MiniBatch(learn_activation=3).run(network(), X, Y),  # type: ignore[arg-type]
        "learn_activation must be None, 'layer' or 'unit', or one of them .*, got 3",
    ),
    "refit of BCD": (lambda: lnn.BCD(learn_activation=3).run(network(), X, Y), "learn_activation must be None, 'layer' or 'unit'"),  # type: ignore[arg-type]
    "place": (lambda: lnn.init.lifted_(module(), X, Y, device="xpu:3"), "is not available here|there is no device"),
    "robust": (lambda: lnn.init.lifted_(module(), X, Y, robust="ball:1e300"), "up to 1e.18, got 'ball:1e300'"),
}  # fmt: skip


@pytest.mark.parametrize("case", OPTIONS)
def test_settings_that_are_none_are_refused(case: str) -> None:
    call, sentence = OPTIONS[case]
    with pytest.raises(ValueError, match=sentence):
        call()


def test_weights_may_be_arrays() -> None:
    arrays: Any = [(w.numpy(), b.numpy()) for w, b in PAIRS]
    found, same = (lnn.BCD(passes=0).run(network(), X, Y, weights=each).weights for each in (arrays, PAIRS))
    assert all(torch.equal(a.w, b.w) for a, b in zip(found, same, strict=True))


@pytest.mark.parametrize("given", ["arrays", "loader", "validation"])
def test_responses_that_are_infinite_in_the_precision_of_x_are_refused(given: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator)
    y = x[:, 0].double()
    far = torch.where(torch.arange(200) == 150, 1e39, y)
    network, trainer = lnn.LiftedNetwork.mlp([3, 5, 1], "fenchel_relu", loss="squared"), lnn.MiniBatch(passes=1)
    calls: dict[str, Callable[[], object]] = {
        "arrays": lambda: trainer.run(network, x, far),
        "loader": lambda: trainer.run(network, DataLoader(TensorDataset(x, far), batch_size=50)),
        "validation": lambda: trainer.run(network, x, y, validation=(x, far)),
    }
    with pytest.raises(ValueError, match=r"y holds numbers that are infinite in torch\.float32, the precision of x"):
        calls[given]()
