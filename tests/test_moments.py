"""Moments are additive whichever way the rows are cut, and lose no digits to large means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from liftednn import moments as module
from liftednn.moments import Moments

FIELDS = ("weight", "mean_x", "mean_z", "xx", "xz", "zz")


def data(n: int = 40, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda p: torch.randn(n, p, generator=generator, dtype=torch.float64)  # noqa: E731
    x = draw(4) @ draw(4)[:4] + 2
    return x, x[:, :2] - 0.5 * draw(2)


def assert_same(a: Moments, b: Moments, rtol: float = 1e-11) -> None:
    for name in FIELDS:
        expected = getattr(b, name)
        torch.testing.assert_close(getattr(a, name), expected, rtol=rtol, atol=rtol * (1 + float(expected.abs().max())))


def test_moments_are_those_of_numpy() -> None:
    x, z = data()
    found = Moments.of(x, z)
    both = np.cov(torch.cat([x, z], 1).numpy(), rowvar=False, bias=True)
    np.testing.assert_allclose(found.gram.numpy(), both[:4, :4], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.cross.numpy(), both[:4, 4:], rtol=1e-12, atol=1e-12)
    assert float(found.zz / found.weight) == pytest.approx(np.trace(both[4:, 4:]))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 39), unique=True, max_size=12), st.randoms(use_true_random=False))
def test_moments_add_up_under_any_cut_in_any_order(cuts: list[int], random: np.random.Generator) -> None:
    x, z = data()
    parts = [Moments.of(a, b) for a, b in zip(x.tensor_split(sorted(cuts)), z.tensor_split(sorted(cuts)), strict=True)]
    random.shuffle(parts)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    assert_same(total, Moments.of(x, z))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 4), min_size=40, max_size=40).filter(any))
def test_weights_are_repeated_rows(counts: list[int]) -> None:
    (x, z), repeats = data(), torch.tensor(counts)
    weighted = Moments.of(x, z, repeats.double())
    assert_same(weighted, Moments.of(x.repeat_interleave(repeats, 0), z.repeat_interleave(repeats, 0)))


def test_rows_cut_into_blocks_give_the_same_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    x, z = data()
    weight = torch.linspace(0.1, 2, 40, dtype=torch.float64)
    whole = Moments.of(x, z), Moments.of(x, z, weight)
    monkeypatch.setattr(module, "_ROWS", 7)
    assert_same(Moments.of(x, z), whole[0])
    assert_same(Moments.of(x, z, weight), whole[1])


def test_forgetting_discounts_old_rows() -> None:
    (x, z), (x2, z2) = data(), data(30, seed=1)
    weights = torch.cat([torch.full((40,), 0.3, dtype=torch.float64), torch.ones(30, dtype=torch.float64)])
    assert_same(
        0.3 * Moments.of(x, z) + Moments.of(x2, z2), Moments.of(torch.cat([x, x2]), torch.cat([z, z2]), weights)
    )


def test_large_means_lose_no_digits() -> None:
    x, z = data()
    far = Moments.of(x + 1e6, z - 1e6)
    cut = Moments.of(x[:13] + 1e6, z[:13] - 1e6) + Moments.of(x[13:] + 1e6, z[13:] - 1e6)
    near = Moments.of(x, z)
    for found in (far, cut):
        for name in ("xx", "xz", "zz"):
            torch.testing.assert_close(getattr(found, name), getattr(near, name), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("mean", [0.0, 1e4, 1e6])
def test_large_means_lose_no_digits_of_float32_data(mean: float) -> None:
    x, z = (part.add(mean).float() for part in data(400))
    exact = Moments.of(x.double(), z.double())
    assert_same(Moments.of(x, z), exact, rtol=1e-5)


def test_retarget_equals_of_and_keeps_the_gram_matrix() -> None:
    x, z = data()
    other, weight = data(seed=3)[1][:, :1], torch.linspace(0.1, 2, 40, dtype=torch.float64)
    for sample_weight in (None, weight):
        first = Moments.of(x, z, sample_weight)
        again = first.retarget(x, other, sample_weight)
        assert again.xx is first.xx
        assert_same(again, Moments.of(x, other, sample_weight))


def test_about_zero_has_raw_moments() -> None:
    x, z = data()
    raw = Moments.of(x, z).about_zero()
    torch.testing.assert_close(raw.xx, x.T @ x)
    torch.testing.assert_close(raw.xz, x.T @ z)
    torch.testing.assert_close(raw.zz, z.square().sum())
    assert bool((raw.bias(torch.ones(2, 4, dtype=torch.float64)) == 0).all())


def test_residual_is_that_of_the_rows_with_the_best_intercept() -> None:
    (x, z), w = data(), torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(2, 4)
    found = Moments.of(x, z)
    fitted = x @ w.T
    best = (z - fitted).mean(0)
    torch.testing.assert_close(found.bias(w), best)
    torch.testing.assert_close(found.residual(w), (fitted + best - z).square().sum(-1).mean())
    torch.testing.assert_close(found.about_zero().residual(w), (fitted - z).square().sum(-1).mean())


def test_residual_of_an_exact_fit_is_not_negative() -> None:
    x, _ = data()
    w = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(2, 4)
    residual = float(Moments.of(x, x @ w.T + 3).residual(w))
    assert 0 <= residual <= 1e-12


def test_moments_are_float64_and_record_the_precision_of_their_data() -> None:
    x, z = data()
    single, double = Moments.of(x.float(), z.float()), Moments.of(x, z)
    assert all(getattr(single, name).dtype == torch.float64 for name in FIELDS)
    assert single.eps == torch.finfo(torch.float32).eps
    assert (single + double).eps == (double + single).eps == single.eps
    assert_same(single, double, rtol=1e-5)


@pytest.mark.parametrize(("x", "z"), [((4, 2), (5, 1)), ((4,), (4, 1)), ((4, 2), (4,)), ((0, 2), (0, 1))])
def test_mistakes_are_refused_with_a_sentence(x: tuple[int, ...], z: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be matrices with the same rows, at least one"):
        Moments.of(torch.zeros(*x), torch.zeros(*z))
