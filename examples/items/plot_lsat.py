"""
============================================================
Item response theory: difficulty, discrimination and ability
============================================================

The two-parameter logistic model (2PL) says that a person of ability z answers question
j rightly with probability

.. math:: P(x_j = 1 \\mid z) = \\frac{1}{1 + \\exp(-a_j (z - b_j))},

with a discrimination :math:`a_j` and a difficulty :math:`b_j`. Does it fit, would equal
discriminations do, and what do five questions say of a person?
"""

import matplotlib.pyplot as plt
import numpy as np

from sklearn_mpt import ItemCurveDisplay, MPTItemResponse

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

model = MPTItemResponse(model="2pl").fit(X, sample_weight=n_people)
log_likelihood = model.log_likelihood(X, n_people)
print(f"Log-likelihood: {log_likelihood:.2f} (ltm: -2466.65)")

# %%
# Questions
# ---------
#
# Estimates and standard errors, those of difficulties by the delta method, beside those
# of the R package ltm [2]_.

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
parameters = model.item_parameters(X, n_people)
for name, theirs in LTM.items():
    ours = getattr(parameters, name), getattr(parameters, f"{name}_std_error")
    print(f"\n{name:15} {'':7} s.e.   {'ltm':>7} s.e.")
    for j, row in enumerate(zip(*ours, *theirs, strict=True)):
        print("question {}:     {:7.3f} {:.3f}  {:7.3f} {:.3f}".format(j + 1, *row))

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
ItemCurveDisplay.from_estimator(model, ax=left)
theta = np.linspace(-4, 4, 201)
right.plot(theta, model.information(theta).test)
right.set(xlabel="Ability", ylabel="Information of the test")
plt.show()

# %%
# Does it fit?
# ------------
#
# M2 compares the shares of right answers, to each question and to each pair, with those
# expected; S-X2 for each question those of people with the same number of right
# answers.

fit = model.model_fit(X, n_people)
low, high = fit.rmsea_interval
print(f"M2 = {fit.m2:.2f} on {fit.df} degrees of freedom, p = {fit.p:.2f}")
print(f"RMSEA = {fit.rmsea:.3f}, 90% interval {low:.3f} to {high:.3f}")
by_item = model.item_fit(X, n_people)
print("p-values of S-X2:", by_item.p_s_x2.round(2))

# %%
# Nothing speaks against it, nor against the simpler model in which all questions
# discriminate alike (Rasch): they are few, and equally good.

rasch = MPTItemResponse(model="rasch").fit(X, sample_weight=n_people)
test = model.likelihood_ratio_test(rasch, X, n_people)
print(f"2PL against Rasch: {test.statistic:.2f} on {test.df}, p = {test.p_value:.2f}")
print(f"AIC: {model.aic(X, n_people):.1f} (2PL), {rasch.aic(X, n_people):.1f} (Rasch)")

# %%
# People
# ------
#
# Abilities are means of the posterior (EAP), its modes (MAP), or maximum likelihood
# estimates, infinite where all answers are right or wrong. Questions left out are NaN.

few = np.array([[0, 0, 0, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [np.nan] * 4 + [1]])
for method in ("eap", "map", "ml"):
    theta, error = model.abilities(few, method=method)
    pairs = zip(theta[:, 0], error[:, 0], strict=True)
    print(f"{method:4}", "  ".join(f"{t:6.2f} ± {e:.2f}" for t, e in pairs))
reliability = model.reliability(X, n_people)
print(f"Reliability of five questions: {reliability.empirical[0]:.2f}")

# %%
# The test is an easy one: most people are far above most difficulties, so the questions
# distinguish weak people, and strong ones hardly.

everybody = np.repeat(X, n_people, axis=0)
figure, (people, questions) = plt.subplots(
    1, 2, sharey=True, width_ratios=[1, 2], layout="constrained"
)
people.hist(model.abilities(everybody).theta[:, 0], bins=25, orientation="horizontal")
people.invert_xaxis()
people.set(xlabel="Number of people", ylabel="Ability and difficulty")
questions.plot(np.arange(1, 6), model.difficulty_, "o", color="C1")
questions.set(xlabel="Question", xticks=np.arange(1, 6))
questions.grid(axis="y", alpha=0.3)
plt.show()

# %%
# .. rubric:: References
#
# .. [1] R. D. Bock and M. Lieberman, "Fitting a response model for n dichotomously
#    scored items", Psychometrika 35, 1970.
# .. [2] D. Rizopoulos, "ltm: an R package for latent variable modeling and item
#    response theory analyses", Journal of Statistical Software 17(5), 2006.
