"""The answers of items as they come in tables, and their codes 0, 1, 2, ..."""

import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe

from sklearn_mpt._checks import listed
from sklearn_mpt._items.items import BINARY
from sklearn_mpt._matrices import median_codes
from sklearn_mpt._tables.frames import columns_of
from sklearn_mpt._tables.kinds import (
    CATEGORIES,
    is_of_categories,
    is_ordered,
    kinds_of_values,
)

KINDS = {
    "graded": "ordinal",
    "partial_credit": "ordinal",
    "gpcm": "ordinal",
    "nominal": "categorical",
}
"""Kinds of columns whose categories are the answers of an item, by its model."""


def has_ordered_columns(X):
    """Return whether X is a DataFrame with columns of ordered categories."""
    if not is_into_dataframe(X):
        return False
    return any(map(is_ordered, columns_of(X, is_wanted=is_of_categories)))


def kind_of_answers(name, column):
    """Return the kind of a column of answers to an item of the model `name`."""
    if name in BINARY and (column.series is None or not is_ordered(column)):
        return "bernoulli"
    return KINDS.get(name, "ordinal")


def answers_of(kind, column):
    """Return the answers of an item in the order of their codes; None if 0 and 1."""
    # An item with one answer has a second one: the next lower number, or 1 beside 0.
    if kind not in CATEGORIES:
        return None
    present = column.present
    if not column.is_coded and len(present) and kinds_of_values(present) == {"numbers"}:
        value = float(present[0])
        if value >= 0 and (present == value).all():
            return np.array([value - 1, value] if value > 0 else [value, value + 1])
    return CATEGORIES[kind](column)


def check_two_answers(name, column_name, answers):
    """Refuse more than two levels of an item that is right or wrong."""
    if name in BINARY and answers is not None and len(answers) != 2:
        raise ValueError(
            f"Column {column_name!r} has {len(answers)} levels, {listed(answers)}, but "
            f"its model {name!r} takes two: use 'graded', or another model for ordered "
            "answers."
        )


def expected_answers(prob, answers, kind):
    """Return expected answers of people, given the probabilities (n, c) of an item."""
    # They are means of numbers, medians of other ordered answers, and else modes.
    if answers is None:
        return prob[:, 1]
    prob = prob[:, : len(answers)]
    if answers.dtype.kind in "fiu":
        return prob @ answers.astype(float)
    codes = prob.argmax(1) if kind == "categorical" else median_codes(prob)
    return answers[codes]
