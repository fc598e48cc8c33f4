"""Draw curves, and comparisons of log marginal likelihoods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._measure.curve import MPTCurve
from sklearn_mpt._measure.mpt_curve import mpt_curve
from sklearn_mpt._measure.plotting import ComparisonDisplay, Display
from sklearn_mpt._seeds import RandomState

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        design : {"auto", "all", "chain", "balanced", "independent"}, default="auto"
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

        ax = self._axes(ax)
        curve = self.curve
        label = self._label(self.name if name is None else name)
        (self.line_,) = ax.plot(
            curve.mask_sizes, curve.scores, **{"label": label, **(line_kw or {})}
        )
        band = curve.mask_sizes, curve.scores, curve.std_errors, self.line_
        self.error_band_ = self._band(ax, *band, alpha=0.35)
        self.fill_ = self._fill(ax) if fill else None
        ax.axhline(0, color="0.5", linewidth=0.8)
        sizes, unit, _ = curve._labels
        ax.set(
            xlabel=sizes,
            ylabel=f"Masked score $S(m)$ (nats per {unit})",
        )
        locator = ax.xaxis.get_major_locator()
        if isinstance(locator, MaxNLocator):  # not where the user chose another
            locator.set_params(integer=True)
        ax.legend()
        return self

    def _fill(self, ax):
        """Fill one bar for each size 1..n_features, one feature wide."""
        edges = np.arange(self.curve.n_features + 1) + 0.5
        heights = self.curve.score_at(edges[1:] - 0.5)
        style: dict[str, Any] = {"color": self.line_.get_color(), "linewidth": 0}
        return ax.stairs(heights, edges, fill=True, alpha=0.15, **style)

    def _label(self, name):
        curve = self.curve
        area = f"{curve._labels[2]} = {curve.total:.2f}"
        error = curve._error_of_total()[0]
        if error >= 0.005:  # not nan, and not rounding
            area += f" ± {error:.2f}"
        return f"{area} nats" if name is None else f"{name}\n{area} nats"


class LMLComparisonDisplay(ComparisonDisplay):
    """Plot of differences to the best model, with 95% intervals.

    Create it with :meth:`LMLComparison.plot`.

    Parameters
    ----------
    comparison : LMLComparison
        The comparison to draw.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes with the differences.
    figure_ : matplotlib Figure
        Figure containing them.
    errorbar_ : matplotlib ErrorbarContainer
        Points and error bars.

    See Also
    --------
    compare_lml : Compare models.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import compare_lml
    >>> def normal(X, mask):
    ...     return np.where(mask, -0.5 * (X**2 + np.log(2 * np.pi)), 0.0)
    >>> def wide(X, mask):
    ...     return np.where(mask, -0.5 * (X**2 / 4 + np.log(8 * np.pi)), 0.0)
    >>> X = np.random.default_rng(0).normal(size=(50, 3))
    >>> display = compare_lml([normal, wide], X).plot()
    >>> [label.get_text() for label in display.ax_.get_yticklabels()]
    ['normal', 'wide']
    """

    def __init__(self, comparison: Any):
        self.comparison = comparison

    def plot(self, ax: Axes | None = None) -> LMLComparisonDisplay:
        """Draw the differences, the best model at the top.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.

        Returns
        -------
        display : LMLComparisonDisplay
            The display, with its axes and figure.
        """
        table = self.comparison
        low, high = table.lml_diff_interval()
        errors = np.stack([table.lml_diff - low, high - table.lml_diff]).clip(0)
        ax = self._plot_differences(ax, table.names, table.lml_diff, errors)
        best = f"{table.names[0]}, {table.lml[0]:.2f}"
        ax.set_xlabel(f"LML less that of {best} (nats per row)")
        return self


class OrderSpreadDisplay(Display):
    """Plot of the spread over orders of each row against its mean log-probability.

    Create it with :meth:`OrderSpread.plot`.

    Parameters
    ----------
    spread : OrderSpread
        The result to draw.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes with the rows.
    figure_ : matplotlib Figure
        Figure containing them.
    points_ : matplotlib PathCollection
        A point for each row.

    See Also
    --------
    order_spread : Measure the spread.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import OrderSpread
    >>> log_prob = np.array([[-1.0, -2.0], [-1.2, -2.5], [-1.1, -1.5]])
    >>> display = OrderSpread(log_prob).plot()
    >>> display.ax_.get_ylabel()
    'Standard deviation over orders (nats)'
    """

    def __init__(self, spread: Any):
        self.spread = spread

    def plot(self, ax: Axes | None = None) -> OrderSpreadDisplay:
        """Draw the rows.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.

        Returns
        -------
        display : OrderSpreadDisplay
            The display, with its axes and figure.
        """
        ax = self._axes(ax)
        spread = self.spread
        mean, std = spread.log_prob.mean(axis=0), spread.std
        finite = np.isfinite(mean) & np.isfinite(std)
        self.points_ = ax.scatter(mean[finite], std[finite], s=16, alpha=0.6)
        ax.axhline(0, color="0.5", linewidth=0.8)
        ax.set(
            xlabel="Mean log-probability over orders (nats)",
            ylabel="Standard deviation over orders (nats)",
            title=(
                f"{len(spread.log_prob)} orders, mixture less mean "
                f"{spread.mean_gap:.2g} nats, p = {spread.p_value:.2g}"
            ),
        )
        return self


class CumulativeCVDisplay(Display):
    """Plot of the predictive score per row against the number of rows seen.

    The area between the curve and zero is the log evidence; area below zero is
    negative. Create it with :meth:`CumulativeCV.plot`.

    Parameters
    ----------
    result : CumulativeCV
        The result to draw.
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
    error_band_ : matplotlib Artist
        Band of two standard errors over orders on either side.

    See Also
    --------
    cumulative_cv_score : Compute the curve.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import CumulativeCV
    >>> scores = np.array([[-3.0, -2.0], [-4.0, -2.5]])
    >>> display = CumulativeCV(np.array([2, 4]), scores, 6).plot()
    >>> display.ax_.get_xlabel()
    'Number of rows seen'
    """

    def __init__(self, result: Any, *, name: str | None = None):
        self.result = result
        self.name = name

    def plot(self, ax: Axes | None = None) -> CumulativeCVDisplay:
        """Draw the curve.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.

        Returns
        -------
        display : CumulativeCVDisplay
            The display, with its axes and figure.
        """
        ax = self._axes(ax)
        result = self.result
        middle = result.n_seen + (result.block_sizes - 1) / 2
        mean, error = result.predictive_scores, result.predictive_std_errors
        area = f"log evidence {result.log_evidence:.1f}"
        if result.std_error >= 0.05:  # not nan, and not rounding
            area += f" ± {result.std_error:.1f}"
        label = area if self.name is None else f"{self.name}: {area}"
        (self.line_,) = ax.plot(middle, mean, marker=".", label=label)
        band = middle, mean, error, self.line_
        self.error_band_ = self._band(ax, *band, alpha=0.2)
        ax.set(
            xlabel="Number of rows seen",
            ylabel="Predictive score (nats per row)",
        )
        ax.legend()
        return self


class EvidenceComparisonDisplay(ComparisonDisplay):
    """Plot of log Bayes factors to the best model, with two standard errors.

    Create it with :meth:`EvidenceComparison.plot`.

    Parameters
    ----------
    comparison : EvidenceComparison
        The comparison to draw.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes with the factors.
    figure_ : matplotlib Figure
        Figure containing them.
    errorbar_ : matplotlib ErrorbarContainer
        Points and error bars.

    See Also
    --------
    compare_evidence : Compare models.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import EvidenceComparison
    >>> scores = np.array([[-8.0, -9], [-9, -10.5]])
    >>> display = EvidenceComparison(["b", "a"], scores, True).plot()
    >>> [label.get_text() for label in display.ax_.get_yticklabels()]
    ['b', 'a']
    """

    def __init__(self, comparison: Any):
        self.comparison = comparison

    def plot(self, ax: Axes | None = None) -> EvidenceComparisonDisplay:
        """Draw the factors, the best model on top.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.

        Returns
        -------
        display : EvidenceComparisonDisplay
            The display, with its axes and figure.
        """
        table = self.comparison
        errors = 2 * table.log_bayes_factor_std_error
        ax = self._plot_differences(ax, table.names, table.log_bayes_factor, errors)
        ax.set_xlabel(f"Log Bayes factor to {table.names[0]} (nats)")
        return self
