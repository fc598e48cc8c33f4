"""The search for models: what is tried, what ends it, and how well it fills in."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.datasets import load_diabetes, load_iris, load_wine, make_friedman1
from sklearn.impute import KNNImputer
from sklearn.preprocessing import scale

from sklearn_mpt import MPTImputer
from sklearn_mpt._imputation import kinds_of_models, stacking
from sklearn_mpt._imputation.bayes_rule import FactorIndicators
from sklearn_mpt._imputation.coded_rows import CodedRows, TableCoding
from sklearn_mpt._imputation.column_layout import ColumnLayout
from sklearn_mpt._imputation.expectations import expectations
from sklearn_mpt._imputation.hidden_table import sampled, with_levels
from sklearn_mpt._imputation.independent import IndependentColumns
from sklearn_mpt._imputation.kinds_of_models import (
    Candidate,
    TableSettings,
    forests,
)
from sklearn_mpt._imputation.search import SearchLimits, search


def of_factors(n_rows, n_columns, n_factors=3, noise=0.5, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n_rows, n_factors))
    X = z @ rng.normal(size=(n_factors, n_columns))
    return z, X + noise * rng.normal(size=X.shape), rng


def rmse_of_hidden(X, is_hidden, **params):
    """Return the error of numbers that are hidden, in standard deviations."""
    filled = MPTImputer(random_state=0, **params).fit_transform(
        np.where(is_hidden, np.nan, X)
    )
    return error_of_hidden(X, is_hidden, filled)


def error_of_hidden(X, is_hidden, filled):
    return np.sqrt(np.mean(((filled - X) / X.std(axis=0))[is_hidden] ** 2))


def noise_of(X, noise=0.5):
    """Return the least error that a model can have, in standard deviations."""
    return np.sqrt(np.mean((noise / X.std(axis=0)) ** 2))


SMALL_TABLES = {
    "iris": load_iris().data,
    "wine": load_wine().data,
    "diabetes": load_diabetes().data[:200],
    "friedman": np.column_stack(make_friedman1(200, 6, random_state=0)),
}


@pytest.mark.parametrize("name", SMALL_TABLES)
def test_small_tables_are_filled_in_better_than_by_neighbours_or_means(name):
    X = scale(SMALL_TABLES[name])
    is_hidden = np.random.default_rng(0).random(X.shape) < 0.2
    by_neighbours = KNNImputer().fit_transform(np.where(is_hidden, np.nan, X))
    error_of_neighbours = np.sqrt(np.mean((by_neighbours - X)[is_hidden] ** 2))
    error_of_means = X[is_hidden].std()
    error = rmse_of_hidden(X, is_hidden, max_models=4)
    assert error < 1.02 * error_of_neighbours
    assert error < 0.97 * error_of_means


def test_a_sum_of_skewed_columns_is_filled_in_by_the_sum():
    X = np.exp(np.random.default_rng(0).normal(size=(120, 3)))
    X = np.column_stack([X, X.sum(axis=1)])
    is_hidden = np.zeros(X.shape, dtype=bool)
    is_hidden[:30, 3] = True
    assert rmse_of_hidden(X, is_hidden) < 0.05


def test_a_category_of_many_levels_leaves_numbers_a_model():
    z, X, rng = of_factors(500, 12)
    level = np.argsort(np.argsort(z[:, 0] + rng.normal(size=500))) * 40 // 500
    frame = pd.DataFrame(X).add_prefix("x")
    frame["level"] = [f"level {code}" for code in level]
    is_hidden = rng.random(frame.shape) < 0.1
    filled = MPTImputer(max_models=4, random_state=0).fit_transform(
        frame.mask(is_hidden)
    )
    error = (filled.iloc[:, :12].to_numpy(float) - X) / X.std(axis=0)
    error = np.sqrt(np.mean(error[is_hidden[:, :12]] ** 2))
    assert error < 1.3 * noise_of(X)


@pytest.mark.filterwarnings("ignore:MPTImputer ended the choice of models")
def test_means_of_more_than_100_levels_are_found():
    rng = np.random.default_rng(0)
    level = rng.integers(120, size=390)
    X = rng.normal(size=(120, 2))[level] + 0.3 * rng.normal(size=(390, 2))
    is_hidden = rng.random(X.shape) < 0.2
    gaps = pd.DataFrame(np.where(is_hidden, np.nan, X), columns=["a", "b"])
    means = gaps.groupby(level).transform("mean").fillna(0).to_numpy()
    gaps["level"] = [f"level {code}" for code in level]
    filled = MPTImputer(max_models=3, random_state=0).fit_transform(gaps)
    error = error_of_hidden(X, is_hidden, filled[["a", "b"]].to_numpy())
    assert error < 1.1 * error_of_hidden(X, is_hidden, means)


def test_forests_find_the_column_of_many_levels_that_determines_another():
    rng = np.random.default_rng(0)
    maker_of_model, model = rng.integers(8, size=40), rng.integers(40, size=300)
    maker = maker_of_model[model]
    numbers = np.column_stack([maker, model, rng.integers(40, size=(300, 2))])
    is_hidden = np.arange(300) < 100
    gaps = np.where(is_hidden[:, None] & (np.arange(4) == 0), np.nan, numbers)
    layout = ColumnLayout(["categorical"] * 4, np.array([8, 40, 40, 40]))
    rows, weight = with_levels(gaps, None, TableCoding(layout, gaps))
    [candidate] = forests(TableSettings(rows.coding, len(gaps), seed=0))
    fitted = candidate.start(None).fit(rows, sample_weight=weight)
    predicted = expectations(fitted, rows)[1][0][:100].argmax(axis=1)
    assert np.isin(model[is_hidden], model[~is_hidden]).all()
    assert (predicted != maker[is_hidden]).mean() < 0.12


def test_forests_find_the_intervals_of_a_number_that_are_categories():
    """Such as counties by the first digits of the number of a school."""
    rng = np.random.default_rng(0)
    place = rng.random(400)
    county = rng.permutation(40)[(40 * place).astype(int)]
    numbers = np.column_stack([county, place, rng.normal(size=(400, 11))])
    is_hidden = np.arange(400) < 100
    gaps = np.where(is_hidden[:, None] & (np.arange(13) == 0), np.nan, numbers)
    counts = np.append(40, np.zeros(12, dtype=int))
    layout = ColumnLayout(["categorical", *["gaussian"] * 12], counts)
    rows, weight = with_levels(gaps, None, TableCoding(layout, gaps))
    [candidate] = forests(TableSettings(rows.coding, len(gaps), seed=0))
    fitted = candidate.start(None).fit(rows, sample_weight=weight)
    predicted = expectations(fitted, rows)[1][0][:100].argmax(axis=1)
    wrong = (predicted != county[is_hidden]).mean()
    known, hidden = place[~is_hidden], place[is_hidden]
    nearest = np.abs(known - hidden[:, None]).argmin(axis=1)
    wrong_of_nearest = (county[~is_hidden][nearest] != county[is_hidden]).mean()
    assert wrong < wrong_of_nearest + 0.2


def test_rows_with_entries_of_columns_without_a_model_alone_do_not_count():
    """As names of rows: of a long table, a sample would have few entries to hide."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=400)
    frame = pd.DataFrame(
        {
            "name": [f"row {i}" for i in range(400)],
            "a": z + 0.3 * rng.normal(size=400),
            "b": z + 0.3 * rng.normal(size=400),
        }
    )
    numbers = ["a", "b"]
    frame[numbers] = frame[numbers].mask(rng.random((400, 2)) < 0.6)
    counts = frame[numbers].notna().any(axis=1)
    imputer = MPTImputer(max_models=3, random_state=0)
    with pytest.warns(UserWarning, match="does not model"):
        filled = imputer.fit(frame).transform(frame)
    with pytest.warns(UserWarning, match="does not model"):
        expected = imputer.fit(frame[counts]).transform(frame)
    pd.testing.assert_frame_equal(filled, expected)


@pytest.mark.filterwarnings("ignore:MPTImputer ended the choice of models")
def test_collinear_columns_are_filled_in_without_error():
    _, X, rng = of_factors(60, 101, n_factors=4, noise=0.0)
    assert rmse_of_hidden(X, rng.random(X.shape) < 0.1, max_models=5) < 0.05


def test_categories_given_factors_follow_from_bayes_rule():
    """Frequency times the density of visible entries given the category."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=200)
    level = np.digitize(z + 0.3 * rng.normal(size=200), [-0.5, 0.7]) + 0.0
    group = rng.integers(3, size=200) + 0.0
    rows = np.column_stack([z, level, group])
    layout = ColumnLayout(["gaussian", "ordinal", "categorical"], np.array([0, 3, 3]))
    coding = TableCoding(layout, rows)
    coded = CodedRows(rows, coding)
    model = FactorIndicators(2, 30, 1e-4).fit(coded)
    W, noise = model.model.components_, model.model.noise_variance_
    covariance = W.T @ W + np.diag(noise)
    known = coded.coded("indicators") - model.model.mean_
    for j in (1, 2):
        columns = coding.indicators.columns(j)
        log_joint = np.empty((200, 3))
        frequencies = model._mean_frequencies(j)
        for c, points in enumerate(coding.indicators.of_categories(j, 3)):
            joint = known.copy()
            joint[:, columns] = points - model.model.mean_[columns]
            block = covariance[columns, columns]
            alone = stats.multivariate_normal.logpdf(joint[0, columns], cov=block)
            log_joint[:, c] = stats.multivariate_normal.logpdf(joint, cov=covariance)
            log_joint[:, c] += np.log(frequencies[c]) - alone
        expected = log_joint - np.logaddexp.reduce(log_joint, axis=1, keepdims=True)
        found = model.conditional_log_prob(coded, np.arange(3) == j)[:, j]
        code = rows[:, j].astype(int)
        assert_allclose(found, expected[np.arange(200), code], atol=1e-8)


def test_small_noise_of_factors_is_found():
    """Far below a thousandth of the variance, beside a column that is all noise."""
    _, X, rng = of_factors(60, 20, noise=0.003)
    X = np.column_stack([X, rng.normal(size=60)])
    X = np.where(rng.random(X.shape) < 0.2, np.nan, X)
    layout = ColumnLayout(["gaussian"] * 21, np.zeros(21, int))
    coding = TableCoding(layout, X)
    model = FactorIndicators(3, 60, 0.02).fit(CodedRows(X, coding)).model
    noise = np.sqrt(model.noise_variance_) * coding.transforms[True].scale
    assert_allclose(np.median(noise), 0.003, rtol=0.2)
    assert_allclose(noise[-1], 1, rtol=0.4)


def test_long_tables_are_filled_in_by_chunks(monkeypatch):
    _, X, rng = of_factors(80, 4)
    X[rng.random(X.shape) < 0.2] = np.nan
    imputer = MPTImputer(max_models=2, random_state=0).fit(X)
    whole = imputer.transform(X)
    monkeypatch.setattr(stacking, "CHUNK_ENTRIES", 50)
    assert_allclose(imputer.transform(X), whole, rtol=1e-9)


class Failing(IndependentColumns):
    """A model that cannot be fitted to the rows."""

    def fit(self, rows, sample_weight=None):
        raise np.linalg.LinAlgError


def coded_rows(n_rows=120, n_columns=4):
    _, X, rng = of_factors(n_rows, n_columns)
    layout = ColumnLayout(["gaussian"] * n_columns, np.zeros(n_columns, int))
    return (*with_levels(X, None, TableCoding(layout, X)), rng)


def searched(monkeypatch, kinds):
    path = "sklearn_mpt._imputation.search.kinds_of_models"
    monkeypatch.setattr(path, lambda settings: kinds)
    rows, weight, rng = coded_rows()
    return search(rows, weight, SearchLimits(), rng)[:3]


def alone(name):
    return Candidate(name, lambda _: IndependentColumns())


def test_kinds_come_in_turn_and_end_without_gain(monkeypatch):
    """The same model again gains nothing, so that the third one is not tried."""
    kinds = [[alone("a")], [alone(f"b{i}") for i in range(3)], [alone("c")]]
    trials, kept, _ = searched(monkeypatch, kinds)
    assert [trial.name for trial in trials] == ["a", "b0", "c", "b1"]
    assert [trial.outcome for trial in trials] == ["gained"] * 3 + ["no gain"]
    assert_array_equal(kept, [0])


def test_a_model_that_cannot_be_fitted_is_left_out(monkeypatch):
    """The next one of its kind is tried all the same."""
    failing = Candidate("fails", lambda _: Failing())
    kinds = [[alone("a")], [failing, alone("b")]]
    trials, kept, weights = searched(monkeypatch, kinds)
    assert [trial.outcome for trial in trials] == ["gained", "failed", "gained"]
    assert_array_equal(kept, [0])
    assert_allclose(weights.log_prob, 1)
    with pytest.raises(np.linalg.LinAlgError):
        searched(monkeypatch, [[failing]])


def test_wide_tables_get_a_model_of_all_their_columns(monkeypatch):
    """Nearly as good as the true model, where columns alone have an error of 1.

    A limit ends the search with a warning, as larger models gain.
    """
    monkeypatch.setattr(kinds_of_models, "MAX_DENSE_COLUMNS", 10)
    _, X, rng = of_factors(60, 60)
    is_hidden = rng.random(X.shape) < 0.1
    gaps = np.where(is_hidden, np.nan, X)
    with pytest.warns(UserWarning, match=r"by max_models, though .* 4 factors, gained"):
        imputer = MPTImputer(max_models=5, random_state=0).fit(gaps)
    names = ["columns alone", "Gaussian, 1 factor", "forests"]
    names += ["Gaussian, 2 factors", "Gaussian, 4 factors"]
    assert imputer.selection_["name"].tolist() == names
    error = error_of_hidden(X, is_hidden, imputer.transform(gaps))
    assert error < 1.2 * noise_of(X)


def test_a_model_is_tried_however_few_the_seconds():
    X = np.array([[0.0, 1.0], [1.0, np.nan], [2.0, 2.0], [3.0, 5.0]])
    imputer = MPTImputer(max_seconds=1e-9, random_state=0).fit(X)
    assert imputer.selection_["name"].tolist() == ["columns alone"]


def test_limits_are_those_of_parameters():
    assert SearchLimits.from_parameters(1e-9, None).reached(3) == "max_seconds"
    assert SearchLimits.from_parameters("auto", None).reached(10**6) is None


def test_a_sample_of_rows_keeps_those_of_levels():
    rows = np.column_stack([np.arange(50.0), np.arange(50) % 3])
    layout = ColumnLayout(["gaussian", "categorical"], np.array([0, 3]))
    coded, weight = with_levels(rows, None, TableCoding(layout, rows))
    some, some_weight = sampled(coded, weight, 10, np.random.default_rng(0))
    assert len(some.numbers) == len(some_weight) == 13
    assert_array_equal(some.numbers[10:, 1], [0, 1, 2])
    assert sampled(coded, weight, 50, np.random.default_rng(0))[0] is coded
