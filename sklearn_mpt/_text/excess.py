"""How much worse a model predicts if all tokens are hidden, where texts begin."""

from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._checks import warn_caller
from sklearn_mpt._measure.masks import mask_size
from sklearn_mpt._text.batches import MaskedWindow, predict_by_row
from sklearn_mpt._text.diffusion import MaskedDiffusionLM
from sklearn_mpt._text.masked_lm import log_softmax
from sklearn_mpt._text.moderation import MIN_TEXTS
from sklearn_mpt._text.variances import RULES

LOW_RATE = 0.15  # at which BERT and most masked language models were trained
# Nats per token: between models trained at all rates or at 50%, and models trained at
# 15%, in the table of `bench_scorer.py sample` in benchmarks/RESULTS.rst.
TOO_LARGE = 0.5


class AllHiddenExcess(NamedTuple):
    """By how much more predictions are wrong, than they expect, if all is hidden.

    mean : in nats per token, with all tokens hidden less with 15% hidden. std_error :
    of this mean over texts.
    """

    mean: float
    std_error: float

    @property
    def is_large(self):
        """Whether the mean is above `TOO_LARGE`, and above three standard errors."""
        return self.mean > TOO_LARGE and not self.mean <= 3 * self.std_error


def measure_excess(language_model, windows, seed):
    """Return the `AllHiddenExcess` of a model on texts; None if there are few.

    The expected log-probability of a token under predictions is minus their entropy. If
    they are calibrated, its mean over texts is the mean log-probability of the tokens.
    """
    windows = [window for window in windows if len(window.positions) > 1]
    windows = windows[: RULES.max_texts]
    if len(windows) < MIN_TEXTS:
        return None
    rng, rows = np.random.default_rng([seed, *b"excess"]), []
    for index, window in enumerate(windows):
        n_hidden = mask_size(LOW_RATE, len(window.positions))
        some = rng.permutation(window.positions)[:n_hidden]
        for hidden in (window.at(window.positions), window.at(some)):
            rows.append(MaskedWindow(index, hidden, hidden))
    surprises = predict_by_row(language_model, windows, rows, _surprise)
    means = np.array([values.mean() for values in surprises])
    with np.errstate(invalid="ignore"):  # of tokens with probability 0
        differences = means[::2] - means[1::2]
        spread = differences.std(ddof=1)
    return AllHiddenExcess(
        float(differences.mean()), float(spread / len(windows) ** 0.5)
    )


def _surprise(logits, labels):
    """Return minus the log-probability of tokens, less its expectation."""
    log_prob = log_softmax(logits)
    entropy = torch.special.entr(log_prob.exp()).sum(1)
    return -log_prob.gather(1, labels[:, None])[:, 0] - entropy


def warn_of_excess(excess, model):
    if excess is None and not isinstance(model, MaskedDiffusionLM):
        warn_caller(
            "It is unknown whether the model predicts well if all tokens are hidden, "
            f"as they are where sample starts: fit had less than {MIN_TEXTS} texts. "
            "Those that are trained at a rate of 15%, as BERT is, do not."
        )
    elif excess is not None and excess.is_large:
        warn_caller(
            "The model predicts badly if all tokens are hidden, as they are where "
            "sample starts: tokens of the texts passed to fit are less probable by "
            f"{excess.mean:.1f} nats than its predictions expect, compared with 15% "
            "hidden. Models that are trained at a rate of 15%, as BERT is, do not "
            "write texts like those that they were trained on; mpt_loss trains at all "
            "rates."
        )
