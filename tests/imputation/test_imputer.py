"""The transformer that fills gaps in, in Pipelines and beside scikit-learn's."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from tables import some_table, with_gaps

from sklearn_mpt import MPTImputer, MPTLinearVAE, MPTProbabilisticPCA


@pytest.fixture(scope="module")
def frame():
    return with_gaps(some_table(120))


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X), y


def test_gaps_get_what_the_model_expects(wine):
    X, _ = wine
    model = MPTProbabilisticPCA(init="pca", max_iter=0)
    filled = MPTImputer(model).fit_transform(X)
    assert_allclose(filled, model.fit(X).impute(X))
    assert_array_equal(filled[~np.isnan(X)], X[~np.isnan(X)])


def test_models_are_chosen_by_entries_that_are_hidden(wine):
    X, _ = wine
    imputer = MPTImputer(max_models=4, random_state=0).fit(X)
    tried = imputer.selection_
    assert {len(column) for column in tried.values()} == {4}
    assert_allclose(tried["weight"].sum(), 1)
    assert tried["name"][0] == "columns alone"
    assert_allclose(tried["rmse"][0], 1, atol=0.1)
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


@pytest.mark.parametrize("max_models", [1, 4, 8])
def test_log_probabilities_of_a_column_add_up_to_one(max_models):
    """Numbers, ordered and other categories, given any gaps of the row."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=300)
    frame = pd.DataFrame(
        {
            "a": np.exp(z + 0.5 * rng.normal(size=300)),
            "n": np.rint(2 * z).clip(-3, 3),
            "score": pd.Categorical.from_codes(
                np.digitize(z, [-1, 0.5]), list("xyz"), ordered=True
            ),
            "c": np.where(
                z + rng.normal(size=300) > 0, "p", rng.choice(list("qr"), 300)
            ),
        }
    )
    gaps = frame.mask(rng.random(frame.shape) < 0.2)
    model = MPTImputer(max_models=max_models, random_state=0).fit(gaps).estimator_
    row = gaps.iloc[[7]]
    grids = {
        "a": np.sinh(np.linspace(-9, 9, 20_001)),
        "n": np.sinh(np.linspace(-9, 9, 20_001)),
        "score": pd.Categorical(list("xyz"), list("xyz"), ordered=True),
        "c": list("pqr"),
    }
    for j, (name, grid) in enumerate(grids.items()):
        asked = row.iloc[[0] * len(grid)].assign(**{name: grid})
        log_prob = model.conditional_log_prob(asked, np.arange(4) == j)[:, j]
        if name in "an":
            assert_allclose(np.trapezoid(np.exp(log_prob), grid), 1, atol=0.02)
        else:
            assert_allclose(np.exp(log_prob).sum(), 1, rtol=1e-6)


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


def skewed_table(n_rows, rng):
    """Columns that are skewed to the right, to the left and not, and an even one."""
    z = rng.multivariate_normal(np.zeros(4), 0.4 + 0.6 * np.eye(4), n_rows)
    return np.column_stack([np.exp(z[:, 0]), 5 - np.exp(z[:, 1]), z[:, 2], z[:, 3] > 0])


def test_conditionals_of_powers_are_densities_with_the_expected_values():
    """Of the whole mixture, in the units of the table."""
    rows = skewed_table(400, np.random.default_rng(2))
    table = pd.DataFrame(rows[:, :3], columns=list("abc")).assign(yes=rows[:, 3] > 0)
    model = MPTImputer(max_models=5, random_state=0).fit(table).estimator_
    model.mean_weights_ = model.weights_
    for j, name in enumerate("abc"):
        mask, middle = np.arange(4) == j, rows[0, j]
        grid = middle + np.sinh(np.linspace(-7, 7, 4001))
        asked = table.iloc[[0] * len(grid)].copy()
        asked[name] = grid
        density = np.exp(model.conditional_log_prob(asked, mask)[:, j])
        assert_allclose(np.trapezoid(density, grid), 1, atol=2e-2)
        gap = table.iloc[[0] * 4000].copy()
        gap[name] = np.nan
        mean = np.trapezoid(density * grid, grid)
        assert_allclose(model.impute(gap[:1])[name], mean, rtol=0.03)
        drawn = model.impute(gap, "sample", random_state=0)[name]
        below = np.trapezoid(density[grid <= middle], grid[grid <= middle])
        # draws leave independent columns out
        assert_allclose((drawn <= middle).mean(), below, atol=0.04)


def test_draws_leave_independent_columns_out():
    """Rows drawn from them would weaken the dependence of columns."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(300, 1)), 2, axis=1)
    X[:, 1] += 0.1 * rng.normal(size=300)
    gaps = X.copy()
    gaps[:100, 1] = np.nan
    imputer = MPTImputer(max_models=4, method="sample", random_state=0).fit(gaps)
    n_models = len(imputer.estimator_.weights_)
    imputer.estimator_.weights_ = np.full((n_models, 2), 1 / n_models)
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


def test_the_score_prefers_the_model_that_suits():
    """Of one and of three factors, in a grid search of the imputer alone."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 8))
    X += 0.1 * rng.normal(size=X.shape)
    X[rng.random(X.shape) < 0.2] = np.nan
    imputer = MPTImputer(MPTProbabilisticPCA(init="pca", max_iter=0))
    search = GridSearchCV(imputer, {"estimator__n_components": [1, 3]}, cv=2).fit(X)
    assert search.best_params_["estimator__n_components"] == 3


def test_the_score_counts_each_entry_once():
    """Of columns that are independent it is the mean of their log-densities."""
    X = np.random.default_rng(0).normal(size=(50, 3)) * [1, 2, 3]
    X[::4, 1] = np.nan
    model = MPTImputer(max_models=1, random_state=0).fit(X)
    every = model.estimator_.conditional_log_prob(X, np.ones(3, bool))
    assert_allclose(model.score(X), every[~np.isnan(X)].mean())


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
        ({"max_value": {0: -np.inf}}, "max_value of column 0 must be a finite"),
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


def test_parts_of_a_table_have_their_own_draws_by_a_random_state_instance(wine):
    part = np.tile([np.nan, 2.0, 2.0, 20.0], (20, 1))
    for seed, differ in ((0, False), (np.random.RandomState(0), True)):
        imputer = MPTImputer(MPTProbabilisticPCA(1), method="sample", random_state=seed)
        imputer.fit(wine[0][:, :4])
        drawn = [imputer.transform(part)[:, 0] for _ in range(2)]
        assert len(np.unique(drawn[0])) == 20
        assert (drawn[0] != drawn[1]).all() == differ
