"""Choosing models, and how much each counts, by entries that are hidden on purpose."""

import time
import warnings
from typing import NamedTuple

import numpy as np

from sklearn_mpt._imputation.candidates import Size, candidate_paths

HIDDEN_SHARE = 0.2  # of the present entries, which are hidden to choose by
MOST_ROWS = 2000  # that models are tried on
LEAST_GAIN = 1e-3  # nats per hidden entry, for which a path goes on
DEFAULT_SHRINKAGE = 0.1  # of mixtures, before any Gaussian was tried
NEGLIGIBLE = 3e-3  # nats per hidden entry, which leaving models out may cost
PRIOR_ENTRIES = 1.0  # that each model counts besides, when weights are found
N_WEIGHT_STEPS = 300
LEVEL_WEIGHT = 1e-3  # of a row that holds a category, which none may hold otherwise
# Seconds of a common core that "auto" spends at least; on a column; and on each of its
# entries for each other column. Less than half of what missForest takes. Columns of
# categories count more, half their number.
LEAST_AUTO, AUTO_COLUMN, AUTO_ENTRY = 0.25, 0.03, 3e-6


class Trial(NamedTuple):
    """What a candidate is worth on the hidden entries."""

    name: str
    model: object
    log_prob: np.ndarray  # of each hidden entry
    rmse: float  # of numbers, in standard deviations of their columns
    wrong: float  # share of categories that are not those hidden
    steps: float  # between ordered categories and those hidden
    gain: float  # of the mean log-probability, by all models so far
    seconds: float
    shrinkage: float | None


def with_levels(rows, weight, layout):
    """Add rows that hold each category, with hardly any weight: all are known then."""
    weight = np.ones(len(rows)) if weight is None else np.asarray(weight, float)
    most = layout.n_categories.max(initial=0)
    levels = np.full((most, rows.shape[1]), np.nan)
    for j in layout.coded:
        count = layout.n_categories[j]
        levels[:count, j] = np.arange(count)
    weight = np.append(weight, np.full(most, LEVEL_WEIGHT))
    return np.vstack([rows, levels]), weight


def hide(rows, rng):
    """Draw entries to hide; each column and each row keeps half of its own."""
    known = ~np.isnan(rows)
    keys = np.where(known, rng.random(rows.shape), 2.0)
    hidden = known & (keys < HIDDEN_SHARE)
    for axis in (0, 1):
        rank = keys.argsort(axis=axis).argsort(axis=axis)
        hidden &= rank < known.sum(axis=axis, keepdims=True) // 2
    return hidden


def search(rows, layout, weight, budget, rng):
    """Try candidates, cheapest first, until the budget is spent.

    Returns
    -------
    trials : list of Trial
    weights : ndarray of shape (n_trials,)
        That give the hidden entries nearly the largest log-probability, 0 for most.
    """
    if len(rows) > MOST_ROWS:
        some = rng.permutation(len(rows))[:MOST_ROWS]
        rows, weight = rows[some], None if weight is None else weight[some]
    hidden = hide(rows, rng)
    train = with_levels(np.where(hidden, np.nan, rows), weight, layout)
    widths = np.where(layout.ordered, layout.n_categories - 1, layout.n_categories)
    size = Size(*rows.shape, int(np.maximum(widths, 1).sum()))
    paths = candidate_paths(layout, size, int(rng.integers(2**31)))
    allowance = Allowance.of(budget, size)
    trials, weights = [], np.empty(0)
    last = [None] * len(paths)
    while True:
        heads = [i for i, path in enumerate(paths) if path]
        if not heads:
            return trials, few_models([t.log_prob for t in trials])
        cheapest = min(heads, key=lambda i: (i > 0, paths[i][0].cost))
        candidate, before = paths[cheapest].pop(0), last[cheapest]
        if trials and not allowance.admits(candidate):
            paths[cheapest] = []
            continue
        start = time.process_time()
        shrinkage = _best_shrinkage(trials)
        of = train, rows, hidden, layout
        trial = _try(candidate, before, shrinkage, *of, is_first=not trials)
        allowance = allowance.less(candidate)
        if trial is None:
            paths[cheapest] = []
            continue
        seconds = time.process_time() - start
        value = _value(trials, weights)
        trials.append(trial._replace(seconds=seconds))
        weights = stacking_weights([t.log_prob for t in trials])
        trials[-1] = trials[-1]._replace(gain=_value(trials, weights) - value)
        is_better = before is None or (
            trial.log_prob.mean() - before.log_prob.mean() > LEAST_GAIN
        )
        last[cheapest] = trial
        if not is_better:
            paths[cheapest] = []


def _best_shrinkage(trials):
    gaussians = [t for t in trials if t.shrinkage is not None]
    if not gaussians:
        return DEFAULT_SHRINKAGE
    return max(gaussians, key=lambda t: t.log_prob.mean()).shrinkage


def _try(candidate, before, shrinkage, train, rows, hidden, layout, is_first):
    """Fit a candidate and score the hidden entries.

    None if it cannot be fitted, unless it is the first.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = candidate.start(before and before.model, shrinkage)
            model.fit(train[0], sample_weight=train[1])
            log_prob = model.conditional_log_prob(rows, hidden)[hidden]
            errors = _errors(model, rows, hidden, layout)
    except (ValueError, FloatingPointError, np.linalg.LinAlgError):
        if is_first:
            raise
        return None
    if not np.isfinite(log_prob).all():
        log_prob = np.nan_to_num(log_prob, nan=-1e6, neginf=-1e6)
    shrinkage = candidate.shrinkage
    return Trial(candidate.name, model, log_prob, *errors, 0.0, 0.0, shrinkage)


def _errors(model, rows, hidden, layout):
    """rmse of numbers, share of wrong categories, steps between ordered ones."""
    filled = model.impute(np.where(hidden, np.nan, rows))
    of_numbers = hidden & (layout.n_categories == 0)
    error = (filled - rows)[of_numbers]
    rmse = np.sqrt(np.mean(error**2)) if error.size else np.nan
    return rmse, *category_errors(filled, rows, hidden, layout)


def category_errors(filled, rows, hidden, layout):
    distance = np.abs(filled - rows)
    of_codes = hidden & (layout.n_categories > 0)
    of_steps = hidden & layout.ordered
    wrong = np.mean(distance[of_codes] > 0.5) if of_codes.any() else np.nan
    steps = np.mean(distance[of_steps]) if of_steps.any() else np.nan
    return wrong, steps


def stacking_weights(log_probs):
    """Return the weights whose mixture has the largest mean log-probability.

    Each model counts `PRIOR_ENTRIES` entries besides, that only it explains.
    """
    log_probs = np.stack(log_probs)
    likelihood = np.exp(log_probs - log_probs.max(axis=0))
    weights = np.full(len(log_probs), 1 / len(log_probs))
    for _ in range(N_WEIGHT_STEPS):
        share = weights[:, None] * likelihood
        count = (share / share.sum(axis=0)).sum(axis=1) + PRIOR_ENTRIES
        weights = count / count.sum()
    return weights


def few_models(log_probs):
    """Return the weights of as few models as lose next to nothing; others have 0.

    The one that weighs least is left out, again and again.
    """
    log_probs = np.stack(log_probs)
    kept = np.arange(len(log_probs))
    weights = best = stacking_weights(log_probs)
    full = mixed(log_probs, weights).mean()
    while len(kept) > 1:
        fewer = np.delete(kept, np.argmin(best))
        weights = stacking_weights(log_probs[fewer])
        if mixed(log_probs[fewer], weights).mean() < full - NEGLIGIBLE:
            break
        kept, best = fewer, weights
    everywhere = np.zeros(len(log_probs))
    everywhere[kept] = best
    return everywhere


def mixed(log_probs, weights):
    """Log-probabilities of a mixture; (n_models, ...) to (...)."""
    shares = np.log(weights).reshape(-1, *[1] * (np.ndim(log_probs) - 1))
    return np.logaddexp.reduce(log_probs + shares)


def _value(trials, weights):
    if not trials:
        return 0.0
    return float(mixed(np.stack([t.log_prob for t in trials]), weights).mean())


class Allowance(NamedTuple):
    """What is left of a budget.

    candidates : number of them. cost : seconds of a common core, by formula. deadline :
    of the processor's clock.
    """

    candidates: float = np.inf
    cost: float = np.inf
    deadline: float = np.inf

    @classmethod
    def of(cls, budget, size):
        if budget == "auto":
            width = (size.n_columns + size.n_indicators) / 2
            each = AUTO_COLUMN + AUTO_ENTRY * size.n_rows * width
            return cls(cost=max(LEAST_AUTO, width * each))
        if isinstance(budget, int | np.integer):
            return cls(candidates=budget)
        return cls(deadline=time.process_time() + budget)

    def admits(self, candidate):
        left = self.deadline - time.process_time()
        return self.candidates >= 1 and candidate.cost <= min(self.cost, left)

    def less(self, candidate):
        return self._replace(
            candidates=self.candidates - 1, cost=self.cost - candidate.cost
        )
