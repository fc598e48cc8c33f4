"""Schedule-free Adam: steps for nets, averaged during training."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from sklearn_mpt._fitting.nets import flattened
from sklearn_mpt._matrices import identity


@dataclass(frozen=True)
class AdamSteps:
    """Sizes of the steps of `ScheduleFreeAdam`, and their weights in the average.

    Moves are in learning rates. Periods are numbers of steps.

    Attributes
    ----------
    towards_average : float
        Gradients are taken at points that are so far from the iterate to the average.
    squares_decay : float
        Decay of the mean squares of gradients in a step.
    epsilon : float
        Added to the roots of the mean squares, so that parameters whose gradients are 0
        do not move.
    average_power : int
        A step counts as its number to this power in the average.
    warm_up : int
        Number of steps in which the step size grows.
    delay : int
        Number of steps before delayed parameters move.
    max_move : float
        Largest move of a parameter in a step. Without a bound, Adam's can be ten.
    rotated_gain : float
        Factor of steps in the eigenbasis, which can be larger.
    max_rotated_side : int
        Longer sides of a matrix are not rotated.
    max_side : int
        Matrices with a longer side are not rotated, because that would take longer than
        everything else.
    covariance_decay : float
        Decay of the covariances of gradients when they are updated.
    covariance_period : int
        Covariances are updated in every step until `eigenbasis_period`, and then once
        in a period.
    eigenbasis_period : int
        The same for their eigenvectors.
    """

    towards_average: float = 0.95
    squares_decay: float = 0.99
    epsilon: float = 1e-8
    average_power: int = 1
    warm_up: float = 150
    delay: float = 120
    max_move: float = 2.0
    rotated_gain: float = 2
    max_rotated_side: int = 256
    max_side: int = 1024
    covariance_decay: float = 0.91
    covariance_period: int = 3
    eigenbasis_period: int = 12


STEPS = AdamSteps()


class ScheduleFreeAdam:
    """Adam whose iterates are averaged during training, without a schedule [1]_.

    Moves are bounded: a posterior that is far off has large gradients, and one step
    along them would undo hundreds of others.

    Parameters
    ----------
    module : torch.nn.Module
        Its parameters become views of one vector.
    learning_rate : float
    delayed : list of torch.nn.Parameter
        Parameters that do not move in the first `delay` steps.
    delay : float
        Number of steps; infinite for parameters that validation rows set.
    rotates : bool
        Whether Adam acts in the eigenbasis of the gradients' covariances, not on
        single parameters.
    steps : AdamSteps

    References
    ----------
    .. [1] A. Defazio, X. Yang, H. Mehta, K. Mishchenko, A. Khaled and A. Cutkosky,
       "The road less scheduled", NeurIPS 2024.
    """

    def __init__(
        self,
        module,
        learning_rate,
        delayed=(),
        delay=STEPS.delay,
        rotates=False,
        steps=STEPS,
    ):
        self.steps = steps
        self.parameters = list(module.parameters())
        self.point = flattened(self.parameters)
        self.average, self.iterate = self.point.clone(), self.point.clone()
        self.squares = torch.zeros_like(self.point)
        # Buffers: allocating them in each step takes longer than the step itself.
        self.move, self.scale = self.point.clone(), self.point.clone()
        self.eigenbasis = Eigenbasis(self.parameters if rotates else [], steps)
        self.gain = steps.rotated_gain if rotates else 1
        self.n_steps, self.weight = 0, 0.0
        self.learning_rate = learning_rate
        self.delay = delay
        names = {id(parameter) for parameter in delayed}
        is_delayed = [
            torch.full_like(p, id(p) in names, dtype=bool) for p in self.parameters
        ]
        self.delayed = parameters_to_vector(is_delayed).nonzero()[:, 0]

    @torch.no_grad()
    def resume(self):
        """Give the module the parameters at which gradients are taken."""
        share = self.steps.towards_average
        torch.lerp(self.iterate, self.average, share, out=self.point)
        vector_to_parameters(self.point, self.parameters)

    @torch.no_grad()
    def show(self, vector):
        """Give the module these parameters; the result is those of `average`."""
        self.point.copy_(vector)
        vector_to_parameters(self.point, self.parameters)

    @torch.no_grad()
    def read_delayed(self):
        """Read the delayed parameters from the module, where others have set them."""
        for vector in (self.average, self.iterate):
            vector[self.delayed] = self.point[self.delayed]

    def move_to(self, point):
        """Put average and iterate at a point; keep the weight of the average."""
        for vector in (self.average, self.iterate):
            vector.copy_(point)

    @torch.no_grad()
    def step(self, gradient, share=1.0):
        """Take a step against a gradient, given as a vector; then `resume`.

        share : of a full step, by which the move and the step's weight are multiplied.
        """
        self.n_steps += 1
        steps = self.steps
        self.eigenbasis.update(gradient, self.n_steps)
        move = self.move.copy_(gradient)
        self.eigenbasis.rotate(move)
        torch.square(move, out=self.scale)
        self.squares.lerp_(self.scale, max(1 / self.n_steps, 1 - steps.squares_decay))
        torch.sqrt(self.squares, out=self.scale).add_(steps.epsilon)
        move.div_(self.scale).mul_(self.gain).clamp_(-steps.max_move, steps.max_move)
        self.eigenbasis.rotate(move, inverse=True)
        if self.n_steps <= self.delay:
            move.index_fill_(0, self.delayed, 0)
        size = min(1, self.n_steps / steps.warm_up)
        self.iterate.sub_(move, alpha=share * size * self.learning_rate)
        weight = share * size**2 * self.n_steps**steps.average_power
        self.weight += weight
        self.average.lerp_(self.iterate, weight / self.weight)
        torch.lerp(self.iterate, self.average, steps.towards_average, out=self.point)

    def state(self):
        """Return what a later optimizer needs to go on, as NumPy arrays."""
        rotation = [t.ravel() for side in self.eigenbasis.sides for t in side[3:]]
        vectors = {
            "iterate": self.iterate,
            "squares": self.squares,
            "rotation": torch.cat([self.point[:0], *rotation]),
        }
        arrays = {name: vector.cpu().numpy() for name, vector in vectors.items()}
        return arrays | {"progress": np.array([self.n_steps, self.weight])}

    def load(self, arrays):
        """Restore what `state` returned."""
        for name in ("iterate", "squares"):
            getattr(self, name).copy_(torch.from_numpy(arrays[name]))
        self.n_steps, self.weight = int(arrays["progress"][0]), arrays["progress"][1]
        rest = torch.from_numpy(arrays["rotation"])
        for side in self.eigenbasis.sides:
            for tensor in (side.covariance, side.basis):
                tensor.copy_(rest[: tensor.numel()].view_as(tensor))
                rest = rest[tensor.numel() :]


class MatrixAxis(NamedTuple):
    """The rows (axis 0) or the columns (axis 1) of a matrix, a part of a vector."""

    part: slice
    shape: tuple[int, int]
    axis: int
    covariance: torch.Tensor  # of gradients, shape (n, n)
    basis: torch.Tensor  # nearly its eigenvectors, shape (n, n)

    def view(self, vector):
        """Return the matrix, with this side as its rows."""
        return vector[self.part].view(self.shape).transpose(0, self.axis)


class Eigenbasis:
    """Bases of matrices, parts of a vector, in which gradients are uncorrelated.

    They are the eigenvectors of the averages of G G' and G' G over gradients G, which
    orthogonal iteration follows. The curvature of a net couples the entries of a
    matrix, so that step sizes of its own suit each eigenvector better [1]_.

    Parameters
    ----------
    parameters : list of Tensor
        The parts of the vector, in order. If empty, nothing is rotated.
    steps : AdamSteps

    References
    ----------
    .. [1] N. Vyas, D. Morwani, R. Zhao, M. Kwun, I. Shapira, D. Brandfonbrener,
       L. Janson and S. Kakade, "SOAP: improving and stabilizing Shampoo using
       Adam", ICLR 2025.
    """

    def __init__(self, parameters, steps=STEPS):
        self.steps = steps
        ends = np.cumsum([0, *(p.numel() for p in parameters)])
        self.sides = []
        for start, p in zip(ends[:-1], parameters, strict=True):
            if p.ndim != 2 or max(p.shape) > steps.max_side:
                continue
            part = slice(start, start + p.numel())
            for axis, n in enumerate(p.shape):
                if 1 < n <= steps.max_rotated_side:
                    basis = identity(n, p)
                    covariance = torch.zeros_like(basis)
                    self.sides.append(
                        MatrixAxis(part, p.shape, axis, covariance, basis)
                    )

    def update(self, gradient, n_steps):
        """Update covariances and bases by the gradient of a step, counted from 1."""
        steps = self.steps
        if n_steps > steps.eigenbasis_period and n_steps % steps.covariance_period:
            return
        share = max(1 / n_steps, 1 - steps.covariance_decay)
        for side in self.sides:
            g = side.view(gradient)
            side.covariance.lerp_(g @ g.T, share)
            if (
                n_steps <= steps.eigenbasis_period
                or n_steps % steps.eigenbasis_period == 0
            ):
                side.basis.copy_(torch.linalg.qr(side.covariance @ side.basis).Q)

    def rotate(self, vector, inverse=False):
        """Replace a vector by its coordinates in the bases, or back, in place."""
        for side in self.sides:
            g = side.view(vector)
            g.copy_((side.basis if inverse else side.basis.T) @ g)
