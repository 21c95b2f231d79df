"""The runs that tests/baselines.py compares: short, since each pass multiplies rounding errors by about 30.

How a trainer is called and what its result is called is written once, in `passed_over`, `batched` and `fitted`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import liftednn as lnn
from liftednn import activations as act
from liftednn import losses, robust
from liftednn import penalties as pen
from liftednn.cli import commands as cli
from liftednn.init import lifted_
from liftednn.modules import from_module, to_module

__all__ = ["RUNS", "TOLERANCES"]

Values = dict[str, Any]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, NEW = draw(60, 5), draw(7, 5, seed=1)
REAL = torch.sin(2 * X[:, :2]) * X[:, 2:4] + 0.3 * X[:, :2]
LABELS = (X[:, 0] * X[:, 1] > 0).long() + (X[:, 2] > 0.5).long()
SHARES = (X[:, :3] + draw(60, 3, seed=2)).softmax(1)
UNIT = (REAL / 2).sigmoid()
COUNTS = draw(60, seed=3).exp()
MASK = draw(6, 5, seed=4) > -0.5
STEEP = 1e-2  # a width over which losses with a kink are rounded off for mini-batches


def responses(loss: lnn.Loss) -> Tensor:
    """Labels for a loss of classes, responses within its range for `Matching`, otherwise real ones."""
    if not loss.decode(torch.zeros(1, 3)).is_floating_point():
        return LABELS
    return UNIT if isinstance(loss, losses.Matching) else REAL


def network(
    activation: str | lnn.Activation = "fenchel_relu",
    loss: str | lnn.Loss = "squared",
    hidden: Sequence[int] = (6,),
    penalty: lnn.Penalty | None = None,
    uncertainty: Any = None,
    lam: float = 0.7,
) -> lnn.LiftedNetwork:
    """The penalty and the uncertainty are those of the first layer."""
    chosen = losses.named(loss) if isinstance(loss, str) else loss
    outputs = 3 if responses(chosen) is LABELS else 2
    net = lnn.LiftedNetwork.mlp([5, *hidden, outputs], activation, chosen, lam, rho=1e-2)
    first = replace(net.layers[0], uncertainty=uncertainty, penalty=penalty or net.layers[0].penalty)
    return lnn.LiftedNetwork([first, *net.layers[1:]])


def convolutional(*specs: Any, activation: str = "fenchel_relu", penalty: str = "l2") -> lnn.LiftedNetwork:
    """Rows of X as sequences of one channel; the penalty is that of the first layer."""
    net = lnn.LiftedNetwork.cnn((1, 5), list(specs), 3, activation, lam=0.7, rho=1e-2)
    return net.with_penalty([penalty, *(layer.penalty for layer in net.layers[1:])])


def layers(weights: Sequence[tuple[Tensor, Tensor]]) -> Values:
    return {f"{name}{index}": part for index, pair in enumerate(weights) for name, part in zip("wb", pair, strict=True)}


def trained(net: lnn.LiftedNetwork, weights: Sequence[tuple[Tensor, Tensor]], history: Sequence[Any]) -> Values:
    """Weights, learned parameters, scores of new rows, and what the records say."""
    values = layers(weights) | {"scores": lnn.predict.feedforward(net, [lnn.Affine(*pair) for pair in weights], NEW)}
    for index, activation in enumerate(net.hidden):
        values |= {f"{name}{index}": getattr(activation, name) for name in activation.learned}
    last = history[-1]
    values |= {"loss": last.loss, "score": last.score, "gaps": last.gaps}
    return values | {"objectives": [record.objective for record in history]}


def passed_over(net: lnn.LiftedNetwork, y: Tensor | None = None, passes: int = 2, **options: Any) -> Values:
    """Full-batch training."""
    given = {name: options.pop(name) for name in ("weights", "sample_weight") if name in options}
    trainer = lnn.BCD(passes=passes, tol=0.0, **{"block_iter": 30, **options})
    solution = trainer.run(net, X, responses(net.loss) if y is None else y, **given)
    values = trained(solution.network, solution.weights, solution.history)
    return values | {f"x{index}": state for index, state in enumerate((solution.states or [])[1:-1], 1)}


def batched(net: lnn.LiftedNetwork, y: Any = None, x: Any = X, passes: int = 2, **options: Any) -> Values:
    """Mini-batch training."""
    given = {name: options.pop(name) for name in ("weights", "sample_weight", "fixed", "validation") if name in options}
    trainer = lnn.MiniBatch(**{"passes": passes, "batch_size": 20, "refresh": 4, **options})
    rows = responses(net.loss) if y is None and isinstance(x, Tensor) else y
    fit = trainer.run(net, x, rows, **given)
    values = trained(fit.network, fit.weights, fit.history)
    if "validation" in given:
        values["validation"] = [(each.validation_loss, each.validation_score) for each in fit.history]
    return values


def automatic(*arguments: Any, sample_weight: Tensor | None = None, **options: Any) -> lnn.LiftedNetwork:
    net = network(*arguments, **options)
    return lnn.automatic(net, X, responses(net.loss), sample_weight=sample_weight)


def chosen() -> Values:
    """What `automatic` chooses."""
    nets = {name: automatic(loss=name, hidden=(6, 4)) for name in ("squared", "softmax", "huber", "quantile")}
    nets["weighted"] = automatic(sample_weight=COUNTS)
    return {name: [(layer.lam, layer.penalty.ridge) for layer in net.layers] for name, net in nets.items()}


def known(net: lnn.LiftedNetwork) -> list[lnn.Affine]:
    """Weights drawn at random."""
    shapes = [layer.operator.weight_shape for layer in net.layers]
    return [lnn.Affine(draw(*s, seed=10 + i), draw(s[0], seed=20 + i)) for i, s in enumerate(shapes)]


def lifted_scores(net: lnn.LiftedNetwork) -> Values:
    return {"lifted": lnn.predict.lifted(net, known(net), NEW, max_iter=20)}


def pruned() -> Values:
    net = network(hidden=(6, 4))
    weights = known(net)
    weights[0].w[[1, 4]] = 0
    weights[2].w[:, 2] = 0
    smaller, left = net.prune(weights)
    return layers(left) | {"scores": smaller.scores(left, NEW)}


def stored() -> Values:
    """A fit that is saved, loaded, and continued."""
    net = automatic("fenchel_leaky_relu")
    fit = lnn.MiniBatch(passes=1, batch_size=20).run(net, X, REAL)
    with tempfile.TemporaryDirectory() as folder:
        lnn.save(path := Path(folder) / "model.safetensors", fit.network, fit.weights, history=fit.history)
        saved = lnn.load(path)
    return batched(saved.network, weights=saved.weights, passes=1)


def resumed() -> Values:
    """A run that is stopped after its first pass and continued from its checkpoint."""
    net, trainer = automatic(), lnn.MiniBatch(passes=2, batch_size=20)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = lnn.Checkpoint(Path(folder) / "run.safetensors")
        trainer.run(net, X, REAL, checkpoint=checkpoint, callback=lambda record: True)
        fit = trainer.run(net, X, REAL, checkpoint=checkpoint)
    return trained(fit.network, fit.weights, fit.history)


def module(*middle: nn.Module, outputs: int = 2) -> nn.Sequential:
    """Linear, `middle`, Linear in float64; `measure` has set the global generator."""
    return nn.Sequential(nn.Linear(5, 6), *middle, nn.Linear(6, outputs)).double()


def filled(made: nn.Module, y: Tensor, **options: Any) -> Values:
    """lifted_ on a module."""
    lifted_(made, X, y, **{"passes": 2, **options})
    return {name: part.detach() for name, part in made.state_dict().items()} | {"scores": made(NEW)}


def frozen() -> Values:
    made = module(nn.Tanh())
    for part in made[0].parameters():
        part.requires_grad_(False)
    return filled(made, REAL)


def converted() -> Values:
    """A module read as a network, and a network with a scale written as a module."""
    net, weights = from_module(module(nn.PReLU(6, 0.3)), "squared")
    written = to_module(network(act.Scaled(act.Tanh(), 2.0), hidden=(6,)), weights)
    values = layers(weights) | {"scores": net.scores(weights, NEW), "slopes": vars(net.hidden[0])["alpha"]}
    return values | {"module": written(NEW)} | {f"written {k}": v for k, v in written.state_dict().items()}


def fitted(estimator: Any, y: Tensor, **options: Any) -> Values:
    return described(estimator.fit(X.numpy(), y.numpy(), **options), y)


def described(estimator: Any, y: Tensor) -> Values:
    """The history of a fitted estimator, and its predictions for new rows."""
    values = layers([*zip(estimator.coefs_, estimator.intercepts_, strict=True)])
    values |= {"validation": scores} if (scores := estimator.validation_scores_) else {}
    values |= {"loss": estimator.loss_curve_, "states": estimator.transform(NEW.numpy())}
    for index, activation in enumerate(estimator.network_.hidden):
        values |= {f"{name}{index}": getattr(activation, name) for name in activation.learned}
    answer = estimator.predict_proba if hasattr(estimator, "predict_proba") else estimator.predict
    return values | {"answers": answer(NEW.numpy()), "score": estimator.score(X.numpy(), y.numpy())}


def classifier(**options: Any) -> lnn.LiftedClassifier:
    return lnn.LiftedClassifier(**{"hidden_layer_sizes": 6, "max_iter": 2, "random_state": 0, **options})


def regressor(**options: Any) -> lnn.LiftedRegressor:
    return lnn.LiftedRegressor(**{"hidden_layer_sizes": 6, "max_iter": 2, "random_state": 0, **options})


def continued(estimator: Any, y: Tensor, **first: Any) -> Values:
    """Two calls of partial_fit, each on half of the rows."""
    for half, options in ((slice(0, 30), first), (slice(30, 60), {})):
        estimator.partial_fit(X[half].numpy(), y[half].numpy(), **options)
    return described(estimator, y)


def fitted_again(estimator: Any, y: Tensor) -> Values:
    """Two calls of fit, the second from the weights of the first."""
    return fitted(estimator.fit(X.numpy(), y.numpy()), y)


def command(target: str, *options: str) -> Values:
    """`liftednn fit` and `liftednn predict` on a table with numbers and text; the command line trains in float32."""
    with tempfile.TemporaryDirectory() as folder:
        table, model, out = (Path(folder) / name for name in ("table.csv", "model.safetensors", "out.npz"))
        _table(table, target)
        _main("fit", table, "--target", target, "--hidden", "6", "--passes", "1", "--quiet", *options, "--out", model)
        _main("predict", model, table, "--quiet", *(["--probabilities"] if target == "label" else []), "--out", out)
        answers = {f"answer {name}": part for name, part in np.load(out).items() if part.dtype.kind == "f"}
        saved = lnn.load(model)
    return layers(saved.weights) | answers | {"loss": saved.history[-1].loss}


def _table(path: Path, target: str) -> None:
    column = [f"class {label}" for label in LABELS.tolist()] if target == "label" else REAL[:, 0].tolist()
    rows = [f"{a!r},{b!r},{'yes' if c > 0 else 'no'},{y}" for (a, b, c, *_), y in zip(X.tolist(), column, strict=True)]
    path.write_text("\n".join([f"a,b,c,{target}", *rows, ""]))


def _main(*arguments: object) -> None:
    try:
        cli.main([str(each) for each in arguments])
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"liftednn {arguments[0]} ended with {ended.code}") from ended


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, REAL), batch_size=20)


EUCLIDEAN: dict[str, lnn.Activation] = {
    "relu": act.ReLU(),
    "relu_l1": act.ReLU("l1"),
    "leaky": act.LeakyReLU(0.2),
    "hardtanh": act.HardTanh(),
    "hardsigmoid": act.HardSigmoid(),
    "identity": act.Identity(),
    "simplex": act.Simplex(),
    "maxpool": act.MaxPool(2),
}
FENCHEL: dict[str, lnn.Activation] = {
    "fenchel_relu": act.FenchelReLU(),
    "fenchel_leaky": act.FenchelLeakyReLU(0.2),
    "fenchel_clip": act.FenchelClip(-0.5, 2.0, 1.5, 0.2),
    "sigmoid": act.Sigmoid(),
    "tanh": act.Tanh(),
    "softplus": act.Softplus(),
    "softmax": act.Softmax(),
    "sin": act.Sin(),
    "sign": act.Sign(0.5),
    "monotone": act.Monotone(),
    "scaled": act.Scaled(act.Sigmoid(), 2.0),
}
LOSSES: dict[str, lnn.Loss] = {
    "softmax": losses.SoftmaxCrossEntropy(),
    "split_squared": losses.Split(),
    "split_entropy": losses.Split(losses.CrossEntropy(), act.Simplex(), 2.0),
    "absolute": losses.AbsoluteError(),
    "huber": losses.Huber(),
    "quantile": losses.Quantile((0.1, 0.8)),
    "matching": losses.Matching(),
}
ROUNDED: dict[str, lnn.Loss] = {
    "absolute": losses.AbsoluteError(STEEP),
    "quantile": losses.Quantile((0.1, 0.8), STEEP),
}
PENALTIES: dict[str, lnn.Penalty] = {
    "none": pen.NoPenalty(),
    "l1": pen.L1(1e-2),
    "elastic_net": pen.ElasticNet(1e-2),
    "group_output": pen.GroupL2(1e-2),
    "group_input": pen.GroupL2(1e-2, "input"),
    "nonnegative": pen.NonNegative(1e-2),
    "mask": pen.Mask(MASK, 1e-2),
    "orthogonal": pen.Orthogonal(),
    "low_rank": pen.LowRank(2, 1e-2),
    "ball": pen.Ball(1.5),
    "ball_spectral": pen.Ball(0.8, "spectral"),
    "ball_row": pen.Ball(0.6, "row"),
    "ball_l1": pen.Ball(4.0, "l1"),
}
UNCERTAINTIES: dict[str, Any] = {
    "noise": robust.Noise(0.2),
    "noise_columns": robust.Noise(torch.tensor([0.1, 0.2, 0.3, 0.0, 0.1], dtype=torch.float64)),
    "frobenius": robust.FrobeniusBall(0.2),
    "box": robust.BoxBall(0.1),
}


def every(
    trainer: Callable[..., Values],
    prefix: str,
    part: str,
    table: dict[str, Any],
    parts: Values | None = None,
    **options: Any,
) -> dict[str, Callable[[], Values]]:
    """A run for each entry of a table, as this part of the network; `parts` are the others."""
    return {
        f"{prefix}/{part}/{name}": lambda given=given: trainer(network(**{part: given}, **(parts or {})), **options)  # type: ignore[misc]
        for name, given in table.items()
    }


def without(table: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: entry for name, entry in table.items() if name not in names}


FIXED = [(draw(6, 5, seed=30), None), (None, None)]
EARLY = {"early_stopping": True, "validation_fraction": 0.3, "n_iter_no_change": 1, "max_iter": 5}
HALF = {"x": X[:40], "y": REAL[:40]}

RUNS: dict[str, Callable[[], Values]] = {
    **every(passed_over, "bcd", "activation", without(EUCLIDEAN, "maxpool") | FENCHEL),
    "bcd/activation/maxpool": lambda: passed_over(network(EUCLIDEAN["maxpool"]), passes=1, block_iter=10),
    **every(passed_over, "joint", "activation", EUCLIDEAN, {"hidden": (6, 4)}, joint=True, passes=1, block_iter=5),
    **every(passed_over, "bcd", "loss", LOSSES, block_iter=10),
    **every(passed_over, "bcd", "penalty", PENALTIES),
    **every(passed_over, "bcd", "uncertainty", UNCERTAINTIES, passes=1, block_iter=4),
    "bcd/deep": lambda: passed_over(network(hidden=(6, 5, 4)), passes=1),
    "bcd/linear": lambda: passed_over(network("relu", "softmax", hidden=())),
    "bcd/probabilities": lambda: passed_over(network("relu", "softmax"), y=SHARES),
    "bcd/sample_weight": lambda: passed_over(network("relu", "softmax"), sample_weight=COUNTS),
    "bcd/warm_start": lambda: passed_over(net := network(), weights=known(net)),
    "bcd/refit_layer": lambda: passed_over(network("fenchel_leaky_relu"), learn_activation="layer"),
    "bcd/refit_unit": lambda: passed_over(network(act.Scaled()), learn_activation="unit", sample_weight=COUNTS),
    "bcd/refit_bounds": lambda: passed_over(network(act.FenchelClip(-20.0, 20.0)), learn_activation="unit"),
    "joint/softmax": lambda: passed_over(network("relu", "softmax", hidden=(6, 4)), joint=True, passes=1),
    "joint/noise": lambda: passed_over(
        network("relu", hidden=(6, 4), uncertainty=robust.Noise(0.2)), joint=True, passes=1
    ),
    "bcd/convolution": lambda: passed_over(convolutional(3, "avgpool", ("dense", 4), activation="relu")),
    "bcd/convolution_fenchel": lambda: passed_over(convolutional(3, 2), passes=1),
    "bcd/convolution_group": lambda: passed_over(convolutional(3, activation="relu", penalty="group:0.1")),
    **every(batched, "minibatch", "activation", without(EUCLIDEAN, "relu_l1", "leaky", "maxpool") | FENCHEL),
    **every(batched, "minibatch", "loss", without(LOSSES, *ROUNDED) | ROUNDED),
    **every(batched, "minibatch", "penalty", without(PENALTIES, "ball_row", "ball_l1", "group_input")),
    **every(batched, "minibatch", "uncertainty", UNCERTAINTIES),
    "minibatch/deep": lambda: batched(automatic(hidden=(6, 5, 4))),
    "minibatch/defaults": lambda: batched(automatic(loss="softmax"), batch_size=None, refresh=60),
    "minibatch/probabilities": lambda: batched(automatic(loss="softmax"), y=SHARES),
    "minibatch/sample_weight": lambda: batched(automatic(loss="softmax"), sample_weight=COUNTS),
    "minibatch/fixed": lambda: batched(automatic(), fixed=FIXED),
    "minibatch/validation": lambda: batched(automatic(), **HALF, validation=(X[40:], REAL[40:])),
    # Responses of the other sign: the validation score falls from the start.
    "minibatch/patience": lambda: batched(automatic(), **HALF, validation=(X[40:], -REAL[40:]), passes=4, patience=1),
    "minibatch/rolled_back": lambda: batched(automatic(), step=20.0, refresh=1),
    "minibatch/warm_start": lambda: batched(net := automatic(), weights=known(net)),
    "minibatch/refit_layer": lambda: batched(
        automatic(act.FenchelLeakyReLU(0.2)), learn_activation="layer", batch_size=10
    ),
    "minibatch/refit_unit": lambda: batched(automatic(act.Scaled()), learn_activation="unit", batch_size=10),
    "minibatch/loader": lambda: batched(automatic(), x=loader()),
    "minibatch/iterator": lambda: batched(automatic(), x=iter([*loader()]), passes=1),
    "minibatch/convolution": lambda: batched(lnn.automatic(convolutional(3, "avgpool", ("dense", 4)), X, LABELS)),
    "minibatch/convolution_max": lambda: batched(convolutional(3, "maxpool", 2), sample_weight=COUNTS),
    "minibatch/convolution_group": lambda: batched(convolutional(3, 2, penalty="group:0.1")),
    "minibatch/saved": stored,
    "minibatch/resumed": resumed,
    "automatic": chosen,
    "lifted_prediction/classes": lambda: lifted_scores(network("relu", "softmax", hidden=(6, 4))),
    "lifted_prediction/classes_fenchel": lambda: lifted_scores(network("tanh", "softmax")),
    "lifted_prediction/real": lambda: lifted_scores(network("relu", hidden=(6, 4))),
    "prune": pruned,
    "modules": converted,
    "lifted_/softmax": lambda: filled(module(nn.ReLU(), outputs=3), LABELS),
    "lifted_/regression": lambda: filled(module(nn.Tanh()), REAL, loss="huber"),
    "lifted_/frozen": frozen,
    "lifted_/prelu": lambda: filled(module(nn.PReLU(6)), REAL),
    "lifted_/robust": lambda: filled(module(nn.ReLU(), outputs=3), LABELS, robust=0.2, penalty=["group", "l2"]),
    "classifier/defaults": lambda: fitted(classifier(), LABELS),
    "classifier/sample_weight": lambda: fitted(classifier(), LABELS, sample_weight=COUNTS.numpy()),
    "classifier/euclidean": lambda: fitted(classifier(divergence="euclidean"), LABELS),
    "classifier/robust": lambda: fitted(classifier(robust="noise:0.3"), LABELS),
    "classifier/early_stopping": lambda: fitted(classifier(**EARLY), LABELS),
    "classifier/partial_fit": lambda: continued(classifier(), LABELS, classes=[0, 1, 2]),
    "classifier/lifted_prediction": lambda: fitted(classifier(prediction="lifted"), LABELS),
    "classifier/orthogonal": lambda: fitted(classifier(penalty="orthogonal"), LABELS),
    "regressor/defaults": lambda: fitted(regressor(), REAL),
    "regressor/euclidean": lambda: fitted(regressor(divergence="euclidean"), REAL),
    "regressor/robust": lambda: fitted(regressor(robust="box:0.1"), REAL),
    "regressor/quantile": lambda: fitted(regressor(loss=losses.Quantile(0.9)), REAL),
    "regressor/warm_start": lambda: fitted_again(regressor(warm_start=True), REAL),
    "regressor/partial_fit": lambda: continued(regressor(), REAL),
    "regressor/refit": lambda: fitted(regressor(activation="tanh", learn_activation="unit"), REAL),
    "cli/classes": lambda: command("label"),
    "cli/real": lambda: command("strength", "--loss", "huber", "--validation", "0.2"),
}

# The command line trains in float32.
TOLERANCES = {name: 1e-4 for name in RUNS if name.startswith("cli/")}
