from math import comb

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chisquare

from sklearn_mpt._measure.masks import (
    draw_in_blocks,
    draw_masks,
    enumerate_masks,
    mask_size,
    read_blocks,
)


@pytest.mark.parametrize(
    ("rate", "n_features", "size"),
    [(0.15, 200, 30), (0.2, 2, 1), (0.001, 10, 1), (0.25, 10, 3), (1.0, 7, 7)],
)
def test_mask_size_rounds_half_up_and_hides_something(rate, n_features, size):
    assert mask_size(rate, n_features) == size


def test_enumerated_masks_are_all_masks_of_the_size():
    masks = enumerate_masks(6, 2)
    assert masks.shape == (comb(6, 2), 6)
    assert len(np.unique(masks, axis=0)) == len(masks)
    assert_array_equal(masks.sum(axis=1), 2)


def test_drawn_masks_have_their_sizes():
    sizes = np.arange(1, 8)
    assert_array_equal(draw_masks(sizes, 7, np.random.default_rng(0)).sum(1), sizes)


def test_drawn_masks_are_uniform_over_the_sets_of_a_size():
    masks = draw_masks(np.full(6000, 2), 5, np.random.default_rng(0))
    _, counts = np.unique(masks, axis=0, return_counts=True)
    assert len(counts) == comb(5, 2)
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("size", range(1, 7))
def test_masks_of_blocks_hide_whole_blocks_and_a_part_of_one_more(size):
    blocks = read_blocks(["a", "b", "a", "c", "b", "c"], 6)
    masks = draw_in_blocks(size, 3000, blocks, np.random.default_rng(0))
    assert (masks.sum(axis=1) == size).all()
    by_block = masks @ np.eye(3, dtype=int)[blocks.numbers]
    assert ((by_block == 1).sum(axis=1) == size % 2).all()
    # blocks are equally likely, and so are the features of the block that is cut
    assert_allclose(masks.mean(axis=0), size / 6, atol=4 * np.sqrt(0.25 / 3000))
    fewer = draw_in_blocks(size, 7, blocks, np.random.default_rng(0))
    assert_array_equal(fewer, masks[:7])


def test_blocks_of_one_feature_are_uniform_masks():
    blocks = read_blocks(np.arange(4), 4)
    masks = draw_in_blocks(2, 6000, blocks, np.random.default_rng(0))
    counts = np.unique(masks, axis=0, return_counts=True)[1]
    assert chisquare(counts).pvalue > 0.001
    assert len(counts) == 6


def test_spans_are_consecutive_and_hide_all_features_alike():
    masks = draw_in_blocks(3, 5000, read_blocks("span", 8), np.random.default_rng(0))
    starts = masks & ~np.roll(masks, 1, axis=1)
    assert (masks.sum(axis=1) == 3).all()
    assert (starts.sum(axis=1) == 1).all()
    assert chisquare(starts.sum(axis=0)).pvalue > 0.001


@pytest.mark.parametrize("blocks", ["patch", [0, 1], 3, np.zeros((2, 2))])
def test_blocks_that_are_none_are_refused(blocks):
    with pytest.raises(ValueError, match=r"mask_blocks must be .* each of the 4 "):
        read_blocks(blocks, 4)
