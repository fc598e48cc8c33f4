"""Inputs and outputs of the net for each kind of column.

A head is the conditional distribution of all columns of one kind. It codes their values
as inputs of the net. From outputs of the net, `width` parameters for each column, it
computes log-probabilities, expected values and draws. Numbers are standardised.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from scipy.special import softmax

from sklearn_mpt._gaussian.density import LinearGaussian
from sklearn_mpt._gaussian.likelihood import fit_factors
from sklearn_mpt._likelihoods import likelihood_of
from sklearn_mpt._likelihoods.base import column_moments, column_scales
from sklearn_mpt._likelihoods.gaussian import LOG_2PI
from sklearn_mpt._matrices import drawn_codes
from sklearn_mpt._numbers import MIN_WIDTH, TINY
from sklearn_mpt._optim.natural import as_arrays

# Largest size of a logarithm that the net returns: of a shape parameter, and of a width
# in standard deviations. Its exponential is far from overflow in single precision.
MAX_LOG_OUTPUT = 12.0


class ColumnHead(torch.nn.Module, ABC):
    """The conditional distribution of columns of one kind."""

    n_inputs: int  # inputs of the net for a column
    width: int  # parameters of a column
    uses_moments = False

    @property
    def single(self) -> "ColumnHead":
        """The head of any one of the columns."""
        return self

    @abstractmethod
    def inputs(self, X):
        """Return the inputs of the net; (n, d * n_inputs)."""

    def units_of_inputs(self, X, weight):
        """Return shift and scale of the inputs of the net; (d * n_inputs,) each."""
        size = X.shape[1] * self.n_inputs
        return np.zeros(size), np.ones(size)

    def hide(self, inputs, visible, moments):
        """Return the inputs of the net, 0 for hidden entries; (n, d * n_inputs)."""
        return inputs * visible.repeat_interleave(self.n_inputs, 1)

    @abstractmethod
    def start(self, X, weight, linear, rng) -> np.ndarray:
        """Return the parameters from which training starts; (d * width,)."""

    @abstractmethod
    def log_prob(self, X, parameters, moments):
        """Return the log-probability of each entry; (n, d)."""

    @abstractmethod
    def expect(self, parameters, moments):
        """Return the expected value, or the most probable category; (n, d)."""

    def is_at_floor(self, X, parameters, moments):
        """Return whether entries belong to components of the least width; (n, d)."""
        return torch.zeros_like(X, dtype=torch.bool)

    @abstractmethod
    def draw(self, uniform, parameters, moments):
        """Draw entries from uniform noise of shape (n, d, 2); (n, d)."""


class LikelihoodHead(ColumnHead):
    """Columns of a kind of the package.

    Outputs of the net are the locations of a column, then its shape parameters.
    """

    def __init__(self, kind, n_categories, n_features):
        super().__init__()
        likelihood = likelihood_of(kind, n_categories, n_features)
        self.likelihood = likelihood.at(likelihood.shape_params.detach())
        is_known = n_features > 1 and isinstance(kind, str)
        self._single = LikelihoodHead(kind, n_categories, 1) if is_known else None
        self.n_inputs = self.inputs(torch.zeros(1, 1, device="cpu")).shape[-1]
        self.n_locations = likelihood.n_locations
        self.width = self.n_locations + likelihood.n_shape_params

    @property
    def single(self):
        return self if self._single is None else self._single

    def inputs(self, X):
        return self.likelihood.net_inputs(X)

    def start(self, X, weight, linear, rng):
        likelihood, scale = self.likelihood, np.ones(X.shape[1])
        shape_params = likelihood.start_attributes(X, scale, weight)
        shape_params = (
            likelihood.from_attributes(shape_params, scale)
            .shape_params.detach()
            .numpy()
        )
        location = likelihood.start_location(X, weight)
        arrays = [part.reshape(X.shape[1], -1) for part in (location, shape_params)]
        return np.concatenate(arrays, 1).ravel()

    def units_of_inputs(self, X, weight):
        if self.likelihood.values_of_each(X.shape[1]) is not None:
            return super().units_of_inputs(X, weight)
        present = np.repeat(~np.isnan(X), self.n_inputs, axis=1)
        read = self.inputs(torch.from_numpy(np.nan_to_num(X).astype(float))).numpy()
        read = np.where(present, read, np.nan)
        mean, variance, _ = column_moments(read, weight)
        return mean, column_scales(mean, variance)

    def _parts(self, parameters):
        """Return the likelihood of each row, and its locations."""
        if self.width == self.n_locations:
            return self.likelihood, parameters
        by_column = parameters.unflatten(-1, (-1, self.width))
        location, shape_params = by_column.tensor_split([self.n_locations], -1)
        shape_params = shape_params.clamp(-MAX_LOG_OUTPUT, MAX_LOG_OUTPUT)
        return self.likelihood.at(shape_params.flatten(-2)), location.flatten(-2)

    def log_prob(self, X, parameters, moments):
        likelihood, location = self._parts(parameters)
        return likelihood.entry_log_prob(X, location)

    def expect(self, parameters, moments):
        likelihood, location = self._parts(parameters)
        return likelihood.fill(likelihood.mean(location))

    def draw(self, uniform, parameters, moments):
        likelihood, location = self._parts(parameters)
        return likelihood.draw(location, uniform[..., 0])


class MixtureHead(ColumnHead):
    r"""Columns of numbers, each a mixture of Gaussians.

    A linear model predicts a mean m and a standard deviation s from the visible
    numbers. The net returns weights, centres and widths of components relative to them:

    .. math:: p(x) = \sum_k w_k N(x; m + s \mu_k, s^2 \sigma_k^2 + f^2),

    where f is the least width.
    """

    n_inputs = 1
    uses_moments = True

    def __init__(self, n_mixtures):
        super().__init__()
        self.n_mixtures = n_mixtures
        self.width = 3 * n_mixtures

    def inputs(self, X):
        return X

    def hide(self, inputs, visible, moments):
        """Return the inputs, hidden numbers replaced by their means; (n, d)."""
        return torch.where(visible, inputs, moments[0])

    def start(self, X, weight, linear, rng, n_residuals=1000):
        """Fit mixtures to residuals of the linear model."""
        sample = np.resize(rng.permutation(len(X)), n_residuals)
        sampled, weight = X[sample], weight[sample]
        hidden = rng.random(sampled.shape) < rng.random((n_residuals, 1))
        visible = torch.from_numpy(~np.isnan(sampled) & ~hidden)
        moments = linear(torch.from_numpy(np.nan_to_num(sampled)), visible)
        mean, deviation = (moment.numpy() for moment in moments)
        residuals = np.where(hidden, (sampled - mean) / deviation, np.nan)
        starts = []
        for x, n_present in zip(residuals.T, (~np.isnan(X)).sum(0), strict=True):
            present = ~np.isnan(x)
            n_fitted = count_mixtures(self.n_mixtures, n_present)
            fitted = np.array(fit_mixture(x[present], weight[present], n_fitted))
            # the others are copies, which divide the weight
            copied = np.arange(self.n_mixtures) % n_fitted
            fitted[0] -= np.log(np.bincount(copied))
            starts.append(fitted[:, copied])
        return np.array(starts).ravel()

    def _components(self, parameters, moments):
        """Return logits, centres and variances; (n_mixtures, n, d) each.

        Sums over the first axis take less time than over the last.
        """
        by_column = parameters.unflatten(-1, (-1, 3, self.n_mixtures))
        logits, centres, log_widths = by_column.permute(2, 3, 0, 1).contiguous()
        mean, deviation = moments
        widths = deviation * log_widths.clamp(-MAX_LOG_OUTPUT, MAX_LOG_OUTPUT).exp()
        return logits, mean + deviation * centres, widths**2 + MIN_WIDTH**2

    def _log_each(self, X, logits, centres, variances):
        """Return log-densities of components, up to one constant for each entry."""
        return logits - 0.5 * (variances.log() + (X - centres) ** 2 / variances)

    def log_prob(self, X, parameters, moments):
        logits, *components = self._components(parameters, moments)
        log_each = self._log_each(X, logits, *components)
        # log_softmax takes longer than both sums
        return log_each.logsumexp(0) - logits.logsumexp(0) - 0.5 * LOG_2PI

    def expect(self, parameters, moments):
        logits, centres, _ = self._components(parameters, moments)
        return (logits.softmax(0) * centres).sum(0)

    def draw(self, uniform, parameters, moments):
        logits, *components = self._components(parameters, moments)
        prob = logits.softmax(0).movedim(0, -1)
        chosen = drawn_codes(prob, uniform[..., :1])[None]
        centre, variance = (part.gather(0, chosen)[0] for part in components)
        return centre + variance.sqrt() * torch.special.ndtri(uniform[..., 1])

    def is_at_floor(self, X, parameters, moments):
        logits, centres, variances = self._components(parameters, moments)
        most_probable = self._log_each(X, logits, centres, variances).argmax(0)
        variance = variances.gather(0, most_probable[None])[0]
        # half as wide again: the width of the net adds to the least one
        return variance < (1.5 * MIN_WIDTH) ** 2


def count_factors(n_samples, n_features):
    """Return the number of factors for a number of rows; 0 for a single column."""
    if n_features < 2 or n_samples < 10:
        return 0
    return min(max(1, n_samples // 40), 32, (n_features + 1) // 2)


def count_mixtures(n_mixtures, n_samples):
    """Return the number of Gaussians of a column, for a number of rows.

    Gaussians of few rows each are so narrow that no other row is near them. What the
    limit gains is in benchmarks/RESULTS.rst, "Masked autoencoder: few rows".
    """
    return int(min(n_mixtures, max(1, n_samples // 20)))


class NumberMoments(torch.nn.Module):
    """Moments of hidden numbers given visible ones, under factor analysis.

    Columns are standardised. The model is not trained together with the net, and it
    computes in double precision.
    """

    def __init__(self, coefs, log_noise):
        super().__init__()
        for name, array in (("coefs", coefs), ("log_noise", log_noise)):
            tensor = torch.tensor(array, dtype=torch.float64, device="cpu")
            self.register_buffer(name, tensor)

    @torch.no_grad()
    def forward(self, X, visible):
        """Return mean and standard deviation of each entry given the visible ones."""
        coefs, noise = self.coefs.double(), self.log_noise.double().exp()
        if coefs.shape[1] == 1:
            mean, std = coefs[:, 0], noise.sqrt()
            return mean.to(X).expand_as(X), std.to(X).expand_as(X)
        factors = LinearGaussian(coefs[:, :-1].T, coefs[:, -1], noise)
        mean, variance = factors.conditional_moments(X.double(), visible.double())
        return mean.to(X.dtype), variance.sqrt().to(X.dtype)


def fit_linear(X, weight, n_factors, rng):
    """Fit factor analysis to standardised rows with gaps.

    Noise variances are at least 1 over the number of rows, as if one more row had a
    residual of one standard deviation: few rows make columns functions of each other.
    """
    if n_factors == 0:
        return np.zeros((X.shape[1], 1)), np.zeros(X.shape[1])
    if len(X) > 4000:
        chosen = rng.choice(len(X), 4000, replace=False)
        X, weight = X[chosen], weight[chosen]
    coefs, log_noise = as_arrays(fit_factors(X, weight, n_factors))
    return coefs, np.maximum(log_noise, -np.log(len(X)))


def fit_mixture(x, weight, n_components):
    """Fit a mixture of Gaussians to numbers by EM, from their quantiles.

    Each component counts a tenth of a number more, of the variance of all, so that its
    width is not 0, and has a thousandth of the weight at least, so that the net can
    make it larger.
    """
    total, least = weight.sum(), 0.02**2  # smallest variance of a component
    if total == 0:
        return np.zeros((3, n_components))
    order = x.argsort()
    at = total * (np.arange(n_components) + 0.5) / n_components
    centres = x[order][np.searchsorted(weight[order].cumsum(), at)]
    variance = weight @ (x - weight @ x / total) ** 2 / total + least
    variances = np.full(n_components, variance / n_components**2)
    counts = np.full(n_components, total / n_components)
    for _ in range(20):
        square = (x[:, None] - centres) ** 2
        log_each = np.log(counts) - 0.5 * np.log(variances) - 0.5 * square / variances
        weights = softmax(log_each, axis=1) * weight[:, None]
        counts = weights.sum(0) + TINY  # a component without numbers stays where it is
        centres = (weights.T @ x + TINY * centres) / counts
        square = (x[:, None] - centres) ** 2
        variances = ((weights * square).sum(0) + 0.1 * variance) / (counts + 0.1)
        variances = np.maximum(variances, least)
    counts = np.maximum(counts, 1e-3 * total)
    return np.log(counts / counts.sum()), centres, 0.5 * np.log(variances)
