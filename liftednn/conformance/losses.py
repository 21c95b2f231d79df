"""`check_loss`."""

from __future__ import annotations

import torch

from liftednn.base import Loss
from liftednn.conformance.common import WIDTH, N, check_in_u, check_minimal, draws

__all__ = ["check_loss"]


def check_loss(loss: Loss, width: int = WIDTH, seed: int = 0) -> None:
    """Convex in u with the declared gradient and curvature; encode and decode are inverse."""
    u, other = draws(seed, 2, width)
    classes = not loss.decode(u).is_floating_point()
    y = torch.arange(N) % width if classes else loss.decode(u.flip(0))
    encoded = loss.encode(y, width).double()
    assert encoded.shape == (N, width), f"encode gave shape {tuple(encoded.shape)}, expected {(N, width)}"
    if classes:
        assert torch.equal(loss.decode(encoded), y), "decode(encode(y)) must give the labels back"
        assert loss.score(encoded, encoded) == 1.0, "labels scored against themselves must give 1"
    if not bool(loss.value(u, encoded).isfinite().all()):
        u, other = u.softmax(-1), other.softmax(-1)
    check_in_u(loss, u, other, encoded)
    if loss.curvature == torch.inf:
        check_minimal(lambda v: loss.value(v, encoded), loss.prox_u(u, encoded, 0.7), u, 0.7, "prox_u", seed)
