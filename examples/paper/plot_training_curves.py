"""
================================================
Training by masks reaches the maximum likelihood
================================================

From any start, training with masks of uniformly random size ends at the maximum of the
log marginal likelihood (LML), which is known in closed form for probabilistic PCA, and
the objective during training estimates the LML. Training with 20% of the features
hidden in every step comes close to the maximum, but its objective is not a likelihood.

This is Figure 2 of `Moreno-Muñoz et al. (2023) <https://arxiv.org/abs/2306.00520>`_,
with 64 masks per step and five random starts. Unlike in the paper, the noise variance
is learned too. ``--full`` takes small steps, as the paper does.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np

from sklearn_mpt import LMLMonitor, MPTProbabilisticPCA

FULL = "--full" in sys.argv
SETTINGS = {"learning_rate": 0.01} if FULL else {}

# %%
# The paper draws a dashed line at the LML of the parameters that generated the rows.
# The maximum lies above it, and is where training should end.

rng = np.random.default_rng(0)
truth = {
    "components": rng.normal(size=(2, 10)),
    "mean": np.zeros(10),
    "noise_variance": 0.2,
}
X = rng.normal(size=(2000, 2)) @ truth["components"]
X += np.sqrt(truth["noise_variance"]) * rng.normal(size=X.shape)
generating = MPTProbabilisticPCA(init=truth, max_iter=0).fit(X).score(X)
optimum = MPTProbabilisticPCA(init="pca", max_iter=0).fit(X).score(X)
print(f"LML of the generating parameters  {generating:.4f} nats per row")
print(f"Closed-form maximum               {optimum:.4f}")

# %%
# Five starts for each mask rate. The callback scores the rows after every epoch.


def train(mask_rate, seed):
    """Return the fitted model, the scored epochs and their LML."""
    monitor = LMLMonitor()
    model = MPTProbabilisticPCA(
        mask_rate=mask_rate, max_iter=5000, random_state=seed, **SETTINGS
    )
    model.set_callbacks(monitor).fit(X)
    epochs = [record["epoch"] for record in monitor.log_]
    return model, epochs, [record["lml"] for record in monitor.log_]


runs = {rate: [train(rate, seed) for seed in range(5)] for rate in ["uniform", 0.2]}
for rate, fits in runs.items():
    gaps = [optimum - model.score(X) for model, _, _ in fits]
    objective = -np.mean([model.loss_curve_[-10:] for model, _, _ in fits])
    print(f"mask_rate={rate}:")
    print(f"    below the maximum by {min(gaps):.6f} to {max(gaps):.6f} nats")
    print(f"    objective of the last 10 epochs, on average {objective:.2f}")
    n_epochs = [model.n_iter_ for model, _, _ in fits]
    print(f"    epochs: {min(n_epochs)} to {max(n_epochs)}")

# %%
# The rows do come from a model of this kind, and so masks of 20% lead to nearly the
# same parameters; but what they maximise promises more than there is.

figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.5), sharey=True, layout="constrained")
titles = ["Masks of uniform size", "Masks of 20%"]
for ax, title, fits in zip(axes, titles, runs.values(), strict=True):
    zoom = ax.inset_axes([0.45, 0.1, 0.53, 0.42])
    for seed, (model, epochs, lml) in enumerate(fits):
        objective = -np.array(model.loss_curve_)
        label = "objective" if seed == 0 else None
        ax.plot(objective, color="0.75", linewidth=0.5, label=label)
        label = "LML" if seed == 0 else None
        for panel in (ax, zoom):
            panel.plot(epochs, lml, color="C0", alpha=0.8, label=label)
    for panel in (ax, zoom):
        panel.axhline(optimum, color="black", linestyle="--", label="maximum")
        panel.axhline(
            generating, color="black", linestyle=":", label="generating parameters"
        )
    longest = max(len(epochs) for _, epochs, _ in fits)
    zoom.set(xlim=(0.1 * longest, longest), ylim=(generating - 0.01, optimum + 0.01))
    ax.set(title=title, xlabel="Epoch", ylim=(-19, -5))
    lines, labels = ax.get_legend_handles_labels()
axes[0].set_ylabel("Nats per row")
figure.legend(lines, labels, loc="outside lower center", ncols=4)
plt.show()
