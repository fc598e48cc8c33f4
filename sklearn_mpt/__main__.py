"""``python -m sklearn_mpt`` prints what a bug report should say."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from sklearn_mpt._checks import check_device
from sklearn_mpt._version import __version__

DEPENDENCIES = [
    "numpy",
    "scipy",
    "scikit-learn",
    "joblib",
    "narwhals",
    "torch",
    "threadpoolctl",
    "matplotlib",
    "pandas",
    "polars",
    "rich",
    "transformers",
    "tokenizers",
    "accelerate",
    "dask",
    "distributed",
    "ray",
    "pyspark",
    "pyarrow",
]


def show_versions():
    """Print versions, threads and device, for bug reports."""
    system = {
        "python": sys.version.replace("\n", " "),
        "executable": sys.executable,
        "machine": platform.platform(),
    }
    _print("System", system)
    _print("Python dependencies", {"sklearn_mpt": __version__} | installed())
    _print("PyTorch", torch_state())


def installed():
    """Map dependencies to their versions, None where they are not installed."""
    return {name: _version(name) for name in DEPENDENCIES}


def torch_state():
    """Say which devices PyTorch finds, and how it uses the processor."""
    import torch

    indices = range(torch.cuda.device_count())
    return {
        "device='auto'": check_device("auto"),
        "CUDA": torch.version.cuda,
        "GPUs": [torch.cuda.get_device_name(index) for index in indices],
        "threads": torch.get_num_threads(),
    }


def _version(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _print(title, entries):
    print(f"\n{title}:")
    width = max(map(len, entries))
    for name, value in entries.items():
        print(f"{name:>{width + 2}}: {value}")


if __name__ == "__main__":
    show_versions()
