"""Equal rows, and their weights."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

pytest.importorskip("torch")

from sklearn_mpt._optim.weights import distinct_rows


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8])
def test_distinct_rows_are_counted(dtype):
    missing = -1 if dtype is np.int8 else np.nan
    X = np.array([[0, 1], [missing, 1], [0, 1], [missing, 1], [0, 1], [1, 1]], dtype)
    kept, weight = distinct_rows(X)
    found = dict(zip(map(str, X[kept].astype(float)), weight, strict=True))
    no_answer = str(np.array([missing, 1.0]))
    assert found == {"[0. 1.]": 3, no_answer: 2, "[1. 1.]": 1}
    _, weight = distinct_rows(X, np.arange(6.0))
    assert_allclose(sorted(weight), [4, 5, 6])


def test_many_rows_that_differ_are_not_sorted():
    X = np.arange(10_000.0)[:, None]
    X[-1] = X[0]
    kept, weight = distinct_rows(X)
    assert len(kept) == 10_000
    assert (weight == 1).all()
