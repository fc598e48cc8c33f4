"""
============================
Comparing models by evidence
============================

The log marginal likelihood (LML) of validation rows ranks models of any kind that
return log-probabilities of hidden features given visible ones. This example compares
probabilistic PCA, factor analysis written as a function, a mixture of scikit-learn, a
torch module trained by masking, and nearest neighbours.
:func:`~sklearn_mpt.compare_lml` returns the LML of each model with a standard error.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import FactorAnalysis
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from sklearn_mpt import (
    MPTProbabilisticPCA,
    check_masked_model,
    compare_lml,
    lml_samples,
)

# %%
# The rows are tumours. The features are the means of ten measures of their cell nuclei.

X = np.log(load_breast_cancer().data[:, :10] + 0.01)
X, held_out = train_test_split(X, random_state=0)
scaler = StandardScaler().fit(X)
X, held_out = scaler.transform(X), scaler.transform(held_out)

# %%
# A function of rows and a mask
# -----------------------------
#
# Factor analysis is Gaussian, so its conditionals follow from blocks of its covariance.
# The function returns the log-probability of each hidden feature given the visible
# features, and 0 at visible features.

factors = FactorAnalysis(4).fit(X)
covariance = factors.get_covariance()


def factor_analysis(X, mask):
    seen, centred = ~mask, X - factors.mean_
    gain = np.linalg.solve(covariance[np.ix_(seen, seen)], covariance[seen])
    variance = np.diag(covariance) - np.sum(covariance[seen] * gain, axis=0)
    std = np.sqrt(np.where(mask, variance, 1.0))
    return np.where(mask, norm.logpdf(centred, centred[:, seen] @ gain, std), 0.0)


# %%
# This function predicts hidden features from the nearest neighbours among the training
# rows, found by the visible features. No joint density has these conditionals. Every
# order of the features is a model of its own, and the LML in the table is a lower bound
# for the mixture of these models.


def neighbours(X, mask, n_neighbours=15, width=0.3):
    distance = ((X[:, None, ~mask] - training[:, ~mask]) ** 2).sum(axis=2)
    n_kept = n_neighbours if not mask.all() else len(training)
    near = training[np.argsort(distance, axis=1)[:, :n_kept]]
    kernels = norm.logpdf(X[:, None], near, width)
    return np.where(mask, logsumexp(kernels, axis=1) - np.log(n_kept), 0.0)


training = X

# %%
# This net gets the visible features and the mask as inputs, and is trained to predict
# the hidden features.

torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear(20, 64), torch.nn.GELU(), torch.nn.Linear(64, 20)
).double()


def module(X, mask):
    X, mask = torch.as_tensor(X), torch.as_tensor(mask).expand(X.shape)
    inputs = torch.cat([torch.where(mask, 0.0, X), mask], dim=1)
    mean, log_std = net(inputs).chunk(2, dim=1)
    log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(X)
    return torch.where(mask, log_prob, 0.0)


optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=1e-4)
rows = torch.tensor(X)
for _ in range(1500):
    sizes = torch.randint(1, 11, (len(rows), 1))
    masks = torch.rand(rows.shape).argsort(dim=1) < sizes
    loss = -(module(rows, masks).sum(dim=1) / masks.sum(dim=1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# ``check_masked_model`` raises an error if a function breaks a rule. The standard error
# of ``lml_samples`` is how much the log-probability of a row varies between orders of
# the features. For factor analysis, which has a joint density, it does not vary.

for model in (factor_analysis, neighbours, module):
    check_masked_model(model, held_out)
    _, error = lml_samples(model, held_out, n_orders=4, return_std=True, random_state=0)
    print(f"{model.__name__:16} {error.mean():.3f} nats over orders")

# %%
# The ranking
# -----------
#
# An estimator scores the rows itself. Functions are scored by their conditionals along
# random orders of the features.

table = compare_lml(
    {
        "probabilistic PCA": MPTProbabilisticPCA(4, random_state=0).fit(X),
        "factor analysis": factor_analysis,
        "mixture of 3 Gaussians": GaussianMixture(3, random_state=0).fit(X),
        "masked net": module,
        "nearest neighbours": neighbours,
    },
    held_out,
    n_orders=5,
)
print(table)

# %%
# Differences to the best model are computed row by row: a row that is unlikely under
# all models does not affect them. So they are more precise than the LMLs.

table.plot()
plt.show()
