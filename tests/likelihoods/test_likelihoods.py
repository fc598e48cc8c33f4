"""Kinds of features against scipy, derivatives against autograd, and their tables."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from sklearn_mpt import MPTLinearVAE
from sklearn_mpt._likelihoods import Bernoulli, Columns, Gaussian, likelihood_of
from sklearn_mpt._likelihoods.base import Locations

NOISE = 0.4
POISSON, THREE = likelihood_of("poisson", 1, 2), likelihood_of("categorical", 3, 2)
LOG_NOISE = torch.tensor([NOISE], dtype=torch.float64).log()


def table():
    kinds = ["categorical", "gaussian", "poisson", "categorical", "bernoulli"]
    return Columns(kinds, [3, 1, 1, 2, 1]).at(LOG_NOISE)


LIKELIHOODS = {
    "bernoulli": Bernoulli(),
    "categorical": THREE,
    "gaussian": Gaussian(torch.tensor(NOISE, dtype=torch.float64)),
    "poisson": POISSON,
    "table": table(),
}
N_LOCATIONS = {"categorical": 6, "table": 8}
VALUES = {
    "bernoulli": [[0, 1], [1, 1]],
    "categorical": [[0, 2], [1, 1]],
    "gaussian": [[0.3, -2.0], [1.5, 0.0]],
    "poisson": [[0, 3], [7, 1]],
    "table": [[2, 0.7, 3, 1, 0], [0, -1.2, 0, 0, 1]],
}


@pytest.fixture(params=list(LIKELIHOODS))
def name(request):
    return request.param


@pytest.fixture
def entries(name):
    return torch.tensor(VALUES[name], dtype=torch.float64)


@pytest.fixture
def location(name):
    rng = np.random.default_rng(3)
    return torch.tensor(rng.normal(size=(2, N_LOCATIONS.get(name, 2))))


def test_slopes_of_pairs_are_those_of_sums_of_entries(name, entries, location):
    likelihood = LIKELIHOODS[name]
    observed = torch.ones_like(entries)
    observed[0, 0] = 0
    location = location.clone().requires_grad_()
    pairs = likelihood.pair_log_prob(entries * observed, observed, location)
    each = likelihood.entry_log_prob(entries[:, None], location) * observed[:, None]
    wanted = [location, *likelihood.parameters()]
    found, expected = (
        torch.autograd.grad((total**2).sum(), wanted) for total in (pairs, each.sum(2))
    )
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("n_hidden", [1, 3])  # fewer than features, and more
@pytest.mark.parametrize("all_seen", [True, False])
def test_factors_of_locations_serve_as_their_product(
    name, entries, location, n_hidden, all_seen
):
    rng, n_locations = np.random.default_rng(4), location.shape[1]
    shapes = (4, n_hidden), (n_hidden, n_locations), (n_locations,)
    factors = [
        torch.tensor(rng.normal(size=shape)).requires_grad_() for shape in shapes
    ]
    observed = torch.ones_like(entries, dtype=torch.bool)
    observed[0, 0] = all_seen
    likelihood, X = LIKELIHOODS[name], entries * observed
    wanted = [*factors, *likelihood.parameters()]
    hidden, coef, intercept = factors
    expected = likelihood.pair_log_prob(
        X, observed.to(X.dtype), hidden @ coef + intercept
    )
    seen = observed[:1] if all_seen else observed
    found = likelihood.shared_log_prob(X, seen, Locations(*factors))
    assert_allclose(found.detach(), expected.detach())
    with torch.no_grad():
        untrained = likelihood.shared_log_prob(X, seen, Locations(*factors))
    assert_allclose(untrained, expected.detach())
    slopes = (torch.autograd.grad((v**2).sum(), wanted) for v in (found, expected))
    for one, other in zip(*slopes, strict=True):
        assert_allclose(one, other, atol=1e-12)


def fisher_information(likelihood, location, jacobian):
    """By its definition: expected outer product of slopes, over draws."""
    rng = np.random.default_rng(0)
    n_draws = 40000
    uniform = torch.tensor(rng.random((n_draws, N_FEATURES[likelihood])))
    X = likelihood.draw(location.expand(n_draws, -1), uniform)
    slope, _ = likelihood.derivatives(X, location.expand(n_draws, -1))
    on_z = slope @ jacobian.T
    return on_z.T @ on_z / n_draws


N_FEATURES = dict.fromkeys(LIKELIHOODS.values(), 2)
N_FEATURES[LIKELIHOODS["table"]] = 5


def test_precision_is_the_fisher_information_of_draws(name, location):
    likelihood, location = LIKELIHOODS[name], location[:1]
    rng = np.random.default_rng(1)
    jacobian = torch.tensor(rng.normal(size=(2, location.shape[1])))
    with torch.no_grad():
        expected = fisher_information(likelihood, location, jacobian)
        observed = torch.ones(1, N_FEATURES[likelihood], dtype=torch.float64)
        _, information = likelihood.derivatives(observed, location)
        shared = likelihood.precision(information, observed, jacobian)
        own = likelihood.precision(information, observed, jacobian[None])
    assert_allclose(shared[0], expected, rtol=0.05, atol=0.05)
    assert_allclose(own, shared)


def test_categories_are_the_same_when_centred(entries, location):
    logits = torch.tensor([[3.0, 1.0, 2.0, 5.0, 5.0, 8.0]])
    centred = THREE.centre(logits)
    assert_allclose(centred, [[1, -1, 0, -1, -1, 2]])
    X = torch.tensor([[0.0, 2.0]])
    assert_allclose(
        THREE.entry_log_prob(X, logits),
        THREE.entry_log_prob(X, centred),
    )


def test_mean_probabilities_of_all_kinds_are_sums_over_nodes():
    rng = np.random.default_rng(0)
    kinds = ["ordinal", "gaussian", "categorical", "bernoulli", "poisson"]
    likelihood = Columns(kinds, [3, 1, 3, 1, 1])
    X = torch.tensor(rng.integers(2, size=(6, 5)).astype(float))
    location = torch.tensor(rng.normal(size=(7, len(likelihood.feature_of))))
    r = torch.tensor(rng.dirichlet(np.ones(7), size=6))
    with torch.no_grad():
        prob = likelihood.entry_log_prob(X[:, None], location).exp()
        found = likelihood.expected_prob(X, r, location)
    assert_allclose(found, (r[..., None] * prob).sum(1))


def test_columns_of_a_kind_may_stand_apart_or_together():
    together = ["bernoulli", "bernoulli", "gaussian", "poisson"]
    apart = np.array([2, 0, 3, 1])
    X = torch.tensor([[0.0, 1.0, 0.3, 4.0], [1.0, 1.0, -2.0, 0.0]]).double()
    location = torch.linspace(-1, 1, 12, dtype=torch.float64).unflatten(0, (3, 4))
    expected = Columns(together, [1] * 4).at(LOG_NOISE)
    other = Columns([together[j] for j in apart], [1] * 4).at(LOG_NOISE)
    of_both = [
        (kind.entry_log_prob(x[:, None], at), *kind.derivatives(x[:, None], at))
        for kind, x, at in [
            (expected, X, location),
            (other, X[:, apart], location[:, apart]),
        ]
    ]
    for one, two in zip(*of_both, strict=True):
        assert_allclose(one[..., apart].detach(), two.detach(), rtol=1e-14)


@pytest.mark.parametrize("name", ["bernoulli", "categorical", "poisson"])
def test_start_is_where_the_mean_is_that_of_the_rows(name):
    likelihood = LIKELIHOODS[name]
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2 if name == "bernoulli" else 3, (500, 2)).astype(float)
    X[rng.random(X.shape) < 0.2] = np.nan
    mean = likelihood.mean(torch.from_numpy(likelihood.start_location(X))).numpy()
    if name == "categorical":
        expected = np.concatenate(
            [np.mean(x[~np.isnan(x), None] == range(3), axis=0) for x in X.T]
        )
        logits = likelihood.start_location(X).reshape(2, 3)
        assert_allclose(logits.sum(axis=1), 0, atol=1e-12)
    else:
        expected = np.nanmean(X, axis=0)
    assert_allclose(mean, expected, atol=2e-3)


@pytest.mark.parametrize(
    ("likelihood", "value"), [(POISSON, -1), (POISSON, 0.5), (THREE, 3)]
)
def test_values_that_are_none_are_refused(likelihood, value):
    with pytest.raises(ValueError, match="found 1 other values"):
        likelihood.check_rows(np.array([[value, 1.0], [np.nan, 0.0]]))


def test_columns_name_the_column_that_is_refused():
    likelihood, rows = Columns(["poisson", "bernoulli"], [1, 1]), np.array([[4.0, 2.0]])
    with pytest.raises(ValueError, match=r"^likelihood='bernoulli'"):
        likelihood.check_rows(rows)
    with pytest.raises(ValueError, match="Column 'smokes': likelihood='bernoulli'"):
        likelihood.check_columns(rows, ["visits", "smokes"])


COUNTS = np.array([0, 1, 2, 15, 16, 17, 300, 1e6, 2.0**32, 1e12, 1e15, 1e22, 1e300])


def test_counts_never_have_a_positive_log_probability():
    """Nor one above that of the rate that suits them best, 1 / sqrt(2 pi x)."""
    X = torch.tensor(COUNTS)[:, None]
    best = X.clamp(min=1).log()
    location = torch.cat([best + shift for shift in (-1, -1e-9, 0, 1e-9, 1)], 1)
    location = torch.cat(
        [location, torch.tensor([-800.0, 0, 49, 51, 800]).expand(13, 5)], 1
    )
    highest = -0.5 * np.log(2 * np.pi * np.maximum(COUNTS, 1))[:, None]
    highest[0] = 0
    entries = POISSON.entry_log_prob(X, location)
    assert (entries.numpy() <= highest + 0.09 * (COUNTS == 1)[:, None]).all()
    assert entries.isfinite().all()
    seen = torch.ones(1, 1, dtype=torch.float64)
    pairs = POISSON.pair_log_prob(X, seen, location.flatten()[:, None])
    assert (pairs <= 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_probabilities_of_large_counts_lose_no_digits(dtype):
    """By Stirling's formula, and two terms of a series around the best rate."""
    X, scaled = torch.tensor([1e4, 1e10, 1e12, 1e15]), torch.tensor([0.0, 1.0, -2.0])
    X, scaled = X.double()[:, None], scaled.double()
    location = X.log() + scaled / X.sqrt()
    expected = -0.5 * scaled**2 - scaled**3 / (6 * X.sqrt())
    expected = expected - 0.5 * (2 * np.pi * X).log()
    if dtype == torch.float32:  # in which locations are not this close to each other
        location, expected = location[:1], expected[:1]
        X = X[:1]
    found = POISSON.entry_log_prob(X.to(dtype), location.to(dtype))
    assert_allclose(found, expected, atol=2e-3 if dtype == torch.float32 else 1e-4)
    for row, own in zip(X, location, strict=True):
        each = POISSON.entry_log_prob(row.to(dtype), own.to(dtype))
        pairs = POISSON.pair_log_prob(
            row[None].to(dtype), torch.ones(1, 1, dtype=dtype), own[:, None].to(dtype)
        )
        assert_allclose(pairs[0], each, atol=1e-3 if dtype == torch.float32 else 1e-5)


def test_log_probabilities_fall_with_the_count_at_any_rate():
    X = torch.tensor(COUNTS)[:, None]
    for location in (-30.0, 0.0, 49.0, 51.0, 1e3):
        log_prob = POISSON.entry_log_prob(X, torch.tensor(location).double())[:, 0]
        beyond = np.log(np.maximum(COUNTS, 1e-9)) >= min(location, 50)
        assert (np.diff(log_prob[beyond]) < 0).all()


def test_slopes_of_large_counts_and_rates_are_those_of_autograd():
    X = torch.tensor(COUNTS)[:, None]
    at = torch.tensor([-30.0, 0.0, 13.0, 27.0, 49.0, 51.0, 60.0], dtype=torch.float64)
    location = at.expand(len(X), -1).clone().requires_grad_()
    (expected,) = torch.autograd.grad(
        POISSON.entry_log_prob(X, location).sum(), location
    )
    slope, information = POISSON.derivatives(X, location.detach())
    assert_allclose(slope, expected, rtol=1e-9, atol=1e-9)
    assert (information > 0).all()


def test_one_large_count_changes_no_other_row():
    X = torch.tensor([[3.0, 1e13], [2.0, 5.0]], dtype=torch.float64)
    seen = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    location = torch.tensor([[1.0, 29.0], [-1.0, 3.0]], dtype=torch.float64)
    together = POISSON.pair_log_prob(X * seen, seen, location)
    each = POISSON.entry_log_prob(X[:, None], location)
    assert_allclose(together, (each * seen[:, None]).sum(2))
    alone = POISSON.pair_log_prob((X * seen)[1:], seen[1:], location)
    assert_allclose(together[1:], alone, rtol=1e-14)


def test_steep_logits_do_not_cancel_in_sums_over_features():
    """Of logits of 1e20 the likely values cost nothing, and another feature counts."""
    X = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    location = torch.tensor([[1e20, -1e20, 0.3]], dtype=torch.float64)
    seen = torch.ones_like(X)
    expected = Bernoulli().entry_log_prob(X, location).sum()
    assert expected == pytest.approx(-np.log1p(np.exp(-0.3)))
    assert Bernoulli().pair_log_prob(X, seen, location).item() == pytest.approx(
        expected
    )


def test_scores_of_ever_larger_counts_fall_to_the_largest_number():
    init = {"components": [[0.4, 0.3]], "intercept": [-0.7, -0.6]}
    model = MPTLinearVAE(1, likelihood="poisson", init=init, max_iter=0)
    model.fit(np.ones((2, 2)))
    sizes = [1e9, 1e11, 1e12, 1e15, 1e30, 1e100, 1e300]
    scores = model.score_samples(np.array([[size, 3] for size in sizes]))
    assert scores[0] < 0
    assert (np.diff(scores) < 0).all()
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("value", [1.0, 1 / 3, 0.7, 1e-5, -1e14])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_units_of_a_constant_column_are_those_of_its_neighbours(value, dtype):
    """Whatever its mean rounds to, and though one of its entries has rounded."""
    X = np.random.default_rng(0).normal(scale=[1e3, 1e-3, 1], size=(77, 3))
    X = X.astype(dtype)
    X[:, 2] = value
    X[5, 2], X[7, 2] = np.nextafter(X[5, 2], dtype(9)), np.nan
    likelihood = Columns(["gaussian"] * 3, [1] * 3)
    shift, scale, constant = likelihood.units(X)
    assert constant.tolist() == [False, False, True]
    assert np.nanmin(X[:, 2]) <= shift[2] <= np.nanmax(X[:, 2])
    assert scale[2] == pytest.approx(np.sqrt(scale[0] * scale[1]))
    assert_allclose(scale[:2], X[:, :2].std(axis=0), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_units_of_each_column_are_those_of_the_column_alone(dtype):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(30, 5)) * 10.0 ** np.arange(-2, 3)).astype(dtype)
    X[:, 1] = 1 / 3
    X[rng.random(X.shape) < 0.2] = np.nan
    weight = rng.random(30)
    shift, scale, constant = Gaussian().units(X, weight, by_column=True)
    alone = [Gaussian().units(X[:, [j]], weight) for j in range(5)]
    assert_allclose(shift, [mean[0] for mean, *_ in alone])
    varies = [j for j in range(5) if not constant[j]]
    assert len(varies) == 4
    assert_allclose(scale[varies], [alone[j].scale for j in varies])


def test_rows_that_are_all_the_same_have_a_unit_of_one():
    X = np.tile([1 / 3, 0.7, 1e-5], (50, 1))
    shift, scale, _ = Gaussian().units(X)
    assert_allclose(shift, X[0], rtol=0)
    assert scale == 1


@pytest.mark.parametrize(("size", "dtype"), [(1e-3, np.float64), (1e4, np.float32)])
def test_small_differences_of_large_numbers_are_no_rounding_errors(size, dtype):
    X = (1e9 + size * np.random.default_rng(0).normal(size=(60, 2))).astype(dtype)
    _, scale, constant = Gaussian().units(X)
    assert not constant.any()
    assert scale == pytest.approx(np.sqrt(X.astype(float).var(axis=0).mean()))


def test_numbers_whose_squares_overflow_are_refused():
    X = np.random.default_rng(0).normal(size=(20, 2))
    X[:, 1] = 1e300
    with pytest.raises(ValueError, match=r"X holds values of size 1e\+300"):
        Gaussian().units(X)


def test_categories_and_counts_may_be_constant():
    X = np.ones((5, 2))
    assert not Columns(["poisson", "bernoulli"], [1, 1]).units(X).constant.any()
