"""Validation rows: their losses, and the noise variances that they set."""

from copy import copy

import numpy as np
import torch
from scipy.stats import sem

from sklearn_mpt._deep.objectives import SharedSamples, complete_as_one_row
from sklearn_mpt._latent.quadrature import natural_parameters
from sklearn_mpt._likelihoods.base import LOG_NOISE_STEP, noises_of
from sklearn_mpt._numbers import TINY

SAMPLES_PER_ROW = 16
BATCH_SIZE = 256  # rows that share their samples
# Between changes of the logarithm of the noise at which losses are compared. A smaller
# one would magnify the rounding errors of single precision.
NOISE_STEP = 0.1


class ValidationRows:
    """Losses of validation rows, by samples that are the same in every epoch."""

    def __init__(self, rows, samples, seed, sets_noise=False, batch_size=BATCH_SIZE):
        self.rows, self.sets_noise = rows, sets_noise
        rng = np.random.default_rng(seed)
        self.parts = []
        for part in rows.X.split(batch_size):
            (observed,) = complete_as_one_row((~part.isnan())[None])
            self.parts.append((part.nan_to_num(), observed))
        self.noise = [samples.draw(len(X), X.device, rng) for X, _ in self.parts]

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
        """Return the loss of each row; (n,)."""
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
            return self._set_noise(module, n_steps=1)
        return self.losses(module)

    def after_training(self, module):
        """Set the noise for the last time; it is not trained any more."""
        self._set_noise(module, n_steps=10, is_shrunk=True)
        for noise in noises_of(module.likelihood):
            noise.requires_grad_(False)

    @torch.no_grad()
    def _set_noise(self, module, n_steps, is_shrunk=False):
        """Multiply the noise variances by one factor; return the losses of the rows.

        The decoder fits the rows that it is trained on better than others, so that the
        noise estimated on them is too small. The logarithm of the factor is that of the
        lowest mean loss, by a parabola around the best of several, `n_steps` to both
        sides. It may be shrunk to 0 by its standard error.
        """
        noises, samples = noises_of(module.likelihood), self.samples(module)
        if not noises:
            return self.losses(module, samples)
        start, chosen = [noise.clone() for noise in noises], 0.0
        changes = NOISE_STEP * np.arange(-n_steps, n_steps + 1)

        def losses_at(change):
            for noise, log_noise in zip(noises, start, strict=True):
                noise.copy_(log_noise + change / LOG_NOISE_STEP)
            return self.losses(module, samples)

        try:
            losses = np.stack([losses_at(change) for change in changes])
            mean = losses.mean(1)
            best = np.clip(mean.argmin(), 1, 2 * n_steps - 1)
            slopes = (losses[best + 1] - losses[best - 1]) / (2 * NOISE_STEP)
            curvature = np.diff(mean, 2)[best - 1] / NOISE_STEP**2
            if curvature > 0:
                step = np.clip(-slopes.mean() / curvature, -0.5, 0.5)
                chosen = changes[best] + step
            if is_shrunk and chosen:
                error = sem(slopes) / curvature if len(slopes) > 1 else np.inf
                chosen *= max(0.0, 1 - error**2 / max(chosen**2, TINY))
        finally:  # after an interruption, too
            losses = losses_at(chosen)
        return losses
