"""Lists of values in messages to users."""

import numpy as np

MAX_LISTED = 10  # more entries of a list are shown as "..."
MAX_EXAMPLES = 3  # of values that are not allowed


def joined(values):
    """Return values as text, without brackets; see `listed`."""
    first = values[:MAX_LISTED]
    entries = map(repr, first.tolist() if isinstance(first, np.ndarray) else first)
    ending = ["..."] if len(values) > MAX_LISTED else []
    return ", ".join([*entries, *ending])


def listed(values):
    """Return a list as text: its first entries, and "..." if there are more.

    values : list or ndarray of shape (n,)
    """
    return f"[{joined(values)}]"


def examples_of(numbers):
    """Return the first few distinct numbers as text."""
    return ", ".join(f"{value:.6g}" for value in np.unique(numbers)[:MAX_EXAMPLES])
