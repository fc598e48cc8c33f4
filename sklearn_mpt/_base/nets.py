"""Nets: the base of their estimators, modules of users, modules as arrays."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import contextmanager
from typing import ClassVar

import torch

from sklearn_mpt._base.density import Units, as_tensor, as_view
from sklearn_mpt._base.iterative import IterativeMPT
from sklearn_mpt._checks import OPEN_UNIT_INTERVAL
from sklearn_mpt._optim.nets import TrainingRows, train_net, train_net_on_part

UserModule = torch.nn.Module | Callable[[int, int], torch.nn.Module]


@contextmanager
def seeded(seed, device="cpu"):
    """Seed torch's own generators; restore their state afterwards."""
    device = torch.device(device)
    is_cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if is_cuda else []):
        torch.default_generator.manual_seed(seed)
        if is_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


class UserModuleWrapper(torch.nn.Module):
    """A module of a user, whose outputs are added to an intercept.

    The module is copied, to single precision on the CPU. It is called with two rows of
    zeros, in single and in double precision, and must map each row to all outputs.

    Parameters
    ----------
    source : torch.nn.Module or callable
        A module, at whose weights training starts, or a function of the numbers of
        inputs and outputs that returns one.
    n_inputs : int
    intercept : ndarray of shape (n_outputs,)
    name : str
        Name of the parameter, for messages.
    seed : int
        Seed of torch while the function makes a module.
    """

    def __init__(self, source, n_inputs, intercept, name, seed=0):
        super().__init__()
        self.n_inputs = n_inputs
        sizes = n_inputs, len(intercept)
        with seeded(seed):
            module = source if isinstance(source, torch.nn.Module) else source(*sizes)
            if not isinstance(module, torch.nn.Module):
                raise TypeError(
                    f"{name}{sizes} must return a torch.nn.Module, got "
                    f"{type(module).__name__}."
                )
            self.module = copy.deepcopy(module).to(device="cpu").float().eval()
            start = torch.tensor(intercept, dtype=torch.float32, device="cpu")
            self.register_buffer("intercept", start)
            # size of the values of a row in the module, to estimate memory
            self.width = self._try(*sizes, name)
        if not any(p.requires_grad for p in self.module.parameters()):
            raise ValueError(f"{name} must have parameters that can be trained.")

    @torch.no_grad()
    def _try(self, n_inputs, n_outputs, name):
        sizes = [n_outputs]

        def note(module, inputs, output):
            if isinstance(output, torch.Tensor):
                sizes.append(output.numel() // 2)

        expected = (
            f"{name} must map tensors of shape (n, {n_inputs}) to tensors of shape "
            f"(n, {n_outputs}), in single and in double precision"
        )
        hooks = [part.register_forward_hook(note) for part in self.module.modules()]
        for dtype in (torch.float64, torch.float32):
            rows = torch.zeros(2, n_inputs, dtype=dtype, device="cpu")
            try:
                outputs = self.module.to(dtype)(rows)
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                raise ValueError(f"{expected}; it raised: {error}") from error
            if not isinstance(outputs, torch.Tensor):
                raise TypeError(f"{expected}; it gave {type(outputs).__name__}.")
            if outputs.shape != (2, n_outputs) or outputs.dtype != dtype:
                raise ValueError(
                    f"{expected}; 2 rows of {dtype} gave shape {tuple(outputs.shape)} "
                    f"of {outputs.dtype}."
                )
        for hook in hooks:
            hook.remove()
        return max(sizes)

    def forward(self, inputs):
        """Return the outputs; (n, n_outputs)."""
        return self.intercept + self.module(inputs)


def arrays_of(module):
    """Return the parameters and buffers of a module by name, as NumPy arrays."""
    state = module.state_dict()
    return {name: tensor.cpu().numpy().copy() for name, tensor in state.items()}


def load_arrays(module, arrays):
    """Restore a result of `arrays_of`; return the module."""
    module.load_state_dict(
        {name: torch.tensor(array, device="cpu") for name, array in arrays.items()}
    )
    return module


class NetMPT(IterativeMPT):
    """Base of the models that `train_net` trains.

    `_epochs` of a subclass splits the rows, builds the losses of both parts, and passes
    them to `_net_epochs`.
    """

    _parameter_constraints: ClassVar[dict] = IterativeMPT._parameter_constraints | {
        "early_stopping": ["boolean"],
        "validation_fraction": [OPEN_UNIT_INTERVAL],
    }
    _free_parameters = (
        *IterativeMPT._free_parameters,
        "early_stopping",
        "validation_fraction",
        "hidden_layer_sizes",
    )

    def _split_rows(self, data):
        """Return training rows and validation rows; parts of streams have none."""
        units = Units.from_attributes(data.fitted, data.device)
        X = units.standardise(as_tensor(data.X, data.device)).float()
        is_used = self.early_stopping and data.is_all
        n_held_out = int(self.validation_fraction * len(X)) if is_used else 0
        rows = TrainingRows.from_arrays(X, data.weight)
        return rows.split(n_held_out, data.fitted["_seed"])

    def _net_epochs(self, data, training, module, loss, validation, learning_rate):
        """Return the epochs of `train_net`, by the parameters of the estimator."""
        units = Units.from_attributes(data.fitted, data.device)
        scale = units.mean_log_scale(as_view(data.X, data.device), data.weight)
        if not data.is_all:
            args = training, module, loss.as_part(), learning_rate
            return train_net_on_part(*args, log_scale=scale)
        return train_net(
            training,
            module,
            loss,
            learning_rate,
            validation=validation,
            log_scale=scale,
            tol=self.tol,
            n_iter_no_change=self.n_iter_no_change,
            # fits that go on later need the validation rows again
            joins=validation is not None and not self.warm_start,
        )
