"""What a type checker knows of the package."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import get_overloads

import pytest

import sklearn_mpt

ROOT = Path(sklearn_mpt.__file__).parents[1]
USER = """
import numpy as np
from sklearn_mpt import MPTProbabilisticPCA, lml_samples, order_log_prob

X = np.zeros((5, 3))
model = MPTProbabilisticPCA().fit(X)
reveal_type(model)
reveal_type(MPTProbabilisticPCA().fit(X).score_samples(X).mean())
reveal_type(model.components_)
scores, errors = model.score_samples(X, return_std=True)
reveal_type(errors)
reveal_type(lml_samples(model, X).mean())
along, along_errors = order_log_prob(model, X, "left_to_right", return_std=True)
reveal_type(along_errors)
model.score_samples(X).nonsense
"""
CONFIG = """
[mypy]
ignore_missing_imports = true
follow_imports = silent
[mypy-torch.*,scipy.*,sklearn.*,joblib.*,matplotlib.*,narwhals.*,pandas.*]
follow_imports = skip
[mypy-sklearn_mpt._autoregressive.*,sklearn_mpt._deep.*,sklearn_mpt._optim.*]
follow_imports = skip
[mypy-sklearn_mpt._imputation.*,sklearn_mpt._latent.*]
follow_imports = skip
[mypy-sklearn_mpt._items.*,sklearn_mpt._likelihoods.*]
follow_imports = skip
[mypy-sklearn_mpt._mixture.*,sklearn_mpt._tables.*,sklearn_mpt._text.*]
follow_imports = skip
"""


@pytest.mark.slow
def test_a_type_checker_knows_what_fits_and_scores_return(tmp_path):
    pytest.importorskip("mypy", reason="needs mypy")
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    settings = ["--config-file", tmp_path / "mypy.ini", "--cache-dir", tmp_path / "c"]
    command = [sys.executable, "-m", "mypy", *settings, tmp_path / "user.py"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    lines = USER.splitlines()
    found = re.findall(r"user\.py:(\d+): (error|note): (.*)", output)
    notes = {lines[int(n) - 1]: (kind, text) for n, kind, text in found}
    fitted = 'Revealed type is "sklearn_mpt._linear.ppca.MPTProbabilisticPCA"'
    assert notes["reveal_type(model)"] == ("note", fitted), output
    for name in ("model.components_", "errors", "along_errors"):
        assert "numpy.ndarray" in notes[f"reveal_type({name})"][1]
    errors = [line for line, (kind, _) in notes.items() if kind == "error"]
    assert errors == ["model.score_samples(X).nonsense"]
    assert '"nonsense"' in notes[errors[0]][1]


def functions_with_errors():
    """Public functions and methods that return standard errors if asked to."""
    for name in sklearn_mpt.__all__:
        public = getattr(sklearn_mpt, name)
        members = inspect.getmembers(public) if inspect.isclass(public) else []
        for function in (public, *(f for n, f in members if n[0] != "_")):
            is_function = inspect.isroutine(function)
            if is_function and "return_std" in inspect.signature(function).parameters:
                yield function


def test_functions_that_return_errors_if_asked_have_overloads():
    """Without, the result may be a tuple for all that a type checker knows."""
    functions = set(functions_with_errors())
    assert len(functions) > 6
    for function in functions:
        asked = {
            str(inspect.signature(o).parameters["return_std"].annotation): str(
                inspect.signature(o).return_annotation
            )
            for o in get_overloads(function)
        }
        assert set(asked) == {"Literal[False]", "Literal[True]"}, function
        assert "tuple" in asked["Literal[True]"]
        assert "tuple" not in asked["Literal[False]"]


def test_errors_can_be_asked_for_by_position_where_they_are_given_so():
    for function in functions_with_errors():
        kind = inspect.signature(function).parameters["return_std"].kind
        asked = [
            inspect.signature(overload).parameters["return_std"]
            for overload in get_overloads(function)
        ]
        kinds = {p.kind for p in asked if str(p.annotation) == "Literal[True]"}
        assert kind in kinds, function
