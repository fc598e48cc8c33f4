import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp

torch = pytest.importorskip("torch")

from sklearn_mpt._latent.integrals import (  # noqa: E402
    refine,
    rows_of,
)
from sklearn_mpt._latent.quadrature import (  # noqa: E402
    ComponentMoments,
    GaussHermite,
    Nodes,
    Posterior,
    PosteriorMixture,
    adapt,
    gaussian_around,
    gaussian_log_prob,
    mixture_nodes,
    normal_points,
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
