"""Linear models with Gaussian noise, whose integrals have a closed form."""

import numpy as np
import torch

from sklearn_mpt._base.density import Units, as_tensor, as_view, unit_attributes
from sklearn_mpt._checks import listed, warn_caller
from sklearn_mpt._gaussian.density import LinearGaussian
from sklearn_mpt._gaussian.likelihood import GaussianRows
from sklearn_mpt._gaussian.moments import (
    closed_form,
    moments_of,
    principal_factors,
    regression_factors,
)
from sklearn_mpt._gaussian.rotation import count_free, simple_axes
from sklearn_mpt._likelihoods import Columns
from sklearn_mpt._likelihoods.gaussian import Gaussian
from sklearn_mpt._linear.linear_model import initial_arrays, natural_ascent
from sklearn_mpt._matrices import log_determinant
from sklearn_mpt._numbers import CACHE_ENTRIES, TINY
from sklearn_mpt._optim.information import Information, information_by_hessian
from sklearn_mpt._optim.masks import masked_first
from sklearn_mpt._optim.natural import Point
from sklearn_mpt._optim.steps import best_of_points
from sklearn_mpt._optim.weights import SampleWeights
from sklearn_mpt._tables.weights import warn_constant

# Smallest noise variance, relative to the mean variance of the features. Differences of
# sums of squares then keep 7 of the 16 digits of double precision.
DOUBLE_NOISE_FLOOR = 1e-9
# Random part of the components where factor analysis starts, in standard deviations of
# the features. What short runs from its two starts reach is in benchmarks/RESULTS.rst,
# "Factor analysis: starts".
START_DEVIATION = 0.01


class GaussianModel:
    """Linear model with Gaussian noise, by the parameters of an estimator."""

    # All objectives other than "mpt" are the log marginal likelihood.

    def __init__(self, estimator, noise="shared"):
        self.estimator, self.noise = estimator, noise

    def check(self, n_features):
        if self.estimator.n_components > n_features:
            raise ValueError(
                f"n_components={self.estimator.n_components} must be at most "
                f"n_features={n_features}."
            )

    def start(self, X, rng, weight):
        init, n_dims = self.estimator.init, self.estimator.n_components
        shape = n_dims, X.shape[1]
        kind = Gaussian()
        if self.noise != "shared":
            kind = Columns(["gaussian"] * shape[1], [1] * shape[1])
        units = unit_attributes(kind, X, weight)
        fitted, scale = units | {"lml_method_": "exact"}, units["_scale"]
        if isinstance(init, dict):
            shapes = {"components": shape, "mean": shape[1:]}
            shapes["noise_variance"] = np.shape(scale)
            return fitted | initial_arrays(self.estimator, shapes)
        noise = rng.normal(size=shape)
        if init == "random" and self.noise == "shared":
            components = _components_along(noise, X, weight, units)
            # with the noise of the mean variance, 1, weaker components would shrink
            return fitted | _attributes(components, 0.1, units)
        mean = torch.from_numpy(units["_shift"])
        moments = _moments(X, "cpu", weight, units, mean)
        if self.noise == "shared":
            solution = closed_form(moments, n_dims, DOUBLE_NOISE_FLOOR)
            return fitted | _attributes(*solution, units)
        principal = principal_factors(moments, n_dims, DOUBLE_NOISE_FLOOR)
        if init == "pca":
            return fitted | _attributes(*principal, units)
        starts = [  # random parts, so that no component is 0
            _attributes(components + START_DEVIATION * noise, variance, units)
            for components, variance in (principal, regression_factors(moments, n_dims))
        ]
        if self.estimator.max_iter == 0:
            return fitted | starts[0]
        floor = torch.tensor(DOUBLE_NOISE_FLOOR, dtype=torch.float64, device="cpu")
        rows = GaussianRows.of_moments(moments, n_dims, floor.log())
        points = [_point(units | start, "cpu") for start in starts]
        best = best_of_points(rows, points, n_epochs=5)
        return fitted | self.trained_attributes(best, units)

    def density(self, fitted, device):
        names = ("components_", "mean_", "noise_variance_")
        arrays = (np.asarray(fitted[name]) for name in names)
        return LinearGaussian(*(as_tensor(array, device) for array in arrays))

    def information(self, fitted, X, weight):
        coefs, log_noise = _point(fitted, X.device)
        units = Units.from_attributes(fitted, X.device)
        rows = units.standardise(X) - coefs[:, -1]

        def log_prob(moved, log_noise):
            mean = moved[:, -1] - coefs[:, -1]
            density = LinearGaussian(moved[:, :-1].T, mean, log_noise.exp())
            return weight @ density.lml(rows)[0]

        def covariance_at(moved, log_noise):
            W, noise = moved[:, :-1], log_noise.exp().expand(len(moved))
            return W @ W.T + noise.diag()

        def expected_log_prob(moved, log_noise):
            # of one row of each pattern, drawn from the fitted model, up to a constant
            covariance = covariance_at(moved, log_noise)
            offset = moved[:, -1] - coefs[:, -1]
            drawn, total = law + torch.outer(offset, offset), 0.0
            for seen in patterns:
                root = torch.linalg.cholesky(covariance[seen][:, seen])
                distance = torch.cholesky_solve(drawn[seen][:, seen], root).trace()
                total = total - 0.5 * (log_determinant(root) + distance)
            return total

        patterns = _patterns_of_all_pairs(~torch.isnan(X))
        law = covariance_at(coefs, log_noise)
        matrix, expected = (
            information_by_hessian(function, coefs, log_noise)
            for function in (log_prob, expected_log_prob)
        )
        unit = units.scale.expand(X.shape[1])
        return Information(
            *(tensor.cpu().numpy() for tensor in (matrix, coefs, unit)),
            free=np.eye(len(coefs)),
            varies=np.ones(len(coefs), dtype=bool),
            expected=expected.cpu().numpy(),
            shape_params_vary=~_at_bound(fitted),
        )

    def n_parameters(self, fitted):
        n_dims, n_features = fitted["components_"].shape
        n_noises = np.size(fitted["noise_variance_"])
        return n_features + count_free(n_features, n_dims, n_noises)

    def epochs(self, data, training):
        params = self.estimator
        units = Units.from_attributes(data.fitted, data.device)
        n_dims, point = params.n_components, _point(data.fitted, data.device)
        floor = point.coefs.new_tensor(DOUBLE_NOISE_FLOOR).log()
        if data.is_all and not np.isnan(data.X.min()):
            moments = _moments(data.X, data.device, data.weight, data.fitted)
            log_scale = float(units.log_scale.expand_as(moments.mean).sum())
            rows = whole = GaussianRows.of_moments(moments, n_dims, floor, log_scale)
            is_closed_form = params.objective != "mpt" and self.noise == "shared"
            if is_closed_form:
                weights, noise = closed_form(moments, n_dims, DOUBLE_NOISE_FLOOR)
                solution = _attributes(weights, noise, data.fitted)
                point = _point(data.fitted | solution, data.device)
            # the mean of the rows maximises the score of every mask
            coefs = torch.cat([point.coefs[:, :-1], moments.mean[:, None]], 1)
            point = point._replace(coefs=coefs)
            if is_closed_form:
                training.params = point
                return _value_of(training, rows)
        else:
            X = as_view(data.X, data.device)
            args = floor, data.weight, units, data.is_all
            rows = GaussianRows(X, n_dims, params.batch_size, *args)
            whole = GaussianRows(X, n_dims, len(X), *args) if data.is_all else None
        objective = masked_first(rows, whole, params, data)
        return natural_ascent(training, params, data, objective, point)

    def trained_attributes(self, result, fitted):
        coefs, log_noise = (part.cpu().numpy() for part in result)
        components = simple_axes(coefs[:, :-1].T, self.estimator.rotation)
        return _attributes(components, np.exp(log_noise), fitted, coefs[:, -1])

    def warn_of_limits(self, fitted, n_samples):
        n_components, n_features = fitted["components_"].shape
        noise_variance, floor = fitted["noise_variance_"], _noise_floor(fitted)
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


def _value_of(training, rows):
    """One epoch at the maximum, for its loss."""
    (batch,) = rows.batches(np.random.default_rng(0))
    sums = rows.sums(training.params, batch)
    training.loss_curve.append(rows.log_scale - float(sums.value / sums.n_rows))
    yield True


def _noise_floor(fitted):
    return DOUBLE_NOISE_FLOOR * fitted["_scale"] ** 2


def _at_bound(fitted):
    """Return which noise variances have fallen to their floor; (d,), or (1,)."""
    # Fits with one of each feature end by `tol` before they reach it: its logarithm
    # falls by steps of equal size, each of which gains less.
    noise_variance = np.asarray(fitted["noise_variance_"])
    near = 10 if noise_variance.ndim == 0 else 100
    return np.atleast_1d(noise_variance < near * _noise_floor(fitted))


def _warn_of_rounding(fitted):
    """Warn of features whose values are rounded by more than noise may be small."""
    # Errors of rounding are uniform, with a variance of a twelfth of the squared step.
    step = np.spacing(np.abs(fitted["mean_"]))
    is_rounded = step**2 / 12 > _noise_floor(fitted)
    is_rounded[fitted["_constant"]] = False
    if is_rounded.any():
        warn_caller(
            f"Feature(s) {listed(np.flatnonzero(is_rounded))} vary by so little beside "
            "their mean that double precision rounds them visibly: the errors of "
            "rounding are modelled as noise. Subtract a constant where the values are "
            "made, before they are rounded."
        )


def _attributes(components, noise_variance, units, mean=0.0):
    """Return fitted attributes, from parameters of standardised features."""
    shift, scale = units["_shift"], units["_scale"]
    noise_variance = noise_variance * scale**2
    return {
        "components_": components * scale,
        "mean_": mean * scale + shift,
        "noise_variance_": noise_variance if np.ndim(scale) else float(noise_variance),
    }


def _components_along(directions, X, weight, units):
    """Return components that span some directions, (k, d), and z of variance 1."""
    # So the length of the components, which masks of few features hardly determine, is
    # right from the start, by some rows of long tables.
    axes = np.linalg.qr(directions.T)[0]
    some = slice(None, None, 1 + X.size // CACHE_ENTRIES)
    weight = np.ones(len(X)) if weight is None else weight
    rows, weight = (X[some] - units["_shift"]) / units["_scale"], weight[some]
    projected = np.where(np.isnan(rows), 0.0, rows) @ axes
    second = (weight * projected.T) @ projected / weight.sum()
    values, vectors = np.linalg.eigh(second)
    lengths = np.sqrt(np.maximum(values, START_DEVIATION**2))
    return (axes @ (vectors * lengths) @ vectors.T).T


def _are_dependent(weights, tol=1e-6):
    """Return whether features without noise are linear functions of each other."""
    # If so, their joint density is infinite; otherwise noise variances of zero are
    # valid. weights : (k, q). tol : fraction of variance that others do not explain.
    n_components, n_features = weights.shape
    unit = weights / np.maximum(np.linalg.norm(weights, axis=0), TINY)
    lengths = np.linalg.svd(unit, compute_uv=False)
    return n_features > n_components or lengths.min() ** 2 < tol


def _patterns_of_all_pairs(present):
    """Return patterns of rows that hold all pairs of features which some row holds."""
    # They determine the same parameters as all patterns do, because the density of a
    # row depends on means and on covariances of pairs. present : bool, (n, d).
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
    """Return fitted attributes as a point of standardised features."""
    shift, scale = fitted["_shift"], fitted["_scale"]
    weights = (fitted["components_"] / scale).T
    coefs = np.column_stack([weights, (fitted["mean_"] - shift) / scale])
    noise_variance = np.maximum(
        fitted["noise_variance_"] / scale**2, DOUBLE_NOISE_FLOOR
    )
    log_noise = np.log(np.asarray(noise_variance))
    return Point(as_tensor(coefs, device), as_tensor(log_noise, device))


def _moments(X, device, weight, units, mean=None):
    """Return the moments of standardised rows."""
    rows = as_view(X, device)
    weight = SampleWeights.from_array(weight, rows).values
    units = Units.from_attributes(units, rows.device)
    moments = moments_of(rows, weight, mean)
    mean = units.standardise(moments.mean)
    scale = units.scale.expand(len(mean))
    return moments.divided(scale)._replace(mean=mean)
