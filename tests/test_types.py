"""What a type checker, and an import, know of the package."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import sklearn_mpt

ROOT = Path(sklearn_mpt.__file__).parents[1]
USER = """
import numpy as np
from sklearn_mpt import MPTProbabilisticPCA

X = np.zeros((5, 3))
model = MPTProbabilisticPCA().fit(X)
reveal_type(model)
reveal_type(MPTProbabilisticPCA().fit(X).score_samples(X).mean())
reveal_type(model.components_)
scores, errors = model.score_samples(X, return_std=True)
reveal_type(errors)
model.score_samples(X).nonsense
"""
CONFIG = """
[mypy]
ignore_missing_imports = true
follow_imports = silent
[mypy-torch.*,scipy.*,sklearn.*,joblib.*,matplotlib.*,transformers.*,tokenizers.*]
follow_imports = skip
[mypy-sklearn_mpt._text.*,sklearn_mpt._deep.*,sklearn_mpt._measure.*]
follow_imports = skip
"""


def python(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    """What mypy says of each line of a user's script."""
    pytest.importorskip("mypy", reason="needs mypy")
    folder = tmp_path_factory.mktemp("types")
    (folder / "user.py").write_text(USER)
    (folder / "mypy.ini").write_text(CONFIG)
    settings = ["--config-file", folder / "mypy.ini", "--cache-dir", folder / "cache"]
    output = python("-m", "mypy", *settings, folder / "user.py").stdout
    pattern = r"user\.py:(\d+): (error|note): (.*)"
    lines = USER.splitlines()
    found = re.findall(pattern, output)
    assert found, output
    return {lines[int(n) - 1]: (kind, text) for n, kind, text in found}


def test_fit_returns_its_class(notes):
    kind, text = notes["reveal_type(model)"]
    assert kind == "note"
    assert text == 'Revealed type is "sklearn_mpt._linear.ppca.MPTProbabilisticPCA"'


@pytest.mark.parametrize("name", ["model.components_", "errors"])
def test_results_are_arrays(notes, name):
    assert "numpy.ndarray" in notes[f"reveal_type({name})"][1]


def test_only_nonsense_is_an_error(notes):
    errors = [line for line, (kind, _) in notes.items() if kind == "error"]
    assert errors == ["model.score_samples(X).nonsense"]
    assert '"nonsense"' in notes[errors[0]][1]


def test_the_maths_loads_neither_sklearn_nor_joblib():
    code = (
        "import sys, sklearn_mpt._factors.sums\n"
        "import sklearn_mpt._fitting.natural_gradient\n"
        "print({'sklearn', 'joblib'} & {name.split('.')[0] for name in sys.modules})"
    )
    assert python("-c", code).stdout.strip() == "set()"
