"""Rows that come in blocks: streams from files, dask's collections."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mpt import MPTProbabilisticPCA

N_ROWS, N_BLOCKS, N_FEATURES = 20_000, 20, 12
NAMES = [f"x{j}" for j in range(N_FEATURES)]


@pytest.fixture(scope="module")
def rows():
    """Rows with gaps, in single precision, and the model that they come from."""
    rng = np.random.default_rng(0)
    components = rng.normal(size=(2, N_FEATURES))
    start = {"components": components, "mean": np.ones(N_FEATURES)}
    truth = MPTProbabilisticPCA(2, init=start | {"noise_variance": 0.5}, max_iter=0)
    truth.fit(rng.normal(size=(2, N_FEATURES)))
    X = truth.sample(N_ROWS, random_state=0).astype(np.float32)
    X[rng.random(X.shape) < 0.2] = np.nan
    return X, truth


@pytest.fixture(scope="module")
def whole(rows):
    return MPTProbabilisticPCA(2, random_state=0).fit(rows[0])


def memory_map(X, folder):
    np.save(folder / "rows.npy", X)
    size = N_ROWS // N_BLOCKS
    for first in range(0, N_ROWS, size):  # a new map, as pages read stay resident
        yield np.load(folder / "rows.npy", mmap_mode="r")[first : first + size]


def row_groups(X, folder):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pd.DataFrame(X, columns=NAMES)
    path = folder / "rows.parquet"
    table.to_parquet(path, row_group_size=N_ROWS // N_BLOCKS)
    with parquet.ParquetFile(path) as file:
        assert file.num_row_groups == N_BLOCKS
        for index in range(N_BLOCKS):
            yield file.read_row_group(index).to_pandas()


@pytest.mark.parametrize("blocks", [memory_map, row_groups])
def test_a_stream_ends_where_fit_does(blocks, rows, whole, tmp_path):
    X, truth = rows
    model = MPTProbabilisticPCA(2, init="pca", random_state=0)
    for block in blocks(X, tmp_path):
        model.partial_fit(block)
    gaps = truth.sample(5000, random_state=1)
    gaps[np.random.default_rng(1).random(gaps.shape) < 0.2] = np.nan
    if blocks is row_groups:
        gaps = pd.DataFrame(gaps, columns=NAMES)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X has feature names")
        assert abs(model.score(gaps) - whole.score(gaps)) < 0.01
    assert model.n_iter_ == N_BLOCKS


METHODS = {
    "score_samples": {"drop_axis": 1},
    "transform": {"chunks": 2},
    "impute": {},
}


@pytest.mark.parametrize("name", METHODS)
def test_blocks_of_a_dask_array(name, rows, whole):
    array = pytest.importorskip("dask.array")
    X, options = rows[0][:300], dict(METHODS[name])
    blocks = array.from_array(X, chunks=(70, N_FEATURES))
    if "chunks" in options:
        options["chunks"] = (blocks.chunks[0], (options["chunks"],))
    method = getattr(whole, name)
    found = blocks.map_blocks(method, dtype=float, **options)
    expected = method(X)
    assert found.shape == expected.shape
    assert_allclose(found.compute(), expected, rtol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_partitions_of_a_dask_table(name, rows):
    frames = pytest.importorskip("dask.dataframe")
    X = pd.DataFrame(rows[0][:300], columns=NAMES)
    model = MPTProbabilisticPCA(2, init="pca", max_iter=0).fit(X)
    method = getattr(model, name)

    def as_frame(part):
        return pd.DataFrame(method(part), index=part.index)

    partitions = frames.from_pandas(X, npartitions=4)
    found = partitions.map_partitions(as_frame, meta=as_frame(X[:1])).compute()
    assert_array_equal(found.index, X.index)
    expected = method(X)
    assert_allclose(found.to_numpy().reshape(expected.shape), expected, rtol=1e-6)
