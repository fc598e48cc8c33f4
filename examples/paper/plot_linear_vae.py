"""
===========================================
Linear VAE: training by masks, ELBO and LML
===========================================

A linear variational autoencoder of binary pixels can be trained by masking, by the
evidence lower bound (ELBO), or by the log marginal likelihood (LML) itself. Measured by
the true LML, the results are equally good, but for masks of a fixed rate, which lose a
little.

This is the upper half of Figure 3 of `Moreno-Muñoz et al. (2023)
<https://arxiv.org/abs/2306.00520>`_. The paper integrates over the two latent variables
on a grid of 4 x 4 points. The example shows why that grid is too coarse to measure a
likelihood. ``--full`` downloads MNIST. ``--images FOLDER`` reads MNIST, Fashion-MNIST,
or other images in their format, from a folder with a file ``train-images-idx3-ubyte``
or ``train-images-idx3-ubyte.gz``; ``--first N`` takes the first N of them.
"""

import argparse
import gzip
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import log_expit, logsumexp
from scipy.stats import norm
from sklearn.datasets import fetch_openml, load_digits

from sklearn_mpt import LMLMonitor, MPTLinearVAE

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
parser.add_argument("--images", type=Path)
parser.add_argument("--first", type=int, default=60000)
options = parser.parse_args(sys.argv[1:])
FULL = options.full or options.images is not None


def read_images(folder):
    """Return images of a folder in the format of MNIST; (n_images, n_pixels)."""
    path = min(folder.glob("train-images-idx3-ubyte*"))
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    _, n_images, height, width = np.frombuffer(content, ">i4", count=4)
    pixels = np.frombuffer(content, np.uint8, offset=16)
    return pixels.reshape(n_images, height * width)


if options.images is not None:
    X = read_images(options.images)[: options.first] > 127
elif FULL:
    X = fetch_openml("mnist_784", as_frame=False).data[: options.first] > 127
else:
    X = load_digits().data[:500] > 7
X = X.astype(float)

# %%
# Train
# -----
#
# By masks, the first epochs draw them; once their noise exceeds what is left to gain,
# the sum over all mask sizes finishes. The paper draws masks to the end: so does an int
# for ``n_masks``, with masks of uniform size, and a fixed rate of 33%. The callback
# computes the LML of the images after every epoch, by quadrature that is refined until
# the result no longer changes.

TRAINING = {
    "by masked scores": {},
    "by 8 drawn masks": {"n_masks": 8},
    "by masks of 33%": {"mask_rate": 0.33},
    "by the ELBO": {"objective": "elbo"},
    "by the LML": {"objective": "lml"},
}
models, curves = {}, {}
for name, how in TRAINING.items():
    monitor = LMLMonitor(every=5 if FULL else 1)
    model = MPTLinearVAE(
        likelihood="bernoulli", slope_prior=4.0, tol=1e-3, random_state=0, **how
    )
    models[name] = model.set_callbacks(monitor).fit(X)
    curves[name] = np.array([[log["epoch"], log["lml"]] for log in monitor.log_])
    print(f"{name:16}  {model.score(X):.3f} nats per image, {model.n_iter_} epochs")

prob = X.mean(axis=0).clip(1e-9, 1 - 1e-9)
independent = np.mean(X @ np.log(prob) + (1 - X) @ np.log1p(-prob))
print(f"Independent pixels: {independent:.3f}")

# %%
# Measure on a grid
# -----------------
#
# This is the sum of the paper over a uniform grid on :math:`[-5, 5]^2`, with several
# numbers of points, minus the LML of ``score_samples``.

model = models["by masked scores"]


def grid_log_joint(X, n_points, span=5):
    """Return the grid points, and log p(x, z) times the area of a cell at each."""
    axis = np.linspace(-span, span, n_points)
    Z = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    logits = Z @ model.components_ + model.intercept_
    log_likelihood = X @ log_expit(logits).T + (1 - X) @ log_expit(-logits).T
    log_area = 2 * np.log(2 * span / n_points)
    return Z, log_likelihood + norm.logpdf(Z).sum(axis=1) + log_area


log_prob = model.score_samples(X)
for n_points in [4, 8, 16, 32]:
    error = logsumexp(grid_log_joint(X, n_points)[1], axis=1) - log_prob
    print(
        f"{n_points:2} x {n_points:2} points: mean error {error.mean():6.2f}, "
        f"{error.min():6.2f} to {error.max():5.2f} nats"
    )

# %%
# The left panel shows the distance of each training from the highest LML of all, on a
# logarithmic scale down to 0.001. The right panel shows posteriors of single images, at
# one and two standard deviations: they are narrower than the spacing of the grid. (The
# error that remains with many points comes from the weights, which count one cell too
# many.)

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.3), layout="constrained")
best = max(curve[:, 1].max() for curve in curves.values())
for (name, curve), line in zip(
    curves.items(), ["-", "-", "-.", "--", ":"], strict=True
):
    epochs, lml = curve[curve[:, 1] < best].T
    left.plot(epochs + 1, best - lml, line, label=name, linewidth=2)
gap = best - independent
left.axhline(gap, color="0.5", linewidth=0.8, label="independent pixels")
left.set(xlabel="Epoch", ylabel="LML below the best (nats per image)")
left.set(xscale="log", yscale="log", ylim=(1e-3, 5))
left.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)

Z, log_joint = grid_log_joint(X[:6], 201, span=3)
x_axis = np.unique(Z[:, 0])
for log_density in log_joint:
    density = np.exp(log_density - log_density.max()).reshape(201, 201)
    right.contour(x_axis, x_axis, density, levels=np.exp([-2, -0.5]), colors="C0")
coarse, _ = grid_log_joint(X[:1], 4)
right.scatter(*coarse.T, color="C1", marker="x", s=60, label="grid of 4 x 4")
right.plot([], [], color="C0", label="posteriors of 6 images")
right.set(xlabel="$z_1$", ylabel="$z_2$", xlim=(-3, 3), ylim=(-3, 3), aspect="equal")
right.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
plt.show()
