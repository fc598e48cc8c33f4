"""Share of 95% intervals from several imputed tables that hold the true value.

Tables of a known distribution are drawn, 30% of their entries are hidden, and means and
slopes of regressions are estimated from imputed tables and pooled by Rubin's rules.
Distributions:

- ``normal``: four normal columns with correlations of 0.5;
- ``mixed``: a number, a skewed number, a yes or no and an ordered category, which
  depend on one latent variable;
- ``binary``: four columns of yes or no, each of which depends on those before it;
- ``skewed``: four positive numbers, skewed, of unequal spread.

The first column is always present. Entries of the others are hidden at random
(``mcar``), or more often where the first column is large (``mar``). The share among
whole tables is printed beside. Two columns tell what is wrong: the mean error in units
of its Monte Carlo error (``bias z``), and the mean squared standard error over the
variance of the estimates (``variances``), which should be 1. Results are appended to a
file, so a run can be continued with other tables::

    python benchmarks/bench_coverage.py --tables 200 --out coverage.csv
    python benchmarks/bench_coverage.py --report coverage.csv
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit
from scipy.stats import t
from threadpoolctl import threadpool_limits

from sklearn_mpt import MPTImputer, MPTMixture, pool_estimates

N_LARGE = 500_000  # rows from which true values are computed
CORRELATION = 0.5


def normal(n_rows, rng):
    covariance = np.full((4, 4), CORRELATION) + (1 - CORRELATION) * np.eye(4)
    return pd.DataFrame(rng.multivariate_normal(np.zeros(4), covariance, n_rows))


def mixed(n_rows, rng):
    z = rng.normal(size=n_rows)
    noise = rng.normal(size=(3, n_rows))
    level = np.digitize(z + noise[2], [-1.0, 0.0, 1.0])
    return pd.DataFrame(
        {
            "number": z + 0.7 * noise[0],
            "skewed": np.exp(0.5 * z + 0.3 * noise[1]),
            "yes": pd.array(rng.random(n_rows) < expit(1.5 * z), dtype="boolean"),
            "level": pd.Categorical.from_codes(level, list("abcd"), ordered=True),
        }
    )


def binary(n_rows, rng):
    """Four columns of yes or no, each of which depends on those before it."""
    X = np.zeros((n_rows, 4), dtype=bool)
    for j in range(4):
        X[:, j] = rng.random(n_rows) < expit(
            -0.3 + 1.2 * X[:, :j].sum(axis=1) - 0.6 * j
        )
    table = pd.DataFrame(X, columns=["first", "second", "third", "fourth"])
    return table.astype("boolean")


def skewed(n_rows, rng):
    """Amounts, positive and skewed, with linear regressions on the first column."""
    first = rng.gamma(2.0, size=n_rows)
    second = first + rng.gamma(1.0, size=n_rows)
    third = 0.5 * second + rng.gamma(1.5, size=n_rows)
    fourth = np.exp(rng.normal(0.3 * np.log(first), 0.6))
    return pd.DataFrame({"a": first, "b": second, "c": third, "d": fourth})


DISTRIBUTIONS = {"normal": normal, "mixed": mixed, "binary": binary, "skewed": skewed}


def hide(table, mechanism, rate, rng):
    """Hide entries of all columns but the first."""
    often = np.full(len(table), rate)
    if mechanism == "mar":
        first = table.iloc[:, 0].to_numpy(dtype=np.float64)
        often = 2 * rate * expit(2 * (first - first.mean()) / first.std())
    hidden = rng.random(table.shape) < often[:, None]
    hidden[:, 0] = False
    return table.mask(hidden)


def codes_of(table):
    codes = table.copy()
    for name in table.select_dtypes("category"):
        codes[name] = table[name].cat.codes
    return codes.to_numpy(dtype=np.float64)


def estimates(table):
    """Return names, means of columns 2 to 4 and slopes of two regressions, variances.

    Variances of slopes are those of HC3, which hold for errors of unequal spread.
    """
    codes = codes_of(table)
    n_rows = len(codes)
    found = [(c.mean(), c.var(ddof=1) / n_rows) for c in codes[:, 1:].T]
    names = [f"mean of {j}" for j in (2, 3, 4)]
    for target, others in ((1, [0]), (0, [2, 3])):
        A = np.column_stack([np.ones(n_rows), codes[:, others]])
        inverse = np.linalg.inv(A.T @ A)
        slopes = inverse @ A.T @ codes[:, target]
        leverage = np.einsum("ij,jk,ik->i", A, inverse, A)
        error = (codes[:, target] - A @ slopes) / (1 - leverage)
        spread = (inverse @ A.T * error**2) @ A @ inverse
        found += zip(slopes[1:], spread.diagonal()[1:], strict=True)
        names += [f"slope of {target + 1} on {j + 1}" for j in others]
    return names, *np.array(found).T


METHODS = {
    "MPTImputer()": lambda how: MPTImputer(**how),
    "MPTImputer(MPTMixture(1))": lambda how: MPTImputer(
        MPTMixture(1, likelihood="from_dtype", objective="lml", random_state=0), **how
    ),
}


def run(args):
    for name in args.distributions:
        sample = DISTRIBUTIONS[name]
        truth = estimates(sample(N_LARGE, np.random.default_rng(0)))[1]
        for mechanism in args.mechanisms:
            for seed in range(args.first, args.first + args.tables):
                rng = np.random.default_rng([seed, 1])
                whole = sample(args.rows, rng)
                gaps = hide(whole, mechanism, args.rate, rng)
                for label in args.methods:
                    how = {"n_imputations": args.imputations, "random_state": seed}
                    start = time.process_time()
                    imputer = METHODS[label](how).fit(gaps)
                    every = [estimates(f) for f in imputer.transform_multiple(gaps)]
                    seconds = time.process_time() - start
                    pooled = pool_estimates(
                        [e[1] for e in every], [e[2] for e in every], df=args.rows - 2
                    )
                    low, high = pooled.interval()
                    of_whole = estimates(whole)
                    half = t.ppf(0.975, args.rows - 2) * np.sqrt(of_whole[2])
                    yield pd.DataFrame(
                        {
                            "distribution": name,
                            "mechanism": mechanism,
                            "table": seed,
                            "method": label,
                            "estimate": every[0][0],
                            "holds": (low <= truth) & (truth <= high),
                            "whole holds": np.abs(of_whole[1] - truth) < half,
                            "error": pooled.estimate - truth,
                            "std_error": pooled.std_error,
                            "error of whole": of_whole[1] - truth,
                            "fraction_missing": pooled.fraction_missing,
                            "seconds": seconds,
                        }
                    )


def report(results):
    by = ["distribution", "mechanism", "method", "estimate"]
    groups = results.groupby(by, sort=False)
    table = groups.agg(
        tables=("holds", "size"),
        holds=("holds", "mean"),
        bias=("error", "mean"),
        spread=("error", "std"),
        std_error=("std_error", lambda s: np.sqrt((s**2).mean())),
        missing=("fraction_missing", "mean"),
        whole=("error of whole", "std"),
        whole_holds=("whole holds", "mean"),
    )
    table["bias z"] = table["bias"] / (table["spread"] / np.sqrt(table["tables"]))
    table["variances"] = (table["std_error"] / table["spread"]) ** 2
    print(table.round(4).to_string())
    groups = results.groupby(by[:3], sort=False)
    print(groups[["holds", "whole holds", "seconds"]].mean().round(4).to_string())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--distributions", nargs="+", default=list(DISTRIBUTIONS))
    parser.add_argument("--mechanisms", nargs="+", default=["mcar", "mar"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of first table")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.3)
    parser.add_argument("--imputations", type=int, default=20)
    parser.add_argument("--out", help="file that results are appended to")
    parser.add_argument("--report", help="report this file, run nothing")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.report:
        report(pd.read_csv(args.report))
        return
    results = []
    with threadpool_limits(1):
        for result in run(args):
            results.append(result)
            if args.out:
                is_new = not Path(args.out).exists()
                result.to_csv(args.out, mode="a", header=is_new, index=False)
    report(pd.concat(results))


if __name__ == "__main__":
    main()
