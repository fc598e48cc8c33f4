r"""E-steps and M-steps of mixtures, for rows with gaps, whole or masked.

The M-step of EM computes parameters from expected sufficient statistics T. By Fisher's
identity the gradient of the log-probability of any part of a row is linear in them, so
the gradient of masked scores stands for statistics, less those that the model expects
of a row. A step of masked training is an M-step on these, with falling step sizes, as
in online EM [1]_. EM on whole rows maximises the sum of the scores over all mask sizes.

References
----------
.. [1] O. Cappé and E. Moulines, "On-line expectation-maximization algorithm for latent
   data models", Journal of the Royal Statistical Society B 71, 2009.
"""

import math
from typing import NamedTuple

import torch

from sklearn_mpt._base.density import as_tensor
from sklearn_mpt._mixture.density import Components, MixtureDensity
from sklearn_mpt._mixture.gaussians import pattern_order
from sklearn_mpt._numbers import CACHE_ENTRIES, MIN_INFORMATION, chunk_slices
from sklearn_mpt._optim.masks import masked_sums
from sklearn_mpt._optim.natural import MAX_FALL, error_of_groups
from sklearn_mpt._optim.steps import (
    DIVERGENCE,
    backtrack,
    falling_size,
)
from sklearn_mpt._optim.weights import UNSEEN_COUNT


class SufficientStatistics(NamedTuple):
    """Expected sufficient statistics, and the objective, added up over rows."""

    value: torch.Tensor  # sum over rows of the objective
    counts: torch.Tensor  # rows in each component, (K,)
    first: torch.Tensor  # first moments, (K, g)
    second: torch.Tensor  # second moments, (K, g, g) or (K, g)
    gradient: torch.Tensor  # in the locations, (K, l)
    entries: torch.Tensor  # number of entries that have each location, (K, l)


def location_sums(likelihood, X, row_weight):
    """Return weighted sums of indicators or counts X, and their numbers; (2, K, l).

    row_weight : of each row in each component, (n, K).
    """
    is_present = likelihood.to_locations((~X.isnan()).to(X))
    values = likelihood.inputs(X).nan_to_num()
    return torch.stack([row_weight.T @ values, row_weight.T @ is_present])


def _by_component(counts, covariances):
    return counts.unflatten(0, (-1, *[1] * (covariances.ndim - 1)))


class MixtureRows:
    """The training rows, and the steps of EM on them."""

    # is_all : whether they are all there are, so that categories may have no row.

    max_tries = 20

    def __init__(self, X, weight, layout, reg_covar, is_all=True):
        # Rows with the same gaps share matrices, so they are made neighbours.
        self.order = pattern_order(~X[:, layout.gaussian].isnan())
        self.X, self.weight = X[self.order], weight[self.order]
        self.n_rows = float(self.weight.sum())
        self.layout, self.reg_covar = layout, reg_covar
        self._blocks = None
        likelihood, others = layout.likelihood, layout.others
        parts = map(self.rows, chunk_slices(*X.shape, CACHE_ENTRIES))
        self.totals = sum(
            location_sums(likelihood, part[:, others], of_rows[:, None])
            for part, of_rows in parts
        )
        unseen = as_tensor(likelihood.unseen(X[:, others].cpu().numpy()), X.device)
        count = unseen.new_full((len(unseen), 1), UNSEEN_COUNT * is_all)
        self.unseen = location_sums(likelihood, unseen, count)

    def statistics(self, components, responsibility=None):
        """Return the expected statistics of whole rows: the E-step of EM.

        responsibility : of the components for rows, times their weights, (n, K); None
        is that of the model.
        """
        density = MixtureDensity(components, self.layout)
        parts, expected = [], self.layout.expectations(components.locations)
        self._blocks = self._blocks or density.blocks(~self.X.isnan())
        for part, patterns in self._blocks:
            X, weight = self.rows(part)
            given = density.given(X, ~X.isnan(), patterns)
            if responsibility is None:
                counts = given.log_responsibility.exp() * weight[:, None]
            else:
                counts = responsibility[self.order[part]]
            value = weight @ given.joint.logsumexp(1)
            first, second = given.gaussian.moments(counts)
            others = X[:, self.layout.others]
            sums, entries = location_sums(self.layout.likelihood, others, counts)
            gradient = sums - entries * expected
            parts.append((value, counts.sum(0), first, second, gradient, entries))
        return SufficientStatistics(*map(sum, zip(*parts, strict=True)))

    def rows(self, index):
        """Return some rows and their weights."""
        return self.X[index].double(), self.weight[index]

    def masked_statistics(self, components, pairs):
        """Return the statistics of masked rows: what the model expects, and a gradient.

        Returned are also the gradient that they stand for, per row, and the sums of
        values and weights by mask.
        """
        layout, hidden = self.layout, pairs.masks[pairs.of_mask]
        observed = ~(self.X[pairs.rows].isnan() | hidden)
        order = pattern_order(observed[:, layout.gaussian])
        hidden = hidden[order]
        pairs = pairs._replace(rows=pairs.rows[order], of_mask=pairs.of_mask[order])

        def density_of(*params):
            return MixtureDensity(Components(*params, *components[4:]), layout)

        density = density_of(*components[:4])
        chunks = ((part, hidden[part]) for part, _ in density.blocks(observed[order]))
        scores = masked_sums(density_of, components[:4], pairs, self.rows, chunks)
        gradient = [part / scores.by_mask[1].sum() for part in scores.gradient]
        flat = torch.cat([part.flatten() for part in gradient])
        of_weights, of_means, of_covariances, of_locations = (
            self.n_rows * part for part in gradient
        )
        weights, _, covariances, *_ = components
        counts = weights * (self.n_rows + of_weights - weights @ of_weights)
        if covariances.ndim == 3:
            first = (covariances @ of_means[..., None])[..., 0]
            second = covariances @ (of_covariances + of_covariances.mT) @ covariances
        else:
            first = covariances * of_means
            second = 2 * covariances * of_covariances * covariances
        second = second + _by_component(counts, covariances) * covariances
        value, entries = scores.by_mask[0].sum(), weights[:, None] * self.totals[1]
        of_pairs = value, counts, first, second, of_locations, entries
        return SufficientStatistics(*of_pairs), flat, scores.by_mask

    def value_of(self, statistics):
        """Return the mean value of a row, in nats."""
        value = float(statistics.value) / self.n_rows
        if not math.isfinite(value):
            raise FloatingPointError
        return value

    def m_step(self, components, statistics, size=1.0, least=0.0):
        """Return the components after an M-step on a mix of old and new statistics.

        size : weight of the new statistics; 1 is a full step of EM. least : fraction to
        which counts and variances may fall, where statistics have noise. None if the
        result is no valid mixture.
        """
        layout = self.layout
        weights, means, before, locations, loadings, noise = components
        component_rows = self.n_rows * weights
        counts = (1 - size) * component_rows + size * statistics.counts
        if not bool((counts > least * component_rows).all()):
            return None
        form, per_component = layout.form, _by_component(counts, before)
        shift = size * statistics.first / counts[:, None]
        kept = ((1 - size) * component_rows).view_as(per_component) * before
        scatter = (size * statistics.second + kept) / per_component - form.outer(shift)
        pooled = form.pool(scatter, counts / counts.sum())
        if least and not form.is_valid(pooled - least * before):
            return None
        covariances, loadings, noise = form.estimate(
            scatter, counts, loadings, noise, size, self.reg_covar
        )
        if not form.is_valid(covariances):
            return None
        # A step of Fisher scoring, of at most 1 each. A row as all rows are together
        # counts in every component, so that probabilities stay above 0.
        added, entries = self.totals / self.n_rows + weights[:, None] * self.unseen
        expected = layout.expectations(locations)
        nothing = locations.new_zeros(len(layout.others))
        _, variance = layout.likelihood.derivatives(nothing, locations)
        gradient = statistics.gradient + added - entries * expected
        information = (statistics.entries + entries) * variance
        step = gradient / (information + MIN_INFORMATION * self.n_rows)
        locations = locations + size * step.clamp(-1.0, 1.0)
        weights, means = counts / counts.sum(), means + shift
        moved = Components(weights, means, covariances, locations, loadings, noise)
        return moved if moved.is_finite() else None

    def moved(self, components, statistics, size=1.0, least=0.0):
        """Return the components after an M-step whose size leads to a valid mixture."""
        _, candidate = backtrack(
            lambda size: self.m_step(components, statistics, size, least),
            self.max_tries,
            size,
        )
        if candidate is None:
            raise FloatingPointError
        return candidate


def em(training, rows, *, tol):
    """Train by EM on whole rows.

    Training ends when the last step gained less than `tol`, and all steps to come are
    expected to gain less.
    """
    known, loss, gain = training.params, math.nan, math.nan
    try:
        while True:
            statistics = rows.statistics(training.params)
            last, loss = loss, -rows.value_of(statistics)
            training.loss_curve.append(loss)
            known = training.params  # the last of finite value
            training.params = rows.moved(known, statistics)
            # near a maximum gains fall by the same factor from step to step
            before, gain = gain, last - loss
            fall = before - gain
            to_come = gain**2 / fall if fall > 0 else abs(gain)
            yield gain < tol and to_come < tol
    except DIVERGENCE:
        training.params = known
        raise


def em_on_part(training, rows, *, learning_rate, n_steps):
    """Mix the statistics of a part of a stream with those of the model."""
    components = training.params
    statistics = rows.statistics(components)
    value = rows.value_of(statistics)
    size = learning_rate * falling_size(n_steps, delay=1)
    training.params = rows.moved(components, statistics, size)
    training.loss_curve.append(-value)
    yield True


class MaskedStep(NamedTuple):
    """An M-step on masked rows, in nats per row; see `NaturalStep`."""

    value: float
    error: float
    gradient_and_step: tuple[torch.Tensor, torch.Tensor]
    statistics: SufficientStatistics
    information: None = None

    @property
    def is_finite(self):
        finite = self.gradient_and_step[1].isfinite().all()
        return math.isfinite(self.value) and bool(finite)


class MaskedRows:
    """Rows and how their masks are drawn, as ascents with noise take them."""

    log_scale = 0.0
    least = 1 - MAX_FALL

    def __init__(self, rows, source):
        self.rows, self.source = rows, source

    def batches(self, rng):
        rows = torch.arange(len(self.rows.X), device=self.rows.X.device)
        return [self.source.pairs(rows, self.source.draw(rng), rng)]

    def full_step(self, components, batch, information=None, weight=1.0):
        rows = self.rows
        statistics, gradient, by_mask = rows.masked_statistics(components, batch)
        value, total = by_mask.sum(1)
        size, full = backtrack(
            lambda size: rows.m_step(components, statistics, size, self.least),
            rows.max_tries,
        )
        step = torch.full_like(gradient, math.nan)
        if full is not None:
            step = (full.parameters() - components.parameters()) / size
        error = error_of_groups(*by_mask)
        pair = gradient, step
        return MaskedStep(float(value / total), error, pair, statistics)

    def moved(self, components, move, size):
        return self.rows.moved(components, move.statistics, size, self.least)

    def aligned(self, components, reference):
        return components

    def mixed(self, components, other, weight):
        pairs = zip(components, other, strict=True)
        mixed = Components(*(torch.lerp(a, b, weight) for a, b in pairs))
        form = self.rows.layout.form
        return mixed._replace(covariances=form.covariances_of(*form.free(mixed), mixed))
