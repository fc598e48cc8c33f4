"""
============================================================
Item response theory: difficulty, discrimination and ability
============================================================

In the two-parameter logistic model (2PL), a person of ability z answers question j
correctly with probability

.. math:: P(x_j = 1 \\mid z) = \\frac{1}{1 + \\exp(-a_j (z - d_j))},

where :math:`a_j` is the discrimination and :math:`d_j` the difficulty of the question.
This is :class:`~sklearn_mpt.MPTLinearVAE` with one component and binary features: the
component holds the discriminations, and the intercepts are :math:`-a_j d_j`. This
example compares estimates and standard errors with those of the R package ltm [2]_.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import expit

from sklearn_mpt import MPTLinearVAE

# %%
# Section 6 of the Law School Admission Test, 1000 people and five questions: which were
# answered rightly, and by how many people [1]_. People who answered alike are one row,
# whose weight is their number.

ANSWERS = """00000 3    00001 6    00010 2    00011 11   00100 1    00101 1
             00110 3    00111 4    01000 1    01001 8    01011 16   01101 3
             01110 2    01111 15   10000 10   10001 29   10010 14   10011 81
             10100 3    10101 28   10110 15   10111 80   11000 16   11001 56
             11010 21   11011 173  11100 11   11101 61   11110 28   11111 298""".split()
X = np.array([list(map(int, pattern)) for pattern in ANSWERS[::2]])
n_people = np.array(ANSWERS[1::2], dtype=int)

model = MPTLinearVAE(1, likelihood="bernoulli", tol=1e-7, random_state=0)
model = model.fit(X, sample_weight=n_people)
log_likelihood = n_people.sum() * model.score(X, sample_weight=n_people)
print(f"Log-likelihood: {log_likelihood:.2f} (ltm: -2466.65)")

# %%
# Difficulty and discrimination
# -----------------------------
#
# A difficulty is a ratio, minus intercept over slope, and its standard error follows
# from those of the two and their covariance, to first order (the delta method). Slopes
# are a little smaller than those of ltm, by a hundredth of their errors: they have a
# weak normal prior, without which a question that splits people perfectly would have no
# finite one.

errors = model.standard_errors(X, sample_weight=n_people)
slope, intercept = model.components_[0], model.intercept_
difficulty = -intercept / slope
gradient = np.column_stack([-difficulty, -np.ones(5)]) / slope[:, None]
variance = np.einsum("ji,jik,jk->j", gradient, errors.covariance, gradient)

LTM = {  # estimates and standard errors of ltm(LSAT ~ z1) in R
    "discrimination": (
        [0.8254, 0.7229, 0.8905, 0.6886, 0.6575],
        [0.2581, 0.1867, 0.2326, 0.1852, 0.2100],
    ),
    "difficulty": (
        [-3.3597, -1.3696, -0.2799, -1.8659, -3.1236],
        [0.8669, 0.3073, 0.0997, 0.4341, 0.8700],
    ),
}
ours = {
    "discrimination": (slope, errors.components[0]),
    "difficulty": (difficulty, np.sqrt(variance)),
}
for name, (estimate, std_error) in ours.items():
    print(f"\n{name:15} {'':7} s.e.   {'ltm':>7} s.e.")
    for j, row in enumerate(zip(estimate, std_error, *LTM[name], strict=True)):
        print("question {}:     {:7.3f} {:.3f}  {:7.3f} {:.3f}".format(j + 1, *row))

# %%
# Abilities
# ---------
#
# The posterior distribution of z has a mean and a variance for every pattern, and for
# people who left questions out: these are NaN. Five questions say little of anybody.

mean, covariance = model.posterior(X)
deviation = np.sqrt(covariance[:, 0, 0])
for pattern in ([0, 0, 0, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]):
    i = np.flatnonzero((X == pattern).all(axis=1))[0]
    print(f"{pattern}: {mean[i, 0]:6.3f} +- {deviation[i]:.3f}")
one_answer = np.array([[np.nan, np.nan, 1, np.nan, np.nan]])
(one_mean,), (one_covariance,) = model.posterior(one_answer)
print(f"question 3 alone: {one_mean[0]:6.3f} +- {one_covariance[0, 0] ** 0.5:.3f}")

# %%
# The curves of the questions, with 95% bands, and the abilities that the patterns stand
# for, by the number of right answers. Patterns with the same number differ: a question
# that discriminates well counts more.

z = np.linspace(-4.5, 3, 200)
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
colors = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"]
for j, color in enumerate(colors):
    logit = slope[j] * z + intercept[j]
    at = np.column_stack([z, np.ones(len(z))])
    spread = 1.96 * np.sqrt(((at @ errors.covariance[j]) * at).sum(axis=1))
    left.fill_between(
        z, expit(logit - spread), expit(logit + spread), color=color, alpha=0.15
    )
    left.plot(z, expit(logit), color=color, label=f"question {j + 1}")
left.set(xlabel="Ability z", ylabel="Probability of a right answer", ylim=(0, 1))
left.legend(loc="lower right")
for n_right in range(6):
    alike = np.flatnonzero(X.sum(axis=1) == n_right)
    alike = alike[np.argsort(mean[alike, 0])]
    place = n_right + 0.07 * (np.arange(len(alike)) - (len(alike) - 1) / 2)
    style = {"fmt": "o", "ms": 3, "lw": 0.8, "color": "#0072B2"}
    right.errorbar(place, mean[alike, 0], deviation[alike], **style)
right.set(xlabel="Number of right answers", ylabel="Ability z, mean ± deviation")
plt.show()

# %%
# .. rubric:: References
#
# .. [1] R. D. Bock and M. Lieberman, "Fitting a response model for n dichotomously
#    scored items", Psychometrika 35, 1970.
# .. [2] D. Rizopoulos, "ltm: an R package for latent variable modeling and item
#    response theory analyses", Journal of Statistical Software 17(5), 2006.
