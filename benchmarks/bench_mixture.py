"""Mixtures with and without gaps, beside scikit-learn's GaussianMixture.

Held-out log-likelihood and processor time, side by side in one run::

    OMP_NUM_THREADS=1 python benchmarks/bench_mixture.py
"""

import time
import warnings

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import scale

from sklearn_mpt import MPTMixture

warnings.simplefilter("ignore")

N_SEEDS = 5


def timed(model, train, test):
    start = time.process_time()
    model.fit(train)
    return model.score(test), time.process_time() - start


def tables():
    """Names, rows, numbers of components and kinds of covariances."""
    digits = load_digits().data / 16
    digits = digits + 0.05 * np.random.default_rng(0).normal(size=digits.shape)
    yield "iris", load_iris().data, 3, "full"
    yield "wine", scale(load_wine().data), 3, "full"
    yield "wine", scale(load_wine().data), 3, "diag"
    yield "breast cancer", scale(load_breast_cancer().data), 2, "full"
    yield "breast cancer", scale(load_breast_cancer().data), 4, "diag"
    yield "digits", digits, 10, "diag"


def main():
    print(f"Means over {N_SEEDS} splits: held-out nats per row (processor seconds)")
    print(f"{'':24s}{'GaussianMixture':>20s}{'lml':>18s}{'mpt':>18s}{'mpt, gaps':>18s}")
    for name, X, n_components, kind in tables():
        results = []
        for seed in range(N_SEEDS):
            train, test = train_test_split(X, test_size=0.3, random_state=seed)
            how = {"covariance_type": kind, "random_state": seed, "reg_covar": 1e-3}
            holes = np.random.default_rng(seed).random(train.shape) < 0.2
            masked = MPTMixture(n_components, **how)
            exact = MPTMixture(n_components, objective="lml", **how)
            results.append(
                [
                    timed(GaussianMixture(n_components, **how), train, test),
                    timed(exact, train, test),
                    timed(masked, train, test),
                    timed(masked, np.where(holes, np.nan, train), test),
                ]
            )
        means = np.mean(results, axis=0)
        cells = "".join(f"{score:10.2f} ({seconds:5.2f})" for score, seconds in means)
        print(f"{name + ', ' + kind:24s}  {cells}", flush=True)


if __name__ == "__main__":
    main()
