"""Everything gives the numbers of the CPU on another device, without tensors astray.

The device is that of ``second_device.py``, or a GPU, in a process of its own, which
tests the former device itself first.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import backend_registration

TESTS = Path(__file__).parent
needs_second_device = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason=f"torch {torch.__version__} has no backends in Python; 2.10 has them",
)
TABLES = ["ppca, gaps", "binary", "module"]
NETS = ["deep, own"]
LONG_TABLES = ["ppca", "ppca, rate", "factors", "binary, rate", "mixture, rate"]
LONG_TABLES += ["mixture, kinds", "mixture, own", "intervals", "errors"]
LONG_TABLES += ["errors, binary", "mixture", "items", "imputer"]
LONG = ["binary, 4", "ordinal", "kinds", "deep", "deep, binary", "deep, rate"]
LONG += ["deep, kinds", "masked", "masked, rate", "masked, own", "texts, pll"]
LONG += ["texts, training", "texts, mpt", "texts, chain", "texts, ordered"]
PRECISE = TABLES + LONG_TABLES  # in double precision


def run(device, names):
    """Return what ``device_cases.py`` prints, read as JSON, without an error."""
    command = [sys.executable, "device_cases.py", device, *names]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True)
    *lines, last = done.stdout.splitlines() or [""]
    assert last == "done", done.stderr
    results = [json.loads(line) for line in lines]
    assert [result["name"] for result in results] == names
    errors = [result["error"] for result in results if "error" in result]
    assert not errors, "\n".join(errors)
    return results


@needs_second_device
@pytest.mark.parametrize(
    "names",
    [
        # one process: to start one takes as long as many cases
        pytest.param(TABLES + NETS, id="short"),
        pytest.param(LONG_TABLES + LONG, id="long", marks=pytest.mark.slow),
    ],
)
def test_another_device_gives_the_numbers_of_the_cpu(names):
    for result in run("second", names):
        assert result["counts"]["operations"] > 100, result  # it was used
        tolerance = 1e-9 if result["name"] in PRECISE else 1e-3
        assert max(result["differences"].values()) <= tolerance, result


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("names", "tolerance"),
    [
        pytest.param(PRECISE, 1e-6, id="tables"),
        pytest.param(NETS + LONG, 1e-3, id="nets, texts, long"),
    ],
)
def test_a_gpu_gives_the_numbers_of_the_cpu(names, tolerance):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    for result in run("cuda", names):
        assert max(result["differences"].values()) <= tolerance, result
