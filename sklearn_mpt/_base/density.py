"""Densities: the maths of fitted models, on tensors.

A density holds fitted parameters and knows no estimator. Rows are tensors (n, d), NaN
where missing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._likelihoods import Likelihood
from sklearn_mpt._numbers import CHUNK_ENTRIES, chunk_slices


def as_tensor(array, device):
    """Copy an array to the device, floats as float64."""
    dtype = bool if array.dtype == bool else np.float64
    return torch.from_numpy(np.array(array, dtype=dtype, order="C")).to(device)


def as_view(array, device):
    """Return a tensor for reading; a copy of what torch cannot take as it is."""
    dtype = np.float32 if array.dtype == np.float32 else np.float64
    return torch.from_numpy(np.require(array, dtype, ["C", "W"])).to(device)


@contextmanager
def torch_modes(with_grad=False):
    """Set torch's modes in this thread, and restore them afterwards."""
    with (
        torch.inference_mode(False),
        torch.set_grad_enabled(with_grad),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        np.errstate(),
    ):
        yield


class Density(ABC):
    """The density of a fitted model."""

    row_bytes: int  # memory that scoring a row takes

    @abstractmethod
    def lml(self, X):
        """Return log p(present entries), and its standard error; (n,) each.

        Where it is by importance sampling, also the effective number of points.
        """

    @abstractmethod
    def conditional_log_prob(self, X, mask):
        """Return log p(x_j | x_R) of hidden entries, else 0.0; (n, d).

        mask : bool, of shape (1 or n, d).
        """

    def is_open(self, X):
        """Return which entries have no known value, bool (n, d)."""
        return X.isnan()

    @abstractmethod
    def expect(self, X):
        """Return E[x | present entries]; (n, d)."""

    @abstractmethod
    def draw(self, X, rng):
        """Draw x given the present entries; (n, d)."""


class LatentDensity(Density):
    """The density of a fitted model of continuous latent variables z."""

    def latent_mean(self, X):
        """Return E[z | present entries]; (n, k)."""
        return self.latent_moments(X)[0]

    @abstractmethod
    def latent_moments(self, X):
        """Return mean (n, k), covariance (n, k, k) of z given the present entries."""

    @abstractmethod
    def decode(self, Z):
        """Return E[x | z], for Z of shape (n, k); (n, d)."""


def unit_attributes(likelihood, X, weight):
    """Return fitted attributes: the units of rows, and which columns are constant."""
    shift, scale, constant = likelihood.units(X, weight)
    return {"_shift": shift, "_scale": scale, "_constant": np.flatnonzero(constant)}


def units_of_locations(likelihood, shift, scale):
    """Return shift and scale of the locations, given those of the columns."""
    return (
        likelihood.to_locations(torch.from_numpy(array)).numpy()
        if np.ndim(array)
        else array
        for array in (shift, scale)
    )


class Units(NamedTuple):
    """The shift of each column, and one scale or that of each, that standardise rows.

    shift, scale : tensors of shape (d,) or (). standardised : how a likelihood
    standardises rows.
    """

    shift: torch.Tensor
    scale: torch.Tensor
    standardised: Callable = Likelihood.standardised

    @classmethod
    def from_attributes(cls, fitted, device, likelihood=Likelihood):
        """Return those of `unit_attributes`."""
        arrays = (np.asarray(fitted[name]) for name in ("_shift", "_scale"))
        tensors = (as_tensor(array, device) for array in arrays)
        return cls(*tensors, likelihood.standardised)

    @property
    def log_scale(self):
        return self.scale.log()

    def mean_log_scale(self, X, weight):
        """Return the mean over rows of the sum of `log_scale` over present entries."""
        weight = np.ones(len(X)) if weight is None else weight
        weight = as_tensor(weight, X.device)
        counts = sum(
            weight[part] @ (~X[part].isnan()).double()
            for part in chunk_slices(*X.shape, CHUNK_ENTRIES)
        )
        return float((counts * self.log_scale).sum() / weight.sum())

    def standardise(self, X):
        return self.standardised(X, self.shift, self.scale)

    def restore(self, X):
        return self.scale * X + self.shift
