"""
=================================
The curve behind every likelihood
=================================

How well a model fills in blanks depends on how many there are. The area under that
curve is the log marginal likelihood (LML). One mask for each size measures the area
well, though not the curve; and a single mask rate, scaled up, can be far off, the more
so the more latent variables the model has to see through.

This is Figure 4 of `Moreno-Muñoz et al. (2023) <https://arxiv.org/abs/2306.00520>`_, at
the paper's sizes: 1000 rows of 200 features, and models that keep the parameters that
generated them.
"""

import matplotlib.pyplot as plt
import numpy as np

from sklearn_mpt import MPTCurveDisplay, MPTProbabilisticPCA


def simulate(n_components, noise_variance=0.2):
    """Draw rows from probabilistic PCA; return them and that very model."""
    rng = np.random.default_rng(0)
    components = rng.normal(size=(n_components, 200))
    noise = np.sqrt(noise_variance) * rng.normal(size=(1000, 200))
    X = rng.normal(size=(1000, n_components)) @ components + noise
    truth = {
        "components": components,
        "mean": np.zeros(200),
        "noise_variance": noise_variance,
    }
    return X, MPTProbabilisticPCA(n_components, init=truth, max_iter=0).fit(X)


# %%
# Standard errors need two masks or more for each size; with one they are nan. Areas and
# the exact LML are in nats per row.

figure, axes = plt.subplots(1, 3, figsize=(11, 4), sharey=True, layout="constrained")
for ax, n_components, n_masks in zip(axes, [5, 5, 50], [1, 100, 5], strict=True):
    X, model = simulate(n_components)
    display = MPTCurveDisplay.from_estimator(
        model,
        X,
        n_masks=n_masks,
        design="independent",
        random_state=0,
        ax=ax,
    )
    curve = display.curve
    exact = model.score(X)
    display.line_.set_label(f"P = {n_masks}: area {curve.lml:.2f}")
    ax.set_title(f"K = {n_components} latent variables, LML {exact:.2f}")
    ax.set_xticks([2, 30, 60, 100, 140, 170, 200], [1, 15, 30, 50, 70, 85, 100])
    ax.set(xlabel="Hidden features (% of 200)", ylim=(-4.3, 0.2))
    ax.legend(loc="lower left", framealpha=1)
    print(f"K = {n_components}, P = {n_masks}")
    print(f"    LML                 {exact:8.2f} nats per row")
    print(f"    area                {curve.lml:8.2f} (± {curve.lml_std_error:.2f})")
    print(f"    200 times S at 15%  {curve.fixed_rate(0.15):8.2f}")
    print(f"    200 times S at 85%  {curve.fixed_rate(0.85):8.2f}")
for ax in axes[1:]:
    ax.set_ylabel(None)
plt.show()
