"""Choose models and their weights by predictions of entries that are hidden."""

import time
import warnings
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from sklearn_mpt._checks import warn_caller
from sklearn_mpt._imputation.hidden_table import WORST_ERROR, hide_entries
from sklearn_mpt._imputation.kinds_of_models import (
    TableSettings,
    kinds_of_models,
    nets,
)
from sklearn_mpt._imputation.weights import MIN_GAIN, kept_models, log_prob_weights
from sklearn_mpt._seeds import seed_from

EMPTY = np.empty(0)
# A limit is worth a warning if the last model gained more, in nats per hidden entry.
LARGE_GAIN = 0.01
# With which a model cannot be fitted to a table; ARPACK's are errors at runtime.
NUMERICAL_ERRORS = ValueError, ArithmeticError, RuntimeError, np.linalg.LinAlgError

GAINED, NO_GAIN, FAILED = "gained", "no gain", "failed"


class Trial(NamedTuple):
    """A candidate, and its results on the hidden entries, unless it has failed."""

    name: str
    models: Sequence = ()  # one for each mask
    log_prob: np.ndarray = EMPTY  # log-probability of each hidden entry
    error: np.ndarray = EMPTY  # of each hidden number, in standard deviations; else 0
    rmse: float = np.nan  # error of numbers, in standard deviations of their columns
    wrong: float = np.nan  # fraction of wrong categories
    steps: float = np.nan  # mean number of steps from ordered categories predicted
    gain: float = np.nan  # in the mean log-probability of the mixture of all so far
    seconds: float = np.nan
    outcome: str = GAINED


class SearchLimits(NamedTuple):
    """Limits that a user sets; only `deadline` reads a clock.

    max_models : number of models. deadline : reading of the clock of the process after
    which no model is begun. with_nets : whether nets are tried.
    """

    max_models: float = np.inf
    deadline: float = np.inf
    with_nets: bool = False

    @classmethod
    def from_parameters(cls, max_seconds, max_models) -> Self:
        deadline = np.inf
        if max_seconds not in ("auto", None):
            deadline = time.process_time() + max_seconds
        with_nets = max_seconds != "auto" or max_models is not None
        return cls(max_models or np.inf, deadline, with_nets)

    def reached(self, n_models):
        """Return the name of the parameter whose limit is reached, or None.

        The first model is always tried.
        """
        if not n_models:
            return None
        if n_models >= self.max_models:
            return "max_models"
        if self.deadline < np.inf and time.process_time() > self.deadline:
            return "max_seconds"
        return None


def search(rows, weight, limits, rng):
    """Try models of all kinds, from small to large, while hidden entries gain.

    The smallest models of all kinds come first, then the second ones, and so on. A kind
    ends when a larger model predicts hidden entries no better than the smaller one.

    rows, weight : as `with_levels` returns them.

    Returns
    -------
    trials : list of Trial
    kept : ndarray of int
        Indices of the trials whose models are mixed.
    weights : ModelWeights
        Weights of these models for each column.
    frequent : dict of FrequentValue
        Values that many rows share, by the index of their column.
    """
    table = hide_entries(rows, weight, rng)
    settings = TableSettings(rows.coding, len(table.numbers), seed_from(rng))
    stages = [kinds_of_models(settings)]
    if limits.with_nets:
        stages.append(nets(settings))
    trials = _Trials(table, limits)
    for kinds in stages:
        trials.add_kinds([kind for kind in kinds if kind])
    trials.warn_if_ended()
    hidden = table.hidden(trials.fitted)
    kept = kept_models(hidden)
    fitted = [i for i, trial in enumerate(trials.all) if trial.outcome != FAILED]
    hidden = hidden.take(kept)
    weights = hidden.weights()
    frequent = table.frequent_values(hidden.mean_error(weights))
    return trials.all, np.array(fitted)[kept], weights, frequent


class _Trials:
    """The trials so far, and the value of the mixture of their models.

    ended_by : the parameter whose limit ended the search, or None. is_larger : whether
    the last model is a larger one than another of its kind.
    """

    def __init__(self, table, limits):
        self.table, self.limits = table, limits
        self.training_rows = table.training_rows()
        self.all: list[Trial] = []
        self.value, self.ended_by, self.is_larger = 0.0, None, False

    @property
    def fitted(self):
        return [trial for trial in self.all if trial.outcome != FAILED]

    def add_kinds(self, kinds):
        """Try the models of some kinds, lists of candidates, in turn."""
        last: list[Trial | None] = [None] * len(kinds)
        going_on = list(range(len(kinds)))
        while going_on:
            for k in going_on.copy():
                self.ended_by = self.limits.reached(len(self.all))
                if self.ended_by:
                    return
                trial = self._try(kinds[k].pop(0), last[k])
                if trial.outcome != FAILED:
                    last[k] = trial
                if trial.outcome == NO_GAIN or not kinds[k]:
                    going_on.remove(k)

    def warn_if_ended(self):
        """Warn if a limit ended the search though larger models still gained."""
        last = self.all[-1]
        if self.ended_by and self.is_larger and last.gain > LARGE_GAIN:
            warn_caller(
                f"MPTImputer ended the choice of models by {self.ended_by}, though the "
                f"last one, {last.name}, gained {last.gain:.2g} nats per hidden entry. "
                f"A larger {self.ended_by} may fill gaps in better."
            )

    def _try(self, candidate, before):
        """Return the trial of a candidate; `before` is the last one of its kind."""
        start, self.is_larger = time.process_time(), before is not None
        try:
            trial = self._fit(candidate, before)
        except NUMERICAL_ERRORS:
            if not self.all:  # of columns alone, with which others are compared
                raise
            seconds = time.process_time() - start
            trial = Trial(candidate.name, outcome=FAILED, seconds=seconds)
            self.all.append(trial)
            return trial
        hidden = self.table.hidden([*self.fitted, trial])
        value_before = self.value
        self.value = hidden.mean_log_prob(log_prob_weights(hidden))
        trial = trial._replace(
            gain=self.value - value_before,
            seconds=time.process_time() - start,
            outcome=GAINED if self._has_gained(trial, before) else NO_GAIN,
        )
        self.all.append(trial)
        return trial

    def _has_gained(self, trial, before):
        """Return whether a model predicts better than the smaller one of its kind.

        It must gain more than noise, in log-probability or in squared errors.
        """
        if before is None:
            return True
        hidden = self.table.hidden([before, trial])
        gains, noises = hidden.gains()
        return bool((gains > np.maximum(noises, MIN_GAIN)).any())

    def _fit(self, candidate, before):
        """Fit a candidate with each mask, and score the hidden entries."""
        table = self.table
        starts = before.models if before else [None] * len(table.masks)
        models, log_probs, filled = [], [], []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for first, rows, mask in zip(
                starts, self.training_rows, table.masks, strict=True
            ):
                model = candidate.start(first).fit(rows, sample_weight=table.row_weight)
                of_hidden, of_rows = table.predictions(model, mask)
                models.append(model)
                log_probs.append(of_hidden)
                filled.append(of_rows)
        log_prob = np.nan_to_num(
            np.concatenate(log_probs), nan=-WORST_ERROR, neginf=-WORST_ERROR
        )
        error, *errors = table.errors(np.vstack(filled))
        error = np.nan_to_num(
            error, nan=WORST_ERROR, posinf=WORST_ERROR, neginf=-WORST_ERROR
        )
        return Trial(candidate.name, models, log_prob, error, *errors)
