"""Dependency networks against enumeration, closed forms and their own predictors."""

import functools

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config
from kinds import KINDS, rows_of_all_kinds
from numpy.testing import assert_allclose, assert_array_equal
from reference import terms_of_orders
from scipy import stats
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import (
    BayesianRidge,
    LinearRegression,
    LogisticRegression,
    Ridge,
)
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_mpt import (
    MPTDependencyNetwork,
    MPTImputer,
    check_masked_model,
    compare_lml,
    lml_samples,
)

WEIGHT = 0.01  # default of marginal_weight


def trees(n_trees=8):
    """Small forests for both parameters."""
    how = {"n_estimators": n_trees, "min_samples_leaf": 3}
    return RandomForestClassifier(**how), RandomForestRegressor(**how)


def network(*predictors, **params):
    return MPTDependencyNetwork(*predictors, random_state=0, **params)


@functools.cache
def binary():
    rng = np.random.default_rng(0)
    z = rng.random((200, 1))
    X = (rng.random((200, 4)) < 0.2 + 0.6 * z.round()).astype(float)
    return network(*trees(), likelihood="bernoulli", n_orders=3).fit(X), X


def numbers(n_rows=200):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(n_rows, 3))
    X[:, 1] += X[:, 0]
    return X * [1.0, 3.0, 0.5] + [0.0, 10.0, -1.0]


def density_of(model, row, column, grid):
    """Return the conditional log-density of a column on a grid, others visible."""
    rows = np.repeat(row[None], len(grid), 0)
    rows[:, column] = grid
    mask = np.arange(len(row)) == column
    return model.conditional_log_prob(rows, mask)[:, column]


@functools.cache
def of_all_kinds():
    X, params = rows_of_all_kinds(80), {"marginal_weight": 0.3, "n_masks": 1}
    return network(*trees(4), likelihood=KINDS, n_orders=1, **params).fit(X), X


@pytest.mark.parametrize("kind", KINDS)
def test_expectations_and_draws_agree(kind):
    (model, X), column = of_all_kinds(), KINDS.index(kind)
    gaps = np.repeat(X[:1], 3000, axis=0)
    gaps[:, column] = np.nan
    drawn = model.impute(gaps, "sample", random_state=1)[:, column]
    filled = model.impute(gaps[:1])[0, column]
    if kind == "categorical":
        counts = np.bincount(drawn.astype(int))
        assert counts[int(filled)] > counts.max() - 3 * np.sqrt(3000)
    elif kind in ("ordinal", "partial_credit"):
        below, above = (drawn < filled).mean(), (drawn > filled).mean()
        assert max(below, above) < 0.5 + 3 * 0.5 / np.sqrt(3000)
    else:
        error = drawn.std() / np.sqrt(3000)
        assert abs(drawn.mean() - filled) < 4 * error + 1e-5


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bootstrap", [False, True])
def test_expectations_given_a_forest_are_its_predictions(weighted, bootstrap):
    """Those of the numbers in its leaves, too: they repeat."""
    X = numbers(80)[:, :2]
    X[:, 1] = np.random.default_rng(0).integers(0, 5, 80)
    weight = np.arange(80) % 4 + 1.0 if weighted else np.ones(80)
    forest = ExtraTreesRegressor(6, min_samples_leaf=4, bootstrap=bootstrap)
    model = network(regressor=forest).fit(X, sample_weight=weight)
    mean = np.average(X, axis=0, weights=weight)
    std = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=weight))
    predicted = model.estimators_[1][0].predict((X[:, :1] - mean[0]) / std[0])
    expected = (1 - WEIGHT) * (mean[1] + std[1] * predicted) + WEIGHT * mean[1]
    gaps = np.column_stack([X[:, 0], np.full(80, np.nan)])
    assert_allclose(model.impute(gaps)[:, 1], expected, rtol=1e-6)


def correlated(n_rows, seed=0):
    """Six columns that say nearly the same."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, 1)) + 0.2 * rng.normal(size=(n_rows, 6))


def shares_inside(model, X, column, n_draws=39):
    """Return how often the ranks of numbers among draws are central, 9 of 10 times."""
    gaps = X.copy()
    gaps[:, column] = np.nan
    drawn = model.impute(np.repeat(gaps, n_draws, axis=0), "sample")
    drawn = drawn[:, column].reshape(len(X), n_draws)
    rank = (drawn < X[:, [column]]).sum(axis=1)
    return np.mean((2 <= rank) & (rank < n_draws - 1))


def test_errors_of_a_mean_of_trees_are_smaller_than_those_of_a_tree():
    """So the mixture over the leaves is too wide."""
    forest = RandomForestRegressor(30, min_samples_leaf=3, max_features=0.5)
    model = network(regressor=forest, n_orders=1, n_masks=2).fit(correlated(200))
    new = correlated(300, seed=1)
    assert shares_inside(model, new, 0) == pytest.approx(0.9, abs=3 * 0.017)


def by_hand(model, X, given, x):
    """log p(x_j | given) and expectations of columns, of one row; all standardised.

    A forest gives the mixture of its leaves, three widths around its mean, and, where
    numbers repeat, those in the leaves.
    """
    log_prob, expected = np.zeros((2, len(x)))
    for j, (forest,) in enumerate(model.estimators_):
        read, learned = model.inputs_[j], model._learned[j]
        Z, z = (rows[:, read].astype(np.float32) for rows in (X, given[None]))
        visible = 1 - np.isnan(z).mean()
        ends = np.array([1 - visible, visible])
        if model.likelihood == "bernoulli":
            share = np.bincount(X[:, j].astype(int)) + 0.5
            share = share / share.sum()
            weight = ends @ learned.get("marginal_weight", np.zeros(2))
            prob = (1 - weight) * forest.predict_proba(z)[0] + weight * share
            prob = (1 - WEIGHT) * prob + WEIGHT * share
            log_prob[j], expected[j] = np.log(prob[int(x[j] == 1)]), prob[1]
            continue
        step, leaves = np.diff(np.unique(X[:, j])).min(), []
        for tree, drawn in zip(
            forest.estimators_, forest.estimators_samples_, strict=True
        ):
            y = X[drawn, j][tree.tree_.apply(Z)[drawn] == tree.tree_.apply(z)]
            near = np.mean(np.abs(y - x[j]) < step / 2)
            leaves.append([y.mean(), y.var(), near])
        mean, variance, near = np.transpose(leaves)
        center = mean.mean()
        total = np.mean(variance + (mean - center) ** 2)
        mean = np.append(mean, [center] * 3)
        variance = np.append(variance, total * np.array([0.5, 1.0, 1.5]) ** 2)
        variance = np.maximum(variance, max(step**2 / 12, 0.003**2))
        normal = stats.norm.pdf(x[j], mean, np.sqrt(variance))
        shapes = [normal[:-3].mean(), *normal[-3:]]
        if step**2 / 12 > 0.003**2 and model.calibrate:
            shapes.append(near.mean() / step)
        narrow = ends @ learned["shape_weights"] @ shapes
        wide = stats.norm.pdf(x[j], 0, 2)
        log_prob[j] = np.log((1 - WEIGHT) * narrow + WEIGHT * wide)
        expected[j] = (1 - WEIGHT) * center
    return log_prob, expected


@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize("column", ["numbers", "repeated rows", "levels", "bits"])
def test_values_are_those_of_forests_by_hand(column, calibrate):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 1)) + 0.3 * rng.normal(size=(60, 3))
    if column == "repeated rows":
        X = np.vstack([X, X[:30]])
    elif column == "levels":
        X = X.round()
    elif column == "bits":
        X = (X > 0).astype(float)
    how = {"n_estimators": 4, "min_samples_leaf": 4}
    model = network(
        RandomForestClassifier(**how),
        RandomForestRegressor(**how),
        likelihood="bernoulli" if column == "bits" else "gaussian",
        n_masks=1,
        n_orders=2,
        calibrate=calibrate,
    ).fit(X)
    shift, scale = (0.0, 1.0) if column == "bits" else (X.mean(0), X.std(0))

    def conditional(rows, mask):
        of_rows = [
            by_hand(model, (X - shift) / scale, np.where(mask, np.nan, x), x)[0]
            for x in (rows - shift) / scale
        ]
        is_target = mask & ~np.isnan(rows)
        return np.where(is_target, np.array(of_rows) - np.log(scale), 0.0)

    rows, mask = X[:3].copy(), np.array([True, False, True])
    rows[1, 1] = np.nan
    found = model.conditional_log_prob(rows, mask)
    assert_allclose(found, conditional(rows, mask), rtol=1e-6)
    along = terms_of_orders(conditional, rows, model.orders_).sum(2)
    score = logsumexp(along, axis=0) - np.log(2)
    assert_allclose(model.score_samples(rows), score, rtol=1e-6)
    row = (rows[1] - shift) / scale
    _, expected = by_hand(model, (X - shift) / scale, row, row)
    filled = np.where(np.isnan(rows[1]), expected * scale + shift, rows[1])
    assert_allclose(model.impute(rows)[1], filled, rtol=1e-6)


@pytest.mark.parametrize("bootstrap", [False, True])
def test_trees_that_know_their_rows_are_calibrated(bootstrap):
    forest = ExtraTreesRegressor(12, bootstrap=bootstrap)
    model = network(regressor=forest, n_orders=1).fit(correlated(120)[:, :4])
    new = correlated(200, seed=1)[:, :4]
    inside = shares_inside(model, new, 0)
    assert inside == pytest.approx(0.9, abs=0.03 + 3 * 0.021)
    alone = stats.norm(scale=new.std(0)).entropy().sum()
    assert model.score(new) > -alone + 1


def sign_and_coin(n_rows, seed=0):
    """Five numbers, whether their sum is positive, and a coin."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 5))
    coin = rng.random(n_rows) < 0.5
    return np.column_stack([X, X.sum(axis=1) > 0, coin]).astype(float)


SIGN_AND_COIN = ["gaussian"] * 5 + ["bernoulli"] * 2


@pytest.mark.parametrize("forest", [RandomForestClassifier, ExtraTreesClassifier])
def test_probabilities_of_forests_are_calibrated(forest):
    """A coin gets the frequencies of all rows, and the sign loses little by that."""
    params = {"likelihood": SIGN_AND_COIN, "n_orders": 1}
    hidden, n_rows = np.array([False] * 5 + [True] * 2), 200
    log_probs = []
    for calibrate in (True, False):
        predictors = forest(30, min_samples_leaf=3), DummyRegressor()
        model = network(*predictors, calibrate=calibrate, **params)
        model.fit(sign_and_coin(n_rows))
        scored = model.conditional_log_prob(sign_and_coin(400, seed=1), hidden)
        log_probs.append(scored[:, 5:])
    calibrated, plain = log_probs
    gain = calibrated - plain
    n_free = 2  # a weight with nothing and one with all visible
    most = (n_free + 3 * np.sqrt(2 * n_free)) / (2 * n_rows)  # chi-square / 2n
    assert gain[:, 1].mean() > 2 * stats.sem(gain[:, 1])
    assert gain[:, 0].mean() > -most
    assert -np.log(2) - calibrated[:, 1].mean() < most


def test_trees_that_have_seen_all_rows_are_not_calibrated():
    """Of two rows, one tree has seen both in half of the fits."""
    X = np.array([[0.0, 1.0, 0.3], [1.0, 0.0, -0.2]])
    one_tree = RandomForestClassifier(1), RandomForestRegressor(1)
    kinds = ["bernoulli", "bernoulli", "gaussian"]
    for seed in range(8):
        model = MPTDependencyNetwork(*one_tree, likelihood=kinds, random_state=seed)
        assert np.isfinite(model.fit(X).score_samples(X)).all()


def test_predicted_deviations_are_used():
    X = numbers()
    model = network(regressor=BayesianRidge()).fit(X)
    row, grid = X[7], np.linspace(-5, 25, 7)
    shift, scale = X.mean(0), X.std(0)
    Z = np.r_[((row - shift) / scale)[[0, 2]], 1, 1]  # indicators: both are visible
    mean, std = model.estimators_[1][0].predict(Z[None], return_std=True)
    normal = stats.norm.pdf(grid, mean * scale[1] + shift[1], std * scale[1])
    wide = stats.norm.pdf(grid, shift[1], 2 * scale[1])
    expected = (1 - WEIGHT) * normal + WEIGHT * wide
    assert_allclose(np.exp(density_of(model, row, 1, grid)), expected)
    in_pipe = network(regressor=make_pipeline(StandardScaler(), BayesianRidge()))
    assert abs(in_pipe.fit(X).score(X) - model.score(X)) < 0.1


def test_residuals_of_rows_left_out_are_the_variance_of_others():
    """x_1 = x_0 + noise of variance 1, and x_0 has variance 1."""
    X = numbers(1000)
    model = network(regressor=LinearRegression(), n_masks=4).fit(X)
    alone, given = (
        model.conditional_log_prob(X, mask)[:, 1].mean()
        for mask in ([True, True, True], [False, True, False])
    )
    entropy = {v: stats.norm(scale=3 * np.sqrt(v)).entropy() for v in (1.0, 2.0)}
    assert alone == pytest.approx(-entropy[2.0], abs=0.05)
    assert given == pytest.approx(-entropy[1.0], abs=0.05)
    memory = network(regressor=make_pipeline(StandardScaler(), OneNeighbour()))
    few, mask = X[:300], [False, True, False]
    fitted = memory.fit(few).conditional_log_prob(few, mask)[:, 1].mean()
    assert fitted < -entropy[1.0] + 0.4  # it is not sure of the rows that it knows


class OneNeighbour(RegressorMixin, BaseEstimator):
    def fit(self, X, y):
        self.X_, self.y_ = X, y
        return self

    def predict(self, X):
        return self.y_[((X[:, None] - self.X_) ** 2).sum(2).argmin(1)]


def test_intervals_of_hidden_numbers_cover():
    X = numbers(400)
    X[:, 2] = np.sin(X[:, 0]) + 0.3 * X[:, 2]
    hidden = np.random.default_rng(0).random(X.shape) < 0.2
    gaps = np.where(hidden, np.nan, X)
    model = network(n_orders=1).fit(gaps)
    again = np.repeat(gaps, 50, axis=0)
    drawn = model.impute(again, "sample").reshape(len(X), 50, 3)
    drawn = drawn.swapaxes(0, 1)[:, hidden]
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    inside = (low <= X[hidden]) & (X[hidden] <= high)
    assert 0.85 < inside.mean() < 0.95


def test_no_density_is_sharper_than_the_step_of_a_column():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(1, 5, 300), rng.normal(size=300)]).astype(float)
    model = network(RandomForestClassifier(), trees()[1]).fit(X)
    at = density_of(model, X[0], 0, np.arange(1.0, 5))
    assert at.max() < -0.5 * np.log(2 * np.pi / 12)  # a normal of variance 1 / 12


def test_nothing_is_impossible():
    frame = pd.DataFrame({"x": np.arange(40.0), "y": ["a", "b"] * 20})
    frame["y"] = pd.Categorical(frame["y"], categories=["a", "b", "never"])
    model = network(*trees()).fit(frame)
    rare = frame.iloc[:1].assign(y=pd.Categorical(["never"], frame["y"].cat.categories))
    log_prob = model.conditional_log_prob(rare, np.array([False, True]))
    share = 0.5 / 41.5  # half an observation of each of three categories is added
    assert log_prob[0, 1] == pytest.approx(np.log(share))
    far = frame.iloc[:1].assign(x=1e3)
    assert np.isfinite(model.score_samples(far)).all()


def test_columns_with_one_value_need_no_predictor():
    X = np.column_stack([np.ones(30), np.zeros(30), np.arange(30.0)])
    kinds = ["gaussian", "bernoulli", "gaussian"]
    with pytest.warns(UserWarning, match=r"Column\(s\) \[0\] of X are constant"):
        model = network(LogisticRegression(), trees()[1], likelihood=kinds).fit(X)
    assert [len(each) for each in model.estimators_] == [0, 0, 1]
    log_prob = model.conditional_log_prob(X[:2], np.ones(3, dtype=bool))
    assert_allclose(log_prob[:, 1], np.log(30.5 / 31))
    gaps = np.where(np.eye(3), np.nan, X[:3])
    assert model.impute(gaps)[0, 0] == pytest.approx(1)


def test_a_single_column_has_a_marginal():
    X = numbers()[:, :1]
    model = network(regressor=RandomForestRegressor(20)).fit(X)
    assert model.score(X) == pytest.approx(-stats.norm(0, X.std()).entropy(), abs=0.1)


class Spy(ClassifierMixin, BaseEstimator):
    """A classifier without NaN that keeps what it gets."""

    def fit(self, X, y):
        self.classes_, self.X_ = np.unique(y), X
        return self

    def predict_proba(self, X):
        return np.full((len(X), len(self.classes_)), 1 / len(self.classes_))


@pytest.mark.parametrize("takes_nan", [False, True])
@pytest.mark.parametrize("kind", ["gaussian", "lognormal"])
def test_columns_may_have_any_unit(kind, takes_nan):
    rng = np.random.default_rng(0)
    X = np.exp(rng.normal(size=(80, 1)) + 0.5 * rng.normal(size=(80, 3)))
    scale = 2.0 ** np.array([-90, 90, 0])  # exact, but for logarithms
    predictors = trees() if takes_nan else (LogisticRegression(), Ridge())
    given, other = (
        network(*predictors, likelihood=kind).fit(rows) for rows in (X, X * scale)
    )
    log_prob = other.score_samples(X * scale) + (X > 0) @ np.log(scale)
    assert_allclose(log_prob, given.score_samples(X), atol=1e-3)
    hidden = np.where(rng.random(X.shape) < 0.5, np.nan, X)
    filled = other.impute(hidden * scale) / scale
    assert_allclose(filled, given.impute(hidden), rtol=1e-3)
    assert_allclose(other.transform(X * scale) / scale, given.transform(X), rtol=1e-3)


def test_predictors_without_nan_get_indicators():
    X = np.column_stack([np.tile([0.0, 1.0], 20), np.arange(40.0) % 3, np.arange(40.0)])
    kinds = ["bernoulli", "categorical", "gaussian"]
    X[3, 1] = np.nan
    model = network(Spy(), trees()[1], likelihood=kinds).fit(X)
    Z = model.estimators_[0][0].X_  # 3 indicators of categories, a number, 2 of columns
    assert Z.shape == (3 * 40, 6)
    assert np.isfinite(Z).all()
    assert_array_equal(Z[3, :3], 0)
    assert_array_equal(Z[:40, 4:], ~np.isnan(X[:, 1:]))  # the rows as they are
    hidden = Z[:, 5] == 0
    assert hidden[40:].any()
    assert_array_equal(Z[hidden, 3], 0)


def visible_sets(X, **params):
    """What the predictor of the first column sees of others; bool (n_masks, n, k)."""
    model = network(Spy(), DummyRegressor(), likelihood="bernoulli", **params).fit(X)
    Z, n_read = model.estimators_[0][0].X_, len(model.inputs_[0])
    return Z[:, -n_read:].reshape(-1, len(X), n_read).astype(bool)


@pytest.mark.filterwarnings("ignore:mask_rate=1.0 hides every feature")
def test_masks_of_copies():
    X = np.random.default_rng(0).integers(0, 2, (2000, 5)).astype(float)
    X[1:, 4] = np.nan
    visible = visible_sets(X)[:, 1:]
    assert not visible[:, :, 3].any()
    assert visible[0][:, :3].all()
    counts = np.bincount(visible[1:].sum(2).ravel(), minlength=4)
    assert_allclose(counts / 3998, [1 / 3, 1 / 3, 1 / 3, 0], atol=1e-3)
    for rate, n_visible in ((0.4, 3), (0.2, 4), (1.0, 0), (4, 1)):
        visible = visible_sets(np.eye(20)[:, :5], n_masks=2, mask_rate=rate)
        assert (visible.sum(2) == n_visible).all()


def test_masks_of_some_columns_are_those_of_all():
    """Of 10 other columns a predictor reads 3, and 4 are hidden."""
    X = np.random.default_rng(0).integers(0, 2, (4000, 11)).astype(float)
    (visible,) = visible_sets(X, n_masks=1, mask_rate=5, max_inputs=3)
    expected = stats.hypergeom(10, 3, 6).pmf(np.arange(4))
    counts = np.bincount(visible.sum(1), minlength=4)
    assert stats.chisquare(counts, 4000 * expected).pvalue > 1e-3
    assert_allclose(visible.mean(0), 0.6, atol=4 * 0.5 / np.sqrt(4000))


class Fails(ClassifierMixin, BaseEstimator):
    def __init__(self, in_fit=True):
        self.in_fit = in_fit

    def fit(self, X, y):
        if self.in_fit:
            raise RuntimeError("out of ideas")
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        raise RuntimeError("out of ideas")


def test_a_predictor_that_fails_is_named_with_its_column():
    frame = pd.DataFrame({"x": np.arange(20.0), "kind": ["a", "b"] * 10})
    model = network(Fails(), trees()[1])
    message = r"Fails\(.*\) failed to {} column 'kind': RuntimeError: out of ideas"
    with pytest.raises(ValueError, match=message.format("fit")):
        model.fit(frame)
    assert not hasattr(model, "estimators_")
    model.set_params(classifier=Fails(in_fit=False)).fit(frame)
    with pytest.raises(ValueError, match=message.format("predict")):
        model.score(frame)


class Answers(ClassifierMixin, RegressorMixin, BaseEstimator):
    """A predictor whose answers are given: functions of the number of rows."""

    def __init__(self, prob=None, number=None):
        self.prob = prob
        self.number = number

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        return self.prob(len(X))

    def predict(self, X):
        return self.number(len(X))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda n: np.full((n, 2), np.nan), r"finite numbers, got others in \d+ of"),
        (lambda n: np.full((n, 2), 0.7), r"add up to 1, got \[0\.7, 0\.7\]"),
        (lambda n: np.tile([1.5, -0.5], (n, 1)), r"add up to 1, got \[1\.5, -0\.5\]"),
        (lambda n: np.ones((n, 1)), r"returned shape \(20, 1\), expected \(20, 2\)"),
        (lambda n: np.full(n, np.nan), "finite numbers, got others in"),
        (lambda n: np.zeros((n, 2)), r"returned shape \(\d+, 2\), expected \(\d+, 1\)"),
    ],
)
def test_answers_that_are_no_predictions_are_named(answer, message):
    frame = pd.DataFrame({"x": np.arange(20.0), "kind": ["a", "b"] * 10})
    if np.shape(answer(3)) == (3,) or not answer(3).any():
        model = network(DummyClassifier(), Answers(number=answer))
        with pytest.raises(ValueError, match=f"predict column 'x': .*{message}"):
            model.fit(frame)
        return
    model = network(Answers(prob=answer), DummyRegressor(), n_orders=1).fit(frame)
    message = rf"Answers\(.*failed to predict column 'kind'.*predict_proba .*{message}"
    with pytest.raises(ValueError, match=message):
        model.conditional_log_prob(frame, np.array([False, True]))


class Plain:
    """A regressor without a base class, and so without tags."""

    def get_params(self, deep=True):
        return {}

    def fit(self, X, y):
        assert np.isfinite(X).all()
        self.mean_ = y.mean()
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_)


def test_a_predictor_needs_no_tags():
    model = network(regressor=Plain()).fit(numbers(20))
    assert np.isfinite(model.score_samples(numbers(20))).all()


def test_weights_reach_predictors():
    """Also those at the end of a pipeline, and those that pass parameters on."""
    X, kept = rows_of_all_kinds(60), np.arange(60) % 3 > 0
    model = network(*trees(3), likelihood=KINDS, n_orders=1)
    without = clone(model).fit(X[kept]).score_samples(X)
    assert_array_equal(clone(model).fit(X, None, kept).score_samples(X), without)
    rows, weight = numbers(60), np.where(numbers(60)[:, 1] > 10, 5.0, 0.5)
    rows[:, 2] = rows[:, 1] > 10
    model = network(
        make_pipeline(StandardScaler(), DummyClassifier(strategy="prior")),
        GridSearchCV(Ridge(), {"alpha": [1e6]}, cv=2),
        likelihood=["gaussian", "gaussian", "bernoulli"],
    ).fit(rows, sample_weight=weight)
    expected = np.average(rows, axis=0, weights=weight)
    assert_allclose(model.transform(rows)[0, 1:], expected[1:], atol=0.05)


def test_a_predictor_without_weights_is_refused_where_there_are_any():
    X, weight = (numbers(30) > 0).astype(float), np.linspace(1, 2, 30)
    model = network(KNeighborsClassifier(), likelihood="bernoulli").fit(X)
    with pytest.raises(ValueError, match=r"KNeighborsClassifier\(\) .* sample_weight"):
        model.fit(X, sample_weight=weight)


def test_numbers_do_not_depend_on_jobs():
    X = rows_of_all_kinds(40)
    model = network(*trees(3), likelihood=KINDS, n_orders=1)
    with parallel_config(backend="threading"):
        one, two = (clone(model).set_params(n_jobs=n).fit(X) for n in (1, 2))
    assert_array_equal(one.score_samples(X), two.score_samples(X))


def test_frames_are_filled_and_predicted():
    X = numbers(60)
    frame = pd.DataFrame({"size": X[:, 0], "count": np.arange(60) % 7})
    frame["kind"] = np.where(X[:, 1] > 10, "big", "small")
    frame["place"] = np.array(["a", "b", "c"])[np.arange(60) % 3]
    gaps = frame.astype({"count": "Int64"}).mask(np.random.default_rng(0).random(
        frame.shape) < 0.2)  # fmt: skip
    model = network(*trees()).fit(gaps)
    filled = model.impute(gaps, "sample")
    assert filled.dtypes.equals(gaps.dtypes)
    assert not filled.isna().any().any()
    predicted = model.transform(gaps)
    assert predicted.shape == (60, 1 + 1 + 1 + 3)
    assert len(model.get_feature_names_out()) == 6
    assert_allclose(predicted[:, 3:].sum(1), 1)
    assert ((predicted[:, 2] >= 0) & (predicted[:, 2] <= 1)).all()
    first = gaps.iloc[[0]].assign(size=np.nan)
    assert model.impute(first)["size"].iloc[0] == pytest.approx(predicted[0, 0])


def test_seeds_of_predictors():
    X = numbers(40)
    free = network(regressor=RandomForestRegressor(2)).fit(X)
    kept = network(regressor=RandomForestRegressor(2, random_state=7)).fit(X)
    seeds = {each[0].random_state for each in free.estimators_}
    assert len(seeds) == 3
    assert {each[0].random_state for each in kept.estimators_} == {7}
    assert free.regressor.random_state is None


def test_it_stands_among_the_others():
    X = numbers(120)
    models = {
        "forest": network(regressor=trees()[1]),
        "boosting": network(regressor=GradientBoostingRegressor(n_estimators=5)),
        "linear": network(regressor=BayesianRidge()),
    }
    fitted = {name: model.fit(X[:80]) for name, model in models.items()}
    table = compare_lml(fitted, X[80:], random_state=0)
    assert table.names[0] == "linear"  # the rows are normal
    model, X = binary()
    check_masked_model(model, X[:10])
    _, error = lml_samples(model, X[:20], n_orders=6, return_std=True, random_state=0)
    assert error.max() > 1e-3


def test_a_fixed_rate_is_biased():
    """With everything hidden in training, nothing is learned of dependence."""
    X = numbers(300)
    how = {"regressor": trees()[1], "n_masks": 1}
    given = network(**how, mask_rate=1 / 3).fit(X)
    with pytest.warns(UserWarning, match=r"mask_rate=1\.0 hides every feature"):
        alone = network(**how, mask_rate=1.0).fit(X)
    mask = np.array([False, True, False])
    gain = [m.conditional_log_prob(X, mask)[:, 1].mean() for m in (given, alone)]
    assert gain[0] > gain[1] + 0.2
    assert alone.score(X) == pytest.approx(
        sum(-stats.norm(scale=s).entropy() for s in X.std(0)), abs=0.3
    )


def test_the_imputer_finds_what_only_trees_see():
    """Of two columns that say nothing alone, a third is whether they differ."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2, (2, 300)).astype(bool)
    frame = pd.DataFrame({"a": a, "b": b, "differ": np.where(a ^ b, "yes", "no")})
    frame["number"] = rng.normal(size=300)
    gaps = frame.copy()
    gaps.loc[::10, "differ"] = None
    imputer = MPTImputer(random_state=0).fit(gaps)
    filled = imputer.transform(gaps)["differ"]
    assert (filled == frame["differ"])[::10].mean() > 0.9
