"""``python -m sklearn_mpt`` prints what a bug report should say."""

from importlib.metadata import distributions

import sklearn
import torch

from sklearn_mpt._checks import check_device
from sklearn_mpt._version import __version__

# beside those that scikit-learn prints
DEPENDENCIES = [
    "narwhals",
    "torch",
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
    sklearn.show_versions()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    entries = {
        "sklearn_mpt": __version__,
        **{d.name: d.version for d in distributions() if d.name in DEPENDENCIES},
        "device='auto'": check_device("auto"),
        "CUDA": torch.version.cuda,
        "GPUs": gpus,
        "threads": torch.get_num_threads(),
    }
    print("\nsklearn_mpt:")
    for name, value in entries.items():
        print(f"{name:>15}: {value}")


if __name__ == "__main__":
    show_versions()
