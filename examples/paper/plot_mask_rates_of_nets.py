"""
==============================================
Nets trained at one mask rate and at all rates
==============================================

A net that is trained with masks of one size learns the conditionals of that size. Here
three nets fill in handwritten digits of 0 and 1. They are trained with 15% of the
pixels hidden, with 50%, and with any number of them. The training objective of a net
with a fixed rate is D times its masked score at that rate; its density needs the area
under the whole curve.

This corresponds, for nets, to Figures 2 and 3 of `Moreno-Muñoz et al. (2023)
<https://arxiv.org/abs/2306.00520>`_.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from sklearn_mpt import MPTMaskedAutoencoder, mpt_curve

X = (load_digits().data > 7).astype(float)
train, test = X[:1400], X[1400:1600]

models = {
    rate: MPTMaskedAutoencoder(
        likelihood="bernoulli", mask_rate=rate, n_iter_no_change=5, random_state=0
    ).fit(train)
    for rate in [0.15, 0.5, "uniform"]
}

# %%
# The figure shows the curve of held-out rows: S(m), the log-probability of a hidden
# pixel if m are hidden. Where no more pixels are hidden than in training, the three
# nets hardly differ. Where more are hidden, a net with a fixed rate is worse: it has
# seen no rows with so few visible pixels.

curves = {
    rate: mpt_curve(model, test, n_masks=10, random_state=0)
    for rate, model in models.items()
}
figure, ax = plt.subplots(layout="constrained")
for rate, curve in curves.items():
    ax.plot(curve.mask_rates, curve.scores, label=f"mask_rate={rate!r}")
ax.set(xlabel="Share of pixels hidden", ylabel="Masked score (nats per pixel)")
ax.legend()
plt.show()

# %%
# The bound on the log-density is the area. The training objective at one rate is D
# times the score at that rate, which is too high at both of these rates, because hidden
# pixels are easy to predict if half of the pixels or more are visible.

print("rate      bound   promised")
for rate, curve in curves.items():
    promised = curve.lml if rate == "uniform" else curve.fixed_rate(rate)
    print(f"{rate!s:8} {curve.lml:7.2f} {promised:9.2f}")

# %%
# These are the shares of wrong pixels after imputation, for three shares of missing
# pixels. Like the score, they depend on the rate of training most where nearly all
# pixels are missing.

shares = (0.15, 0.5, 0.9)
level = np.random.default_rng(0).random(test.shape)
print("rate     " + "".join(f"{share:>6.0%} missing" for share in shares))
for rate, model in models.items():
    errors = []
    for share in shares:
        missing = level < share
        filled = model.impute(np.where(missing, np.nan, test)) > 0.5
        errors.append((filled != test)[missing].mean())
    print(f"{rate!s:9}" + "".join(f"{error:>14.1%}" for error in errors))
