"""The search for models: what is tried, what ends it, and how well it fills in."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import load_diabetes, load_iris, load_wine, make_friedman1
from sklearn.impute import KNNImputer
from sklearn.preprocessing import scale

from sklearn_mpt import MPTImputer
from sklearn_mpt._imputation import search, stacking


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


def filled_categories(frame, names):
    """Fill in a table in which some columns are categories, as numbers."""
    words = frame.copy()
    for name in names:
        words[name] = [None if np.isnan(v) else f"v{v:.0f}" for v in frame[name]]
    filled = MPTImputer(random_state=0).fit_transform(words)
    return filled[names].apply(lambda c: c.str[1:].astype(int))


def test_trees_find_the_column_of_many_levels_that_determines_another():
    rng = np.random.default_rng(0)
    maker_of_model, model = rng.integers(8, size=40), rng.integers(40, size=300)
    maker = maker_of_model[model]
    numbers = np.column_stack([maker, model, rng.integers(40, size=(300, 2))])
    is_hidden = np.arange(300) < 100
    gaps = np.where(is_hidden[:, None] & (np.arange(4) == 0), np.nan, numbers)
    frame = pd.DataFrame(gaps, columns=list("abcd"))
    predicted = filled_categories(frame, list("abcd"))["a"][:100]
    assert np.isin(model[is_hidden], model[~is_hidden]).all()
    assert (predicted != maker[is_hidden]).mean() < 0.12


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


def test_collinear_columns_are_filled_in_without_error():
    _, X, rng = of_factors(60, 101, n_factors=4, noise=0.0)
    assert rmse_of_hidden(X, rng.random(X.shape) < 0.1, max_models=5) < 0.05


def test_long_tables_are_filled_in_by_chunks(monkeypatch):
    _, X, rng = of_factors(80, 4)
    X[rng.random(X.shape) < 0.2] = np.nan
    imputer = MPTImputer(max_models=2, random_state=0).fit(X)
    whole = imputer.transform(X)
    monkeypatch.setattr(stacking, "CACHE_ENTRIES", 30)
    assert_allclose(imputer.transform(X), whole, rtol=1e-9)


def test_larger_members_are_tried_while_they_gain():
    _, X, rng = of_factors(200, 12, noise=0.05)
    X[rng.random(X.shape) < 0.1] = np.nan
    tried = pd.DataFrame(MPTImputer(random_state=0).fit(X).selection_)
    assert tried["name"].str.startswith("columns alone").tolist()[0]
    gaussians = tried[tried["name"].str.startswith("Gaussian, shrinkage")]
    assert gaussians["outcome"].tolist()[:-1] == ["gained"] * (len(gaussians) - 1)
    assert len(gaussians) > 1
    assert_allclose(tried["weight"].sum(), 1)


def test_a_member_that_cannot_be_fitted_is_left_out(monkeypatch):
    def fails(*args, **params):
        raise np.linalg.LinAlgError

    _, X, rng = of_factors(100, 4)
    X[rng.random(X.shape) < 0.1] = np.nan
    monkeypatch.setattr(search.Gaussians, "fit", fails)
    imputer = MPTImputer(random_state=0).fit(X)
    outcomes = imputer.selection_["outcome"]
    assert outcomes[1] == "failed"
    assert not np.isnan(imputer.transform(X)).any()


def test_wide_tables_get_a_member_of_all_their_columns(monkeypatch):
    """Nearly as good as the true model, where columns alone have an error of 1.

    A limit ends the search with a warning, as larger models gain.
    """
    monkeypatch.setattr(search, "MAX_DENSE", 10)
    _, X, rng = of_factors(60, 60)
    is_hidden = rng.random(X.shape) < 0.1
    gaps = np.where(is_hidden, np.nan, X)
    with pytest.warns(UserWarning, match=r"by max_models, though .* 2 factors, gained"):
        imputer = MPTImputer(max_models=3, random_state=0).fit(gaps)
    names = ["columns alone", "Gaussian, 1 factor", "Gaussian, 2 factors"]
    assert imputer.selection_["name"].tolist() == names
    imputer = MPTImputer(random_state=0).fit(gaps)
    error = error_of_hidden(X, is_hidden, imputer.transform(gaps))
    assert error < 1.2 * noise_of(X)


def test_a_model_is_tried_however_few_the_seconds():
    X = np.array([[0.0, 1.0], [1.0, np.nan], [2.0, 2.0], [3.0, 5.0]])
    imputer = MPTImputer(max_seconds=1e-9, random_state=0).fit(X)
    assert imputer.selection_["name"].tolist() == ["columns alone"]
