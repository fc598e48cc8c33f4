r"""The third step of analyses of classes: covariates of classes, and outcomes of them.

The first step fits a mixture, the second assigns each row i to its most probable class
:math:`w_i`. Assignments have errors, with probabilities

.. math:: D_{st} = P(w = t \mid s)
    = \sum_{i : w_i = t} P(s \mid x_i) \Big/ \sum_i P(s \mid x_i),

which the third step corrects. The method of Bolck, Croon and Hagenaars [1]_ gives row i
the weights :math:`(D^{-1})_{w_i s}`, some of them negative, of which the mean given the
class is 1 for this class and 0 for the others. Maximum likelihood [2]_ maximises
:math:`\sum_i \log \sum_s P(s \mid z_i) D_{s w_i} p(y_i \mid s)`. Errors of D, which
depends on the fitted mixture, are added to those of the third step [3]_.

References
----------
.. [1] A. Bolck, M. Croon and J. Hagenaars, "Estimating latent structure models with
   categorical variables: one-step versus three-step estimators", Political Analysis 12,
   2004.
.. [2] J. K. Vermunt, "Latent class modeling with covariates: two improved three-step
   approaches", Political Analysis 18, 2010.
.. [3] Z. Bakk, D. L. Oberski and J. K. Vermunt, "Relating latent class assignments to
   external variables: standard errors for correct inference", Political Analysis 22,
   2014.
"""

import copy
from numbers import Real
from typing import NamedTuple

import numpy as np
import torch
from narwhals.stable.v2.dependencies import is_into_dataframe, is_into_series
from scipy.linalg import block_diag
from scipy.optimize import minimize
from scipy.stats import chi2
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, column_or_1d

from sklearn_mpt._checks import check_finite, warn_caller
from sklearn_mpt._likelihoods.base import column_moments, column_scales
from sklearn_mpt._likelihoods.gaussian import normal_log_prob
from sklearn_mpt._matrices import identity
from sklearn_mpt._measure.rows import missing_entries
from sklearn_mpt._messages import listed
from sklearn_mpt._numbers import TINY
from sklearn_mpt._optim.information import covariance_of, information_by_hessian
from sklearn_mpt._tables.frames import columns_of
from sklearn_mpt._tables.kinds import is_of_categories, kinds_of_values

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
    names : list of str, of length n_covariates
        Names of the covariates: columns, or categories of a column, as "town=Bern".
    """

    intercept: np.ndarray
    intercept_std_error: np.ndarray
    coef: np.ndarray
    coef_std_error: np.ndarray
    covariance: np.ndarray
    statistic: np.ndarray
    p_value: np.ndarray
    assignment: np.ndarray
    names: list[str]


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
    """Rows assigned to their most probable classes, and the errors of that."""

    def __init__(self, proba, weight, correction):
        self.weight, self.correction = weight, correction
        self.n_components = proba.shape[1]
        self.classes = proba.argmax(1)
        empty = (weight @ self.chosen == 0).nonzero()[:, 0].tolist()
        if empty:
            raise ValueError(
                f"Component(s) {listed(empty)} are the most probable ones of no row: "
                "classes overlap too much for an analysis in three steps. Use fewer "
                "components."
            )
        self.probability = self.probability_given(proba)
        self.covariance = proba.new_zeros((self.n_components**2,) * 2)

    def probability_given(self, proba):
        """Return P(assigned class | class), (K, K), if rows have these classes."""
        joint = (self.weight[:, None] * proba).T @ self.chosen
        return joint / joint.sum(1, keepdim=True)

    @property
    def chosen(self):
        """1.0 for the class of each row, else 0.0, (n, K)."""
        return identity(self.n_components, self.weight)[self.classes]

    @property
    def is_likelihood(self):
        return self.correction == "ml"

    def take(self, rows):
        """Return the assignments of some rows, with the errors of all."""
        part = copy.copy(self)
        part.weight, part.classes = self.weight[rows], self.classes[rows]
        return part

    def class_weights(self, probability):
        """Return what each row counts in each class, (n, K); some are negative."""
        if self.correction == "none":
            return self.chosen
        return torch.linalg.inv(probability)[self.classes]

    def log_errors(self, probability):
        """Return log P(assignment of the row | class), (n, K)."""
        return probability.T[self.classes].clamp(min=TINY).log()


def read_outcome(outcome):
    """Return the outcomes that are present, and where they are missing."""
    outcome = column_or_1d(np.asarray(outcome))
    is_missing = missing_entries(outcome[:, None])[:, 0]
    present, categories = outcome[~is_missing], None
    if present.dtype.kind == "O" and all(map(_is_number, present)):
        present = present.astype(float)  # integers of pandas with gaps
    if present.dtype.kind in "iuf":
        present = present.astype(float)
        check_finite(present, "outcome")
    elif present.dtype.kind in "bOUS":
        categories, present = np.unique(present, return_inverse=True)
    else:
        raise ValueError(
            "outcome must have numbers, strings or booleans, got dtype "
            f"{present.dtype}."
        )
    if len(np.unique(present)) < 2:
        raise ValueError(
            "outcome must have at least two different values, got "
            f"{len(np.unique(present))}."
        )
    return present, categories, is_missing


def _is_number(value):
    return isinstance(value, Real) and not isinstance(value, bool)


def read_covariates(covariates):
    """Return covariates as numbers, (n, c), NaN where missing, and their names."""
    if is_into_series(covariates):
        covariates = covariates.to_frame()
    elif not is_into_dataframe(covariates):
        array = np.asarray(covariates)
        if array.dtype.kind in "US":  # may hold numbers beside strings
            array = np.array(covariates, dtype=object)
        covariates = array[:, None] if array.ndim == 1 else array
    arrays, names = [], []
    for column in columns_of(covariates):
        is_coded = column.series is not None and is_of_categories(column.series.dtype)
        if not is_coded and kinds_of_values(column.present) != {"strings"}:
            arrays.append(column.numbers())
            names.append(str(column.name))
            continue
        values, present = column.values, set(column.present.tolist())
        declared = getattr(column.dtype, "categories", ()) if is_coded else ()
        categories = [value for value in declared if value in present]
        categories = categories or sorted(present)
        if len(categories) < 2:
            raise ValueError(
                f"Column {column.name!r} of covariates must have at least two "
                f"different values, got {listed(categories)}."
            )
        for category in categories[1:]:
            arrays.append(np.where(column.missing, np.nan, values == category))
            names.append(f"{column.name}={category}")
    Z = np.column_stack(arrays).astype(np.float64)
    check_array(Z, ensure_all_finite="allow-nan", input_name="covariates")
    return Z, names


def covariate_effects(assignments, Z, names, reference):
    """Return `CovariateEffects`."""
    mean, variance, _ = column_moments(Z, assignments.weight.numpy())
    scale = column_scales(mean, variance)
    Z1 = np.insert((Z - mean) / scale, 0, 1.0, axis=1)
    n_components, width = assignments.n_components, Z1.shape[1]
    others = np.delete(np.arange(n_components), reference)
    theta, covariance = _multinomial_logit(assignments, torch.from_numpy(Z1), others)
    units = np.diag(np.r_[1.0, 1 / scale])  # of standardised covariates, to theirs
    units[0, 1:] = -mean / scale
    coefs = np.zeros((n_components, width))
    coefs[others] = theta @ units.T
    joint = np.zeros((n_components, width) * 2)
    joint[np.ix_(others, range(width), others, range(width))] = np.einsum(
        "ab,ibjc,dc->iajd", units, covariance, units
    )
    errors = np.sqrt(np.einsum("iaia->ia", joint))
    tests = [
        _wald(coefs[others, j], joint[np.ix_(others, [j], others, [j])])
        for j in range(1, width)
    ]
    statistic, p_value = np.reshape(tests, (-1, 2)).T
    return CovariateEffects(
        coefs[:, 0], errors[:, 0], coefs[:, 1:], errors[:, 1:], joint, statistic,
        p_value, assignments.probability.numpy(), names,
    )  # fmt: skip


def _multinomial_logit(assignments, Z1, others):
    """Return coefficients of classes, (k, c), and their covariance, (k, c, k, c)."""
    shape = len(others), Z1.shape[1]

    def log_proba(theta):
        logits = Z1.new_zeros(len(Z1), assignments.n_components)
        logits[:, others] = Z1 @ theta.view(shape).T
        return logits.log_softmax(1)

    def log_prob(theta, probability):
        if assignments.is_likelihood:
            return (log_proba(theta) + assignments.log_errors(probability)).logsumexp(1)
        return (assignments.class_weights(probability) * log_proba(theta)).sum(1)

    def scores(theta):
        class_weights = assignments.class_weights(assignments.probability)
        residual = (class_weights - log_proba(theta).exp())[:, others]
        return (residual[..., None] * Z1[:, None]).flatten(1)

    theta, covariance = estimate(
        log_prob,
        Z1.new_zeros(shape).flatten(),
        assignments,
        scores=None if assignments.is_likelihood else scores,
    )
    return theta.view(shape).numpy(), covariance.reshape(shape * 2)


def class_outcomes(assignments, outcome, categories):
    """Return `ClassOutcomes`."""
    values = outcome[:, None]
    if categories is not None:
        values = (outcome[:, None] == np.arange(len(categories))).astype(float)
    if not assignments.is_likelihood:
        estimate, covariance = _weighted_means(assignments, torch.from_numpy(values))
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
        estimate, error, covariance, *tests, categories, assignments.probability.numpy()
    )


def _weighted_means(assignments, values):
    """Return means of values (n, v) by class, (K, v), and their covariance."""
    weight, probability = assignments.weight, assignments.probability

    def means(probability):
        weighted = weight[:, None] * assignments.class_weights(probability)
        return weighted.T @ values / weighted.sum(0)[:, None]

    mean, class_weights = means(probability), assignments.class_weights(probability)
    total = (weight @ class_weights)[:, None]
    influence = class_weights[..., None] * (values[:, None] - mean) / total
    influence = influence.flatten(1)
    jacobian = torch.autograd.functional.jacobian(means, probability)
    jacobian = jacobian.view(mean.numel(), -1)
    covariance = (weight * influence.T) @ influence
    covariance = covariance + jacobian @ assignments.covariance @ jacobian.T
    return mean.numpy(), covariance.numpy()


def _means_by_likelihood(assignments, outcome):
    """Return means of normal distributions by class, (K, 1), and their covariance."""
    y = outcome[:, None]
    mean, variance, _ = column_moments(y, assignments.weight.numpy())
    scale = column_scales(mean, variance)
    y = torch.from_numpy((y - mean) / scale)

    def log_prob(theta, probability):
        log_odds, means, log_variances = theta.view(3, -1)
        entries = normal_log_prob((y - means) ** 2, log_variances.exp())
        entries = entries + assignments.log_errors(probability)
        return (log_odds.log_softmax(0) + entries).logsumexp(1)

    weighted = assignments.weight[:, None] * assignments.chosen
    counts = weighted.sum(0)
    start_means = (weighted.T @ y)[:, 0] / counts
    start = torch.cat([counts.log(), start_means, torch.zeros_like(counts)])
    K = len(counts)
    ties = np.repeat([[1.0, 0.0, 0.0]], K, axis=1)  # log-odds, up to a constant
    theta, covariance = estimate(log_prob, start, assignments, ties=ties)
    means = theta[K : 2 * K].numpy() * scale + mean
    return means[:, None], scale**2 * covariance[K : 2 * K, K : 2 * K]


def _proportions_by_likelihood(assignments, values):
    """Return proportions of categories by class, (K, C), and their covariance."""
    n_values, K = values.shape[1], assignments.n_components
    codes = torch.from_numpy(values.argmax(axis=1))

    def log_proportions(theta):
        return theta[K:].view(K, n_values).log_softmax(1)

    def log_prob(theta, probability):
        entries = log_proportions(theta).T[codes] + assignments.log_errors(probability)
        return (theta[:K].log_softmax(0) + entries).logsumexp(1)

    weighted = assignments.weight[:, None] * assignments.chosen
    counts = weighted.T @ torch.from_numpy(values) + 0.5
    start = torch.cat([counts.sum(1).log(), counts.log().flatten()])
    ties = block_diag(*(np.ones((1, n)) for n in (K, *[n_values] * K)))
    theta, covariance = estimate(log_prob, start, assignments, ties=ties)
    jacobian = torch.autograd.functional.jacobian(
        lambda theta: log_proportions(theta).exp().flatten(), theta
    ).numpy()
    proportions = log_proportions(theta).exp().numpy()
    return proportions, jacobian @ covariance @ jacobian.T


def estimate(log_prob, start, assignments, *, scores=None, ties=None):
    """Maximise a sum over rows; return where, and the covariance of the estimates."""
    weight, probability = assignments.weight, assignments.probability

    def total(theta, probability=probability):
        return weight @ log_prob(theta, probability)

    theta = maximum(total, start, float(weight.sum()))

    def gradient(probability):
        at = theta.clone().requires_grad_()
        return torch.autograd.grad(total(at, probability), at, create_graph=True)[0]

    inverse = covariance_of(
        information_by_hessian(total, theta).numpy(), constraints=ties
    )
    covariance = inverse
    if scores is not None:
        rows = scores(theta).numpy()
        covariance = inverse @ ((weight.numpy() * rows.T) @ rows) @ inverse
    cross = torch.autograd.functional.jacobian(gradient, probability)
    jacobian = inverse @ cross.reshape(len(theta), -1).numpy()
    return theta, covariance + jacobian @ assignments.covariance.numpy() @ jacobian.T


def maximum(total, start, n_rows, *, tol=1e-8, max_iter=500):
    """Return where a function of parameters, (p,), is largest, by Newton's steps."""

    def value_and_gradient(theta):
        theta = torch.from_numpy(theta).requires_grad_()
        loss = -total(theta) / n_rows
        (gradient,) = torch.autograd.grad(loss, theta)
        return loss.item(), gradient.numpy()

    def curvature(theta):
        return information_by_hessian(total, torch.from_numpy(theta)).numpy() / n_rows

    found = minimize(
        value_and_gradient,
        start.numpy(),
        jac=True,
        hess=curvature,
        method="trust-exact",
        options={"gtol": tol, "maxiter": max_iter},
    )
    if not found.success:
        warn_caller(
            f"The third step has not converged after {max_iter} steps: a covariate or "
            "an outcome may separate the classes.",
            ConvergenceWarning,
        )
    return torch.from_numpy(found.x)


def _wald(effect, covariance):
    """Return Wald's statistic of effects (q,) that are 0, and its p-value."""
    covariance = covariance.reshape(len(effect), len(effect))
    if not len(effect) or np.isnan(covariance).any():
        return np.nan, np.nan
    statistic = float(effect @ np.linalg.pinv(covariance, hermitian=True) @ effect)
    return statistic, float(chi2.sf(statistic, len(effect)))
