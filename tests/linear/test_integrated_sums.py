"""Sums over nodes and masks, by the densities of sets of entries, and autograd."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from reference import (
    bernoulli_log_prob,
    bernoulli_posterior_average,
    binary_rows,
)

torch = pytest.importorskip("torch")

from sklearn_mpt._gaussian.likelihood import likelihood_sums  # noqa: E402
from sklearn_mpt._latent import likelihood_rows as integrated_training  # noqa: E402
from sklearn_mpt._latent.grids import prior_grid, resolves  # noqa: E402
from sklearn_mpt._latent.integrals import rows_of  # noqa: E402
from sklearn_mpt._latent.likelihood_rows import (  # noqa: E402
    LikelihoodRows,
    ObjectiveParams,
)
from sklearn_mpt._latent.linear_map import (  # noqa: E402
    LinearMap,
    evidence_lower_bound,
    laplace,
    spacing,
    variational_posterior,
)
from sklearn_mpt._latent.quadrature import (  # noqa: E402
    GaussHermite,
    Nodes,
    grids,
)
from sklearn_mpt._latent.sums import (  # noqa: E402
    RepresentativeValues,
    RowContext,
    bound_sums,
    point_of,
    row_node_sums,
    shared_likelihood_sums,
)
from sklearn_mpt._likelihoods import Bernoulli, Columns, Gaussian  # noqa: E402
from sklearn_mpt._optim.natural import Point  # noqa: E402

N_FEATURES = 5
BERNOULLI = Bernoulli()


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return 1.5 * rng.normal(size=(2, N_FEATURES)), 0.5 * rng.normal(size=N_FEATURES)


@pytest.fixture
def point(arrays):
    return point_of(*map(torch.tensor, arrays))


@pytest.fixture
def X(arrays):
    X = binary_rows(12, *arrays, seed=1)
    X[0, 1:4], X[1] = np.nan, np.nan
    return X


@pytest.fixture
def mask():
    return np.array([True, False, True, False, False])


@pytest.fixture
def grid():
    """Nodes that are shared, few and anywhere: sums are exact for any."""
    rng = np.random.default_rng(3)
    z, log_weight = rng.normal(size=(9, 2)), np.log(rng.dirichlet(np.ones(9)))
    return torch.tensor(z), torch.tensor(log_weight)


def repeated(grid, n):
    z, log_weight = grid
    return Nodes(z.expand(n, -1, -1), log_weight.expand(n, -1))


def training_of(**given):
    return ObjectiveParams(**{"objective": "mpt", "batch_size": "auto"} | given)


def joint_at(point, likelihood=BERNOULLI):
    return LinearMap(point.coefs[:, :-1].T, point.coefs[:, -1], likelihood)


def information_at(X, hidden, coefs, nodes):
    """Sum over rows and nodes of posterior weight, information and (z, 1)(z, 1)'."""
    total = torch.zeros(X.shape[1], *(coefs.shape[1],) * 2, dtype=torch.float64)
    for x, h, z, log_weight in zip(X, hidden, *nodes[:2], strict=True):
        append_one = torch.cat([z, torch.ones(len(z), 1)], 1)
        prob = torch.sigmoid(append_one @ coefs.T)
        seen = ~torch.isnan(x) & ~h
        said = torch.where(x == 1, prob, 1 - prob)[:, seen].prod(1)
        r = log_weight.exp() * said
        curvature = (r / r.sum())[:, None] * prob * (1 - prob)
        outer = torch.einsum("sj,sk,sl->jkl", curvature, append_one, append_one)
        total[~torch.isnan(x)] += outer[~torch.isnan(x)]
    return total


def autograd(value_of, point):
    coefs = point.coefs.clone().requires_grad_()
    return torch.autograd.grad(value_of(coefs), coefs)[0]


def assert_sums_close(actual, expected, **tolerance):
    for name in ("value", "square"):
        assert_allclose(getattr(actual, name), getattr(expected, name), **tolerance)
    for name in ("gradient", "information"):
        pair = [getattr(sums, name).coefs for sums in (actual, expected)]
        assert_allclose(*pair, **tolerance)
    assert actual.n_rows == expected.n_rows


def both_sums(rows, grid, point, likelihood, number=8):
    """Sums of the log-likelihoods of all rows, at shared nodes and at their own."""
    typical = RepresentativeValues.from_rows(rows.numpy(), number)
    blocks = [
        (rows_of(part), torch.ones(len(part)).double(), typical.indicators(which, part))
        for which, part in ((slice(2), rows[:2]), (slice(2, None), rows[2:]))
    ]
    steps = [1e-9] * grid[0].shape[1]  # so that the grid seems fine enough
    of = point, likelihood, typical.values
    shared, unresolved = shared_likelihood_sums(blocks, grid, steps, *of)
    assert not torch.cat(unresolved).any()
    nodes, at = repeated(grid, len(rows)), likelihood.at(point.shape_params)
    return shared, row_node_sums(rows_of(rows), nodes, point, at)


@pytest.mark.parametrize(
    ("kind", "draw"),
    [
        ("ordinal", lambda rng, shape: rng.integers(4, size=shape)),
        ("partial_credit", lambda rng, shape: rng.integers(4, size=shape)),
        ("categorical", lambda rng, shape: rng.integers(4, size=shape)),
        ("gaussian", lambda rng, shape: rng.normal(size=shape)),
        ("poisson", lambda rng, shape: rng.poisson(2.0, size=shape)),
        ("lognormal", lambda rng, shape: rng.gamma(2.0, size=shape)),
        ("negative_binomial", lambda rng, shape: rng.poisson(1.0, size=shape)),
    ],
)
def test_shared_sums_of_all_kinds_are_own_sums(kind, draw, grid):
    """With as many typical values as there are, the information is exact, too."""
    rng = np.random.default_rng(0)
    rows = torch.tensor(draw(rng, (9, 3)).astype(float))
    rows[0, 1] = rows[5, 0] = torch.nan
    likelihood = Columns([kind, kind, "bernoulli"], [4, 4, 1])
    rows[:, 2] = (rows[:, 2] > rows[:, 2].median()).double()
    coefs = torch.tensor(rng.normal(size=(len(likelihood.feature_of), 3)))
    point = Point(coefs, likelihood.shape_params.detach().to(coefs))
    with torch.no_grad():
        shared, own = both_sums(rows, grid, point, likelihood, len(rows))
    assert_sums_close(shared, own, atol=1e-8)
    for name in ("gradient", "information"):
        pair = [getattr(sums, name).shape_params for sums in (shared, own)]
        assert_allclose(*pair, atol=1e-8)


@pytest.mark.parametrize("gaps", [True, False])
def test_likelihood_sums_are_densities_at_the_nodes(point, X, grid, gaps):
    X = X if gaps else X[2:]
    rows, nodes = torch.tensor(X), repeated(grid, len(X))
    present = ~torch.isnan(rows)

    def log_prob(coefs):
        location = nodes.z @ coefs[:, :-1].T + coefs[:, -1]
        entry = BERNOULLI.entry_log_prob(torch.nan_to_num(rows)[:, None], location)
        return (nodes.log_weight + (entry * present[:, None]).sum(2)).logsumexp(1)

    shared, own = both_sums(rows, grid, point, BERNOULLI)
    assert_sums_close(shared, own, atol=1e-10)
    assert_allclose(own.value, log_prob(point.coefs).sum())
    gradient = autograd(lambda coefs: log_prob(coefs).sum(), point)
    assert_allclose(own.gradient.coefs, gradient, atol=1e-12)
    nothing = torch.zeros_like(present)
    information = information_at(rows, nothing, point.coefs, nodes)
    assert_allclose(own.information.coefs, information)


def test_weights_of_rows_are_those_of_copies(point, X, grid, mask):
    count = torch.tensor(np.arange(len(X)) % 3)
    rows, hidden = torch.tensor(X), torch.tensor(mask)

    def sums_of(rows, weight=None):
        nodes = repeated(grid, len(rows))
        arguments = rows_of(rows, hidden), nodes, point, BERNOULLI
        return row_node_sums(*arguments, weight)

    weighted = sums_of(rows, count.double())
    copied = sums_of(rows.repeat_interleave(count, 0))
    assert_allclose(weighted.value, copied.value)
    assert_allclose(weighted.gradient.coefs, copied.gradient.coefs)
    assert_allclose(weighted.information.coefs, copied.information.coefs)


def test_gaussian_features_agree_with_their_closed_form():
    """Quadrature of row_node_sums against likelihood_sums, but for the noise."""
    rng = np.random.default_rng(0)
    likelihood = Gaussian(torch.tensor(0.7, dtype=torch.float64))
    log_noise = likelihood.dispersion.detach().log()
    coefs = torch.tensor(rng.normal(size=(4, 2)))
    X = torch.tensor(rng.normal(size=(6, 4)))
    X[0, 1] = torch.nan
    hidden = torch.tensor(rng.random((6, 4)) < 0.5)
    rows = rows_of(X, hidden)
    joint = joint_at(Point(coefs, None), likelihood)
    (group,) = grids((60,), 1, "cpu").groups[-1:]
    posterior = laplace(rows, joint)
    nodes = GaussHermite([60], 1, "cpu").place(group, [posterior], rows)
    with torch.no_grad():
        point = Point(coefs, coefs.new_zeros(0))
        own = row_node_sums(rows, nodes, point, likelihood)
    exact = likelihood_sums(
        rows.X,
        rows.observed.double(),
        Point(coefs, log_noise),
    )
    assert_allclose(own.value, exact.value, rtol=1e-6)
    assert_allclose(own.gradient.coefs, exact.gradient.coefs, rtol=1e-4)
    assert_allclose(own.information.coefs, exact.information.coefs, rtol=1e-6)


def test_equal_rows_are_one_row_with_their_weight(point, X):
    rng = np.random.default_rng(0)
    X, weight = X[rng.integers(4, size=30)], rng.uniform(0.5, 2.0, 30)
    context, settings = RowContext(weight=weight), training_of(objective="lml")
    merged = LikelihoodRows(torch.tensor(X), BERNOULLI, settings, 2, context)
    assert merged.n_rows == 4
    steps = settings._replace(batch_size=29)  # counts equal rows
    apart = LikelihoodRows(torch.tensor(X), BERNOULLI, steps, 2, context)
    assert apart.n_rows == 30
    (batch,) = merged.batches(np.random.default_rng(0))
    expected = merged.sums(point, batch)
    sums = apart.sums(point, torch.arange(30))
    assert_allclose(sums.value, expected.value, rtol=1e-12)
    for got, wanted in zip(sums.gradient, expected.gradient, strict=True):
        assert_allclose(got, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("edge", [1e-3, -1.0], ids=["shared", "own"])
def test_sums_do_not_depend_on_blocks(point, X, edge, monkeypatch):
    resolves_rows = partial(resolves, max_edge_weight=edge)
    monkeypatch.setattr("sklearn_mpt._latent.sums.resolves", resolves_rows)
    objective = LikelihoodRows(torch.tensor(X), BERNOULLI, training_of(), 2)
    (batch,) = objective.batches(np.random.default_rng(0))
    whole = objective.sums(point, batch)
    monkeypatch.setattr(integrated_training, "CACHE_ENTRIES", 100)
    assert_sums_close(objective.sums(point, batch), whole, atol=1e-10)


@pytest.mark.parametrize("edge", [1e-3, -1.0], ids=["shared", "own"])
def test_likelihood_rows_are_a_dense_grid(arrays, point, X, edge, monkeypatch):
    resolves_rows = partial(resolves, max_edge_weight=edge)
    monkeypatch.setattr("sklearn_mpt._latent.sums.resolves", resolves_rows)
    settings = training_of(objective="lml")
    objective = LikelihoodRows(torch.tensor(X), BERNOULLI, settings, 2)
    (batch,) = objective.batches(np.random.default_rng(0))
    value = objective.sums(point, batch).value
    assert_allclose(value, bernoulli_log_prob(X, *arrays).sum(), rtol=1e-3)
    assert not objective.is_noisy


@pytest.mark.parametrize("n_dims", [1, 2])
@pytest.mark.parametrize("scale", [0.3, 2.0, 5.0])
def test_prior_grid_resolves_posteriors(n_dims, scale):
    """Log densities, posterior means and second moments, for steep slopes, too."""
    rng = np.random.default_rng(n_dims)
    arrays = scale * rng.normal(size=(n_dims, 6)), rng.normal(size=6)
    X = binary_rows(20, *arrays, seed=2)
    X[0, :3] = np.nan
    joint = LinearMap(*map(torch.tensor, arrays), BERNOULLI)
    z, log_weight = prior_grid(
        spacing(joint, integrated_training.SPACING), torch.zeros(0).double()
    )
    present = ~torch.isnan(torch.tensor(X))
    entry = joint.entry_log_prob(torch.nan_to_num(torch.tensor(X)), z[None])
    joint = log_weight + (entry * present[:, None]).sum(2)
    log_prob = joint.logsumexp(1)
    assert_allclose(log_prob, bernoulli_log_prob(X, *arrays), atol=2e-3)
    posterior = (joint - log_prob[:, None]).exp()
    for function in (lambda z: z, lambda z: z**2):
        truth = bernoulli_posterior_average(function, X, *arrays)
        assert_allclose(posterior @ function(z), truth, atol=3 * 2e-3)


def test_gradient_of_the_bound_is_that_at_fixed_posteriors(point, X):
    """Stein's identity, exact on a fine grid."""
    grid = GaussHermite([41], 1, "cpu").groups[0]
    rows = rows_of(torch.tensor(X))
    posterior = variational_posterior(rows, joint_at(point), grid)

    def bound(coefs):
        joint = joint_at(Point(coefs, None))
        return evidence_lower_bound(rows, posterior, joint, grid)

    sums = bound_sums(rows, joint_at(point), grid)
    assert_allclose(sums.value, bound(point.coefs).sum())
    assert_allclose(sums.square, (bound(point.coefs) ** 2).sum())
    gradient = autograd(lambda coefs: bound(coefs).sum(), point)
    assert_allclose(sums.gradient.coefs, gradient, atol=1e-6)


def test_bound_rows_stay_below_the_log_density(arrays, point, X):
    rows, settings = torch.tensor(X), training_of(objective="elbo")
    objective = LikelihoodRows(rows, BERNOULLI, settings, 2)
    (batch,) = objective.batches(np.random.default_rng(0))
    value = objective.sums(point, batch).value.item()
    log_prob = bernoulli_log_prob(X, *arrays).sum()
    assert log_prob - 0.1 * abs(log_prob) < value < log_prob
    flat = point._replace(coefs=point.coefs * torch.tensor([0.0, 0, 1]))
    independent = bernoulli_log_prob(X, 0 * arrays[0], arrays[1]).sum()
    assert_allclose(objective.sums(flat, batch).value, independent)


def test_slopes_have_a_normal_prior(point, X):
    settings = training_of(objective="lml")
    objective = LikelihoodRows(torch.tensor(X), BERNOULLI, settings, 2)
    (batch,) = objective.batches(np.random.default_rng(0))
    flat = objective.sums(point, batch)
    settings = settings._replace(slope_prior=2.0)
    objective = LikelihoodRows(torch.tensor(X), BERNOULLI, settings, 2)
    sums, slopes = objective.sums(point, batch), point.coefs[:, :-1]
    assert_allclose(flat.value - sums.value, (slopes**2).sum() / 8)
    difference = flat.gradient.coefs - sums.gradient.coefs
    assert_allclose(difference[:, :-1], slopes / 4)
    assert_allclose(difference[:, -1], 0, atol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.25, 0.5])
def test_a_grid_knows_which_posteriors_it_resolves(shift):
    """Wide ones, narrow ones wherever they lie between nodes, and one at the edge."""
    steps = [0.5, 0.5]
    z, _ = prior_grid(steps, torch.zeros(0).double())
    mean = torch.tensor([[shift, 0.1], [shift, shift], [shift, 0.0], [5.0, 0.0]])
    deviation = torch.tensor([[0.5, 0.6], [0.05, 0.6], [0.2, 0.2], [0.5, 0.5]])
    distance = (z - mean[:, None]) / deviation[:, None]
    r = (-0.5 * (distance**2).sum(2)).softmax(1).double()
    found = resolves(r, z, steps, 5.5)
    assert found.tolist() == [True, False, False, False]


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
