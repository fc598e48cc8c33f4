"""The score of every mask size, whose sum is the log marginal likelihood."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_scalar

from sklearn_mpt._measure.masks import mask_size


@dataclass(frozen=True, eq=False)
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
        than two masks were drawn.
    n_features : int
        Number of features D.

    Attributes
    ----------
    mask_rates : ndarray of shape (n_sizes,)
        ``mask_sizes / n_features``.
    lml : float
        Mean log marginal likelihood per row, in nats.
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
    """

    mask_sizes: np.ndarray
    scores: np.ndarray
    std_errors: np.ndarray
    n_features: int

    # What the display writes: the sizes, the unit of the scores, the area.
    _labels = ("Number of hidden features $m$", "feature", "area = LML")

    @property
    def mask_rates(self) -> np.ndarray:
        return np.asarray(self.mask_sizes) / self.n_features

    @property
    def lml(self) -> float:
        return float(self.score_at(np.arange(1, self.n_features + 1)).sum())

    @property
    def lml_std_error(self) -> float:
        weights = size_weights(np.asarray(self.mask_sizes), self.n_features)
        return float(np.sqrt(np.sum((weights * self.std_errors) ** 2)))

    def score_at(self, sizes: ArrayLike) -> np.ndarray:
        """Return the scores at any sizes, interpolated linearly.

        Parameters
        ----------
        sizes : array-like of float
            Numbers of hidden features.

        Returns
        -------
        ndarray
            In nats per feature; constant beyond the measured sizes.
        """
        return np.interp(sizes, self.mask_sizes, self.scores)

    def fixed_rate(self, rate: float) -> float:
        """Return D * S(m), what training at a fixed mask rate maximises.

        Parameters
        ----------
        rate : float
            Mask rate in (0, 1].

        Returns
        -------
        float
            In nats per row.
        """
        check_scalar(
            rate, "rate", (float, int), min_val=0, max_val=1, include_boundaries="right"
        )
        size = mask_size(rate, self.n_features)
        return float(self.n_features * self.score_at(size))

    def bias(self, rate: float) -> float:
        """Return by how much the LML exceeds `fixed_rate`.

        Parameters
        ----------
        rate : float
            Mask rate in (0, 1].

        Returns
        -------
        float
            In nats per row; it depends on the model and on the rows.
        """
        return self.lml - self.fixed_rate(rate)

    def area(self, n_tokens: int = 512) -> float:
        """Return the area under the curve over the mask rates 0.01 to 0.99.

        Parameters
        ----------
        n_tokens : int, default=512
            Number of features that the rates refer to; the reference publication
            reports texts of every length at 512 (its Table 2).

        Returns
        -------
        float
            ``0.01 * n_tokens`` times the sum of the scores at the 99 rates, in nats.
        """
        sizes = [mask_size(percent / 100, self.n_features) for percent in range(1, 100)]
        return float(0.01 * n_tokens * self.score_at(sizes).sum())


def size_weights(mask_sizes, n_features):
    """Weight of each computed size in the interpolated sum over 1..n_features."""
    sizes = np.arange(1, n_features + 1)
    weights = np.zeros(len(mask_sizes))
    position = np.interp(sizes, mask_sizes, np.arange(len(mask_sizes)))
    left = np.floor(position).astype(int)
    right = np.minimum(left + 1, len(mask_sizes) - 1)
    np.add.at(weights, left, 1 - (position - left))
    np.add.at(weights, right, position - left)
    return weights
