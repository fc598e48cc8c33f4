"""The masked autoencoder against enumeration of all masks, orders and rows."""

import copy
import functools
from itertools import permutations, product

import numpy as np
import pytest
import torch
from kinds import KINDS as ALL_KINDS
from numpy.testing import assert_allclose, assert_array_equal
from reference import masked_score, terms_of_orders
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt import (
    MPTImputer,
    MPTMaskedAutoencoder,
    check_masked_model,
    compare_lml,
    feature_contributions,
    lml_samples,
    mpt_curve,
)
from sklearn_mpt._likelihoods import Columns
from sklearn_mpt._measure.masks import read_blocks
from sklearn_mpt._optim.masks import RowMasks

# a few epochs are enough for most tests
pytestmark = pytest.mark.filterwarnings("ignore:Maximum iterations")

KINDS = ["bernoulli", "gaussian", "categorical", "poisson", "gaussian"]
SMALL = {
    "hidden_layer_sizes": (16,),
    "n_orders": 4,
    "n_mixtures": 3,
    "max_iter": 12,
    "batch_size": 32,
    "random_state": 0,
    "device": "cpu",
}


def mixed_rows():
    rng = np.random.default_rng(0)
    z = rng.normal(size=120)
    return np.column_stack([
        z > 0,
        z + 0.3 * rng.normal(size=120),
        rng.integers(0, 3, 120),
        rng.poisson(np.exp(0.5 * z)),
        3 - 2 * z + rng.normal(size=120),
    ]).astype(float)  # fmt: skip


def binary_rows(n_features=4):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(200, 1))
    return (rng.random((200, n_features)) < 1 / (1 + np.exp(-2 * z))).astype(float)


CASES = {
    "binary": ("bernoulli", binary_rows()),
    "numbers": ("gaussian", mixed_rows()[:, [1, 4, 3]]),
    "mixed": (KINDS, mixed_rows()),
}


@functools.cache
def fit_once(name):
    likelihood, X = CASES[name]
    return MPTMaskedAutoencoder(likelihood=likelihood, **SMALL).fit(X)


@pytest.fixture(params=CASES)
def case(request):
    name = request.param
    return copy.deepcopy(fit_once(name)), CASES[name][1][:25].copy()


def with_gaps(X):
    gaps = np.random.default_rng(2).random(X.shape) < 0.3
    gaps[0] = True
    return np.where(gaps, np.nan, X)


def along(model, X, order):
    """Log-probability of rows along one order, by the contract."""
    total, hidden = np.zeros(len(X)), np.ones(X.shape[1], dtype=bool)
    for j in order:
        total += model.conditional_log_prob(X, hidden)[:, j]
        hidden[j] = False
    return total


EVERY = np.array(list(product([0.0, 1.0], repeat=4)))


def test_every_order_sums_to_one_and_so_does_their_mixture():
    model = fit_once("binary")
    orders = list(permutations(range(4)))
    each = np.stack([along(model, EVERY, order) for order in orders])
    assert_allclose(np.exp(each).sum(1), 1, rtol=1e-12)
    assert_allclose(np.exp(model.score_samples(EVERY)).sum(), 1, rtol=1e-12)
    assert each.std(0).max() > 1e-6  # orders are different models


def test_the_score_is_the_mixture_of_the_fitted_orders(case):
    model, X = case
    for rows in (X, with_gaps(X)):
        each = np.stack([along(model, rows, order) for order in model.orders_])
        mixture = logsumexp(each, 0) - np.log(len(each))
        assert_allclose(model.score_samples(rows), mixture, atol=1e-10)


def test_the_curve_is_the_mean_over_all_orders():
    model = fit_once("binary")
    each = np.stack([along(model, EVERY, order) for order in permutations(range(4))])
    masks = [np.array(m, bool) for m in product([0, 1], repeat=4) if any(m)]
    scores = {size: [] for size in range(1, 5)}
    for mask in masks:
        score = masked_score(model.conditional_log_prob(EVERY, mask), mask)
        scores[mask.sum()].append(score)
    total = sum(np.mean(of_size, axis=0) for of_size in scores.values())
    assert_allclose(total, each.mean(0), atol=1e-10)
    assert (each.mean(0) <= logsumexp(each, 0) - np.log(24) + 1e-12).all()
    bound, error = lml_samples(model, EVERY, n_orders=24, return_std=True)
    assert_allclose(bound, each.mean(0), atol=1e-10 + 4 * error.max())
    curve = mpt_curve(model, EVERY, n_masks=40, random_state=0)
    assert abs(curve.lml - each.mean()) < 5 * curve.lml_std_error + 1e-9


def test_conditionals_of_numbers_integrate_to_one_in_the_units_of_the_column():
    model, X = fit_once("mixed"), CASES["mixed"][1]
    for feature in (1, 4):
        grid = np.linspace(-60, 60, 6001)
        rows = np.repeat(X[:1], len(grid), 0)
        rows[:, feature] = grid
        mask = np.isin(np.arange(5), [feature, 0])
        density = np.exp(model.conditional_log_prob(rows, mask)[:, feature])
        assert abs(np.trapezoid(density, grid) - 1) < 1e-6
    for feature, values in ((0, [0, 1]), (2, [0, 1, 2]), (3, range(80))):
        rows = np.repeat(X[:1], len(values), 0)
        rows[:, feature] = values
        log_prob = model.conditional_log_prob(rows, np.arange(5) == feature)
        assert_allclose(np.exp(log_prob[:, feature]).sum(), 1, rtol=1e-8)


def test_units_of_amounts_shift_their_density_alone():
    rng = np.random.default_rng(0)
    X = np.exp(rng.normal(size=(150, 1)) + 0.5 * rng.normal(size=(150, 3)))
    scale = np.array([1e-6, 1e6, 1e3])
    # which epoch validation rows keep may be decided by rounding
    make = MPTMaskedAutoencoder(likelihood="lognormal", early_stopping=False, **SMALL)
    given, other = clone(make).fit(X), clone(make).fit(X * scale)
    log_prob = other.score_samples(X * scale) + (X > 0) @ np.log(scale)
    assert_allclose(log_prob, given.score_samples(X), atol=1e-3)


def test_draws_have_the_frequencies_of_the_density():
    model = fit_once("binary")
    drawn = model.sample(20000, random_state=0)
    share = np.array([(drawn == row).all(1).mean() for row in EVERY])
    prob = np.exp(model.score_samples(EVERY))
    z = (share - prob) / np.sqrt(prob * (1 - prob) / 20000)
    assert np.abs(z).max() < 4.5


def test_expected_values_are_those_of_the_conditionals():
    model, X = fit_once("mixed"), CASES["mixed"][1][:6]
    grid = np.linspace(-60, 60, 6001)
    gappy = X.copy()
    gappy[:, 1] = np.nan
    filled = model.impute(gappy)
    for i in range(len(X)):
        rows = np.repeat(X[i : i + 1], len(grid), 0)
        rows[:, 1] = grid
        density = np.exp(model.conditional_log_prob(rows, np.arange(5) == 1)[:, 1])
        assert abs(np.trapezoid(density * grid, grid) - filled[i, 1]) < 1e-5
    draws = np.mean(
        [model.impute(gappy, "sample", random_state=s)[:, 1] for s in range(100)], 0
    )
    assert np.abs(draws - filled[:, 1]).max() < 0.35  # of a deviation of about 1


def test_the_contract_holds(case):
    model, X = case
    check_masked_model(model, np.vstack([with_gaps(X), X]))
    nothing = np.full((2, X.shape[1]), np.nan)
    assert_array_equal(model.score_samples(nothing), 0.0)


def test_hook_gives_what_the_contract_gives(case):
    model, X = case
    d = X.shape[1]
    orders = np.random.default_rng(0).random((3, d)).argsort(1)
    own = np.random.default_rng(0).random((2, len(X), d)).argsort(2)
    for rows in (X, with_gaps(X)):
        for some in (orders, own):
            by_loop = terms_of_orders(model.conditional_log_prob, rows, some)
            assert_allclose(model.chain_log_prob(rows, some), by_loop, atol=1e-12)


def test_numbers_do_not_depend_on_batch_or_memory(case):
    from sklearn import config_context

    model, X = case
    X = with_gaps(X)
    score, filled = model.score_samples(X), model.impute(X, "sample", random_state=3)
    for i in (0, 3, 9):
        assert_allclose(model.score_samples(X[i : i + 1]), score[i : i + 1], rtol=1e-9)
    with config_context(working_memory=0):
        assert_allclose(model.score_samples(X), score, rtol=1e-10)
        again = model.impute(X, "sample", random_state=3)
        assert_allclose(again, filled, rtol=1e-9)


@pytest.mark.parametrize("case", ["mixed"], indirect=True)
def test_fits_are_reproducible_and_leave_torch_alone(case):
    model, X = case
    model.set_params(early_stopping=False, max_iter=3)  # two rows may prefer the start
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    again, other = clone(model).fit(X), clone(model).set_params(random_state=1).fit(X)
    same = clone(model).fit(X)
    assert_array_equal(again.score_samples(X), same.score_samples(X))
    assert (again.score_samples(X) != other.score_samples(X)).any()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_masks_have_the_weights_that_sum_to_the_log_density():
    """The mean over masks of weight times hidden is 1 over the number of sizes."""
    generator = torch.Generator().manual_seed(0)
    present = torch.ones(4000, 5, dtype=torch.bool)
    present[:, 4] = False
    hidden, weight = RowMasks("uniform", 5).draw(present, generator)
    size = (hidden & present).sum(1)
    assert not (hidden & ~present).any()
    counts = torch.bincount(size, minlength=5)[1:]
    assert (counts - 1000).abs().max() <= 1  # stratified
    assert_allclose(weight * size, 4.0)
    for rate, expected in ((0.4, 2), (3, 3), (0.01, 1)):
        hidden, weight = RowMasks(rate, 5).draw(present, generator)
        assert (hidden.sum(1) == expected).all()
        assert_allclose(weight, 5 / expected)


def test_masks_of_blocks_hide_whole_blocks():
    generator = torch.Generator().manual_seed(0)
    present = torch.ones(3000, 6, dtype=torch.bool)
    blocks = read_blocks([0, 0, 1, 1, 2, 2], range(6))
    hidden, weight = RowMasks(4, 6, blocks).draw(present, generator)
    pairs = hidden.view(-1, 3, 2)
    assert (pairs.all(2) == pairs.any(2)).all()
    assert_allclose(pairs.all(2).double().mean(0), 2 / 3, atol=0.04)
    assert_allclose(weight, 1.5)
    hidden, weight = RowMasks("uniform", 6, blocks).draw(present, generator)
    counts = torch.bincount(hidden.sum(1), minlength=7)[1:]
    assert (counts - 500).abs().max() <= 1
    half = hidden.view(-1, 3, 2).sum(2) == 1
    assert (half.sum(1) == hidden.sum(1) % 2).all()
    present[:, 0] = False
    hidden, _ = RowMasks("uniform", 6, blocks).draw(present, generator)
    assert not hidden[:, 0].any()


def test_a_net_that_is_trained_on_blocks_knows_no_partner_in_them():
    """Of two equal columns that are hidden together, none predicts the other."""
    x = np.random.default_rng(0).integers(0, 2, (400, 2)).astype(float)
    X, mask = x[:, [0, 0, 1, 1]], np.array([True, False, False, False])
    options = {
        "likelihood": "bernoulli",
        "hidden_layer_sizes": (16,),
        "max_iter": 15,
        "mask_rate": 2,
        "random_state": 0,
    }
    score = [
        MPTMaskedAutoencoder(mask_blocks=blocks, **options)
        .fit(X)
        .conditional_log_prob(X, mask)[:, 0]
        .mean()
        for blocks in (None, [0, 0, 1, 1])
    ]
    assert score[0] > -0.3
    assert score[1] < -0.6


def test_sizes_are_stratified_over_the_rows_of_each_batch():
    present = torch.ones(40, 5, dtype=torch.bool)
    generator = torch.Generator().manual_seed(0)
    hidden, _ = RowMasks("uniform", 5).draw(present, generator, n_batches=4)
    for sizes in hidden.sum(1).split(10):
        assert_array_equal(sizes.bincount(), [0, 2, 2, 2, 2, 2])


def test_the_linear_model_is_fitted_with_gaps():
    rng = np.random.default_rng(0)
    W = rng.normal(size=(6, 2))
    X = rng.normal(size=(3000, 2)) @ W.T + 0.5 * rng.normal(size=(3000, 6))
    gaps = np.where(rng.random(X.shape) < 0.3, np.nan, X)
    start = SMALL | {"max_iter": 0, "n_orders": 1, "n_mixtures": 1}
    model = MPTMaskedAutoencoder(**start).fit(gaps)
    best = multivariate_normal(X.mean(0), np.cov(X.T, bias=True)).logpdf(X[:500])
    assert best.mean() - model.score(X[:500]) < 0.05


def test_few_rows_do_not_make_columns_functions_of_each_other():
    """Of three rows, densities of new ones were thousands of nats too low."""
    scores = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(103, 1)) + 0.2 * rng.normal(size=(103, 6))
        model = MPTMaskedAutoencoder(**SMALL | {"random_state": seed}).fit(X[:3])
        scores.append(model.score(X[3:]))
    assert np.mean(scores) > -1000


@pytest.mark.slow
def test_few_rows_are_hardly_worse_than_columns_alone():
    """Of columns that tell nothing of each other; they lost 59, 30 and 15 nats."""
    # with 5 rows, of 14 seeds, .2 to 28 nats by one set of draws of dropout
    for n_rows, bar in ((5, 6), (8, 3), (12, 3)):
        losses = []
        for seed in range(2):
            X = np.random.default_rng(seed).normal(size=(105, 5))
            train, test = X[:n_rows], X[n_rows : n_rows + 90]
            model = MPTMaskedAutoencoder(random_state=seed).fit(train)
            scale = train.std(0) * np.sqrt(1 + 1 / n_rows)
            alone = norm.logpdf(test, train.mean(0), scale).sum(1).mean()
            losses.append(alone - model.score(test))
        assert np.mean(losses) < bar


@pytest.mark.slow
def test_columns_of_few_entries_are_hardly_worse_than_alone():
    """30 entries of 300 rows; they lost 1.6 nats."""
    losses = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X, test = rng.normal(size=(300, 3)), rng.normal(size=(500, 3))
        X[30:, 2] = np.nan
        model = MPTMaskedAutoencoder(random_state=seed).fit(X)
        found = model.conditional_log_prob(test, np.array([False, False, True]))
        x = X[:30, 2]
        alone = norm.logpdf(test[:, 2], x.mean(), x.std() * np.sqrt(1 + 1 / 30))
        losses.append(np.mean(alone - found[:, 2]))
    assert np.mean(losses) < 1


def test_two_modes_are_learned_where_a_linear_model_sees_none():
    rng = np.random.default_rng(0)
    t = rng.uniform(0, 2 * np.pi, 600)
    X = np.column_stack([np.cos(t), np.sin(t)]) + 0.1 * rng.normal(size=(600, 2))
    model = MPTMaskedAutoencoder(
        hidden_layer_sizes=(64,), max_iter=15, random_state=0
    ).fit(X)
    rows = np.array([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    left, middle, right = model.conditional_log_prob(rows, np.array([True, False]))[
        :, 0
    ]
    assert min(left, right) > middle + np.log(5)


def test_few_distinct_values_are_sharp_and_warned_of():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 2, 300), rng.normal(size=300)]).astype(float)
    with pytest.warns(UserWarning, match=r"Column\(s\) \[0\] of X have conditionals"):
        model = MPTMaskedAutoencoder(
            hidden_layer_sizes=(),
            dropout=0.0,
            max_iter=60,
            learning_rate=0.03,
            early_stopping=False,
            random_state=0,
        ).fit(X)
    on, off = np.array([[0.0, 0.0]]), np.array([[0.5, 0.0]])
    mask = np.array([True, False])
    at = [model.conditional_log_prob(row, mask)[0, 0] for row in (on, off)]
    assert at[0] > at[1] + 3


def test_ten_distinct_values_are_ten_spikes():
    """A column of ten values, whose parity the other column tells."""
    values = np.random.default_rng(0).permutation(np.arange(300) % 10)
    X = np.column_stack([values, values % 2]).astype(float)
    model = MPTMaskedAutoencoder(
        likelihood=["gaussian", "bernoulli"],
        hidden_layer_sizes=(16,),
        n_mixtures=10,
        dropout=0.0,
        max_iter=30,
        early_stopping=False,
        random_state=0,
    )
    with pytest.warns(UserWarning, match=r"Column\(s\) \[0\] of X have conditionals"):
        model.fit(X)
    at, between = np.arange(10.0), np.arange(9) + 0.5
    rows = np.column_stack([np.r_[at, between], np.ones(19)])
    mask = np.array([True, False])
    marginal = model.conditional_log_prob(rows, [True, True])[:, 0]
    given_odd = model.conditional_log_prob(rows, mask)[:, 0]
    assert marginal[:10].min() > marginal[10:].max() + 5
    assert given_odd[1:10:2].min() > max(given_odd[:10:2].max(), given_odd[10:].max())
    # spikes are narrow, so the grid is fine
    grid = np.linspace(-1, 10, 110001)
    rows = np.column_stack([grid, np.ones_like(grid)])
    density = np.exp(model.conditional_log_prob(rows, mask)[:, 0])
    assert abs(np.trapezoid(density, grid) - 1) < 1e-6


def test_training_gains_and_weights_count():
    X = binary_rows()
    start = MPTMaskedAutoencoder(likelihood="bernoulli", **SMALL | {"max_iter": 0})
    model = fit_once("binary")
    assert model.score(X) > start.fit(X).score(X) + 0.1
    weight = np.where(X[:, 0] == 1, 1.0, 0.0)
    ones = clone(model).fit(X, sample_weight=weight)
    assert_array_equal(ones.score_samples(X[:5]), _of_rows(model, X[X[:, 0] == 1], X))
    gappy = clone(model).fit(with_gaps(X))
    assert np.isfinite(gappy.score(with_gaps(X)))


def _of_rows(model, rows, X):
    return clone(model).fit(rows).score_samples(X[:5])


def test_the_last_epochs_train_on_validation_rows():
    """They are a fifth of those before, and not for fits that go on later."""
    settings = SMALL | {"max_iter": 400, "n_iter_no_change": 3}
    model = MPTMaskedAutoencoder(likelihood="bernoulli", **settings)
    X = binary_rows(2)
    apart, joined = (
        clone(model).set_params(warm_start=w).fit(X) for w in (True, False)
    )
    n_epochs = apart.n_iter_
    assert joined.n_iter_ == int(1.2 * n_epochs) > n_epochs
    assert joined.loss_curve_[:n_epochs] == apart.loss_curve_
    assert (joined.score_samples(X[:5]) != apart.score_samples(X[:5])).any()


def test_divergence_keeps_finite_parameters():
    likelihood, X = CASES["numbers"]
    model = MPTMaskedAutoencoder(
        likelihood=likelihood, **SMALL | {"learning_rate": 1e30}
    )
    with pytest.warns(ConvergenceWarning, match="Training diverged"):
        model.fit(X)
    assert np.isfinite(model.score_samples(X)).all()


@pytest.mark.parametrize("case", ["mixed"], indirect=True)
def test_it_stands_among_the_others(case):
    model, X = case
    assert model.transform(X).shape == (len(X), 16)
    assert len(model.get_feature_names_out()) == 16
    assert not hasattr(model, "inverse_transform")
    filled = MPTImputer(clone(model)).fit_transform(with_gaps(X))
    assert np.isfinite(np.asarray(filled, float)).all()
    contributions = feature_contributions(model, X, n_orders=3)
    assert contributions.shape == X.shape
    other = clone(model).set_params(max_iter=0).fit(X)
    names = compare_lml({"trained": model, "start": other}, X).names
    assert sorted(names) == ["start", "trained"]
    module = model.module_
    assert sum(p.numel() for p in module.parameters()) > 16


def test_data_frames_keep_their_kinds():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({
        "income": rng.normal(size=80),
        "party": pd.Categorical(rng.choice(["left", "right", "none"], 80)),
        "votes": rng.random(80) < 0.5,
    }).astype({"votes": "boolean"})  # fmt: skip
    gappy = frame.mask(rng.random(frame.shape) < 0.2)
    model = MPTMaskedAutoencoder(likelihood="from_dtype", **SMALL).fit(gappy)
    filled = model.impute(gappy)
    assert not filled.isna().any().any()
    assert filled.dtypes.equals(frame.dtypes)
    assert set(model.sample(20)["party"]) <= {"left", "right", "none"}


@pytest.mark.parametrize(
    ("parameter", "value", "error", "message"),
    [
        ("hidden_layer_sizes", "many", ValueError, "hidden_layer_sizes must be one of"),
        ("hidden_layer_sizes", 3, TypeError, "hidden_layer_sizes must be a sequence"),
        ("hidden_layer_sizes", (0,), ValueError, "hidden_layer_sizes must be an int"),
        ("n_mixtures", 0, ValueError, "'n_mixtures' .* Got 0"),
        ("n_orders", 0, ValueError, "'n_orders' .* Got 0"),
        ("dropout", 1.0, ValueError, r"'dropout' .* \[0\.0, 1\.0\). Got 1\.0"),
        ("dropout", -0.1, ValueError, r"'dropout' .* Got -0\.1"),
        ("mask_rate", 9, ValueError, r"1\.\.n_features=4"),
        ("validation_fraction", 1.5, ValueError, "validation_fraction"),
        ("likelihood", "normal", ValueError, "likelihood must be one of"),
    ],
)
def test_bad_parameters_are_refused_by_name(parameter, value, error, message):
    settings = {"likelihood": "bernoulli", **SMALL, parameter: value}
    with pytest.raises(error, match=message):
        MPTMaskedAutoencoder(**settings).fit(binary_rows())


def test_the_recipe_is_smooth_and_bounded():
    def recipe(n_rows, n_features):
        X = np.random.default_rng(0).integers(0, 2, (n_rows, n_features))
        return MPTMaskedAutoencoder(likelihood="bernoulli", max_iter=0).fit(X)

    for n_rows, n_features in ((10, 1), (300, 16), (2000, 180), (300, 2000)):
        one, more = recipe(n_rows, n_features), recipe(int(1.1 * n_rows), n_features)
        width, wider = one.hidden_layer_sizes_[0], more.hidden_layer_sizes_[0]
        assert 64 <= width <= wider <= min(512, width + 32)
        assert 0.5 >= one.dropout_ >= more.dropout_ >= 0.02


def test_columns_that_hold_what_is_no_value_are_named():
    X = mixed_rows()
    X[3, 3] = -1.0
    with pytest.raises(ValueError, match="likelihood='poisson' takes counts"):
        MPTMaskedAutoencoder(likelihood=KINDS, **SMALL).fit(X)
    assert Columns(KINDS, [1, 1, 3, 1, 1]).n_categories == (1, 1, 3, 1, 1)


ANY_KIND = {
    "bernoulli": [0.0, 1.0],
    "categorical": [0.0, 1.0, 2.0],
    "ordinal": [0.0, 1.0, 2.0],
    "partial_credit": [0.0, 1.0, 2.0],
    "poisson": np.arange(200.0),
    "negative_binomial": np.arange(4000.0),
    "gaussian": np.linspace(-40, 60, 20001),
    "lognormal": np.exp(np.linspace(-30, 30, 20001)),
}


def test_columns_of_every_kind_have_conditionals_that_sum_to_one():
    assert set(ANY_KIND) == set(ALL_KINDS)
    rng = np.random.default_rng(0)
    level = rng.normal(size=150)
    columns = {
        kind: rng.poisson(np.exp(0.3 * level))
        if "poisson" in kind or "negative" in kind
        else np.clip(np.round(level + 1), 0, len(values) - 1)
        if len(values) < 4
        else np.exp(level + rng.normal(size=150))
        for kind, values in ANY_KIND.items()
    }
    X, kinds = np.column_stack(list(columns.values())).astype(float), list(ANY_KIND)
    model = MPTMaskedAutoencoder(
        likelihood=kinds, **SMALL | {"max_iter": 4, "learning_rate": 0.02}
    )
    model.fit(with_gaps(X))
    assert np.isfinite(model.impute(with_gaps(X), "sample", random_state=0)).all()
    before = MPTMaskedAutoencoder(likelihood=kinds, **SMALL | {"max_iter": 0}).fit(X)
    assert model.score(X) > before.score(X) + 0.1
    for j, (kind, values) in enumerate(ANY_KIND.items()):
        rows = np.repeat(X[:1], len(values), 0)
        rows[:, j] = values
        mask = np.isin(np.arange(X.shape[1]), [j, 0])
        prob = np.exp(model.conditional_log_prob(rows, mask)[:, j])
        is_density = kind in ("gaussian", "lognormal")
        total = np.trapezoid(prob, values) if is_density else prob.sum()
        assert_allclose(total, 1, atol=2e-3, err_msg=kind)
    # a level of an ordered column enters by the steps up to it
    head = model._density_of(vars(model), "cpu").module.heads[
        sorted(kinds).index("ordinal")
    ]
    steps = head.inputs(torch.tensor([[0.0], [1.0], [2.0]]))
    assert_array_equal(steps, [[-1, -1], [1, -1], [1, 1]])


def two_layers(n_inputs, n_outputs):
    inner = torch.nn.Linear(n_inputs, 8), torch.nn.Tanh()
    return torch.nn.Sequential(*inner, torch.nn.Linear(8, n_outputs))


@pytest.mark.parametrize("net", [None, two_layers])
def test_conditionals_of_one_column_are_among_those_of_all(net):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(60, 2))
    X = np.hstack([z, z > 0, np.digitize(z, [-1, 0, 1]), np.exp(z)])
    kinds = np.repeat(["gaussian", "ordinal", "ordinal", "lognormal"], 2).tolist()
    params = SMALL | {"max_iter": 1, "hidden_layer_sizes": (8,)}
    model = MPTMaskedAutoencoder(likelihood=kinds, net=net, **params).fit(X)
    each = [along(model, with_gaps(X), order) for order in model.orders_]
    mixture = logsumexp(each, 0) - np.log(len(each))
    assert_allclose(model.score_samples(with_gaps(X)), mixture, atol=1e-10)


def test_the_last_layer_has_the_outputs_of_the_column_that_is_asked(monkeypatch):
    model, X = fit_once("mixed"), CASES["mixed"][1][:5]
    density = model._density_of(vars(model), "cpu")
    monkeypatch.setattr(density.module.net, "forward", None)  # no pass with all outputs
    with torch.no_grad():
        assert density.lml(torch.from_numpy(X))[0].isfinite().all()
