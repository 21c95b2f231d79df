"""The classifier's labels: weights of classes, and several labels for each row."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.datasets import make_multilabel_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from sklearn.utils.class_weight import compute_sample_weight

import liftednn as lnn
from liftednn import LiftedClassifier

RNG = np.random.default_rng(0)
X = RNG.standard_normal((240, 4))
Y = np.array(["rare", "often"])[(X[:, 0] + 0.5 * RNG.standard_normal(240) < 1).astype(int)]
SEVERAL = np.column_stack([X[:, 0] > 0, X[:, 1] * X[:, 2] > 0, X[:, 3] > 1]).astype(int)


def small(**options: Any) -> LiftedClassifier:
    return LiftedClassifier(**{"hidden_layer_sizes": (8,), "max_iter": 5, "random_state": 0, **options})


def equal(a: LiftedClassifier, b: LiftedClassifier) -> bool:
    pairs = zip([*a.coefs_, *a.intercepts_], [*b.coefs_, *b.intercepts_], strict=True)
    return all(np.array_equal(p, q) for p, q in pairs)


# class_weight


@pytest.mark.parametrize("given", ["balanced", {"rare": 4.0}, {"rare": 4.0, "often": 0.5}], ids=str)
@pytest.mark.parametrize("sample_weight", [None, RNG.random(240)], ids=["plain", "weighted"])
@pytest.mark.thin(2)
def test_class_weights_multiply_the_weights_of_rows(given: Any, sample_weight: np.ndarray | None) -> None:
    together = compute_sample_weight(given, Y) * (1 if sample_weight is None else sample_weight)
    found = small(class_weight=given).fit(X, Y, sample_weight)
    assert equal(found, small().fit(X, Y, together))
    assert not equal(found, small().fit(X, Y, sample_weight))


def test_a_class_of_weight_0_is_left_out() -> None:
    three = np.where(X[:, 1] > 1, "third", Y)
    model = small(class_weight={"third": 0}, max_iter=30).fit(X, three)
    assert list(model.classes_) == ["often", "rare", "third"]
    assert "third" not in model.predict(X)


def test_balanced_weights_do_not_count_rows_of_weight_0() -> None:
    three = np.where(X[:, 1] > 1, "third", Y)
    weights = (three != "third") * RNG.uniform(0.5, 1, 240)
    kept = weights > 0
    balanced = weights.copy()
    balanced[kept] *= compute_sample_weight("balanced", three[kept])
    model = small(class_weight="balanced").fit(X, three, weights)
    assert equal(model, small().fit(X, three, balanced))


def test_a_stream_takes_weights_of_classes_but_not_balanced_ones() -> None:
    with pytest.raises(ValueError, match=r"class_weight='balanced' needs all labels at once.*give a dictionary"):
        small(class_weight="balanced").partial_fit(X, Y, classes=["rare", "often"])
    given = {"rare": 3.0, "never": 2.0}
    model, plain = small(class_weight=given), small()
    for part in (slice(0, 100), slice(100, 240)):  # neither holds the class "never"
        weights = np.where(Y[part] == "rare", 3.0, 1.0)
        model.partial_fit(X[part], Y[part], classes=["never", "often", "rare"])
        plain.partial_fit(X[part], Y[part], classes=["never", "often", "rare"], sample_weight=weights)
    assert equal(model, plain)


@pytest.mark.parametrize("wrong", ["uniform", 3.0, {"rare": -1.0}, {"other": 1.0}], ids=str)
def test_wrong_weights_of_classes_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"class_weight|Negative|negative|class"):
        small(class_weight=wrong).fit(X, Y)


# several labels for each row


def test_without_hidden_layer_each_label_is_a_logistic_regression() -> None:
    model = small(hidden_layer_sizes=(), divergence="euclidean", alpha=0.01, max_iter=100, tol=1e-12).fit(X, SEVERAL)
    for column, probabilities in zip(SEVERAL.T, model.predict_proba(X).T, strict=True):
        one = LogisticRegression(C=1 / (2 * 0.01 * len(X)), tol=1e-10, max_iter=1000).fit(X, column)
        np.testing.assert_allclose(probabilities, one.predict_proba(X)[:, 1], atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"divergence": "euclidean"}, {"prediction": "lifted"}], ids=str)
def test_several_labels_are_learned(options: dict[str, Any]) -> None:
    model: Any = small(hidden_layer_sizes=(20,), max_iter=20, **options).fit(X, SEVERAL)
    found, probabilities = model.predict(X), model.predict_proba(X)
    assert found.shape == probabilities.shape == SEVERAL.shape
    np.testing.assert_array_equal(found, probabilities > 0.5)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(probabilities), rtol=1e-6, atol=1e-12)
    assert model.score(X, SEVERAL) == accuracy_score(SEVERAL, found)  # all labels of a row must be right
    assert model.score(X, SEVERAL) > 0.5  # a constant has 0.275
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), found)


def test_several_labels_train_with_the_cross_entropy_of_each() -> None:
    model = small(hidden_layer_sizes=(), alpha=0.0, max_iter=1).fit(X, SEVERAL)
    assert model.network_.loss == lnn.losses.Matching()
    shares = [log_loss(column, p) for column, p in zip(SEVERAL.T, model.predict_proba(X).T, strict=True)]
    assert sum(shares) < sum(log_loss(column, np.full(240, column.mean())) for column in SEVERAL.T)


def test_one_label_of_a_column_of_one_is_one_label() -> None:
    x, y = make_multilabel_classification(100, n_classes=2, random_state=0)
    assert small().fit(x, y).predict(x).shape == (100, 2)
    with pytest.warns(UserWarning, match="column-vector"):
        assert small().fit(x, y[:, :1]).predict(x).shape == (100,)


def test_labels_may_be_sparse_or_of_weighted_classes() -> None:
    assert equal(small().fit(X, csr_matrix(SEVERAL)), small().fit(X, SEVERAL))
    weighted = small(class_weight="balanced").fit(X, SEVERAL)
    assert equal(weighted, small().fit(X, SEVERAL, compute_sample_weight("balanced", SEVERAL)))


def test_early_stopping_with_several_labels() -> None:
    model = small(early_stopping=True, max_iter=10).fit(X, SEVERAL)
    assert len(model.validation_scores_) == model.n_iter_


def test_a_stream_of_several_labels() -> None:
    model = small()
    for part in (slice(0, 120), slice(120, 240), slice(0, 240)):
        model.partial_fit(X[part], SEVERAL[part], classes=np.arange(3))
    assert model.predict(X).shape == SEVERAL.shape
    with pytest.raises(ValueError, match=r"y has shape \(240, 2\): give zeros and ones of shape \(n, 3\)"):
        model.partial_fit(X, SEVERAL[:, :2])
    with pytest.raises(ValueError, match=r"y has shape \(240,\): give zeros and ones of shape \(n, 3\)"):
        model.partial_fit(X, np.arange(240) % 3)


def test_wrong_kinds_of_several_labels_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"y has shape \(240, 2\) and holds other numbers than 0 and 1: give one label"
    ):
        small().fit(X, np.column_stack([np.arange(240) % 3, np.arange(240) % 2]))
    with pytest.raises(ValueError, match=r"is for one label a row, and y has shape \(240, 3\).*leave loss='auto'"):
        small(loss=lnn.losses.SoftmaxCrossEntropy()).fit(X, SEVERAL)
    with pytest.raises(ValueError, match=r"warm_start needs the classes of the last fit"):
        small(warm_start=True).fit(X, np.arange(240) % 3).fit(X, SEVERAL)
