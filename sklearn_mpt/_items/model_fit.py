"""Methods for the whole model: tests of its fit, and comparison with others."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import chi2
from sklearn.utils.validation import check_is_fitted

from sklearn_mpt._base.density import torch_modes
from sklearn_mpt._checks import check_sample_weight, warn_caller
from sklearn_mpt._items import limited_information as limited
from sklearn_mpt._items.base import FittedItems
from sklearn_mpt._items.information import population_scores
from sklearn_mpt._measure.information_criteria import akaike, bayesian


class LikelihoodRatio(NamedTuple):
    """Likelihood-ratio test: statistic, degrees of freedom and p-value."""

    statistic: float
    df: int
    p_value: float


class ModelFitMixin(FittedItems):
    """Mixin of item response models: the methods for the whole model."""

    def model_fit(
        self, X: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> limited.ModelFit:
        """Test the model on the moments of single items and of pairs.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            The training rows, without gaps.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.

        Returns
        -------
        fit : named tuple
            `m2`, `df` and `p`: M2 for two answers (Maydeu-Olivares and Joe), M2* for
            more (Cai and Hansen); `rmsea` and `rmsea_interval`, of 90%; `srmsr`, the
            root mean square of residual correlations; and for more than two answers
            `c2`, `df_c2`, `p_c2` and `rmsea_c2` (Cai and Monroe), NaN for two. NaN too
            where there are no degrees of freedom.

        Raises
        ------
        ValueError
            If answers are missing, there are several groups, or too many pairs of items
            for a matrix over them.
        """
        rows, weight = self._weighted_rows(X, sample_weight)
        self._check_complete(rows, "model_fit")
        model, density = self._model_of(vars(self)), self._density()
        n_items = rows.shape[1]
        n_moments = (
            int((model.items.n_categories - 1).sum()) + n_items * (n_items - 1) // 2
        )
        if n_moments > limited.MAX_MOMENTS:
            raise ValueError(
                f"model_fit needs the covariance of {n_moments} moments of {n_items} "
                f"items, more than {limited.MAX_MOMENTS}: take fewer items."
            )
        with torch_modes():
            fitted = _at_nodes(model, density)
        m2 = limited.moment_statistic(rows, weight, fitted, by_category=False)
        c2 = (math.nan,) * 2
        if model.items.max_categories > 2:
            c2 = limited.moment_statistic(rows, weight, fitted, by_category=True)
        n_rows = weight.sum()
        return limited.ModelFit(
            m2[0],
            m2[1],
            _p_value(*m2),
            limited.rmsea(m2[0], m2[1], n_rows),
            limited.rmsea_interval(m2[0], m2[1], n_rows),
            limited.srmsr(rows, weight, fitted),
            c2[0],
            c2[1],
            _p_value(*c2),
            limited.rmsea(c2[0], c2[1], n_rows),
        )

    @property
    def _n_parameters(self):
        check_is_fitted(self)
        model = self._model_of(vars(self))
        K = model.items.n_dims
        return model.layout.n_free - K * (K - 1) // 2

    def log_likelihood(
        self,
        X: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> float:
        """Compute the log marginal likelihood of all rows together.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.
        groups : array-like of shape (n_samples,), default=None
            Group of each person; needed if the model has several.

        Returns
        -------
        float
            In nats.
        """
        self._check_is_fitted()
        rows, density = self._validate_rows(X), self._density()
        weight = check_sample_weight(sample_weight, rows)
        codes = self._codes_of(groups, X)
        if codes is None:
            return float(weight @ self.score_samples(X))

        def row_lml(part, codes):
            log_weight = density.row_log_weight(codes)
            return density.log_joint(part, log_weight=log_weight).logsumexp(1)

        scores = self._map_rows(density, row_lml, rows, codes[:, None])
        return float(weight @ scores)

    def aic(
        self,
        X: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> float:
        """Compute Akaike's information criterion on X; the lower the better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.
        groups : array-like of shape (n_samples,), default=None
            Group of each person; needed if the model has several.

        Returns
        -------
        aic : float
            -2 times the log-likelihood, plus 2 for each parameter.
        """
        value = self.log_likelihood(X, sample_weight, groups=groups)
        return akaike(value, self._n_parameters)

    def bic(
        self,
        X: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> float:
        """Compute the Bayesian information criterion on X; the lower the better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.
        groups : array-like of shape (n_samples,), default=None
            Group of each person; needed if the model has several.

        Returns
        -------
        bic : float
            -2 times the log-likelihood, plus for each parameter the logarithm of the
            number of rows, or of the sum of their weights.
        """
        value = self.log_likelihood(X, sample_weight, groups=groups)
        n_rows = np.shape(X)[0] if sample_weight is None else np.sum(sample_weight)
        return bayesian(value, self._n_parameters, n_rows)

    def likelihood_ratio_test(
        self,
        nested: ModelFitMixin,
        X: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> LikelihoodRatio:
        """Test a model that is a special case of this one.

        Parameters
        ----------
        nested : MPTItemResponse
            Fitted to the same rows, with fewer parameters: "rasch" in "2pl", for
            instance, or fewer abilities.
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.
        groups : array-like of shape (n_samples,), default=None
            Group of each person; needed if the model has several.

        Returns
        -------
        test : named tuple
            `statistic`, twice the difference of the log-likelihoods; `df`, that of the
            numbers of parameters; and `p_value`, by the chi-squared distribution.

        Raises
        ------
        ValueError
            If `nested` has no fewer parameters, or a model has a prior: it is not at
            the maximum of the likelihood.

        Warns
        -----
        UserWarning
            If items of `nested` have no guessing, and those of this model have: 0 is a
            bound of guessing, where the statistic is smaller than chi-squared. Of 6
            items without guessing, 3PL beside 2PL had a mean statistic of 2.9 where
            chi-squared has 6. `p_value` is then an upper bound.
        """
        for model, name in ((self, "this model"), (nested, "nested")):
            model._check_is_fitted()
            model._refuse_priors(name)
        df = self._n_parameters - nested._n_parameters
        if df <= 0:
            raise ValueError(
                f"nested must have fewer parameters than {self._n_parameters}, got "
                f"{nested._n_parameters}."
            )
        self._warn_of_bounds_in(nested)
        args = (X, sample_weight)
        gain = self.log_likelihood(*args, groups=groups) - nested.log_likelihood(
            *args, groups=groups if len(nested.groups_) > 1 else None
        )
        return LikelihoodRatio(2 * gain, df, float(chi2.sf(max(2 * gain, 0), df)))

    @property
    def _n_guessed(self):
        names = self._names(self.n_features_in_)
        return names.count("3pl")

    def _refuse_priors(self, name):
        """Refuse a model whose fit does not maximise the likelihood."""
        has_slopes = any(
            block.n_slopes + block.kind.n_shape_slopes
            for block in self._model_of(vars(self)).items.blocks
        )
        priors = {
            "slope_prior": self.slope_prior if has_slopes else None,
            "guessing_prior": self.guessing_prior if self._n_guessed else None,
        }
        for parameter, value in priors.items():
            if value is not None:
                raise ValueError(
                    "likelihood_ratio_test compares maxima of the likelihood, but "
                    f"{name} has {parameter}={value!r}: fit both models without "
                    "priors, or compare their score on held-out rows."
                )

    def _warn_of_bounds_in(self, nested):
        """Warn where the nested model is at a bound of this one."""
        n_bounds = self._n_guessed - nested._n_guessed
        if n_bounds > 0:
            warn_caller(
                f"Guessing of {n_bounds} item(s) is at its bound, 0, in nested: the "
                "statistic is then smaller than chi-squared, and p_value is an upper "
                "bound of the probability."
            )


def _p_value(value, df):
    return float(chi2.sf(value, df)) if df > 0 else math.nan


def _at_nodes(model, density):
    """Return the arrays of a model that the statistics of moments use."""
    items, layout, grid = model.items, model.layout, density.grid
    point = density.point
    curves = items.curves(point, grid.z)
    scores = [
        block.scores(curve, grid.z).numpy(force=True)
        for block, curve in zip(items.blocks, curves, strict=True)
    ]
    if layout.is_fixed is not None:  # no derivatives in fixed parameters
        scores = [
            score * ~layout.is_fixed[block.parameter_index.numpy()][..., None, None]
            for block, score in zip(items.blocks, scores, strict=True)
        ]
    whole = torch.cat([point, model.start(point.device)[items.n_parameters :]])
    density_scores = population_scores(layout, whole, grid.z)[0].numpy(force=True)
    weight = density.log_weight.exp().numpy(force=True)
    prob = density.prob.numpy(force=True)
    n_free = layout.n_free - items.n_dims * (items.n_dims - 1) // 2
    return limited.ModelAtNodes(items, prob, scores, density_scores, weight, n_free)
