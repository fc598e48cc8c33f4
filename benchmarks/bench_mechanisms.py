"""What mechanisms gain: the same data and seeds with each of them and without it.

A mechanism is worth its lines if it gains more than two standard errors, and enough to
matter, on more than one table. A function for each mechanism yields its measurements;
`difference` compares them::

    python benchmarks/bench_mechanisms.py                    # all
    python benchmarks/bench_mechanisms.py inputs --seeds 3

Results are in benchmarks/RESULTS.rst, "Mechanisms", with the lines that each costs.
"""

import argparse
import warnings
from unittest.mock import patch

import bench_dependency
import pandas as pd
from threadpoolctl import threadpool_limits

from sklearn_mpt import MPTDependencyNetwork
from sklearn_mpt._dependency.families import NormalResiduals


def difference(measure, cases, seeds):
    """Return what a mechanism gains: means of pairs, and two standard errors.

    measure : function of a case, a seed and whether with the mechanism; returns a dict
    of numbers. Standard errors are those over cases, of means over seeds.
    """
    rows = [
        {"case": case, "seed": seed, "is_with": is_with} | measure(case, seed, is_with)
        for case in cases
        for seed in range(seeds)
        for is_with in (True, False)
    ]
    by_pair = pd.DataFrame(rows).set_index(["is_with", "case", "seed"])
    gains = by_pair.loc[True] - by_pair.loc[False]
    by_case = gains.groupby("case", sort=False).mean()
    summary = pd.DataFrame(
        {
            "with": by_pair.loc[True].mean(),
            "without": by_pair.loc[False].mean(),
            "gain": by_case.mean(),
            "two errors": 2 * by_case.sem(),
            "cases better": (by_case > 0).sum(),
        }
    )
    return summary.round(4), by_case.round(4)


TABLES = [
    "storms",
    "movies",
    "penguins",
    "SLID",
    "Chile",
    "Wage",
    "wine",
    "diabetes",
]  # of bench_dependency


def calibration(case, seed, is_with):
    """Whether distributions given forests are calibrated by rows out of their bags."""
    return _network(case, seed, calibrate=is_with)


def values(case, seed, is_with):
    """Whether numbers that were seen in leaves have probabilities."""
    with patch.object(NormalResiduals, "has_values", is_with):
        return _network(case, seed)


def inputs(case, seed, is_with):
    """Whether predictors read ten columns, or all."""
    return _network(case, seed, max_inputs=10 if is_with else None)


def _network(case, seed, **params):
    def make(seed):
        return MPTDependencyNetwork(random_state=seed, **params)

    return bench_dependency.measure(case, seed, make, 200, 19)


MECHANISMS = {
    "calibration": (calibration, TABLES),
    "values": (values, TABLES),
    "inputs": (inputs, ["movies", "wine", "breast_cancer", "storms"]),
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(MECHANISMS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        for name in args.names:
            measure, cases = MECHANISMS[name]
            summary, by_case = difference(measure, cases, args.seeds)
            print(f"{name}: {measure.__doc__}\n{summary.to_string()}")
            print(f"{by_case.to_string()}\n", flush=True)


if __name__ == "__main__":
    main()
