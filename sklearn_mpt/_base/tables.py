"""Estimators whose parameter `likelihood` names the kinds of the columns."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from sklearn_mpt._base.estimator import BaseMPT
from sklearn_mpt._checks import warn_caller
from sklearn_mpt._likelihoods import KINDS_OF_VALUES, LIKELIHOODS, Columns, Likelihood
from sklearn_mpt._measure.rows import missing_entries
from sklearn_mpt._tables.frames import column_names, with_distinct_names, with_strings
from sklearn_mpt._tables.kinds import (
    FROM_DTYPE,
    INTERVAL,
    kinds_of,
    looks_of_strings,
    requested_kinds,
)
from sklearn_mpt._tables.reader import TableReader, check_no_categories

KINDS_OF_NUMBERS = ("gaussian", "bernoulli", "poisson")  # names that need no table

LikelihoodNames = str | Sequence[str] | Mapping[Any, str] | Likelihood


class TableMPT(BaseMPT):
    """Base of models of rows whose features can be of several kinds.

    If `likelihood` is the name of a kind of numbers, or an instance of a user's
    likelihood, rows are arrays of numbers. Otherwise they are read as a table, and
    `likelihoods_` and `categories_` have the kinds and the categories of its columns.
    """

    likelihoods_: list[str]
    categories_: list[np.ndarray | None]
    _advice_on_strings = "likelihood='from_dtype' takes strings as categories."
    _advice_on_categories = "likelihood='from_dtype' takes it as categories."
    _kinds_taken: tuple[str, ...] = KINDS_OF_VALUES  # of columns
    _storage: list[dict]  # how each column of a table was stored in `fit`

    def _likelihood(self):
        """Return the likelihood of the features; its shape parameters do not matter."""
        if isinstance(self.likelihood, Likelihood):
            return copy.deepcopy(self.likelihood)
        first = self._kinds[0]
        if first in KINDS_OF_NUMBERS and set(self._kinds) == {first}:
            return LIKELIHOODS[first]()
        return self._likelihood_by_column()

    def _likelihood_by_column(self):
        """Return the likelihood of the features as `Columns`, whatever their kinds."""
        kinds, names = self._kinds, getattr(self, "feature_names_in_", None)
        is_of_numbers = self._is_of_numbers
        counts = [1] * len(kinds) if is_of_numbers else self._reader.n_categories
        return Columns(kinds, counts, names)

    @property
    def _reader(self):
        return TableReader(self.likelihoods_, self.categories_, self._storage)

    def _measures_of_columns(self):
        """Return the measure of each column; see `_measures_of_columns` in contract."""
        if isinstance(self.likelihood, Likelihood):
            return [self.likelihood.measure] * self.n_features_in_
        return [LIKELIHOODS[kind].measure for kind in self._kinds]

    @property
    def _kinds(self):
        """The kind of each feature."""
        if self._is_of_numbers:
            return [self.likelihood] * self.n_features_in_
        return self.likelihoods_

    @property
    def _is_of_numbers(self):
        if not isinstance(self.likelihood, str):
            return isinstance(self.likelihood, Likelihood)
        return (
            self.likelihood in KINDS_OF_NUMBERS and self.likelihood in self._kinds_taken
        )

    def _read_rows(self, X, reset=False, min_samples=1):
        is_frame = is_into_dataframe(X)
        strings = None if is_frame or self._is_of_numbers else with_strings(X)
        if strings is not None:
            check_params = {"dtype": object, "ensure_all_finite": "allow-nan"}
            X = validate_data(self, strings, reset=reset, **check_params)
        elif is_frame and not self._is_of_numbers:
            named = with_distinct_names(X)
            validate_data(self, named, reset=reset, skip_check_array=True)
        else:
            if is_frame:
                check_no_categories(X, self._advice_on_categories)
            X = super()._read_rows(X, reset, min_samples)
        if reset:
            self._learn_columns(X)
        if self._is_of_numbers:
            return X
        codes = self._reader.encode(X)
        is_array_of_numbers = not is_frame and strings is None
        return check_array(
            codes.astype(X.dtype) if is_array_of_numbers else codes,
            ensure_all_finite="allow-nan",
            ensure_min_samples=min_samples,
            estimator=self,
            input_name="X",
        )

    def _learn_columns(self, X):
        """Set the attributes by which a new model reads the columns of its rows."""
        self._storage = []
        if self._is_of_numbers:
            return
        kinds = kinds_of(self.likelihood, X, self._kinds_taken)
        reader = TableReader.from_table(X, kinds)
        self.likelihoods_, self.categories_, self._storage = reader
        # strings that look like numbers, and became categories by dtype
        kinds = requested_kinds(self.likelihood, column_names(X), self._kinds_taken)
        chosen = [j for j, kind in enumerate(kinds) if kind == FROM_DTYPE]
        hints = looks_of_strings(X, reader, {}, chosen)
        if hints:
            warn_caller(" ".join(hints))

    def _check_values(self, X):
        names = getattr(self, "feature_names_in_", np.arange(X.shape[1])).tolist()
        if not self._is_of_numbers:
            self._reader.check_values(X, names)
            return
        likelihood = self._likelihood()
        try:
            likelihood.check_rows(X)
        except ValueError:
            likelihood.check_columns(X, names)
            raise

    def _read_training_rows(self, X, is_new, min_samples):
        """Read as the base class does; warn if Gaussian features are all 0 or 1."""
        X = super()._read_training_rows(X, is_new, min_samples)
        if is_new and set(self._kinds) == {"gaussian"}:
            present = X[~np.isnan(X)]
            if len(present) and np.isin(present, (0, 1)).all():
                warn_caller(
                    "X holds only 0 and 1, and a Gaussian likelihood gives it "
                    "densities, not probabilities: use likelihood='bernoulli'.",
                )
        return X

    def _as_given(self, rows, X=None):
        """Return rows of numbers as values of the table, of the type of X if given."""
        if self._is_of_numbers:
            return rows
        if not is_into_dataframe(X):
            return self._reader.decode(rows)
        reader = self._reader
        is_interval = np.array(reader.kinds) == INTERVAL  # which is rewritten
        return reader.fill(X, rows, missing_entries(X) | is_interval)

    def _frame(self, rows, names, backend):
        if self._is_of_numbers:
            return super()._frame(rows, names, backend)
        return self._reader.frame(rows, names, backend)
