"""Deep latent variable models: how they start, are trained, and become maths."""

import math

import numpy as np

from sklearn_mpt._checks import (
    check_bool,
    check_choice,
    check_int_or_auto,
    check_real,
    warn_caller,
    warn_constant,
)
from sklearn_mpt._deep.comparators import (
    BoundRows,
    EncodeDecodeModel,
    EncodeDecodeRows,
)
from sklearn_mpt._deep.descent import Stopping
from sklearn_mpt._deep.model import DeepModel, attributes_of, module_of
from sklearn_mpt._deep.objectives import (
    DRAWN_MASKS,
    DrawnMasks,
    HeldOutRows,
    MaskedGains,
    Points,
    n_prior_points,
)
from sklearn_mpt._deep.solver import DescentSolver
from sklearn_mpt._deep.start import (
    MANY_FEATURES,
    check_architecture,
    check_fitted_sizes,
    kinds_of_starts,
    start,
    unexplained,
)
from sklearn_mpt._latent.fitting import Family
from sklearn_mpt._latent.model import Units, as_tensor
from sklearn_mpt._latent.schedule_free import REST
from sklearn_mpt._latent.steps import Weights
from sklearn_mpt._likelihoods.gaussian import NOISE_FLOOR

# Per row, if n_importance_samples is "auto": with noise that held-out rows tell, points
# may be more, and rows sharper.
OWN_POINTS, SHARED_POINTS, SHARED_POINTS_IF_TUNED = 16, 4, 8
HELD_OUT_POINTS, HELD_OUT_BATCH = 16, 256
# Rows per step: each costs as many products of features as there are rows.
SMALLEST_BATCH, LARGEST_BATCH = 32, 128
# Many features, but not those of 0 and 1, are learnt faster along axes of gradients, so
# steadily that they need not be waited for; nor do smaller steps gain anything.
ENDING = Stopping(slows_down=False, by_rows=True)
TURNED = {"turns": True, "stopping": ENDING}
# How features are predicted from others: the model, what trains it if n_masks is
# "auto", and what does if that many masks are drawn.
CONDITIONALS = {
    "importance": (DeepModel, MaskedGains, DrawnMasks),
    "encode_decode": (EncodeDecodeModel, EncodeDecodeRows, EncodeDecodeRows),
}


class DeepFamily(Family):
    """Models with a net from z to the locations of the features.

    Parameters
    ----------
    likelihood : Likelihood
        Its own parameters do not matter.
    """

    objectives = ("mpt", "elbo", "iwae")

    def __init__(self, likelihood):
        self.likelihood = likelihood

    def check_parameters(self, settings, n_features):
        check_architecture(settings)
        check_choice(settings.conditional, "conditional", CONDITIONALS)
        check_int_or_auto(settings.n_importance_samples, "n_importance_samples")
        check_bool(settings.early_stopping, "early_stopping")
        check_real(settings.validation_fraction, "validation_fraction", "neither", 1)

    def check_rows(self, X):
        self.likelihood.check_rows(X)

    def check_fitted(self, settings, fitted):
        check_fitted_sizes(settings, fitted)

    def has_chains(self, settings):
        return settings.conditional == "importance"

    def n_components(self, fitted):
        return len(fitted["encoder_precision_"])

    def start(self, settings, X, rng, weight=None):
        kind, *_ = kinds_of_starts(settings, X.shape[1])
        constant = np.flatnonzero(self.likelihood.constant(X))
        own = {"lml_method_": "importance", "_constant": constant}
        return own | start(settings, self.likelihood, X, rng, kind, weight)

    def model(self, settings, fitted, device):
        module = self._module(fitted, device)
        units = Units.of(fitted, device)
        kind, *_ = CONDITIONALS[settings.conditional]
        return kind(module, units, device, tuple(fitted["_seed"].tolist()))

    def _module(self, fitted, device):
        return module_of(fitted, self.likelihood, device)

    def solver(self, settings, problem):
        fitted, device = problem.fitted, problem.device
        units = Units.of(fitted, device)
        module = self._module(fitted, device).float()
        rows = units.standardise(as_tensor(problem.X, device))
        log_scale = (~rows.isnan() * units.log_scale).sum(1)
        log_scale *= Weights.of(problem.weight, rows).each
        turns = self.likelihood.is_sharp and rows.shape[1] >= MANY_FEATURES
        noise = list(module.likelihood.parameters())
        may_tune = turns and sum(part.numel() for part in noise) == 1
        objective = _objective(settings, problem, rows.float(), may_tune)
        if not problem.is_all:
            objective = objective.as_part()
        return DescentSolver(
            module,
            objective,
            rng=problem.rng,
            others=self._other_starts(settings, problem),
            log_scale=float(log_scale.mean()),
            tol=settings.tol,
            n_iter_no_change=settings.n_iter_no_change,
            learning_rate=settings.learning_rate,
            resting=noise,
            rest=math.inf if objective.tunes else REST * problem.is_new,
            # other fits would lose the noise of rows that they are not trained on
            joins=objective.tunes and not settings.warm_start,
            **(TURNED if turns else {}),
        )

    def _other_starts(self, settings, problem):
        """States of the module that training may also start from."""
        if not (problem.is_new and problem.is_all):
            return []
        _, *kinds = kinds_of_starts(settings, problem.X.shape[1])
        seed = np.random.SeedSequence(problem.fitted["_seed"].tolist())
        of = settings, self.likelihood, problem.X
        starts = [
            start(*of, np.random.default_rng(s), kind, problem.weight)
            for s, kind in zip(seed.spawn(len(kinds)), kinds, strict=True)
        ]
        return [
            self._module(fitted, problem.device).float().state_dict()
            for fitted in starts
        ]

    def trained_attributes(self, module, fitted):
        return attributes_of(module, fitted["_shift"], fitted["_scale"])

    def warn(self, fitted, n_samples):
        floor = np.asarray(NOISE_FLOOR * fitted["_scale"] ** 2)
        noise_variance = np.asarray(fitted.get("noise_variance_", np.inf))
        constant, low = fitted["_constant"], noise_variance < 10 * floor
        has_own_noise = np.ndim(low) == 1
        if has_own_noise or len(constant) == len(fitted["_shift"]):
            warn_constant(constant, fitted)
        if has_own_noise:
            low[constant] = False
        elif len(constant) == len(fitted["_shift"]):
            return
        if low.any():
            warn_caller(
                f"noise_variance_={noise_variance[low].min():.3g} fell towards its "
                f"floor of {floor[low].min():.3g}: the model explains the rows almost "
                "without error, and the likelihood may have no maximum. Use fewer "
                "components or smaller nets.",
            )


def _objective(settings, problem, rows, may_tune):
    size = settings.batch_size
    if size == "auto":
        size = int(np.clip(len(rows) // 16, SMALLEST_BATCH, LARGEST_BATCH))
    chosen, others = _split(settings, problem, rows)
    tunes = may_tune and settings.objective == "mpt" and len(others) > 0
    weight = np.ones(len(rows)) if problem.weight is None else problem.weight
    points = Points(
        _points_per_row(settings, tunes),
        n_prior_points(settings.n_components, rows.shape[1]),
        settings.n_components,
    )
    held_out = None
    if len(others):
        more = HELD_OUT_BATCH, points._replace(per_row=HELD_OUT_POINTS)
        seed = problem.fitted["_seed"]
        held_out = HeldOutRows(rows[others], *more, seed, weight[others], tunes)
    rows, weight = rows[chosen], weight[chosen]
    if settings.objective != "mpt":
        return BoundRows(rows, size, points, held_out, weight)
    _, at_once, drawn = CONDITIONALS[settings.conditional]
    is_auto = settings.n_masks == "auto"
    kind, n_masks = (at_once, DRAWN_MASKS) if is_auto else (drawn, settings.n_masks)
    masks = settings.mask_rate, n_masks
    return kind(rows, size, points, held_out, masks, weight)


def _split(settings, problem, rows):
    """Numbers of rows to train on, and of those by which training is stopped.

    Of these one is drawn from every few rows that are about as hard to explain.
    """
    n_rows, held_out = len(rows), np.zeros(len(rows), dtype=bool)
    rng = np.random.default_rng(problem.fitted["_seed"])
    if settings.early_stopping and problem.is_all:
        n_held_out = int(settings.validation_fraction * n_rows)
        ends = np.linspace(0, n_rows, n_held_out + 1).astype(int)
        order = unexplained(rows.cpu().numpy(), settings.n_components).argsort()
        held_out[order[rng.integers(ends[:-1], ends[1:])]] = True
    return (rng.permutation(np.flatnonzero(part)) for part in (~held_out, held_out))


def _points_per_row(settings, tunes):
    if settings.objective == "elbo":
        return 1
    if settings.n_importance_samples != "auto":
        return settings.n_importance_samples
    if settings.objective != "mpt":
        return OWN_POINTS
    return SHARED_POINTS_IF_TUNED if tunes else SHARED_POINTS
