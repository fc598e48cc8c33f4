"""Read DataFrames and arrays of users column by column.

A DataFrame is one of pandas, polars or another library that narwhals supports. An
entry is missing if it is NaN, None, NA or null.

Labels of Series, DataFrames and dicts find entries of columns, items, classes and
estimates. Rows go by their position, as in scikit-learn.
"""

import datetime
from collections.abc import Mapping
from decimal import Decimal
from numbers import Integral, Real
from typing import NamedTuple

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe
from sklearn import get_config

from sklearn_mpt._checks import check_shape, joined, listed, plain

# Types that are refused although float() or a cast of NumPy may convert them.
NO_NUMBERS = {
    "dates": (datetime.date, np.datetime64),
    "times of day": (datetime.time,),
    "durations": (datetime.timedelta, np.timedelta64),
    "complex numbers": (complex, np.complexfloating),
    "bytes": (bytes, bytearray),
    "decimals": (Decimal,),
    "strings": (str,),
}
CODED_DTYPES = nw.Categorical | nw.Enum  # dtypes that store codes of their levels
VALUE_WORDS = set(NO_NUMBERS)
COLUMNS = "columns of X"
ADVICE = "Convert them to floats (dates to days since one of them, say), or drop them."
ADVICE_ON_INTERVALS = (
    "MPTLinearVAE(likelihood='from_dtype') takes them, and so does MPTMixture with "
    "covariance_type='diag'."
)


def column_names(X):
    """Return the names of the columns of a DataFrame, or the indices of an array's."""
    if _is_pandas(X):
        return [plain(name) for name in X.columns]
    return _frame(X).columns if is_into_dataframe(X) else list(range(np.shape(X)[1]))


def library_of(X):
    """Return the name of the library of a DataFrame; "" for arrays."""
    if not is_into_dataframe(X):
        return ""
    return nw.get_native_namespace(_frame(with_distinct_names(X))).__name__


def output_library(estimator, fitted):
    """Return the library of the tables that an estimator returns; "" for arrays."""
    output = getattr(estimator, "_sklearn_output_config", {}).get("transform")
    if output is None:
        output = get_config()["transform_output"]
        return fitted if output == "default" else output
    return "" if output == "default" else output


def joined_frame(series, names, backend):
    """Return a DataFrame of series of a library with these column names."""
    if hasattr(backend, "concat") and hasattr(backend, "Index"):
        return backend.concat(series, axis=1).set_axis(names, axis=1)
    columns = [nw.from_native(one, series_only=True) for one in series]
    named = dict(zip(map(str, names), columns, strict=True))
    return nw.from_dict(named, backend=backend).to_native()


def frame_of_numbers(rows, names, backend):
    """Return a DataFrame of rows of numbers."""
    series = [nw.new_series("", x, backend=backend).to_native() for x in rows.T]
    return joined_frame(series, names, backend)


def with_distinct_names(X):
    """Return a DataFrame whose column names are distinct."""
    if not _is_pandas(X) or X.columns.is_unique:
        return X
    names = column_names(X)
    if not all(isinstance(name, str) for name in names):
        return X.set_axis(range(len(names)), axis=1)
    taken, distinct = set(names), {}
    for name in names:
        other, count = name, 0
        while other in distinct or (count and other in taken):
            count += 1
            other = f"{name}.{count}"
        distinct[other] = None
    return X.set_axis(list(distinct), axis=1)


def _is_pandas(X):
    """Return whether X is a DataFrame of pandas or of a library with its interface."""
    return hasattr(X, "set_axis") and hasattr(X, "columns")


def _frame(X):
    return nw.from_native(X, eager_only=True)


def frame_of(X):
    """Return a DataFrame as narwhals', with distinct column names."""
    return _frame(with_distinct_names(X))


class Column(NamedTuple):
    """A column of a DataFrame or of an array.

    name : name of the column, or its index. values : array of objects, or of numbers if
    X is an array of numbers or the dtype one of floats; arbitrary where missing.
    missing : array of bool. series : the column of the DataFrame; None for an array.
    stored : dtype of pandas that `series` stands for; see `plain_series`.
    """

    name: object
    values: np.ndarray
    missing: np.ndarray
    series: nw.Series | None
    stored: object = None

    @property
    def present(self):
        return self.values[~self.missing]

    def numbers(self, of_strings=ADVICE):
        """Return the values as floats, NaN where missing."""
        contents = no_numbers(self.present)
        if contents:
            advices = {"strings": of_strings, "intervals": ADVICE_ON_INTERVALS}
            dtype = "" if self.series is None else f" (dtype {self.dtype})"
            raise ValueError(
                f"Column {self.name!r} holds {contents}{dtype}, not numbers. "
                f"{advices.get(contents, ADVICE)}"
            )
        return np.where(self.missing, np.nan, self.values).astype(np.float64)

    @property
    def kind(self):
        """The dtype of the series in narwhals; None for an array."""
        return None if self.series is None else self.series.dtype

    @property
    def is_coded(self):
        """Whether the dtype is one of categories."""
        return isinstance(self.kind, CODED_DTYPES)

    @property
    def dtype(self):
        """The dtype of the series, in the form that `series_of` takes."""
        native = nw.to_native(self.series)
        return native.dtype if self.is_pandas else self.series.dtype

    @property
    def backend(self):
        """The module of the series' library: pandas, polars, ..."""
        return nw.get_native_namespace(self.series)

    @property
    def is_pandas(self):
        """Whether the series has the interface of pandas: an index and its dtypes."""
        return self.series.implementation.is_pandas_like()

    def series_of(self, values, dtype):
        """Return a series with other values and the name and index of this one."""
        name = self.series.name
        if not self.is_pandas:
            return nw.new_series(name, values, dtype, backend=self.backend)
        index = nw.to_native(self.series).index
        made = self.backend.Series(values, index=index, dtype=dtype, name=name)
        is_restored = self.stored is not None and dtype == self.dtype
        return made.astype(self.stored) if is_restored else made


def columns_of(X, is_wanted=lambda dtype: True):
    """Return the columns of a DataFrame or of an array."""
    if not is_into_dataframe(X):
        return [column for _, column in columns_at(X, range(np.shape(X)[1]))]
    named = zip(column_names(X), frame_of(X).iter_columns(), strict=True)
    return [_of_series(*column) for column in named if is_wanted(column[1].dtype)]


def columns_at(X, indices):
    """Return the columns with some indices: a list of pairs of index and column."""
    if is_into_dataframe(X):
        frame, names = frame_of(X), column_names(X)
        return [
            (j, _of_series(names[j], frame.get_column(frame.columns[j])))
            for j in indices
        ]
    X = objects_of(np.asarray(X))
    missing = missing_in_array(X)
    return [(j, Column(j, X[:, j], missing[:, j], None)) for j in indices]


def objects_of(X):
    """Return an array that holds no numbers as objects."""
    # NumPy writes NaN as "nan" in arrays of strings
    if X.dtype.kind in "fiub":
        return X
    objects = X.astype(object)
    return np.where(X == "nan", np.nan, objects) if X.dtype.kind == "U" else objects


def missing_in_array(X):
    """Return where the entries of an array are NaN, None or NA."""
    if X.dtype.kind == "U":
        return X == "nan"
    if X.dtype.kind == "O":
        with np.errstate(invalid="ignore"):  # NumPy 2.5 warns of NaN among objects
            return np.frompyfunc(is_missing, 1, 1)(X).astype(bool)
    return X != X


def is_missing(value):
    """Return whether a Python object is NaN, None or NA."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):
        # Comparing pandas' NA with itself gives NA, which has no bool; nor has an array
        # of several entries, which is not missing.
        return np.ndim(value) == 0


def plain_series(series):
    """Return a series whose dtype narwhals knows, and what it stands for, or None."""
    native, dtype = nw.to_native(series), series.dtype
    if isinstance(dtype, nw.Unknown) and getattr(native, "sparse", None) is not None:
        plain = native.sparse.to_dense()
    elif isinstance(dtype, CODED_DTYPES) and hasattr(native.dtype, "pyarrow_dtype"):
        plain = native.array.__arrow_array__().to_pandas()
        plain = plain.set_axis(native.index).rename(native.name)
    else:
        return series, None
    return nw.from_native(plain, series_only=True), native.dtype


def _of_series(name, series):
    series, stored = plain_series(series)
    dtype = series.dtype
    if series.implementation.is_pandas() and isinstance(dtype, CODED_DTYPES):
        coded = nw.to_native(series).array  # reading codes is the fastest way
        levels = array_of_objects([*coded.categories.tolist(), None])
        return Column(name, levels[coded.codes], coded.codes < 0, series, stored)
    if dtype.is_float() or dtype.is_integer():
        numbers = series.to_numpy()  # in which nulls of floats are NaN
        if numbers.dtype.kind in ("f" if dtype.is_float() else "iu"):
            return Column(name, numbers, numbers != numbers, series, stored)
    entries = array_of_objects(series.to_list())
    return Column(name, entries, missing_in_series(series), series, stored)


def missing_in_series(series):
    """Return where the entries of a narwhals series are NaN, None or NA."""
    series, _ = plain_series(series)
    missing = series.is_null()
    if series.dtype.is_float():
        missing = missing | series.is_nan().fill_null(False)
    return missing.to_numpy().astype(bool)


def array_of_objects(values):
    """Return a list as an array of one dimension; a tuple is one entry."""
    return np.fromiter(values, dtype=object, count=len(values))


def no_numbers(values):
    """Name the kinds of values that are not numbers; "" if all are numbers."""
    return " and ".join(sorted(words_for(values)))


def words_for(values):
    """Return the set of words for the kinds of values that are not numbers or bools."""
    words = set()
    for value in one_of_each_type(values):
        found = [word for word, types in NO_NUMBERS.items() if isinstance(value, types)]
        if found:
            words.add(found[0])
        elif is_interval(value):
            words.add("intervals")
        elif not isinstance(value, Real | np.bool_):
            words.add(f"objects of type {type(value).__name__}")
    return words


def one_of_each_type(values):
    """Return a value of each type; those of an array of numbers have the same."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return values[:1]
    return {type(v): v for v in values}.values()


def is_interval(value):
    """Return whether a value is an interval of numbers, such as those of pandas."""
    ends = getattr(value, "left", None), getattr(value, "right", None)
    return all(isinstance(end, Real) for end in ends)


def is_of_numbers(dtype):
    """Return whether all values of a dtype are numbers or booleans."""
    is_number = dtype.is_numeric() and not isinstance(dtype, nw.Decimal)
    return is_number or dtype == nw.Boolean


def fill_masked(X):
    """Return X, with the masked entries of a masked array as gaps."""
    if not np.ma.isMaskedArray(X):
        return X
    dtype = object if X.dtype.kind in "SU" else np.result_type(X.dtype, np.float32)
    return X.astype(dtype).filled(np.nan)


def _array_of(X):
    """Return an array, or a list as one; None for others."""
    if not isinstance(X, list | tuple):
        return X if isinstance(X, np.ndarray) else None
    try:
        kind = np.asarray(X).dtype.kind
        return np.array(X, dtype=object if kind in "OSU" else None)
    except (ValueError, TypeError):
        return None


def with_strings(X):
    """Return an array or a list as an array of objects if it has strings, or None."""
    X = _array_of(X)
    if X is None or X.dtype.kind not in "OUT":
        return None
    X = objects_of(fill_masked(X))
    return X if "strings" in words_for(X.ravel()) else None


def readable_numbers(X, of_strings=ADVICE):
    """Return rows of numbers in a form that scikit-learn can read."""
    if not is_into_dataframe(X):
        array = _array_of(X)
        if array is not None and array.dtype.kind != "c":  # scikit-learn refuses these
            some = array.ravel() if array.dtype == object else array.ravel()[:1]
            others = words_for(some) & VALUE_WORDS - {"strings"}
            if others:
                raise ValueError(
                    f"X holds {' and '.join(sorted(others))} (dtype {array.dtype}), "
                    f"not numbers. {ADVICE}"
                )
        X = fill_masked(X)
        is_object = isinstance(X, np.ndarray) and X.dtype == object
        return np.where(missing_in_array(X), np.nan, X) if is_object else X
    X = with_distinct_names(X)
    columns = columns_of(X, lambda dtype: not is_of_numbers(dtype))
    words = {column.name: words_for(column.present) for column in columns}
    others = [name for name in words if words[name]]
    if len(others) > 1:
        held = " and ".join(sorted(set().union(*words.values())))
        raise ValueError(
            f"Columns {joined(others)} hold {held}, not numbers. {of_strings}"
        )
    converted = [
        column._replace(stored=None).series_of(
            column.numbers(of_strings).tolist(),
            "float64" if column.is_pandas else nw.Float64,
        )
        for column in columns
    ]
    return with_columns(X, converted)


def with_columns(X, series):
    """Return the DataFrame with the columns of these names replaced."""
    if not series:
        return X
    named = with_distinct_names(X)
    if not hasattr(X, "isetitem"):
        made = (nw.from_native(one, series_only=True) for one in series)
        native = _frame(named).with_columns(*made).to_native()
        return native.set_axis(X.columns, axis=1) if _is_pandas(X) else native
    filled, names = X.copy(), list(named.columns)
    for one in series:
        filled.isetitem(names.index(one.name), one)
    return filled


def by_column(values, names, parameter, noun="column"):
    """Return the values of a dict, or of a sequence of all, by indices of columns."""
    has_labels = np.ndim(values) == 1 and labels_of(values) is not None
    if not has_labels and not isinstance(values, Mapping):
        check_shape(values, parameter, (len(names),), f"(n_{noun}s,)")
        return dict(enumerate(values))
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


def indices_of(names, labels, parameter, whose):
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
