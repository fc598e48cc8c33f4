"""Dates and time differences as numbers of days, and back.

Dates become days since the first date that `fit` saw, time differences become days.
Dates with a time zone are read off its clock.
"""

from datetime import UTC, datetime
from typing import NamedTuple, Self
from zoneinfo import ZoneInfo

import narwhals.stable.v2 as nw
import numpy as np

from sklearn_mpt._tables.frames import array_of_objects, words_for

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
            zone = (
                f"in the time zone {self.zone!r}"
                if self.zone
                else "without a time zone"
            )
            raise ValueError(
                f"Column {column.name!r} must hold {self.holds}, as in fit, {zone}."
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
            return [self._in_zone(value, library) for value in values]
        if self.entry in ("Timestamp", "Timedelta"):
            make = getattr(library, self.entry, lambda value: value.item())
            return [make(value) for value in values]
        if self.entry in ("datetime64", "timedelta64"):
            return list(values)
        return values.astype("M8[D]" if self.entry == "date" else values.dtype).tolist()

    def _in_zone(self, value, library):
        """Return a date of the clock of the time zone."""
        date = value.item().replace(tzinfo=_zone_of_name(self.zone))
        if self.entry != "Timestamp" or not hasattr(library, "Timestamp"):
            return date
        # a time that the clock skips, or shows twice, is one of those around it
        whole = date.astimezone(UTC)
        return library.Timestamp(whole).tz_convert(self.zone)


def kind_of_days(column):
    """Return DATES, DURATIONS or, for all other columns, ""."""
    dtype = None if column.series is None else column.series.dtype
    if isinstance(dtype, nw.Datetime):
        return DATES
    if isinstance(dtype, nw.Date):
        return DATES
    if isinstance(dtype, nw.Duration):
        return DURATIONS
    if dtype is None or isinstance(dtype, nw.Object):
        words = words_for(column.present)
        if (
            len(words) == 1
            and words <= {DATES, DURATIONS}
            and len(zones_of(column)) < 2
        ):
            return words.pop()
    return ""


def zones_of(column):
    """Return the set of the names of the time zones of dates; "" is none."""
    dtype = None if column.series is None else column.series.dtype
    if isinstance(dtype, nw.Datetime):
        return {dtype.time_zone or ""}
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
