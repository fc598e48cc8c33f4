"""A device that computes on the CPU, to test code for several devices without a GPU.

As on a GPU, a tensor of the CPU beside one of this device is an error; indices, and
tensors of one number without dimensions, may come from the CPU. The device is a backend
in Python, which PyTorch has experimentally from 2.10 on.

Importing this module registers the device, and replaces inference mode, which does not
take tensors of subclasses. It must be imported before the first gradient is taken and
before `sklearn_mpt`. All that cannot be taken back, so it belongs into a process of its
own: see ``device_cases.py``.
"""

import contextlib
from collections import Counter
from unittest import mock

import pytest
import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "second"
CPU = torch.device("cpu")
TAKES_BOTH = {  # copies, and what takes indices from the CPU
    "aten::_to_copy",
    "aten::copy_",
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
}
READS_BACK = {  # the result, or its shape, is a number that the CPU waits for
    "aten::_local_scalar_dense",
    "aten::_unique2",
    "aten::equal",
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_consecutive",
    "aten::unique_dim",
}


class SecondTensor(torch.Tensor):
    """A tensor of the second device; `on_cpu` holds its numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, on_cpu):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            on_cpu.size(),
            strides=on_cpu.stride(),
            storage_offset=on_cpu.storage_offset(),
            dtype=on_cpu.dtype,
            layout=on_cpu.layout,
            device=torch.device(NAME, 0),
        )
        tensor.on_cpu = on_cpu
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        raise RuntimeError(f"{operation} outside of `second_device`")

    def __repr__(self):
        return f"SecondTensor({self.on_cpu})"

    # Methods that read or make storage without calling an operation, or past a mode.

    def as_subclass(self, cls):
        return self

    def tolist(self):
        return self.cpu().tolist()

    def numpy(self, *, force=False):
        if not force:
            raise TypeError("NumPy does not read tensors of this device")
        return self.detach().cpu().numpy()

    def new_tensor(self, data, *, dtype=None, device=None):
        device = self.device if device is None else device
        return torch.tensor(data, dtype=dtype or self.dtype).to(device)

    @property
    def data(self):
        return SecondTensor(self.on_cpu.detach())

    @data.setter
    def data(self, value):
        torch.Tensor.data.__set__(self, value)
        self.on_cpu = value.on_cpu


class Dispatch(TorchDispatchMode):
    """Runs operations of both devices, counts those of the second, refuses a mix."""

    def __init__(self, counts):
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), operation._schema.name
        second, first = [], []
        cpu_args = [_on_cpu(value, second, first) for value in args]
        cpu_kwargs = {k: _on_cpu(value, second, first) for k, value in kwargs.items()}
        if second and name not in TAKES_BOTH and any(leaf.ndim for leaf in first):
            shapes = ", ".join(str(tuple(leaf.shape)) for leaf in first)
            raise RuntimeError(f"{name} takes two devices; shapes on the CPU: {shapes}")
        device = kwargs.get("device")
        if name == "aten::copy_":
            device = args[0].device
        if name == "aten::_local_scalar_dense":
            device = CPU
        is_second = bool(second) if device is None else _is_second(device)
        if second or is_second:
            self._count(name, second, first, is_second)
        if kwargs.get("device") is not None:
            cpu_kwargs["device"] = CPU
        result = operation(*cpu_args, **cpu_kwargs)
        if not is_second:
            return result
        return _on_second(result, {id(tensor.on_cpu): tensor for tensor in second})

    def _count(self, name, second, first, is_second):
        self.counts["operations"] += 1
        is_copy = name in ("aten::_to_copy", "aten::copy_")
        self.counts["copies"] += is_copy and (bool(first) or not is_second)
        masks = name == "aten::index" and any(t.dtype == torch.bool for t in second[1:])
        self.counts["synchronisations"] += (
            name in READS_BACK or masks or (is_copy and not is_second)
        )


def _is_second(device):
    return device is not None and torch.device(device).type == NAME


def _on_cpu(value, second, first):
    """Return an argument on the CPU; list its tensors of the second device and first.

    `torch.utils._pytree` would do the same in ten times the time of an operation.
    """
    if isinstance(value, SecondTensor):
        second.append(value)
        return value.on_cpu
    if isinstance(value, torch.Tensor):
        first.append(value)
    elif isinstance(value, list | tuple):
        return [_on_cpu(each, second, first) for each in value]
    return value


def _on_second(result, wrappers):
    if isinstance(result, torch.Tensor):
        known = wrappers.get(id(result))
        return SecondTensor(result) if known is None else known
    if isinstance(result, list | tuple):
        return type(result)(_on_second(each, wrappers) for each in result)
    return result


class Generator(torch.Generator):
    """Generators of the second device are those of the CPU."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, CPU if _is_second(device) else device)


def _from_data(make):
    """Let a function that makes a tensor of data make one of the second device."""

    def with_device(data, *args, device=None, **kwargs):
        if not _is_second(device):
            return make(data, *args, device=device, **kwargs)
        return make(_on_cpu(data, [], []), *args, **kwargs).to(device)

    return with_device


def _register():
    """Register the device under its name, for the rest of the life of the process."""
    module = backend_registration._DummyBackendModule()
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.get_rng_state = lambda device: torch.get_rng_state()
    module.set_rng_state = lambda state, device: torch.set_rng_state(state)
    register = backend_registration._setup_privateuseone_for_python_backend
    register(NAME, backend_module=module)
    torch.inference_mode = lambda *args, **kwargs: torch.no_grad()


@contextlib.contextmanager
def second_device(counts=None):
    """Make ``device="second"`` known; yield counts of what happens on it.

    They are "operations", "copies" between devices, and "synchronisations", where the
    CPU waits for a number. They are added to `counts`, if it is given.
    """
    replaced = {
        "Generator": Generator,
        "as_tensor": _from_data(torch.as_tensor),
        "tensor": _from_data(torch.tensor),
    }
    counts = Counter() if counts is None else counts
    with mock.patch.multiple(torch, **replaced), Dispatch(counts):
        yield counts


def test_mixes_and_read_backs():
    """Tensors of two devices are refused, and read backs are counted."""
    with second_device() as counts:
        here, there = torch.arange(3.0), torch.arange(3.0, device=NAME)
        assert there.device.type == NAME
        assert (there + torch.tensor(1.0)).sum() == 6
        for one, other in ((here, there), (there, here)):
            with pytest.raises(RuntimeError, match="two devices"):
                one + other
        assert (there[here.long()] + here.to(NAME)).tolist() == [0, 2, 4]
        counts.clear()
        there.requires_grad_()
        (there**2).sum().backward()
        assert counts["synchronisations"] == counts["copies"] == 0
        assert counts["operations"] > 0
        assert there.grad.cpu().tolist() == [0, 2, 4]
        assert counts["synchronisations"] == counts["copies"] == 1


_register()
