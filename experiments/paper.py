"""Table 1 as the paper prints it (sec. 7)."""

from __future__ import annotations

from typing import NamedTuple

from experiments.cells import ARCHITECTURES, named

__all__ = ["ALONE", "CELLS", "EPOCHS", "EUCLIDEAN", "PAPER", "RANDOM", "ROWS", "Printed"]

ALONE, EUCLIDEAN = "Our Model", "Lifted (euclidean)"
RANDOM = ("Normal", "Xavier", "sigma^2-scale")

# Table 1 of the paper, means and deviations: Our Model; then NN[Normal], NN[Xavier], NN[sigma^2-scale], NN[Lifted] by rate.
_ALONE = ((0.898, 0.005), (0.875, 0.005), (0.865, 0.005), (0.853, 0.003), (0.770, 0.015))
CELLS = {
    1e-5: (
        ((0.915, 0.004), (0.923, 0.005), (0.924, 0.003), (0.962, 0.003)),
        ((0.919, 0.003), (0.932, 0.003), (0.931, 0.003), (0.969, 0.004)),
        ((0.927, 0.003), (0.936, 0.004), (0.935, 0.005), (0.970, 0.005)),
        ((0.927, 0.001), (0.939, 0.005), (0.935, 0.003), (0.958, 0.008)),
        ((0.919, 0.005), (0.938, 0.003), (0.936, 0.006), (0.919, 0.030)),
    ),
    1e-6: (
        ((0.800, 0.011), (0.836, 0.008), (0.844, 0.011), (0.875, 0.022)),
        ((0.792, 0.013), (0.838, 0.007), (0.842, 0.009), (0.899, 0.021)),
        ((0.824, 0.007), (0.850, 0.004), (0.858, 0.002), (0.890, 0.018)),
        ((0.821, 0.017), (0.857, 0.007), (0.848, 0.011), (0.926, 0.053)),
        ((0.751, 0.045), (0.838, 0.017), (0.815, 0.020), (0.959, 0.003)),
    ),
}
EPOCHS, ROWS = 17, 60_000


class Printed(NamedTuple):
    """A figure of the paper."""

    mean: float
    deviation: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.deviation:.3f}"


# By architecture, column and rate; the rate of the model alone is None.
PAPER: dict[tuple[str, str, float | None], Printed] = {
    **{(named(net), ALONE, None): Printed(*pair) for net, pair in zip(ARCHITECTURES, _ALONE, strict=True)},
    **{
        (named(net), column, rate): Printed(*pair)
        for rate, rows in CELLS.items()
        for net, row in zip(ARCHITECTURES, rows, strict=True)
        for column, pair in zip((*RANDOM, EUCLIDEAN), row, strict=True)
    },
}
