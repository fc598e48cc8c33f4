import copy
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from reference import (
    conditional_log_density,
    log_density,
    low_rank_rows,
    ml_optimum,
)
from scipy.special import expit, logsumexp
from scipy.stats import norm
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt import LMLMonitor, MPTDeepVAE, mpt_curve

pytestmark = pytest.mark.filterwarnings("ignore:Maximum iterations")


def quick(**parameters):
    """A small model that is trained for a moment."""
    defaults = {"hidden_layer_sizes": (8,), "max_iter": 10, "random_state": 0}
    return MPTDeepVAE(**{**defaults, **parameters})


def binary_rows(n=100):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, 1))
    prob = expit(3 * np.sin(2 * z + np.arange(6)))
    return (rng.random(prob.shape) < prob).astype(float)


def decode(model, z):
    """The decoder, written again."""
    for coef, intercept in zip(
        model.decoder_coefs_[:-1], model.decoder_intercepts_[:-1], strict=True
    ):
        h = z @ coef + intercept
        z = h * expit(h)
    return z @ model.decoder_coefs_[-1] + model.decoder_intercepts_[-1]


def mean_and_covariance(model):
    """Of a model with a linear decoder."""
    W, mean = model.decoder_coefs_[0], model.decoder_intercepts_[0]
    return mean, W.T @ W + model.noise_variance_ * np.eye(len(mean))


@pytest.fixture(scope="module")
def linear():
    X = low_rank_rows(400, 6, 2, 0.3, seed=0)
    model = MPTDeepVAE(hidden_layer_sizes=(), n_iter_no_change=5, random_state=0)
    return model.fit(X), X


@pytest.fixture(scope="module")
def binary():
    X = binary_rows()
    return quick(likelihood="bernoulli", max_iter=4).fit(X), X


def test_linear_decoder_reaches_the_closed_form_optimum(linear):
    model, X = linear
    optimum = ml_optimum(X, 2)
    reached = log_density(X, *mean_and_covariance(model)).mean()
    assert 0 < optimum - reached < 0.05


def test_score_of_a_linear_decoder_is_its_closed_form(linear):
    model, X = linear
    X = np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)[:100]
    exact = log_density(X, *mean_and_covariance(model))
    log_prob, std_error = model.score_samples(X, return_std=True)
    assert_allclose(log_prob, exact, atol=0.05)
    assert (std_error <= 0.021).all()
    z = (log_prob - exact) / np.maximum(std_error, 1e-4)
    assert np.sqrt(np.mean(z**2)) < 3


def test_conditionals_of_a_linear_decoder_are_exact(linear):
    model, X = linear
    X = X[:20]
    mask = np.random.default_rng(2).random(X.shape) < 0.5
    exact = conditional_log_density(X, mask, *mean_and_covariance(model))
    error = model.conditional_log_prob(X, mask) - exact
    assert np.abs(error).max() < 0.2  # far in the tail
    assert np.sqrt(np.mean(error[mask] ** 2)) < 0.03
    curve = mpt_curve(model, X, n_masks=3, random_state=0)
    lml = log_density(X, *mean_and_covariance(model)).mean()
    assert abs(curve.lml - lml) < 4.5 * curve.lml_std_error


def test_imputation_by_a_linear_decoder_is_the_conditional_mean(linear):
    model, X = linear
    mean, covariance = mean_and_covariance(model)
    gappy = X[:5].copy()
    gappy[:, :2] = np.nan
    gain = covariance[:2, 2:] @ np.linalg.inv(covariance[2:, 2:])
    expected = mean[:2] + (gappy[:, 2:] - mean[2:]) @ gain.T
    assert_allclose(model.impute(gappy)[:, :2], expected, atol=0.05)
    draws = model.impute(np.tile(gappy[:1], (1000, 1)), "sample", random_state=0)
    spread = np.sqrt((covariance[:2, :2] - gain @ covariance[2:, :2]).diagonal())
    z = (draws[:, :2].mean(axis=0) - expected[0]) / (spread / 1000**0.5)
    assert np.abs(z).max() < 4
    assert_allclose(draws[:, :2].std(axis=0), spread, rtol=0.1)


def test_samples_have_the_moments_of_the_model(linear):
    model, _ = linear
    mean, covariance = mean_and_covariance(model)
    X = model.sample(5000, random_state=0)
    z = (X.mean(axis=0) - mean) / np.sqrt(covariance.diagonal() / len(X))
    assert np.abs(z).max() < 4
    assert_allclose(np.cov(X.T), covariance, atol=0.15 * covariance.max())


Z = np.linspace(-6, 6, 201)[:, None]


def encode(model, X):
    """The encoder of one z, written again: means and standard deviations; (n, 1)."""
    seen = ~np.isnan(X)
    inputs = np.hstack([np.nan_to_num((X - model._shift) / model._scale), seen])
    layers = zip(model.encoder_coefs_, model.encoder_intercepts_, strict=True)
    (first, a), (last, b) = layers
    h = np.vstack([inputs, 0 * inputs[:1]]) @ first + a
    outputs = (h * expit(h)) @ last + b
    move = outputs[:-1] - outputs[-1]
    precision = 1 + seen @ model.encoder_precision_.T**2
    mean = inputs @ model.encoder_information_ / precision + move[:, :1]
    return mean, np.exp(-6 * np.tanh(move[:, 1:] / 6)) / np.sqrt(precision)


def log_prob_on_grid(mean, std):
    log_prob = norm.logpdf(Z.T, mean, std)
    return log_prob - logsumexp(log_prob, axis=1, keepdims=True)


def entries_on_grid(model, X):
    """log p(x_j | z) of present entries, 0 in gaps; (n, n_points, d)."""
    location, X = decode(model, Z), X[:, None]
    if model.likelihood == "bernoulli":
        log_prob = -np.logaddexp(0, np.where(X == 1, -location, location))
    else:
        log_prob = norm.logpdf(X, location, np.sqrt(model.noise_variance_))
    return np.where(np.isnan(X), 0.0, log_prob)


def end_of_chains(model, row):
    """Probabilities of z after five steps, by transition matrices; (n_points,)."""
    hidden = np.isnan(row)
    axis = np.linspace(-6, 6, 41) if model.likelihood == "gaussian" else [0, 1]
    values = np.array(list(product(axis, repeat=hidden.sum())), dtype=float)
    filled = np.tile(row, (len(values), 1))
    filled[:, hidden] = values
    draw = entries_on_grid(model, filled)[:, :, hidden].sum(2)
    draw = np.exp(draw - logsumexp(draw, axis=0))
    encoded = np.exp(log_prob_on_grid(*encode(model, filled)))
    prob = np.exp(log_prob_on_grid(*encode(model, row[None])))[0]
    for _ in range(5):
        prob = (draw @ prob) @ encoded
    return prob


@pytest.mark.parametrize("conditional", ["importance", "encode_decode"])
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_values_are_those_of_a_grid(likelihood, conditional):
    """With an encoder that is wrong: only the conditionals of chains depend on it."""
    rng = np.random.default_rng(0)
    X = np.sin(2 * rng.normal(size=(60, 1)) + np.arange(4))
    X += 0.4 * rng.normal(size=X.shape)
    X = X if likelihood == "gaussian" else (X > 0).astype(float)
    how = {"likelihood": likelihood, "conditional": conditional, "max_iter": 3}
    model = quick(n_components=1, **how).fit(X)
    model.encoder_information_ = 2 * model.encoder_information_
    rows, mask = X[:3].copy(), np.array([False, True, False, False])
    rows[[0, 2], [3, 0]] = np.nan
    joint = entries_on_grid(model, rows).sum(2) + log_prob_on_grid(0, 1)
    assert_allclose(model.score_samples(rows), logsumexp(joint, axis=1), atol=0.01)
    given = np.where(mask, np.nan, rows)
    joint = entries_on_grid(model, given).sum(2) + log_prob_on_grid(0, 1)
    posterior = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    expected = decode(model, Z) if likelihood == "gaussian" else expit(decode(model, Z))
    assert_allclose(model.inverse_transform(Z), expected)
    assert_allclose(model.transform(given), posterior @ Z, atol=0.01)
    filled = np.where(np.isnan(given), posterior @ expected, given)
    assert_allclose(model.impute(given), filled, atol=0.01)
    entries = np.exp(entries_on_grid(model, rows)[:, :, 1])
    found, weights = model.conditional_log_prob(rows, mask), posterior
    if conditional == "encode_decode":
        weights = np.array([end_of_chains(model, row) for row in given])
        by_weights = np.log((posterior * entries).sum(1))
        assert np.abs(found[:, 1] - by_weights).max() > 0.06
    assert_allclose(found[:, 1], np.log((weights * entries).sum(1)), atol=0.06)
    assert_array_equal(found[:, ~mask], 0.0)


@pytest.mark.slow
def test_net_explains_what_a_linear_model_cannot():
    rng = np.random.default_rng(0)
    t = rng.normal(size=400)
    X = np.stack([t, np.sin(2 * t), np.cos(2 * t)], axis=1)
    X += 0.1 * rng.normal(size=X.shape)
    model = quick(n_components=1, hidden_layer_sizes=(32,), max_iter=60).fit(X)
    assert model.score(X) > ml_optimum(X, 1) + 0.3


def test_objectives_and_conditionals_all_train():
    X = binary_rows()
    start = quick(likelihood="bernoulli", max_iter=0).fit(X).score(X[:50])
    for changes in (
        {"objective": "elbo"},
        {"objective": "iwae"},
        {"mask_rate": 2},
        {"mask_rate": 0.5, "n_masks": 16},
        {"conditional": "encode_decode", "n_masks": 16, "max_iter": 8},
    ):
        settings = {"likelihood": "bernoulli", "learning_rate": 0.06, "max_iter": 4}
        model = quick(**settings | changes)
        assert model.fit(X).score(X[:50]) > start + 0.05, changes


def test_unit_and_origin_do_not_matter():
    X = load_iris().data[::3]
    model, moved = (quick(max_iter=3).fit(rows) for rows in (X, 1e3 * X + 1e5))
    losses = np.subtract(moved.loss_curve_, model.loss_curve_)
    assert_allclose(losses, X.shape[1] * np.log(1e3), atol=0.1)
    assert_allclose(
        moved.score_samples(1e3 * X + 1e5),
        model.score_samples(X) - X.shape[1] * np.log(1e3),
        atol=0.1,
    )


def test_constant_features_are_harmless():
    X = load_iris().data[::3]
    X[:, 1] = 2.0
    assert np.isfinite(quick(max_iter=3).fit(X).score(X))


def test_rows_without_noise_warn():
    X = np.full((40, 3), 2.0)
    with pytest.warns(UserWarning, match=r"Column\(s\) \[0, 1, 2\] of X are constant"):
        quick(max_iter=3).fit(X)


@pytest.mark.slow
def test_best_held_out_parameters_are_kept():
    pytest.importorskip("sklearn.callback")
    X = load_iris().data[:60]
    monitor_rows = X[np.random.default_rng(0).permutation(60)]
    model = quick(hidden_layer_sizes=(64,), max_iter=30, learning_rate=0.05)
    monitor = LMLMonitor(monitor_rows, every=10)
    model.set_callbacks(monitor).fit(X)
    assert len(monitor.log_) == 3
    assert np.isfinite([record["lml"] for record in monitor.log_]).all()
    assert model.score(X) > min(record["lml"] for record in monitor.log_)


def test_divergence_keeps_finite_parameters_and_warns():
    X = load_iris().data
    with pytest.warns(ConvergenceWarning, match="Training diverged after"):
        model = quick(learning_rate=1e30).fit(X)
    assert np.isfinite(model.score(X))


def test_warm_start_refuses_other_nets():
    X = load_iris().data
    model = quick(warm_start=True, max_iter=1).fit(X)
    with pytest.raises(ValueError, match=r"hidden_layer_sizes=\(4,\) differs from"):
        model.set_params(hidden_layer_sizes=(4,)).fit(X)


@pytest.mark.parametrize(
    ("parameter", "value", "error", "message"),
    [
        ("likelihood", "student", ValueError, "likelihood must be one of 'gaussian'"),
        ("activation", "step", ValueError, "'activation' .* Got 'step'"),
        ("conditional", "guess", ValueError, "'conditional' .* Got 'guess'"),
        ("hidden_layer_sizes", 8, TypeError, "hidden_layer_sizes must be a sequence"),
        ("hidden_layer_sizes", (0,), ValueError, "hidden_layer_sizes must be an int"),
        ("hidden_layer_sizes", "deep", ValueError, "must be one of 'auto', got 'deep'"),
        ("n_importance_samples", 0, ValueError, "'n_importance_samples' .* Got 0"),
        ("n_importance_samples", "many", ValueError, "'auto'}. Got 'many'"),
        ("validation_fraction", 1.0, ValueError, r"\(0\.0, 1\.0\). Got 1\.0"),
    ],
)
def test_bad_parameters_are_refused(parameter, value, error, message):
    with pytest.raises(error, match=message):
        quick(**{parameter: value}).fit(load_iris().data)


def test_bernoulli_likelihood_refuses_real_rows():
    with pytest.raises(ValueError, match="takes rows of 0, 1 and NaN"):
        quick(likelihood="bernoulli").fit(load_iris().data)


@pytest.fixture(scope="module")
def learned():
    """A model and its rows, of which a few say little beside what it has learned."""
    X = load_iris().data[::5]
    return quick(max_iter=20).fit(X), X


@pytest.mark.parametrize(
    "part", [[14], [3] * 20, [0, 12, 24, 4, 16]], ids=["a row", "copies", "five"]
)
def test_a_small_part_of_a_stream_changes_a_fit_little(learned, part):
    model, X = learned
    before, model = model.score(X), copy.deepcopy(model)
    assert abs(model.partial_fit(X[part]).score(X) - before) < 0.1


def test_parts_of_one_row_each_change_a_fit_little(learned):
    model, X = learned
    before, model = model.score(X), copy.deepcopy(model)
    for row in np.random.default_rng(0).permutation(X)[:10]:
        model.partial_fit(row[None])
    assert abs(model.score(X) - before) < 0.2


def test_a_row_with_nothing_in_it_changes_no_fit(learned):
    model, X = learned
    decoder, noise_variance = model.decoder_coefs_[0].copy(), model.noise_variance_
    model = copy.deepcopy(model).partial_fit(np.full((1, X.shape[1]), np.nan))
    assert_allclose(model.decoder_coefs_[0], decoder, rtol=1e-6)
    assert model.noise_variance_ == pytest.approx(noise_variance)


def test_a_stream_goes_on_with_the_steps_of_the_fit(learned):
    """And it remembers how large gradients are, and starts where the fit ended."""
    model, _ = learned
    state = model._optimizer_state
    assert state["progress"][0] >= 16 * model.n_iter_ - 200
    decoder = model.decoder_coefs_[0]
    name = "decoder.coefs.0"
    assert (state[f"squares.{name}"] > 0).mean() > 0.9
    assert_allclose(state[f"iterate.{name}"], decoder.ravel(), rtol=1e-6)
