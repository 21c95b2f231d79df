"""Conformance checks for your own activations, losses, penalties, operators and uncertainties: `check_activation(MyActivation())`.

Each asserts mathematics on random points in float64 and fails with a sentence. They are the checks that this package's own classes pass.
"""

from liftednn.testing.activations import check_activation
from liftednn.testing.losses import check_loss
from liftednn.testing.operators import check_operator
from liftednn.testing.penalties import check_penalty
from liftednn.testing.uncertainty import check_uncertainty

__all__ = ["check_activation", "check_loss", "check_operator", "check_penalty", "check_uncertainty"]
