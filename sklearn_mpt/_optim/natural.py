"""Natural gradient steps of models whose locations are linear in z."""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch

from sklearn_mpt._likelihoods.base import ShapeBlocks
from sklearn_mpt._matrices import identity
from sklearn_mpt._numbers import ROUNDING, TINY

# A point has the coefficients B, (d, k + 1), weights and intercepts, and the shape
# parameters of the likelihood. The locations are (z, 1) B'. A step divides the gradient
# of each feature by the information that the M-step of EM inverts, and like parameter
# expansion (Liu, Rubin and Wu, Biometrika 85, 1998) also changes mean and covariance of
# z, by a linear map of the coefficients: B <- (B + eta inv(I) g) exp(eta G).


# Added to the information, which is singular for few rows, as a fraction of its trace.
RIDGE = 1e-10


# Largest relative decrease in one step of a noise variance or another positive number:
# full steps may lead to negative ones.
MAX_FALL = 0.95


class Point(NamedTuple):
    """The parameters of a model; gradients and steps have the same two parts."""

    # shape_params : such as logarithms of noise variances; (g,), or () if all features
    # share one.

    coefs: torch.Tensor  # shape: (d, k + 1)
    shape_params: torch.Tensor

    def plus(self, step, size=1.0):
        return Point(*(a + size * b for a, b in zip(self, step, strict=True)))

    def times(self, factor):
        return Point(*(factor * part for part in self))

    def dot(self, other):
        products = zip(self, other, strict=True)
        return sum(float((a * b).sum()) for a, b in products)

    def is_finite(self):
        return all(bool(part.isfinite().all()) for part in self)

    def flat(self):
        return torch.cat([part.flatten() for part in self])

    def with_flat(self, values):
        """Return a point of the same shapes with these values, flat."""
        coefs, shape_params = values.split([part.numel() for part in self])
        return Point(coefs.view_as(self.coefs), shape_params.view_as(self.shape_params))


class Curvature(NamedTuple):
    """The information of coefficients and of shape parameters."""

    # shape_params : of the shape of `Point.shape_params`, a matrix (g, g), or as
    # `Likelihood.shape_sums` returns it. sizes : None, or factors of one matrix, which
    # complete rows share: the information of feature j is sizes[j] * coefs[0].

    coefs: torch.Tensor  # shape: (d, k + 1, k + 1), or (1, k + 1, k + 1) with sizes
    shape_params: torch.Tensor
    blocks: ShapeBlocks | None = None
    sizes: torch.Tensor | None = None  # shape: (d,)

    def plus(self, other):
        coefs = self.of_each().coefs + other.of_each().coefs
        shape_params = self.shape_params + other.shape_params
        return Curvature(coefs, shape_params, other.blocks)

    def of_each(self):
        """Return the same with a matrix for each feature."""
        if self.sizes is None:
            return self
        coefs = self.sizes[:, None, None] * self.coefs
        return self._replace(coefs=coefs, sizes=None)

    def times(self, factor):
        coefs, shape_params = factor * self.coefs, factor * self.shape_params
        return self._replace(coefs=coefs, shape_params=shape_params)


class Sums(NamedTuple):
    """Sums over rows: of values, gradients and information."""

    # by_mask : sums of the values and of the weights of the rows that share each mask,
    # (2, m); None where each row has a mask of its own, or none.

    value: torch.Tensor  # sum of the objective
    square: torch.Tensor  # sum of its squares
    gradient: Point
    information: Curvature
    n_rows: float | torch.Tensor  # sum of the weights of the rows
    # None: from the gradient, where rounding errors grow as noise falls
    rescaling: torch.Tensor | None = None
    by_mask: torch.Tensor | None = None

    @classmethod
    def from_rows(cls, value, weight, gradient, information, rescaling=None):
        """Return the sums, given values and weights of rows, (n,) each."""
        total, square = (weight * value).sum(), (weight * value**2).sum()
        return cls(total, square, gradient, information, weight.sum(), rescaling)

    def __add__(self, other):
        return Sums(
            self.value + other.value,
            self.square + other.square,
            self.gradient.plus(other.gradient),
            self.information.plus(other.information),
            self.n_rows + other.n_rows,
            None if self.rescaling is None else self.rescaling + other.rescaling,
            None if self.by_mask is None else self.by_mask + other.by_mask,
        )

    @property
    def error(self):
        """Standard error of the mean value; infinite where it is not known."""
        # Rows that share a mask depend on each other, so the masks are what is drawn.
        if self.by_mask is not None:
            return error_of_groups(*self.by_mask)
        n, value = float(self.n_rows), float(self.value / self.n_rows)
        variance = max(0.0, float(self.square) / n - value**2)
        return math.sqrt(variance / (n - 1)) if n > 1 else math.inf

    def lowered(self, amount):
        """Return the sums after subtracting an amount from the value of each row."""
        square = self.square - 2 * amount * self.value + self.n_rows * amount**2
        return self._replace(value=self.value - self.n_rows * amount, square=square)

    def rotated(self, rotation):
        """Return the sums of a model whose z is rotated, (k + 1, k + 1)."""
        gradient = self.gradient._replace(coefs=self.gradient.coefs @ rotation)
        # both products are of one matrix, because the information is symmetric
        coefs = (self.information.coefs @ rotation).mT @ rotation
        information = self.information._replace(coefs=coefs)
        rescaling = self.rescaling
        if rescaling is not None:
            rescaling = rotation.T @ rescaling @ rotation
        return self._replace(
            gradient=gradient, information=information, rescaling=rescaling
        )


class NaturalStep(NamedTuple):
    """A full step, in nats per row."""

    value: float
    error: float  # standard error of the value
    gradient: Point
    information: Curvature
    step: Point
    # The map of z of a step of size t is exp(t rescaling); (k + 1, k + 1).
    rescaling: torch.Tensor

    @property
    def is_finite(self):
        return math.isfinite(self.value) and self.step.is_finite()

    @property
    def gradient_and_step(self):
        return self.gradient.flat(), self.step.flat()


def error_of_groups(values, weights):
    """Return the standard error of a mean over groups; infinite for one."""
    # values, weights : sums of weighted values and of weights of each group, (m,).
    n, total = int((weights > 0).sum()), weights.sum()
    if n < 2:
        return math.inf
    residuals = values - weights * (values.sum() / total)
    return math.sqrt(n / (n - 1)) * float(torch.linalg.vector_norm(residuals) / total)


def as_arrays(point):
    return [part.cpu().numpy() for part in point[:2]]


def mix(a, b, weight):
    return a.times(1 - weight).plus(b.times(weight))


def natural_step(sums, point, information, max_step):
    """Return the step for sums over rows, given the information per row."""
    n, value = float(sums.n_rows), float(sums.value / sums.n_rows)
    gradient = sums.gradient.times(1 / n)
    step = divide(gradient, information)
    rescaling = sums.rescaling
    if rescaling is None:
        rescaling = _rescaling_of(sums.gradient, point)
    # at most so much, because the change of z is exponential in it
    rescaling = rescaling / n * (0.5 / (rescaling / n).abs().max().clamp(min=0.5))
    step = _with_bounded_step(step, max_step, information.blocks)
    return NaturalStep(value, sums.error, gradient, information, step, rescaling)


def corrected(move, step, max_step):
    """Return a bounded move by another step, which includes the rescaling of z."""
    step = _with_bounded_step(step, max_step, move.information.blocks)
    return move._replace(step=step, rescaling=torch.zeros_like(move.rescaling))


def _rescaling_of(gradient, point):
    """Return `latent_rescaling` from the gradient in the coefficients."""
    moment = point.coefs[:, :-1].T @ gradient.coefs
    scale = moment[:, :-1]
    return latent_rescaling((scale + scale.T) / 4, moment[:, -1])


def divide(gradient, information):
    """Solve for the step of each feature, and of the shape parameters."""
    # Parameters of which no entry tells anything stay where they are.
    matrices = information.coefs.clone()
    diagonal = matrices.diagonal(dim1=1, dim2=2)
    diagonal += (RIDGE * diagonal.sum(1, keepdim=True)).clamp(min=TINY)
    if information.sizes is None:
        solved = torch.linalg.solve_ex(matrices, gradient.coefs[..., None]).result
        solved = solved[..., 0]
    else:
        solved = torch.linalg.solve_ex(matrices[0], gradient.coefs.T).result.T
        solved = solved / information.sizes[:, None]
    shape_params = gradient.shape_params
    if information.blocks is not None:
        return _divide_blocks(gradient, information, solved)
    if information.shape_params.ndim > shape_params.ndim:
        matrix = information.shape_params.clone()
        matrix.diagonal().add_(RIDGE * matrix.trace())
        shape_params = torch.linalg.solve_ex(matrix, shape_params).result
    else:
        shape_params = shape_params / information.shape_params.clamp(min=TINY)
    return Point(solved, shape_params)


def _divide_blocks(gradient, information, solved):
    """Solve for shape parameters together with the coefficients of their location."""
    # solved : steps of the coefficients of all locations, without shape parameters.
    slots, locations, *_ = information.blocks
    n_slots, width = slots.shape[1], gradient.coefs.shape[1]
    is_used = slots >= 0
    index = slots.clamp(min=0)
    rows = torch.where(is_used[..., None], information.shape_params[index], 0.0)
    blocks, cross = rows[..., :n_slots], rows[..., n_slots:]
    blocks = blocks + torch.diag_embed((~is_used).to(blocks.dtype))
    coef_information = information.coefs[locations]
    matrices = torch.cat(
        [torch.cat([coef_information, cross.mT], 2), torch.cat([cross, blocks], 2)], 1
    )
    shape_params = torch.where(is_used, gradient.shape_params[index], 0.0)
    gradients = torch.cat([gradient.coefs[locations], shape_params], 1)
    size = matrices.diagonal(dim1=1, dim2=2).clamp(min=TINY).rsqrt()
    matrices = size[:, None] * matrices * size[..., None]
    matrices.diagonal(dim1=1, dim2=2).add_(RIDGE * matrices.shape[1])
    step = torch.linalg.solve_ex(matrices, (size * gradients)[..., None]).result
    step = size * step[..., 0]
    solved = solved.index_copy(0, locations, step[:, :width])
    shape_step = torch.zeros_like(gradient.shape_params)
    shape_step[slots[is_used]] = step[:, width:][is_used]
    return Point(solved, shape_step)


def _with_bounded_step(step, max_step, blocks):
    """Bound the step of each feature, because long steps leave the quadratic region."""
    # Shape parameters that are solved for with its coefficients go as far as these.
    if max_step == math.inf:
        return step
    length = step.coefs.abs().amax(1, keepdim=True)
    factor = max_step / length.clamp(min=max_step)
    shape_params = step.shape_params
    if blocks is not None:
        index = blocks.slots[blocks.slots >= 0]
        own = factor[blocks.locations].expand(blocks.slots.shape)[blocks.slots >= 0]
        shape_params = shape_params.index_put((index,), shape_params[index] * own)
    return Point(step.coefs * factor, shape_params)


def latent_rescaling(scale, shift):
    """Return the gradient in a linear map of z as one matrix, (k + 1, k + 1)."""
    # scale : half the symmetrised gradient in L, for z <- (I + L) z; (k, k). shift :
    # the gradient in the mean of z, (k,).
    rescaling = torch.nn.functional.pad(scale, (0, 1, 0, 1))
    rescaling[:-1, -1] = shift
    return rescaling


def apply(point, move, size, floor=-math.inf, is_even=False):
    """Take a step of a given size; shape parameters stay above their floor."""
    # Numbers whose logarithms are shape parameters change in proportion to their value.
    # The rescaling of z is not larger than in a full step: it is exponential in the
    # size.
    change = torch.linalg.matrix_exp(min(size, 1.0) * move.rescaling)
    coefs = (point.coefs + size * move.step.coefs) @ change
    change, blocks = size * move.step.shape_params, move.information.blocks
    relative = change.clamp(min=-MAX_FALL).log1p()
    if is_even:  # falls are no longer than rises: amid noise, they would drift to 0
        relative = change.sign() * change.abs().log1p()
    if blocks is not None:
        relative = torch.where(blocks.is_log, relative, change)
    return Point(coefs, (point.shape_params + relative).clamp(min=floor))


def axes_of(point):
    """Return the rotation of z that makes weights over noise orthogonal."""
    n_dims = point.coefs.shape[1] - 1
    rotation = identity(n_dims + 1, point.coefs)
    scaled = point.coefs[:, :n_dims] / point.shape_params.exp().sqrt()[..., None]
    rotation[:n_dims, :n_dims] = torch.linalg.svd(scaled.T, full_matrices=False)[0]
    return rotation


class Objective(ABC):
    """A function of a `Point`, summed over rows, which steps maximise."""

    # is_noisy : whether batches differ, by their masks or rows. floor : smallest values
    # of the shape parameters, such as the log noise variance. log_scale : what the
    # units of the rows add to the loss of standardised ones. moments : of complete
    # rows of a Gaussian model, whose masked scores need no more. max_step : bound on
    # the step of the coefficients of a feature. moves_axes : whether z can be rescaled.
    # stop_gain : fraction of `tol` that the last step gains: errors of sampled nodes
    # may be as large.

    n_rows: float
    n_batches: int
    is_noisy: bool
    floor = -math.inf
    max_step = math.inf
    moves_axes = True
    stop_gain = 0.0
    log_scale = 0.0
    moments = None

    @abstractmethod
    def batches(self, rng):
        """Yield the batches of one epoch."""

    @abstractmethod
    def sums(self, point, batch):
        """Return the `Sums` of a batch at a point, but for what `completed` adds."""

    def completed(self, sums, point):
        """Add what concerns no single row, such as priors."""
        return sums

    def place_nodes(self, point):
        """Move the nodes of integrals, if it is time; return whether values changed."""
        return False

    def escapes(self, point, min_gain):
        """Yield better points if this one is a saddle, and epochs to try them for."""
        return ()

    def exact_objective(self):
        """Return the same objective with smaller errors, or None."""
        # It has no noise of masks, or more nodes.
        return None

    # Steps

    def full_step(self, point, batch, information=None, weight=1.0):
        """Return the step from a point for a batch."""
        # information : per row, of the steps before. weight : of the batch in its
        # average.
        sums = self.completed(self.sums(point, batch), point)
        # a gradient must not take shape parameters below their floor
        gradient = sums.gradient
        at_floor = point.shape_params <= self.floor + ROUNDING
        outwards = at_floor & (gradient.shape_params < 0)
        shape_params = torch.where(outwards, 0.0, gradient.shape_params)
        sums = sums._replace(gradient=gradient._replace(shape_params=shape_params))
        of_batch = sums.information.times(1 / sums.n_rows)
        if information is not None:
            of_batch = mix(information, of_batch, weight)
        return natural_step(sums, point, of_batch, self.max_step)

    def divided(self, gradient, point, information):
        """Return the full step for a gradient, linear in it; (p,) each."""
        gradient = point.with_flat(gradient)
        step = divide(gradient, information)
        if self.moves_axes:
            rescaling = _rescaling_of(gradient, point)
            step = step._replace(coefs=step.coefs + point.coefs @ rescaling)
        return step.flat()

    def moved(self, point, move, size):
        """Return the point after a step of some size."""
        return apply(point, move, size, self.floor, is_even=self.is_noisy)

    def mixed(self, point, other, weight):
        """Return the average of two points, given the weight of the other."""
        return mix(point, other, weight)

    def aligned(self, point, reference):
        """Rotate z so that loadings are close to a reference; the model is the same."""
        n_dims = point.coefs.shape[1] - 1
        W, target = point.coefs[:, :n_dims], reference.coefs[:, :n_dims]
        left, _, right = torch.linalg.svd(W.T @ target)
        rotated = W @ (left @ right)
        return point._replace(coefs=torch.cat([rotated, point.coefs[:, n_dims:]], 1))
