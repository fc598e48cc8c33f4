from math import comb

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.stats import chisquare

from sklearn_mpt._measure.masks import (
    draw_masks,
    enumerate_masks,
    mask_size,
    training_sizes,
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


def test_uniform_training_sizes_are_stratified():
    rng = np.random.default_rng(0)
    for _ in range(20):
        sizes = training_sizes("uniform", 20, 10, rng)
        assert_array_equal(np.bincount(sizes, minlength=11)[1:], 2)


def test_uniform_training_sizes_are_uniform_when_fewer_than_features():
    rng = np.random.default_rng(0)
    sizes = [training_sizes("uniform", 1, 7, rng)[0] for _ in range(7000)]
    assert chisquare(np.bincount(sizes, minlength=8)[1:]).pvalue > 1e-3


@pytest.mark.parametrize(("mask_rate", "size"), [(0.2, 2), (3, 3), (np.float64(1), 10)])
def test_fixed_training_sizes(mask_rate, size):
    assert_array_equal(training_sizes(mask_rate, 4, 10, np.random.default_rng(0)), size)
