r"""Training of mixtures: EM for rows with gaps, on whole rows or on masked rows.

The M-step of EM computes parameters from expected sufficient statistics T. By Fisher's
identity, T also gives the gradient of the log-probability of any part of a row. So the
masked score of hidden entries H given the visible entries R has the statistics

.. math:: T_\theta + \frac{D}{|H|} \sum_{j \in H} \left( T(x_{R \cup j}) - T(x_R)
    \right),

where :math:`T_\theta` are the statistics that the model expects of a row. Along an
order of the features the differences add up to the statistics of the whole row, and so
does their expectation over masks of all sizes. A step of masked training is an M-step
on statistics estimated from masks, with falling step sizes, as in online EM [1]_. EM on
whole rows maximises the sum of the scores over all mask sizes.

References
----------
.. [1] O. Cappé and E. Moulines, "On-line expectation-maximization algorithm for latent
   data models", Journal of the Royal Statistical Society B 71, 2009.
"""

import math
from typing import NamedTuple

import torch

from sklearn_mpt._fitting.fit_loop import Solver
from sklearn_mpt._fitting.line_search import backtrack
from sklearn_mpt._fitting.schedules import falling_size
from sklearn_mpt._fitting.stopping import gain_to_come, gains_are_below, trend
from sklearn_mpt._mixture.density import Components, MixtureDensity
from sklearn_mpt._mixture.patterns import pattern_order
from sklearn_mpt._numbers import MIN_INFORMATION


class SufficientStatistics(NamedTuple):
    """Expected sufficient statistics, and the objective, added up over rows.

    First and second moments of Gaussian columns are about the means of the components.
    """

    value: torch.Tensor  # sum over rows of the objective
    square: torch.Tensor  # sum over rows of its square
    counts: torch.Tensor  # rows in each component, (K,)
    sums: torch.Tensor  # first moments, (K, g)
    scatters: torch.Tensor  # second moments, (K, g, g) or (K, g)
    slopes: torch.Tensor  # gradient in the locations, (K, l)
    informations: torch.Tensor  # expected information on the locations, (K, l)

    def __add__(self, other):
        return SufficientStatistics(*(a + b for a, b in zip(self, other, strict=True)))


class MStepParams(NamedTuple):
    """Settings of the M-step."""

    reg_covar: float
    layout: object


def statistics_of_rows(density, X, weight, prior=0.0, patterns=None):
    """Return the expected statistics of whole rows: the E-step of EM.

    prior : additional count of each row in every component, for columns that are not
    Gaussian. It keeps the probabilities of categories above zero. patterns : those of
    the present entries, if they are known.
    """
    present = ~X.isnan()
    given = density.given(X, present, patterns)
    value = given.joint.logsumexp(1)
    share = given.log_responsibility.exp() * weight[:, None]
    entry_share = entry_shares_of(density, X, share + prior * weight[:, None])
    return _weighted_statistics(
        density, X, given, share, None, entry_share, value, weight, prior
    )


def statistics_of_shares(density, X, share, prior, patterns):
    """Return the statistics of whole rows with given responsibilities (n, K).

    prior : additional count of each row in the information of every component.
    patterns : those of the present entries.
    """
    given = density.given(X, ~X.isnan(), patterns)
    entry_share = entry_shares_of(density, X, share)
    value, weight = X.new_zeros(len(X)), X.new_ones(len(X))
    return _weighted_statistics(
        density, X, given, share, None, entry_share, value, weight, prior
    )


def entry_shares_of(density, X, share):
    """Return the weights of the entries that are not Gaussian, (n, K, d - g)."""
    is_present = ~X[:, density.layout.others].isnan()
    return share[..., None] * is_present[:, None].to(X)


def statistics_of_masks(density, X, weight, hidden, inflation, prior=0.0):
    """Return the expected statistics of masked scores, less those of the model.

    hidden : bool, (n, d), True only where an entry is present. inflation : D / |H|,
    (n, 1). prior : as in `statistics_of_rows`.
    """
    present = ~X.isnan()
    given = density.given(X, present & ~hidden)
    entries = density.entry_log_prob(X, given)
    log_share, others = given.log_responsibility, density.layout.others
    joint = log_share[..., None] + entries  # shape: (n, K, d)
    log_prob = torch.where(hidden, joint.logsumexp(1), 0.0)
    value = (inflation * log_prob).sum(1)
    scale = inflation * weight[:, None] * hidden  # shape: (n, d)
    targets = scale[:, None] * joint.softmax(1)
    share = targets.sum(2) - log_share.exp() * scale.sum(1, keepdim=True)
    visible = (present & ~hidden)[:, None, others]
    entry_share = torch.where(visible, share[..., None], targets[..., others])
    of_others = present[:, None, others].to(X)
    entry_share = entry_share + prior * weight[:, None, None] * of_others
    return _weighted_statistics(
        density, X, given, share, targets, entry_share, value, weight, prior
    )


def _weighted_statistics(
    density, X, given, share, targets, entry_share, value, weight, prior
):
    """Add up weighted statistics over rows.

    share : weights of the statistics given the observed entries, (n, K). targets :
    weights of the statistics given the observed entries and one hidden entry,
    (n, K, d); None for whole rows. entry_share : weights of the gradients of columns
    that are not Gaussian, (n, K, d - g). prior : additional count of each row in every
    component.
    """
    gaussian, layout, components = given.gaussian, density.layout, density.components
    sums, scatters = gaussian.moments(share)
    if targets is not None:
        residual = torch.nan_to_num(X[:, None, layout.gaussian]) - components.means
        error = (residual - gaussian.deviation) / gaussian.variance
        more = gaussian.target_moments(targets[..., layout.gaussian], error)
        sums, scatters = sums + more[0], scatters + more[1]
    slopes = informations = torch.zeros_like(components.locations)
    if layout.likelihood is not None:
        slopes, informations = location_slopes(density, X, entry_share, weight, prior)
    return SufficientStatistics(
        weight @ value, weight @ value**2, share.sum(0), sums, scatters, slopes,
        informations,
    )  # fmt: skip


def location_slopes(density, X, entry_share, weight, prior):
    """Return gradient and information in the locations of columns not Gaussian.

    If values are codes, the weights of the entries of each code are added up first.
    """
    layout, components = density.layout, density.components
    rows, likelihood = X[:, layout.others], layout.likelihood
    n_present = weight @ likelihood.to_locations((~rows.isnan()).to(X))
    values = torch.nan_to_num(rows)
    if density.codes is not None:
        codes = torch.arange(len(density.codes), device=X.device)
        is_code = (values.T[..., None] == codes).to(X)  # shape: (d - g, n, C)
        entry_share = (entry_share.permute(2, 1, 0) @ is_code).permute(2, 1, 0)
        values = density.codes
    slope, information = likelihood.derivatives(values[:, None], components.locations)
    slopes = (likelihood.to_locations(entry_share) * slope).sum(0)
    expected = information.expand(len(values), *components.locations.shape)[0]
    return slopes, (components.weights[:, None] + prior) * n_present * expected


def m_step(components, statistics, n_rows, size, params, are_differences):
    """Return the components after an M-step on a mix of old and new statistics.

    size : share of the new statistics; 1 is a full step of EM. params : MStepParams.
    are_differences : whether the statistics are differences from those that the model
    expects. None if the result is no valid mixture.
    """
    component_rows = n_rows * components.weights
    keep = 1.0 if are_differences else 1 - size
    counts = keep * component_rows + size * statistics.counts
    if not bool((counts > 0).all()):
        return None
    form, before = params.layout.form, components.covariances
    per_component = counts.unflatten(0, (-1, *[1] * (before.ndim - 1)))
    shift = size * statistics.sums / counts[:, None]
    share = counts / counts.sum()
    kept = (keep * component_rows).view_as(per_component) * before
    spread = (size * statistics.scatters + kept) / per_component - form.outer(shift)
    covariances, loadings, noise = form.estimate(
        spread, counts, components.loadings, components.noise, params.reg_covar
    )
    if not form.is_valid(covariances):
        return None
    locations = components.locations
    if params.layout.likelihood is not None:
        slopes = statistics.slopes, statistics.informations
        locations = scoring_step(locations, *slopes, size)
    moved = Components(
        share, components.means + shift, covariances, locations, loadings, noise
    )
    return moved if moved.is_finite() else None


def scoring_step(locations, slopes, informations, size):
    """Return the locations after a step of scoring, of at most 1 each."""
    ratio = slopes / (informations + MIN_INFORMATION)
    return locations + size * ratio.clamp(-1.0, 1.0)


class MixtureSolver(Solver):
    """EM for mixtures, on whole rows or on masked rows.

    Parameters
    ----------
    X : Tensor of shape (n, d)
        NaN where missing.
    weight : Tensor of shape (n,)
    starts : sequence of Components
        Parameters to start from. If there are several, each takes a few epochs of EM,
        and the best is trained on.
    step_params : MStepParams
    rng : numpy.random.Generator
        Source of masks.
    masks : callable or None
        Called with X and rng. Returns indices of rows, each equally often, (m,); their
        hidden entries, (m, d); and the factor of each log-probability, (m, 1). None
        trains on whole rows.
    finishes : bool
        Whether epochs on whole rows follow those with masks, once an epoch gains no
        more than the noise of its masks.
    tol : float
        Gain, in nats per row, below which training ends.
    learning_rate : float
        Size of the first steps with masks.
    n_before : int
        Number of steps already taken on earlier parts of a stream.

    Attributes
    ----------
    short_epochs : int
        Number of epochs of each start, before the best is chosen.
    min_epochs, max_epochs : int
        Least and largest number of epochs, if all of them have masks.
    min_window : int
        Least number of epochs whose mean loss is compared with that of as many before.
    step_delay : int
        Number of steps with masks, or on parts, in which their size hardly falls; see
        `falling_size`.
    max_tries : int
        Number of sizes of a step that are tried: it is halved if it leads to invalid
        parameters.
    rise_in_noise : float
        A window of epochs with masks is undone if its mean loss is so many standard
        errors above that of the window before.
    size_after_rise : float
        Size of the steps after that, as a share of their size before.
    """

    short_epochs = 25
    min_epochs, max_epochs = 10, 200
    min_window = 5
    step_delay = 5
    max_tries = 20
    rise_in_noise = 2.0
    size_after_rise = 0.25

    def __init__(
        self,
        X,
        weight,
        starts,
        step_params,
        *,
        rng,
        masks=None,
        finishes=True,
        tol=1e-4,
        n_iter_no_change=2,
        learning_rate=1.0,
        n_before=0,
    ):
        # Rows with the same gaps share matrices, so they are made neighbours.
        order = pattern_order(~X[:, step_params.layout.gaussian].isnan())
        self.X, self.weight = X[order], weight[order]
        self.starts = starts
        self.step_params = step_params
        self.rng = rng
        self.masks = masks
        self.finishes = finishes
        self.tol = tol
        self.window = max(self.min_window, n_iter_no_change)
        self.learning_rate = learning_rate
        self.loss_curve = []
        self.components = starts[0]
        self._n_steps = n_before
        self._average = None
        self._parts_of_rows = None
        self._known = []  # components, and their statistics of whole rows
        self._start = self._kept = self.components
        self._first = 0  # epoch at which steps with masks, or on whole rows, began
        self._gain = 0.0
        self._noise = self._noise_of_fall = 0.0  # of the values of masks

    @property
    def result(self):
        return self.components if self._average is None else self._average

    def init(self, max_iter):
        if len(self.starts) == 1:
            return
        runs = [self._short_run(start, max_iter) for start in self.starts]
        self.components = max(runs, key=lambda run: run[0])[1]
        self._start = self._kept = self.components

    def _short_run(self, components, max_iter):
        value = -math.inf
        for _ in range(min(self.short_epochs, max_iter)):
            statistics = self._statistics(components)
            value = float(statistics.value) / self._n_rows
            components = self._moved(components, statistics, 1.0, are_differences=False)
        return value, components

    @property
    def _n_rows(self):
        return float(self.weight.sum())

    def step(self):
        if self.masks is None:
            statistics = self._row_statistics(self.components)
            size = 1.0
        else:
            statistics = self._statistics(self.components, self.masks(self.X, self.rng))
            n_steps = len(self.loss_curve) - self._first
            size = self.learning_rate * falling_size(n_steps, delay=self.step_delay)
        value = float(statistics.value) / self._n_rows
        if not math.isfinite(value):
            raise FloatingPointError
        self._noise, noise_before = self._noise_of(statistics), self._noise
        self._noise_of_fall = math.hypot(self._noise, noise_before)
        self.components = self._moved(
            self.components, statistics, size, are_differences=self.masks is not None
        )
        self.loss_curve.append(-value)

    def _noise_of(self, statistics):
        """Return the standard error of the mean value of rows with one mask each."""
        value = float(statistics.value) / self._n_rows
        variance = float(statistics.square) / self._n_rows - value**2
        return math.sqrt(max(0.0, variance) / len(self.X))

    def step_on_part(self):
        """Mix the statistics of a part of a stream with those of the model."""
        statistics = self._statistics(self.components)
        value = float(statistics.value) / self._n_rows
        if not math.isfinite(value):
            raise FloatingPointError
        size = self.learning_rate * falling_size(self._n_steps, delay=self.step_delay)
        self.components = self._moved(
            self.components, statistics, size, are_differences=False
        )
        self.loss_curve.append(-value)

    def _row_statistics(self, components):
        """Return the statistics of whole rows.

        Those of the start, and of the last components, are kept.
        """
        for known, statistics in self._known:
            if known is components:
                return statistics
        statistics = self._statistics(components)
        kept = [pair for pair in self._known if pair[0] is self._start]
        self._known = [*kept, (components, statistics)]
        return statistics

    def _statistics(self, components, masks=None):
        density = MixtureDensity(components, self.step_params.layout)
        X, weight, observed = self.X, self.weight, ~self.X.isnan()
        if masks is not None:
            rows, hidden, inflation = masks
            observed = observed[rows] & ~hidden
            order = pattern_order(observed[:, self.step_params.layout.gaussian])
            hidden = hidden[order]
            inflation = inflation[order]
            observed = observed[order]
            n_copies = len(rows) / len(X)
            X, weight = X[rows[order]], weight[rows[order]] / n_copies
        total, prior = None, 1 / self._n_rows
        if masks is not None:
            parts = [(block, None) for block in density.blocks(observed)]
        elif self._parts_of_rows is None:
            parts = self._parts_of_rows = density.parts(observed)
        else:
            parts = self._parts_of_rows
        for part, patterns in parts:
            args = density, X[part].double(), weight[part]
            if masks is None:
                statistics = statistics_of_rows(*args, prior, patterns)
            else:
                args = *args, hidden[part], inflation[part]
                statistics = statistics_of_masks(*args, prior)
            total = statistics if total is None else total + statistics
        return total

    def _moved(self, components, statistics, size, are_differences):
        """Take a step, and halve its size until the result is a valid mixture."""

        def move(size):
            args = components, statistics, self._n_rows, size
            return m_step(*args, self.step_params, are_differences)

        _, candidate = backtrack(move, self.max_tries, size)
        if candidate is None:
            raise FloatingPointError
        return candidate

    def terminate(self):
        if self.masks is None:
            return self._is_done()
        curve = self.loss_curve[self._first :]
        if self.finishes:
            if self._gain_is_noise(curve):
                self._leave_masks()
            return False
        self._keep_average(len(curve))
        if len(curve) % self.window == 0:
            self._compare_windows(curve)
        if len(curve) < max(self.min_epochs, 2 * self.window):
            return False
        n = len(curve) // 2
        fall, noise = trend(curve, n)
        is_settled = fall <= max(noise, self.tol) and noise / math.sqrt(n) < self.tol
        return is_settled or len(curve) >= self.max_epochs

    def _compare_windows(self, curve):
        """Undo the last window of epochs and shrink the steps, if its loss rose."""
        n = self.window
        fall, noise = trend(curve if len(curve) > n else [curve[0], *curve], n)
        if -fall > self.rise_in_noise * noise:
            self.components = self._kept
            self.learning_rate *= self.size_after_rise
        else:
            self._kept = self.components

    def _gain_is_noise(self, curve):
        """Return whether the last epoch with masks gained no more than their noise.

        The first one is compared with the start on whole rows, without noise.
        """
        if len(curve) > 1:
            return curve[-2] - curve[-1] <= self._noise_of_fall
        before, now = (
            self._row_statistics(self._start),
            self._row_statistics(self.components),
        )
        return float(now.value - before.value) <= self._noise * self._n_rows

    def _leave_masks(self):
        """Go on with whole rows, from the start or from the masked fit if better."""
        self.masks, self._first = None, len(self.loss_curve)
        self.components = self._kept = self._better_than_start()

    def _better_than_start(self):
        """Return the masked fit, or the start if it is better."""
        fits = self.components, self._start
        return max(
            fits, key=lambda components: float(self._row_statistics(components).value)
        )

    def close(self):
        """Take a step of EM if training ended with masks, to improve on the start."""
        if self.masks is None or not self.finishes or not self.loss_curve:
            return
        before = self._better_than_start()
        after = m_step(
            before,
            self._row_statistics(before),
            self._n_rows,
            1.0,
            self.step_params,
            False,
        )
        self.components = before if after is None else after

    def recover(self):
        """Go back to the end of the last window that did not raise the loss."""
        self.components = self._kept

    def _keep_average(self, n_epochs):
        """Average the components of all epochs; the weights of early epochs fade."""
        share = 2 / (n_epochs + 1)
        before = self._average or self.components
        mixed = (
            torch.lerp(a, b, share)
            for a, b in zip(before, self.components, strict=True)
        )
        self._average = Components(*mixed)

    def _is_done(self):
        """Return whether the last step, and all steps to come, gain less than `tol`."""
        if len(self.loss_curve) - self._first < 2:
            return False
        before, self._gain = self._gain, self.loss_curve[-2] - self.loss_curve[-1]
        remaining_gain = gain_to_come(before, self._gain)
        if remaining_gain == math.inf:
            remaining_gain = abs(self._gain)
        return gains_are_below(self.tol, self._gain, remaining_gain)
