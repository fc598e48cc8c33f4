"""A Gaussian of numbers and of indicators of categories."""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats

from sklearn_mpt._imputation.coded_models import CodedModel, RecodedModel
from sklearn_mpt._imputation.column_codings import draw_codes, frequencies
from sklearn_mpt._imputation.column_layout import ColumnLayout, NumberTransform
from sklearn_mpt._seeds import seed_from

MIN_FREQUENCY = 1e-3  # of a category, so that one that is not in the rows is possible


class IndicatorBlock(NamedTuple):
    """The indicators of a column of C categories.

    place : slice of their columns. vertices : indicators of each category, in units,
    (C, w). log_prior : log-frequency of each category, less the log-density of its
    indicators, (C,).
    """

    place: slice
    vertices: torch.Tensor
    log_prior: torch.Tensor

    def log_prob(self, mean, given):
        """Return log-probabilities of categories given the visible entries; (n, C).

        They are linear in the expected indicators, up to a constant of each row.

        mean : expected indicators, (n, g). They are arbitrary where they are visible.
        """
        covariance = given.covariance[0, :, self.place, self.place]
        vertices = self.vertices.to(covariance.device)
        log_prior = self.log_prior.to(covariance.device)
        is_visible = covariance.diagonal(dim1=1, dim2=2) == 0
        root = torch.linalg.cholesky(covariance + is_visible.double().diag_embed())
        slopes = torch.cholesky_solve(vertices.T.expand(len(root), -1, -1), root)
        level = log_prior - 0.5 * (vertices.T * slopes).sum(1)
        patterns = given.patterns
        products = patterns.multiply(slopes.mT[None], mean[None, :, self.place])
        return (level[patterns.pattern_index] + products[0]).log_softmax(1)


class GaussianIndicators(RecodedModel):
    r"""Gaussian model of coded rows with indicators in place of categories.

    Given the visible entries, the indicators y of a column have a normal distribution
    with mean m and covariance V; without them, with mean :math:`\mu` and covariance
    :math:`\Sigma`. By Bayes' rule, with the indicators :math:`y_c` and the frequency
    :math:`\pi_c` of category c,

    .. math:: p(c \mid x_R) \propto \pi_c \,
        \frac{N(y_c; m, V)}{N(y_c; \mu, \Sigma)},

    which is linear discriminant analysis [1]_. Ordered categories have indicators for
    whether the code is above each level. Numbers that are coded have themselves as
    their only indicator.

    Parameters
    ----------
    layout : ColumnLayout
    model : CodedModel
        A Gaussian of numbers.

    References
    ----------
    .. [1] R. A. Fisher, "The use of multiple measurements in taxonomic problems",
       Annals of Eugenics 7, 1936.
    """

    def __init__(self, layout: ColumnLayout, model: CodedModel):
        self.layout = layout
        self.model = model

    def fit(self, X, y=None, sample_weight=None):
        coded = self._coded(X)
        if not hasattr(self, "units_"):
            gaussian = ColumnLayout(
                ["gaussian"] * coded.shape[1], np.zeros(coded.shape[1])
            )
            self.units_ = NumberTransform.from_rows(coded, gaussian)
        self.model.fit(self.units_.transform(coded), sample_weight=sample_weight)
        self._frequencies = {
            j: frequencies(X[:, j], len(values), sample_weight)
            for j, values in self.layout.values.items()
        }
        self._blocks = self._blocks_of_columns()
        return self

    def conditional_log_prob(self, X, mask):
        mask = np.broadcast_to(mask, X.shape)
        hidden = mask & ~np.isnan(X)
        log_prob = np.zeros(X.shape)
        coded = self.layout.coded
        columns = coded[hidden[:, coded].any(axis=0)]
        visible = np.where(mask, np.nan, X)
        mean, std, log_probs = self._given(visible, columns)
        numbers = self.layout.n_categories == 0
        log_prob[:, numbers] = stats.norm.logpdf(X, mean, std)[:, numbers]
        for j, column_log_prob in zip(columns, log_probs, strict=True):
            code = np.where(hidden[:, j], X[:, j], 0).astype(int)
            log_prob[:, j] = column_log_prob[np.arange(len(X)), code]
        return np.where(hidden, log_prob, 0.0)

    def expected(self, X, layout, columns, units):
        mean, std, log_probs = self._given(X, columns)
        return units.expected(mean, std), log_probs

    def draw(self, X, random_state=None):
        """Fill in gaps; categories are drawn one column after the other."""
        rng = np.random.default_rng(random_state)
        X = draw_codes(X, self.layout.coded, lambda *args: self._given(*args)[2], rng)
        coded = self.units_.transform(self._coded(X))
        wide = self.model.draw(coded, seed_from(rng))
        drawn = self.units_.inverse_transform(wide)[:, self._starts]
        return np.where(np.isnan(X), drawn, X)

    def _given(self, X, columns):
        """Return distributions of entries given the present entries of their rows.

        Means and standard deviations of numbers, both (n, d), which are arbitrary in
        columns of categories; and log-probabilities of the categories of `columns`, a
        list of (n, n_categories).
        """
        coded = self.units_.transform(self._coded(X))
        blocks = [self._blocks[j] for j in columns]

        def moments(rows, density):
            given = density.given(rows, ~rows.isnan()).gaussian
            mean = density.components.means + given.deviation[:, 0]
            log_probs = [block.log_prob(mean, given) for block in blocks]
            return torch.cat([mean, given.variance[:, 0], *log_probs], dim=1)

        moments_of_columns = self.model.map_density(moments, coded)
        n_indicators = coded.shape[1]
        widths = [n_indicators, n_indicators, *self.layout.n_categories[columns]]
        mean, variance, *log_probs = np.split(
            moments_of_columns, np.cumsum(widths)[:-1], axis=1
        )
        mean = self.units_.inverse_transform(mean)
        std = self.units_.scale * np.sqrt(variance)
        return mean[:, self._starts], std[:, self._starts], log_probs

    def _blocks_of_columns(self):
        """Return the block of indicators of each column of categories, in a dict."""
        model, blocks = self.model.model, {}
        mean = self.units_.inverse_transform(model.means_[0])
        for j in self.layout.coded:
            place = slice(self._starts[j], self._starts[j] + self._widths[j])
            column = np.zeros((self.layout.n_categories[j], len(self.layout.kinds)))
            column[:, j] = np.arange(len(column))
            vertices = self._coded(column)[:, place]
            frequencies = self._frequencies.get(j, mean[place])
            if self._is_cumulative[j]:
                frequencies = -np.diff(frequencies, prepend=1.0, append=0.0)
            units = NumberTransform(self.units_.shift[place], self.units_.scale[place])
            vertices = units.transform(vertices)
            prior = stats.multivariate_normal.logpdf(
                vertices, model.means_[0, place], model.covariances_[0, place, place]
            )
            log_prior = np.log(np.maximum(frequencies, MIN_FREQUENCY)) - prior
            tensors = map(torch.from_numpy, (vertices, log_prior))
            blocks[j] = IndicatorBlock(place, *tensors)
        return blocks

    @cached_property
    def _is_cumulative(self):
        is_bool = self.layout.n_categories == 2
        return (self.layout.ordered | is_bool) & ~self._is_number

    @cached_property
    def _is_number(self):
        return self.layout.numbers

    @cached_property
    def _widths(self):
        """Number of indicators of each column; 1 for numbers."""
        counts = self.layout.n_categories
        widths = np.where(self._is_cumulative, counts - 1, counts)
        return np.where(self._is_number, 1, widths)

    @cached_property
    def _sources(self):
        return np.repeat(np.arange(len(self.layout.kinds)), self._widths)

    @cached_property
    def _starts(self):
        return np.append(0, self._widths.cumsum()[:-1])

    @cached_property
    def _levels(self):
        """The category of each indicator, or the level that ordered codes are above."""
        return np.arange(len(self._sources)) - self._starts[self._sources]

    def _coded(self, X):
        X = np.array(X, dtype=np.float64)
        for j, values in self.layout.values.items():
            present = ~np.isnan(X[:, j])
            X[present, j] = values[X[present, j].astype(int)]
        wide, levels = X[:, self._sources], self._levels
        is_above = self._is_cumulative[self._sources]
        indicators = np.where(is_above, wide > levels, wide == levels)
        is_code = ~self._is_number[self._sources]
        return np.where(is_code & ~np.isnan(wide), indicators, wide)
