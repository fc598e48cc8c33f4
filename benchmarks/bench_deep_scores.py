"""Errors of scores of deep models with two latent variables, on eight tables.

For rows held out, and for rows off the data (held-out rows plus twice the standard
deviations in random directions), scores are compared with a dense grid over z, with one
number of the search for modes changed at a time. Printed are means over the tables of
the root mean squared error in nats, the largest one, the share of rows that are off by
more than 0.1 nats and five standard errors, and milliseconds for a row::

    OMP_NUM_THREADS=1 python benchmarks/bench_deep_scores.py
"""

import time
import warnings
from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

import numpy as np
import torch
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_circles,
    make_moons,
    make_swiss_roll,
)

from sklearn_mpt import MPTDeepVAE
from sklearn_mpt._deep import density as scoring
from sklearn_mpt._latent.quadrature import normal_points

RADIUS, N_NODES = 14.0, 1001


def tables():
    yield "moons", make_moons(500, noise=0.08, random_state=0)[0], "gaussian"
    rings = make_circles(500, noise=0.05, factor=0.5, random_state=0)[0]
    yield "circles", rings, "gaussian"
    yield "swiss roll", make_swiss_roll(500, noise=0.3, random_state=0)[0], "gaussian"
    yield "iris", load_iris().data, "gaussian"
    yield "wine", standardised(load_wine().data), "gaussian"
    yield "diabetes", standardised(load_diabetes().data), "gaussian"
    yield "breast cancer", standardised(load_breast_cancer().data), "gaussian"
    yield "digits, binary", (load_digits().data[:600] > 7).astype(float), "bernoulli"


def standardised(X):
    return (X - X.mean(0)) / X.std(0)


def by_grid(model, X):
    """Return log-densities of rows, and whether the grid holds their mass."""
    with torch.no_grad():
        density = model._density()
        rows, total = density.units.standardise(torch.tensor(X)), None
        axis = torch.linspace(-RADIUS, RADIUS, N_NODES, dtype=torch.float64)
        observed = torch.ones_like(rows)
        edge = torch.full((len(X),), -torch.inf, dtype=torch.float64)
        for first in axis:
            z = torch.stack([first.expand(N_NODES), axis], 1)
            location = density.joint.location(z)
            joint = density.joint.likelihood.pair_log_prob(rows, observed, location)
            joint = joint - 0.5 * (z**2).sum(1)
            part = joint.logsumexp(1)
            total = part if total is None else torch.logaddexp(total, part)
            at_edge = z.abs().amax(1) > RADIUS - 1
            edge = torch.maximum(edge, joint[:, at_edge].amax(1))
        log_cell = 2 * np.log(float(axis[1] - axis[0])) - np.log(2 * np.pi)
        scale = density.units.log_scale
        return (total + log_cell - scale * X.shape[1]).numpy(), (
            edge < total - 20
        ).numpy()


def prior_points(n_dims):
    points = normal_points(4096, n_dims, 0, 1)[0]
    return torch.from_numpy(points)


cauchy_points = scoring._cauchy_points
OTHER_RULES = {
    "as it is": {},
    "points of the prior": {"_cauchy_points": prior_points},
    "4 starts": {"likeliest_points": partial(scoring.likeliest_points, n_starts=4)},
    "starts at any distance": {
        "likeliest_points": partial(scoring.likeliest_points, min_distance=0.0)
    },
    "1024 points": {"_cauchy_points": partial(scoring._cauchy_points, n_points=1024)},
    "gain 0.1": {"IMPORTANCE_TOLERANCE": 0.1},
}


def fitted_models():
    """Yield the name of a table, a model of it, and rows with their log-densities."""
    rng = np.random.default_rng(0)
    for name, X, likelihood in tables():
        X = X[rng.permutation(len(X))]
        train, test = X[: -len(X) // 5], X[-len(X) // 5 :][:60]
        model = MPTDeepVAE(2, likelihood=likelihood, random_state=0).fit(train)
        far = test + 2 * train.std(0) * rng.normal(size=test.shape)
        if likelihood == "bernoulli":
            far = (rng.random(test.shape) < 0.5).astype(float)
        for kind, rows in (("held out", test), ("off", far)):
            yield name, model, kind, rows, *by_grid(model, rows)


def errors_of(model, rows, truth, holds):
    """Return rmse, share of wrong rows, and milliseconds."""
    begin = time.process_time()
    value, error = model.score_samples(rows, return_std=True)
    seconds = time.process_time() - begin
    off, error = np.abs(value - truth)[holds], error[holds]
    wrong = np.mean(off > np.maximum(5 * error, 0.1))
    return np.sqrt(np.mean(off**2)), wrong, 1e3 * seconds / len(rows)


def main():
    cases = list(fitted_models())
    print(f"{'':24s}{'rows':10s}{'rmse':>9s}{'largest':>9s}{'wrong':>8s}{'ms':>8s}")
    for name, changed in OTHER_RULES.items():
        cauchy_points.cache_clear()
        with patch.multiple(scoring, **changed) if changed else nullcontext():
            for wanted in ("held out", "off"):
                found = [
                    errors_of(model, *rows)
                    for _, model, kind, *rows in cases
                    if kind == wanted
                ]
                rmse, wrong, ms = np.mean(found, axis=0)
                largest = np.max(found, axis=0)[0]
                numbers = f"{rmse:9.3f}{largest:9.3f}{wrong:8.1%}{ms:8.1f}"
                print(f"{name:24s}{wanted:10s}{numbers}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
