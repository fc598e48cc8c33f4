"""Real features with Gaussian noise; locations are means."""

import math

import numpy as np
import torch

from sklearn_mpt._likelihoods.base import ColumnUnits, DispersionLikelihood, totals
from sklearn_mpt._numbers import CACHE_ENTRIES, chunk_slices

LOG_2PI = math.log(2 * math.pi)
# Smallest noise variance of standardised rows in single precision, of which differences
# of squares then keep 2 of 7 digits.
SINGLE_NOISE_FLOOR = 1e-5
# Squares of numbers of these sizes, summed over rows, are numbers of double precision.
MIN_SCALE, MAX_SIZE = 1e-150, 1e150
EQUAL_ROUNDING_ERRORS = 16  # number of rounding errors by which equal values may differ


def row_blocks(X, weight=None):
    """Yield blocks of rows in double precision, and their weights (1 for None)."""
    weight = np.ones(len(X)) if weight is None else weight
    for part in chunk_slices(len(X), X.shape[1], CACHE_ENTRIES):
        yield X[part].astype(np.float64, copy=False), weight[part]


def check_sizes(X):
    """Return the least and the largest value of each column, ignoring NaN; (d,)."""
    low, high = (ends(X, axis=0) for ends in (np.fmin.reduce, np.fmax.reduce))
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    largest = np.fmax.reduce(np.fmax(-low, high))
    if largest > MAX_SIZE:
        raise ValueError(
            f"X holds values of size {largest:.3g}, whose squares double precision "
            "cannot hold: rescale X, for instance with StandardScaler."
        )
    return low, high


def normal_log_prob(squared_error, variance):
    """Return the log-density of a normal distribution, given squared errors."""
    return -0.5 * (LOG_2PI + variance.log() + squared_error / variance)


class Gaussian(DispersionLikelihood):
    """Features with Gaussian noise, given their means.

    Parameters
    ----------
    noise_variance : Tensor of shape () or (d,), default=None
        Of all features, or of each; None is 1.0. Training starts from there. It stays
        above SINGLE_NOISE_FLOOR.
    """

    measure = "density"
    floor = SINGLE_NOISE_FLOOR
    attribute = "noise_variance_"

    def __init__(self, noise_variance=None):
        if noise_variance is None:
            noise_variance = torch.ones((), dtype=torch.float64, device="cpu")
        super().__init__(noise_variance)

    @staticmethod
    def check_rows(X):
        """All real numbers are allowed."""

    @staticmethod
    def units(X, weight=None, by_column=False):
        """Return means, and one standard deviation or those of the columns."""
        low, high = check_sizes(X)
        size = np.fmax(-low, high)  # of each column
        eps = np.finfo(X.dtype if X.dtype == np.float32 else np.float64).eps
        constant = ~(high - low > EQUAL_ROUNDING_ERRORS * eps * size)
        shift = Gaussian.start_location(X, weight)
        # rounding may move the means of constant columns off their values
        shift[constant] = shift[constant].clip(low[constant], high[constant])
        if constant.all():
            scale = np.ones(len(constant)) if by_column else 1.0
            return ColumnUnits(shift, scale, constant)
        largest = np.where(constant, 1.0, size) if by_column else np.fmax.reduce(size)
        blocks = row_blocks(X, weight)
        parts = [totals(((rows - shift) / largest) ** 2, w) for rows, w in blocks]
        squares, n_present = np.sum(parts, axis=0)
        if by_column:
            scale = largest * np.sqrt(squares / n_present)
            scale[constant] = np.exp(np.log(scale[~constant]).mean())
        else:
            scale = float(largest * np.sqrt(squares.sum() / n_present.sum()))
        sizes = np.ravel(scale)
        is_excessive = ~((sizes > MIN_SCALE) & (sizes < MAX_SIZE))
        if is_excessive.any():
            raise ValueError(
                f"The standard deviation of X is {sizes[is_excessive][0]:.3g}, whose "
                "square double precision cannot hold: rescale X, for instance with "
                "StandardScaler."
            )
        return ColumnUnits(shift, scale, constant)

    @staticmethod
    def start_location(X, weight=None):
        total, n_present = sum(np.array(totals(*b)) for b in row_blocks(X, weight))
        return total / n_present

    def start_attributes(self, X, scale, weight=None):
        return {self.attribute: scale**2}

    def from_attributes(self, fitted, scale):
        variance = fitted[self.attribute] / scale**2
        return type(self)(torch.tensor(variance, dtype=torch.float64, device="cpu"))

    def shape_attributes(self, scale):
        unit = torch.as_tensor(
            scale, dtype=torch.float64, device=self.dispersion.device
        )
        return {self.attribute: self.dispersion * unit**2}

    def entry_log_prob(self, X, location):
        return normal_log_prob((X - location) ** 2, self.dispersion)

    def pair_log_prob(self, X, observed, location):
        return normal_pairs(X, observed, location, self.dispersion)

    def shared_log_prob(self, X, observed, locations):
        """Return `pair_log_prob`, from factors of the locations if that is cheaper."""
        coef = locations.coef
        if coef.shape[1] <= len(coef):
            return super().shared_log_prob(X, observed, locations)
        variance, is_observed = self.dispersion, observed.to(X.dtype)
        size, hidden = variance.sqrt(), locations.hidden
        X, coef = (X - is_observed * locations.intercept) / size, coef / size
        if len(observed) < len(X):  # all entries are observed
            product = coef @ coef.detach().T
            # The detached terms halve the cost of the gradient; by symmetry, value and
            # gradient are the same.
            square = ((hidden @ (2 * product - product.detach())) * hidden).sum(1)
        else:
            product = hidden @ coef
            # Allocating memory would cost more than the squares.
            out = None if product.requires_grad else product
            square = is_observed @ torch.square(product, out=out).T
        constant = (X**2 + is_observed * (LOG_2PI + variance.log())).sum(
            1, keepdim=True
        )
        fit = torch.addmm(square, X @ coef.T, hidden.T, beta=-0.5)
        return fit - 0.5 * constant

    def derivatives(self, X, location):
        precision = 1 / self.dispersion
        return (X - location) * precision, precision.expand_as(location)

    def shape_derivatives(self, X, location):
        square = (X - location) ** 2 / self.dispersion
        return 0.5 * (square - 1), torch.full_like(square, 0.5)

    def mean(self, location):
        return location

    def draw(self, location, uniform):
        return location + self.dispersion.sqrt() * torch.special.ndtri(uniform)


def normal_pairs(X, observed, location, variance):
    """Return log-densities of observed entries at each shared location; (n, m)."""
    scaled = location / variance
    fit = X @ scaled.T - 0.5 * observed @ (scaled * location).T
    size = X**2 / variance + observed * (LOG_2PI + variance.log())
    return fit - 0.5 * size.sum(1, keepdim=True)
