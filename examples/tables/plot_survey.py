"""
================================
Survey data with missing answers
================================

Answers to a survey are numbers, ordered scales and yes or no, and some are missing.
Here one model of all columns fills in the answers inside a Pipeline, for predictions,
and draws them several times, for standard errors that account for the missing answers
(multiple imputation).
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from sklearn_mpt import MPTImputer, MPTLinearVAE, pool_estimates

# %%
# The rows are 944 people before the election of 1996. They placed themselves and the
# two candidates on a scale from left (1) to right (7). The other columns are their
# party, from Democrat (0) to Republican (6), education, evenings of television news,
# age, income, and the candidate they will vote for. The answers are in
# :download:`anes96.csv <anes96.csv>`. A fifth of all answers is removed, and half of
# the answers in which Democrats (0 to 2) place themselves.

here = Path(__file__).parent if "__file__" in globals() else Path()
raw = pd.read_csv(here / "anes96.csv")
scales = ["selfLR", "ClinLR", "DoleLR", "PID", "educ", "TVnews"]
survey = raw[scales].astype(int).astype("category")
survey = survey.assign(**raw[["age", "income"]])
for_dole = raw["vote"] == 1
rng = np.random.default_rng(0)
gaps = survey.mask(rng.random(survey.shape) < 0.2)
is_silent = (raw["PID"] <= 2) & (rng.random(len(survey)) < 0.5)
gaps["selfLR"] = gaps["selfLR"].mask(is_silent)
print(gaps.head().to_string(na_rep=""))

# %%
# Fill in, and predict
# --------------------
#
# ``likelihood="from_dtype"`` chooses the distribution of each column by its dtype. The
# result is a table with the same dtypes, so the rest of the Pipeline stays the same.

model = MPTLinearVAE(n_components=1, likelihood="from_dtype", tol=1e-3, random_state=0)
pipe = make_pipeline(
    MPTImputer(model),
    make_column_transformer(
        (OneHotEncoder(), make_column_selector(dtype_include="category")),
        (StandardScaler(), make_column_selector(dtype_include="number")),
    ),
    LogisticRegression(max_iter=1000),
)
accuracy = cross_val_score(pipe, gaps, for_dole, cv=3)
print(f"Accuracy with gaps: {accuracy.mean():.3f}")
print(f"Without: {cross_val_score(pipe[1:], survey, for_dole, cv=3).mean():.3f}")

# %%
# Interpret the component
# -----------------------
#
# The component is a scale from left to right, which was not a question of the survey.
# The figure shows the probability of each answer along it.

model = model.fit(gaps)
ends = np.cumsum(
    [len(known) if known is not None else 1 for known in model.categories_]
)
z = np.linspace(-2.5, 2.5, 101)
figure, axes = plt.subplots(1, 3, figsize=(9.5, 3), layout="constrained", sharey=True)
titles = {
    "selfLR": "own place (selfLR)",
    "ClinLR": "place of Clinton (ClinLR)",
    "PID": "party (PID)",
}
for ax, (name, title) in zip(axes, titles.items(), strict=True):
    column = survey.columns.get_loc(name)
    known = model.categories_[column]
    places = slice(ends[column] - len(known), ends[column])
    logits = np.outer(z, model.components_[0, places]) + model.intercept_[places]
    share = np.exp(logits - np.logaddexp.reduce(logits, axis=1)[:, None])
    colors = plt.get_cmap("PuOr_r")(np.linspace(0, 1, len(known)))
    ax.stackplot(z, share.T, labels=known, colors=colors, edgecolor="white", lw=0.3)
    ax.set(title=title, xlabel="Component z", xlim=(z[0], z[-1]), ylim=(0, 1))
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.25), "ncols": len(known)}
    legend = ax.legend(**below, fontsize="x-small", handlelength=0.8, columnspacing=0.8)
    for patch in legend.get_patches():
        patch.set_edgecolor("0.5")  # the middle colour is nearly white
axes[0].set_ylabel("Probability of each answer")
plt.show()

# %%
# Multiple imputation
# -------------------
#
# What is the mean position of people on the scale from left to right? People who
# answered are further to the right than the others, as their other answers show. If
# missing answers are replaced by the most probable ones, the standard error of the mean
# is too small, because filled-in answers count as if they had been given. Multiple
# imputation draws them instead. Each of ten tables comes from a model that is fitted to
# people drawn with replacement, so that the uncertainty of the model counts too. By
# Rubin's rules the estimate is the mean of the ten estimates; its variance is
# the mean of their variances, plus 1 + 1 / 10 times the variance between them.


def place(answers):
    """Mean of the answers, and its variance."""
    answers = answers.dropna().astype(float)
    return answers.mean(), answers.var() / len(answers)


imputer = MPTImputer(model, n_imputations=10, random_state=0).fit(gaps)
tables = imputer.transform_multiple(gaps)
pooled = pool_estimates(*np.transpose([place(table["selfLR"]) for table in tables]))
answers = {
    "nothing missing": place(survey["selfLR"]),
    "those who say": place(gaps["selfLR"]),
    "most probable answers": place(imputer.transform(gaps)["selfLR"]),
    "ten draws, pooled": (pooled.estimate, pooled.std_error**2),
}
for name, (estimate, variance) in answers.items():
    print(f"{name:22} {estimate:.3f} +- {variance**0.5:.3f}")
print("95% interval: {:.2f} to {:.2f}".format(*pooled.interval()))
print(f"Share of the information that is missing: {pooled.fraction_missing:.2f}")
