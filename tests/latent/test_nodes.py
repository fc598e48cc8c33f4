import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from scipy.stats import kstest, norm

torch = pytest.importorskip("torch")

from sklearn_mpt._latent.integrals import (  # noqa: E402
    importance,
    random_error,
    refine,
    rows_of,
)
from sklearn_mpt._latent.quadrature import (  # noqa: E402
    ComponentMoments,
    GaussHermite,
    LogMeanExp,
    Nodes,
    Posterior,
    PosteriorMixture,
    adapt,
    gaussian_around,
    gaussian_log_prob,
    logsumexp_and_softmax,
    mixture_nodes,
    normal_points,
    row_shifts,
    shifted,
    standard_normal_log_prob,
    wide_component_scale,
)

ROWS = rows_of(torch.tensor([[0.3, 1.2], [-0.7, torch.nan]]).double())


@pytest.fixture
def posterior():
    """Two Gaussians away from the prior."""
    precision_root = torch.tensor([[[2.0, 0.0], [0.5, 1.5]], [[1.1, 0.0], [-0.3, 1.0]]])
    precision_root = precision_root.double()
    mean = torch.tensor([[1.0, -0.5], [0.0, 0.3]]).double()
    return Posterior(mean, torch.linalg.inv(precision_root), precision_root)


def log_linear(z):
    """exp of it has a known average over the prior: exp(|a|^2 / 2)."""
    return (z * torch.tensor([0.8, -0.4]).double()).sum(-1)


def test_totals_of_exponentials_most_of_which_vanish():
    log_values = 3000 * torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    log_values = log_values.double().requires_grad_()
    total, weight = logsumexp_and_softmax(log_values)
    assert_allclose(total.detach(), logsumexp(log_values.detach(), 1), rtol=1e-14)
    assert_allclose(weight.detach().sum(1), 1)
    mean, weight = LogMeanExp.apply(log_values)
    assert_allclose(mean.detach(), total.detach() - np.log(50), rtol=1e-14)
    (gradient,) = torch.autograd.grad(mean.sum(), log_values)
    assert_array_equal(gradient, weight)
    assert not weight.requires_grad


RULES = [
    (lambda: GaussHermite([19, 28], 2, "cpu"), 1e-3),
    (lambda: PosteriorMixture((512, 64), 2, "cpu", seed=[0]), 0.02),
]


@pytest.mark.parametrize(("make", "tolerance"), RULES)
def test_weights_integrate_over_the_prior(make, tolerance, posterior):
    rule = make()
    logs = []
    for group in rule.groups:
        nodes = rule.place(group, [posterior], ROWS)
        logs.append(torch.logsumexp(nodes.log_weight + log_linear(nodes.z), 1))
    log_integral, error = rule.combine_logs(torch.stack(logs))
    assert_allclose(log_integral, (0.8**2 + 0.4**2) / 2, atol=tolerance)
    assert (error < tolerance).all()


def test_grid_is_exact_for_the_posterior_it_is_placed_on():
    """Prior times a Gaussian factor: two nodes suffice for a constant."""
    precision_root = torch.tensor([[[2.0]]]).double()
    at = Posterior(torch.tensor([[0.75]]).double(), 1 / precision_root, precision_root)
    rule = GaussHermite([2], 1, "cpu")
    nodes = rule.place(rule.groups[0], [at], ROWS.take([0]))
    log_factor = -0.5 * 3 * (nodes.z[..., 0] - 1) ** 2  # 3 = 2^2 - 1, 0.75 = 3 / 4
    # N(z; 0, 1) exp(-3 (z - 1)^2 / 2) integrates to exp(-3 / 8) / 2
    assert_allclose(
        logsumexp(nodes.log_weight + log_factor, axis=1), -3 / 8 - np.log(2)
    )


def test_rows_shift_the_points_by_what_is_observed_of_them():
    X = torch.tensor([[1.0, 0.0, 2.0], [1.0, 0.0, 2.0], [1.0, 0.0, -3.0]]).double()
    hidden = torch.tensor([[False, False, True]])
    shifts = row_shifts(rows_of(X, hidden), 2, (0,))
    assert_allclose(shifts, shifts[:1].expand(3, -1))
    assert shifted(torch.zeros_like(shifts), shifts).isfinite().all()
    seen = row_shifts(rows_of(X), 2, (0,))
    assert_allclose(seen[0], seen[1])
    assert (seen[2] != seen[0]).all()
    assert (seen != shifts).all()
    assert (row_shifts(rows_of(X), 2, (1,)) != seen).all()


@pytest.mark.parametrize("digit", [0, 2**30 - 1])
def test_points_at_the_edge_are_finite(posterior, digit):
    """A row whose shift makes all digits of a point zero, or one."""
    rule = PosteriorMixture((8, 1), 2, "cpu", seed=[0])
    points = (row_shifts(ROWS, 2, (0,)) ^ digit)[:, None]
    nodes = rule.place((points, points), [posterior], ROWS)
    assert nodes.z.abs().amax() > 4
    assert nodes.z.isfinite().all()
    assert nodes.log_weight.isfinite().all()


def test_shifts_of_binary_rows_are_uniform():
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.integers(2, size=(4000, 30)), dtype=torch.float64).unique(
        dim=0
    )
    shifts = row_shifts(rows_of(X), 3, (0,))
    shifts = norm.cdf(shifted(torch.zeros_like(shifts), shifts))
    assert all(kstest(shift, "uniform").pvalue > 1e-3 for shift in shifts.T)
    assert np.abs(np.corrcoef(shifts.T) - np.eye(3)).max() < 4 / len(X) ** 0.5


def test_errors_of_rows_average_out():
    """Each row has points of its own: errors do not move together."""
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.normal(size=(400, 3)))
    rows, wide = rows_of(X), torch.eye(2).double().expand(400, -1, -1)
    posterior = Posterior(torch.zeros(400, 2).double(), 1.5 * wide, wide / 1.5)
    offs = []
    for seed in range(10):
        rule = PosteriorMixture((16, 2), 2, "cpu", seed=[seed])
        logs = [
            torch.logsumexp(nodes.log_weight + log_linear(nodes.z), 1)
            for nodes in (rule.place(g, [posterior], rows) for g in rule.groups)
        ]
        offs.append(rule.combine_logs(torch.stack(logs))[0] - 0.4)
    offs = torch.stack(offs)
    assert (offs.mean(1) ** 2).mean() < 0.1 * (offs**2).mean()


def test_grids_give_the_finer_value_and_their_difference():
    rule = GaussHermite([3, 5], 1, "cpu")
    logs = torch.tensor([[1.0, 2.0], [1.5, 1.8]])
    value, error = rule.combine_logs(logs)
    assert_allclose(value, [1.5, 1.8])
    assert_allclose(error, [0.5, 0.2], rtol=1e-6)


def test_mixture_pools_ratios_of_replicates():
    rule = PosteriorMixture((8, 1), 1, "cpu", seed=[0])
    integrals = torch.arange(1.0, 9.0)
    averages = torch.full((8, 1, 1), 4.0)
    value, error = rule.combine(averages, integrals.log()[:, None])
    assert_allclose(value, 4.0, rtol=1e-6)
    assert_allclose(error, 0.0, atol=1e-6)


def test_refine_goes_on_row_by_row():
    needed = torch.tensor([1, 3, 2, 9])  # the rule from which a row is accurate
    seen = []

    def estimate(rule, which):
        rows = needed[which]
        seen.append(len(rows))
        return rows + 0.1 * rule, (rows > rule).double()

    values, errors, doubts = refine(estimate, rules=[1, 2, 3, 4], tolerance=0.5)
    assert seen == [4, 3, 2, 1]
    assert_allclose(values, [1.1, 3.3, 2.2, 9.4])
    assert_array_equal(errors, [0, 0, 0, 1])
    assert_array_equal(doubts, errors)


def test_refine_ends_by_the_doubt_and_adds_a_fraction_of_it_to_the_error():
    def estimate(rule, which):
        error = torch.tensor([9.0, 0.1]).double()[which]
        random_error = torch.tensor([0.1, 9.0]).double()[which] / rule**2
        return torch.full_like(error, rule), error, random_error

    values, errors, _ = refine(
        estimate, [1.0, 2.0, 10.0], 0.5, random_error_fraction=0.5
    )
    assert_array_equal(values, [1, 10])
    refined = np.hypot(0.1, 0.5 * 9.0 / 10**2)
    assert_allclose(errors, [9.0, refined], rtol=1e-6)


def test_each_rule_has_points_of_its_own():
    """Posteriors are adapted to the points of the rule before."""
    few, many = importance([(8, 8), (16, 16)], 1, "cpu", (0,)).rules()
    in_both = torch.isin(few.groups[0][0], many.groups[0][0])
    assert not in_both.any()


def test_random_error_is_that_of_random_points():
    rng = np.random.default_rng(0)
    normal = torch.tensor(rng.normal(size=(4, 3000, 50)))
    joint = torch.cat(list(normal), 1)
    expected = random_error(joint, gain=1.0)
    errors = torch.logsumexp(joint, 1) - np.log(200) - 0.5
    assert_allclose(expected.square().mean().sqrt(), errors.std(), rtol=0.1)


def test_log_averages_are_those_of_averages():
    rule = PosteriorMixture((8, 1), 1, "cpu", seed=[0])
    rng = np.random.default_rng(0)
    logs = torch.tensor(rng.normal(size=(8, 5)))
    averages = torch.tensor(rng.uniform(0.9, 1.1, size=(8, 5, 3)))
    average, error = rule.combine(averages, logs)
    log_average, log_error = rule.combine_log_averages(averages.log(), logs)
    assert_allclose(log_average, average.log())
    assert_allclose(log_error, error / average)


def test_adapted_posteriors_are_nearer_to_a_gaussian_target():
    """Parts beside the target end at its moments, and the last one is wider."""
    one = torch.ones(1, 1, dtype=torch.float64)
    parts = [gaussian_around(mean * one, one[None]) for mean in (-1.5, 0.5, 0.0)]
    target = gaussian_around(1.0 * one, 2.0 * one[None])  # of variance 1 / 4
    points = torch.from_numpy(normal_points(1024, 1, 0, 4))
    nodes = mixture_nodes(points.unsqueeze(1), parts)
    log_weight = nodes.log_weight - standard_normal_log_prob(nodes.z)
    joint = log_weight + gaussian_log_prob(nodes.z, target)
    halves = [
        ComponentMoments.from_nodes(Nodes(z, weight, log_components), joint_part, parts)
        for z, weight, log_components, joint_part in zip(
            nodes.z.split(2048, 1),
            nodes.log_weight.split(2048, 1),
            nodes.log_components.split(2048, 2),
            joint.split(2048, 1),
            strict=True,
        )
    ]
    *near, wide = adapt(parts, halves)
    assert_allclose(near[1].mean, 1.0, atol=0.05)
    assert_allclose(near[1].root ** 2, 0.25, atol=0.03)
    assert_allclose(wide.mean, 1.0, atol=0.02)
    assert_allclose(wide.root**2, wide_component_scale(1) ** 2 * 0.25, rtol=0.05)
    together = ComponentMoments.from_nodes(nodes, joint, parts)
    for one_part, other in zip(adapt(parts, [together]), [*near, wide], strict=True):
        assert_allclose(one_part.mean, other.mean)
        assert_allclose(one_part.root, other.root)
