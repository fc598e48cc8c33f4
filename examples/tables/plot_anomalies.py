"""
==============================
Anomaly detection with reasons
==============================

This example finds anomalous rows and explains them. The score of a row is its log
marginal likelihood. The threshold is a quantile of the scores of rows that are known to
be normal. The reason is given by the features that contribute least to the score.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_mpt import MPTLinearVAE, feature_contributions

# %%
# A detector trained on normal rows
# ---------------------------------
#
# The data are measurements of 569 tumours. The model is factor analysis, in a Pipeline
# that standardises, trained on three quarters of the benign tumours. The threshold is
# the 5% quantile of the scores of the training rows; rows below it are called odd. The
# test rows are the other benign tumours, of which about 5% should be odd, and all
# malignant tumours.

data = load_breast_cancer()
benign, malignant = data.data[data.target == 1], data.data[data.target == 0]


def fit(rows):
    model = MPTLinearVAE(n_components=2, noise="per_feature", random_state=0)
    return make_pipeline(StandardScaler(), model).fit(rows)


train, test = train_test_split(benign, random_state=0)
detector = fit(train)
threshold = np.quantile(detector.score_samples(train), 0.05)
print(f"Threshold: {threshold:.1f} nats")
for name, rows in {"benign": test, "malignant": malignant}.items():
    odd = detector.score_samples(rows) < threshold
    print(f"{name}: {odd.mean():.1%} of {len(rows)} are odd")

# %%
# The area under the ROC curve measures, for all thresholds together, how well a score
# ranks malignant rows below benign rows. It is compared with that of an isolation
# forest, over ten ways to split the benign rows.


def area(model, sound, odd):
    score = -model.score_samples(np.concatenate([sound, odd]))
    return roc_auc_score(np.repeat([0, 1], [len(sound), len(odd)]), score)


areas = []
for seed in range(10):
    train_, test_ = train_test_split(benign, random_state=seed)
    models = [fit(train_), IsolationForest(random_state=seed).fit(train_)]
    areas.append([area(model, test_, malignant) for model in models])
areas = np.array(areas)
for name, column in zip(["likelihood", "isolation forest"], areas.T, strict=True):
    print(f"Area under the ROC curve, {name}: {column.mean():.3f}")
difference = areas[:, 0] - areas[:, 1]
higher = np.count_nonzero(difference > 0)
print(f"Difference: {difference.mean():.3f}; the likelihood is ahead in {higher} of 10")

# %%
# The training rows must be normal. If four of ten training rows are malignant,
# malignant rows are as likely as others, and a detector without labels cannot find
# them.

everything = [fit(data.data), IsolationForest(random_state=0).fit(data.data)]
for name, model in zip(["likelihood", "isolation forest"], everything, strict=True):
    print(f"Fitted to all rows, {name}: {area(model, benign, malignant):.3f}")

# %%
# The reasons
# -----------
#
# The contributions of the features add up to the score of the row. The contribution of
# a feature, minus its mean over the training rows, shows how unusual the feature is.
# Here are those of the malignant row with the median score.

scores = detector.score_samples(malignant)
row = malignant[np.argsort(scores)[len(scores) // 2]][None]
usual, own = (
    feature_contributions(
        detector[-1], detector[:-1].transform(rows), n_orders=20, random_state=0
    )
    for rows in (train[:100], row)
)
blame = own[0] - usual.mean(axis=0)
lowest = np.argsort(blame)[:6]
z = detector[0].transform(row)[0]
for j in lowest:
    print(f"{data.feature_names[j]:24}{blame[j]:7.1f} nats, {z[j]:+.1f} deviations")

# %%
# The left panel shows the share of each group with a score below a number of nats. The
# axis is linear down to -100 nats and logarithmic below. The right panel shows the
# contributions.

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
for rows, label, color in (
    (test, "benign, not trained on", "#0072B2"),
    (malignant, "malignant", "#D55E00"),
):
    left.ecdf(detector.score_samples(rows), color=color, label=label)
left.axvline(threshold, color="black", lw=1, linestyle="--", label="threshold")
left.set_xscale("symlog", linthresh=100)
left.set_xticks([-1000, -100, -50, 0], ["-1000", "-100", "-50", "0"])
left.set_xlim(right=10)
left.set(xlabel="Log marginal likelihood (nats)", ylabel="Share of rows below")
left.legend(loc="upper left", fontsize="small")
right.barh(data.feature_names[lowest][::-1], blame[lowest][::-1], color="#D55E00")
right.set(xlabel="Contribution less that of usual rows (nats)")
plt.show()
