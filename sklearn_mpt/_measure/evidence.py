"""Comparison of models by their log evidence, with posterior probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import softmax

from sklearn_mpt._checks import check_real
from sklearn_mpt._measure.comparison import check_measures
from sklearn_mpt._measure.cumulative import CumulativeCV
from sklearn_mpt._measure.display import EvidenceComparisonDisplay
from sklearn_mpt._measure.standard_errors import std_error_of_mean
from sklearn_mpt._messages import text_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class EvidenceComparison:
    """Log evidence of several models of the same rows, best first.

    Created by :func:`compare_evidence`. Printing it shows a table.

    Parameters
    ----------
    names : list of str
        Names of the models; the other arrays are in this order.
    scores : ndarray of shape (n_models, n_orders)
        Log evidence of each model along each order of the rows, in nats.
    is_paired : bool
        Whether the models have the same orders. If so, errors of differences are those
        of the differences along each order.
    prior : ndarray of shape (n_models,), default=None
        Prior probability of each model. None is the same for all.

    Attributes
    ----------
    log_evidence, std_error : ndarray of shape (n_models,)
        Means of `scores`, and their standard errors over orders.
    log_bayes_factor, log_bayes_factor_std_error : ndarray of shape (n_models,)
        `log_evidence` less that of the best model, 0 or negative, and its standard
        error.
    probability, probability_std_error : ndarray of shape (n_models,)
        Posterior probability of each model, and standard errors by the delta method.

    See Also
    --------
    compare_evidence : Compare models.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import EvidenceComparison
    >>> EvidenceComparison(["b", "a"], np.array([[-8.0, -9], [-9, -10]]), True)
          log_evidence  std_error  log_bayes_factor  std_error  probability  std_error
    b          -8.5000     0.5000            0.0000     0.0000       0.7311     0.0000
    a          -9.5000     0.5000           -1.0000     0.0000       0.2689     0.0000
    """

    names: list[str]
    scores: np.ndarray
    is_paired: bool
    prior: np.ndarray | None = None

    @property
    def log_evidence(self) -> np.ndarray:
        """Log evidence of each model, in nats; (n_models,)."""
        return self.scores.mean(axis=1)

    @property
    def std_error(self) -> np.ndarray:
        """Standard errors of `log_evidence` over orders; (n_models,)."""
        return std_error_of_mean(self.scores.T)

    @property
    def log_bayes_factor(self) -> np.ndarray:
        """Log evidence less that of the best model, in nats; (n_models,)."""
        with np.errstate(invalid="ignore"):  # NaN where both are -inf
            return self.log_evidence - self.log_evidence[0]

    @property
    def log_bayes_factor_std_error(self) -> np.ndarray:
        """Standard errors of `log_bayes_factor`; (n_models,)."""
        difference = np.eye(len(self.names)) - np.eye(len(self.names))[0]
        return self._error_of(difference)

    @property
    def probability(self) -> np.ndarray:
        """Posterior probability of each model; (n_models,)."""
        prior = np.ones(len(self.names)) if self.prior is None else self.prior
        with np.errstate(divide="ignore"):
            return softmax(self.log_evidence + np.log(prior))

    @property
    def probability_std_error(self) -> np.ndarray:
        """Standard errors of `probability`; (n_models,)."""
        prob = self.probability  # d p_k = p_k (d l_k - sum_j p_j d l_j)
        return self._error_of(np.diag(prob) - np.outer(prob, prob))

    def _error_of(self, weights):
        """Return standard errors of weighted sums of the log evidences; (n_sums,).

        NaN for sums with a log evidence of -inf. Those in which it has no weight do not
        contain it.
        """
        is_finite = np.isfinite(self.log_evidence)
        finite = weights[:, is_finite]
        if self.is_paired:
            errors = std_error_of_mean((finite @ self.scores[is_finite]).T)
        else:
            errors = np.sqrt(finite**2 @ self.std_error[is_finite] ** 2)
        return np.where(weights[:, ~is_finite].any(axis=1), np.nan, errors)

    def __repr__(self):
        columns = [
            ("log_evidence", 17, self.log_evidence),
            ("std_error", 11, self.std_error),
            ("log_bayes_factor", 18, self.log_bayes_factor),
            ("std_error", 11, self.log_bayes_factor_std_error),
            ("probability", 13, self.probability),
            ("std_error", 11, self.probability_std_error),
        ]
        return text_table(self.names, columns)

    def plot(self, ax: Axes | None = None):
        """Draw the log Bayes factors to the best model, with two standard errors.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.

        Returns
        -------
        display : EvidenceComparisonDisplay
            The display, with its axes and figure.
        """
        return EvidenceComparisonDisplay(self).plot(ax)


def compare_evidence(
    results: Mapping[str, CumulativeCV], *, prior: Mapping[str, float] | None = None
) -> EvidenceComparison:
    r"""Compare models by their log evidence from cumulative cross-validation.

    A difference of log evidences is a log Bayes factor. Together with prior
    probabilities of the models it gives their posterior probabilities, by Bayes' rule.

    Parameters
    ----------
    results : dict from names to CumulativeCV
        The result of :func:`cumulative_cv_score` for each model, on the same rows and
        with the same number of rows before the first scored one. With the same integer
        `random_state` and `steps` they have the same orders, and errors of differences
        are paired.
    prior : dict from names to float, default=None
        Prior weight of each model. None is the same for all.

    Returns
    -------
    EvidenceComparison
        The models, best first.

    Raises
    ------
    TypeError
        If a result is not a `CumulativeCV`.
    ValueError
        If there are fewer than two models, their rows do not agree, or `prior` does
        not name the same models with positive weights. Also if some results are for X
        and some for y, or for other values of them, and if one model has densities
        where another has probabilities.

    Warns
    -----
    UserWarning
        If a density estimator that is not of this package stands beside a model that
        has probabilities.

    See Also
    --------
    cumulative_cv_score : Log evidence of one model.
    compare_lml : Compare fitted models on held-out rows.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import MPTProbabilisticPCA
    >>> from sklearn_mpt import compare_evidence, cumulative_cv_score
    >>> X = load_iris().data
    >>> options = {"n_start": 50, "steps": 2, "n_orders": 3, "random_state": 0}
    >>> models = {f"K = {k}": MPTProbabilisticPCA(k, objective="lml") for k in (1, 3)}
    >>> table = compare_evidence(
    ...     {name: cumulative_cv_score(m, X, **options) for name, m in models.items()}
    ... )
    >>> table.names
    ['K = 3', 'K = 1']
    """
    if not isinstance(results, Mapping) or len(results) < 2:
        raise ValueError(
            f"results must be a dict of at least two models, got {results!r}."
        )
    for name, result in results.items():
        if not isinstance(result, CumulativeCV):
            raise TypeError(
                f"results[{name!r}] must be a result of cumulative_cv_score, got "
                f"{result!r}."
            )
    rows = {(int(r.n_seen[0]), r.n_samples) for r in results.values()}
    if len(rows) > 1:
        raise ValueError(
            "The models must be scored on the same rows, with the same number of rows "
            f"before the first; (n_start, n_samples) are {sorted(rows)}."
        )
    _check_targets(results)
    weights = _check_prior(prior, results)
    names = sorted(results, key=lambda name: -results[name].log_evidence)
    draws = {results[name].draw for name in names}
    is_paired = len(draws) == 1 and () not in draws
    scores = [results[name].scores for name in names]
    if len({len(model_scores) for model_scores in scores}) > 1:
        raise ValueError(
            "The models must have the same number of orders, got "
            f"{[len(model_scores) for model_scores in scores]}."
        )
    ordered_prior = None if weights is None else np.array([weights[n] for n in names])
    names = [str(name) for name in names]
    return EvidenceComparison(names, np.stack(scores), is_paired, ordered_prior)


def _check_targets(results):
    """Refuse results for other values, and densities beside probabilities."""
    targets = {name: r.target for name, r in results.items() if r.target}
    if len({target[0] for target in targets.values()}) > 1:
        kinds = {name: target[0] for name, target in targets.items()}
        raise ValueError(
            "The models must score the same values: the evidence is that of X, or of y "
            f"given X, got {kinds}."
        )
    if len(set(targets.values())) > 1:
        raise ValueError(
            "The models must score the same values, in the same order of the rows; the "
            f"tables (or targets) of {list(targets)} differ."
        )
    density_estimators = {
        name for name, target in targets.items() if target.startswith("X")
    }
    measures = {name: result.measures for name, result in results.items()}
    check_measures(measures, density_estimators)


def _check_prior(prior, results):
    if prior is None:
        return None
    if set(prior) != set(results):
        raise ValueError(
            f"prior must have the names of the models, {list(results)}, got "
            f"{list(prior)}."
        )
    for name, value in prior.items():
        check_real(value, f"prior[{name!r}]", "neither")
    total = sum(prior.values())
    return {name: value / total for name, value in prior.items()}
