"""
========================================================
Explaining outliers: which features make a row unlikely?
========================================================

A low likelihood shows that a row is unusual. The contributions of its features show
why: the log marginal likelihood (LML) is the sum of one contribution per feature, its
Shapley value.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle
from sklearn.datasets import load_digits

from sklearn_mpt import MPTProbabilisticPCA, feature_contributions

# %%
# The model is fitted to digits. Then five other digits are damaged: in each, two by two
# pixels are inverted.

X = load_digits().data / 16
train, test = X[:1500], X[1500:]
model = MPTProbabilisticPCA(n_components=20, random_state=0).fit(train)

rng = np.random.default_rng(0)
rows = test[:5].reshape(5, 8, 8).copy()
damage = np.zeros(rows.shape, dtype=bool)
corners = rng.integers(1, 6, size=(5, 2))
for image, (top, left) in enumerate(corners):
    damage[image, top : top + 2, left : left + 2] = True
rows[damage] = 1 - rows[damage]
rows, damage = rows.reshape(5, 64), damage.reshape(5, 64)

# %%
# Images whose inverted pixels were black or white become the least likely of all. Grey
# pixels hardly change by inversion.

usual = model.score_samples(test[5:])
log_prob = model.score_samples(rows)
for image in range(5):
    share = np.mean(usual < log_prob[image])
    print(
        f"Image {image}: {log_prob[image]:7.2f} nats, {len(usual)} others: "
        f"{np.median(usual):.2f} in the middle, {share:.1%} lower"
    )

# %%
# The contributions point to the damaged pixels, and add up to the score.

contributions = feature_contributions(model, rows, n_orders=20, random_state=0)
remainder = np.abs(contributions.sum(axis=1) - log_prob).max()
print(f"Largest difference from the score: {remainder:.0e} nats")
lowest = np.argsort(contributions, axis=1)[:, :4]
found = np.take_along_axis(damage, lowest, axis=1).sum(axis=1)
print(f"Damaged pixels among the four lowest of each image: {found}")

# %%
# Each image has its own colour scale, because the contributions differ in size.

figure, axes = plt.subplots(2, 5, figsize=(10, 5), layout="constrained")
for image, (above, below) in enumerate(axes.T):
    limit = np.abs(contributions[image]).max()
    above.imshow(rows[image].reshape(8, 8), cmap="gray_r")
    above.set_title(f"{log_prob[image]:.0f} nats")
    map_ = below.imshow(
        contributions[image].reshape(8, 8), cmap="PuOr", vmin=-limit, vmax=limit
    )
    figure.colorbar(map_, ax=below, location="bottom", label="nats")
    for ax in (above, below):
        corner = corners[image, ::-1] - 0.5
        ax.add_patch(Rectangle(corner, 2, 2, fill=False, edgecolor="#0072B2", lw=2))
        ax.set(xticks=[], yticks=[])
axes[0, 0].set_ylabel("Image, damaged\nin the square")
axes[1, 0].set_ylabel("Contributions")
plt.show()
