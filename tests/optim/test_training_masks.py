"""Masks of training: their sizes, and which entries they hide."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.stats import chisquare

pytest.importorskip("torch")

from sklearn_mpt._optim.masks import draw_sizes


def test_uniform_training_sizes_are_stratified():
    rng = np.random.default_rng(0)
    for _ in range(20):
        sizes = draw_sizes("uniform", 20, 10, rng)
        assert_array_equal(np.bincount(sizes, minlength=11)[1:], 2)


def test_uniform_training_sizes_are_uniform_when_fewer_than_features():
    rng = np.random.default_rng(0)
    sizes = [draw_sizes("uniform", 1, 7, rng)[0] for _ in range(7000)]
    assert chisquare(np.bincount(sizes, minlength=8)[1:]).pvalue > 1e-3


@pytest.mark.parametrize(("mask_rate", "size"), [(0.2, 2), (3, 3), (np.float64(1), 10)])
def test_fixed_training_sizes(mask_rate, size):
    assert_array_equal(draw_sizes(mask_rate, 4, 10, np.random.default_rng(0)), size)
