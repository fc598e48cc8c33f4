"""Times that pages of the documentation show, with the version and the date.

``OMP_NUM_THREADS=1 python benchmarks/bench_pages.py`` measures all of them, in some
minutes, and writes ``doc/_timings.rst``, of which pages include parts. Names of parts
measure only those: ``python benchmarks/bench_pages.py fits``. Run it before a release;
a test fails where a page shows times that are older than a minor release.
"""

import contextlib
import datetime
import io
import re
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from bench_dependency import columns, scaling
from bench_scale import start
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
from threadpoolctl import threadpool_limits

from sklearn_mpt import (
    MPTDeepVAE,
    MPTDependencyNetwork,
    MPTImputer,
    MPTLinearVAE,
    MPTMaskedAutoencoder,
    MPTMixture,
    MPTProbabilisticPCA,
    __version__,
)

PAGE = Path(__file__).parents[1] / "doc" / "_timings.rst"
MODELS = [
    MPTProbabilisticPCA(5),
    MPTLinearVAE(5, noise="per_feature"),
    MPTMixture(3, covariance_type="diag"),
    MPTMixture(3),
    MPTDeepVAE(2),
    MPTImputer(),
    MPTDependencyNetwork(),
    MPTMaskedAutoencoder(),
]


def fits():
    """Print processor seconds of fits to 569 x 30 numbers, a tenth of them missing."""
    X = scale(load_breast_cancer().data)
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a model has not converged
        for model in MODELS:
            began = time.process_time()
            clone(model).set_params(random_state=0).fit(X)
            print(f"{model!r:54}{time.process_time() - began:6.1f} s", flush=True)


PARTS = {"fits": fits, "columns": columns, "scaling": scaling, "start": start}


def measured(name):
    """Return a part of the page: what a program prints, with version and date."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        PARTS[name]()
    print(printed.getvalue(), flush=True)
    lines = [f"    {line}".rstrip() for line in printed.getvalue().splitlines()]
    stamp = f"Measured with version {__version__} on {datetime.date.today()}."
    return "\n".join([f".. begin {name}", "", "::", "", *lines, "", stamp, ""])


def parts_of(text):
    """Return the parts that a page has, by name."""
    found = re.findall(r"(\.\. begin (\w+)\n.*?)\n\.\. end \2\n", text, re.DOTALL)
    return {name: part for part, name in found}


def main(names):
    parts = parts_of(PAGE.read_text("utf-8")) if PAGE.exists() else {}
    for name in names or PARTS:
        parts[name] = measured(name)
    done = [name for name in PARTS if name in parts]
    text = "\n".join(f"{parts[name]}\n.. end {name}\n" for name in done)
    PAGE.write_text(f".. Written by benchmarks/bench_pages.py.\n\n{text}", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
