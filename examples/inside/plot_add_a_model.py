"""
=====================================
Writing a model and a kind of feature
=====================================

This example has three complete extensions. A mixture of Gaussians needs one method,
``conditional_log_prob``, to be measured by this package; no subclass is needed. A
predictor of scikit-learn's kind needs a mean and a standard deviation to become a model
of all columns. Counts need one class with the distribution of a count, and then the
linear model of this package can be trained on them.
"""

import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.special import logsumexp, softmax
from scipy.stats import nbinom, norm
from sklearn.base import BaseEstimator, DensityMixin, RegressorMixin
from sklearn.datasets import load_wine
from sklearn.metrics.pairwise import nan_euclidean_distances
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import scale

from sklearn_mpt import (
    MPTCurveDisplay,
    MPTDependencyNetwork,
    MPTLinearVAE,
    MPTProbabilisticPCA,
    check_masked_model,
    compare_lml,
    feature_contributions,
    mpt_curve,
)
from sklearn_mpt._likelihoods.base import Likelihood, totals

# %%
# A model of its own
# ------------------
#
# Features are independent within a component. So the distribution of a hidden feature
# is a mixture of its Gaussians, weighted by the probabilities of the components given
# the visible features.


class DiagonalMixture(DensityMixin, BaseEstimator):
    """Mixture of Gaussians with diagonal covariances, fitted by EM; takes NaN."""

    def __init__(self, n_components=3, *, n_iter=100, random_state=None):
        self.n_components = n_components
        self.n_iter = n_iter
        self.random_state = random_state

    def fit(self, X, y=None):
        X = np.asarray(X, dtype=float)
        rng = np.random.default_rng(self.random_state)
        resp = rng.dirichlet(np.ones(self.n_components), len(X))
        for _ in range(self.n_iter):
            self._maximise(X, resp)
            resp = self._responsibilities(self._entry_log_prob(X).sum(axis=2))
        return self

    def _maximise(self, X, resp):
        present = ~np.isnan(X)
        X, count = np.nan_to_num(X), resp.T @ present
        self.weights_ = resp.mean(axis=0)
        self.means_ = resp.T @ X / count
        variances = resp.T @ X**2 / count - self.means_**2
        self.stds_ = np.sqrt(np.maximum(variances, 1e-3))

    def _entry_log_prob(self, X):
        """Log-density of each entry under each component, 0 if missing; (n, c, d)."""
        log_prob = norm.logpdf(X[:, None], self.means_, self.stds_)
        return np.nan_to_num(log_prob)

    def _responsibilities(self, log_prob):
        return softmax(log_prob + np.log(self.weights_), axis=1)

    def score_samples(self, X):
        log_prob = self._entry_log_prob(np.asarray(X, dtype=float)).sum(axis=2)
        return logsumexp(log_prob + np.log(self.weights_), axis=1)

    def score(self, X, y=None):
        return self.score_samples(X).mean()

    def conditional_log_prob(self, X, mask):
        X = np.asarray(X, dtype=float)
        log_prob = self._entry_log_prob(X)
        hidden = np.broadcast_to(mask, X.shape)
        seen = np.where(hidden[:, None], 0.0, log_prob).sum(axis=2)
        resp = self._responsibilities(seen)[:, :, None]
        conditional = logsumexp(log_prob, axis=1, b=resp)
        return np.where(hidden & ~np.isnan(X), conditional, 0.0)


# %%
# The model passes the check, and its masked scores add up to its likelihood, also if
# entries are missing.

wine = load_wine()
X = scale(wine.data)
X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
train, test = train_test_split(X, random_state=0)
mixture = DiagonalMixture(n_components=3, random_state=0).fit(train)
check_masked_model(mixture, test)
curve = mpt_curve(mixture, test, random_state=0)
print(
    f"score {mixture.score(test):.3f}, area {curve.lml:.3f} ± {curve.lml_std_error:.3f}"
)

# %%
# All other functions that use conditionals can be called: for example, to compare the
# model with one of this package, and to find the features that make a wine unlikely.

ppca = MPTProbabilisticPCA(n_components=3, random_state=0).fit(train)
print(compare_lml({"mixture": mixture, "PPCA": ppca}, test))
parts = feature_contributions(mixture, test, random_state=0)
oddest = mixture.score_samples(test).argmin()
print(f"The oddest wine: {parts[oddest].sum():.2f} nats, of which", end=" ")
worst = parts[oddest].argmin()
print(f"{parts[oddest, worst]:.2f} for {wine.feature_names[worst]}")

# %%
# A predictor
# -----------
#
# :class:`~sklearn_mpt.MPTDependencyNetwork` fits a predictor for each column. A hidden
# number is normal, with the mean and the standard deviation that ``predict`` returns.
# This one says by its tag that it takes NaN; others get indicators of what is visible.


class NearestRows(RegressorMixin, BaseEstimator):
    """Mean and spread of the nearest rows, by the columns that both have."""

    def __init__(self, n_neighbors=10):
        self.n_neighbors = n_neighbors

    def fit(self, X, y):
        self.X_, self.y_ = X, y
        return self

    def predict(self, X, return_std=False):
        distance = np.nan_to_num(nan_euclidean_distances(X, self.X_))
        nearest = distance.argsort(axis=1)[:, : self.n_neighbors]
        values = self.y_[nearest]
        mean = values.mean(axis=1)
        return (mean, values.std(axis=1)) if return_std else mean

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


network = MPTDependencyNetwork(regressor=NearestRows(), random_state=0).fit(train)
print(compare_lml({"nearest rows": network, "PPCA": ppca}, test))

# %%
# A kind of feature
# -----------------
#
# A linear model gives each feature a location that is linear in z. This kind of feature
# is a count that varies more than a Poisson count: a negative binomial distribution,
# whose mean has the location as logarithm, and whose size is known here. A kind of
# feature computes log-probabilities, means and draws. Natural gradient steps use the
# derivatives of log-probabilities in the location, which are those of automatic
# differentiation.


class OverdispersedCounts(Likelihood):
    """Negative binomial counts, given the logarithms of their means."""

    bounds = (0.0, np.inf)
    size = 2.0  # the variance is mean + mean**2 / size

    @staticmethod
    def check_rows(X):
        present = X[~np.isnan(X)]
        if (present < 0).any() or (present % 1 != 0).any():
            raise ValueError("Counts must be 0, 1, 2, ..., or NaN where missing.")

    @staticmethod
    def start_location(X, weight=None):
        total, present = totals(X, weight)
        return np.log((total + 0.5) / (present + 0.5))

    def entry_log_prob(self, X, location):
        size = self.size
        choices = torch.lgamma(X + size) - torch.lgamma(X + 1) - math.lgamma(size)
        log_odds = location - torch.log(size + location.exp())
        log_rest = math.log(size) - torch.log(size + location.exp())
        return choices + X * log_odds + size * log_rest

    def mean(self, location):
        return location.exp()

    def draw(self, location, uniform):
        share = self.size / (self.size + location.exp())
        counts = nbinom.ppf(uniform.cpu().numpy(), self.size, share.cpu().numpy())
        return location.new_tensor(counts)


# %%
# The rows are counts of 8 kinds at 800 sites, generated from two latent variables; one
# count in ten is missing. Training starts from random parameters and from the
# parameters that generated the rows, and ends at the same likelihood.

rng = np.random.default_rng(0)
truth = {
    "components": 0.4 * rng.normal(size=(2, 8)),
    "intercept": rng.normal(0.5, 0.5, size=8),
}
mean = np.exp(rng.normal(size=(800, 2)) @ truth["components"] + truth["intercept"])
size = OverdispersedCounts.size
counts = rng.negative_binomial(size, size / (size + mean)).astype(float)
counts[rng.random(counts.shape) < 0.1] = np.nan

params = {"likelihood": OverdispersedCounts(), "random_state": 0}
generating = MPTLinearVAE(init=truth, max_iter=0, **params).fit(counts)
from_truth = MPTLinearVAE(init=truth, **params).fit(counts)
small = {
    "components": 0.1 * rng.normal(size=(2, 8)),
    "intercept": OverdispersedCounts.start_location(counts),
}
model = MPTLinearVAE(init=small, **params).fit(counts)
print(f"Generating parameters  {generating.score(counts):.3f} nats per site")
print(f"Trained from these     {from_truth.score(counts):.3f}")
print(f"Trained from chance    {model.score(counts):.3f}, in {model.n_iter_} epochs")

# %%
# The model has all methods of the models of the package: scores by quadrature,
# imputation, samples, and a curve whose area is its likelihood. Eight features have few
# masks, and the curve uses all of them.

some = counts[:40]
curve = mpt_curve(model, some, n_masks=70, design="independent")
print(f"score {model.score(some):.4f}, area {curve.lml:.4f}")
print(f"means of samples {model.sample(10000).mean(axis=0).round(2)}")
print(f"means of counts  {np.nanmean(counts, axis=0).round(2)}")

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
MPTCurveDisplay(curve=curve).plot(ax=left)
left.set_title("Counts")
mixture_curve = mpt_curve(mixture, test, random_state=0)
MPTCurveDisplay(curve=mixture_curve).plot(ax=right)
right.set_title("Mixture, wine")
plt.show()
