"""Members of the mixture that fills in: each predicts missing entries of rows."""

import copy

import numpy as np
import torch
from sklearn.base import clone

from sklearn_mpt._imputation.coding import Coding, latent, moments
from sklearn_mpt._imputation.laws import NumberLaws, Prediction
from sklearn_mpt._linear.vae import MPTLinearVAE
from sklearn_mpt._mixture.covariances import Full
from sklearn_mpt._mixture.density import Components, MixtureDensity, MixtureLayout
from sklearn_mpt._mixture.em import MixtureRows, MStepParams
from sklearn_mpt._mixture.gaussians import pattern_order
from sklearn_mpt._mixture.start import first_components

MIN_STD = 1e-9  # of coded numbers
# Steps of EM on all entries, from the fit without the hidden ones; and of fits to rows
# drawn with replacement, which stay too close to the first fit with fewer.
REFIT_STEPS, BOOTSTRAP_STEPS = 4, 10
# Weight of far wider normal distributions in independent columns, so that a number far
# outside of the rows costs tens of nats.
OUTLIERS, WIDTHS = 0.01, np.array([1.0, 10.0, 1e2, 1e3, 1e4, 1e6])
TREES = {
    "numbers": {"n_estimators": 8, "min_samples_leaf": 3, "max_features": 0.5},
    "categories": {"n_estimators": 10, "min_samples_leaf": 2, "max_features": 0.75},
}


class ColumnsAlone:
    """Independent columns: their means and spreads, and frequencies of categories."""

    def __init__(self, coding: Coding, numbers, weight):
        self.coding, is_number = coding, coding.is_number
        coded = np.where(is_number, coding.code(numbers)[:, coding.first], np.nan)
        self.mean, self.std = moments(coded, weight)
        self.frequencies = {}
        for j, count in enumerate(coding.counts):
            if count:
                present = ~np.isnan(numbers[:, j])
                codes = numbers[present, j].astype(int)
                share = np.bincount(codes, weight[present], count) + 0.5
                self.frequencies[j] = share / share.sum()

    def trained_on(self, numbers, weight, is_drawn):
        return ColumnsAlone(self.coding, numbers, weight)

    def predict(self, numbers, columns):
        n, k = len(numbers), len(WIDTHS)
        share = np.full(k, OUTLIERS / (k - 1))
        share[0] = 1 - OUTLIERS
        shape = n, k, len(self.mean)
        mean = np.broadcast_to(self.mean, shape)
        std = np.broadcast_to(WIDTHS[:, None] * self.std, shape)
        probs = {j: np.tile(share, (n, 1)) for j, share in self.frequencies.items()}
        return Prediction(np.tile(share, (n, 1)), mean, std, probs)


class OfCodedRows:
    """A model of coded rows, whose `_moments` are those of all columns."""

    coding: Coding

    def predict(self, numbers, columns):
        coding, Z = self.coding, self.coding.code(numbers)
        weight, mean, variance = self._moments(Z)
        std = np.sqrt(np.maximum(variance, MIN_STD**2))
        probs = {}
        for j in columns:
            if j in coding.edges:
                first = coding.first[j]
                law = mean[..., first], std[..., first]
                law = NumberLaws(None, weight, *latent(*law, coding.score_spreads[j]))
                probs[j] = law.cell_probs(coding.edges[j])
            elif j in coding.frequencies:
                block = coding.blocks[j]
                shares = coding.shares(j, mean[..., block], std[..., block])
                probs[j] = np.einsum("nk,nkc->nc", weight, shares)
        first = coding.first
        return Prediction(weight, mean[..., first], std[..., first], probs)


class Gaussians(OfCodedRows):
    """A mixture of Gaussians of coded rows with gaps, or one, by EM."""

    # shrinkage : variance that each step adds to that of each coded column.

    # arrays : those of `Components`, as pickles and skops keep them.

    def __init__(self, coding: Coding, shrinkage):
        self.coding, self.shrinkage, p = coding, shrinkage, coding.width
        none = np.zeros((1, p, 0))
        start = np.ones(1), np.zeros((1, p)), np.eye(p)[None]
        self.arrays = *start, none[:, 0], none, none[:, 0]

    @property
    def components(self):
        return Components(*map(torch.from_numpy, self.arrays))

    @property
    def _layout(self):
        features = torch.arange(self.coding.width, device="cpu")
        return MixtureLayout(Full(), features, features[:0], None)

    @property
    def _m_step_params(self):
        none = torch.empty((0, 0), device="cpu")
        return MStepParams(self.shrinkage, self._layout, none)

    def _with(self, components):
        model = copy.copy(self)
        model.arrays = tuple(part.numpy() for part in components)
        return model

    @classmethod
    def of_clusters(cls, coding, numbers, weight, n_components, shrinkage, rng):
        """Start from clusters of rows."""
        model = cls(coding, shrinkage)
        Z, params = coding.code(numbers), model._m_step_params
        args = Z, weight, n_components, "kmeans", rng, params
        return model._with(first_components(*args))

    def fit(self, numbers, weight, n_steps, shrinkage=None):
        """Return what steps of EM make of this one."""
        model = copy.copy(self)
        model.shrinkage = self.shrinkage if shrinkage is None else shrinkage
        Z, weight = map(torch.from_numpy, (self.coding.code(numbers), weight))
        rows, components = MixtureRows(Z, weight, model._m_step_params), self.components
        for _ in range(n_steps):
            components = rows.m_step(components, rows.statistics(components))
            if components is None:
                raise ArithmeticError("EM has no step")
        return model._with(components)

    def trained_on(self, numbers, weight, is_drawn):
        return self.fit(numbers, weight, BOOTSTRAP_STEPS if is_drawn else REFIT_STEPS)

    def _moments(self, Z):
        Z = torch.from_numpy(Z)
        order = pattern_order(~Z.isnan())
        Z = Z[order]
        components = self.components
        density = MixtureDensity(components, self._layout)
        found = []
        for rows, patterns in density.parts(~Z.isnan()):
            given = density.given(Z[rows], ~Z[rows].isnan(), patterns)
            of = given.gaussian
            mean = components.means + of.deviation
            found.append((given.log_responsibility.exp(), mean, of.variance))
        back = order.argsort()
        return [torch.cat(parts)[back].numpy() for parts in zip(*found, strict=True)]


class Factors(OfCodedRows):
    """A Gaussian of few factors, for many columns."""

    def __init__(self, coding: Coding, model: MPTLinearVAE):
        self.coding, self.model = coding, model

    def fit(self, numbers, weight, **params):
        model = copy.copy(self.model).set_params(**params)
        model.fit(self.coding.code(numbers), sample_weight=weight)
        return Factors(self.coding, model)

    def trained_on(self, numbers, weight, is_drawn):
        n_steps = BOOTSTRAP_STEPS if is_drawn else REFIT_STEPS
        return self.fit(numbers, weight, warm_start=True, max_iter=n_steps)

    def _moments(self, Z):
        z, covariance = self.model.posterior(Z)
        slopes = self.model.components_
        mean = self.model.mean_ + z @ slopes
        variance = ((covariance @ slopes) * slopes).sum(axis=1)
        variance += self.model.noise_variance_
        return np.ones((len(Z), 1)), mean[:, None], variance[:, None]


class Trees:
    """An ensemble of trees for each of some columns, which split on gaps."""

    # trees : dict from columns to lists of models and of the columns they read.
    # spreads : of errors of coded numbers, (d,).

    def __init__(self, coding: Coding, trees, spreads=None):
        self.coding, self.trees = coding, trees
        self.spreads = np.ones(len(coding.counts)) if spreads is None else spreads

    @classmethod
    def fitted(cls, coding, numbers, weight, inputs, seed):
        """Fit trees of columns; inputs : dict from these to the columns they read."""
        from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

        number = ExtraTreesRegressor(**TREES["numbers"], random_state=seed)
        category = ExtraTreesClassifier(**TREES["categories"], random_state=seed)
        unfitted = {
            j: [(number if coding.is_number[j] else category, columns)]
            for j, columns in inputs.items()
        }
        return cls(coding, unfitted).trained_on(numbers, weight, True)

    def trained_on(self, numbers, weight, is_drawn):
        """Return trees of rows drawn with replacement; the same for all rows."""
        if not is_drawn:
            return self
        trees, coding, X = {}, self.coding, numbers.astype(np.float32)
        for j, models in self.trees.items():
            rows = np.flatnonzero(~np.isnan(numbers[:, j]) & (weight > 0))
            y = numbers[rows, j]
            y = coding.scales.of(j).code(y) if coding.is_number[j] else y.astype(int)
            model, columns = models[0]
            model = clone(model).fit(X[np.ix_(rows, columns)], y, weight[rows])
            trees[j] = [(model, columns)]
        return Trees(coding, trees, self.spreads)

    def joined(self, others):
        """Return all trees of members that were fitted to other masks."""
        members = self, *others
        trees = {
            j: [model for m in members for model in m.trees[j]] for j in self.trees
        }
        return Trees(self.coding, trees, self.spreads)

    def predict(self, numbers, columns):
        coding, X = self.coding, numbers.astype(np.float32)
        mean, probs = np.full((len(X), 1, X.shape[1]), np.nan), {}
        for j in self.trees.keys() & set(columns):
            if coding.is_number[j]:
                of_models = [model.predict(X[:, read]) for model, read in self.trees[j]]
                mean[:, 0, j] = np.mean(of_models, axis=0)
                continue
            n_trees = 0
            probs[j] = np.tile(coding.frequencies[j], (len(X), 1))
            for model, read in self.trees[j]:
                found = model.n_estimators * model.predict_proba(X[:, read])
                probs[j][:, model.classes_] += found
                n_trees += model.n_estimators
            probs[j] /= n_trees + 1
        std = np.broadcast_to(self.spreads, mean.shape)
        return Prediction(np.ones((len(X), 1)), mean, std, probs)
