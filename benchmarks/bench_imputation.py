"""Fill gaps of tables in: errors, log-probability and time, method beside method.

Tables: scikit-learn's and some of its generators, those of statsmodels if it is
installed, and the survey of ``examples/tables/anes96.csv`` (six ordered scales, a yes
or no, three numbers). Entries go missing

- ``mcar``: at random;
- ``mar``: in half of the columns, more often the larger another column is, which is
  complete;
- ``mnar``: more often the larger they are themselves.

Each imputer fits the table with its gaps and fills it in. What is measured are the
entries that are gone:

- ``rmse``, ``mae``: of numbers, in standard deviations of their columns;
- ``wrong``: share of categories that are not those gone;
- ``steps``: mean distance from them on an ordered scale;
- ``log prob``: nats per entry, numbers in standard deviations, for methods that give
  entries a distribution;
- ``seconds``: of processor time.

scikit-learn's imputers get codes of categories as numbers, in standard deviations, and
what they fill in is rounded. Results are printed, and appended to a file. What is in
the file already is not run again, so a run can be broken off and continued. The whole
takes many hours, ``--quick`` about a quarter of an hour::

    python benchmarks/bench_imputation.py --quick --out results.csv
    python benchmarks/bench_imputation.py iris wine --masks 1 --out results.csv
    python benchmarks/bench_imputation.py --mechanisms mar mnar --rates 0.3
    python benchmarks/bench_imputation.py --report results.csv
"""

import argparse
import importlib.util
import time
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm
from sklearn import datasets
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from sklearn.impute import KNNImputer
from threadpoolctl import threadpool_limits

import sklearn_mpt
from sklearn_mpt import MPTImputer

try:
    from sklearn.impute import IterativeImputer
except ImportError:  # up to scikit-learn 1.9 it is experimental
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

SURVEY = Path(__file__).parents[1] / "examples" / "tables" / "anes96.csv"
SCALES = ["selfLR", "ClinLR", "DoleLR", "PID", "educ", "TVnews"]
MOST_ROWS = 1000
MOST_OFTEN = 0.95  # that an entry is missing
SLOW = "breast cancer", "digits", "fair", "star98", "randhie"


def survey():
    raw = pd.read_csv(SURVEY)
    frame = raw[["age", "income", "logpopul"]].astype(float)
    for scale in SCALES:
        frame[scale] = pd.Categorical(raw[scale].astype(int), ordered=True)
    return frame.assign(vote=(raw["vote"] == 1).astype("boolean"))


def of_sklearn(load):
    return lambda: load(as_frame=True).data


def of_generator(make, **params):
    return lambda: pd.DataFrame(np.column_stack(make(random_state=0, **params)))


def of_statsmodels(name):
    def load():
        module = importlib.import_module(f"statsmodels.datasets.{name}")
        return module.load_pandas().data.select_dtypes("number").dropna()

    return load


TABLES = {
    "iris": of_sklearn(datasets.load_iris),
    "wine": of_sklearn(datasets.load_wine),
    "diabetes": of_sklearn(datasets.load_diabetes),
    "breast cancer": of_sklearn(datasets.load_breast_cancer),
    "linnerud": of_sklearn(datasets.load_linnerud),
    "digits": lambda: of_sklearn(datasets.load_digits)().iloc[:500],
    "friedman": of_generator(datasets.make_friedman1, n_samples=400),
    "swiss roll": of_generator(datasets.make_swiss_roll, n_samples=400, noise=0.5),
    "circles": of_generator(datasets.make_circles, n_samples=300, noise=0.05),
    "survey": survey,
}
if importlib.util.find_spec("statsmodels"):
    names = "fair", "star98", "macrodata", "randhie", "grunfeld", "ccard", "copper"
    TABLES |= {name: of_statsmodels(name) for name in names}


# Tables, mechanisms with rates, and masks of `--quick`
QUICK_TABLES = [name for name in TABLES if name not in SLOW]
QUICK_CASES = ("mcar", 0.3), ("mar", 0.3), ("mnar", 0.3), ("mcar", 0.1), ("mcar", 0.5)
QUICK_MASKS = 2


def load(name):
    table = TABLES[name]()
    if len(table) > MOST_ROWS:
        table = table.sample(MOST_ROWS, random_state=0)
    table = table.reset_index(drop=True)
    numbers = table.select_dtypes("number").astype(float)
    numbers = numbers.loc[:, numbers.std() > 0]
    others = table.select_dtypes(["category", "boolean"])
    return pd.concat([(numbers - numbers.mean()) / numbers.std(), others], axis=1)


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
    """Draw which entries are missing; each column and row keeps two and one."""
    shape = table.shape
    ranks = codes_of(table).rank(pct=True).to_numpy()
    if mechanism == "mcar":
        often = np.full(shape, rate)
    elif mechanism == "mnar":
        often = 2 * rate * ranks
    else:
        order = rng.permutation(shape[1])
        complete, others = np.array_split(order, 2)
        often = np.zeros(shape)
        often[:, others] = 2 * rate * ranks[:, rng.choice(complete, len(others))]
    hidden = rng.random(shape) < np.minimum(often, MOST_OFTEN)
    hidden[hidden.all(axis=1), rng.integers(shape[1])] = False
    hidden[:2] = False
    return hidden


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
                columns.append(np.log(often / often.sum())[codes[:, j].astype(int)])
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
    }


def run(args):
    done = set()
    if args.out and Path(args.out).exists():
        keys = ["table", "mechanism", "rate", "mask", "method"]
        done = set(pd.read_csv(args.out)[keys].itertuples(index=False, name=None))
    cases = list(product(args.mechanisms, args.rates))
    if args.quick:
        cases = QUICK_CASES
    tables = {name: load(name) for name in args.tables}
    for seed, (mechanism, rate) in product(range(args.masks), cases):
        for name, table in tables.items():
            hidden = hide(table, mechanism, rate, np.random.default_rng(seed))
            where = {"table": name, "mechanism": mechanism, "rate": rate}
            for label in args.methods:
                if (name, mechanism, rate, seed, label) not in done:
                    found = measure(METHODS[label](), table, hidden)
                    yield where | {"mask": seed, "method": label} | found


def report(results):
    """Print means of each table, and mean ranks over tables."""
    measures = ["rmse", "mae", "wrong", "steps", "log prob", "seconds"]
    by_table = results.groupby(["table", "method"], sort=False)[measures].mean()
    print(by_table.round(3).to_string(na_rep="-"))
    cases = results.groupby(["table", "mechanism", "rate", "method"], sort=False)
    means = cases[measures].mean()
    ranks = means[["rmse", "mae", "wrong", "steps", "seconds"]]
    ranks = ranks.groupby(["table", "mechanism", "rate"]).rank()
    n_cases = len(means) // means.index.get_level_values("method").nunique()
    print(f"\nmean ranks over {n_cases} cases (table, mechanism, rate); 1 is best")
    print(ranks.groupby("method", sort=False).mean().round(2).to_string(na_rep="-"))
    first = (ranks["rmse"] == 1).groupby("method", sort=False).sum()
    print("\ncases with the smallest rmse")
    print(first.to_string())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="table")
    parser.add_argument("--mechanisms", nargs="+", default=["mcar", "mar", "mnar"])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.1, 0.3, 0.5])
    parser.add_argument("--masks", type=int, help="default 10, with --quick 2")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", help="file that results are appended to")
    parser.add_argument("--report", help="report this file, run nothing")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    args.tables = args.tables or (QUICK_TABLES if args.quick else list(TABLES))
    args.masks = args.masks or (QUICK_MASKS if args.quick else 10)
    warnings.simplefilter("ignore")
    if args.report:
        report(pd.read_csv(args.report))
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
    report(pd.read_csv(args.out) if args.out else pd.DataFrame(results))


if __name__ == "__main__":
    main()
