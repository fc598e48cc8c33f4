"""Rows of a table, coded once in each of the ways in which models read them.

Rows of a table are arrays of floats, NaN where missing: numbers in their units, and
codes 0, 1, 2, ... of categories. Models read numbers as power transforms where columns
are skewed, and standardised. Columns with categories, and of numbers with few values,
which are called levels, are coded in one of three ways:

- ``CODES``: codes of categories and of levels;
- ``NUMBERS``: levels are standardised numbers like others, categories are codes;
- ``INDICATORS``: levels are standardised numbers, and categories have a standardised
  indicator each.
"""

import numpy as np

from sklearn_mpt._imputation.column_layout import (
    ColumnLayout,
    NumberTransform,
    means_and_spreads,
)
from sklearn_mpt._imputation.limits import largest_log_densities
from sklearn_mpt._imputation.power_transforms import NO_TRANSFORMS, PowerTransforms
from sklearn_mpt._numbers import KEPT_ENTRIES

CODES, NUMBERS, INDICATORS = "codes", "numbers", "indicators"
LOG_DERIVATIVES = "log_derivatives"


class Indicators:
    """Indicators of categories, beside numbers as they are.

    Ordered categories have indicators for whether the code is above each level but the
    last, others for whether it is each of them. Of two categories, the second has one.

    Parameters
    ----------
    layout : ColumnLayout
    numbers : ndarray of shape (n, d)
        Rows of the table, coded as ``NUMBERS``.
    weight : ndarray of shape (n,), or None
        What each row counts in the means and standard deviations of indicators.
    """

    def __init__(self, layout: ColumnLayout, numbers: np.ndarray, weight=None):
        counts, is_number = layout.n_categories, layout.numbers
        is_cumulative = (layout.ordered | (counts == 2)) & ~is_number
        widths = np.where(is_cumulative, counts - 1, counts)
        widths = np.where(is_number, 1, widths)
        self.is_cumulative, self.widths = is_cumulative, widths
        self.starts = np.append(0, widths.cumsum()[:-1])
        self.ends = widths.cumsum()
        self.sources = np.repeat(np.arange(len(widths)), widths)
        self._levels = np.arange(len(self.sources)) - self.starts[self.sources]
        self._is_indicator = ~is_number[self.sources]
        self.shift, self.scale = np.zeros(widths.sum()), np.ones(widths.sum())
        wide = self.transform(numbers)[:, self._is_indicator]
        moments = means_and_spreads(wide, weight)
        self.shift[self._is_indicator], self.scale[self._is_indicator] = moments

    def columns(self, j):
        """Return the slice of the columns of numbers or indicators of column j."""
        return slice(int(self.starts[j]), int(self.ends[j]))

    def transform(self, numbers):
        """Return numbers and indicators, standardised; (n, d) -> (n, w)."""
        return self._standardised(numbers[:, self.sources], slice(None))

    def of_categories(self, j, count):
        """Return the standardised indicators of each category of column j; (C, w)."""
        columns = self.columns(j)
        wide = np.repeat(
            np.arange(count)[:, None], columns.stop - columns.start, axis=1
        )
        return self._standardised(wide, columns)

    def _standardised(self, wide, columns):
        """Return indicators; each column of `wide` has the codes for one of them."""
        levels = self._levels[columns]
        is_above = self.is_cumulative[self.sources[columns]]
        indicators = np.where(is_above, wide > levels, wide == levels)
        is_present = self._is_indicator[columns] & ~np.isnan(wide)
        numbers = np.where(is_present, indicators, wide)
        return (numbers - self.shift[columns]) / self.scale[columns]


class TableCoding:
    """How the rows of a table are coded, learned once.

    Parameters
    ----------
    layout : ColumnLayout
        With levels of numbers.
    rows : ndarray of shape (n, d)
        Rows of the table.
    powers : PowerTransforms
    weight : ndarray of shape (n,), or None
        What each row counts in means and standard deviations.
    """

    def __init__(
        self,
        layout: ColumnLayout,
        rows: np.ndarray,
        powers: PowerTransforms = NO_TRANSFORMS,
        weight: np.ndarray | None = None,
    ):
        self.layout = layout
        transform = plain = NumberTransform.from_rows(rows, layout, powers, weight)
        if len(powers.columns):
            plain = NumberTransform.from_rows(rows, layout, weight=weight)
        # without power transforms, and with them: a tuple, for skops reads all
        # Boolean keys of a dict as True
        self.transforms = plain, transform
        self.indicators = Indicators(layout, rows, weight)
        self.largest_log_density = largest_log_densities(rows, layout)

    @property
    def has_powers(self):
        """Whether some columns have power transforms."""
        return len(self.transforms[True].powers.columns) > 0

    def numbers_of_codes(self, j):
        """Return the numbers in the table that the codes of column j stand for."""
        return self.layout.values.get(j, np.arange(self.layout.n_categories[j]))

    def level_numbers(self, j, with_powers):
        """Return the standardised numbers of the levels of column j."""
        transform = self.transforms[with_powers]
        return (self.layout.values[j] - transform.shift[j]) / transform.scale[j]

    def log_derivatives(self, rows, with_powers):
        """Return the logarithms of the derivatives of coded numbers, (n, d).

        Probabilities of levels become densities over the step between levels.
        """
        log_derivatives = self.transforms[with_powers].log_derivatives(rows)
        for j in self.layout.values:
            log_derivatives[:, j] = self.layout.log_level_density(j)
        return log_derivatives

    def decode(self, coded, form, with_powers=True):
        """Return the rows of the table that coded rows stand for.

        Categories are arbitrary if they were indicators.
        """
        if form == INDICATORS:
            coded = coded[:, self.indicators.starts]
        rows = self.transforms[with_powers].inverse_transform(coded)
        if form == CODES:
            for j, values in self.layout.values.items():
                rows[:, j] = values[coded[:, j].astype(int)]
        return rows


class CodedRows:
    """Rows of a table, each of whose codings is computed once.

    What has more than `KEPT_ENTRIES` entries together is computed each time instead.

    Parameters
    ----------
    numbers : ndarray of shape (n, d)
        Rows of the table.
    coding : TableCoding
    """

    def __init__(self, numbers: np.ndarray, coding: TableCoding):
        self.numbers = numbers
        self.coding = coding
        self._kept: dict[tuple[str, bool], np.ndarray] = {}

    @property
    def gaps(self):
        """Which entries are missing; bool, (n, d)."""
        return np.isnan(self.numbers)

    def coded(self, form, with_powers=True):
        """Return the rows as models read them; see the module.

        form : ``CODES``, ``NUMBERS`` or ``INDICATORS``. with_powers : whether skewed
        columns are power transforms.
        """
        with_powers = with_powers or not self.coding.has_powers
        return self._once((form, with_powers), self._compute, form, with_powers)

    def _once(self, key, function, *args):
        """Return a function of some arguments, kept under a key."""
        if key in self._kept:
            return self._kept[key]
        array = function(*args)
        if array.size + sum(kept.size for kept in self._kept.values()) <= KEPT_ENTRIES:
            self._kept[key] = array
        return array

    def _compute(self, form, with_powers):
        if form == NUMBERS:
            return self.coding.transforms[with_powers].transform(self.numbers)
        numbers = self.coded(NUMBERS, with_powers)
        if form == INDICATORS:
            return self.coding.indicators.transform(numbers)
        values = self.coding.layout.values
        codes = numbers.copy() if values else numbers
        for j, levels in values.items():
            middles = (levels[1:] + levels[:-1]) / 2
            nearest = np.searchsorted(middles, self.numbers[:, j])
            codes[:, j] = np.where(np.isnan(numbers[:, j]), np.nan, nearest)
        return codes

    def log_derivatives(self, with_powers):
        """Return the logarithms of the derivatives of coded numbers, (n, d)."""
        key = LOG_DERIVATIVES, with_powers or not self.coding.has_powers
        return self._once(key, self.coding.log_derivatives, self.numbers, with_powers)

    def as_densities(self, log_prob, mask, with_powers=True):
        """Return log-densities of hidden numbers in the units of the table, (n, d).

        log_prob : those of coded numbers, and log-probabilities of codes.
        """
        is_target = mask & ~np.isnan(self.numbers)
        return np.where(
            is_target, log_prob + self.log_derivatives(with_powers), log_prob
        )


class HiddenRows(CodedRows):
    """Rows of a table, some of whose entries are hidden.

    Parameters
    ----------
    rows : CodedRows
    hidden : ndarray of bool, of shape (m, d)
        Entries that are missing in the first m of these rows; there are no others.
    """

    def __init__(self, rows: CodedRows, hidden: np.ndarray):
        self._rows, self._hidden = rows, hidden
        self.coding = rows.coding
        self.numbers = np.where(hidden, np.nan, rows.numbers[: len(hidden)])

    def coded(self, form, with_powers=True):
        coded = self._rows.coded(form, with_powers)[: len(self._hidden)]
        hidden = self._hidden
        if form == INDICATORS:
            hidden = hidden[:, self.coding.indicators.sources]
        return np.where(hidden, np.nan, coded)

    def log_derivatives(self, with_powers):
        return self._rows.log_derivatives(with_powers)[: len(self._hidden)]
