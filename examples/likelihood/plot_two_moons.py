"""
==============================
Two moons: a nonlinear density
==============================

Given the first coordinate of a point on two moons, the second has up to three likely
values. A linear model can only represent a line with noise; a deep model draws from
each moon.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons

from sklearn_mpt import MPTDeepVAE, MPTProbabilisticPCA

X, _ = make_moons(700, noise=0.08, random_state=0)
train, test = X[:500], X[500:]
models = {
    "linear": MPTProbabilisticPCA(n_components=1, random_state=0),
    "deep": MPTDeepVAE(n_components=2, hidden_layer_sizes=(32, 32), random_state=0),
}
for name, model in models.items():
    log_prob, std_error = model.fit(train).score_samples(test, return_std=True)
    error = (std_error**2).sum() ** 0.5 / len(test)
    print(f"{name:6}  held-out LML {log_prob.mean():.3f} ± {error:.3f} nats per row")

# %%
# The figure shows the density of each model, and draws of the second coordinate at
# three values of the first. Both panels have the same colour scale, and contain all
# draws. The deep model warns that some draws choose among few effective points: given
# one coordinate, its posterior is several narrow pieces.

horizontal, vertical = np.linspace(-1.7, 2.7, 36), np.linspace(-1.3, 2.0, 27)
grid = np.stack(np.meshgrid(horizontal, vertical), axis=-1).reshape(-1, 2)
given = np.repeat([-0.9, 0.5, 1.5], 12)
gaps = np.column_stack([given, np.full(len(given), np.nan)])

figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    density = np.exp(model.score_samples(grid)).reshape(27, 36)
    colors = ax.pcolormesh(
        horizontal, vertical, density, cmap="Blues", shading="gouraud", vmin=0, vmax=1
    )
    ax.scatter(*test.T, s=4, color="0.4", label="held-out rows")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Draws for .* effective points")
        drawn = model.impute(gaps, method="sample", random_state=0)
    ax.scatter(*drawn.T, s=14, color="tab:orange", label="draws given the first")
    ax.set(title=f"{name}, LML {model.score(test):.2f}", xlabel="first coordinate")
    ax.set(xlim=horizontal[[0, -1]], ylim=vertical[[0, -1]])
    print(f"{name:6}  highest density {density.max():.2f}")
axes[0].set_ylabel("second coordinate")
axes[0].legend(loc="upper right", fontsize="small")
figure.colorbar(colors, ax=axes, label="density")

# %%
# If two moons are possible, the mean of the draws is a poor value to fill in: it is
# between the moons, where the deep model has no density.

filled = models["deep"].impute(gaps)
for first in np.unique(given):
    here = given == first
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Draws for .* effective points")
        drawn = models["deep"].impute(gaps[here], "sample", random_state=1)
    draws = np.sort(drawn[:, 1])
    print(f"{first:4}: mean {filled[here][0, 1]:5.2f}, draws {np.round(draws, 1)}")
plt.show()
