"""Estimates of the score of a window from its rows, and their errors over masks."""

from dataclasses import dataclass
from math import factorial
from typing import NamedTuple

import numpy as np

FIRST_WEIGHT = 0.5  # weight of the means if one order is drawn: no variance is known


class WindowScores(NamedTuple):
    """The score of a window, by sizes and by tokens, with contrasts.

    The sum of squares of contrasts over the draws estimates a variance over masks. The
    parts have two sets of contrasts. `contrasts` gives nearly unbiased variances, for
    sums over many texts. `cautious` gives variances that are too large on average but
    have more degrees of freedom, for a single text.
    """

    parts: np.ndarray  # independent parts whose sum is the score, shape (n_parts,)
    contrasts: np.ndarray  # contrasts of the parts, shape (n_parts, n_draws)
    cautious: np.ndarray  # contrasts of the parts, shape (n_parts, n_more_draws)
    sizes: np.ndarray  # mean score at each mask size, shape (n_sizes,)
    size_contrasts: np.ndarray  # shape (n_sizes, n_draws)
    tokens: np.ndarray  # contributions of the tokens; the sum is the score, (n_places,)
    token_contrasts: np.ndarray  # shape (n_draws, n_places)


_NOTHING, _NO_NOISE = np.zeros(0), np.zeros((0, 0))
NO_SCORES = WindowScores(
    _NOTHING, _NO_NOISE, _NO_NOISE, _NOTHING, _NO_NOISE, _NOTHING, _NO_NOISE
)


@dataclass(frozen=True, eq=False)
class Layout:
    """How the scores of the rows of a window are averaged and added up.

    The score of a window is a sum of terms. A term is a mean over random draws, and a
    draw a sum over `n_steps` rows. Rows are ordered by terms, then by draws.
    """

    counts: np.ndarray  # number of draws of each term, shape (n_terms,)
    n_all: np.ndarray  # number of distinct draws that exist, shape (n_terms,)
    n_steps: int

    @property
    def weights(self):
        """Weight of each row in the score of the window."""
        return np.repeat(1 / self.counts, self.counts * self.n_steps)

    @property
    def places(self):
        """Term of each draw, and its index in that term; two int arrays (n_draws,)."""
        terms = np.repeat(np.arange(len(self.counts)), self.counts)
        return terms, np.arange(len(terms)) - (np.cumsum(self.counts) - self.counts)[
            terms
        ]

    @property
    def scales(self):
        """Factor from deviations from the mean of a term to contrasts, (n_terms,).

        The sum of squares of the contrasts is an unbiased estimate of the variance of
        the mean of a sample without replacement. The factor is 0 if all possible draws
        are drawn; otherwise it is infinite if there is one draw, as the variance is
        unknown.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            squares = (1 - self.counts / self.n_all) / self.counts / (self.counts - 1.0)
        return np.sqrt(np.where(self.counts == self.n_all, 0.0, squares))

    def reduce(self, scores):
        """Average the draws of each term.

        Returns the terms (n_terms,) and their contrasts (n_terms, n_draws): 0 if a term
        has fewer draws than others, NaN if the variance is unknown.
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
        """Return contrasts of the contributions of tokens, shape (n_draws, n_tokens).

        values : contributions of `tokens` to the scores of `rows`. Terms are
        independent, so contrasts of draws with the same index in different terms can be
        added.
        """
        terms, places = (np.repeat(index, self.n_steps)[rows] for index in self.places)
        n_draws = self.counts.max()
        with np.errstate(invalid="ignore"):
            index = places * n_tokens + tokens
            sums = np.bincount(index, self.scales[terms] * values, n_draws * n_tokens)
            sums = sums.reshape(n_draws, n_tokens)
            return sums - sums.mean(axis=0)


def average_terms(window, log_prob, targets, draw):
    """Estimate the score by the sum over terms of the mean over draws.

    Parameters
    ----------
    window : Window
    log_prob : ndarray
        Log-probabilities of the targets of all rows of the window, row by row.
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
    """Add up the log-probabilities of all targets; each token is a target once.

    Nothing is random. Parameters and result are those of `average_terms`.
    """
    tokens = np.zeros(len(window))
    tokens[np.concatenate(targets)] = log_prob
    return exact_scores(tokens[window.places])


def exact_scores(tokens):
    """Return `WindowScores` with these scores of tokens and without errors."""
    total, nothing = tokens.sum(keepdims=True), np.zeros((1, 1))
    of_tokens = np.zeros((1, len(tokens)))
    return WindowScores(total, nothing, nothing, total, nothing, tokens, of_tokens)


def average_orders(window, log_prob, targets, draw):
    r"""Estimate the score along orders, from next tokens and from all hidden tokens.

    In an order, let :math:`a_t` be the mean log-probability of all hidden tokens when t
    tokens are visible, and :math:`b_t` the log-probability of the next token. Their
    sums over t, A and C, both have the score as expectation. If the conditionals belong
    to one joint distribution, C is the same in every order; otherwise C can vary more
    than A. The estimate is the mean over orders of :math:`C - w (C - A)`, with a weight
    w between 0 and 1 that `weight_of_means` estimates.

    Parameters and result are those of `average_terms`.
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
    with np.errstate(invalid="ignore"):  # from tokens of probability 0
        means, squares = (
            np.add.reduceat(values, starts).reshape(n_orders, n) / n_targets
            for values in (log_prob, log_prob**2)
        )
        variance = np.maximum(squares - means**2, 0).sum(axis=1).mean()
        weight = weight_of_means(next_ones, means, variance)
    # The contribution of each token to the estimate of each order.
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
    steps = orders.argsort(axis=1)  # step at which each token becomes visible
    with np.errstate(invalid="ignore"):  # from tokens of probability 0
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
    with np.errstate(invalid="ignore"):  # from tokens of probability 0
        return values - values.mean(axis=0)


def _without_trend(shares, steps):
    """Remove from the contributions of tokens a linear trend in their step.

    A token that comes late is predicted from more tokens. In balanced orders all tokens
    come equally late on average, so this trend does not affect the mean and is no
    error. One slope is fitted to all tokens of the window.
    """
    squares = (steps**2).sum()
    is_balanced = len(steps) % 2 == 0 and squares > 0
    return shares - (shares * steps).sum() / squares * steps if is_balanced else shares


def weight_of_means(next_ones, means, variance):
    r"""Return the weight w of A in the estimate :math:`C - w (C - A)`.

    The variance of :math:`C - w (C - A)` is least for

    .. math:: w = \frac{\mathrm{Cov}(C, C - A)}{V} = 1 + \frac{1}{V} \sum_{s < t}
              \mathrm{Cov}(b_s - a_s, a_t),

    because a token that is drawn does not affect the steps before. V is the variance of
    C - A. Each row gives an estimate of it, as :math:`b_t` is drawn from the hidden
    tokens. The covariances are estimated from the few orders, and are inaccurate. But
    by the Cauchy-Schwarz inequality, w is at most :math:`\sqrt{\mathrm{Var}(C) / V}`.

    Parameters
    ----------
    next_ones, means : ndarray of shape (n_orders, n_places)
        The values :math:`b_t` and :math:`a_t`.
    variance : float
        The variance V.

    Returns
    -------
    float
        Between 0 and 1. It is 1 if a token has probability 0, because V is then not
        finite.
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
    """Return contrasts of pairs of an order and its reverse, or of single orders.

    Errors that change sign if an order is reversed cancel within a pair.
    """
    n_orders = len(estimates)
    if n_orders % 2 or n_orders < 4:
        return _scale(n_orders, n_all) * _deviations(estimates)
    pairs = estimates.reshape(-1, 2).mean(axis=1)
    return _scale(n_orders // 2, n_all / 2) * _deviations(pairs)


def _scale(n_drawn, n_all):
    """Return the factor from deviations to contrasts; 0 if all are drawn, NaN for 1."""
    if n_drawn == n_all:
        return 0.0
    return (
        np.sqrt((1 - n_drawn / n_all) / n_drawn / (n_drawn - 1))
        if n_drawn > 1
        else np.nan
    )


def count_orders(n_places):
    """Return the number of orders as a float; inf if too large."""
    return float(factorial(n_places)) if n_places <= 170 else np.inf
