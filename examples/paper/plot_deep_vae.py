"""
==========================================
Deep VAE: training by masks, ELBO and IWAE
==========================================

With a neural network as decoder the integrals over z have no closed form, and hidden
pixels are predicted by importance sampling. Training by masks reaches likelihoods
similar to those of the evidence lower bound (ELBO) and of the importance weighted bound
(IWAE), and much higher than those of a linear decoder.

This is the lower half of Figure 3 of `Moreno-Muñoz et al. (2023)
<https://arxiv.org/abs/2306.00520>`_, for small binary digits. ``--five`` uses five
seeds instead of two; ``--full`` uses MNIST and a larger network.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import fetch_openml, load_digits
from sklearn.model_selection import train_test_split

from sklearn_mpt import LMLMonitor, MPTDeepVAE, MPTLinearVAE

FULL = "--full" in sys.argv
if FULL:
    X = fetch_openml("mnist_784", as_frame=False).data > 127
    settings = {"hidden_layer_sizes": (512, 512), "n_components": 20}
else:
    X = load_digits().data[:300] > 7
    settings = {"hidden_layer_sizes": (32,), "n_iter_no_change": 8, "tol": 1e-2}
X_train, X_test = train_test_split(X.astype(float), test_size=0.25, random_state=0)
seeds = range(5 if "--five" in sys.argv else 2)

# %%
# Two ways to train by masks
# --------------------------
#
# With ``n_masks="auto"``, the default, :class:`~sklearn_mpt.MPTDeepVAE` does not draw
# masks for the decoder. It computes the sum of the scores of all mask sizes directly,
# which is the same objective with less noise. With an int, as many masks are drawn in
# each step, and all pixels that they hide are predicted, as in the paper. Here these
# are masks of uniform size, and masks of 33%.
#
# For the first seed, the log marginal likelihood (LML) of validation images is recorded
# during training.

TRAINING = {
    "all mask sizes at once": {},
    "drawn masks of uniform size": {"n_masks": 64},
    "drawn masks of 33%": {"n_masks": 64, "mask_rate": 0.33},
    "ELBO": {"objective": "elbo"},
    "IWAE": {"objective": "iwae"},
}


def deep_model(how, seed):
    return MPTDeepVAE(likelihood="bernoulli", random_state=seed, **settings, **how)


final, curves = {}, {}
for name, how in TRAINING.items():
    monitor = LMLMonitor(X_test, every=5)
    models = [deep_model(how, seed) for seed in seeds]
    models[0].set_callbacks(monitor)
    final[name] = np.array([model.fit(X_train).score(X_test) for model in models])
    curves[name] = np.array([[log["epoch"] + 1, log["lml"]] for log in monitor.log_])

print(
    f"Held-out LML in nats per image, mean ± standard deviation of {len(seeds)} seeds"
)
for name, lml in final.items():
    print(f"{name:28} {lml.mean():.2f} ± {lml.std(ddof=1):.2f}")
linear = MPTLinearVAE(likelihood="bernoulli", slope_prior=4.0, random_state=0)
linear = linear.fit(X_train)
print(f"{'a linear decoder':28} {linear.score(X_test):.2f}")

# %%
# The left panel shows training with the first seed. ``fit`` stops when the loss of its
# own validation rows no longer falls, after different numbers of epochs. The right
# panel shows the fitted models: crosses are seeds, points and bars are means and
# standard deviations. The differences are mostly those between seeds.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 4.2), layout="constrained", width_ratios=[1, 1.1]
)
colors = ["#0072B2", "#56B4E9", "#E69F00", "#009E73", "#CC79A7"]
for row, (name, color) in enumerate(zip(TRAINING, colors, strict=True)):
    left.plot(*curves[name].T, color=color, linewidth=2)
    mean, spread = final[name].mean(), final[name].std(ddof=1)
    right.plot(final[name], np.full(len(seeds), row - 0.18), "x", color=color)
    right.errorbar(mean, row, xerr=spread, fmt="o", color=color, capsize=4)
left.set(xlabel="Epoch", ylabel="Held-out LML (nats per image)")
right.set_yticks(range(len(TRAINING)), TRAINING)
right.invert_yaxis()
right.locator_params(axis="x", nbins=5)
right.set(xlabel="Held-out LML of the fitted model (nats per image)")
plt.show()
