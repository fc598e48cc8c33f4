"""
===================================
Masked score curves and their areas
===================================

How well a model predicts hidden features depends on how many are hidden. The area under
that curve is the log marginal likelihood (LML). One mask of each size is enough to
estimate the area well, though not the curve. A single mask rate, scaled up, can be far
from the area, especially if the model has many latent variables.

This is Figure 4 of `Moreno-Muñoz et al. (2023) <https://arxiv.org/abs/2306.00520>`_,
with the sizes of the paper: 1000 rows of 200 features, and models with the parameters
that generated the rows.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

from sklearn_mpt import MPTCurveDisplay, MPTProbabilisticPCA, mpt_curve


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
# Areas and the exact LML are in nats per row. With one mask of each size a standard
# error cannot be estimated, so for P = 1 twenty curves are measured with different
# masks; the band contains nine tenths of them. The rectangles are as wide as the curve
# and have the areas 200 S(30) and 200 S(170), which are the estimates from masks of 15%
# and of 85%.

figure, axes = plt.subplots(1, 3, figsize=(11, 4.6), layout="constrained")
for ax, n_components, n_masks in zip(axes, [5, 5, 50], [1, 100, 5], strict=True):
    X, model = simulate(n_components)
    curve = mpt_curve(model, X, n_masks=n_masks, design="independent", random_state=0)
    display = MPTCurveDisplay(curve=curve).plot(ax=ax)
    error = curve.lml_std_error
    if n_masks == 1:
        others = [
            mpt_curve(model, X, n_masks=1, design="independent", random_state=seed)
            for seed in range(1, 21)
        ]
        band = np.quantile([other.scores for other in others], [0.05, 0.95], axis=0)
        ax.fill_between(curve.mask_sizes, *band, color="C0", alpha=0.4, linewidth=0)
        error = np.std([other.lml for other in others], ddof=1)
    exact = model.score(X)
    display.line_.set_label(f"P = {n_masks}, area {curve.lml:.2f} ± {error:.2f}")
    rates = {0.15: ("C1", "--"), 0.85: ("C2", ":")}
    for rate, (color, line) in rates.items():
        area = curve.fixed_rate(rate)
        style = {"fill": False, "edgecolor": color, "linestyle": line, "linewidth": 1.8}
        style["label"] = f"masks of {rate:.0%}, area {area:.0f}"
        ax.add_patch(Rectangle((0.5, area / 200), 200, -area / 200, **style))
    lowest = -3.1 if n_components == 5 else -5
    ax.set_title(f"K = {n_components} latent variables, LML {exact:.2f}")
    ax.set_xticks([2, 30, 60, 100, 140, 170, 200], [1, 15, 30, 50, 70, 85, 100])
    ax.set(xlabel="Hidden features (% of 200)", ylim=(lowest, 0.1))
    ax.legend(loc="lower left", framealpha=1)
    print(f"K = {n_components}, P = {n_masks}")
    print(f"    LML                 {exact:8.2f} nats per row")
    print(f"    area                {curve.lml:8.2f} (± {error:.2f})")
    print(f"    200 times S at 15%  {curve.fixed_rate(0.15):8.2f}")
    print(f"    200 times S at 85%  {curve.fixed_rate(0.85):8.2f}")
for ax in axes[1:]:
    ax.set_ylabel(None)
plt.show()
