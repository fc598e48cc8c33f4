"""Fill cells of tables in: error, log-probability and time, method beside method.

Tables: the survey of ``examples/tables/anes96.csv`` (944 people; six scales as
categories, a yes or no, three numbers), and scikit-learn's wine, diabetes and breast
cancer. A quarter of the cells goes missing at random, of training rows (two thirds) and
of test rows alike. What is measured are the hidden cells of the test rows:

- ``rmse``: of numbers, in standard deviations of their columns;
- ``wrong``: share of categories that are not those hidden;
- ``steps``: mean distance from them on their scale;
- ``log prob``: nats per hidden cell, numbers in their standard deviations, for methods
  that give cells a distribution;
- ``seconds``: of processor time, to fit and to fill in the test rows.

scikit-learn's imputers get the codes of the categories as numbers, on the scale of
standard deviations, and what they fill in is rounded to the nearest code: these
categories are ordered, which the models do not know. Run all, or some of them::

    python benchmarks/bench_tables.py
    python benchmarks/bench_tables.py survey wine

Item response models are fitted to simulated answers, right or wrong, of so many people
to so many questions: seconds of processor time, steps, log-likelihood, and the
correlation of slopes with the true ones. Beside them `MPTLinearVAE`, for up to a
million answers::

    python benchmarks/bench_tables.py items
    python benchmarks/bench_tables.py items --shapes 100x5000 1000000x40
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

import sklearn_mpt
from sklearn_mpt import MPTImputer, MPTItemResponse, MPTLinearVAE

SURVEY = Path(__file__).parents[1] / "examples" / "tables" / "anes96.csv"
SCALES = ["selfLR", "ClinLR", "DoleLR", "PID", "educ", "TVnews"]


def survey():
    raw = pd.read_csv(SURVEY)
    scales = raw[SCALES].astype(int).astype("category")
    return scales.assign(
        vote=(raw["vote"] == 1).astype("boolean"), **raw[["age", "income", "logpopul"]]
    )


TABLES = {
    "survey": (survey, [1, 2]),
    "wine": (lambda: load_wine(as_frame=True).data, [2, 4, 6]),
    "diabetes": (lambda: load_diabetes(as_frame=True).data, [2, 4, 6]),
    "breast cancer": (lambda: load_breast_cancer(as_frame=True).data, [4, 8, 12]),
}
"""For each its rows, and numbers of components, of which held-out rows choose one."""


class ByCodes:
    """An imputer of numbers, given the codes of categories, standardised."""

    def __init__(self, imputer):
        self.imputer = imputer

    def fit(self, train):
        codes = _codes(train)
        self.mean, self.std = codes.mean(), codes.std()
        self.imputer.fit((codes - self.mean) / self.std)
        return self

    def fill(self, rows):
        codes = _codes(rows)
        filled = self.imputer.transform((codes - self.mean) / self.std)
        return _from_codes(pd.DataFrame(filled, codes.index, codes.columns), self, rows)

    def log_prob(self, rows, hidden):
        return None


class OwnDistributions:
    """The distribution of each column by itself."""

    def fit(self, train):
        self.train = train
        return self

    def fill(self, rows):
        means = {c: self._middle(self.train[c].dropna()) for c in rows}
        return rows.fillna(means)

    def _middle(self, column):
        return column.mean() if column.dtype == float else column.mode()[0]

    def log_prob(self, rows, hidden):
        columns = [self._log_prob(self.train[c].dropna(), rows[c]) for c in rows]
        return np.column_stack(columns)[hidden].mean()

    def _log_prob(self, seen, cells):
        if seen.dtype == float:
            return norm.logpdf(cells, seen.mean(), seen.std())
        share = (seen.value_counts() + 0.5) / (len(seen) + 0.5 * seen.nunique())
        return np.log(cells.map(share).astype(float))


class ByModel:
    """A linear model with the number of components that held-out rows prefer."""

    def __init__(self, sizes):
        self.sizes = sizes

    def fit(self, train):
        part, held_out = train_test_split(train, test_size=0.25, random_state=0)
        models = [self._model(size).fit(part) for size in self.sizes]
        best = np.argmax([model.score(held_out) for model in models])
        self.imputer = MPTImputer(self._model(self.sizes[best])).fit(train)
        return self

    def _model(self, size):
        return MPTLinearVAE(
            size, likelihood="from_dtype", noise="per_feature", random_state=0
        )

    def fill(self, rows):
        return self.imputer.transform(rows)

    def log_prob(self, rows, hidden):
        return self.imputer.estimator_.conditional_log_prob(rows, hidden)[hidden].mean()


def methods(sizes, seed):
    trees = ExtraTreesRegressor(100, random_state=seed)
    return {
        "each column alone": OwnDistributions(),
        "KNNImputer": ByCodes(KNNImputer(n_neighbors=10)),
        "IterativeImputer": ByCodes(IterativeImputer(random_state=seed)),
        "missForest": ByCodes(IterativeImputer(trees, max_iter=5, random_state=seed)),
        "MPTImputer": ByModel(sizes),
    }


def _codes(table):
    codes = table.copy()
    for c in table.select_dtypes("category"):
        codes[c] = table[c].cat.codes.astype(float).where(table[c].notna())
    return codes.astype(float)


def _from_codes(filled, scale, rows):
    filled = filled * scale.std + scale.mean
    for c in rows.select_dtypes(["category", "boolean"]):
        is_category = isinstance(rows[c].dtype, pd.CategoricalDtype)
        last = len(rows[c].cat.categories) - 1 if is_category else 1
        codes = filled[c].round().clip(0, last).astype(int)
        values = rows[c].cat.categories[codes] if is_category else codes == 1
        filled[c] = np.asarray(values)
    return filled


def hide(table, rng):
    """Cells of rows gone missing, and which."""
    hidden = rng.random(table.shape) < 0.25
    return table.mask(hidden), hidden


def measure(method, rows, gaps, hidden):
    start = time.process_time()
    filled = method.fill(gaps)
    seconds = time.process_time() - start
    is_number = np.array([dtype.kind == "f" for dtype in rows.dtypes])
    truth, guess = (
        _codes(rows).to_numpy(),
        _codes(filled.astype(rows.dtypes)).to_numpy(),
    )
    error = np.abs(guess - truth)
    result = {"rmse": np.sqrt(np.mean(error[hidden & is_number] ** 2))}
    if not is_number.all():
        of_category = error[hidden & ~is_number]
        result |= {"wrong": np.mean(of_category > 0), "steps": of_category.mean()}
    return result | {"log prob": method.log_prob(rows, hidden), "filling": seconds}


def run(name, seed):
    make, sizes = TABLES[name]
    table = make()
    numbers = table.select_dtypes(float)
    table[numbers.columns] = (numbers - numbers.mean()) / numbers.std()
    train, test = train_test_split(table, test_size=1 / 3, random_state=seed)
    rng = np.random.default_rng(seed)
    gappy, (gaps, hidden) = hide(train, rng)[0], hide(test, rng)
    for label, method in methods(sizes, seed).items():
        start = time.process_time()
        method.fit(gappy)
        seconds = time.process_time() - start
        result = measure(method, test, gaps, hidden)
        result["seconds"] = seconds + result.pop("filling")
        yield label, result


def report(name, n_seeds):
    results = [pair for seed in range(n_seeds) for pair in run(name, seed)]
    table = pd.DataFrame([result for _, result in results]).astype(float)
    table.index = [label for label, _ in results]
    grouped = table.groupby(level=0, sort=False)
    print(f"\n{name}, means of {n_seeds} splits")
    print(grouped.mean().round(3).to_string(na_rep="-"), flush=True)
    spread = grouped.std() / np.sqrt(n_seeds)
    print("standard errors over splits")
    print(spread.drop(columns="seconds").round(3).to_string(na_rep="-"), flush=True)


SHAPES = ["4000x40", "10000x50", "100x5000", "1000000x40"]
MOST_FOR_LINEAR = 10**6  # answers


def simulated_answers(n_people, n_items):
    """Answers of the two-parameter model, and its slopes."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n_people, 1)).astype(np.float32)
    slopes = rng.uniform(0.5, 2, n_items).astype(np.float32)
    logits = z * slopes + rng.normal(size=n_items).astype(np.float32)
    uniform = rng.random(logits.shape, dtype=np.float32)
    return (uniform < expit(logits)).astype(np.float32), slopes


def report_items(shapes):
    models = {
        "MPTItemResponse": lambda: MPTItemResponse(random_state=0),
        "MPTLinearVAE": lambda: MPTLinearVAE(1, likelihood="bernoulli", random_state=0),
    }
    print("\nitem response models")
    for shape in shapes:
        X, slopes = simulated_answers(*map(int, shape.split("x")))
        for name, make in models.items():
            if name == "MPTLinearVAE" and X.size > MOST_FOR_LINEAR:
                continue
            start = time.process_time()
            model = make().fit(X)
            seconds = time.process_time() - start
            found = getattr(model, "discrimination_", None)
            found = model.components_[0] if found is None else found
            total = model.score_samples(X).sum()
            correlation = np.corrcoef(found, slopes)[0, 1]
            print(
                f"{shape:12} {name:16} {seconds:7.2f} s {model.n_iter_:4} steps "
                f"log-likelihood {total:.2f} correlation {correlation:.3f}",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tables", nargs="*", metavar="table", default=[*TABLES, "items"]
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shapes", nargs="*", default=SHAPES)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    print(f"sklearn_mpt {sklearn_mpt.__version__}, {args.threads} thread(s)")
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(args.threads):
        for name in args.tables:
            if name == "items":
                report_items(args.shapes)
            else:
                report(name, args.seeds)


if __name__ == "__main__":
    main()
