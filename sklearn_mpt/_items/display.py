"""Drawing item response models: curves, information, and people beside items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import check_choice, check_floats
from sklearn_mpt._measure.plotting import Display
from sklearn_mpt._messages import listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANGE, N_POINTS = 4.0, 201  # of abilities, in standard deviations, and points of curves


def _check_one_ability(estimator):
    if estimator._n_features_out > 1:
        raise ValueError(
            "Displays are for one ability, but the estimator has n_components="
            f"{estimator._n_features_out}."
        )


def _abilities(estimator, theta):
    """Return abilities as an array; None is a range of them."""
    _check_one_ability(estimator)
    if theta is None:
        return np.linspace(-RANGE, RANGE, N_POINTS)
    return check_floats(theta, "theta").ravel()


def _names(estimator):
    numbers = [str(j) for j in range(estimator.n_features_in_)]
    return list(getattr(estimator, "feature_names_in_", numbers))


def _chosen(estimator, items):
    """Return the numbers of items that are given by number or by name."""
    names = _names(estimator)
    if items is None:
        return list(range(len(names)))
    numbers = []
    for item in np.atleast_1d(np.asarray(items, dtype=object)):
        is_name = isinstance(item, str) and item in names
        number = names.index(item) if is_name else item
        if isinstance(number, str) or not 0 <= int(number) < len(names):
            raise ValueError(f"items must be among {listed(names)}, got {item!r}.")
        numbers.append(int(number))
    return numbers


def _lines(ax, theta, curves, labels, line_kw=None):
    """Draw a line for each curve, with a legend unless it would be long."""
    lines = [
        ax.plot(theta, curve, **{"label": label, **(line_kw or {})})[0]
        for curve, label in zip(curves, labels, strict=True)
    ]
    if 1 < len(labels) <= 12:
        ax.legend()
    return lines


class ItemCurveDisplay(Display):
    """Curves of items: probabilities of answers, or expected answers, by ability.

    Create it with :meth:`from_estimator`.

    Parameters
    ----------
    theta : ndarray of shape (n_theta,)
        Abilities.
    curves : ndarray of shape (n_curves, n_theta)
        Probabilities, or expected answers.
    labels : list of str
        Names of the curves, for the legend.
    ylabel : str
        Label of the y-axis.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes with the curves.
    figure_ : matplotlib Figure
        Figure containing the curves.
    lines_ : list of matplotlib Artist
        The curves.

    See Also
    --------
    MPTItemResponse : Fit item response models.

    Examples
    --------
    >>> from sklearn_mpt import ItemCurveDisplay, MPTItemResponse
    >>> model = MPTItemResponse.from_items(difficulty=[-1.0, 0.0, 1.0])
    >>> display = ItemCurveDisplay.from_estimator(model)
    >>> display.ax_.get_xlabel()
    'Ability'
    """

    def __init__(
        self,
        theta: np.ndarray,
        curves: np.ndarray,
        labels: list[str],
        *,
        ylabel: str = "Probability",
    ):
        self.theta = theta
        self.curves = curves
        self.labels = labels
        self.ylabel = ylabel

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        items: ArrayLike | None = None,
        kind: str = "auto",
        theta: ArrayLike | None = None,
        ax: Axes | None = None,
        line_kw: dict | None = None,
    ) -> ItemCurveDisplay:
        """Compute curves of items and draw them.

        Parameters
        ----------
        estimator : MPTItemResponse
            A fitted model of one ability.
        items : int, str or array-like of them, default=None
            Numbers or names of the items; None is all.
        kind : {"auto", "score", "categories"}, default="auto"
            "score" is the expected answer to each item, which for two answers is the
            probability of 1. "categories" is the probability of each answer. "auto" is
            "categories" for one item with more than two answers, else "score".
        theta : array-like of shape (n_theta,), default=None
            Abilities; None is 201 of them from -4 to 4.
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.
        line_kw : dict, default=None
            Keyword arguments for the lines, as in `matplotlib.axes.Axes.plot`.

        Returns
        -------
        display : ItemCurveDisplay
            The display, with its axes and figure.
        """
        check_choice(kind, "kind", ["auto", "score", "categories"])
        theta = _abilities(estimator, theta)
        chosen, names = _chosen(estimator, items), _names(estimator)
        prob = estimator.item_probabilities(theta)[:, chosen]
        counts = estimator.n_categories_[chosen]
        if kind == "auto":
            kind = "categories" if len(chosen) == 1 and counts[0] > 2 else "score"
        if kind == "score":
            curves = (prob @ np.arange(prob.shape[2])).T
            labels = [names[j] for j in chosen]
            ylabel = "Expected answer" if counts.max() > 2 else "Probability of 1"
        else:
            pairs = [(i, c) for i, n in enumerate(counts) for c in range(n)]
            curves = np.array([prob[:, i, c] for i, c in pairs])
            labels = [
                f"{names[chosen[i]]}: {c}" if len(chosen) > 1 else str(c)
                for i, c in pairs
            ]
            ylabel = "Probability of each answer"
            if len(chosen) == 1:
                ylabel += f" to item {names[chosen[0]]}"
        display = cls(theta, curves, labels, ylabel=ylabel)
        return display.plot(ax=ax, line_kw=line_kw)

    def plot(
        self, ax: Axes | None = None, *, line_kw: dict | None = None
    ) -> ItemCurveDisplay:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.
        line_kw : dict, default=None
            Keyword arguments for the lines, as in `matplotlib.axes.Axes.plot`.

        Returns
        -------
        display : ItemCurveDisplay
            The display, with its axes and figure.
        """
        ax = self._axes(ax)
        self.lines_ = _lines(ax, self.theta, self.curves, self.labels, line_kw)
        ax.set(xlabel="Ability", ylabel=self.ylabel)
        return self


class InformationDisplay(Display):
    """Fisher information of a test and its items about abilities.

    Create it with :meth:`from_estimator`.

    Parameters
    ----------
    theta : ndarray of shape (n_theta,)
        Abilities.
    items : ndarray of shape (n_theta, n_items)
        Information of the items.
    labels : list of str
        Names of the items.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes with the information.
    figure_ : matplotlib Figure
        Figure containing it.
    line_ : matplotlib Artist
        Information of the test; None if not drawn.
    item_lines_ : list of matplotlib Artist
        Information of the items, if drawn.
    error_line_ : matplotlib Artist
        Standard error of an ability, on an axis of its own; None if not drawn.

    See Also
    --------
    ItemCurveDisplay : Draw curves of items.

    Examples
    --------
    >>> from sklearn_mpt import InformationDisplay, MPTItemResponse
    >>> model = MPTItemResponse.from_items(difficulty=[-1.0, 0.0, 1.0])
    >>> display = InformationDisplay.from_estimator(model)
    >>> display.ax_.get_ylabel()
    'Information'
    """

    def __init__(self, theta: np.ndarray, items: np.ndarray, labels: list[str]):
        self.theta = theta
        self.items = items
        self.labels = labels

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        items: ArrayLike | None = None,
        kind: str = "test",
        theta: ArrayLike | None = None,
        ax: Axes | None = None,
    ) -> InformationDisplay:
        """Compute the information of items and draw it.

        Parameters
        ----------
        estimator : MPTItemResponse
            A fitted model of one ability.
        items : int, str or array-like of them, default=None
            Numbers or names of the items; None is all.
        kind : {"test", "items"}, default="test"
            "test" draws the sum over the items, and the standard error of an ability,
            which is the inverse square root of the sum. "items" draws each item.
        theta : array-like of shape (n_theta,), default=None
            Abilities; None is 201 of them from -4 to 4.
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.

        Returns
        -------
        display : InformationDisplay
            The display, with its axes and figure.
        """
        theta = _abilities(estimator, theta)
        chosen, names = _chosen(estimator, items), _names(estimator)
        information = estimator.information(theta).items[:, chosen]
        display = cls(theta, information, [names[j] for j in chosen])
        return display.plot(ax=ax, kind=kind)

    def plot(self, ax: Axes | None = None, *, kind: str = "test") -> InformationDisplay:
        """Draw the information.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.
        kind : {"test", "items"}, default="test"
            "test" or "items", as in :meth:`from_estimator`.

        Returns
        -------
        display : InformationDisplay
            The display, with its axes and figure.
        """
        check_choice(kind, "kind", ["test", "items"])
        ax = self._axes(ax)
        self.line_ = self.error_line_ = None
        self.item_lines_ = []
        if kind == "items":
            self.item_lines_ = _lines(ax, self.theta, self.items.T, self.labels)
        else:
            self._plot_test(ax)
        ax.set(xlabel="Ability", ylabel="Information")
        ax.set_ylim(bottom=0)
        return self

    def _plot_test(self, ax):
        test = self.items.sum(axis=1)
        (self.line_,) = ax.plot(self.theta, test, color="C0", label="Information")
        right_ax = ax.twinx()
        with np.errstate(divide="ignore"):
            error = 1 / np.sqrt(test)
        (self.error_line_,) = right_ax.plot(
            self.theta, error, "--", color="C1", label="Standard error"
        )
        right_ax.set_ylabel("Standard error of an ability")
        right_ax.set_ylim(0, min(3.0, 1.1 * np.max(error)))
        ax.legend(handles=[self.line_, self.error_line_])


class WrightMapDisplay(Display):
    """People and items on one scale: abilities beside difficulties.

    Create it with :meth:`from_estimator`.

    Parameters
    ----------
    abilities : ndarray of shape (n_samples,)
        Abilities of people.
    difficulty : ndarray of shape (n_items, n_thresholds)
        NaN where an item has fewer thresholds; infinite ones are not drawn.
    labels : list of str
        Names of the items.

    Attributes
    ----------
    ax_ : ndarray of two matplotlib Axes
        Axes with the people, and with the items.
    figure_ : matplotlib Figure
        Figure containing them.

    See Also
    --------
    ItemCurveDisplay : Draw curves of items.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import MPTItemResponse, WrightMapDisplay
    >>> model = MPTItemResponse.from_items(difficulty=[-1.0, 0.0, 1.0])
    >>> X = model.sample(50, random_state=0)
    >>> display = WrightMapDisplay.from_estimator(model, X)
    >>> display.ax_[1].get_xlabel()
    'Item'
    """

    def __init__(
        self, abilities: np.ndarray, difficulty: np.ndarray, labels: list[str]
    ):
        self.abilities = abilities
        self.difficulty = difficulty
        self.labels = labels

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: ArrayLike, *, ax: Any = None
    ) -> WrightMapDisplay:
        """Estimate abilities of people, and draw them beside the items.

        Parameters
        ----------
        estimator : MPTItemResponse
            A fitted model of one ability.
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        ax : sequence of two matplotlib Axes, default=None
            Axes to draw on, which share their y-axis. None makes a figure.

        Returns
        -------
        display : WrightMapDisplay
            The display, with its axes and figure.
        """
        _check_one_ability(estimator)
        abilities = np.asarray(estimator.abilities(X).theta)[:, 0]
        difficulty = estimator.difficulty_.reshape(estimator.n_features_in_, -1)
        return cls(abilities, difficulty, _names(estimator)).plot(ax=ax)

    def plot(self, ax: Any = None) -> WrightMapDisplay:
        """Draw people and items.

        Parameters
        ----------
        ax : sequence of two matplotlib Axes, default=None
            Axes to draw on, which share their y-axis. None makes a figure.

        Returns
        -------
        display : WrightMapDisplay
            The display, with its axes and figure.
        """
        people, items = self._axes(ax, (1, 2), sharey=True, width_ratios=[1, 2])
        people.hist(self.abilities, bins=25, orientation="horizontal", color="C0")
        people.invert_xaxis()
        people.set(xlabel="Number of people", ylabel="Ability and difficulty")
        positions = np.arange(len(self.difficulty))
        for c in range(self.difficulty.shape[1]):
            items.plot(positions, self.difficulty[:, c], "o", color=f"C{c + 1}")
        if len(positions) <= 20:
            items.set_xticks(positions, self.labels)
            if max(map(len, self.labels)) > 3:
                items.tick_params(axis="x", rotation=45)
        items.grid(axis="y", alpha=0.3)
        items.set_xlabel("Item")
        return self
