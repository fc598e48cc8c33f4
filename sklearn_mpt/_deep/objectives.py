r"""What a deep model is trained on: masked scores, and bounds for comparison.

Points of all rows of a minibatch, drawn from their approximate posteriors, are shared:
weighted by the mixture that they come from [1]_, each serves every row. One
product of matrices gives the log-probabilities of any subset of any row at all of them,

.. math:: L(R) = \log \frac{1}{M} \sum_s
          \frac{p(x_R \mid z_s) \, p(z_s)}{\frac1N \sum_n q_n(z_s)},

and :math:`\log p(x_B \mid x_R)` is estimated by L(R and B) - L(R). At fixed points that
is exact for a finite mixture, so masked scores add up to L(all).

References
----------
.. [1] E. Veach and L. J. Guibas, "Optimally combining sampling techniques for Monte
   Carlo rendering", SIGGRAPH 1995.
.. [2] J. Bornschein and Y. Bengio, "Reweighted wake-sleep", ICLR 2015.
"""

import numpy as np
import torch

from sklearn_mpt._latent.rules import (
    log_mean_exp,
    moments,
    natural_parameters,
    standard_normal_log_prob,
)
from sklearn_mpt._latent.trainer import Objective, shuffled_batches
from sklearn_mpt._measure.masks import fixed_size

N_CUTS = 4  # of a random order of the features, into runs that are scored at once
N_RUNS = 4  # scored given each mask of a fixed size


def shared_bounds(module, X, observed, noise):
    """Lower bounds on log p(x_R), and what trains the posteriors that they stand on.

    Parameters
    ----------
    X : Tensor of shape (n, d)
    observed : bool Tensor of shape (n_sets, n, d)
        Sets R of features of each row.
    noise : Tensor of shape (n, s, k)
        Standard normal.

    Returns
    -------
    bounds : Tensor of shape (n_sets, n)
    posterior_fit : Tensor of shape (n_sets, n)
        Expected log density of the approximate posterior under the points' weights,
        which is largest at the true posterior [2]_.
    """
    shape = observed.shape[:2]
    observed = observed.flatten(0, 1)
    rows = torch.where(observed, X.repeat(shape[0], 1), 0.0)
    posterior = module.encoder(rows, observed)
    coefs, constant = natural_parameters(posterior)
    with torch.no_grad():
        z, n_used = _pooled_points(posterior, shape, noise)
        z_moments = moments(z.double())
        log_density = torch.addmm(constant[:n_used, None], coefs[:n_used], z_moments.T)
        log_ratio = standard_normal_log_prob(z) - log_mean_exp(
            log_density.to(z.dtype), 0
        )
    log_joint = log_ratio + module.likelihood.pair_log_prob(
        rows, observed.to(X.dtype), module.decoder(z)
    )
    weight = torch.softmax(log_joint.detach(), 1).double()
    posterior_fit = constant + (coefs * (weight @ z_moments)).sum(1)
    bounds = log_mean_exp(log_joint, 1)
    return bounds.unflatten(0, shape), posterior_fit.unflatten(0, shape)


def _pooled_points(posterior, shape, noise):
    """Draw points from the posteriors of all rows, of each set of features alike.

    Returns the points (m, k), and how many of the posteriors were used: the first ones,
    if there are more sets than points for each row.
    """
    n_sets = min(shape[0], noise.shape[1])
    n_used = n_sets * shape[1]
    parts = noise[:, : noise.shape[1] // n_sets * n_sets].unflatten(1, (n_sets, -1))
    parts = parts.transpose(0, 1).flatten(0, 1)
    z = posterior.mean[:n_used, None] + parts @ posterior.root[:n_used]
    return z.flatten(0, 1), n_used


def own_bound(module, X, noise):
    """Importance-weighted bound on log p(x) by each row's own points; (n,).

    noise : shape (n, s, k). With s = 1 it is the evidence lower bound.
    """
    observed = ~torch.isnan(X)
    posterior = module.encoder(X, observed)
    z = posterior.mean[:, None] + noise @ posterior.root
    filled = torch.nan_to_num(X)[:, None]
    log_prob = module.likelihood.entry_log_prob(filled, module.decoder(z))
    log_likelihood = (log_prob @ observed.to(X.dtype)[..., None])[..., 0]
    log_det = posterior.precision_root.diagonal(dim1=1, dim2=2).log().sum(1)
    log_ratio = 0.5 * ((noise**2).sum(-1) - (z**2).sum(-1)) - log_det[:, None]
    return log_mean_exp(log_likelihood + log_ratio, 1)


def _batches_with_noise(X, batch_size, noise_shape, rng):
    for rows in shuffled_batches(len(X), batch_size, rng):
        noise = rng.standard_normal((len(rows), *noise_shape), dtype=np.float32)
        yield X[rows], torch.tensor(noise, device=X.device)


class SampledRows(Objective):
    """Minibatches of rows with standard normal noise for their points.

    held_out : HeldOutRows or None
        Rows whose losses `validate` returns.
    """

    def __init__(self, X, batch_size, noise_shape, held_out=None):
        self.X = X
        self.batch_size = batch_size
        self.noise_shape = noise_shape
        self.held_out = held_out

    def validate(self, module):
        return None if self.held_out is None else self.held_out.losses(module)

    def batches(self, rng):
        yield from _batches_with_noise(self.X, self.batch_size, self.noise_shape, rng)


class BoundRows(SampledRows):
    """Minus the importance-weighted bound: ELBO for one point per row, else IWAE."""

    def losses(self, module, batch):
        return -own_bound(module, *batch)


class MaskedGains(SampledRows):
    """Minus D times the masked score, by gains of shared bounds.

    masks : tuple
        Mask rate, and number of masks in a step. Rows get them in turn.
    """

    def __init__(self, X, batch_size, noise_shape, held_out, masks):
        super().__init__(X, batch_size, noise_shape, held_out)
        self.masks = masks

    def batches(self, rng):
        for X, noise in super().batches(rng):
            sets, weight = draw_sets(*self.masks, X.shape[1], rng)
            turn = np.arange(len(X)) % sets.shape[1]
            yield X, torch.tensor(sets[:, turn], device=X.device), weight, noise

    def losses(self, module, batch):
        X, sets, weight, noise = batch
        bounds, posterior_fit = shared_bounds(module, X, sets & ~torch.isnan(X), noise)
        gain = weight * (bounds[1:].mean(0) - bounds[0])
        posterior_fit = posterior_fit.sum(0)
        # the value is that of the masked scores alone
        return posterior_fit.detach() - posterior_fit - gain


class HeldOutRows:
    """Minus the log marginal likelihood of held-out rows, always at the same points."""

    def __init__(self, X, batch_size, noise_shape, seed):
        rng = np.random.default_rng(seed)
        self.parts = list(_batches_with_noise(X, batch_size, noise_shape, rng))

    @torch.no_grad()
    def losses(self, module):
        bounds = [
            shared_bounds(module, X, ~torch.isnan(X)[None], noise)[0][0]
            for X, noise in self.parts
        ]
        return -torch.cat(bounds)


def draw_sets(mask_rate, n_masks, n_features, rng):
    """Draw what is observed, and then revealed, in each of the masks of a step.

    A uniform rate cuts a random order of the features at N_CUTS places, equally spaced
    from a random first one, and reveals one run: log p(run | before), summed over runs,
    is the sum of the scores of all sizes. A fixed size m reveals single features or, if
    there are many, a run with scores of the sizes m - h..m + h, for a smaller variance.

    Returns bool (n_sets, n_masks, d), and the weight that makes the gain of the second
    set (or later ones, on average) over the first an estimate of the objective.
    """
    ranks = rng.random((n_masks, n_features)).argsort(1)  # a random order, too
    if mask_rate == "uniform":
        run = (rng.permutation(n_masks) + rng.integers(N_CUTS + 1)) % (N_CUTS + 1)
        start = run - 1 + rng.random(n_masks)
        cuts = np.stack([start, start + 1]) * n_features / N_CUTS
        n_observed = np.floor(np.clip(cuts, 0, n_features) + 0.5)
        return ranks < n_observed[..., None], N_CUTS + 1
    size = fixed_size(mask_rate, n_features)
    half = min(n_features // 16, size - 1, n_features - size)
    n_observed, length = n_features - size - half, 2 * half + 1
    n_runs = min(N_RUNS, (size + half) // length)
    run_of = (ranks - n_observed) // length
    revealed = run_of == np.array([-n_features, *range(n_runs)])[:, None, None]
    return (ranks < n_observed) | revealed, n_features / length
