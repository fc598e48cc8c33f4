"""Conditional Shapley values, and the packages that take what this one gives."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from sklearn_mpt import ConditionalMasker, LMLComparison, MPTProbabilisticPCA

WEIGHTS = np.array([1.0, -2.0, 0.5, 3.0])


def predict(rows):
    return rows @ WEIGHTS


@pytest.fixture
def masker():
    components = np.array([[1.0, 1.0, 0.5, -1.0]])
    start = {"components": components, "mean": np.ones(4), "noise_variance": 0.5}
    X = np.zeros((5, 4))
    model = MPTProbabilisticPCA(1, init=start, max_iter=0).fit(X)
    return ConditionalMasker(model, n_samples=4000, random_state=0)


X_ROW = np.array([2.0, 0.5, 1.0, -1.0])


def shapley(model):
    """Shapley values of the linear predictor, from conditional means."""
    values, orders = np.zeros(4), list(permutations(range(4)))
    for order in orders:
        row = np.full(4, np.nan)
        before = predict(model.impute(row[None]))[0]
        for j in order:
            row[j] = X_ROW[j]
            after = predict(model.impute(row[None]))[0]
            values[j] += (after - before) / len(orders)
            before = after
    return values


def test_draws_are_those_of_the_conditional_distribution(masker):
    visible = np.array([True, False, False, True])
    (drawn,) = masker(visible, X_ROW)
    assert_allclose(drawn[:, visible], np.tile(X_ROW[visible], (4000, 1)))
    mean = masker.model.impute(np.where(visible, X_ROW, np.nan)[None])[0]
    error = drawn.std(axis=0) / np.sqrt(4000)
    assert (np.abs(drawn.mean(axis=0) - mean) <= 4 * error + 1e-12).all()
    assert_allclose(masker(visible, X_ROW)[0], drawn)
    assert_allclose(masker(True, X_ROW)[0], np.tile(X_ROW, (4000, 1)))
    assert masker.shape(X_ROW) == (4000, 4)


def test_the_game_is_the_mean_prediction(masker):
    sets = np.array([[True] * 4, [False] * 4, [True, False, True, False]])
    values = masker.game(predict, X_ROW)(sets)
    expected = [predict(masker(own, X_ROW)[0]).mean() for own in sets]
    assert_allclose(values, expected)
    with pytest.raises(TypeError, match=r"method impute\(X, method='sample'"):
        ConditionalMasker(predict)


@pytest.mark.filterwarnings("ignore")  # those of other packages
def test_shap_takes_the_masker(masker):
    shap = pytest.importorskip("shap")
    explainer = shap.explainers.Exact(predict, masker)
    explanation = explainer(X_ROW[None])
    assert_allclose(explanation.values[0], shapley(masker.model), atol=0.15)
    total = explanation.values.sum() + explanation.base_values
    assert_allclose(total, predict(X_ROW))


@pytest.mark.filterwarnings("ignore")  # those of other packages
def test_shapiq_takes_the_game(masker):
    shapiq = pytest.importorskip("shapiq")
    computer = shapiq.ExactComputer(n_players=4, game=masker.game(predict, X_ROW))
    values = computer("SV").get_n_order_values(1)
    assert_allclose(values, shapley(masker.model), atol=0.15)


@pytest.mark.filterwarnings("ignore")  # those of other packages
def test_arviz_takes_the_rows():
    stats = pytest.importorskip("arviz_stats")
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2, 50)) - np.array([[1.0], [1.4]])
    mean, zero = rows.mean(axis=1), np.zeros(2)
    table = LMLComparison(["b", "a"], mean, zero, mean - mean[0], zero, rows)
    compared = stats.compare(table.to_arviz())
    assert list(compared.index) == ["b", "a"]
    difference = rows[0] - rows[1]
    assert_allclose(np.abs(compared["elpd_diff"].iloc[1]), difference.sum(), rtol=0.1)


def test_draws_of_a_model_of_a_table_come_without_warnings():
    X = np.random.default_rng(0).normal(size=(50, 3))
    models = (
        MPTProbabilisticPCA(1, random_state=0).fit(rows)
        for rows in (X, pd.DataFrame(X, columns=list("abc")))
    )
    drawn = [
        ConditionalMasker(model, n_samples=4, random_state=0)([True, False, True], x)[0]
        for model, x in zip(models, (X[0], pd.Series(X[0], list("abc"))), strict=True)
    ]
    assert_allclose(*drawn)
