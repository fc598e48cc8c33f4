"""Everything gives the numbers of the CPU on another device, without tensors astray.

The device is that of ``second_device.py``, or a GPU, in a process of its own.
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
TABLES = ["ppca", "ppca, gaps", "ppca, rate", "factors", "binary", "mixture"]
TABLES += ["binary, rate", "mixture, rate", "mixture, kinds", "mixture, own"]
TABLES += ["items", "module", "imputer", "imputer, chosen", "errors", "errors, binary"]
NETS = ["deep, kinds", "deep, own", "masked", "masked, own"]
TEXTS = [
    "texts, mpt",
    "texts, pll",
    "texts, chain",
    "texts, ordered",
    "texts, training",
]
LONG = ["binary, 4", "ordinal", "kinds", "deep", "deep, binary", "deep, rate"]
LONG += ["masked, rate"]


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
    ("names", "tolerance"),
    [
        pytest.param(TABLES, 1e-9, id="tables"),
        pytest.param(NETS, 1e-3, id="nets"),  # in single precision, like texts
        pytest.param(TEXTS, 1e-3, id="texts"),
        pytest.param(LONG, 1e-3, id="long", marks=pytest.mark.slow),
    ],
)
def test_another_device_gives_the_numbers_of_the_cpu(names, tolerance):
    for result in run("second", names):
        assert result["counts"]["operations"] > 100, result  # it was used
        assert max(result["differences"].values()) <= tolerance, result


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("names", "tolerance"),
    [
        pytest.param(TABLES, 1e-6, id="tables"),
        pytest.param(NETS + TEXTS + LONG, 1e-3, id="nets, texts, long"),
    ],
)
def test_a_gpu_gives_the_numbers_of_the_cpu(names, tolerance):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    for result in run("cuda", names):
        assert max(result["differences"].values()) <= tolerance, result


@needs_second_device
def test_tensors_of_two_devices_are_refused_and_read_backs_are_counted():
    program = """
import torch
from second_device import second_device

with second_device() as counts:
    here, there = torch.arange(3.0), torch.arange(3.0, device="second")
    assert there.device.type == "second" and (there + torch.tensor(1.0)).sum() == 6
    for one, other in ((here, there), (there, here)):
        try:
            one + other
        except RuntimeError as error:
            assert "two devices" in str(error)
        else:
            raise AssertionError
    assert (there[here.long()] + here.to("second")).tolist() == [0, 2, 4]
    counts.clear()
    there.requires_grad_()
    (there**2).sum().backward()
    assert counts["synchronisations"] == counts["copies"] == 0 < counts["operations"]
    assert there.grad.cpu().tolist() == [0, 2, 4]
    assert counts["synchronisations"] == counts["copies"] == 1
print("done")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr
