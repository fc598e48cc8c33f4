import inspect
import subprocess
import sys

import pytest

import sklearn_mpt


def test_imports_load_what_is_needed():
    """And a curve of a function no torch; what torch loads by itself is its own."""
    classes = [name for name in sklearn_mpt.__all__ if name.startswith("MPT")]
    heavy = {"transformers", "matplotlib", "dask", "pandas", "pyarrow", "torch._dynamo"}
    wings = "ensemble", "cluster", "linear_model", "manifold", "impute", "isotonic"
    heavy |= {f"sklearn.{wing}" for wing in wings}
    code = f"""
import sys
from sklearn_mpt import MPTCurveDisplay, mpt_curve
heavy = {{"torch", "transformers", "matplotlib", "dask"}} & set(sys.modules)
assert not heavy, heavy

import numpy as np
mpt_curve(lambda X, mask: -1.0 * mask + 0 * X, np.ones((3, 4)))
assert "torch" not in sys.modules

import torch
before = set(sys.modules)
from sklearn_mpt import {", ".join(classes)}
found = {heavy!r} & (set(sys.modules) - before)
assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sklearn_mpt.__all__)
def test_public_names_resolve_and_have_an_example(name):
    documented = getattr(sklearn_mpt, name).__doc__
    assert ">>> " in documented
    assert name in dir(sklearn_mpt)


def test_unknown_names_raise():
    with pytest.raises(AttributeError, match="no attribute 'MPTMagic'"):
        sklearn_mpt.MPTMagic  # noqa: B018


@pytest.mark.parametrize("name", sklearn_mpt.__all__)
def test_signatures_name_their_types(name):
    """`help` prints ``ArrayLike``, not the union of seven types that it stands for."""
    public = getattr(sklearn_mpt, name)
    members = vars(public).items() if inspect.isclass(public) else ()
    functions = [m for key, m in members if inspect.isfunction(m) and key[0] != "_"]
    for function in (public, *functions):
        if callable(function):
            assert "numpy._typing" not in str(inspect.signature(function))


def is_documented(member):
    function = getattr(member, "fget", getattr(member, "__func__", member))
    return not inspect.isfunction(function) or bool(inspect.getdoc(function))


@pytest.mark.parametrize("name", sklearn_mpt.__all__)
def test_help_says_something_of_every_member(name):
    public = getattr(sklearn_mpt, name)
    bases = public.__mro__ if inspect.isclass(public) else ()
    own = [base for base in bases if base.__module__.startswith("sklearn_mpt.")]
    members = {k: m for base in own for k, m in vars(base).items()}
    silent = [k for k, m in members.items() if k[0] != "_" and not is_documented(m)]
    assert not silent
