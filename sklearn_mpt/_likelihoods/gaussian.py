"""Real features with Gaussian noise of one variance; their locations are means."""

import math

import numpy as np
import torch

from sklearn_mpt._likelihoods.base import Likelihood

LOG_2PI = math.log(2 * math.pi)
NOISE_FLOOR = 1e-5  # of the noise variance of standardised rows: single precision
LOG_NOISE_STEP = 10.0  # the noise variance has further to go than a coefficient


class Gaussian(Likelihood):
    """Features with Gaussian noise of one variance, given their means.

    Parameters
    ----------
    noise_variance : Tensor of shape ()
        Where training starts from. It stays above NOISE_FLOOR.
    """

    def __init__(self, noise_variance):
        super().__init__()
        excess = torch.clamp(noise_variance - NOISE_FLOOR, min=0.1 * NOISE_FLOOR)
        self.log_noise = torch.nn.Parameter(excess.log() / LOG_NOISE_STEP)

    @staticmethod
    def check_rows(X):
        """Any real number is a value."""

    @staticmethod
    def units(X):
        """Mean of each column, and one standard deviation for all, ignoring NaN."""
        with np.errstate(over="ignore", invalid="ignore"):
            X = X.astype(np.float64, copy=False)
            shift = np.nanmean(X, axis=0)
            deviation = np.abs(X - shift)
            largest = np.nanmax(deviation)
            if largest == 0:
                return shift, 1.0
            scale = largest * np.sqrt(np.nanmean((deviation / largest) ** 2))
        if not 1e-150 < scale < 1e150:
            raise ValueError(
                f"The standard deviation of X is {scale:.3g}, whose square double "
                "precision cannot hold: rescale X, for instance with StandardScaler."
            )
        return shift, float(scale)

    @staticmethod
    def start_location(X):
        return np.nanmean(X.astype(np.float64, copy=False), axis=0)

    @staticmethod
    def start_attributes(scale):
        return {"noise_variance_": scale**2}

    @classmethod
    def from_attributes(cls, fitted, scale):
        variance = fitted["noise_variance_"] / scale**2
        return cls(torch.tensor(variance, dtype=torch.float64))

    def attributes(self, scale):
        return {"noise_variance_": self.noise_variance.item() * scale**2}

    @property
    def noise_variance(self):
        return (LOG_NOISE_STEP * self.log_noise).exp() + NOISE_FLOOR

    def entry_log_prob(self, X, location):
        variance = self.noise_variance
        return -0.5 * (LOG_2PI + variance.log() + (X - location) ** 2 / variance)

    def pair_log_prob(self, X, observed, location):
        variance = self.noise_variance
        fit = X @ location.T - 0.5 * (observed @ (location**2).T)
        size = 0.5 * (X**2).sum(1) / variance
        log_scale = 0.5 * observed.sum(1) * (LOG_2PI + variance.log())
        return fit / variance - (size + log_scale)[:, None]

    def derivatives(self, X, location):
        precision = 1 / self.noise_variance
        return (X - location) * precision, precision.expand_as(location)

    def mean(self, location):
        return location

    def draw(self, location, uniform):
        return location + self.noise_variance.sqrt() * torch.special.ndtri(uniform)
