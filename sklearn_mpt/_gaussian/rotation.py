"""Rotation of factors to simple structure, and standardised loadings."""

import functools
import math

import numpy as np
import torch
from sklearn.utils.extmath import svd_flip

from sklearn_mpt._matrices import identity
from sklearn_mpt._numbers import TINY
from sklearn_mpt._optim.information import central_differences
from sklearn_mpt._optim.steps import backtrack

# Bernaards and Jennrich, Educational and Psychological Measurement 65, 2005. Of the
# slopes A, (d, k), the rotated ones are A inv(T)', for factors T' z with correlations
# T' T; T is orthogonal for "varimax" and "quartimax". The criterion is that of the
# loadings A_j / sqrt(u_j + |A_j|^2), with the unique variance u, 1.702^2 for logits.
# "promax" (Hendrickson and White, British Journal of Statistical Psychology 17, 1964)
# fits the fourth powers of the loadings of "varimax", with their signs.


SCALE = 1.702  # ratio of logits to normal deviates


ORTHOGONAL = ("varimax", "quartimax")


ROTATIONS = (*ORTHOGONAL, "oblimin", "promax")


def count_free(n_features, n_factors, n_noises):
    """Return the number of free parameters of a covariance of factors and noise."""
    # Rotations of factors change nothing, and a covariance has no more than its own.
    n_rotations = n_factors * (n_factors - 1) // 2
    n_free = n_features * n_factors - n_rotations + n_noises
    return min(n_free, n_features * (n_features + 1) // 2)


def principal_axes(components):
    """Rotate components to orthogonal ones, longest first, and fix their signs."""
    U, lengths, axes = np.linalg.svd(components, full_matrices=False)
    _, axes = svd_flip(U, axes, u_based_decision=False)
    rotated = np.zeros_like(components)  # more components than features: zero rows
    rotated[: len(lengths)] = lengths[:, None] * axes
    return rotated


def simple_axes(components, rotation):
    """Return components on the principal axes, or by "varimax" or "quartimax"."""
    if rotation is None:
        return principal_axes(components)
    return rotation_of(components.T, rotation, unique_variance=None).T @ components


def loadings_of(slopes, unique_variance=SCALE**2):
    """Return correlations of uncorrelated factors with each response; (d, k)."""
    # unique_variance : number or (d, 1); None for slopes in the same unit, which are
    # divided by their length.
    if unique_variance is None:
        return slopes / max(np.linalg.norm(slopes), TINY)
    length = np.sqrt(unique_variance + (slopes**2).sum(axis=1, keepdims=True))
    return slopes / length


def rotated(slopes, method, start=None):
    """Return rotated slopes of items (d, k), and correlations of the factors (k, k)."""
    transform = rotation_of(slopes, method, start)
    return slopes @ np.linalg.inv(transform).T, transform.T @ transform


def rotation_of(slopes, method, start=None, unique_variance=SCALE**2):
    """Return T, (k, k), of which the rotated slopes are A inv(T)'."""
    # Columns have positive sums, the longest first: several orders have the same
    # criterion. start : T at which the search starts, whose order is kept; None starts
    # from several.
    k = slopes.shape[1]
    transform = np.eye(k)
    if start is None or method is None:
        transform = np.linalg.svd(slopes.T, full_matrices=len(slopes) < k)[0]
    if method is not None and k > 1:
        loadings = loadings_of(slopes @ transform, unique_variance)
        transform = transform @ _search(loadings, method, start)
    rotated_slopes = slopes @ np.linalg.inv(transform).T
    if start is None:
        order = (rotated_slopes**2).sum(axis=0).argsort()[::-1]
        rotated_slopes, transform = rotated_slopes[:, order], transform[:, order]
    return transform * np.where(rotated_slopes.sum(axis=0) < 0, -1.0, 1.0)


def _search(loadings, method, start):
    """Return T of the loadings for standard normal z."""
    criterion = "varimax" if method == "promax" else method
    if start is None:  # the best of several searches, because there are local minima
        rng, k = np.random.default_rng(0), loadings.shape[1]
        starts = [np.eye(k)]
        for _ in range(7):
            q, r = np.linalg.qr(rng.normal(size=(k, k)))
            starts.append(q * np.sign(np.diag(r)))
    else:
        is_orthogonal = criterion in ORTHOGONAL
        starts = [_nearest_orthogonal(start) if is_orthogonal else start]
    runs = [_project(loadings, start, criterion) for start in starts]
    transform = min(runs, key=lambda run: run[0])[1]
    return _promax(loadings, transform) if method == "promax" else transform


def _promax(loadings, transform, *, power=4):
    """Return T of "promax", given that of "varimax"."""
    # power : of the authors, and of R.
    simple = loadings @ transform
    target = simple * np.abs(simple) ** (power - 1)
    U = np.linalg.lstsq(simple, target)[0]
    U = U * np.sqrt(np.linalg.inv(U.T @ U).diagonal())  # factors have variance 1
    return transform @ np.linalg.inv(U).T


def _nearest_orthogonal(matrix):
    u, _, vt = np.linalg.svd(matrix)
    return u @ vt


def _criterion(loadings, method):
    """Return the value, which is minimised, and its gradient in the loadings."""
    square = loadings**2
    if method == "quartimax":
        return -0.25 * (square**2).sum(), -(loadings**3)
    if method == "varimax":
        centred = square - square.mean(axis=0)
        return -0.25 * (centred**2).sum(), -loadings * centred
    others = square.sum(axis=1, keepdims=True) - square  # quartimin: oblimin of gamma 0
    return 0.25 * (square * others).sum(), loadings * others


def _project(loadings, transform, method, *, max_iter=1000, tol=1e-8, max_tries=30):
    """Search for the minimum of a criterion; return its value and T there."""
    # tol : of the gradient; shorter ones change the value by less than rounding.
    is_orthogonal = method in ORTHOGONAL
    size = 1.0

    def evaluate(T):
        L = loadings @ T if is_orthogonal else loadings @ np.linalg.inv(T).T
        value, gradient = _criterion(L, method)
        if is_orthogonal:
            return value, loadings.T @ gradient
        return value, -(L.T @ gradient @ np.linalg.inv(T)).T

    def onto(T):
        if is_orthogonal:
            return _nearest_orthogonal(T)
        return T / np.linalg.norm(T, axis=0)

    def move(T, along, value, size):
        """Return T after a step, its value and gradient; None without enough gain."""
        T = onto(T - size * along)
        new_value, gradient = evaluate(T)
        least_fall = 0.5 * np.linalg.norm(along) ** 2 * size
        return (T, new_value, gradient) if new_value < value - least_fall else None

    value, gradient = evaluate(transform)
    for _ in range(max_iter):
        if is_orthogonal:
            M = transform.T @ gradient
            along = gradient - transform @ (0.5 * (M + M.T))
        else:
            along = gradient - transform * (transform * gradient).sum(axis=0)
        if np.linalg.norm(along) < tol:
            break
        attempt = functools.partial(move, transform, along, value)
        size, moved = backtrack(attempt, max_tries, 2 * size)
        if moved is None:
            break
        transform, value, gradient = moved
    return value, transform


# L_j = W_j / sqrt(psi_j + |W_j|^2) before rotation; psi is pi^2 / 3 for binary and
# ordinal features, whose latent response has logistic noise. With factor correlations
# Phi the communality is L_j Phi L_j', whatever the rotation.


# Step of differences, near the cube root of the errors of T: searches end where the
# criterion falls by no more than rounding, so these are near the root of rounding.
LOADING_STEP = 2e-3


LOGISTIC_VARIANCE = math.pi**2 / 3


def solution(weights, noise_variance, rotation, start=None, axes=None):
    """Return the standardised solution as a dict of arrays."""
    # weights : (d, k). noise_variance : () or (d,). rotation : see `rotation_of`; None
    # takes `axes`, T, or leaves those of z. start : T near which that of the rotation
    # is.
    length = np.sqrt(noise_variance + (weights**2).sum(axis=1))
    loadings = weights / length[:, None]
    communality = (loadings**2).sum(axis=1)
    transform = np.eye(weights.shape[1]) if axes is None else axes
    if rotation is not None:
        unique_variance = 1 - communality[:, None]
        transform = rotation_of(loadings, rotation, start, unique_variance)
    loadings = loadings @ np.linalg.inv(transform).T
    correlation = transform.T @ transform
    structure = loadings @ correlation
    return {
        "loadings": loadings,
        "structure": structure,
        "factor_correlation": correlation,
        "communality": communality,
        "uniqueness": 1 - communality,
        "explained_variance": (structure * loadings).sum(axis=0),
        "rotation_matrix": transform,
    }


def solution_errors(solution_at, theta, covariance):
    """Return standard errors of loadings, correlations and communalities."""
    # By the delta method. solution_at : from parameters, (p,), to their `solution`.
    # covariance : of the estimates theta, (p, p).
    names = "loadings", "factor_correlation", "communality"

    def flat(theta):
        parts = solution_at(theta)
        return torch.from_numpy(np.concatenate([parts[n].ravel() for n in names]))

    steps = LOADING_STEP * identity(len(theta), theta)
    jacobian = (central_differences(flat, theta, steps) / LOADING_STEP).numpy()
    variance = np.einsum("pr,pq,qr->r", jacobian, covariance, jacobian, optimize=True)
    shapes = [solution_at(theta)[name].shape for name in names]
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    errors = np.split(np.sqrt(np.maximum(variance, 0)), ends)
    return {
        f"{name}_error": error.reshape(shape)
        for name, error, shape in zip(names, errors, shapes, strict=True)
    }
