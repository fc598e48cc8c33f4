"""
============================================
Masks with structure: blocks, patches, spans
============================================

Masked autoencoders of images hide patches, models of time series hide spans, and blocks
of a questionnaire are missing together. Such masks are not uniform over the sets of one
size, so their scores do not add up to the log marginal likelihood (LML). Here the
difference, the bias, is measured for handwritten digits, for a model whose LML is known
exactly, and for nets that are trained with such masks.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from sklearn_mpt import MPTMaskedAutoencoder, MPTProbabilisticPCA, mpt_curve

digits = load_digits().data / 16
train, test = digits[:1200], digits[1200:1500]

# %%
# `mask_blocks` has a label for each feature, here for each pixel. Pixels of one label
# are hidden together; with "span", consecutive pixels are hidden.

row, column = np.divmod(np.arange(64), 8)
structures = {
    "single pixels": None,
    "patches of 2 x 2": 4 * (row // 2) + column // 2,
    "patches of 4 x 4": 2 * (row // 4) + column // 4,
    "rows of the image": row,
    "spans": "span",
}

# %%
# Curves of one model
# -------------------
#
# The model is probabilistic PCA, whose conditionals are those of one joint density.
# So uniform masks have no bias. With blocks and spans, the neighbours of a hidden pixel
# are mostly hidden too. It is predicted from pixels farther away, and the sum is too
# low: here by up to a third. It would be too high if features depended more on those of
# other blocks.

model = MPTProbabilisticPCA(n_components=10, random_state=0).fit(train)
lml = model.score(test)
print(f"{'LML':20}{lml:7.2f} nats per image")
figure, ax = plt.subplots(layout="constrained")
for name, blocks in structures.items():
    curve = mpt_curve(
        model,
        test,
        mask_blocks=blocks,
        design="independent",
        n_masks=100,
        random_state=0,
    )
    print(f"{name:20}{curve.total:7.2f}, bias {lml - curve.total:5.2f}")
    ax.plot(curve.mask_sizes, curve.scores, label=name)
ax.set(
    xlabel="Number of hidden pixels",
    ylabel="Masked score (nats per pixel)",
    title="One model, several masks",
)
ax.legend()
plt.show()

# %%
# Training
# --------
#
# Two nets fill in binary pixels. One is trained with single pixels hidden, the other
# with patches of 4 x 4, as masked autoencoders of images are, each with masks of all
# sizes. Each is then measured by both kinds of masks.

binary = (digits > 7 / 16).astype(float)
trained = {"single pixels": None, "patches of 4 x 4": structures["patches of 4 x 4"]}
sizes = [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 60, 64]
figure, ax = plt.subplots(layout="constrained")
for name, blocks in trained.items():
    net = MPTMaskedAutoencoder(
        likelihood="bernoulli", mask_blocks=blocks, n_iter_no_change=5, random_state=0
    ).fit(binary[:1200])
    curves = {
        masks: mpt_curve(
            net,
            binary[1200:1500],
            mask_blocks=of_masks,
            mask_sizes=sizes,
            n_masks=12,
            design="independent",
            random_state=0,
        )
        for masks, of_masks in trained.items()
    }
    print(f"trained on {name}: log-density {net.score(binary[1200:1500]):.2f},")
    for masks, curve in curves.items():
        print(f"    sum of the scores with {masks} hidden {curve.total:.2f}")
    ax.plot(sizes, curves["single pixels"].scores, label=f"trained on {name}")
ax.set(
    xlabel="Number of hidden pixels, hidden one by one",
    ylabel="Masked score (nats per pixel)",
    title="Two nets, masks of single pixels",
)
ax.legend()
plt.show()

# %%
# A net that learned from patches has seldom seen the neighbours of a pixel that it
# predicts. So it is worse where few single pixels are hidden, and its density is lower.
# To fill in whole patches is another task, for which it was trained.
