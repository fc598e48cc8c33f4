"""Real features with Gaussian noise; locations are means."""

import math

import numpy as np
import torch

from sklearn_mpt._likelihoods.base import (
    ColumnUnits,
    DispersionLikelihood,
    totals,
)
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


def _range(X):
    """Return the smallest and largest value of each column, ignoring NaN; (d,)."""
    ends = [_range_of_block(block) for block, _ in row_blocks(X)]
    low, high = zip(*ends, strict=True)
    return np.min(low, axis=0), np.max(high, axis=0)


def _range_of_block(X):
    return (
        np.fmin.reduce(X, initial=np.inf),
        np.fmax.reduce(X, initial=-np.inf),
    )


def _largest(X):
    """Return the largest absolute value of each column, ignoring NaN; (d,)."""
    ends = [(np.fmin.reduce(b), np.fmax.reduce(b)) for b, _ in row_blocks(X)]
    return np.fmax.reduce(np.abs(ends), axis=(0, 1))


def check_sizes(X):
    """Return the largest absolute value of X, ignoring NaN."""
    ends = [
        (np.fmin.reduce(block, axis=None), np.fmax.reduce(block, axis=None))
        for block, _ in row_blocks(X)
    ]
    largest = np.fmax.reduce(np.abs(ends), axis=None)
    if largest > MAX_SIZE:
        raise ValueError(
            f"X holds values of size {largest:.3g}, whose squares double precision "
            "cannot hold: rescale X, for instance with StandardScaler."
        )
    return largest


def _check_scales(scale):
    """Raise ValueError if double precision cannot hold the squares of scales."""
    is_excessive = ~((np.ravel(scale) > MIN_SCALE) & (np.ravel(scale) < MAX_SIZE))
    if is_excessive.any():
        raise ValueError(
            f"The standard deviation of X is {np.ravel(scale)[is_excessive][0]:.3g}, "
            "whose square double precision cannot hold: rescale X, for instance with "
            "StandardScaler."
        )


def _shift(X, constant, weight):
    """Return the mean of each column; that of constant ones is one of their values."""
    shift = Gaussian.start_location(X, weight)
    if constant.any():  # rounding may move their means off their values
        shift[constant] = shift[constant].clip(*_range(X[:, constant]))
    return shift


def _squares(X, shift, unit, weight):
    """Return sums of squared deviations in these units, and weights; (d,) each."""
    blocks = row_blocks(X, weight)
    parts = [totals(((block - shift) / unit) ** 2, w) for block, w in blocks]
    return np.sum(parts, axis=0)


def common_units(X, weight=None):
    """Return the mean of each column and one standard deviation, ignoring NaN."""
    largest, constant = check_sizes(X), _constant_columns(X)
    shift, scale = _shift(X, constant, weight), 1.0
    if not constant.all():
        squares, n_present = _squares(X, shift, largest, weight)
        scale = float(largest * np.sqrt(squares.sum() / n_present.sum()))
    _check_scales(scale)
    return ColumnUnits(shift, scale, constant)


def column_units(X, weight=None):
    """Return mean and standard deviation of each column, ignoring NaN."""
    check_sizes(X)
    constant = _constant_columns(X)
    shift = _shift(X, constant, weight)
    largest = np.where(constant, 1.0, _largest(X))
    squares, n_present = _squares(X, shift, largest, weight)
    scale = largest * np.sqrt(squares / n_present)
    scale[constant] = 1.0
    _check_scales(scale)
    if not constant.all():
        scale[constant] = np.exp(np.log(scale[~constant]).mean())
    return ColumnUnits(shift, scale, constant)


def _constant_columns(X):
    """Return which columns are constant up to rounding errors."""
    is_constant = np.ones(X.shape[1], dtype=bool)
    low, high = np.full((2, X.shape[1]), [[np.inf], [-np.inf]])
    for block, _ in row_blocks(X):
        ends = _range_of_block(block[:, is_constant])
        low[is_constant] = np.minimum(low[is_constant], ends[0])
        high[is_constant] = np.maximum(high[is_constant], ends[1])
        is_constant[is_constant] = _are_same(
            low[is_constant], high[is_constant], X.dtype
        )
        if not is_constant.any():
            break
    return is_constant


def _are_same(low, high, dtype):
    eps = np.finfo(dtype if dtype == np.float32 else np.float64).eps
    return high - low <= EQUAL_ROUNDING_ERRORS * eps * np.maximum(
        np.abs(low), np.abs(high)
    )


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

    def _empty(self):
        return type(self)()

    @staticmethod
    def check_rows(X):
        """All real numbers are allowed."""

    def units(self, X, weight=None, by_column=False):
        """Return means, and one standard deviation or those of the columns."""
        return (column_units if by_column else common_units)(X, weight)

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
