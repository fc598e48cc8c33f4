"""Choose models and their weights by predictions of entries that are hidden."""

import time
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sklearn_mpt._imputation.candidates import TableSize, candidate_paths
from sklearn_mpt._imputation.coded_rows import CODES, CodedRows, HiddenRows
from sklearn_mpt._imputation.column_layout import codes_of, means_and_spreads
from sklearn_mpt._imputation.limits import largest_log_densities
from sklearn_mpt._imputation.weights import HiddenEntries, kept_models, mixed
from sklearn_mpt._seeds import seed_from


@dataclass(frozen=True)
class SearchRules:
    """How entries are hidden to choose models, and when trials end.

    ``benchmarks/bench_imputation.py`` prints the errors of tables that are filled in by
    the chosen models.

    Attributes
    ----------
    hidden_share : float
        Share of the present entries that is hidden at a time.
    min_hidden : int
        Entries are hidden again until so many were hidden, because few entries decide
        neither which model is better nor what weights the models have.
    max_masks : int
        Largest number of times that entries are hidden.
    max_rows : int
        Largest number of rows on which models are tried.
    min_gain : float
        A path of candidates ends when one gains less, in nats per hidden entry.
    level_weight : float
        Weight of each additional row that contains categories; see `with_levels`.
    overrun_factor : float
        A candidate may take this many times its cost by formula. One that takes longer
        is left out, and so are those after it in its path.
    min_overrun : float
        Seconds that every candidate may take.
    worst_error : float
        Takes the place of errors that are not finite, in standard deviations or nats.
    """

    hidden_share: float = 0.2
    min_hidden: int = 200
    max_masks: int = 4
    max_rows: int = 2000
    min_gain: float = 1e-3
    level_weight: float = 1e-3
    overrun_factor: float = 10.0
    min_overrun: float = 1.0
    worst_error: float = 1e6

    def max_seconds(self, candidate):
        """Return the seconds that a fit of a candidate may take."""
        return max(self.overrun_factor * candidate.cost, self.min_overrun)


@dataclass(frozen=True)
class AutoSeconds:
    """The time of a choice of models with ``max_seconds="auto"``.

    All numbers of seconds are those of a typical core. With more, more candidates are
    tried. The time grows like that of imputation by trees: a model for each column,
    whose time has a part for each column and one for each entry of each other column.
    ``benchmarks/bench_imputation.py`` prints both times, and errors.

    Attributes
    ----------
    min_seconds : float
        With it, small tables have some candidates to choose from.
    max_seconds : float
        With it, a table of 1,000 rows is filled in in less than ten seconds.
    column_seconds : float
        For each column.
    entry_seconds : float
        For each entry of a column and each other column.
    min_rows : int
        With fewer rows, columns get a share of `column_seconds` in proportion.
    max_indicators : int
        Largest number of categories that are counted for a column, because the time of
        imputation by trees does not grow with categories.
    """

    min_seconds: float = 0.1
    max_seconds: float = 3.0
    column_seconds: float = 0.02
    entry_seconds: float = 3e-6
    min_rows: int = 100
    max_indicators: int = 20

    def for_table(self, n_rows, n_indicators):
        """Return the seconds for a table.

        The number of columns is the geometric mean of those with and without
        indicators.

        n_indicators : of each column, (d,); 1 for numbers.
        """
        counted = np.minimum(n_indicators, self.max_indicators).sum()
        width = np.sqrt(len(n_indicators) * counted)
        base_seconds = self.column_seconds * min(1, n_rows / self.min_rows)
        seconds_per_column = base_seconds + self.entry_seconds * n_rows * width
        return np.clip(width * seconds_per_column, self.min_seconds, self.max_seconds)


RULES, AUTO_SECONDS = SearchRules(), AutoSeconds()


class Trial(NamedTuple):
    """Results of a candidate on the hidden entries."""

    name: str
    models: list  # one for each mask
    log_prob: np.ndarray  # log-probability of each hidden entry
    error: np.ndarray  # of each hidden number, in standard deviations; else 0
    rmse: float  # error of numbers, in standard deviations of their columns
    wrong: float  # share of wrong categories
    steps: float  # mean number of steps between predicted and true ordered categories
    gain: float  # gain in the mean log-probability of the mixture of all models so far
    seconds: float


class TrialTable(NamedTuple):
    """The rows, and the entries that are hidden in turn.

    rows : with rows that contain every category at the end; see `with_levels`.
    row_weight : of all of them. numbers : the first n rows, in standard deviations of
    the columns. scale : standard deviations; 1 for categories. largest : largest
    log-density of each column of `numbers`.
    """

    rows: CodedRows
    row_weight: np.ndarray
    masks: list[np.ndarray]
    numbers: np.ndarray
    scale: np.ndarray
    largest: np.ndarray

    @classmethod
    def from_rows(cls, rows, row_weight, masks):
        n_rows, layout = len(masks[0]), rows.coding.layout
        numbers = rows.numbers[:n_rows]
        spreads = means_and_spreads(numbers, row_weight[:n_rows])[1]
        scale = np.where(layout.numbers, spreads, 1.0)
        largest = largest_log_densities(numbers, layout) + np.log(scale)
        return cls(rows, row_weight, masks, numbers / scale, scale, largest)

    @property
    def layout(self):
        return self.rows.coding.layout

    @property
    def columns(self):
        """The column of each hidden entry."""
        return np.concatenate([np.nonzero(mask)[1] for mask in self.masks])

    @property
    def entry_weight(self):
        """The weight of the row of each hidden entry."""
        rows = np.concatenate([np.nonzero(mask)[0] for mask in self.masks])
        return self.row_weight[rows]

    def training_rows(self):
        """Return the rows with each of the masks hidden."""
        n_others = len(self.row_weight) - len(self.numbers)
        padding = (0, n_others), (0, 0)
        return [HiddenRows(self.rows, np.pad(mask, padding)) for mask in self.masks]

    def predictions(self, model, hidden):
        """Return what a model predicts of entries that are hidden from it.

        Returns
        -------
        log_prob : ndarray of shape (n_entries,)
            Log-probabilities of the hidden entries.
        filled : ndarray of shape (n, d)
            Rows filled in; numbers in standard deviations.
        """
        layout, is_coded = self.layout, self.layout.n_categories > 0
        numbers, log_probs = expectations(model, HiddenRows(self.rows, hidden))
        log_prob = np.zeros(hidden.shape)
        if (hidden & ~is_coded).any():
            rows = HiddenRows(self.rows, hidden & is_coded)  # codes follow
            log_prob = model.conditional_log_prob(rows, hidden)
        codes = self.rows.coded(CODES)[: len(hidden)]
        for j, of_codes in log_probs.items():
            code = np.where(hidden[:, j], codes[:, j], 0).astype(int)
            log_prob[:, j] = of_codes[np.arange(len(code)), code]
            log_prob[:, j] += layout.log_level_density(j)
        log_prob = np.minimum(log_prob + np.log(self.scale), self.largest)[hidden]
        for j, of_codes in log_probs.items():
            if not layout.numbers[j]:
                numbers[:, j] = codes_of(np.exp(of_codes), layout.ordered[j])
        return log_prob, numbers / self.scale

    def hidden(self, trials):
        log_prob = np.stack([trial.log_prob for trial in trials])
        error = np.stack([trial.error for trial in trials])
        entry_arrays = log_prob, error, self.entry_weight
        return HiddenEntries(self.columns, self.layout.numbers, *entry_arrays)


def with_levels(numbers, weight, coding):
    """Return coded rows and weights, with rows of very small weights at the end.

    They contain every category, so that all categories are known to the models.

    numbers : rows of the table, (n, d). weight : (n,); None is 1.
    """
    weight = np.ones(len(numbers)) if weight is None else np.asarray(weight, float)
    counts = coding.layout.n_categories
    most = counts.max(initial=0)
    levels = np.full((most, len(counts)), np.nan)
    for j in coding.layout.coded.tolist():
        levels[: counts[j], j] = coding.numbers_of_codes(j)
    weight = np.append(weight, np.full(most, RULES.level_weight))
    return CodedRows(np.vstack([numbers, levels]), coding), weight


def hide(rows, rng):
    """Draw entries to hide, at most half of each column and of each row.

    At least one is hidden if a column has two. Entries of a row with a single one can
    be hidden if there are no others.
    """
    known = ~np.isnan(rows)
    keys = np.where(known, rng.random(rows.shape), 2.0)
    for axes in (0, 1), (0,):
        allowed = known.copy()
        for axis in axes:
            rank = keys.argsort(axis=axis).argsort(axis=axis)
            allowed &= rank < known.sum(axis=axis, keepdims=True) // 2
        if allowed.any():
            break
    return allowed & (keys <= max(RULES.hidden_share, keys[allowed].min(initial=2.0)))


class PathState:
    """A path of candidates, and how its last one did.

    gain : what the next candidate is expected to gain, in nats per hidden entry.
    last : the last trial, or None.
    """

    def __init__(self, path):
        self.gain, self.last = path.may_gain, None
        self.candidates = list(path.candidates)

    @property
    def gain_for_cost(self):
        return self.gain / self.candidates[0].cost


def search(rows, weight, max_seconds, max_models, rng):
    """Try candidates until `max_seconds` or `max_models` are spent.

    The next candidate is that with the largest expected gain for its cost. A candidate
    is expected to gain as much as the one before it in its path gained: the geometric
    mean of how much better it was than the one before it, and of how much the mixture
    of all gained, in log-probability or in expectations of numbers.

    rows, weight : as `with_levels` returns them.

    Returns
    -------
    trials : list of Trial
    kept : ndarray of int
        Indices of the trials whose models are mixed.
    weights : ModelWeights
        Weights of these models for each column.
    """
    table = _hide_entries(rows, weight, rng)
    size = TableSize.from_rows(table.rows, table.masks[0])
    paths = candidate_paths(rows.coding, size, seed_from(rng))
    allowance = Allowance.from_limits(
        max_seconds,
        max_models,
        AUTO_SECONDS.for_table(size.n_rows, rows.coding.indicators.widths),
        len(table.masks),
    )
    trials = _trials(table, [PathState(path) for path in paths], allowance)
    hidden = table.hidden(trials)
    kept = kept_models(hidden)
    return trials, kept, hidden.take(kept).weights()


def _hide_entries(rows, weight, rng):
    """Draw the rows on which candidates are tried, and the entries that are hidden."""
    n_levels = rows.coding.layout.n_categories.max(initial=0)
    n_rows = len(weight) - n_levels
    if n_rows > RULES.max_rows:
        sample = rng.permutation(n_rows)[: RULES.max_rows]
        rows, weight = with_levels(rows.numbers[sample], weight[sample], rows.coding)
        n_rows = RULES.max_rows
    numbers = rows.numbers[:n_rows]
    masks = [hide(numbers, rng)]
    if not masks[0].any():
        raise ValueError(
            "No column of X has two present entries in the rows that count, so none "
            "can be hidden to choose models. Give MPTImputer a model as `estimator`."
        )
    n_masks = min(-(-RULES.min_hidden // masks[0].sum()), RULES.max_masks)
    masks += [hide(numbers, rng) for _ in range(n_masks - 1)]
    return TrialTable.from_rows(rows, weight, masks)


def _trials(table, paths, allowance):
    """Return the trials of candidates, the most promising of all paths first.

    paths : list of PathState. The first, of independent columns, comes first: others
    are compared with it.
    """
    trials, value = [], np.zeros(2)
    training_rows, start = table.training_rows(), time.process_time()
    paths = [path for path in paths if path.candidates]
    while paths:
        path = max(paths, key=lambda path: path.gain_for_cost) if trials else paths[0]
        candidate, trial = path.candidates.pop(0), None
        if not trials or allowance.allows(candidate):
            trial = _fit_candidate(
                candidate, path.last, training_rows, table, is_first=not trials
            )
            allowance = allowance.less(candidate)
        if trial is not None:
            now = time.process_time()
            trial, start = trial._replace(seconds=now - start), now
            hidden = table.hidden([*trials, trial])
            value_before, value = value, np.array(hidden.value(hidden.weights()))
            gain_of_all = value - value_before
            trials.append(trial._replace(gain=float(gain_of_all[0])))
            by_entry = trial.log_prob - (path.last or trials[0]).log_prob
            gain_on_last = np.average(by_entry, weights=table.entry_weight)
            gains = np.array([gain_on_last, gain_of_all.max()])
            path.gain = np.sqrt(np.maximum(gains, RULES.min_gain).prod())
            path.last = trial
            most_seconds = len(table.masks) * RULES.max_seconds(candidate)
            is_over = gains.max() <= RULES.min_gain or trial.seconds > most_seconds
        if trial is None or is_over or not path.candidates:
            paths.remove(path)
    return trials


def _fit_candidate(candidate, before, training_rows, table, is_first):
    """Fit a candidate with each mask, and score the hidden entries.

    Returns None if it takes too long, or cannot be fitted, unless it is the first.
    """
    starts = before.models if before else [None] * len(table.masks)
    start, most = time.process_time(), RULES.max_seconds(candidate)
    models, predictions = [], []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for first, rows, mask in zip(
                starts, training_rows, table.masks, strict=True
            ):
                n_before = len(models)
                if n_before and time.process_time() > start + n_before * most:
                    return None
                model = candidate.start(first).fit(rows, sample_weight=table.row_weight)
                models.append(model)
                predictions.append(table.predictions(model, mask))
            log_prob, filled = map(np.concatenate, zip(*predictions, strict=True))
            error, *errors = _errors(filled, table)
    except (ValueError, FloatingPointError, np.linalg.LinAlgError):
        if is_first:
            raise
        return None
    worst = RULES.worst_error
    log_prob = np.nan_to_num(log_prob, nan=-worst, neginf=-worst)
    error = np.nan_to_num(error, nan=worst, posinf=worst, neginf=-worst)
    return Trial(candidate.name, models, log_prob, error, *errors, 0.0, 0.0)


def _errors(filled, table):
    """Return errors of numbers, and their summaries of all hidden entries.

    These are the rmse of numbers, the share of wrong categories, and the mean number of
    steps of ordered ones.
    """
    hidden, layout = np.vstack(table.masks), table.layout
    numbers = np.tile(table.numbers, (len(table.masks), 1))
    error = np.where(layout.numbers, filled - numbers, 0.0)[hidden]
    distance, weight = np.abs(filled - numbers), table.entry_weight

    def mean(values, column_values):
        entries = np.broadcast_to(column_values, hidden.shape)[hidden]
        if not entries.any():
            return np.nan
        return np.average(values[entries], weights=weight[entries])

    is_coded, distance = ~layout.numbers, distance[hidden]
    rmse = np.sqrt(mean(error**2, layout.numbers))
    wrong = mean(distance > 0.5, is_coded)
    return error, rmse, wrong, mean(distance, is_coded & layout.ordered)


def expectations(model, rows):
    """Return what a model expects in the gaps of coded rows.

    Returns
    -------
    numbers : ndarray of shape (n, d)
        Expected numbers in the units of the table, arbitrary in columns of categories
        and where `rows` are present.
    log_probs : dict of ndarrays
        Log-probabilities of the codes of each coded column with gaps, (n, n_codes).
    """
    layout = rows.coding.layout
    columns = layout.coded[rows.gaps[:, layout.coded].any(axis=0)]
    numbers, log_probs = model.expected(rows, columns)
    for j, log_prob in zip(columns, log_probs, strict=True):
        if j in layout.values:
            numbers[:, j] = np.exp(log_prob) @ layout.values[j]
    return numbers, dict(zip(columns.tolist(), log_probs, strict=True))


def expected(models, weights, rows):
    """Fill gaps of coded rows in by what a mixture of models expects.

    The result is in the units of the table: expected numbers, medians of ordered
    categories, and the most probable of others.

    weights : `ModelWeights`.
    """
    layout, gaps = rows.coding.layout, rows.gaps
    expectations_of_models = [expectations(model, rows) for model in models]
    numbers_of_models = np.stack([numbers for numbers, _ in expectations_of_models])
    # a model without a weight may expect what is not finite
    has_weight = weights.mean[:, None] > 0
    numbers = (
        weights.mean[:, None] * np.where(has_weight, numbers_of_models, 0.0)
    ).sum(axis=0)
    filled = np.where(gaps, numbers, rows.numbers)
    for j in layout.coded[
        ~layout.numbers[layout.coded] & gaps[:, layout.coded].any(axis=0)
    ]:
        log_prob = mixed(
            np.stack([entries[j] for _, entries in expectations_of_models]),
            weights.log_prob[:, j],
        )
        codes = codes_of(np.exp(log_prob), layout.ordered[j])
        filled[:, j] = np.where(gaps[:, j], codes, rows.numbers[:, j])
    return filled


class Allowance(NamedTuple):
    """What is left of the limits for the choice of models.

    candidates : number of models. cost : seconds of a typical core for one fit of each
    model, by formula. deadline : reading of the processor clock. n_masks : number of
    fits of each model.
    """

    candidates: float = np.inf
    cost: float = np.inf
    deadline: float = np.inf
    n_masks: int = 1

    @classmethod
    def from_limits(cls, max_seconds, max_models, auto_seconds, n_masks):
        candidates = np.inf if max_models is None else max_models
        is_free = max_seconds == "auto" and max_models is not None
        if max_seconds is None or is_free:
            return cls(candidates)
        if max_seconds == "auto":
            return cls(candidates, cost=auto_seconds)
        deadline = time.process_time() + max_seconds
        return cls(candidates, deadline=deadline, n_masks=n_masks)

    def allows(self, candidate):
        if self.candidates < 1 or candidate.cost > self.cost:
            return False
        if self.deadline == np.inf:  # reading the processor's clock takes time
            return True
        return self.n_masks * candidate.cost <= self.deadline - time.process_time()

    def less(self, candidate):
        return self._replace(
            candidates=self.candidates - 1, cost=self.cost - candidate.cost
        )
