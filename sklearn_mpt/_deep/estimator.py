"""How a deep latent variable model is scored and trained, behind the estimator."""

import functools
import warnings
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils.metaestimators import available_if

from sklearn_mpt._checks import (
    check_binary,
    check_choice,
    check_fraction,
    check_int_or_auto,
)
from sklearn_mpt._deep import objectives as _deep_objectives
from sklearn_mpt._deep.chain import ChainRows, chain_log_prob
from sklearn_mpt._deep.model import NOISE_FLOOR, DeepModel
from sklearn_mpt._deep.start import check_architecture, check_fitted_sizes, start
from sklearn_mpt._deep.state import attributes_of, model_of
from sklearn_mpt._latent.estimator import BaseMPT
from sklearn_mpt._latent.integration import (
    conditional_log_prob,
    draw_latent,
    log_prob,
    posterior_average,
    rows_of,
)
from sklearn_mpt._latent.nodes import PosteriorMixture, mixture_nodes, refine
from sklearn_mpt._latent.prefixes import mean_scores

# Points per row if n_importance_samples is "auto". The more features a row has, the
# narrower is its posterior, and the less do the points of other rows serve it.
OWN_POINTS, SHARED_POINTS, SHARED_POINTS_IF_MANY = 16, 4, 8
MANY_FEATURES = 256
HELD_OUT_POINTS = 8
# In each replicate, around the encoder's posterior and around the mode; a quarter as
# many are from the prior. Rows share the points: their errors do not average out.
POINTS = [2**power for power in range(6, 10)]
CONDITIONAL_POINTS = [2**power for power in range(5, 8)]
TOLERANCE = 0.02  # nats, or units of z or of standardised features


class InUnits(NamedTuple):
    """A model of standardised rows, whose densities are in the units of the rows."""

    model: DeepModel
    log_scale: float

    def propose(self, rows):
        return self.model.propose(rows)

    def entry_log_prob(self, X, z):
        return self.model.entry_log_prob(X, z) - self.log_scale


class DeepMPT(BaseMPT):
    """Base of the deep model: all but its parameters."""

    _objectives = ("mpt", "elbo", "iwae")

    @property
    def _model(self):
        return model_of(self)

    def _standardise(self, X):
        return (X - self._tensor(self._shift)) / self._scale

    def _restore_units(self, X):
        return self._scale * X + self._tensor(self._shift)

    def _rows(self, X, mask=None):
        return rows_of(self._standardise(X), mask)

    def _estimate(self, function, rows, points=POINTS):
        """Refine a function of rows, rule and model; value and error."""
        model, seed = self._model, tuple(self._seed.tolist())
        rules = (
            _mixture((n, n, n // 4), self._n_features_out, rows.X.device, seed)
            for n in points
        )
        return refine(
            lambda rule, which: function(rows.take(which), rule, model),
            rules,
            TOLERANCE,
        )

    @property
    def _row_bytes(self):
        widest = max(self.n_features_in_, *self.hidden_layer_sizes, 1)
        return 8 * 3 * 36 * widest

    def _score_rows(self, X):
        rows = self._rows(X)
        value, std_error = self._estimate(log_prob, rows)
        n_seen = rows.observed.sum(1, keepdim=True)
        in_units = value[:, None] - n_seen * np.log(self._scale)
        result = torch.cat([in_units, std_error[:, None]], 1)
        return torch.where(n_seen > 0, result, 0.0)

    def _conditional_rows(self, X, mask):
        rows = self._rows(X, mask)
        if self.conditional == "importance":
            value, _ = self._estimate(conditional_log_prob, rows, CONDITIONAL_POINTS)
        else:
            value = chain_log_prob(rows, self._model, self._seed)
        asked = rows.present & ~rows.observed
        return torch.where(asked, value - np.log(self._scale), 0.0)

    @available_if(lambda self: self.conditional == "importance")
    def mean_chain_scores(self, X: ArrayLike, orders: ArrayLike) -> np.ndarray:
        """Average over rows what is scored while features become visible in order.

        Only with ``conditional="importance"``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        orders : array-like of int, of shape (n_orders, n_features) or \
                (n_orders, n_samples, n_features)
            Orders of the features, for all rows or for each.

        Returns
        -------
        scores : ndarray of shape (2, n_orders, n_features)
            Given the first t features of an order, in nats: the mean score of all
            others, and the log-probability of the next one alone.
        """
        X = self._standardise(self._tensor(self._validate_rows(X)))
        orders = torch.tensor(np.asarray(orders), device=X.device)
        model = InUnits(self._model, float(np.log(self._scale)))
        seed = self._seed.tolist()
        with torch.no_grad():
            scores = mean_scores(X, orders, model, self._n_features_out, seed)
        return scores.cpu().numpy()

    def _transform_rows(self, X):
        return self._average(lambda z: z, X)

    def _average(self, of_latent, X):
        average = functools.partial(posterior_average, of_latent)
        return self._estimate(average, self._rows(X))[0]

    def _expect_rows(self, X):
        return self._restore_units(self._average(self._expected, X))

    def _expected(self, z):
        model = self._model
        return model.likelihood.mean(model.decoder(z))

    def _decode(self, Z):
        with torch.no_grad():
            return self._restore_units(self._expected(self._tensor(Z))).cpu().numpy()

    def _draw_rows(self, X, rng):
        model = self._model
        rows = self._rows(X)
        points = self._tensor(rng.normal(size=(len(X), 288, self._n_features_out)))
        nodes = mixture_nodes(points.split([128, 128, 32], 1), model.propose(rows))
        level = self._tensor(rng.random((len(X), 1)))
        latent = draw_latent(rows, nodes, level, model)
        noise = self._tensor(rng.random(tuple(X.shape)))
        drawn = model.likelihood.draw(model.decoder(latent), noise)
        return self._restore_units(drawn)

    def _validate_rows(self, X, reset=False, min_samples=1):
        X = super()._validate_rows(X, reset=reset, min_samples=min_samples)
        if self.likelihood == "bernoulli":
            check_binary(X)
        return X

    def _check_own_parameters(self, n_features):
        check_architecture(self)
        check_choice(self.conditional, "conditional", ["importance", "encode_decode"])
        check_int_or_auto(self.n_importance_samples, "n_importance_samples")
        check_fraction(self.validation_fraction, "validation_fraction")

    def _initialize(self, X, rng):
        self.lml_method_ = "importance"
        self._set(start(self, X, rng))

    def _training_problem(self, X, is_all):
        check_fitted_sizes(self)
        rows = self._standardise(self._tensor(X)).float()
        model = self._model.float()
        size = self.batch_size
        if size == "auto":
            size = int(np.clip(len(X) // 16, 32, 128))
        rows, held_out = self._split(rows, is_all)
        objective = self._training_objective(rows, size)
        if len(held_out):
            noise_shape = (HELD_OUT_POINTS, self.n_components)
            objective.validate = _deep_objectives.HeldOutRows(
                held_out, 256, noise_shape, self._seed
            )
        return model, objective

    def _split(self, rows, is_all):
        """Hold out rows by which training is stopped, if any."""
        share = self.validation_fraction if self.early_stopping and is_all else 0
        order = np.random.default_rng(self._seed).permutation(len(rows))
        n_held_out = int(share * len(rows))
        return rows[order[n_held_out:]], rows[order[:n_held_out]]

    def _training_objective(self, rows, size):
        noise_shape = (self._points_per_row(), self.n_components)
        if self.objective != "mpt":
            return _deep_objectives.BoundRows(rows, size, noise_shape)
        kind = ChainRows
        if self.conditional == "importance":
            kind = _deep_objectives.MaskedGains
        return kind(rows, size, noise_shape, (self.mask_rate, self.n_masks))

    def _points_per_row(self):
        if self.objective == "elbo":
            return 1
        if self.n_importance_samples != "auto":
            return self.n_importance_samples
        if self.objective == "iwae":
            return OWN_POINTS
        is_many = self.n_features_in_ >= MANY_FEATURES
        return SHARED_POINTS_IF_MANY if is_many else SHARED_POINTS

    def _fitted_attributes(self, model):
        return attributes_of(model, self._shift, self._scale)

    def _warn_about_fit(self, n_samples):
        floor = NOISE_FLOOR * self._scale**2
        if self.likelihood == "gaussian" and self.noise_variance_ < 10 * floor:
            warnings.warn(
                f"noise_variance_={self.noise_variance_:.3g} fell towards its floor of "
                f"{floor:.3g}: the model explains the rows almost without error, and "
                "the likelihood may have no maximum. Use fewer components or smaller "
                "nets.",
                stacklevel=5,
            )

    @property
    def _n_features_out(self):
        return len(self.encoder_precision_)


_mixture = functools.lru_cache(maxsize=16)(PosteriorMixture)
