"""Estimates of the score of a window from its rows, and their errors over masks."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import factorial

from sklearn_mpt._measure.standard_errors import contrast_scale

# Standard deviation of the prior of the weight w of C - A, see `weight_of_means`, in
# ratios of two variances. Where the standard error of an estimate of w is as large as
# the ratio, w shrinks by 1 / 26. benchmarks/RESULTS.rst, "Texts: constants of the
# estimate along orders", has variances with half and twice of it; the expectation is
# the same for every fixed w.
PRIOR_SCALE = 5


class WindowScores(NamedTuple):
    """The score of a window, by sizes and by tokens, with contrasts.

    The sum of squares of contrasts over the draws estimates a variance over masks. The
    terms have two sets of contrasts. `contrasts` gives nearly unbiased variances, for
    sums over many texts. `cautious` gives variances that are too large on average but
    have more degrees of freedom, for a single text.
    """

    terms: np.ndarray  # independent numbers whose sum is the score, shape (n_terms,)
    contrasts: np.ndarray  # contrasts of the terms, shape (n_terms, n_draws)
    cautious: np.ndarray  # contrasts of the terms, shape (n_terms, n_more_draws)
    sizes: np.ndarray  # mean score at each mask size, shape (n_sizes,)
    size_contrasts: np.ndarray  # shape (n_sizes, n_draws)
    tokens: (
        np.ndarray
    )  # contributions of the tokens; the sum is the score, (n_positions,)
    token_contrasts: np.ndarray  # shape (n_draws, n_positions)


_NOTHING, _NO_NOISE = np.zeros(0), np.zeros((0, 0))
NO_SCORES = WindowScores(
    _NOTHING, _NO_NOISE, _NO_NOISE, _NOTHING, _NO_NOISE, _NOTHING, _NO_NOISE
)


@dataclass(frozen=True, eq=False)
class WindowLayout:
    """How the scores of the rows of a window are averaged and added up.

    The score of a window is a sum of terms. A term is a mean over random draws, and a
    draw a sum over `n_steps` rows. Rows are ordered by terms, then by draws.
    """

    counts: np.ndarray  # number of draws of each term, shape (n_terms,)
    n_all: np.ndarray  # number of distinct draws that exist, shape (n_terms,)
    n_steps: int
    usual_variances: np.ndarray  # of a draw of each term, up to one factor, (n_terms,)
    n_scored: np.ndarray  # number of units whose scores a row averages, (n_terms,)

    @property
    def weights(self):
        """Weight of each row in the score of the window."""
        return self._of_rows(1 / self.counts)

    @property
    def n_scored_of_rows(self):
        """Number of units whose scores each row averages."""
        return self._of_rows(self.n_scored)

    def _of_rows(self, of_terms):
        return np.repeat(of_terms, self.counts * self.n_steps)

    @property
    def indices(self):
        """Term of each draw, and its index in that term; two int arrays (n_draws,)."""
        terms = np.repeat(np.arange(len(self.counts)), self.counts)
        return terms, np.arange(len(terms)) - (np.cumsum(self.counts) - self.counts)[
            terms
        ]

    @property
    def scales(self):
        """Factor from deviations from the mean of a term to contrasts, (n_terms,)."""
        return contrast_scale(self.counts, self.n_all)

    @property
    def usual_variance(self):
        """Variance of the score, up to the factor of `usual_variances`."""
        of_mean = (1 - self.counts / self.n_all) / self.counts
        return (of_mean * self.usual_variances).sum()

    def reduce(self, scores):
        """Average the draws of each term.

        Returns the terms (n_terms,) and their contrasts (n_terms, n_draws): 0 if a term
        has fewer draws than others, NaN if the variance is unknown.
        """
        draws = scores.reshape(-1, self.n_steps).sum(axis=1)
        terms, indices = self.indices
        means = np.bincount(terms, draws) / self.counts
        contrasts = np.zeros((len(means), self.counts.max()))
        with np.errstate(invalid="ignore"):
            deviations = draws - means[terms]
        contrasts[terms, indices] = _scaled(self.scales[terms], deviations)
        return means, contrasts

    def contrasts_of_tokens(self, rows, tokens, values, n_tokens):
        """Return contrasts of the contributions of tokens, shape (n_draws, n_tokens).

        values : contributions of `tokens` to the scores of `rows`. Terms are
        independent, so contrasts of draws with the same index in different terms can be
        added.
        """
        terms, indices = (np.repeat(i, self.n_steps)[rows] for i in self.indices)
        n_draws = self.counts.max()
        cells = indices * n_tokens + tokens
        with np.errstate(invalid="ignore"):
            scaled = _scaled(self.scales[terms], values)
            sums = np.bincount(cells, scaled, n_draws * n_tokens)
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
    draw : MaskDraw

    Returns
    -------
    WindowScores
    """
    n_targets = np.array([len(positions) for positions in targets])
    layout = draw.layout(draw.n_units(window))
    rows = np.repeat(np.arange(len(targets)), n_targets)
    tokens = np.concatenate(targets)
    values = log_prob / layout.n_scored_of_rows[rows]
    means = np.add.reduceat(values, np.cumsum(n_targets) - n_targets)
    of_tokens = np.bincount(tokens, layout.weights[rows] * values, len(window))
    contrasts = layout.contrasts_of_tokens(rows, tokens, values, len(window))
    positions, terms = window.positions, layout.reduce(means)
    noise = of_tokens[positions], contrasts[:, positions]
    return WindowScores(*terms, terms[1], *terms, *noise)


def sum_tokens(window, log_prob, targets, draw):
    """Add up the log-probabilities of all targets; each token is a target once.

    Nothing is random. Parameters and result are those of `average_terms`.
    """
    tokens = np.zeros(len(window))
    tokens[np.concatenate(targets)] = log_prob
    return exact_scores(tokens[window.positions])


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
    n_steps = len(window.positions)
    orders = [targets[i : i + n_steps] for i in range(0, len(targets), n_steps)]
    n_hidden = [np.bincount(np.concatenate(rows)) for rows in orders]
    # the step at which each token becomes visible is the last at which it is hidden
    steps = np.array(n_hidden)[:, window.positions] - 1
    n_orders, n_all = len(orders), factorial(n_steps)
    with np.errstate(invalid="ignore"):  # from tokens of probability 0
        summaries = map(_summarise_order, np.split(log_prob, n_orders), steps)
        next_ones, means, forecasts, variances, contributions = map(
            np.stack, zip(*summaries, strict=True)
        )
        variance = variances.sum(axis=1).mean()
        weight = weight_of_means(next_ones, means, forecasts, variance)
        contributions *= weight  # of the tokens to the estimate of each order
        if weight < 1:
            contributions += (1 - weight) * np.take_along_axis(next_ones, steps, axis=1)
        scale = contrast_scale(n_orders, n_all)
        estimates, at_sizes = contributions.sum(axis=1), means[:, ::-1]
        return WindowScores(
            estimates.mean(keepdims=True),
            _between_pairs(estimates, n_all)[None],
            _scaled(scale, _deviations(estimates))[None],
            at_sizes.mean(axis=0),
            _scaled(scale, _deviations(at_sizes)).T,
            contributions.mean(axis=0),
            _scaled(
                scale, _without_trend(_deviations(contributions), _deviations(steps))
            ),
        )


def _summarise_order(log_prob, steps):
    """Summarise the rows of one order.

    Parameters
    ----------
    log_prob : ndarray of shape (n_positions * (n_positions + 1) / 2,)
        Log-probabilities of the hidden tokens of each row.
    steps : ndarray of int of shape (n_positions,)
        Step at which each token becomes visible.

    Returns
    -------
    next_ones, means, forecasts, variances : ndarray of shape (n_positions,)
        By steps: the log-probability of the next token; the mean of all hidden tokens;
        the forecast of the sum of later means, as if no token changed the predictions
        of others; the variance of the hidden tokens.
    contributions : ndarray of shape (n_positions,)
        By tokens: to the sum of the means.
    """
    n_positions = len(steps)
    n_hidden = n_positions - np.arange(n_positions)
    values = np.zeros((n_positions, n_positions))  # by steps and tokens
    values[steps >= np.arange(n_positions)[:, None]] = log_prob
    means = values.sum(axis=1) / n_hidden
    squares = (values**2).sum(axis=1) / n_hidden
    weights = np.cumsum(1 / n_hidden)  # of a token in the sum of means up to each step
    return (
        values[steps, np.arange(n_positions)][steps.argsort()],
        means,
        values @ weights[steps] - weights * values.sum(axis=1),
        np.maximum(squares - means**2, 0),
        (values / n_hidden[:, None]).sum(axis=0),
    )


def _deviations(values):
    with np.errstate(invalid="ignore"):  # from tokens of probability 0
        return values - values.mean(axis=0)


def _scaled(scale, values):
    """Multiply by a scale; 0 where this is 0, of tokens of probability 0 too."""
    with np.errstate(invalid="ignore"):
        return np.where(scale == 0, 0.0, scale * values)


def _without_trend(contributions, steps):
    """Remove from the contributions of tokens a linear trend in their step.

    A token that comes late is predicted from more tokens. In balanced orders all tokens
    come equally late on average, so this trend does not affect the mean and is no
    error. One slope is fitted to all tokens of the window.
    """
    squares = (steps**2).sum()
    is_balanced = len(steps) % 2 == 0 and squares > 0
    if not is_balanced:
        return contributions
    return contributions - (contributions * steps).sum() / squares * steps


def weight_of_means(next_ones, means, forecasts, variance):
    r"""Return the weight w of A in the estimate :math:`C - w (C - A)`.

    The variance of :math:`C - w (C - A)` is least for

    .. math:: w = \frac{\mathrm{Cov}(C, C - A)}{V}
              = 1 + \frac{1}{V} \sum_t \mathrm{Cov}(b_t - a_t, l_t),
              \qquad l_t = \sum_{s > t} a_s,

    because a token that is drawn does not affect the steps before. V is the variance of
    C - A. Each row gives an estimate of it, as :math:`b_t` is drawn from the hidden
    tokens. So :math:`b_t - a_t` has the expectation 0, and the covariances are
    estimated by means over orders of products. A forecast :math:`f_t` of :math:`l_t`
    serves as a control variate, because the sum over t of
    :math:`\mathrm{Cov}(b_t - a_t, f_t)` is known: it is -V. So :math:`l_t - k f_t` is
    put in the place of :math:`l_t`, and :math:`1 - k` in that of 1. The factor k is the
    slope of a regression.

    If the conditionals belong to one joint distribution, C has no variance, and w is 0.
    If A and C are uncorrelated, :math:`w = \mathrm{Var}(C) / V`. So the estimate is the
    posterior mean under a normal prior of mean 0, whose standard deviation is
    `PRIOR_SCALE` times that ratio, as the ratio is estimated from few orders, too.

    Parameters
    ----------
    next_ones, means, forecasts : ndarray of shape (n_orders, n_positions)
        The values :math:`b_t`, :math:`a_t` and :math:`f_t`.
    variance : float
        The variance V.

    Returns
    -------
    float
        Between 0 and 1. It is 1 if a token has probability 0, because V is then not
        finite, and 0 for one order, of which no variance is known.
    """
    if not np.isfinite(variance):
        return 1.0
    if len(means) == 1:
        return 0.0
    ratio = next_ones.sum(axis=1).var(ddof=1) / variance if variance > 0 else 0.0
    if ratio == 0:
        return 0.0
    control = next_ones - means
    later = means[:, ::-1].cumsum(axis=1)[:, ::-1] - means
    squares = (forecasts**2).sum()
    k = np.clip((later * forecasts).sum() / squares, 0, 1) if squares > 0 else 0.0
    later -= k * forecasts
    min_noise = 1 - k + (control * later).sum() / len(means) / variance
    residuals = later + (1 - k - min_noise) * control
    of_estimate = ((control * residuals) ** 2).sum() / (control**2).sum() ** 2
    of_prior = (PRIOR_SCALE * ratio) ** 2
    return float(np.clip(min_noise * of_prior / (of_prior + of_estimate), 0, 1))


def _between_pairs(estimates, n_all):
    """Return contrasts of pairs of an order and its reverse, or of single orders.

    Errors that change sign if an order is reversed cancel within a pair.
    """
    n_orders = len(estimates)
    if n_orders % 2 or n_orders < 4:
        return _scaled(contrast_scale(n_orders, n_all), _deviations(estimates))
    pairs = estimates.reshape(-1, 2).mean(axis=1)
    return _scaled(contrast_scale(n_orders // 2, n_all / 2), _deviations(pairs))
