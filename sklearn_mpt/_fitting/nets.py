"""What steps of nets share: vectors of parameters, gradients, and means of losses."""

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
