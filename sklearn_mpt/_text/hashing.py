"""A hash of everything that the predictions of a model depend on."""

import hashlib
import sys
from collections.abc import Mapping
from enum import Enum
from functools import partial
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)

import numpy as np
import torch

HASH_BYTES = 16  # of digests: those of two texts are equal with probability 2^-128
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
CONSTANT = (*PLAIN, Enum, tuple, frozenset, np.ndarray, torch.Tensor, type)
CONSTANT += (FunctionType, BuiltinFunctionType, MethodType, partial)
# Where a model was read from does not matter.
ORIGINS = {"_name_or_path", "name_or_path", "_commit_hash"}
UNREAD = {"__doc__", "__module__", "__firstlineno__"}  # of a class
TENSORS = {"_parameters", "_buffers", "_modules"}  # of a module; hashed on their own


def hash_of(*values: object) -> bytes:
    """Hash values, among them models, so that equal hashes mean equal predictions.

    A module is hashed by its classes, its attributes (such as a number of heads, an
    activation, or the scale of an adapter), all its parameters and buffers, whether
    they are saved or not, and its hooks. Functions and classes of a package that has a
    version are hashed by name and version, others by their code and what it refers to.
    The hash is the same in every process. Equal models may have different hashes, for
    instance if their code was compiled by other versions of Python.
    """
    hasher = _Hasher()
    hasher.add(values)
    return hasher.digest.digest()


class _Hasher:
    def __init__(self):
        self.digest = hashlib.blake2b(digest_size=HASH_BYTES)
        self.seen = {}  # id -> index and object, which keeps the id from being reused

    def write(self, *parts):
        for part in parts:
            data = part if isinstance(part, bytes) else str(part).encode()
            self.digest.update(b"%d:" % len(data) + data)

    def add(self, value):
        if isinstance(value, PLAIN):
            return self.write(type(value).__name__, repr(value))
        if id(value) in self.seen:
            return self.write("again", self.seen[id(value)][0])
        self.seen[id(value)] = len(self.seen), value
        self.write(_name_of(type(value)))
        return self._describe(value)

    def _describe(self, value):
        kinds = (
            (Enum, lambda value: self.write(value.name)),
            (torch.Tensor, self._tensor),
            (np.ndarray, self._array),
            (Mapping, self._mapping),
            ((list, tuple), self._items),
            ((set, frozenset), self._set),
            (FunctionType, self._function),
            (MethodType, lambda value: self._items((value.__func__, value.__self__))),
            (partial, lambda v: self._items((v.func, v.args, v.keywords))),
            (CodeType, self._code),
            (type, self._class),
            ((BuiltinFunctionType, ModuleType), lambda v: self.write(v.__name__)),
            (torch.nn.Module, self._module),
        )
        for kind, describe in kinds:
            if isinstance(value, kind):
                return describe(value)
        return self._object(value)

    def _tensor(self, tensor):
        self.write(tensor.dtype, tuple(tensor.shape))
        if tensor.is_meta:
            return
        bits = tensor.detach().cpu().contiguous().reshape(-1)
        if len(bits):
            self.digest.update(bits.view(torch.uint8).numpy().data)

    def _array(self, array):
        self.write(array.dtype, array.shape)
        if array.dtype.hasobject:
            self._items(array.ravel().tolist())
        else:
            self.digest.update(np.ascontiguousarray(array).tobytes())

    def _mapping(self, mapping):
        items = {k: v for k, v in mapping.items() if k not in ORIGINS}
        for key in sorted(items, key=repr):
            self.add(key)
            self.add(items[key])

    def _items(self, items):
        self.write(len(items))
        for item in items:
            self.add(item)

    def _set(self, values):
        self.write(*sorted(hash_of(value) for value in values))

    def _object(self, value):
        kind = type(value)
        self.add(kind)
        is_builtin = kind.__module__.partition(".")[0] in sys.stdlib_module_names
        if hasattr(value, "to_dict"):  # configurations of transformers
            self._mapping(value.to_dict())
        elif hasattr(value, "__dict__") and (
            not is_builtin or isinstance(value, SimpleNamespace)
        ):
            self._mapping(vars(value))
        elif " at 0x" not in repr(value):  # an address, which differs each time
            self.write(repr(value))

    def _module(self, module):
        self.add(type(module))
        state = {k: v for k, v in vars(module).items() if k not in TENSORS}
        hooks = {name: state.pop(name) for name in [*state] if name.endswith("_hooks")}
        self._mapping(state)
        for name, functions in hooks.items():  # whose keys count all hooks ever made
            self.write(name)
            for hook in functions.values():
                self._function_of_hook(hook)
        for name in sorted(TENSORS):
            self._mapping(vars(module)[name])

    def _function_of_hook(self, hook):
        """Hash a hook by its code and by constants: a hook may count its calls."""
        if isinstance(hook, FunctionType):
            self._function(hook, CONSTANT)
        else:
            self.add(type(hook))

    def _function(self, function, kinds=object):
        self.write(function.__module__, function.__qualname__)
        if _version_of(function):
            return self.write(_version_of(function))
        code = function.__code__
        self.add(code)
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        names = sorted(_names_in(code) & function.__globals__.keys())
        for value in (*cells, *(function.__globals__[name] for name in names)):
            if isinstance(value, kinds):
                self.add(value)
        return None

    def _code(self, code):
        self.write(code.co_code, code.co_names, code.co_varnames)
        self._items(code.co_consts)

    def _class(self, kind):
        self.write(_name_of(kind))
        if _version_of(kind):
            return self.write(_version_of(kind))
        for base in kind.__mro__[1:]:
            self.add(base)
        members = {
            name: getattr(member, "__func__", getattr(member, "fget", member))
            for name, member in vars(kind).items()
        }
        return self._mapping(
            {
                name: member
                for name, member in members.items()
                if isinstance(member, CONSTANT) and name not in UNREAD
            }
        )


def _name_of(kind):
    return f"{kind.__module__}.{kind.__qualname__}"


def _names_in(code):
    """Return the names that a code object and those within it refer to."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return {*code.co_names}.union(*map(_names_in, inner))


def _version_of(value):
    """Return the version of the package of a function or class, None if it has none."""
    package = (value.__module__ or "").partition(".")[0]
    if package in sys.stdlib_module_names:
        return sys.version
    return getattr(sys.modules.get(package), "__version__", None)
