"""Densities of models whose integrals over z are sums over nodes."""

from functools import partial

import torch

from sklearn_mpt._base.density import LatentDensity
from sklearn_mpt._checks import warn_caller
from sklearn_mpt._latent.integrals import (
    FINE_POINTS,
    QUASI_RANDOM_GAIN,
    conditionals_by_difference,
    integrate_average,
    integrate_conditionals,
    integrate_log_prob,
    log_joint,
    refine_rows,
    rows_of,
)
from sklearn_mpt._latent.quadrature import mean_and_covariance, mixture_nodes, moments
from sklearn_mpt._likelihoods.gaussian import MAX_SIZE
from sklearn_mpt._matrices import drawn_codes
from sklearn_mpt._numbers import FLOAT_BYTES

# Error of an average, over 1 plus its size, from which on it comes with a warning; and
# of a conditional, in nats, which is then a difference of likelihoods.
MAX_AVERAGE_ERROR = 0.2
# Draws with fewer effective candidates come with a warning.
MIN_CANDIDATES = 10


class IntegratedDensity(LatentDensity):
    """A density whose integrals over z are sums over nodes.

    Parameters
    ----------
    joint : object
        Joint distribution of z and standardised rows, as `integrals` asks for it,
        with a `likelihood`, ``location(z)``, `n_dims`, the number of latent variables,
        and `width`, the largest number of values that are computed for a node.
    units : Units
    scoring : Accuracy
        Of likelihoods and averages.
    predicting : Accuracy
        Of conditionals. Those that stay unsure are differences of likelihoods.
    seed : tuple of int
        Of quasi-random points.
    """

    def __init__(self, joint, units, scoring, predicting, seed):
        self.joint = joint
        self.seed = seed
        self.units = units
        self.scoring = scoring
        self.predicting = predicting
        # errors of means of z and of standardised features
        tolerance = scoring.tolerance if scoring.is_quadrature else 0.05
        self.averaging = scoring._replace(tolerance=tolerance)

    @property
    def row_bytes(self):
        # of three tensors over rows, nodes and features
        return FLOAT_BYTES * 3 * self.scoring.n_nodes * self.joint.width

    def lml(self, X):
        rows = self._rows(X)
        args = integrate_log_prob, rows, self.scoring, self.joint
        value, error, random_error = refine_rows(*args)
        n_seen = rows.observed.sum(1)
        value = value - (rows.observed * self.units.log_scale).sum(1)
        value = torch.where(n_seen > 0, value, 0.0)
        if self.scoring.is_quadrature:
            return value, torch.where(error > self.scoring.tolerance, error, 0.0)
        n_effective = (QUASI_RANDOM_GAIN * random_error) ** -2
        return value, torch.where(n_seen > 0, error, 0.0), n_effective

    def conditional_log_prob(self, X, mask):
        rows = self._rows(X, mask)
        log_prob = self._conditionals(rows)
        is_target = rows.present & ~rows.observed  # 0.0 elsewhere
        return torch.where(is_target, log_prob - self.units.log_scale, 0.0)

    def _conditionals(self, rows):
        accuracy = self.predicting
        args = integrate_conditionals, rows, accuracy, self.joint
        value, error, _ = refine_rows(*args)
        largest = accuracy.tolerance if accuracy.is_quadrature else MAX_AVERAGE_ERROR
        inaccurate = (error > largest).nonzero()
        accuracy = self.scoring if accuracy.is_quadrature else accuracy.finest()

        def integrate(rows):
            return refine_rows(integrate_log_prob, rows, accuracy, self.joint)

        blocks = inaccurate.split(len(value)) if len(inaccurate) else ()
        for row_index, feature in (block.T for block in blocks):
            entries = row_index, feature
            difference, difference_error = conditionals_by_difference(
                rows, entries, integrate
            )
            better = difference_error < error[row_index, feature]
            value[row_index, feature] = torch.where(
                better, difference, value[row_index, feature]
            )
        return value

    def latent_mean(self, X):
        return self._average(lambda z: z, X, "Means of latent variables")

    def latent_moments(self, X):
        averages = self._average(moments, X, "Moments of latent variables")
        return mean_and_covariance(averages, self.joint.n_dims)

    def expect(self, X):
        kind = self.joint.likelihood
        is_needed = kind.to_means(X.isnan())
        average = self._average(self._mean, X, "Expected values", is_needed)
        return self._with_open_entries(X, self._fill(average))

    def is_open(self, X):
        return self.joint.likelihood.is_open(X)

    def _with_open_entries(self, X, expected):
        """Return expected rows; open entries are given what X tells of them."""
        is_open = self.is_open(X) & ~X.isnan()
        index = is_open.any(1).nonzero()[:, 0]
        if not len(index):
            return expected

        def average(rows, rule, model):
            def mean(z):
                return self.joint.likelihood.within(rows.X[:, None], model.location(z))

            return integrate_average(mean, rows, rule, model)

        accuracy = self.averaging.without_shared()
        mean, *_ = refine_rows(average, self._rows(X[index]), accuracy, self.joint)
        within = expected.index_copy(0, index, self.units.restore(mean))
        return torch.where(is_open, within, expected)

    def decode(self, Z):
        return self._fill(self._mean(Z))

    def _fill(self, mean):
        return self.units.restore(self.joint.likelihood.fill(mean))

    def draw(self, X, rng):
        rows = self._rows(X)
        z = self._draw_latent(rows, rng)
        uniform = X.new_tensor(rng.random(tuple(X.shape)))
        kind, location = self.joint.likelihood, self.joint.location(z)
        return self.units.restore(kind.within(rows.X, location, uniform))

    def _draw_latent(self, rows, rng):
        """Draw z given what is observed, by importance resampling; (n, k)."""
        n_rows, n_dims = len(rows.X), self.joint.n_dims
        if not rows.observed.any():
            return rows.X.new_tensor(rng.normal(size=(n_rows, n_dims)))
        posteriors = rows.posteriors or self.joint.propose(rows)
        n_points, n_prior_points = FINE_POINTS
        counts = [n_points // len(posteriors)] * len(posteriors) + [n_prior_points]
        points = rows.X.new_tensor(rng.normal(size=(n_rows, sum(counts), n_dims)))
        nodes = mixture_nodes(points.split(counts, 1), posteriors)
        weight = log_joint(rows, nodes, self.joint).softmax(1)
        chosen = drawn_codes(weight, rows.X.new_tensor(rng.random((n_rows, 1))))
        z = nodes.z[torch.arange(n_rows, device=chosen.device), chosen]
        n_effective = 1 / (weight**2).sum(1)
        few = n_effective < MIN_CANDIDATES
        if few.any():
            warn_caller(
                f"Draws for {int(few.sum())} of {n_rows} rows rest on as few as "
                f"{float(n_effective.min()):.2g} effective points: the posterior of "
                "the latent variables is hard to draw from."
            )
        return z

    def _rows(self, X, mask=None):
        return rows_of(self.units.standardise(X), mask)

    def _mean(self, z):
        mean = self.joint.likelihood.mean(self.joint.location(z))
        # far nodes have no weight, but their means may overflow
        return mean.clamp(-MAX_SIZE, MAX_SIZE)

    def _average(self, latent_function, X, name, is_needed=None):
        """Return E[f(z) | present entries]; (n, p)."""
        function, rows = partial(integrate_average, latent_function), self._rows(X)
        value, _, error = refine_rows(function, rows, self.averaging, self.joint)
        if not self.averaging.is_quadrature:
            if is_needed is not None:
                error = torch.where(is_needed, error, 0.0)
            is_uncertain = error.amax(1) > MAX_AVERAGE_ERROR
            if is_uncertain.any():
                warn_caller(
                    f"{name} of {int(is_uncertain.sum())} of {len(error)} rows are "
                    f"uncertain by up to {float(error.max()):.2g} of 1 plus their "
                    "size: the posterior of the latent variables is hard to integrate "
                    "over."
                )
        return value
