"""Starting values of mixtures: first responsibilities, and arrays of the user."""

from functools import cached_property, reduce
from operator import add

import numpy as np
import torch

from sklearn_mpt._checks import check_finite, check_floats
from sklearn_mpt._labels import aligned
from sklearn_mpt._likelihoods.base import column_moments, column_scales
from sklearn_mpt._mixture.density import Components, MixtureDensity
from sklearn_mpt._mixture.em import (
    location_derivatives_of,
    m_step,
    scoring_step,
    statistics_of_responsibilities,
)
from sklearn_mpt._mixture.patterns import pattern_order
from sklearn_mpt._numbers import ROUNDING, TINY
from sklearn_mpt._seeds import seed_from

# Rows that are clustered by merging: time and memory grow with their square. These take
# a tenth of a second.
MAX_MERGED_ROWS = 2000


class Starts:
    """Components to start from, fitted to responsibilities of the rows.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        NaN where missing.
    weight : ndarray of shape (n,), or None
        Weights of the rows; None is 1.
    n_components : int
    step_params : MStepParams
    """

    def __init__(self, X, weight, n_components, step_params):
        self.X, self.n_components = X, n_components
        self.weight = np.ones(len(X)) if weight is None else weight
        self.is_weighted = np.ptp(self.weight) > 0
        self.step_params = step_params
        self.layout = step_params.layout

    def components(self, kind, rng):
        """Return the components of a start. kind : a key of `KINDS_OF_STARTS`."""
        rows, responsibility = KINDS_OF_STARTS[kind](self, rng)
        order = pattern_order(self._observed_numbers[rows]).numpy()
        rows, responsibility = rows[order], responsibility[order]
        responsibility = torch.from_numpy(responsibility)
        fraction = responsibility.sum(0) / responsibility.sum()
        components = self._components_alike._replace(weights=fraction)
        X = torch.from_numpy(self.X[rows].astype(float))
        return fitted_to_responsibilities(
            components, responsibility, X, self.step_params
        )

    @cached_property
    def _observed_numbers(self):
        return torch.from_numpy(~np.isnan(self.X[:, self.layout.gaussian.numpy()]))

    @cached_property
    def _moments(self):
        """Means and variances of the Gaussian columns."""
        numbers = self.X[:, self.layout.gaussian.numpy()].astype(float)
        return column_moments(numbers, self.weight)[:2]

    @cached_property
    def _components_alike(self):
        """Components that all have the distribution of the whole table."""
        mean, variance = self._moments
        n_components, form = self.n_components, self.layout.form
        reg_covar = self.step_params.reg_covar
        location = np.zeros(0)
        if self.layout.likelihood is not None:
            others = self.X[:, self.layout.others.numpy()]
            location = self.layout.likelihood.start_location(others, self.weight)
        variance = torch.from_numpy(np.maximum(variance, reg_covar + TINY))
        covariances = form.with_variances(variance.repeat(n_components, 1))
        return Components(
            covariances.new_full((n_components,), 1 / n_components),
            torch.from_numpy(np.tile(mean, (n_components, 1))),
            covariances,
            torch.from_numpy(np.tile(location, (n_components, 1))),
            *form.factors(covariances, reg_covar),
        )

    @cached_property
    def features(self):
        """The features by which rows are clustered, with means in place of gaps.

        If all columns are Gaussian they are not scaled, as in `GaussianMixture`.
        Otherwise Gaussian columns are divided by their standard deviations.
        """
        columns = [self.X[:, self.layout.gaussian.numpy()]]
        likelihood = self.layout.likelihood
        if likelihood is not None:
            columns = [columns[0] / column_scales(*self._moments)]
            others = self.X[:, self.layout.others.numpy()].astype(float)
            others = torch.from_numpy(others)
            read = likelihood.inputs(torch.nan_to_num(others))
            is_missing = likelihood.to_locations(others.isnan().double()) > 0
            columns.append(torch.where(is_missing, torch.nan, read).numpy())
        features = np.concatenate(columns, axis=1)
        is_missing = np.isnan(features)
        if not is_missing.any():
            return features
        mean = column_moments(features.astype(float), self.weight)[0]
        return np.where(is_missing, mean, features)

    @cached_property
    def whitened(self):
        """The features in units in which they have no correlation and variance 1."""
        centred = self.features - np.average(self.features, 0, self.weight)
        root = np.sqrt(self.weight / self.weight.sum())
        _, scale, axes = np.linalg.svd(root[:, None] * centred, full_matrices=False)
        scale[scale <= ROUNDING * scale.max(initial=TINY)] = np.inf
        return centred @ (axes.T / scale)

    def drawn_rows(self, n_rows, rng, replace=False):
        """Draw rows, in proportion to their weights."""
        p = self.weight / self.weight.sum() if self.is_weighted else None
        return rng.choice(len(self.X), n_rows, replace=replace, p=p)

    def clusters(self, labels):
        """Return all rows, and responsibilities of clusters, times weights."""
        rows = np.arange(len(self.X))
        return rows, self.weight[:, None] * of_clusters(labels, self.n_components)

    def nearest(self, centres):
        """Return all rows, each in the cluster of the nearest of some rows."""
        distances = [
            ((self.features - centre) ** 2).sum(axis=1)
            for centre in self.features[centres]
        ]
        return self.clusters(np.stack(distances, 1).argmin(axis=1))


def of_clusters(labels, n_components):
    """Return responsibilities that say to which cluster each row belongs, (n, K)."""
    other = 1e-3  # so that components of few rows have covariances
    return (np.eye(n_components)[labels] + other) / (1 + other * n_components)


# Kinds of starts: each returns indices of rows, and responsibilities times weights


def k_means(starts, rng):
    return starts.clusters(_k_means_labels(starts, starts.features, rng))


def whitened_k_means(starts, rng):
    return starts.clusters(_k_means_labels(starts, starts.whitened, rng))


def _k_means_labels(starts, features, rng):
    from sklearn.cluster import KMeans  # its import takes long

    seed = np.random.RandomState(seed_from(rng))
    clusters = KMeans(starts.n_components, n_init=1, random_state=seed)
    weight = starts.weight if starts.is_weighted else None
    return clusters.fit(features, sample_weight=weight).labels_


def distant_points(starts, rng):
    from sklearn.cluster import kmeans_plusplus

    seed = np.random.RandomState(seed_from(rng))
    _, chosen = kmeans_plusplus(
        starts.features,
        starts.n_components,
        sample_weight=starts.weight if starts.is_weighted else None,
        random_state=seed,
    )
    return starts.nearest(chosen)


def points(starts, rng):
    return starts.nearest(starts.drawn_rows(starts.n_components, rng))


def random(starts, rng):
    drawn = rng.random((len(starts.X), starts.n_components))
    drawn *= starts.weight[:, None] / drawn.sum(axis=1, keepdims=True)
    return np.arange(len(drawn)), drawn


def hierarchical(starts, rng):
    """Merge rows by Ward's criterion, whitened as in mclust; a sample if many."""
    from sklearn.cluster import AgglomerativeClustering

    rows = np.arange(len(starts.X))
    if len(rows) > MAX_MERGED_ROWS or starts.is_weighted:
        rows = starts.drawn_rows(MAX_MERGED_ROWS, rng, replace=starts.is_weighted)
    merging = AgglomerativeClustering(starts.n_components)
    return rows, of_clusters(
        merging.fit(starts.whitened[rows]).labels_, starts.n_components
    )


KINDS_OF_STARTS = {
    "kmeans": k_means,
    "hierarchical": hierarchical,
    "random_from_data": points,
    "whitened_kmeans": whitened_k_means,
    "k-means++": distant_points,
    "random": random,
}


def fitted_to_responsibilities(
    components, responsibility, rows, step_params, *, n_gaussian_steps=3,
    n_location_steps=10,
):  # fmt: skip
    """Return components that fit given responsibilities, by a few M-steps.

    responsibility : times the weights of the rows, (n, K). rows : (n, d), NaN where
    missing; those with the same gaps must follow each other. step_params : MStepParams.
    n_gaussian_steps : number of M-steps of Gaussian columns with gaps.
    n_location_steps : that of other columns, whose steps are shorter.
    """
    layout, n_rows = step_params.layout, float(responsibility.sum())
    parts = MixtureDensity(components, layout).parts(~rows.isnan())
    has_gaps = bool(rows[:, layout.gaussian].isnan().any())
    n_steps = n_gaussian_steps if has_gaps else 1  # further steps have the same result
    for _ in range(n_steps):
        density = MixtureDensity(components, layout)
        statistics = _sum(
            statistics_of_responsibilities(
                density, rows[part], responsibility[part], 1 / n_rows, patterns
            )
            for part, patterns in parts
        )
        after = m_step(components, statistics, n_rows, 1.0, step_params, False)
        if after is None:
            return components
        components = after
    n_steps = 0 if layout.likelihood is None else n_location_steps - n_steps
    for _ in range(n_steps):
        density = MixtureDensity(components, layout)
        derivatives = _sum(
            torch.stack(
                location_derivatives_of(
                    density, rows[part], responsibility[part], 1 / n_rows
                )
            )
            for part, _ in parts
        )
        locations = scoring_step(components.locations, *derivatives, n_rows)
        components = components._replace(locations=locations)
    return components


def _sum(parts):
    return reduce(add, parts)


def given_array(value, name, shape, names):
    """Check an array that the user gives to start from; None stays None.

    names : along each axis, by which entries with labels are found; None has none.
    """
    if value is None:
        return None
    whose = "columns of X, or of the components"
    array = check_floats(aligned(value, names, name, whose), name)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got shape {array.shape}.")
    check_finite(array, name)
    return array
