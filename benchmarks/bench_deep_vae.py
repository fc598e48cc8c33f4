"""Compare objectives and conditionals of MPTDeepVAE.

Parts:

- ``objectives``: MPT, ELBO and IWAE on binary digits (K = 4) and on real digits
  (K = 10), the same nets, seeds and held-out rows, at equal epochs and at equal wall
  time. Test log marginal likelihood in nats per row. Epochs at equal time are those
  that take as long as the MPT ones, by the time of a few epochs measured beside it.
- ``conditionals``: importance weights against the encode-decode chain, mean
  log-probability of a hidden feature as the masked share grows, for the same fitted
  nets, and for nets that the chain itself trained.
- ``devices``: CUDA against the CPU, where there is one.

Run all in about ten minutes on two cores, or some, or small versions::

    OMP_NUM_THREADS=1 python benchmarks/bench_deep_vae.py [--quick] [parts]
"""

import argparse
import os
import time
import warnings

import numpy as np
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split

import sklearn_mpt
from sklearn_mpt import MPTDeepVAE
from sklearn_mpt._measure.masks import draw_masks, mask_size

OBJECTIVES = ("mpt", "iwae", "elbo")


def datasets():
    """Name -> estimator, training rows, test rows."""
    X = load_digits().data
    binary = MPTDeepVAE(4, likelihood="bernoulli", random_state=0)
    return {
        "binary digits": (binary, *split((X > 7).astype(float))),
        "digits / 16": (MPTDeepVAE(10, random_state=0), *split(X / 16)),
    }


def split(X):
    return train_test_split(X, test_size=300, random_state=0)


def timed_fit(model, X):
    start = time.perf_counter()
    model.fit(X)
    return time.perf_counter() - start


def print_table(title, header, rows):
    table = [header.split("|"), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print(f"\n{title}\n")
    for row in table:
        print("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)))


def seconds_per_epoch(model, X, n_epochs=3):
    return timed_fit(clone(model).set_params(max_iter=n_epochs), X) / n_epochs


def bench_objectives(quick):
    """`tol` is so small that every fit uses up its epochs."""
    max_iter, n_seeds = (10, 1) if quick else (200, 3)
    rows = []
    for name, (model, train, test) in datasets().items():
        model.set_params(n_iter_no_change=max_iter)
        cost = {
            o: seconds_per_epoch(with_objective(model, o), train) for o in OBJECTIVES
        }
        for objective in OBJECTIVES:
            equal_time = round(max_iter * cost["mpt"] / cost[objective])
            for budget, n_epochs in (("epochs", max_iter), ("time", equal_time)):
                if objective == "mpt" and budget == "time":
                    continue
                fits = [
                    with_objective(model, objective, seed, n_epochs)
                    for seed in range(n_seeds)
                ]
                elapsed = [timed_fit(fit, train) for fit in fits]
                scores = [fit.score(test) for fit in fits]
                rows.append(
                    [
                        name,
                        objective,
                        "both" if objective == "mpt" else budget,
                        f"{n_epochs}",
                        f"{np.mean(elapsed):.1f}",
                        f"{np.mean(scores):.3f}",
                        f"{np.ptp(scores):.3f}",
                    ]
                )
    print_table(
        f"objectives: test LML, mean and range of {n_seeds} seed(s).",
        "data|objective|equal|epochs|fit s|test LML|range",
        rows,
    )


def with_objective(model, objective, seed=0, max_iter=None):
    max_iter = model.max_iter if max_iter is None else max_iter
    return clone(model).set_params(
        objective=objective, random_state=seed, max_iter=max_iter
    )


def bench_conditionals(quick):
    model, train, test = datasets()["binary digits"]
    if quick:
        model.set_params(max_iter=10)
        test = test[:50]
    weighted = model.fit(train)
    chain_trained = clone(model).set_params(conditional="encode_decode").fit(train)
    rows = [
        [f"{share:.2f}", *conditional_row(weighted, chain_trained, test, share)]
        for share in (0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)
    ]
    print_table(
        "conditionals, binary digits: mean log-probability of a hidden feature. The "
        "chain on nets\ntrained with importance weights, and on nets that it trained "
        "itself.",
        "masked|importance|s|chain|s|chain, own nets|s",
        rows,
    )


def conditional_row(weighted, chain_trained, X, share):
    size = mask_size(share, X.shape[1])
    mask = draw_masks(np.full(len(X), size), X.shape[1], np.random.default_rng(0))
    cells = []
    for model, conditional in (
        (weighted, "importance"),
        (weighted, "encode_decode"),
        (chain_trained, "encode_decode"),
    ):
        model.set_params(conditional=conditional)
        start = time.perf_counter()
        log_prob = model.conditional_log_prob(X, mask)
        elapsed = time.perf_counter() - start
        cells += [f"{log_prob.sum() / mask.sum():.4f}", f"{elapsed:.2f}"]
    return cells


def bench_devices(quick):
    if not torch.cuda.is_available():
        print("\ndevices: no CUDA device here.")
        return
    max_iter, rows = 5 if quick else 50, []
    for name, (model, train, test) in datasets().items():
        for device in ("cpu", "cuda"):
            fit = clone(model).set_params(device=device, max_iter=max_iter)
            timed_fit(clone(fit).set_params(max_iter=1), train)  # warm up
            elapsed = timed_fit(fit, train)
            start = time.perf_counter()
            score = fit.score(test)
            scoring = time.perf_counter() - start
            rows.append(
                [name, device, f"{elapsed:.1f}", f"{scoring:.2f}", f"{score:.3f}"]
            )
    print_table(
        f"devices: {max_iter} epochs, and scoring 300 rows.",
        "data|device|fit s|score s|test LML",
        rows,
    )


PARTS = {
    "objectives": bench_objectives,
    "conditionals": bench_conditionals,
    "devices": bench_devices,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default all")
    parser.add_argument("--quick", action="store_true", help="small versions")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    warnings.simplefilter("ignore", ConvergenceWarning)
    print(
        f"sklearn_mpt {sklearn_mpt.__version__}, torch {torch.__version__}, "
        f"{os.cpu_count()} cores, {torch.get_num_threads()} thread(s), "
        f"load {os.getloadavg()[0]:.1f}"
    )
    for part in arguments.parts or PARTS:
        PARTS[part](arguments.quick)


if __name__ == "__main__":
    main()
