from math import comb

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from recorder import masks_of, masks_of_rows, orders_of
from scipy.stats import chisquare

from sklearn_mpt import MPTCurve


@pytest.mark.parametrize(
    ("rate", "n_features", "size"),
    [(0.15, 200, 30), (0.2, 2, 1), (0.001, 10, 1), (0.25, 10, 3), (1.0, 7, 7)],
)
def test_the_size_of_a_rate_rounds_half_up_and_hides_something(rate, n_features, size):
    sizes = np.arange(1, n_features + 1)
    curve = MPTCurve(sizes, sizes / n_features, np.zeros(n_features), n_features)
    assert curve.fixed_rate(rate) == pytest.approx(size)


@pytest.mark.parametrize(("n_features", "size"), [(6, 2), (20, 10)])
def test_independent_masks_are_distinct_and_begin_alike(n_features, size):
    few, many = (masks_of(n_features, size, n_masks) for n_masks in (5, 15))
    assert len(np.unique(many, axis=0)) == 15
    assert (many.sum(axis=1) == size).all()
    assert_array_equal(few, many[:5])


def test_independent_masks_hide_all_pairs_alike():
    """A pair of twenty features, of which ten are hidden: 10 * 9 / (20 * 19)."""
    masks = masks_of(20, 10, 3000).astype(float)
    pairs = (masks.T @ masks / 3000)[np.triu_indices(20, 1)]
    assert_allclose(pairs, 9 / 38, atol=5 * np.sqrt(9 / 38 * 29 / 38 / 3000))
    assert_allclose(masks.mean(axis=0), 0.5, atol=5 * np.sqrt(0.25 / 3000))


def test_balanced_masks_hide_each_feature_once_before_any_twice():
    """Rows have two sets of masks each, and all have others."""
    masks = masks_of_rows(10, 12, size=3, n_masks=8)
    assert masks.shape == (8, 10, 12)
    assert (masks.reshape(2, 4, 10, 12).sum(axis=1) == 1).all()
    assert len(np.unique(masks[0], axis=0)) > 5
    masks = masks_of_rows(10, 12, size=10, n_masks=12)
    assert ((~masks).reshape(2, 6, 10, 12).sum(axis=1) == 1).all()


def test_orders_are_uniform_and_where_few_distinct():
    few = orders_of(6, 50, 3)
    assert all(len(np.unique(few[:, row], axis=0)) == 6 for row in range(50))
    for n_features in (5, 8):  # all orders are listed; they are drawn
        many = orders_of(40, 100, n_features)
        counts = np.bincount(many[..., 0].ravel(), minlength=n_features)
        error = 5 * np.sqrt(4000 / n_features * (1 - 1 / n_features))
        assert_allclose(counts, 4000 / n_features, atol=error)
        assert_array_equal(np.sort(many)[0, 0], np.arange(n_features))


@pytest.mark.parametrize("size", range(1, 6))
def test_masks_of_blocks_hide_whole_blocks_and_a_part_of_one_more(size):
    labels = ["a", "b", "a", "c", "b", "c"]
    masks = masks_of(6, size, 3000, mask_blocks=labels)
    assert (masks.sum(axis=1) == size).all()
    by_block = masks @ np.equal.outer(labels, list("abc")).astype(int)
    assert ((by_block == 1).sum(axis=1) == size % 2).all()
    # blocks are equally likely, and so are the features of the block that is cut
    assert_allclose(masks.mean(axis=0), size / 6, atol=4 * np.sqrt(0.25 / 3000))


def test_blocks_of_one_feature_are_uniform_masks():
    masks = masks_of(4, 2, 6000, mask_blocks=np.arange(4))
    counts = np.unique(masks, axis=0, return_counts=True)[1]
    assert chisquare(counts).pvalue > 0.001
    assert len(counts) == comb(4, 2)


def test_spans_are_consecutive_and_hide_all_features_alike():
    masks = masks_of(8, 3, 5000, mask_blocks="span")
    starts = masks & ~np.roll(masks, 1, axis=1)
    assert (masks.sum(axis=1) == 3).all()
    assert (starts.sum(axis=1) == 1).all()
    assert chisquare(starts.sum(axis=0)).pvalue > 0.001
