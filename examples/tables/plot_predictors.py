"""
==============================
Four predictors of one table
==============================

Forests, boosting and linear models predict one column from others. Here each becomes a
model of a whole table: its likelihood, how well it predicts hidden entries, and whether
there is a joint distribution behind its predictions. A masked autoencoder, one net for
all columns, is fitted to the same table.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import BayesianRidge, LogisticRegression

from sklearn_mpt import (
    MPTCurveDisplay,
    MPTDependencyNetwork,
    MPTMaskedAutoencoder,
    compare_lml,
    mpt_curve,
    order_log_prob,
)

# %%
# The rows are days of a small shop: the season, the temperature, whether it rains,
# whether it is a weekend, and the logarithm of the number of customers. Customers stay
# away on rainy days, but only at the weekend, and on days that are too hot or too cold.

rng = np.random.default_rng(0)


def draw_days(n):
    season = rng.integers(4, size=n)  # winter, spring, summer, autumn
    warmth = np.array([2.0, 12.0, 24.0, 11.0])[season] + 4 * rng.normal(size=n)
    rain = rng.random(n) < np.array([0.5, 0.4, 0.2, 0.5])[season]
    weekend = rng.random(n) < 2 / 7
    customers = 4 - ((warmth - 16) / 12) ** 2 - 1.5 * (rain & weekend) + 0.5 * weekend
    customers += 0.2 * rng.normal(size=n)
    return np.column_stack([season, warmth, rain, weekend, customers]).astype(float)


names = ["season", "warmth", "rain", "weekend", "customers"]
kinds = ["categorical", "gaussian", "bernoulli", "bernoulli", "gaussian"]
train, test = draw_days(600), draw_days(400)

# %%
# A dependency network has a predictor for each column, which is trained on copies of
# the rows with some of the other columns hidden. Forests are the default. Linear models
# take no NaN, so hidden inputs are replaced by 0 and indicators.

how = {"likelihood": kinds, "random_state": 0}
boosting = (
    HistGradientBoostingClassifier(max_iter=40, learning_rate=0.1),
    HistGradientBoostingRegressor(max_iter=40, learning_rate=0.1),
)
models = {
    "forests": MPTDependencyNetwork(**how),
    "boosting": MPTDependencyNetwork(*boosting, **how),
    "linear": MPTDependencyNetwork(
        LogisticRegression(max_iter=500), BayesianRidge(), **how
    ),
    "autoencoder": MPTMaskedAutoencoder(n_iter_no_change=5, **how),
}
for model in models.values():
    model.fit(train)
print(compare_lml(models, test, random_state=0))

# %%
# The curve shows where they differ: with most columns hidden all predict alike, and
# with few hidden the linear models cannot use the product of rain and weekend.

figure, ax = plt.subplots(layout="constrained")
for name, model in models.items():
    curve = mpt_curve(model, test, n_masks=10, random_state=0)
    MPTCurveDisplay(curve).plot(ax=ax, fill=False, name=name)
ax.set_title("Score by number of hidden columns")
ax.legend()
plt.show()

# %%
# Every order of the columns is a model of its own. If the conditionals belonged to one
# joint distribution, all orders would agree. Here is the standard deviation of each row
# over eight of them.

orders = np.random.default_rng(0).permuted(
    np.tile(np.arange(test.shape[1]), (8, 1)), axis=1
)
spreads = [
    np.std([order_log_prob(model, test, order) for order in orders], axis=0, ddof=1)
    for model in models.values()
]
figure, ax = plt.subplots(layout="constrained")
ax.boxplot(spreads, tick_labels=list(models), showfliers=False)
ax.set(ylabel="nats", title="Spread over orders, by row")
plt.show()

# %%
# One column is hidden in each row, and filled in by what the model expects: the error
# of customers and the share of wrong seasons. The dotted line is the noise of
# customers, below which no model gets.

errors = {}
for name, model in models.items():
    gaps = test.copy()
    gaps[:, 4] = np.nan
    of_customers = np.sqrt(np.mean((model.impute(gaps)[:, 4] - test[:, 4]) ** 2))
    gaps = test.copy()
    gaps[:, 0] = np.nan
    errors[name] = of_customers, np.mean(model.impute(gaps)[:, 0] != test[:, 0])
place = np.arange(len(models))
figure, ax = plt.subplots(layout="constrained")
ax.bar(place - 0.2, [e[0] for e in errors.values()], 0.4, label="customers: rmse")
ax.bar(place + 0.2, [e[1] for e in errors.values()], 0.4, label="season: wrong")
ax.axhline(0.2, color="k", lw=0.8, ls=":")
ax.set_xticks(place, list(models))
ax.set_title("Errors of what is filled in")
ax.legend()
plt.show()
