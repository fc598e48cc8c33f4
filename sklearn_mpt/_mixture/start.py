"""Starting values of mixtures: first responsibilities, and arrays of the user."""

import reprlib

import numpy as np
import torch

from sklearn_mpt._checks import check_finite, check_floats, check_shape, seed_from
from sklearn_mpt._likelihoods.base import column_moments, column_scales
from sklearn_mpt._mixture.density import Components
from sklearn_mpt._mixture.em import MixtureRows
from sklearn_mpt._numbers import MAX_GIVEN_ERROR, ROUNDING, TINY
from sklearn_mpt._tables.frames import aligned, first_labels


def first_components(X, weight, n_components, kind, rng, layout, reg_covar):
    """Return components that a few M-steps fit to first responsibilities of rows."""
    numbers = X[:, layout.gaussian.numpy()].astype(float)
    others = X[:, layout.others.numpy()].astype(float)
    mean, variance, _ = column_moments(numbers, weight)
    location = layout.likelihood.start_location(others, weight)
    features = numbers
    if len(layout.others):
        entries = torch.from_numpy(others)
        gaps = layout.likelihood.to_locations(0 * entries)  # 0 or NaN
        read = layout.likelihood.inputs(entries) + gaps
        features = np.column_stack([numbers / column_scales(mean, variance), read])
    filling = column_moments(features, weight)[0]
    features = np.where(np.isnan(features), filling, features)
    rows, responsibility = KINDS_OF_STARTS[kind](features, n_components, weight, rng)
    responsibility = torch.from_numpy(responsibility)
    rows = torch.from_numpy(X[rows].astype(float))

    alike = np.maximum(variance, reg_covar + TINY), mean, location
    variance, mean, location = (
        torch.from_numpy(array).repeat(n_components, 1) for array in alike
    )
    covariances = layout.form.with_variances(variance)
    components = Components(
        responsibility.sum(0) / responsibility.sum(),
        mean,
        covariances,
        location,
        *layout.form.factors(covariances, reg_covar),
    )
    # M-steps with gaps, and of locations, are not at the maximum at once
    n_steps = 3 if rows[:, layout.gaussian].isnan().any() else 1
    training = MixtureRows(rows, responsibility.sum(1), layout, reg_covar)
    for _ in range(10 if len(layout.others) else n_steps):
        statistics = training.statistics(components, responsibility)
        after = training.m_step(components, statistics)
        if after is None:
            break
        components = after
    return components


# Kinds of starts: each returns indices of rows, and responsibilities times weights


def k_means(features, n_components, weight, rng):
    from sklearn.cluster import KMeans  # its import takes long

    seed = np.random.RandomState(seed_from(rng))
    clusters = KMeans(n_components, n_init=1, random_state=seed)
    labels = clusters.fit(features, sample_weight=weight).labels_
    return np.arange(len(features)), of_clusters(labels, n_components, weight)


def distant_points(features, n_components, weight, rng):
    from sklearn.cluster import kmeans_plusplus

    seed = np.random.RandomState(seed_from(rng))
    centres, _ = kmeans_plusplus(
        features, n_components, sample_weight=weight, random_state=seed
    )
    return nearest(features, centres, weight)


def points(features, n_components, weight, rng):
    p = weight / weight.sum() if np.ptp(weight) > 0 else None
    chosen = rng.choice(len(features), n_components, replace=False, p=p)
    return nearest(features, features[chosen], weight)


def random(features, n_components, weight, rng):
    drawn = rng.random((len(features), n_components))
    drawn *= weight[:, None] / drawn.sum(axis=1, keepdims=True)
    return np.arange(len(drawn)), drawn


def hierarchical(features, n_components, weight, rng):
    """Merge rows by Ward's criterion, whitened as in mclust; a sample if many."""
    # Time and memory grow with their square: 2,000 take a tenth of a second.
    from sklearn.cluster import AgglomerativeClustering

    centred = features - np.average(features, 0, weight)
    root = np.sqrt(weight / weight.sum())
    _, scale, axes = np.linalg.svd(root[:, None] * centred, full_matrices=False)
    scale[scale <= ROUNDING * scale.max(initial=TINY)] = np.inf
    rows, is_weighted = np.arange(len(features)), np.ptp(weight) > 0
    if len(rows) > 2000 or is_weighted:
        p = weight / weight.sum()
        rows = rng.choice(len(rows), 2000, replace=is_weighted, p=p)
    merging = AgglomerativeClustering(n_components)
    labels = merging.fit(centred[rows] @ (axes.T / scale)).labels_
    return rows, of_clusters(labels, n_components, np.ones(len(rows)))


KINDS_OF_STARTS = {
    "kmeans": k_means,
    "hierarchical": hierarchical,
    "random_from_data": points,
    "k-means++": distant_points,
    "random": random,
}


def nearest(features, centres, weight):
    """Return all rows, each in the cluster of the nearest of some centres."""
    distances = [((features - centre) ** 2).sum(axis=1) for centre in centres]
    labels = np.argmin(distances, axis=0)
    return np.arange(len(features)), of_clusters(labels, len(centres), weight)


def of_clusters(labels, n_components, weight):
    """Return responsibilities of rows in clusters, times their weights, (n, K)."""
    other = 1e-3  # so that components of few rows have covariances
    responsibility = (np.eye(n_components)[labels] + other) / (1 + other * n_components)
    return weight[:, None] * responsibility


def with_given_arrays(components, arrays, columns, form, reg_covar):
    """Replace starting values by those that the user gives."""
    n_components, n_columns = components.means.shape
    has_classes = form.shape(True, False)[0]
    classes = first_labels(list(arrays.values())[: 3 if has_classes else 2])
    axes = (
        ((n_components,), [classes]),
        ((n_components, n_columns), [classes, columns]),
        (form.shape(n_components, n_columns), form.shape(classes, columns)),
    )
    given = {}
    for (name, value), (shape, labels) in zip(arrays.items(), axes, strict=True):
        if value is None:
            continue
        whose = "columns of X, or of the components"
        array = check_floats(aligned(value, labels, name, whose), name)
        check_shape(array, name, shape)
        check_finite(array, name)
        given[name.removesuffix("_init")] = torch.from_numpy(array)
    if "weights" in given:
        weights = given["weights"]
        if (weights < 0).any() or abs(weights.sum() - 1) > MAX_GIVEN_ERROR:
            raise ValueError(
                "weights_init must be at least 0 and add up to 1, got "
                f"{weights.tolist()}."
            )
    if "precisions" in given:
        precisions = form.expand(given.pop("precisions"), n_components, n_columns)
        if not form.is_valid(precisions):
            raise ValueError(
                "precisions_init must be positive definite, got "
                f"{reprlib.repr(arrays['precisions_init'])}."
            )
        covariances = form.inverses(precisions)[1]
        loadings, noise = form.factors(covariances, reg_covar)
        given |= {"covariances": covariances, "loadings": loadings, "noise": noise}
    return components._replace(**given)
