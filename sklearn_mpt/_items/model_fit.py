"""Tests of the fit of a whole model, and comparison with others."""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import chi2

from sklearn_mpt._base.density import torch_modes
from sklearn_mpt._checks import warn_caller
from sklearn_mpt._items import limited_information as limited
from sklearn_mpt._items.item_statistics import ranks_of
from sklearn_mpt._items.objective import population_scores


class LikelihoodRatio(NamedTuple):
    """Likelihood-ratio test: statistic, degrees of freedom and p-value."""

    statistic: float
    df: int
    p_value: float


def model_fit(model, density, rows, weight):
    """Test a model on the moments of complete rows; see `MPTItemResponse.model_fit`."""
    n_items = rows.shape[1]
    n_moments = int((model.items.n_categories - 1).sum()) + n_items * (n_items - 1) // 2
    if n_moments > limited.MAX_MOMENTS:
        raise ValueError(
            f"model_fit needs the covariance of {n_moments} moments of {n_items} "
            f"items, more than {limited.MAX_MOMENTS}: take fewer items."
        )
    order = model.items.answer_order(density.point)
    rows = ranks_of(rows, order)
    with torch_modes():
        fitted = _at_nodes(model, density, order)
    m2 = limited.moment_statistic(rows, weight, fitted, by_category=False)
    c2 = (math.nan,) * 2
    if model.items.max_categories > 2:
        c2 = limited.moment_statistic(rows, weight, fitted, by_category=True)
    n_rows = weight.sum()
    return limited.ModelFit(
        m2[0],
        m2[1],
        float(chi2.sf(*m2)),
        limited.rmsea(m2[0], m2[1], n_rows),
        limited.rmsea_interval(m2[0], m2[1], n_rows),
        limited.srmsr(rows, weight, fitted),
        c2[0],
        c2[1],
        float(chi2.sf(*c2)),
        limited.rmsea(c2[0], c2[1], n_rows),
    )


def refuse_priors(model, priors, name):
    """Refuse a model whose fit does not maximise the likelihood.

    name : of the model, for the message.
    """
    has_slopes = any(
        block.n_slopes + block.kind.n_shape_slopes for block in model.items.blocks
    )
    given = {
        "slope_prior": priors.slope if has_slopes else None,
        "guessing_prior": priors.guessing if model.n_guessed else None,
    }
    for parameter, value in given.items():
        if value is not None:
            raise ValueError(
                "likelihood_ratio_test compares maxima of the likelihood, but "
                f"{name} has {parameter}={value!r}: fit both models without "
                "priors, or compare their score on held-out rows."
            )


def warn_of_bounds(model, nested):
    """Warn where the nested model is at a bound of the other."""
    n_bounds = model.n_guessed - nested.n_guessed
    if n_bounds > 0:
        warn_caller(
            f"Guessing of {n_bounds} item(s) is at its bound, 0, in nested: the "
            "statistic is then smaller than chi-squared, and p_value is an upper "
            "bound of the probability."
        )


def _at_nodes(model, density, order):
    """Return the arrays of a model that the statistics of moments use.

    order : of the answers of each item, (d, c).
    """
    items, layout, grid = model.items, model.layout, density.grid
    point = density.point
    curves = items.curves(point, grid.z)
    scores = [
        block.scores(curve, grid.z).numpy(force=True)
        for block, curve in zip(items.blocks, curves, strict=True)
    ]
    if layout.is_fixed is not None:  # no derivatives in fixed parameters
        scores = [
            score * ~layout.is_fixed[block.parameter_index.numpy()][..., None, None]
            for block, score in zip(items.blocks, scores, strict=True)
        ]
    scores = [
        np.take_along_axis(
            score, order[block.items.numpy(), None, : score.shape[2], None], 2
        )
        for block, score in zip(items.blocks, scores, strict=True)
    ]
    whole = torch.cat([point, model.start(point.device)[items.n_parameters :]])
    group = model.group_weight.argmax()  # the only one
    scores_of_z = population_scores(layout, whole, grid.z)[group].numpy(force=True)
    weight = density.log_weight.exp().numpy(force=True)
    prob = np.take_along_axis(density.prob.numpy(force=True), order[..., None], 1)
    return limited.ModelAtNodes(
        items, prob, scores, scores_of_z, weight, model.n_parameters
    )
