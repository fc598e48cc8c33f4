"""Messages shorten long lists and say that they did."""

import numpy as np
import pytest

from sklearn_mpt import MPTImputer, MPTMixture, MPTProbabilisticPCA


def test_lists_of_few_columns_are_complete():
    X = np.random.default_rng(0).normal(size=(20, 5))
    X[:, [1, 3]] = np.nan
    with pytest.raises(ValueError, match=r"column\(s\) \[1, 3\] of X are missing"):
        MPTProbabilisticPCA(1).fit(X)


@pytest.mark.parametrize("model", [MPTProbabilisticPCA(1), MPTMixture(1)])
def test_lists_of_many_columns_end_with_dots(model):
    X = np.random.default_rng(0).normal(size=(20, 40))
    X[:, :30] = np.nan
    shown = r"column\(s\) \[0, 1, 2[^.\]]*, \.\.\.\] of X are missing"
    with pytest.raises(ValueError, match=shown):
        model.fit(X)


def test_names_are_shown_as_they_are_written():
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame({f"column {j}": [np.nan] * 5 for j in range(30)})
    X["complete"] = [1.0, 2.0, 3.0, 4.0, 7.0]
    with pytest.raises(
        ValueError, match=r"\['column 0', .*, \.\.\.\] of X are missing"
    ):
        MPTProbabilisticPCA(1).fit(X)


def test_the_imputer_names_a_few_of_many_columns_that_it_does_not_model():
    pd = pytest.importorskip("pandas")
    numbers = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 2)))
    numbers.columns = ["x", "y"]
    table = numbers.assign(**{f"empty{j}": np.nan for j in range(30)})
    with pytest.warns(UserWarning, match=r"'empty9', \.\.\. \(no values\)"):
        MPTImputer(max_models=1).fit(table)
