"""Steps for nets: Adam, averaged on the way."""

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

TOWARDS_AVERAGE = 0.95  # how far from the iterate gradients are taken
SQUARES_DECAY, EPSILON = 0.99, 1e-8
POWER = 1  # of the number of steps, in the weights of the average
WARM_UP, WARM_UP_TURNED = 30, 150  # steps in which the step size grows
REST = 120  # steps in which some parameters rest
LARGEST_MOVE = 2.0  # of any number, in learning rates: Adam's can be ten
MEMORY = 200  # steps that a point counts as where averaging starts anew from it
TURNED_GAIN = 2  # how much larger steps may be along axes of the gradients
MOST_AXES = 256  # of a side of a matrix; longer sides keep their own
LONGEST_SIDE = 1024  # of a matrix that is turned: others cost most, and gain nothing
COVARIANCE_DECAY = 0.91
GRADIENTS_EVERY, AXES_EVERY = 3, 12  # steps; at first, every step


class ScheduleFreeAdam:
    """Adam whose iterates are averaged while they go, without a schedule [1]_.

    Moves are bounded, as gradients of posteriors that are far off are large: one step
    along them would spoil what it took hundreds to learn.

    Parameters
    ----------
    module : torch.nn.Module
        Its parameters become views of one vector.
    learning_rate : float
    resting : list of torch.nn.Parameter
        Those that no step changes before `rest` of them are taken.
    rest : float
        Number of steps; infinite for those that something else sets.
    turns : bool
        Whether step sizes are those of the axes of the gradients, not of parameters.

    References
    ----------
    .. [1] A. Defazio, X. Yang, H. Mehta, K. Mishchenko, A. Khaled and A. Cutkosky,
       "The road less scheduled", NeurIPS 2024.
    """

    def __init__(self, module, learning_rate, resting=(), rest=REST, turns=False):
        self.parameters = list(module.parameters())
        self.point = parameters_to_vector(self.parameters).detach().clone()
        self.average, self.iterate = self.point.clone(), self.point.clone()
        self.squares = torch.zeros_like(self.point)
        # Memory of steps: to ask for it every time costs more than what is done in it.
        self.move, self.scale = self.point.clone(), self.point.clone()
        self.axes = Axes(self.parameters if turns else [])
        self.gain = TURNED_GAIN if turns else 1
        self.warm_up = WARM_UP_TURNED if turns else WARM_UP
        self.n_steps, self.weight = 0, 0.0
        self.learning_rate = learning_rate
        self.rest = rest
        self.resting = _places(resting, self.parameters)

    @torch.no_grad()
    def resume(self):
        """Give the module the point where gradients are taken."""
        torch.lerp(self.iterate, self.average, TOWARDS_AVERAGE, out=self.point)
        vector_to_parameters(self.point, self.parameters)

    @torch.no_grad()
    def show_average(self):
        """Give the module the average, which is the result."""
        self.point.copy_(self.average)
        vector_to_parameters(self.point, self.parameters)

    @torch.no_grad()
    def keep_resting(self):
        """Take what rests as the module has it."""
        for vector in (self.average, self.iterate):
            vector[self.resting] = self.point[self.resting]

    def move_to(self, point):
        """Go on from a point in place of the average, with its weight."""
        for vector in (self.average, self.iterate):
            vector.copy_(point)

    def restart(self, point, learning_rate):
        """Go on from a point, which counts as MEMORY steps of the new average."""
        self.move_to(point)
        self.learning_rate = learning_rate
        self.n_steps = MEMORY
        self.weight = MEMORY ** (1 + POWER) / (1 + POWER)

    @torch.no_grad()
    def step(self, gradient, share=1.0):
        """Take a step along minus a gradient, a vector; resume there.

        share : of a full step, that the gradient counts, in the move and the average.
        """
        self.n_steps += 1
        self._divide(gradient)
        size = min(1, self.n_steps / self.warm_up)
        self.iterate.sub_(self.move, alpha=share * size * self.learning_rate)
        weight = share * size**2 * self.n_steps**POWER
        self.weight += weight
        self.average.lerp_(self.iterate, weight / self.weight)
        torch.lerp(self.iterate, self.average, TOWARDS_AVERAGE, out=self.point)

    def _divide(self, gradient):
        """Set the move, in learning rates: a gradient over its size, along its axes."""
        self.axes.follow(gradient, self.n_steps)
        move = self.move.copy_(gradient)
        self.axes.turn(move)
        torch.square(move, out=self.scale)
        self.squares.lerp_(self.scale, max(1 / self.n_steps, 1 - SQUARES_DECAY))
        torch.sqrt(self.squares, out=self.scale).add_(EPSILON)
        move.div_(self.scale).mul_(self.gain).clamp_(-LARGEST_MOVE, LARGEST_MOVE)
        self.axes.turn_back(move)
        if self.n_steps <= self.rest:
            move.index_fill_(0, self.resting, 0)

    def state(self):
        """Return what a later optimizer needs to go on, as NumPy arrays."""
        vectors = {"iterate": self.iterate, "squares": self.squares}
        return {name: vector.cpu().numpy() for name, vector in vectors.items()} | {
            "progress": np.array([self.n_steps, self.weight]),
            "axes": self.axes.state(),
        }

    def load(self, arrays):
        """Restore what `state` returned."""
        for name in ("iterate", "squares"):
            getattr(self, name).copy_(torch.from_numpy(arrays[name]))
        self.n_steps, self.weight = int(arrays["progress"][0]), arrays["progress"][1]
        self.axes.load(arrays["axes"])


def _places(some, parameters):
    """Indices of the numbers of some parameters in the vector of all."""
    names = {id(parameter) for parameter in some}
    are_some = [torch.full_like(p, id(p) in names, dtype=bool) for p in parameters]
    return torch.cat([part.flatten() for part in are_some]).nonzero()[:, 0]


class Axes:
    """Axes of matrices, parts of a vector, along which gradients are uncorrelated.

    They are the eigenvectors of G G' and of G' G, averaged over gradients G, as
    orthogonal iteration follows them: step sizes of their own suit them better than
    step sizes of the entries, which the curvature of a net couples [1]_.

    Parameters
    ----------
    parameters : list of Tensor
        What the vector consists of, in its order. If empty, nothing is turned.

    References
    ----------
    .. [1] N. Vyas, D. Morwani, R. Zhao, M. Kwun, I. Shapira, D. Brandfonbrener,
       L. Janson and S. Kakade, "SOAP: improving and stabilizing Shampoo using
       Adam", ICLR 2025.
    """

    def __init__(self, parameters):
        ends = np.cumsum([0, *(p.numel() for p in parameters)])
        self.matrices = [
            Matrix(slice(start, start + p.numel()), p)
            for start, p in zip(ends[:-1], parameters, strict=True)
            if p.ndim == 2 and max(p.shape) <= LONGEST_SIDE
        ]

    def follow(self, gradient, n_steps):
        """Take account of the gradient of a step, counted from 1."""
        if n_steps > AXES_EVERY and n_steps % GRADIENTS_EVERY:
            return
        share = max(1 / n_steps, 1 - COVARIANCE_DECAY)
        is_time = n_steps <= AXES_EVERY or n_steps % AXES_EVERY == 0
        for matrix in self.matrices:
            matrix.follow(gradient, share, is_time)

    def turn(self, gradient):
        """Replace a gradient by its coordinates along the axes."""
        for matrix in self.matrices:
            matrix.turn(gradient, lambda axes: axes.T)

    def turn_back(self, move):
        """Replace coordinates by the vector that has them."""
        for matrix in self.matrices:
            matrix.turn(move, lambda axes: axes)

    def state(self):
        """Return covariances and axes as one NumPy vector."""
        parts = [tensor.cpu().numpy().ravel() for tensor in self._tensors()]
        return np.concatenate([np.empty(0, np.float32), *parts])

    def load(self, array):
        """Restore what `state` returned."""
        for tensor in self._tensors():
            part, array = np.split(array, [tensor.numel()])
            tensor.copy_(torch.from_numpy(part).view_as(tensor))

    def _tensors(self):
        for matrix in self.matrices:
            for covariance, axes in matrix.sides.values():
                yield covariance
                yield axes


class Matrix:
    """The axes of one matrix, a part of a vector: of its rows, and of its columns."""

    def __init__(self, part, parameter):
        self.part, self.shape = part, parameter.shape
        eyes = {
            side: torch.eye(n, dtype=parameter.dtype, device=parameter.device)
            for side, n in enumerate(parameter.shape)
            if 1 < n <= MOST_AXES
        }
        self.sides = {side: (torch.zeros_like(eye), eye) for side, eye in eyes.items()}

    def follow(self, gradient, share, is_time):
        """Average covariances, and if it is time bring axes nearer to eigenvectors."""
        G = gradient[self.part].view(self.shape)
        for side, (covariance, axes) in self.sides.items():
            g = G.transpose(0, side)
            covariance.lerp_(g @ g.T, share)
            if is_time:
                axes.copy_(torch.linalg.qr(covariance @ axes).Q)

    def turn(self, vector, matrix_of):
        """Multiply the sides of this part of a vector, in place."""
        M = vector[self.part].view(self.shape)
        for side, (_, axes) in self.sides.items():
            g = M.transpose(0, side)
            g.copy_(matrix_of(axes) @ g)
