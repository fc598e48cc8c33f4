"""Terms along orders of exact models, against conditionals and long arithmetic."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from reference import exact_terms, terms_of_orders

from sklearn_mpt import MPTLinearVAE, MPTProbabilisticPCA
from sklearn_mpt._gaussian.density import LinearGaussian

N_FEATURES = 7


def rows(has_gaps):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)) @ rng.normal(size=(3, N_FEATURES))
    X += 0.3 * rng.normal(size=X.shape)
    if has_gaps:
        X[rng.random(X.shape) < 0.3], X[0], X[1, 1:] = np.nan, np.nan, np.nan
    return X


EXACT = {
    "ppca": MPTProbabilisticPCA(3, init="pca", max_iter=0),
    "all components": MPTProbabilisticPCA(7, init="pca", max_iter=0),
    "factor analysis": MPTLinearVAE(2, noise="per_feature", init="pca", max_iter=0),
}


def orders_of(X, each_row):
    rng = np.random.default_rng(1)
    shape = (3, len(X), N_FEATURES) if each_row else (3, N_FEATURES)
    return rng.permuted(np.broadcast_to(np.arange(7), shape), axis=-1)


@pytest.mark.parametrize("each_row", [False, True])
@pytest.mark.parametrize("has_gaps", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_terms_are_conditionals(name, has_gaps, each_row):
    model, X = EXACT[name].fit(rows(False)), rows(has_gaps)
    orders = orders_of(X, each_row)
    expected = terms_of_orders(model.conditional_log_prob, X, orders)
    terms = model.chain_log_prob(X, orders)
    assert_allclose(terms, expected, rtol=0, atol=1e-12)


def test_orders_hold_each_feature_once():
    model, X = EXACT["ppca"].fit(rows(False)), rows(False)
    with pytest.raises(ValueError, match=r"orders must hold each .* once"):
        model.chain_log_prob(X, np.zeros((2, 7), dtype=int))
    with pytest.raises(ValueError, match=r"got array\(\[0, 1, 2, 3, 4, 5, 6\]\)"):
        model.chain_log_prob(X, np.arange(7))


@pytest.mark.parametrize(
    ("noise", "rtol"), [(1e-2, 1e-13), (1e-6, 1e-11), (1e-9, 1e-9)]
)
def test_small_noise_costs_half_of_its_digits(noise, rtol):
    """Of rows that the model draws, and of rows far off; 1e-9 is the least in fits."""
    rng = np.random.default_rng(4)
    W, mean = rng.normal(size=(3, N_FEATURES)), rng.normal(size=N_FEATURES)
    model = LinearGaussian(*map(torch.tensor, (W, mean, np.array(noise))))
    order = rng.permutation(N_FEATURES).tolist()
    drawn = mean + rng.normal(size=3) @ W + noise**0.5 * rng.normal(size=N_FEATURES)
    for x in (drawn, mean + rng.normal(size=N_FEATURES)):
        terms = model.chain_log_prob(torch.tensor(x)[None], torch.tensor([[order]]))
        expected = exact_terms(x, order, model)
        assert_allclose(terms[0, 0], expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("size", [1e154, 1e200, 1e308])
def test_rows_whose_squares_overflow_have_finite_terms(size):
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(3, 7)), rng.normal(size=7), np.array(0.4)
    model = LinearGaussian(*map(torch.tensor, arrays))
    X = -size * torch.eye(7, dtype=torch.float64)
    X[:, 3] = torch.nan
    orders = torch.tensor(orders_of(X, False)[None])
    terms = model.chain_log_prob(X, orders)
    assert terms.isfinite().all()
    assert (terms[:, :, 3] == 0).all()
    assert (terms.min(2).values[[0, 1, 2, 4, 5, 6]] < -1e300).all()
