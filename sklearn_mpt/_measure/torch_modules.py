"""Torch modules as masked models: tensors have the dtype and device of the module."""

import copy
import sys
from itertools import chain


def is_module(model):
    """Return whether a model is a torch module, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


class ModuleConditional:
    """The conditionals of a torch module, as a function of arrays.

    The module, or its method ``conditional_log_prob`` if it has one, is called with
    tensors: rows in the dtype of its parameters, NaN where missing, and a boolean mask,
    both on its device. It runs in evaluation mode and without gradients. If the module
    is in training mode, it is not changed: a copy that shares all parameters and
    buffers is evaluated.
    """

    def __init__(self, module):
        self.module = _in_evaluation_mode(module)

    def __call__(self, X, mask):
        import torch

        tensors = chain(self.module.parameters(), self.module.buffers())
        like = next((t for t in tensors if t.is_floating_point()), torch.empty(0))
        rows = torch.as_tensor(X).to(device=like.device, dtype=like.dtype)
        function = getattr(self.module, "conditional_log_prob", self.module)
        with torch.no_grad():
            return function(rows, torch.as_tensor(mask, device=like.device))


def _in_evaluation_mode(module):
    if not any(part.training for part in module.modules()):
        return module
    shared = {id(t): t for t in chain(module.parameters(), module.buffers())}
    try:
        return copy.deepcopy(module, shared).eval()
    except Exception as error:  # the module's parts are the user's
        raise TypeError(
            f"{type(module).__name__} is in training mode and cannot be copied for "
            "evaluation: call its method eval() first."
        ) from error
