"""Validation rows: their losses, and the noise variances that they set."""

from copy import copy

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import sem

from sklearn_mpt._deep.objectives import SharedSamples, complete_as_one_row
from sklearn_mpt._integration.quadrature import natural_parameters
from sklearn_mpt._likelihoods.base import LOG_NOISE_STEP, noises_of
from sklearn_mpt._numbers import TINY

SAMPLES_PER_ROW = 16
BATCH_SIZE = 256  # rows that share their samples


class ValidationRows:
    """Losses of validation rows, by samples that are the same in every epoch.

    Parameters
    ----------
    rows : TrainingRows
    batch_size : int
    samples : SampleCounts
    seed : int or sequence of int
    sets_noise : bool
        Whether they set the noise variances after every epoch, and not only once, after
        the last.
    """

    def __init__(self, rows, batch_size, samples, seed, sets_noise=False):
        self.rows, self.sets_noise = rows, sets_noise
        rng = np.random.default_rng(seed)
        self.parts = []
        for part in rows.X.split(batch_size):
            (observed,) = complete_as_one_row((~part.isnan())[None])
            self.parts.append((part.nan_to_num(), observed))
        self.noise = [samples.draw(len(X), X.device, rng) for X, _ in self.parts]

    @classmethod
    def for_module(cls, module, rows, recipe, samples, seed):
        """Return the validation rows of a module that is trained by a recipe.

        If they set its noise variance, training does not.
        """
        noises = noises_of(module.likelihood)
        has_one_noise = sum(noise.numel() for noise in noises) == 1
        sets_noise = recipe.sets_noise and has_one_noise
        for noise in noises:
            noise.requires_grad_(not sets_noise)
        samples = samples._replace(per_row=SAMPLES_PER_ROW)
        return cls(rows, BATCH_SIZE, samples, seed, sets_noise)

    @torch.no_grad()
    def samples(self, module):
        """Samples of z and their locations for each batch, whatever the noise is."""
        sample_batches = []
        for (X, observed), noise in zip(self.parts, self.noise, strict=True):
            posterior = module.posterior(X, observed.expand_as(X))
            densities = natural_parameters(posterior)
            samples = SharedSamples.draw(posterior, densities, (1, len(X)), *noise)
            sample_batches.append((samples, module.decoder.locations(samples.z)))
        return sample_batches

    @torch.no_grad()
    def losses(self, module, samples=None):
        """Return the loss of each row; (n,).

        samples : what `samples` returns, so that losses at several noises share it.
        """
        samples = self.samples(module) if samples is None else samples
        bounds = [  # of copies, as locations keep their product
            batch_samples.bounds(module, copy(locations), part)[0]
            for (batch_samples, locations), part in zip(
                samples, self.parts, strict=True
            )
        ]
        losses = -self.rows.relative_weight * torch.cat(bounds)
        return losses.double().cpu().numpy()

    def after_epoch(self, module):
        """Set the noise, if it is set after every epoch; return the losses."""
        if self.sets_noise:
            return self.set_noise(module, newton_step)
        return self.losses(module)

    def after_training(self, module):
        """Set the noise for the last time; it is not trained any more."""
        self.set_noise(module, shrunk_minimum)
        for noise in noises_of(module.likelihood):
            noise.requires_grad_(False)

    @torch.no_grad()
    def set_noise(self, module, factor_of):
        """Multiply the noise variances by one factor; return the losses of the rows.

        The decoder fits the rows that it is trained on better than others, so that the
        noise estimated on them is too small.

        factor_of : callable
            Chooses the logarithm of the factor, given the losses as a function of it.
        """
        noises, samples = noises_of(module.likelihood), self.samples(module)
        start = [noise.clone() for noise in noises]

        def losses_at(log_factor):
            for noise, log_noise in zip(noises, start, strict=True):
                noise.copy_(log_noise + log_factor / LOG_NOISE_STEP)
            return self.losses(module, samples)

        chosen = 0.0
        try:
            if noises:
                chosen = factor_of(losses_at)
        finally:  # after an interruption, too
            losses = losses_at(chosen)
        return losses


def shrunk_minimum(losses, max_change=1.0):
    """Return where the mean loss is lowest, shrunk to 0 by its standard error.

    losses : callable of a change of the logarithm of the noise; returns an array of
    shape (n,). max_change : largest change.
    """
    lowest = minimize_scalar(
        lambda number: losses(number).mean(),
        bounds=(-max_change, max_change),
        method="bounded",
    ).x
    derivative, curvature = _derivatives(losses, lowest)
    if len(derivative) == 1 or not curvature > 0:
        return 0.0
    error = sem(derivative) / curvature
    return lowest * max(0.0, 1 - error**2 / max(lowest**2, TINY))


def newton_step(losses, max_step=0.5):
    """Return the step of Newton's method from 0 to where the mean loss is lowest.

    losses : as in `shrunk_minimum`. max_step : largest length of the step.
    """
    derivative, curvature = _derivatives(losses, 0.0)
    if not curvature > 0:
        return 0.0
    return np.clip(-derivative.mean() / curvature, -max_step, max_step)


def _derivatives(losses, number, difference=0.1):
    """Return the derivative of each loss, and the curvature of their mean.

    Single-precision losses have rounding errors that a smaller `difference` of the
    number would magnify.
    """
    below, middle, above = (losses(number + h) for h in (-difference, 0, difference))
    derivative = (above - below) / (2 * difference)
    return derivative, (above - 2 * middle + below).mean() / difference**2
