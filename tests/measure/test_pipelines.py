"""Pipelines are scored in the units of the rows that they take."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

from sklearn_mpt import (
    MPTLinearVAE,
    MPTMixture,
    MPTProbabilisticPCA,
    check_masked_model,
    compare_lml,
    cumulative_cv_score,
    feature_contributions,
    lml_samples,
    mpt_curve,
    order_log_prob,
)

TRANSFORMERS = {
    "standard": StandardScaler(),
    "mean alone": StandardScaler(with_std=False),
    "range": MinMaxScaler((-1, 3)),
    "largest": MaxAbsScaler(),
    "quartiles": RobustScaler(),
    "yeo-johnson": PowerTransformer(),
    "yeo-johnson, raw": PowerTransformer(standardize=False),
    "box-cox": PowerTransformer(method="box-cox"),
    "log": FunctionTransformer(np.log),
    "log1p": FunctionTransformer(np.log1p),
    "sqrt": FunctionTransformer(np.sqrt),
    "nothing": FunctionTransformer(),
}


def positive_rows():
    z = np.random.default_rng(0).normal(size=(40, 1))
    noise = np.random.default_rng(1).normal(size=(40, 4))
    return np.exp(0.5 * z + 0.5 * noise) * [0.1, 1, 10, 100]


def scores_of(pipe, X):
    return compare_lml([pipe, pipe], X).row_lml[0]


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_derivatives_are_those_of_differences(name):
    X = positive_rows()
    pipe = make_pipeline(TRANSFORMERS[name], GaussianMixture()).fit(X)
    step = 1e-6 * X
    slope = (pipe[0].transform(X + step) - pipe[0].transform(X - step)) / (2 * step)
    expected = pipe[-1].score_samples(pipe[0].transform(X)) + np.log(slope).sum(axis=1)
    assert_allclose(scores_of(pipe, X), expected, rtol=1e-6)


def test_negative_numbers_have_derivatives_too():
    X = np.random.default_rng(0).normal(size=(40, 3)) ** 3
    pipe = make_pipeline(PowerTransformer(), StandardScaler(), GaussianMixture()).fit(X)
    scaled, step = pipe[:-1], 1e-7
    slope = (scaled.transform(X + step) - scaled.transform(X - step)) / (2 * step)
    expected = pipe[-1].score_samples(scaled.transform(X)) + np.log(slope).sum(axis=1)
    assert_allclose(scores_of(pipe, X), expected, rtol=1e-5)


def test_a_scaler_changes_no_score_of_a_model_that_scales_with_it():
    """A Gaussian with a full covariance is the same model in any units."""
    X = positive_rows()
    models = {
        "alone": GaussianMixture(reg_covar=0).fit(X),
        "scaled": make_pipeline(StandardScaler(), GaussianMixture(reg_covar=0)).fit(X),
        "frozen": FrozenEstimator(
            make_pipeline(
                RobustScaler(), "passthrough", GaussianMixture(reg_covar=0)
            ).fit(X)
        ),
        "searched": GridSearchCV(
            make_pipeline(StandardScaler(), GaussianMixture(reg_covar=0)),
            {"gaussianmixture__n_components": [1]},
            cv=2,
        ).fit(X),
    }
    assert_allclose(compare_lml(models, X).lml_diff, 0, atol=1e-8)
    scores = [
        cumulative_cv_score(model, X, n_start=30, steps=2, n_orders=1, random_state=0)
        for name, model in models.items()
        if name != "frozen"
    ]
    assert_allclose([score.log_evidence for score in scores], scores[0].log_evidence)


@pytest.mark.parametrize(("gaps", "kind"), [(False, "array"), (True, "frame")])
def test_all_methods_of_the_contract_agree(gaps, kind):
    X = positive_rows()
    if gaps:
        X[np.random.default_rng(2).random(X.shape) < 0.2] = np.nan
    rows = pd.DataFrame(X, columns=list("abcd")) if kind == "frame" else X
    pipe = make_pipeline(
        PowerTransformer(), MPTProbabilisticPCA(2, init="pca", max_iter=0)
    ).fit(rows)
    scores = scores_of(pipe, rows)
    assert_allclose(lml_samples(pipe, rows, n_orders=2, random_state=0), scores)
    assert_allclose(mpt_curve(pipe, rows, design="all").lml, scores.mean())
    assert_allclose(order_log_prob(pipe, rows, "left_to_right"), scores)
    parts = feature_contributions(pipe, rows, n_orders=2, random_state=0)
    assert_allclose(parts.sum(axis=1), scores)
    assert (parts[np.isnan(X)] == 0).all()
    check_masked_model(pipe, rows)


@pytest.mark.parametrize("gaps", [False, True])
def test_masked_scores_are_those_of_scaled_rows_and_derivatives(gaps):
    X = positive_rows()
    if gaps:
        X[np.random.default_rng(2).random(X.shape) < 0.2] = np.nan
    scaler, ppca = PowerTransformer(), MPTProbabilisticPCA(2, init="pca", max_iter=0)
    pipe = make_pipeline(scaler, ppca).fit(X)

    def conditional(X, mask):
        assert gaps or mask.ndim == 1  # rows share masks, as those of the Pipeline
        step = 1e-6 * X
        slope = (pipe[0].transform(X + step) - pipe[0].transform(X - step)) / (2 * step)
        log_prob = pipe[1].conditional_log_prob(pipe[0].transform(X), mask)
        return np.where(mask & ~np.isnan(X), log_prob + np.log(slope), 0.0)

    options = {"design": "independent", "n_masks": 3, "random_state": 0}
    curve, expected = (mpt_curve(m, X, **options) for m in (pipe, conditional))
    assert_allclose(curve.scores, expected.scores, rtol=1e-6)


def test_probabilities_have_no_units():
    X = (positive_rows() > 1).astype(float)
    plain = MPTMixture(2, likelihood="bernoulli", random_state=0).fit(X)
    pipe = make_pipeline(
        MinMaxScaler(), MPTMixture(2, likelihood="bernoulli", random_state=0)
    ).fit(X)
    assert_allclose(compare_lml([plain, pipe], X).lml_diff, 0, atol=1e-12)


@pytest.mark.parametrize(
    "transformer",
    [
        PCA(2),
        QuantileTransformer(n_quantiles=5),
        MinMaxScaler(clip=True),
        FunctionTransformer(np.arcsinh),
    ],
)
def test_transforms_without_a_known_derivative_are_refused(transformer):
    X = positive_rows()
    pipe = make_pipeline(transformer, GaussianMixture()).fit(X)
    message = "has no known derivative"
    with pytest.raises(TypeError, match=message):
        compare_lml({"a": pipe, "b": GaussianMixture().fit(X)}, X)
    with pytest.raises(TypeError, match=message):
        cumulative_cv_score(pipe, X)
    with pytest.raises(TypeError, match=message):
        mpt_curve(pipe, X)


def test_targets_after_any_transform_have_evidence():
    """The values that are scored are those of y, in its units."""
    X = positive_rows()
    options = {"n_start": 20, "steps": 1, "n_orders": 1, "random_state": 0}
    pipe = make_pipeline(PCA(2), BayesianRidge())
    result = cumulative_cv_score(pipe, X, X[:, 0], **options)
    column = cumulative_cv_score(pipe, X, X[:, [0]], **options)
    assert column.log_evidence == result.log_evidence
    with pytest.raises(ValueError, match="y should be a 1d array"):
        cumulative_cv_score(pipe, X, X[:, :2], **options)
    classes = (X[:, 0] > 0.1).astype(int)
    pipe = make_pipeline(PCA(2), LogisticRegression())
    assert np.isfinite(cumulative_cv_score(pipe, X, classes, **options).log_evidence)


UNFITTED = {
    "ppca": MPTProbabilisticPCA(),
    "linear": MPTLinearVAE(likelihood="from_dtype"),
    "mixture": MPTMixture(),
    "pipeline": make_pipeline(StandardScaler(), MPTProbabilisticPCA()),
    "frozen": FrozenEstimator(MPTProbabilisticPCA()),
}
FUNCTIONS = {
    "mpt_curve": mpt_curve,
    "lml_samples": lml_samples,
    "feature_contributions": feature_contributions,
    "check_masked_model": check_masked_model,
    "compare_lml": lambda model, X: compare_lml([model, model], X),
    "order_log_prob": lambda model, X: order_log_prob(model, X, "left_to_right"),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", UNFITTED)
def test_models_that_are_not_fitted_say_so(name, function):
    with pytest.raises(NotFittedError):
        FUNCTIONS[function](UNFITTED[name], positive_rows())


def test_a_search_that_is_not_fitted_says_so():
    search = GridSearchCV(GaussianMixture(), {"n_components": [1, 2]})
    with pytest.raises(NotFittedError):
        compare_lml([search, search], positive_rows())
