"""
====================================================
Language models by benchmark questions: a 2PL model
====================================================

A table of benchmark results has a row for each language model and a column for each
question, right or wrong. An item response model turns it into abilities with standard
errors, says which questions are informative, and finds the few of them that place a new
model nearly as well as all. The table here is simulated, in the shape such tables have:
100 models, 5,000 questions.
"""

import time
import warnings

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import expit
from scipy.stats import spearmanr
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt import MPTItemResponse

rng = np.random.default_rng(0)
n_models, n_questions = 100, 5000
ability = rng.normal(size=(n_models, 1))
slope = np.exp(rng.normal(0.0, 0.5, n_questions))
difficulty = rng.normal(0.3, 1.2, n_questions)
chance = expit(slope * (ability - difficulty))
X = (rng.random(chance.shape) < chance).astype(float)
X[rng.random(X.shape) < 0.05] = np.nan  # runs that failed

# %%
# One hundred rows say little of a single question: a few were answered alike by all,
# and are left out; one or two separate the models perfectly by chance, and have no
# finite slope. A warning would say so, and their slopes are kept near 10. (A narrow
# prior of all slopes does harm here: with so many more questions than models, it
# stretches the scale of the abilities instead.)

varies = np.nanmin(X, axis=0) < np.nanmax(X, axis=0)
X, slope, difficulty = X[:, varies], slope[varies], difficulty[varies]
n_questions = X.shape[1]

start = time.process_time()
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)
    model = MPTItemResponse(model="2pl", tol=1e-6).fit(X)
print(f"{time.process_time() - start:.0f} s of processor time")
theta, error = model.abilities(X)
print(f"Rank correlation with the true abilities: {spearmanr(theta, ability)[0]:.4f}")
print(f"Standard error of an ability: {error.mean():.3f}")

# %%
# A short benchmark
# -----------------
#
# For a model of unknown ability, ask the questions with the most information over the
# population: 100 of them place a new model more closely than 100 at random.

grid = np.linspace(-2, 2, 21)
information = model.information(grid).items
weight = np.exp(-0.5 * grid**2)
best = np.argsort(-(weight @ information) / weight.sum())[:100]
drawn = rng.choice(n_questions, 100, replace=False)
new = rng.normal(size=(200, 1))
answers = (rng.random((200, n_questions)) < expit(slope * (new - difficulty))) * 1.0

figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), sharey=True, layout="constrained")
choices = {"all": np.arange(n_questions), "100 at random": drawn, "100 best": best}
for ax, (name, chosen) in zip(axes, choices.items(), strict=True):
    some = np.full(answers.shape, np.nan)
    some[:, chosen] = answers[:, chosen]
    estimate, std_error = model.abilities(some)
    off = np.sqrt(np.mean((estimate - new) ** 2))
    print(f"{name:14} error {off:.3f}, standard error {std_error.mean():.3f}")
    ax.errorbar(new[:, 0], estimate[:, 0], std_error[:, 0], fmt="o", ms=3, lw=0.8)
    ax.axline((0, 0), slope=1, color="0.5", lw=0.8)
    ax.set(title=name, xlabel="True ability")
axes[0].set_ylabel("Estimated ability")
plt.show()

# %%
# Standard errors take the questions as known. With a hundred rows their slopes are
# rough, so errors are larger than these say; the more so where questions were chosen
# because their slopes came out large.
