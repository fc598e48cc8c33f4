"""Conversion of tables to arrays of numbers, and back.

A table is a DataFrame or an array. Categories become codes 0..C-1, in the order of
their values; True and False become 1 and 0.
"""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import NamedTuple

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe

from sklearn_mpt._checks import check_choice
from sklearn_mpt._frames import (
    ADVICE,
    WORDS,
    array_of_objects,
    column_names,
    columns_of,
    frame_of,
    no_numbers,
    numbers_of,
    plain,
    words_for,
)
from sklearn_mpt._likelihoods import LIKELIHOODS
from sklearn_mpt._tables.kinds_of_values import kind_of_values, step_of

FROM_DTYPE, AUTO = "from_dtype", "auto"
LEAST_IDS = 20  # a column of at least so many distinct values is taken as names of rows
MOST_GAPS = 2  # largest number of levels for each distinct value of a numeric column
AS_CATEGORIES = "Its likelihood could be 'categorical'."


def kinds_of(likelihood, X, allowed=tuple(LIKELIHOODS)):
    """Return the kind of each column of X for the parameter `likelihood`.

    allowed : kinds that the model takes.
    """
    names = column_names(X)
    choices = [*allowed, FROM_DTYPE, AUTO]
    if isinstance(likelihood, str):
        check_choice(likelihood, "likelihood", choices)
        wanted = [likelihood] * len(names)
    elif isinstance(likelihood, Mapping):
        wanted = _from_mapping(likelihood, names, choices)
    elif not isinstance(likelihood, Sequence):
        raise TypeError(
            "likelihood must be a name, a sequence of names, a dict or 'from_dtype', "
            f"got {plain(likelihood)!r}."
        )
    elif len(likelihood) != len(names):
        raise ValueError(
            f"likelihood has {len(likelihood)} names, for {len(names)} columns of X."
        )
    else:
        wanted = list(likelihood)
        for name, kind in zip(names, likelihood, strict=True):
            check_choice(kind, f"likelihood of column {name!r}", choices)
    if not {FROM_DTYPE, AUTO} & set(wanted):
        return [str(kind) for kind in wanted]
    if FROM_DTYPE in wanted and not is_into_dataframe(X):
        raise TypeError(
            "likelihood='from_dtype' takes a DataFrame, whose columns have dtypes, got "
            f"{type(X).__name__}. Give the names of the kinds instead, or 'auto'."
        )
    return [
        _kind_of_column(str(kind), column, allowed)
        for kind, column in zip(wanted, columns_of(X), strict=True)
    ]


def _from_mapping(likelihood, names, choices):
    """Return the entry of the dict for each column, or that of `...` for others."""
    wanted, others = {}, "gaussian"
    for key, kind in likelihood.items():
        if key is ...:
            check_choice(kind, "likelihood of the other columns (...)", choices)
            others = str(kind)
            continue
        place = _place_of(key, names)
        check_choice(kind, f"likelihood of column {names[place]!r}", choices)
        if place in wanted:
            raise ValueError(
                f"likelihood names column {names[place]!r} twice: by its name and by "
                f"its number {place}. Name it once."
            )
        wanted[place] = str(kind)
    return [wanted.get(place, others) for place in range(len(names))]


def _kind_of_column(wanted, column, allowed):
    if wanted not in (FROM_DTYPE, AUTO):
        return wanted
    kind = "gaussian"
    if column.series is not None:
        kind = _kind_from_dtype(column, wanted)
    if kind == "ordinal" and kind not in allowed:
        kind = "categorical"
    if column.series is not None:
        _check_no_id(column, kind, wanted)
    if kind != "gaussian" or wanted == FROM_DTYPE:
        return kind
    values = column.numbers(AS_CATEGORIES)
    present = values[~column.missing]
    return kind_of_values(present, allowed, are_codes=column.series is None)


def _check_no_id(column, kind, wanted):
    """Raise an error if strings or integers are all distinct, like names of rows.

    Integers are numbers by their dtype, so only "auto" refuses them.
    """
    is_integer = kind == "gaussian" and column.series.dtype.is_integer()
    is_doubtful = kind == "categorical" or (is_integer and wanted == AUTO)
    if not is_doubtful or len(column.present) < LEAST_IDS:
        return
    values = column.present.tolist()
    is_string = all(isinstance(value, str) for value in values)
    if (is_string or is_integer) and len(set(values)) == len(values):
        raise ValueError(
            f"Column {column.name!r} holds {len(values)} values, all distinct, "
            f"like names or numbers of rows, for which likelihood={wanted!r} has no "
            "kind. Drop it, or name its kind: "
            f"likelihood={{{column.name!r}: {kind!r}, ...: {wanted!r}}}."
        )


def _place_of(key, names):
    """Return the place of the column that a key of the dict `likelihood` names."""
    key = plain(key)
    places = [j for j, name in enumerate(names) if name == key]
    if not places and isinstance(key, Integral) and -1 < key < len(names):
        places = [int(key)]
    if not places or isinstance(key, bool):
        raise ValueError(
            f"likelihood names a column {key!r}, which X does not have. Its "
            f"columns are {names[:20]}."
        )
    if len(places) > 1:
        raise ValueError(
            f"likelihood names a column {key!r}, and X has {len(places)} of that name, "
            f"at {places[:20]}. Name them by these numbers, or give a sequence with "
            "a name for each column."
        )
    return places[0]


def _kind_from_dtype(column, wanted=FROM_DTYPE):
    """Return the kind for the dtype of a column; `wanted` is for messages."""
    dtype = column.series.dtype
    if dtype == nw.Boolean:
        return "bernoulli"
    if dtype.is_numeric() and not isinstance(dtype, nw.Decimal):
        return "gaussian"
    if is_ordered(column):
        return "ordinal"
    if isinstance(dtype, nw.Categorical | nw.Enum | nw.String):
        return "categorical"
    if isinstance(dtype, nw.Object):
        _check_objects(column, wanted)
        return "categorical"
    what = no_numbers(column.present)
    shown = column.dtype if isinstance(dtype, nw.Unknown) else dtype
    raise TypeError(
        f"Column {column.name!r} has dtype {shown}, for which likelihood={wanted!r} "
        f"has no kind{f': {what} are not taken' if what else ''}. {ADVICE}"
    )


def is_ordered(column):
    """Return whether a column of a DataFrame has levels in an order."""
    if not isinstance(column.series.dtype, nw.Categorical | nw.Enum):
        return False
    if column.is_pandas:
        return bool(column.dtype.ordered)
    return isinstance(column.series.dtype, nw.Enum)


def _check_objects(column, wanted):
    """Raise an error for dates and similar objects, which are rarely categories."""
    what = " and ".join(sorted(words_for(column.present) & WORDS - {"strings"}))
    if what:
        raise TypeError(
            f"Column {column.name!r} holds {what} (dtype object), for which "
            f"likelihood={wanted!r} has no kind. {ADVICE} If they are categories, "
            "name the likelihoods of the columns in a dict."
        )


class Coding(NamedTuple):
    """Coding of a table as an array of numbers.

    kinds : kind of each column. categories : array of the categories of each column, or
    None.
    """

    kinds: list
    categories: list

    @classmethod
    def of(cls, kinds, X):
        """Make the coding of a table, with its categories."""
        categories = [
            CATEGORIES[kind](column) if kind in CATEGORIES else None
            for kind, column in zip(kinds, columns_of(X), strict=True)
        ]
        return cls(kinds, categories)

    @property
    def n_categories(self):
        return [1 if known is None else len(known) for known in self.categories]

    def encode(self, X):
        """Return an array of floats, NaN where missing."""
        codes = np.empty(np.shape(X))
        places = range(codes.shape[1])
        if is_into_dataframe(X):
            X = frame_of(X)
            numbers = numbers_of(X)
            for j, array in numbers.items():
                codes[:, j] = array
            places = [
                j for j in places if j not in numbers or self.categories[j] is not None
            ]
        for j, column in zip(places, columns_of(X, places=places), strict=True):
            known = self.categories[j]
            is_number = known is None
            codes[:, j] = (
                column.numbers(AS_CATEGORIES) if is_number else _codes(column, known)
            )
        return codes

    def decode(self, codes):
        """Return an array of values; of objects, if categories are not numbers."""
        columns = [
            codes[:, j] if known is None else known[codes[:, j].astype(int)]
            for j, known in enumerate(self.categories)
        ]
        if all(column.dtype.kind in "fiub" for column in columns):
            return np.column_stack(columns).astype(codes.dtype)
        return np.column_stack([column.astype(object) for column in columns])


def _categories(column):
    """Return the distinct values of a column, in order."""
    present = column.present
    if column.series is None:
        _check_codes(column, present)
    kinds = {_kind_of_value(value) for value in present}
    if len(kinds) > 1:
        raise TypeError(
            f"Column {column.name!r} mixes {' and '.join(sorted(kinds))}: categories "
            "must be of one type."
        )
    try:
        categories = sorted({*present.tolist(), *_declared(column)})
    except TypeError as error:
        raise TypeError(
            f"Column {column.name!r} holds objects that are no categories: {error}."
        ) from error
    if len(column.values) and not categories:
        raise ValueError(
            f"All entries of column(s) [{column.name!r}] of X are missing; drop the "
            "column(s)."
        )
    if len(categories) == 1:
        raise ValueError(
            f"Column {column.name!r} has one category, {plain(categories[0])!r}; "
            "drop the column."
        )
    return _array_of(categories)


def _declared(column):
    """Return the categories that the dtype of a column declares."""
    if column.series is None or not column.is_pandas:
        return []
    return [plain(value) for value in getattr(column.dtype, "categories", ())]


def _levels(column):
    """Return the levels of a column in order, including levels that no row has.

    They are the levels of an ordered dtype. Without one, they are the sorted numbers of
    a DataFrame's column, or the codes up to the largest in an array.
    """
    if column.series is not None and is_ordered(column):
        levels = list(column.dtype.categories)
    elif column.series is None:
        _check_codes(column, column.present)
        codes = column.present.astype(np.float64)
        levels = np.arange(codes.max(initial=0.0) + 1).tolist() if len(codes) else []
    else:
        strange = {_kind_of_value(v) for v in column.present} - {"numbers", "booleans"}
        if strange:
            raise TypeError(
                f"Column {column.name!r} holds {' and '.join(sorted(strange))}, which "
                "have no order. Make it an ordered categorical (pandas) or an Enum "
                "(polars)."
            )
        levels = _with_gaps(sorted(set(column.present.tolist())))
    if len(column.values) and not len(column.present):
        raise ValueError(
            f"All entries of column(s) [{column.name!r}] of X are missing; drop the "
            "column(s)."
        )
    if len(levels) == 1:
        raise ValueError(
            f"Column {column.name!r} has one category, {plain(levels[0])!r}; "
            "drop the column."
        )
    return _array_of([plain(level) for level in levels])


def _with_gaps(levels):
    """Add missing whole numbers between the levels, unless there are too many."""
    numbers = np.array(levels, dtype=np.float64)
    step = step_of(numbers) if len(levels) > 1 else 0
    if not step or np.ptp(numbers) / step + 1 > MOST_GAPS * len(levels):
        return levels
    every = np.arange(numbers[0], numbers[-1] + step, step)
    return [type(levels[-1])(number) for number in every.tolist()]


CATEGORIES = {
    "categorical": _categories,
    "ordinal": _levels,
    "partial_credit": _levels,
}
"""Functions that return the values of a column, for kinds that are coded."""


def _array_of(categories):
    """Return an array of one dimension with exactly these values.

    NumPy would convert tuples to a table, and drop null characters at the end of
    strings.
    """
    if categories and isinstance(categories[0], str | bool | int | float | np.generic):
        array = np.array(categories)
        if array.tolist() == categories:
            return array
    return array_of_objects(categories)


def _check_codes(column, present):
    codes = present.astype(np.float64)
    strange = codes[(codes < 0) | (codes % 1 != 0)]
    if len(strange):
        raise ValueError(
            f"Column {column.name!r}: categories of an array are codes 0, 1, 2, ... "
            f"and NaN (missing); found {np.unique(strange)[:3].tolist()}."
        )


def _kind_of_value(value):
    if isinstance(value, bool | np.bool_):
        return "booleans"
    if isinstance(value, str):
        return "strings"
    return "numbers" if isinstance(value, int | float | np.number) else "objects"


def _codes(column, categories):
    place = {value: code for code, value in enumerate(categories.tolist())}
    values = column.values.tolist()
    try:
        codes = np.array([place.get(value, -1) for value in values], dtype=np.float64)
    except TypeError as error:
        raise TypeError(
            f"Column {column.name!r} holds objects that are no categories: {error}."
        ) from error
    codes[column.missing] = np.nan
    unseen = {plain(v) for v, code in zip(values, codes, strict=True) if code == -1}
    if unseen:
        raise ValueError(
            f"Column {column.name!r} has categories that were not in fit: "
            f"{sorted(unseen, key=str)[:5]}; it had {categories[:20].tolist()}."
        )
    return codes


def check_no_categories(X):
    """Raise an error if a column of a DataFrame holds categories, even of numbers."""
    for column in columns_of(X, is_wanted=_is_of_categories):
        if len(column.present):
            raise ValueError(
                f"Column {column.name!r} holds {column.series.dtype}, not numbers; "
                "likelihood='from_dtype' takes it as categories."
            )


def _is_of_categories(dtype):
    return isinstance(dtype, nw.Categorical | nw.Enum)
