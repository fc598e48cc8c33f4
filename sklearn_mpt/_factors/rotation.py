r"""Rotation of factors to simple structure, by gradient projection [1]_.

A (d, k) are the slopes for standard normal z. The rotated slopes are A inv(T)', for
factors with the correlations T' T; T is orthogonal for "varimax" and "quartimax". The
criterion of item slopes is computed from the standardised loadings
:math:`A_j / \sqrt{1.702^2 + |A_j|^2}`, as in factor analysis.

References
----------
.. [1] C. A. Bernaards and R. I. Jennrich, "Gradient projection algorithms and software
   for arbitrary rotation criteria in factor analysis", Educational and Psychological
   Measurement 65, 2005.
"""

import functools

import numpy as np
from sklearn.utils.extmath import svd_flip

from sklearn_mpt._fitting.line_search import backtrack

SCALE = 1.702  # ratio of logits to normal deviates
ORTHOGONAL = ("varimax", "quartimax")
ROTATIONS = (*ORTHOGONAL, "oblimin")


def principal_axes(components):
    """Rotate components to orthogonal ones, longest first, and fix their signs."""
    U, lengths, axes = np.linalg.svd(components, full_matrices=False)
    _, axes = svd_flip(U, axes, u_based_decision=False)
    rotated = np.zeros_like(components)  # more components than features: zero rows
    rotated[: len(lengths)] = lengths[:, None] * axes
    return rotated


def simple_axes(components, rotation):
    """Rotate components to the principal axes, then by "varimax" or "quartimax"."""
    components = principal_axes(components)
    length = np.linalg.norm(components)
    if rotation is None or len(components) == 1 or length == 0:
        return components
    _, transform = _project(components.T / length, np.eye(len(components)), rotation)
    return transform.T @ components


def loadings_of(slopes):
    """Return correlations of the factors with each item's latent response; (d, k)."""
    length = np.sqrt(SCALE**2 + (slopes**2).sum(axis=1, keepdims=True))
    return slopes / length


def rotated(slopes, method, start=None):
    """Return rotated slopes (d, k), and correlations of the factors (k, k).

    Columns with a negative sum change their sign. The longest comes first: several
    orders of the columns have the same criterion.

    start : T at which the search starts, whose order is kept; None starts from several.
    """
    k = slopes.shape[1]
    if start is None or method is None:
        slopes = principal_axes(slopes.T).T
    transform = np.eye(k)
    if method is not None and k > 1:
        loadings = loadings_of(slopes)
        if start is None:
            transform = _best(loadings, method)
        else:
            transform = _project(loadings, start, method)[1]
    rotated_slopes = slopes @ np.linalg.inv(transform).T
    if start is None:
        order = (rotated_slopes**2).sum(axis=0).argsort()[::-1]
        rotated_slopes, transform = rotated_slopes[:, order], transform[:, order]
    sign = np.where(rotated_slopes.sum(axis=0) < 0, -1.0, 1.0)
    rotated_slopes, transform = rotated_slopes * sign, transform * sign
    return rotated_slopes, transform.T @ transform


def _best(loadings, method, n_starts=8):
    """Return the best of several searches, because criteria have local minima."""
    rng = np.random.default_rng(0)
    k = loadings.shape[1]
    starts = [np.eye(k)]
    for _ in range(n_starts - 1):
        q, r = np.linalg.qr(rng.normal(size=(k, k)))
        starts.append(q * np.sign(np.diag(r)))
    runs = [_project(loadings, start, method) for start in starts]
    return min(runs, key=lambda run: run[0])[1]


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


def _project(loadings, transform, method, *, max_iter=1000, tol=1e-10, max_tries=30):
    """Search for the minimum of a criterion; return its value and T there.

    tol : length of the gradient below which the search ends. max_tries : number of
    sizes of a step that are tried.
    """
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
            u, _, vt = np.linalg.svd(T)
            return u @ vt
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
