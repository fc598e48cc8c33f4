"""Deep models of tables, whose columns are of several kinds."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_softmax, logsumexp
from scipy.stats import bernoulli, norm, poisson
from tables import codes_of, some_table, with_gaps

from sklearn_mpt import MPTDeepVAE, mpt_curve

pytestmark = pytest.mark.filterwarnings("ignore:Maximum iterations")
KINDS = ["gaussian", "bernoulli", "categorical", "poisson"]


def fit(X, **changes):
    settings = {
        "n_components": 1,
        "likelihood": KINDS,
        "hidden_layer_sizes": (8,),
        "activation": "tanh",
        "max_iter": 14,
        "random_state": 0,
    }
    return MPTDeepVAE(**(settings | changes)).fit(X)


@pytest.fixture(scope="module")
def frame():
    return some_table(120)


@pytest.fixture(scope="module")
def fitted(frame):
    return fit(with_gaps(frame))


def log_prob_at(model, codes, z):
    """log p(x_j | z), 0.0 where missing, of each row and z; (n, 4, s)."""
    first, last = model.decoder_coefs_
    hidden = np.tanh(z[:, None] @ first + model.decoder_intercepts_[0])
    location = hidden @ last + model.decoder_intercepts_[1]
    height, smokes, level, visits = codes.T[..., None]
    of_level = log_softmax(location[:, 2:5], axis=1)
    log_prob = [
        norm(location[:, 0], model.noise_variance_[0] ** 0.5).logpdf(height),
        bernoulli(1 / (1 + np.exp(-location[:, 1]))).logpmf(smokes),
        of_level[:, np.nan_to_num(level[:, 0]).astype(int)].T,
        poisson(np.exp(location[:, 5])).logpmf(visits),
    ]
    return np.where(np.isnan(codes)[..., None], 0, np.stack(log_prob, 1))


def on_a_grid(model, codes):
    """The log-density of each row, and the posterior mean of z."""
    z = np.linspace(-8, 8, 801)
    log_joint = log_prob_at(model, codes, z).sum(1) + norm.logpdf(z)
    log_joint += np.log(z[1] - z[0])
    score = logsumexp(log_joint, axis=1)
    return score, np.exp(log_joint - score[:, None]) @ z


def test_scores_and_posteriors_are_those_of_a_grid(fitted, frame):
    rows = with_gaps(frame)[:80]
    codes = codes_of(rows)
    expected, mean = on_a_grid(fitted, codes)
    score, error = fitted.score_samples(rows, return_std=True)
    assert error.max() < 0.05
    assert np.abs(score - expected).max() < 0.1
    assert (np.abs(score - expected) < 1.96 * error).mean() > 0.9  # 0.95 of many
    assert_allclose(fitted.transform(rows[:60])[:, 0], mean[:60], atol=0.05)


def test_conditionals_are_those_of_a_grid(fitted, frame):
    rows = frame[:40]
    codes = codes_of(rows)
    for j in range(4):
        mask = np.arange(4) == j
        visible = np.where(mask, np.nan, codes)
        expected = on_a_grid(fitted, codes)[0] - on_a_grid(fitted, visible)[0]
        found = fitted.conditional_log_prob(rows, mask)
        assert_allclose(found[:, j], expected, atol=0.05)
        assert (found[:, ~mask] == 0).all()


def test_the_curve_adds_up_to_the_score(fitted, frame):
    rows = with_gaps(frame)[:80]
    curve = mpt_curve(fitted, rows, n_masks=4, random_state=0)
    assert curve.lml == pytest.approx(fitted.score(rows), abs=0.02)


def test_training_learns_the_table(fitted, frame):
    rows = with_gaps(frame)
    independent = fit(rows, max_iter=0)
    assert fitted.score(rows) > independent.score(rows) + 0.3


def test_a_linear_decoder_starts_with_categories_explained():
    z = np.random.default_rng(0).normal(size=400)
    X = np.stack([np.digitize(z, [-1, 0, 1]), np.digitize(z, [-0.5, 0.5])], 1)
    kinds = {"likelihood": ["categorical"] * 2, "hidden_layer_sizes": ()}
    model = fit(X, max_iter=0, **kinds)
    shares = [np.unique(column, return_counts=True)[1] / 400 for column in X.T]
    entropy = sum((share * np.log(share)).sum() for share in shares)
    assert model.score(X) > entropy + 0.1


def test_units_of_a_column_shift_its_density_alone(frame):
    rows = with_gaps(frame)
    metres = rows.assign(height=rows["height"] / 100)
    one, other = (fit(X, max_iter=3).score_samples(X) for X in (rows, metres))
    assert_allclose(other - one, np.log(100) * rows["height"].notna(), atol=0.01)


def test_gaps_are_filled_in_with_values_of_their_columns(fitted, frame):
    rows = with_gaps(frame)
    for method in ("mean", "sample"):
        filled = fitted.impute(rows, method=method, random_state=0)
        assert filled.dtypes["level"] == rows.dtypes["level"]
        assert not filled.isna().any().any()
        seen = rows.notna()
        for name in rows:
            assert (filled[name][seen[name]] == rows[name][seen[name]]).all()
    assert set(filled["smokes"]) == {True, False}
    assert (filled["visits"] % 1 == 0).all()


def test_samples_are_like_the_table(fitted, frame):
    drawn = fitted.sample(2000, random_state=0)
    assert set(drawn["level"]) == {"low", "mid", "high"}
    for j in (0, 1, 3):
        values, column = drawn.iloc[:, j].astype(float), frame.iloc[:, j].astype(float)
        assert abs(values.mean() - column.mean()) < 0.3 * column.std()


def test_noise_variances_are_those_of_gaussian_features(fitted):
    assert fitted.likelihoods_ == KINDS
    assert np.isfinite(fitted.noise_variance_).tolist() == [True, False, False, False]
    assert 0 < fitted.noise_variance_[0] < 200
