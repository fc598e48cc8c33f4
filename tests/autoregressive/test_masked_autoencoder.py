"""The masked autoencoder against enumeration of all masks, orders and rows."""

import functools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from reference import terms_of_orders
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt import (
    MPTImputer,
    MPTMaskedAutoencoder,
    compare_lml,
    feature_contributions,
)
from sklearn_mpt._optim.masks import RowMasks

# a few epochs are enough for most tests
pytestmark = pytest.mark.filterwarnings("ignore:Maximum iterations")

SMALL = {
    "hidden_layer_sizes": (16,),
    "n_orders": 4,
    "n_mixtures": 3,
    "max_iter": 12,
    "batch_size": 32,
    "random_state": 0,
    "device": "cpu",
}


def binary_rows(n_features=4):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(200, 1))
    return (rng.random((200, n_features)) < 1 / (1 + np.exp(-2 * z))).astype(float)


@functools.cache
def fitted():
    return MPTMaskedAutoencoder(likelihood="bernoulli", **SMALL).fit(binary_rows())


def with_gaps(X):
    gaps = np.random.default_rng(2).random(X.shape) < 0.3
    gaps[0] = True
    return np.where(gaps, np.nan, X)


def test_units_of_amounts_shift_their_density_alone():
    rng = np.random.default_rng(0)
    X = np.exp(rng.normal(size=(150, 1)) + 0.5 * rng.normal(size=(150, 3)))
    scale = np.array([1e-6, 1e6, 1e3])
    # which epoch validation rows keep may be decided by rounding
    make = MPTMaskedAutoencoder(likelihood="lognormal", early_stopping=False, **SMALL)
    given, other = clone(make).fit(X), clone(make).fit(X * scale)
    log_prob = other.score_samples(X * scale) + (X > 0) @ np.log(scale)
    assert_allclose(log_prob, given.score_samples(X), atol=1e-3)


def outputs_of(net, inputs):
    """What a net of one block returns, written again."""

    def normalised(h):
        centred = h - h.mean(1, keepdims=True)
        return centred / np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + 1e-5)

    state = {name: tensor.double().numpy() for name, tensor in net.state_dict().items()}

    def layer(name, h):
        return h @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    h = layer("first", inputs)
    h = h + layer("leave.0", np.maximum(layer("enter.0", normalised(h)), 0))
    return layer("last", normalised(h))


def moments_of_factors(model, rows):
    """Means and deviations of columns given visible others, of standardised rows."""
    coefs, noise = model._linear[0], np.exp(model._linear[1])
    covariance = coefs[:, :-1] @ coefs[:, :-1].T + np.diag(noise)
    mean, deviation = np.empty((2, *rows.shape))
    for i, j in np.ndindex(rows.shape):
        seen = ~np.isnan(rows[i]) & (np.arange(len(noise)) != j)
        gain = np.linalg.solve(covariance[np.ix_(seen, seen)], covariance[seen, j])
        mean[i, j] = coefs[j, -1] + (rows[i] - coefs[:, -1])[seen] @ gain
        deviation[i, j] = np.sqrt(covariance[j, j] - covariance[seen, j] @ gain)
    return mean, deviation


def by_hand(model, X, given, shift, scale):
    """log p(x_j | given) and expectations, of all columns."""
    seen = ~np.isnan(given)
    if model.likelihood == "bernoulli":
        inputs = np.hstack([np.where(seen, 2 * given - 1, 0), seen])
        logits = outputs_of(model.module_, inputs)
        signs = np.where(X == 1, -logits, logits)
        return -np.logaddexp(0, signs), 1 / (1 + np.exp(-logits))
    given, X = (given - shift) / scale, (X - shift) / scale
    mean, deviation = moments_of_factors(model, given)
    inputs = np.hstack([np.where(seen, given, mean), seen])
    outputs = outputs_of(model.module_, inputs).reshape(*X.shape, 3, -1)
    logits, centres, widths = outputs.transpose(2, 3, 0, 1)
    centres = mean + deviation * centres
    widths = np.sqrt((deviation * np.exp(widths)) ** 2 + 0.003**2)
    log_weights = logits - logsumexp(logits, axis=0)
    log_prob = logsumexp(log_weights + norm.logpdf(X, centres, widths), axis=0)
    expected = (np.exp(log_weights) * centres).sum(0)
    return log_prob - np.log(scale), expected * scale + shift


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_values_are_those_of_the_net_by_hand(likelihood):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 1)) + 0.5 * rng.normal(size=(80, 3)) + [0.0, 5.0, -1.0]
    X = X if likelihood == "gaussian" else (X > np.median(X, 0)).astype(float)
    how = {**SMALL, "max_iter": 4, "n_orders": 3, "learning_rate": 0.05}
    model = MPTMaskedAutoencoder(likelihood=likelihood, **how).fit(X)
    units = X.mean(0), X.std(0)

    def conditional(X, mask):
        log_prob, _ = by_hand(model, X, np.where(mask, np.nan, X), *units)
        return np.where(mask & ~np.isnan(X), log_prob, 0.0)

    rows, mask = X[:4].copy(), np.array([True, True, False])
    rows[[1, 2], [2, 0]] = np.nan
    found = model.conditional_log_prob(rows, mask)
    assert_allclose(found, conditional(rows, mask), atol=1e-6)
    along = terms_of_orders(conditional, rows, model.orders_).sum(2)
    score = logsumexp(along, axis=0) - np.log(3)
    assert_allclose(model.score_samples(rows), score, atol=1e-6)
    _, expected = by_hand(model, rows, rows, *units)
    filled = np.where(np.isnan(rows), expected, rows)
    assert_allclose(model.impute(rows), filled, rtol=1e-6)


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
    model = fitted()
    assert model.score(X) > start.fit(X).score(X) + 0.1
    weight = np.where(X[:, 0] == 1, 1.0, 0.0)
    ones = clone(model).fit(X, sample_weight=weight)
    given = clone(model).fit(X[X[:, 0] == 1])
    assert_array_equal(ones.score_samples(X[:5]), given.score_samples(X[:5]))
    gappy = clone(model).fit(with_gaps(X))
    assert np.isfinite(gappy.score(with_gaps(X)))


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
    X = np.random.default_rng(0).normal(size=(120, 3))
    model = MPTMaskedAutoencoder(**SMALL | {"learning_rate": 1e30})
    with pytest.warns(ConvergenceWarning, match="Training diverged"):
        model.fit(X)
    assert np.isfinite(model.score_samples(X)).all()


def test_it_stands_among_the_others():
    model, X = fitted(), binary_rows()[:25]
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
        ("mask_rate", 9, ValueError, r"mask_rate must .* an int .* 4\]"),
        ("validation_fraction", 1.5, ValueError, "validation_fraction"),
        ("likelihood", "normal", ValueError, "likelihood must be one of"),
    ],
)
def test_bad_parameters_are_refused_by_name(parameter, value, error, message):
    settings = {"likelihood": "bernoulli", **SMALL, parameter: value}
    with pytest.raises(error, match=message):
        MPTMaskedAutoencoder(**settings).fit(binary_rows())
