import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mpt._latent.integrals import refine, rows_of
from sklearn_mpt._latent.quadrature import (
    GaussHermite,
    Posterior,
    PosteriorMixture,
    normal_points,
    pool,
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


def test_points_are_normal_reproducible_and_independent_between_replicates():
    points = normal_points(1024, 2, seed=[0])
    assert points.shape == (8, 1024, 2)
    assert_allclose(points.mean(1), 0, atol=0.02)
    assert_allclose((points**2).mean(1), 1, atol=0.05)
    assert_array_equal(points, normal_points(1024, 2, seed=[0]))
    assert (points[0] != points[1]).all()
    assert (points != normal_points(1024, 2, seed=[1])).all()


def test_standard_error_of_pooled_replicates_is_honest():
    rng = np.random.default_rng(0)
    means = 1 + 0.01 * rng.normal(size=(8, 100_000))
    value, error = pool(torch.tensor(np.log(means)))
    covered = np.mean(np.abs(value.numpy()) < 1.96 * error.numpy())
    # by Student's t: standard errors of eight replicates are too small as they are
    assert abs(covered - 0.95) < 4 * (0.95 * 0.05 / 100_000) ** 0.5
