"""Lists of values in messages to users, and tables of results that are printed."""

import numpy as np


def how_to_install(*extras):
    """Say what installs the packages of an extra, as the README does."""
    names = " or ".join(f"'.[{extra}]'" for extra in extras)
    return f"pip install {names}, in a copy of the repository."


def plain(value):
    """Return NumPy scalars as Python numbers: 3 for ``np.int64(3)``."""
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    return value.item() if isinstance(value, np.generic) else value


def joined(values, most=10):
    """Return values as text, without brackets; see `listed`."""
    first = values[:most]
    entries = map(repr, first.tolist() if isinstance(first, np.ndarray) else first)
    ending = ["..."] if len(values) > most else []
    return ", ".join([*entries, *ending])


def listed(values):
    """Return a list as text: its first entries, and "..." if there are more."""
    return f"[{joined(values)}]"


def examples_of(numbers):
    """Return the first few distinct numbers as text."""
    return ", ".join(f"{value:.6g}" for value in np.unique(numbers)[:3])


def text_table(names, columns, title=""):
    """Return a table as text: a line of titles, and a line for each name."""
    width = max(map(len, [title, *names]))
    head = "".join(f"{title:>{w}}" for title, w, _ in columns)
    lines = [f"{title:{width}}{head}"]
    for name, *values in zip(names, *(values for *_, values in columns), strict=True):
        cells = zip(values, (w for _, w, _ in columns), strict=True)
        numbers = "".join(f"{value:{w}.4f}" for value, w in cells)
        lines.append(f"{name:{width}}{numbers}")
    return "\n".join(lines)
