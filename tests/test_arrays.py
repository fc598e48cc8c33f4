"""One table of kinds of arrays, over models and methods: the same numbers from all."""

import functools

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import coo_matrix, csr_array
from sklearn.base import clone
from test_common import MODELS, quiet_fit, with_gaps

from sklearn_mpt import (
    MPTCurveDisplay,
    MPTImputer,
    MPTLinearVAE,
    check_masked_model,
    compare_lml,
    cumulative_cv_score,
    feature_contributions,
    mpt_curve,
    order_log_prob,
)

NAMES = list("abcde")
MASK = np.arange(5) < 2


def read_only(X, folder):
    X = X.copy()
    X.flags.writeable = False
    return X


def memory_map(X, folder):
    np.save(folder / "rows.npy", X)
    return np.load(folder / "rows.npy", mmap_mode="r")


def nullable(X, folder):
    return pd.DataFrame(X, columns=NAMES).convert_dtypes(dtype_backend="numpy_nullable")


KINDS = {
    "read-only": read_only,
    "Fortran": lambda X, folder: np.asfortranarray(X),
    "reversed": lambda X, folder: X[::-1].copy()[::-1],
    "part of columns": lambda X, folder: np.column_stack([X, X])[:, :5],
    "memory map": memory_map,
    "big endian": lambda X, folder: X.astype(">f8"),
    "list": lambda X, folder: X.tolist(),
    "objects": lambda X, folder: X.astype(object),
    "pandas": lambda X, folder: pd.DataFrame(X, columns=NAMES),
    "pandas nullable": nullable,
    "pandas sparse": lambda X, folder: pd.DataFrame(X).astype(pd.SparseDtype(float)),
    "polars": lambda X, folder: pl.DataFrame(X, schema=NAMES),
}


def methods(model):
    return {
        "score_samples": model.score_samples,
        "conditional_log_prob": lambda X: model.conditional_log_prob(X, MASK),
        "transform": model.transform,
        "impute": model.impute,
        "fit": lambda X: quiet_fit(clone(model), X).score_samples(X),
        "partial_fit": lambda X: clone(model).partial_fit(X).score_samples(X),
        "mpt_curve": lambda X: mpt_curve(model, X, mask_sizes=[2], n_masks=1).scores,
        "feature_contributions": lambda X: feature_contributions(model, X, n_orders=2),
        "compare_lml": lambda X: compare_lml([model, model], X).row_lml,
        "check_masked_model": lambda X: check_masked_model(model, X, n_masks=1),
    }


CASES = ["ppca", "bernoulli linear vae"]
# All models read arrays in the same way: one of them meets every kind.
PAIRS = [("ppca", kind) for kind in KINDS]
PAIRS += [pytest.param("gaussian deep vae", "pandas", marks=pytest.mark.slow)]


@functools.cache
def case_of(name):
    """A model, rows, and what each method says of them and of rows with gaps."""
    factory, X = MODELS[name]
    X = X[:8]
    model = quiet_fit(factory().set_params(n_components=1, max_iter=2), X)
    gaps = with_gaps(X)
    expected = {
        name: [np.asarray(method(rows)) for rows in (X, gaps)]
        for name, method in methods(model).items()
    }
    return model, (X, gaps), expected


@pytest.fixture(params=CASES)
def case(request):
    return case_of(request.param)


@pytest.mark.filterwarnings("ignore:X has feature names")
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_every_kind_of_array_gives_the_same(name, kind, tmp_path):
    model, tables, expected = case_of(name)
    for which, method in methods(model).items():
        for plain, truth in zip(tables, expected[which], strict=True):
            rows = KINDS[kind](plain, tmp_path)
            if truth.dtype == object:  # returns nothing
                assert method(rows) is None
            else:
                assert_allclose(method(rows), truth, rtol=1e-12, err_msg=which)
            if isinstance(rows, np.ndarray):
                # torch writes into those that are read-only, too
                assert_array_equal(rows.astype(float), plain)


@pytest.mark.parametrize("kind", ["read-only", "reversed", "memory map", "Fortran"])
def test_masks_and_latent_variables_of_every_kind(case, kind, tmp_path):
    model, (X, _), _ = case
    masks = np.tile(MASK, (len(X), 1))
    odd = KINDS[kind](masks.astype(float), tmp_path).astype(bool)
    odd = np.asfortranarray(odd)[::-1][::-1]
    assert_array_equal(
        model.conditional_log_prob(X, odd), model.conditional_log_prob(X, masks)
    )
    Z = model.transform(X)
    assert_array_equal(
        model.inverse_transform(KINDS[kind](Z, tmp_path)), model.inverse_transform(Z)
    )


def test_integers_and_bools_are_numbers(case):
    model, (X, _), _ = case
    if (X == X.round()).all():
        for dtype in (int, bool, np.uint8, np.float32):
            score = model.score_samples(X.astype(dtype))
            assert_allclose(score, model.score_samples(X), rtol=1e-12)


@pytest.mark.parametrize("rows", [np.ones(5), np.ones((2, 5, 1)), 1.0, "abc", None])
def test_other_shapes_are_refused(case, rows):
    model, _, _ = case
    words = r"2D array|dim|array-like|shape|'abc'|NoneType"
    for method in methods(model).values():
        with pytest.raises((ValueError, TypeError), match=words):
            method(rows)


def hidden_by_a_mask(gaps):
    """A masked array, with values that no gap is beneath its mask."""
    return np.ma.array(np.nan_to_num(gaps, nan=1.0), mask=np.isnan(gaps))


@pytest.mark.parametrize("array", [csr_array, coo_matrix])
def test_sparse_rows_are_refused_by_name(case, array):
    model, (X, _), _ = case
    user_model = model.conditional_log_prob
    functions = {
        "function": lambda rows: mpt_curve(user_model, rows),
        "order_log_prob": lambda rows: order_log_prob(model, rows, np.arange(5)),
        "display": lambda rows: MPTCurveDisplay.from_estimator(model, rows),
        "cumulative": lambda rows: cumulative_cv_score(model, rows, n_orders=1),
        "inverse_transform": model.inverse_transform,
        "imputer": MPTImputer(model).fit,
    }
    for method in (methods(model) | functions).values():
        with pytest.raises(TypeError, match=r"Sparse data was passed.*toarray"):
            method(array(X))


def test_masked_entries_are_gaps(case):
    model, (_, gaps), expected = case
    for name, method in methods(model).items():
        truth, masked = expected[name][1], hidden_by_a_mask(gaps)
        if truth.dtype == object:
            assert method(masked) is None
        else:
            found = method(masked)
            assert not np.ma.isMaskedArray(found)
            assert_allclose(found, truth, rtol=1e-12, err_msg=name)


def test_masked_entries_are_gaps_for_tables_imputers_and_functions(case):
    model, (_, gaps), _ = case
    codes = np.where(np.isnan(gaps), np.nan, gaps > 0)
    masked = hidden_by_a_mask(codes)
    names = ["gaussian", "poisson", "bernoulli", "categorical", "categorical"]
    for table in (
        MPTLinearVAE(1, likelihood=names, max_iter=0, random_state=0),
        MPTImputer(MPTLinearVAE(1, likelihood=names, max_iter=0, random_state=0)),
    ):
        method = "transform" if hasattr(table, "estimator") else "impute"
        found, truth = (
            getattr(clone(table).fit(rows), method)(rows) for rows in (masked, codes)
        )
        assert_array_equal(found, truth)
    for dtype in (bool, np.uint8, np.int64):
        score = model.score_samples(masked.astype(dtype))
        assert_allclose(score, model.score_samples(codes), rtol=1e-6)
    curves = [
        mpt_curve(model.conditional_log_prob, rows, n_masks=1, random_state=0).scores
        for rows in (hidden_by_a_mask(gaps), gaps)
    ]
    assert_allclose(*curves, rtol=1e-12)
    with pytest.raises(ValueError, match="NaN"):
        model.inverse_transform(np.ma.array(np.ones((2, 2)), mask=[[1, 0], [0, 0]]))
