"""
==================================================
Deep VAE with Gaussian pixels, encoded and decoded
==================================================

The lower half of Figure 3 of `Moreno-Muñoz et al. (2023)
<https://arxiv.org/abs/2306.00520>`_ has pixels with a Gaussian likelihood, and encodes
and decodes them. Here hidden pixels are predicted by a chain: visible pixels are
encoded, hidden ones are decoded and drawn, and the result is encoded again. This
example trains in that way, with masks of uniform size and of 33%, beside training by
importance sampling and by the evidence lower bound (ELBO).

The chain (Rezende et al., 2014) draws from the posterior only if it is long and the
encoder is exact. Here it has few steps, and training by it reaches lower likelihoods.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sklearn_mpt import LMLMonitor, MPTDeepVAE, MPTProbabilisticPCA

X = load_digits().data[:300] / 16
X_train, X_test = train_test_split(X, test_size=0.25, random_state=0)

# %%
# All models have the same nets, with 32 hidden units, and two latent variables. The
# likelihood of new images is measured by importance sampling, whatever the training.

# Gradients through chains vary widely: larger steps may diverge.
CHAIN = {"conditional": "encode_decode", "n_masks": 64, "learning_rate": 0.003}
TRAINING = {
    "importance, all mask sizes": {},
    "chain, masks of uniform size": CHAIN,
    "chain, masks of 33%": CHAIN | {"mask_rate": 0.33},
    "ELBO": {"objective": "elbo"},
}
models, curves = {}, {}
for name, parameters in TRAINING.items():
    monitor = LMLMonitor(X_test, every=3)
    model = MPTDeepVAE(
        hidden_layer_sizes=(32,),
        n_iter_no_change=12,
        tol=1e-2,
        random_state=0,
        **parameters,
    )
    models[name] = model.set_callbacks(monitor).fit(X_train)
    curves[name] = np.array([[log["epoch"] + 1, log["lml"]] for log in monitor.log_])
    lml, error = model.score_samples(X_test, return_std=True)
    print(
        f"{name:30}{lml.mean():7.2f} nats per image, {model.n_iter_} epochs, "
        f"standard error of integration up to {error.max():.2f}"
    )
linear = MPTProbabilisticPCA(n_components=2, random_state=0).fit(X_train)
print(f"{'a linear decoder, exact':30}{linear.score(X_test):7.2f} nats per image")

# %%
# The left panel shows the LML of new images during training. The right panel fills in
# the lower half of four new images with each model, in the mean.

figure = plt.figure(figsize=(10, 4.4), layout="constrained")
left, right = figure.subfigures(1, 2)
ax = left.subplots()
for name, curve in curves.items():
    ax.plot(*curve.T, label=name, linewidth=2)
ax.axhline(linear.score(X_test), color="0.5", linestyle="--", label="linear, exact")
ax.set(xlabel="Epoch", ylabel="Held-out LML (nats per image)", ylim=(-30, None))
ax.legend(loc="lower right", fontsize="small")

halves = np.where(np.arange(64) < 32, X_test[:4], np.nan)
pictures = {"image": X_test[:4], "visible": halves}
for name, model in models.items():
    title = name.replace(", ", ",\n").replace(" of ", "\nof ")
    pictures[title] = model.impute(halves)
axes = right.subplots(4, len(pictures))
for column, (name, images) in enumerate(pictures.items()):
    axes[0, column].set_title(name, fontsize=6)
    for ax, image in zip(axes[:, column], images, strict=True):
        ax.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        ax.axis("off")
plt.show()
