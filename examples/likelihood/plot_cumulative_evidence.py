r"""
==============================================
Evidence of parameters is cross-validation too
==============================================

Which degree has a polynomial? A Bayesian answer is the evidence: the probability of the
data when the coefficients are drawn from their prior. `Fong and Holmes (2020)
<https://doi.org/10.1093/biomet/asz077>`_ showed that its logarithm is a sum of
cross-validated scores over all sizes of the held-out set. So predictions alone give it,
by :func:`~sklearn_mpt.cumulative_cv_score`, for any estimator that predicts with
probabilities. They also show what the prior decides, and what the data.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats
from sklearn.base import BaseEstimator, RegressorMixin

from sklearn_mpt import compare_evidence, cumulative_cv_score


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
# The same number by two routes
# =============================
#
# From no row on, each row is predicted from those before it. The sum is the evidence,
# whatever the order of the rows.

result = cumulative_cv_score(
    BayesianPolynomial(3), X, y, n_start=0, n_orders=5, random_state=0
)
exact = BayesianPolynomial(3).log_evidence(X, y)
print(f"closed form {exact:.10f}, along five orders {result.scores.round(10)}")

# %%
# What it is a sum of
# ===================
#
# After k rows the next one is predicted with a certain score. That is leave-p-out
# cross-validation, with p = n - k. A vague prior loses in the first few rows, which it
# calls very unlikely. From then on it is as good as the other.

options = {"n_start": 0, "n_orders": 10, "random_state": 0}
figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for variance in (1.0, 1e4):
    model = BayesianPolynomial(3, prior_variance=variance)
    of_prior = cumulative_cv_score(model, X, y, **options)
    of_prior.plot(axes[0], name=f"prior variance {variance:g}")
axes[0].set_title("Degree 3")

# %%
# Which degree
# ============
#
# So the degree that the evidence chooses depends on the prior: the vaguer it is, the
# lower the degree. If ten rows are seen first, their posterior takes the place of the
# prior, and the answer hardly moves. That is what ``n_start`` is for; its default,
# "auto", is a tenth of the rows.

degrees, variances = range(1, 6), [0.1, 1.0, 10.0, 1e3, 1e5, 1e7]
for n_start, style in ((0, "o-"), (10, "s--")):
    chosen = []
    for variance in variances:
        n_orders = 1 if n_start == 0 else 5  # all orders agree on the whole evidence
        table = compare_evidence(
            {
                str(degree): cumulative_cv_score(
                    BayesianPolynomial(degree, variance), X, y,
                    n_start=n_start, n_orders=n_orders, random_state=0,
                )
                for degree in degrees
            }
        )  # fmt: skip
        probability = dict(zip(table.names, table.probability, strict=True))
        chosen.append(sum(int(name) * p for name, p in probability.items()))
    axes[1].semilogx(variances, chosen, style, label=f"{n_start} rows seen first")
axes[1].set(
    xlabel="Prior variance of the coefficients",
    ylabel="Posterior mean of the degree",
    ylim=(0.8, 4.2),
)
axes[1].legend()
plt.show()

# %%
# The table of the last prior, after ten rows: log Bayes factors and posterior
# probabilities, with standard errors over orders of the rows.

print(table)
