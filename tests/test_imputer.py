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
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from tables import some_table, with_gaps

from sklearn_mpt import MPTImputer, MPTLinearVAE, MPTProbabilisticPCA


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


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [MPTImputer(MPTProbabilisticPCA(1, init="pca", max_iter=0))],
)
def test_scikit_learn_protocol(estimator, check):
    check(estimator)


def test_gaps_get_what_the_model_expects(wine):
    X, _ = wine
    model = MPTLinearVAE(noise="per_feature", random_state=0)
    filled = MPTImputer(random_state=0).fit_transform(X)
    assert_allclose(filled, model.fit(X).impute(X))
    assert_array_equal(filled[~np.isnan(X)], X[~np.isnan(X)])


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
    imputer = table_imputer(method="sample").fit(frame)
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
    some = make_column_transformer((MPTImputer(random_state=0), [0, 1, 2, 3]))
    assert not np.isnan(some.fit_transform(X)).any()


def test_bad_parameters_are_refused(wine):
    with pytest.raises(TypeError, match="estimator must have a method impute"):
        MPTImputer(LogisticRegression()).fit(wine[0])
    with pytest.raises(ValueError, match="method must be one of 'mean', 'sample'"):
        MPTImputer(method="median").fit(wine[0])


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
