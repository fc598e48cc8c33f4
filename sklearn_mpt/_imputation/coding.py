"""How the columns of a table become columns of numbers that members read."""
# A number is standardised, as it is or after a power transform. An ordered category is
# the normal score of its level, another one has an indicator for each level but the
# most frequent one.

from typing import NamedTuple, Self

import numpy as np
from scipy.special import boxcox1p, inv_boxcox1p
from scipy.stats import norm

from sklearn_mpt._imputation.limits import decimal_step
from sklearn_mpt._likelihoods.columns import ORDERED_KINDS
from sklearn_mpt._likelihoods.levels import smoothed_fractions
from sklearn_mpt._numbers import ROUNDING
from sklearn_mpt._tables.kinds import MAX_LEVELS, ROWS_PER_LEVEL

# The ladder of powers. With these every number is the transform of a number.
POWERS = np.linspace(0, 2, 9)
MIN_LATENT = 0.05  # variance of what decides on a level, given other columns
# Gain of a transform beside none, in nats per number, and of all numbers together.
MIN_GAIN, MIN_TOTAL = 0.1, 2.0


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
        slope = _mean(np.sign(tried) * np.log1p(np.abs(tried)), weight)
        log_likelihood = [
            (one - 1) * slope - np.log(moments(_power(tried, one), weight)[1])
            for one in POWERS
        ]
        least = np.maximum(MIN_GAIN, MIN_TOTAL / (weight @ ~np.isnan(tried)))
        gain = np.array(log_likelihood) + np.outer(POWERS == 1, least)
        power[may_change] = POWERS[gain.argmax(axis=0)]
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


def _mean(X, weight):
    """Return weighted means of columns with gaps, (d,)."""
    present = ~np.isnan(X)
    return weight @ np.where(present, X, 0.0) / (weight @ present)


def moments(X, weight):
    """Return weighted means and deviations of columns, 1 where numbers are equal."""
    mean = _mean(X, weight)
    spread = np.sqrt(_mean((X - mean) ** 2, weight))
    is_rounding = spread <= 1e-12 * np.nanmax(np.abs(X), axis=0, initial=0)
    return mean, np.where(is_rounding, 1.0, spread)


class Coding:
    """The coding of a table: columns of numbers and codes, (n, d) -> (n, p)."""

    # kinds, counts : (d,); 0 categories for numbers. numbers, weight : (n, d), NaN
    # where missing, and (n,).

    def __init__(self, kinds, counts, numbers, weight):
        self.counts = np.asarray(counts)
        self.is_number = self.counts == 0
        self.is_ordered = np.array([kind in ORDERED_KINDS for kind in kinds])
        # of numbers of few values: all of these, and the middles between them
        self.levels: dict[int, np.ndarray] = {}
        # of categories: frequencies, and codes of each, (C, c)
        self.frequencies, self.codes = {}, {}
        # of ordered ones: coded ends of levels, and the deviation of normal scores
        self.edges, self.score_spreads = {}, {}
        self.largest = np.full(len(kinds), np.inf)  # log-density of numbers
        for j in range(len(kinds)):
            if self.is_number[j]:
                self._add_number(j, numbers[:, j])
            else:
                self._add_category(j, numbers[:, [j]], weight)
        self.scales = Scales(*np.ones((5, len(kinds))))
        columns = np.flatnonzero(self.is_number)
        if len(columns):
            may_change = np.array([j not in self.levels for j in columns])
            scales = Scales.fitted(numbers[:, columns], weight, may_change)
            for part, found in zip(self.scales, scales, strict=True):
                part[columns] = found
        self.spreads = np.where(
            self.is_number, moments(numbers, weight)[1], 1.0
        )  # of numbers
        sizes = [self.codes[j].shape[1] if j in self.codes else 1 for j in self._all]
        ends = np.cumsum(sizes)
        self.first, self.width = ends - sizes, int(ends[-1])
        pairs = zip(self.first.tolist(), ends.tolist(), strict=True)
        self.blocks = [slice(*pair) for pair in pairs]

    @property
    def _all(self):
        return range(len(self.counts))

    def _add_number(self, j, numbers):
        numbers = numbers[~np.isnan(numbers)]
        step, values = decimal_step(numbers), np.unique(numbers)
        if 2 <= len(values) <= min(MAX_LEVELS, len(numbers) / ROWS_PER_LEVEL):
            least = np.diff(values).min()
            if least >= ROUNDING * np.ptp(values):
                self.levels[j], step = values, least
        if step:
            self.largest[j] = -np.log(step)

    def _add_category(self, j, numbers, weight):
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

    def code(self, numbers):
        """Return coded rows, NaN where missing; (n, p)."""
        coded = np.full((len(numbers), self.width), np.nan)
        columns = np.flatnonzero(self.is_number)
        coded[:, self.first[columns]] = self.scales.of(columns).code(
            numbers[:, columns]
        )
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
    variance = 1 - (1 - std**2) / spread**2
    return mean / spread, np.sqrt(np.maximum(variance, MIN_LATENT))
