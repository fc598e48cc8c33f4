"""Steps for nets: Adam, averaged on the way."""

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

TOWARDS_AVERAGE = 0.95  # how far from the iterate gradients are taken
SQUARES_DECAY, EPSILON = 0.99, 1e-8
POWER = 1  # of the number of steps, in the weights of the average
WARM_UP = 30  # steps in which the step size grows
REST = 120  # steps in which some parameters rest
LARGEST_MOVE = 2.0  # of any number, in learning rates: Adam's can be ten
MEMORY = 200  # steps that a point counts as where averaging starts anew from it


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
        Those that stay where they are for the first REST steps.

    References
    ----------
    .. [1] A. Defazio, X. Yang, H. Mehta, K. Mishchenko, A. Khaled and A. Cutkosky,
       "The road less scheduled", NeurIPS 2024.
    """

    def __init__(self, module, learning_rate, resting=()):
        self.parameters = list(module.parameters())
        self.point = parameters_to_vector(self.parameters).detach().clone()
        self.average, self.iterate = self.point.clone(), self.point.clone()
        self.squares = torch.zeros_like(self.point)
        self.n_steps, self.weight = 0, 0.0
        self.learning_rate = learning_rate
        names = {id(parameter) for parameter in resting}
        self.rests = torch.cat(
            [
                torch.full((p.numel(),), id(p) in names, device=p.device)
                for p in self.parameters
            ]
        )

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

    def restart(self, point, learning_rate):
        """Go on from a point, which counts as MEMORY steps of the new average."""
        for vector in (self.average, self.iterate):
            vector.copy_(point)
        self.learning_rate = learning_rate
        self.n_steps = MEMORY
        self.weight = MEMORY ** (1 + POWER) / (1 + POWER)

    @torch.no_grad()
    def step(self, gradient):
        """Take a step along minus a gradient, a vector; resume there."""
        self.n_steps += 1
        self.squares.lerp_(gradient**2, max(1 / self.n_steps, 1 - SQUARES_DECAY))
        scale = self.squares.sqrt().add_(EPSILON)
        move = (gradient / scale).clamp_(-LARGEST_MOVE, LARGEST_MOVE)
        if self.n_steps <= REST:
            move[self.rests] = 0
        size = min(1, self.n_steps / WARM_UP)
        self.iterate.sub_(move, alpha=size * self.learning_rate)
        weight = size**2 * self.n_steps**POWER
        self.weight += weight
        self.average.lerp_(self.iterate, weight / self.weight)
        torch.lerp(self.iterate, self.average, TOWARDS_AVERAGE, out=self.point)

    def state(self):
        """Return what a later optimizer needs to go on, as NumPy arrays."""
        vectors = {"iterate": self.iterate, "squares": self.squares}
        return {name: vector.cpu().numpy() for name, vector in vectors.items()} | {
            "progress": np.array([self.n_steps, self.weight])
        }

    def load(self, arrays):
        """Restore what `state` returned."""
        for name in ("iterate", "squares"):
            getattr(self, name).copy_(torch.from_numpy(arrays[name]))
        self.n_steps, self.weight = int(arrays["progress"][0]), arrays["progress"][1]
