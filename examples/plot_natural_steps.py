"""
============================================
Natural gradient steps, EM and Adam compared
============================================

The gradient of masked training is, in expectation over masks, the gradient of the log
marginal likelihood (LML). So it can be divided by the same information matrix that the
M-step of expectation-maximisation (EM) inverts, and then training is as fast as EM.
This example compares three ways to fit probabilistic PCA to handwritten digits of which
30% of the pixels are missing.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.ticker import LogLocator
from sklearn.datasets import load_digits

from sklearn_mpt import MPTProbabilisticPCA

K = 10
X = load_digits().data / 16
X[np.random.default_rng(0).random(X.shape) < 0.3] = np.nan
present = ~np.isnan(X)
rng = np.random.default_rng(0)
start = {
    "components": rng.normal(size=(K, X.shape[1])) * np.nanstd(X) / np.sqrt(K),
    "mean": np.nanmean(X, axis=0),
    "noise_variance": np.nanvar(X),
}


def lml(parameters):
    """Mean LML of the rows under given parameters."""
    return MPTProbabilisticPCA(K, init=parameters, max_iter=0).fit(X).score(X)


def follow(step, parameters, n_steps):
    """Take steps; return the processor time and the LML after many of them."""
    times, records, spent = [], [], 0.0
    for i in range(1, n_steps + 1):
        begin = time.process_time()
        parameters = step(parameters)
        spent += time.process_time() - begin
        if i <= 40 or i % 10 == 0:
            times.append(spent)
            records.append(lml(parameters))
    return np.array(times), np.array(records)


# %%
# Expectation-maximisation
# ------------------------
#
# EM with parameter expansion: after each M-step, z is rescaled to unit covariance.


def em_step(model):
    W, mean, noise = model["components"].T, model["mean"], model["noise_variance"]
    error = np.where(present, X - mean, 0.0)
    outer = W[:, :, None] * W[:, None, :]
    precision = np.eye(K) + np.tensordot(present.astype(float), outer, 1) / noise
    C = np.linalg.inv(precision)
    z = np.einsum("nkl,nl->nk", C, error @ W / noise)
    second = np.empty((len(X), K + 1, K + 1))
    second[:, :K, :K] = C + z[:, :, None] * z[:, None]
    second[:, :K, K] = second[:, K, :K] = z
    second[:, K, K] = 1.0
    values = np.where(present, X, 0.0)
    sums = (present.T @ second.reshape(len(X), -1)).reshape(-1, K + 1, K + 1)
    moments = values.T @ second[:, K]
    B = np.linalg.solve(sums, moments[..., None])[..., 0]
    noise = (np.sum(values**2) - np.sum(B * moments)) / present.sum()
    centre = z.mean(axis=0)
    scale = np.linalg.cholesky(
        second[:, :K, :K].mean(axis=0) - np.outer(centre, centre)
    )
    return {
        "components": (B[:, :K] @ scale).T,
        "mean": B[:, K] + B[:, :K] @ centre,
        "noise_variance": noise,
    }


curves = {"EM": follow(em_step, start, 200)}

# %%
# Masked training by this package
# -------------------------------
#
# A callback records the time after every epoch, without the time for scoring.


class Clock:
    """Callback of scikit-learn that records processor time and LML of each epoch."""

    def setup(self, estimator, context):
        self.times, self.lml, self.last = [], [], time.process_time()
        self.spent = 0.0

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
        if context.parent is not None:
            self.spent += time.process_time() - self.last
            self.times.append(self.spent)
            self.lml.append(fitted_estimator.score(X))
            self.last = time.process_time()


clock = Clock()
model = MPTProbabilisticPCA(K, init=start, random_state=0).set_callbacks(clock).fit(X)
curves["masks, natural steps"] = np.array(clock.times), np.array(clock.lml)

# %%
# Masked training by Adam
# -----------------------
#
# The same objective, with minibatches of 256 rows, a mask for each row, and derivatives
# by autograd. Adam scales the gradient of each parameter by its size, but does not use
# how parameters depend on each other.

N_EPOCHS = 150
rows, seen_at_all = torch.from_numpy(np.nan_to_num(X)), torch.from_numpy(present)
W, mean = (torch.tensor(start[key]) for key in ("components", "mean"))
log_noise = torch.tensor(np.log(start["noise_variance"]))
tensors = [t.requires_grad_() for t in (W, mean, log_noise)]
adam = torch.optim.Adam(tensors, lr=0.005)
decay = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.01, N_EPOCHS)
generator = torch.Generator().manual_seed(0)


def masked_score(index):
    """D times the score of a mask for each row, whose size is uniform on 1..D."""
    x, here, D = rows[index], seen_at_all[index], rows.shape[1]
    size = torch.randint(1, D + 1, (len(index), 1), generator=generator)
    rank = torch.rand(x.shape, generator=generator).argsort(1).argsort(1)
    hidden = rank < size
    seen = (here & ~hidden).double()
    noise = log_noise.exp()
    outer = (W.T[:, :, None] * W.T[:, None]).flatten(1)
    precision = torch.eye(K) + (seen @ outer).unflatten(1, (K, K)) / noise
    C = torch.linalg.inv(precision)
    z = C @ ((seen * (x - mean)) @ W.T / noise)[..., None]
    error = x - mean - z[..., 0] @ W
    variance = noise + ((C @ W) * W).sum(1)
    log_prob = -0.5 * (torch.log(2 * torch.pi * variance) + error**2 / variance)
    return (log_prob * (hidden & here) * D / size).sum(1).mean()


def adam_step(_):
    for index in torch.randperm(len(rows), generator=generator).split(256):
        adam.zero_grad()
        (-masked_score(index)).backward()
        adam.step()
    decay.step()
    W_now, mean_now, log_noise_now = (t.detach().numpy() for t in tensors)
    return {
        "components": W_now.copy(),
        "mean": mean_now.copy(),
        "noise_variance": float(np.exp(log_noise_now)),
    }


curves["masks, Adam"] = follow(adam_step, start, N_EPOCHS)

# %%
# The figure shows the distance of each method from the optimum, where EM ends.

best = max(records.max() for _, records in curves.values())
for name, (times, records) in curves.items():
    gaps = best - records
    print(f"{name:21} {gaps[-1]:.4f} nats short after {times[-1]:.1f} s", end="")
    near = np.flatnonzero(gaps < 0.1)
    print(f"; within 0.1 after {times[near[0]]:.2f} s" if len(near) else "")

figure, ax = plt.subplots(figsize=(8, 4.2), layout="constrained")
colors = {"EM": "black", "masks, natural steps": "#0072B2", "masks, Adam": "#E69F00"}
for name, (times, records) in curves.items():
    gaps = best - records
    shown = gaps > 1e-3
    ax.plot(times[shown], gaps[shown], color=colors[name], linewidth=2, label=name)
ax.set(
    xscale="log",
    yscale="log",
    ylim=(1e-3, 200),
    xlabel="Processor time (seconds)",
    ylabel="LML below the optimum\n(nats per image)",
)
ax.yaxis.set_major_locator(LogLocator(numticks=7))
ax.grid(color="0.9")
ax.legend()
plt.show()
