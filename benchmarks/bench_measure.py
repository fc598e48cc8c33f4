"""Variance times time of every design of `mpt_curve`, by model.

Run ``python benchmarks/bench_measure.py [part ...]``, with the parts

- ``designs``: for each model and design, the processor time of a curve, the standard
  deviation of its area and of its scores over seeds, and for the scores their variance
  times the time, relative to independent masks. The true scores cancel.
- ``wide``: the same for rows of 784 features. A curve is one mask of each size; its
  time and errors are those of eight, divided by eight, at a few sizes, between which
  variances are interpolated. The last columns are the costs at equal error, relative to
  independent masks.

Set ``OMP_NUM_THREADS=1`` on a machine that is busy otherwise.
"""

import sys
import warnings

import numpy as np
from measuring import processor_seconds
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt import (
    MPTDeepVAE,
    MPTLinearVAE,
    MPTProbabilisticPCA,
    mpt_curve,
)

WIDE_SIZES = np.array([1, 100, 400, 650, 750, 775, 782, 783, 784])
N_WIDE = 8  # masks of a size


def latent_rows(n_rows, n_features, n_components, seed, slope=1.0):
    rng = np.random.default_rng(seed)
    components = slope * rng.normal(size=(n_components, n_features))
    return rng.normal(size=(n_rows, n_components)) @ components, components, rng


def ppca(n_features=64, n_components=6, share_missing=0.0):
    X, components, rng = latent_rows(60, n_features, n_components, 0)
    X = X + np.sqrt(0.3) * rng.normal(size=X.shape)
    X[rng.random(X.shape) < share_missing] = np.nan
    start = {
        "components": components,
        "mean": np.zeros(n_features),
        "noise_variance": 0.3,
    }
    return MPTProbabilisticPCA(n_components, init=start, max_iter=0).fit(X), X


def binary(n_features=64, n_components=2, slope=1.0):
    logits, components, rng = latent_rows(60, n_features, n_components, 0, slope)
    X = (rng.random(logits.shape) < expit(logits)).astype(float)
    start = {"components": components, "intercept": np.zeros(n_features)}
    model = MPTLinearVAE(
        n_components, likelihood="bernoulli", init=start, max_iter=0, random_state=0
    )
    return model.fit(X), X


def deep(n_features=16, likelihood="gaussian"):
    X, _, rng = latent_rows(60, n_features, 2, 0)
    X = np.sin(X) + 0.3 * rng.normal(size=X.shape)
    if likelihood == "bernoulli":
        X = (X > 0).astype(float)
    model = MPTDeepVAE(
        hidden_layer_sizes=(32,),
        likelihood=likelihood,
        early_stopping=False,
        max_iter=20,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X), X


def plain(factory):
    """The conditionals alone, as a function."""
    model, X = factory()
    return model.conditional_log_prob, X


MODELS = {
    "PPCA": (ppca, 40),
    "PPCA, 30% missing": (lambda: ppca(share_missing=0.3), 10),
    "PPCA as a function": (lambda: plain(ppca), 10),
    "binary, D = 16": (lambda: binary(16), 6),
    "deep, D = 16": (deep, 4),
}


def measure(model, X, design, n_seeds):
    """Seconds per curve, standard deviation of the area and of the scores."""
    seconds, curves = processor_seconds(
        lambda: [
            mpt_curve(model, X, n_masks=6, design=design, random_state=seed)
            for seed in range(n_seeds)
        ]
    )
    scores = np.array([curve.scores for curve in curves])
    area = np.std([curve.lml for curve in curves], ddof=1)
    return seconds / n_seeds, area, np.sqrt(scores.var(axis=0, ddof=1).mean())


def designs():
    print(f"{'':20}{'design':12}{'s/curve':>10}{'sd area':>10}{'sd S':>10}{'cost':>8}")
    for name, (factory, n_seeds) in MODELS.items():
        model, X = factory()
        unit = None
        for design in ("independent", "balanced"):
            seconds, area, score = measure(model, X, design, n_seeds)
            unit = unit or score**2 * seconds
            print(
                f"{name:20}{design:12}{seconds:10.3f}{area:10.4f}{score:10.5f}"
                f"{score**2 * seconds / unit:8.3f}",
                flush=True,
            )


WIDE_MODELS = {
    "PPCA": lambda: ppca(784),
    "PPCA, 30% missing": lambda: ppca(784, share_missing=0.3),
    "binary": lambda: binary(784, slope=0.5),
    "deep, Gaussian": lambda: deep(784),
    "deep, binary": lambda: deep(784, "bernoulli"),
}


def wide():
    columns = ("s/curve", "sd area", "sd S", "area cost", "S cost")
    print(f"{'':20}{'design':12}" + "".join(f"{name:>11}" for name in columns))
    for name, factory in WIDE_MODELS.items():
        model, X = factory()
        X, unit = X[:20], None
        for design in ("independent", "balanced"):
            seconds, area, score = measure_wide(model, X, design)
            cost = np.array([area, score]) ** 2 * seconds
            unit = cost if unit is None else unit
            shown = [seconds, area, score, *(cost / unit)]
            values = "".join(f"{value:11.3g}" for value in shown)
            print(f"{name:20}{design:12}{values}", flush=True)


def measure_wide(model, X, design):
    """Seconds of a curve, standard deviations of its area and scores."""
    options = {"n_masks": N_WIDE, "design": design, "random_state": 0}
    options["mask_sizes"] = WIDE_SIZES
    seconds, curve = processor_seconds(lambda: mpt_curve(model, X, **options))
    seconds *= X.shape[1] / (N_WIDE * len(curve.mask_sizes))
    sizes = np.arange(1, X.shape[1] + 1)
    variance = N_WIDE * np.interp(sizes, curve.mask_sizes, curve.std_errors**2)
    return seconds, variance.sum() ** 0.5, variance[WIDE_SIZES - 1].mean() ** 0.5


if __name__ == "__main__":
    parts = {"designs": designs, "wide": wide}
    for part in sys.argv[1:] or parts:
        parts[part]()
