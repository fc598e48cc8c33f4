"""Draw curves of masked scores; what all displays share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import RandomState
from sklearn_mpt._measure.curve import MPTCurve
from sklearn_mpt._measure.mpt_curve import mpt_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Display:
    """Base of displays, which keep the axes that they draw on."""

    ax_: Any
    figure_: Any

    def _axes(self, ax: Any, shape: tuple[int, ...] = (), **figure_params):
        """Return and keep the given axes; with None, those of a new figure."""
        ax = axes_or_new(ax, shape, **figure_params)
        self.ax_ = np.array(ax) if shape else ax
        self.figure_ = np.ravel(self.ax_)[0].figure
        return self.ax_


def axes_or_new(ax: Any, shape: tuple[int, ...] = (), **figure_params) -> Any:
    """Return the given axes; with None, those of a new figure, of rows and columns."""
    import matplotlib.pyplot as plt

    if ax is None:
        _, ax = plt.subplots(*shape, layout="constrained", **figure_params)
    return ax


def draw_band(ax, x, mean, error, line, alpha):
    """Fill two standard errors on either side of a line, in its colour."""
    return ax.fill_between(
        x,
        mean - 2 * error,
        mean + 2 * error,
        alpha=alpha,
        color=line.get_color(),
        linewidth=0,
    )


class MPTCurveDisplay(Display):
    """Plot of masked scores against the number of hidden features.

    The filled area, with one bar of width 1 for each mask size, is the log marginal
    likelihood (LML); area below zero is negative. Create it with
    :meth:`from_estimator`.

    Parameters
    ----------
    curve : MPTCurve
        The curve to draw.
    name : str, default=None
        Name of the model in the legend.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes with the curve.
    figure_ : matplotlib Figure
        Figure containing the curve.
    line_ : matplotlib Artist
        The curve.
    fill_ : matplotlib Artist or None
        The area under the curve; None if not drawn.
    error_band_ : matplotlib Artist
        Band of two standard errors on either side of the curve.

    See Also
    --------
    mpt_curve : Compute the curve.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import MPTCurveDisplay, MPTProbabilisticPCA
    >>> X = load_iris().data
    >>> model = MPTProbabilisticPCA(init="pca", max_iter=0).fit(X)
    >>> display = MPTCurveDisplay.from_estimator(model, X, random_state=0)
    >>> display.ax_.get_xlabel()
    'Number of hidden features $m$'
    """

    def __init__(self, curve: MPTCurve, *, name: str | None = None):
        self.curve = curve
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        estimator: object,
        X: ArrayLike,
        *,
        mask_sizes: ArrayLike | None = None,
        n_masks: int | None = None,
        design: str = "auto",
        allocation: str = "equal",
        mask_blocks: ArrayLike | str | None = None,
        random_state: RandomState = None,
        n_jobs: int | None = None,
        ax: Axes | None = None,
        fill: bool = True,
        name: str | None = None,
        line_kw: dict | None = None,
    ) -> MPTCurveDisplay:
        """Compute the curve of a model and draw it.

        Parameters
        ----------
        estimator : object or callable
            A fitted estimator with ``conditional_log_prob(X, mask)``, or a function
            with these arguments.
        X : array-like of shape (n_samples, n_features)
            Rows to score; NaN marks missing entries.
        mask_sizes : array-like of int, default=None
            Sizes to measure, as in :func:`mpt_curve`. None measures all.
        n_masks : int, default=None
            Number of masks of each size. None is 10, or the `n_masks` of `MPTScorer`.
        design : {"auto", "all", "balanced", "independent"}, default="auto"
            How masks are drawn, as in :func:`mpt_curve`.
        allocation : {"equal", "neyman"}, default="equal"
            How the masks are divided among the sizes, as in :func:`mpt_curve`.
        mask_blocks : array-like of shape (n_features,), "span" or "word", default=None
            Structure of the masks, as in :func:`mpt_curve`.
        random_state : int, RandomState instance or None, default=None
            Determines the masks. None takes the `random_state` of the estimator.
        n_jobs : int, default=None
            Number of joblib workers. None takes the `n_jobs` of the estimator.
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.
        fill : bool, default=True
            Whether to fill the area that is the LML.
        name : str, default=None
            Name in the legend. None takes the class or function name.
        line_kw : dict, default=None
            Keyword arguments for the line, as in `matplotlib.axes.Axes.plot`.

        Returns
        -------
        display : MPTCurveDisplay
            The display, with its axes and figure.
        """
        curve = mpt_curve(
            estimator,
            X,
            mask_sizes=mask_sizes,
            n_masks=n_masks,
            design=design,
            allocation=allocation,
            mask_blocks=mask_blocks,
            random_state=random_state,
            n_jobs=n_jobs,
        )
        default = getattr(estimator, "__name__", type(estimator).__name__)
        display = cls(curve, name=default if name is None else name)
        return display.plot(ax=ax, fill=fill, line_kw=line_kw)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        fill: bool = True,
        name: str | None = None,
        line_kw: dict | None = None,
    ) -> MPTCurveDisplay:
        """Draw the curve.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.
        fill : bool, default=True
            Whether to fill the area that is the LML.
        name : str, default=None
            Name in the legend. None takes the one given at construction.
        line_kw : dict, default=None
            Keyword arguments for the line, as in `matplotlib.axes.Axes.plot`.

        Returns
        -------
        display : MPTCurveDisplay
            The display, with its axes and figure.
        """
        from matplotlib.ticker import MaxNLocator

        ax, curve = self._axes(ax), self.curve
        sizes, unit, area = curve._labels
        label, error = f"{area} = {curve.total:.2f}", curve._error_of_total()[0]
        if error >= 0.005:  # not nan, and not rounding
            label += f" ± {error:.2f}"
        name = self.name if name is None else name
        label = f"{label} nats" if name is None else f"{name}\n{label} nats"
        (self.line_,) = ax.plot(
            curve.mask_sizes, curve.scores, **{"label": label, **(line_kw or {})}
        )
        band = curve.mask_sizes, curve.scores, curve.std_errors, self.line_
        self.error_band_ = draw_band(ax, *band, alpha=0.35)
        self.fill_ = None
        if fill:  # one bar for each size, one feature wide
            edges = np.arange(curve.n_features + 1) + 0.5
            heights, color = curve.score_at(edges[1:] - 0.5), self.line_.get_color()
            style: dict[str, Any] = {"color": color, "alpha": 0.15, "linewidth": 0}
            self.fill_ = ax.stairs(heights, edges, fill=True, **style)
        ax.axhline(0, color="0.5", linewidth=0.8)
        ax.set(xlabel=sizes, ylabel=f"Masked score $S(m)$ (nats per {unit})")
        locator = ax.xaxis.get_major_locator()
        if isinstance(locator, MaxNLocator):  # not where the user chose another
            locator.set_params(integer=True)
        ax.legend()
        return self
