"""Parameters of items with standard errors, by the observed information."""

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import expit

from sklearn_mpt._checks import listed, warn_caller
from sklearn_mpt._gaussian.rotation import LOGISTIC_VARIANCE, solution, solution_errors
from sklearn_mpt._items.groups import far_groups
from sklearn_mpt._items.model import attributes_of
from sklearn_mpt._latent.integrals import IMPORTANCE_POINTS, importance
from sklearn_mpt._optim.information import (
    SINGULAR,
    STEP,
    central_differences,
    covariance_of,
)

PARAMETER_NAMES = ("discrimination", "intercept", "difficulty", "guessing")


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


def item_parameters(fitted, errors=None):
    """Return fitted parameters with standard errors, NaN if `errors` is None."""
    # errors : the result of `errors_of`.
    names = (*PARAMETER_NAMES, "latent_mean", "latent_variance")
    values = {name: fitted[f"{name}_"] for name in names}
    if errors is None:
        K, steps = len(fitted["factor_correlation_"]), values["intercept"][0].size
        width, errors = K + steps + 1, dict.fromkeys(names, np.nan)
        errors["covariance"] = np.full((len(values["guessing"]), width, width), np.nan)
    with_errors = {}
    for name, value in values.items():
        error = np.broadcast_to(np.ravel(errors[name]), value.size).reshape(value.shape)
        with_errors[f"{name}_std_error"] = np.where(np.isfinite(value), error, np.nan)
    return ItemParameters(**values, **with_errors, covariance=errors["covariance"])


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
                columns |= {f"{part}_{c}": v for c, v in enumerate(value.T, 1)}
    return pd.DataFrame(columns, index=names)


def errors_of(model, objective, rotation, names, groups):
    """Return standard errors by name, and covariances of items; with warnings."""
    # objective : of the rows. names : of the items. groups : labels of the groups.
    whole, at_bound, lost = covariance_of_fit(model, objective, names, groups)
    items, of_items = model.items, model.item_of_parameters >= 0
    of_flat = whole[np.ix_(of_items, of_items)]
    names = "discrimination_", "intercept_", "guessing_", "difficulty_"

    def rows(at):
        """Return the parameters of each item as a row."""
        args = items, at.numpy(), rotation, model.root
        attributes, _ = attributes_of(*args, is_signed=True)
        parts = [attributes[name].reshape(len(items), -1) for name in names]
        return torch.from_numpy(np.concatenate(parts, 1))

    at = torch.from_numpy(model.flat)
    steps = STEP * at.abs().clamp(min=1.0)
    differences = central_differences(rows, at, torch.diag(steps))
    slopes = (differences / steps[:, None, None]).movedim(0, -1).numpy()
    missing, slopes = np.isnan(slopes).any(axis=2), np.nan_to_num(slopes)
    covariances = slopes @ of_flat @ slopes.transpose(0, 2, 1)
    deviation = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    K, width = items.n_dims, items.n_dims + items.max_categories
    difficulty = np.where(missing, np.nan, deviation)[:, width:]
    covariance, deviation = covariances[:, :width, :width], deviation[:, :width]
    covariance[lost] = deviation[lost] = difficulty[lost] = np.nan
    mean, variance = np.zeros(model.mean.shape), np.zeros(model.variance.shape)
    if len(model.free_population):
        latent = np.where(at_bound, np.nan, np.sqrt(np.diagonal(whole)))
        latent = latent[~of_items].reshape(-1, 2)
        mean[:, 0] = latent[:, 1]
        variance[:, 0] = 2 * model.variance[:, 0] * latent[:, 0]
    return {
        "covariance": covariance,  # of discriminations, intercepts and guessing
        "discrimination": deviation[:, :K],
        "intercept": deviation[:, K:-1],
        "guessing": deviation[:, -1],
        "difficulty": difficulty,
        "latent_mean": mean,
        "latent_variance": variance,
    }


def loadings_of(model, rotation, start=None):
    """Return standardised loadings of the latent responses; see `factor_loadings`."""
    # start : T near which that of the rotation is; see `solution`.
    slopes = model.items.describe(model.flat)["discrimination"]
    deviation = np.sqrt(model.variance[model.reference])
    axes = model.root if start is None else start
    args = slopes * deviation, LOGISTIC_VARIANCE, rotation, start
    parts = solution(*args, axes=axes)
    scores = np.linalg.inv(model.root) / deviation
    return parts | {"rotation_matrix": scores @ parts["rotation_matrix"]}


def loading_errors(model, objective, rotation, names, groups):
    """Return standard errors of `loadings_of`, by the delta method."""
    whole, *_ = covariance_of_fit(model, objective, names, groups)
    point, deviation = model.start("cpu"), np.sqrt(model.variance[model.reference])
    scores = loadings_of(model, rotation)["rotation_matrix"]
    start = model.root @ scores * deviation

    def solution_at(theta):
        return loadings_of(model.ended_at(point.with_flat(theta)), rotation, start)

    return solution_errors(solution_at, point.flat(), whole)


def covariance_of_fit(model, objective, names, groups, *, max_parameters=2000):
    """Return the covariance of the parameters of `start`, and what has no errors."""
    # The latter are parameters at a bound, (p,), and items, (d,); with warnings.
    # max_parameters : the information takes as many passes over the rows.
    point, owner = model.start(objective.X.device), model.item_of_parameters
    if len(owner) > max_parameters:
        raise ValueError(
            f"Standard errors of {len(owner)} parameters need a matrix of more than "
            f"{max_parameters} rows: leave X out, or fit fewer items together."
        )
    accuracy = importance(
        IMPORTANCE_POINTS[:1], len(model.root), objective.X.device, model.seed
    )
    information = objective.observed_information(point, accuracy).cpu().numpy()
    information[np.diag_indices(len(owner))] += (
        objective.priors(point)[1].flat().numpy(force=True)
    )
    sums = objective.all_sums(point)
    gradient = sums.gradient.times(objective.weights.total / sums.n_rows).flat()
    gradient = gradient.numpy(force=True)
    at_bound = _at_bounds(model, gradient, information, point.flat().cpu().numpy())
    X = objective.X.cpu().numpy()
    is_constant = np.array([len(np.unique(x[~np.isnan(x)])) < 2 for x in X.T])
    guessed = np.isin(np.arange(len(names)), owner[at_bound]) & ~is_constant
    if is_constant.any():
        warn_caller(
            f"All answers to the item(s) {listed(names[is_constant])} are the same: "
            "the parameters of these items have no standard errors. Drop the items."
        )
    if guessed.any():
        warn_caller(
            f"Guessing of the item(s) {listed(names[guessed])} is at its bound, "
            "0: the rows do not tell it from the slope and the difficulty of these "
            "items, whose parameters have no standard errors. A prior keeps "
            "guessing off the bound: guessing_prior=(-1.4, 1.0) is one with median "
            "0.2."
        )
    is_far, free = np.zeros(len(groups), dtype=bool), model.free_population
    if free.any():
        is_far = far_groups(model, X, objective.table.group) & free[:, 1]
    if is_far.any():
        warn_caller(
            f"All answers of the group(s) {listed(groups[is_far])} are those of people "
            "with the highest z, or the lowest, or missing: the mean and the variance "
            "of z have no standard errors there."
        )
    far_parameters = np.zeros(len(owner), dtype=bool)
    if len(free):
        far_parameters[owner < 0] = np.repeat(is_far, 2)
    if (at_bound & ~far_parameters & (owner < 0)).any():
        warn_caller(
            "A variance of z is at its bound, 0, and has no standard error: "
            "answers to different items hardly depend on each other, or a group has "
            "too few people."
        )
    at_bound |= far_parameters & model.moves
    known = model.moves & ~at_bound & ~(is_constant[owner] & (owner >= 0))
    whole, index = np.zeros_like(information), np.ix_(known, known)
    K = model.items.n_dims
    whole[index] = covariance_of(information[index], n_rotations=K * (K - 1) // 2)
    return whole, at_bound, guessed | is_constant


def _at_bounds(model, gradient, information, theta):
    """Return which parameters are at a bound, bool (p,); changes the information."""
    # Probabilities of guessing and variances of z are at least 0, where their logits
    # and logarithms are infinite. So training ends before, with nothing more to gain.
    # The curvature is that in the value v itself, times v'^2: in the logit it would
    # have a part of the gradient, which is not quite 0. And the parameter stands for
    # the bound if a step of Newton's method in v reaches 0, or has no end because the
    # likelihood is not concave, when it is maximised over the other parameters of the
    # item.
    moves, owner, n_coefs = model.moves, model.item_of_parameters, model.items.n_coefs
    at_bound, n_free = np.zeros(len(theta), dtype=bool), model.free_population.size
    for i in model.items.guessing + n_free:
        if not moves[i]:
            continue
        guessing = expit(theta[i])
        information[i, i] += (1 - 2 * guessing) * gradient[i]
        others = np.flatnonzero(
            moves & (owner == owner[i]) & (np.arange(len(owner)) != i)
        )
        weights = information[i, others] @ np.linalg.pinv(
            information[np.ix_(others, others)], hermitian=True
        )
        curvature = information[i, i] - weights @ information[others, i]
        # a standard error above 1, the range of a probability, says nothing of it
        curvature -= (guessing * (1 - guessing)) ** 2
        slope = (1 - guessing) * (gradient[i] - weights @ gradient[others])
        at_bound[i] = curvature + min(slope, 0) <= 0
    for i in range(n_coefs, n_coefs + n_free, 2):  # log deviations of z
        if moves[i]:
            information[i, i] += 2 * gradient[i]
            at_bound[i] = (
                information[i, i] + min(2 * gradient[i], 0)
                <= SINGULAR * abs(information.diagonal()).max()
            )
    return at_bound
