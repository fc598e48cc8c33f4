import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import stats

import sklearn_mpt
from sklearn_mpt import check_masked_model, lml_samples, mpt_curve


@pytest.fixture
def good(known):
    return known[0].conditional_log_prob


def test_right_models_pass(known):
    model, X = known
    check_masked_model(model, X)
    check_masked_model(model.conditional_log_prob, X)
    X[np.random.default_rng(0).random(X.shape) < 0.3] = np.nan
    check_masked_model(model, X)


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


def test_rows_are_named_as_in_the_table_if_others_have_gaps(known, good):
    X = known[1]
    X[:16, 0] = np.nan
    with pytest.raises(ValueError, match=r"of row 1[6-9] changed from"):
        mpt_curve(reads_hidden(good), X, random_state=0)


def test_text_is_no_log_probability(known):
    with pytest.raises(TypeError, match="must be real numbers, got dtype"):
        check_masked_model(lambda X, mask: np.full(X.shape, "a"), known[1])
    with pytest.raises(TypeError, match=r"conditional_log_prob\(X, mask\)"):
        check_masked_model("model", known[1])
    with pytest.raises(ValueError, match="n_masks must be an int in the range"):
        check_masked_model(lambda X, mask: X, known[1], n_masks=0)


def bernoulli(power, probability=0.3):
    def conditional(X, mask):
        log_prob = np.log(np.where(np.asarray(X) == 1, probability, 1 - probability))
        return np.where(mask, power * log_prob, 0.0)

    return conditional


def poisson(power):
    def conditional(X, mask):
        log_prob = stats.poisson(2.0).logpmf(np.asarray(X, dtype=float))
        return np.where(mask, power * log_prob, 0.0)

    return conditional


BINARY = np.random.default_rng(0).integers(0, 2, (30, 3)).astype(float)
COUNTS = np.random.default_rng(0).poisson(2.0, (30, 3)).astype(float)


def test_discrete_columns_add_up_to_one():
    check_masked_model(bernoulli(1.0), BINARY)
    check_masked_model(poisson(1.0), COUNTS)
    check_masked_model(poisson(1.0), np.minimum(COUNTS, 1))  # 2, 3, ... were not seen
    density = stats.norm(0.5, 0.4).logpdf
    check_masked_model(lambda X, mask: np.where(mask, density(X), 0.0), BINARY)

    def amounts(X, mask):
        """Zero with probability 0.2, else lognormal; negative ones are refused."""
        assert np.min(X) >= 0
        log_prob = np.log(0.8) + stats.lognorm(0.6).logpdf(np.where(X > 0, X, 1.0))
        return np.where(mask, np.where(X > 0, log_prob, np.log(0.2)), 0.0)

    check_masked_model(amounts, COUNTS)
    with pytest.raises(ValueError, match="must be normalised"):
        check_masked_model(lambda X, mask: 0.7 * amounts(X, mask), COUNTS)


@pytest.mark.parametrize("power", [2 / 3, 1.5])
def test_log_probabilities_that_are_scaled_are_named(power):
    total = 0.3**power + 0.7**power
    message = f"of feature . of row 0 add up to {total:.6g} over its values"
    with pytest.raises(ValueError, match=message):
        check_masked_model(bernoulli(power), BINARY)
    with pytest.raises(ValueError, match="must be normalised: the probabilities of"):
        check_masked_model(poisson(power), COUNTS)
    frame = pd.DataFrame(BINARY == 1, columns=list("abc"))
    with pytest.raises(ValueError, match=r"over its values \[(0|False|1|True)"):
        check_masked_model(bernoulli(power), frame)


def test_categories_that_were_not_seen_may_be_missing():
    def model(power):
        shares = {"a": 0.5, "b": 0.3, "c": 0.2}

        def conditional(X, mask):
            entries = np.asarray(X, dtype=object)
            log_prob = np.log(np.vectorize(shares.get)(entries).astype(float))
            return np.where(mask, power * log_prob, 0.0)

        return conditional

    frame = pd.DataFrame({"x": ["a", "b"] * 4, "y": ["b", "a"] * 4})
    check_masked_model(model(1.0), frame)
    with pytest.raises(ValueError, match=r"over its values \['[ab]', '[ab]'\]"):
        check_masked_model(model(0.5), frame)


def test_conditionals_of_no_joint_are_no_error(known):
    model, X = known
    check_masked_model(model, X)

    def no_joint(X, mask):
        visible = np.where(mask, 0.0, X) @ np.triu(np.ones((6, 6)), 1)
        return np.where(mask, -0.5 * (X - visible) ** 2 - 1, 0.0)

    check_masked_model(no_joint, X)


# Torch modules


class Module(torch.nn.Module):
    """Logits of binary features, from the visible ones; with dropout."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        weight = torch.linspace(-1, 1, 9, dtype=dtype).reshape(3, 3)
        self.weight = torch.nn.Parameter(weight)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, X, mask):
        assert X.dtype == self.weight.dtype
        assert not torch.is_grad_enabled()
        visible = torch.where(mask, 0.0, 2 * X - 1) @ self.weight
        logits = self.dropout(visible)
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        return -loss(logits, X, reduction="none") * mask


def test_a_torch_module_is_taken_as_it_is():
    module = Module()
    weight = module.weight.detach().numpy().astype(float)

    def same(X, mask):
        logits = np.where(mask, 0.0, 2 * X - 1) @ weight
        return np.where(mask, -np.log1p(np.exp(np.where(X == 1, -1, 1) * logits)), 0.0)

    options = {"n_orders": 3, "random_state": 0}
    expected = lml_samples(same, BINARY, **options)
    assert_allclose(lml_samples(module, BINARY, **options), expected, rtol=1e-5)
    assert module.training
    assert module.dropout.training
    assert module.weight.grad is None
    module.eval()
    assert_allclose(lml_samples(module, BINARY, **options), expected, rtol=1e-5)
    exact = Module(torch.float64).eval()
    assert_allclose(lml_samples(exact, BINARY, **options), expected, rtol=1e-7)
    check_masked_model(module, BINARY, random_state=0)
    assert isinstance(mpt_curve(module, BINARY, random_state=0).lml, float)


def test_a_method_of_a_torch_module_comes_first():
    class WithMethod(Module):
        def conditional_log_prob(self, X, mask):
            return 0 * self(X, mask) - np.log(2) * mask.to(X)

    value = lml_samples(WithMethod(), BINARY, n_orders=1)
    assert_allclose(value, -3 * np.log(2), rtol=1e-6)


def test_a_module_that_cannot_be_copied_must_be_in_evaluation_mode():
    module = Module()
    module.state = module.weight * 2  # has a gradient, and no copy
    with pytest.raises(TypeError, match=r"training mode .* call its method eval\(\)"):
        lml_samples(module, BINARY)
    assert lml_samples(module.eval(), BINARY).shape == (30,)


def test_what_was_called_is_said():
    def of_three_dimensions(X, mask):
        return np.concatenate([X, mask[:, None, None]], axis=1)

    with pytest.raises(ValueError, match="same number of dimensions") as raised:
        lml_samples(of_three_dimensions, BINARY)
    first, second = raised.value.__notes__
    assert "a boolean mask of shape (3,)" in first
    assert "a mask for each row instead, of shape (30, 3), it raised Val" in second


def test_gaps_that_a_model_reads_are_named():
    X = BINARY.copy()
    X[4, 1] = np.nan
    with pytest.raises(ValueError, match=r"\[1\] of that row are missing \(NaN\): a"):
        lml_samples(lambda X, m: np.where(m, -(X @ ~m)[:, None], 0), X)


@pytest.mark.parametrize("name", ["lml_samples", "mpt_curve", "feature_contributions"])
@pytest.mark.parametrize("as_frame", [False, True])
def test_measures_refuse_outputs_of_binary_nets_that_are_no_log_probs(name, as_frame):
    """Logits instead of log-probabilities, and powers of probabilities."""
    X = pd.DataFrame(BINARY == 1, columns=list("abc")) if as_frame else BINARY
    measure = getattr(sklearn_mpt, name)

    def logits(X, mask):
        signs = 2 * np.asarray(X, dtype=float) - 1
        visible = np.where(mask, 0.0, signs).sum(axis=1)[:, None]
        return np.where(mask, 3.0 * signs + 0.5 * visible, 0.0)

    for wrong in (logits, bernoulli(0.5), bernoulli(2.0)):
        with pytest.raises(ValueError, match=r"must be normalised.* add up to"):
            measure(wrong, X)
    measure(bernoulli(1.0), X)
    density = stats.norm(0.5, 0.4).logpdf
    if not as_frame:
        measure(lambda X, mask: np.where(mask, density(X), 0.0), X)
        measure(poisson(1.0), np.minimum(COUNTS, 1))


def test_noise_of_calls_is_no_lack_of_normalisation():
    rng = np.random.default_rng(0)

    def by_samples(X, mask):
        error = 0.3 * rng.normal(size=np.shape(X))
        return bernoulli(1.0)(X, mask) + np.where(mask, error, 0.0)

    assert np.isfinite(mpt_curve(by_samples, BINARY, random_state=0).lml)


def test_a_tuple_is_refused_by_name(good, known):
    def logits_and_loss(X, mask):
        return good(X, mask), 0.5

    for measure in (check_masked_model, mpt_curve, lml_samples):
        with pytest.raises(TypeError, match="alone, got a tuple of 2"):
            measure(logits_and_loss, known[1])


@pytest.mark.parametrize("wrong", [0, 7, 19])
def test_every_discrete_column_is_added_up(wrong):
    """One mask hides all of them."""
    X = np.random.default_rng(0).integers(0, 2, (30, 20)).astype(float)
    share = np.full(20, 0.5)
    share[wrong] = 0.4

    def model(X, mask):
        return np.where(mask, np.log(share), 0.0) * np.ones(X.shape)

    with pytest.raises(ValueError, match=f"feature {wrong} of row 0 add up to 0.8"):
        check_masked_model(model, X, n_masks=1)
