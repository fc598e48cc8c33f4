r"""
================================================
Bayesian evidence as cumulative cross-validation
================================================

Which degree should a polynomial have? A Bayesian answer is the evidence: the
probability of the data if the coefficients are drawn from their prior. `Fong and Holmes
(2020) <https://doi.org/10.1093/biomet/asz077>`_ showed that its logarithm is a sum of
cross-validation scores over all sizes of the validation set. So
:func:`~sklearn_mpt.cumulative_cv_score` computes it from predictions, for any estimator
that predicts with probabilities. The scores also show how far the choice depends on the
prior, and how far on the data.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats
from scipy.special import softmax
from sklearn.base import BaseEstimator, RegressorMixin

from sklearn_mpt import cumulative_cv_score


class BayesianPolynomial(RegressorMixin, BaseEstimator):
    """Normal coefficients of a known prior variance, and noise of a known variance."""

    def __init__(self, degree=1, prior_variance=1.0, noise_variance=0.25):
        self.degree = degree
        self.prior_variance = prior_variance
        self.noise_variance = noise_variance

    def _design(self, X):
        return np.polynomial.legendre.legvander(np.ravel(X), self.degree)

    def fit(self, X, y):
        H = self._design(X)
        precision = H.T @ H / self.noise_variance
        precision += np.eye(self.degree + 1) / self.prior_variance
        self.covariance_ = np.linalg.inv(precision)
        self.coef_ = self.covariance_ @ H.T @ y / self.noise_variance
        return self

    def predict(self, X, return_std=False):
        H = self._design(X)
        mean, spread = H @ self.coef_, np.sum(H @ self.covariance_ * H, axis=1)
        std = np.sqrt(spread + self.noise_variance)
        return (mean, std) if return_std else mean

    def log_evidence(self, X, y):
        H = self._design(X)
        covariance = self.prior_variance * H @ H.T + self.noise_variance * np.eye(
            len(y)
        )
        return stats.multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)


rng = np.random.default_rng(1)
X = rng.uniform(-1, 1, size=(40, 1))
y = 1 - X[:, 0] + 1.2 * X[:, 0] ** 2 - 1.5 * X[:, 0] ** 3 + 0.5 * rng.normal(size=40)

# %%
# The same number computed in two ways
# ====================================
#
# Each row is predicted from the rows before it, the first one from the prior. The sum
# of the log-probabilities is the log evidence, for any order of the rows.

result = cumulative_cv_score(
    BayesianPolynomial(3), X, y, n_start=0, n_orders=5, random_state=0
)
exact = BayesianPolynomial(3).log_evidence(X, y)
print(f"closed form {exact:.10f}, along five orders {result.scores.round(10)}")

# %%
# Evidence as a sum of cross-validation scores
# ============================================
#
# The score of the next row after k rows is a score of leave-p-out cross-validation,
# with p = n - k. Under a vague prior the first few rows are very unlikely. After these
# rows, its scores equal those of the other prior.

options = {"n_start": 0, "n_orders": 10, "random_state": 0}
_, ax = plt.subplots(layout="constrained")
for variance in (1.0, 1e4):
    model = BayesianPolynomial(3, prior_variance=variance)
    of_prior = cumulative_cv_score(model, X, y, **options)
    of_prior.plot(ax, name=f"prior variance {variance:g}")
ax.set_title("Degree 3")
plt.show()

# %%
# Choosing the degree
# ===================
#
# So the degree that the evidence chooses depends on the prior: the vaguer the prior,
# the lower the degree. If scoring starts after ten rows, the posterior given these rows
# takes the place of the prior, and the choice hardly depends on the prior. The
# parameter ``n_start`` sets this number of rows; its default, "auto", is a tenth of the
# rows.

degrees, variances = range(1, 6), [0.1, 1.0, 10.0, 1e3, 1e5, 1e7]
_, ax = plt.subplots(layout="constrained")
for n_start, style in ((0, "o-"), (10, "s--")):
    chosen = []
    for variance in variances:
        n_orders = 1 if n_start == 0 else 5  # all orders agree on the whole evidence
        how = {"n_start": n_start, "n_orders": n_orders, "random_state": 0}
        results = [
            cumulative_cv_score(BayesianPolynomial(degree, variance), X, y, **how)
            for degree in degrees
        ]
        probability = softmax([result.log_evidence for result in results])
        chosen.append(probability @ degrees)
    ax.semilogx(variances, chosen, style, label=f"{n_start} rows seen first")
ax.set(
    xlabel="Prior variance of the coefficients",
    ylabel="Posterior mean of the degree",
    ylim=(0.8, 4.2),
)
ax.legend()
plt.show()

# %%
# The last prior, after ten rows: log Bayes factors to the most probable degree, with
# standard errors over the orders of the rows, which all degrees share, and posterior
# probabilities.

best = results[probability.argmax()]
for degree, result, p in zip(degrees, results, probability, strict=True):
    factor = result.scores - best.scores
    error = factor.std(ddof=1) / np.sqrt(len(factor))
    print(f"degree {degree}: {factor.mean():7.2f} ± {error:.2f}, probability {p:.3f}")
