"""Kinds of the columns of a table, and the categories of those that have any.

A table is a DataFrame or an array. Strings that look like numbers, amounts or dates are
named to the user, with the line that converts them.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import product
from typing import NamedTuple

import narwhals.stable.v2 as nw
import numpy as np
import torch

from sklearn_mpt._checks import check_choice, examples_of, plain
from sklearn_mpt._likelihoods.gaussian import MAX_SIZE, MIN_SCALE
from sklearn_mpt._likelihoods.interval import codes_of
from sklearn_mpt._numbers import MAX_EXACT_INTEGER
from sklearn_mpt._tables.filling import (
    INTEGERS,
    NUMBERS,
    STRINGS,
    kind_of_days,
    types_among,
    zones_of,
)
from sklearn_mpt._tables.frames import (
    ADVICE,
    CODED_DTYPES,
    VALUE_WORDS,
    array_of_objects,
    by_column,
    column_names,
    columns_at,
    columns_of,
    is_interval,
    is_of_numbers,
    one_of_each_type,
    words_for,
)

INTERVAL = "interval"  # the kind of such columns
FROM_DTYPE = "from_dtype"
MIN_IDS = 20  # a column of at least so many distinct values is taken as names of rows
MAX_GAPS = 2  # largest number of levels for each distinct value of a numeric column
AS_CATEGORIES = "Its likelihood could be 'categorical'."
EMPTY, ONE_VALUE = "no values", "one value"  # why a column has no kind
CURRENCIES = "$€£¥"
THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?")
DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
# Forms of dates other than ISO. Where days and months cannot be told apart, "/" and "-"
# have the month first, as pandas has it, and "." the day.
DATES = [
    *("%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y", "%Y/%m/%d"),
    *("%m-%d-%Y", "%d-%m-%Y", "%m-%d-%y", "%d-%m-%y"),
    *("%d.%m.%Y", "%m.%d.%Y", "%d.%m.%y", "%m.%d.%y", "%Y.%m.%d"),
    *("%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%d %b %y", "%d %B %Y"),
    *("%b %d, %Y", "%B %d, %Y"),
]
TIMES = ["", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p"]
DATE_FORMATS = list(map("".join, product(DATES, TIMES)))


def codes_of_column(column):
    """Return numbers, codes of intervals, and NaN where missing; floats, (n,)."""
    lower, upper = column.values.copy(), column.values.copy()
    if _holds_intervals(column):
        for i in np.flatnonzero(~column.missing).tolist():
            if is_interval(column.values[i]):
                lower[i], upper[i] = column.values[i].left, column.values[i].right
    lower, upper = (column._replace(values=end).numbers() for end in (lower, upper))
    ends = np.stack([lower, upper])
    is_excessive = (np.isfinite(ends) & (np.abs(ends) > MAX_SIZE)).any(axis=0)
    is_excessive |= (lower == upper) & np.isinf(lower)
    if is_excessive.any():
        raise ValueError(
            f"Column {column.name!r} holds numbers such as "
            f"{examples_of(upper[is_excessive])}, whose squares double precision "
            "cannot hold: rescale it."
        )
    has_width = (lower < upper) & ~(np.isinf(lower) & np.isinf(upper))
    codes = codes_of(torch.from_numpy(lower), torch.from_numpy(upper))
    numbers = np.where(lower == upper, lower, np.nan)
    return np.where(has_width, codes.numpy(), numbers)


def _holds_intervals(column):
    return column.values.dtype == object and any(
        map(is_interval, one_of_each_type(column.present))
    )


def requested_kinds(likelihood, names, allowed, others="gaussian"):
    """Return what the parameter `likelihood` says for each of the columns `names`."""
    choices = [*allowed, FROM_DTYPE]
    if isinstance(likelihood, str):
        check_choice(likelihood, "likelihood", choices)
        return [str(likelihood)] * len(names)
    if not isinstance(likelihood, Mapping | Sequence):
        raise TypeError(
            "likelihood must be a name, a sequence of names, a dict or 'from_dtype', "
            f"got {plain(likelihood)!r}."
        )
    if isinstance(likelihood, Mapping) and ... in likelihood:
        likelihood = dict(likelihood)
        others = likelihood.pop(...)
        check_choice(others, "likelihood of the other columns (...)", choices)
    requested = by_column(likelihood, names, "likelihood")
    for j, kind in requested.items():
        check_choice(kind, f"likelihood of column {names[j]!r}", choices)
    return [str(requested.get(j, others)) for j in range(len(names))]


class ColumnErrors(ValueError, TypeError):
    """Errors of some columns of a table."""


def kinds_of(likelihood, X, allowed):
    """Return the kind of each column of X for the parameter `likelihood`."""
    kinds = requested_kinds(likelihood, column_names(X), allowed)
    if FROM_DTYPE not in kinds:
        return kinds
    problems = []
    for j, column in enumerate(columns_of(X)):
        try:
            if len(column.values) and not len(column.present):
                _refuse_empty(column)
            if kinds[j] == FROM_DTYPE:
                kinds[j] = _kind_from_dtype(column, allowed)
            if kinds[j] in CATEGORIES:
                CATEGORIES[kinds[j]](column)
        except (TypeError, ValueError) as error:
            problems.append(str(error))
    if problems:
        raise ColumnErrors(" ".join(problems))
    return kinds


def _refuse_empty(column):
    raise ValueError(
        f"All entries of column(s) [{column.name!r}] of X are missing; drop the "
        "column(s)."
    )


def _kind_from_dtype(column, allowed):
    """Return the kind of a column by its dtype, or raise an error that names it."""
    kind, reason = _kind_by_dtype(column, allowed)
    if reason:
        raise TypeError(
            f"Column {column.name!r} has {reason}, for which likelihood="
            f"{FROM_DTYPE!r} has no kind. {ADVICE} If they are categories, name the "
            "likelihoods of the columns in a dict."
        )
    values = column.present.tolist()
    is_name = kind == "categorical" and types_among(values) == {STRINGS}
    if is_name and len(values) == len(set(values)) >= MIN_IDS:
        raise ValueError(
            f"Column {column.name!r} holds {len(values)} values, all distinct, "
            f"like names or numbers of rows, for which likelihood={FROM_DTYPE!r} has "
            "no kind. Drop it, or name its kind: "
            f"likelihood={{{column.name!r}: {kind!r}, ...: {FROM_DTYPE!r}}}."
        )
    return kind


def kind_or_reason(requested, column, allowed):
    """Return the kind of a column, or why it has none: (kind, "") or (None, why)."""
    reason = _reason_by_values(column)
    if reason or requested != FROM_DTYPE:
        return (None, reason) if reason else (requested, "")
    if kind_of_days(column):
        return "gaussian", ""
    kind, reason = _kind_by_dtype(column, allowed)
    if kind != "categorical":
        return kind, reason
    values = column.present.tolist()
    words = words_for(values) - {"strings"}
    if words and isinstance(column.kind, nw.Object | None):
        return None, " and ".join(sorted(words))
    n_distinct = len(set(values))
    if len(values) < MIN_IDS or 2 * n_distinct <= len(values):
        return kind, ""
    look = look_of(values)
    contents = "names, ids or free text" if look is None else look.words
    return None, f"{n_distinct} distinct strings among {len(values)}: {contents}"


def _reason_by_values(column):
    present = column.present
    if not len(present):
        return EMPTY
    if present.dtype.kind in "fiub":
        if not np.isfinite(present).all():
            return "infinite values"
        if (present == present[0]).all():
            return ONE_VALUE
        low, high = float(present.min()), float(present.max())
        fits = high - low > MIN_SCALE and max(-low, high) < MAX_SIZE
        return "" if fits else "values whose squares double precision cannot hold"
    try:
        distinct = set(present.tolist())
    except TypeError:
        return f"entries of type {type(present[0]).__name__}"
    if {np.inf, -np.inf} & distinct:
        return "infinite values"
    return ONE_VALUE if len(distinct) == 1 else ""


def _kind_by_dtype(column, allowed):
    """Return the kind of a column with values, or why it has none; see above."""
    dtype, is_coded = column.kind, column.is_coded
    if not is_coded and _holds_intervals(column):
        reason = "intervals, which MPTLinearVAE takes"
        return (INTERVAL, "") if INTERVAL in allowed else (None, reason)
    if dtype == nw.Boolean:
        return "bernoulli", ""
    if dtype is not None and is_of_numbers(dtype):
        return "gaussian", ""
    if is_ordered(column) and "ordinal" in allowed:
        return "ordinal", ""
    if not is_coded and not isinstance(dtype, nw.Object | nw.String | None):
        return None, f"dtype {column.dtype if isinstance(dtype, nw.Unknown) else dtype}"
    kinds, words = kinds_of_values(column.present), words_for(column.present)
    if len(kinds) > 1:
        return None, f"{' and '.join(sorted(kinds))} mixed"
    if len(zones_of(column)) > 1:
        return None, "dates in several time zones"
    if words & VALUE_WORDS - {"strings"}:  # which are rarely categories
        return None, " and ".join(sorted(words))
    kind = {("numbers",): "gaussian", ("booleans",): "bernoulli"}.get(tuple(kinds))
    return "categorical" if is_coded else kind or "categorical", ""


def is_of_categories(dtype):
    """Return whether a dtype of narwhals is one of categories."""
    return isinstance(dtype, CODED_DTYPES)


def is_ordered(column):
    """Return whether a column has a dtype of levels in an order."""
    if column.is_coded and column.is_pandas:
        return bool(column.dtype.ordered)
    return isinstance(column.kind, nw.Enum)


def _categories(column):
    """Return the distinct values of a column, in order."""
    present = column.present
    if column.series is None and present.dtype != object:
        _check_codes(column)
    kinds = kinds_of_values(present)
    if len(kinds) > 1:
        raise TypeError(
            f"Column {column.name!r} mixes {' and '.join(sorted(kinds))}: categories "
            "must be of one type."
        )
    declared = ()
    if column.series is not None and column.is_pandas:
        declared = map(plain, getattr(column.dtype, "categories", ()))
    try:
        categories = sorted({*present.tolist(), *declared})
    except TypeError as error:
        raise TypeError(
            f"Column {column.name!r} holds objects that are no categories: {error}."
        ) from error
    return _array_of_several(column, categories)


def _levels(column):
    """Return the levels of a column in order, including levels that no row has."""
    if is_ordered(column):
        levels = list(column.dtype.categories)
    elif column.series is None and column.values.dtype != object:
        _check_codes(column)
        codes = column.present.astype(np.float64)
        levels = np.arange(codes.min(), codes.max() + 1).tolist() if len(codes) else []
    else:
        others = kinds_of_values(column.present) - {"numbers", "booleans"}
        if others:
            raise TypeError(
                f"Column {column.name!r} holds {' and '.join(sorted(others))}, which "
                "have no order. Make it an ordered categorical (pandas) or an Enum "
                "(polars)."
            )
        levels = sorted(set(column.present.tolist()))
        numbers = np.array(levels, dtype=np.float64)
        step = step_of(numbers) if len(levels) > 1 else 0
        if step and np.ptp(numbers) / step + 1 <= MAX_GAPS * len(levels):
            numbers = np.arange(numbers[0], numbers[-1] + step, step)
            levels = list(map(type(levels[-1]), numbers.tolist()))
    return _array_of_several(column, list(map(plain, levels)))


def step_of(values):
    """Return the greatest common divisor of the distances between whole values."""
    if len(values) == 0 or (values % 1 != 0).any():
        return 0
    if np.abs(values).max() > MAX_EXACT_INTEGER:
        return 0
    return math.gcd(*np.diff(np.unique(values)).astype(np.int64).tolist())


CATEGORIES = {
    "categorical": _categories,
    "ordinal": _levels,
    "partial_credit": _levels,
}
"""Functions that return the values of a column, for kinds that are coded."""


def _array_of_several(column, categories):
    """Return an array of one dimension with exactly these values."""
    if len(column.values) and not categories:
        _refuse_empty(column)
    if len(categories) == 1:
        raise ValueError(
            f"Column {column.name!r} has one category, {plain(categories[0])!r}; "
            "drop the column."
        )
    if categories and isinstance(categories[0], str | bool | int | float | np.generic):
        array = np.array(categories)
        if array.tolist() == categories:
            return array
    return array_of_objects(categories)


def _check_codes(column):
    codes = column.present.astype(np.float64)
    invalid = codes[(codes < 0) | (codes % 1 != 0)]
    if len(invalid):
        raise ValueError(
            f"Column {column.name!r}: categories of an array are codes 0, 1, 2, ... "
            f"and NaN (missing); found {examples_of(invalid)}. In a DataFrame all "
            "numbers can be categories; in an array -1 often marks missing entries."
        )


def kinds_of_values(values):
    """Return the kinds of values: booleans, strings, numbers, objects."""
    return {NUMBERS if kind == INTEGERS else kind for kind in types_among(values)}


class Look(NamedTuple):
    """What most of the strings of a column look like.

    words : such as "numbers as strings". read : function of a string, which fails for
    others; strptime for dates with a date_format. edit : pattern and replacement before
    a number is read. n_lost : strings that do not look so, of n_all.
    """

    words: str
    read: Callable = float
    edit: tuple[str, str] | None = None
    date_format: str = ""
    n_lost: int = 0
    n_all: int = 0

    def reads(self, value):
        """Return whether a string looks so."""
        try:
            if self.date_format:
                datetime.strptime(value, self.date_format)
            else:
                self.read(value)
        except ValueError:
            return False
        return True

    def advice(self, name, is_array, library):
        """Return the end of a sentence: how the column of this name is converted."""
        kind, gaps = self.words.split()[0], ""
        if self.n_lost:
            gaps = f"{self.n_lost} of {self.n_all} are no {kind}"
            if 5 * self.n_lost >= self.n_all:
                return f"{gaps}."
            gaps += " and become gaps; "
        form = f"{self.date_format!r}, " if self.date_format else ""
        edit = "" if self.edit is None else "{!r}, {!r}".format(*self.edit)
        if library == "polars":
            values = f"pl.col({name!r})" + (edit and f".str.replace_all({edit})")
            read = "cast(pl.Float64, strict=False)"
            if kind == "dates":
                read = f"str.to_datetime({form}strict=False)"
            return f"{gaps}convert them: X = X.with_columns({values}.{read})."
        column = f"X[:, {name!r}]" if is_array else f"X[{name!r}]"
        values = f"pd.Series({column})" if is_array else column
        values += edit and f".str.replace({edit}, regex=True)"
        read = f"pd.to_numeric({values}, errors='coerce')"
        if kind == "dates":
            form = form and f"format={form}"
            read = f"pd.to_datetime({values}, {form}errors='coerce')"
        return f"{gaps}convert them: {column} = {read}."


def look_of(values):
    """Return the `Look` of most of the distinct strings among values, or None."""
    distinct = {value.strip() for value in values if isinstance(value, str)}
    if 2 * sum(any(map(str.isdigit, value)) for value in distinct) <= len(distinct):
        return None
    numbers, dates = "numbers as strings", "dates as strings"
    looks = [Look(numbers), Look(dates, datetime.fromisoformat)]
    if all(
        DECIMAL_COMMA.fullmatch(value) and not THOUSANDS.fullmatch(value)
        for value in distinct
        if "," in value
    ):
        words, edit = f"{numbers} with ',' before decimals", (",", ".")
        looks.append(Look(words, lambda v: float(v.replace(*edit, 1)), edit))
    signs = [c for c in CURRENCIES + "%," if any(c in value for value in distinct)]
    words = f"{numbers} with {' and '.join(map(repr, signs))}"
    looks.append(Look(words, _amount, (f"[{''.join(signs)}]", "")))
    looks += [Look(dates, date_format=form) for form in DATE_FORMATS]
    some = sorted(distinct)[:: max(1, len(distinct) // 20)]
    found = []
    for look in looks:
        is_likely = any(map(look.reads, some))
        alike = set(filter(look.reads, distinct if is_likely else ()))
        if 2 * len(alike) > len(set(values)):
            n_lost = sum(
                not (isinstance(v, str) and v.strip() in alike) for v in values
            )
            found.append(look._replace(n_lost=n_lost, n_all=len(values)))
    return min(found, key=lambda look: look.n_lost, default=None)


def _amount(value):
    """Read a number with signs of currencies, percent and thousands."""
    value = re.sub(rf"[{CURRENCIES}%]", "", value).strip()
    return float(value.replace(",", "") if THOUSANDS.fullmatch(value) else value)


def looks_of_strings(X, reader, reasons, indices=None):
    """Return a sentence on each column of strings that look like numbers or dates."""
    indices = [
        j
        for j in (range(len(reader.kinds)) if indices is None else indices)
        if reader.kinds[j] == "categorical"
        or " distinct strings " in reasons.get(j, "")
    ]
    sentences = []
    for j, column in columns_at(X, indices):
        is_of_levels = reader.storage[j]["numbers"] == "levels"
        look = None if is_of_levels else look_of(column.present.tolist())
        if look is not None:
            is_array = column.series is None
            library = reader.storage[j]["library"]
            taken = "" if j in reasons else ", which are taken as categories"
            sentences.append(
                f"Column {column.name!r} holds {look.words}{taken}; "
                f"{look.advice(column.name, is_array, library)}"
            )
    return sentences
