"""Models for which columns are coded in another way than for most."""

from collections.abc import Mapping
from typing import Self

import numpy as np
from scipy.special import log_softmax
from sklearn.base import BaseEstimator

from sklearn_mpt._imputation.coded_models import CodedModel, RecodedModel
from sklearn_mpt._imputation.column_layout import (
    ColumnLayout,
    NumberTransform,
    means_and_spreads,
)
from sklearn_mpt._imputation.power_transforms import NO_TRANSFORMS
from sklearn_mpt._probabilities import drawn_codes
from sklearn_mpt._seeds import seed_from


class LevelsAsNumbers(RecodedModel):
    r"""A model that takes levels of numbers as numbers, and predicts the levels.

    With the density f of the model, and the frequency :math:`\pi_c` of the level with
    the value :math:`v_c`,

    .. math:: p(c \mid x_R) \propto \pi_c \, \frac{f(v_c \mid x_R)}{f(v_c)},

    so that columns alone have the frequencies that there are, and each level a
    probability.

    Parameters
    ----------
    layout : ColumnLayout
        Kinds of the columns of coded rows.
    model : CodedModel
        A model in which the columns of ``layout.values`` are Gaussian.
    """

    def __init__(self, layout: ColumnLayout, model: CodedModel):
        self.layout = layout
        self.model = model

    def fit(self, X, y=None, sample_weight=None) -> Self:
        if not hasattr(self, "_points"):
            self._points = _standardised(X, self.layout.values, sample_weight)
        self.model.fit(self._numbers(X), sample_weight=sample_weight)
        columns = list(self.layout.values)
        all_missing = np.full((1, X.shape[1]), np.nan)
        self._log_prior = {
            j: np.log(frequencies(X[:, j], len(points), sample_weight)) - marginal[0]
            for (j, points), marginal in zip(
                self._points.items(), self._at_levels(all_missing, columns), strict=True
            )
        }
        return self

    def conditional_log_prob(self, X, mask):
        mask = np.broadcast_to(mask, X.shape)
        hidden = mask & ~np.isnan(X)
        log_prob = self.model.conditional_log_prob(self._numbers(X), mask)
        columns = [j for j in self.layout.values if hidden[:, j].any()]
        level_log_prob = self._of_levels(np.where(mask, np.nan, X), columns)
        for j, column_log_prob in zip(columns, level_log_prob, strict=True):
            code = np.where(hidden[:, j], X[:, j], 0).astype(int)
            code_log_prob = column_log_prob[np.arange(len(X)), code]
            log_prob[:, j] = np.where(hidden[:, j], code_log_prob, 0.0)
        return log_prob

    def expected(self, X, layout, columns, units):
        values = self.layout.values
        others = np.array([j for j in columns if j not in values], dtype=int)
        levels = [j for j in columns if j in values]
        unlevelled_layout = layout.without_levels()
        numbers, code_prob = self.model.expected(
            self._numbers(X), unlevelled_layout, others, units
        )
        log_probs = dict(zip(others.tolist(), code_prob, strict=True))
        log_probs |= dict(zip(levels, self._of_levels(X, levels), strict=True))
        return numbers, [log_probs[j] for j in columns]

    def draw(self, X, random_state=None):
        """Fill in gaps; levels are drawn one column after the other."""
        rng = np.random.default_rng(random_state)
        X = draw_codes(X, self.layout.values, self._of_levels, rng)
        drawn = self.model.draw(self._numbers(X), seed_from(rng))
        return np.where(np.isnan(X), drawn, X)

    def _of_levels(self, X, columns):
        """Return the log-probabilities of the levels of columns; list of (n, C)."""
        log_prob = self._at_levels(X, columns)
        return [
            log_softmax(log_density + self._log_prior[j], axis=1)
            for j, log_density in zip(columns, log_prob, strict=True)
        ]

    def _at_levels(self, X, columns):
        """Return the log-densities of the model at the levels; list of (n, C)."""
        if not columns:
            return []
        points = [self._points[j] for j in columns]
        log_prob = self.model.map_density(
            lambda x, density: density.log_prob_at(x, columns, points), self._numbers(X)
        )
        return np.split(log_prob, np.cumsum([len(p) for p in points])[:-1], axis=1)

    def _numbers(self, X):
        """Return rows with standardised numbers in place of codes."""
        X = np.array(X, dtype=np.float64)
        for j, points in self._points.items():
            present = ~np.isnan(X[:, j])
            X[present, j] = points[X[present, j].astype(int)]
        return X


class WithoutPowers(RecodedModel):
    """A model of standardised numbers without power transforms.

    Parameters
    ----------
    model : estimator
        A model of coded rows.
    units : NumberTransform
        How numbers are coded for others.
    """

    def __init__(self, model: BaseEstimator, units: NumberTransform):
        self.model = model
        self.units = units

    def fit(self, X, y=None, sample_weight=None) -> Self:
        if not hasattr(self, "_plain"):
            columns = self.units.powers.columns
            numbers = self.units.inverse_power_transforms(X[:, columns])
            shift, scale = self.units.shift.copy(), self.units.scale.copy()
            units = means_and_spreads(numbers, sample_weight)
            shift[columns], scale[columns] = units
            self._plain = self.units._replace(
                shift=shift, scale=scale, powers=NO_TRANSFORMS
            )
        self.model.fit(self._recoded(X), sample_weight=sample_weight)
        return self

    def conditional_log_prob(self, X, mask):
        log_prob = self.model.conditional_log_prob(self._recoded(X), mask)
        is_target = np.broadcast_to(mask, X.shape) & ~np.isnan(X)
        numbers = self.units.inverse_transform(X)
        slope = self._plain.log_slope(numbers) - self.units.log_slope(numbers)
        return np.where(is_target, log_prob + slope, log_prob)

    def expected(self, X, layout, columns, units):
        return self.model.expected(self._recoded(X), layout, columns, self._plain)

    def draw(self, X, random_state=None):
        drawn = self.model.draw(self._recoded(X), random_state)
        columns = self.units.powers.columns
        numbers = self._plain.shift + self._plain.scale * drawn
        coded = self.units.powers.transform(numbers)
        coded = (coded - self.units.shift) / self.units.scale
        drawn[:, columns] = coded[:, columns]
        return np.where(np.isnan(X), drawn, X)

    def _recoded(self, X):
        X, columns = np.array(X, dtype=np.float64), self.units.powers.columns
        numbers = self.units.inverse_power_transforms(X[:, columns])
        shift, scale = self._plain.shift[columns], self._plain.scale[columns]
        X[:, columns] = (numbers - shift) / scale
        return X


def frequencies(codes, count, sample_weight=None):
    """Return the shares of codes among present entries; (count,)."""
    present = ~np.isnan(codes)
    weight = None if sample_weight is None else sample_weight[present]
    counts = np.bincount(codes[present].astype(int), weight, count)
    return counts / counts.sum()


def draw_codes(X, columns, log_probs_of, rng):
    """Return rows with codes drawn in the gaps of columns, one after the other.

    log_probs_of : function of rows and a list of columns; returns a list of
    log-probabilities of codes, (n, n_codes).
    """
    X = np.array(X, dtype=np.float64)
    gaps = np.isnan(X)
    for j in columns:
        rows = gaps[:, j]
        if rows.any():
            probs = np.exp(log_probs_of(X[rows], [j])[0])
            X[rows, j] = drawn_codes(probs, rng.random((len(probs), 1)))
    return X


def _standardised(X, values: Mapping[int, np.ndarray], weight):
    """Return the values of codes in standard deviations of their column, in a dict."""
    points = {}
    for j, code_values in values.items():
        share = frequencies(X[:, j], len(code_values), weight)
        mean = share @ code_values
        points[j] = (code_values - mean) / np.sqrt(share @ (code_values - mean) ** 2)
    return points
