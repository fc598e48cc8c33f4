"""What strings look like, such as amounts or dates, and how they are converted."""

import re
from datetime import datetime
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from sklearn_mpt._tables.frames import columns_at

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


class Look(NamedTuple):
    """What most of the strings of a column look like.

    words : such as "numbers with ','". removed : characters that numbers lack.
    date_format : of dates; "" if ISO. n_lost : strings that do not look so, of n_all.
    """

    words: str
    removed: str = ""
    date_format: str = ""
    n_lost: int = 0
    n_all: int = 0

    def advice(self, name, is_array=False, library="pandas"):
        """Return the end of a sentence: how the column of this name is converted."""
        what = "dates" if self.words.startswith("dates") else "numbers"
        lost = f"{self.n_lost} of {self.n_all} are no {what}" if self.n_lost else ""
        if lost and 5 * self.n_lost >= self.n_all:
            return f"{lost}."
        gaps = f"{lost} and become gaps; " if lost else ""
        polars = library == "polars"
        line = self._line_of_polars(name) if polars else self._line(name, is_array)
        return f"{gaps}convert them: {line}."

    def _line(self, name, is_array):
        column = f"X[:, {name!r}]" if is_array else f"X[{name!r}]"
        values = f"pd.Series({column})" if is_array else column
        coerce = ", errors='coerce'"
        if self.words.startswith("dates"):
            form = f", format={self.date_format!r}" if self.date_format else ""
            form += coerce if self.n_lost else ""
            return f"{column} = pd.to_datetime({values}{form})"
        if self.removed == "decimal":
            values += ".str.replace(',', '.')"
        elif self.removed:
            values += f".str.replace('[{self.removed}]', '', regex=True)"
        return f"{column} = pd.to_numeric({values}{coerce})"

    def _line_of_polars(self, name):
        values = f"pl.col({name!r})"
        if self.words.startswith("dates"):
            form = [repr(self.date_format)] if self.date_format else []
            form += ["strict=False"] if self.n_lost else []
            return f"X = X.with_columns({values}.str.to_datetime({', '.join(form)}))"
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

    def look(is_like, *args):
        """Return the look if most of the strings are like this, else None."""
        alike = {value for value in distinct if is_like(value)}
        if 2 * len(alike) <= len(set(values)):
            return None
        n_lost = sum(not (isinstance(v, str) and v.strip() in alike) for v in values)
        return Look(*args)._replace(n_lost=n_lost, n_all=len(values))

    found = look(_is_number, "numbers as strings") or look(
        _is_iso_date, "dates as strings"
    )
    if found:
        return found
    if all(
        DECIMAL_COMMA.fullmatch(value) and not THOUSANDS.fullmatch(value)
        for value in distinct
        if "," in value
    ):
        words = "numbers as strings with ',' before decimals"
        found = look(
            lambda value: _is_number(value.replace(",", ".", 1)), words, "decimal"
        )
    used = [c for c in CURRENCIES + "%," if any(c in value for value in distinct)]
    shown = " and ".join(repr(character) for character in used)
    found = found or look(
        lambda value: _is_number(_plain(value)),
        f"numbers as strings with {shown}",
        "".join(used),
    )
    if found:
        return found
    shown = sorted(distinct)[:: max(1, len(distinct) // 20)]
    forms = [f for f in DATE_FORMATS if any(_is_date(value, f) for value in shown)]
    words = "dates as strings"
    looks = [look(partial(_is_date, form=form), words, "", form) for form in forms]
    return min(filter(None, looks), key=lambda found: found.n_lost, default=None)


def _plain(value):
    """Return a string without signs of currencies, percent and thousands."""
    value = re.sub(rf"[{CURRENCIES}%]", "", value).strip()
    return value.replace(",", "") if THOUSANDS.fullmatch(value) else value


def _is_number(value):
    try:
        return bool(np.isfinite(float(value)))
    except ValueError:
        return False


def _is_iso_date(value):
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return "-" in value


def _is_date(value, form):
    try:
        datetime.strptime(value, form)
    except ValueError:
        return False
    return True


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
