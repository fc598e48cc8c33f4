"""
========================================
Training and scoring with missing values
========================================

A model that is trained to predict hidden entries can be trained on rows with missing
entries. This example fits such rows, fills in the missing entries, and computes how
likely the entries are, which imputers cannot do.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import scale

from sklearn_mpt import MPTProbabilisticPCA

try:
    from sklearn.impute import IterativeImputer
except ImportError:  # up to scikit-learn 1.9 it is experimental
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

# %%
# Choose by the likelihood of incomplete rows
# -------------------------------------------
#
# A third of all entries is removed. ``score`` integrates missing entries out: it is the
# exact log-density of the present entries of a row. So incomplete validation rows can
# choose the number of components, and no complete rows are needed.

digits = load_digits().data[:600]
datasets = {
    "wine": load_wine().data,
    "diabetes": load_diabetes().data,
    "breast cancer": load_breast_cancer().data,
    "digits": digits[:, digits.std(axis=0) > 0.5],
}


def remove(X, seed, share=1 / 3):
    """Replace random entries by NaN."""
    return np.where(np.random.default_rng(seed).random(X.shape) < share, np.nan, X)


def choose(X):
    """Return the number of components that makes held-out rows the most likely."""
    train, test = train_test_split(X, random_state=0)
    candidates = [
        MPTProbabilisticPCA(n_components, random_state=0).fit(train)
        for n_components in [2, 4, 8, 16]
        if n_components < X.shape[1]
    ]
    best = max(candidates, key=lambda model: model.score(test))
    columns = norm(np.nanmean(train, axis=0), np.nanstd(train, axis=0))
    independent = np.nansum(columns.logpdf(test), axis=1).mean()
    print(
        f"{best.n_components:2} components, held-out LML {best.score(test):.2f} nats;"
    )
    print(f"{'':14}independent features have {independent:.2f}")
    return best.n_components


complete = {name: scale(X) for name, X in datasets.items()}
n_components = {}
for name, X in complete.items():
    print(f"{name:14}", end="")
    n_components[name] = choose(remove(X, seed=0))

# %%
# Compare imputations
# -------------------
#
# Every method gets the same incomplete rows, for three draws of the missing entries.
# The imputers of scikit-learn have their default parameters; the iterative imputer
# warns that it has not converged.

imputers = {
    "column means": SimpleImputer(),
    "KNNImputer": KNNImputer(),
    "IterativeImputer": IterativeImputer(random_state=0),
}
OURS = "MPTProbabilisticPCA"


def fill_in(X, n_components):
    """Fill in the missing entries by every method."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        filled = {key: imputer.fit_transform(X) for key, imputer in imputers.items()}
    model = MPTProbabilisticPCA(n_components, random_state=0).fit(X)
    return {**filled, OURS: model.impute(X)}


means, spreads = {}, {}
for name, X in complete.items():
    errors = {method: [] for method in [*imputers, OURS]}
    for seed in range(3):
        incomplete = remove(X, seed)
        gone = np.isnan(incomplete)
        for method, result in fill_in(incomplete, n_components[name]).items():
            errors[method].append(np.sqrt(np.mean((result - X)[gone] ** 2)))
    means[name] = [np.mean(values) for values in errors.values()]
    spreads[name] = [np.std(values, ddof=1) for values in errors.values()]
    best = list(errors)[np.argmin(means[name])]
    print(f"{name}: {best} has the smallest error, {min(means[name]):.3f}")
    errors_of = zip(errors, means[name], strict=True)
    print("    " + ", ".join(f"{method} {error:.3f}" for method, error in errors_of))

# %%
# A linear Gaussian model has the smallest error for some data sets and not for others.
# The digits form groups, which nearest neighbours describe better than principal axes.
# Error bars are standard deviations over the draws of the missing entries.

figure, ax = plt.subplots(figsize=(8, 4.2), layout="constrained")
position = np.arange(len(datasets))
colors = ["0.75", "#E69F00", "#009E73", "#0072B2"]
for i, (method, color) in enumerate(zip([*imputers, OURS], colors, strict=True)):
    height, spread = (
        [table[name][i] for name in datasets] for table in (means, spreads)
    )
    bars = position + 0.2 * (i - 1.5)
    ax.bar(bars, height, 0.18, yerr=spread, color=color, label=method, capsize=3)
ax.set_xticks(position, datasets)
ax.set_ylabel("Error of imputed entries\n(root mean square, in standard deviations)")
ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4)
plt.show()
