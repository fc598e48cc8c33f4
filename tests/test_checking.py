import numpy as np
import pandas as pd
import pytest
import torch

from sklearn_mpt import MPTProbabilisticPCA, check_masked_model


@pytest.fixture
def good(known):
    return known[0].conditional_log_prob


def test_right_models_pass(known):
    model, X = known
    check_masked_model(model, X)
    check_masked_model(model.conditional_log_prob, X)
    X[np.random.default_rng(0).random(X.shape) < 0.3] = np.nan
    check_masked_model(model, X)


def test_a_model_of_a_data_frame_passes(known):
    frame = pd.DataFrame(known[1], columns=list("abcdef"))
    check_masked_model(MPTProbabilisticPCA(max_iter=0).fit(frame), frame)


def test_a_torch_function_with_parameters_passes(known):
    weight = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))

    def module(X, mask):
        X, mask = torch.as_tensor(X), torch.as_tensor(mask)
        return torch.where(mask, -((X - weight) ** 2), 0.0)

    check_masked_model(module, known[1])


def reads_hidden(good):
    def model(X, mask):
        return good(X, mask) + np.where(mask, X[:, [2]] * mask[2], 0.0)

    return model


def noisy(good):
    rng = np.random.default_rng(0)
    return lambda X, mask: good(X, mask) + np.where(mask, rng.normal(size=X.shape), 0)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            lambda good: lambda X, mask: good(X, mask) + 1.0,
            r"got 1 instead of 0 at the visible feature \d of row 0, for the mask that",
        ),
        (
            lambda good: lambda X, mask: good(X, mask).sum(1),
            r"one value per entry of X, of shape \(20, 6\), got \(20,\) for the mask",
        ),
        (
            lambda good: lambda X, mask: np.where(mask, np.nan * X, 0.0),
            r"must be finite, got nan at feature 0 of row 0, for the mask that hides",
        ),
        (noisy, r"feature 0 of row 0 changed from -?[\d.]+ to -?[\d.]+ in a second"),
        (
            lambda good: lambda X, mask: good(X, mask) - np.where(mask, X.max(), 0.0),
            r"feature 0 of row 0 changed from .* to .* without the other rows, for",
        ),
        (
            reads_hidden,
            r"changed from .* when the hidden values of the features \[.*2.*\] changed",
        ),
    ],
)
def test_broken_rules_are_named(known, good, bad, message):
    with pytest.raises(ValueError, match=message):
        check_masked_model(bad(good), known[1])


def test_a_missing_entry_with_a_value_is_named(known, good):
    X = known[1]
    X[3, 1] = np.nan
    with pytest.raises(ValueError, match="0 at a missing feature 1 of row 3"):
        check_masked_model(lambda X, m: np.where(m, -1.0, 0.0) + 0 * good(X, m), X)


def test_text_is_no_log_probability(known):
    with pytest.raises(TypeError, match="must be real numbers, got dtype"):
        check_masked_model(lambda X, mask: np.full(X.shape, "a"), known[1])
    with pytest.raises(TypeError, match=r"conditional_log_prob\(X, mask\)"):
        check_masked_model("model", known[1])
    with pytest.raises(ValueError, match="n_masks == 0, must be >= 1"):
        check_masked_model(lambda X, mask: X, known[1], n_masks=0)
