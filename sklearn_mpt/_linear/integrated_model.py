"""Linear models with any likelihood, integrated over z numerically."""

from functools import cache, partial

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt._base.density import (
    Units,
    as_tensor,
    as_view,
    unit_attributes,
    units_of_locations,
)
from sklearn_mpt._checks import listed, warn_caller
from sklearn_mpt._gaussian.rotation import count_free, simple_axes
from sklearn_mpt._latent.density import IntegratedDensity
from sklearn_mpt._latent.grids import (
    MAX_SPACING,
    PAIR_RADII,
    PriorGrids,
    coarsen,
    count_nodes,
    spacings,
)
from sklearn_mpt._latent.integrals import (
    IMPORTANCE_POINTS,
    MAX_GRID_NODES,
    importance,
    quadrature,
    rows_of,
)
from sklearn_mpt._latent.likelihood_rows import LikelihoodRows
from sklearn_mpt._latent.linear_map import LinearMap, max_precision
from sklearn_mpt._latent.quadrature import MAX_GRID_DIMS
from sklearn_mpt._latent.sums import information_by_scores, start_components, varies
from sklearn_mpt._likelihoods.base import fitted_attributes
from sklearn_mpt._linear.linear_model import initial_arrays, natural_ascent
from sklearn_mpt._matrices import identity
from sklearn_mpt._numbers import CHUNK_ENTRIES
from sklearn_mpt._optim.information import Information, typical_rows
from sklearn_mpt._optim.masks import masked_first
from sklearn_mpt._optim.weights import LONG_SLOPE
from sklearn_mpt._tables.weights import warn_constant

# Standard deviation of the random part of slopes from which training starts.
START_NOISE = 0.1
# Largest number of nodes x features: rows share a table of them, of 64 MiB.
MAX_TABLE = 2 * CHUNK_ENTRIES


class IntegratedModel:
    """Linear model whose integrals over z have no closed form, of an estimator."""

    def __init__(self, estimator, likelihood):
        self.estimator, self.likelihood = estimator, likelihood

    def check(self, n_features):
        """Any number of components is allowed."""

    def start(self, X, rng, weight):
        params, likelihood = self.estimator, self.likelihood
        init, K = params.init, params.n_components
        is_quadrature = K <= MAX_GRID_DIMS
        fitted = unit_attributes(likelihood, X, weight) | {
            "lml_method_": "quadrature" if is_quadrature else "importance"
        }
        scale = fitted["_scale"]
        units = Units.from_attributes(fitted, torch.device("cpu"), likelihood)
        X = units.standardise(as_view(X, torch.device("cpu"))).numpy()
        shape_attributes = likelihood.start_attributes(X, scale, weight)
        likelihood = likelihood.from_attributes(shape_attributes, scale)
        intercept = likelihood.start_location(X, weight)
        if isinstance(init, dict):
            used = {
                name.rstrip("_"): ~np.isnan(array)
                for name, array in shape_attributes.items()
            }
            shapes = {"components": (K, len(intercept)), "intercept": intercept.shape}
            shapes |= {key: where.shape for key, where in used.items()}
            arrays = initial_arrays(params, shapes, **used)
            for key, where in used.items():
                arrays[f"{key}_"] = np.where(where, arrays[f"{key}_"], np.nan)
            likelihood.check_attributes(arrays)
            return fitted | shape_attributes | arrays
        some = slice(None, None, 1 + X.size // CHUNK_ENTRIES)  # of the rows, if many
        of_rows = None if weight is None else weight[some]
        components = start_components(X[some], intercept, K, likelihood, of_rows)
        if init == "random":
            noise = rng.normal(size=components.shape)
            components += START_NOISE * noise * varies(X, likelihood)
        of_locations = _attributes_in_units(components, intercept, fitted, likelihood)
        return fitted | shape_attributes | of_locations

    def n_parameters(self, fitted):
        likelihood = self.likelihood.from_attributes(fitted, fitted["_scale"])
        n_dims, n_locations = fitted["components_"].shape
        noise = np.asarray(fitted.get("noise_variance_", np.nan))
        if noise.shape == (n_locations,) and not np.isnan(noise).any():
            # entries, or their logarithms, have a covariance
            return n_locations + count_free(n_locations, n_dims, n_locations)
        eye = torch.eye(n_locations, dtype=torch.float64, device="cpu")
        n_free = int(torch.linalg.matrix_rank(likelihood.centre(eye)))
        n_coefs = n_free * (n_dims + 1) - n_dims * (n_dims - 1) // 2
        return n_coefs + likelihood.shape_params.numel()

    def density(self, fitted, device):
        joint = self._joint_of(fitted, device)
        units = Units.from_attributes(fitted, device, joint.likelihood)
        seed = tuple(fitted["_seed"].tolist())
        if joint.n_dims <= MAX_GRID_DIMS:
            accuracy = quadrature(joint.n_dims, device)
            shared_first = partial(_shared_first, joint, accuracy, max_precision(joint))
            scoring, predicting = shared_first(False), shared_first(True)
            # Other conditionals are differences of two log-likelihoods. More rules cost
            # time for all hidden entries of a row, fewer for each of those left.
            predicting = predicting.coarse(4)
            return IntegratedDensity(joint, units, scoring, predicting, seed)
        scoring = importance(IMPORTANCE_POINTS, joint.n_dims, device, seed)
        if joint.n_dims > joint.components.shape[1]:  # blocks of rows must also hold z
            scoring = scoring._replace(n_nodes=sum(IMPORTANCE_POINTS[-1]))
        predicting = scoring._replace(tolerance=0.1)  # nats
        return IntegratedDensity(joint, units, scoring, predicting, seed)

    def information(self, fitted, X, weight):
        density, likelihood = self.density(fitted, X.device), self.likelihood
        joint = density.joint
        rows = LikelihoodRows(
            X,
            joint.likelihood,
            joint.n_dims,
            weight=weight.cpu().numpy(),
            units=density.units,
        )
        matrix = rows.observed_information(joint.point, density.scoring)
        coefs = joint.point.coefs
        free = likelihood.centre(identity(len(coefs), coefs))
        _, scale = _units_of_locations(fitted, likelihood)
        return Information(
            matrix.cpu().numpy(),
            coefs.cpu().numpy(),
            np.broadcast_to(scale, len(coefs)),
            free.cpu().numpy(),
            varies(X.cpu().numpy(), likelihood) > 0,
            _expected_information(X, density),
        )

    def _joint_of(self, fitted, device):
        """Return the joint distribution of z and standardised rows."""
        likelihood = self.likelihood
        shift, scale = _units_of_locations(fitted, likelihood)
        arrays = (fitted["components_"] / scale, (fitted["intercept_"] - shift) / scale)
        likelihood = likelihood.from_attributes(fitted, fitted["_scale"])
        likelihood = likelihood.to(device).requires_grad_(False)
        return LinearMap(*(as_tensor(a, device) for a in arrays), likelihood)

    def epochs(self, data, training):
        joint = self._joint_of(data.fitted, data.device)
        units = Units.from_attributes(data.fitted, data.device, joint.likelihood)
        rows, weight = as_view(data.X, data.device), data.weight
        likelihood = LikelihoodRows(
            rows,
            joint.likelihood,
            joint.n_dims,
            objective=self.estimator.objective,
            batch_size=self.estimator.batch_size,
            slope_prior=self.estimator.slope_prior,
            seed=(*data.fitted["_seed"].tolist(), 1),
            weight=weight,
            units=units,
            log_scale=units.mean_log_scale(rows, weight),
            is_all=data.is_all,
        )
        objective = likelihood
        if self._draws_masks(likelihood):
            objective = masked_first(likelihood, likelihood, self.estimator, data)
        return natural_ascent(training, self.estimator, data, objective, joint.point)

    def _draws_masks(self, objective):
        """Return whether a step may draw masks."""
        # Nodes for the posterior given some entries are too coarse for a number that
        # determines z more closely. So masks of numbers are drawn in a few epochs only,
        # on all rows, unless their size is fixed.
        if self.estimator.mask_rate != "uniform" or objective.codes is not None:
            return True
        return self.estimator.n_masks == "auto" and not objective.is_noisy

    def trained_attributes(self, result, fitted):
        likelihood = self.likelihood
        coefs = likelihood.centre(result.coefs.cpu().T).numpy()
        likelihood_at_result = likelihood.at(result.shape_params.cpu())
        shape_attributes = fitted_attributes(likelihood_at_result, fitted["_scale"])
        components = simple_axes(coefs[:-1], self.estimator.rotation)
        return shape_attributes | _attributes_in_units(
            components, coefs[-1], fitted, likelihood
        )

    def warn_of_limits(self, fitted, n_samples):
        warn_constant(fitted["_constant"], fitted)
        _, scale = _units_of_locations(fitted, self.likelihood)
        lengths = np.linalg.norm(fitted["components_"] / scale, axis=0)
        if self.estimator.slope_prior is None and (lengths > LONG_SLOPE).any():
            warn_caller(
                "The likelihood has no finite maximum, or one at very steep slopes: "
                f"those of the columns {listed(np.flatnonzero(lengths > LONG_SLOPE))} "
                f"of components_ exceed {LONG_SLOPE:g}, since some features separate "
                "the rows. A normal prior keeps them near this length; slope_prior=4.0 "
                "would shrink all slopes a little. With fewer components the "
                "likelihood may have a maximum.",
                ConvergenceWarning,
            )


def _attributes_in_units(components, intercept, fitted, likelihood):
    """Return the fitted attributes in the units of the rows."""
    shift, scale = _units_of_locations(fitted, likelihood)
    return {"components_": components * scale, "intercept_": intercept * scale + shift}


def _units_of_locations(fitted, likelihood):
    """Return shift and scale of the locations."""
    return units_of_locations(likelihood, fitted["_shift"], fitted["_scale"])


def _expected_information(X, density):
    """Return the information of rows drawn from the model; None without quadrature."""
    if not density.scoring.is_quadrature:
        return None
    joint = density.joint
    values = joint.likelihood.values_of_each(X.shape[1])

    def draw(rows, rng):
        return density.units.standardise(density.draw(rows, rng))

    rows = rows_of(typical_rows(X, values, joint.components.numel(), draw))
    return information_by_scores(rows, joint, density.scoring).cpu().numpy()


def _shared_first(joint, accuracy, precision, is_fine, *, max_coarse=2**13):
    """Try pairs of grids that all rows share before those around each row."""
    # Results of two grids of different radii differ if a posterior reaches the edge.
    # With too many nodes grids are wider, or with `is_fine` not used: conditionals of
    # values that determine z closely might have the same error on both. max_coarse :
    # most nodes of wider grids. Posteriors of some rows may be wider than the bound.
    n_features, radii = joint.components.shape[1], PAIR_RADII[:1] * joint.n_dims
    max_nodes = min(MAX_GRID_NODES, MAX_TABLE // n_features)
    # In standard deviations of the narrowest posterior, of which there is a bound. With
    # 1.25, pairs that agree have errors of at most 3e-5 nats; with more, some pairs
    # agree by chance.
    bounds = [spacings(precision, k, MAX_SPACING).tolist() for k in (1.25, 0.625)]
    fit = [count_nodes(steps, radii) <= max_nodes for steps in bounds]
    max_coarse = min(max_coarse, max_nodes)
    if not fit[0] and (
        is_fine or count_nodes([MAX_SPACING] * joint.n_dims, radii) > max_coarse
    ):
        return accuracy
    all_steps = [
        tuple(steps if fits else coarsen(steps, max_coarse, radii, MAX_SPACING))
        for steps, fits in zip(bounds, fit, strict=True)
        if fits or steps is bounds[0]
    ]
    pair_of = cache(partial(PriorGrids.of_steps, like=joint.components))

    def rules():
        yield from map(pair_of, all_steps)
        yield from accuracy.rules()

    # n_nodes: nodes x features
    n_shared = int(count_nodes(all_steps[-1], radii)) // n_features
    return accuracy._replace(rules=rules, n_nodes=max(accuracy.n_nodes, n_shared))
