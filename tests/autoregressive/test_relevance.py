"""Which columns predictors read."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.dummy import DummyClassifier, DummyRegressor

from sklearn_mpt import MPTDependencyNetwork

SIMPLE = DummyClassifier(), DummyRegressor()


def related(X, n_related, kinds=None, weight=None):
    kinds = ["gaussian"] * X.shape[1] if kinds is None else kinds
    model = MPTDependencyNetwork(
        *SIMPLE, likelihood=kinds, max_inputs=n_related, n_orders=1, random_state=0
    )
    return model.fit(X, sample_weight=weight).inputs_


def pairs(n_rows=400):
    """Noise, but for 0 and 1 (a parabola), 2 and 3 (a trend), 4 and 5 (150 levels)."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 12))
    X[:, 1] = X[:, 0] ** 2 + 0.5 * X[:, 1]
    X[:, 3] = np.exp(X[:, 2] + X[:, 3])
    X[:, 4] = rng.integers(0, 150, n_rows)
    X[:, 5] += X[:, 4] % 2 * 3
    X[:, 6] = rng.choice([1, 2], n_rows)
    X[:, 7] = np.where(rng.random(n_rows) < 0.8, X[:, 6], 3 - X[:, 6])
    kinds = np.array(["gaussian"] * 12, dtype=object)
    kinds[[4, 6, 7]] = "categorical"
    return X, kinds.tolist()


PARTNERS = [1, 0, 3, 2, 5, 4, 7, 6]


@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_partners_are_found_among_columns_of_all_kinds(gaps):
    X, kinds = pairs()
    X[np.random.default_rng(1).random(X.shape) < gaps] = np.nan
    found = related(X, 3, kinds)
    assert all(len(places) == 3 for places in found)
    for column, partner in enumerate(PARTNERS):
        if column not in (4, 5):  # levels of few rows each say nothing for sure
            assert partner in found[column]
        assert column not in found[column]


def test_weights_count():
    """In rows that weigh little another column is the partner."""
    X = np.random.default_rng(0).normal(size=(600, 5))
    X[:300, 1] = X[:300, 0]
    X[300:, 2] = X[300:, 0]
    weight = np.repeat([1.0, 1e-3], 300)
    assert related(X, 1, weight=weight)[0] == [1]
    assert related(X, 1, weight=weight[::-1])[0] == [2]


@pytest.mark.parametrize("n_related", [None, 4, 9])
def test_few_columns_are_all_read(n_related):
    X = np.random.default_rng(0).normal(size=(20, 5))
    for column, places in enumerate(related(X, n_related)):
        assert_array_equal(places, np.delete(np.arange(5), column))


@pytest.mark.filterwarnings("ignore:Column.* are constant")
def test_columns_without_numbers_are_read_last():
    X = np.random.default_rng(0).normal(size=(50, 6))
    X[2:, 1], X[:, 2], X[1:, 3] = np.nan, 1.0, np.nan
    assert related(X, 2)[0].tolist() == [4, 5]


def test_predictors_read_their_inputs_only():
    X, _ = pairs(200)
    model = MPTDependencyNetwork(*SIMPLE, max_inputs=2, random_state=0)
    model.set_params(regressor=Read()).fit(X)
    assert [len(places) for places in model.inputs_] == [2] * 12
    unread = np.setdiff1d(np.arange(12), [*model.inputs_[0], 0])
    other = X.copy()
    other[:, unread] += 5.0
    mask = np.arange(12) == 0
    found, same = (model.conditional_log_prob(rows, mask) for rows in (X, other))
    assert_array_equal(found, same)
    other[:, model.inputs_[0]] += 5.0
    assert (model.conditional_log_prob(other, mask)[:, 0] != found[:, 0]).any()


class Read(DummyRegressor):
    """A regressor that adds up its inputs."""

    def predict(self, X):
        return X.sum(axis=1)


def test_rows_are_sampled():
    X = np.random.default_rng(0).normal(size=(90, 3))
    model = MPTDependencyNetwork(*SIMPLE, max_rows=40, n_masks=2, random_state=0)
    fits = model.set_params(regressor=Spy()).fit(X).estimators_
    for (spy,) in fits:
        assert len(spy.y_) == 2 * 40
        assert len(np.unique(spy.y_)) == 40
    assert len(model.set_params(max_rows=None).fit(X).estimators_[0][0].y_) == 2 * 90


class Spy(DummyRegressor):
    """A regressor that keeps its targets."""

    def fit(self, X, y):
        self.y_ = y
        return super().fit(X, y)
