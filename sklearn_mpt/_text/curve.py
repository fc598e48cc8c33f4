"""The curve of texts of many lengths, against the mask rate."""

from dataclasses import dataclass

import numpy as np
from sklearn.utils.validation import check_scalar

from sklearn_mpt._measure.curve import MPTCurve

PERCENT = np.arange(1, 100)


@dataclass(frozen=True, eq=False)
class TextCurve(MPTCurve):
    """Masked scores of texts at the mask rates 0.01 to 0.99, averaged over the texts.

    `mask_sizes` are percentages, and `n_features` is 100. The log marginal likelihood
    is not the area, as texts differ in length: it is the mean over the texts of their
    own sums over every size.

    Parameters
    ----------
    mask_sizes, scores, std_errors, n_features
        As in :class:`MPTCurve`, in nats per hidden token.
    text_scores : ndarray of shape (n_sizes,)
        Mean over texts of the number of tokens times the score, in nats per text.
    text_lml : float
        Mean log marginal likelihood per text, in nats.
    text_lml_std_error : float
        Its standard error over masks.
    """

    text_scores: np.ndarray
    text_lml: float
    text_lml_std_error: float

    _labels = ("Hidden tokens (%)", "token", "LML")

    @property
    def lml(self) -> float:
        return self.text_lml

    @property
    def lml_std_error(self) -> float:
        return self.text_lml_std_error

    def fixed_rate(self, rate: float) -> float:
        check_scalar(
            rate, "rate", (float, int), min_val=0, max_val=1, include_boundaries="right"
        )
        return float(np.interp(100 * rate, self.mask_sizes, self.text_scores))


def text_curve(scores):
    """Average `TextScores` over the texts."""
    n_places, at_rates = scores.at_rates(PERCENT / 100)
    counts = np.bincount(scores.first, minlength=len(n_places))
    has_tokens = np.where(n_places > 0, counts, 0)
    per_token = at_rates / np.maximum(n_places, 1)[:, None] ** [[[1]], [[2]]]
    means, std_errors = _average(per_token, has_tokens)
    lml, lml_std_error = _average(scores.totals()[..., None], counts)
    return TextCurve(
        mask_sizes=PERCENT,
        scores=means,
        std_errors=std_errors,
        n_features=100,
        text_scores=_average(at_rates, counts)[0],
        text_lml=float(lml[0]),
        text_lml_std_error=float(lml_std_error[0]),
    )


def _average(pairs, counts):
    """Average values of texts that occur counts[i] times; return standard errors too.

    counts[i] is 0 where text i repeats another: the two have the same masks.
    """
    with np.errstate(invalid="ignore"):
        mean = counts @ pairs[0] / counts.sum()
        variance = counts**2 @ pairs[1] / counts.sum() ** 2
    return mean, np.sqrt(variance)
