"""Columns of strings that look like dates or numbers: what is said of them."""

import re
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

from sklearn_mpt import MPTImputer, MPTMixture

N = 60
DAYS = pd.date_range("1930-06-01 22:00", periods=N, freq="37h")
FAST = [MPTImputer(max_models=1), MPTMixture(max_iter=1)]
FORMS = ["%m/%d/%Y %H:%M", "%d/%m/%y", "%d-%b-%y", "%d.%m.%Y", "%b %d, %Y"]


def said_of(strings, estimator, frame=pd.DataFrame):
    X = frame({"x": np.sin(np.arange(len(strings))), "odd": strings})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(X)
    return X, " ".join(str(warning.message) for warning in caught)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_the_line_reads_dates_of_many_forms(form, frame):
    strings = [day.strftime(form) for day in DAYS]
    X, said = said_of(strings, MPTImputer(max_models=1, random_state=0), frame)
    assert "dates as strings" in said
    line = re.search(r"convert them: (.*?\))\.(?: |$)", said)[1]
    names = {"pd": pd, "pl": pl, "X": X}
    exec(line, names)
    assert [value.strftime(form) for value in names["X"]["odd"]] == strings


@pytest.mark.parametrize("n_other", [0, 3, 20])
@pytest.mark.parametrize(
    "estimator", [MPTImputer(max_models=1), MPTMixture(max_iter=1)]
)
def test_it_is_said_how_many_strings_are_no_numbers(n_other, estimator):
    strings = ["n/a"] * n_other + [str(i % 15) for i in range(N - n_other)]
    estimator.set_params(likelihood="from_dtype", random_state=0)
    _, said = said_of(strings, estimator)
    assert "numbers as strings" in said
    assert (f"{n_other} of {N} are no numbers" in said) == (n_other > 0)
    assert ("pd.to_numeric" in said) == (n_other < N / 5)
