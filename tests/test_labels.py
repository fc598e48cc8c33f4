"""Entries of Series, DataFrames and dicts are found by their labels.

Those of columns, items, classes and estimates have labels; rows go by their position.
"""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mpt import pool_estimates

# Estimates


@pytest.mark.parametrize("container", [pd.Series, dict])
def test_estimates_are_pooled_by_their_labels(container):
    first, second = {"a": 1.0, "b": 2.0}, {"b": 4.0, "a": 3.0}
    variances = [{"b": 4.0, "a": 1.0}, first | {"b": 6.0}]
    expected = pool_estimates([[1.0, 2.0], [3.0, 4.0]], [[1.0, 4.0], [1.0, 6.0]])
    pooled = pool_estimates(
        list(map(container, [first, second])), list(map(container, variances))
    )
    for field, other in zip(pooled, expected, strict=True):
        assert_array_equal(field, other)
        if container is pd.Series:
            assert field.index.tolist() == ["a", "b"]
    assert_allclose(pooled.interval(), expected.interval())


def test_tables_of_estimates_are_pooled_by_rows_and_columns():
    values = np.arange(6.0).reshape(2, 3)
    one = pd.DataFrame(values, ["r", "s"], list("abc"))
    pooled = pool_estimates([one, one.loc[["s", "r"], list("cab")]], [one**2] * 2)
    assert_array_equal(pooled.estimate, one)
    assert pooled.std_error.columns.tolist() == list("abc")
    assert pooled.df.index.tolist() == ["r", "s"]


@pytest.mark.parametrize("library", [pd, pl])
def test_rows_of_a_table_are_estimates_of_tables(library):
    estimates = library.DataFrame({"a": [1.0, 3.0], "b": [2.0, 5.0]})
    variances = library.DataFrame({"b": [4.0, 5.0], "a": [0.0, 1.0]})
    pooled = pool_estimates(estimates, variances)
    expected = pool_estimates([[1.0, 2.0], [3.0, 5.0]], [[0.0, 4.0], [1.0, 5.0]])
    assert_array_equal(pooled.std_error, expected.std_error)


def test_estimates_of_other_labels_are_refused():
    one, other = pd.Series({"a": 1.0, "b": 2.0}), pd.Series({"a": 1.0, "c": 2.0})
    with pytest.raises(
        ValueError, match=r"estimates must have the labels of the first"
    ):
        pool_estimates([one, other], [one, one])
    with pytest.raises(ValueError, match=r"variances must have the labels .*'c'"):
        pool_estimates([one, one], [one, other])
