"""Draw what an imputer fills in beside what was observed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import check_choice, check_int
from sklearn_mpt._frames import column_index, column_names
from sklearn_mpt._imputation.gaps import with_missing
from sklearn_mpt._measure.plotting import Display
from sklearn_mpt._measure.rows import missing_entries, take
from sklearn_mpt._messages import listed
from sklearn_mpt._seeds import RandomState, seed_from, spawn_seeds
from sklearn_mpt._tables.days import DATES, DayCoding

if TYPE_CHECKING:
    from sklearn_mpt._imputation.imputer import MPTImputer

MAX_COLUMNS = 10  # that are drawn if the user names none
MAX_PATTERNS, MAX_LABELS = 15, 30
MAX_CODES, MAX_BARS = 20, 12  # of numbers with bars, and of categories with labels
MAX_ROWS = 200  # of which entries are hidden, because draws of many rows take long
HIDDEN_FRACTION = 0.2
N_BINS = 6, 20  # fewest and most bars of a density; more where values are many
LEVELS = np.linspace(0, 1, 21)


class FilledColumn(NamedTuple):
    """The values of one column: numbers, or codes of categories.

    name : of the column. observed, filled : its present values, and what was filled in.
    categories : in the order of their codes; None for numbers. origin : date of the
    number 0, for dates; None for others.
    """

    name: object
    observed: np.ndarray
    filled: np.ndarray
    categories: list | None
    origin: np.datetime64 | None


class ImputationDisplay(Display):
    """Pictures of a table that an imputer fills in.

    The first shows which columns have gaps in the same rows. The second shows how many
    of the known entries, which are hidden for this purpose, lie within the intervals
    that draws of the imputer make: on the diagonal, the intervals are right; below it,
    they are too short. The others show the values of each column that has gaps, those
    observed beside those filled in: densities of numbers and fractions of categories.
    Create it with :meth:`from_estimator`.

    The values filled in need not be like the observed ones: gaps may be in rows that
    differ. But a difference that the other columns do not explain deserves a look.

    Parameters
    ----------
    columns : list of FilledColumn
        What was observed and filled in, of each column that is drawn.
    missing : ndarray of bool, of shape (n_samples, n_features)
        Where the table has gaps.
    levels : dict of ndarray
        Level of the smallest interval of the draws that holds each of the hidden
        entries, for "numbers" and "categories".
    names : list
        Names of all columns of the table.

    Attributes
    ----------
    ax_ : ndarray of matplotlib Axes
        Axes of the pattern of gaps, of the coverage, and of each column.
    figure_ : matplotlib Figure
        Figure containing the axes.

    See Also
    --------
    MPTImputer : Fills in the gaps.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import ImputationDisplay, MPTImputer
    >>> X = load_iris(as_frame=True).data
    >>> X = X.mask(np.random.default_rng(0).random(X.shape) < 0.2)
    >>> imputer = MPTImputer(max_models=3, random_state=0).fit(X)
    >>> display = ImputationDisplay.from_estimator(imputer, X, random_state=0)
    >>> [ax.get_title() for ax in display.ax_[:3]]
    ['Pattern of gaps', 'Coverage of hidden entries', 'sepal length (cm)']
    """

    def __init__(
        self,
        columns: list[FilledColumn],
        missing: np.ndarray,
        levels: dict[str, np.ndarray],
        names: list,
    ):
        self.columns = columns
        self.missing = missing
        self.levels = levels
        self.names = names

    @classmethod
    def from_estimator(
        cls,
        imputer: MPTImputer,
        X: ArrayLike,
        *,
        columns: list | None = None,
        method: str = "sample",
        n_draws: int = 20,
        random_state: RandomState = None,
        ax: Any = None,
    ) -> ImputationDisplay:
        """Fill a table in, hide some of its known entries, and draw the results.

        Parameters
        ----------
        imputer : MPTImputer
            A fitted imputer.
        X : array-like or DataFrame of shape (n_samples, n_features)
            Rows with gaps. The coverage of rows that were not in `fit` is that of new
            rows; that of the rows of `fit` may be a little better.
        columns : list, default=None
            Columns to draw, by names or numbers. None draws those with most gaps, at
            most 10.
        method : {"sample", "mean"}, default="sample"
            Values to draw as filled in. Draws have the distribution of the missing
            values; means vary less than these.
        n_draws : int, default=20
            Number of draws of each hidden entry, of which a fifth of the entries of at
            most 200 rows is hidden.
        random_state : int, RandomState instance or None, default=None
            Determines the hidden entries and the draws. None takes that of the imputer.
        ax : array-like of matplotlib Axes, default=None
            Axes to draw on, two more than columns. None makes a figure.

        Returns
        -------
        display : ImputationDisplay
            The display, with its axes and figure.

        Raises
        ------
        ValueError
            If X has no gaps that the imputer fills in.
        """
        check_choice(method, "method", ["sample", "mean"])
        check_int(n_draws, "n_draws")
        state = imputer.random_state if random_state is None else random_state
        rng = np.random.default_rng(spawn_seeds(state, 1)[0])
        X = imputer._known(X)
        names, missing = column_names(X), missing_entries(X)
        indices = _indices(columns, names, missing, imputer._reader)
        filled = imputer._predicted(X, method, seed_from(rng))
        observed = imputer._reader.encode(X)
        described = [
            _described(imputer._reader, j, names[j], observed[:, j], filled[:, j])
            for j in indices
        ]
        levels = _levels(imputer, X, n_draws, rng)
        return cls(described, missing, levels, names).plot(ax)

    def plot(self, ax: Any = None) -> ImputationDisplay:
        """Draw all pictures.

        Parameters
        ----------
        ax : array-like of matplotlib Axes, default=None
            Axes to draw on, two more than columns. None makes a figure.

        Returns
        -------
        display : ImputationDisplay
            The display, with its axes and figure.
        """
        n_axes = len(self.columns) + 2
        if ax is None:
            n_across = min(4, int(np.ceil(np.sqrt(n_axes))))
            n_down = int(np.ceil(n_axes / n_across))
            size = 3.2 * n_across, 2.7 * n_down
            axes = self._axes(None, (n_down, n_across), figsize=size, squeeze=False)
            for rest in axes.ravel()[n_axes:]:
                rest.remove()
        else:
            axes = self._axes(ax, (n_axes,))
        self.ax_ = axes.ravel()[:n_axes]
        if len(self.ax_) < n_axes:
            raise ValueError(f"ax must hold {n_axes} axes, got {len(self.ax_)}.")
        self._plot_gaps(self.ax_[0])
        self._plot_coverage(self.ax_[1])
        for axis, column in zip(self.ax_[2:], self.columns, strict=True):
            _plot_column(axis, column)
        self.ax_[2].legend(fontsize="small")
        return self

    def _plot_gaps(self, ax: Any):
        """Draw the most frequent patterns of gaps, and how many rows have them."""
        patterns, counts = np.unique(self.missing, axis=0, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:MAX_PATTERNS]
        ax.imshow(patterns[order], cmap="Blues", vmin=0, vmax=1.6, aspect="auto")
        ax.set_yticks(np.arange(len(order)), counts[order], fontsize="x-small")
        step = int(np.ceil(len(self.names) / MAX_LABELS))
        shown = np.arange(0, len(self.names), step)
        labels = [_short(self.names[j]) for j in shown]
        ax.set_xticks(shown, labels, rotation=90, fontsize="x-small")
        ax.set(title="Pattern of gaps", ylabel="Number of rows")

    def _plot_coverage(self, ax: Any):
        """Draw the fraction of hidden entries within intervals of each level."""
        ax.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
        for kind, levels in self.levels.items():
            if len(levels):
                covered = (levels[:, None] <= LEVELS).mean(axis=0)
                ax.plot(LEVELS, covered, marker=".", label=kind)
        if any(map(len, self.levels.values())):
            ax.legend(fontsize="small", loc="upper left")
        ax.set(
            title="Coverage of hidden entries",
            xlabel="Level of the interval",
            ylabel="Fraction within it",
            xlim=(0, 1),
            ylim=(0, 1),
        )


def _indices(columns, names, missing, reader):
    """Return the indices of the columns to draw."""
    has_gaps = missing.any(axis=0) & np.isin(np.arange(len(names)), reader.modelled)
    if not has_gaps.any():
        raise ValueError("X has no gaps in columns that the imputer models.")
    if columns is None:
        counts = np.where(has_gaps, missing.sum(axis=0), 0)
        most = np.argsort(-counts, kind="stable")[: min(MAX_COLUMNS, has_gaps.sum())]
        return np.sort(most).tolist()
    indices = [column_index(key, names, "columns") for key in columns]
    others = [names[j] for j in indices if not has_gaps[j]]
    if others or not indices:
        raise ValueError(
            f"columns must have gaps that the imputer fills in, got {listed(others)}."
        )
    return indices


def _described(reader, j, name, observed, filled):
    """Return what was observed and filled in of a column, as numbers or codes."""
    categories, gaps = reader.categories[j], np.isnan(observed)
    if categories is None and reader.kinds[j] == "bernoulli":
        categories = np.array([False, True])
    days, origin = reader.storage[j]["days"], None
    if days:
        coding = DayCoding(*days)
        if coding.holds == DATES:
            origin = np.datetime64(coding.origin, "us")
        else:
            name = f"{name} (days)"
    known = None if categories is None else categories.tolist()
    return FilledColumn(name, observed[~gaps], filled[gaps], known, origin)


def _plot_column(ax, column):
    """Draw the values of a column: bars of a few values, or densities."""
    ax.set_title(_short(column.name, 30))
    groups = {"observed": column.observed, "filled in": column.filled}
    groups = {label: entries for label, entries in groups.items() if len(entries)}
    if column.categories is not None:
        codes = np.arange(len(column.categories))
        _plot_bars(ax, groups, codes, column.categories, column.origin)
        return
    values = np.unique(np.concatenate(list(groups.values())))
    if len(values) <= MAX_CODES:
        _plot_bars(ax, groups, values, values, column.origin)
    else:
        _plot_densities(ax, groups, values[[0, -1]], column.origin)


def _plot_bars(ax, groups, values, labels, origin):
    """Draw how frequent values are in each group."""
    centres = np.arange(len(values))
    for k, (label, entries) in enumerate(groups.items()):
        fractions = (entries[:, None] == values).mean(axis=0)
        ax.bar(centres + 0.4 * (k - 0.5), fractions, 0.4, label=label, color=f"C{k}")
    _label_bars(ax, labels, origin)
    ax.set_ylabel("Fraction")


def _plot_densities(ax, groups, limits, origin):
    """Draw the density of the numbers of each group.

    origin : date of the number 0, or None.
    """
    start = 0.0
    if origin is not None:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

        start = date2num(origin)
    n_bins = np.clip(np.sqrt(2 * min(map(len, groups.values()))), *N_BINS)
    edges = np.linspace(*limits, int(n_bins) + 1) + start
    for k, (label, entries) in enumerate(groups.items()):
        ax.hist(
            entries + start,
            edges,
            density=True,
            histtype="stepfilled",
            alpha=0.5,
            color=f"C{k}",
            edgecolor=f"C{k}",
            label=label,
        )
    if origin is not None:
        locator = AutoDateLocator(maxticks=5)
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    ax.set_ylabel("Density")


def _label_bars(ax, labels, origin):
    """Label bars; only some of them, if there are many."""
    step = int(np.ceil(len(labels) / MAX_BARS))
    shown = list(range(0, len(labels), step))
    words = [
        f"{labels[k]:g}" if isinstance(labels[k], float) else _short(labels[k])
        for k in shown
    ]
    if origin is not None:
        words = [str(origin + np.timedelta64(int(labels[k]), "D"))[:10] for k in shown]
    is_long = sum(map(len, words)) > 24
    ax.set_xticks(shown, words, rotation=90 if is_long else 0, fontsize="small")


def _short(name, length=16):
    text = str(name)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _levels(imputer, X, n_draws, rng):
    """Hide known entries, and return the levels of intervals that hold them."""
    reader = imputer._reader
    rows = np.sort(rng.permutation(len(X))[:MAX_ROWS])
    X = take(X, rows)
    truth = reader.encode(X)
    hidden = ~np.isnan(truth) & (rng.random(truth.shape) < HIDDEN_FRACTION)
    gaps = {j: hidden[:, j] for j in np.flatnonzero(hidden.any(axis=0)).tolist()}
    repeated = take(with_missing(X, gaps), np.tile(np.arange(len(X)), n_draws))
    draws = imputer._predicted(repeated, "sample", seed_from(rng), False)
    draws = draws.reshape(n_draws, *truth.shape)
    levels: dict[str, list] = {"numbers": [], "categories": []}
    for j, rows in gaps.items():
        entries, drawn = truth[rows, j], draws[:, rows, j]
        if reader.categories[j] is not None or reader.kinds[j] == "bernoulli":
            levels["categories"].append(_levels_of_codes(entries, drawn, rng))
        else:
            levels["numbers"].append(_levels_of_numbers(entries, drawn, rng))
    return {kind: np.concatenate([*found, []]) for kind, found in levels.items()}


def _levels_of_numbers(entries, drawn, rng):
    """Return the levels of central intervals of draws that just hold entries, (n,).

    A number equal to draws has a random rank among them, so that levels of right
    draws are uniform in 0..1.

    entries : shape (n,). drawn : shape (n_draws, n).
    """
    below, equal = (drawn < entries).sum(axis=0), (drawn == entries).sum(axis=0)
    rank = below + (equal + 1) * rng.random(len(entries))
    return np.abs(2 * rank / (len(drawn) + 1) - 1)


def _levels_of_codes(entries, drawn, rng):
    """Return the levels of sets of the most frequent categories that hold entries."""
    codes = np.arange(max(entries.max(), drawn.max()) + 1)
    counts = (drawn == codes[:, None, None]).sum(axis=1)
    own = np.take_along_axis(counts, entries.astype(int)[None], axis=0)
    before = np.where(counts > own, counts, 0).sum(axis=0)
    tied = np.where(counts == own, counts, 0).sum(axis=0)
    rank = before + (tied + 1) * rng.random(len(entries))
    return rank / (len(drawn) + 1)
