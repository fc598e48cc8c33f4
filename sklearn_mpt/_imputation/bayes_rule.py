r"""Models of numbers that predict categories, by Bayes' rule.

A category c is read as one or several numbers :math:`v_c`. With the density f of the
model, and the frequency :math:`\pi_c` of the category,

.. math:: p(c \mid x_R) \propto \pi_c \, \frac{f(v_c \mid x_R)}{f(v_c)},

so that columns alone have the frequencies that there are.
"""

import copy
from abc import abstractmethod
from typing import NamedTuple, Self

import numpy as np
import torch
from scipy import stats
from scipy.special import log_softmax

from sklearn_mpt._factors.em import fit_factors
from sklearn_mpt._fitting.natural_gradient import Point
from sklearn_mpt._imputation.coded_models import CodedModel
from sklearn_mpt._imputation.coded_rows import CODES, INDICATORS, NUMBERS, CodedRows
from sklearn_mpt._linear.vae import MPTLinearVAE
from sklearn_mpt._probabilities import drawn_codes
from sklearn_mpt._seeds import seed_from

MIN_FREQUENCY = 1e-3  # of a category, so that one that is not in the rows is possible
MIN_NOISE = 1e-6  # variance that factors leave to a standardised number, at least


class BayesRuleModel(CodedModel):
    """Base of models that predict some columns of categories by Bayes' rule."""

    # Of each of these columns, the columns of coded rows that have its numbers, and the
    # numbers of its categories, (n_categories, w).
    _category_numbers: dict[int, tuple[slice, np.ndarray]]

    @abstractmethod
    def _log_probs(self, X, columns):
        """Return the log-probabilities of categories of columns; list of (n, C)."""

    @abstractmethod
    def _conditionals(self, X, mask, columns):
        """Return log-densities of hidden numbers, (n, d), and `_log_probs`.

        X : coded rows, none of whose entries is hidden.
        """

    def conditional_log_prob(self, rows: CodedRows, mask):
        mask = np.broadcast_to(mask, rows.numbers.shape)
        hidden = mask & ~rows.gaps
        columns = [j for j in self._category_numbers if hidden[:, j].any()]
        log_prob, log_probs = self._conditionals(self._coded(rows), mask, columns)
        codes = rows.coded(CODES)
        for j, column_log_prob in zip(columns, log_probs, strict=True):
            code = np.where(hidden[:, j], codes[:, j], 0).astype(int)
            log_prob[:, j] = column_log_prob[np.arange(len(code)), code]
        log_prob = np.where(hidden, log_prob, 0.0)
        return rows.as_densities(log_prob, mask, self.with_powers)

    def draw(self, rows: CodedRows, random_state=None):
        """Return rows without gaps; categories are drawn one column after the other."""
        rng = np.random.default_rng(random_state)
        numbers, X = rows.numbers.copy(), self._coded(rows).copy()
        for j, (columns, category_numbers) in self._category_numbers.items():
            gaps = np.isnan(numbers[:, j])
            if gaps.any():
                probs = np.exp(self._log_probs(X[gaps], [j])[0])
                codes = drawn_codes(probs, rng.random((len(probs), 1)))
                X[gaps, columns] = category_numbers[codes]
                numbers[gaps, j] = rows.coding.numbers_of_codes(j)[codes]
        return self._drawn(rows, numbers, X, np.random.default_rng(seed_from(rng)))


class LevelsAsNumbers(BayesRuleModel):
    """A model that reads levels of numbers as numbers, and predicts the levels."""

    form = NUMBERS

    def fit(self, rows: CodedRows, sample_weight=None) -> Self:
        super().fit(rows, sample_weight)
        codes, coding = rows.coded(CODES), rows.coding
        levels = {
            j: coding.level_numbers(j, self.with_powers) for j in coding.layout.values
        }
        self._category_numbers = {
            j: (slice(j, j + 1), v[:, None]) for j, v in levels.items()
        }
        all_missing = np.full((1, codes.shape[1]), np.nan)
        marginals = self._at_levels(all_missing, list(levels))
        self._log_prior = {
            j: np.log(frequencies(codes[:, j], len(v), sample_weight)) - marginal[0]
            for (j, v), marginal in zip(levels.items(), marginals, strict=True)
        }
        return self

    def _conditionals(self, X, mask, columns):
        density = self._density
        log_prob = self.model._map_rows(density, density.conditional_log_prob, X, mask)
        return log_prob, self._log_probs(np.where(mask, np.nan, X), columns)

    def expected(self, rows: CodedRows, columns):
        is_level = np.isin(columns, list(self._category_numbers))
        numbers, log_probs = super().expected(rows, columns[~is_level])
        levels = columns[is_level].tolist()
        level_log_probs = self._log_probs(self._coded(rows), levels)
        by_column = dict(zip(columns[~is_level].tolist(), log_probs, strict=True))
        by_column |= dict(zip(levels, level_log_probs, strict=True))
        return numbers, [by_column[j] for j in columns.tolist()]

    def _log_probs(self, X, columns):
        return [
            log_softmax(log_density + self._log_prior[j], axis=1)
            for j, log_density in zip(columns, self._at_levels(X, columns), strict=True)
        ]

    def _at_levels(self, X, columns):
        """Return the log-densities of the model at the levels; list of (n, C)."""
        if not columns:
            return []
        levels = [self._category_numbers[j][1][:, 0] for j in columns]
        log_prob = self.map_density(
            lambda x, density: density.log_prob_at(x, columns, levels), X
        )
        return np.split(log_prob, np.cumsum([len(v) for v in levels])[:-1], axis=1)


class IndicatorModel(BayesRuleModel):
    """Gaussian model with indicators instead of categories.

    Bayes' rule is then linear discriminant analysis [1]_.

    References
    ----------
    .. [1] R. A. Fisher, "The use of multiple measurements in taxonomic problems",
       Annals of Eugenics 7, 1936.
    """

    form = INDICATORS

    @property
    @abstractmethod
    def _means(self):
        """Means of the columns of the model, (w,)."""

    @abstractmethod
    def _block(self, columns, vertices, log_frequency):
        """Return what predicts the categories of a column.

        columns : slice of the columns of its indicators. vertices : indicators of each
        category, (C, w). log_frequency : of each category, (C,).
        """

    @abstractmethod
    def _moments(self, X, density, blocks):
        """Return means and variances of entries given the present ones of their rows.

        A list of tensors: both moments, (n, w), and the log-probabilities of the
        categories of each block, (n, C). They are arbitrary where X is present.
        """

    def fit(self, rows: CodedRows, sample_weight=None) -> Self:
        super().fit(rows, sample_weight)
        codes, coding = rows.coded(CODES), rows.coding
        self._counts, self._indicators = coding.layout.n_categories, coding.indicators
        self._blocks, self._category_numbers = {}, {}
        for j in coding.layout.coded.tolist():
            columns = self._indicators.columns(j)
            if j in coding.layout.values:
                vertices = coding.level_numbers(j, self.with_powers)[:, None]
                frequency = frequencies(codes[:, j], self._counts[j], sample_weight)
            else:
                vertices = self._indicators.of_categories(j, self._counts[j])
                frequency = self._mean_frequencies(j)
            log_frequency = np.log(np.maximum(frequency, MIN_FREQUENCY))
            self._blocks[j] = self._block(columns, vertices, log_frequency)
            self._category_numbers[j] = columns, vertices
        return self

    def _mean_frequencies(self, j):
        """Return the frequencies of categories that the means imply; (C,)."""
        indicators = self._indicators
        columns = indicators.columns(j)
        frequency = (
            indicators.shift[columns] + indicators.scale[columns] * self._means[columns]
        )
        if indicators.is_cumulative[j]:
            frequency = -np.diff(frequency, prepend=1.0, append=0.0)
        return frequency

    def _conditionals(self, X, mask, columns):
        visible = np.where(mask[:, self._indicators.sources], np.nan, X)
        mean, std, log_probs = self._given(visible, columns)
        log_prob = stats.norm.logpdf(X[:, self._indicators.starts], mean, std)
        return np.where(self._counts == 0, log_prob, 0.0), log_probs

    def expected(self, rows: CodedRows, columns):
        mean, std, log_probs = self._given(self._coded(rows), columns.tolist())
        return self._transform(rows).expected(mean, std), log_probs

    def _log_probs(self, X, columns):
        return self._given(X, columns)[2]

    def _given(self, X, columns):
        """Return distributions of entries given the present entries of their rows.

        Means and standard deviations of numbers, both (n, d), which are arbitrary in
        columns of categories; and log-probabilities of the categories of `columns`, a
        list of (n, n_categories).
        """
        blocks = [self._blocks[j] for j in columns]
        widths = [X.shape[1], X.shape[1], *self._counts[columns]]
        mean, variance, *log_probs = np.split(
            self.map_density(
                lambda x, density: torch.cat(self._moments(x, density, blocks), dim=1),
                X,
            ),
            np.cumsum(widths)[:-1],
            axis=1,
        )
        std = np.sqrt(variance)
        starts = self._indicators.starts
        return mean[:, starts], std[:, starts], log_probs


class GaussianBlock(NamedTuple):
    """The indicators of a column of C categories, of a Gaussian with covariances.

    columns : slice of their columns. vertices : indicators of each category, (C, w).
    log_prior : log-frequency of each category, less the log-density of its indicators,
    (C,).
    """

    columns: slice
    vertices: np.ndarray
    log_prior: np.ndarray

    def log_prob(self, mean, given):
        """Return log-probabilities of categories given the visible entries; (n, C).

        They are linear in the expected indicators, up to a constant of each row.

        mean : expected indicators, (n, g). They are arbitrary where they are visible.
        """
        covariance = given.covariance[0, :, self.columns, self.columns]
        vertices, log_prior = map(covariance.new_tensor, self[1:])
        is_visible = covariance.diagonal(dim1=1, dim2=2) == 0
        root = torch.linalg.cholesky(covariance + is_visible.double().diag_embed())
        coefs = torch.cholesky_solve(vertices.T.expand(len(root), -1, -1), root)
        level = log_prior - 0.5 * (vertices.T * coefs).sum(1)
        patterns = given.patterns
        products = patterns.multiply(coefs.mT[None], mean[None, :, self.columns])
        return (level[patterns.pattern_index] + products[0]).log_softmax(1)


class GaussianIndicators(IndicatorModel):
    """A Gaussian with the covariances of all columns: `MPTMixture` of one component."""

    @property
    def _means(self):
        return self.model.means_[0]

    def _block(self, columns, vertices, log_frequency):
        covariance = self.model.covariances_[0, columns, columns]
        prior = stats.multivariate_normal.logpdf(
            vertices, self._means[columns], covariance
        )
        log_prior = log_frequency - prior
        return GaussianBlock(columns, vertices, log_prior)

    def _moments(self, X, density, blocks):
        given = density.given(X, ~X.isnan()).gaussian
        mean = density.components.means + given.deviation[:, 0]
        log_probs = [block.log_prob(mean, given) for block in blocks]
        return [mean, given.variance[:, 0], *log_probs]


class FactorBlock(NamedTuple):
    r"""The indicators of a column of C categories, of a model with K factors.

    With loadings B of the indicators v, their noise variances :math:`\Psi`, and the
    posterior of z given the visible entries, with mean m and covariance P, the
    log-density of v is, up to what does not depend on P or on v,

    .. math:: u^\top (m - M G m) + \tfrac12 u^\top M u, \quad
        u = B \Psi^{-1} (v - \mu), \quad G = B \Psi^{-1} B^\top, \quad
        M = (P^{-1} + G)^{-1}.

    information : G, (K, K). gradients : u of each category, (C, K). log_frequency :
    (C,).
    """

    information: np.ndarray
    gradients: np.ndarray
    log_frequency: np.ndarray

    def log_prob(self, mean, covariance):
        """Return log-probabilities of categories; (n, C).

        mean, covariance : posterior of z, (n, K) and (n, K, K).
        """
        G, gradients, log_frequency = map(mean.new_tensor, self)
        eye = torch.eye(len(G), dtype=G.dtype, device=G.device)
        prior = torch.linalg.inv(eye + G)
        posterior = torch.linalg.solve(eye + covariance @ G, covariance)
        linear = mean - (posterior @ (mean @ G)[..., None])[..., 0]
        square = ((gradients @ (posterior - prior)) * gradients).sum(2)
        return (log_frequency + linear @ gradients.T + 0.5 * square).log_softmax(1)


class FactorIndicators(IndicatorModel):
    """A Gaussian with few factors, of which no covariance matrix is formed.

    The noise variance of a column is shrunk towards the geometric mean of all, as if as
    many rows had it as the column has parameters: with few rows, a factor may follow
    one column, whose noise would be zero. Their arithmetic mean would be far above the
    noise of columns that are nearly collinear.

    Parameters
    ----------
    n_factors : int
    max_iter, tol : as those of `fit_factors`
    with_powers : bool, default=True
        Whether the model reads power transforms of skewed numbers.
    """

    def __init__(
        self, n_factors: int, max_iter: int, tol: float, with_powers: bool = True
    ):
        model = MPTLinearVAE(n_factors, noise="per_feature", max_iter=0)
        super().__init__(model, with_powers)
        self.n_factors, self.max_iter, self.tol = n_factors, max_iter, tol

    def warm_started(self, **params) -> Self:
        return copy.deepcopy(self).set_params(**params)

    def _fit_model(self, X, sample_weight):
        params = {"max_iter": self.max_iter, "tol": self.tol, "start": self._point()}
        point = fit_factors(
            X, sample_weight, self.n_factors, noise_floor=MIN_NOISE, **params
        )
        coefs, noise = point.coefs.numpy(), point.shape_params.exp().numpy()
        n_present, n_parameters = np.count_nonzero(~np.isnan(X), axis=0), coefs.shape[1]
        pooled = n_present * noise + n_parameters * np.exp(np.log(noise).mean())
        arrays = {
            "components": coefs[:, :-1].T,
            "mean": coefs[:, -1],
            "noise_variance": pooled / (n_present + n_parameters),
        }
        self.model.set_params(init=arrays).fit(X)

    def _point(self):
        """Return the parameters of the last fit, or None."""
        if not hasattr(self.model, "components_"):
            return None
        coefs = np.column_stack([self.model.components_.T, self.model.mean_])
        log_noise = np.log(self.model.noise_variance_)
        return Point(torch.from_numpy(coefs), torch.from_numpy(log_noise))

    @property
    def _means(self):
        return self.model.mean_

    def _block(self, columns, vertices, log_frequency):
        B, noise = (
            self.model.components_[:, columns],
            self.model.noise_variance_[columns],
        )
        gradients = ((vertices - self._means[columns]) / noise) @ B.T
        return FactorBlock((B / noise) @ B.T, gradients, log_frequency)

    def _moments(self, X, density, blocks):
        z, covariance = density.latent_moments(X)
        W, noise = map(
            X.new_tensor, (self.model.components_, self.model.noise_variance_)
        )
        variance = noise + ((covariance @ W) * W).sum(1)
        log_probs = [block.log_prob(z, covariance) for block in blocks]
        return [density.decode(z), variance, *log_probs]


def frequencies(codes, count, sample_weight):
    """Return the frequencies of codes among present entries; (count,)."""
    present = ~np.isnan(codes)
    weight = None if sample_weight is None else sample_weight[present]
    counts = np.bincount(codes[present].astype(int), weight, count)
    return counts / counts.sum()
