"""Pictures of what an imputer fills in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import RandomState, check_choice, listed
from sklearn_mpt._measure.display import Display
from sklearn_mpt._measure.rows import missing_entries
from sklearn_mpt._tables.filling import DATES, DAY, DayCoding
from sklearn_mpt._tables.frames import column_index, column_names

if TYPE_CHECKING:
    from sklearn_mpt._imputation.imputer import MPTImputer

MAX_BARS = 12  # of categories, and of numbers of few values


class FilledColumn(NamedTuple):
    """The values of one column."""

    # observed, filled : numbers, dates, or codes of categories. categories : in the
    # order of their codes, or None.

    name: object
    observed: np.ndarray
    filled: np.ndarray
    categories: list | None


class ImputationDisplay(Display):
    """What an imputer fills in beside what was observed, one panel a column.

    Panels show densities of numbers, and fractions of categories and of numbers with
    few values. Create it with :meth:`from_estimator`.

    The values filled in need not be like the observed ones: gaps may be in rows that
    differ. But a difference that the other columns do not explain deserves a look.

    Parameters
    ----------
    columns : list of FilledColumn
        What was observed and filled in, of each column that is drawn.

    Attributes
    ----------
    ax_ : ndarray of matplotlib Axes
        Axes of each column.
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
    >>> [ax.get_title() for ax in display.ax_[:2]]
    ['sepal length (cm)', 'sepal width (cm)']
    """

    def __init__(self, columns: list[FilledColumn]):
        self.columns = columns

    @classmethod
    def from_estimator(
        cls,
        imputer: MPTImputer,
        X: ArrayLike,
        *,
        columns: list | None = None,
        method: str = "sample",
        random_state: RandomState = None,
        ax: Any = None,
    ) -> ImputationDisplay:
        """Fill a table in, and draw the result.

        Parameters
        ----------
        imputer : MPTImputer
            A fitted imputer.
        X : array-like or DataFrame of shape (n_samples, n_features)
            Rows with gaps.
        columns : list, default=None
            Columns to draw, by names or numbers. None draws those with most gaps, at
            most 12.
        method : {"sample", "mean"}, default="sample"
            Values to draw as filled in. Draws have the distribution of the missing
            values; means vary less than these.
        random_state : int, RandomState instance or None, default=None
            Determines the draws. None takes that of the imputer.
        ax : array-like of matplotlib Axes, default=None
            Axes to draw on, as many as columns. None makes a figure.

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
        state = imputer.random_state if random_state is None else random_state
        X, reader = imputer._known(X), imputer._reader
        names = column_names(X)
        indices = _indices(columns, names, missing_entries(X), reader)
        filled = imputer._imputed(imputer.estimator_, X, method, state)
        observed, filled = reader.encode(X), reader.encode(filled)
        return cls(
            [
                _described(reader, j, observed[:, j], filled[:, j], names[j])
                for j in indices
            ]
        ).plot(ax)

    def plot(self, ax: Any = None) -> ImputationDisplay:
        """Draw all panels.

        Parameters
        ----------
        ax : array-like of matplotlib Axes, default=None
            Axes to draw on, as many as columns. None makes a figure.

        Returns
        -------
        display : ImputationDisplay
            The display, with its axes and figure.
        """
        n_axes = len(self.columns)
        if ax is None:
            shape = -(-n_axes // 4), min(n_axes, 4)
            size = 1 + 3 * shape[1], 0.4 + 2.5 * shape[0]
            axes = self._axes(None, shape, figsize=size, squeeze=False)
            for rest in axes.ravel()[n_axes:]:
                rest.remove()
        else:
            axes = self._axes(ax, (n_axes,))
        self.ax_ = axes.ravel()[:n_axes]
        if len(self.ax_) < n_axes:
            raise ValueError(f"ax must hold {n_axes} axes, got {len(self.ax_)}.")
        for axis, column in zip(self.ax_, self.columns, strict=True):
            _plot_column(axis, column)
        if ax is None:
            legends = (axis.get_legend_handles_labels() for axis in self.ax_)
            longest = max(legends, key=lambda legend: len(legend[1]))
            self.figure_.legend(*longest, loc="outside upper center", ncols=2)
        return self


def _indices(columns, names, missing, reader, *, max_columns=12):
    """Return the indices of the columns to draw."""
    n_gaps = np.zeros(len(names), dtype=int)
    n_gaps[reader.modelled] = missing[:, reader.modelled].sum(axis=0)
    if not n_gaps.any():
        raise ValueError("X has no gaps in columns that the imputer models.")
    if columns is None:
        most = np.argsort(-n_gaps, kind="stable")[:max_columns]
        return np.sort(most[n_gaps[most] > 0]).tolist()
    indices = [column_index(key, names, "columns") for key in columns]
    others = [names[j] for j in indices if not n_gaps[j]]
    if others or not indices:
        raise ValueError(
            f"columns must have gaps that the imputer fills in, got {listed(others)}."
        )
    return indices


def _described(reader, j, observed, filled, name):
    """Return what was observed and filled in of a column."""
    categories, days = reader.categories[j], reader.storage[j]["days"]
    if categories is None and reader.kinds[j] == "bernoulli":
        categories = np.array([False, True])
    gaps, values = np.isnan(observed), np.array([observed, filled])
    if days and days[0] == DATES:
        dates = np.datetime64(DayCoding(*days).origin, "us")
        values = dates + (values * DAY).astype("m8[us]")
    elif days:
        name = f"{name} (days)"
    known = None if categories is None else categories.tolist()
    return FilledColumn(name, values[0][~gaps], values[1][gaps], known)


def _plot_column(ax, column):
    """Draw the values of a column: fractions of few values, or densities."""
    ax.set_title(f"{column.name!s:.30}")
    groups = ("observed", column.observed, "C0"), ("filled in", column.filled, "C1")
    groups = [group for group in groups if len(group[1])]
    names, entries, colors = zip(*groups, strict=True)
    values = labels = np.unique(np.concatenate(entries))
    if column.categories is not None:
        values, labels = np.arange(len(column.categories)), column.categories
    n, is_date, bins = len(values), values.dtype.kind == "M", "sturges"
    if column.categories is not None or (n <= MAX_BARS and not is_date):
        entries = [np.searchsorted(values, of) for of in entries]
        bins, shown = np.arange(n + 1) - 0.5, np.arange(0, n, -(-n // MAX_BARS))
        words = [f"{labels[i]!s:.16}".removesuffix(".0") for i in shown]
        rotation = 90 if sum(map(len, words)) > 24 else 0
        ax.set_xticks(shown, words, rotation=rotation, fontsize="small")
    ax.hist(entries, bins, density=True, color=colors, label=names)
    ax.set_ylabel("Density" if isinstance(bins, str) else "Fraction")
    if is_date:
        ax.tick_params("x", rotation=45)
