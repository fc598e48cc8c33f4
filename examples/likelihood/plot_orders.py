"""
=====================================
Orders of features, and their mixture
=====================================

Along any order of the features, predictions of each feature from those before it make
an exact density. Predictors that belong to no joint density give another one along each
order. How far apart are they, is there a best one, and what is gained by a mixture?
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingRegressor

from sklearn_mpt import MPTDependencyNetwork, MPTMaskedAutoencoder, order_log_prob

# %%
# A table in which the direction matters
# --------------------------------------
#
# Each column is a function of others and noise. A regression can predict a column from
# its causes. In the other direction the distribution may have two peaks: a square root
# has two signs. The dependency network has normal distributions around the predictions
# of gradient boosting here, which have one.


def draw_table(n_rows, rng):
    """Draw rows; the columns are generated in the order 3, 0, 4, 1, 5, 2."""
    noise = rng.normal(size=(6, n_rows))
    start = noise[3]
    square = start**2 + 0.2 * noise[0]
    wave = np.sin(3 * start) + 0.2 * noise[4]
    product = np.cos(3 * wave) * square + 0.2 * noise[1]
    size = np.abs(product) + 0.2 * noise[5]
    last = size * wave + 0.2 * noise[2]
    return np.column_stack([square, product, last, start, wave, size])


rng = np.random.default_rng(0)
train, test = (draw_table(n, rng) for n in (800, 300))
network = MPTDependencyNetwork(
    regressor=HistGradientBoostingRegressor(max_iter=60), random_state=0
).fit(train)

# %%
# A net for images
# ----------------
#
# A masked autoencoder learns the conditionals of all orders together.

pixels = (load_digits().data > 7).astype(float)
pixels_train, pixels_test = pixels[:1200], pixels[1200:1400]
net = MPTMaskedAutoencoder(likelihood="bernoulli", n_iter_no_change=5, random_state=0)
net.fit(pixels_train)

# %%
# Points are means over held-out rows; the line is the mixture of the random orders. In
# the table the order in which columns were generated is better than most random ones,
# and than their mixture. Pixels have no such order: the mixture is better than any of
# them, because conditionals along different orders have different errors, which it
# averages.

figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
panels = {
    "Table: gradient boosting": (network, test, "generating", [3, 0, 4, 1, 5, 2]),
    "Images: masked autoencoder": (net, pixels_test, "by rows", "left_to_right"),
}
for ax, (title, (model, X, name, order)) in zip(axes, panels.items(), strict=True):
    orders = rng.permuted(np.tile(np.arange(X.shape[1]), (16, 1)), axis=1)
    along = np.array([order_log_prob(model, X, random) for random in orders])
    mixture = order_log_prob(model, X, orders)
    gap, std = mixture - along.mean(axis=0), along.std(axis=0, ddof=1)
    one = order_log_prob(model, X, order).mean()
    print(f"{title}: mixture {mixture.mean():.2f} nats, {name} {one:.2f}")
    print(f"    of a row: {std.mean():.2f} over orders, gap {gap.mean():.2f}")
    ax.plot(along.mean(axis=1), np.zeros(16), "o", alpha=0.7)
    ax.plot(one, 1, "o")
    ax.axvline(mixture.mean(), color="0.3", linestyle="--", label="mixture")
    ax.set_yticks([0, 1], ["random", name])
    ax.invert_yaxis()
    ax.margins(y=0.3)
    ax.set(title=title, xlabel="Held-out log-density (nats per row)")
    ax.legend()
plt.show()
