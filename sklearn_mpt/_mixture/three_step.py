r"""The third step of analyses of classes: covariates of classes, and outcomes of them.

The first step fits a mixture, the second assigns each row i to its most probable class
:math:`w_i`. Assignments have errors, with probabilities

.. math:: D_{st} = P(w = t \mid s)
    = \sum_{i : w_i = t} P(s \mid x_i) \Big/ \sum_i P(s \mid x_i),

which the third step corrects. The method of Bolck, Croon and Hagenaars [1]_ gives row i
the weights :math:`(D^{-1})_{w_i s}`, some of them negative, of which the mean given the
class is 1 for this class and 0 for the others. Maximum likelihood [2]_ maximises
:math:`\sum_i \log \sum_s P(s \mid z_i) D_{s w_i} p(y_i \mid s)`.

References
----------
.. [1] A. Bolck, M. Croon and J. Hagenaars, "Estimating latent structure models with
   categorical variables: one-step versus three-step estimators", Political Analysis 12,
   2004.
.. [2] J. K. Vermunt, "Latent class modeling with covariates: two improved three-step
   approaches", Political Analysis 18, 2010.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.stats import chi2
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt._checks import warn_caller
from sklearn_mpt._information.linear import information_by_hessian
from sklearn_mpt._information.louis import covariance_of
from sklearn_mpt._likelihoods.base import column_moments, column_scales
from sklearn_mpt._likelihoods.gaussian import normal_log_prob
from sklearn_mpt._messages import listed

CORRECTIONS = "bch", "ml", "none"


class CovariateEffects(NamedTuple):
    """Multinomial logit of classes on covariates.

    The log-odds of class k beside the class `reference` are intercept[k] + coef[k] @ z.

    Attributes
    ----------
    intercept, intercept_std_error : ndarray of shape (n_components,)
        0 for the class `reference`.
    coef, coef_std_error : ndarray of shape (n_components, n_covariates)
        0 for the class `reference`.
    covariance : ndarray of shape (n_components, 1 + n_covariates) twice
        Covariances of the intercept and coefficients of two classes.
    statistic, p_value : ndarray of shape (n_covariates,)
        Wald's tests that a covariate has no effect, with n_components - 1 degrees of
        freedom.
    assignment : ndarray of shape (n_components, n_components)
        Probability that a row of a class (first axis) is assigned to a class.
    """

    intercept: np.ndarray
    intercept_std_error: np.ndarray
    coef: np.ndarray
    coef_std_error: np.ndarray
    covariance: np.ndarray
    statistic: np.ndarray
    p_value: np.ndarray
    assignment: np.ndarray


class ClassOutcomes(NamedTuple):
    """Means of an outcome in each class, or probabilities of its categories.

    Attributes
    ----------
    estimate, std_error : ndarray of shape (n_components,) or (n_components, n_values)
        Means of an outcome of numbers; or probabilities of the categories.
    covariance : ndarray
        Of `estimate`, flattened.
    statistic, p_value : float
        Wald's test that all classes are alike.
    categories : ndarray of shape (n_values,), or None
        Categories of the outcome, sorted; None if it has numbers.
    assignment : ndarray of shape (n_components, n_components)
        Probability that a row of a class (first axis) is assigned to a class.
    """

    estimate: np.ndarray
    std_error: np.ndarray
    covariance: np.ndarray
    statistic: float
    p_value: float
    categories: np.ndarray | None
    assignment: np.ndarray


class Assignments:
    """Rows assigned to their most probable classes, and the errors of that.

    Parameters
    ----------
    proba : ndarray of shape (n, K)
        Probabilities of the classes.
    weight : ndarray of shape (n,)
    correction : {"bch", "ml", "none"}
        "none" takes the assignments as if they had no errors.

    Attributes
    ----------
    probability : ndarray of shape (K, K)
        Probability that a row of a class (first axis) is assigned to a class.
    """

    def __init__(self, proba, weight, correction):
        self.weight, self.correction = weight, correction
        self.classes = proba.argmax(axis=1)
        n_components = proba.shape[1]
        chosen = np.eye(n_components)[self.classes]
        empty = np.flatnonzero(weight @ chosen == 0)
        if len(empty):
            raise ValueError(
                f"Component(s) {listed(empty)} are the most probable ones of no row: "
                "classes overlap too much for an analysis in three steps. Use fewer "
                "components."
            )
        joint = (weight[:, None] * proba).T @ chosen
        self.probability = joint / joint.sum(axis=1, keepdims=True)

    @property
    def is_likelihood(self):
        return self.correction == "ml"

    def take(self, rows):
        """Return the assignments of some rows, with the errors of all."""
        part = object.__new__(type(self))
        part.__dict__ |= vars(self)
        part.weight, part.classes = self.weight[rows], self.classes[rows]
        return part

    def class_weights(self):
        """Return what each row counts in each class, (n, K); some are negative."""
        if self.correction == "none":
            return np.eye(len(self.probability))[self.classes]
        return np.linalg.inv(self.probability)[self.classes]

    def log_errors(self):
        """Return log P(assignment of the row | class), (n, K)."""
        with np.errstate(divide="ignore"):
            return torch.from_numpy(np.log(self.probability.T[self.classes]))


def covariate_effects(assignments, Z, reference):
    """Return `CovariateEffects`. Z : (n, c). reference : number of a class."""
    weight = assignments.weight
    mean, variance, _ = column_moments(Z, weight)
    scale = column_scales(mean, variance)
    Z1 = torch.from_numpy(np.insert((Z - mean) / scale, 0, 1.0, axis=1))
    n_components, width = len(assignments.probability), Z1.shape[1]
    others = np.delete(np.arange(n_components), reference)
    if assignments.is_likelihood:
        log_errors = assignments.log_errors()
    else:
        class_weights = torch.from_numpy(assignments.class_weights())

    def log_proba(theta):
        logits = Z1.new_zeros(len(Z1), n_components)
        logits[:, others] = Z1 @ theta.view(-1, width).T
        return logits.log_softmax(1)

    def log_prob(theta):
        log_proba_ = log_proba(theta)
        if assignments.is_likelihood:
            return (log_proba_ + log_errors).logsumexp(1)
        return (class_weights * log_proba_).sum(1)

    start = torch.zeros(len(others) * width, dtype=torch.float64)
    theta, information = maximum(log_prob, start, weight)
    covariance = covariance_of(information)
    if not assignments.is_likelihood:
        residual = (class_weights - log_proba(theta).exp())[:, others]
        scores = (residual[..., None] * Z1[:, None]).flatten(1).numpy()
        covariance = covariance @ ((weight * scores.T) @ scores) @ covariance
    # of standardised covariates, to theirs
    units = np.diag(np.r_[1.0, 1 / scale])
    units[0, 1:] = -mean / scale
    coefs = np.zeros((n_components, width))
    coefs[others] = theta.view(-1, width).numpy() @ units.T
    joint = np.zeros((n_components, width) * 2)
    blocks = covariance.reshape((len(others), width) * 2)
    joint[np.ix_(others, range(width), others, range(width))] = np.einsum(
        "ab,ibjc,dc->iajd", units, blocks, units
    )
    errors = np.sqrt(np.einsum("iaia->ia", joint))
    tests = [
        _wald(coefs[others, j], joint[np.ix_(others, [j], others, [j])])
        for j in range(1, width)
    ]
    statistic, p_value = np.reshape(tests, (-1, 2)).T
    return CovariateEffects(
        coefs[:, 0], errors[:, 0], coefs[:, 1:], errors[:, 1:], joint, statistic,
        p_value, assignments.probability,
    )  # fmt: skip


def class_outcomes(assignments, outcome, categories):
    """Return `ClassOutcomes`.

    outcome : numbers, or codes of categories, (n,). categories : of the codes, or None.
    """
    values = outcome[:, None]
    if categories is not None:
        values = (outcome[:, None] == np.arange(len(categories))).astype(float)
    if not assignments.is_likelihood:
        estimate, covariance = _weighted_means(assignments, values)
    elif categories is None:
        estimate, covariance = _means_by_likelihood(assignments, outcome)
    else:
        estimate, covariance = _proportions_by_likelihood(assignments, values)
    n_components, n_values = estimate.shape
    # Differences from the first class, of all but the last category.
    free = max(1, n_values - 1)
    contrast = np.insert(np.eye(n_components - 1), 0, -1.0, axis=1)
    contrast = np.kron(contrast, np.eye(n_values)[:free])
    tests = _wald(contrast @ estimate.ravel(), contrast @ covariance @ contrast.T)
    error = np.sqrt(covariance.diagonal()).reshape(estimate.shape)
    if categories is None:
        estimate, error = estimate[:, 0], error[:, 0]
    return ClassOutcomes(
        estimate, error, covariance, *tests, categories, assignments.probability
    )


def _weighted_means(assignments, values):
    """Return means of values (n, v) by class, (K, v), and their covariance."""
    class_weights, weight = assignments.class_weights(), assignments.weight
    total = weight @ class_weights
    mean = (weight[:, None] * class_weights).T @ values / total[:, None]
    influence = class_weights[..., None] * (values[:, None] - mean) / total[:, None]
    influence = influence.reshape(len(values), -1)
    return mean, (weight * influence.T) @ influence


def _means_by_likelihood(assignments, outcome):
    """Return means of normal distributions by class, (K, 1), and their covariance."""
    y, weight = outcome[:, None], assignments.weight
    mean, variance, _ = column_moments(y, weight)
    scale = column_scales(mean, variance)
    y, log_errors = torch.from_numpy((y - mean) / scale), assignments.log_errors()

    def log_prob(theta):
        log_odds, means, log_variances = theta.view(3, -1)
        entries = normal_log_prob((y - means) ** 2, log_variances.exp())
        return (log_odds.log_softmax(0) + log_errors + entries).logsumexp(1)

    assigned = np.eye(log_errors.shape[1])[assignments.classes]
    counts = weight @ assigned
    start_means = (weight[:, None] * assigned).T @ y.numpy()[:, 0] / counts
    start = np.stack([np.log(counts), start_means, np.zeros(len(counts))])
    theta, covariance = _maximum_and_covariance(log_prob, start, weight)
    K = len(counts)
    means = theta[K : 2 * K].numpy() * scale + mean
    return means[:, None], scale**2 * covariance[K : 2 * K, K : 2 * K]


def _proportions_by_likelihood(assignments, values):
    """Return proportions of categories by class, (K, C), and their covariance."""
    weight, log_errors = assignments.weight, assignments.log_errors()
    n_values, K = values.shape[1], log_errors.shape[1]
    codes = torch.from_numpy(values.argmax(axis=1))

    def log_proportions(theta):
        return theta[K:].view(K, n_values).log_softmax(1)

    def log_prob(theta):
        entries = log_proportions(theta).T[codes]
        return (theta[:K].log_softmax(0) + log_errors + entries).logsumexp(1)

    assigned = np.eye(K)[assignments.classes]
    counts = (weight[:, None] * assigned).T @ values + 0.5
    start = np.r_[np.log(counts.sum(axis=1)), np.log(counts).ravel()]
    constraints = np.zeros((1 + K, K + K * n_values))
    constraints[0, :K] = 1.0
    constraints[1:, K:] = np.kron(np.eye(K), np.ones(n_values))
    theta, covariance = _maximum_and_covariance(log_prob, start, weight, constraints)
    slope = torch.autograd.functional.jacobian(
        lambda theta: log_proportions(theta).exp().flatten(), theta
    ).numpy()
    proportions = log_proportions(theta).exp().numpy()
    return proportions, slope @ covariance @ slope.T


def _maximum_and_covariance(log_prob, start, weight, constraints=None):
    if constraints is None:  # log-odds are determined up to a constant
        constraints = np.zeros((1, start.size))
        constraints[0, : start.shape[1]] = 1.0
    theta, information = maximum(log_prob, torch.from_numpy(start.ravel()), weight)
    return theta, covariance_of(information, constraints=constraints)


def maximum(log_prob, start, weight, *, tol=1e-8, max_iter=500):
    """Maximise a weighted sum over rows; return where, and the observed information.

    log_prob : from parameters, (p,), to a number for each row. tol : size of the
    gradient of the mean over rows at which steps end. max_iter : number of steps.
    """
    weight = torch.from_numpy(weight)
    total = weight.sum()

    def value_and_gradient(theta):
        theta = torch.from_numpy(theta).requires_grad_()
        loss = -(weight @ log_prob(theta)) / total
        (gradient,) = torch.autograd.grad(loss, theta)
        return loss.item(), gradient.numpy()

    def information(theta):
        return information_by_hessian(
            lambda theta: weight @ log_prob(theta), torch.as_tensor(theta)
        ).numpy()

    found = minimize(
        value_and_gradient,
        start.numpy(),
        jac=True,
        hess=lambda theta: information(theta) / float(total),
        method="trust-exact",
        options={"gtol": tol, "maxiter": max_iter},
    )
    if not found.success:
        warn_caller(
            f"The third step has not converged after {max_iter} steps: a covariate or "
            "an outcome may separate the classes.",
            ConvergenceWarning,
        )
    return torch.from_numpy(found.x), information(found.x)


def _wald(effect, covariance):
    """Return Wald's statistic of effects (q,) that are 0, and its p-value."""
    covariance = covariance.reshape(len(effect), len(effect))
    if not len(effect) or np.isnan(covariance).any():
        return np.nan, np.nan
    statistic = float(effect @ np.linalg.pinv(covariance, hermitian=True) @ effect)
    return statistic, float(chi2.sf(statistic, len(effect)))
