"""Members of the mixture that fills in, and exact relations of columns."""

import copy

import numpy as np
import torch

from sklearn_mpt._imputation.coding import Coding, latent, moments
from sklearn_mpt._imputation.laws import Prediction, cell_probs
from sklearn_mpt._likelihoods import Bernoulli
from sklearn_mpt._likelihoods.levels import smoothed_fractions
from sklearn_mpt._linear.vae import MPTLinearVAE
from sklearn_mpt._matrices import identity
from sklearn_mpt._mixture.covariances import Full
from sklearn_mpt._mixture.density import Components, MixtureDensity, MixtureLayout
from sklearn_mpt._mixture.em import MixtureRows
from sklearn_mpt._mixture.gaussians import pattern_order
from sklearn_mpt._mixture.start import first_components
from sklearn_mpt._numbers import ROUNDING

# Variance that each step of EM adds to the variance 1 of coded columns.
SHRINKAGES = 0.03, 1e-3, 1e-5
# Steps of EM, and half as many on all rows after those on rows with hidden entries; on
# rows drawn with replacement, fits stay too close to that of all with fewer.
N_STEPS, BOOTSTRAP_STEPS = 4, 10
N_TREES = 7  # of a column
# Of linear relations of standardised numbers: deviation of rows from them, a tenth of
# the largest one of a row, and a fifth of the largest error of what they determine.
MAX_NOISE = 0.01


class ColumnsAlone:
    """Independent columns: their means and spreads, and frequencies of categories."""

    def __init__(self, coding: Coding, numbers, weight):
        self.coding, is_number = coding, coding.is_number
        coded = np.where(is_number, coding.code(numbers)[:, coding.first], np.nan)
        self.mean, self.std = moments(coded, weight)
        self.frequencies = {
            j: smoothed_fractions(numbers[:, [j]], coding.counts[j], weight)[0]
            for j in np.flatnonzero(~is_number).tolist()
        }

    def trained_on(self, numbers, weight, is_drawn):
        return ColumnsAlone(self.coding, numbers, weight)

    def predict(self, numbers, columns):
        # A hundredth are far wider, so that a number far outside of the rows costs tens
        # of nats.
        widths, share = np.logspace(0, 6, 7)[:, None], np.array([0.99] + [0.01 / 6] * 6)
        shape = len(numbers), len(widths), len(self.mean)
        mean = np.broadcast_to(self.mean, shape)
        std = np.broadcast_to(widths * self.std, shape)
        probs = {
            j: np.tile(share, (len(numbers), 1))
            for j, share in self.frequencies.items()
        }
        return Prediction(np.tile(share, (len(numbers), 1)), mean, std, probs)


def predicted(coding: Coding, columns, weight, mean, variance):
    """Return what normal laws of coded rows, of k components, tell of columns."""
    std = np.sqrt(np.maximum(variance, ROUNDING**2))
    probs = {}
    for j in columns:
        if j in coding.edges:
            score = mean[..., coding.first[j]], std[..., coding.first[j]]
            of_score, std_of_score = latent(*score, coding.score_spreads[j])
            probs[j] = cell_probs(weight, of_score, std_of_score, coding.edges[j])
        elif j in coding.frequencies:
            block = coding.blocks[j]
            shares = coding.shares(j, mean[..., block], std[..., block])
            probs[j] = np.einsum("nk,nkc->nc", weight, shares)
    return Prediction(weight, mean[..., coding.first], std[..., coding.first], probs)


class Gaussians:
    """A mixture of Gaussians of coded rows with gaps, or one, by EM."""

    # shrinkage : variance that each step adds to that of each coded column. components
    # : None for one of independent columns. arrays : theirs, as pickles and skops keep
    # them.

    def __init__(self, coding: Coding, shrinkage=SHRINKAGES[0], components=None):
        self.coding, self.shrinkage, p = coding, shrinkage, coding.width
        if components is None:
            none = torch.zeros((1, p, 0), dtype=torch.float64, device="cpu")
            start = none.new_ones(1), none.new_zeros((1, p)), identity(p, none)[None]
            components = *start, none[:, 0], none, none[:, 0]
        self.arrays = tuple(part.numpy() for part in components)

    @classmethod
    def of_clusters(cls, coding, numbers, weight, n_components):
        """Fit a mixture from clusters of rows on, shrunk more where these are small."""
        fraction = n_components * coding.width / len(numbers)
        model, rng = cls(coding, SHRINKAGES[0] * fraction), np.random.default_rng(0)
        args = coding.code(numbers), weight, n_components, "kmeans", rng
        start = first_components(*args, model._layout, model.shrinkage)
        start = cls(coding, model.shrinkage, start)
        return start.fit(numbers, weight)

    @property
    def _layout(self):
        features = torch.arange(self.coding.width, device="cpu")
        return MixtureLayout(Full(), features, features[:0], Bernoulli())

    @property
    def _components(self):
        return Components(*map(torch.from_numpy, self.arrays))

    def shrunk(self, numbers, weight, shrinkage):
        """Return a fit of another shrinkage, from this one on."""
        start = Gaussians(self.coding, shrinkage, self._components)
        return start.fit(numbers, weight)

    def fit(self, numbers, weight, n_steps=N_STEPS):
        """Return what steps of EM make of this one."""
        Z, weight = map(torch.from_numpy, (self.coding.code(numbers), weight))
        rows = MixtureRows(Z, weight, self._layout, self.shrinkage)
        components = self._components
        for _ in range(n_steps):
            components = rows.m_step(components, rows.statistics(components))
            if components is None:
                raise ArithmeticError("EM has no step")
        return Gaussians(self.coding, self.shrinkage, components)

    def trained_on(self, numbers, weight, is_drawn):
        return self.fit(numbers, weight, BOOTSTRAP_STEPS if is_drawn else N_STEPS // 2)

    def predict(self, numbers, columns):
        Z = torch.from_numpy(self.coding.code(numbers))
        order = pattern_order(~Z.isnan())
        Z, back = Z[order], order.argsort()
        density, found = MixtureDensity(self._components, self._layout), []
        for rows, patterns in density.blocks(~Z.isnan()):
            given = density.given(Z[rows], ~Z[rows].isnan(), patterns)
            mean = self._components.means + given.gaussian.deviation
            shares = given.log_responsibility.exp()
            found.append((shares, mean, given.gaussian.variance))
        parts = (torch.cat(part)[back].numpy() for part in zip(*found, strict=True))
        return predicted(self.coding, columns, *parts)


class Factors:
    """A Gaussian of few factors, for many columns."""

    def __init__(self, coding: Coding, model: MPTLinearVAE):
        self.coding, self.model = coding, model

    @classmethod
    def fitted(cls, coding, numbers, weight, n_factors):
        model = MPTLinearVAE(
            n_factors,
            noise="per_feature",
            objective="lml",
            max_iter=N_STEPS,
            random_state=0,
        )
        return cls(coding, model.fit(coding.code(numbers), sample_weight=weight))

    def trained_on(self, numbers, weight, is_drawn):
        n_steps = BOOTSTRAP_STEPS if is_drawn else N_STEPS // 2
        model = copy.copy(self.model).set_params(warm_start=True, max_iter=n_steps)
        model.fit(self.coding.code(numbers), sample_weight=weight)
        return Factors(self.coding, model)

    def predict(self, numbers, columns):
        model = self.model
        z, covariance = model.posterior(self.coding.code(numbers))
        mean = model.mean_ + z @ model.components_
        variance = ((covariance @ model.components_) * model.components_).sum(axis=1)
        variance += model.noise_variance_
        weight = np.ones((len(numbers), 1))
        return predicted(self.coding, columns, weight, mean[:, None], variance[:, None])


class Trees:
    """Extremely randomised trees of each of some columns, which split on gaps."""

    # inputs, trees, spreads : dicts from columns to the columns that they read, to
    # lists of trees, and to deviations of errors of coded numbers.

    def __init__(self, coding: Coding, inputs, seed, trees, spreads):
        self.coding, self.inputs, self.seed = coding, inputs, seed
        self.trees, self.spreads = trees, spreads

    def fit(self, numbers, weight):
        """Return these trees, fitted."""
        from sklearn.tree import ExtraTreeClassifier, ExtraTreeRegressor

        trees, coding, X = {}, self.coding, numbers.astype(np.float32)
        for j, read in self.inputs.items():
            rows = np.flatnonzero(~np.isnan(numbers[:, j]) & (weight > 0))
            y, of_rows = numbers[rows, j], X[np.ix_(rows, read)]
            if coding.is_number[j]:
                make, y = ExtraTreeRegressor, coding.scales.of(j).code(y)
            else:
                make, y = ExtraTreeClassifier, y.astype(int)
            how = {"min_samples_leaf": 3, "max_features": 1.0}
            trees[j] = [
                make(random_state=self.seed + k, **how).fit(of_rows, y, weight[rows])
                for k in range(N_TREES)
            ]
        return Trees(coding, self.inputs, self.seed, trees, self.spreads)

    def trained_on(self, numbers, weight, is_drawn):
        """Return trees of rows drawn with replacement; the same for all rows."""
        return self.fit(numbers, weight) if is_drawn else self

    def joined(self, others):
        """Return the trees of all columns of several members."""
        inputs, trees, spreads = self.inputs, self.trees, self.spreads
        for other in others:
            inputs, trees = inputs | other.inputs, trees | other.trees
            spreads = spreads | other.spreads
        return Trees(self.coding, inputs, self.seed, trees, spreads)

    def predict(self, numbers, columns):
        coding, X = self.coding, numbers.astype(np.float32)
        mean, probs = np.full((len(X), 1, X.shape[1]), np.nan), {}
        std = np.ones(mean.shape)
        for j in self.trees.keys() & set(columns):
            gaps = np.flatnonzero(np.isnan(X[:, j]))
            read, trees = X[np.ix_(gaps, self.inputs[j])], self.trees[j]
            if coding.is_number[j]:
                found = [tree.predict(read, check_input=False) for tree in trees]
                mean[:, 0, j], std[:, 0, j] = 0.0, self.spreads.get(j, 1.0)
                mean[gaps, 0, j] = np.mean(found, axis=0)
            else:
                probs[j] = np.tile(coding.frequencies[j], (len(X), 1))
                for tree in trees:
                    place = np.ix_(gaps, tree.classes_)
                    probs[j][place] += tree.predict_proba(read, check_input=False)
                probs[j] /= probs[j].sum(axis=1, keepdims=True)
        return Prediction(np.ones((len(X), 1)), mean, std, probs)


class LinearRelations:
    """Linear relations of columns of numbers that hold in all rows."""

    # numbers : rows, NaN where missing, (n, d). is_number : bool, (d,).

    def __init__(self, numbers, is_number):
        columns = np.flatnonzero(is_number)
        rows = numbers[~np.isnan(numbers[:, columns]).any(axis=1)][:, columns]
        self.columns, self.weights = columns, np.zeros((0, len(columns)))
        if not len(columns) or len(rows) <= 2 * len(columns):
            return
        shift, spread = moments(rows, np.ones(len(rows)))
        Z = (rows - shift) / spread
        variances, vectors = np.linalg.eigh(Z.T @ Z / len(Z))
        weights = vectors[:, variances < MAX_NOISE**2]
        deviation = np.abs(Z @ weights)
        weights = weights[:, deviation.max(axis=0) < 10 * MAX_NOISE]
        if weights.size:
            takes_part = (np.abs(weights) > ROUNDING).any(axis=1)
            self.columns, self.weights = columns[takes_part], weights[takes_part].T
            self.shift, self.spread = shift[takes_part], spread[takes_part]
            self.noise = np.sqrt(np.mean(deviation**2))

    def check(self, numbers, hidden_table):
        """Forget the relations if they are wrong of an entry that was hidden."""
        if not len(self.weights):
            return
        error = (self.determined(hidden_table) - numbers)[:, self.columns] / self.spread
        if np.nanmax(np.abs(error), initial=0.0) > 10 * MAX_NOISE:
            self.weights = self.weights[:0]

    def determined(self, numbers):
        """Return what follows for the gaps of rows, (n, d), NaN where nothing does."""
        found = np.full(numbers.shape, np.nan)
        if not len(self.weights):
            return found
        Z = (numbers[:, self.columns] - self.shift) / self.spread
        gaps = np.isnan(Z)
        patterns, which = np.unique(gaps, axis=0, return_inverse=True)
        for i, pattern in enumerate(patterns):
            of_gaps = self.weights[:, pattern]
            inverse = np.linalg.pinv(of_gaps, rcond=1e-6)
            is_unique = (inverse @ of_gaps).diagonal() > 1 - 1e-6
            error = self.noise * np.sqrt((inverse**2).sum(axis=1))
            is_found = is_unique & (error < 5 * MAX_NOISE)
            if is_found.any():
                rows = np.flatnonzero(which == i)
                target = -Z[np.ix_(rows, ~pattern)] @ self.weights[:, ~pattern].T
                columns = np.flatnonzero(pattern)[is_found]
                solved = (target @ inverse.T)[:, is_found]
                solved = self.shift[columns] + self.spread[columns] * solved
                found[np.ix_(rows, self.columns[columns])] = solved
        return found
