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
        is_date, polars = self.words.startswith("dates"), library == "polars"
        lost = ""
        if self.n_lost:
            kind = "dates" if is_date else "numbers"
            lost = f"{self.n_lost} of {self.n_all} are no {kind}"
        if lost and 5 * self.n_lost >= self.n_all:
            return f"{lost}."
        gaps = f"{lost} and become gaps; " if lost else ""
        column = f"X[:, {name!r}]" if is_array else f"X[{name!r}]"
        column = f"pl.col({name!r})" if polars else column
        values = f"pd.Series({column})" if is_array else column
        if self.removed == "decimal":
            values += ".str.replace(',', '.')"
        elif self.removed:
            replace = "replace_all" if polars else "replace"
            ending = "" if polars else ", regex=True"
            values += f".str.{replace}('[{self.removed}]', ''{ending})"
        form = [repr(self.date_format)] if self.date_format else []
        if polars:
            read = "cast(pl.Float64, strict=False)"
            if is_date:
                form += ["strict=False"] if lost else []
                read = f"str.to_datetime({', '.join(form)})"
            return f"{gaps}convert them: X = X.with_columns({values}.{read})."
        read = f"pd.to_numeric({values}, errors='coerce')"
        if is_date:
            form = [f"format={form[0]}"] if form else []
            form += ["errors='coerce'"] if lost else []
            read = f"pd.to_datetime({', '.join([values, *form])})"
        return f"{gaps}convert them: {column} = {read}."


def look_of(values):
    """Return the `Look` of most of the distinct strings among values, or None."""
    distinct = {value.strip() for value in values if isinstance(value, str)}
    signs = [c for c in CURRENCIES + "%," if any(c in value for value in distinct)]
    numbers, dates = "numbers as strings", "dates as strings"
    looks = [(_is_number, numbers), (_is_date, dates)]
    if all(
        DECIMAL_COMMA.fullmatch(value) and not THOUSANDS.fullmatch(value)
        for value in distinct
        if "," in value
    ):
        words = f"{numbers} with ',' before decimals"
        looks.append((lambda v: _is_number(v.replace(",", ".", 1)), words, "decimal"))
    words = f"{numbers} with {' and '.join(map(repr, signs))}"
    looks.append((lambda v: _is_number(_plain(v)), words, "".join(signs)))
    some = sorted(distinct)[:: max(1, len(distinct) // 20)]
    looks += [
        (partial(_is_date, form=form), dates, "", form)
        for form in DATE_FORMATS
        if any(_is_date(value, form) for value in some)
    ]
    found = []
    for is_like, *args in looks:
        alike = set(filter(is_like, distinct))
        if 2 * len(alike) > len(set(values)):
            n_lost = sum(
                not (isinstance(v, str) and v.strip() in alike) for v in values
            )
            found.append(Look(*args)._replace(n_lost=n_lost, n_all=len(values)))
    return min(found, key=lambda look: look.n_lost, default=None)


def _plain(value):
    """Return a string without signs of currencies, percent and thousands."""
    value = re.sub(rf"[{CURRENCIES}%]", "", value).strip()
    return value.replace(",", "") if THOUSANDS.fullmatch(value) else value


def _is_number(value):
    try:
        return bool(np.isfinite(float(value)))
    except ValueError:
        return False


def _is_date(value, form=""):
    """Return whether a string is a date of this form, of ISO 8601 by default."""
    try:
        datetime.strptime(value, form) if form else datetime.fromisoformat(value)
    except ValueError:
        return False
    return bool(form) or "-" in value


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
