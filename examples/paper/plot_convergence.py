"""
==============================================
Convergence of masked scores to the likelihood
==============================================

The masked scores of all sizes add up to the log marginal likelihood (LML). With P
random masks of each size, the sum is an unbiased estimate whose error goes to zero as P
grows. With masks of one fixed size, the error goes to a bias that is not zero, however
many masks are drawn.

These are Figure 1 and Table 1 of `Moreno-Muñoz et al. (2023)
<https://arxiv.org/abs/2306.00520>`_, with the sizes of the paper, but with independent
noise in every entry. The models have the parameters that generated the rows; nothing is
trained.
"""

import matplotlib.pyplot as plt
import numpy as np

from sklearn_mpt import MPTProbabilisticPCA, mpt_curve

SEEDS = range(5)


def simulate(n_samples, n_features, n_components, noise_variance=0.2):
    """Draw rows from probabilistic PCA; return them and that very model."""
    rng = np.random.default_rng(0)
    components = rng.normal(size=(n_components, n_features))
    noise = np.sqrt(noise_variance) * rng.normal(size=(n_samples, n_features))
    X = rng.normal(size=(n_samples, n_components)) @ components + noise
    truth = {
        "components": components,
        "mean": np.zeros(n_features),
        "noise_variance": noise_variance,
    }
    return X, MPTProbabilisticPCA(n_components, init=truth, max_iter=0).fit(X)


def random_masks(sizes, n_features, seed):
    """Hide a random set of each size; shape (len(sizes), n_features)."""
    keys = np.random.default_rng(seed).random((len(sizes), n_features))
    return keys.argsort(axis=1) < np.reshape(sizes, (-1, 1))


# %%
# Masks of all sizes
# ------------------
#
# One mask of each size gives one estimate of the LML, and P of these are averaged.
# There are 100 rows of 5 features, and 100 of 50, each from 2 latent variables.

n_rounds = np.arange(1, 201)


def errors_of_all_sizes(n_features):
    """Errors for P = 1, 2, ..., with each seed; arrays of shape (200,)."""
    X, model = simulate(n_samples=100, n_features=n_features, n_components=2)
    lml = model.score(X)
    print(f"D = {n_features}: LML {lml:.3f} nats per row")
    sizes = np.tile(np.arange(1, n_features + 1), len(n_rounds))
    errors = []
    for seed in SEEDS:
        scores = model.mean_masked_scores(X, random_masks(sizes, n_features, seed))
        estimates = scores.reshape(-1, n_features).sum(axis=1)
        errors.append(lml - np.cumsum(estimates) / n_rounds)
    for P in [1, 10, 200]:
        spread = np.sqrt(np.mean([error[P - 1] ** 2 for error in errors]))
        print(f"    root mean square error with P = {P:<3} {spread:.3f}")
    return errors


errors = {n_features: errors_of_all_sizes(n_features) for n_features in [5, 50]}

# %%
# Masks of 15%
# ------------
#
# Here 15% of 512 features are hidden, as in BERT, and the score is multiplied by 512.
# The error goes to the bias of this mask rate for these rows and this model.

X_wide, wide_model = simulate(n_samples=1000, n_features=512, n_components=2)
wide_lml = wide_model.score(X_wide)
size = round(0.15 * 512)
curve = mpt_curve(
    wide_model,
    X_wide,
    mask_sizes=[size],
    n_masks=5000,
    design="independent",
    random_state=0,
)
bias = wide_lml - curve.fixed_rate(0.15)
fixed_errors = []
for seed in SEEDS:
    masks = random_masks(np.full(len(n_rounds), size), 512, seed)
    estimates = 512 * wide_model.mean_masked_scores(X_wide, masks)
    fixed_errors.append(wide_lml - np.cumsum(estimates) / n_rounds)

print(f"LML                     {wide_lml:.2f} nats per row")
print(f"Bias, from 5000 masks   {bias:.2f} ± {512 * curve.std_errors[0]:.2f}")
last = [error[-1] for error in fixed_errors]
print(f"Error with 200 masks    {min(last):.2f} to {max(last):.2f}")

# %%
# With small masks, hidden features are predicted from most of the row. So their scores
# are higher than the likelihood of the model.

figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
left, middle, right = axes
panels = zip(axes, [*errors.values(), fixed_errors], ["C0", "C0", "C1"], strict=True)
for ax, of_seeds, color in panels:
    for seed in SEEDS:
        label = "five seeds" if seed == 0 else None
        ax.plot(n_rounds, of_seeds[seed], color=color, alpha=0.6, label=label)
left.set(title="Masks of all sizes, D = 5", xlabel="Masks of each size, $P$")
middle.set(title="Masks of all sizes, D = 50", xlabel="Masks of each size, $P$")
right.set(title="Masks of 15%, D = 512", xlabel="Number of masks")
right.axhline(bias, color="black", linestyle="--", label="bias of 15%")
for ax in axes:
    ax.axhline(0, color="0.5", linewidth=0.8, label="no error")
    ax.set(xscale="log")
    ax.legend()
left.set_ylabel("LML minus the masked estimate\n(nats per row)")
plt.show()

# %%
# Table 1
# -------
#
# P masks of each of 200 sizes estimate the LML of 1000 rows of 200 features, generated
# from 5 latent variables. The table shows mean and standard deviation over five seeds.

X, model = simulate(n_samples=1000, n_features=200, n_components=5)
print(f"LML      {model.score(X):.3f} nats per row")
for P in [1, 10, 100]:
    estimates = [
        mpt_curve(model, X, n_masks=P, design="independent", random_state=seed).lml
        for seed in SEEDS
    ]
    mean, spread = np.mean(estimates), np.std(estimates, ddof=1)
    print(f"P = {P:<3}  {mean:.3f} ± {spread:.3f}")
