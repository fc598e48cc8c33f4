r"""The density of a mixture, and its conditionals, in closed form.

Given the observed entries R of a row, class k has the responsibility

.. math:: r_k \propto \pi_k \, p_k(x_R), \qquad
    p(x_j \mid x_R) = \sum_k r_k \, p_k(x_j \mid x_R),

where :math:`p_k` is the Gaussian density of the Gaussian columns times one factor for
each other column, since other columns are independent in a class. For each class, the
block of its precision at the unobserved entries is factorised once for all rows with
the same gaps.
"""

from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._base.density import FLOAT_BYTES, Density
from sklearn_mpt._integration.quadrature import NODES, WEIGHTS
from sklearn_mpt._likelihoods.gaussian import LOG_2PI, normal_log_prob
from sklearn_mpt._measure.contract import masked_score

LEAST_VARIANCE = 1e-300
BLOCK_BYTES = 2**25
# Sizes up to which matrices are copied for every row: for each pattern, and in all.
CHEAP_COPY, LARGE_COPY = 2**15, 2**20


class Classes(NamedTuple):
    """The parameters of a mixture of K classes, as tensors.

    g of the d columns are Gaussian, in the order of the table. The others have the
    likelihood of the `MixtureLayout`, with l locations.
    """

    weights: torch.Tensor  # shape: (K,); they add up to 1
    means: torch.Tensor  # shape: (K, g)
    covariances: torch.Tensor  # shape: (K, g, g)
    locations: torch.Tensor  # shape: (K, l)
    # With covariance_type="low_rank", covariances are loadings @ loadings.T + noise.
    # With other types, the next two are empty.
    loadings: torch.Tensor  # shape: (K, g, q)
    noise: torch.Tensor  # shape: (K, g)

    def is_finite(self):
        return all(bool(part.isfinite().all()) for part in self)


class MixtureLayout(NamedTuple):
    """Which columns are Gaussian, and the likelihood of the others."""

    gaussian: torch.Tensor  # indices of the Gaussian columns, (g,)
    others: torch.Tensor  # indices of the other columns, (d - g,)
    likelihood: torch.nn.Module | None  # None if all columns are Gaussian

    @property
    def n_features(self):
        return len(self.gaussian) + len(self.others)


class Conditioned(NamedTuple):
    """Distribution of the Gaussian columns in each class, given the observed entries.

    Matrices are computed once for each of the u distinct patterns of observed entries;
    `pattern` is the index of the pattern of each row.
    """

    log_prob: torch.Tensor  # log-density of the observed entries, (n, K)
    deviation: torch.Tensor  # E[x | observed] - mean, (n, K, g)
    covariance: torch.Tensor  # Cov[x | observed], (u, K, g, g)
    precision: torch.Tensor  # inverse of the covariance of a class, (K, g, g)
    pattern: torch.Tensor  # shape: (n,)

    @property
    def variance(self):
        """Variance of each entry given the observed entries, (n, K, g)."""
        variance = self.covariance.diagonal(dim1=2, dim2=3)
        return variance.clamp(min=LEAST_VARIANCE)[self.pattern]


class Factors(NamedTuple):
    """Covariances of the classes, factorised once for all rows.

    whitening : inverse of their Cholesky factors. precision : their inverse.
    """

    whitening: torch.Tensor  # shape: (K, g, g)
    precision: torch.Tensor  # shape: (K, g, g)
    log_det: torch.Tensor  # log-determinant of the covariances, (K,)

    @classmethod
    def of(cls, covariances):
        root = torch.linalg.cholesky(covariances)
        eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
        eye = eye.expand_as(root)
        whitening = torch.linalg.solve_triangular(root, eye, upper=False)
        return cls(whitening, whitening.mT @ whitening, _log_det(root))


def _log_det(root):
    """Return the log-determinants of matrices with these Cholesky factors."""
    return 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def condition(X, observed, means, factors, patterns=None):
    r"""Condition Gaussians on the observed entries of rows.

    With the precision P of all columns, observed ones R and others M,

    .. math:: \operatorname{Cov}[x_M \mid x_R] = P_{MM}^{-1}, \quad
        E[x_M \mid x_R] = \mu_M - P_{MM}^{-1} P_{MR} (x_R - \mu_R), \quad
        \log |\Sigma_{RR}| = \log |\Sigma| + \log |P_{MM}|,

    and the distance of the row filled in so is that of its observed entries.

    X, observed : shape (n, g). factors : `Factors` of the covariances. patterns :
    `distinct(observed)`, if it is known.
    """
    n_features = X.shape[1]
    if n_features == 0:
        log_prob = means.new_zeros(len(X), len(means))
        nothing = log_prob.new_zeros(len(X), len(means), 0)
        matrix = log_prob.new_zeros(1, len(means), 0, 0)
        pattern = X.new_zeros(len(X), dtype=torch.int64)
        return Conditioned(log_prob, nothing, matrix, matrix[0], pattern)
    patterns, pattern = distinct(observed) if patterns is None else patterns
    whitening, precision, log_det = factors
    unobserved = ~patterns[:, None]
    both = unobserved[..., None] & unobserved[..., None, :]
    ones = patterns[:, None].to(means)
    blocks = torch.where(both, precision, 0.0)  # shape: (u, K, g, g)
    blocks.diagonal(dim1=2, dim2=3).add_(ones)
    block_root = torch.linalg.cholesky(blocks)
    covariance = torch.cholesky_inverse(block_root)
    covariance.diagonal(dim1=2, dim2=3).sub_(ones)
    log_det = log_det + _log_det(block_root)
    seen = observed[:, None]
    residual = torch.where(seen, torch.where(observed, X, 0.0)[:, None] - means, 0.0)
    pulled = (residual.transpose(0, 1) @ precision).transpose(0, 1)
    expected = -multiply(covariance, pattern, pulled)
    deviation = torch.where(seen, residual, expected)
    white = deviation.transpose(0, 1) @ whitening.mT  # shape: (K, n, g)
    size = observed.to(X.dtype).sum(1, keepdim=True) * LOG_2PI
    log_prob = -0.5 * ((white**2).sum(2).T + log_det[pattern] + size)
    return Conditioned(log_prob, deviation, covariance, precision, pattern)


def distinct(observed):
    """Return patterns of observed entries, (u, g), and the index of each row's, (n,).

    If many neighbouring rows are equal, only neighbours are compared and a pattern may
    occur twice; otherwise rows are sorted and patterns are distinct.
    """
    starts = observed.new_ones(len(observed))
    starts[1:] = (observed[1:] != observed[:-1]).any(1)
    if len(observed) > 1 and 4 * int(starts.sum()) > len(observed):
        return observed.unique(dim=0, return_inverse=True)
    return observed[starts], starts.cumsum(0) - 1


def multiply(matrices, pattern, vectors):
    """Multiply vectors (n, K, g) by the matrices (u, K, g, g) of their patterns."""
    size = len(vectors) * matrices[0].numel()
    is_small = size < min(CHEAP_COPY * len(matrices), LARGE_COPY)
    if is_small or 4 * len(matrices) > len(vectors):
        return (matrices[pattern] @ vectors[..., None])[..., 0]
    product = torch.empty_like(vectors)
    for u, matrix in enumerate(matrices):
        rows = (pattern == u).nonzero()[:, 0] if len(matrices) > 1 else slice(None)
        product[rows] = (vectors[rows].transpose(0, 1) @ matrix.mT).transpose(0, 1)
    return product


class Given(NamedTuple):
    """Distributions of all classes, given the observed entries of rows."""

    joint: torch.Tensor  # log p(class, observed entries), (n, K)
    gaussian: Conditioned
    entries: torch.Tensor  # log p(entry | class) of the other columns, (n, K, d - g)

    @property
    def log_responsibility(self):
        return self.joint.log_softmax(1)


class MixtureDensity(Density):
    """Density of a fitted mixture.

    Parameters
    ----------
    classes : Classes
    layout : MixtureLayout
    """

    def __init__(self, classes, layout):
        self.classes = classes
        self.layout = layout

    @cached_property
    def _factors(self):
        return Factors.of(self.classes.covariances)

    @cached_property
    def _of_codes(self):
        """log p(x_j = c | class) of all codes c of the other columns, (C, K, d - g).

        It is arbitrary for codes that a column does not have, and None if the values of
        some column are not codes.
        """
        likelihood, weights = self.layout.likelihood, self.classes.weights
        values = likelihood.values_of_each(len(self.layout.others))
        if values is None or any([*v] != [*range(len(v))] for v in values):
            return None
        last = weights.new_tensor([len(v) - 1 for v in values])
        codes = torch.arange(max(map(len, values)), device=last.device)
        codes = codes.to(last)[:, None].minimum(last)
        return likelihood.entry_log_prob(codes[:, None], self.classes.locations)

    @cached_property
    def _other_means(self):
        return self.layout.likelihood.mean(self.classes.locations)

    @property
    def row_bytes(self):
        n_classes, n_gaussian = self.classes.means.shape
        n_numbers = 5 * n_gaussian**2 + 8 * self.layout.n_features + 8
        return FLOAT_BYTES * n_classes * n_numbers

    def blocks(self, observed):
        """Yield slices of rows that stay within the memory for rows and for patterns.

        observed : bool, (n, d); rows with the same pattern follow each other.
        """
        n_classes, n_gaussian = self.classes.means.shape
        number = FLOAT_BYTES * n_classes
        n_patterns = max(1, BLOCK_BYTES // (number * (5 * n_gaussian**2 + 1)))
        n_rows = max(1, BLOCK_BYTES // (number * 12 * self.layout.n_features))
        columns = observed[:, self.layout.gaussian]
        new = (columns[1:] != columns[:-1]).any(1)
        block = new.cumsum(0) // n_patterns
        ends = (block[1:] != block[:-1]).nonzero()[:, 0] + 2
        ends = {0, *ends.tolist(), *range(n_rows, len(observed), n_rows)}
        for first, last in pairwise([*sorted(ends), len(observed)]):
            yield slice(first, last)

    def given(self, X, observed, patterns=None):
        """Condition every class on the observed entries of rows.

        patterns : `distinct` of the observed Gaussian columns, if it is known.
        """
        classes, layout = self.classes, self.layout
        gaussian = condition(
            X[:, layout.gaussian],
            observed[:, layout.gaussian],
            classes.means,
            self._factors,
            patterns,
        )
        entries = self._other_entries(X)
        seen = observed[:, None, layout.others]
        log_prob = gaussian.log_prob + torch.where(seen, entries, 0.0).sum(2)
        return Given(classes.weights.log() + log_prob, gaussian, entries)

    def _other_entries(self, X):
        layout = self.layout
        X = torch.nan_to_num(X[:, None, layout.others])
        if layout.likelihood is None:
            return X.expand(-1, len(self.classes.weights), -1)
        if self._of_codes is None:
            return layout.likelihood.entry_log_prob(X, self.classes.locations)
        codes = X.long().expand(-1, len(self.classes.weights), -1)
        return self._of_codes.gather(0, codes)

    def entry_log_prob(self, X, given):
        """Return log p(entry | class, observed entries) of every entry, (n, K, d).

        The result is meaningful where an entry is present but not among the observed.
        """
        gaussian, layout = given.gaussian, self.layout
        residual = torch.nan_to_num(X[:, None, layout.gaussian]) - self.classes.means
        error, variance = residual - gaussian.deviation, gaussian.variance
        log_prob = normal_log_prob(error**2, variance)
        everywhere = X.new_zeros(len(X), len(self.classes.weights), X.shape[1])
        everywhere[..., layout.gaussian] = log_prob
        everywhere[..., layout.others] = given.entries
        return everywhere

    def lml(self, X):
        value = self.given(X, ~X.isnan()).joint.logsumexp(1)
        value = torch.where(X.isnan().all(1), 0.0, value)
        return value, torch.zeros_like(value)

    def log_responsibility(self, X):
        """Return log p(class | present entries), (n, K)."""
        return self.given(X, ~X.isnan()).log_responsibility

    def conditional_log_prob(self, X, mask):
        present = ~X.isnan()
        hidden = present & mask
        given = self.given(X, present & ~mask)
        entries = self.entry_log_prob(X, given)
        log_prob = (given.log_responsibility[..., None] + entries).logsumexp(1)
        return torch.where(hidden, log_prob, 0.0)

    def expect(self, X):
        given, likelihood = self.given(X, ~X.isnan()), self.layout.likelihood
        filled = self._with_expected_numbers(X, given)
        if likelihood is not None:
            mean = given.log_responsibility.exp() @ self._other_means
            filled[:, self.layout.others] = likelihood.fill(mean)
        return filled

    def complete(self, X, columns, counts, curved, function):
        if columns and self._of_codes is None:
            return super().complete(X, columns, counts, curved, function)
        given, others = self.given(X, ~X.isnan()), self.layout.others.tolist()
        filled, log_prob = self._with_expected_numbers(X, given), X[:, :0]
        average = X[:, curved]
        if average.isnan().any():
            average = self._average(given, curved, function)
        if columns:
            places = zip(map(others.index, columns), counts, strict=True)
            of_class = torch.cat([self._of_codes[:c, :, j] for j, c in places])
            log_prob = (given.log_responsibility[:, None] + of_class).logsumexp(2)
        return filled, average, log_prob

    def _with_expected_numbers(self, X, given):
        """Return rows with the expectations of the Gaussian columns, (n, d)."""
        share = given.log_responsibility.exp()[..., None]
        expected = self.classes.means + given.gaussian.deviation
        filled = X.clone()
        filled[:, self.layout.gaussian] = (share * expected).sum(1)
        return filled

    def log_prob_at(self, X, columns, points):
        given = self.given(X, ~X.isnan())
        places = np.searchsorted(self.layout.gaussian.cpu().numpy(), columns)
        means = self.classes.means + given.gaussian.deviation
        variances, found = given.gaussian.variance, []
        for j, of_column in zip(places.tolist(), points, strict=True):
            error = means.new_tensor(of_column)[:, None] - means[:, None, :, j]
            log_prob = normal_log_prob(error**2, variances[:, None, :, j])
            log_prob = log_prob + given.log_responsibility[:, None]
            found.append(log_prob.logsumexp(2))
        return torch.cat(found, dim=1)

    def average(self, X, columns, function):
        return self._average(self.given(X, ~X.isnan()), columns, function)

    def _average(self, given, columns, function):
        places = np.searchsorted(self.layout.gaussian.cpu().numpy(), columns)
        means = (self.classes.means + given.gaussian.deviation)[..., places]
        std = given.gaussian.variance.sqrt()[..., places]
        nodes, weights = means.new_tensor(NODES), means.new_tensor(WEIGHTS)
        points = (means + std * nodes[:, None, None, None]).transpose(1, 2)
        values = means.new_tensor(function(points.flatten(0, 1).cpu().numpy()))
        values = values.reshape(points.shape)
        share = given.log_responsibility.exp()
        return torch.einsum("h,nk,hknc->nc", weights, share, values)

    def draw(self, X, rng):
        """Draw a class for each row, then all its missing entries jointly.

        A whole row is drawn from the class. Its missing entries are then moved by what
        their expectation is for the difference of the observed entries from those
        drawn, which makes them a draw given the observed ones.
        """
        classes, layout, present = self.classes, self.layout, ~X.isnan()
        given = self.given(X, present)
        level = X.new_tensor(rng.random((len(X), 1)))
        share = given.log_responsibility.exp().cumsum(1)
        k = (share < level).sum(1).clamp(max=len(classes.weights) - 1)
        root = torch.linalg.cholesky(classes.covariances)[k]
        noise = X.new_tensor(rng.normal(size=(len(X), len(layout.gaussian))))
        own = (root @ noise[..., None])[..., 0]
        observed = present[:, layout.gaussian]
        residual = torch.nan_to_num(X[:, layout.gaussian]) - classes.means[k] - own
        residual = torch.where(observed, residual, 0.0)[..., None]
        covariance = given.gaussian.covariance[given.gaussian.pattern, k]
        moved = -(covariance @ (given.gaussian.precision[k] @ residual))[..., 0]
        drawn = torch.empty_like(X)
        drawn[:, layout.gaussian] = classes.means[k] + own + moved
        if layout.likelihood is not None:
            uniform = X.new_tensor(rng.random((len(X), len(layout.others))))
            of_class = layout.likelihood.draw(classes.locations[k], uniform)
            drawn[:, layout.others] = of_class
        return drawn

    def mean_chain_scores(self, X, orders):
        return torch.stack([self._chain(X, order) for order in orders], 1)

    def _chain(self, X, order):
        """Return mean scores along one order, or one order for each row; (2, d).

        At each place of the order: the mean over all hidden features, and the next
        feature alone.
        """
        order = order.expand(X.shape)
        place = order.argsort(1)
        scores = X.new_zeros(2, X.shape[1])
        n_rows = max(1, BLOCK_BYTES // self.row_bytes)
        for rows, places, orders in zip(
            *(part.split(n_rows) for part in (X, place, order)), strict=True
        ):
            rows = rows.double()
            for t in range(X.shape[1]):
                hidden = places >= t
                log_prob = self.conditional_log_prob(rows, hidden)
                scores[0, t] += masked_score(log_prob, hidden).sum()
                scores[1, t] += log_prob.gather(1, orders[:, t : t + 1]).sum()
        return scores / len(X)
