r"""Items as columns of a linear model, and the parameters by which users know them.

The columns have kinds of `_likelihoods`, with the locations :math:`\eta + b`,
:math:`\eta = a^\top z`. The probabilities of the answers 0..C-1 are

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
    :math:`P(x = 1) = g + (1 - g) \, \sigma(\eta + d)` [4]_, which is `Guessing`.

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

import numpy as np
import torch
from scipy.special import logit
from torch.nn.functional import logsigmoid

from sklearn_mpt._latent.linear_map import LinearMap
from sklearn_mpt._latent.sums import start_components
from sklearn_mpt._likelihoods import Columns
from sklearn_mpt._likelihoods.base import ShapeLikelihood, fitted_attributes
from sklearn_mpt._likelihoods.bernoulli import Bernoulli
from sklearn_mpt._likelihoods.levels import smoothed_fractions
from sklearn_mpt._numbers import TINY
from sklearn_mpt._optim.natural import Point
from sklearn_mpt._tables.kinds import CATEGORIES, is_ordered, kinds_of_values

BINARY = ("rasch", "2pl", "3pl")
MODELS = (*BINARY, "graded", "partial_credit", "gpcm", "nominal")
WITHOUT_SLOPE = ("rasch", "partial_credit")
ADJACENT = ("gpcm", "partial_credit")  # logits of answers and those just below
LIKELIHOODS = {
    "graded": "ordinal",
    "partial_credit": "partial_credit",
    "gpcm": "partial_credit",
    "nominal": "categorical",
}
"""Kinds of columns of the models; over two ordered answers all are Bernoulli."""
KINDS = dict.fromkeys(LIKELIHOODS, "ordinal") | {"nominal": "categorical"}
"""Kinds of columns whose categories are the answers of an item, by its model."""


# Below the fraction of those who guess one of five or six answers.
GUESSING_START = 0.15
EPS = np.finfo(float).eps  # least distance of a given probability from 0 and from 1


def kind_of_answers(name, column):
    """Return the kind of a column of answers to an item of the model `name`."""
    if name in BINARY and (column.series is None or not is_ordered(column)):
        return "bernoulli"
    return KINDS.get(name, "ordinal")


def answers_of(kind, column):
    """Return the answers of an item in the order of their codes; None if 0 and 1."""
    # An item with one answer has a second one: the next lower number, or 1 beside 0.
    if kind not in CATEGORIES:
        return None
    present = column.present
    if not column.is_coded and len(present) and kinds_of_values(present) == {"numbers"}:
        value = float(present[0])
        if value >= 0 and (present == value).all():
            return np.array([value - 1, value] if value > 0 else [value, value + 1])
    return CATEGORIES[kind](column)


class Guessing(ShapeLikelihood):
    """Features that are 0 or 1, given the logits of knowing the answer.

    Shape parameters are the logits of g. With any g above 0 the log-probability of 1 is
    not concave in the location, as that of other kinds is. So only item models, whose
    training does not need it, have this kind.

    Parameters
    ----------
    guessing_logits : Tensor of shape (d,)
    """

    bounds = Bernoulli.bounds
    measure = Bernoulli.measure
    n_shape_params = 1

    values_of_each = Bernoulli.values_of_each
    check_rows = staticmethod(Bernoulli.check_rows)

    @classmethod
    def of_columns(cls, n_categories, n_features):
        start = torch.full((n_features,), float(logit(GUESSING_START)), device="cpu")
        return cls(start.double())

    @staticmethod
    def start_location(X, weight=None):
        right = smoothed_fractions(X, 2, weight)[:, 1]
        known = (right - GUESSING_START) / (1 - GUESSING_START)
        # with few right answers guessing may explain all of them
        return logit(known.clip(0.05, 0.95))

    def start_attributes(self, X, scale, weight=None):
        return {"guessing_": np.full(X.shape[1], GUESSING_START)}

    def from_attributes(self, fitted, scale):
        guessing = np.asarray(fitted["guessing_"], float).clip(EPS, 1 - EPS)
        return type(self)(torch.from_numpy(logit(guessing)))

    def shape_attributes(self, scale):
        return {"guessing_": self.shape_params.sigmoid()}

    def _log_probs(self, location):
        """Return the log-probabilities of wrong and of right answers; (..., d) each."""
        logits = self.shape_params.to(location.dtype)
        right = logits.sigmoid() + (-logits).sigmoid() * location.sigmoid()
        return logsigmoid(-logits) + logsigmoid(-location), right.clamp(min=TINY).log()

    def entry_log_prob(self, X, location):
        wrong, right = self._log_probs(location)
        return torch.where(X > 0, right, wrong)

    def pair_log_prob(self, X, observed, location):
        wrong, right = self._log_probs(location)
        return X @ right.T + (observed - X) @ wrong.T

    def derivatives(self, X, location):
        """Return the derivative, and the Fisher information."""
        wrong, right = self._log_probs(location)
        odds, known = (wrong - right).exp(), torch.sigmoid(location)
        return torch.where(X > 0, odds, -1.0) * known, known**2 * odds

    def shape_sums(self, X, location, weight, z):
        """Use the Fisher information, that of locations and logits being a product."""
        wrong, right = self._log_probs(location)
        guessed = torch.sigmoid(self.shape_params)
        information = weight * (wrong - right).exp() * guessed
        cross = information * torch.sigmoid(location)
        cross = torch.einsum("nsd,nsk->dk", cross, z.expand(*cross.shape[:2], -1))
        block = (information * guessed).sum((0, 1))[:, None]
        gradient = (weight * self.shape_scores(X, location)).sum((0, 1))
        return gradient, torch.cat([block, cross], 1)

    def mean(self, location):
        return self._log_probs(location)[1].exp()

    def draw(self, location, uniform):
        return (uniform < self.mean(location)).to(location.dtype)


def length_of(slopes):
    """Return the lengths of slopes (j, k), with the sign if there is one; (j, 1)."""
    if slopes.shape[1] == 1:
        return slopes
    return np.linalg.norm(slopes, axis=1, keepdims=True)


class Items:
    """All items of a test, as columns of a linear model.

    Parameters of a `Point` are rows of slopes and intercept of each location, and shape
    parameters. Indices of parameters are those of its flat vector.

    Parameters
    ----------
    names : sequence of str
        The model of each item, of `MODELS`.
    n_categories : sequence of int
    n_dims : int
    """

    def __init__(self, names, n_categories, n_dims):
        self.names, self.n_dims = list(names), n_dims
        self.n_categories = np.asarray(n_categories, dtype=int)
        self.max_categories = int(self.n_categories.max())
        self.exists = np.arange(self.max_categories) < self.n_categories[:, None]
        guessing = Guessing.of_columns(2, self.names.count("3pl"))
        kinds, counts = [], []
        for name, count in zip(self.names, self.n_categories.tolist(), strict=True):
            kind = LIKELIHOODS.get(name, "bernoulli")
            if name == "3pl":
                kind = guessing
            elif count == 2 and name != "nominal":
                kind, count = "bernoulli", 1
            kinds.append(kind)
            counts.append(count)
        self.likelihood = Columns(kinds, counts)
        n_each = self.likelihood.n_locations_each
        self.first = np.cumsum([0, *n_each])[:-1]  # location of each item
        self.item_of_locations = np.repeat(np.arange(len(self)), n_each)
        without_slope = np.isin(self.names, WITHOUT_SLOPE)
        self._without_slope = without_slope[self.item_of_locations]
        features = np.array(self.likelihood.shape_param_features, dtype=int)
        owners = np.repeat(self.item_of_locations, n_dims + 1), features
        self.item_of_parameters = np.concatenate(owners)
        self.n_coefs = len(owners[0])
        self._are_adjacent = np.isin(self.names, ADJACENT)[:, None]

    def __len__(self):
        return len(self.names)

    @property
    def has_fixed_scale(self):
        """Whether some slopes are fixed, so that the variance of z is free."""
        return bool(self._without_slope.any())

    @property
    def nominal(self):
        """Indices of nominal items, with the slices of their locations."""
        counts = self.likelihood.n_locations_each
        return [
            (j, slice(self.first[j], self.first[j] + counts[j]))
            for j, name in enumerate(self.names)
            if name == "nominal"
        ]

    @property
    def guessing(self):
        """Indices of the logits of guessing among all parameters."""
        are_guessed = np.array(self.names)[self.item_of_parameters] == "3pl"
        return self.n_coefs + np.flatnonzero(are_guessed[self.n_coefs :])

    @property
    def are_parameters(self):
        """Which parameters items have: slopes can be one, and a first answer's zero."""
        coefs = np.ones((len(self.item_of_locations), self.n_dims + 1), dtype=bool)
        coefs[self._without_slope, :-1] = False
        coefs[[rows.start for _, rows in self.nominal]] = False
        n_shapes = len(self.item_of_parameters) - self.n_coefs
        return np.concatenate([coefs.ravel(), np.ones(n_shapes, dtype=bool)])

    @property
    def zeros(self):
        """Flat parameters that are 0, but for slopes that are one."""
        flat = np.zeros(len(self.item_of_parameters))
        coefs = flat[: self.n_coefs].reshape(-1, self.n_dims + 1)
        coefs[self._without_slope, :-1] = 1.0
        return flat

    def parameters(self, j):
        """Return the indices of the parameters that item j has."""
        return np.flatnonzero((self.item_of_parameters == j) & self.are_parameters)

    def point(self, flat):
        """Return the `Point` of a flat vector, a tensor."""
        coefs, shape_params = flat.tensor_split([self.n_coefs])
        return Point(coefs.view(-1, self.n_dims + 1), shape_params)

    def joint(self, flat):
        """Return the joint distribution of standard normal z and answers."""
        coefs, shape_params = self.point(flat)
        W = coefs[:, :-1].T.contiguous()
        return LinearMap(W, coefs[:, -1], self.likelihood.at(shape_params))

    def start(self, X, weight):
        """Return the flat parameters, an array, from which training starts."""
        scale = np.ones(len(self))
        shapes = self.likelihood.start_attributes(X, scale, weight)
        likelihood = self.likelihood.from_attributes(shapes, scale)
        intercept = likelihood.start_location(X, weight)
        args = X, intercept, self.n_dims, likelihood, weight
        coefs = np.column_stack([start_components(*args).T, intercept])
        for _, rows in self.nominal:
            coefs[rows] -= coefs[rows.start]
        sign = np.where(coefs[:, :-1].sum(axis=0) < 0, -1.0, 1.0)
        coefs[:, :-1] *= sign
        coefs[self._without_slope, :-1] = 1.0
        shape_params = likelihood.shape_params.detach().numpy()
        return np.concatenate([coefs.ravel(), shape_params])

    # Answers at nodes

    def codes(self, like):
        """Return all answers to the items, the last one beyond it, too; (c, d)."""
        codes = np.arange(self.max_categories)[:, None]
        return torch.from_numpy(np.minimum(codes, self.n_categories - 1)).to(like)

    def prob(self, joint, z):
        """Return probabilities of answers at nodes; (d, c, s), 0 beyond the last."""
        exists = torch.from_numpy(self.exists).to(z.device)[..., None]
        return torch.where(exists, joint.table(self.codes(z), z).exp(), 0.0)

    def slopes_in_z(self, joint, z):
        """Return derivatives of log-probabilities in z at nodes; (k, d, c, s)."""
        codes, location = self.codes(z)[:, None], joint.location(z)
        derivative, _ = joint.likelihood.derivatives(codes, location)
        slopes = joint.components[:, None, None] * derivative
        item = torch.from_numpy(self.item_of_locations).to(z.device)
        total = slopes.new_zeros(*slopes.shape[:-1], len(self))
        return total.index_add_(-1, item, slopes).permute(0, 3, 1, 2)

    def answer_order(self, joint):
        """Return the answers of each item from low to high slopes; int (d, c)."""
        # Items whose answers have an order keep it.
        order = np.tile(np.arange(self.max_categories), (len(self), 1))
        for j, rows in self.nominal:
            slopes = joint.components[0, rows].numpy(force=True)
            order[j, : len(slopes)] = slopes.argsort(kind="stable")
        return order

    # Conversion to and from fitted attributes

    def describe(self, flat):
        """Return the attributes of items, given their flat parameters, an array."""
        coefs, shape_params = self.point(torch.from_numpy(flat))
        coefs, exists = coefs.numpy(), self.exists
        likelihood = self.likelihood.at(shape_params)
        given = fitted_attributes(likelihood, np.ones(len(self)))
        slopes, location = coefs[self.first, :-1].copy(), coefs[self.first, -1:]
        logits = np.where(exists[:, 1:], location, np.nan)
        thresholds = np.nan_to_num(given.get("thresholds_", np.zeros((len(self), 1))))
        logits[:, : thresholds.shape[1]] += thresholds
        intercept = np.where(self._are_adjacent, logits.cumsum(axis=1), logits)
        with np.errstate(divide="ignore", invalid="ignore"):
            difficulty = -logits / length_of(slopes)
        scores = np.where(exists, 1.0 * np.arange(self.max_categories), np.nan)
        for j, rows in self.nominal:
            more = (coefs[rows] - coefs[rows.start])[1:]
            slopes[j], difficulty[j] = more[-1, 0] / len(more), np.nan
            intercept[j, : len(more)] = more[:, 1]
            divisor = np.finfo(float).tiny if slopes[j, 0] == 0 else slopes[j, 0]
            scores[j, 1 : len(more) + 1] = more[:, 0] / divisor
        return {
            "discrimination": slopes,
            "intercept": intercept,
            "difficulty": difficulty,
            "guessing": np.nan_to_num(given.get("guessing_", np.zeros(len(self)))),
            "category_scores": scores,
        }

    def flat(self, discrimination, intercept, guessing, category_scores):
        """Return the flat parameters, given attributes of the shapes of `describe`."""
        differences = np.diff(intercept, axis=1, prepend=0.0)
        logits = np.where(self._are_adjacent, differences, intercept)
        mean = np.nansum(logits, axis=1) / (self.n_categories - 1)
        location = np.where(self._are_adjacent[:, 0], mean, logits[:, 0])
        coefs = np.zeros((len(self.item_of_locations), self.n_dims + 1))
        coefs[self.first] = np.column_stack([discrimination, location])
        for j, rows in self.nominal:
            count = self.n_categories[j]
            coefs[rows, 0] = discrimination[j, 0] * category_scores[j, :count]
            coefs[rows, 1] = [0.0, *intercept[j, : count - 1]]
        shapes = {"thresholds_": logits - location[:, None], "guessing_": guessing}
        likelihood = self.likelihood.from_attributes(shapes, np.ones(len(self)))
        shape_params = likelihood.shape_params.detach().numpy()
        return np.concatenate([coefs.ravel(), shape_params])
