"""Linear models with Gaussian noise, whose integrals have a closed form."""

import numpy as np
import torch

from sklearn_mpt._base.density import as_tensor, as_view
from sklearn_mpt._checks import warn_caller, warn_constant
from sklearn_mpt._factors.density import density_of, expected_information
from sklearn_mpt._factors.objective import GaussianMoments, GaussianRows
from sklearn_mpt._factors.rotation import simple_axes
from sklearn_mpt._factors.starts import (
    closed_form,
    principal_factors,
    regression_factors,
)
from sklearn_mpt._factors.sums import moments_of
from sklearn_mpt._fitting.ascent import best_of_points
from sklearn_mpt._fitting.fit_loop import Solver
from sklearn_mpt._fitting.masks import ComplementaryMasks, DisjointMasks
from sklearn_mpt._fitting.natural_gradient import Point
from sklearn_mpt._fitting.phases import ends_without_masks
from sklearn_mpt._fitting.weights import SampleWeights
from sklearn_mpt._information.linear import Information, information_by_hessian
from sklearn_mpt._likelihoods import Columns
from sklearn_mpt._likelihoods.gaussian import Gaussian
from sklearn_mpt._linear.initial_arrays import initial_arrays
from sklearn_mpt._linear.linear_model import LinearModel
from sklearn_mpt._linear.natural_ascent import natural_ascent
from sklearn_mpt._measure.masks import fixed_size
from sklearn_mpt._messages import listed
from sklearn_mpt._numbers import TINY

# Smallest noise variance, relative to the mean variance of the features. Differences of
# sums of squares then keep 7 of the 16 digits of double precision.
DOUBLE_NOISE_FLOOR = 1e-9
# Noise variance from which training starts, as a share of the mean variance. Noise that
# starts there, at 1, lets components shrink that are weaker.
START_NOISE = 0.1
# Masks in each step, and if steps without masks follow, which remove their noise.
AUTO_MASKS, MASKS_BEFORE_EXACT = 64, 16


# Random part of the components where factor analysis starts, in standard deviations of
# the features, so that none is 0; epochs of a short run from each of the two starts,
# and its largest number of rows. What they reach is in benchmarks/RESULTS.rst, "Factor
# analysis: starts".
START_DEVIATION, SHORT_RUN_EPOCHS, SHORT_RUN_ROWS = 0.01, 5, 2000


class GaussianModel(LinearModel):
    """Linear model with Gaussian noise.

    All objectives other than "mpt" are the log marginal likelihood.

    params : LinearParams. noise : "shared" or "per_feature".
    """

    def __init__(self, params, noise="shared"):
        self.params = params
        self.noise = noise

    def check(self, n_features):
        if self.params.n_components > n_features:
            raise ValueError(
                f"n_components={self.params.n_components} must be at most "
                f"n_features={n_features}."
            )

    def start(self, X, rng, weight):
        init, n_dims = self.params.init, self.params.n_components
        shape = n_dims, X.shape[1]
        kind = Gaussian
        if self.noise != "shared":
            kind = Columns(["gaussian"] * shape[1], [1] * shape[1])
        shift, scale = kind.units(X, weight)
        constants = {
            "lml_method_": "exact",
            "_scale": scale,
            "_noise_floor": DOUBLE_NOISE_FLOOR * scale**2,
            "_constant": np.flatnonzero(kind.constant(X)),
        }
        if isinstance(init, dict):
            shapes = {"components": shape, "mean": shape[1:]}
            shapes["noise_variance"] = np.shape(scale)
            return constants | initial_arrays(init, shapes)
        noise = scale * rng.normal(size=shape)
        if init == "random" and self.noise == "shared":
            return constants | {
                "components_": _components_along(noise, X, shift, scale, weight),
                "mean_": shift,
                "noise_variance_": START_NOISE * scale**2,
            }
        moments = _moments(X, "cpu", weight, torch.from_numpy(shift))
        if self.noise == "shared":
            floor = constants["_noise_floor"]
            return constants | closed_form(moments, n_dims, floor)
        standard = moments.divided(torch.from_numpy(scale))
        principal = principal_factors(standard, n_dims, DOUBLE_NOISE_FLOOR)
        if init == "pca":
            return constants | _attributes(*principal, moments.mean, scale)
        kinds = [principal]
        if self.params.max_iter > 0:
            kinds.append(regression_factors(standard, n_dims))
        starts = [_attributes(*kind, moments.mean, scale) for kind in kinds]
        for start in starts:
            start["components_"] += START_DEVIATION * noise
        if self.params.max_iter == 0:
            return constants | starts[0]
        points = [_point(constants | start, "cpu") for start in starts]
        return constants | _best_factors(X, moments, weight, points, scale, rng)

    def density(self, fitted, device):
        names = ("components_", "mean_", "noise_variance_")
        arrays = (np.asarray(fitted[name]) for name in names)
        return density_of(*(as_tensor(array, device) for array in arrays))

    def information(self, fitted, X, weight):
        point = _point(fitted, X.device)
        unit = as_tensor(np.asarray(fitted["_scale"]), X.device)
        log_noise, unit = point.shape_params - 2 * unit.log(), unit.expand(X.shape[1])
        rows, coefs = (X - point.coefs[:, -1]) / unit, point.coefs / unit[:, None]

        def log_prob(moved, log_noise):
            mean = moved[:, -1] - coefs[:, -1]
            density = density_of(moved[:, :-1].T, mean, log_noise.exp())
            return weight @ density.lml(rows)[0]

        matrix = information_by_hessian(log_prob, coefs, log_noise)
        all_features, free = np.ones(len(coefs), dtype=bool), np.eye(len(coefs))
        expected = sum(
            expected_information(coefs, log_noise, observed)
            for observed in _patterns_of_all_pairs(~torch.isnan(X))
        )
        numbers = (tensor.cpu().numpy() for tensor in (matrix, coefs, unit))
        return Information(
            *numbers,
            free,
            all_features,
            expected.cpu().numpy(),
            ~_at_bound(fitted),
        )

    def n_parameters(self, fitted):
        n_dims, n_features = fitted["components_"].shape
        n_weights = n_features * n_dims - n_dims * (n_dims - 1) // 2
        return n_weights + n_features + np.size(fitted["noise_variance_"])

    def solver(self, data):
        is_whole = data.is_all and not np.isnan(data.X).any()
        if is_whole and self.params.objective != "mpt" and self.noise == "shared":
            return ClosedForm(data, self.params.n_components)
        objective, point = self._objective_and_start(data, is_whole)
        unit = data.fitted["_scale"]
        return natural_ascent(self.params, data, objective, point, unit)

    def _objective_and_start(self, data, is_whole):
        """Return the objective, of rows or of their second moments, and where to start.

        is_whole : whether all rows are known, without gaps.
        """
        params = self.params
        n_features, n_dims = data.X.shape[1], params.n_components
        point = _point(data.fitted, data.device)
        floor = np.log(np.asarray(data.fitted["_noise_floor"]))
        floor = as_tensor(floor, data.device)
        masks = None
        if params.objective == "mpt" and params.mask_rate == "uniform":
            masks = ComplementaryMasks()
        elif params.objective == "mpt":
            masks = DisjointMasks(fixed_size(params.mask_rate, n_features))
        exact_follows = masks is not None and ends_without_masks(
            params.mask_rate, params.n_masks
        )
        if not is_whole:
            args = masks, params.batch_size, floor, data.weight, exact_follows
            return GaussianRows(as_view(data.X, data.device), n_dims, *args), point
        moments = _moments(data.X, data.device, data.weight)
        n_masks = params.n_masks
        if masks is None:
            n_masks = 1
        elif n_masks == "auto":
            n_masks = MASKS_BEFORE_EXACT if exact_follows else AUTO_MASKS
        objective = GaussianMoments(
            moments, n_masks, n_dims, masks, floor, exact_follows
        )
        # the mean of the rows maximises the score of every mask
        coefs = torch.cat([point.coefs[:, :-1], moments.mean[:, None]], 1)
        return objective, point._replace(coefs=coefs)

    def trained_attributes(self, result, fitted):
        coefs, scale = result.coefs.cpu().numpy(), fitted["_scale"]
        noise_variance = np.exp(result.shape_params.cpu().numpy())
        weights = simple_axes(coefs[:, :-1].T / scale, self.params.rotation)
        return {
            "components_": scale * weights,
            "mean_": coefs[:, -1].copy(),
            "noise_variance_": (
                float(noise_variance) if self.noise == "shared" else noise_variance
            ),
        }

    def warn_of_limits(self, fitted, n_samples):
        n_components, n_features = fitted["components_"].shape
        noise_variance, floor = fitted["noise_variance_"], fitted["_noise_floor"]
        constant = fitted["_constant"]
        if len(constant) == n_features or self.noise != "shared":
            warn_constant(constant, fitted)
        if len(constant) == n_features:
            return
        rank = min(n_samples - 1, n_features)
        without_error = _at_bound(fitted)
        if self.noise != "shared":
            without_error[constant] = False
            _warn_of_rounding(fitted)
        is_flat = without_error.any() and (
            self.noise == "shared"
            or _are_dependent(fitted["components_"][:, without_error])
        )
        if is_flat or rank < min(n_components + 1, n_features):
            least, where = np.argmin(noise_variance / floor), ""
            if self.noise != "shared" and without_error.any():
                where = f" in feature(s) {listed(np.flatnonzero(without_error))}"
            warn_caller(
                f"n_components={n_components} explain the n_samples={n_samples} "
                f"without error{where}: the likelihood has no maximum, "
                f"and noise_variance_={np.ravel(noise_variance)[least]:.3g} fell "
                f"towards its floor of {np.ravel(floor)[least]:.3g}. Use fewer "
                "components.",
            )
        elif without_error.any():
            warn_caller(
                "Heywood case: the components explain the feature(s) "
                f"{listed(np.flatnonzero(without_error))} without error, so their "
                "noise variances fell to their bound, a "
                f"share {DOUBLE_NOISE_FLOOR:g} of the variance, and have no standard "
                "errors. Use fewer components or more rows, or leave the features out."
            )


def _at_bound(fitted):
    """Return which noise variances have fallen to their floor; (d,), or (1,).

    Fits with one of each feature end by `tol` before they reach it: its logarithm falls
    by steps of equal size, each of which gains less.
    """
    noise_variance = np.asarray(fitted["noise_variance_"])
    near = 10 if noise_variance.ndim == 0 else 100
    return np.atleast_1d(noise_variance < near * fitted["_noise_floor"])


def _warn_of_rounding(fitted):
    """Warn of features whose values are rounded by more than noise may be small.

    Errors of rounding are uniform, with a variance of a twelfth of the squared step.
    """
    step = np.spacing(np.abs(fitted["mean_"]))
    is_rounded = step**2 / 12 > fitted["_noise_floor"]
    is_rounded[fitted["_constant"]] = False
    if is_rounded.any():
        warn_caller(
            f"Feature(s) {listed(np.flatnonzero(is_rounded))} vary by so little beside "
            "their mean that double precision rounds them visibly: the errors of "
            "rounding are modelled as noise. Subtract a constant where the values are "
            "made, before they are rounded."
        )


def _attributes(components, noise_variance, mean, scale):
    """Return fitted attributes, from components and noise of standardised features."""
    return {
        "components_": components * scale,
        "mean_": mean.numpy().copy(),
        "noise_variance_": noise_variance * scale**2,
    }


def _components_along(directions, X, mean, scale, weight):
    """Return components that span some directions, (k, d), and z of variance 1.

    So the length of the components, which masks of few features hardly determine, is
    right from the start.
    """
    axes = np.linalg.qr(directions.T)[0]
    projected = np.nan_to_num(X - mean) @ axes
    weight = np.ones(len(X)) if weight is None else weight
    covariance = (weight * projected.T) @ projected / weight.sum()
    values, vectors = np.linalg.eigh(covariance)
    lengths = np.sqrt(np.maximum(values, (START_DEVIATION * scale) ** 2))
    return (axes @ (vectors * lengths) @ vectors.T).T


def _best_factors(X, moments, weight, points, scale, rng):
    """Return the attributes after the best of short runs of factor analysis.

    The likelihood has local maxima. Runs on rows with gaps take a sample of them.
    """
    n_dims = points[0].coefs.shape[1] - 1
    floor = torch.from_numpy(np.log(DOUBLE_NOISE_FLOOR * scale**2))
    if np.isnan(X).any():
        sample = rng.permutation(len(X))[:SHORT_RUN_ROWS]
        weight = None if weight is None else weight[sample]
        rows = torch.from_numpy(np.array(X[sample], float))
        objective = GaussianRows(rows, n_dims, None, len(rows), floor, weight)
    else:
        objective = GaussianMoments(moments, 1, n_dims, None, floor)
    best = best_of_points(objective, points, SHORT_RUN_EPOCHS)
    return {
        "components_": best.coefs[:, :-1].T.numpy().copy(),
        "mean_": best.coefs[:, -1].numpy().copy(),
        "noise_variance_": best.shape_params.exp().numpy(),
    }


def _are_dependent(weights, tol=1e-6):
    """Return whether features without noise are linear functions of each other.

    weights : their components, (k, q). tol : share of the variance of a feature that
    others do not explain, below which it is a function of them.

    If features are dependent, their joint density is infinite; otherwise noise
    variances of zero are valid.
    """
    n_components, n_features = weights.shape
    unit = weights / np.maximum(np.linalg.norm(weights, axis=0), TINY)
    lengths = np.linalg.svd(unit, compute_uv=False)
    return n_features > n_components or lengths.min() ** 2 < tol


class ClosedForm(Solver):
    """Solver that computes the maximum likelihood of complete rows in one step."""

    def __init__(self, data, n_components):
        self.data = data
        self.n_components = n_components
        self.loss_curve = []
        self._point = _point(data.fitted, data.device)

    def step(self):
        data, floor = self.data, self.data.fitted["_noise_floor"]
        moments = _moments(data.X, data.device, data.weight)
        solution = closed_form(moments, self.n_components, floor)
        self._point = _point({"_noise_floor": floor, **solution}, data.device)
        arrays = (np.asarray(array) for array in solution.values())
        density = density_of(*(as_tensor(array, data.device) for array in arrays))
        self.loss_curve.append(-float(density.mean_log_prob(moments)))

    def terminate(self):
        return True

    @property
    def result(self):
        return self._point


def _patterns_of_all_pairs(present):
    """Return patterns of rows that hold all pairs of features which some row holds.

    They determine the same parameters as all patterns do, because the density of a row
    depends on means and on covariances of pairs of its features.

    present : bool, (n, d).
    """
    patterns = present.unique(dim=0)
    patterns = patterns[patterns.sum(1).argsort(descending=True, stable=True)]
    covered, chosen = present.new_zeros(present.shape[1], present.shape[1]), []
    for pattern in patterns:
        pairs = pattern[:, None] & pattern
        if (pairs & ~covered).any():
            covered |= pairs
            chosen.append(pattern)
    return chosen


def _point(fitted, device):
    coefs = np.column_stack([fitted["components_"].T, fitted["mean_"]])
    log_noise = np.log(np.maximum(fitted["noise_variance_"], fitted["_noise_floor"]))
    return Point(as_tensor(coefs, device), as_tensor(np.asarray(log_noise), device))


def _moments(X, device, weight, mean=None):
    rows = as_view(X, device)
    return moments_of(rows, SampleWeights.from_array(weight, rows).values, mean)
