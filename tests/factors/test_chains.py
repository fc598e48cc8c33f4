"""Terms along orders of exact models, against conditionals and long arithmetic."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

torch = pytest.importorskip("torch")

from sklearn_mpt import MPTLinearVAE, MPTMixture, MPTProbabilisticPCA  # noqa: E402
from sklearn_mpt._base.density import Density  # noqa: E402
from sklearn_mpt._factors.density import LinearGaussian  # noqa: E402

N_FEATURES = 7


def rows(has_gaps):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)) @ rng.normal(size=(3, N_FEATURES))
    X += 0.3 * rng.normal(size=X.shape)
    if has_gaps:
        X[rng.random(X.shape) < 0.3], X[0], X[1, 1:] = np.nan, np.nan, np.nan
    return X


def with_counts(X):
    return np.column_stack([X[:, :4], np.round(np.exp(X[:, 4:].clip(-2, 2)))])


EXACT = {
    "ppca": (MPTProbabilisticPCA(3, init="pca", max_iter=0), None),
    "all components": (MPTProbabilisticPCA(7, init="pca", max_iter=0), None),
    "factor analysis": (
        MPTLinearVAE(2, noise="per_feature", init="pca", max_iter=0),
        None,
    ),
    "full": (MPTMixture(2, max_iter=3, random_state=0), None),
    "tied": (MPTMixture(2, covariance_type="tied", max_iter=3, random_state=0), None),
    "low rank": (
        MPTMixture(2, covariance_type="low_rank", max_iter=3, random_state=0),
        None,
    ),
    "diag": (MPTMixture(2, covariance_type="diag", max_iter=3, random_state=0), None),
    "mixed": (
        MPTMixture(
            2,
            likelihood=["gaussian"] * 4 + ["poisson"] * 3,
            max_iter=3,
            random_state=0,
        ),
        with_counts,
    ),
    "counts": (
        MPTMixture(2, likelihood="poisson", max_iter=3, random_state=0),
        lambda X: np.round(np.exp(X.clip(-2, 2))),
    ),
}


def orders_of(X, each_row):
    rng = np.random.default_rng(1)
    shape = len(X) if each_row else 1, 3, N_FEATURES
    return torch.tensor(rng.permuted(np.broadcast_to(np.arange(7), shape), axis=2))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("each_row", [False, True])
@pytest.mark.parametrize("has_gaps", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_updates_are_conditionals_and_call_none(name, has_gaps, each_row, monkeypatch):
    model, values = EXACT[name]
    values = values or (lambda X: X)
    density = model.fit(values(rows(False)))._density()
    X = torch.tensor(values(rows(has_gaps)))
    orders = orders_of(X, each_row)
    expected = Density.chain_log_prob(density, X, orders)
    for method in ("conditional_log_prob", "given", "posterior"):
        monkeypatch.setattr(density, method, None, raising=False)
    terms = density.chain_log_prob(X, orders)
    assert_allclose(terms, expected, rtol=0, atol=1e-12)


def test_a_row_has_the_same_terms_in_any_block(monkeypatch):
    model = MPTMixture(2, max_iter=0, random_state=0).fit(rows(False))
    X, orders = rows(True), orders_of(rows(True), False)[0].numpy()
    terms = model.chain_log_prob(X, orders)
    for module in ("sklearn_mpt._mixture.density", "sklearn_mpt._base.fitted_density"):
        monkeypatch.setattr(f"{module}.CHUNK_BYTES", 20_000)
    assert_allclose(model.chain_log_prob(X, orders), terms, rtol=0, atol=1e-12)


def exact_terms(x, order, model):
    """With 60 digits."""
    mp = pytest.importorskip("mpmath")
    terms = np.empty(len(order))
    with mp.workdps(60):
        W, mean = mp.matrix(model.components.tolist()), model.mean.tolist()
        S = W.T * W + mp.mpf(float(model.noise_variance)) * mp.eye(len(order))
        error = [mp.mpf(float(a)) - mp.mpf(b) for a, b in zip(x, mean, strict=True)]
        for t, j in enumerate(order):
            before = order[:t]
            deviation, variance = error[j], S[j, j]
            if before:
                inner = mp.matrix([[S[a, b] for b in before] for a in before])
                cross = mp.matrix([S[a, j] for a in before])
                gain = mp.lu_solve(inner, cross)
                deviation -= mp.fdot(gain, [error[a] for a in before])
                variance -= mp.fdot(gain, cross)
            terms[j] = -(mp.log(2 * mp.pi * variance) + deviation**2 / variance) / 2
    return terms


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


def test_nearly_singular_covariances_keep_their_scores_in_every_order():
    """Two columns that differ by 1e-5 of their size, in one of the components."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 4))
    X[:, 1] = X[:, 0] + 1e-5 * X[:, 1]
    model = MPTMixture(2, reg_covar=0, max_iter=0, random_state=0).fit(X)
    orders = np.array([[0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 1, 0], [2, 1, 3, 0]])
    along = model.chain_log_prob(X, orders).sum(2)
    assert_allclose(along, np.tile(model.score_samples(X), (4, 1)), rtol=1e-9)


@pytest.mark.parametrize("size", [1e154, 1e200, 1e308])
def test_rows_whose_squares_overflow_have_finite_terms(size):
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(3, 7)), rng.normal(size=7), np.array(0.4)
    model = LinearGaussian(*map(torch.tensor, arrays))
    X = -size * torch.eye(7, dtype=torch.float64)
    X[:, 3] = torch.nan
    terms = model.chain_log_prob(X, orders_of(X, False))
    assert terms.isfinite().all()
    assert (terms[:, :, 3] == 0).all()
    assert (terms.min(2).values[[0, 1, 2, 4, 5, 6]] < -1e300).all()
