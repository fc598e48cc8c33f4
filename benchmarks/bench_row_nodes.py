"""Nodes of each row in fits of MPTLinearVAE with two latent variables.

Where posteriors are too narrow for a grid that all rows share, each row has nodes of
its own in training: 5 in each dimension. For eight tables, with narrow posteriors and
wide ones, this prints the score of the training rows, the processor time and the number
of epochs with 5 nodes and with 7::

    OMP_NUM_THREADS=1 python benchmarks/bench_row_nodes.py
"""

import time
import warnings

import numpy as np
import torch
from sklearn.datasets import load_digits

from sklearn_mpt import MPTLinearVAE
from sklearn_mpt._integration import row_nodes

N_NODES = (5, 7)


def drawn(n_samples, n_features, slope, rng, counts=False):
    """Draw rows of a model with two latent variables."""
    z = rng.normal(size=(n_samples, 2))
    location = z @ (slope * rng.normal(size=(2, n_features)))
    location = location + 0.5 * rng.normal(size=n_features)
    if counts:
        return rng.poisson(np.exp(np.clip(location, -5, 3))).astype(float)
    return (rng.random(location.shape) < 1 / (1 + np.exp(-location))).astype(float)


def tables():
    """Yield the name, the rows and the likelihood of each table."""
    rng = np.random.default_rng(0)
    for n_features, slope in ((12, 3.0), (20, 1.5), (40, 3.0), (100, 2.0)):
        rows = drawn(300, n_features, slope, rng)
        yield f"binary, slopes {slope:g}", rows, "bernoulli"
    for n_features, slope in ((8, 0.5), (20, 0.8)):
        rows = drawn(300, n_features, slope, rng, counts=True)
        yield f"counts, slopes {slope:g}", rows, "poisson"
    digits = load_digits().data[:500]
    yield "digits, counts", digits, "poisson"
    yield "digits, binary", (digits > 8).astype(float), "bernoulli"


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    default = dict(row_nodes.ROW_GRID)
    for name, X, likelihood in tables():
        results = []
        for n in N_NODES:
            row_nodes.ROW_GRID = default | {2: n}
            start = time.process_time()
            model = MPTLinearVAE(2, likelihood=likelihood, max_iter=60, random_state=0)
            model.fit(X)
            seconds = time.process_time() - start
            results.append(
                f"{n} nodes: {model.score(X):9.4f} {seconds:4.1f} s "
                f"{model.n_iter_:2d} epochs"
            )
        print(f"{name:20s} {X.shape!s:10s}", "   ".join(results), flush=True)


if __name__ == "__main__":
    main()
