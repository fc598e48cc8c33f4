"""Samplers against their models, and methods against changes that change nothing."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit
from scipy.stats import chi2
from test_common import MODELS, NAMES, quiet_fit

from sklearn_mpt import MPTDeepVAE, MPTLinearVAE

N_DRAWS, N_ROWS = 9, 1500


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_hidden_values_rank_uniformly_among_draws_given_the_rest(name):
    """Simulation-based calibration: rows of the model itself, two entries drawn anew.

    Ranks of binary values are broken by lot.
    """
    factory, X = MODELS[name]
    model = quiet_fit(factory(), X)
    rows, rng = model.sample(N_ROWS, random_state=1000), np.random.default_rng(2)
    gaps = rows.copy()
    gaps[:, [1, 3]] = np.nan
    draws = np.stack(
        [model.impute(gaps, "sample", random_state=s) for s in range(N_DRAWS)]
    )
    for j in (1, 3):
        assert p_of_uniform_ranks(rows[:, j], draws[:, :, j], rng) > 1e-3


def p_of_uniform_ranks(truth, draws, rng):
    """truth : shape (n,); draws : (N_DRAWS, n). Ties are broken by lot."""
    rank = (draws < truth).sum(0) + rng.integers(0, (draws == truth).sum(0) + 1)
    count, expected = (
        np.bincount(rank, minlength=N_DRAWS + 1),
        len(truth) / (N_DRAWS + 1),
    )
    return chi2.sf(((count - expected) ** 2 / expected).sum(), N_DRAWS)


def mixed_rows(n_rows=300):
    """Columns of every kind, with categories as codes, that depend on one another."""
    rng = np.random.default_rng(0)
    z, u = rng.normal(size=(2, n_rows))
    level = np.digitize(z + 0.5 * rng.normal(size=n_rows), [-0.5, 0.7])
    columns = [
        10 + 3 * z + rng.normal(size=n_rows),
        rng.random(n_rows) < expit(2 * u),
        level,
        rng.poisson(np.exp(0.7 * u + 0.5)),
        u - z + 0.3 * rng.normal(size=n_rows),
        rng.poisson(np.exp(0.5 * z + 1)),
    ]
    return np.column_stack(columns).astype(float)


MIXED = ["gaussian", "bernoulli", "categorical", "poisson", "gaussian", "poisson"]
MIXED_MODELS = {
    "linear": lambda: MPTLinearVAE(likelihood=MIXED, max_iter=10, random_state=0),
    "deep": lambda: MPTDeepVAE(
        likelihood=MIXED, hidden_layer_sizes=(8,), max_iter=30, random_state=0
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [[0, 2, 3], [1, 4, 5]])
@pytest.mark.parametrize("name", MIXED_MODELS)
def test_values_hidden_in_a_table_rank_uniformly_among_draws(name, hidden):
    """Each, and what pairs of them have in common: draws are of all of them at once."""
    model = quiet_fit(MIXED_MODELS[name](), mixed_rows())
    rows, rng = model.sample(700, random_state=1000), np.random.default_rng(2)
    gaps = rows.copy()
    gaps[:, hidden] = np.nan
    draws = np.stack(
        [model.impute(gaps, "sample", random_state=s) for s in range(N_DRAWS)]
    )
    assert_array_equal(draws[0, :, gaps[0] == gaps[0]], gaps.T[gaps[0] == gaps[0]])
    centre = rows.mean(axis=0)
    for i, j in itertools.combinations_with_replacement(hidden, 2):
        truth, drawn = (
            x[..., i] if i == j else ((x - centre)[..., [i, j]]).prod(axis=-1)
            for x in (rows, draws)
        )
        assert p_of_uniform_ranks(truth, drawn, rng) > 1e-3


@pytest.mark.parametrize("shape", [(2, 1), (3, 6), (9, 2), (7, 5)])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.9])
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_changes_that_change_nothing(likelihood, share, shape):
    """Order of rows and of features, repeated rows, chunks, a wider table of gaps."""
    rng = np.random.default_rng(shape)
    n_features = shape[1]
    names = {"gaussian": ("mean",), "bernoulli": ("intercept",)}[likelihood]
    init = {name: rng.normal(size=n_features) for name in names}
    init["components"] = rng.normal(size=(1, n_features))
    if likelihood == "gaussian":
        init["noise_variance"] = 0.5
    X = rng.normal(size=shape)
    X = X if likelihood == "gaussian" else (X > 0).astype(float)

    def model(order):
        start = {k: v[..., order] if np.ndim(v) else v for k, v in init.items()}
        vae = MPTLinearVAE(1, likelihood=likelihood, init=start, max_iter=0)
        return vae.fit(X[:, order])

    gaps = np.where(rng.random(shape) < share, np.nan, X)
    columns, rows = rng.permutation(n_features), rng.permutation(shape[0])
    plain, mask = model(np.arange(n_features)), rng.random(shape) < 0.5
    score = plain.score_samples(gaps)
    log_prob = plain.conditional_log_prob(gaps, mask)
    close = {"rtol": 1e-7, "atol": 1e-9}
    assert_allclose(plain.score_samples(gaps[rows]), score[rows], **close)
    assert_allclose(
        plain.score_samples(np.repeat(gaps, 3, axis=0)), score.repeat(3), **close
    )
    moved = model(columns)
    assert_allclose(moved.score_samples(gaps[:, columns]), score, **close)
    assert_allclose(
        moved.conditional_log_prob(gaps[:, columns], mask[:, columns]),
        log_prob[:, columns],
        **close,
    )
    hidden = np.where(mask, np.nan, gaps)
    joint = plain.score_samples(np.where(mask & (mask.cumsum(1) > 1), np.nan, gaps))
    first = np.where(mask & (mask.cumsum(1) == 1), log_prob, 0).sum(1)
    assert_allclose(joint, plain.score_samples(hidden) + first, atol=2e-4)
