from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline

from sklearn_mpt import (
    LMLComparison,
    MPTItemResponse,
    MPTLinearVAE,
    MPTProbabilisticPCA,
    MPTScorer,
    check_masked_model,
    compare_lml,
    feature_contributions,
    lml_samples,
    mpt_curve,
    order_log_prob,
)


def normal(scale):
    def conditional(X, mask):
        log_prob = -0.5 * (X / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
        return np.where(mask, log_prob, 0.0)

    return conditional


def no_joint(slope):
    def conditional(X, mask):
        visible = np.where(mask, 0.0, X)
        mean = slope * visible.sum(axis=1, keepdims=True) / (~mask).sum().clip(1)
        weight = 1 + np.cos(3 * np.arange(X.shape[1]))
        log_prob = -weight * (X - mean) ** 2 + 0.5 * np.log(weight / np.pi)
        return np.where(mask, log_prob, 0.0)

    return conditional


def test_an_estimator_and_its_conditionals_are_equal(known):
    model, X = known
    wrong = MPTProbabilisticPCA(2, init={**model.init, "noise_variance": 1.0})
    wrong = wrong.set_params(max_iter=0).fit(X)
    table = compare_lml(
        {"wrong": wrong, "estimator": model, "function": model.conditional_log_prob}, X
    )
    assert set(table.names[:2]) == {"estimator", "function"}
    assert_allclose(table.lml, [model.score(X)] * 2 + [wrong.score(X)])
    difference = wrong.score_samples(X) - model.score_samples(X)
    assert_allclose(table.lml_diff, [0, 0, difference.mean()], atol=1e-10)
    expected = difference.std(ddof=1) / np.sqrt(len(X))
    assert_allclose(table.lml_diff_std_error, [0, 0, expected], atol=1e-10)
    assert_allclose(table.row_lml[2], wrong.score_samples(X))
    assert repr(table).splitlines()[3].startswith("wrong")


def test_a_density_and_a_probability_do_not_compare():
    X = np.random.default_rng(0).integers(0, 2, (20, 4)).astype(float)
    start = {"components": np.ones((1, 4)), "intercept": np.zeros(4)}
    binary = MPTLinearVAE(1, likelihood="bernoulli", init=start, max_iter=0).fit(X)
    with pytest.warns(UserWarning, match="densities, not probabilities"):
        gaussian = MPTLinearVAE(1, init="pca", max_iter=0).fit(X)
    ppca = MPTProbabilisticPCA(1, init="pca", max_iter=0).fit(X)
    items = MPTItemResponse.from_items(
        discrimination=np.ones(4), difficulty=np.zeros(4)
    )
    message = "column 0 has a probability in 'binary' and a density in 'other'"
    for one, other in ((binary, gaussian), (binary, ppca), (items, ppca)):
        with pytest.raises(ValueError, match=message):
            compare_lml({"binary": one, "other": other}, X)
    assert_allclose(compare_lml([items, binary], X).lml_diff, 0, atol=1e-3)
    assert compare_lml([gaussian, ppca, PCA(1).fit(X)], X).names
    assert compare_lml([binary, normal(1.0)], X).names  # which does not say


def test_a_foreign_density_beside_probabilities_is_warned_of():
    X = np.random.default_rng(0).integers(0, 2, (20, 3)).astype(float)
    items = MPTItemResponse.from_items(
        discrimination=np.ones(3), difficulty=np.zeros(3)
    )
    message = r"'items' gives probabilities of .* columns \[0, 1, 2\].*such as 'kde'"
    with pytest.warns(UserWarning, match=message):
        compare_lml({"kde": KernelDensity().fit(X), "items": items}, X)


def measures_of(functions):
    good = normal(1.0)
    return [
        lambda X: compare_lml([*functions, good], X, n_orders=2, random_state=0),
        lambda X: mpt_curve(functions[0], X, n_masks=2),
        lambda X: lml_samples(functions[0], X, n_orders=2),
        lambda X: feature_contributions(functions[0], X, n_orders=2),
        lambda X: order_log_prob(functions[0], X, "left_to_right"),
    ]


def only_for(shape, function):
    """The function, of masks of one shape alone."""

    def conditional(X, mask):
        if mask.ndim != shape:
            raise TypeError("another shape")
        return function(X, mask)

    return conditional


@pytest.mark.parametrize("shape", [1, 2])
@pytest.mark.parametrize("n_features", [2, 3, 6])
def test_functions_that_take_true_for_visible_are_refused(shape, n_features):
    X = np.random.default_rng(0).normal(size=(20, n_features))
    inverted = only_for(shape, lambda X, mask: normal(1.0)(X, ~mask))
    for measure in [*measures_of([inverted]), partial(check_masked_model, inverted)]:
        with pytest.raises(ValueError, match="does the function take True for visible"):
            measure(X)


@pytest.mark.parametrize("shape", [1, 2])
def test_functions_that_read_other_hidden_values_are_refused(shape):
    X = np.random.default_rng(0).normal(size=(20, 4))

    def mean_of_all(X, mask):
        mean = 0.5 * X.mean(axis=1, keepdims=True)
        return np.where(mask, stats.norm.logpdf(X, mean), 0.0)

    for measure in measures_of([only_for(shape, mean_of_all)]):
        with pytest.raises(ValueError, match=r"hidden values of .* changed"):
            measure(X)


BINARY = np.random.default_rng(0).integers(0, 2, (20, 4)).astype(float)


@pytest.mark.parametrize(
    ("X", "scale"),
    [
        (np.random.default_rng(0).normal(size=(20, 4)), 0.01),
        (np.random.default_rng(0).normal(size=(20, 1)), 0.01),
        (np.random.default_rng(0).poisson(3.0, (20, 4)), 0.1),
    ],
)
def test_functions_that_read_the_value_that_they_score_are_warned_of(X, scale):
    def peeks(X, mask):
        return np.where(mask, stats.norm.logpdf(X, X, scale), 0.0)

    for measure in measures_of([peeks]):
        with pytest.warns(UserWarning, match="is computed from the hidden value"):
            measure(X)


@pytest.mark.parametrize("X", [BINARY, BINARY.astype(int)])
def test_probabilities_that_read_the_value_that_they_score_are_refused(X):
    def certain(X, mask):
        return np.where(mask, np.log(0.99), 0.0)

    def peeks(X, mask):
        return np.where(mask, stats.norm.logpdf(X, X, 0.01), 0.0)

    for measure in measures_of([certain, peeks]):
        with pytest.raises(ValueError, match="be computed from the hidden value"):
            measure(X)


NARROW = {
    "narrow": stats.norm(0.2, 1e-4),
    "uniform": stats.uniform(-3, 6),
    "on rounded numbers": stats.norm(0.0, 0.01),
    "heavy tails": stats.cauchy(0, 1e-3),
    "shares": stats.beta(0.5, 0.5),
    "amounts": stats.gamma(0.5),
    "counts": stats.poisson(3.0),
    "binary": stats.bernoulli(0.3),
    "binary as numbers": stats.norm(0.5, 0.05),
}


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("seed", range(3))
def test_distributions_are_not_taken_for_functions_that_read_values(name, seed):
    law = NARROW[name]
    rng = np.random.default_rng(seed)
    X = law.rvs(size=(30, 3), random_state=rng).astype(float)
    if "rounded" in name:
        X = X.round(1)
    if name == "binary as numbers":
        X = X.round()
    log_density = law.logpmf if name in ("counts", "binary") else law.logpdf

    def conditional(X, mask):
        return np.where(mask, log_density(X), 0.0)

    assert compare_lml([conditional, conditional], X, n_orders=1).names


def test_noise_is_not_taken_for_reading_of_hidden_values():
    rng = np.random.default_rng(0)

    def noisy(X, mask):
        log_prob = normal(1.0)(X, mask)
        return log_prob + np.where(mask, 0.01 * rng.normal(size=X.shape), 0.0)

    X = np.random.default_rng(1).normal(size=(20, 4))
    for measure in measures_of([noisy]):
        measure(X)


def test_principal_components_are_a_density_estimator():
    X = np.random.default_rng(0).normal(size=(30, 4))
    table = compare_lml([PCA(2).fit(X), KernelDensity().fit(X)], X)
    expected = {"PCA": PCA(2).fit(X), "KernelDensity": KernelDensity().fit(X)}
    for name, rows in zip(table.names, table.row_lml, strict=True):
        assert_allclose(rows, expected[name].score_samples(X))


def table_of(rows, **degrees):
    error = rows.std(axis=1, ddof=1) / np.sqrt(rows.shape[1])
    means, names = rows.mean(axis=1), list(map(str, range(len(rows))))
    return LMLComparison(names, means, error, means, error, rows, **degrees)


def test_intervals_of_differences_cover_where_rows_are_skewed():
    """Differences of log-densities of two scales, of mean 0; Student's t covers less.

    Each line of the table is another sample of 40 rows.
    """
    rows = 1 - np.random.default_rng(0).normal(size=(4001, 40)) ** 2
    rows[0] = 0
    table = table_of(rows)
    low, high = table.lml_diff_interval()
    assert 0.935 < np.mean((low <= 0) & (high >= 0)) < 0.965
    reach = stats.t.ppf(0.975, 39) * table.lml_diff_std_error
    assert np.mean(np.abs(table.lml_diff) <= reach) < 0.93


def test_intervals_of_rows_without_skewness_are_those_of_student():
    rows = np.array([np.zeros(9), np.arange(9.0) - 10])
    table = table_of(rows)
    for interval in (table.lml_interval, table.lml_diff_interval):
        low, high = interval(0.9)
        expected = stats.ttest_1samp(rows[1], 0).confidence_interval(0.9)
        assert_allclose([low[1], high[1]], expected)
        assert_array_equal([low[0], high[0]], 0)
    low, high = table_of(rows, lml_diff_degrees=np.array([8, 2])).lml_diff_interval()
    expected = 2 * stats.t.ppf(0.975, 2) * table.lml_diff_std_error[1]
    assert_allclose(high[1] - low[1], expected)
    with pytest.raises(ValueError, match="confidence must be a float"):
        table.lml_interval(95)


def test_few_orders_leave_few_degrees_of_freedom():
    X = np.random.default_rng(0).normal(size=(200, 4)) + 3
    table = compare_lml([no_joint(0.9), normal(1.0)], X, n_orders=2, random_state=0)
    is_exact = np.array(["conditional 1"]) == table.names
    assert_allclose(table.lml_degrees[is_exact], 199)
    assert (table.lml_degrees[~is_exact] < 150).all()


@pytest.mark.slow
def test_the_error_of_a_difference_is_over_rows_and_orders():
    def rows(seed):
        return np.random.default_rng(seed).normal(size=(30, 8)) + np.eye(8)[0]

    mine, other = no_joint(0.9), no_joint(0.3)
    tables = [
        compare_lml({"mine": mine, "other": other}, rows(s), n_orders=4, random_state=s)
        for s in range(200)
    ]
    sign = [1 if table.names[0] == "other" else -1 for table in tables]
    difference = np.array([table.lml_diff[1] for table in tables]) * sign
    error = np.array([table.lml_diff_std_error[1] for table in tables])
    assert 0.8 < np.sqrt(np.mean(error**2)) / difference.std() < 1.25
    covered = np.mean(np.abs(difference - difference.mean()) < 1.96 * error)
    assert 0.88 <= covered <= 0.99


def test_models_of_texts_compare():
    pytest.importorskip("transformers")
    from text_models import TEXTS, make_model, make_tokenizer

    scorers = {
        name: MPTScorer(
            make_model(), make_tokenizer(), method=name, random_state=3
        ).fit()
        for name in ("mpt", "ordered")
    }
    table = compare_lml(scorers, iter(TEXTS), random_state=3)
    scores = [scorers[name].score_samples(TEXTS) for name in table.names]
    assert_allclose(table.row_lml, scores)
    expected = (scores[1] - scores[0]).std(ddof=1) / np.sqrt(len(TEXTS))
    assert_allclose(table.lml_diff_std_error[1], expected)
    with pytest.raises(TypeError, match=r"texts\[1\] a pair"):
        compare_lml(scorers, ["a", ("a", "b")])
    other = MPTScorer(make_model(), make_tokenizer(), random_state=1).fit()
    table = compare_lml([scorers["mpt"], other], TEXTS, random_state=3)  # on its masks
    assert_allclose(table.row_lml, [scorers["mpt"].score_samples(TEXTS)] * 2)


@pytest.mark.parametrize("wrap", [lambda scorer: scorer, make_pipeline])
@pytest.mark.parametrize(
    "methods", [("pll", "mpt"), ("chain", "pll_word_l2r"), ("pll", "pll_word_l2r")]
)
def test_pseudo_log_likelihoods_are_no_log_probabilities(methods, wrap):
    pytest.importorskip("transformers")
    from text_models import TEXTS, make_model, make_tokenizer

    scorers = {
        method: wrap(MPTScorer(make_model(), make_tokenizer(), method=method)).fit(
            TEXTS
        )
        for method in methods
    }
    with pytest.raises(ValueError, match="Scores of different kinds cannot be comp"):
        compare_lml(scorers, TEXTS)
    same = compare_lml([scorers[methods[0]]] * 2, TEXTS)
    assert same.lml_diff[1] == 0


def test_the_picture_shows_the_best_model_at_the_top():
    X = np.random.default_rng(0).normal(size=(50, 3))
    table = compare_lml({"right": normal(1.0), "wide": normal(2.0)}, X)
    _, ax = plt.subplots()
    assert table.plot(ax) is ax
    assert [label.get_text() for label in ax.get_yticklabels()] == ["right", "wide"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    (bars,) = ax.containers[0].lines[2]
    drawn = np.array(bars.get_segments())[:, :, 0]
    assert_allclose(drawn.T, table.lml_diff_interval(), atol=1e-12)
    assert (
        ax.get_xlabel() == f"LML less that of right, {table.lml[0]:.2f} (nats per row)"
    )
    plt.close("all")


def test_bad_arguments(known):
    model, X = known
    with pytest.raises(ValueError, match=r"must differ as strings, got \[1, '1'\]"):
        compare_lml({1: model, "1": model}, X)
    with pytest.raises(ValueError, match="at least two models, got 1"):
        compare_lml({"one": model}, X)
    with pytest.raises(ValueError, match=r"same features: 'a' has 6, X has the shape"):
        compare_lml({"a": model, "b": model}, X[:, :5])
    with pytest.raises(ValueError, match=r"same features: 'a' has 6, X has the shape"):
        compare_lml({"a": model, "b": model}, ["one text", "another"])
    with pytest.raises(ValueError, match="at least two rows"):
        compare_lml({"a": model, "b": model}, X[:1])
    with pytest.raises(TypeError, match=r"'b' must be a density estimator with score"):
        compare_lml({"a": model, "b": IsolationForest().fit(X)}, X)
    with pytest.raises(ValueError, match=r"'b' is -inf at row 0"):
        compare_lml({"a": model, "b": lambda X, m: np.where(m, -np.inf, 0 * X)}, X)

    class Short(MPTProbabilisticPCA):
        def score_samples(self, X, return_std=False):
            return super().score_samples(X)[1:]

    short = Short(max_iter=0).fit(X)
    with pytest.raises(
        ValueError, match=r"'b' returned scores of shape \(19,\) for 20"
    ):
        compare_lml({"a": model, "b": short}, X)
