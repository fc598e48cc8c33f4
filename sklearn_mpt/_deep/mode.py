"""The mode of the posterior of z in a deep model, and the curvature there."""

import torch

from sklearn_mpt._latent.integration import log_joint
from sklearn_mpt._latent.rules import Nodes, gaussian_around, standard_normal_log_prob

MAX_STEPS = 10
TOLERANCE = 0.01  # nats, of the log joint density
STEP_SIZES = (1.0, 0.3, 0.1, 0.03)


def laplace(rows, z, module):
    """Mode and curvature of the posterior near z, by damped Gauss-Newton steps.

    Each row takes the step size that is best for it, and rests when none gains more
    than TOLERANCE: a row at rest stays there, whatever the others need.
    """
    sizes = torch.tensor([0.0, *STEP_SIZES], dtype=z.dtype, device=z.device)
    for _ in range(MAX_STEPS):
        step, root = _gauss_newton(rows, z, module)
        candidates = z[:, None] + sizes[:, None] * step[:, None]
        log_prior = standard_normal_log_prob(candidates)
        gain = log_joint(rows, Nodes(candidates, log_prior), module)
        best_gain, best = (gain - gain[:, :1]).max(1)
        best = torch.where(best_gain > TOLERANCE, best, 0)
        if not best.any():
            break
        z = candidates[torch.arange(len(z), device=z.device), best]
    return gaussian_around(z, root)


def _gauss_newton(rows, z, module):
    """Full step to the mode, and the root of the precision, at z (n, k)."""
    location, jacobian = module.decoder.value_and_jacobian(z)
    slope, curvature = module.likelihood.derivatives(rows.X, location)
    slope, curvature = (
        torch.where(rows.observed, term, 0.0) for term in (slope, curvature)
    )
    gradient = (jacobian @ slope[..., None])[..., 0] - z
    eye = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    precision = eye + (jacobian * curvature[:, None]) @ jacobian.mT
    root = torch.linalg.cholesky(precision)
    return torch.cholesky_solve(gradient[..., None], root)[..., 0], root
