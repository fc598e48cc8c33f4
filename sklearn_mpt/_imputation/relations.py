"""Columns that others determine, such as parts of a total, and their total."""

import numpy as np

# Of linear relations of standardised numbers: largest variance, and largest deviation
# of a row; least number of complete rows for each column; largest error of what they
# determine.
MAX_VARIANCE, MAX_DEVIATION, ROWS_PER_COLUMN, MAX_ERROR = 1e-4, 0.1, 2, 0.05


class LinearRelations:
    """Linear relations of columns of numbers that hold in all rows."""

    # numbers : rows, NaN where missing, (n, d). is_number : bool, (d,).

    def __init__(self, numbers, is_number):
        self.columns = np.flatnonzero(is_number)
        numbers = numbers[:, self.columns]
        rows = numbers[~np.isnan(numbers).any(axis=1)]
        self.weights = np.zeros((0, len(self.columns)))
        if not len(self.columns) or len(rows) <= ROWS_PER_COLUMN * len(self.columns):
            return
        self.shift, self.spread = rows.mean(axis=0), rows.std(axis=0)
        self.spread[self.spread == 0] = 1.0
        Z = (rows - self.shift) / self.spread
        variances, vectors = np.linalg.eigh(Z.T @ Z / len(Z))
        related = vectors[:, variances < MAX_VARIANCE]
        deviation = np.abs(Z @ related)
        self.weights = related[:, deviation.max(axis=0, initial=0) < MAX_DEVIATION].T
        self.noise = np.sqrt(np.mean(deviation**2)) if deviation.size else 0.0

    def check(self, numbers, hidden_table):
        """Forget the relations if they are wrong of an entry that was hidden."""
        if not len(self.weights):
            return
        error = (self.determined(hidden_table) - numbers)[:, self.columns] / self.spread
        if np.nanmax(np.abs(error), initial=0.0) > MAX_DEVIATION:
            self.weights = self.weights[:0]

    def determined(self, numbers):
        """Return what follows for the gaps of rows, (n, d), NaN where nothing does."""
        found = np.full(numbers.shape, np.nan)
        if not len(self.weights):
            return found
        Z = (numbers[:, self.columns] - self.shift) / self.spread
        gaps = np.isnan(Z)
        patterns, which = np.unique(gaps, axis=0, return_inverse=True)
        for i, pattern in enumerate(patterns):
            of_gaps = self.weights[:, pattern]
            inverse = np.linalg.pinv(of_gaps, rcond=1e-6)
            is_unique = (inverse @ of_gaps).diagonal() > 1 - 1e-6
            error = self.noise * np.sqrt((inverse**2).sum(axis=1))
            is_found = is_unique & (error < MAX_ERROR)
            if is_found.any():
                rows = np.flatnonzero(which == i)
                target = -Z[np.ix_(rows, ~pattern)] @ self.weights[:, ~pattern].T
                columns = np.flatnonzero(pattern)[is_found]
                solved = (target @ inverse.T)[:, is_found]
                solved = self.shift[columns] + self.spread[columns] * solved
                found[np.ix_(rows, self.columns[columns])] = solved
        return found
