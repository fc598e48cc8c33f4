"""Models to which columns are coded differently from how they are coded for others."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sklearn_mpt import MPTLinearVAE, MPTMixture
from sklearn_mpt._base.density import Density, as_tensor
from sklearn_mpt._imputation.coded_models import CodedModel
from sklearn_mpt._imputation.column_codings import LevelsAsNumbers, WithoutPowers
from sklearn_mpt._imputation.column_layout import ColumnLayout, NumberTransform
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
    units = NumberTransform.from_rows(
        rows, layout, PowerTransforms.from_rows(rows, is_number)
    )
    assert list(layout.values) == [1]
    assert units.powers.columns.tolist() == [0]
    return units.transform(rows), layout, units


def mixture(layout, n_components=2):
    params = {"objective": "lml", "max_iter": 20, "random_state": 0}
    return CodedModel(MPTMixture(n_components, likelihood=layout.kinds, **params))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_levels_follow_from_frequencies_and_densities_of_numbers(table):
    rows, layout, units = table
    plain = layout.without_levels()
    model = LevelsAsNumbers(layout, mixture(plain)).fit(rows)
    numbers = model._numbers(rows)
    assert_allclose(numbers[:, 1].mean(), 0, atol=1e-12)
    assert_allclose(numbers[:, 1].std(), 1)
    mask, count = np.arange(4) == 1, np.bincount(rows[:, 1].astype(int))
    log_joint = np.empty((300, 5))
    score = model.model.model.score_samples
    for c, point in enumerate(model._points[1]):
        joint = np.where(mask, point, numbers)
        alone = np.where(mask, point, np.full_like(numbers[:1], np.nan))
        log_joint[:, c] = np.log(count[c]) + score(joint) - score(alone)
    expected = log_joint - np.logaddexp.reduce(log_joint, axis=1, keepdims=True)
    found = model.conditional_log_prob(rows, mask)
    code = rows[:, 1].astype(int)
    assert_allclose(found[:, 1], expected[np.arange(300), code], atol=1e-8)
    assert_allclose(found[:, [0, 2, 3]], 0)
    gaps = np.where(mask, np.nan, rows)
    _, (log_prob,) = model.expected(gaps, layout, np.array([1]), units)
    assert_allclose(log_prob, expected, atol=1e-8)
    drawn = model.draw(np.repeat(gaps[:1], 4000, axis=0), random_state=0)
    share = np.bincount(drawn[:, 1].astype(int), minlength=5) / 4000
    assert_allclose(share, np.exp(expected[0]), atol=4 * 0.5 / np.sqrt(4000))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", ["mixture", "linear"])
def test_densities_at_points_are_conditionals(table, kind):
    rows = table[0][:40].copy()
    rows[:, 2] = np.random.default_rng(0).normal(size=40)
    model = MPTMixture(2) if kind == "mixture" else MPTLinearVAE(2, noise="per_feature")
    density = model.set_params(random_state=0, max_iter=5).fit(rows)._density()
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
    rows, layout, units = table
    plain = layout.without_levels()
    rows[:, 1] = (rows[:, 1] - rows[:, 1].mean()) / rows[:, 1].std()
    model = WithoutPowers(mixture(plain), units._replace(values={})).fit(rows)
    numbers = units.inverse_transform(rows)[:, 0]
    recoded = rows.copy()
    recoded[:, 0] = (numbers - numbers.mean()) / numbers.std()
    mask = np.random.default_rng(1).random(rows.shape) < 0.5
    found = model.conditional_log_prob(rows, mask)
    expected = model.model.conditional_log_prob(recoded, mask)
    assert_allclose(found[:, 1:], expected[:, 1:])
    step = 1e-5  # the derivative of numbers by coded numbers
    more, less = (units.inverse_transform(rows + by)[:, 0] for by in (step, -step))
    slope = np.log((more - less) / (2 * step) / numbers.std())
    asked = mask[:, 0]
    assert_allclose(found[asked, 0], (expected[:, 0] + slope)[asked], rtol=1e-6)
    gaps = np.repeat(np.where(np.arange(4) == 0, np.nan, rows[:1]), 4000, axis=0)
    mean, _ = model.expected(gaps[:1], plain, np.array([], int), units)
    drawn = units.inverse_transform(model.draw(gaps, random_state=0))[:, 0]
    assert_allclose(drawn.mean(), mean[0, 0], atol=4 * drawn.std() / np.sqrt(4000))
