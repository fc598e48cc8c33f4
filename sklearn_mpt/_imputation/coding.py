"""How the columns of a table become columns of numbers that members read."""
# A number is standardised, as it is or after a power transform. An ordered category is
# the normal score of its level, another one has an indicator for each level but the
# most frequent one.

from typing import NamedTuple, Self

import numpy as np
from scipy.special import boxcox1p, inv_boxcox1p
from scipy.stats import norm

from sklearn_mpt._likelihoods.columns import ORDERED_KINDS
from sklearn_mpt._likelihoods.levels import smoothed_fractions
from sklearn_mpt._numbers import ROUNDING, TINY
from sklearn_mpt._tables.kinds import step_of

MAX_DECIMALS = 6  # numbers with more are on no grid
# The ladder of powers. With these every number is the transform of a number. A power
# costs two nats, as a parameter by Akaike's criterion.
POWERS = np.linspace(0, 2, 9)


class Scales(NamedTuple):
    """Standardised power transforms of numbers, of one column each."""

    # The transforms are Yeo and Johnson's of numbers less `origin`, over `unit`.

    shift: np.ndarray
    spread: np.ndarray
    power: np.ndarray  # 1 is no transform
    origin: np.ndarray
    unit: np.ndarray

    @classmethod
    def fitted(cls, X, weight, may_change) -> Self:
        """Fit scales to columns, (n, d), by the maximum likelihood of normal numbers.

        Transforms of numbers above zero are nearly those of Box and Cox. may_change :
        columns that may be transformed.
        """
        low, first, median, third = np.nanpercentile(X, [0, 25, 50, 75], axis=0)
        half = (third - first) / 2
        may_change = may_change & (half > 0)
        is_positive = may_change & (low > 0)
        origin = np.where(may_change & ~is_positive, median, 0.0)
        unit = np.where(is_positive, np.maximum(low, 1e-6 * half), half)
        unit = np.where(may_change, unit, 1.0)
        scaled, power = (X - origin) / unit, np.ones(X.shape[1])
        tried = scaled[:, may_change]
        count = weight @ ~np.isnan(tried)
        slope = moments(np.sign(tried) * np.log1p(np.abs(tried)), weight)[0]
        log_likelihoods = [
            count * ((one - 1) * slope - np.log(moments(_power(tried, one), weight)[1]))
            - 2 * (one != 1)
            for one in POWERS
        ]
        power[may_change] = POWERS[np.argmax(log_likelihoods, axis=0)]
        shift, spread = moments(_power(scaled, power), weight)
        return cls(shift, spread, power, origin, unit)

    def of(self, columns) -> Self:
        return type(self)(*(part[columns] for part in self))

    def code(self, numbers):
        powers = _power((numbers - self.origin) / self.unit, self.power)
        return (powers - self.shift) / self.spread

    def restore(self, coded):
        """Return the numbers of coded ones."""
        powers = self.shift + self.spread * coded
        if not (self.power == 1).all():
            sides = np.where(powers > 0, self.power, 2 - self.power)
            with np.errstate(over="ignore"):
                powers = np.sign(powers) * inv_boxcox1p(np.abs(powers), sides)
        return self.origin + self.unit * powers

    def log_derivative(self, numbers):
        """Return the logarithm of the derivative of coded numbers."""
        scaled = (numbers - self.origin) / self.unit
        slope = (self.power - 1) * np.sign(scaled) * np.log1p(np.abs(scaled))
        return slope - np.log(self.spread * self.unit)


def _power(scaled, power):
    if np.all(power == 1):
        return scaled
    sides = np.where(scaled > 0, power, 2 - power)
    return np.sign(scaled) * boxcox1p(np.abs(scaled), sides)


def moments(X, weight):
    """Return weighted means and deviations of columns, 1 where numbers are equal."""
    present = ~np.isnan(X)
    count = weight @ present
    mean = weight @ np.where(present, X, 0.0) / count
    spread = np.sqrt(weight @ np.where(present, (X - mean) ** 2, 0.0) / count)
    is_rounding = spread <= 1e-12 * np.nanmax(np.abs(X), axis=0, initial=0)
    return mean, np.where(is_rounding, 1.0, spread)


def decimal_step(numbers):
    """Return the step, 1, .1, .01, ..., between numbers of few decimals, or 0."""
    for decimals in range(MAX_DECIMALS + 1):
        scaled = numbers * 10.0**decimals
        rounded = np.rint(scaled)
        if np.allclose(scaled, rounded, rtol=1e-12, atol=1e-6):
            return step_of(rounded) / 10.0**decimals
    return 0.0


class Coding:
    """The coding of a table: columns of numbers and codes, (n, d) -> (n, p)."""

    # kinds, counts : (d,); 0 categories for numbers. numbers, weight : (n, d), NaN
    # where missing, and (n,).

    def __init__(self, kinds, counts, numbers, weight):
        self.counts = np.asarray(counts)
        self.is_number = self.counts == 0
        self.is_ordered = np.array([kind in ORDERED_KINDS for kind in kinds])
        # of numbers: steps between them, 0 without; of few values: all
        self.steps, self.levels = np.zeros(len(kinds)), {}
        # of categories: frequencies, and codes of each, (C, c)
        self.frequencies, self.codes = {}, {}
        # of ordered ones: coded ends of levels, and the deviation of normal scores
        self.edges, self.score_spreads = {}, {}
        for j in range(len(kinds)):
            if self.is_number[j]:
                self._learn_values(j, numbers[:, j])
            else:
                self._learn_categories(j, numbers[:, [j]], weight)
        # of log-densities: rounded numbers gain nothing below their steps
        self.most = -np.log(np.where(self.steps > 0, self.steps, TINY))
        self.least, self.largest = np.nanmin(numbers, 0), np.nanmax(numbers, 0)
        is_level = np.isin(np.arange(len(kinds)), list(self.levels))
        self.scales = Scales.fitted(numbers, weight, self.is_number & ~is_level)
        self.spreads = np.where(self.is_number, moments(numbers, weight)[1], 1.0)
        sizes = np.ones(len(kinds), dtype=int)
        for j, codes in self.codes.items():
            sizes[j] = codes.shape[1]
        ends = np.cumsum(sizes)
        self.first, self.width = ends - sizes, int(ends[-1])
        self.blocks = list(map(slice, self.first.tolist(), ends.tolist()))

    def _learn_values(self, j, numbers, *, max_levels=20, rows_per_level=5):
        # levels in order cost a parameter each
        numbers = numbers[~np.isnan(numbers)]
        self.steps[j], values = decimal_step(numbers), np.unique(numbers)
        if 2 <= len(values) <= min(max_levels, len(numbers) / rows_per_level):
            least = np.diff(values).min()
            if least >= ROUNDING * np.ptp(values):
                self.levels[j], self.steps[j] = values, least

    def _learn_categories(self, j, numbers, weight):
        (share,) = smoothed_fractions(numbers, self.counts[j], weight)
        self.frequencies[j] = share
        if self.is_ordered[j]:
            edges = norm.ppf(np.clip(share.cumsum()[:-1], 1e-9, 1 - 1e-9))
            density = norm.pdf(np.concatenate([[-np.inf], edges, [np.inf]]))
            scores = -np.diff(density) / share
            self.edges[j], self.score_spreads[j] = edges, np.sqrt(share @ scores**2)
            self.codes[j] = scores[:, None] / self.score_spreads[j]
        else:
            others = np.delete(np.arange(len(share)), share.argmax())
            indicators = np.eye(len(share))[:, others]
            share = share[others]
            self.codes[j] = (indicators - share) / np.sqrt(share * (1 - share))

    def rounded(self, j, numbers):
        """Return the values on the grid of column j that are nearest to numbers."""
        if j in self.levels:
            levels = self.levels[j]
            return levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, numbers)]
        if self.steps[j] == 0:
            return numbers
        steps = np.rint((numbers - self.least[j]) / self.steps[j])
        return (self.least[j] + self.steps[j] * steps).round(MAX_DECIMALS)

    def code(self, numbers):
        """Return coded rows, NaN where missing; (n, p)."""
        coded = np.full((len(numbers), self.width), np.nan)
        coded[:, self.first] = self.scales.code(numbers)
        for j, codes in self.codes.items():
            present = ~np.isnan(numbers[:, j])
            coded[present, self.blocks[j]] = codes[numbers[present, j].astype(int)]
        return coded

    def shares(self, j, mean, std):
        """Return probabilities of categories, from laws of their indicators; (n, C)."""
        # Each indicator is taken as a category of two levels.
        frequencies = self.frequencies[j]
        most = frequencies.argmax()
        share = np.delete(frequencies, most)
        edge = norm.isf(share)
        spread = norm.pdf(edge) / np.sqrt(share * (1 - share))
        mean, std = latent(mean, std, spread)
        probs = norm.cdf((mean - edge) / std)
        probs = np.insert(probs, most, 1 - probs.sum(axis=-1), axis=-1)
        probs = np.maximum(probs, 0.01 * frequencies)
        return probs / probs.sum(axis=-1, keepdims=True)


def latent(mean, std, spread):
    """Return means and deviations of the normal number that decides on a level.

    mean, std : of its standardised scores, whose correlation with it is `spread`.
    """
    # Its variance is at least 0.05, however well other columns tell of it.
    variance = np.maximum(1 - (1 - std**2) / spread**2, 0.05)
    return mean / spread, np.sqrt(variance)
