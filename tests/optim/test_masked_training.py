"""Masked scores of training: their expectation, their gradient, and their masks."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from reference import all_masks, low_rank_rows
from sklearn.datasets import load_iris

from sklearn_mpt import MPTLinearVAE, MPTMixture
from sklearn_mpt._gaussian.likelihood import GaussianRows
from sklearn_mpt._gaussian.moments import moments_of
from sklearn_mpt._latent.likelihood_rows import LikelihoodRows
from sklearn_mpt._likelihoods import Bernoulli, Columns
from sklearn_mpt._mixture.em import MixtureRows
from sklearn_mpt._optim.masks import (
    MaskedPairs,
    MaskSource,
    masked_sums,
    moment_sums,
    shared_masks,
)
from sklearn_mpt._optim.natural import Point

N_FEATURES = 5


def rows(seed=0, gaps=True):
    X = low_rank_rows(20, N_FEATURES, 2, 0.5, seed=seed)
    if gaps:
        X[0, 2], X[3, :4] = np.nan, np.nan
    return torch.tensor(X)


def point(n_locations=N_FEATURES, shape_params=()):
    coefs = torch.tensor(np.random.default_rng(1).normal(size=(n_locations, 3)))
    return Point(0.7 * coefs, torch.tensor(shape_params).double())


def gaussian(shape_params):
    return GaussianRows(rows(), 2, "auto", floor=-20.0), point(5, shape_params)


def binary():
    X = torch.where(rows().isnan(), torch.nan, (rows() > 0).double())
    return LikelihoodRows(X, Bernoulli(), 2), point()


def mixed():
    kinds = ["gaussian", "bernoulli", "poisson", "lognormal", "gaussian"]
    likelihood, X = Columns(kinds, [1] * 5), rows()
    X[:, 1] = torch.where(X[:, 1].isnan(), torch.nan, (X[:, 1] > 0).double())
    X[:, 2], X[:, 3] = (X[:, 2].exp() / 2).round(), (X[:, 3] / 2).exp()
    objective = LikelihoodRows(X, likelihood, 2)
    return objective, Point(point().coefs, likelihood.shape_params.detach().double())


def all_pairs(n_rows):
    """Each row with each mask, and the probability of each mask."""
    masks = [all_masks(N_FEATURES, size) for size in range(1, N_FEATURES + 1)]
    share = [np.full(len(m), 1 / len(m) / N_FEATURES) for m in masks]
    masks = torch.from_numpy(np.concatenate(masks))
    index = torch.arange(len(masks)).repeat_interleave(n_rows)
    pairs = MaskedPairs(torch.arange(n_rows).repeat(len(masks)), index, masks)
    return pairs, torch.from_numpy(np.concatenate(share))


OBJECTIVES = {
    "shared noise": lambda: gaussian(-0.5),
    "noise of each": lambda: gaussian(np.linspace(-1, 0, 5)),
    "binary": binary,
    "mixed": mixed,
}


NODES = {"binary": 1e-2, "mixed": 1e-2}  # relative errors of sums over few nodes


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("row_bytes", [1, 2**20])
def test_all_masks_add_up_to_the_likelihood_and_its_gradient(name, row_bytes):
    objective, at = OBJECTIVES[name]()
    (index,) = objective.batches(np.random.default_rng(0))
    exact = objective.sums(at, index)
    pairs, share = all_pairs(len(index))
    chunks = list(pairs.chunks(row_bytes))
    assert (len(chunks) > 1) == (row_bytes > 1)
    shares = iter([share[pairs.of_mask[part]] for part, _ in chunks])

    def weighted(numbers):
        X, weight = objective.rows(numbers)
        return X, weight * next(shares)

    scores = masked_sums(objective.density, at, pairs, weighted, chunks)
    rtol = NODES.get(name, 1e-8)
    assert_allclose(scores.by_mask[0].sum(), exact.value, rtol=0.1 * rtol)
    for found, expected in zip(scores.gradient, exact.gradient, strict=True):
        assert_allclose(found, expected, rtol=rtol, atol=0.3 * rtol)


@pytest.mark.parametrize("log_noise", [-0.5, np.linspace(-1, 0, 5)])
def test_masked_scores_of_moments_are_those_of_rows(log_noise):
    X, at = rows(gaps=False), point(5, log_noise)
    source = MaskSource("uniform", 6, N_FEATURES)
    masks = torch.from_numpy(source.draw(np.random.default_rng(0)))
    index = torch.arange(len(masks)).repeat_interleave(len(X))
    pairs = MaskedPairs(torch.arange(len(X)).repeat(len(masks)), index, masks)
    objective = GaussianRows(X, 2, "auto", floor=-20.0)
    args = objective.density, at
    by_rows = masked_sums(*args, pairs, objective.rows, pairs.chunks(2**20))
    by_moments = moment_sums(*args, masks, moments_of(X))
    assert_allclose(by_moments.by_mask[0], by_rows.by_mask[0] / len(X))
    for of_moments, of_rows in zip(by_moments.gradient, by_rows.gradient, strict=True):
        assert_allclose(of_moments, of_rows / len(X), atol=1e-10)


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical", "low_rank"])
def test_all_masks_have_the_statistics_of_whole_rows(kind):
    X = load_iris().data[::5]
    X = np.column_stack([X, X[:, 0] > 5.5]).astype(float)
    X[0, 2], X[3, :4] = np.nan, np.nan
    kinds = ["gaussian"] * 4 + ["bernoulli"]
    model = MPTMixture(2, likelihood=kinds, covariance_type=kind, random_state=0)
    density = model.fit(X)._density()
    layout, components = density.layout, density.components
    weight = torch.from_numpy(np.linspace(0.5, 1.5, len(X)))
    training = MixtureRows(torch.from_numpy(X), weight, layout, 1e-6)
    exact = training.statistics(components)
    pairs, share = all_pairs(len(X))
    total = 0.0
    for i, probability in enumerate(share):
        own = pairs.of_mask == i
        of_mask = MaskedPairs(pairs.rows[own], 0 * pairs.of_mask[own], pairs.masks[[i]])
        found, _, by_mask = training.masked_statistics(components, of_mask)
        total = total + probability * torch.cat(
            [part.flatten() for part in (by_mask[0], *found[1:5])]
        )
    expected = torch.cat([part.flatten() for part in exact[:5]])
    assert_allclose(total, expected, rtol=1e-8, atol=1e-7)


@pytest.mark.parametrize("n_masks", [1, 7, 8])
def test_uniform_masks_have_uniform_sizes(n_masks):
    """Frequencies of the sizes within 4.5 standard errors of independent draws."""
    rng, source = np.random.default_rng(0), MaskSource("uniform", n_masks, 6)
    sizes = np.concatenate([source.draw(rng).sum(1) for _ in range(4000)])
    counts = np.bincount(sizes, minlength=7)
    assert counts[0] == 0
    z = (counts[1:] / len(sizes) - 1 / 6) / np.sqrt(5 / 36 / len(sizes))
    assert np.abs(z).max() < 4.5


def test_every_other_mask_hides_what_the_one_before_shows():
    masks = MaskSource("uniform", 32, 6).draw(np.random.default_rng(0))
    first, second = masks[::2], masks[1::2]
    assert_array_equal(second, ~first | first.all(1, keepdims=True))


def test_masks_of_a_size_hide_as_many_and_few_are_enumerated():
    rng = np.random.default_rng(0)
    masks = [MaskSource(2, 12, 6).draw(rng) for _ in range(2)]
    assert_array_equal(masks[0].sum(1), 2)
    assert (masks[0] != masks[1]).any()
    every = MaskSource(0.34, 15, 6).draw(rng)
    assert len(np.unique(every, axis=0)) == len(every) == 15


@pytest.mark.parametrize("n_rows", [3, 500, 5000])
def test_rows_are_divided_among_masks(n_rows):
    rng, index = np.random.default_rng(0), torch.arange(n_rows)
    source = MaskSource("uniform", 8, 6)
    pairs = source.pairs(index, source.draw(rng), rng)
    counts = pairs.rows.bincount(minlength=n_rows)
    assert (counts == counts[0]).all()
    of_masks = pairs.of_mask.bincount(minlength=8)
    assert of_masks.max() - of_masks.min() <= 1
    together = torch.stack([pairs.rows, pairs.of_mask])
    assert len(together.unique(dim=1).T) == len(pairs.rows)
    assert (pairs.of_mask.diff() >= 0).all()


def test_fits_by_masks_do_not_depend_on_units():
    """Log-densities of amounts hold their logarithms, which are no noise of masks."""
    rng = np.random.default_rng(0)
    X = np.exp(rng.normal(size=(80, 1)) + 0.5 * rng.normal(size=(80, 4)))
    model = MPTLinearVAE(1, likelihood="lognormal", n_masks=4, random_state=0)
    scale = [1e-3, 1.0, 10.0, 1e4]
    first, second = model.fit(X).score(X), model.fit(X * scale).score(X * scale)
    assert_allclose(second + np.log(scale).sum(), first, atol=1e-6)


def test_uniform_training_sizes_are_stratified():
    rng = np.random.default_rng(0)
    masks = shared_masks("uniform", 20, 10, rng)
    assert_array_equal(np.bincount(masks.sum(1), minlength=11)[1:], 2)
