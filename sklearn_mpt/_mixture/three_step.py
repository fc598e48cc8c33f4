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

from typing import NamedTuple

import numpy as np
import torch
from narwhals.stable.v2.dependencies import is_into_dataframe, is_into_series
from scipy.linalg import block_diag
from scipy.optimize import minimize
from scipy.stats import chi2
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, column_or_1d

from sklearn_mpt._checks import check_finite, listed, warn_caller
from sklearn_mpt._likelihoods.base import column_moments, column_scales
from sklearn_mpt._likelihoods.gaussian import normal_log_prob
from sklearn_mpt._matrices import identity
from sklearn_mpt._measure.rows import missing_entries
from sklearn_mpt._numbers import TINY
from sklearn_mpt._optim.information import (
    covariance_of,
    information_by_hessian,
    row_scores,
)
from sklearn_mpt._tables.frames import columns_of
from sklearn_mpt._tables.kinds import kinds_of_values

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


class Assignments(NamedTuple):
    """Rows assigned to their most probable classes, and the errors of that."""

    classes: torch.Tensor  # shape: (n,)
    weight: torch.Tensor  # of the rows, (n,)
    correction: str
    probability: torch.Tensor  # P(assigned class | class), (K, K)
    covariance: torch.Tensor  # of `probability`, flattened

    @classmethod
    def from_proba(cls, proba_of, values, weight, correction, covariance):
        """Assign rows by probabilities (n, K), a function of parameters `values`.

        covariance : returns that of the parameters. "none" ignores it.
        """
        proba = proba_of(values)
        classes = proba.argmax(1)
        chosen = identity(proba.shape[1], proba)[classes]
        empty = (weight @ chosen == 0).nonzero()[:, 0].tolist()
        if empty:
            raise ValueError(
                f"Component(s) {listed(empty)} are the most probable ones of no row: "
                "classes overlap too much for an analysis in three steps. Use fewer "
                "components."
            )

        def probability_given(values):
            joint = (weight[:, None] * proba_of(values)).T @ chosen
            return joint / joint.sum(1, keepdim=True)

        probability = probability_given(values)
        if correction == "none":
            of_probability = proba.new_zeros((probability.numel(),) * 2)
        else:
            known = torch.from_numpy(np.nan_to_num(covariance()))
            of_probability = delta_method(probability_given, values, known)
        return cls(classes, weight, correction, probability, of_probability)

    def take(self, rows):
        """Return the assignments of some rows, with the errors of all."""
        return self._replace(classes=self.classes[rows], weight=self.weight[rows])

    def class_weights(self, probability):
        """Return what each row counts in each class, (n, K); some are negative."""
        if self.correction == "bch":
            return torch.linalg.inv(probability)[self.classes]
        return identity(len(probability), probability)[self.classes]

    def log_prob(self, given_class, probability):
        """Return log-probabilities of rows, (n,), from those given the class, (n, K).

        With weights, it is their weighted sum.
        """
        if self.correction == "ml":
            log_errors = probability.T[self.classes].clamp(min=TINY).log()
            return (given_class + log_errors).logsumexp(1)
        return (self.class_weights(probability) * given_class).sum(1)


def read_outcome(outcome):
    """Return the outcomes that are present, and where they are missing."""
    outcome = column_or_1d(np.asarray(outcome))
    is_missing = missing_entries(outcome[:, None])[:, 0]
    present, categories = outcome[~is_missing], None
    if present.dtype.kind == "O" and kinds_of_values(present) <= {"numbers"}:
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
    n_values = len(np.unique(present))
    if n_values < 2:
        raise ValueError(
            f"outcome must have at least two different values, got {n_values}."
        )
    return present, categories, is_missing


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
        if not column.is_coded and kinds_of_values(column.present) != {"strings"}:
            arrays.append(column.numbers())
            names.append(str(column.name))
            continue
        values, present = column.values, set(column.present.tolist())
        declared = getattr(column.dtype, "categories", ()) if column.is_coded else ()
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
    Z1 = torch.from_numpy(np.insert((Z - mean) / scale, 0, 1.0, axis=1))
    n_components, width = len(assignments.probability), Z1.shape[1]
    others = np.delete(np.arange(n_components), reference)
    of_others = identity(n_components, Z1)[:, others]
    units = torch.diag(torch.from_numpy(np.r_[1.0, 1 / scale]))
    units[0, 1:] = torch.from_numpy(-mean / scale)

    def log_prob(theta, probability):
        logits = Z1 @ (of_others @ theta.view(-1, width)).T
        return assignments.log_prob(logits.log_softmax(1), probability)

    def coefs_of(theta):  # of covariates in their units
        return of_others @ theta.view(-1, width) @ units.T

    start = Z1.new_zeros(len(others) * width)
    theta, covariance = estimate(log_prob, start, assignments)
    coefs = coefs_of(theta).numpy()
    covariance = delta_method(coefs_of, theta, covariance)
    errors = covariance.diagonal().sqrt().view(coefs.shape).numpy()
    joint = covariance.view(coefs.shape * 2).numpy()
    tests = [
        _wald(coefs[others, j], joint[:, j, :, j][np.ix_(others, others)])
        for j in range(1, width)
    ]
    statistic, p_value = np.reshape(tests, (-1, 2)).T
    return CovariateEffects(
        coefs[:, 0], errors[:, 0], coefs[:, 1:], errors[:, 1:], joint, statistic,
        p_value, assignments.probability.numpy(), names,
    )  # fmt: skip


def class_outcomes(assignments, outcome, categories):
    """Return `ClassOutcomes`."""
    weight, K = assignments.weight, len(assignments.probability)
    class_weights = assignments.class_weights(assignments.probability)
    if categories is None:
        mean, variance, _ = column_moments(outcome[:, None], weight.numpy())
        scale = column_scales(mean, variance)
        y, n_values = torch.from_numpy((outcome[:, None] - mean) / scale), 1
        mean, scale = torch.from_numpy(mean), torch.from_numpy(scale)
    else:
        y, n_values = identity(len(categories), weight)[outcome], len(categories)
        mean, scale = 0.0, 1.0
    counts, sums = weight @ class_weights, (weight * class_weights.T) @ y
    if assignments.correction != "ml":  # least squares
        start, ties = (sums / counts[:, None]).flatten(), None

        def means_of(theta):
            return theta.view(K, n_values)

        def log_prob(theta, probability):
            squares = ((y[:, None] - means_of(theta)) ** 2).sum(2)
            return assignments.log_prob(-0.5 * squares, probability)

    else:  # classes of log-odds theta[:K], and a distribution of y in each
        if categories is None:
            start = torch.stack([sums[:, 0] / counts, torch.zeros_like(counts)], 1)
            ties = block_diag(np.ones((1, K)), np.zeros((1, 2 * K)))
        else:
            start = (sums + 0.5).log()
            ties = block_diag(*(np.ones((1, n)) for n in (K, *[n_values] * K)))
        start = torch.cat([counts.log(), start.flatten()])

        def means_of(theta):
            of_class = theta[K:].view(K, -1)
            return of_class[:, :1] if categories is None else of_class.softmax(1)

        def log_prob(theta, probability):
            of_class = theta[K:].view(K, -1)
            if categories is None:
                means, log_variances = of_class.T
                entries = normal_log_prob((y - means) ** 2, log_variances.exp())
            else:
                entries = of_class.log_softmax(1).T[outcome]
            return assignments.log_prob(theta[:K].log_softmax(0) + entries, probability)

    def estimates_of(theta):
        return means_of(theta) * scale + mean

    theta, covariance = estimate(log_prob, start, assignments, ties)
    estimates = estimates_of(theta).numpy()
    covariance = delta_method(estimates_of, theta, covariance).numpy()
    # Differences from the first class, of all but the last category.
    contrast = np.insert(np.eye(K - 1), 0, -1.0, axis=1)
    contrast = np.kron(contrast, np.eye(n_values)[: max(1, n_values - 1)])
    tests = _wald(contrast @ estimates.ravel(), contrast @ covariance @ contrast.T)
    error = np.sqrt(covariance.diagonal()).reshape(estimates.shape)
    if categories is None:
        estimates, error = estimates[:, 0], error[:, 0]
    proba = assignments.probability.numpy()
    return ClassOutcomes(estimates, error, covariance, *tests, categories, proba)


def estimate(log_prob, start, assignments, ties=None):
    """Maximise a sum over rows; return where, and the covariance of the estimates.

    log_prob : of each row, (n,), from parameters (p,) and probabilities of assignments.
    ties : gradients of functions of the parameters that are always 0, (q, p).
    """
    weight, probability = assignments.weight, assignments.probability
    n_rows, jacobian = float(weight.sum()), torch.autograd.functional.jacobian

    def total(theta, probability=probability):
        return weight @ log_prob(theta, probability)

    def gradient(theta, probability=probability):
        return jacobian(lambda at: total(at, probability), theta, create_graph=True)

    def loss(derivative):
        return lambda at: -derivative(torch.from_numpy(at)).detach().numpy() / n_rows

    found = minimize(
        loss(total),
        start.numpy(),
        jac=loss(gradient),
        hess=loss(lambda theta: -information_by_hessian(total, theta)),
        method="trust-exact",
        options={"gtol": 1e-8, "maxiter": 500},
    )
    if not found.success:
        warn_caller(
            "The third step has not converged after 500 steps: a covariate or an "
            "outcome may separate the classes.",
            ConvergenceWarning,
        )
    theta = torch.from_numpy(found.x)
    information = information_by_hessian(total, theta).numpy()
    inverse = covariance = torch.from_numpy(
        covariance_of(information, constraints=ties)
    )
    if assignments.correction != "ml":  # weights are no likelihood: robust errors
        scores = row_scores(lambda at: log_prob(at, probability), theta)
        covariance = inverse @ (weight * scores @ scores.T) @ inverse
    cross = jacobian(lambda probability: gradient(theta, probability), probability)
    moved = inverse @ cross.reshape(len(theta), -1)
    return theta, covariance + moved @ assignments.covariance @ moved.T


def delta_method(function, theta, covariance):
    """Return the covariance of a function of parameters, flattened, from theirs."""
    jacobian = torch.autograd.functional.jacobian(function, theta)
    jacobian = jacobian.reshape(-1, len(theta))
    return jacobian @ covariance @ jacobian.T


def _wald(effect, covariance):
    """Return Wald's statistic of effects (q,) that are 0, and its p-value."""
    covariance = covariance.reshape(len(effect), len(effect))
    if not len(effect) or np.isnan(covariance).any():
        return np.nan, np.nan
    statistic = float(effect @ np.linalg.pinv(covariance, hermitian=True) @ effect)
    return statistic, float(chi2.sf(statistic, len(effect)))
