"""
==========================
Predictors without a fit
==========================

Some predictors learn nothing when they are fitted: they keep the rows and look at them
when they predict, like nearest neighbours, or like TabPFN, a transformer that gets the
training rows as its context. A class of ten lines makes such a function a classifier of
scikit-learn, and `MPTDependencyNetwork` makes that a model of a table.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_digits

from sklearn_mpt import MPTCurveDisplay, MPTDependencyNetwork, mpt_curve

# %%
# `predict_in_context` stands for a call of such a transformer: it gets known rows with
# their labels, and rows to label. Here it is a weighted vote of the known rows, by
# their distance in the inputs that are known on both sides.


def predict_in_context(known, labels, rows):
    shared = ~np.isnan(rows)[:, None] & ~np.isnan(known)
    differ = np.abs(np.nan_to_num(rows)[:, None] - np.nan_to_num(known))
    distance = (differ * shared).sum(2) / np.maximum(shared.sum(2), 1)
    vote = np.exp(-distance / 0.1)
    prob = vote @ (labels[:, None] == np.unique(labels))
    return prob / prob.sum(axis=1, keepdims=True)


# %%
# The wrapper keeps the context. Its tag says that it takes NaN, so that hidden inputs
# are NaN.


class InContextClassifier(ClassifierMixin, BaseEstimator):
    def fit(self, X, y):
        self.X_, self.y_, self.classes_ = X, y, np.unique(y)
        return self

    def predict_proba(self, X):
        return predict_in_context(self.X_, self.y_, X)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


# %%
# The rows are digits of 4 x 4 pixels, dark or bright. No masks are needed to learn
# anything, because nothing is learned; with ``n_masks=1`` the context has each row as
# it is.

images = load_digits().images.reshape(-1, 4, 2, 4, 2).mean((2, 4))
X = (images > 7).reshape(-1, 16).astype(float)
train, test = X[:300], X[300:400]
how = {"likelihood": "bernoulli", "n_orders": 4, "random_state": 0}
models = {
    "in context": MPTDependencyNetwork(InContextClassifier(), n_masks=1, **how),
    "forests": MPTDependencyNetwork(**how),
}
fig, ax = plt.subplots(figsize=(6, 4))
for name, model in models.items():
    score = model.fit(train).score(test)
    curve = mpt_curve(model, test, n_masks=5, random_state=0)
    MPTCurveDisplay(curve).plot(ax=ax, fill=False, name=f"{name}: {score:.2f} nats")
ax.legend(title="log-likelihood of a digit")
plt.show()

# %%
# It can be drawn from, too: one pixel after the other, each given those before it.

drawn = models["in context"].sample(10, random_state=0)
fig, axes = plt.subplots(2, 10, figsize=(8, 2))
for column, pair in enumerate(zip(test, drawn, strict=False)):
    if column < 10:
        for ax, row in zip(axes[:, column], pair, strict=True):
            ax.imshow(row.reshape(4, 4), cmap="gray_r")
            ax.set_axis_off()
fig.suptitle("Digits, and draws")
plt.show()
