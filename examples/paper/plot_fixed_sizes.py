"""
=======================================
The bias of training with one mask size
=======================================

Training by masks of one size m maximises D S(m), where S(m) is the mean log-probability
of a hidden feature and D the number of features. The log marginal likelihood (LML) is
the sum of S(m) over all sizes. The difference of the two, the bias, is the subject of
Appendix C.1 of `Moreno-Muñoz et al. (2023) <https://arxiv.org/abs/2306.00520>`_. This
example computes the bias from known parameters, without training. It depends on the
size, on the model and on the row. So masks of one size may choose a model that does not
have the highest LML.
"""

import matplotlib.pyplot as plt
import numpy as np

from sklearn_mpt import MPTProbabilisticPCA, mpt_curve

rng = np.random.default_rng(0)
n_features = 40
components = rng.normal(size=(6, n_features)) * np.array([3, 2, 1, 1, 1, 1])[:, None]
X = rng.normal(size=(300, 6)) @ components + rng.normal(size=(300, n_features))
mean = np.zeros(n_features)


def model(n_components, noise_variance):
    start = {
        "components": components[:n_components],
        "mean": mean,
        "noise_variance": noise_variance,
    }
    return MPTProbabilisticPCA(n_components, init=start, max_iter=0).fit(X)


# %%
# The bias of each size
# =====================
#
# There are three models of the same rows: the model that generated them, one with two
# of its six components, and one with a single component. If few features are hidden,
# the bias is negative: the training objective is higher than the LML. If nearly all are
# hidden, it is positive. Its size differs between models.

models = {
    "6 components": model(6, 1.0),
    "2 components": model(2, 5.0),
    "1 component": model(1, 9.0),
}
curves = {
    name: mpt_curve(m, X, n_masks=200, random_state=0) for name, m in models.items()
}
_, ax = plt.subplots(layout="constrained")
for name, curve in curves.items():
    bias = curve.lml - n_features * curve.scores
    ax.plot(curve.mask_rates, bias, label=name)
ax.axhline(0, color="0.5", linewidth=0.8)
ax.set(xlabel="Share of features hidden", ylabel="LML less D S(m) (nats per row)")
ax.legend()
plt.show()

# %%
# The bias of each row
# ====================
#
# The bias of the true model at 15% differs from row to row.

size = max(1, round(0.15 * n_features))
true = models["6 components"]
masks = rng.permuted(np.tile(np.arange(n_features), (200, 1)), axis=1) < size
scores = np.mean([true.conditional_log_prob(X, m).sum(1) / size for m in masks], axis=0)
lml = true.score_samples(X)
_, ax = plt.subplots(layout="constrained")
ax.scatter(lml, lml - n_features * scores, s=8)
ax.set(xlabel="LML of the row (nats)", ylabel="LML less D S(m), 15% hidden")
plt.show()

# %%
# The noise variance that each size chooses
# =========================================
#
# Two of the six components are given, and the noise variance is estimated. If the
# family of models contains the true model, all sizes choose it, because each S(m) is a
# proper score. This family does not contain it, and each size has a different optimum.
# The last column is the LML that is lost.

variances = np.linspace(3, 8, 41)
tried = [model(2, v) for v in variances]
curves = [mpt_curve(m, X, n_masks=200, random_state=0) for m in tried]
lmls = np.array([m.score(X) for m in tried])
print("hidden   noise variance chosen   LML lost (nats per row)")
for rate in (0.05, 0.15, 0.5, 0.85, 1.0):
    best = np.argmax([curve.fixed_rate(rate) for curve in curves])
    print(f"{rate:6.0%} {variances[best]:16.2f} {lmls.max() - lmls[best]:20.3f}")
print(f"   all {variances[lmls.argmax()]:16.2f} {0:20.3f}")
