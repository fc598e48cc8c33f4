"""What the rows of a window say of its score: estimates, and their noise over masks."""

from dataclasses import dataclass
from math import factorial
from typing import NamedTuple

import numpy as np

FIRST_WEIGHT = 0.5  # of the means in a single order, whose variance is unknown


class WindowScores(NamedTuple):
    """The score of a window, by sizes and by tokens.

    The sums of squares of contrasts over the draws are variances over masks. Those of
    the parts come twice: nearly unbiased, for sums over many texts, and too large on
    average, but of more degrees of freedom, for one text.
    """

    parts: np.ndarray  # independent parts whose sum is the score, shape (n_parts,)
    contrasts: np.ndarray  # of the parts, shape (n_parts, n_draws)
    cautious: np.ndarray  # of the parts, shape (n_parts, n_more_draws)
    sizes: np.ndarray  # mean score at each mask size, shape (n_sizes,)
    size_contrasts: np.ndarray  # shape (n_sizes, n_draws)
    tokens: np.ndarray  # shares of the tokens, whose sum is the score, (n_places,)
    token_contrasts: np.ndarray  # shape (n_draws, n_places)


_NOTHING, _NO_NOISE = np.zeros(0), np.zeros((0, 0))
NO_SCORES = WindowScores(
    _NOTHING, _NO_NOISE, _NO_NOISE, _NOTHING, _NO_NOISE, _NOTHING, _NO_NOISE
)


@dataclass(frozen=True, eq=False)
class Layout:
    """How the rows of a window are counted: draws of terms, one after the other.

    A term is a mean over random draws, and the score of a window a sum of terms. A draw
    is the sum over `n_steps` rows.
    """

    counts: np.ndarray  # draws of each term, shape (n_terms,)
    n_all: np.ndarray  # how many there are, no two the same, shape (n_terms,)
    n_steps: int

    @property
    def weights(self):
        """Weight of each row: the weighted sum of their scores is that of the terms."""
        return np.repeat(1 / self.counts, self.counts * self.n_steps)

    @property
    def places(self):
        """Term of each draw, and its place in that term; two int arrays (n_draws,)."""
        terms = np.repeat(np.arange(len(self.counts)), self.counts)
        return terms, np.arange(len(terms)) - (np.cumsum(self.counts) - self.counts)[
            terms
        ]

    @property
    def scales(self):
        """What makes contrasts of deviations from the mean of a term, (n_terms,).

        The sum of their squares is an unbiased estimate of the variance of the mean of
        a sample without replacement. It is 0 where all are drawn, otherwise infinite
        where one is: nothing is known.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            squares = (1 - self.counts / self.n_all) / self.counts / (self.counts - 1.0)
        return np.sqrt(np.where(self.counts == self.n_all, 0.0, squares))

    def reduce(self, scores):
        """Average the draws of each term.

        Returns the terms (n_terms,) and their contrasts (n_terms, n_draws), 0 where a
        term has less draws than others and NaN where nothing is known.
        """
        draws = scores.reshape(-1, self.n_steps).sum(axis=1)
        terms, places = self.places
        means = np.bincount(terms, draws) / self.counts
        contrasts = np.zeros((len(means), self.counts.max()))
        with np.errstate(invalid="ignore"):
            deviations = self.scales[terms] * (draws - means[terms])
        contrasts[terms, places] = deviations
        return means, contrasts

    def contrasts_of_tokens(self, rows, tokens, values, n_tokens):
        """Contrasts of what tokens contribute, shape (n_draws, n_tokens).

        `values` are the contributions of some tokens to the scores of some rows. Terms
        are independent, so that draws of any two can be taken together.
        """
        terms, places = (np.repeat(index, self.n_steps)[rows] for index in self.places)
        n_draws = self.counts.max()
        with np.errstate(invalid="ignore"):
            index = places * n_tokens + tokens
            sums = np.bincount(index, self.scales[terms] * values, n_draws * n_tokens)
            sums = sums.reshape(n_draws, n_tokens)
            return sums - sums.mean(axis=0)


def average_terms(window, log_prob, targets, draw):
    """Estimate the score by the sum of the means of all terms of the layout.

    Parameters
    ----------
    window : Window
    log_prob : ndarray
        Log-probabilities of the targets of all rows of the window, one after the other.
    targets : list of ndarray of int
        Positions of the targets of each row.
    draw : Draw

    Returns
    -------
    WindowScores
    """
    n_targets = np.array([len(places) for places in targets])
    layout = draw.layout(len(window.places))
    means = np.add.reduceat(log_prob, np.cumsum(n_targets) - n_targets) / n_targets
    rows = np.repeat(np.arange(len(targets)), n_targets)
    tokens, values = np.concatenate(targets), log_prob / n_targets[rows]
    shares = np.bincount(tokens, layout.weights[rows] * values, len(window))
    contrasts = layout.contrasts_of_tokens(rows, tokens, values, len(window))
    places, terms = window.places, layout.reduce(means)
    noise = shares[places], contrasts[:, places]
    return WindowScores(*terms, terms[1], *terms, *noise)


def sum_tokens(window, log_prob, targets, draw):
    """Add up the log-probabilities of all targets, each token once: nothing is random.

    Parameters and the result are those of `average_terms`.
    """
    tokens = np.zeros(len(window))
    tokens[np.concatenate(targets)] = log_prob
    return exact_scores(tokens[window.places])


def exact_scores(tokens):
    """Return `WindowScores` without noise of tokens that add up."""
    total, nothing = tokens.sum(keepdims=True), np.zeros((1, 1))
    of_tokens = np.zeros((1, len(tokens)))
    return WindowScores(total, nothing, nothing, total, nothing, tokens, of_tokens)


def average_orders(window, log_prob, targets, draw):
    r"""Estimate the score along orders, by next tokens and by all hidden ones.

    In an order, let :math:`a_t` be the mean log-probability of all tokens that are
    hidden after t of them are visible, and :math:`b_t` that of the next one alone. The
    sums over t, A and C, both have the score as their mean. If the conditionals belong
    to one joint distribution C is the same in every order; if they do not, C can vary
    more than A. The estimate is the mean over orders of :math:`C - w (C - A)`, with a
    weight w between 0 and 1 that `weight_of_means` estimates.

    Parameters and the result are those of `average_terms`.
    """
    n = len(window.places)
    orders = np.stack(list(draw.orders(window)))
    n_orders, n_targets = len(orders), n - np.arange(n)
    starts = np.cumsum(np.tile(n_targets, n_orders)) - np.tile(n_targets, n_orders)
    following = window.places[orders.ravel()]
    chosen = starts + [
        np.searchsorted(places, place)
        for places, place in zip(targets, following, strict=True)
    ]
    next_ones = log_prob[chosen].reshape(n_orders, n)
    with np.errstate(invalid="ignore"):  # of probability 0
        means, squares = (
            np.add.reduceat(values, starts).reshape(n_orders, n) / n_targets
            for values in (log_prob, log_prob**2)
        )
        variance = np.maximum(squares - means**2, 0).sum(axis=1).mean()
        weight = weight_of_means(next_ones, means, variance)
    # what each token contributes to the estimate of each order
    rows = np.repeat(np.arange(len(targets)), np.tile(n_targets, n_orders))
    index = rows // n * len(window) + np.concatenate(targets)
    values = weight * log_prob / np.tile(n_targets, n_orders)[rows]
    shares = np.bincount(index, values, n_orders * len(window))
    if weight < 1:
        at_next = np.repeat(np.arange(n_orders), n) * len(window) + following
        shares[at_next] += (1 - weight) * next_ones.ravel()
    shares = shares.reshape(n_orders, len(window))[:, window.places]
    scale = _scale(n_orders, count_orders(n))
    estimates, at_sizes = shares.sum(axis=1), means[:, ::-1]
    steps = orders.argsort(axis=1)  # at which each token becomes visible
    with np.errstate(invalid="ignore"):  # of probability 0
        return WindowScores(
            estimates.mean(keepdims=True),
            _between_pairs(estimates, count_orders(n))[None],
            scale * _deviations(estimates)[None],
            at_sizes.mean(axis=0),
            scale * _deviations(at_sizes).T,
            shares.mean(axis=0),
            scale * _without_trend(_deviations(shares), _deviations(steps)),
        )


def _deviations(values):
    with np.errstate(invalid="ignore"):  # of probability 0
        return values - values.mean(axis=0)


def _without_trend(shares, steps):
    """Take from the shares of tokens what is linear in the step that shows them.

    It is no noise of the mean where tokens are, on average, as late as each other: what
    comes late is told from more. One slope is fitted to all tokens of the window.
    """
    squares = (steps**2).sum()
    is_balanced = len(steps) % 2 == 0 and squares > 0
    return shares - (shares * steps).sum() / squares * steps if is_balanced else shares


def weight_of_means(next_ones, means, variance):
    r"""Return the weight of the means over hidden tokens beside next tokens alone.

    The variance of :math:`C - w (C - A)` is least for

    .. math:: w = \frac{\mathrm{Cov}(C, C - A)}{V} = 1 + \frac{1}{V} \sum_{s < t}
              \mathrm{Cov}(b_s - a_s, a_t),

    as a token that is drawn has no bearing on the steps before. V, the variance of
    C - A, is known from every row: :math:`b_t` is drawn from the hidden tokens. The
    covariances are those in the sample of orders, and rough. But w is at most
    :math:`\sqrt{\mathrm{Var}(C) / V}`, by the Cauchy-Schwarz inequality.

    Parameters
    ----------
    next_ones, means : ndarray of shape (n_orders, n_places)
        b and a.
    variance : float
        V.

    Returns
    -------
    float
        Between 0 and 1. It is 1 where a token has probability 0, as then nothing else
        is finite.
    """
    if not np.isfinite(variance):
        return 1.0
    if len(means) == 1:
        return FIRST_WEIGHT
    largest = next_ones.sum(axis=1).var(ddof=1)
    if largest == 0 or variance == 0:
        return 0.0
    apart = _deviations(means)
    later = apart[:, ::-1].cumsum(axis=1)[:, ::-1] - apart
    covariance = ((next_ones - means) * later).sum() / (len(means) - 1)
    least_noise = 1 + covariance / variance
    return float(np.clip(least_noise, 0, min(1, np.sqrt(largest / variance))))


def _between_pairs(estimates, n_all):
    """Contrasts of an order and its reverse beside other such pairs, or of orders.

    What changes its sign if an order is reversed cancels within a pair.
    """
    n_orders = len(estimates)
    if n_orders % 2 or n_orders < 4:
        return _scale(n_orders, n_all) * _deviations(estimates)
    pairs = estimates.reshape(-1, 2).mean(axis=1)
    return _scale(n_orders // 2, n_all / 2) * _deviations(pairs)


def _scale(n_drawn, n_all):
    """What makes contrasts of deviations: 0 if all are drawn, NaN for one."""
    if n_drawn == n_all:
        return 0.0
    return (
        np.sqrt((1 - n_drawn / n_all) / n_drawn / (n_drawn - 1))
        if n_drawn > 1
        else np.nan
    )


def count_orders(n_places):
    """Number of orders as a float; infinite where it is too large for one."""
    return float(factorial(n_places)) if n_places <= 170 else np.inf
