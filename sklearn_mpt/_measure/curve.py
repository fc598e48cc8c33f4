"""The score of every mask size, errors of means over draws, and intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit

from sklearn_mpt._checks import check_bool, check_int, check_real, check_shape
from sklearn_mpt._measure.masks import mask_size


def contrast_scale(n_drawn, n_all=np.inf):
    r"""Return the factor from deviations from a mean to contrasts.

    The sum of squares of the contrasts of n distinct draws, of N that exist, is an
    unbiased estimate of the variance of their mean. So the factor is

    .. math:: \sqrt{\frac{1 - n / N}{n (n - 1)}},

    0 if all are drawn; NaN for one of several, whose variance is unknown.
    """
    n_drawn, n_all = np.asarray(n_drawn, float), np.asarray(n_all, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = (1 - n_drawn / n_all) / n_drawn / (n_drawn - 1)
    squares = np.where(n_drawn == 1, np.nan, squares)
    return np.sqrt(np.where(n_drawn == n_all, 0.0, squares))


def contrasts_of_mean(values, counts, n_all):
    """Return the weighted mean of each column of `values`, and its contrasts."""
    weights = counts / counts.sum()
    mean = weights @ values
    scale = contrast_scale(len(values), n_all) * np.sqrt(len(values) * weights)
    return mean, scale[:, None] * _deviations(values, mean)


def std_error_of_mean(values, n_all=np.inf):
    """Return the standard error of the mean of values along the first axis."""
    lengths = np.linalg.norm(_deviations(values, values.mean(axis=0)), axis=0)
    return contrast_scale(len(values), n_all) * lengths


def _deviations(values, mean):
    return values - np.where(np.isfinite(mean), mean, np.nan)


def degrees_of_sum(variances, degrees):
    """Return degrees of freedom of a sum of independent variance estimates [1]_.

    The square of an estimate with f degrees is (f + 2) / f times that of the variance,
    on average, which is why 2 is added, and subtracted from the result.

    References
    ----------
    .. [1] B. L. Welch, "The generalization of 'Student's' problem when several
       different population variances are involved", Biometrika 34, 1947.
    """
    spread = np.sum(variances**2 / (degrees + 2))
    return variances.sum() ** 2 / spread - 2 if spread > 0 else np.inf


def student_quantile(confidence, degrees, name="confidence"):
    """Return half the length of an interval of Student's t, in standard errors."""
    check_real(confidence, name, "neither", 1)
    return _student_ppf(0.5 + 0.5 * confidence, degrees)


def student_factor(degrees):
    """Return by how much to enlarge an estimated standard error."""
    upper = 0.975  # probability below the upper end of a 95% interval
    return _student_ppf(upper, degrees) / ndtri(upper)


def _student_ppf(probability, degrees):
    """Return `scipy.stats.t.ppf`, without its fixed cost of almost a millisecond."""
    of_normal = np.isinf(degrees)
    return np.where(of_normal, ndtri(probability), stdtrit(degrees, probability))[()]


@dataclass(frozen=True, eq=False)
class MaskNoise:
    """Error of the scores that comes from drawing masks, stored as contrasts.

    Contrasts are linear in the scores: the contrasts of a difference of two curves are
    the differences of their contrasts.
    """

    contrasts: np.ndarray
    degrees: np.ndarray
    draw: Mapping = field(default_factory=dict)  # equal for equal masks
    n_strata: int = 1

    @property
    def std_errors(self):
        return np.sqrt(np.sum(self.contrasts**2, axis=1))

    def of_sum(self, weights):
        """Return the standard error of a weighted sum of scores, and its degrees.

        The degrees of freedom take the variance of each stratum of each size into
        account: they are few if a few rows cause most of the variance.
        """
        n_sizes, n_contrasts = self.contrasts.shape
        shape = n_sizes, n_contrasts // self.n_strata, self.n_strata
        by_stratum = self.contrasts.reshape(shape)
        variances = np.sum(by_stratum**2, axis=1)  # (n_sizes, n_strata)
        variances *= np.broadcast_to(np.square(weights), len(variances))[:, None]
        degrees = np.maximum(self.degrees / self.n_strata, 1)
        return np.sqrt(variances.sum()), degrees_of_sum(variances, degrees[:, None])


@dataclass(frozen=True, eq=False, repr=False)
class MPTCurve:
    r"""Mean masked log-probability as a function of the number of hidden features.

    The score at mask size :math:`m` is

    .. math:: S(m) = \mathbb{E}_{|M| = m} \frac{1}{m} \sum_{j \in M}
              \log p(x_j \mid x_{R}),

    averaged over rows, where :math:`R` are the features that the mask :math:`M`
    leaves visible. The area under the curve, :math:`\sum_{m=1}^{D} S(m)`, is the log
    marginal likelihood ([1]_, Proposition 1).

    Parameters
    ----------
    mask_sizes : ndarray of shape (n_sizes,)
        Numbers of hidden features, increasing.
    scores : ndarray of shape (n_sizes,)
        Score at each size, in nats per feature.
    std_errors : ndarray of shape (n_sizes,)
        Standard errors of the scores over masks, given the rows; NaN where fewer
        than two masks were drawn, or the score is -inf.
    n_features : int
        Number of features D.
    noise : MaskNoise, default=None
        Errors of the scores from drawing masks, as :func:`mpt_curve` returns them. With
        None the errors of different sizes are taken as independent.
    has_blocks : bool, default=False
        Whether masks hid blocks or spans of features (`mask_blocks` of
        :func:`mpt_curve`). The scores then do not add up to the log marginal
        likelihood: `lml`, `lml_std_error`, `lml_interval` and `bias` raise a
        ValueError.

    Attributes
    ----------
    mask_rates : ndarray of shape (n_sizes,)
        ``mask_sizes / n_features``.
    total : float
        Sum of the scores of all sizes, interpolated between the measured ones.
    lml : float
        Mean log marginal likelihood per row, in nats: `total`, if every set of one size
        is hidden with the same probability.
    lml_std_error : float
        Standard error of `lml` over masks.

    See Also
    --------
    mpt_curve : Compute the curve of a model.
    MPTCurveDisplay : Draw it.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import MPTCurve
    >>> curve = MPTCurve(mask_sizes=np.array([2, 4]), scores=np.array([-2.0, -4.0]),
    ...                  std_errors=np.zeros(2), n_features=5)
    >>> float(curve.lml)  # -2 - 2 - 3 - 4 - 4
    -15.0
    >>> curve.fixed_rate(0.4), curve.bias(0.4)
    (-10.0, -5.0)

    >>> curve.lml_interval()
    (-15.0, -15.0)
    """

    mask_sizes: np.ndarray
    scores: np.ndarray
    std_errors: np.ndarray
    n_features: int
    noise: MaskNoise | None = field(default=None, kw_only=True)
    has_blocks: bool = field(default=False, kw_only=True)

    def __post_init__(self):
        check_int(self.n_features, "n_features")
        check_bool(self.has_blocks, "has_blocks")
        sizes = np.asarray(self.mask_sizes)
        is_list = sizes.ndim == 1 and sizes.dtype.kind in "iuf" and len(sizes) > 0
        is_increasing = is_list and (np.diff(sizes) > 0).all()
        if not is_increasing or not 1 <= sizes[0] <= sizes[-1] <= self.n_features:
            raise ValueError(
                "mask_sizes must be increasing numbers in "
                f"1..n_features={self.n_features}, got {self.mask_sizes!r}."
            )
        check_shape(self.scores, "scores", sizes.shape, "that of mask_sizes")
        check_shape(self.std_errors, "std_errors", sizes.shape, "that of mask_sizes")

    def __repr__(self):
        sizes = np.asarray(self.mask_sizes)
        name = "sum over sizes" if self.has_blocks else "lml"
        return (
            f"<{type(self).__name__} of {len(sizes)} mask sizes, {sizes[0]} to "
            f"{sizes[-1]} of {self.n_features}: {name}={self.total:.6g} "
            f"(standard error {self._error_of_total()[0]:.2g}) nats>"
        )

    @property
    def _labels(self):
        """Labels of MPTCurveDisplay: x axis, unit of the scores, legend."""
        total = "area" if self.has_blocks else "area = LML"
        return "Number of hidden features $m$", "feature", total

    @property
    def mask_rates(self) -> np.ndarray:
        """Fractions of hidden features; (n_sizes,)."""
        return np.asarray(self.mask_sizes) / self.n_features

    @property
    def total(self) -> float:
        """Sum of the scores of all sizes, in nats per row."""
        return float(self.score_at(np.arange(1, self.n_features + 1)).sum())

    @property
    def lml(self) -> float:
        """Log marginal likelihood: `total`, if masks are uniform; in nats per row."""
        self._check_uniform()
        return self.total

    @property
    def lml_std_error(self) -> float:
        """Standard error of `lml` over masks."""
        self._check_uniform()
        return float(self._error_of_total()[0])

    def _check_uniform(self):
        if self.has_blocks:
            raise ValueError(
                "The scores of masks that hide blocks or spans do not add up to the "
                "log marginal likelihood. Their sum is `total`; call mpt_curve with "
                "mask_blocks=None for the log marginal likelihood."
            )

    def lml_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return a confidence interval for the log marginal likelihood of these rows.

        It accounts for the drawing of masks, not for the sampling of rows. It is an
        interval of Student's t, with degrees of freedom estimated from the scores; with
        few masks, or if a few rows cause most of the variance, it is wider than ``lml``
        plus or minus two `lml_std_error`. It is (NaN, NaN) if `lml_std_error` is NaN.

        Parameters
        ----------
        confidence : float, default=0.95
            Probability, over draws of masks, that the interval contains the value.

        Returns
        -------
        low, high : float
            In nats per row.
        """
        self._check_uniform()
        std_error, degrees = self._error_of_total()
        half_width = float(student_quantile(confidence, degrees) * std_error)
        return self.lml - half_width, self.lml + half_width

    def _error_of_total(self):
        """Return the standard error of `total` and its degrees of freedom."""
        weights = size_weights(np.asarray(self.mask_sizes), self.n_features)
        if self.noise is not None:
            return self.noise.of_sum(weights)
        return np.sqrt(np.sum((weights * self.std_errors) ** 2)), np.inf

    def __sub__(self, other: MPTCurve) -> MPTCurve:
        """Subtract the curve of another model, measured with the same masks.

        Errors that the masks cause in both curves alike cancel in the standard errors
        of the difference.
        """
        if not isinstance(other, MPTCurve):
            return NotImplemented
        noise, others = self.noise, other.noise
        draws = [{} if part is None else part.draw for part in (noise, others)]
        if noise is None or others is None or draws[0] != draws[1]:
            differing = (
                f" Here {name!r} differs: {value} and {draws[1][name]}."
                for name, value in draws[0].items()
                if draws[1].get(name, value) != value
            )
            raise ValueError(
                "A difference of curves needs the same masks: call mpt_curve with the "
                "same integer random_state, design, n_masks and mask_sizes for both "
                "models, on rows of one shape, or texts with the same tokens. "
                "(Some models share balanced masks among rows, others do not: "
                "design='independent' has the same for all. allocation='neyman' "
                f"depends on scores.){next(differing, '')}"
            )
        noise = replace(noise, contrasts=noise.contrasts - others.contrasts)
        with np.errstate(invalid="ignore"):  # NaN where both are -inf
            scores = self.scores - other.scores
        return replace(
            self,
            scores=scores,
            std_errors=noise.std_errors,
            noise=noise,
        )

    def score_at(self, sizes: ArrayLike) -> np.ndarray:
        """Return the scores at given sizes, by linear interpolation.

        Parameters
        ----------
        sizes : array-like of float
            Numbers of hidden features.

        Returns
        -------
        ndarray
            Scores in nats per feature; constant outside the measured sizes.
        """
        return np.interp(np.asarray(sizes), self.mask_sizes, self.scores)

    def fixed_rate(self, rate: float) -> float:
        """Return D * S(m), the objective of training at a fixed mask rate.

        Parameters
        ----------
        rate : float
            Mask rate in (0, 1].

        Returns
        -------
        float
            In nats per row.
        """
        check_real(rate, "rate", "right", 1)
        size = mask_size(rate, self.n_features)
        return float(self.n_features * self.score_at(size))

    def bias(self, rate: float) -> float:
        """Return the LML minus `fixed_rate`.

        Parameters
        ----------
        rate : float
            Mask rate in (0, 1].

        Returns
        -------
        float
            Difference in nats per row. It depends on the model and on the rows.
        """
        return self.lml - self.fixed_rate(rate)

    def area(self, n_tokens: int = 512) -> float:
        """Return the area under the curve over mask rates 0.01 to 0.99.

        Use it to compare with published areas. The LML, the sum over all sizes, is
        `lml`.

        Parameters
        ----------
        n_tokens : int, default=512
            Number of features to which the rates refer. Table 2 of the paper uses 512
            for texts of every length.

        Returns
        -------
        float
            ``0.01 * n_tokens`` times the sum of the scores at the 99 rates, in nats.
        """
        check_int(n_tokens, "n_tokens")
        sizes = [mask_size(percent / 100, self.n_features) for percent in range(1, 100)]
        return float(0.01 * n_tokens * self.score_at(sizes).sum())


def size_weights(mask_sizes, n_features):
    """Return the weight of each measured size in the sum over 1..n_features."""
    n_sizes, sizes = len(mask_sizes), np.arange(1, n_features + 1)
    position = np.interp(sizes, mask_sizes, np.arange(n_sizes))
    left = np.floor(position).astype(int)
    right, fraction = np.minimum(left + 1, n_sizes - 1), position - left
    weights = np.bincount(left, 1 - fraction, n_sizes)
    return weights + np.bincount(right, fraction, n_sizes)
