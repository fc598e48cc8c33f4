"""The transformer that fills gaps in, in Pipelines and beside scikit-learn's."""

import collections

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tables import some_table, with_gaps

from sklearn_mpt import MPTImputer, MPTLinearVAE, MPTMixture, MPTProbabilisticPCA
from sklearn_mpt._base.density import Density
from sklearn_mpt._fitting.mixture_weights import stacking_weights
from sklearn_mpt._imputation.bayes_rule import GaussianIndicators
from sklearn_mpt._imputation.coded_rows import (
    INDICATORS,
    CodedRows,
    HiddenRows,
    TableCoding,
)
from sklearn_mpt._imputation.column_layout import ColumnLayout, NumberTransform
from sklearn_mpt._imputation.hidden_table import HiddenTable
from sklearn_mpt._imputation.independent import IndependentColumns
from sklearn_mpt._imputation.kinds_of_models import TableSettings, kinds_of_models
from sklearn_mpt._imputation.power_transforms import PowerTransforms
from sklearn_mpt._imputation.weights import (
    HiddenEntries,
    kept_models,
    log_prob_weights,
    mean_weights,
    mixed,
)


@pytest.fixture(scope="module")
def frame():
    return with_gaps(some_table(120))


def table_imputer(**changes):
    model = MPTLinearVAE(1, likelihood="from_dtype", random_state=0, max_iter=5)
    return MPTImputer(model, **changes)


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X), y


def coded_rows(model, X):
    """Rows of a table, as the models of a mix read them."""
    return CodedRows(model._numbers(X), model._coding)


def test_gaps_get_what_the_model_expects(wine):
    X, _ = wine
    model = MPTProbabilisticPCA(init="pca", max_iter=0)
    filled = MPTImputer(model).fit_transform(X)
    assert_allclose(filled, model.fit(X).impute(X))
    assert_array_equal(filled[~np.isnan(X)], X[~np.isnan(X)])


def test_models_are_chosen_by_entries_that_are_hidden(wine):
    X, _ = wine
    imputer = MPTImputer(max_models=5, random_state=0).fit(X)
    tried = imputer.selection_
    assert {len(column) for column in tried.values()} == {5}
    assert_allclose(tried["weight"].sum(), 1)
    assert tried["name"][0] == "columns alone"
    best = tried["log_prob"].argmax()
    assert tried["weight"][1:].max() > tried["weight"][0]
    assert tried["weight"][0] < 0.2
    assert tried["log_prob"][best] > tried["log_prob"][0] + 0.1
    n_models = np.count_nonzero(tried["weight"])
    assert len(imputer.estimator_.estimators_) == n_models
    whole = load_wine().data
    hidden, scale = np.isnan(X) & ~np.isnan(whole), whole.std(axis=0)
    error = ((imputer.transform(X) - whole) / scale)[hidden]
    alone = ((np.nanmean(X, axis=0) - whole) / scale)[hidden]
    assert np.sqrt(np.mean(error**2)) < 0.85 * np.sqrt(np.mean(alone**2))


def test_few_models_are_mixed_and_independent_columns_are_among_them():
    rng = np.random.default_rng(0)
    columns, model = rng.normal(-1.5, 0.1, 200), rng.normal(-1.0, 0.1, 200)
    hidden = hidden_entries([columns, model - 0.5, model, model - 1e-3])
    assert_array_equal(kept_models(hidden), [0, 2])
    assert log_prob_weights(hidden.take([0, 2]))[1, 0] > 0.9


def hidden_entries(log_probs, columns=None, errors=None):
    log_probs = np.stack(log_probs)
    columns = np.zeros(log_probs.shape[1], int) if columns is None else columns
    errors = np.zeros(log_probs.shape) if errors is None else np.stack(errors)
    is_number = np.full(columns.max() + 1, errors.any())
    return HiddenEntries(columns, is_number, log_probs, errors, np.ones(len(columns)))


def test_a_model_has_weight_in_the_columns_that_it_predicts():
    """Each of two models predicts one column; a third column has one hidden entry."""
    columns = np.repeat([0, 1, 2], [300, 300, 1])
    alone = np.full(601, -1.0)
    first = np.where(columns == 0, -0.2, -1.8)
    second = np.where(columns == 1, -0.2, -1.8)
    hidden = hidden_entries([alone, first, second], columns)
    weights = log_prob_weights(hidden)
    assert_allclose(weights.sum(axis=0), 1)
    assert weights[1, 0] > 0.9
    assert weights[2, 1] > 0.9
    common = stacking_weights(hidden.log_prob)
    assert_allclose(weights[:, 2], common, atol=0.1)


def test_weights_of_means_minimise_the_squared_error():
    """Of two models with independent errors they are inverse to the variances."""
    rng = np.random.default_rng(0)
    noise = np.array([1.0, 0.4, 0.8])[:, None] * rng.normal(size=(3, 20_000))
    columns = np.arange(20_000) % 2
    hidden = hidden_entries(np.zeros((3, 20_000)), columns, noise)
    weights = mean_weights(hidden)
    precision = 1 / np.array([1.0, 0.4, 0.8]) ** 2
    assert_allclose(weights[:, 0], precision / precision.sum(), atol=0.03)
    worse = np.array([0.5, 0.9, 0.4])[:, None]
    weights = mean_weights(hidden._replace(error=worse * noise[:1]))
    assert_allclose(weights[1], 0, err_msg="worse than independent columns")


def test_weights_of_models_maximise_the_log_probability_of_hidden_entries():
    """With one additional entry that only this model explains."""
    log_probs = np.random.default_rng(0).normal(size=(2, 40))
    share = np.linspace(0.001, 0.999, 999)
    value = [mixed(log_probs, np.array([w, 1 - w])).sum() for w in share]
    best = share[np.argmax(value + np.log(share) + np.log(1 - share))]
    assert_allclose(stacking_weights(log_probs)[0], best, atol=0.003)


def test_weights_that_differ_between_ends_are_fitted_as_they_are_mixed():
    """Entries between the ends have parts of the weights of both."""
    log_probs = np.random.default_rng(0).normal(size=(2, 200))
    place = np.linspace(0, 1, 200)
    log_probs[0] += 2 * place
    ends = np.stack([1 - place, place])
    share = np.linspace(0.02, 0.98, 97)
    first, last = (end[..., None] for end in np.meshgrid(share, share))
    of_entries = first * ends[0] + last * ends[1]
    each = np.stack([of_entries, 1 - of_entries])
    value = mixed(log_probs[:, None, None], each).sum(axis=-1)
    value += sum(np.log(w * (1 - w))[..., 0] for w in (first, last))
    i, j = np.unravel_index(value.argmax(), value.shape)
    weights = stacking_weights(log_probs, 1.0, ends)
    assert_allclose(weights.sum(axis=1), 1)
    assert_allclose(weights[:, 0], [share[j], share[i]], atol=0.02)


def test_one_model_takes_columns_alone(wine):
    X = wine[0][:, [0, 2, 3]]  # which are not skewed
    imputer = MPTImputer(max_models=1, random_state=0).fit(X)
    middle = np.broadcast_to(np.nanmean(X, axis=0), X.shape)
    filled = imputer.transform(X)
    assert_allclose(filled[np.isnan(X)], middle[np.isnan(X)], rtol=2e-3)


def test_a_column_alone_is_filled_in_and_single_entries_are_refused():
    X = np.array([[1.0], [2.0], [6.0], [np.nan]])
    assert_allclose(MPTImputer(random_state=0).fit_transform(X)[3], 3, atol=0.05)
    with pytest.raises(ValueError, match=r"nothing to model: 0, 1 \(one value"):
        MPTImputer(random_state=0).fit([[1, np.nan], [np.nan, 2]])


def test_conditionals_of_a_mix_are_mixed(wine):
    """In the units of the columns, where fitted models see standardised numbers."""
    X = wine[0][:, [0, 2, 3]]  # which are not skewed
    model = MPTImputer(max_models=4, random_state=0).fit(X).estimator_
    model.weights_ = np.full_like(model.weights_, 1 / len(model.estimators_))
    mask = np.random.default_rng(1).random(X.shape) < 0.3
    hidden = mask & ~np.isnan(X)
    rows = coded_rows(model, X)
    log_probs = [m.conditional_log_prob(rows, mask) for m in model.estimators_]
    units = np.nanmean(X, axis=0), np.nanstd(X, axis=0)
    standardised = (X - units[0]) / units[1]
    for member, log_prob in zip(model.estimators_[1:], log_probs[1:], strict=True):
        by_model = member.model.conditional_log_prob(standardised, mask)
        in_units = np.where(hidden, by_model - np.log(units[1]), 0.0)
        assert_allclose(log_prob, in_units)
    expected = np.log(np.mean(np.exp(log_probs), axis=0))
    assert_allclose(
        model.conditional_log_prob(X, mask), np.where(hidden, expected, 0.0)
    )


def test_every_kind_of_column_is_filled_and_drawn(frame):
    frame = frame[:60]
    imputer = MPTImputer(max_models=4, random_state=0).fit(frame)
    filled = imputer.transform(frame)
    assert (filled.dtypes == frame.dtypes).all()
    assert not filled.isna().any(axis=None)
    drawn = clone(imputer).set_params(method="sample").fit(frame).transform(frame)
    assert not drawn.isna().any(axis=None)
    alone = imputer.transform(frame.iloc[[3]])
    pd.testing.assert_frame_equal(alone, filled.iloc[[3]])
    empty = frame.iloc[[0]].mask(np.ones((1, frame.shape[1]), bool))
    assert not imputer.transform(empty).isna().any(axis=None)


def test_ordered_categories_get_their_median():
    """Beside yes or no, and with a level that no row has."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=150)
    level = np.digitize(z + 0.3 * rng.normal(size=150), [-0.8, 0.2, 1.0])
    X = pd.DataFrame(
        {
            "score": pd.Categorical.from_codes(level, list("abcde"), ordered=True),
            "like": pd.Categorical.from_codes(level, list("abcde"), ordered=True),
            "yes": (z > 0).astype("bool"),
        }
    )
    gaps = X.mask(rng.random(X.shape) < 0.2).astype({"yes": "boolean"})
    imputer = MPTImputer(max_models=3, random_state=0).fit(gaps)
    assert imputer.estimator_.likelihoods_ == ["ordinal", "ordinal", "bernoulli"]
    filled = imputer.transform(gaps)
    assert (filled.dtypes == gaps.dtypes).all()
    gone = (gaps["score"].isna() & gaps["like"].notna()).to_numpy()
    steps = np.abs(filled["score"].cat.codes - level)[gone]
    assert steps.mean() < 0.4
    model = imputer.estimator_
    rows = coded_rows(model, gaps)
    _, (probs, *_) = model.estimators_[-1].expected(rows, rows.coding.layout.coded)
    assert probs.shape == (150, 5)


def test_probabilities_of_categories_add_up_to_one(frame):
    model = MPTImputer(max_models=4, random_state=0).fit(frame).estimator_
    rows = coded_rows(model, frame)
    rows = HiddenRows(rows, np.random.default_rng(0).random(rows.gaps.shape) < 0.4)
    coded = rows.coding.layout.coded
    for member in model.estimators_:
        _, log_probs = member.expected(rows, coded)
        for j, log_prob in zip(coded, log_probs, strict=True):
            assert_allclose(np.exp(log_prob[rows.gaps[:, j]]).sum(axis=1), 1)


@pytest.mark.parametrize("kind", ["gaussian", "poisson"])
def test_mixture_completes_rows_as_its_conditionals_do(kind):
    rng = np.random.default_rng(0)
    kinds = ["categorical", "gaussian", "bernoulli", kind, "categorical"]
    X = rng.normal(size=(40, 5))
    if kind == "poisson":
        X[:, 3] = rng.poisson(3.0, size=40)
    for j, count in ((0, 3), (2, 2), (4, 4)):
        X[:, j] = np.arange(40) % count
    model = MPTMixture(2, likelihood=kinds, max_iter=0, random_state=0).fit(X)
    density = model._density()
    X[rng.random(X.shape) < 0.5] = np.nan
    rows, columns, counts = torch.from_numpy(X), [0, 2, 4], [3, 2, 4]
    of = rows, columns, counts, np.array([1]), np.exp
    filled, average, log_prob = density.complete(*of)
    expected, by_nodes, by_conditionals = Density.complete(density, *of)
    assert_allclose(average[np.isnan(X[:, 1])], by_nodes[np.isnan(X[:, 1])], rtol=0.2)
    assert_allclose(filled[:, 3], expected[:, 3])
    gaps = np.repeat(np.isnan(X[:, columns]), counts, axis=1)
    assert_allclose(log_prob[gaps], by_conditionals[gaps], atol=1e-10)


@pytest.mark.filterwarnings("ignore:The variance of component")
def test_categories_beside_gaussians_follow_from_bayes_rule():
    """Frequency times density of the visible entries given the category."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=300)
    level = np.digitize(z + rng.normal(size=300), [-0.5, 0.7])
    group = rng.integers(3, size=300)
    rows = np.column_stack([z, level, group + 0.0, z > rng.normal(size=300)])
    kinds = ["gaussian", "ordinal", "categorical", "bernoulli"]
    layout = ColumnLayout(kinds, np.array([0, 3, 3, 2]))
    coding = TableCoding(layout, rows)
    coded = CodedRows(rows, coding)
    gaussian = MPTMixture(1, objective="lml", reg_covar=0.01)
    model = GaussianIndicators(gaussian).fit(coded)
    known = coded.coded(INDICATORS)
    assert_allclose(known.std(axis=0), 1)
    score = gaussian.score_samples
    for j, place in ((1, slice(1, 3)), (2, slice(3, 6)), (3, slice(6, 7))):
        frequency = np.bincount(rows[:, j].astype(int)) / 300
        log_joint = np.empty((300, len(frequency)))
        for c, share in enumerate(frequency):
            column = np.array([[0.0, c, c, c]])
            codes = CodedRows(column, coding).coded(INDICATORS)[0, place]
            joint, alone = known.copy(), np.full_like(known[:1], np.nan)
            joint[:, place], alone[:, place] = codes, codes
            log_joint[:, c] = np.log(share) + score(joint) - score(alone)
        expected = log_joint - np.logaddexp.reduce(log_joint, axis=1, keepdims=True)
        code = rows[:, j].astype(int)
        found = model.conditional_log_prob(coded, np.arange(4) == j)[:, j]
        assert_allclose(found, expected[np.arange(300), code], atol=1e-8)
    gap = np.tile([1.0, np.nan, 1.0, np.nan], (2000, 1))
    drawn = model.draw(CodedRows(gap, coding), random_state=0)
    for j in (1, 3):
        asked = CodedRows(np.where(np.arange(4) == j, 0.0, gap[:1]), coding)
        share = np.exp(model.conditional_log_prob(asked, np.arange(4) == j)[0, j])
        error = np.sqrt(share * (1 - share) / 2000)
        assert_allclose((drawn[:, j] == 0).mean(), share, atol=4 * error)


@pytest.mark.filterwarnings("ignore:The variance of component", "ignore:Maximum iter")
@pytest.mark.parametrize("kinds", [["categorical"] * 3, ["categorical", "gaussian"]])
def test_hidden_entries_of_trials_have_the_conditionals_of_their_models(kinds):
    """Those of codes follow from the probabilities that fill them in."""
    rng = np.random.default_rng(0)
    group, d = rng.integers(3, size=(90, 1)), len(kinds)
    rows = np.where(rng.random((90, d)) < 0.6, group, rng.integers(3, size=(90, d)))
    is_coded = np.array(kinds) == "categorical"
    rows = rows + np.where(is_coded, 0.0, rng.normal(size=(90, d)))
    hidden = rng.random(rows.shape) < 0.3
    counts = np.where(is_coded, 3, 0)
    layout = ColumnLayout(kinds, counts)
    rows = CodedRows(rows, TableCoding(layout, rows))
    table = HiddenTable.from_rows(rows, np.ones(90), [hidden])
    settings, names = TableSettings(rows.coding, 90, 0), []
    assert settings.n_indicators == np.maximum(counts, 1).sum()
    for first in (kind[0] for kind in kinds_of_models(settings) if kind):
        names.append(first.name)
        (gaps,) = table.training_rows()
        model = first.start(None).fit(gaps, sample_weight=np.ones(90))
        found, filled = table.predictions(model, hidden)
        log_prob = model.conditional_log_prob(rows, hidden) + np.log(table.scale)
        assert_allclose(found, log_prob[hidden], atol=1e-6, err_msg=first.name)
        assert np.isin(filled[hidden & is_coded], [0, 1, 2]).all()
    assert {"columns alone", "Gaussian, shrinkage 0.03", "mixture of 2"} < {*names}
    assert "forests" in names


@pytest.mark.parametrize("n_rows", [150, 2500])
def test_rows_are_coded_once_and_never_restored(monkeypatch, n_rows):
    """With powers and without. Trials take a sample, if there are many rows."""
    lengths = collections.defaultdict(list)
    for name in ("transform", "inverse_transform"):
        function = getattr(NumberTransform, name)

        def recorded(self, rows, function=function, name=name):
            lengths[name].append(len(rows))
            return function(self, rows)

        monkeypatch.setattr(NumberTransform, name, recorded)
    rng = np.random.default_rng(0)
    x = rng.normal(size=n_rows)
    label = np.where(x + rng.normal(size=n_rows) > 0, "high", "low")
    frame = pd.DataFrame({"x": np.exp(x), "label": label})
    frame["level"] = np.rint(x).clip(-1, 1)
    gaps = frame.mask(rng.random((n_rows, 3)) < 0.2).dropna(how="all")
    n_rows = len(gaps)
    imputer = MPTImputer(max_models=4, random_state=0).fit(gaps)
    assert imputer.selection_["name"][-1] == "forests"
    of_all_rows = [length for length in lengths["transform"] if length >= n_rows]
    assert 1 <= len(of_all_rows) <= 2
    assert len(lengths["transform"]) <= (2 if n_rows < 2000 else 4)
    assert not lengths["inverse_transform"]
    lengths.clear()
    imputer.transform(gaps)
    assert 1 <= len(lengths["transform"]) <= 2
    assert not lengths["inverse_transform"]


def skewed_table(n_rows, rng):
    """Columns that are skewed to the right, to the left and not, and an even one."""
    z = rng.multivariate_normal(np.zeros(4), 0.4 + 0.6 * np.eye(4), n_rows)
    return np.column_stack([np.exp(z[:, 0]), 5 - np.exp(z[:, 1]), z[:, 2], z[:, 3] > 0])


def test_exponents_are_those_of_scipy():
    """The normal log-likelihood of the transforms is largest there."""
    numbers = np.random.default_rng(0).gamma(1.0, size=400)
    powers = PowerTransforms.from_rows(numbers[:, None], np.array([True]))
    scaled = (numbers - powers.origins) / powers.units
    exponents = np.linspace(0, 2, 2001)
    values = [stats.yeojohnson_llf(exponent, scaled) for exponent in exponents]
    assert_allclose(powers.exponents, exponents[np.argmax(values)], atol=1e-3)


def test_powers_choose_skewed_columns_and_are_inverted():
    rows = skewed_table(300, np.random.default_rng(0))
    powers = PowerTransforms.from_rows(rows, np.array([True, True, True, False]))
    assert_array_equal(powers.columns, [0, 1])
    assert abs(powers.exponents[0]) < 0.2, "the logarithm of a lognormal is normal"
    transforms = powers.transform(rows)
    assert (abs(stats.skew(transforms[:, :2])) < 0.5).all()
    assert_array_equal(transforms[:, 2:], rows[:, 2:])
    assert_allclose(powers.inverse_transform(transforms), rows, rtol=1e-12, atol=1e-12)
    step = 1e-6
    rise = powers.transform(rows + step) - powers.transform(rows - step)
    assert_allclose(np.exp(powers.log_derivatives(rows)), rise / (2 * step), rtol=1e-5)
    gap = np.where(np.arange(4) < 2, np.nan, rows)
    assert np.isnan(powers.transform(gap)[:, :2]).all()


def test_powers_do_not_depend_on_scales():
    rows, is_number = skewed_table(200, np.random.default_rng(1))[:, :3], np.ones(3)
    powers, others = (
        PowerTransforms.from_rows(rows, is_number),
        PowerTransforms.from_rows(rows * 1e3, is_number),
    )
    assert_allclose(others.exponents, powers.exponents, atol=1e-4)
    shift = np.array([50.0, -50.0, 3.0])
    apart = PowerTransforms.from_rows(rows - shift, is_number)
    assert_array_equal(apart.columns, [0, 1])
    assert_allclose(apart.exponents[1], powers.exponents[1], atol=1e-4)


def test_a_column_of_few_distinct_values_has_no_power():
    rows = np.column_stack([np.zeros(50), np.arange(50) == 7, np.arange(50.0)])
    rows[:49, 2] = np.nan
    assert not len(PowerTransforms.from_rows(rows, np.ones(3)).columns)


def test_conditionals_of_powers_are_densities_with_the_expected_values():
    """Of the whole mixture, in the units of the table."""
    rows = skewed_table(400, np.random.default_rng(2))
    table = pd.DataFrame(rows[:, :3], columns=list("abc")).assign(yes=rows[:, 3] > 0)
    model = MPTImputer(max_models=5, random_state=0).fit(table).estimator_
    assert_array_equal(model._coding.transforms[True].powers.columns, [0, 1])
    model.mean_weights_ = model.weights_
    for j, name in enumerate("abc"):
        mask, middle = np.arange(4) == j, rows[0, j]
        grid = middle + np.sinh(np.linspace(-7, 7, 4001))
        asked = table.iloc[[0] * len(grid)].copy()
        asked[name] = grid
        density = np.exp(model.conditional_log_prob(asked, mask)[:, j])
        assert_allclose(np.trapezoid(density, grid), 1, atol=2e-4)
        gap = table.iloc[[0] * 4000].copy()
        gap[name] = np.nan
        mean = np.trapezoid(density * grid, grid)
        assert_allclose(model.impute(gap[:1])[name], mean, rtol=5e-3)
        drawn = model.impute(gap, "sample", random_state=0)[name]
        below = np.trapezoid(density[grid <= middle], grid[grid <= middle])
        # draws leave independent columns out
        assert_allclose((drawn <= middle).mean(), below, atol=0.03)


def test_rmse_of_trials_is_in_standard_deviations_of_the_table():
    X = skewed_table(300, np.random.default_rng(3))[:, :3]
    X[np.random.default_rng(4).random(X.shape) < 0.2] = np.nan
    selection = MPTImputer(max_models=1, random_state=0).fit(X).selection_
    assert_allclose(selection["rmse"], 1, atol=0.2)


def test_averages_by_nodes_agree_with_the_closed_form_of_mixtures():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 3))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    model = MPTMixture(1, objective="lml", random_state=0).fit(X)
    density, columns = model._density(), np.array([0, 2])
    X[rng.random(X.shape) < 0.4] = np.nan
    gaps, rows = np.isnan(X[:, columns]), torch.from_numpy(X)
    found = density.average(rows, columns, np.exp).numpy()
    expected = Density.average(density, rows, columns, np.exp).numpy()
    assert_allclose(found[gaps], expected[gaps], rtol=1e-12)
    log_prob = density.conditional_log_prob
    mean = density.expect(rows).numpy()[:, columns]
    for i, j in np.argwhere(gaps)[:6]:
        one, hidden = rows[[i]].clone(), torch.arange(3)[None] == columns[j]
        one[0, columns[j]] = mean[i, j]
        log_peak = log_prob(one, hidden)[0, columns[j]].item()
        std = np.exp(-log_peak) / np.sqrt(2 * np.pi)
        assert_allclose(found[i, j], np.exp(mean[i, j] + std**2 / 2), rtol=1e-10)


@pytest.mark.filterwarnings("ignore:The variance of component")
def test_averages_over_several_modes_far_apart_are_those_of_the_mean():
    """Where nodes around the mean miss the modes."""
    X = np.repeat([[-1.0], [1.0]], 50, axis=0)
    how = {"objective": "lml", "reg_covar": 1e-6, "random_state": 0}
    density = MPTMixture(2, **how).fit(X)._density()
    gap, columns = torch.full((1, 1), torch.nan, dtype=torch.float64), np.array([0])
    exact = density.average(gap, columns, np.exp)
    assert_allclose(exact, np.cosh(1), rtol=1e-4)
    by_nodes = Density.average(density, gap, columns, np.exp)
    assert_allclose(by_nodes, 1, atol=1e-3)


def test_independent_columns_are_normal_densities_and_frequencies():
    X = np.array([[1.0, 0], [2.0, 1], [4.0, 1], [np.nan, np.nan]])
    weight = np.array([1.0, 1, 2, 5])
    layout = ColumnLayout(["gaussian", "categorical"], np.array([0, 3]))
    rows = CodedRows(X, TableCoding(layout, X))
    model = IndependentColumns().fit(rows, sample_weight=weight)
    mean, variance = 11 / 4, (1 + 4 + 32) / 4 - (11 / 4) ** 2
    frequency = np.array([1.5, 3.5, 0.5]) / 5.5
    found = model.conditional_log_prob(rows, np.ones(X.shape, bool))
    place, x = (mean, np.sqrt(variance)), np.array([1.0, 2, 4])
    density = 0.99 * stats.norm(*place).pdf(x) + 0.01 * stats.cauchy(*place).pdf(x)
    assert_allclose(found[:3, 0], np.log(density), rtol=1e-5)
    assert_allclose(found[:3, 1], np.log(frequency[[0, 1, 1]]))
    assert_array_equal(found[3], 0)
    filled, (log_probs,) = model.expected(rows, [1])
    assert_allclose(filled[3, 0], mean)
    assert_allclose(log_probs[3], np.log(frequency))
    gaps = CodedRows(np.full((4000, 2), np.nan), rows.coding)
    drawn = model.draw(gaps, random_state=0)
    assert_allclose(drawn[:, 0].std(), np.sqrt(variance), rtol=0.05)
    assert_allclose(np.bincount(drawn[:, 1].astype(int)) / 4000, frequency, atol=0.03)


def test_draws_leave_independent_columns_out():
    """Rows drawn from them would weaken the dependence of columns."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(300, 1)), 2, axis=1)
    X[:, 1] += 0.1 * rng.normal(size=300)
    gaps = X.copy()
    gaps[:100, 1] = np.nan
    imputer = MPTImputer(max_models=4, method="sample", random_state=0).fit(gaps)
    n_models = len(imputer.estimator_.weights_)
    imputer.estimator_.weights_ = np.full(n_models, 1 / n_models)
    error = (imputer.transform(gaps) - X)[:100, 1]
    # of a quarter of the rows, draws from independent columns would have about 1.4
    assert np.sqrt((error**2).mean()) < 0.4


def test_the_same_random_state_gives_the_same_numbers(wine):
    X = wine[0][:40, :4]
    first, second = (
        MPTImputer(max_models=4, n_imputations=2, random_state=3).fit(X)
        for _ in range(2)
    )
    assert_array_equal(first.transform(X), second.transform(X))
    tables = first.transform_multiple(X), second.transform_multiple(X)
    assert_array_equal(tables[0], tables[1])
    assert not np.array_equal(tables[0][0], tables[0][1])
    assert_array_equal(tables[0][0][~np.isnan(X)], X[~np.isnan(X)])


@pytest.mark.parametrize("estimator", [None, MPTProbabilisticPCA(1)])
def test_several_tables_need_rows_that_models_can_be_fitted_to(wine, estimator):
    X = wine[0][:40, :4].copy()
    X[:12, 1] = np.nan
    X[12:, 1] = np.nan_to_num(X[12:, 1], nan=2.0)
    imputer = MPTImputer(estimator, max_models=2, n_imputations=2, random_state=0)
    imputer.fit(X)
    with pytest.raises(
        ValueError, match=r"no entries of column\(s\) \[1\]: give new rows"
    ):
        imputer.transform_multiple(X[:12])
    with pytest.raises(ValueError, match=r"one row: give new rows together"):
        imputer.transform_multiple(np.full_like(X[:1], 1.5))
    with pytest.warns(UserWarning, match=r"the 30 rows of X alone, and fit had 40"):
        tables = imputer.transform_multiple(X[:30])
    assert not any(np.isnan(table).any() for table in tables)


def test_fits_of_several_tables_differ_by_what_rows_leave_uncertain():
    """Means of a column with gaps alone vary as those of present entries do."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    X[:50, 0] = np.nan
    imputer = MPTImputer(max_models=1, n_imputations=50, random_state=0).fit(X)
    means = [table[:, 0].mean() for table in imputer.transform_multiple(X)]
    variance = np.nanvar(X[:, 0])
    # half of the table are draws of variance/50, about a mean of variance/50 too
    expected = 0.25 * variance / 50 * 2
    assert_allclose(np.var(means), expected, rtol=0.6)


def test_the_score_prefers_the_model_that_suits(wine):
    X, _ = wine
    scores = {
        k: MPTImputer(MPTProbabilisticPCA(k, init="pca", max_iter=0)).fit(X).score(X)
        for k in (1, 5)
    }
    search = GridSearchCV(
        MPTImputer(MPTProbabilisticPCA(init="pca", max_iter=0)),
        {"estimator__n_components": [1, 5]},
        cv=2,
    ).fit((X - np.nanmean(X, axis=0)) / np.nanstd(X, axis=0))
    assert np.isfinite(list(scores.values())).all()
    assert search.best_params_["estimator__n_components"] in (1, 5)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_the_score_counts_each_entry_once():
    """Of columns that are independent it is the mean of their log-densities."""
    X = np.random.default_rng(0).normal(size=(50, 3)) * [1, 2, 3]
    X[::4, 1] = np.nan
    model = MPTImputer(max_models=1, random_state=0).fit(X)
    every = model.estimator_.conditional_log_prob(X, np.ones(3, bool))
    assert_allclose(model.score(X), every[~np.isnan(X)].mean())


def test_shifts_move_what_is_filled_in(wine, frame):
    X, _ = wine
    how = {"max_models": 2, "random_state": 0}
    plain = MPTImputer(**how).fit(X).transform(X)
    shifted = MPTImputer(**how, delta={1: 0.5}).fit(X).transform(X)
    moved = np.zeros(X.shape)
    moved[:, 1] = 0.5 * np.isnan(X[:, 1])
    assert_allclose(shifted - plain, moved, atol=1e-12)
    number = frame.select_dtypes("float").columns[0]
    imputer = MPTImputer(max_models=2, random_state=0).fit(frame)
    plain = imputer.transform(frame)[number]
    imputer = clone(imputer).set_params(delta={number: 2.0}).fit(frame)
    gap = frame[number].isna()
    assert_allclose(imputer.transform(frame)[number] - plain, 2.0 * gap, atol=1e-12)


def test_unknown_categories_are_refused_or_missing():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=40), "b": rng.choice(["x", "y"], 40)})
    new = pd.DataFrame({"a": [0.0], "b": ["z"]})
    imputer = MPTImputer(max_models=2, random_state=0).fit(X)
    with pytest.warns(UserWarning, match=r"takes as missing, in .* 'b': \['z'\]"):
        filled = imputer.transform(new)
    with pytest.raises(ValueError, match="'b' has categories that were not in fit"):
        clone(imputer).set_params(unknown="error").fit(X).transform(new)
    assert filled.loc[0, "b"] in ("x", "y")
    assert new.loc[0, "b"] == "z"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_table_keeps_its_columns_and_dtypes(frame):
    imputer = table_imputer().set_output(transform="pandas")
    filled = imputer.fit_transform(frame)
    assert isinstance(filled, pd.DataFrame)
    assert (filled.dtypes == frame.dtypes).all()
    assert not filled.isna().any().any()
    assert list(imputer.get_feature_names_out()) == list(frame.columns)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_draws_follow_random_state(frame):
    imputer = table_imputer(method="sample")
    draws = [
        clone(imputer).set_params(random_state=seed).fit(frame).transform(frame)
        for seed in (0, 0, 1)
    ]
    assert draws[0].equals(draws[1])
    assert not draws[0].equals(draws[2])


def test_parameters_of_the_model_are_searched_in_a_pipeline(wine):
    X, y = wine
    pipe = make_pipeline(
        MPTImputer(MPTProbabilisticPCA(random_state=0)),
        StandardScaler(),
        LogisticRegression(),
    )
    grid = {"mptimputer__estimator__n_components": [1, 3]}
    search = GridSearchCV(pipe, grid, cv=2).fit(X, y)
    assert search.best_score_ > 0.8


def test_columns_of_a_transformer_may_be_some(wine):
    X, _ = wine
    some = make_column_transformer((MPTImputer(max_models=2), [0, 1, 2, 3]))
    assert not np.isnan(some.fit_transform(X)).any()


def test_bad_parameters_are_refused(wine):
    with pytest.raises(TypeError, match="an object implementing 'impute'"):
        MPTImputer(LogisticRegression()).fit(wine[0])
    for bad, match in (
        ({"method": "median"}, "'method' .* a str among"),
        ({"max_seconds": "all"}, "'max_seconds' .* {'auto'}, .* Got 'all'"),
        ({"max_models": 0}, "'max_models' .* Got 0"),
        ({"n_imputations": 0}, "'n_imputations' .* Got 0"),
        ({"unknown": "ignore"}, "'unknown' .* a str among"),
        ({"delta": {"a": 1.0}}, "delta names a column 'a'"),
        ({"delta": [1.0]}, "a number for each of 13 columns"),
        ({"delta": {0: np.inf}}, "delta of column 0 must be a finite"),
        (
            {
                "estimator": MPTLinearVAE(1),
                "likelihood": {0: "categorical"},
                "keep_empty_features": True,
            },
            "^likelihood={0: 'categorical'} .* set its likelihood. keep_empty_features",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            MPTImputer(**bad).fit(wine[0])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("method", ["mean", "sample"])
def test_columns_without_gaps_are_left_as_they_are(frame, method):
    whole = some_table(120)
    gaps = frame.assign(level=whole["level"], visits=whole["visits"])
    imputer = table_imputer(method=method, random_state=0)
    filled = imputer.set_output(transform="pandas").fit(gaps).transform(gaps)
    pd.testing.assert_frame_equal(
        filled[["level", "visits"]], whole[["level", "visits"]]
    )
    assert not filled.isna().any().any()


def test_parts_of_a_table_have_their_own_draws_by_a_random_state_instance(wine):
    part = np.tile([np.nan, 2.0, 2.0, 20.0], (20, 1))
    for seed, differ in ((0, False), (np.random.RandomState(0), True)):
        imputer = MPTImputer(MPTProbabilisticPCA(1), method="sample", random_state=seed)
        imputer.fit(wine[0][:, :4])
        drawn = [imputer.transform(part)[:, 0] for _ in range(2)]
        assert len(np.unique(drawn[0])) == 20
        assert (drawn[0] != drawn[1]).all() == differ
