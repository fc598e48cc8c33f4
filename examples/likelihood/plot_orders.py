"""
==============================================
Orders of features: random, confident, learned
==============================================

Along any order of the features, predictions of each feature from those before it make
an exact density. Predictors that belong to no joint density give another one along each
order. Which order is best? Here orders that are learned from training rows, and orders
that reveal in each row what is most certain first, stand beside random ones and their
mixture.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingRegressor

from sklearn_mpt import (
    MPTDependencyNetwork,
    MPTMaskedAutoencoder,
    learn_order,
    order_spread,
)

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
train, validation, test = (draw_table(n, rng) for n in (800, 300, 300))
network = MPTDependencyNetwork(
    regressor=HistGradientBoostingRegressor(max_iter=60), random_state=0
).fit(train)

# %%
# :func:`~sklearn_mpt.learn_order` starts greedily, and then moves features as long as
# the rows that it is given become more probable. These are validation rows, because
# boosting fits its training rows more closely than others. ``order="confident"`` takes
# in each row the feature with the least entropy, given those revealed so far;
# `reference` has the values that features take.
#
# The last lines show the log-density of the mixture of 16 random orders less that along
# each order: negative where the order is better. The learned order is better than all
# random ones, than their mixture, and even than the order in which columns were
# generated. To reveal what is most certain first is worse than a random order here.

orders = {
    "generating": [3, 0, 4, 1, 5, 2],
    "learned": learn_order(network, validation),
    "confident": "confident",
}
print("learned order:", orders["learned"].tolist())
table = order_spread(
    network, test, n_orders=16, orders=orders, reference=train, random_state=0
)
print(table)

# %%
# A net for images
# ----------------
#
# A masked autoencoder learns the conditionals of all orders together. Features move by
# one place at most here, which is faster. The learned order is no better than random
# ones, and the mixture is better than any order: conditionals along different orders
# have different errors, which it averages.

pixels = (load_digits().data > 7).astype(float)
pixels_train, pixels_test = pixels[:1200], pixels[1200:1400]
how = {"n_iter_no_change": 5, "random_state": 0}
net = MPTMaskedAutoencoder(likelihood="bernoulli", **how)
net.fit(pixels_train)
orders_of_pixels = {
    "left to right": "left_to_right",
    "learned": learn_order(net, pixels_train[:600], n_sweeps=2, max_shift=1),
    "confident": "confident",
}
images = order_spread(
    net,
    pixels_test,
    n_orders=16,
    orders=orders_of_pixels,
    reference=pixels_train,
    random_state=0,
)
print(images)

# %%
# Points are means over held-out rows; the line is the mixture of the random orders.

figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
titles = ["Table: gradient boosting", "Images: masked autoencoder"]
for ax, spread, title in zip(axes, [table, images], titles, strict=True):
    random = spread.log_prob.mean(axis=1)
    mixture = random.mean() + spread.mean_gap
    rows = {"random": random} | {k: v.mean() for k, v in spread.named.items()}
    for place, (name, values) in enumerate(rows.items()):
        ax.plot(values, np.full(np.shape(values), place), "o", label=name, alpha=0.7)
    ax.axvline(mixture, color="0.3", linestyle="--")
    ax.annotate(
        "mixture of\nrandom orders",
        (mixture, 0.45),
        xytext=(-4, 0),
        textcoords="offset points",
        horizontalalignment="right",
    )
    ax.set_yticks(range(len(rows)), rows)
    ax.invert_yaxis()
    ax.set(title=title, xlabel="Held-out log-density (nats per row)")
plt.show()
