"""Which columns predictors read."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chi2_contingency, spearmanr
from sklearn.dummy import DummyClassifier, DummyRegressor

from sklearn_mpt import MPTDependencyNetwork
from sklearn_mpt._dependency.relevance import _associations, most_related
from sklearn_mpt._likelihoods import Columns

SIMPLE = DummyClassifier(), DummyRegressor()


def related(X, n_related, kinds=None, n_categories=None, weight=None):
    kinds = ["gaussian"] * X.shape[1] if kinds is None else kinds
    counts = [1] * X.shape[1] if n_categories is None else n_categories
    columns = Columns(kinds, counts)
    rng = np.random.default_rng(0)
    return most_related(X, weight, columns, n_related, rng)


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
    counts = np.where(kinds == "categorical", 3, 1)
    counts[4] = 150
    return X, kinds.tolist(), counts.tolist()


PARTNERS = [1, 0, 3, 2, 5, 4, 7, 6]


@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_partners_are_found_among_columns_of_all_kinds(gaps):
    X, kinds, counts = pairs()
    X[np.random.default_rng(1).random(X.shape) < gaps] = np.nan
    found = related(X, 3, kinds, counts)
    assert all(len(places) == 3 for places in found)
    for column, partner in enumerate(PARTNERS):
        if column not in (4, 5):  # levels of few rows each say nothing for sure
            assert partner in found[column]
        assert column not in found[column]


def test_the_association_is_that_of_a_table_of_counts():
    rng = np.random.default_rng(0)
    a = rng.integers(0, 4, 200)
    X = np.column_stack([a, (a + rng.integers(0, 2, 200)) % 3, rng.normal(size=200)])
    table = np.array([[((a == i) & (X[:, 1] == j)).sum() for j in range(3)]
                      for i in range(4)])  # fmt: skip
    kinds = ["categorical", "categorical", "gaussian"]
    first, *_ = _associations(X, None, kinds)
    square = chi2_contingency(table, correction=False).statistic / 200
    chance = (12 + np.sqrt(24)) / 200
    assert_allclose(first[1], square - chance, rtol=1e-4)


def test_numbers_of_two_values_have_their_correlation():
    x = np.random.default_rng(0).random((2, 300)) < 0.4
    x[1] |= x[0]
    X = np.column_stack([*x.astype(float), np.zeros(300)])
    first, *_ = _associations(X, None, ["gaussian"] * 3)
    expected = spearmanr(*x).statistic ** 2 - (1 + np.sqrt(2)) / 300
    assert_allclose(first[1], expected, rtol=1e-4)
    assert first[2] < first[1]


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


def test_columns_without_numbers_are_read_last():
    X = np.random.default_rng(0).normal(size=(50, 6))
    X[:, 1], X[:, 2], X[1:, 3] = np.nan, 1.0, np.nan
    assert related(X, 2)[0].tolist() == [4, 5]


def test_predictors_read_their_inputs_only():
    X, _, _ = pairs(200)
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
