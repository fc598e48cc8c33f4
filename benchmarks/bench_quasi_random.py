"""Errors of importance sampling by quasi-random and by random points.

Log-densities of rows of binary tables are estimated with 40 seeds, by the points of the
first rules of `integrals.IMPORTANCE_POINTS`. Printed are the ratio of the standard
deviation over seeds with random points to that with quasi-random ones, root mean
squares over rows, and the standard deviation with quasi-random points, in nats::

    OMP_NUM_THREADS=1 python benchmarks/bench_quasi_random.py
"""

import warnings
from unittest.mock import patch

import numpy as np
import torch
from sklearn.datasets import load_digits

from sklearn_mpt import MPTLinearVAE
from sklearn_mpt._integration import quadrature
from sklearn_mpt._integration.integrals import (
    IMPORTANCE_POINTS,
    integrate_log_prob,
    rows_of,
)


def tables(rng, n_rows=150):
    for n_dims, n_features, slope in ((4, 12, 1.0), (4, 40, 1.0), (6, 40, 2.0)):
        z = rng.normal(size=(n_rows, n_dims))
        logits = slope * z @ rng.normal(size=(n_dims, n_features))
        X = (rng.logistic(size=logits.shape) < logits).astype(float)
        yield f"binary {n_features}, slopes {slope}", n_dims, X
    yield "digits, binary", 5, (load_digits().data[:n_rows] > 7).astype(float)


def random_points(n_points, n_dims, seed, n_replicates=quadrature.N_REPLICATES):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_replicates, n_points, n_dims))


def deviation(joint, rows, counts, n_seeds=40):
    """Return the standard deviation over seeds of estimates of each row."""
    logs = []
    for seed in range(n_seeds):
        rule = quadrature.PosteriorMixture(counts, joint.n_dims, "cpu", [seed])
        logs.append(integrate_log_prob(rows, rule, joint)[0])
    return torch.stack(logs).std(0).square().mean().sqrt()


def main():
    warnings.simplefilter("ignore")
    n_points = [f"{sum(counts)} points" for counts in IMPORTANCE_POINTS[::2]]
    print(" " * 25, *(f"{name:>20}" for name in n_points))
    for name, n_dims, X in tables(np.random.default_rng(0)):
        model = MPTLinearVAE(
            n_dims, likelihood="bernoulli", random_state=0, max_iter=15
        ).fit(X)
        joint, entries = model._density().joint, []
        with torch.no_grad():
            rows = rows_of(torch.from_numpy(X[:40]))
            rows = rows._replace(posteriors=joint.propose(rows))
            for counts in IMPORTANCE_POINTS[::2]:
                quasi = deviation(joint, rows, counts)
                with patch.object(quadrature, "normal_points", random_points):
                    ratio = deviation(joint, rows, counts) / quasi
                entries.append(f"{ratio:12.2f} {quasi:7.4f}")
        print(f"{name:25}", *entries, flush=True)


if __name__ == "__main__":
    main()
