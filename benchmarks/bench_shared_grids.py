"""Scores of linear models by grids that all rows share: error, and time.

For eight tables: processor seconds of ``score_samples`` for 400 rows with two and three
components, and the largest error of 25 rows, in nats, against one grid over the prior,
out to 7 standard deviations of z, with spacings of 0.9 standard deviations of the
narrowest posterior or 2^17 nodes::

    OMP_NUM_THREADS=1 python benchmarks/bench_shared_grids.py
"""

import time
import warnings

import numpy as np
import torch
from scipy.special import expit

from sklearn_mpt import MPTLinearVAE
from sklearn_mpt._integration.integrals import rows_of
from sklearn_mpt._integration.prior_grid import coarsen, prior_grid
from sklearn_mpt._linear.linear_map import spacing

N_ROWS, N_CHECKED = 400, 25
RADIUS, MAX_NODES = 7.0, 2**17  # of the dense grid


def tables(rng):
    """Yield name, kind and rows of each table."""

    def locations(n_features, scale):
        z = rng.normal(size=(N_ROWS, 3))
        return z @ (rng.normal(size=(3, n_features)) * scale)

    for name, n_features, scale in (
        ("binary 20", 20, 1.5),
        ("binary 6 steep", 6, 2.5),
        ("binary 60", 60, 1.0),
    ):
        prob = expit(locations(n_features, scale))
        yield name, "bernoulli", (rng.random(prob.shape) < prob).astype(float)
    counts = np.minimum(rng.poisson(np.exp(locations(8, 0.5))), 300)
    yield "counts", "poisson", counts.astype(float)
    rates = np.exp(locations(12, 0.4))
    rates *= rng.gamma(2, 0.5, size=rates.shape)
    yield "negative binomial", "negative_binomial", rng.poisson(rates).astype(float)
    for kind, n_features, cuts in (
        ("ordinal", 12, [-2, 0, 2]),
        ("categorical", 8, [-1, 1]),
    ):
        values = locations(n_features, 1.0) + rng.logistic(size=(N_ROWS, n_features))
        yield kind, kind, np.digitize(values, cuts).astype(float)
    means = np.exp(locations(6, 0.5))
    yield "gamma", "gamma", means * rng.gamma(2, 0.5, size=means.shape) + 1e-3


@torch.no_grad()
def dense_log_prob(model, X):
    """Return log p(x) of rows by one dense grid over the prior."""
    density = model._density()
    joint, units = density.joint, density.units
    steps = coarsen(spacing(joint, 0.9), MAX_NODES, [RADIUS] * joint.n_dims)
    z, log_weight = prior_grid(steps, joint.components, RADIUS)
    rows = rows_of(units.standardise(torch.from_numpy(X)))
    log_prob = joint.pair_log_prob(rows.X, rows.observed.to(rows.X), z) + log_weight
    scale = (rows.observed * units.log_scale).sum(1)
    return (log_prob.logsumexp(1) - scale).numpy()


def seconds_of_scores(model, X):
    times = []
    for _ in range(3):
        start = time.process_time()
        model.score_samples(X)
        times.append(time.process_time() - start)
    return min(times)


def main():
    warnings.simplefilter("ignore")
    print(f"{'':18s} two components    three components    ratio")
    print(f"{'':18s} {'seconds':>8s} {'error':>8s} {'seconds':>8s} {'error':>8s}")
    for name, kind, X in tables(np.random.default_rng(0)):
        times, shown = [], ""
        for n_components in (2, 3):
            model = MPTLinearVAE(
                n_components, likelihood=kind, max_iter=30, random_state=0
            ).fit(X)
            times.append(seconds_of_scores(model, X))
            log_prob = model.score_samples(X[:N_CHECKED])
            error = np.abs(log_prob - dense_log_prob(model, X[:N_CHECKED])).max()
            shown += f" {times[-1]:8.3f} {error:8.0e}"
        print(f"{name:18s}{shown} {times[1] / times[0]:8.1f}", flush=True)


if __name__ == "__main__":
    main()
