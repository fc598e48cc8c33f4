"""
=======================================
A scale of a survey, from left to right
=======================================

Where people stand in politics shows in several answers of a survey, on scales of
different lengths. A graded response model makes one scale of them, measures the
information of each answer, and places everybody on it with a standard error, those who
left questions out as well.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from sklearn_mpt import ItemCurveDisplay, MPTItemResponse

# %%
# 944 people, before the American election of 1996: where they place themselves and the
# two candidates from left to right, on seven steps, their party from Democrat to
# Republican, on as many, and whether they will vote for Dole. The answers are in
# ``anes96.csv`` of the examples of tables. A tenth goes missing.
#
# The party and the vote nearly are the scale: maximum likelihood would have it that
# they are, with slopes without bounds, and a warning would say so. A prior of the
# slopes lets the others have their say.

here = Path(__file__).parent if "__file__" in globals() else Path()
raw = pd.read_csv(here / ".." / "tables" / "anes96.csv")
true = pd.DataFrame(
    {
        "self": raw["selfLR"] - 1,
        "party": raw["PID"],
        "vote": raw["vote"],
        "Dole": raw["DoleLR"] - 1,
        "Clinton": raw["ClinLR"] - 1,
    }
)
rng = np.random.default_rng(0)
answers = true.mask(rng.random(true.shape) < 0.1)

kinds = ["graded", "graded", "2pl", "graded", "graded"]
model = MPTItemResponse(model=kinds, slope_prior=2.0).fit(answers)
table = model.item_parameters(answers, as_frame=True)
print(table[["discrimination", "discrimination_std_error"]].round(2).to_string())

# %%
# The curves of the answers to one question say where on the scale each is the most
# probable one, and the information shows where the questions distinguish people.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
ItemCurveDisplay.from_estimator(model, items="party", ax=left)
theta = np.linspace(-4, 4, 201)
right.plot(theta, model.information(theta).items, label=list(answers.columns))
right.set(xlabel="Ability", ylabel="Information")
right.legend()
plt.show()

# %%
# What is missing
# ---------------
#
# Answers that were left out are filled in with the median, given all others. How far
# off is that?

gaps = answers.isna().to_numpy()
for name, filled in {
    "median given the others": model.impute(answers),
    "most frequent answer": np.tile(answers.mode().iloc[0], (len(answers), 1)),
}.items():
    off = np.abs(np.asarray(filled) - true.to_numpy())[gaps].mean()
    print(f"{name:25} {off:.2f} steps")

# %%
# Everybody has a place on the scale, with a standard error that grows as answers are
# missing.

theta, error = model.abilities(answers)
n_missing = gaps.sum(axis=1)
for count in range(4):
    here = n_missing == count
    print(f"{count} missing: {here.sum():4} people, error {error[here].mean():.2f}")

# %%
# Is it one scale?
# ----------------
#
# Residuals of two answers should not correlate, but for negative values where a scale
# is short, where one answer leaves less variation to the other. The places that people
# give to the two candidates are related beyond their own place, and Dole's has no
# information about it.

q3 = model.residual_correlations(answers)
q3 = pd.DataFrame(q3, answers.columns, answers.columns)
print(q3.round(2).to_string())

# %%
# Do the answers mean the same to the old and to the young? A test for each, with all
# others as anchors, lets the two groups differ in mean and variance.

is_old = np.asarray(raw["age"] > raw["age"].median())
test = model.dif(answers, is_old)
for row in zip(answers, test.statistic, test.df, test.p_value, strict=True):
    print("{:8} {:6.1f} on {}, p = {:.3f}".format(*row))
