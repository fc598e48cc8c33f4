"""The base of all displays: axes to draw on, and what several displays draw."""

from __future__ import annotations

from typing import Any

import numpy as np


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
