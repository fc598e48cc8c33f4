"""Operations, copies and synchronisations that a GPU would launch and wait for.

A GPU takes some microseconds to launch an operation, and at each number that is read
back the CPU waits until the GPU has caught up. This counts them for an epoch of
training and for a call of ``score_samples`` on 20 rows. It needs no GPU, but torch 2.10
or newer for the device of ``tests/second_device.py``. With ``--where`` it prints the
lines that read numbers back most often in an epoch::

    OMP_NUM_THREADS=1 python benchmarks/bench_devices.py            # a minute
    OMP_NUM_THREADS=1 python benchmarks/bench_devices.py --where
"""

import argparse
import collections
import os
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from second_device import NAME, second_device  # before sklearn_mpt
from sklearn.datasets import load_digits, load_iris

import sklearn_mpt
from sklearn_mpt import (
    MPTDeepVAE,
    MPTItemResponse,
    MPTLinearVAE,
    MPTMaskedAutoencoder,
    MPTMixture,
    MPTProbabilisticPCA,
)

warnings.simplefilter("ignore")
PACKAGE = str(Path(sklearn_mpt.__file__).parent)
KINDS = ("operations", "copies", "synchronisations")
MOST = 6  # lines that are printed for a model


def models():
    """Yield names, estimators and rows."""
    iris, short = load_iris().data, {"random_state": 0, "device": NAME}
    gaps = iris.copy()
    gaps[::7, 1] = np.nan
    binary = (load_digits().data[:200, 10:30] > 8).astype(float)
    ordered = np.round(iris[:, :3]) - np.round(iris[:, :3]).min(axis=0)
    eight, three = short | {"max_iter": 8}, short | {"max_iter": 3}
    yield "PPCA", MPTProbabilisticPCA(**eight), iris
    yield "PPCA, gaps", MPTProbabilisticPCA(**eight), gaps
    yield "factor analysis", MPTLinearVAE(noise="per_feature", **eight), gaps
    yield "binary, K = 2", MPTLinearVAE(likelihood="bernoulli", **eight), binary
    yield "binary, K = 4", MPTLinearVAE(4, likelihood="bernoulli", **three), binary
    yield "ordinal", MPTLinearVAE(1, likelihood="ordinal", **eight), ordered
    yield "mixture", MPTMixture(2, **eight), gaps
    yield "items", MPTItemResponse(**eight), binary
    yield "deep", MPTDeepVAE(**three), gaps
    yield "deep, binary", MPTDeepVAE(likelihood="bernoulli", **three), binary
    yield "masked autoencoder", MPTMaskedAutoencoder(**three), gaps


class Places(collections.Counter):
    """Counts as `second_device` does, and where numbers are read back."""

    def __init__(self):
        super().__init__()
        self.lines = collections.Counter()

    def __setitem__(self, kind, count):
        if kind == "synchronisations" and count > self[kind]:
            frames = traceback.extract_stack()
            ours = [f for f in frames if f.filename.startswith(PACKAGE)]
            if ours:
                place = (
                    f"{Path(ours[-1].filename).relative_to(PACKAGE)}:{ours[-1].lineno}"
                )
                self.lines[f"{place}  {ours[-1].line}"] += 1
        super().__setitem__(kind, count)


def measure(model, X):
    """Return counts for an epoch and for a score, and the lines of an epoch."""
    places = Places()
    with second_device(places) as counts:
        model.fit(X)
        epoch = {kind: counts[kind] / model.n_iter_ for kind in KINDS}
        lines = {line: n / model.n_iter_ for line, n in places.lines.most_common(MOST)}
        counts.clear()
        model.score_samples(X[:20])
        return epoch, {kind: counts[kind] for kind in KINDS}, lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--where", action="store_true", help="print lines of the code")
    where = parser.parse_args().where
    print(f"{'':20}{'an epoch':>51}{'a score of 20 rows':>51}")
    print(f"{'':20}" + 2 * "".join(f"{kind:>17}" for kind in KINDS))
    for name, model, X in models():
        *parts, lines = measure(model, X)
        numbers = "".join(f"{part[kind]:17.0f}" for part in parts for kind in KINDS)
        print(f"{name:20}{numbers}", flush=True)
        for line, n in lines.items() if where else ():
            print(f"    {n:6.1f}  {line}")
    sys.stdout.flush()
    os._exit(0)  # threads of the device may not end by themselves


if __name__ == "__main__":
    main()
