"""Covariates and outcomes of latent classes in three steps, beside StepMix.

Twenty tables of 1,000 rows of six binary columns, drawn from three classes that
overlap. A covariate adds 1 to the log-odds of the second class for each unit, and
outcomes are normal, with means 0, 1 and 3. For each correction: the bias of the effect,
its root mean square error, how often its interval of 95% covers 1, the same for the
mean 3, and seconds of processor time with the fit. StepMix has no standard errors.
Run it by::

    pip install stepmix
    python benchmarks/bench_classes.py
"""

import argparse
import time
import warnings

import numpy as np

from sklearn_mpt import MPTMixture

COEF = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, -1.0]])
MEANS = np.array([0.0, 1.0, 3.0])
ITEMS = np.array([[0.8] * 3 + [0.2] * 3, [0.2] * 3 + [0.8] * 3, [0.2] * 6])
CORRECTIONS = "none", "bch", "ml"


def simulated(seed, n=1000):
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, 2))
    k = (Z @ COEF.T + rng.gumbel(size=(n, 3))).argmax(axis=1)
    X = (rng.random((n, 6)) < ITEMS[k]).astype(float)
    return X, Z, MEANS[k] + rng.normal(size=n)


def places(probabilities):
    """Return which fitted class is nearest to each class of the simulation."""
    return ((probabilities[:, None] - ITEMS) ** 2).sum(axis=2).argmin(axis=0)


def ours(X, Z, y, correction):
    model = MPTMixture(
        3, likelihood="bernoulli", objective="lml", tol=1e-7, n_init=3, random_state=0
    ).fit(X)
    first, second, third = places(model.means_)
    effects = model.covariate_effects(X, Z, correction=correction, reference=int(first))
    means = model.class_outcomes(X, y, correction=correction)
    effect = effects.coef[second, 0], effects.coef_std_error[second, 0]
    return *effect, means.estimate[third], means.std_error[third]


def stepmix(X, Z, y, correction):
    from stepmix.stepmix import StepMix

    found = []
    params = {
        "measurement": "binary",
        "n_steps": 3,
        "n_init": 3,
        "max_iter": 1000,
        "abs_tol": 1e-7,
        "rel_tol": 1e-7,
        "progress_bar": 0,
        "random_state": 0,
        "correction": None if correction == "none" else correction.upper(),
    }
    for structural, given in ("covariate", Z), ("gaussian_diag", y[:, None]):
        model = StepMix(3, structural=structural, **params).fit(X, given)
        parameters = model.get_parameters()
        first, second, third = places(parameters["measurement"]["pis"])
        if structural == "covariate":
            beta = parameters["structural"]["beta"]
            found += [beta[second, 1] - beta[first, 1], np.nan]
        else:
            found += [parameters["structural"]["means"][third, 0], np.nan]
    return found


def report(n_tables):
    print(f"{'':16}{'effect: bias':>14}{'rmse':>7}{'cover':>7}", end="")
    print(f"{'mean: bias':>12}{'rmse':>7}{'cover':>7}{'seconds':>9}")
    tables = [simulated(seed) for seed in range(n_tables)]
    for name, function in ("StepMix", stepmix), ("MPTMixture", ours):
        for correction in CORRECTIONS:
            start = time.process_time()
            found = np.array([function(*table, correction) for table in tables])
            seconds = (time.process_time() - start) / n_tables
            print(f"{name + ', ' + correction:16}", end="")
            for j, truth in (0, 1.0), (2, 3.0):
                error, deviation = found[:, j] - truth, found[:, j + 1]
                covered = np.mean(np.abs(error) < 1.96 * deviation)
                covered = np.nan if np.isnan(deviation).any() else covered
                rmse = np.sqrt(np.mean(error**2))
                print(f"{error.mean():{14 - j}.3f}{rmse:7.3f}{covered:7.2f}", end="")
            print(f"{seconds:9.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=20)
    warnings.simplefilter("ignore")
    report(parser.parse_args().tables)
