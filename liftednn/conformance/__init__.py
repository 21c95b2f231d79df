"""The checks of `liftednn.testing` for activations, losses and penalties: each method and each declared attribute, by values."""

from liftednn.conformance.activations import check_activation
from liftednn.conformance.losses import check_loss
from liftednn.conformance.penalties import check_penalty

__all__ = ["check_activation", "check_loss", "check_penalty"]
