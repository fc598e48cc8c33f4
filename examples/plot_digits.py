"""
==========================================
The area under the curve is the likelihood
==========================================

Probabilistic PCA learns handwritten digits by predicting hidden pixels from visible
ones. How well it predicts depends on how many pixels are hidden. The sum of the scores
over all mask sizes is the log marginal likelihood (LML), which is also what maximum
likelihood maximises.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

from sklearn_mpt import MPTCurveDisplay, MPTProbabilisticPCA

# %%
# Train by masking
# ----------------
#
# Every step of training hides random pixels; all numbers of hidden pixels are equally
# likely. The closed-form solution of PCA has the highest possible LML.

X = load_digits().data / 16
model = MPTProbabilisticPCA(n_components=10, mask_rate="uniform", random_state=0)
model.fit(X)
closed_form = MPTProbabilisticPCA(n_components=10, init="pca", max_iter=0).fit(X)
print(f"LML, trained by masking:   {model.score(X):.2f} nats per image")
print(f"LML, closed-form optimum:  {closed_form.score(X):.2f}")

# %%
# Measure by masking
# ------------------
#
# The curve only uses predictions of hidden pixels, here along 2000 random orders in
# which the pixels become visible. Its area is the LML, which is also drawn as a
# rectangle of the same width.

display = MPTCurveDisplay.from_estimator(model, X, n_masks=2000, random_state=0)
curve = display.curve
print(f"Area under the curve:      {curve.lml:.2f}")

exact = model.score(X)
display.ax_.axhline(
    exact / 64,
    color="black",
    linestyle="--",
    label=f"exact LML = {exact:.2f} nats, divided by 64",
)
display.ax_.legend()
plt.savefig("mpt_curve.png", dpi=150)
print("The curve was saved to mpt_curve.png")
