"""
=========================================
A deep decoder, trained by filling blanks
=========================================

With a neural network as decoder nothing is exact, but masks work all the same: hidden
pixels are predicted by importance sampling. Training that way reaches likelihoods like
those of the evidence lower bound (ELBO), far above those of a linear decoder.

This is the lower half of Figure 3 of `Moreno-Muñoz et al. (2023)
<https://arxiv.org/abs/2306.00520>`_, for small binary digits. ``--full`` takes MNIST
and a larger network.
"""

import sys

import matplotlib.pyplot as plt
from sklearn.datasets import fetch_openml, load_digits
from sklearn.model_selection import train_test_split

from sklearn_mpt import LMLMonitor, MPTDeepVAE, MPTLinearVAE

FULL = "--full" in sys.argv
if FULL:
    X = fetch_openml("mnist_784", as_frame=False).data > 127
    settings = {"hidden_layer_sizes": (512, 512), "n_components": 20}
else:
    X = load_digits().data[:500] > 7
    settings = {"hidden_layer_sizes": (32,)}
X_train, X_test = train_test_split(X.astype(float), test_size=0.25, random_state=0)

# %%
# The log marginal likelihood (LML) of held-out images is followed in training. At the
# end it comes with the standard error of importance sampling.

TRAINING = {
    "masks of uniform size": {},
    "masks of 33%": {"mask_rate": 0.33},
    "ELBO": {"objective": "elbo"},
}
curves = {}
for name, how in TRAINING.items():
    monitor = LMLMonitor(X_test, every=20)
    model = MPTDeepVAE(likelihood="bernoulli", random_state=0, **settings, **how)
    model.set_callbacks(monitor).fit(X_train)
    curves[name] = monitor.log_
    log_prob, std_error = model.score_samples(X_test, return_std=True)
    error = (std_error**2).sum() ** 0.5 / len(X_test)
    print(f"{name:21}  held-out LML {log_prob.mean():.3f} ± {error:.3f} nats per image")
linear = MPTLinearVAE(likelihood="bernoulli", random_state=0)
linear.fit(X_train)
print(f"{'a linear decoder':21}  held-out LML {linear.score(X_test):.3f}")

# %%
# ``fit`` stops where rows that it holds out gain no more: after different numbers of
# epochs, and at different likelihoods. An epoch of the ELBO is the cheapest.

figure, ax = plt.subplots(layout="constrained")
for (name, log), line in zip(curves.items(), ["-", "--", ":"], strict=True):
    epochs = [record["epoch"] + 1 for record in log]
    lml = [record["lml"] for record in log]
    ax.plot(epochs, lml, line, label=name, linewidth=2)
ax.axhline(linear.score(X_test), color="0.5", linewidth=0.8, label="linear decoder")
ax.set(xlabel="Epoch", ylabel="Held-out LML (nats per image)")
ax.legend(title="Trained by")
plt.show()
