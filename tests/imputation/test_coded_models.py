"""Models of the rows of a table, which read them in different ways."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mpt import MPTLinearVAE, MPTMixture
from sklearn_mpt._base.density import Density, as_tensor
from sklearn_mpt._imputation.bayes_rule import LevelsAsNumbers
from sklearn_mpt._imputation.coded_models import CodedModel
from sklearn_mpt._imputation.coded_rows import (
    CODES,
    INDICATORS,
    NUMBERS,
    CodedRows,
    HiddenRows,
    TableCoding,
)
from sklearn_mpt._imputation.column_layout import ColumnLayout
from sklearn_mpt._imputation.power_transforms import PowerTransforms


@pytest.fixture(scope="module")
def table():
    """A skewed number, a number of few values, a category and a number."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=300)
    rows = np.column_stack(
        [
            np.exp(z),
            np.clip(np.rint(3 + z + 0.5 * rng.normal(size=300)), 1, 5) ** 2,
            z > rng.normal(size=300),
            z + rng.normal(size=300),
        ]
    )
    kinds = ["gaussian", "gaussian", "bernoulli", "gaussian"]
    layout = ColumnLayout(kinds, np.array([0, 0, 2, 0])).with_levels(rows)
    is_number = np.array([kind == "gaussian" for kind in layout.kinds])
    coding = TableCoding(layout, rows, PowerTransforms.from_rows(rows, is_number))
    assert list(layout.values) == [1]
    assert coding.transforms[True].powers.columns.tolist() == [0]
    return CodedRows(rows, coding)


def mixture(layout, n_components=2):
    params = {"objective": "lml", "max_iter": 20, "random_state": 0}
    kinds = layout.likelihood_among(MPTMixture._kinds_taken)
    return MPTMixture(n_components, likelihood=kinds, **params)


@pytest.mark.parametrize("form", [CODES, NUMBERS, INDICATORS])
@pytest.mark.parametrize("with_powers", [True, False])
def test_rows_with_hidden_entries_are_coded_as_tables_with_gaps(
    table, form, with_powers
):
    hidden = np.random.default_rng(0).random((200, 4)) < 0.3
    rows, coding = HiddenRows(table, hidden), table.coding
    gaps = CodedRows(np.where(hidden, np.nan, table.numbers[:200]), coding)
    coded = rows.coded(form, with_powers)
    assert_array_equal(coded, gaps.coded(form, with_powers))
    assert coded.shape[1] == 4
    is_number = np.array([True, form != CODES, form == INDICATORS, True])
    complete = table.coded(form, with_powers)
    assert_allclose(complete.mean(axis=0)[is_number], 0, atol=1e-12)
    assert_allclose(complete.std(axis=0)[is_number], 1)
    numbers = np.array([True, form != INDICATORS, form != INDICATORS, True])
    decoded = coding.decode(complete, form, with_powers)
    assert_allclose(decoded[:, numbers], table.numbers[:, numbers], rtol=1e-12)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_levels_follow_from_frequencies_and_densities_of_numbers(table):
    layout = table.coding.layout
    model = LevelsAsNumbers(mixture(layout.without_levels())).fit(table)
    rows, numbers = table.coded(CODES), table.coded(NUMBERS)
    code, values = rows[:, 1].astype(int), table.numbers[:, 1]
    mask, count = np.arange(4) == 1, np.bincount(code)
    log_joint = np.empty((300, 5))
    score = model.model.score_samples
    for c, level in enumerate(np.unique(values)):
        point = (level - values.mean()) / values.std()
        joint = np.where(mask, point, numbers)
        alone = np.where(mask, point, np.full_like(numbers[:1], np.nan))
        log_joint[:, c] = np.log(count[c]) + score(joint) - score(alone)
    expected = log_joint - np.logaddexp.reduce(log_joint, axis=1, keepdims=True)
    found = model.conditional_log_prob(table, mask)
    step = np.diff(np.unique(values)).min()
    density = expected[np.arange(300), code] - np.log(step)
    assert_allclose(found[:, 1], density, atol=1e-8)
    assert_allclose(found[:, [0, 2, 3]], 0)
    gaps = HiddenRows(table, np.tile(mask, (300, 1)))
    _, (log_prob,) = model.expected(gaps, np.array([1]))
    assert_allclose(log_prob, expected, atol=1e-8)
    first = CodedRows(np.repeat(gaps.numbers[:1], 4000, axis=0), table.coding)
    drawn = CodedRows(model.draw(first, random_state=0), table.coding)
    assert set(drawn.numbers[:, 1]) <= set(values)
    share = np.bincount(drawn.coded(CODES)[:, 1].astype(int), minlength=5) / 4000
    assert_allclose(share, np.exp(expected[0]), atol=4 * 0.5 / np.sqrt(4000))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", ["mixture", "linear"])
def test_densities_at_points_are_conditionals(table, kind):
    rows = table.coded(CODES)[:40].copy()
    rows[:, 2] = np.random.default_rng(0).normal(size=40)
    model = MPTMixture(2) if kind == "mixture" else MPTLinearVAE(2, noise="per_feature")
    density = model.set_params(random_state=0, max_iter=0).fit(rows)._density()
    rows[:20, 1], rows[10:, 3], points = np.nan, np.nan, [np.array([-1.0, 0.5, 2.0])]
    X, points = as_tensor(rows, "cpu"), [*points, np.array([0.0])]
    found = density.log_prob_at(X, [1, 3], points)
    general = Density.log_prob_at(density, X, [1, 3], points)
    for place, (j, point) in enumerate([(1, -1), (1, 0.5), (1, 2), (3, 0)]):
        asked = rows.copy()
        gaps = np.isnan(rows[:, j])
        asked[gaps, j] = point
        mask = np.isnan(rows)
        expected = model.conditional_log_prob(asked, mask)[gaps, j]
        assert_allclose(found[gaps, place], expected, rtol=1e-9)
        assert_allclose(general[gaps, place], expected, rtol=1e-9)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_model_without_powers_describes_numbers_as_they_are(table):
    layout = table.coding.layout
    model = CodedModel(mixture(layout), with_powers=False).fit(table)
    x = table.numbers[:, 0]
    coded = table.coded(CODES).copy()
    coded[:, 0] = (x - x.mean()) / x.std()
    mask = np.random.default_rng(1).random(coded.shape) < 0.5
    found = model.conditional_log_prob(table, mask)
    expected = model.model.conditional_log_prob(coded, mask)
    step = np.diff(layout.values[1]).min()
    scale = np.array([x.std(), step, 1.0, table.numbers[:, 3].std()])
    assert_allclose(found, np.where(mask, expected - np.log(scale), 0.0))
    gap = np.where(np.arange(4) == 0, np.nan, table.numbers[:1])
    gaps = CodedRows(np.repeat(gap, 4000, axis=0), table.coding)
    mean, _ = model.expected(gaps, np.array([], int))
    drawn = model.draw(gaps, random_state=0)[:, 0]
    assert_allclose(drawn.mean(), mean[0, 0], atol=4 * drawn.std() / np.sqrt(4000))
