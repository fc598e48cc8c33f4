"""Schedule-free Adam: steps for nets, averaged during training."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters


@dataclass(frozen=True)
class AdamSteps:
    """Sizes of the steps of `ScheduleFreeAdam`, and their weights in the average."""

    # Moves are in learning rates. towards_average : distance from the iterate to the
    # average at which gradients are taken. squares_decay : of mean squares of
    # gradients, in a step. epsilon : added to their roots, so that parameters without
    # gradients do not move. average_power : a step counts as its number to this power.
    # warm_up : steps in which the step size grows. max_move : without a bound, Adam's
    # can be ten.

    towards_average: float = 0.95
    squares_decay: float = 0.99
    epsilon: float = 1e-8
    average_power: int = 1
    warm_up: float = 150
    max_move: float = 2.0


STEPS = AdamSteps()


CARRIED = ("iterate", "squares")  # vectors from one call of `partial_fit` to the next


class ScheduleFreeAdam:
    """Adam whose iterates are averaged during training, without a schedule."""

    # Defazio et al., "The road less scheduled", NeurIPS 2024. Moves are bounded: a
    # posterior that is far off has large gradients, and one step along them would undo
    # hundreds of others. Parameters become views of one vector.

    def __init__(self, parameters, learning_rate, steps=STEPS):
        self.names, self.parameters = list(parameters), list(parameters.values())
        self.learning_rate, self.steps = learning_rate, steps
        self.point = parameters_to_vector(self.parameters).detach()
        vector_to_parameters(self.point, self.parameters)  # views of it from now on
        self.average, self.iterate = self.point.clone(), self.point.clone()
        self.squares = torch.zeros_like(self.point)
        # Buffers: allocating them in each step takes longer than the step itself.
        self.move, self.scale = self.point.clone(), self.point.clone()
        self.n_steps, self.weight = 0, 0.0

    @torch.no_grad()
    def resume(self):
        """Give the module the parameters at which gradients are taken."""
        fraction = self.steps.towards_average
        torch.lerp(self.iterate, self.average, fraction, out=self.point)
        vector_to_parameters(self.point, self.parameters)

    @torch.no_grad()
    def show_average(self):
        """Give the module the average, which is the result."""
        self.point.copy_(self.average)
        vector_to_parameters(self.point, self.parameters)

    @torch.no_grad()
    def move_to_module(self):
        """Put average and iterate at the module; keep the weight of the average."""
        self.point.copy_(parameters_to_vector(self.parameters))
        for vector in (self.average, self.iterate):
            vector.copy_(self.point)

    @torch.no_grad()
    def step(self, gradient, step_weight=1.0):
        """Take a step against a gradient, given as a vector; then `resume`."""
        # step_weight : part of a full step, by which move and weight in the average are
        # multiplied.
        self.n_steps += 1
        steps = self.steps
        torch.square(gradient, out=self.scale)
        self.squares.lerp_(self.scale, max(1 / self.n_steps, 1 - steps.squares_decay))
        torch.sqrt(self.squares, out=self.scale).add_(steps.epsilon)
        move = torch.div(gradient, self.scale, out=self.move)
        move.clamp_(-steps.max_move, steps.max_move)
        size = min(1, self.n_steps / steps.warm_up)
        self.iterate.sub_(move, alpha=step_weight * size * self.learning_rate)
        weight = step_weight * size**2 * self.n_steps**steps.average_power
        self.weight += weight
        self.average.lerp_(self.iterate, weight / self.weight)
        torch.lerp(self.iterate, self.average, steps.towards_average, out=self.point)

    def state(self):
        """Return what a later optimizer needs to go on, as NumPy arrays by name."""
        arrays = {
            f"{kind}.{name}": part.cpu().numpy().copy()
            for kind in CARRIED
            for name, part in zip(self.names, self._parts(kind), strict=True)
        }
        return arrays | {"progress": np.array([self.n_steps, self.weight])}

    def load(self, arrays):
        """Restore what `state` returned; parameters that it lacks have no past."""
        for kind in CARRIED:
            for name, part in zip(self.names, self._parts(kind), strict=True):
                if f"{kind}.{name}" in arrays:
                    part.copy_(torch.from_numpy(arrays[f"{kind}.{name}"]))
        self.n_steps, self.weight = int(arrays["progress"][0]), arrays["progress"][1]

    def _parts(self, kind):
        sizes = [parameter.numel() for parameter in self.parameters]
        return getattr(self, kind).split(sizes)
