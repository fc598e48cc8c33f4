"""
=====================================
Gaussian mixtures with missing values
=====================================

`sklearn.mixture.GaussianMixture` refuses missing values. `MPTMixture` integrates them
out, so rows with missing entries can be trained on, scored, assigned to clusters and
filled in. The score of validation rows, which may have missing entries too, chooses the
number of clusters.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Ellipse
from sklearn.datasets import load_wine
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.preprocessing import scale

from sklearn_mpt import MPTMixture

# %%
# The data are four measurements of 178 wines from three growers. A fifth of the entries
# is removed.

wine = load_wine()
columns = [wine.feature_names.index(name) for name in ("flavanoids", "color_intensity")]
columns += [0, 12]
complete = scale(wine.data[:, columns])
rng = np.random.default_rng(0)
X = np.where(rng.random(complete.shape) < 0.2, np.nan, complete)
print(f"{np.isnan(X).any(axis=1).sum()} of {len(X)} rows have gaps")

# %%
# The score of validation rows and the Bayesian information criterion agree.

folds = KFold(5, shuffle=True, random_state=0)
search = GridSearchCV(
    MPTMixture(n_init=3, random_state=0), {"n_components": range(1, 5)}, cv=folds
)
scores = search.fit(X).cv_results_["mean_test_score"]
bic = [MPTMixture(k, n_init=3, random_state=0).fit(X).bic(X) for k in range(1, 5)]
for k, (score, criterion) in enumerate(zip(scores, bic, strict=True), start=1):
    print(f"{k} components: held-out LML {score:.2f}, BIC {criterion:.0f}")

model = search.best_estimator_
agreement = adjusted_rand_score(wine.target, model.predict(X))
print(f"Best: {model.n_components} components; agreement with growers {agreement:.2f}")

# %%
# Ellipses contain about two thirds of each component. Rows with a missing entry in one
# of the two columns are drawn at the values that `impute` returns.

filled, labels = model.impute(X), model.predict(X)
is_filled = np.isnan(X[:, :2]).any(axis=1)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
for k in range(model.n_components):
    of_class = labels == k
    whole, holed = of_class & ~is_filled, of_class & is_filled
    left.scatter(*filled[whole, :2].T, s=14, color=f"C{k}")
    left.scatter(*filled[holed, :2].T, s=24, marker="x", color=f"C{k}")
    values, axes = np.linalg.eigh(model.covariances_[k][:2, :2])
    angle = np.degrees(np.arctan2(axes[1, 1], axes[0, 1]))
    width, height = 2 * 1.5 * np.sqrt(values[::-1])
    ellipse = Ellipse(
        model.means_[k, :2], width, height, angle=angle, alpha=0.2, color=f"C{k}"
    )
    left.add_patch(ellipse)
left.scatter([], [], s=24, marker="x", color="0.4", label="with a gap, filled in")
left.set(xlabel="flavanoids", ylabel="colour intensity")
left.legend()
right.plot(range(1, 5), scores, marker="o", color="C4")
right.set(xlabel="Number of components", ylabel="Held-out LML (nats per row)")
right.set_xticks(range(1, 5))
plt.show()
