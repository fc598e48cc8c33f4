"""Entries of Series, DataFrames and dicts are found by their labels.

Those of columns, items, classes and estimates have labels; rows go by their position.
"""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from sklearn_mpt import (
    ConditionalMasker,
    MPTImputer,
    MPTItemResponse,
    MPTLinearVAE,
    MPTMaskedAutoencoder,
    MPTMixture,
    MPTProbabilisticPCA,
    mpt_curve,
    pool_estimates,
    rows_from_covariance,
)


def table_with_gaps(n_rows=40):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(n_rows, 3)), columns=list("abc"))
    frame["b"] += 2 * frame["a"]
    frame.loc[::3, "b"] = np.nan
    return frame


# Estimates


@pytest.mark.parametrize("container", [pd.Series, dict])
def test_estimates_are_pooled_by_their_labels(container):
    first, second = {"a": 1.0, "b": 2.0}, {"b": 4.0, "a": 3.0}
    variances = [{"b": 4.0, "a": 1.0}, first | {"b": 6.0}]
    expected = pool_estimates([[1.0, 2.0], [3.0, 4.0]], [[1.0, 4.0], [1.0, 6.0]])
    pooled = pool_estimates(
        list(map(container, [first, second])), list(map(container, variances))
    )
    for field, other in zip(pooled, expected, strict=True):
        assert_array_equal(field, other)
        if container is pd.Series:
            assert field.index.tolist() == ["a", "b"]
    assert_allclose(pooled.interval(), expected.interval())


def test_tables_of_estimates_are_pooled_by_rows_and_columns():
    values = np.arange(6.0).reshape(2, 3)
    one = pd.DataFrame(values, ["r", "s"], list("abc"))
    pooled = pool_estimates([one, one.loc[["s", "r"], list("cab")]], [one**2] * 2)
    assert_array_equal(pooled.estimate, one)
    assert pooled.std_error.columns.tolist() == list("abc")
    assert pooled.df.index.tolist() == ["r", "s"]


@pytest.mark.parametrize("library", [pd, pl])
def test_rows_of_a_table_are_estimates_of_tables(library):
    estimates = library.DataFrame({"a": [1.0, 3.0], "b": [2.0, 5.0]})
    variances = library.DataFrame({"b": [4.0, 5.0], "a": [0.0, 1.0]})
    pooled = pool_estimates(estimates, variances)
    expected = pool_estimates([[1.0, 2.0], [3.0, 5.0]], [[0.0, 4.0], [1.0, 5.0]])
    assert_array_equal(pooled.std_error, expected.std_error)


def test_estimates_of_other_labels_are_refused():
    one, other = pd.Series({"a": 1.0, "b": 2.0}), pd.Series({"a": 1.0, "c": 2.0})
    with pytest.raises(
        ValueError, match=r"estimates must have the labels of the first"
    ):
        pool_estimates([one, other], [one, one])
    with pytest.raises(ValueError, match=r"variances must have the labels .*'c'"):
        pool_estimates([one, one], [one, other])


# Shifts and bounds of an imputer

SHIFTED = pd.Series({"c": 3.0, "b": 5.0, "a": 4.0})


@pytest.mark.parametrize(
    ("value", "same"),
    [
        (SHIFTED, {"a": 4.0, "b": 5.0, "c": 3.0}),
        (SHIFTED[["b"]], {"b": 5.0}),
        (SHIFTED.set_axis([2, 1, 0]), {"a": 4.0, "b": 5.0, "c": 3.0}),
        (SHIFTED.reset_index(drop=True), {"a": 3.0, "b": 5.0, "c": 4.0}),
        (pl.Series([3.0, 5.0, 4.0]), {"a": 3.0, "b": 5.0, "c": 4.0}),
    ],
)
def test_a_series_of_columns_is_read_like_a_dict(value, same):
    parameter = "min_value" if len(same) == 3 else "max_value"
    frame = table_with_gaps()
    frame = frame.mask(np.arange(40)[:, None] % 5 == np.arange(3))

    def filled(bounds, frame=frame):
        model = MPTProbabilisticPCA(1, init="pca", max_iter=0)
        return MPTImputer(model, **{parameter: bounds}).fit_transform(frame)

    assert_array_equal(filled(value), filled(same))
    by_number = frame.set_axis([2, 0, 1], axis=1)  # their names, not their places
    bounds = pd.Series([3.0, 4.0, 5.0])
    assert_array_equal(filled(bounds, by_number), filled({"a": 5, "b": 3, "c": 4}))
    with pytest.raises(ValueError, match=f"{parameter} names a column 'other'"):
        filled(SHIFTED.rename({"c": "other"}))
    with pytest.raises(ValueError, match=f"{parameter} names column 'a' twice"):
        filled(pd.Series([1.0, 2.0], ["a", "a"]))


@pytest.mark.parametrize("form", [pd.Series, lambda s: pl.Series(s.tolist())])
def test_parameters_of_pandas_and_polars_are_equal_to_their_copies(form):
    frame = table_with_gaps()
    bound = pd.Series([9.0, np.inf, 9.0])
    imputer = MPTImputer(max_models=1, max_value=form(bound)).fit(frame)
    imputer.transform(frame)
    imputer.set_params(max_value=clone(imputer).max_value).transform(frame)
    if form is pd.Series:
        imputer.max_value[1] = 1.0  # in place
    else:
        imputer.set_params(max_value=form(bound + 1))
    with pytest.raises(ValueError, match=r"(?s)max_value=.* differs from the"):
        imputer.transform(frame)


# Covariances


def test_covariances_and_means_are_found_by_names():
    names, n_samples = list("abc"), 100
    covariance = pd.DataFrame(np.diag([1.0, 2.0, 3.0]) + 0.5, names, names)
    mean = pd.Series([4.0, 5.0, 6.0], names)
    expected, weight = rows_from_covariance(covariance, n_samples, mean=mean)
    assert_allclose(np.cov(expected.T, aweights=weight, bias=True), covariance)
    assert_allclose(expected.mean(), mean)
    for form in (mean[::-1], mean[::-1].to_dict(), mean.tolist()):
        X, _ = rows_from_covariance(covariance[::-1], n_samples, mean=form)
        pd.testing.assert_frame_equal(X, expected)
    with pytest.raises(ValueError, match="mean must have the labels of the columns of"):
        rows_from_covariance(covariance, n_samples, mean={"a": 1.0, "b": 2.0, "d": 0.0})
    with pytest.raises(ValueError, match="rows of covariance must have the labels of"):
        rows_from_covariance(covariance.rename({"a": "d"}), n_samples)


# Masks


def fitted_model():
    frame = table_with_gaps().fillna(0.0)
    return MPTProbabilisticPCA(1, init="pca", max_iter=0).fit(frame), frame


@pytest.mark.parametrize("library", [pd, pl])
def test_masks_have_the_columns_of_X(library):
    model, frame = fitted_model()
    hidden = np.array([[True, False, True], [False, True, True]])
    imputer = MPTImputer(max_models=1, random_state=0).fit(frame)
    expected = model.conditional_log_prob(frame[:2], hidden)
    mask = library.DataFrame(dict(zip("abc", hidden.T, strict=True)))
    assert_array_equal(model.conditional_log_prob(frame[:2], mask), expected)
    for one in (model, imputer.estimator_):
        with pytest.raises(
            ValueError, match="mask must have the columns of X in the s"
        ):
            one.conditional_log_prob(frame[:2], mask[["c", "b", "a"]])
    with pytest.raises(ValueError, match="mask must have the columns of X in the same"):
        model.mean_masked_scores(frame, mask[["c", "b", "a"]])
    without_names = pd.DataFrame(hidden)
    assert_array_equal(model.conditional_log_prob(frame[:2], without_names), expected)
    one = pd.Series([True, False, False], list("bca"))
    with pytest.raises(ValueError, match="mask must have the columns of X in the same"):
        model.conditional_log_prob(frame, one)


BLOCKS = pd.Series({"c": 0, "b": 0, "a": 1})


@pytest.mark.parametrize(
    "blocks", [BLOCKS, BLOCKS.to_dict(), BLOCKS.set_axis([2, 1, 0])]
)
def test_blocks_of_masks_are_found_by_names(blocks):
    model, frame = fitted_model()
    how = {"n_masks": 3, "random_state": 0}
    wanted = mpt_curve(model, frame, mask_blocks=[1, 0, 0], **how)
    other = mpt_curve(model, frame, mask_blocks=[0, 0, 1], **how)
    found = mpt_curve(model, frame, mask_blocks=blocks, **how)
    assert_array_equal(found.scores, wanted.scores)
    assert (wanted.scores != other.scores).any()
    renamed = dict(zip("xyz", [1, 0, 1], strict=True))
    with pytest.raises(ValueError, match="mask_blocks must have the labels of the col"):
        mpt_curve(model, frame, mask_blocks=renamed, **how)
    with pytest.raises(ValueError, match="mask_blocks must have the labels of the col"):
        MPTMaskedAutoencoder(mask_blocks=renamed).fit(frame)


def test_other_rows_have_the_columns_of_X():
    model, frame = fitted_model()
    reordered = frame[["c", "b", "a"]]
    masker = ConditionalMasker(model, n_samples=2, random_state=0)
    visible = np.array([True, True, False])
    with pytest.raises(ValueError, match="x must have the columns of X in the same"):
        masker(visible, reordered.iloc[0])
    with pytest.raises(ValueError, match="mask must have the columns of X in the same"):
        masker(pd.Series(visible, list("cba")), frame.iloc[0])


@pytest.mark.parametrize("names", [[3, 4, 5], [0, 1, 2], list("abc")])
def test_columns_have_the_order_of_fit(names):
    frame = table_with_gaps().set_axis(names, axis=1)
    model = MPTMixture(1, warm_start=True).fit(frame)
    imputer = MPTImputer(max_models=1, random_state=0).fit(frame)
    inner, mask = imputer.estimator_, np.array([True, False, False])
    asked = [inner.impute, lambda X: inner.conditional_log_prob(X, mask)]
    is_numbers = isinstance(names[0], int)
    if is_numbers:  # of other names scikit-learn tells
        asked += [model.score_samples, model.fit, imputer.transform]
    for ask in asked:
        with pytest.raises(ValueError, match="X must have the columns of fit in the s"):
            ask(frame[names[::-1]])
    with pytest.raises(ValueError, match="in the same order"):
        imputer.transform(frame[names[::-1]])
    others = [frame.set_axis(range(3), axis=1), frame.to_numpy()]
    for other in others if is_numbers else ():
        assert_array_equal(model.score_samples(other), model.score_samples(frame))


# Initial arrays and items


@pytest.mark.parametrize(
    "model", [MPTProbabilisticPCA(1), MPTLinearVAE(1, noise="per_feature")]
)
def test_initial_arrays_are_found_by_names(model):
    frame = table_with_gaps()
    noise = 0.5 if isinstance(model, MPTProbabilisticPCA) else SHIFTED
    init = {
        "components": SHIFTED.to_frame().T,
        "mean": SHIFTED.to_dict(),
        "noise_variance": noise,
    }
    fitted = clone(model).set_params(init=init, max_iter=0).fit(frame)
    assert_allclose(fitted.mean_, [4, 5, 3])
    assert_allclose(np.abs(fitted.components_), [[4, 5, 3]])
    if isinstance(model, MPTLinearVAE):
        assert_allclose(fitted.noise_variance_, [4, 5, 3])
    init["mean"] = SHIFTED.rename({"a": "other"})
    with pytest.raises(ValueError, match=r"init\['mean'\] must have the labels of the"):
        clone(model).set_params(init=init, max_iter=0).fit(frame)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_initial_arrays_of_mixtures_are_found_by_names(covariance_type):
    frame = table_with_gaps()
    means = np.array([[0.0, 1.0, 2.0], [5.0, 6.0, 7.0]])
    precisions = {
        "full": np.stack([np.eye(3), 2 * np.eye(3)]),
        "tied": pd.DataFrame(np.diag([1.0, 2.0, 3.0]), list("abc"), list("abc")),
        "diag": pd.DataFrame([[1.0, 2, 3], [4, 5, 6]], ["x", "y"], list("abc")),
        "spherical": pd.Series([1.0, 2.0], ["x", "y"]),
    }[covariance_type]
    how = {"covariance_type": covariance_type, "max_iter": 0, "random_state": 0}
    expected = MPTMixture(
        2,
        weights_init=[0.25, 0.75],
        means_init=means,
        precisions_init=np.asarray(precisions),
        **how,
    ).fit(frame)
    if covariance_type in ("diag", "spherical"):
        precisions = precisions[::-1]
    elif covariance_type == "tied":
        precisions = precisions.loc[::-1, ["b", "c", "a"]]
    inits = {
        "weights_init": pd.Series({"x": 0.25, "y": 0.75}),
        "means_init": pd.DataFrame(means, ["x", "y"], list("abc")).loc[::-1, ::-1],
        "precisions_init": precisions,
    }
    found = MPTMixture(2, **inits, **how).fit(frame)
    for name in ("weights_", "means_", "covariances_"):
        assert_array_equal(getattr(found, name), getattr(expected, name))
    inits["weights_init"] = {"x": 0.25, "other": 0.75}
    with pytest.raises(ValueError, match="means_init must have the labels of the"):
        MPTMixture(2, **inits, **how).fit(frame)


def test_parameters_of_items_are_matched_by_their_labels():
    slopes, difficulty = {"i": 1.0, "j": 2.0, "k": 0.5}, {"k": 3.0, "j": 4.0, "i": 5.0}
    expected = MPTItemResponse.from_items(
        model="3pl",
        discrimination=[1.0, 2.0, 0.5],
        difficulty=[5.0, 4.0, 3.0],
        guessing=[0.1, 0.2, 0.3],
        latent_mean=[0.0, 1.0],
        latent_variance=[1.0, 4.0],
    )
    for form in (pd.Series, dict, lambda given: pd.DataFrame({"a": given})):
        found = MPTItemResponse.from_items(
            model="3pl",
            discrimination=form(slopes),
            difficulty=form(difficulty),
            guessing=pd.Series({"j": 0.2, "k": 0.3, "i": 0.1}),
            latent_mean=pd.Series({"girls": 0.0, "boys": 1.0}),
            latent_variance=pd.Series({"boys": 4.0, "girls": 1.0}),
        )
        for name in ("discrimination_", "difficulty_", "guessing_", "latent_variance_"):
            assert_allclose(getattr(found, name), getattr(expected, name))
    with pytest.raises(ValueError, match="difficulty must have the labels of the i"):
        MPTItemResponse.from_items(
            discrimination=pd.Series(slopes), difficulty=pd.Series({"i": 1.0, "l": 2.0})
        )


def test_names_of_given_items_are_those_of_their_labels():
    difficulty = pd.Series({"k": 3.0, "j": 4.0, "i": 5.0})
    model = MPTItemResponse.from_items(difficulty=difficulty)
    answers = pd.DataFrame([[1, 0, 1]], columns=list("kji"))
    assert model.item_parameters(as_frame=True).index.tolist() == ["k", "j", "i"]
    model.abilities(answers)
    with pytest.raises(ValueError, match="names must be in the same order"):
        model.abilities(answers[["i", "j", "k"]])


def test_correlations_of_abilities_are_matched_by_their_labels():
    names = ["F", "G", "H"]
    slopes = pd.DataFrame(np.eye(3) + 0.2, list("ijk"), names)
    correlation = pd.DataFrame(
        [[1.0, 0.5, 0.2], [0.5, 1.0, 0.1], [0.2, 0.1, 1.0]], names, names
    )
    found = MPTItemResponse.from_items(
        discrimination=slopes,
        intercept=[0.0, 0.0, 0.0],
        factor_correlation=correlation.loc[["H", "F", "G"], ["G", "H", "F"]],
    )
    assert_allclose(found.factor_correlation_, correlation)


def test_anchors_are_found_by_the_names_of_items():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.integers(0, 2, (60, 4)), columns=list("abcd"))
    model, group = MPTItemResponse("rasch").fit(X), np.arange(60) % 2
    anchors = pd.Series({"d": True, "c": True, "b": False, "a": False})
    test = model.dif(X, group, anchors=anchors)
    assert_array_equal(np.isnan(test.statistic), [False, False, True, True])
    with pytest.raises(ValueError, match="anchors must have the labels of the items"):
        model.dif(X, group, anchors=anchors.rename({"a": "other"}))


@pytest.mark.parametrize("name", ["sample_weight", "groups", "outcome", "covariates"])
def test_arguments_of_rows_go_by_position_and_other_orders_are_warned_of(name):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(1.0 * (rng.random((80, 4)) < 0.5), columns=list("abcd"))
    X["b"] = X["a"].where(X.index % 5 > 0, 1 - X["a"])
    argument = pd.Series(np.arange(80) % 3 + 1.0, index=X.index)
    classes = MPTMixture(2, likelihood="bernoulli", random_state=0).fit(X)
    items = MPTItemResponse("rasch")
    call = {
        "sample_weight": lambda value: classes.score(X, sample_weight=value),
        "groups": lambda value: items.fit(X, groups=value).difficulty_,
        "outcome": lambda value: classes.class_outcomes(X, value).estimate,
        "covariates": lambda value: classes.covariate_effects(X, value).coef,
    }[name]
    expected = call(argument.to_numpy())
    assert_array_equal(call(argument), expected)
    shuffled = argument.set_axis(rng.permutation(80))
    with pytest.warns(UserWarning, match=f"{name} goes by position"):
        assert_array_equal(call(shuffled), expected)


def test_latent_variables_are_data_and_no_metadata():
    for estimator in (MPTLinearVAE(), MPTProbabilisticPCA(), MPTItemResponse()):
        assert "inverse_transform" not in str(estimator.get_metadata_routing())
