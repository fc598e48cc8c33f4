r"""Item curves: the log-probability of each answer given z, and its derivatives.

Items of a kind are a likelihood of `_likelihoods`, whose locations are an intercept and
:math:`\eta = a^\top z`. A block holds items of one kind with the same number of
categories. Its parameters are a matrix with a row for each item: slopes a, unless they
are fixed at one, the intercept, and the shape parameters of the likelihood. Users know
them by other names: the probabilities of the answers 0..C-1 are

graded
    :math:`P(x \geq c) = \sigma(\eta + d_c)`, :math:`d_1 > d_2 > \ldots` [1]_,
    which is `Ordinal`;
gpcm
    :math:`P(x = c) \propto \exp(c \, \eta + d_c)`, :math:`d_0 = 0` [2]_, which is
    `PartialCredit`;
nominal
    :math:`P(x = c) \propto \exp(s_c z + d_c)`, :math:`s_0 = d_0 = 0` [3]_, which is
    `Categorical`;
3pl
    :math:`P(x = 1) = g + (1 - g) \, \sigma(\eta + d)`, which is `Guessing`.

References
----------
.. [1] F. Samejima, "Estimation of latent ability using a response pattern of graded
   scores", Psychometrika Monograph 17, 1969.
.. [2] E. Muraki, "A generalized partial credit model: application of an EM algorithm",
   Applied Psychological Measurement 16, 1992.
.. [3] R. D. Bock, "Estimating item parameters and latent ability when responses are
   scored in two or more nominal categories", Psychometrika 37, 1972.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import expit, logit

from sklearn_mpt._gaussian.rotation import (
    SCALE,
)
from sklearn_mpt._items.guessing import GUESSING_START, Guessing
from sklearn_mpt._likelihoods.base import fitted_attributes
from sklearn_mpt._likelihoods.bernoulli import Bernoulli
from sklearn_mpt._likelihoods.categorical import Categorical
from sklearn_mpt._likelihoods.levels import Ordinal, PartialCredit
from sklearn_mpt._optim.information import (
    STEP,
    central_differences,
)

EPS = np.finfo(float).eps


class Curve(NamedTuple):
    """Log-probabilities of answers at nodes, and their derivatives.

    log_prob : (j, c, s). eta : derivatives in eta, (j, c, s). shape_params :
    derivatives in shape parameters, (j, q, c, s).
    """

    log_prob: torch.Tensor
    eta: torch.Tensor
    shape_params: torch.Tensor


class ItemKind(ABC):
    """A kind of items with C categories: a likelihood whose locations depend on eta.

    The shape parameters of items are an intercept, which is added to eta, and the shape
    parameters of the likelihood.

    Parameters
    ----------
    likelihood : Likelihood
        With any shape parameters.
    n_categories : int
    has_slope : bool
        Whether slopes are parameters; otherwise they are one.
    """

    n_shape_slopes = 0  # number of shape parameters that multiply z
    is_ordered = True
    is_guessed = False  # whether the last parameter is the logit of guessing
    is_logistic = False  # whether the logit of the second of two answers is linear

    def __init__(self, likelihood, n_categories, has_slope=True):
        self.likelihood = likelihood
        self.n_categories = n_categories
        self.has_slope = has_slope

    @property
    def n_shape_params(self):
        return 1 + self.likelihood.n_shape_params

    def likelihood_and_locations(self, shape_params, eta):
        """Return the likelihood of the items, and their locations at nodes."""
        # shape_params : (j, q). eta : (j, s). The locations are (s, l).
        likelihood = self.likelihood.at(shape_params[:, 1:].flatten())
        return likelihood, (eta + shape_params[:, :1]).T

    def eta_derivative(self, shape_params, derivative):
        """Return derivatives in eta, (..., j), of those in locations, (..., l)."""
        return derivative

    def log_prob(self, shape_params, eta):
        """Return the log-probabilities of all answers at nodes; (j, c, s)."""
        likelihood, location = self.likelihood_and_locations(shape_params, eta)
        log_prob = likelihood.entry_log_prob(self._answers(eta), location)
        return log_prob.permute(2, 0, 1).contiguous()

    def eta_information(self, shape_params, eta):
        """Return the Fisher information about eta at nodes; (j, s)."""
        likelihood, location = self.likelihood_and_locations(shape_params, eta)
        answers = self._answers(eta)
        prob = likelihood.entry_log_prob(answers, location).exp()
        derivative, _ = likelihood.derivatives(answers, location)
        return (prob * self.eta_derivative(shape_params, derivative) ** 2).sum(0).T

    def curve(self, shape_params, eta):
        likelihood, location = self.likelihood_and_locations(shape_params, eta)
        answers = self._answers(eta)
        log_prob = likelihood.entry_log_prob(answers, location)
        derivative, _ = likelihood.derivatives(answers, location)
        more = likelihood.shape_scores(answers, location)
        log_prob = log_prob.permute(2, 0, 1).contiguous()
        eta_derivative = self.eta_derivative(shape_params, derivative).permute(2, 0, 1)
        derivative, more = (_by_item(part, len(eta)) for part in (derivative, more))
        return Curve(
            log_prob, eta_derivative, self._shape_scores(eta, derivative, more)
        )

    def _shape_scores(self, eta, derivative, more):
        """Return the derivatives in shape parameters, (j, q, c, s)."""
        # derivative, more : those in locations and in shape parameters of the
        # likelihood.
        return torch.cat([derivative, more], 1) if more.shape[1] else derivative

    def _answers(self, eta):
        """Return all answers to the items, (c, 1, j)."""
        codes = torch.arange(self.n_categories, device=eta.device).to(eta)
        return codes[:, None, None].expand(-1, 1, len(eta))

    @abstractmethod
    def start(self, proportions, slope):
        """Return the shape parameters from which training starts.

        proportions : of the categories in the answers, (j, c). slope : (j,).
        """

    @abstractmethod
    def describe(self, slopes, shape_params):
        """Return the attributes of `Items.describe` that are not the default.

        slopes : (j, k). shape_params : (j, q).
        """

    @abstractmethod
    def shape_params(self, discrimination, intercept, guessing, scores):
        """Return shape parameters, given the fitted attributes of items; arrays."""


def _by_item(scores, n_items):
    """Return derivatives (c, s, j q) as a tensor (j, q, c, s)."""
    return scores.unflatten(2, (n_items, -1)).permute(2, 3, 0, 1)


def _conditional_ratio(slope):
    """Return the ratio of the logit at z = 0 to that of the mean probability over z."""
    return np.sqrt(1 + (slope / SCALE) ** 2)[:, None]


def length_of(slopes):
    """Return the lengths of slopes, with the sign if there is one; (j, 1)."""
    if slopes.shape[1] == 1:
        return slopes
    return np.linalg.norm(slopes, axis=1, keepdims=True)


class LevelItems(ItemKind):
    """Ordered answers: a logit for each answer except the first.

    The logits at z = 0 are the sum of intercept and thresholds of the likelihood.
    """

    levels: type  # a subclass of `Levels`

    def __init__(self, n_categories, has_slope=True):
        # over two categories all kinds are Bernoulli
        levels = self.levels.of_columns(n_categories, 1)
        likelihood = levels if n_categories > 2 else Bernoulli()
        super().__init__(likelihood, n_categories, has_slope)

    @property
    def is_logistic(self):
        return self.n_categories == 2

    def start(self, proportions, slope):
        logits = self._start_logits(proportions, slope)
        location, thresholds = self.levels.split_logits(logits)
        if self.n_categories == 2:
            return location[:, None]
        start = self.likelihood.from_attributes({"thresholds_": thresholds}, 1.0)
        shape_params = start.shape_params.detach().numpy()
        return np.c_[location, shape_params.reshape(len(proportions), -1)]

    def _start_logits(self, proportions, slope):
        return self.levels.logits_of(proportions)

    def _logits(self, shape_params):
        """Return the logits of answers at z = 0; (j, c - 1)."""
        if self.n_categories == 2:
            return shape_params
        given = self.likelihood.at(torch.from_numpy(shape_params[:, 1:].ravel()))
        return shape_params[:, :1] + fitted_attributes(given, 1.0)["thresholds_"]

    def describe(self, slopes, shape_params):
        logits = self._logits(shape_params)
        return {
            "discrimination": slopes,
            "intercept": self._intercept(logits),
            "difficulty": -logits / length_of(slopes),
        }

    @staticmethod
    @abstractmethod
    def _intercept(logits):
        """Return the intercepts that users know, given the logits of answers."""

    @staticmethod
    @abstractmethod
    def _logits_of(intercept):
        """Return the logits of answers, given the intercepts that users know."""

    def shape_params(self, discrimination, intercept, guessing, scores):
        location, thresholds = self.levels.split_logits(self._logits_of(intercept))
        return np.c_[location, self.levels.shape_params_of(thresholds)]


class GradedItems(LevelItems):
    """Graded responses; with two categories the two-parameter logistic model."""

    levels = Ordinal

    def _start_logits(self, proportions, slope):
        return super()._start_logits(proportions, slope) * _conditional_ratio(slope)

    @staticmethod
    def _intercept(logits):
        return logits

    @staticmethod
    def _logits_of(intercept):
        return intercept


class PartialCreditItems(LevelItems):
    """Generalised partial credit; logits of adjacent categories are linear in z."""

    levels = PartialCredit

    @staticmethod
    def _intercept(logits):
        return logits.cumsum(axis=1)

    @staticmethod
    def _logits_of(intercept):
        return np.diff(intercept, axis=1, prepend=0.0)


class NominalItems(ItemKind):
    """Categories without order; each except the first has a slope and an intercept.

    The locations of `Categorical` are logits up to a constant; that of the first
    category is 0.
    """

    is_ordered = False

    def __init__(self, n_categories):
        super().__init__(Categorical(n_categories), n_categories, has_slope=False)

    @property
    def n_shape_slopes(self):
        return self.n_categories - 1

    @property
    def n_shape_params(self):
        return 2 * (self.n_categories - 1)

    def likelihood_and_locations(self, shape_params, eta):
        slopes, intercepts = self._with_first(shape_params)[..., None]
        return self.likelihood, (slopes * eta[:, None] + intercepts).flatten(0, 1).T

    def eta_derivative(self, shape_params, derivative):
        slopes, _ = self._with_first(shape_params)
        return (derivative.unflatten(-1, slopes.shape) * slopes).sum(-1)

    def _shape_scores(self, eta, derivative, more):
        return torch.cat([eta[:, None, None] * derivative[:, 1:], derivative[:, 1:]], 1)

    def answer_slopes(self, shape_params):
        """Return the slopes of all categories; (j, c)."""
        return self._with_first(shape_params)[0]

    def _with_first(self, shape_params):
        """Return slopes and intercepts of all categories; (2, j, c)."""
        return torch.nn.functional.pad(self._split(shape_params), (1, 0))

    def _split(self, shape_params):
        """Return slopes and intercepts of the categories except the first.

        shape_params : (j, q). Returns an array or tensor of shape (2, j, c - 1).
        """
        return shape_params.reshape(len(shape_params), 2, -1).swapaxes(0, 1)

    def start(self, proportions, slope):
        intercept = np.log(proportions[:, 1:] / proportions[:, :1])
        slopes = slope[:, None] * np.arange(1, self.n_categories)
        return np.c_[slopes, intercept]

    def describe(self, slopes, shape_params):
        """Return slopes of the last category over C - 1, and scores beside them."""
        slopes, intercept = self._split(shape_params)
        slope = slopes[:, -1:] / (self.n_categories - 1)
        divisor = np.where(slope == 0, np.finfo(float).tiny, slope)
        scores = np.pad(slopes / divisor, ((0, 0), (1, 0)))
        return {
            "discrimination": slope,
            "intercept": intercept,
            "category_scores": scores,
        }

    def shape_params(self, discrimination, intercept, guessing, scores):
        return np.c_[discrimination[:, :1] * scores[:, 1:], intercept]


class GuessedItems(ItemKind):
    """Three parameters: slope, intercept, and probability of guessing the answer."""

    is_guessed = True

    def __init__(self):
        super().__init__(Guessing.of_columns(2, 1), 2)

    def start(self, proportions, slope):
        location = Guessing.location_of(proportions[:, 1:]) * _conditional_ratio(slope)
        return np.c_[location, np.full(len(proportions), logit(GUESSING_START))]

    def describe(self, slopes, shape_params):
        intercept = shape_params[:, :1]
        return {
            "discrimination": slopes,
            "intercept": intercept,
            "difficulty": -intercept / length_of(slopes),
            "guessing": expit(shape_params[:, 1]),
        }

    def shape_params(self, discrimination, intercept, guessing, scores):
        return np.c_[intercept, logit(guessing.clip(EPS, 1 - EPS))]


BINARY = ("rasch", "2pl", "3pl")
MODELS = (*BINARY, "graded", "partial_credit", "gpcm", "nominal")
WITHOUT_SLOPE = ("rasch", "partial_credit")


def kind_of(name, n_categories):
    """Return the kind of items for a name of `MODELS`."""
    if name in ("2pl", "rasch", "graded"):
        return GradedItems(n_categories, has_slope=name != "rasch")
    if name in ("gpcm", "partial_credit"):
        return PartialCreditItems(n_categories, has_slope=name == "gpcm")
    return GuessedItems() if name == "3pl" else NominalItems(n_categories)


class ItemBlock(NamedTuple):
    """Items of one kind: their indices, and the slice of their parameters."""

    kind: ItemKind
    items: torch.Tensor  # shape: (j,)
    parameters: slice  # of the flat vector
    n_dims: int

    @property
    def n_slopes(self):
        return self.n_dims if self.kind.has_slope else 0

    @property
    def width(self):
        return self.n_slopes + self.kind.n_shape_params

    @property
    def parameter_index(self):
        """Indices of the parameters of each item in the flat vector; (j, q)."""
        index = torch.arange(len(self.items) * self.width, device="cpu")
        return self.parameters.start + index.view(len(self.items), self.width)

    def split(self, point):
        """Return slopes (j, k), 1 where they are fixed, and shape parameters (j, q)."""
        values = point[self.parameters].reshape(len(self.items), self.width)
        slopes, shape_params = values[:, : self.n_slopes], values[:, self.n_slopes :]
        if not self.kind.has_slope:
            slopes = values.new_ones(len(values), self.n_dims)
        return slopes, shape_params

    def likelihood_and_locations(self, point, z):
        """Return the likelihood, and locations (s, l) at nodes (s, k)."""
        return self.kind.likelihood_and_locations(*self._at(point, z))

    def curve(self, point, z):
        return self.kind.curve(*self._at(point, z))

    def log_prob(self, point, z):
        return self.kind.log_prob(*self._at(point, z))

    def eta_information(self, point, z):
        return self.kind.eta_information(*self._at(point, z))

    def _at(self, point, z):
        """Return shape parameters, (j, q), and eta at nodes, (j, s)."""
        slopes, shape_params = self.split(point)
        return shape_params, slopes @ z.T

    def scores(self, curve, z):
        """Return derivatives of log-probabilities in the parameters; (j, p, c, s)."""
        if not self.kind.has_slope:
            return curve.shape_params
        slope_scores = curve.eta[:, None] * z.T[None, :, None]
        return torch.cat([slope_scores, curve.shape_params], 1)

    def derivatives(self, function, point):
        """Return derivatives of functions of single items in their parameters."""
        # They are central differences; the parameters of all items change at once.
        # function : from flat parameters, (p,), to numbers of each item, (j, ...).
        # Returns a tensor of shape (j, ..., q).
        steps = point.new_zeros(self.width, len(point))
        sizes = point.new_zeros(self.width, len(self.items))
        for step, size, index in zip(steps, sizes, self.parameter_index.T, strict=True):
            size[:] = STEP * point[index].abs().clamp(min=1.0)
            step[index] = size
        differences = central_differences(function, point, steps)
        return (differences.movedim((0, 1), (-2, -1)) / sizes).movedim(-1, 0)

    @property
    def slope_columns(self):
        """The slice of the parameters of an item that multiply z."""
        return slice(0, self.n_slopes + self.kind.n_shape_slopes)


class Items:
    """All items of a test, in blocks, with one flat vector of their parameters.

    Parameters
    ----------
    names : sequence of str
        The model of each item, of `MODELS`.
    n_categories : sequence of int
    n_dims : int
    """

    def __init__(self, names, n_categories, n_dims):
        self.names = list(names)
        self.n_categories = np.asarray(n_categories, dtype=int)
        self.n_dims = n_dims
        self.max_categories = int(self.n_categories.max())
        self.blocks = []
        pairs = list(zip(self.names, self.n_categories.tolist(), strict=True))
        first = 0
        for name, count in sorted(set(pairs)):
            kind = kind_of(name, count)
            chosen = [j for j, pair in enumerate(pairs) if pair == (name, count)]
            width = kind.n_shape_params + (n_dims if kind.has_slope else 0)
            last = first + width * len(chosen)
            index = torch.tensor(chosen, device="cpu")
            self.blocks.append(ItemBlock(kind, index, slice(first, last), n_dims))
            first = last
        self.n_parameters = first

    def __len__(self):
        return len(self.names)

    @property
    def has_fixed_scale(self):
        """Whether some slopes are fixed, so that the variance of z is free."""
        return any(name in WITHOUT_SLOPE for name in self.names)

    def without_response(self):
        """Return the items without a latent response that has a variance."""
        others = [
            block.items
            for block in self.blocks
            if not (block.kind.is_logistic or isinstance(block.kind, GradedItems))
        ]
        return torch.cat(others).sort().values.tolist() if others else []

    def parameter_index(self, j):
        """Return the indices of the parameters of item j in the flat vector."""
        for block in self.blocks:
            if (block.items == j).any():
                return block.parameter_index[block.items == j][0].numpy()
        raise IndexError(j)

    @property
    def item_of_parameters(self):
        """The item of each parameter, (p,)."""
        owners = [block.items.repeat_interleave(block.width) for block in self.blocks]
        return torch.cat(owners).numpy()

    def unseen(self, X):
        """Return which categories of items occur in none of the rows; bool (d, c)."""
        occurs = np.stack([(X == c).any(axis=0) for c in range(self.max_categories)], 1)
        return ~occurs & (np.arange(self.max_categories) < self.n_categories[:, None])

    def curves(self, point, z):
        return [block.curve(point, z) for block in self.blocks]

    def log_prob(self, point, z):
        """Return log-probabilities of all answers; (d, c, s), 0 beyond the last."""
        return self._joined([block.log_prob(point, z) for block in self.blocks])

    def table(self, curves):
        """Return the same, given the curves of the blocks."""
        return self._joined([curve.log_prob for curve in curves])

    def prob(self, table):
        """Return probabilities, given their logarithms (d, c, s); 0 beyond the last."""
        if (self.n_categories == self.max_categories).all():
            return table.exp()
        counts = torch.from_numpy(self.n_categories).to(table.device)
        exists = torch.arange(table.shape[1], device=table.device) < counts[:, None]
        return torch.where(exists[..., None], table.exp(), 0.0)

    def _joined(self, tensors):
        """Join tensors of the blocks, (j, c, s); (d, c, s)."""
        like = tensors[0]
        if len(tensors) == 1:
            order = self.blocks[0].items.argsort()
            return like if bool((order.diff() == 1).all()) else like[order]
        joined = like.new_zeros(len(self), self.max_categories, like.shape[2])
        for block, tensor in zip(self.blocks, tensors, strict=True):
            joined[block.items, : block.kind.n_categories] = tensor
        return joined

    def slopes(self, point):
        """Return slopes of all items, 1 where they are fixed; (d, k)."""
        slopes = point.new_ones(len(self), self.n_dims)
        for block in self.blocks:
            slopes[block.items] = block.split(point)[0]
        return slopes

    def max_slopes(self, point):
        """Return the largest size of a slope in each dimension; (k,)."""
        slopes = []
        for block in self.blocks:
            of_items, shape_params = block.split(point)
            if block.kind.n_shape_slopes:
                of_items = shape_params[:, : block.kind.n_shape_slopes].reshape(-1, 1)
            slopes.append(of_items)
        return torch.cat(slopes).abs().amax(0)

    def eta_information(self, point, z):
        """Return the Fisher information of items about eta at nodes; (d, s)."""
        information = z.new_zeros(len(self), len(z))
        for block in self.blocks:
            information[block.items] = block.eta_information(point, z)
        return information

    def answer_order(self, point):
        """Return the answers of each item from low to high slopes; int (d, c)."""
        # Items whose answers have an order keep it.
        order = np.tile(np.arange(self.max_categories), (len(self), 1))
        for block in self.blocks:
            if not block.kind.is_ordered:
                slopes = block.kind.answer_slopes(block.split(point)[1])
                slopes = slopes.numpy(force=True)
                chosen = block.items.numpy()
                order[chosen, : slopes.shape[1]] = slopes.argsort(axis=1, kind="stable")
        return order

    def is_valid(self, point):
        return bool(point.isfinite().all())

    def start(self, proportions, slopes):
        """Return the flat parameters from which training starts."""
        # proportions : of the categories in the answers to each item, (d, c). slopes :
        # (d, k).
        parts = []
        for block in self.blocks:
            chosen = block.items.numpy()
            few = proportions[chosen, : block.kind.n_categories]
            length = np.linalg.norm(slopes[chosen], axis=1)
            if not block.kind.has_slope:
                length = slopes[chosen, 0]
            shape_params = block.kind.start(few, length)
            given = slopes[chosen][:, : block.n_slopes]
            parts.append(np.concatenate([given, shape_params], 1).ravel())
        return np.concatenate(parts)

    # Conversion to and from fitted attributes

    def describe(self, point):
        """Return the attributes of items, given their flat parameters."""
        d, steps = len(self), self.max_categories - 1
        attributes = {
            "discrimination": np.ones((d, self.n_dims)),
            "intercept": np.full((d, steps), np.nan),
            "difficulty": np.full((d, steps), np.nan),
            "guessing": np.zeros(d),
            "category_scores": np.full((d, self.max_categories), np.nan),
        }
        tensor = torch.from_numpy(np.asarray(point))
        for block in self.blocks:
            kind, chosen = block.kind, block.items.numpy()
            slopes, shape_params = (part.numpy() for part in block.split(tensor))
            attributes["category_scores"][chosen, : kind.n_categories] = np.arange(
                kind.n_categories
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                described = kind.describe(slopes, shape_params)
            for name, values in described.items():
                attributes[name][(chosen, *_leading(values))] = values
        return attributes

    def point(self, discrimination, intercept, guessing, category_scores):
        """Return the flat parameters, given attributes of the shapes of `describe`."""
        parts = []
        for block in self.blocks:
            kind, chosen = block.kind, block.items.numpy()
            count = kind.n_categories - 1
            shape_params = kind.shape_params(
                discrimination[chosen],
                intercept[chosen, :count],
                guessing[chosen],
                category_scores[chosen, : count + 1],
            )
            given = discrimination[chosen][:, : block.n_slopes]
            parts.append(np.concatenate([given, shape_params], 1).ravel())
        return np.concatenate(parts)


def _leading(values):
    """Return the slices of the columns of values, an array of one or two axes."""
    return [slice(width) for width in values.shape[1:]]
