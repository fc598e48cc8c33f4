"""How processor time grows with rows N, columns D and components K, beside peers.

Each number is the exponent of a power law, fitted to processor time at three sizes that
double, with the seconds at the largest size in brackets. Mixtures by EM take ten steps,
other fits end by their own rules. Then fits to wide tables of five factors, in pairs
with those of scikit-learn. Side by side in one run::

    OMP_NUM_THREADS=1 python benchmarks/bench_growth.py
"""

import time
import warnings
from functools import partial

import numpy as np
from sklearn.decomposition import PCA, FactorAnalysis
from sklearn.mixture import GaussianMixture

from sklearn_mpt import MPTLinearVAE, MPTMixture, MPTProbabilisticPCA

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
    best = np.inf
    for _ in range(N_REPEATS):
        start = time.process_time()
        function()
        best = min(best, time.process_time() - start)
    return best


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


def main():
    report_wide_tables()
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


if __name__ == "__main__":
    main()
