"""Rows that nets are trained on, their weights, and how epochs divide them."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mpt._optim.nets import MinibatchLoss, TrainingRows

WEIGHT = np.arange(1.0, 41.0)


class Loss(MinibatchLoss):
    def batches(self):
        yield self.rows.X, self.rows.relative_weight

    def losses(self, module, batch):
        X, weight = batch
        return weight * X[:, 0]


def rows(n=40, weight=WEIGHT):
    return TrainingRows.from_arrays(torch.arange(float(n))[:, None], weight)


def mean_loss(loss):
    return loss.losses(None, next(loss.batches())).mean()


def test_the_mean_loss_of_any_rows_is_weighted():
    of_all, first = Loss(rows(), 10), Loss(rows().take(slice(30)), 10)
    expected = np.average(np.arange(40), weights=WEIGHT)
    assert_allclose(mean_loss(of_all), expected, rtol=1e-6)
    of_first = np.average(np.arange(30), weights=WEIGHT[:30])
    assert_allclose(mean_loss(first), of_first, rtol=1e-6)
    first.join(Loss(rows().take(slice(30, None)), 10))
    assert_allclose(mean_loss(first), expected, rtol=1e-6)


def test_rows_are_split_alike_by_the_same_seed():
    parts = rows().split(7, seed=3)
    again, other = rows().split(7, seed=3), rows().split(7, seed=4)
    assert [len(part.X) for part in parts] == [33, 7]
    numbers = torch.cat([part.X[:, 0] for part in parts])
    assert_array_equal(numbers.sort().values, np.arange(40))
    for part, same in zip(parts, again, strict=True):
        assert_array_equal(part.X, same.X)
        weight = WEIGHT[part.X[:, 0].long().numpy()] / WEIGHT.mean()
        assert_allclose(part.weight, weight, rtol=1e-6)
    assert (parts[1].X != other[1].X).any()


@pytest.mark.parametrize(
    ("n_rows", "batch_size", "most"),
    [(1, 64, 1), (5, 64, 2), (40, 64, 16), (900, 256, 20), (20000, 256, 79)],
)
def test_an_epoch_of_few_rows_has_few_steps(n_rows, batch_size, most):
    """An epoch of five rows took 64 steps, and the fit a minute."""
    n_batches = -(-n_rows // batch_size)
    loss = Loss(rows(n_rows, None), batch_size, min_steps=16)
    assert 1 <= loss.count_passes(n_batches) * n_batches <= most


@pytest.mark.parametrize(("n_rows", "weight"), [(10, 0.25), (40, 1.0), (90, 1.0)])
def test_a_small_part_of_a_stream_is_a_fraction_of_a_step(n_rows, weight):
    loss = Loss(rows(n_rows, None), 40)
    assert loss.step_weight == 1
    assert loss.as_part().step_weight == weight
