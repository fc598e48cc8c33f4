"""Figures of the examples: none is shown with axes on which nothing is drawn."""

import matplotlib.pyplot as plt


def refuse_empty_axes(block, block_vars, gallery_conf):
    """Raise a ValueError if a figure that a block leaves open has empty axes.

    The gallery calls it after each block, and closes its figures then: what a later
    block draws on them is not seen. It adds no picture.
    """
    for number in plt.get_fignums():
        n_empty = sum(map(is_empty, plt.figure(number).axes))
        if n_empty:
            raise ValueError(
                f"{block_vars['src_file']}: nothing is drawn on {n_empty} axes of a "
                "figure at the end of its block. Draw a figure in one block."
            )
    return ""


def is_empty(ax):
    """Return whether axes are shown, with nothing on them."""
    return ax.axison and not (ax.has_data() or ax.texts or ax.artists)
