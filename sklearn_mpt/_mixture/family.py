"""How mixtures start, are trained, and become maths."""

import functools
import math

import numpy as np
import torch
from scipy.linalg import solve_triangular
from sklearn.cluster import KMeans, kmeans_plusplus

from sklearn_mpt._checks import check_choice, check_int, check_real, warn_caller
from sklearn_mpt._latent.fitting import Family
from sklearn_mpt._latent.model import as_tensor
from sklearn_mpt._likelihoods import Columns
from sklearn_mpt._likelihoods.gaussian import Gaussian
from sklearn_mpt._measure.masks import fixed_size
from sklearn_mpt._mixture.density import Classes, Layout, MixtureDensity
from sklearn_mpt._mixture.training import (
    MixtureSolver,
    Step,
    distinct_order,
    first_factors,
    moved,
    statistics_of_shares,
)

AUTO_MASKS, MIN_PAIRS = 64, 8192  # in each step: masks, and pairs of row and mask
# From given responsibilities to the classes that suit them: where all columns are
# Gaussian, and where others have locations.
START_STEPS = 3, 10
CHEAP_FEATURES = 8  # whose matrices cost no more than all else
FEWEST_ROWS = 1.5  # that a class should stand for
COVARIANCE_TYPES = ("full", "tied", "diag", "spherical", "low_rank")
INIT_PARAMS = ("kmeans", "k-means++", "random", "random_from_data")


class MixtureFamily(Family):
    """Mixtures of Gaussians, and of columns that are independent in a class.

    Parameters
    ----------
    likelihood : Likelihood
        Its own parameters do not matter.
    covariance_type : str
    n_factors : int
    reg_covar : float
    """

    objectives = ("mpt", "lml")

    def __init__(self, likelihood, covariance_type, n_factors, reg_covar):
        self.likelihood = likelihood
        self.covariance_type = covariance_type
        self.n_factors = n_factors
        self.reg_covar = reg_covar

    def check_parameters(self, settings, n_features):
        check_choice(settings.covariance_type, "covariance_type", COVARIANCE_TYPES)
        check_choice(settings.init_params, "init_params", INIT_PARAMS)
        check_int(settings.n_init, "n_init")
        check_int(settings.n_factors, "n_factors")
        check_real(settings.reg_covar, "reg_covar", "left")

    def check_rows(self, X):
        self.likelihood.check_rows(X)

    def n_components(self, fitted):
        return len(fitted["weights_"])

    def layout(self, n_features, device="cpu"):
        """Return which columns are Gaussian, and the likelihood of the others."""
        likelihood, every = self.likelihood, np.arange(n_features)
        if isinstance(likelihood, Gaussian):
            gaussian, others, likelihood = every, every[:0], None
        elif isinstance(likelihood, Columns):
            gaussian = np.array(likelihood.noisy, dtype=int)
            others = np.setdiff1d(every, gaussian)
            kinds = [likelihood.kinds[j] for j in others]
            counts = [likelihood.n_categories[j] for j in others]
            likelihood = Columns(kinds, counts) if len(others) else None
        else:
            gaussian, others = every[:0], every
        if likelihood is not None:
            likelihood = likelihood.to(device).requires_grad_(False)
        columns = (torch.from_numpy(part).to(device) for part in (gaussian, others))
        return Layout(*columns, likelihood)

    # The start

    def start(self, settings, X, rng, weight=None):
        if settings.n_components > len(X):
            raise ValueError(
                f"n_components={settings.n_components} must be at most the number of "
                f"rows, {len(X)}."
            )
        layout = self.layout(X.shape[1])
        classes = self._start(settings, X, rng, weight, layout)
        classes = self._given(settings, classes, layout)
        own = {"lml_method_": "exact"}
        return own | self._attributes(classes, X.shape[1])

    def _start(self, settings, X, rng, weight, layout):
        """Classes that suit the responsibilities from which training starts."""
        rows = torch.from_numpy(np.array(X, dtype=float))
        count = torch.from_numpy(np.ones(len(X)) if weight is None else weight)
        step = self._step(layout)
        numbers = X[:, layout.gaussian.numpy()].astype(float)
        mean, variance = _moments(numbers, count.numpy())
        share = self._responsibilities(settings, X, rng, layout, weight, variance)
        share = torch.from_numpy(share) * count[:, None]
        n_classes = settings.n_components
        locations = np.zeros((n_classes, 0))
        if layout.likelihood is not None:
            others = X[:, layout.others.numpy()]
            start = layout.likelihood.start_location(others, weight)
            locations = np.tile(start, (n_classes, 1))
        wide = torch.from_numpy(np.diag(np.maximum(variance, self.reg_covar + 1e-300)))
        wide = wide.repeat(n_classes, 1, 1)
        classes = Classes(
            share.sum(0) / share.sum(),
            torch.from_numpy(np.tile(mean, (n_classes, 1))),
            wide,
            torch.from_numpy(locations),
            *self._factors(wide),
        )
        order = distinct_order(rows.isnan())
        rows, share = rows[order], share[order]
        n_steps = START_STEPS[layout.likelihood is not None]
        for _ in range(n_steps):
            found = _statistics(classes, layout, rows, share)
            found = moved(classes, found, float(count.sum()), 1.0, step, False)
            if found is None:
                break
            classes = found
        return classes

    def _factors(self, covariances):
        """Loadings and noise variances to start from; empty for other kinds."""
        n_classes, n_gaussian, _ = covariances.shape
        if self.covariance_type != "low_rank":
            return covariances[..., :0], covariances.new_zeros(n_classes, 0)
        n_factors = min(self.n_factors, n_gaussian)
        return first_factors(covariances, n_factors, self.reg_covar)

    def _responsibilities(self, settings, X, rng, layout, weight, variance):
        """Rows' shares of the classes, (n, K): from clusters, or at random."""
        n_classes, kind = settings.n_components, settings.init_params
        seed = np.random.RandomState(rng.integers(2**31))
        if kind == "random":
            drawn = rng.random((len(X), n_classes))
            return drawn / drawn.sum(axis=1, keepdims=True)
        features = _features(X, layout, variance)
        if kind == "kmeans":
            clusters = KMeans(n_classes, n_init=1, random_state=seed)
            labels = clusters.fit(features, sample_weight=weight).labels_
        else:
            if kind == "k-means++":
                _, chosen = kmeans_plusplus(features, n_classes, random_state=seed)
            else:
                chosen = rng.choice(len(X), n_classes, replace=False)
            centres = features[chosen]
            labels = np.stack(
                [((features - centre) ** 2).sum(axis=1) for centre in centres], 1
            ).argmin(axis=1)
        share = np.eye(n_classes)[labels]
        return (share + 1e-3) / (1 + 1e-3 * n_classes)

    def _given(self, settings, classes, layout):
        """Put the parameters that the user gives in the place of those of the start."""
        n_classes, n_gaussian = classes.means.shape
        weights = _array(settings.weights_init, "weights_init", (n_classes,))
        means = _array(settings.means_init, "means_init", (n_classes, n_gaussian))
        if weights is not None:
            if (weights < 0).any() or abs(weights.sum() - 1) > 1e-6:
                raise ValueError(
                    "weights_init must be at least 0 and add up to 1, got "
                    f"{weights.tolist()}."
                )
            classes = classes._replace(weights=torch.from_numpy(weights))
        if means is not None:
            classes = classes._replace(means=torch.from_numpy(means))
        if settings.precisions_init is not None:
            kind = self.covariance_type
            shape = covariance_shape(kind, n_classes, n_gaussian)
            precisions = _array(settings.precisions_init, "precisions_init", shape)
            full = expanded(precisions, kind, n_classes, n_gaussian)
            try:
                np.linalg.cholesky(full)
            except np.linalg.LinAlgError:
                raise ValueError("precisions_init must be positive definite.") from None
            full = torch.from_numpy(np.linalg.inv(full))
            loadings, noise = self._factors(full)
            classes = classes._replace(covariances=full, loadings=loadings, noise=noise)
        return classes

    # Training

    def _step(self, layout):
        return Step(self.covariance_type, self.n_factors, self.reg_covar, layout)

    def solver(self, settings, problem):
        layout = self.layout(problem.X.shape[1], problem.device)
        rows = problem.rows_to_read
        weight = np.ones(len(rows)) if problem.weight is None else problem.weight
        starts = [self._classes(problem.fitted, problem.device)]
        if problem.is_new and problem.is_all:
            here = self.layout(problem.X.shape[1])
            of = settings, problem.X, problem.rng, problem.weight, here
            more = (self._start(*of) for _ in range(settings.n_init - 1))
            more = (self._given(settings, start, here) for start in more)
            starts += [Classes(*(p.to(problem.device) for p in m)) for m in more]
        masks = None
        if settings.objective == "mpt" and problem.is_all:
            masks = functools.partial(_masks, settings)
        return MixtureSolver(
            rows,
            as_tensor(weight, problem.device),
            starts,
            self._step(layout),
            rng=problem.rng,
            masks=masks,
            finishes=settings.n_masks == "auto" and settings.mask_rate == "uniform",
            tol=settings.tol,
            n_iter_no_change=settings.n_iter_no_change,
            learning_rate=settings.learning_rate,
            n_before=problem.fitted["n_iter_"],
        )

    def trained_attributes(self, result, fitted):
        return self._attributes(result, fitted["means_"].shape[1])

    def _attributes(self, classes, n_features):
        layout = self.layout(n_features)
        arrays = Classes(*(part.cpu().numpy() for part in classes))
        means = np.full((len(arrays.weights), n_features), np.nan)
        means[:, layout.gaussian.numpy()] = arrays.means
        if layout.likelihood is not None and layout.likelihood.is_separable:
            mean = layout.likelihood.mean(torch.from_numpy(arrays.locations))
            means[:, layout.others.numpy()] = mean.numpy()
        kind = self.covariance_type
        roots = np.linalg.cholesky(arrays.covariances)
        eye = np.eye(arrays.means.shape[1])
        inverse = np.array(
            [solve_triangular(root, eye, lower=True).T for root in roots]
        ).reshape(roots.shape)
        compact = compressed(arrays.covariances, kind)
        return {
            "weights_": arrays.weights.copy(),
            "means_": means,
            "covariances_": compact,
            "precisions_cholesky_": compressed(inverse, kind),
            "precisions_": compressed(inverse @ inverse.mT, kind),
            "locations_": arrays.locations.copy(),
            "factors_": np.swapaxes(arrays.loadings, 1, 2).copy(),
            "noise_variances_": arrays.noise.copy(),
        }

    def _classes(self, fitted, device):
        layout = self.layout(fitted["means_"].shape[1])
        means = fitted["means_"][:, layout.gaussian.numpy()]
        full = expanded(fitted["covariances_"], self.covariance_type, *means.shape)
        loadings = np.swapaxes(fitted["factors_"], 1, 2)
        others = (fitted["locations_"], loadings, fitted["noise_variances_"])
        arrays = (fitted["weights_"], means, full, *others)
        return Classes(*(as_tensor(array, device) for array in arrays))

    def model(self, settings, fitted, device):
        layout = self.layout(fitted["means_"].shape[1], device)
        return MixtureDensity(self._classes(fitted, device), layout)

    def n_parameters(self, n_features, n_classes):
        """Return the number of free parameters."""
        layout = self.layout(n_features)
        g, kind = len(layout.gaussian), self.covariance_type
        q = min(self.n_factors, g)
        of_covariance = {
            "full": n_classes * g * (g + 1) // 2,
            "tied": g * (g + 1) // 2,
            "diag": n_classes * g,
            "spherical": n_classes * min(g, 1),
            "low_rank": n_classes * (g * (q + 1) - q * (q - 1) // 2),
        }[kind]
        free = 0
        if layout.likelihood is not None:
            entries = torch.from_numpy(np.ones(len(layout.others)))
            n_locations = len(layout.likelihood.spread(entries))
            middle = layout.likelihood.centre(torch.from_numpy(np.eye(n_locations)))
            free = int(torch.linalg.matrix_rank(middle))
        return n_classes - 1 + n_classes * (g + free) + of_covariance

    def warn(self, fitted, n_samples):
        counts = n_samples * fitted["weights_"]
        few = np.flatnonzero(counts < FEWEST_ROWS)
        if len(few):
            warn_caller(
                f"Component(s) {few.tolist()} stand for fewer than {FEWEST_ROWS} rows "
                "each. Use fewer components, or another start (n_init)."
            )
        layout = self.layout(fitted["means_"].shape[1])
        means = fitted["means_"][:, layout.gaussian.numpy()]
        if not means.size:
            return
        full = expanded(fitted["covariances_"], self.covariance_type, *means.shape)
        least = np.linalg.eigvalsh(full)[:, 0]
        flat = np.flatnonzero(least < 2 * self.reg_covar)
        if len(flat):
            warn_caller(
                f"The variance of component(s) {flat.tolist()} fell to the floor of "
                f"reg_covar={self.reg_covar} in some direction: the likelihood has no "
                "maximum there. Use fewer components, a simpler covariance_type, or a "
                "larger reg_covar."
            )


def _masks(settings, X, rng):
    """Draw hidden entries of rows, by masks that many of them share.

    Few rows come several times. Return the numbers of the rows, their hidden entries
    (n, d), and what a score counts for each of these, (n, 1).
    """
    n_rows, n_features = X.shape
    n_pairs = MIN_PAIRS
    if bool(X.isnan().any()):  # each pair costs matrices of features of its own
        n_pairs = min(n_pairs, MIN_PAIRS * CHEAP_FEATURES**2 // n_features**2)
    n_copies = max(1, math.ceil(n_pairs / n_rows))
    n_masks = AUTO_MASKS if settings.n_masks == "auto" else settings.n_masks
    if settings.mask_rate == "uniform":
        level = (np.arange(n_masks) + rng.random()) / n_masks
        sizes = 1 + np.floor(level * n_features).astype(int)
    else:
        sizes = np.full(n_masks, fixed_size(settings.mask_rate, n_features))
    ranks = rng.random((n_masks, n_features)).argsort(axis=1).argsort(axis=1)
    rows = np.tile(np.arange(n_rows), n_copies)
    which = rng.permutation(len(rows)) % n_masks
    masks, inflation = ranks < sizes[:, None], n_features / sizes[:, None]
    rows, which, masks, inflation = (
        torch.from_numpy(array).to(X.device)
        for array in (rows, which, masks, inflation)
    )
    return rows, masks[which] & ~X[rows].isnan(), inflation[which]


def _statistics(classes, layout, rows, share):
    density = MixtureDensity(classes, layout)
    parts = density.blocks(~rows.isnan())
    first, *others = (
        statistics_of_shares(density, rows[part], share[part]) for part in parts
    )
    for other in others:
        first = first + other
    return first


def _moments(X, weight):
    """Mean and variance of what is present of each column."""
    present = ~np.isnan(X)
    total = weight @ present
    mean = weight @ np.nan_to_num(X) / total
    return mean, weight @ np.where(present, X - mean, 0.0) ** 2 / total


def _features(X, layout, variance):
    """Columns without gaps, by which rows are clustered: means stand in for those.

    Columns of one kind are taken as they are, as `GaussianMixture` takes them.
    """
    columns = [X[:, layout.gaussian.numpy()]]
    if layout.likelihood is not None:
        columns = [columns[0] / np.sqrt(np.maximum(variance, 1e-300))]
        others = torch.from_numpy(X[:, layout.others.numpy()].astype(float))
        read = layout.likelihood.inputs(torch.nan_to_num(others))
        gone = layout.likelihood.spread(others.isnan().double()) > 0
        columns.append(torch.where(gone, torch.nan, read).numpy())
    features = np.concatenate(columns, axis=1)
    return np.where(np.isnan(features), np.nanmean(features, axis=0), features)


def _array(value, name, shape):
    if value is None:
        return None
    array = np.array(value, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite.")
    return array


def covariance_shape(kind, n_classes, n_features):
    """Return the shape in which covariances of this kind are kept."""
    return {
        "tied": (n_features, n_features),
        "diag": (n_classes, n_features),
        "spherical": (n_classes,),
    }.get(kind, (n_classes, n_features, n_features))


def compressed(matrices, kind):
    """Return matrices (K, g, g) in the shape of their kind."""
    if kind == "tied":
        return matrices[0].copy()
    if kind in ("diag", "spherical"):
        diagonal = np.diagonal(matrices, axis1=1, axis2=2).copy()
        return diagonal if kind == "diag" else diagonal.mean(axis=1)
    return matrices.copy()


def expanded(array, kind, n_classes, n_features):
    """Return covariances as matrices of every class, (K, g, g)."""
    eye = np.eye(n_features)
    if kind == "tied":
        return np.tile(array, (n_classes, 1, 1))
    if kind == "diag":
        return array[:, :, None] * eye
    if kind == "spherical":
        return array[:, None, None] * eye
    return array
