"""The base of all displays: axes to draw on, and what several displays draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Display:
    """Base of displays, which keep the axes that they draw on.

    Attributes
    ----------
    ax_ : matplotlib Axes or ndarray of Axes
    figure_ : matplotlib Figure
    """

    ax_: Any
    figure_: Any

    def _axes(self, ax: Axes | None, shape: tuple[int, ...] = (), **figure_params):
        """Return and keep the given axes; with None, those of a new figure.

        shape : rows and columns of axes; one axes if empty. figure_params : parameters
        of ``matplotlib.pyplot.subplots``.
        """
        import matplotlib.pyplot as plt

        if ax is None:
            _, ax = plt.subplots(*shape, layout="constrained", **figure_params)
        self.ax_ = np.array(ax) if shape else ax
        self.figure_ = np.ravel(self.ax_)[0].figure
        return self.ax_

    def _band(self, ax, x, mean, error, line, alpha):
        """Fill two standard errors on either side of a line, in its colour."""
        return ax.fill_between(
            x,
            mean - 2 * error,
            mean + 2 * error,
            alpha=alpha,
            color=line.get_color(),
            linewidth=0,
        )


class ComparisonDisplay(Display):
    """Base of displays of differences between models, one above the other."""

    def _plot_differences(self, ax, names, values, errors):
        """Draw values with error bars, the first model at the top.

        errors : half lengths of the bars, (n,) or (2, n).
        """
        ax = self._axes(ax, figsize=(6.4, 1.2 + 0.35 * len(names)))
        heights = np.arange(len(names))
        self.errorbar_ = ax.errorbar(values, heights, xerr=errors, fmt="o", capsize=3)
        ax.axvline(0, color="0.5", linewidth=0.8)
        ax.set_yticks(heights, names)
        ax.margins(y=0.1)
        ax.invert_yaxis()
        return ax
