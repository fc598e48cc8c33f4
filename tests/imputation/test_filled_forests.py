"""Forests that read rows whose gaps another model has filled in."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from sklearn_mpt import MPTDependencyNetwork, MPTMixture
from sklearn_mpt._imputation.bayes_rule import GaussianIndicators
from sklearn_mpt._imputation.coded_models import CodedModel
from sklearn_mpt._imputation.coded_rows import CODES, CodedRows, TableCoding
from sklearn_mpt._imputation.column_layout import ColumnLayout
from sklearn_mpt._imputation.expectations import expectations
from sklearn_mpt._imputation.filled_forests import FilledForests

# indicators of all categories add up to one
pytestmark = pytest.mark.filterwarnings("ignore:The variance of component")

FORESTS = RandomForestClassifier(10), RandomForestRegressor(7, min_samples_leaf=3)


def coded(rows, kinds, counts):
    layout = ColumnLayout(kinds, np.array(counts)).with_levels(rows)
    return CodedRows(rows, TableCoding(layout, rows))


def filled_forests():
    gaussian = MPTMixture(objective="lml", reg_covar=0.03, random_state=0)
    return FilledForests(GaussianIndicators(gaussian), *FORESTS)


@pytest.fixture(scope="module")
def fitted():
    """A number, a number of few values, a category and a number, with gaps."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=200)
    level = np.clip(np.rint(3 + z), 1, 5) ** 2
    category = np.digitize(z + rng.normal(size=200), [-1, 1])
    rows = np.column_stack([z, level, category, z + rng.normal(size=200)])
    rows[rng.random(rows.shape) < 0.2] = np.nan
    kinds = ["gaussian", "gaussian", "categorical", "gaussian"]
    table = coded(rows, kinds, [0, 0, 3, 0])
    return filled_forests().fit(table), table


@pytest.mark.parametrize("column", range(4))
def test_draws_and_expectations_are_those_of_conditionals(fitted, column):
    """Of a row that lacks one column: as densities sum to one, and in draws."""
    model, table = fitted
    values = table.coding.layout.values
    row = np.array([0.3, 4.0, 1.0, 0.2])
    grid = np.linspace(-12, 12, 2001)
    points = values.get(column, np.arange(3) if column == 2 else grid)
    at_points = np.tile(row, (len(points), 1))
    at_points[:, column] = points
    at_points = CodedRows(at_points, table.coding)
    mask = np.arange(4) == column
    density = np.exp(model.conditional_log_prob(at_points, mask)[:, column])
    step = np.diff(points).min()
    assert_allclose(density.sum() * step, 1, rtol=0.01)
    gap = CodedRows(np.where(mask, np.nan, row)[None], table.coding)
    numbers, log_probs = expectations(model, gap)
    mean = density @ points * step
    if column != 2:
        assert_allclose(numbers[0, column], mean, atol=0.01)
    if column in (1, 2):
        assert_allclose(np.exp(log_probs[column][0]), density * step)
    many = CodedRows(np.repeat(gap.numbers, 4000, axis=0), table.coding)
    drawn = model.draw(many, random_state=0)[:, column]
    assert_allclose(drawn.mean(), mean, atol=4 * drawn.std() / np.sqrt(4000))


def test_draws_keep_what_is_present(fitted):
    model, table = fitted
    drawn = model.draw(table, random_state=0)
    assert np.isfinite(drawn).all()
    assert_array_equal(drawn[~table.gaps], table.numbers[~table.gaps])
    assert_array_equal(drawn, model.draw(table, random_state=0))
    assert set(drawn[:, 2]) == {0, 1, 2}


def test_pickles_predict_the_same(fitted):
    model, table = fitted
    restored = pickle.loads(pickle.dumps(model))
    for found, expected in zip(
        expectations(restored, table), expectations(model, table), strict=True
    ):
        assert str(found) == str(expected)


def test_gaps_that_others_tell_cost_forests_little():
    """A step of a column that half of the rows lack, but others add up to."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 300))
    X = np.column_stack([a, b, a + b, np.sign(a + b) + 0.1 * rng.normal(size=300)])
    is_hidden = rng.random(X.shape) < [0, 0, 0.5, 0.2]
    table = coded(np.where(is_hidden, np.nan, X), ["gaussian"] * 4, [0] * 4)
    of_filled = filled_forests().fit(table)
    network = MPTDependencyNetwork(*FORESTS, n_masks=1, calibrate=False, random_state=0)
    of_gaps = CodedModel(network).fit(table)
    error_of_filled, error = (
        np.mean((expectations(m, table)[0] - X)[is_hidden[:, 3], 3] ** 2)
        for m in (of_filled, of_gaps)
    )
    assert error_of_filled < 0.7 * error


def test_entries_that_were_filled_in_are_no_targets():
    """A third of a column is missing; trees have seen the others only."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2))
    X[:30, 0] = np.nan
    table = coded(X, ["gaussian"] * 2, [0] * 2)
    model = filled_forests().fit(table)
    present = table.coded(CODES, False)[30:, 0]
    trees = model._fits[0][0][0].estimators_
    assert {tree.tree_.n_node_samples[0] <= 60 for tree in trees} == {True}
    assert_allclose(model._fits[0][1]["mean"], present.mean(), atol=1e-12)
