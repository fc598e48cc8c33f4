"""How columns store their values, and how gaps are filled with values like these.

The value that fills a gap depends on its row, and on the dtype, range and categories
that the column had in `fit`. It never depends on the other rows of the same call.

Dates become days since the first date that `fit` saw, time differences become days.
Dates with a time zone are read off its clock.
"""

from datetime import UTC, datetime
from numbers import Integral, Real
from typing import NamedTuple, Self
from zoneinfo import ZoneInfo

import narwhals.stable.v2 as nw
import numpy as np

from sklearn_mpt._tables.frames import (
    Column,
    array_of_objects,
    one_of_each_type,
    words_for,
)

DATES, DURATIONS = "dates", "durations"
DTYPES = {DATES: "M8[us]", DURATIONS: "m8[us]"}
# Steps to which dates are rounded, in microseconds.
STEPS = [
    int(np.timedelta64(1, unit) / np.timedelta64(1, "us"))
    for unit in ("us", "ms", "s", "m", "h", "D")
]
DAY = max(STEPS)
# Bounds in microseconds: of Python's dates, and of nanoseconds in 64 bits.
PYTHON_BOUNDS = tuple(
    np.array([datetime.min, datetime.max], "M8[us]").astype(int).tolist()
)
LAST = int(np.timedelta64(np.iinfo(np.int64).max, "ns").astype("m8[us]").astype(int))
NANOSECOND_BOUNDS = -LAST, LAST

BOOLEANS, INTEGERS, NUMBERS = "booleans", "integers", "numbers"
STRINGS, LEVELS, OBJECTS = "strings", "levels", "objects"
INT64 = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
TYPES = {BOOLEANS: bool, INTEGERS: int, NUMBERS: float}


class DayCoding(NamedTuple):
    """How dates or time differences of a column are coded as days.

    holds : DATES or DURATIONS. entry : name of the type of its entries as Python
    objects. origin : date that is day 0. step : common divisor of the distances of all
    dates from it. least, largest : bounds of the dtype. All are in microseconds. zone :
    name of the time zone whose clock shows the dates; empty without one.
    """

    holds: str
    entry: str
    origin: int
    step: int
    least: int
    largest: int
    zone: str = ""

    @classmethod
    def from_column(cls, column, holds) -> Self:
        """Read a column whose dates or time differences are of kind `holds`."""
        present = _microseconds(column, holds)[~column.missing]
        origin = int(present.min()) if holds == DATES and len(present) else 0
        divisor = int(np.gcd.reduce(present - origin)) if len(present) else 0
        step = max(length for length in STEPS if divisor % length == 0)
        names = {type(value).__name__ for value in column.present}
        entry = names.pop() if len(names) == 1 else "datetime"
        is_in_ns = column.series is not None and "ns" in str(column.dtype)
        bounds = NANOSECOND_BOUNDS if is_in_ns else PYTHON_BOUNDS
        return cls(holds, entry, origin, step, *bounds, *zones_of(column))

    def encode(self, column):
        """Return the numbers of days, NaN where missing."""
        if not len(column.present):
            return np.full(len(column.values), np.nan)
        if kind_of_days(column) != self.holds or zones_of(column) != {self.zone}:
            zone = f"in the time zone {self.zone!r}" if self.zone else ""
            raise ValueError(
                f"Column {column.name!r} must hold {self.holds}, as in fit, "
                f"{zone or 'without a time zone'}."
            )
        days = (_microseconds(column, self.holds) - self.origin) / DAY
        return np.where(column.missing, np.nan, days)

    def decode(self, days, library):
        """Return a list of dates or time differences, those nearest to `days`."""
        steps = np.rint(np.asarray(days, dtype=np.float64) * (DAY / self.step))
        exact = np.clip(
            steps * self.step + self.origin, float(self.least), float(self.largest)
        )
        whole = np.clip(exact.astype(np.int64), self.least, self.largest)
        values = whole.astype(DTYPES[self.holds])
        if self.zone:
            zone = _zone_of_name(self.zone)
            clock = [value.replace(tzinfo=zone) for value in values.tolist()]
            if self.entry != "Timestamp" or not hasattr(library, "Timestamp"):
                return clock
            # a time that the clock skips, or shows twice, is one of those around it
            exact = [library.Timestamp(time.astimezone(UTC)) for time in clock]
            return [time.tz_convert(self.zone) for time in exact]
        if self.entry in ("Timestamp", "Timedelta"):
            make = getattr(library, self.entry, lambda value: value.item())
            return [make(value) for value in values]
        if self.entry in ("datetime64", "timedelta64"):
            return list(values)
        return values.astype("M8[D]" if self.entry == "date" else values.dtype).tolist()


def kind_of_days(column):
    """Return DATES, DURATIONS or, for all other columns, ""."""
    if isinstance(column.kind, nw.Datetime | nw.Date):
        return DATES
    if isinstance(column.kind, nw.Duration):
        return DURATIONS
    if isinstance(column.kind, nw.Object | None):
        words = words_for(column.present)
        if words in ({DATES}, {DURATIONS}) and len(zones_of(column)) < 2:
            return words.pop()
    return ""


def zones_of(column):
    """Return the set of the names of the time zones of dates; "" is none."""
    if isinstance(column.kind, nw.Datetime):
        return {column.kind.time_zone or ""}
    if column.values.dtype != object:
        return {""}
    zones = {getattr(value, "tzinfo", None) for value in column.present.tolist()}
    return {"" if zone is None else str(zone) for zone in zones} or {""}


def _zone_of_name(name):
    """Return the time zone of a name such as "Europe/Paris" or "UTC+02:00"."""
    offset = name.removeprefix("UTC")
    if name == "UTC" or offset[:1] in ("+", "-"):
        return datetime.fromisoformat(f"2000-01-01T00:00{offset or '+00:00'}").tzinfo
    return ZoneInfo(name)


def _microseconds(column, holds):
    """Return whole microseconds; arbitrary where missing."""
    entries = column.values.copy()
    entries[column.missing] = None
    if zones_of(column) != {""}:
        clock = [e if e is None else e.replace(tzinfo=None) for e in entries.tolist()]
        entries = array_of_objects(clock)
    return np.array(entries.tolist(), dtype=DTYPES[holds]).astype(np.int64)


class ColumnStorage(NamedTuple):
    """How a column is stored.

    numbers : str
        Kind of numbers in the column, if it is read as numbers: BOOLEANS, INTEGERS,
        NUMBERS; LEVELS of a categorical dtype, which stores nothing else; or OBJECTS,
        if there are no values.
    bounds : tuple of int
        Least and largest integer.
    library, dtype : str
        Names of the DataFrame library and of the dtype; empty for columns of arrays.
    levels : ndarray of objects, or None
        All values of a categorical dtype, in order. None if it takes any string.
    is_ordered : bool
        Whether the categorical dtype is ordered.
    is_whole : bool
        Whether all floats are whole numbers, as pandas stores integers with gaps.
    days : tuple
        Fields of the `DayCoding` of dates and time differences; empty for other
        columns.
    """

    numbers: str = NUMBERS
    bounds: tuple[int, int] = INT64
    library: str = ""
    dtype: str = ""
    levels: np.ndarray | None = None
    is_ordered: bool = False
    is_whole: bool = False
    days: tuple = ()

    @classmethod
    def from_column(cls, column):
        """Return the storage of a column that `columns_of` has read."""
        storage = cls()
        if column.series is not None:
            kind = column.kind
            dtype = str(column.dtype) if column.is_pandas else type(kind).__name__
            storage = cls(library=column.backend.__name__, dtype=dtype)
            if column.is_coded:
                storage = storage._replace(numbers=LEVELS)
                if not hasattr(column.dtype, "categories"):
                    return storage
                levels = array_of_objects(list(column.dtype.categories))
                is_ordered = bool(getattr(column.dtype, "ordered", True))
                return storage._replace(levels=levels, is_ordered=is_ordered)
            if kind == nw.Boolean:
                return storage._replace(numbers=BOOLEANS)
            if kind.is_integer():
                n_values = 2 ** int(type(kind).__name__.removeprefix("U")[3:])
                low = 0 if kind.is_unsigned_integer() else -(n_values // 2)
                bounds = low, low + n_values - 1
                return storage._replace(numbers=INTEGERS, bounds=bounds)
            if kind.is_float():
                present = column.numbers()[~column.missing]
                is_whole = bool((present == np.rint(present)).all())
                return storage._replace(is_whole=is_whole)
        elif column.values.dtype != object:
            return storage
        if holds := kind_of_days(column):
            return storage._replace(days=tuple(DayCoding.from_column(column, holds)))
        kinds = types_among(column.present)
        if kinds == {INTEGERS}:  # of Python, of any size
            low, high = min(*INT64, *column.present), max(*INT64, *column.present)
            return storage._replace(numbers=INTEGERS, bounds=(int(low), int(high)))
        if kinds == {BOOLEANS}:
            return storage._replace(numbers=BOOLEANS)
        return storage._replace(numbers=NUMBERS if kinds else OBJECTS)

    def encode(self, column, of_strings):
        """Return a column of numbers, dates or time differences as floats."""
        if self.days:
            return DayCoding(*self.days).encode(column)
        return column.numbers(of_strings)

    def decode(self, numbers, categories, library):
        """Return a list of the values nearest to numbers, or those of codes."""
        if categories is not None:
            return categories[numbers.astype(int)].tolist()
        if self.days:
            return DayCoding(*self.days).decode(numbers, library)
        if self.numbers == BOOLEANS:
            return (numbers >= 0.5).tolist()
        if self.numbers == INTEGERS:
            low, high = self.bounds  # ints: as floats, large bounds are rounded
            return [
                min(max(round(number), low), high)
                for number in np.clip(numbers, low, high).tolist()
            ]
        if self.numbers == LEVELS:
            levels = [v for v in self.levels.tolist() if isinstance(v, Real)]
            distance = np.abs(np.subtract.outer(numbers, np.array(levels, float)))
            return [levels[nearest] for nearest in distance.argmin(axis=1).tolist()]
        return numbers.tolist()

    def examples(self, categories, library):
        """Return values that a dtype must store to store all that fill gaps."""
        if categories is not None:
            return categories.tolist()
        if self.days:
            return self.decode(np.zeros(1), None, library)
        known = {BOOLEANS: [False, True], INTEGERS: list(self.bounds)}
        if self.numbers == LEVELS:
            return self.levels.tolist()
        return known.get(self.numbers, [0.5])

    def dtype_for(self, column, values):
        """Return the dtype of `fit`, or None: that of values in a column's library."""
        backend, is_pandas = column.backend, column.is_pandas
        levels = values if self.levels is None else self.levels.tolist()
        if is_pandas and self.numbers == LEVELS:
            return backend.CategoricalDtype(levels, ordered=self.is_ordered)
        if self.library == backend.__name__:
            if is_pandas:
                return self.dtype
            return nw.Enum(levels) if self.dtype == "Enum" else getattr(nw, self.dtype)
        is_of_names = self.numbers == LEVELS and types_among(values) == {STRINGS}
        return nw.Categorical if is_of_names else None


def types_among(values):
    """Return the types of values: of booleans, integers, numbers, strings, objects."""
    types = (
        ((bool, np.bool_), BOOLEANS),
        (Integral, INTEGERS),
        (Real, NUMBERS),
        (str, STRINGS),
        (object, OBJECTS),
    )
    return {
        next(name for kinds, name in types if isinstance(value, kinds))
        for value in one_of_each_type(values)
    }


def filled_series(column, numbers, gaps, storage, categories):
    """Return the series of a column of a DataFrame with its gaps filled."""
    column, library = column._replace(missing=gaps), column.backend
    given, nearest = ColumnStorage.from_column(column), storage
    is_same = (given.library, given.dtype) == (storage.library, storage.dtype)
    is_kept = is_same and given.numbers != LEVELS
    if categories is None and storage.is_whole and column.kind.is_integer():
        is_kept, nearest = True, given
    is_kept = is_kept or _stores(column, given, storage.examples(categories, library))
    entries = column.values.astype(object)
    values = nearest.decode(numbers[gaps], categories, library)
    entries[gaps] = array_of_objects(values)
    entries = entries.tolist()
    if is_kept:
        return column.series_of(entries, column.dtype)
    known = entries if categories is None else categories.tolist()
    if categories is None and storage.numbers in TYPES and not storage.days:
        # a dtype of integers, or booleans, cannot store all numbers that are given
        low, high = (0, 1) if storage.numbers == BOOLEANS else storage.bounds
        is_whole = (low <= entry <= high and entry % 1 == 0 for entry in entries)
        if storage.numbers != NUMBERS and not all(is_whole):
            if any(isinstance(entry, float) for entry in entries):
                entries = list(map(float, entries))
            return column.series_of(entries, None)
        entries = known = list(map(TYPES[storage.numbers], entries))
    return column.series_of(entries, storage.dtype_for(column, known))


def _stores(column, given, values):
    """Return whether the dtype of a column stores values, and as these types."""
    if given.levels is not None:
        return set(values) <= set(given.levels.tolist())
    if given.numbers == OBJECTS or isinstance(column.kind, nw.Object):
        return False
    try:
        if column.is_pandas:
            stored = column.backend.Series(values, dtype=column.dtype).tolist()
        else:
            series = nw.new_series("", values, column.dtype, backend=column.backend)
            stored = series.to_list()
    except Exception:  # of each library another one
        return False
    return stored == values and list(map(type, stored)) == list(map(type, values))


def drawn_series(name, numbers, storage, categories, backend):
    """Return a series of the dtype of `fit` that holds drawn numbers or codes."""
    template = nw.new_series(str(name), numbers.tolist(), backend=backend)
    column = Column(name, numbers, np.isnan(numbers), template)
    values = storage.decode(numbers, categories, backend)
    return column.series_of(values, storage.dtype_for(column, values))


def filled_array(X, j, numbers, gaps, storage, categories):
    """Fill the gaps of column j of an array in place; see `filled_series`."""
    if categories is None and X.dtype != object:
        X[gaps, j] = numbers[gaps]
        return
    values = storage.decode(numbers[gaps], categories, library=None)
    X[gaps, j] = array_of_objects(values) if X.dtype == object else values
