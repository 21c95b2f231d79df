"""Uncertain inputs (the abstract's "robustness against noisy inputs"): the term of a layer whose input rows are not known exactly.

docs/robust.md has the mathematics. An uncertainty is a property of a layer, `Layer(..., uncertainty=Noise(0.3))`.
"""

from liftednn.robust.box import BoxBall
from liftednn.robust.gaussian import Noise
from liftednn.robust.matrix import FrobeniusBall

__all__ = ["BoxBall", "FrobeniusBall", "Noise"]
