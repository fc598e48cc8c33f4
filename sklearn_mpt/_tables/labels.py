"""Labels of Series, DataFrames and dicts, by which their entries are found.

Entries of columns, items, classes and estimates have labels. Rows go by their position,
as in scikit-learn.
"""

from collections.abc import Mapping
from numbers import Integral

import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe

from sklearn_mpt._messages import listed, plain
from sklearn_mpt._tables.frames import column_names

COLUMNS = "columns of X"


def by_column(values, names, parameter, noun="column"):
    """Return the values of a dict, by the index of the column that each key names."""
    found = {}
    for key, value in values.items():
        j = column_index(key, names, parameter, noun)
        if j in found:
            raise ValueError(
                f"{parameter} names {noun} {names[j]!r} twice, by its name or its "
                f"number {j}. Name it once."
            )
        found[j] = value
    return found


def column_index(key, names, parameter, noun="column"):
    """Return the index of the column, or item, that a name or a number stands for."""
    key, a = plain(key), "an" if noun[0] in "aeiou" else "a"
    is_bool = isinstance(key, bool)  # True equals 1
    found = [
        j
        for j, name in enumerate(names)
        if name == key and isinstance(name, bool) == is_bool
    ]
    is_index = isinstance(key, Integral) and not is_bool
    if not found and is_index and -1 < key < len(names):
        found = [int(key)]
    if not found:
        raise ValueError(
            f"{parameter} names {a} {noun} {key!r}, which X does not have. Its "
            f"{noun}s are {listed(names)}."
        )
    if len(found) > 1:
        raise ValueError(
            f"{parameter} names {a} {noun} {key!r}, and X has {len(found)} of that "
            f"name, at {listed(found)}. Name them by these numbers, or give a "
            f"sequence with an entry for each {noun}."
        )
    return found[0]


def labels_of(value, axis=0):
    """Return the labels along an axis of a table, or None where there are none."""
    if isinstance(value, Mapping):
        return list(map(plain, value)) or None if axis == 0 else None
    if is_into_dataframe(value) and axis == 1:
        return column_names(value)
    has_index = hasattr(value, "iloc") and axis == 0
    return value.index.tolist() if has_index else None


def indices_of(names, labels, parameter, whose=COLUMNS):
    """Return the index of each name among the labels of a parameter."""
    labels, names = (list(map(plain, part)) for part in (labels, names))
    if labels == names:
        return np.arange(len(names))
    index = {label: i for i, label in enumerate(labels)}
    for known in (names, list(range(len(labels)))):
        if len(labels) == len(index) == len(known) and set(known) == set(index):
            return np.array([index[label] for label in known], dtype=int)
    raise ValueError(
        f"{parameter} must have the labels of the {whose}, {listed(names)}, or 0, 1, "
        f"..., got {listed(labels)}. An array, such as of to_numpy(), goes by position."
    )


def first_labels(values):
    """Return the labels of the first value that has any, or None."""
    found = (labels_of(value) for value in values)
    return next((labels for labels in found if labels is not None), None)


def aligned(value, names, parameter, whose=COLUMNS):
    """Return a value in the order of names of its axes; an array, if it has labels."""
    labels = [labels_of(value, axis) for axis in range(len(names))]
    if all(part is None for part in labels):
        return value
    is_dict = isinstance(value, Mapping)
    array = np.asarray(list(value.values()) if is_dict else value)
    for axis, (known, found) in enumerate(zip(names, labels, strict=True)):
        if known is not None and found is not None:
            array = array.take(indices_of(known, found, parameter, whose), axis)
    return array


def check_columns(table, names, parameter, whose=COLUMNS):
    """Refuse a table, or a row of it, whose columns are not these names in order."""
    labels = labels_of(table, 1 if is_into_dataframe(table) else 0)
    if labels is None or names is None:
        return
    names, numbers = list(map(plain, names)), list(range(len(labels)))
    if labels == names:
        return
    if set(labels) == set(names) or numbers not in (labels, names):
        raise ValueError(
            f"{parameter} must have the {whose} in the same order, {listed(names)}, "
            f"got {listed(labels)}. An array, such as of to_numpy(), goes by position."
        )
