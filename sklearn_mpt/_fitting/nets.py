"""What solvers of nets share: vectors of parameters and gradients, and epochs."""

import math

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def flattened(parameters):
    """Return a vector of which the parameters are views from now on."""
    vector = parameters_to_vector(parameters).detach()
    vector_to_parameters(vector, parameters)
    return vector


def flat_gradient(loss, parameters):
    """Return the gradient of a loss in parameters, as one vector."""
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return torch.cat([part.flatten() for part in gradients])


def passes_of_epoch(n_rows, n_batches, min_steps):
    """Return how often an epoch passes over the rows, to have about `min_steps` steps.

    It is at most half as often as there are rows, so that very few cost little.

    n_batches : number of minibatches of one pass, with a step for each.
    """
    return max(1, min(round(min_steps / n_batches), n_rows // 2))


def mean_of_epoch(losses, point):
    """Return the mean of the losses of steps, a float.

    losses : tensors, which are read back together, because a GPU waits for each
    read-back. point : the parameters after the steps.

    Raises
    ------
    FloatingPointError
        If the mean or a parameter is not finite.
    """
    loss = float(np.mean(torch.stack(losses).tolist()))
    if not (math.isfinite(loss) and point.isfinite().all()):
        raise FloatingPointError
    return loss
