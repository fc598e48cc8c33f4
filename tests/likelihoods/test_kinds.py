"""What every kind of column must be: a distribution, its derivatives, its draws."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from kinds import KINDS, LINEAR_KINDS
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.integrate import trapezoid
from scipy.special import expit, log_softmax

from sklearn_mpt import MPTDeepVAE, MPTLinearVAE, MPTMaskedAutoencoder, MPTMixture
from sklearn_mpt._likelihoods import Columns, Likelihood

N_LEVELS = {"categorical": 3, "ordinal": 4, "partial_credit": 4}
AMOUNTS = np.geomspace(1e-9, 1e6, 40001)
VALUES = {
    "gaussian": np.linspace(-40, 40, 40001),
    "interval": np.linspace(-40, 40, 40001),
    "lognormal": AMOUNTS,
    "poisson": np.arange(300.0),
    "negative_binomial": np.arange(3000.0),
    "bernoulli": np.arange(2.0),
    "categorical": np.arange(3.0),
    "ordinal": np.arange(4.0),
    "partial_credit": np.arange(4.0),
}
DENSITIES = ("gaussian", "interval", "lognormal")


def columns_of(*kinds):
    """A likelihood of such columns; its shape parameters are not the first ones."""
    columns = Columns(kinds, [N_LEVELS.get(kind, 1) for kind in kinds])
    rng = np.random.default_rng(1)
    shape_params = rng.normal(scale=0.5, size=len(columns.shape_params)) - 0.4
    return columns.at(torch.from_numpy(shape_params))


def draws(kind, n_draws, location, likelihood):
    uniform = np.random.default_rng(0).random((n_draws, 1))
    places = location.expand(n_draws, -1)
    return likelihood.draw(places, torch.from_numpy(uniform))


@pytest.fixture(params=LINEAR_KINDS)
def kind(request):
    return request.param


@pytest.fixture
def likelihood(kind):
    return columns_of(kind)


@pytest.fixture
def location(likelihood):
    size = len(likelihood.feature_of)
    return torch.from_numpy(np.random.default_rng(2).normal(scale=0.7, size=(1, size)))


def test_probabilities_add_up_to_one(kind, likelihood, location):
    values = VALUES[kind]
    log_prob = likelihood.entry_log_prob(torch.from_numpy(values)[:, None], location)
    prob = log_prob[:, 0].exp().numpy()
    if kind not in DENSITIES:
        assert_allclose(prob.sum(), 1)
        return
    assert_allclose(trapezoid(prob, values), 1, rtol=1e-5)


def test_log_probabilities_are_those_of_scipy():
    """Of the columns of a table, whose parts stand in another order."""
    kinds = ("ordinal", "negative_binomial", "lognormal", "categorical", "bernoulli")
    likelihood = columns_of(*kinds, "gaussian", "poisson")
    location = np.random.default_rng(3).normal(size=9)
    X = np.array([[0, 0, 2.0, 2, 0, -2, 3], [3, 7, 0.1, 0, 1, 1, 0]])
    found = likelihood.entry_log_prob(torch.from_numpy(X), torch.from_numpy(location))
    attributes = likelihood.shape_attributes(np.ones(7))
    size, mean = 1 / attributes["dispersion_"][1].item(), np.exp(location)
    deviation = attributes["noise_variance_"].sqrt().numpy()
    above = expit(location[0] + attributes["thresholds_"][0].numpy())
    levels, codes = -np.diff([1, *above, 0]), X.astype(int)
    expected = [
        np.log(levels[codes[:, 0]]),
        stats.nbinom.logpmf(X[:, 1], size, size / (size + mean[1])),
        stats.lognorm.logpdf(X[:, 2], deviation[2], scale=mean[2]),
        log_softmax(location[3:6])[codes[:, 3]],
        stats.bernoulli.logpmf(X[:, 4], expit(location[6])),
        stats.norm.logpdf(X[:, 5], location[7], deviation[5]),
        stats.poisson.logpmf(X[:, 6], mean[8]),
    ]
    assert_allclose(found.numpy().T, expected)


def test_automatic_derivatives_are_those_that_kinds_know(kind, likelihood, location):
    """Of entries in locations and shape parameters; and pairs are sums of entries."""
    X, part = draws(kind, 30, location, likelihood), likelihood.parts[0]
    places = location + torch.linspace(-1, 1, 30).double()[:, None]
    slope, information = Likelihood.derivatives(part, X, places)
    assert not slope.requires_grad
    assert (information >= 0).all()
    assert_allclose(slope, part.derivatives(X, places)[0], atol=1e-10)
    for x, at, diagonal in zip(X, places, information, strict=True):
        hessian = torch.autograd.functional.hessian(
            lambda one: part.entry_log_prob(x, one).sum(),  # noqa: B023
            at,
        )
        assert torch.linalg.eigvalsh(hessian).max() <= 1e-12  # it is concave
        excess = torch.diag(diagonal) + hessian  # 0 if there is one location
        assert torch.linalg.eigvalsh(excess).min() >= -1e-12
        assert excess.abs().max() < 1e-12 or part.n_locations > 1
    scores = Likelihood.shape_scores(part, X, places)
    assert_allclose(scores, part.shape_scores(X, places), atol=1e-10)
    observed = (torch.arange(30) % 3 > 0).double()[:, None]
    args = X * observed, observed, places
    pairs = Likelihood.pair_log_prob(part, *args)
    assert_allclose(pairs, part.pair_log_prob(*args), atol=1e-10)


def test_draws_are_distributed_as_said(kind, likelihood, location):
    n_draws = 20000
    drawn = draws(kind, n_draws, location, likelihood)[:, 0].numpy()
    values = torch.from_numpy(VALUES[kind])[:, None]
    prob = likelihood.entry_log_prob(values, location)[:, 0].exp().numpy()
    values = VALUES[kind]
    if kind not in DENSITIES:
        counts = np.bincount(drawn.astype(int), minlength=len(values))[: len(values)]
        error = np.sqrt(prob * (1 - prob) / n_draws)
        assert (np.abs(counts / n_draws - prob) < 5 * error + 1e-4).all()
        return
    width = np.diff(values)
    level = np.concatenate([[0], np.cumsum(width * (prob[1:] + prob[:-1]) / 2)])
    result = stats.kstest(drawn, lambda x: np.interp(x, values, level))
    assert result.pvalue > 1e-3


COUNTS = [kind for kind in ("poisson", "negative_binomial") if kind in KINDS]


@pytest.mark.parametrize("kind", COUNTS)
@pytest.mark.parametrize("log_mean", [7.0, 9.3, 14.0, 25.0, 35.0, 50.0])
def test_draws_of_large_counts_have_mean_and_spread_of_their_kind(kind, log_mean):
    """NaN from means of 1e11 on with quantiles of scipy, and slow from 1e6 on."""
    likelihood = columns_of(kind)
    location = torch.full((1, 1), log_mean).double()
    drawn, mean = draws(kind, 2000, location, likelihood).numpy(), np.exp(log_mean)
    dispersion = (
        0.0
        if kind == "poisson"
        else likelihood.shape_attributes(np.ones(1))["dispersion_"].item()
    )
    spread = np.sqrt(mean + dispersion * mean**2)
    assert np.isfinite(drawn).all()
    assert (drawn >= 0).all()
    assert_array_equal(drawn, np.round(drawn))
    assert abs((drawn - mean).mean()) < 4 * spread / np.sqrt(2000)
    assert_allclose(drawn.std(), spread, rtol=0.15)


@pytest.mark.parametrize("kind", COUNTS)
def test_draws_of_large_counts_have_the_quantiles_of_scipy(kind):
    """Where scipy has them: beyond the means from which other formulas are used."""
    likelihood, mean = columns_of(kind), 2e6
    level = torch.tensor([[1e-6], [0.01], [0.3], [0.5], [0.9], [1 - 1e-6]]).double()
    location = torch.full((1, 1), np.log(mean)).double()
    drawn = likelihood.draw(location, level)[:, 0]
    if kind == "poisson":
        law = stats.poisson(mean)
    else:
        size = 1 / likelihood.shape_attributes(np.ones(1))["dispersion_"].item()
        law = stats.nbinom(size, size / (size + mean))
    expected = law.ppf(level[:, 0].numpy())
    assert_allclose(drawn, expected, rtol=1e-5, atol=0.01 * law.std())


@pytest.mark.parametrize("kind", ["lognormal"])
def test_amounts_are_filled_in_with_what_is_expected(kind, likelihood, location):
    drawn = draws(kind, 100000, location, likelihood)
    filled = likelihood.fill(likelihood.mean(location))
    assert_allclose(filled.item(), drawn.mean(), rtol=0.05)


@pytest.mark.parametrize("kind", ["ordinal", "partial_credit"])
def test_levels_are_filled_in_with_medians(kind, likelihood):
    """No other level is nearer on average."""
    for location in torch.linspace(-4, 4, 9).double().reshape(-1, 1):
        values = torch.arange(4.0).double()[:, None]
        prob = likelihood.entry_log_prob(values, location)[:, 0].exp()
        steps = (values - values.T).abs() @ prob
        filled = likelihood.fill(likelihood.mean(location))
        assert steps[int(filled)] == pytest.approx(steps.min().item())


def some_rows(kinds, n_rows, seed=0):
    """Rows of a model of one component with gaps, and the likelihood behind them."""
    likelihood, rng = columns_of(*kinds), np.random.default_rng(seed)
    size = len(likelihood.feature_of)
    location = rng.normal(size=(n_rows, 1)) * np.linspace(1.2, 0.6, size) + 0.2
    uniform = torch.from_numpy(rng.random((n_rows, len(kinds))))
    X = likelihood.draw(torch.from_numpy(location), uniform).numpy()
    return np.where(rng.random(X.shape) < 0.1, np.nan, X), likelihood


MIXED = ["ordinal", "partial_credit", "lognormal", "negative_binomial"]


def log_prob_at(theta, X, likelihood):
    """By a fixed rule of quadrature, of coefficients and shape parameters in a row."""
    z, weight = np.polynomial.hermite_e.hermegauss(60)
    z = torch.from_numpy(z)[:, None]
    size = len(likelihood.feature_of)
    slopes, intercept, shape_params = theta.split([size, size, len(theta) - 2 * size])
    entries = likelihood.at(shape_params).entry_log_prob(
        X.nan_to_num()[:, None], z * slopes + intercept
    )
    joint = torch.where(X.isnan()[:, None], 0.0, entries).sum(2)
    return torch.logsumexp(joint + torch.from_numpy(weight / weight.sum()).log(), 1)


@pytest.mark.parametrize(
    "kinds",
    [
        MIXED,
        ["categorical", "lognormal", "bernoulli", "poisson"],
        ["ordinal", "categorical", "bernoulli", "bernoulli"],  # rows share nodes
    ],
)
def test_a_fit_comes_to_the_maximum_of_the_likelihood(kinds):
    X, _ = some_rows(kinds, 80)
    model = MPTLinearVAE(
        1, likelihood=kinds, objective="lml", tol=1e-5, slope_prior=None, random_state=0
    ).fit(X)
    joint = model._model._joint_of(vars(model), "cpu")
    rows, likelihood = torch.from_numpy(X), joint.likelihood
    parts = [joint.components[0], joint.intercept, likelihood.shape_params.detach()]
    theta = torch.cat(parts).clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [theta], max_iter=100, line_search_fn="strong_wolfe", tolerance_change=1e-10
    )

    def closure():
        optimizer.zero_grad()
        loss = -log_prob_at(theta, rows, likelihood).mean()
        loss.backward()
        return loss

    first = closure().item()
    optimizer.step(closure)
    assert_allclose(-first, model.score(X), atol=1e-4)
    assert first - closure().item() < 5e-4


def test_standard_errors_have_the_shapes_of_the_attributes():
    X, _ = some_rows(MIXED, 100)
    model = MPTLinearVAE(1, likelihood=MIXED, random_state=0, tol=1e-3).fit(X)
    errors = model.standard_errors(X)
    for name in ("thresholds", "dispersion", "noise_variance"):
        values, found = getattr(model, f"{name}_"), errors[name]
        assert found.shape == values.shape
        assert (np.isnan(found) == np.isnan(values)).all()
    assert (
        errors.thresholds[:2, 0] == [0, pytest.approx(errors.thresholds[1, 0])]
    ).all()
    assert errors.dispersion[3] > 0


def moods(n_rows=60):
    rng = np.random.default_rng(0)
    z = rng.normal(size=n_rows)
    names = np.array(["bad", "fair", "good"])
    level = (z[:, None] + 0.5 * rng.normal(size=(n_rows, 1)) > [-0.5, 0.5]).sum(1)
    categories = [*names, "splendid"]
    mood = pd.Categorical(names[level], categories=categories, ordered=True)
    return pd.DataFrame({"mood": mood, "size": z}), categories


@pytest.mark.filterwarnings("ignore:Maximum iterations")
@pytest.mark.parametrize("kind", ["ordinal", "partial_credit"])
def test_levels_of_an_array_start_at_the_least(kind):
    """Answers 1 to 5 have five levels, as in a DataFrame."""
    codes = np.random.default_rng(0).integers(0, 5, size=(80, 3)).astype(float)
    settings = {"likelihood": kind, "max_iter": 3, "random_state": 0}
    first = MPTLinearVAE(1, **settings).fit(codes)
    for X in (codes + 1, pd.DataFrame(codes + 1)):
        model = MPTLinearVAE(1, **settings).fit(X)
        assert [known.tolist() for known in model.categories_] == [[1, 2, 3, 4, 5]] * 3
        assert_allclose(model.score(X), first.score(codes), rtol=1e-9)


def test_ordered_categories_are_ordinal_with_levels_that_no_row_has():
    table, categories = moods()
    model = MPTLinearVAE(1, likelihood="from_dtype", random_state=0, tol=1e-2)
    model.fit(table)
    assert model.likelihoods_ == ["ordinal", "gaussian"]
    assert model.categories_[0].tolist() == categories
    best = table.iloc[[0]].assign(mood=pd.Categorical(["splendid"], categories))
    score = model.conditional_log_prob(best, np.array([True, False]))[0, 0]
    assert -20 < score < -3
    other = pl.DataFrame(
        {
            "mood": pl.Series(table["mood"].tolist(), dtype=pl.Enum(categories)),
            "size": table["size"].to_numpy(),
        }
    )
    again = MPTLinearVAE(1, likelihood="from_dtype", random_state=0, tol=1e-2)
    again.fit(other)
    assert_allclose(again.thresholds_, model.thresholds_)
    gap = other.with_columns(pl.lit(None, dtype=pl.Enum(categories)).alias("mood"))
    filled = again.impute(gap)
    assert filled["mood"].dtype == pl.Enum(categories)


def test_strings_have_no_order():
    table = pd.DataFrame({"mood": ["bad", "good"] * 5, "size": np.arange(10.0)})
    with pytest.raises(TypeError, match="Column 'mood' holds strings, which have no"):
        MPTLinearVAE(1, likelihood={"mood": "ordinal"}).fit(table)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("lognormal", -1.0),
        ("negative_binomial", 1.5),
    ],
)
def test_values_that_a_kind_does_not_take_are_named(kind, value):
    X = np.column_stack([np.arange(1.0, 9), np.arange(8.0)])
    X[3, 0] = value
    with pytest.raises(ValueError, match=f"Column 0: likelihood='{kind}' .* {value:g}"):
        MPTLinearVAE(1, likelihood={0: kind}).fit(X)


def test_fitted_attributes_are_initial_arrays():
    X, _ = some_rows(MIXED, 60)
    model = MPTLinearVAE(1, likelihood=MIXED, random_state=0, max_iter=2)
    with pytest.warns(UserWarning, match="Maximum iterations"):
        model.fit(X)
    names = ("components", "intercept", "noise_variance", "dispersion", "thresholds")
    init = {name: getattr(model, f"{name}_") for name in names}
    same = MPTLinearVAE(1, likelihood=MIXED, init=init, max_iter=0).fit(X)
    assert_allclose(same.score_samples(X), model.score_samples(X))
    wrong = init | {"thresholds": -init["thresholds"] - 1}
    with pytest.raises(ValueError, match="of column 0, which is 'ordinal', must"):
        MPTLinearVAE(1, likelihood=MIXED, init=wrong, max_iter=0).fit(X)


@pytest.mark.parametrize("kind", ["ordinal", "partial_credit"])
@pytest.mark.filterwarnings("ignore:Maximum iterations")
def test_nets_take_all_kinds(kind):
    kinds = [kind, "lognormal", "lognormal", "negative_binomial"]
    X, _ = some_rows(kinds, 80)
    for model in (
        MPTDeepVAE(1, hidden_layer_sizes=(4,), likelihood=kinds, max_iter=0),
        MPTMaskedAutoencoder(hidden_layer_sizes=(4,), likelihood=kinds, max_iter=1),
    ):
        model.set_params(random_state=0, early_stopping=False)
        model.fit(X)
        assert np.isfinite(model.score_samples(X[:5])).all()
        filled = model.impute(X, method="sample", random_state=0)
        assert (filled >= 0).all()
        assert (filled[:, 1:3] > 0).all()


def test_mixtures_name_the_kinds_that_they_take():
    table, _ = moods()
    with pytest.raises(ValueError, match="'interval', 'from_dtype', got 'ord"):
        MPTMixture(2, likelihood={"mood": "ordinal"}).fit(table)
    model = MPTMixture(2, likelihood="from_dtype", random_state=0).fit(table)
    assert model.likelihoods_ == ["categorical", "gaussian"]


def values_of_kinds(n_rows=300):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "number": rng.normal(size=n_rows),
            "age": rng.integers(18, 90, n_rows),
            "scale": rng.integers(1, 6, n_rows),
            "visits": rng.poisson(3, n_rows),
            "calls": rng.negative_binomial(1, 0.1, n_rows),
            "income": np.exp(10 + rng.normal(size=n_rows)),
            "member": rng.integers(0, 2, n_rows),
            "place": rng.choice(list("abc"), n_rows),
        }
    )


@pytest.mark.filterwarnings("ignore:Maximum iterations")
def test_deep_models_of_all_kinds_at_once_have_the_noise_of_each():
    table = values_of_kinds().iloc[:100, :6]
    kinds = ["gaussian"] * 3 + ["poisson", "negative_binomial", "lognormal"]
    params = {"hidden_layer_sizes": (4,), "early_stopping": False, "random_state": 0}
    model = MPTDeepVAE(likelihood=kinds, max_iter=1, **params).fit(table)
    has_noise = np.isin(kinds, ["gaussian", "lognormal"])
    assert_array_equal(np.isfinite(model.noise_variance_), has_noise)


def test_dtypes_refuse_strings_that_are_all_distinct_unless_named():
    table = values_of_kinds().iloc[:30]
    table = table.assign(who=[f"person {i}" for i in range(30)], number=np.arange(30))
    likelihood = {"who": "categorical", ...: "from_dtype"}
    MPTLinearVAE(1, likelihood=likelihood, max_iter=0).fit(table)
    with pytest.raises(ValueError, match="Column 'who' holds 30 values, all distinct"):
        MPTLinearVAE(1, likelihood="from_dtype", max_iter=0).fit(table)
    MPTLinearVAE(1, likelihood="from_dtype", max_iter=0).fit(table.drop(columns="who"))


def test_a_dict_says_what_the_other_columns_are():
    table = values_of_kinds()
    likelihood = {"visits": "poisson", "income": "lognormal", ...: "from_dtype"}
    model = MPTLinearVAE(1, likelihood=likelihood, max_iter=0).fit(table)
    expected = ["gaussian"] * 7 + ["categorical"]
    expected[3], expected[5] = "poisson", "lognormal"
    assert model.likelihoods_ == expected
