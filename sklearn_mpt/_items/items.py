"""Parameters of items with standard errors, information of tests, and S-X2."""

from typing import Any, NamedTuple

import numpy as np
import torch

from sklearn_mpt._base.density import torch_modes
from sklearn_mpt._checks import warn_caller
from sklearn_mpt._gaussian.rotation import LOADING_STEP, LOGISTIC_VARIANCE, solution
from sklearn_mpt._items import item_statistics as statistics
from sklearn_mpt._items.groups import far_groups
from sklearn_mpt._items.information import (
    MAX_PARAMETERS,
    item_blocks,
    with_bounds,
)
from sklearn_mpt._items.model import attributes_of, reshape_attributes
from sklearn_mpt._matrices import identity
from sklearn_mpt._messages import listed
from sklearn_mpt._optim.information import (
    STEP,
    central_differences,
    covariance_of,
)
from sklearn_mpt._tables.labels import aligned

PARAMETER_NAMES = ("discrimination", "intercept", "difficulty", "guessing")
MAX_SUM_SCORES = 2**27  # numbers in the distributions of sum scores: 1 GB


class ItemParameters(NamedTuple):
    """Parameters of items and their standard errors.

    Attributes
    ----------
    discrimination, discrimination_std_error : ndarray
        Of shape (n_items,), or (n_items, n_components).
    intercept, intercept_std_error : ndarray
        Of shape (n_items,), or (n_items, n_categories - 1).
    difficulty, difficulty_std_error : ndarray
        The same, by the delta method.
    guessing, guessing_std_error : ndarray of shape (n_items,)
    latent_mean, latent_mean_std_error : ndarray of shape (n_groups, n_components)
    latent_variance, latent_variance_std_error : ndarray of the same shape
    covariance : ndarray of shape (n_items, n_parameters, n_parameters)
        Of the discriminations, intercepts and guessing of each item. The variance is 0
        where a parameter is fixed or the item does not have it.
    """

    discrimination: Any
    discrimination_std_error: Any
    intercept: Any
    intercept_std_error: Any
    difficulty: Any
    difficulty_std_error: Any
    guessing: Any
    guessing_std_error: Any
    latent_mean: Any
    latent_mean_std_error: Any
    latent_variance: Any
    latent_variance_std_error: Any
    covariance: Any


class TestInformation(NamedTuple):
    """Fisher information about abilities.

    Attributes
    ----------
    items : ndarray of shape (n_theta, n_items)
        Information of each item; for several abilities, the trace of its matrix.
    test : ndarray of shape (n_theta,)
    """

    items: np.ndarray
    test: np.ndarray


class Errors(NamedTuple):
    """Covariances and standard errors of the parameters of items and groups.

    covariance : of discriminations, intercepts and guessing of each item, (d, q, q).
    difficulty : (d, c - 1). latent_mean, latent_variance : (g, k). NaN where the rows
    do not determine a parameter.
    """

    covariance: np.ndarray
    difficulty: np.ndarray
    latent_mean: np.ndarray
    latent_variance: np.ndarray


def information_about(density, theta):
    """Return the Fisher information about abilities; theta : a tensor (m, k)."""
    with torch_modes():
        z = density.z_of_abilities(theta)
        slopes = density.items.slopes(density.point)
        slopes = slopes @ torch.linalg.inv(density.root).T
        information = density.items.eta_information(density.point, z)
        by_item = (information.T * (slopes**2).sum(1)).cpu().numpy()
    return TestInformation(by_item, by_item.sum(axis=1))


def item_parameters(fitted, errors=None):
    """Return fitted parameters with standard errors, NaN if `errors` is None."""
    names = (*PARAMETER_NAMES, "latent_mean", "latent_variance")
    values = {name: fitted[f"{name}_"] for name in names}
    K, steps = fitted["factor_correlation_"].shape[0], values["intercept"][0].size
    if errors is None:
        n_items, width = len(values["guessing"]), K + steps + 1
        covariance = np.full((n_items, width, width), np.nan)
        std_errors = {name: np.full(np.shape(values[name]), np.nan) for name in names}
    else:
        covariance = errors.covariance
        deviation = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        std_errors = errors._asdict() | {
            "discrimination": deviation[:, :K],
            "intercept": deviation[:, K : K + steps],
            "guessing": deviation[:, -1],
        }
        for name in PARAMETER_NAMES:
            std_errors[name] = std_errors[name].reshape(values[name].shape)
        is_none = np.isnan(values["intercept"])
        std_errors["intercept"] = np.where(is_none, np.nan, std_errors["intercept"])
        has_none = ~np.isfinite(values["difficulty"])
        std_errors["difficulty"] = np.where(has_none, np.nan, std_errors["difficulty"])
    with_errors = {f"{name}_std_error": std_errors[name] for name in names}
    return ItemParameters(**values, **with_errors, covariance=covariance)


def as_frame_of(parameters, names):
    """Return the parameters of items as a pandas DataFrame, with a row for each."""
    import pandas as pd

    columns = {}
    for name in PARAMETER_NAMES:
        for part in (name, f"{name}_std_error"):
            value = getattr(parameters, part)
            if value.ndim == 1:
                columns[part] = value
            else:
                columns |= {
                    f"{part}_{c + 1}": value[:, c] for c in range(value.shape[1])
                }
    return pd.DataFrame(columns, index=names)


def errors_of(model, objective, point, rotation, names, groups):
    """Return the errors of parameters, and warn of those that have none."""
    # objective : of the rows. point : fitted flat parameters. names : of the items.
    # groups : labels of the groups.
    items, flat = model.items, point.cpu().numpy()
    whole, blocks, at_bound, lost = _flat_covariance(
        model, objective, point, names, groups
    )
    if items.n_dims > 1 and whole is not None:
        covariance, difficulty = _rotated_covariances(model, flat, whole, rotation)
    else:
        covariance, difficulty = _delta(items, flat[: items.n_parameters], blocks)
    covariance[lost] = difficulty[lost] = np.nan
    return Errors(covariance, difficulty, *_latent_errors(model, whole, at_bound))


def loadings_of(model, rotation):
    """Return standardised loadings of the latent responses; see `factor_loadings`."""
    weights = model.items.slopes(torch.from_numpy(model.point)).numpy()
    return _loadings(model, weights, model.variance[model.reference], rotation)


def _loadings(model, slopes, variance, rotation, start=None):
    weights, root = slopes * np.sqrt(variance), model.root
    axes = root if start is None else start
    parts = solution(weights, LOGISTIC_VARIANCE, rotation, start, axes=axes)
    scores = np.linalg.inv(root) / np.sqrt(variance)
    return parts | {"rotation_matrix": scores @ parts["rotation_matrix"]}


def loading_errors(model, objective, point, rotation, names, groups):
    """Return standard errors of `loadings_of`, by the delta method."""
    whole, *_ = _flat_covariance(model, objective, point, names, groups)
    if whole is None:
        raise ValueError(
            f"Standard errors of loadings of {len(point)} parameters need a matrix of "
            f"more than {MAX_PARAMETERS} rows: call factor_loadings without X."
        )
    names = "loadings", "factor_correlation", "communality"
    found = loadings_of(model, rotation)
    start = (
        model.root @ found["rotation_matrix"] * np.sqrt(model.variance[model.reference])
    )

    def reported(flat):
        slopes = model.items.slopes(flat).numpy()
        variance = model.layout.population(flat).deviation[model.reference] ** 2
        parts = _loadings(model, slopes, variance.numpy(), rotation, start)
        return torch.from_numpy(np.concatenate([parts[n].ravel() for n in names]))

    at = point.cpu()
    steps = LOADING_STEP * identity(len(at), at)
    jacobian = (central_differences(reported, at, steps) / LOADING_STEP).numpy()
    variance = np.einsum("pr,pq,qr->r", jacobian, whole, jacobian, optimize=True)
    errors = np.split(
        np.sqrt(variance.clip(min=0)),
        np.cumsum([found[name].size for name in names])[:-1],
    )
    return {
        f"{name}_error": error.reshape(found[name].shape)
        for name, error in zip(names, errors, strict=True)
    }


def _flat_covariance(model, objective, point, names, groups):
    """Return the covariance of flat parameters; warn of those without errors."""
    # It is a matrix (p, p), or None; matrices of the items of each block; and which
    # parameters are at a bound, (p,), and which items have no errors, (d,).
    items = model.items
    information = model.information(objective, point)
    information, at_bound = with_bounds(information, objective, point)
    K, owner = items.n_dims, items.item_of_parameters
    n_items = items.n_parameters
    constant = objective.answers.are_constant.cpu().numpy()
    guessed = np.isin(np.arange(len(items)), owner[at_bound[:n_items]]) & ~constant
    _warn_of_lost_items(names, guessed, constant)
    is_far = _of_far_groups(model, objective.answers, point, groups)
    if (at_bound[n_items:] & ~is_far).any():
        warn_caller(
            "A variance of z is at its bound, 0, and has no standard error: "
            "answers to different items hardly depend on each other, or a group has "
            "too few people."
        )
    at_bound[n_items:] |= is_far
    left_out = at_bound.copy()
    left_out[:n_items] |= constant[owner]
    if model.is_fixed is not None:
        left_out[:n_items] |= model.is_fixed
    if isinstance(information, list):
        whole, blocks = None, _inverses(items, information, left_out)
    else:
        whole = np.zeros_like(information)
        free = np.ix_(~left_out, ~left_out)
        whole[free] = covariance_of(information[free], n_rotations=K * (K - 1) // 2)
        blocks = [part.numpy() for part in item_blocks(items, whole)]
    return whole, blocks, at_bound, guessed | constant


def _warn_of_lost_items(names, guessed, constant):
    """Warn of items without standard errors; bool (d,) each."""
    if constant.any():
        warn_caller(
            f"All answers to the item(s) {listed(names[constant])} are the same: "
            "the parameters of these items have no standard errors. Drop the items."
        )
    if guessed.any():
        warn_caller(
            f"Guessing of the item(s) {listed(names[guessed])} is at its bound, "
            "0: the rows do not tell it from the slope and the difficulty of these "
            "items, whose parameters have no standard errors. A prior keeps "
            "guessing off the bound: guessing_prior=(-1.4, 1.0) is one with median "
            "0.2.",
        )


def _of_far_groups(model, answers, point, groups):
    """Return which free means and variances are those of groups without an estimate."""
    # With a warning. groups : labels of the groups.
    layout, X = model.layout, answers.as_floats.numpy(force=True)
    codes = answers.group.numpy(force=True)
    is_far = far_groups(model.items, point, X, codes, len(groups))
    is_far &= layout.free_mean
    if is_far.any():
        warn_caller(
            f"All answers of the group(s) {listed(groups[is_far])} are those of people "
            "with the highest z, or the lowest, or missing: the mean and the variance "
            "of z have no standard errors there."
        )
    return np.concatenate([is_far[layout.free_mean], is_far[layout.free_variance]])


def _latent_errors(model, whole, at_bound):
    """Return standard errors of means and variances of z, (g, k) each."""
    mean, variance = np.zeros(model.mean.shape), np.zeros(model.variance.shape)
    layout = model.layout
    means, deviations = layout.population_slices
    if whole is None:
        mean[layout.free_mean] = variance[layout.free_variance] = np.nan
    else:
        errors = np.where(at_bound, np.nan, np.sqrt(np.diagonal(whole)))
        mean[layout.free_mean] = errors[means, None]
        free_variance = model.variance[layout.free_variance]
        variance[layout.free_variance] = 2 * free_variance * errors[deviations, None]
    return mean, variance


def _rotated_covariances(model, flat, whole, rotation):
    """Covariances after rotation, by its numerical derivatives."""
    items = model.items

    def reported(point):
        attributes, _ = attributes_of(items, point.numpy(), rotation, model.root)
        return torch.from_numpy(_as_rows(attributes))

    at = torch.from_numpy(flat)
    steps = STEP * identity(len(flat), at)
    differences = central_differences(reported, at, steps)
    jacobian = (differences / STEP).movedim(0, -1).nan_to_num().numpy()
    width = items.n_dims + items.max_categories  # of the covariance of an item
    covariances = jacobian @ whole @ jacobian.transpose(0, 2, 1)
    deviation = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    return covariances[:, :width, :width], deviation[:, width:]


def fits_memory(density):
    """Return whether S-X2 can be computed; warn if it can not."""
    n_items = density.n_items
    largest = int((density.items.n_categories - 1).sum())
    if n_items * largest * len(density.grid.z) <= MAX_SUM_SCORES:
        return True
    warn_caller(
        f"S-X2 is not computed for {n_items} items: the distributions of sum scores "
        f"up to {largest} would not fit the memory. Take fewer items."
    )
    return False


def s_x2(model, density, rows, weight):
    """Return S-X2 of complete rows and its degrees of freedom, for each item."""
    order = model.items.answer_order(density.point)
    prob = density.prob.numpy(force=True)
    tables = statistics.score_tables(
        statistics.ranks_of(rows, order),
        weight,
        np.take_along_axis(prob, order[..., None], 1),
        model.items.n_categories,
        density.log_weight.exp().numpy(force=True),
    )
    n_items = len(model.items)
    counts = np.zeros(n_items, dtype=int)
    for block in model.items.blocks:
        counts[block.items.numpy()] = block.width
    if model.is_fixed is not None:
        owner = model.items.item_of_parameters
        counts -= np.bincount(owner[model.is_fixed], minlength=n_items)
    return statistics.s_x2(tables, counts)


def anchor_items(anchors, names):
    """Return the indices of anchors, in order, given indices or a mask."""
    # names : of the items.
    given, n_items = np.asarray(anchors), len(names)
    if given.dtype == bool:
        given = np.asarray(aligned(anchors, [names], "anchors", "items"))
    if given.dtype == bool and given.shape == (n_items,):
        given = np.flatnonzero(given)
    is_some = given.dtype.kind in "iu" and given.ndim == 1 and 0 < len(given)
    if not is_some or given.min() < 0 or given.max() >= n_items:
        raise ValueError(
            f"anchors must be some of the items 0..{n_items - 1}, or a boolean mask of "
            f"shape ({n_items},), got {np.asarray(anchors).tolist()}."
        )
    anchor_items = np.unique(given)
    if len(anchor_items) == n_items:
        raise ValueError(
            f"anchors must leave items to test, but all {n_items} are anchors."
        )
    return anchor_items


def _inverses(items, information, left_out):
    """Return inverses of the information of single items, for each block (j, q, q)."""
    # left_out : which parameters have the variance 0 instead, bool (p,).
    inverses = []
    for block, part in zip(items.blocks, information, strict=True):
        out = left_out[block.parameters].reshape(len(block.items), block.width)
        kept = ~out[:, :, None] & ~out[:, None]
        unit = np.eye(block.width) * out[:, None]
        inverses.append(np.linalg.inv(np.where(kept, part, unit)) * kept)
    return inverses


def _as_rows(attributes):
    """Return the parameters of each item as a row, difficulties last."""
    names = "discrimination_", "intercept_", "guessing_", "difficulty_"
    n_items = len(attributes["guessing_"])
    return np.concatenate([attributes[n].reshape(n_items, -1) for n in names], 1)


def _delta(items, point, blocks):
    """Return covariances of the parameters of items, and errors of difficulties."""
    # blocks : covariances of flat parameters, (j, q, q) for each block.
    d, K, steps = len(items), items.n_dims, items.max_categories - 1
    width = K + steps + 1
    covariance, errors = np.zeros((d, width, width)), np.full((d, steps), np.nan)

    for block, part in zip(items.blocks, blocks, strict=True):
        chosen = block.items.numpy()

        def reported(at, chosen=chosen):
            attributes = reshape_attributes(items.describe(at), items)
            return torch.from_numpy(_as_rows(attributes)[chosen])

        jacobian = block.derivatives(reported, torch.from_numpy(point)).numpy()
        missing = np.isnan(jacobian).any(axis=2)
        jacobian = np.nan_to_num(jacobian)
        covariances = jacobian @ part @ jacobian.transpose(0, 2, 1)
        covariance[chosen] = covariances[:, :width, :width]
        deviation = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
        deviation = np.where(missing, np.nan, deviation)
        errors[chosen] = deviation[:, width:]
    return covariance, errors
