"""One protocol for all models: what generic code may rely on.

A new model adds one line to MODELS, a factory of an unfitted estimator and rows, and
one to KEEPS_PROTOCOL, an estimator for the checks of scikit-learn.
"""

import copy
import functools
import inspect
import pickle
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from reference import all_masks, masked_score, scores_of_masks, terms_of_orders
from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning, InconsistentVersionWarning
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import sklearn_mpt
from sklearn_mpt import (
    MPTDeepVAE,
    MPTDependencyNetwork,
    MPTImputer,
    MPTItemResponse,
    MPTLinearVAE,
    MPTMaskedAutoencoder,
    MPTMixture,
    MPTProbabilisticPCA,
    MPTScorer,
    mpt_curve,
)
from sklearn_mpt._likelihoods import Bernoulli


def real_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2)) @ rng.normal(size=(2, 5))
    return X + 0.5 * rng.normal(size=X.shape)


def binary_rows():
    return (real_rows() > 0).astype(float)


MODELS = {
    "ppca": (lambda: MPTProbabilisticPCA(max_iter=20, random_state=0), real_rows()),
    "gaussian linear vae": (
        lambda: MPTLinearVAE(max_iter=20, random_state=0),
        real_rows(),
    ),
    "bernoulli linear vae": (
        lambda: MPTLinearVAE(likelihood="bernoulli", max_iter=20, random_state=0),
        binary_rows(),
    ),
    "gaussian deep vae": (
        lambda: MPTDeepVAE(
            hidden_layer_sizes=(4,), early_stopping=False, max_iter=6, random_state=0
        ),
        real_rows(),
    ),
    "bernoulli deep vae": (
        lambda: MPTDeepVAE(
            hidden_layer_sizes=(8,),
            likelihood="bernoulli",
            early_stopping=False,
            max_iter=9,
            random_state=0,
        ),
        binary_rows(),
    ),
    "mixture": (lambda: MPTMixture(2, max_iter=20, random_state=0), real_rows()),
    "latent classes": (
        lambda: MPTMixture(2, likelihood="bernoulli", max_iter=20, random_state=0),
        binary_rows(),
    ),
    "items": (
        lambda: MPTItemResponse(n_components=2, max_iter=20, random_state=0),
        binary_rows(),
    ),
    "masked autoencoder": (
        lambda: MPTMaskedAutoencoder(
            hidden_layer_sizes=(8,), n_mixtures=2, max_iter=4, random_state=0
        ),
        real_rows(),
    ),
    "network of numbers": (
        lambda: MPTDependencyNetwork(
            regressor=RandomForestRegressor(5, min_samples_leaf=3), random_state=0
        ),
        real_rows(),
    ),
    "network of booleans": (
        lambda: MPTDependencyNetwork(
            RandomForestClassifier(5), likelihood="bernoulli", random_state=0
        ),
        binary_rows(),
    ),
}
# models whose conditionals belong to no joint distribution
CONDITIONALS_ONLY = "masked autoencoder", "network of numbers", "network of booleans"
# models with the optional methods of the contract
HAS_MOMENTS = "ppca", "gaussian linear vae"
HAS_CHAINS = *HAS_MOMENTS, *CONDITIONALS_ONLY


ACCURACY = {
    "exact": 1e-10,
    "quadrature": 1e-3,
    "importance": 0.05,
}  # in nats, by lml_method_
FEW = 4  # rows that are scored by importance sampling, which takes long


def quiet_fit(model, X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X)


def few(name):
    """Return rows of a model, few where their integrals take long."""
    X = MODELS[name][1]
    return X[:FEW] if "deep" in name else X


@functools.cache
def fit_once(name):
    factory, X = MODELS[name]
    return quiet_fit(factory(), X)


# Scores of deep models take long: one of the two is enough for what models share.
NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name == "bernoulli deep vae" else name
    for name in MODELS
]


@pytest.fixture(params=NAMES)
def case(request):
    """A fitted model, and some of its rows, which a test may change."""
    return copy.deepcopy(fit_once(request.param)), few(request.param).copy()


@pytest.fixture(params=[n for n in NAMES if n not in CONDITIONALS_ONLY])
def joint(request):
    """As `case`, if the conditionals belong to one joint distribution."""
    return copy.deepcopy(fit_once(request.param)), few(request.param).copy()


@pytest.fixture
def model(case):
    return case[0]


def skip_without(model, method):
    """Skip a test of a method, or of a parameter, that a model does not have."""
    if not hasattr(model, method):
        pytest.skip(f"{type(model).__name__} has no {method}")


@pytest.fixture
def X(case):
    return case[1]


@pytest.fixture
def mask(X):
    mask = np.random.default_rng(1).random(X.shape) < 0.5
    mask[0], mask[1] = True, False
    return mask


def with_gaps(X):
    gaps = np.random.default_rng(2).random(X.shape) < 0.3
    gaps[0] = True
    return np.where(gaps, np.nan, X)


class OfSigns(Bernoulli):
    @staticmethod
    def check_rows(X):
        """Signs are taken later."""


class BySigns:
    """A model of the signs of any rows: scikit-learn's checks draw real ones."""

    def _likelihood(self):
        return OfSigns()

    def _read_rows(self, X, reset=False, min_samples=1):
        X = super()._read_rows(X, reset, min_samples)
        return np.where(np.isnan(X), X, X > 0).astype(X.dtype)


class ItemSigns(BySigns, MPTItemResponse):
    def _check_values(self, X):
        """Signs are taken later."""


class MaskedTable(MPTMaskedAutoencoder):
    """A table of any rows, whose first column is a sign."""

    def _read_rows(self, X, reset=False, min_samples=1):
        X = np.array(super()._read_rows(X, reset, min_samples))
        X[:, 0] = np.where(np.isnan(X[:, 0]), np.nan, X[:, 0] > 0)
        return X


def failures_expected_of(estimator):
    if isinstance(estimator, MPTDeepVAE | MPTMaskedAutoencoder):
        reason = "minibatches are drawn of rows, not of their copies"
    elif isinstance(estimator, MPTDependencyNetwork):
        reason = "masks are drawn for rows, not for their copies"
    elif isinstance(estimator, MPTMixture) and estimator.objective == "mpt":
        reason = "covariances of fewer rows than columns warn"
    else:
        return {}
    return {"check_sample_weight_equivalence_on_dense_data": reason}


KEEPS_PROTOCOL = [
    MPTProbabilisticPCA(max_iter=5),
    MPTLinearVAE(max_iter=5),
    MPTDeepVAE(1, hidden_layer_sizes=(8,), n_importance_samples=16, max_iter=1),
    MaskedTable(
        likelihood={0: "bernoulli"},
        hidden_layer_sizes=(8,),
        n_mixtures=1,
        n_orders=1,
        max_iter=1,
    ),
    MPTMixture(max_iter=5),
    ItemSigns(max_iter=3),
    MPTDependencyNetwork(regressor=RandomForestRegressor(1, min_samples_leaf=3)),
    MPTImputer(max_models=1),
]


@parametrize_with_checks(KEEPS_PROTOCOL, expected_failed_checks=failures_expected_of)
def test_scikit_learn_protocol(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)


def public_estimators():
    """Names of all estimators that the package offers."""
    public = {name: getattr(sklearn_mpt, name) for name in sklearn_mpt.__all__}
    return [
        name
        for name, c in public.items()
        if inspect.isclass(c) and issubclass(c, BaseEstimator)
    ]


def test_every_estimator_of_rows_is_checked():
    """`MPTScorer` takes texts, which these checks do not draw."""
    estimators = {getattr(sklearn_mpt, name) for name in public_estimators()}
    models = [factory() for factory, _ in MODELS.values()]
    for checked, missing in (
        (KEEPS_PROTOCOL, {MPTScorer}),
        (models, {MPTScorer, MPTImputer}),  # one models no rows, one takes a model
    ):
        found = {base for estimator in checked for base in type(estimator).__mro__}
        assert estimators - found == missing


@pytest.mark.parametrize("name", public_estimators())
def test_attributes_of_an_unfitted_estimator_exist_or_do_not(name):
    """`dir`, `inspect` and scikit-learn's tags ask for all, and expect no error."""
    estimator = getattr(sklearn_mpt, name)()
    names = object.__dir__(estimator)  # `dir` of new versions leaves some out
    assert {name for name in names if hasattr(estimator, name)} <= {*dir(estimator)}
    assert dict(inspect.getmembers(estimator))["fit"]
    assert not hasattr(estimator, "_n_features_out")


def test_shapes(model, X, mask):
    n_samples, n_features = X.shape
    assert model.conditional_log_prob(X, mask).shape == X.shape
    assert model.score_samples(X).shape == (n_samples,)
    n_outputs = len(model.get_feature_names_out())
    assert n_outputs == getattr(model, "n_components", n_outputs)
    assert model.transform(X).shape == (n_samples, n_outputs)
    if hasattr(model, "inverse_transform"):
        assert model.inverse_transform(model.transform(X)).shape == X.shape
    assert model.sample(7).shape == (7, n_features)
    assert model.lml_method_ in ("exact", "quadrature", "importance")
    if hasattr(model, "max_iter"):
        assert len(model.loss_curve_) == model.n_iter_


def test_contract_is_zero_where_nothing_is_asked_and_finite(model, X, mask):
    X = with_gaps(X)
    log_prob = model.conditional_log_prob(X, mask)
    asked = mask & ~np.isnan(X)
    assert np.isfinite(log_prob).all()
    assert_array_equal(log_prob[~asked], 0.0)
    assert (log_prob[asked] != 0).all()


def test_hidden_values_enter_only_their_own_term(model, X, mask):
    log_prob = model.conditional_log_prob(X, mask)
    for j in range(X.shape[1]):
        changed = X.copy()
        changed[mask[:, j], j] = np.roll(X[:, j], 1)[mask[:, j]]
        difference = model.conditional_log_prob(changed, mask) - log_prob
        assert_allclose(np.delete(difference, j, axis=1), 0, atol=1e-12)


@pytest.mark.parametrize("name", HAS_CHAINS)
def test_terms_along_orders_are_conditionals(name):
    """Along orders of all rows, and of each."""
    model, X = fit_once(name), with_gaps(few(name))
    rng = np.random.default_rng(3)
    of_rows = rng.permuted(np.broadcast_to(np.arange(5), (2, *X.shape)), axis=2)
    for orders in (of_rows[:, 0], of_rows):
        terms = terms_of_orders(model.conditional_log_prob, X, orders)
        found = model.chain_log_prob(X, orders)
        assert_allclose(found, terms, rtol=0, atol=1e-9)
        assert_array_equal(found[:, np.isnan(X)], 0.0)


def test_missing_is_the_same_as_hidden_for_the_other_features(model, X):
    mask = np.zeros(X.shape[1], dtype=bool)
    mask[:2] = True
    missing = X.copy()
    missing[:, 0] = np.nan
    assert_allclose(
        model.conditional_log_prob(missing, mask)[:, 1],
        model.conditional_log_prob(X, mask)[:, 1],
    )


def test_one_mask_for_all_rows_is_the_mask_repeated(model, X):
    mask = np.arange(X.shape[1]) < 2
    shared = model.conditional_log_prob(X, mask)
    repeated = model.conditional_log_prob(X, np.tile(mask, (len(X), 1)))
    assert_allclose(shared, repeated, rtol=1e-12)


def test_scores_of_all_masks_sum_to_the_score(joint):
    model, X = joint
    X = with_gaps(X)
    conditional = model.conditional_log_prob
    total = sum(
        np.mean([masked_score(conditional(X, m), m) for m in masks], axis=0)
        for masks in (all_masks(X.shape[1], size) for size in range(1, X.shape[1] + 1))
    )
    assert_allclose(total, model.score_samples(X), atol=ACCURACY[model.lml_method_])


@pytest.mark.parametrize("name", HAS_MOMENTS)
def test_hook_gives_what_the_contract_gives(name):
    model, X = fit_once(name), few(name)
    masks = all_masks(X.shape[1], 2)[::3]
    for rows in (X, with_gaps(X)):
        by_loop = scores_of_masks(model.conditional_log_prob, rows, masks)
        assert_allclose(model.mean_masked_scores(rows, masks), by_loop)


def test_a_row_does_not_depend_on_its_batch(model, X, mask):
    X = with_gaps(X)
    score, log_prob = model.score_samples(X), model.conditional_log_prob(X, mask)
    for i in range(0, len(X), 7):
        alone = X[i : i + 1]
        assert_allclose(model.score_samples(alone), score[i : i + 1], rtol=1e-9)
        assert_allclose(
            model.conditional_log_prob(alone, mask[i : i + 1]),
            log_prob[i : i + 1],
            rtol=1e-9,
        )


def test_numbers_do_not_depend_on_the_memory_budget(model, X, mask):
    import sklearn

    X, mask, few_masks = X[1:3], mask[1:3], {"mask_sizes": [2], "n_masks": 2}
    score, log_prob = model.score_samples(X), model.conditional_log_prob(X, mask)
    curve = mpt_curve(model, X, **few_masks, random_state=0)
    with sklearn.config_context(working_memory=0):
        assert_allclose(model.score_samples(X), score, rtol=1e-12)
        assert_allclose(model.conditional_log_prob(X, mask), log_prob, rtol=1e-12)
        chunked = mpt_curve(model, X, **few_masks, random_state=0)
    assert_allclose(chunked.scores, curve.scores, rtol=1e-12)


def test_a_row_with_nothing_observed_scores_zero(model, X):
    nothing = np.full((2, X.shape[1]), np.nan)
    log_prob, std_error = model.score_samples(nothing, return_std=True)
    assert_array_equal(log_prob, 0.0)
    assert_array_equal(std_error, 0.0)


@pytest.mark.parametrize("name", [n for n in MODELS if hasattr(MODELS[n][0](), "bic")])
def test_rows_without_entries_do_not_change_criteria(name):
    model, X = fit_once(name), MODELS[name][1]
    longer = np.r_[X, np.full((7, X.shape[1]), np.nan)]
    weight = np.r_[np.ones(len(X)), np.full(7, 3.0)]
    for criterion in (model.aic, model.bic):
        expected = criterion(X)
        assert_allclose([criterion(longer), criterion(longer, weight)], expected)
    with pytest.raises(ValueError, match="X has no entries"):
        model.bic(longer[-2:])


@pytest.mark.parametrize(
    "name", [n for n in MODELS if "deep" not in n and n != "items"]
)
def test_what_is_filled_in_is_the_mean_of_the_conditional(name):
    """But for answers to items, and means with an error of importance sampling."""
    model, X = fit_once(name), MODELS[name][1]
    row, mask = X[0], np.arange(X.shape[1]) == 0
    filled = model.impute(np.where(mask, np.nan, row)[None])[0, 0]
    grid, step = np.linspace(-20, 20, 2001), 0.02
    if np.isin(X, [0, 1]).all():
        grid, step = np.array([0.0, 1.0]), 1.0
    rows = np.where(mask, grid[:, None], row)
    prob = step * np.exp(model.conditional_log_prob(rows, mask)[:, 0])
    assert filled == pytest.approx(grid @ prob, abs=1e-3)


def test_imputation_keeps_what_is_present_and_fills_the_rest(model, X):
    gappy = with_gaps(X)
    present = ~np.isnan(gappy)
    for method in ("mean", "sample"):
        filled = model.impute(gappy, method=method)
        assert_array_equal(filled[present], X[present])
        assert np.isfinite(filled).all()


def test_draws_are_reproducible_and_take_the_estimators_random_state(model, X):
    gappy = with_gaps(X)
    assert_array_equal(model.sample(3), model.sample(3, random_state=0))
    assert (model.sample(3) != model.sample(3, random_state=1)).any()
    by_default = model.impute(gappy, method="sample")
    assert_array_equal(by_default, model.impute(gappy, "sample", random_state=0))


@pytest.mark.filterwarnings("ignore:The likelihood has no finite maximum")
@pytest.mark.parametrize("changed", [{"n_masks": 2}, {"mask_rate": 2}])
@pytest.mark.parametrize("name", NAMES)
def test_fits_by_given_masks_count_epochs_and_warn_at_the_limit(name, changed):
    model, X = MODELS[name][0](), MODELS[name][1]
    skip_without(model, "max_iter")
    if not changed.keys() <= model.get_params().keys():
        pytest.skip(f"{type(model).__name__} has no {changed}")
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        model.set_params(max_iter=2, **changed).fit(X)
    assert model.n_iter_ == len(model.loss_curve_) == 2


@pytest.mark.parametrize("name", NAMES)
def test_fits_are_reproducible_and_leave_global_random_states(name):
    torch = pytest.importorskip("torch")
    model, X, few_rows = fit_once(name), MODELS[name][1], few(name)
    state, before = np.random.get_state()[1].copy(), torch.get_rng_state()
    other = quiet_fit(clone(model), X)
    other.sample()
    assert_array_equal(np.random.get_state()[1], state)
    assert torch.equal(torch.get_rng_state(), before)
    assert_array_equal(other.score_samples(few_rows), model.score_samples(few_rows))


def test_fit_accepts_missing_entries(model, X):
    fitted = quiet_fit(clone(model), with_gaps(X))
    assert np.isfinite(fitted.score(X))
    assert np.isfinite(getattr(fitted, "loss_curve_", 0.0)).all()


def test_warm_start_goes_on(model, X):
    skip_without(model, "warm_start")
    warm = clone(model).set_params(warm_start=True, max_iter=2)
    first = quiet_fit(warm, X).score(X)
    for _ in range(3):
        quiet_fit(warm, X)
    assert warm.score(X) > first


def test_warm_start_refuses_another_shape(model, X):
    skip_without(model, "n_components")
    warm = clone(model).set_params(warm_start=True)
    quiet_fit(warm, X)
    with pytest.raises(ValueError, match="n_components=1 differs from the 2"):
        warm.set_params(n_components=1).fit(X)
    with pytest.raises(ValueError, match="X has 4 features"):
        warm.set_params(n_components=2).fit(X[:, :4])


def test_partial_fit_goes_on_and_survives_pickling(model, X):
    skip_without(model, "partial_fit")
    straight, pickled = clone(model), clone(model)
    for _ in range(4):
        straight.partial_fit(X)
        pickled = pickle.loads(pickle.dumps(pickled.partial_fit(X)))
    assert straight.n_iter_ == len(straight.loss_curve_) == 4
    assert_array_equal(pickled.score_samples(X), straight.score_samples(X))


def test_partial_fit_goes_on_from_a_fit(model, X):
    skip_without(model, "partial_fit")
    score, n_iter = model.score(X), model.n_iter_
    model.partial_fit(X)
    assert model.n_iter_ == n_iter + 1
    assert abs(model.score(X) - score) < 1


def test_a_pickle_of_another_version_warns(model):
    state = model.__getstate__()
    assert state["_sklearn_mpt_version"]
    state["_sklearn_mpt_version"] = "0.0.1"
    with pytest.warns(InconsistentVersionWarning, match=r"0\.0\.1"):
        clone(model).__setstate__(state)


def test_fitted_state_is_numpy_only(model):
    fitted = {key: value for key, value in vars(model).items() if key.endswith("_")}
    plain = (np.ndarray, float, int, str, list)
    assert all(isinstance(value, plain) for value in fitted.values()), fitted


def test_bad_masks_are_refused(model, X):
    with pytest.raises(ValueError, match=r"mask must have shape \(n_features,\) = "):
        model.conditional_log_prob(X, np.ones(X.shape[1] + 1, dtype=bool))
    with pytest.raises(TypeError, match="mask must be boolean, True where hidden"):
        model.conditional_log_prob(X, np.ones(X.shape[1]))


def test_bad_arguments_of_methods_are_refused(model, X):
    with pytest.raises(ValueError, match="method must be one of 'mean', 'sample'"):
        model.impute(X, method="median")
    with pytest.raises(ValueError, match="n_samples"):
        model.sample(0)
    if not hasattr(model, "inverse_transform"):
        return
    with pytest.raises(ValueError, match="Z must have n_components="):
        model.inverse_transform(np.ones((2, model.n_components + 1)))


def test_bad_rows_are_refused(model, X):
    fresh = clone(model)
    with pytest.raises(ValueError, match="1 sample"):
        fresh.fit(X[:1])
    with pytest.raises(ValueError, match=r"column\(s\) \[1\] of X are missing"):
        fresh.fit(np.where(np.arange(X.shape[1]) == 1, np.nan, X))
    with pytest.raises(ValueError, match="infinity"):
        fresh.fit(np.where(np.arange(X.shape[1]) == 1, np.inf, X))
    with pytest.raises(ValueError, match=r"whose squares|1e\+200"):
        fresh.fit(np.where(np.arange(X.shape[1]) == 1, 1e200 * X, X))


def test_a_refused_refit_leaves_the_estimator_as_it_was(model, X):
    before = {name: pickle.dumps(value) for name, value in vars(model).items()}
    empty = np.where(np.arange(3) == 1, np.nan, X[:, :3])
    bad = X.copy()
    bad[0, 0] = np.inf
    for method, rows, message in (
        ("fit", empty, r"column\(s\) \[1\] of X are missing"),
        ("fit", X[:1, :4], "1 sample"),
        ("fit", bad, "infinity"),
        ("partial_fit", bad, "infinity"),
        ("partial_fit", empty, "X has 3 features"),
    ):
        if hasattr(model, method):
            with pytest.raises(ValueError, match=message):
                getattr(model, method)(rows)
        after = {name: pickle.dumps(value) for name, value in vars(model).items()}
        assert after == before


def test_hiding_everything_warns(model, X):
    skip_without(model, "mask_rate")
    fresh = clone(model).set_params(mask_rate=1.0)
    if "max_iter" in model.get_params():
        fresh.set_params(max_iter=1)
    with pytest.warns(UserWarning, match=r"mask_rate=1\.0 hides every feature"):
        quiet_fit(fresh, X)


def test_a_grid_that_mixes_rates_and_sizes_warns():
    """In [0.5, 1] the 1 is a size: it hides one feature, where 1.0 hides all."""
    search = GridSearchCV(
        MPTProbabilisticPCA(max_iter=0), {"mask_rate": [0.5, 1]}, cv=2, refit=False
    )
    with pytest.warns(UserWarning, match="mask_rate=1 is an int and hides one feature"):
        search.fit(real_rows())
