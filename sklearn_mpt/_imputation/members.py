"""Members of the mixture that fills in: each returns laws of missing entries."""

import copy

import numpy as np
from scipy.special import ndtr, softmax
from sklearn.base import clone

from sklearn_mpt._imputation.coding import Coding
from sklearn_mpt._imputation.gaussians import Factors, Gaussians
from sklearn_mpt._imputation.laws import Normals

MIN_STD = 1e-9  # of coded numbers
MIN_SPREAD = 1e-3  # of errors of trees
# Weight of far wider normal distributions in independent columns, so that a number far
# outside of the rows costs tens of nats.
OUTLIERS, WIDTHS = 0.01, np.array([1.0, 10.0, 1e2, 1e3, 1e4, 1e6])


class Member:
    """A member: `laws` of missing entries, and fits that go on from this one."""

    def joined(self, others):
        return self

    def refitted(self, numbers, weight, n_steps, hidden, rng):
        """Return the member of rows that are drawn with replacement."""
        return self.trained_on(numbers, weight, n_steps)


class ColumnsAlone(Member):
    """Independent columns: their means and spreads, and frequencies of categories."""

    def __init__(self, coding: Coding):
        self.coding = coding

    def fit(self, numbers, weight):
        self.moments, self.frequencies = {}, {}
        for j, scale in self.coding.scales.items():
            present = ~np.isnan(numbers[:, j])
            z = scale.code(numbers[present, j])
            mean = np.average(z, weights=weight[present])
            std = np.sqrt(np.average((z - mean) ** 2, weights=weight[present]))
            self.moments[j] = mean, max(std, 1e-3)
        for j in self.coding.frequencies:
            count = np.bincount(
                numbers[~np.isnan(numbers[:, j]), j].astype(int),
                weight[~np.isnan(numbers[:, j])],
                self.coding.counts[j],
            )
            self.frequencies[j] = (count + 0.5) / (count + 0.5).sum()
        return self

    def trained_on(self, numbers, weight, n_steps):
        return ColumnsAlone(self.coding).fit(numbers, weight)

    def laws(self, numbers, columns):
        n, found = len(numbers), {}
        for j in columns:
            if j in self.frequencies:
                found[j] = np.tile(self.frequencies[j], (n, 1))
            else:
                mean, std = self.moments[j]
                shares = np.full(len(WIDTHS), OUTLIERS / (len(WIDTHS) - 1))
                shares[0] = 1 - OUTLIERS
                shape = n, len(WIDTHS)
                law = np.tile(shares, (n, 1)), np.full(shape, mean)
                std = np.tile(std * WIDTHS, (n, 1))
                found[j] = Normals(*law, std, self.coding.scales[j])
        return found


class GaussianMember(Member):
    """A Gaussian, a mixture of some, or one of factors, of coded rows."""

    def __init__(self, coding: Coding, model: Gaussians | Factors):
        self.coding, self.model = coding, model

    def trained_on(self, numbers, weight, n_steps):
        model = copy.copy(self.model)
        model.n_steps = n_steps
        model.fit(self.coding.code(numbers), weight, start=self.model)
        return GaussianMember(self.coding, model)

    def laws(self, numbers, columns):
        coding = self.coding
        asked = [coding.blocks[j] for j in columns]
        responsibility, parts = self.model.conditionals(coding.code(numbers), asked)
        found = {}
        for i, (j, b) in enumerate(zip(columns, asked, strict=True)):
            if coding.is_number[j] or coding.is_ordered[j]:
                mean = np.column_stack([part[0][:, b.start] for part in parts])
                variance = np.column_stack([part[1][i][:, 0, 0] for part in parts])
                std = np.sqrt(np.maximum(variance, MIN_STD**2))
                if coding.is_number[j]:
                    found[j] = Normals(responsibility, mean, std, coding.scales[j])
                else:
                    found[j] = self._ordered(j, responsibility, mean, std)
            else:
                probs = [
                    _bayes(coding.frequencies[j], coding.codes[j], part, i, b)
                    for part in parts
                ]
                found[j] = sum(
                    r[:, None] * prob
                    for r, prob in zip(responsibility.T, probs, strict=True)
                )
        return found

    def _ordered(self, j, weight, mean, std):
        edges = self.coding.edges[j]
        frequencies = self.coding.frequencies[j]
        # normal scores have a little less spread than the normal number
        raw = _spread_of_scores(edges, frequencies)
        mean, std = mean * raw, np.sqrt((std * raw) ** 2 + 1 - raw**2)
        cells = 0.0
        for k in range(mean.shape[1]):
            below = ndtr((edges - mean[:, [k]]) / std[:, [k]])
            cells = cells + weight[:, [k]] * np.diff(below, axis=1, prepend=0, append=1)
        cells = np.maximum(cells, 1e-12)
        return cells / cells.sum(axis=1, keepdims=True)


def _spread_of_scores(edges, frequencies):
    from scipy.stats import norm

    density = norm.pdf(np.concatenate([[-np.inf], edges, [np.inf]]))
    scores = (density[:-1] - density[1:]) / frequencies
    return np.sqrt(frequencies @ scores**2)


def _bayes(frequencies, codes, part, i, block):
    """Return probabilities of categories, given that indicators are jointly normal."""
    # p(c | x) ~ p(c) p(x | c): the density of the indicators of c given x over their
    # density.
    filled, blocks, priors, mean = part
    given = _log_normal(codes[None] - filled[:, None, block], blocks[i])
    alone = _log_normal((codes - mean[block])[None], priors[i][None])
    return softmax(np.log(frequencies) + given - alone, axis=1)


def _log_normal(deviation, covariance):
    """Return log-densities up to a constant; (n, C, c), (n, c, c) -> (n, C)."""
    if covariance.ndim == 2:  # variances
        return -0.5 * (deviation**2 / (covariance[:, None] + 1e-8)).sum(axis=2)
    c = covariance.shape[-1]
    solved = np.linalg.solve(
        covariance + 1e-8 * np.eye(c), deviation.transpose(0, 2, 1)
    )
    return -0.5 * (deviation.transpose(0, 2, 1) * solved).sum(axis=1)


class Trees(Member):
    """An ensemble of trees for each of some columns, which split on gaps."""

    def __init__(self, coding: Coding, trees, spreads):
        self.coding, self.trees, self.spreads = coding, trees, spreads

    @classmethod
    def fit(cls, coding, numbers, weight, columns, inputs, params, seed):
        from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

        trees, X = {}, numbers.astype(np.float32)
        for j in columns:
            rows = np.flatnonzero(~np.isnan(numbers[:, j]))
            chosen = inputs[j]
            if coding.is_number[j]:
                model = ExtraTreesRegressor(**params["numbers"], random_state=seed)
                y = coding.scales[j].code(numbers[rows, j])
            else:
                model = ExtraTreesClassifier(**params["categories"], random_state=seed)
                y = numbers[rows, j].astype(int)
            model.fit(X[np.ix_(rows, chosen)], y, sample_weight=weight[rows])
            trees[j] = [(model, chosen)]
        return cls(coding, trees, dict.fromkeys(columns, 0.5))

    def trained_on(self, numbers, weight, n_steps):
        return self

    def with_spread(self, j, law, truth):
        """Keep the error of numbers of column j that were hidden; return their law."""
        error = law.mean[:, 0] - law.scale.code(truth)
        self.spreads[j] = max(np.sqrt(np.mean(error**2)), MIN_SPREAD)
        return law._replace(std=np.full(law.mean.shape, self.spreads[j]))

    def joined(self, others):
        trees = {
            j: [part for member in (self, *others) for part in member.trees[j]]
            for j in self.trees
        }
        return Trees(self.coding, trees, self.spreads)

    def refitted(self, numbers, weight, n_steps, hidden, rng):
        trees = {}
        with_inputs = {j: parts[0] for j, parts in self.trees.items()}
        X = hidden.astype(np.float32)
        for j, (model, chosen) in with_inputs.items():
            rows = np.flatnonzero(~np.isnan(numbers[:, j]) & (weight > 0))
            y = numbers[rows, j]
            y = (
                self.coding.scales[j].code(y)
                if self.coding.is_number[j]
                else y.astype(int)
            )
            new = clone(model).fit(
                X[np.ix_(rows, chosen)], y, sample_weight=weight[rows]
            )
            trees[j] = [(new, chosen)]
        return Trees(self.coding, trees, self.spreads)

    def laws(self, numbers, columns):
        found, X = {}, numbers.astype(np.float32)
        for j in columns:
            if j not in self.trees:
                continue
            if self.coding.is_number[j]:
                mean = np.mean([m.predict(X[:, c]) for m, c in self.trees[j]], axis=0)
                one = np.ones((len(X), 1))
                law = one, mean[:, None], self.spreads[j] * one
                found[j] = Normals(*law, self.coding.scales[j])
                continue
            probs = np.zeros((len(X), self.coding.counts[j]))
            for model, chosen in self.trees[j]:
                probs[:, model.classes_] += model.predict_proba(X[:, chosen])
            probs /= len(self.trees[j])
            n = model.n_estimators
            found[j] = (n * probs + self.coding.frequencies[j]) / (n + 1)
        return found
