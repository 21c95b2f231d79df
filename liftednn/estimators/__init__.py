"""Scikit-learn estimators: a classifier and a regressor that need no tuning.

`divergence="fenchel"` trains by mini-batches with all settings chosen from the data (docs/training.md); `"euclidean"` is the paper's
jointly convex model, trained by block-coordinate descent on all rows (sec. 6).
"""

from liftednn.estimators.classifier import LiftedClassifier
from liftednn.estimators.regressor import LiftedRegressor

__all__ = ["LiftedClassifier", "LiftedRegressor"]
