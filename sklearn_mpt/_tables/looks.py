"""What strings look like, such as amounts or dates, and how they are converted."""

import re
from datetime import datetime
from typing import NamedTuple

import numpy as np

from sklearn_mpt._frames import columns_at

CURRENCIES = "$€£¥"
THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?")
DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
DAYS_FIRST_OR_LAST = re.compile(r"\d{1,2}([/.])\d{1,2}\1(\d{2}|\d{4})")


class Look(NamedTuple):
    """What most of the strings of a column look like.

    words : such as "numbers with ','". removed : characters that numbers lack.
    """

    words: str
    removed: str = ""

    def line(self, name, is_array=False, library="pandas"):
        """Return the line of code that converts the column of this name.

        is_array : whether it is a column of an array. library : of the DataFrame.
        """
        if library == "polars":
            return self._line_of_polars(name)
        column = f"X[:, {name!r}]" if is_array else f"X[{name!r}]"
        values = f"pd.Series({column})" if is_array else column
        if self.words.startswith("dates"):
            return f"{column} = pd.to_datetime({values})"
        if self.removed == "decimal":
            values += ".str.replace(',', '.')"
        elif self.removed:
            values += f".str.replace('[{self.removed}]', '', regex=True)"
        return f"{column} = pd.to_numeric({values}, errors='coerce')"

    def _line_of_polars(self, name):
        values = f"pl.col({name!r})"
        if self.words.startswith("dates"):
            return f"X = X.with_columns({values}.str.to_datetime())"
        if self.removed == "decimal":
            values += ".str.replace(',', '.')"
        elif self.removed:
            values += f".str.replace_all('[{self.removed}]', '')"
        return f"X = X.with_columns({values}.cast(pl.Float64, strict=False))"


def look_of(values):
    """Return the `Look` of most of the distinct strings among values, or None."""
    distinct = {value.strip() for value in values if isinstance(value, str)}
    if not distinct:
        return None

    def most(is_like):
        return 2 * sum(map(is_like, distinct)) > len(set(values))

    if most(_is_number):
        return Look("numbers as strings")
    if most(_is_date):
        return Look("dates as strings")
    if most(lambda value: _is_number(value.replace(",", ".", 1))) and all(
        DECIMAL_COMMA.fullmatch(value) and not THOUSANDS.fullmatch(value)
        for value in distinct
        if "," in value
    ):
        return Look("numbers as strings with ',' before decimals", "decimal")
    if most(lambda value: _is_number(_plain(value))):
        used = [c for c in CURRENCIES + "%," if any(c in value for value in distinct)]
        shown = " and ".join(repr(character) for character in used)
        return Look(f"numbers as strings with {shown}", "".join(used))
    return None


def _plain(value):
    """Return a string without signs of currencies, percent and thousands."""
    value = re.sub(rf"[{CURRENCIES}%]", "", value).strip()
    return value.replace(",", "") if THOUSANDS.fullmatch(value) else value


def _is_number(value):
    try:
        return bool(np.isfinite(float(value)))
    except ValueError:
        return False


def _is_date(value):
    if DAYS_FIRST_OR_LAST.fullmatch(value):
        return True
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return "-" in value


def looks_of_strings(X, reader, reasons, indices=None):
    """Return a sentence on each column of strings that look like numbers or dates.

    reader : `TableReader` of X. reasons : dict from indices of columns without a kind
    to why they have none. indices : of the columns to look at; None is all.
    """
    indices = [
        j
        for j in (range(len(reader.kinds)) if indices is None else indices)
        if reader.kinds[j] == "categorical"
        or " distinct strings " in reasons.get(j, "")
    ]
    sentences = []
    for j, column in columns_at(X, indices):
        is_of_levels = reader.storage[j]["holds"] == "levels"
        look = None if is_of_levels else look_of(column.present.tolist())
        if look is not None:
            is_array = column.series is None
            library = reader.storage[j]["library"]
            taken = "" if j in reasons else ", which are taken as categories"
            sentences.append(
                f"Column {column.name!r} holds {look.words}{taken}; convert them: "
                f"{look.line(column.name, is_array, library)}."
            )
    return sentences
