r"""The losses that a deep model is trained on, by samples of z that rows share.

Samples are drawn from the approximate posteriors of all rows of a minibatch, and from
the prior, and every row uses all of them, weighted by the mixture that they come from
[1]_. One product of matrices gives the log-probabilities of any subset of any row at
all of them,

.. math:: L(R) = \log \frac{1}{S} \sum_s
          \frac{p(x_R \mid z_s) \, p(z_s)}{\sum_n w_n q_n(z_s) + w_0 p(z_s)},

and L(R and B) - L(R) estimates :math:`\log p(x_B \mid x_R)`. For fixed samples that is
exact for a finite mixture, so that the masked scores of all sizes add up to L(all) less
L of no features, which does not depend on the decoder. Samples from posteriors given
the features that a mask leaves visible depend on the mask: then the mean over masks
differs a little from the sum with samples of the whole rows.

References
----------
.. [1] E. Veach and L. J. Guibas, "Optimally combining sampling techniques for Monte
   Carlo rendering", SIGGRAPH 1995.
.. [2] J. Bornschein and Y. Bengio, "Reweighted wake-sleep", ICLR 2015.
"""

import math
from copy import copy
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import sem
from torch.utils.checkpoint import checkpoint

from sklearn_mpt._deep.density import EncodeDecodeDensity, encode_decode_log_prob
from sklearn_mpt._latent.quadrature import (
    LogMeanExp,
    log_mean_exp,
    logsumexp_and_softmax,
    moments,
    natural_parameters,
    standard_normal_log_prob,
)
from sklearn_mpt._likelihoods.base import LOG_NOISE_STEP, encoder_inputs, noises_of
from sklearn_mpt._matrices import log_determinant
from sklearn_mpt._measure.contract import masked_score
from sklearn_mpt._measure.masks import fixed_size
from sklearn_mpt._numbers import CHUNK_ENTRIES, TINY
from sklearn_mpt._optim.masks import shared_masks
from sklearn_mpt._optim.nets import MinibatchLoss


class SharedSamples(NamedTuple):
    """Samples that all rows use, weighted by the mixture that they come from."""

    z: torch.Tensor  # shape: (m, k)
    moments: torch.Tensor  # shape: (m, p)
    log_weight: torch.Tensor  # shape: (m,), to average over the prior


def draw_samples(module, X, observed, noise, prior_samples):
    """Return rows of each set, natural parameters of their posteriors, and samples.

    As many samples are drawn from the posteriors given each set of features. If there
    are more sets than samples for each row, only the first sets are used.
    """
    shape, observed_float = observed.shape[:2], observed.to(X.dtype)
    rows = torch.nan_to_num(X) * observed_float
    of_rows = rows.flatten(0, 1), observed_float.flatten(0, 1)
    posterior = module.encoder(*encoder_inputs(module.likelihood, *of_rows))
    densities = natural_parameters(posterior)
    n_sets = min(shape[0], noise.shape[1])
    n_used = n_sets * shape[1]
    with torch.no_grad():
        parts = noise[:, : noise.shape[1] // n_sets * n_sets].unflatten(1, (n_sets, -1))
        parts = parts.transpose(0, 1).flatten(0, 1)
        z = posterior.mean[:n_used, None] + parts @ posterior.root[:n_used]
        # posteriors of the encoder may have any width before it is trained
        drawn = z.flatten(0, 1).nan_to_num(0.0).clamp(-30, 30)
        z = torch.cat([drawn, prior_samples])
        z_moments = moments(z.double())
        coefs, constant = (parameters[:n_used] for parameters in densities)
        density, _ = logsumexp_and_softmax(torch.addmm(constant, z_moments, coefs.T))
        log_prior = standard_normal_log_prob(z)
        fraction = len(drawn) / len(z)
        log_mixture = (density - math.log(n_used)).to(z.dtype)
        if fraction < 1:
            log_mixture = torch.logaddexp(
                log_mixture + math.log(fraction), log_prior + math.log1p(-fraction)
            )
    samples = SharedSamples(z, z_moments, log_prior - log_mixture)
    return rows, [part.unflatten(0, shape) for part in densities], samples


def shared_bounds(module, X, observed, noise, prior_samples, scored=None):
    """Return lower bounds on log p(x_R), and what trains posteriors; (n_sets, n) each.

    The latter is the expected log density of the approximate posterior under the
    weights of the samples, which is largest at the true posterior [2]_.

    X : (n, d), NaN where missing. observed : sets R of features of each row, bool
    (n_sets, n, d). noise : standard normal, (n, s, k). prior_samples : (m, k). scored :
    which sets have bounds with gradients; None is all.
    """
    rows, densities, samples = draw_samples(module, X, observed, noise, prior_samples)
    locations, kind = module.decoder.locations(samples.z), module.likelihood
    trains = torch.is_grad_enabled()
    if scored is None or all(scored):  # the sets as rows: they share one product
        scored, rows, sets = [True], rows.flatten(0, 1)[None], [observed.flatten(0, 1)]
    else:
        sets = complete_as_one_row(observed)
    bounds, expected = [], []
    for X_set, observed_set, is_scored in zip(rows, sets, scored, strict=True):
        with torch.set_grad_enabled(trains and is_scored):
            log_prob = kind.shared_log_prob(X_set, observed_set, locations)
            bound, weight = LogMeanExp.apply(samples.log_weight + log_prob)
        bounds.append(bound)
        expected.append(weight.double() @ samples.moments)
    coefs, constant = densities
    bounds = torch.cat(bounds).view_as(constant)
    expected = torch.cat(expected).view_as(coefs)
    return bounds, constant + (coefs * expected).sum(-1)


def shared_scores(module, X, mask, noise, prior_samples):
    r"""Estimate log p(x_j | x_R) of every hidden feature, given the visible ones.

    The estimate, (n, d), is :math:`\log \sum_s r_s p(x_j \mid z_s)` with the normalised
    weights r of samples given the visible features, the difference of bounds
    L(R and j) - L(R). What trains posteriors, (2, n), is of the visible features and
    of all present ones. Arguments are those of `shared_bounds`.

    mask : True where hidden, bool (n, d).
    """
    present = ~torch.isnan(X)
    observed = torch.stack([present & ~mask, present])
    rows, densities, samples = draw_samples(module, X, observed, noise, prior_samples)
    locations, kind = module.decoder.locations(samples.z), module.likelihood
    visible, all_rows = complete_as_one_row(observed)
    log_likelihood = kind.shared_log_prob(rows[0], visible, locations)
    log_weight = (samples.log_weight + log_likelihood).log_softmax(1)
    with torch.no_grad():
        of_all = kind.shared_log_prob(rows[1], all_rows, locations)
        all_weight = (samples.log_weight + of_all).softmax(1)
        weights = torch.stack([log_weight.exp(), all_weight])
    log_prob = _expected_log_prob(kind, rows[1], log_weight, locations.product)
    log_prob = torch.where(mask & present, log_prob, 0.0)
    coefs, constant = densities
    expected = weights.double() @ samples.moments
    return log_prob, constant + (coefs * expected).sum(-1)


def complete_as_one_row(observed):
    """Return sets of features; of one that has all of each row, one row, (1, d).

    All are read back at once, because a GPU waits for each number.
    """
    have_all = observed.flatten(1).all(1).tolist()
    pairs = zip(observed, have_all, strict=True)
    return [rows[:1] if has_all else rows for rows, has_all in pairs]


def _expected_log_prob(likelihood, X, log_weight, location):
    """Log of the mean probability of each entry over shared locations; (n, d)."""
    if likelihood.values_of_each(X.shape[1]) is not None:
        prob = likelihood.expected_prob(X, log_weight.exp(), location)
        return prob.clamp(min=torch.finfo(prob.dtype).tiny).log()

    def block_log_prob(X, log_weight):
        entries = likelihood.entry_log_prob(X[:, None], location)
        return torch.logsumexp(log_weight[..., None] + entries, 1)

    size = max(1, CHUNK_ENTRIES // (len(location) * location.shape[1]))
    if len(X) <= size:
        return block_log_prob(X, log_weight)
    parts = zip(X.split(size), log_weight.split(size), strict=True)
    # what the gradient needs of a block is computed again, not kept
    return torch.cat(
        [checkpoint(block_log_prob, *p, use_reentrant=False) for p in parts]
    )


def row_sample_bound(module, X, noise):
    """Return the importance-weighted bound by each row's own samples; (n,)."""
    observed, filled = ~torch.isnan(X), torch.nan_to_num(X)
    posterior = module.posterior(filled, observed)
    z = posterior.mean[:, None] + noise @ posterior.root
    log_prob = module.entry_log_prob(filled, z)
    log_likelihood = (log_prob @ observed.to(X.dtype)[..., None])[..., 0]
    log_det = 0.5 * log_determinant(posterior.precision_root)
    log_ratio = 0.5 * ((noise**2).sum(-1) - (z**2).sum(-1)) - log_det[:, None]
    return log_mean_exp(log_likelihood + log_ratio, 1)


# The losses of rows that are trained, (n,), by functions of a module, rows (n, d) and
# `rng`. n_samples : of z for each row. n_prior : of the prior. n_masks : drawn in each
# step; None is one for each row.


def draw_noise(X, n_samples, n_prior, n_dims, rng):
    """Draw standard normal noise; shapes (n, n_samples, n_dims), (n_prior, n_dims)."""
    shapes = (len(X), n_samples, n_dims), (n_prior, n_dims)
    return [
        torch.tensor(rng.standard_normal(shape, dtype=np.float32), device=X.device)
        for shape in shapes
    ]


def draw_row_masks(X, mask_rate, n_masks, rng):
    """Draw a mask for each of some rows; bool, (n, d)."""
    n_masks = len(X) if n_masks is None else min(n_masks, len(X))
    masks = shared_masks(mask_rate, n_masks, X.shape[1], rng)
    return torch.from_numpy(masks[np.arange(len(X)) % n_masks]).to(X.device)


def drawn_mask_losses(module, X, rng, *, n_samples, n_prior, mask_rate, n_masks):
    """Minus D times the masked score: all features that a drawn mask hides."""
    noise = draw_noise(X, n_samples, n_prior, module.n_dims, rng)
    mask = draw_row_masks(X, mask_rate, n_masks, rng)
    log_prob, posterior_fit = shared_scores(module, X, mask, *noise)
    return _training_losses(X.shape[1] * masked_score(log_prob, mask), posterior_fit)


def training_sets(mask_rate, n_masks, n_features, rng):
    """Draw observed sets, bool (n_sets, n_masks, d), and weights of their bounds."""
    # The score of feature j given R is the difference L(R and j) - L(R) of two bounds.
    # With a uniform rate they add up to L(all), up to a constant, along any order; a
    # random set with weight 0 trains the posteriors on rows with gaps. With a fixed
    # size m, the objective is the score of features revealed after R: of a run of them
    # if there are many, with scores of the sizes m - h..m + h, which lowers the
    # variance.
    keys = rng.random((n_masks, n_features), dtype=np.float32)
    if mask_rate == "uniform":
        n_observed = (rng.permutation(n_masks) + rng.random()) * n_features // n_masks
        limits = np.sort(keys)[np.arange(n_masks), n_observed.astype(int)]
        before = keys < limits[:, None]
        return np.stack([before, np.ones_like(before)]), [0, 1]
    # argsort of random keys is a random permutation, as good as ranks
    ranks, size = keys.argsort(1), fixed_size(mask_rate, n_features)
    half = min(n_features // 16, size - 1, n_features - size)
    n_observed, length = n_features - size - half, 2 * half + 1
    n_runs = min(4, (size + half) // length)
    run_of = (ranks - n_observed) // length
    revealed = run_of == np.array([-n_features, *range(n_runs)])[:, None, None]
    weight = n_features / length
    return (ranks < n_observed) | revealed, [-weight] + [weight / n_runs] * n_runs


def bound_gain_losses(module, X, rng, *, n_samples, n_prior, mask_rate, n_masks=None):
    """Minus D times the masked score, by differences of shared bounds."""
    noise = draw_noise(X, n_samples, n_prior, module.n_dims, rng)
    sets, weights = training_sets(mask_rate, len(X), X.shape[1], rng)
    observed = torch.from_numpy(sets).to(X.device) & ~torch.isnan(X)
    scored = [weight != 0 for weight in weights]
    bounds, posterior_fit = shared_bounds(module, X, observed, *noise, scored)
    gain = sum(w * bound for w, bound in zip(weights, bounds, strict=True) if w)
    return _training_losses(gain, posterior_fit)


def _training_losses(gain, posterior_fit):
    """Return losses whose value is minus the gain, and which train posteriors, too."""
    posterior_fit = posterior_fit.sum(0)
    return posterior_fit.detach() - posterior_fit - gain


def bound_losses(module, X, rng, *, n_samples, n_prior):
    """Minus the importance-weighted bound: ELBO with one sample per row, else IWAE."""
    noise, _ = draw_noise(X, n_samples, n_prior, module.n_dims, rng)
    return -row_sample_bound(module, X, noise)


def encode_decode_losses(module, X, rng, *, n_samples, n_prior, mask_rate, n_masks):
    """Minus D times the masked score by chains."""
    n_steps, (n_rows, n_features) = EncodeDecodeDensity.n_steps, X.shape
    normal = rng.standard_normal((n_rows, n_steps + 1, n_samples, module.n_dims))
    uniform = rng.random((n_rows, n_steps, n_samples, n_features))
    noise = [torch.tensor(u, dtype=X.dtype, device=X.device) for u in (normal, uniform)]
    mask, present = draw_row_masks(X, mask_rate, n_masks, rng), ~torch.isnan(X)
    visible = present & ~mask
    log_prob = encode_decode_log_prob(module, torch.nan_to_num(X), visible, noise)
    return -n_features * masked_score(torch.where(mask & present, log_prob, 0.0), mask)


class RowLoss(MinibatchLoss):
    """One of the losses of rows, in minibatches of them."""

    # of_rows : from a module and rows to their losses. n_masks : of a step, of which
    # few rows have several each. unseen : levels that no row has, which weigh as much.

    def __init__(self, rows, batch_size, rng, of_rows, n_masks=None):
        # few rows are passed several times in an epoch, before validation rows
        super().__init__(rows, batch_size, min_steps=16)
        self.rng, self.of_rows, self.n_masks = rng, of_rows, n_masks or 1
        self.unseen, self.unseen_weight = None, 0.0

    def batches(self):
        X, weight, n_rows = self.rows.X, self.rows.relative_weight, len(self.rows.X)
        n_batches = math.ceil(n_rows / self.batch_size)
        for _ in range(self.count_passes(n_batches)):
            for rows in np.array_split(self.rng.permutation(n_rows), n_batches):
                rows = rows[np.arange(max(len(rows), self.n_masks)) % len(rows)]
                yield X[rows], weight[rows]

    def losses(self, module, batch):
        X, weight = batch
        losses = weight * self.of_rows(module, X, self.rng)
        if not self.unseen_weight:
            return losses
        z = self.rng.standard_normal((len(X), module.n_dims))
        location = module.decoder(torch.from_numpy(z).to(X))
        levels, is_level = self.unseen.nan_to_num()[:, None], ~self.unseen.isnan()
        log_prob = module.likelihood.entry_log_prob(levels.to(location), location)
        return losses - self.unseen_weight * (log_prob * is_level[:, None]).sum((0, 2))


class ValidationRows:
    """Losses of validation rows, by samples that are the same in every epoch."""

    # sets_noise : whether the noise is set after every epoch, and not trained.
    # batch_size : rows that share their samples.

    def __init__(
        self, rows, n_prior, n_dims, seed, sets_noise, *, n_samples=16, batch_size=256
    ):
        self.rows, self.sets_noise = rows, sets_noise
        rng = np.random.default_rng(seed)
        self.parts = [
            (X, *complete_as_one_row((~X.isnan())[None]), *noise)
            for X in rows.X.split(batch_size)
            for noise in [draw_noise(X, n_samples, n_prior, n_dims, rng)]
        ]

    @torch.no_grad()
    def samples(self, module):
        """Samples of z and their locations for each batch, whatever the noise is."""
        samples = [
            draw_samples(module, X, (~X.isnan())[None], *noise)[2]
            for X, _, *noise in self.parts
        ]
        return [(s, module.decoder.locations(s.z)) for s in samples]

    @torch.no_grad()
    def losses(self, module, samples=None):
        """Return the loss of each row; (n,)."""
        samples, bounds = self.samples(module) if samples is None else samples, []
        for (drawn, locations), (X, observed, *_) in zip(
            samples, self.parts, strict=True
        ):
            log_prob = module.likelihood.shared_log_prob(
                X.nan_to_num(),
                observed,
                copy(locations),  # it keeps their product
            )
            bounds.append(log_mean_exp(drawn.log_weight + log_prob, 1))
        losses = -self.rows.relative_weight * torch.cat(bounds)
        return losses.double().cpu().numpy()

    def after_epoch(self, module):
        """Set the noise, if it is set after every epoch; return the losses."""
        if self.sets_noise:
            return self.set_noise(module, n_steps=1)
        return self.losses(module)

    def after_training(self, module):
        """Set the noise for the last time; it is not trained any more."""
        self.set_noise(module, n_steps=10, is_shrunk=True)
        for noise in noises_of(module.likelihood):
            noise.requires_grad_(False)

    @torch.no_grad()
    def set_noise(self, module, n_steps, *, is_shrunk=False):
        """Multiply the noise variances by one factor; return the losses of the rows.

        The decoder fits the rows that it is trained on better than others, so that the
        noise estimated on them is too small. The logarithm of the factor is that of the
        lowest mean loss, by a parabola around the best of several, `n_steps` to both
        sides. It may be shrunk to 0 by its standard error.
        """
        noises, samples = noises_of(module.likelihood), self.samples(module)
        if not noises:
            return self.losses(module, samples)
        start, chosen, losses = [noise.clone() for noise in noises], 0.0, []
        # a smaller step would magnify the rounding errors of single precision
        step = 0.1
        changes = step * np.arange(-n_steps, n_steps + 1)
        try:
            for change in changes:
                _change_noise(noises, start, change)
                losses.append(self.losses(module, samples))
            losses = np.stack(losses)
            mean = losses.mean(1)
            best = np.clip(mean.argmin(), 1, 2 * n_steps - 1)
            slopes = (losses[best + 1] - losses[best - 1]) / (2 * step)
            curvature = np.diff(mean, 2)[best - 1] / step**2
            if curvature > 0:
                chosen = changes[best] + np.clip(-slopes.mean() / curvature, -0.5, 0.5)
            if is_shrunk and chosen:
                error = sem(slopes) / curvature if len(slopes) > 1 else np.inf
                chosen *= max(0.0, 1 - error**2 / max(chosen**2, TINY))
        finally:  # after an interruption, too
            _change_noise(noises, start, chosen)
        return self.losses(module, samples)


def _change_noise(noises, start, change):
    """Set noises to those of a start, whose logarithms are changed."""
    for noise, log_noise in zip(noises, start, strict=True):
        noise.copy_(log_noise + change / LOG_NOISE_STEP)
