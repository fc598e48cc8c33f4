"""Standard errors of mixtures, against closed forms and differences of SciPy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import logsumexp
from scipy.stats import norm

from sklearn_mpt import MPTMixture

LML = {"objective": "lml", "tol": 1e-10, "random_state": 0}


def rows(n=200):
    rng = np.random.default_rng(0)
    far = 4.0 * rng.integers(2, size=(n, 1))
    return rng.normal(size=(n, 3)) * [1.0, 2.0, 0.5] + far


@pytest.mark.parametrize("form", ["full", "tied", "low_rank"])
def test_one_gaussian_has_the_errors_of_textbooks(form):
    rng = np.random.default_rng(0)  # one factor of three columns has all covariances
    X = rng.normal(size=(200, 1)) + rng.normal(size=(200, 3))
    model = MPTMixture(1, covariance_type=form, reg_covar=0.0, **LML).fit(X)
    errors, S = model.standard_errors(X), np.cov(X.T, bias=True)
    variance = S.diagonal()
    assert_allclose(errors.means[0], np.sqrt(variance / len(X)), rtol=2e-3)
    expected = np.sqrt((np.outer(variance, variance) + S**2) / len(X))
    assert_allclose(errors.covariances.reshape(3, 3), expected, rtol=2e-3)
    assert errors.weights == 0
    assert_allclose(errors.covariance[1:, 1:], S / len(X), rtol=2e-3)


@pytest.mark.parametrize("n_columns", [4, 6])
def test_factors_that_rotate_have_the_errors_of_their_covariance(n_columns):
    """Of rows with the moments of the model: its information is the expected one.

    Two factors of four columns have more numbers than their covariance.
    """
    rng = np.random.default_rng(0)
    W, noise = rng.normal(size=(n_columns, 2)), rng.uniform(0.5, 1, n_columns)
    Z = rng.normal(size=(300, n_columns))
    Z = np.linalg.qr(Z - Z.mean(0))[0] * np.sqrt(len(Z))
    S = W @ W.T + np.diag(noise)
    X = Z @ np.linalg.cholesky(S).T
    how = {"covariance_type": "low_rank", "n_factors": 2, "reg_covar": 0.0}
    model = MPTMixture(1, **how, **LML).fit(X)
    assert_allclose(model.covariances_[0], S, atol=1e-3)
    units = np.eye(W.size).reshape(-1, *W.shape)
    slopes = [unit @ W.T + W @ unit.T for unit in units]
    slopes += [np.diag(unit) for unit in np.eye(n_columns)]
    J = np.reshape(slopes, (-1, n_columns**2)).T
    P = np.linalg.inv(S)
    information = 0.5 * len(X) * J.T @ np.kron(P, P) @ J
    variance = (J @ np.linalg.pinv(information, rcond=1e-8) @ J.T).diagonal()
    found = model.standard_errors(X).covariances.ravel()
    assert_allclose(found, np.sqrt(variance), rtol=1e-2)


def test_probabilities_of_one_class_have_binomial_errors():
    X = (rows() > 2).astype(float)
    model = MPTMixture(1, likelihood="bernoulli", **LML).fit(X)
    errors, p = model.standard_errors(X), model.means_
    assert_allclose(errors.means, np.sqrt(p * (1 - p) / len(X)), rtol=1e-6)
    assert_allclose(errors.probabilities, errors.means)
    assert_allclose(errors.locations, 1 / np.sqrt(len(X) * p * (1 - p)), rtol=1e-6)


def test_independent_columns_with_gaps_have_the_errors_of_differences():
    X = rows(100)
    X[np.random.default_rng(1).random(X.shape) < 0.2] = np.nan
    model = MPTMixture(2, covariance_type="diag", reg_covar=0.0, **LML).fit(X)

    def log_likelihood(theta):
        weights = np.r_[theta[0], 1 - theta[0]]
        means, variances = theta[1:].reshape(2, 2, 3)
        entries = norm(means, np.sqrt(variances)).logpdf(X[:, None])
        return logsumexp(np.log(weights) + np.nansum(entries, axis=2), axis=1).sum()

    at = np.r_[model.weights_[0], model.means_.ravel(), model.covariances_.ravel()]
    step, eye = 1e-4, np.eye(13)
    hessian = [
        [
            sum(
                a * b * log_likelihood(at + step * (a * eye[i] + b * eye[j]))
                for a in (1, -1)
                for b in (1, -1)
            )
            for j in range(13)
        ]
        for i in range(13)
    ]
    expected = np.sqrt(np.linalg.inv(-np.array(hessian) / (4 * step**2)).diagonal())
    found = model.standard_errors(X)
    shaped = found.means.ravel(), found.covariances.ravel()
    assert_allclose([found.weights[0], *shaped[0], *shaped[1]], expected, rtol=1e-3)


def test_columns_of_several_kinds():
    rng = np.random.default_rng(0)
    k = rng.integers(2, size=400)
    codes = (k + (rng.random(400) < 0.5)) % 3
    X = np.c_[codes, rng.normal(3.0 * k), rng.poisson(2 + 5 * k)].astype(float)
    kinds = ["categorical", "gaussian", "poisson"]
    model = MPTMixture(2, likelihood=kinds, **LML).fit(X)
    errors = model.standard_errors(X)
    for name in ("weights", "means", "covariances", "locations"):
        assert errors[name].shape == getattr(model, f"{name}_").shape
    assert_allclose(np.isnan(errors.means), np.isnan(model.means_))
    joint = [errors[name].ravel() for name in ("weights", "means", "locations")]
    assert_allclose(np.sqrt(errors.covariance.diagonal()), np.concatenate(joint))
    # nearly those of the two groups, which are well apart
    first = X[model.predict(X) == 0]
    variances = np.array([first[:, 1].var(), first[:, 2].mean()])
    found = errors.means[0, 1], errors.probabilities[0, 3]
    assert_allclose(found, np.sqrt(variances / len(first)), rtol=0.2)


def test_means_are_in_the_order_of_the_columns():
    rng = np.random.default_rng(0)
    X = np.c_[rng.poisson(5, 300), rng.random(300) < 0.3, rng.poisson(9, 300)]
    X = np.insert(X.astype(float), 2, rng.normal(size=300), axis=1)
    kinds = ["poisson", "bernoulli", "gaussian", "poisson"]
    model = MPTMixture(1, likelihood=kinds, **LML).fit(X)
    mean = X.mean(axis=0)
    assert_allclose(model.means_[0], mean, rtol=1e-5)
    variance = np.array([mean[0], mean[1] * (1 - mean[1]), X[:, 2].var(), mean[3]])
    errors = model.standard_errors(X)
    assert_allclose(errors.means[0], np.sqrt(variance / 300), rtol=1e-5)
    assert_allclose(errors.probabilities[0], errors.means[0, [0, 1, 3]])


@pytest.mark.filterwarnings("ignore:Component")  # of few rows, of five
def test_more_classes_than_a_table_determines():
    X = (rows() > 2).astype(float)
    with pytest.warns(UserWarning, match="19 parameters, but the table has only 8"):
        model = MPTMixture(5, likelihood="bernoulli", random_state=0).fit(X)
    with pytest.warns(UserWarning, match="however many rows there are"):
        errors = model.standard_errors(X)
    assert np.isnan(errors.means).all()


def test_variances_at_the_floor_have_no_errors():
    X = rows()
    X[:20] = X[0]
    with pytest.warns(UserWarning, match="floor of reg_covar"):
        model = MPTMixture(3, means_init=[X[0], X[-1], X[40]], **LML).fit(X)
    errors = model.standard_errors(X)
    assert np.isnan(errors.covariances[0]).all()
    assert np.isfinite(errors.covariances[1:]).all()
