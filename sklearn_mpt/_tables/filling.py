"""Fill gaps of a table with values that the dtypes of its columns can store.

The value that fills a gap depends on its row, and on the dtype, range and categories
that the column had in `fit`. It never depends on the other rows of the same call.
"""

from numbers import Integral, Real
from typing import NamedTuple

import narwhals.stable.v2 as nw
import numpy as np

from sklearn_mpt._tables.days import DayCoding, kind_of_days
from sklearn_mpt._tables.frames import Column, array_of_objects, one_of_each_type

BOOLEANS, INTEGERS, NUMBERS = "booleans", "integers", "numbers"
STRINGS, LEVELS, OBJECTS = "strings", "levels", "objects"
INT64 = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
UNBOUNDED = -np.inf, np.inf  # of Python's integers
PANDAS_DTYPES = {BOOLEANS: "bool", INTEGERS: "int64", NUMBERS: "float64"}
OTHER_DTYPES = {BOOLEANS: nw.Boolean, INTEGERS: nw.Int64, NUMBERS: nw.Float64}


class ColumnStorage(NamedTuple):
    """How a column is stored.

    holds : str
        Kind of values that the dtype stores: BOOLEANS, INTEGERS, NUMBERS, STRINGS,
        LEVELS (of a categorical dtype), DATES, DURATIONS, or OBJECTS (any values).
    numbers : str
        Kind of numbers in the column, if it is read as numbers: BOOLEANS, INTEGERS,
        NUMBERS, or LEVELS if the dtype stores its levels only.
    bounds : tuple of numbers
        Least and largest integer; infinite for objects, if some exceed 64 bits.
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

    holds: str = NUMBERS
    numbers: str = NUMBERS
    bounds: tuple[float, float] = INT64
    library: str = ""
    dtype: str = ""
    levels: np.ndarray | None = None
    is_ordered: bool = False
    is_whole: bool = False
    days: tuple = ()

    @classmethod
    def from_column(cls, column):
        """Return the storage of a column that `columns_of` has read."""
        if column.series is None:
            return cls() if column.values.dtype != object else cls()._of_objects(column)
        kind = column.series.dtype
        dtype = str(column.dtype) if column.is_pandas else type(kind).__name__
        storage = cls(library=column.backend.__name__, dtype=dtype)
        if isinstance(kind, nw.Categorical | nw.Enum):
            return storage._of_levels(column.dtype)
        if kind == nw.Boolean:
            return storage._replace(holds=BOOLEANS, numbers=BOOLEANS)
        if kind.is_integer():
            bounds = _bounds(type(kind).__name__)
            return storage._replace(holds=INTEGERS, numbers=INTEGERS, bounds=bounds)
        if kind.is_float():
            present = column.numbers()[~column.missing]
            return storage._replace(is_whole=bool((present == np.rint(present)).all()))
        if kind == nw.String and dtype != "object":
            return storage._replace(holds=STRINGS, numbers=_numbers_among(column))
        return storage._of_objects(column)

    @classmethod
    def of_floats(cls, column):
        """Return the storage of floats in the library of a column."""
        if column.series is None:
            return cls()
        dtype = PANDAS_DTYPES[NUMBERS] if column.is_pandas else "Float64"
        return cls(library=column.backend.__name__, dtype=dtype)

    def _of_objects(self, column):
        holds = kind_of_days(column)
        if not holds:
            storage = self._replace(holds=OBJECTS, numbers=_numbers_among(column))
            is_large = storage.numbers == INTEGERS and any(
                not INT64[0] <= value <= INT64[1] for value in column.present
            )
            return storage._replace(bounds=UNBOUNDED) if is_large else storage
        is_object = self.dtype in ("", "object", "Object")
        days = tuple(DayCoding.from_column(column, holds))
        return self._replace(holds=OBJECTS if is_object else holds, days=days)

    def encode(self, column, of_strings):
        """Return a column of numbers, dates or time differences as floats."""
        if self.days:
            return DayCoding(*self.days).encode(column)
        return column.numbers(of_strings)

    def _of_levels(self, dtype):
        levels = getattr(dtype, "categories", None)
        if levels is None:
            return self._replace(holds=LEVELS)
        return self._replace(
            holds=LEVELS,
            numbers=LEVELS,
            levels=array_of_objects(list(levels)),
            is_ordered=bool(getattr(dtype, "ordered", True)),
        )

    def is_like(self, other):
        """Return whether both dtypes are the same and store the same values."""
        same = (self.library, self.dtype) == (other.library, other.dtype)
        return same and self.holds != LEVELS

    def takes_days_of(self, fitted):
        """Return whether this dtype stores dates or time differences of another."""
        is_pandas = self.library == fitted.library and "64" in self.dtype
        return self.is_like(fitted) or (is_pandas and self.holds == fitted.holds)

    def takes_numbers_of(self, fitted):
        """Return whether this dtype stores all numbers that may fill gaps."""
        if self.is_like(fitted):
            return True
        if fitted.numbers == INTEGERS:
            (low, high), (least, largest) = self.bounds, fitted.bounds
            return self.holds == INTEGERS and low <= least and largest <= high
        if fitted.numbers == LEVELS:
            return self.holds == LEVELS and self._takes_levels(fitted.levels)
        if fitted.numbers == BOOLEANS:
            return self.holds == BOOLEANS
        return self.holds == NUMBERS or (self.holds == INTEGERS and fitted.is_whole)

    def takes_categories_of(self, fitted, categories):
        """Return whether this dtype stores all categories that may fill gaps."""
        if self.is_like(fitted):
            return True
        if self.holds == LEVELS and self.levels is not None:
            return self._takes_levels(categories)
        kinds = types_among(categories)
        if self.holds in (LEVELS, STRINGS):
            return kinds == {STRINGS}
        if self.holds == INTEGERS:
            low, high = self.bounds
            within = kinds == {INTEGERS} and low <= min(categories)
            return within and max(categories) <= high
        if self.holds == NUMBERS:
            return kinds <= {INTEGERS, NUMBERS} and fitted.holds == NUMBERS
        return self.holds == BOOLEANS and kinds == {BOOLEANS}

    def _takes_levels(self, levels):
        return self.levels is not None and set(levels) <= set(self.levels.tolist())


def _numbers_among(column):
    """Return the kind of numbers among the present values, whatever the dtype."""
    kinds = types_among(column.present)
    return kinds.pop() if len(kinds) == 1 and kinds <= {BOOLEANS, INTEGERS} else NUMBERS


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


def _bounds(dtype):
    """Return the least and largest integer of a dtype such as "UInt8"."""
    n_bits = int(dtype.lower().removeprefix("u").removeprefix("int"))
    if dtype.lower().startswith("u"):
        return 0, 2**n_bits - 1
    return -(2 ** (n_bits - 1)), 2 ** (n_bits - 1) - 1


def filled_series(column, numbers, gaps, storage, categories):
    """Return the series of a column of a DataFrame with its gaps filled."""
    column = column._replace(missing=gaps)
    given, nearest = ColumnStorage.from_column(column), storage
    if categories is not None:
        is_taken = given.takes_categories_of(storage, categories.tolist())
    elif storage.days:
        is_taken = given.takes_days_of(storage)
    else:
        is_taken = given.takes_numbers_of(storage)
        if is_taken and storage.numbers == NUMBERS and given.holds == INTEGERS:
            nearest = given
    entries = column.values.astype(object)
    values = _values_of(numbers[gaps], nearest, categories, column.backend)
    entries[gaps] = array_of_objects(values)
    entries = entries.tolist()
    if is_taken:
        return column.series_of(entries, column.dtype)
    known = entries if categories is None else categories.tolist()
    if categories is None and not storage.days:
        if not _can_be(entries, storage):
            if any(isinstance(entry, float) for entry in entries):
                entries = [float(entry) for entry in entries]
            return column.series_of(entries, None)
        types = {BOOLEANS: bool, INTEGERS: int, NUMBERS: float}
        kind = types.get(storage.numbers)
        entries = known = entries if kind is None else list(map(kind, entries))
    return column.series_of(entries, _dtype_of(storage, column, known))


def drawn_series(name, numbers, storage, categories, backend):
    """Return a series of the dtype of `fit` that holds drawn numbers or codes."""
    template = nw.new_series(str(name), numbers.tolist(), backend=backend)
    column = Column(name, numbers, np.isnan(numbers), template)
    values = _values_of(numbers, storage, categories, backend)
    return column.series_of(values, _dtype_of(storage, column, values))


def filled_array(X, j, numbers, gaps, storage, categories):
    """Fill the gaps of column j of an array in place; see `filled_series`."""
    if categories is None and X.dtype != object:
        X[gaps, j] = numbers[gaps]
        return
    values = _values_of(numbers[gaps], storage, categories, library=None)
    X[gaps, j] = array_of_objects(values) if X.dtype == object else values


def _values_of(numbers, storage, categories, library):
    """Return a list of the values that numbers, or codes, stand for."""
    if categories is not None:
        return categories[numbers.astype(int)].tolist()
    if storage.days:
        return DayCoding(*storage.days).decode(numbers, library)
    return _as_values(numbers, storage)


def _as_values(numbers, storage):
    """Return a list of the values nearest to `numbers` that the column can store."""
    if storage.numbers == BOOLEANS:
        return (numbers >= 0.5).tolist()
    if storage.numbers == INTEGERS:
        low, high = storage.bounds  # ints: as floats, large bounds are rounded
        return [
            min(max(round(number), low), high)
            for number in np.clip(numbers, low, high).tolist()
        ]
    if storage.numbers == LEVELS:
        levels = [v for v in storage.levels.tolist() if isinstance(v, Real)]
        distance = np.abs(
            np.subtract.outer(numbers, np.array(levels, dtype=np.float64))
        )
        return [levels[nearest] for nearest in distance.argmin(axis=1).tolist()]
    return numbers.tolist()


def _can_be(entries, storage):
    if storage.numbers == BOOLEANS:
        return all(entry in (0, 1) for entry in entries)
    if storage.numbers == INTEGERS:
        low, high = storage.bounds
        return all(low <= entry <= high and entry % 1 == 0 for entry in entries)
    if storage.numbers == LEVELS:
        return set(entries) <= set(storage.levels.tolist())
    return True


def _dtype_of(fitted, column, values):
    """Return the dtype of `fit`, or the nearest one of another DataFrame library."""
    backend, is_pandas = column.backend, column.is_pandas
    levels = values if fitted.levels is None else fitted.levels.tolist()
    is_same_library = fitted.library == backend.__name__
    if is_pandas and is_same_library and fitted.holds != LEVELS:
        return fitted.dtype
    if is_pandas and fitted.holds == LEVELS:
        return backend.CategoricalDtype(levels, ordered=fitted.is_ordered)
    if is_same_library:
        return nw.Enum(levels) if fitted.dtype == "Enum" else getattr(nw, fitted.dtype)
    kinds = types_among(values)
    if fitted.holds == LEVELS and kinds == {STRINGS}:
        return nw.Categorical
    known = PANDAS_DTYPES if is_pandas else OTHER_DTYPES
    return known.get(kinds.pop()) if len(kinds) == 1 else None
