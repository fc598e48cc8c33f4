"""
======================================
The masked score curve during training
======================================

At every moment of training, the area under the curve is the log marginal likelihood
(LML). The model in this example starts with the right mean and scale, so scores with
everything hidden can hardly improve. It learns how features depend on each other, and
the curve rises where some features are visible.

This is the left half of Figure 5 of `Moreno-Muñoz et al. (2023)
<https://arxiv.org/abs/2306.00520>`_, for measurements of tumours. ``--full`` uses
MNIST.
"""

import sys

import matplotlib.pyplot as plt
from sklearn.datasets import fetch_openml, load_breast_cancer
from sklearn.preprocessing import scale

from sklearn_mpt import MPTProbabilisticPCA, mpt_curve

FULL = "--full" in sys.argv
if FULL:
    X = fetch_openml("mnist_784", as_frame=False).data[:60000] / 255
else:
    X = scale(load_breast_cancer().data)

# %%
# Each call of ``partial_fit`` is one epoch.

model = MPTProbabilisticPCA(n_components=5, random_state=0)
epochs = [1, 2, 4, 8, 100]
curves = {}
for epoch in range(1, epochs[-1] + 1):
    model.partial_fit(X)
    if epoch in epochs:
        curves[epoch] = mpt_curve(
            model, X, n_masks=200, design="balanced", random_state=0
        )
        area, error = curves[epoch].lml, curves[epoch].lml_std_error
        print(f"Epoch {epoch}: LML {model.score(X):.2f}, area {area:.2f} ± {error:.2f}")
closed_form = MPTProbabilisticPCA(n_components=5, init="pca", max_iter=0).fit(X)
print(f"Closed form: {closed_form.score(X):.2f}")

# %%
# Later curves are darker. Bands are 95% intervals over masks.

figure, ax = plt.subplots(figsize=(8, 4.2), layout="constrained")
colors = plt.get_cmap("viridis_r")([0.1, 0.3, 0.5, 0.7, 1.0])
for color, (epoch, curve) in zip(colors, curves.items(), strict=True):
    label = f"epoch {epoch}: area {curve.lml:.1f} nats"
    ax.plot(curve.mask_sizes, curve.scores, color=color, linewidth=1.5, label=label)
    reach = 1.96 * curve.std_errors
    band = (curve.scores - reach, curve.scores + reach)
    ax.fill_between(curve.mask_sizes, *band, color=color, alpha=0.3, linewidth=0)
ax.set(
    xlabel="Number of hidden features $m$",
    ylabel="Masked score $S(m)$ (nats per feature)",
)
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()
