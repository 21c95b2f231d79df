"""Whitened coordinates: the damped Gram matrix is the identity, nothing is lost on the way there and back, and steps agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor

import liftednn as lnn
from liftednn.base import Affine
from liftednn.moments import Moments
from liftednn.training.cross_validation import cross_validated, error_of
from liftednn.training.metric import Metric
from liftednn.training.whitening import Coordinates, Spectrum, Whitening


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = draw(300, 5) @ draw(5, 5, seed=1) + torch.tensor([0.0, 3.0, -20.0, 1.0, 0.5], dtype=torch.float64)
W = Affine(draw(4, 5, seed=2), draw(4, seed=3))


def whitening(x: Tensor, damping: float = 0.0, keep: float = 1.0) -> Whitening:
    return Whitening.of(Spectrum.of(Moments.of(x, x[:, :0])), damping, keep, x)


def spectrum(x: Tensor) -> np.ndarray:
    """Variances along the principal directions, largest first."""
    return np.linalg.eigvalsh(np.cov(x.numpy(), rowvar=False, bias=True))[::-1]


def with_spectrum(values: np.ndarray, rows: int, seed: int = 0) -> Tensor:
    """Rows whose Gram matrix has exactly these eigenvalues, in a random basis, about a mean."""
    p = len(values)
    centred = draw(rows, p, seed=seed)
    q, _ = torch.linalg.qr(centred - centred.mean(0))
    basis, _ = torch.linalg.qr(draw(p, p, seed=seed + 1))
    return (q * (rows * torch.tensor(values)).sqrt()) @ basis.T + 0.3


def scores(x: Tensor, weights: Affine) -> Tensor:
    return x @ weights.w.T + weights.b


@pytest.mark.parametrize("damping", [0.0, 0.01, 0.5, 10.0])
def test_the_gram_matrix_of_whitened_rows_is_diagonal(damping: float) -> None:
    white = whitening(X, damping)(X)
    s = spectrum(X)
    d = damping * np.cov(X.numpy(), rowvar=False, bias=True).diagonal().mean()
    np.testing.assert_allclose(white.mean(0).numpy(), 0, atol=1e-12)
    np.testing.assert_allclose(
        np.cov(white.numpy(), rowvar=False, bias=True), np.diag(s / (s + d)), rtol=1e-9, atol=1e-11
    )


def test_the_kept_directions_have_the_same_gram_matrix() -> None:
    x = with_spectrum(0.99 ** np.arange(160), 400)
    found = whitening(x, 0.1, 0.95)
    s, k = spectrum(x), found.width
    assert 128 < k < 160
    np.testing.assert_allclose(
        np.cov(found(x).numpy(), rowvar=False, bias=True), np.diag(s / (s + 0.1 * s.mean()))[:k, :k], atol=1e-10
    )
    np.testing.assert_allclose((found.basis.T @ found.basis).numpy(), np.eye(k), atol=1e-12)


def test_without_damping_it_is_scikit_learn_s_pca() -> None:
    pca = PCA(whiten=True).fit(X.numpy())
    expected = pca.transform(X.numpy()) * (len(X) / (len(X) - 1)) ** 0.5  # PCA divides by n - 1
    found = whitening(X)(X).numpy()
    signs = np.sign((found * expected).sum(0))
    np.testing.assert_allclose(found * signs, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_weights_converted_there_and_back_are_unchanged(damping: float) -> None:
    found = whitening(X, damping)
    inner = found.to_whitened(W)
    torch.testing.assert_close(scores(found(X), inner), scores(X, W), rtol=1e-9, atol=1e-9)
    other = draw(7, 5, seed=9) * 4  # also off the rows it was made from
    torch.testing.assert_close(scores(found(other), inner), scores(other, W), rtol=1e-9, atol=1e-9)
    again = found.from_whitened(inner)
    torch.testing.assert_close(again.w, W.w, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(again.b, W.b, rtol=1e-9, atol=1e-9)


def test_converted_weights_give_the_same_scores_whatever_was_left_out() -> None:
    x = with_spectrum(0.99 ** np.arange(160), 400)
    found = whitening(x, 0.1, 0.95)
    inner = Affine(draw(3, found.width), draw(3, seed=1))
    outer = found.from_whitened(inner)
    torch.testing.assert_close(scores(x, outer), scores(found(x), inner), rtol=1e-9, atol=1e-9)
    left_out = torch.linalg.eigh(torch.tensor(np.cov(x.numpy(), rowvar=False))).eigenvectors[:, : 160 - found.width]
    torch.testing.assert_close(outer.w @ left_out, torch.zeros(3, 160 - found.width).double(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("decay", [0.97, 0.99, 1.0])
def test_as_many_directions_are_kept_as_hold_the_fraction_of_the_variance(decay: float) -> None:
    values = decay ** np.arange(160.0)
    shares = np.cumsum(values) / values.sum()
    x = with_spectrum(values, 300)
    for count in (129, 140, 159):  # count - 1 directions hold less than this, count directions more
        assert whitening(x, 0.0, (shares[count - 2] + shares[count - 1]) / 2).width == count
    assert whitening(x, 0.0, 1.0).width == 160


def test_128_directions_are_kept_whatever_they_hold_or_all_if_there_are_fewer() -> None:
    assert whitening(with_spectrum(0.5 ** np.arange(40.0), 100), keep=0.1).width == 40
    assert whitening(with_spectrum(0.9 ** np.arange(128.0), 300), keep=0.1).width == 128
    assert whitening(with_spectrum(0.9 ** np.arange(150.0), 300), keep=0.1).width == 128


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("damping", [0.0, 0.1])
def test_constant_and_repeated_columns_are_dropped(dtype: torch.dtype, damping: float) -> None:
    constant = torch.tensor([0.0, 0.1, -1e3]).expand(300, 3)
    x = torch.cat([constant, X, X[:, :1]], 1).to(dtype)
    found = whitening(x, damping)
    assert found.width == 5
    assert found.scale.dtype == found(x).dtype == dtype
    white = found(x)
    assert bool(white.isfinite().all())
    s = spectrum(x.double())
    variance = s[:5] / (s[:5] + damping * s.mean())
    np.testing.assert_allclose(white.double().var(0, unbiased=False).numpy(), variance, rtol=1e-3)
    outer = found.from_whitened(Affine(torch.ones(2, 5, dtype=dtype), torch.zeros(2, dtype=dtype)))
    assert float(outer.w[:, :3].abs().max()) <= 1e-5 * float(outer.w.abs().max())
    torch.testing.assert_close(outer.w[:, 3], outer.w[:, 8])


def test_fewer_rows_than_columns_leave_as_many_directions_as_rows_less_one() -> None:
    x = draw(20, 50)
    found = whitening(x, 0.01)
    assert found.width == 19
    assert bool(found(draw(10, 50, seed=5)).isfinite().all())


@pytest.mark.parametrize(("damping", "keep"), [(-1e-9, 0.5), (0.1, 0.0), (0.1, 1.1)])
def test_bad_options_are_refused(damping: float, keep: float) -> None:
    with pytest.raises(ValueError, match=r"damping must be non-negative and keep in \(0, 1\]"):
        whitening(X, damping, keep)


def test_a_gradient_step_is_one_preconditioned_by_the_damped_gram_matrix() -> None:
    damping, rate = 0.2, 0.7
    found = whitening(X, damping)
    target = torch.sin(X[:, :4])

    def loss(weights: Affine, rows: Tensor) -> Tensor:
        return (scores(rows, weights) - target).cosh().log().sum(1).mean()

    inner = Affine(*(part.clone().requires_grad_() for part in found.to_whitened(W)))
    gw, gb = torch.autograd.grad(loss(inner, found(X)), inner)
    stepped = found.from_whitened(Affine(inner.w.detach() - rate * gw, inner.b.detach() - rate * gb))

    # In the original ones, with the rows centred so that w and the intercept do not interact.
    mean = X.mean(0)
    centred = Affine(W.w.clone().requires_grad_(), (W.b + W.w @ mean).requires_grad_())
    gw, gc = torch.autograd.grad(loss(centred, X - mean), centred)
    gram = np.cov(X.numpy(), rowvar=False, bias=True)
    metric = gram + damping * gram.diagonal().mean() * np.eye(5)
    w = W.w.numpy() - rate * np.linalg.solve(metric, gw.numpy().T).T
    c = centred.b.detach().numpy() - rate * gc.numpy()
    np.testing.assert_allclose(stepped.w.numpy(), w, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(stepped.b.numpy(), c - w @ mean.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_few_rows_of_many_columns_are_whitened_by_their_singular_values(weighted: bool) -> None:
    """As by the Gram matrix, up to the signs of directions."""
    x = draw(12, 40, seed=3) + 2
    row_weights = torch.linspace(0.2, 3, 12, dtype=torch.float64) if weighted else None
    by_rows = Whitening.of(Spectrum.of_rows(x, row_weights), 0.3, 0.9, x)
    by_gram = Whitening.of(Spectrum.of(Moments.of(x, x[:, :0], row_weights)), 0.3, 0.9, x)
    assert (by_rows.width, by_rows.far) == (by_gram.width, by_gram.far)
    torch.testing.assert_close(by_rows.scale, by_gram.scale)
    torch.testing.assert_close(by_rows(x) @ by_rows(x).T, by_gram(x) @ by_gram(x).T)


@pytest.mark.parametrize("rho", [0.0, 0.05])
def test_the_metric_of_whitened_rows_is_that_of_the_rows(rho: float) -> None:
    """A step of (g' x / n + 2 rho W) (c (gram + d I) + 2 rho I)^-1, in either coordinates and by formula."""
    damping, curvature, found = 0.2, 0.6, whitening(X, 0.2)
    layer = lnn.Layer(lnn.operators.Dense(5, 4), lnn.activations.FenchelReLU(), lnn.penalties.L2(rho))
    u_gradient, inner = draw(300, 4, seed=8), found.to_whitened(W)
    white, plain = Metric.of(layer, found(X), damping, found.scale), Metric.of(layer, X, damping)
    for metric in (white, plain):
        metric.refresh([curvature])
    (dw, db), length = white.direction(inner.w, [u_gradient.T @ found(X)], [u_gradient.sum(0)], len(X))
    dw, db = length * dw, length * db
    in_white = found.from_whitened(Affine(inner.w - dw, inner.b - db))
    (dw, db), length = plain.direction(W.w, [u_gradient.T @ X], [u_gradient.sum(0)], len(X))
    dw, db = length * dw, length * db
    in_plain = Affine(W.w - dw, W.b - db)

    gram, mean = np.cov(X.numpy(), rowvar=False, bias=True), X.mean(0).numpy()
    matrix = curvature * (gram + damping * gram.diagonal().mean() * np.eye(5)) + 2 * rho * np.eye(5)
    gradient = u_gradient.numpy().T @ (X.numpy() - mean) / len(X) + 2 * rho * W.w.numpy()
    w = W.w.numpy() - np.linalg.solve(matrix, gradient.T).T
    b = W.b.numpy() + W.w.numpy() @ mean - u_gradient.numpy().mean(0) / curvature - w @ mean
    for after in (in_white, in_plain):
        np.testing.assert_allclose(after.w.numpy(), w, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(after.b.numpy(), b, rtol=1e-8, atol=1e-8)


def network(operator: lnn.operators.Dense | None = None, penalty: lnn.Penalty | None = None) -> lnn.LiftedNetwork:
    first = lnn.Layer(
        operator or lnn.operators.Dense(5, 4), lnn.activations.FenchelReLU(), penalty or lnn.penalties.L2(0.1), 0.3
    )
    return lnn.LiftedNetwork([first, lnn.Layer(lnn.operators.Dense(4, 2), lnn.losses.SquaredError())])


WEIGHTS = [W, Affine(draw(2, 4, seed=6), draw(2, seed=7))]


@pytest.mark.parametrize("penalty", [lnn.penalties.L2(0.1), lnn.penalties.NoPenalty()], ids=repr)
def test_a_network_in_whitened_coordinates_gives_the_same_scores(penalty: lnn.Penalty) -> None:
    outer = network(penalty=penalty)
    coordinates = Coordinates.of(outer, X, X[:, :1], Moments.of(X, X[:, :0]), 0.1, 1.0)
    assert coordinates.whitening is not None
    inner = coordinates.to_whitened(WEIGHTS)
    torch.testing.assert_close(
        coordinates.network.scores(inner, coordinates.whiten(X)), outer.scores(WEIGHTS, X), rtol=1e-9, atol=1e-9
    )
    assert not torch.allclose(inner[0].w, W.w)
    for (w, b), (w2, b2) in zip(coordinates.from_whitened(inner), WEIGHTS, strict=True):
        torch.testing.assert_close(w, w2, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(b, b2, rtol=1e-9, atol=1e-9)
    assert coordinates.network.layers[0].lam == 0.3
    assert coordinates.network.layers[1:] == outer.layers[1:]


@pytest.mark.parametrize(
    "declined",
    [
        *(
            network(penalty=p)
            for p in (
                lnn.penalties.L1(),
                lnn.penalties.ElasticNet(),
                lnn.penalties.GroupL2(),
                lnn.penalties.NonNegative(),
                lnn.penalties.Mask(),
            )
        ),
        network(lnn.operators.Dense(5, 4, bias=False)),
    ],
    ids=lambda n: f"{type(n.layers[0].penalty).__name__}, bias {n.layers[0].operator.bias}",
)
def test_what_would_be_another_problem_stays_in_its_own_coordinates(declined: lnn.LiftedNetwork) -> None:
    coordinates = Coordinates.of(declined, X, X[:, :1], Moments.of(X, X[:, :0]), 0.1, 0.9)
    assert coordinates.whitening is None
    assert coordinates.network is declined
    assert coordinates.whiten(X) is X
    for there in (coordinates.to_whitened(WEIGHTS), coordinates.from_whitened(WEIGHTS)):
        for (w, b), (w2, b2) in zip(there, WEIGHTS, strict=True):
            assert torch.equal(w, w2)
            assert torch.equal(b, b2)


def test_directions_of_little_variance_are_kept_where_a_linear_regression_needs_them() -> None:
    """By its cross-validated error, which is that of the same regression on the kept directions alone."""
    x = with_spectrum(0.97 ** np.arange(200.0), 600)
    spectrum = Spectrum.of_rows(x, None)
    few, ends = spectrum.number(0.95), (x - spectrum.mean) @ spectrum.vectors[:, [0, -1]]
    assert few == 128 < spectrum.varying == 200
    noise = draw(600, 1, seed=5)
    for column, kept in ((0, 0.95), (1, 1.0)):
        y = ends[:, column : column + 1] / ends[:, column].std() + 0.1 * noise
        assert spectrum.fraction_needed(x, y, None) == kept
    assert spectrum.fraction_needed(x, noise, None) == 0.95
    weights = draw(600, 1, seed=6)[:, 0].exp()
    inner = (spectrum.vectors.T @ Moments.of(x, noise).cross).square().sum(1)
    for number in (few, 200):
        projected = (x - spectrum.mean) @ spectrum.vectors[:, :number]
        unit = float(spectrum.values[:number].mean())
        found = error_of(spectrum.values[:number], inner[:number], unit, float(noise.var(correction=0)), 600)
        assert found == pytest.approx(cross_validated(projected, noise, 600), rel=1e-8)
    y = ends[:, 1:] / ends[:, 1].std() + 0.1 * noise
    assert Spectrum.of_rows(x, weights).fraction_needed(x, y, weights) == 1.0


def test_copies_of_rows_do_not_change_which_directions_are_kept() -> None:
    x, y = draw(250, 220, seed=7), draw(250, 1, seed=8)
    kept = [
        Spectrum.of_rows(each, None).fraction_needed(each, y.repeat(k, 1), None)
        for k, each in ((1, x), (3, x.repeat(3, 1)))
    ]
    assert kept == [0.95, 0.95]


def test_given_weights_keep_what_they_have_in_directions_that_the_rows_do_not_vary_in() -> None:
    network = lnn.LiftedNetwork.mlp([5, 4, 2], "fenchel_relu")
    weights = [Affine(draw(4, 5, seed=1), draw(4, seed=2)), Affine(draw(2, 4, seed=3), draw(2, seed=4))]
    x = X.clone()
    x[:, 3] = 2.0
    fit = lnn.MiniBatch(passes=1, step=1e-12).run(network, x, torch.arange(len(x)) % 2, weights=weights)
    for (w, b), (w0, b0) in zip(fit.weights, weights, strict=True):
        torch.testing.assert_close(w, w0)
        torch.testing.assert_close(b, b0)


@pytest.mark.parametrize("rows", [8, 40])
def test_directions_do_not_depend_on_the_order_of_rows(rows: int) -> None:
    """Not even in their signs; of two columns that are exchanged in every other row, the entries of a direction have one size."""
    x = torch.randn(rows, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, :2] = torch.cat([x[::2, :2], x[::2, :2].flip(1)])
    for seed in range(10):
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
        first, second = Spectrum.of_rows(x, None), Spectrum.of_rows(x[order], None)
        varying = first.varying
        torch.testing.assert_close(first.vectors[:, :varying], second.vectors[:, :varying], rtol=1e-6, atol=1e-9)
