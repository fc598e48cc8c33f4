"""Drawing item response models: curves, information, and people beside items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import check_choice, check_floats
from sklearn_mpt._measure.display import Display
from sklearn_mpt._tables.frames import column_index

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        if estimator._n_features_out > 1:
            raise ValueError(
                "Displays are for one ability, but the estimator has n_components="
                f"{estimator._n_features_out}."
            )
        if theta is None:
            theta = np.linspace(-4, 4, 201)
        theta = check_floats(theta, "theta").ravel()
        names = [str(name) for name in estimator._item_names]
        given = range(len(names)) if items is None else np.ravel(items).tolist()
        chosen = [column_index(item, names, "items", "item") for item in given]
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
        self.lines_ = [
            ax.plot(self.theta, curve, **{"label": label, **(line_kw or {})})[0]
            for curve, label in zip(self.curves, self.labels, strict=True)
        ]
        if 1 < len(self.labels) <= 12:
            ax.legend()
        ax.set(xlabel="Ability", ylabel=self.ylabel)
        return self
