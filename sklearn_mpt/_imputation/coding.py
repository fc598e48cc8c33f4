"""How the columns of a table become columns of numbers that members read."""
# A number is standardised, as it is or after a power transform. An ordered category is
# the normal score of its level, another one has an indicator for each level but the
# most frequent one.

from typing import NamedTuple, Self

import numpy as np
from scipy.stats import iqr, norm

from sklearn_mpt._imputation.limits import decimal_step
from sklearn_mpt._likelihoods.columns import ORDERED_KINDS
from sklearn_mpt._likelihoods.levels import smoothed_fractions
from sklearn_mpt._numbers import ROUNDING
from sklearn_mpt._tables.kinds import MAX_LEVELS, ROWS_PER_LEVEL

# Standard deviation of equal numbers, relative to them, by rounding errors of sums.
MIN_SPREAD = 1e-12
# With these exponents every number is the transform of a number.
EXPONENTS = 0.0, 2.0
MIN_UNIT = 1e-6  # of a transform, in half interquartile ranges
MIN_SKEWNESS = 0.5  # of columns for which a transform is tried


class Scale(NamedTuple):
    """A standardised number, or its standardised power transform of an exponent."""

    shift: float
    spread: float
    exponent: float | None = None
    origin: float = 0.0
    unit: float = 1.0

    @classmethod
    def standardised(cls, numbers, weight) -> Self:
        return cls(*moments(numbers, weight))

    @classmethod
    def of_powers(cls, numbers, weight) -> Self:
        """Fit scikit-learn's power transform; with a small unit, Box and Cox's."""
        from sklearn.preprocessing import PowerTransformer  # its import takes long

        half_range = iqr(numbers) / 2
        origin, unit = np.median(numbers), half_range
        if numbers.min() > 0:
            origin, unit = 0.0, max(numbers.min(), MIN_UNIT * half_range)
        if not unit > 0:
            return cls.standardised(numbers, weight)
        count = np.maximum(np.rint(weight), 1).astype(int)
        scaled = np.repeat((numbers - origin) / unit, np.minimum(count, 100))
        power = PowerTransformer(standardize=False).fit(scaled[:, None])
        exponent = float(np.clip(power.lambdas_[0], *EXPONENTS))
        scale = cls(0.0, 1.0, exponent, float(origin), float(unit))
        return scale._replace(
            **dict(
                zip(
                    ("shift", "spread"),
                    moments(scale.code(numbers), weight),
                    strict=True,
                )
            )
        )

    def code(self, numbers):
        if self.exponent is not None:
            numbers = (numbers - self.origin) / self.unit
            numbers = np.where(
                numbers > 0,
                _power(np.maximum(numbers, 0.0), self.exponent),
                -_power(np.maximum(-numbers, 0.0), 2 - self.exponent),
            )
        return (numbers - self.shift) / self.spread

    def restore(self, coded):
        """Return the numbers of coded ones."""
        numbers = self.shift + self.spread * coded
        if self.exponent is None:
            return numbers
        with np.errstate(over="ignore"):
            numbers = np.where(
                numbers > 0,
                _root(np.maximum(numbers, 0.0), self.exponent),
                -_root(np.maximum(-numbers, 0.0), 2 - self.exponent),
            )
            return self.origin + self.unit * numbers

    def log_derivative(self, numbers):
        """Return the logarithm of the derivative of coded numbers."""
        log_derivative = np.full(np.shape(numbers), -np.log(self.spread))
        if self.exponent is None:
            return log_derivative
        scaled = (numbers - self.origin) / self.unit
        powers = (self.exponent - 1) * np.sign(scaled) * np.log1p(np.abs(scaled))
        return log_derivative + powers - np.log(self.unit)


def _power(numbers, exponent):
    from scipy.special import boxcox1p

    return boxcox1p(numbers, exponent)


def _root(powers, exponent):
    from scipy.special import inv_boxcox1p

    return inv_boxcox1p(powers, exponent)


def moments(numbers, weight):
    """Return the weighted mean and standard deviation, 1 if all are equal."""
    mean = np.average(numbers, weights=weight)
    spread = np.sqrt(np.average((numbers - mean) ** 2, weights=weight))
    is_even = spread <= MIN_SPREAD * np.abs(numbers).max()
    return float(mean), 1.0 if is_even else float(spread)


class Coding:
    """The coding of a table: columns of numbers and codes, (n, d) -> (n, p)."""

    # kinds, counts : (d,); 0 categories for numbers. numbers, weight : (n, d), NaN
    # where missing, and (n,). with_powers : columns that have power transforms, bool
    # (d,).

    def __init__(self, kinds, counts, numbers, weight, with_powers=None):
        self.kinds, self.counts = kinds, np.asarray(counts)
        d = len(kinds)
        self.is_number = self.counts == 0
        self.is_ordered = np.array([kind in ORDERED_KINDS for kind in kinds])
        self.levels, self.scales, self.skewed = {}, {}, np.zeros(d, bool)
        self.largest = np.full(d, np.inf)
        self.frequencies, self.scores, self.edges, self.codes = {}, {}, {}, {}
        blocks = []
        for j in range(d):
            present = ~np.isnan(numbers[:, j])
            if self.is_number[j]:
                self._add_number(j, numbers[present, j], weight[present])
                blocks.append(1)
            else:
                (frequencies,) = smoothed_fractions(
                    numbers[:, [j]], self.counts[j], weight
                )
                self._add_category(j, frequencies)
                blocks.append(self.codes[j].shape[1])
        ends = np.cumsum(blocks)
        self.blocks = [
            slice(int(e - b), int(e)) for e, b in zip(ends, blocks, strict=True)
        ]
        self.width = int(ends[-1])

    def _add_number(self, j, numbers, weight):
        values, count = np.unique(numbers, return_counts=True)
        self.scales[j] = Scale.standardised(numbers, weight)
        step = decimal_step(numbers)
        self.largest[j] = -np.log(step) if step else np.inf
        if 2 <= len(values) <= min(MAX_LEVELS, count.sum() / ROWS_PER_LEVEL):
            steps = np.diff(values)
            if steps.min() >= ROUNDING * np.ptp(values):
                self.levels[j] = values
                self.largest[j] = -np.log(steps.min())
                return
        z = self.scales[j].code(numbers)
        skewness = np.average(z**3, weights=weight)
        kurtosis = np.average(z**4, weights=weight)
        self.skewed[j] = len(values) > 2 and (
            abs(skewness) > MIN_SKEWNESS or kurtosis > 3 + 4 * MIN_SKEWNESS
        )

    def _add_category(self, j, frequencies):
        self.frequencies[j] = frequencies
        n = len(frequencies)
        if self.is_ordered[j]:
            edges = norm.ppf(np.clip(frequencies.cumsum()[:-1], 1e-9, 1 - 1e-9))
            density = norm.pdf(np.concatenate([[-np.inf], edges, [np.inf]]))
            scores = (density[:-1] - density[1:]) / frequencies
            spread = np.sqrt(frequencies @ scores**2)
            self.edges[j] = edges
            self.codes[j] = scores[:, None] / spread
            return
        others = np.delete(np.arange(n), frequencies.argmax())
        indicators = (np.arange(n)[:, None] == others).astype(float)
        share = frequencies[others]
        self.codes[j] = (indicators - share) / np.sqrt(share * (1 - share))

    def with_powers(self, numbers, weight, columns):
        """Return a coding with power transforms of some columns of numbers."""
        import copy

        coding = copy.copy(self)
        coding.scales = dict(self.scales)
        for j in columns:
            present = ~np.isnan(numbers[:, j])
            coding.scales[j] = Scale.of_powers(numbers[present, j], weight[present])
        return coding

    def with_scales(self, other, columns):
        """Return a coding whose scales of some columns are those of another one."""
        import copy

        coding = copy.copy(self)
        coding.scales = self.scales | {j: other.scales[j] for j in columns}
        return coding

    def code(self, numbers):
        """Return coded rows, NaN where missing; (n, p)."""
        coded = np.full((len(numbers), self.width), np.nan)
        for j, block in enumerate(self.blocks):
            if self.is_number[j]:
                coded[:, block] = self.scales[j].code(numbers[:, [j]])
            else:
                present = ~np.isnan(numbers[:, j])
                codes = numbers[present, j].astype(int)
                coded[present, block] = self.codes[j][codes]
        return coded
