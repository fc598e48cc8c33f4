"""
=========================================
Monitoring the likelihood during training
=========================================

``LMLMonitor`` is a scikit-learn callback that records the log marginal likelihood (LML)
of any rows during training. On validation rows it shows early whether a model has too
many components: their LML falls while that of the training rows still rises.
"""

import importlib.util

import matplotlib.pyplot as plt
from sklearn.callback import ProgressBar
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sklearn_mpt import LMLMonitor, MPTProbabilisticPCA

# %%
# Forty components for two hundred images of 64 pixels are too many. Callbacks are set
# before ``fit``; scikit-learn's progress bar needs the package rich.

X = load_digits().data[:400] / 16
X_train, X_test = train_test_split(X, test_size=0.5, random_state=0)
training, held_out = LMLMonitor(), LMLMonitor(X_test)
callbacks = [training, held_out]
if importlib.util.find_spec("rich"):
    callbacks.append(ProgressBar())

model = MPTProbabilisticPCA(n_components=40, random_state=0)
_ = model.set_callbacks(*callbacks).fit(X_train)

# %%
# Every record has the epoch, the LML, and the index of the fit, as a monitor may follow
# several fits. ``pandas.DataFrame(held_out.log_)`` makes a table of them.

best = max(held_out.log_, key=lambda record: record["lml"])
print(f"Best on held-out images: {best}")
print(f"The last of {model.n_iter_} epochs: {held_out.log_[-1]}")
print(f"On training images: {training.log_[-1]}")

# %%
# Fewer components, or fewer epochs, would have a higher LML on validation rows.

figure, ax = plt.subplots(layout="constrained")
for monitor, label in [(training, "training"), (held_out, "held out")]:
    lml = [record["lml"] for record in monitor.log_]
    ax.plot(range(1, len(lml) + 1), lml, label=label)
epoch = best["epoch"] + 1
ax.plot(epoch, best["lml"], "o", color="C1", label=f"best, after {epoch} epochs")
ax.set(xlabel="Epochs", ylabel="LML (nats per image)", xscale="log")
ax.legend()
plt.show()
