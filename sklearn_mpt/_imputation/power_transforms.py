r"""Power transforms, after which skewed numbers are closer to normal.

The transform of Yeo and Johnson [1]_ of a number x with exponent :math:`\lambda` is
that of Box and Cox of x + 1,

.. math:: \frac{(x + 1)^\lambda - 1}{\lambda}, \qquad
    \text{or } \log(x + 1) \text{ if } \lambda = 0,

where x is not negative, and elsewhere less the same of -x with exponent
:math:`2 - \lambda`.

If the transform were normal, with its mean and variance, then x would have a mean and a
variance, too. An exponent is taken only if these are about those of the sample, because
the models predict expectations of x. Otherwise the nearest exponent towards 1 is taken
with which they are; with 1 they are equal.

.. [1] I.-K. Yeo and R. A. Johnson, "A new family of power transformations to improve
   normality or symmetry", Biometrika 87, 2000.
"""

from typing import NamedTuple, Self

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import boxcox1p, inv_boxcox1p
from scipy.stats import iqr

from sklearn_mpt._integration.quadrature import NODES, WEIGHTS

# With these exponents every number is the transform of a number. With others, the
# expectation of a number whose transform is normal may be infinite.
MIN_EXPONENT, MAX_EXPONENT = 0.0, 2.0


class PowerTransforms(NamedTuple):
    """Transforms of some columns; others stay as they are.

    A transform is that of the number less an origin, in a unit.
    """

    columns: np.ndarray  # indices of the transformed columns, shape: (m,)
    origins: np.ndarray  # shape: (m,)
    units: np.ndarray  # shape: (m,)
    exponents: np.ndarray  # shape: (m,)

    @classmethod
    def from_rows(cls, rows, is_number) -> Self:
        """Choose the columns of numbers that a transform makes more normal.

        A transform must raise the normal log-likelihood by more than its three
        parameters cost by the Bayesian information criterion.

        rows : shape (n, d), NaN where missing. is_number : bool, (d,).
        """
        transforms = []
        for j in np.flatnonzero(is_number):
            numbers = rows[~np.isnan(rows[:, j]), j]
            if iqr(numbers) == 0:
                continue
            value, *transform = max(
                _fit(numbers, *origin_and_unit)
                for origin_and_unit in _origins_and_units(numbers)
            )
            gain = value + 0.5 * len(numbers) * np.log(numbers.var())
            n_parameters = 3  # origin, unit and exponent
            if gain > 0.5 * n_parameters * np.log(len(numbers)):
                transforms.append((j, *transform))
        columns, *others = np.array(transforms).reshape(-1, 4).T
        return cls(columns.astype(int), *others)

    def transform(self, rows):
        rows = np.array(rows, dtype=np.float64)
        numbers = (rows[..., self.columns] - self.origins) / self.units
        rows[..., self.columns] = np.where(
            numbers > 0,
            boxcox1p(np.maximum(numbers, 0.0), self.exponents),
            -boxcox1p(np.maximum(-numbers, 0.0), 2 - self.exponents),
        )
        return rows

    def log_derivatives(self, rows):
        """Return the logarithms of the derivatives of the transforms; (n, d)."""
        log_derivatives = np.zeros(rows.shape)
        numbers = (rows[..., self.columns] - self.origins) / self.units
        of_power = (self.exponents - 1) * np.sign(numbers) * np.log1p(np.abs(numbers))
        log_derivatives[..., self.columns] = of_power - np.log(self.units)
        return log_derivatives

    def inverse_transform(self, rows):
        rows = np.array(rows, dtype=np.float64)
        rows[..., self.columns] = self.inverse(rows[..., self.columns])
        return rows

    def inverse(self, transforms):
        """Return the numbers that have these transforms; (..., m)."""
        numbers = np.where(
            transforms > 0,
            inv_boxcox1p(np.maximum(transforms, 0.0), self.exponents),
            -inv_boxcox1p(np.maximum(-transforms, 0.0), 2 - self.exponents),
        )
        return self.origins + self.units * numbers


NO_TRANSFORMS = PowerTransforms(np.empty(0, dtype=int), *np.empty((3, 0)))


def _origins_and_units(numbers, min_unit=1e-6):
    """Yield the origins and units that are tried for a column.

    With the smallest of positive numbers as the unit, the transform is nearly that of
    Box and Cox.

    min_unit : smallest unit, in half interquartile ranges.
    """
    half_range = iqr(numbers) / 2
    yield np.median(numbers), half_range
    if numbers.min() > 0:
        yield 0.0, max(numbers.min(), min_unit * half_range)


def _fit(numbers, origin, unit, n_halvings=8):
    """Return the largest log-likelihood, up to a constant, and the transform.

    It is the largest of exponents whose moments agree with those of the numbers.

    n_halvings : of the interval of exponents in which the moments agree, so that the
    exponent has an error of 1 / 2^n_halvings.
    """
    numbers = (numbers - origin) / unit
    best = minimize_scalar(
        lambda exponent: -_log_likelihood(numbers, exponent),
        bounds=(MIN_EXPONENT, MAX_EXPONENT),
        method="bounded",
    ).x
    if not _moments_agree(numbers, best):
        rejected, best = best, 1.0
        for _ in range(n_halvings):
            middle = (rejected + best) / 2
            if _moments_agree(numbers, middle):
                best = middle
            else:
                rejected = middle
    value = _log_likelihood(numbers, best) - len(numbers) * np.log(unit)
    return value, origin, unit, best


def _with_exponent(exponent):
    """Return the transform of one column, with origin 0 and unit 1."""
    return PowerTransforms(np.array([0]), np.zeros(1), np.ones(1), np.array([exponent]))


@np.errstate(over="ignore", invalid="ignore")
def _log_likelihood(numbers, exponent):
    """Return the largest normal log-likelihood of transforms, up to a constant.

    It is -inf if they are too large for their variance.
    """
    powers, column = _with_exponent(exponent), numbers[:, None]
    variance = powers.transform(column).var()
    value = powers.log_derivatives(column).sum() - 0.5 * len(numbers) * np.log(variance)
    return value if np.isfinite(value) else -np.inf


@np.errstate(over="ignore", invalid="ignore")  # infinite moments agree with none
def _moments_agree(numbers, exponent, mean_tolerance=0.25, spread_tolerance=2.0):
    """Return whether normal transforms imply about the moments of the numbers.

    With these tolerances, logarithms of lognormal numbers pass if their standard
    deviation is at most 1.5, and three times in four if it is 2.

    mean_tolerance : largest distance of the means, in standard deviations.
    spread_tolerance : largest ratio of the standard deviations.
    """
    powers = _with_exponent(exponent)
    transforms = powers.transform(numbers[:, None])
    at_nodes = transforms.mean() + transforms.std() * NODES
    implied = powers.inverse(at_nodes[:, None])[:, 0]
    mean = WEIGHTS @ implied
    spread = np.sqrt(WEIGHTS @ (implied - mean) ** 2) / numbers.std()
    is_near = abs(mean - numbers.mean()) < mean_tolerance * numbers.std()
    return is_near and 1 / spread_tolerance < spread < spread_tolerance
