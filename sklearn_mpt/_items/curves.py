r"""Item curves: the log-probability of each answer given z, and its derivatives.

A block holds items of one kind with the same number of categories. Its parameters are a
matrix with a row for each item: slopes a, unless they are fixed at one, and then the
kind's shape parameters. With :math:`\eta = a^\top z`, the probabilities of the answers
0..C-1 are

graded
    :math:`P(x \geq c) = \sigma(\eta + d_c)`, :math:`d_1 > d_2 > \ldots` [1]_;
gpcm
    :math:`P(x = c) \propto \exp(c \, \eta + d_c)`, :math:`d_0 = 0` [2]_;
nominal
    :math:`P(x = c) \propto \exp(s_c z + d_c)`, :math:`s_0 = d_0 = 0` [3]_;
3pl
    :math:`P(x = 1) = g + (1 - g) \, \sigma(\eta + d)`, logit of g a parameter [4]_.

References
----------
.. [1] F. Samejima, "Estimation of latent ability using a response pattern of graded
   scores", Psychometrika Monograph 17, 1969.
.. [2] E. Muraki, "A generalized partial credit model: application of an EM algorithm",
   Applied Psychological Measurement 16, 1992.
.. [3] R. D. Bock, "Estimating item parameters and latent ability when responses are
   scored in two or more nominal categories", Psychometrika 37, 1972.
.. [4] A. Birnbaum, "Some latent trait models and their use in inferring an examinee's
   ability", in: Lord and Novick, Statistical Theories of Mental Test Scores, 1968.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import logsigmoid

from sklearn_mpt._factors.rotation import SCALE
from sklearn_mpt._information.differences import STEP, central_differences
from sklearn_mpt._matrices import identity

GUESSING_START = 0.15  # below the share of those who guess one of five or six answers
# Largest threshold at the start of training, in logits: a probability of 6e-6.
MAX_THRESHOLD = 12.0
# Least probability, and 1 less the largest, that a person of average ability knows the
# answer, at the start: with few right answers guessing may explain all of them.
MIN_KNOWN = 0.05
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
    """A kind of items with C categories.

    Parameters
    ----------
    n_categories : int
    has_slope : bool
        Whether slopes are parameters; otherwise they are one.
    """

    n_shape_slopes = 0  # number of shape parameters that multiply z
    is_ordered = True
    is_guessed = False  # whether the last parameter is the logit of guessing
    is_logistic = False  # whether the logit of the second of two answers is linear

    def __init__(self, n_categories, has_slope=True):
        self.n_categories = n_categories
        self.has_slope = has_slope

    @property
    def n_shape_params(self):
        return self.n_categories - 1

    @abstractmethod
    def curve(self, shape_params, eta):
        """Return the curve; shape_params : (j, q). eta : (j, s)."""

    @abstractmethod
    def start(self, proportions, slope):
        """Return the shape parameters from which training starts.

        proportions : of the categories in the answers, (j, c). slope : (j,).
        """

    def is_valid(self, shape_params):
        """Return whether shape parameters are valid, such as thresholds in order."""
        return True

    def guessing(self, shape_params):
        return np.zeros(len(shape_params))

    def intercept(self, shape_params):
        return shape_params

    def difficulty(self, slope, shape_params):
        """Return z at the thresholds, given the lengths of the slopes; (j, c - 1)."""
        return -shape_params / slope[:, None]

    @abstractmethod
    def shape_params(self, discrimination, intercept, guessing, scores):
        """Return shape parameters, given the fitted attributes of items; arrays."""


def _conditional_ratio(slope):
    """Return the ratio of the logit at z = 0 to that of the mean probability over z."""
    return np.sqrt(1 + (slope / SCALE) ** 2)[:, None]


class Graded(ItemKind):
    """Graded responses; with two categories the two-parameter logistic model."""

    @property
    def is_logistic(self):
        return self.n_categories == 2

    def curve(self, shape_params, eta):
        cut = eta[:, None] + shape_params[:, :, None]
        if self.n_categories == 2:
            log_prob, slope = cut.new_empty(2, len(shape_params), 2, eta.shape[1])
            log_prob[:, 1] = logsigmoid(cut[:, 0])
            torch.sub(log_prob[:, 1], cut[:, 0], out=log_prob[:, 0])
            torch.exp(log_prob[:, 1], out=slope[:, 1])
            torch.neg(slope[:, 1], out=slope[:, 0])
            slope[:, 1].neg_().add_(1)
            return Curve(log_prob, slope, slope[:, None])
        low, high = cut, cut  # for categories from 1 on; for categories to C - 2
        gap = (shape_params[:, :-1] - shape_params[:, 1:])[:, :, None]
        shape = len(shape_params), self.n_categories, eta.shape[1]
        log_prob = eta.new_zeros(shape)
        log_prob[:, 1:] += logsigmoid(low)
        log_prob[:, :-1] += logsigmoid(-high)
        log_prob[:, 1:-1] += torch.log(-torch.expm1(-gap))
        low_slope, high_slope = torch.sigmoid(-low), -torch.sigmoid(high)
        slope = eta.new_zeros(shape)
        slope[:, 1:] += low_slope
        slope[:, :-1] += high_slope
        inner = 1 / torch.expm1(gap)
        shape_slope = eta.new_zeros(len(shape_params), self.n_shape_params, *shape[1:])
        for m in range(self.n_shape_params):
            shape_slope[:, m, m + 1] = low_slope[:, m]
            shape_slope[:, m, m] = high_slope[:, m]
            if m > 0:
                shape_slope[:, m, m] -= inner[:, m - 1]
            if m < self.n_shape_params - 1:
                shape_slope[:, m, m + 1] += inner[:, m]
        return Curve(log_prob, slope, shape_slope)

    def is_valid(self, shape_params):
        return bool((shape_params[:, :-1] > shape_params[:, 1:]).all())

    def start(self, proportions, slope):
        above = proportions[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
        logit = np.log(above / (1 - above)) * _conditional_ratio(slope)
        return logit.clip(-MAX_THRESHOLD, MAX_THRESHOLD)

    def shape_params(self, discrimination, intercept, guessing, scores):
        return intercept


class PartialCreditItems(ItemKind):
    """Generalised partial credit; logits of adjacent categories are linear in z."""

    def curve(self, shape_params, eta):
        codes = torch.arange(self.n_categories, dtype=eta.dtype, device=eta.device)
        zero = shape_params.new_zeros(len(shape_params), 1)
        free = torch.cat([zero, shape_params], 1)[:, :, None]
        return self._softmax(codes[:, None] * eta[:, None] + free, codes[None, :, None])

    def _softmax(self, logits, weight):
        log_prob = logits.log_softmax(1)
        prob = log_prob.exp()
        slope = weight - (weight * prob).sum(1, keepdim=True)
        eye = identity(self.n_categories, prob)
        shape_params = eye[1:, :, None] - prob[:, 1:, None]
        return Curve(log_prob, slope, shape_params)

    def start(self, proportions, slope):
        logit = np.log(proportions[:, 1:] / proportions[:, :1])
        return logit.clip(-MAX_THRESHOLD, MAX_THRESHOLD)

    def difficulty(self, slope, shape_params):
        return -np.diff(shape_params, axis=1, prepend=0.0) / slope[:, None]

    def shape_params(self, discrimination, intercept, guessing, scores):
        return intercept


class Nominal(PartialCreditItems):
    """Categories without order; each except the first has a slope and an intercept."""

    is_ordered = False

    def __init__(self, n_categories):
        super().__init__(n_categories, has_slope=False)

    @property
    def n_shape_slopes(self):
        return self.n_categories - 1

    @property
    def n_shape_params(self):
        return 2 * (self.n_categories - 1)

    def curve(self, shape_params, eta):
        zero = shape_params.new_zeros(len(shape_params), 1)
        slopes, free = shape_params.tensor_split([self.n_categories - 1], 1)
        slopes, free = (
            torch.cat([zero, part], 1)[:, :, None] for part in (slopes, free)
        )
        curve = self._softmax(slopes * eta[:, None] + free, slopes)
        return curve._replace(
            shape_params=torch.cat(
                [eta[:, None, None] * curve.shape_params, curve.shape_params], 1
            )
        )

    def start(self, proportions, slope):
        codes = np.arange(1, self.n_categories)
        return np.concatenate(
            [slope[:, None] * codes, super().start(proportions, slope)], 1
        )

    def intercept(self, shape_params):
        return shape_params[:, self.n_categories - 1 :]

    def difficulty(self, slope, shape_params):
        return np.full((len(shape_params), self.n_categories - 1), np.nan)

    def discrimination(self, shape_params):
        """Return the slope of the last category, divided by C - 1."""
        return shape_params[:, self.n_categories - 2] / (self.n_categories - 1)

    def scores(self, shape_params):
        """Return the scores of the categories; that of the last is C - 1."""
        slope = self.discrimination(shape_params)
        slope = np.where(slope == 0, np.finfo(float).tiny, slope)[:, None]
        counts = shape_params[:, : self.n_categories - 1] / slope
        return np.concatenate([np.zeros((len(shape_params), 1)), counts], 1)

    def shape_params(self, discrimination, intercept, guessing, scores):
        slopes = discrimination[:, :1] * scores[:, 1:]
        return np.concatenate([slopes, intercept], 1)


class Guessed(ItemKind):
    """Three parameters: slope, intercept, and probability of guessing the answer."""

    n_shape_params = 2
    is_guessed = True

    def __init__(self):
        super().__init__(2)

    def curve(self, shape_params, eta):
        cut, logit = eta + shape_params[:, :1], shape_params[:, 1:].expand_as(eta)
        known, guess = torch.sigmoid(cut), torch.sigmoid(logit)
        log_right = torch.logaddexp(
            logsigmoid(logit), logsigmoid(-logit) + logsigmoid(cut)
        )
        log_wrong = logsigmoid(-logit) + logsigmoid(-cut)
        odds = torch.exp(log_wrong - log_right)  # of a wrong answer
        slope = torch.stack([-known, odds * known], 1)
        guess_slopes = torch.stack([-guess, odds * guess], 1)
        return Curve(
            torch.stack([log_wrong, log_right], 1),
            slope,
            torch.stack([slope, guess_slopes], 1),
        )

    def start(self, proportions, slope):
        known = (proportions[:, 1] - GUESSING_START) / (1 - GUESSING_START)
        known = known.clip(MIN_KNOWN, 1 - MIN_KNOWN)
        cut = np.log(known / (1 - known)) * _conditional_ratio(slope)[:, 0]
        logit = np.log(GUESSING_START / (1 - GUESSING_START))
        return np.stack([cut, np.full(len(proportions), logit)], 1)

    def guessing(self, shape_params):
        return 1 / (1 + np.exp(-shape_params[:, 1]))

    def intercept(self, shape_params):
        return shape_params[:, :1]

    def difficulty(self, slope, shape_params):
        return -shape_params[:, :1] / slope[:, None]

    def shape_params(self, discrimination, intercept, guessing, scores):
        guessing = guessing.clip(EPS, 1 - EPS)
        return np.stack([intercept[:, 0], np.log(guessing / (1 - guessing))], 1)


BINARY = ("rasch", "2pl", "3pl")
MODELS = (*BINARY, "graded", "partial_credit", "gpcm", "nominal")
WITHOUT_SLOPE = ("rasch", "partial_credit")


def kind_of(name, n_categories):
    """Return the kind of items for a name of `MODELS`."""
    if name in ("2pl", "rasch", "graded"):
        return Graded(n_categories, has_slope=name != "rasch")
    if name in ("gpcm", "partial_credit"):
        return PartialCreditItems(n_categories, has_slope=name == "gpcm")
    return Guessed() if name == "3pl" else Nominal(n_categories)


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

    def curve(self, point, z):
        slopes, shape_params = self.split(point)
        return self.kind.curve(shape_params, slopes @ z.T)

    def scores(self, curve, z):
        """Return derivatives of log-probabilities in the parameters; (j, p, c, s)."""
        if not self.kind.has_slope:
            return curve.shape_params
        slope_scores = curve.eta[:, None] * z.T[None, :, None]
        return torch.cat([slope_scores, curve.shape_params], 1)

    def derivatives(self, function, point):
        """Return derivatives of functions of single items in their parameters.

        They are central differences; the parameters of all items change at once.

        function : from flat parameters, (p,), to numbers of each item, (j, ...).

        Returns a tensor of shape (j, ..., q).
        """
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
        sorts = list(zip(self.names, self.n_categories.tolist(), strict=True))
        first = 0
        for name, count in sorted(set(sorts)):
            kind = kind_of(name, count)
            chosen = [j for j, sort in enumerate(sorts) if sort == (name, count)]
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

    @property
    def is_ordered(self):
        return all(block.kind.is_ordered for block in self.blocks)

    def parameter_index(self, j):
        """Return the indices of the parameters of item j in the flat vector."""
        for block in self.blocks:
            if (block.items == j).any():
                return block.parameter_index[block.items == j][0].numpy()
        raise IndexError(j)

    def unseen(self, X):
        """Return which categories of items occur in none of the rows; bool (d, c)."""
        occurs = np.stack([(X == c).any(axis=0) for c in range(self.max_categories)], 1)
        return ~occurs & (np.arange(self.max_categories) < self.n_categories[:, None])

    def curves(self, point, z):
        return [block.curve(point, z) for block in self.blocks]

    def table(self, curves):
        """Return log-probabilities of all answers; (d, c, s), 0 beyond the last."""
        like = curves[0].log_prob
        if len(curves) == 1:
            order = self.blocks[0].items.argsort()
            return like if bool((order.diff() == 1).all()) else like[order]
        table = like.new_zeros(len(self), self.max_categories, like.shape[2])
        for block, curve in zip(self.blocks, curves, strict=True):
            table[block.items, : block.kind.n_categories] = curve.log_prob
        return table

    def prob(self, curves):
        """Return probabilities of all answers; (d, c, s), 0 beyond the last."""
        like = curves[0].log_prob
        prob = like.new_zeros(len(self), self.max_categories, like.shape[2])
        for block, curve in zip(self.blocks, curves, strict=True):
            prob[block.items, : block.kind.n_categories] = curve.log_prob.exp()
        return prob

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

    def eta_information(self, curves):
        """Return the Fisher information of items about their locations; (d, s)."""
        like = curves[0].log_prob
        information = like.new_zeros(len(self), like.shape[2])
        for block, curve in zip(self.blocks, curves, strict=True):
            information[block.items] = (curve.log_prob.exp() * curve.eta**2).sum(1)
        return information

    def is_valid(self, point):
        return bool(point.isfinite().all()) and all(
            block.kind.is_valid(block.split(point)[1]) for block in self.blocks
        )

    def start(self, proportions, slopes):
        """Return the flat parameters from which training starts.

        proportions : of the categories in the answers to each item, (d, c). slopes :
        (d, k).
        """
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
            slopes, shape_params = (part.numpy() for part in block.split(tensor))
            kind, chosen = block.kind, block.items.numpy()
            scores = np.arange(kind.n_categories, dtype=float)
            if isinstance(kind, Nominal):
                slopes = kind.discrimination(shape_params)[:, None]
                scores = kind.scores(shape_params)
            length = slopes[:, 0]
            if self.n_dims > 1:
                length = np.linalg.norm(slopes, axis=1)
            count = kind.n_categories - 1
            attributes["discrimination"][chosen] = slopes
            attributes["intercept"][chosen, :count] = kind.intercept(shape_params)
            with np.errstate(divide="ignore", invalid="ignore"):
                attributes["difficulty"][chosen, :count] = kind.difficulty(
                    length, shape_params
                )
            attributes["guessing"][chosen] = kind.guessing(shape_params)
            attributes["category_scores"][chosen, : count + 1] = scores
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
