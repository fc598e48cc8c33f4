"""How processor time grows with rows N, columns D and components K, beside peers.

Each number is the exponent of a power law, fitted to processor time at three sizes that
double, with the seconds at the largest size in brackets. Mixtures by EM take ten steps,
other fits end by their own rules. "wide" are fits to wide tables of five factors, in
pairs with those of scikit-learn. "big" are streams of a million rows by `partial_fit`
with the memory that they add, items of 10,000 people, and curves of 1,000 columns; all
sizes are run, none is extrapolated. Side by side in one run::

    OMP_NUM_THREADS=1 python benchmarks/bench_growth.py             # all
    OMP_NUM_THREADS=1 python benchmarks/bench_growth.py wide big    # parts
"""

import argparse
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from measuring import processor_seconds
from sklearn.decomposition import PCA, FactorAnalysis, IncrementalPCA
from sklearn.mixture import GaussianMixture
from sklearn.neural_network import MLPRegressor

from sklearn_mpt import (
    MPTDeepVAE,
    MPTItemResponse,
    MPTLinearVAE,
    MPTMaskedAutoencoder,
    MPTMixture,
    MPTProbabilisticPCA,
    mpt_curve,
)

warnings.simplefilter("ignore")

N_REPEATS = 2
# Sizes N, D and K at which each grid starts; the other two stay there.
N, D, K = 1000, 20, 3
DOUBLINGS = np.array([1, 2, 4])
WIDE = ((1000, 100), (1000, 1000), (300, 3000))  # rows and columns


def rows(n, d, gaps=0.0):
    """Rows of K groups, 2 standard deviations apart."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) + 2 * rng.integers(K, size=(n, 1))
    return np.where(rng.random(X.shape) < gaps, np.nan, X)


def seconds(function):
    """Return the processor time of the fastest of some calls."""
    return min(processor_seconds(function)[0] for _ in range(N_REPEATS))


TEN_STEPS = {"max_iter": 10, "tol": 0.0}
SHARED = {"random_state": 0, "reg_covar": 1e-3}


def fits():
    """Names, share of missing entries, estimators and their parameters."""
    by_masks, exact = {"random_state": 0}, {"objective": "lml", "random_state": 0}
    yield "PCA", 0.0, PCA, {}
    yield "PPCA, closed form", 0.0, MPTProbabilisticPCA, exact
    yield "PPCA by masks", 0.0, MPTProbabilisticPCA, by_masks
    yield "PPCA by masks, gaps", 0.2, MPTProbabilisticPCA, by_masks
    yield "FactorAnalysis", 0.0, FactorAnalysis, {}
    factors = exact | {"noise": "per_feature"}
    yield "factor analysis", 0.0, MPTLinearVAE, factors
    yield "factor analysis, gaps", 0.2, MPTLinearVAE, factors
    for kind in ("full", "diag"):
        masked = SHARED | {"covariance_type": kind}
        peer = masked | TEN_STEPS
        steps = peer | {"objective": "lml"}
        yield f"GaussianMixture, {kind}", 0.0, GaussianMixture, peer
        yield f"mixture by EM, {kind}", 0.0, MPTMixture, steps
        yield f"mixture by EM, {kind}, gaps", 0.2, MPTMixture, steps
        yield f"mixture by masks, {kind}", 0.0, MPTMixture, masked


def growth(model, gaps, sizes):
    """Return the exponent, and the seconds at the largest size, as a cell of the table.

    sizes : triples of N, D and K, of which one doubles.
    """
    times = []
    for n, d, k in sizes:
        X = rows(n, d, gaps)
        times.append(seconds(partial(model(k).fit, X)))
    exponent = np.polyfit(np.log(DOUBLINGS), np.log(times), 1)[0]
    return f"{exponent:8.2f} ({times[-1]:6.3f})"


def wide_rows(n, d, k=5):
    """Rows of k factors, with noise of each feature."""
    rng = np.random.default_rng(0)
    signal = rng.normal(size=(n, k)) @ rng.normal(size=(k, d))
    return signal + rng.normal(size=(n, d)) * rng.uniform(0.5, 2, d)


def report_wide_tables(k=5):
    """Print processor seconds on wide tables, as ratios to FactorAnalysis."""
    factors = {"noise": "per_feature", "random_state": 0}
    print(f"{'':16s}{'FactorAnalysis':>18s}{'objective lml':>18s}{'by masks':>18s}")
    for n, d in WIDE:
        X = wide_rows(n, d, k)
        models = (
            FactorAnalysis(k),
            MPTLinearVAE(k, objective="lml", **factors),
            MPTLinearVAE(k, **factors),
        )
        times = [seconds(partial(model.fit, X)) for model in models]
        cells = [f"{t:6.2f} ({t / times[0]:5.1f})" for t in times]
        print(f"{n:6,} x {d:5,}  {''.join(f'{c:>18s}' for c in cells)}", flush=True)


ROWS_OF_PART = 10_000
STREAM_SIZES = np.array([62_500, 250_000, 1_000_000])


def streams():
    """Names of estimators with `partial_fit`, makers, and whether rows are 0 and 1."""
    yield "IncrementalPCA", lambda: IncrementalPCA(K), False
    yield "PPCA", lambda: MPTProbabilisticPCA(K, random_state=0), False
    factors = {"noise": "per_feature", "random_state": 0}
    yield "factor analysis", lambda: MPTLinearVAE(K, **factors), False
    binary = {"likelihood": "bernoulli", "random_state": 0}
    yield "binary linear model", lambda: MPTLinearVAE(1, **binary), True
    yield "items", lambda: MPTItemResponse(random_state=0), True
    yield "MLPRegressor", OwnTarget, False
    yield "deep model", lambda: MPTDeepVAE(2, random_state=0), False
    yield "masked autoencoder", lambda: MPTMaskedAutoencoder(random_state=0), False


class OwnTarget:
    """A net of scikit-learn that predicts its inputs."""

    def __init__(self):
        self.net = MLPRegressor(hidden_layer_sizes=(128, 128), random_state=0)

    def partial_fit(self, X):
        self.net.partial_fit(X, X)


def parts_of_stream(n_rows, is_binary):
    """Yield parts of rows of D columns and K factors, each from a seed of its own."""
    loadings = np.random.default_rng(0).normal(size=(K, D))
    for first in range(0, n_rows, ROWS_OF_PART):
        rng = np.random.default_rng([1, first])
        size = min(ROWS_OF_PART, n_rows - first)
        X = rng.normal(size=(size, K)) @ loadings + rng.normal(size=(size, D))
        yield (X > 0).astype(float) if is_binary else X


def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) / 256


def report_streams():
    """Print exponents in the number of rows, and memory added after the first parts."""
    print(f"{'partial_fit, rows x 20':28s}{'exponent':>10s}{'s':>8s}{'MiB added':>11s}")
    for name, make, is_binary in streams():
        times = []
        for n_rows in STREAM_SIZES:
            model, spent, memory = make(), 0.0, []
            for X in parts_of_stream(n_rows, is_binary):
                spent += processor_seconds(model.partial_fit, X)[0]
                memory.append(resident_mib())
            times.append(spent)
        added = max(memory[5:]) - max(memory[:5])
        exponent = np.polyfit(np.log(STREAM_SIZES), np.log(times), 1)[0]
        print(f"{name:28s}{exponent:10.2f}{times[-1]:8.1f}{added:11.1f}", flush=True)


def report_items():
    """Print processor seconds of fits to 100 items, by number of people."""
    sizes, times = np.array([2500, 5000, 10_000]), []
    rng = np.random.default_rng(0)
    z, slopes = rng.normal(size=(sizes[-1], 1)), rng.uniform(0.5, 2, 100)
    noise = rng.logistic(size=(sizes[-1], 100))
    answers = (z * slopes + rng.normal(size=100) + noise > 0).astype(float)
    for n_rows in sizes:
        model = MPTItemResponse(random_state=0)
        times.append(seconds(partial(model.fit, answers[:n_rows])))
    exponent = np.polyfit(np.log(sizes), np.log(times), 1)[0]
    print(f"{'items, 10,000 x 100':28s}{exponent:10.2f}{times[-1]:8.1f}", flush=True)


def report_curves():
    """Print processor seconds of curves of 1,000 rows, by number of columns."""
    sizes = np.array([250, 500, 1000])
    factors = {"noise": "per_feature", "objective": "lml", "random_state": 0}
    models = {
        "FactorAnalysis.score": FactorAnalysis(5),
        "curve of PPCA": MPTProbabilisticPCA(5, objective="lml"),
        "curve of factor analysis": MPTLinearVAE(5, **factors),
    }
    for name, model in models.items():
        times = []
        for n_features in sizes:
            X = wide_rows(1000, n_features)
            model.fit(X)
            if name.startswith("curve"):
                times.append(seconds(partial(mpt_curve, model, X, random_state=0)))
            else:
                times.append(seconds(partial(model.score, X)))
        exponent = np.polyfit(np.log(sizes), np.log(times), 1)[0]
        print(f"{name:28s}{exponent:10.2f}{times[-1]:8.1f}", flush=True)


def report_big():
    report_streams()
    report_items()
    report_curves()


def report_growth():
    start = np.array([N, D, K])
    print(f"Exponents of fits from N {N}, D {D}, K {K} (seconds at four times as much)")
    print(f"{'':28s}{'N':>17s}{'D':>17s}{'K':>17s}")
    for name, gaps, estimator, params in fits():
        model = partial(estimator, **params)
        cells = [
            growth(model, gaps, [start * np.where(is_one, f, 1) for f in DOUBLINGS])
            for is_one in np.eye(3, dtype=bool)
        ]
        print(f"{name:28s}{''.join(f'{part:>17s}' for part in cells)}", flush=True)


PARTS = {"wide": report_wide_tables, "growth": report_growth, "big": report_big}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="PART")
    for name in parser.parse_args().parts:
        PARTS[name]()


if __name__ == "__main__":
    main()
