"""Mixtures, against enumeration, SciPy's densities and scikit-learn's mixtures."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.datasets import load_iris
from sklearn.mixture import GaussianMixture

from sklearn_mpt import MPTImputer, MPTMixture

pytest.importorskip("torch")

KINDS = ["full", "tied", "diag", "spherical"]
WEIGHTS, MEANS = [0.3, 0.7], [[0.0, 1.0, -1.0, 2.0], [3.0, 0.0, 1.0, -1.0]]


def covariances():
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(2, 4, 4))
    return roots @ np.swapaxes(roots, 1, 2) + 0.5 * np.eye(4)


def known():
    """A mixture whose parameters are known, and rows with gaps."""
    model = MPTMixture(
        2,
        weights_init=WEIGHTS,
        means_init=MEANS,
        precisions_init=np.linalg.inv(covariances()),
        max_iter=0,
        random_state=0,
    )
    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 4)) * 2
    model.fit(X)
    X[rng.random(X.shape) < 0.3] = np.nan
    X[0] = np.nan
    return model, X


def log_prob(x, seen):
    """By SciPy, of the entries that are seen."""
    parts = [
        np.log(w) + multivariate_normal(m[seen], c[np.ix_(seen, seen)]).logpdf(x[seen])
        for w, m, c in zip(WEIGHTS, np.array(MEANS), covariances(), strict=True)
    ]
    return logsumexp(parts)


def test_scores_of_rows_with_gaps_are_marginal_densities():
    model, X = known()
    expected = [log_prob(x, ~np.isnan(x)) if np.isfinite(x).any() else 0 for x in X]
    assert_allclose(model.score_samples(X), expected, atol=1e-12)


def test_conditionals_are_ratios_of_densities():
    model, _ = known()
    x = np.array([[1.0, np.nan, 2.0, 0.5]])
    mask = np.array([False, True, True, False])
    found = model.conditional_log_prob(x, mask)[0]
    visible = np.array([True, False, False, True])
    both = np.array([True, False, True, True])
    assert_allclose(found, [0, 0, log_prob(x[0], both) - log_prob(x[0], visible), 0])


def test_a_nearly_singular_class_is_conditioned():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    root[3] = root[0] + 1e-4 * root[3]  # nearly the first column
    root *= [[1.0], [3.0], [0.3], [1.0]]
    covariance = root @ root.T
    start = {"means_init": np.zeros((1, 4)), "weights_init": [1.0]}
    start["precisions_init"] = np.linalg.inv(covariance)[None]
    X = (root @ rng.normal(size=(4, 16))).T
    model = MPTMixture(1, max_iter=0, **start).fit(X)
    observed = (np.arange(16)[:, None] >> np.arange(4)) % 2 == 1  # every pattern
    holes = np.where(observed, X, np.nan)
    filled, scores = model.impute(holes), model.score_samples(holes)
    for i, seen in enumerate(observed):
        block, cross = covariance[np.ix_(seen, seen)], covariance[:, seen]
        mean = cross @ np.linalg.solve(block, X[i, seen])
        scale = np.sqrt(covariance.diagonal())
        expected = multivariate_normal(cov=block).logpdf(X[i, seen]) if i else 0.0
        assert_allclose(scores[i], expected, atol=1e-6)
        assert_allclose(filled[i] / scale, mean / scale, atol=1e-6)


def test_independent_columns_are_those_of_matrices_without_correlations():
    rng = np.random.default_rng(0)
    means, precisions = rng.normal(size=(3, 6)), rng.gamma(2, size=(3, 6)) + 0.2
    X, params = rng.normal(size=(40, 6)), {"max_iter": 0, "means_init": means}
    params |= {"weights_init": [0.2, 0.3, 0.5], "random_state": 0}
    X[20:, rng.random(6) < 0.4] = np.nan  # a pattern of many rows
    X[rng.random(X.shape) < 0.2] = np.nan
    matrices = precisions[:, None] * np.eye(6)
    plain = MPTMixture(3, covariance_type="diag", precisions_init=precisions, **params)
    dense = MPTMixture(3, precisions_init=matrices, **params)
    mask = rng.random(X.shape) < 0.5
    for ask in (
        lambda model: model.fit(X).score_samples(X),
        lambda model: model.conditional_log_prob(X, mask),
        lambda model: model.impute(X),
        lambda model: model.predict_proba(X),
    ):
        assert_allclose(ask(plain), ask(dense), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_em_is_that_of_scikit_learn(kind):
    X = load_iris().data
    theirs = GaussianMixture(3, covariance_type=kind, random_state=0, tol=1e-6).fit(X)
    start = {
        "weights_init": theirs.weights_,
        "means_init": theirs.means_,
        "precisions_init": theirs.precisions_,
    }
    ours = MPTMixture(3, covariance_type=kind, objective="lml", max_iter=0, **start)
    ours.fit(X)
    assert_allclose(ours.score_samples(X), theirs.score_samples(X))
    assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-9)
    assert_allclose([ours.bic(X), ours.aic(X)], [theirs.bic(X), theirs.aic(X)])
    assert_allclose(ours.precisions_cholesky_, theirs.precisions_cholesky_, rtol=1e-6)
    again = GaussianMixture(3, covariance_type=kind, tol=0, max_iter=3, **start)
    with pytest.warns(Warning, match="converge"):
        again.fit(X)
    ours.set_params(max_iter=3, tol=0.0)
    with pytest.warns(Warning, match="max_iter=3"):
        ours.fit(X)
    assert_allclose(ours.means_, again.means_, rtol=1e-5)
    assert_allclose(ours.covariances_, again.covariances_, rtol=1e-4)


@pytest.mark.parametrize("kind", [*KINDS, "low_rank"])
def test_parts_of_a_stream_leave_a_maximum_where_it_is(kind):
    """What is added to variances is a part of a step, whose size falls."""
    X = 5 * load_iris().data
    X[::3, 1] = np.nan
    params = {"covariance_type": kind, "reg_covar": 0.1, "random_state": 0}
    model = MPTMixture(2, objective="lml", tol=1e-9, **params).fit(X)
    covariances = model.covariances_
    for _ in range(5):
        model.partial_fit(X)
    assert_allclose(model.covariances_, covariances, atol=1e-3)


@pytest.mark.parametrize("kind", ["full", "low_rank"])
def test_training_by_masks_ends_where_em_does(kind):
    X = load_iris().data
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    how = {"covariance_type": kind, "n_init": 2, "random_state": 0}
    masked, exact = (
        MPTMixture(3, objective=objective, **how).fit(X).score(X)
        for objective in ("mpt", "lml")
    )
    assert masked > exact - 0.02


def test_masks_are_drawn_while_they_gain_more_than_their_noise():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)) + 6 * rng.integers(2, size=(200, 1))
    near = MPTMixture(2, random_state=0).fit(X)
    means = [[-4.0] * 3, [10.0] * 3]
    far = MPTMixture(2, means_init=means, random_state=0).fit(X)
    assert_allclose(far.score(X), near.score(X), atol=1e-3)
    exact = MPTMixture(2, means_init=means, objective="lml").fit(X)
    assert not set(far.loss_curve_[:3]) & set(exact.loss_curve_)


@pytest.mark.parametrize(
    ("kind", "masks"),
    [
        ("full", {"n_masks": 8}),
        ("diag", {"mask_rate": 2}),
        ("low_rank", {"n_masks": 8}),
    ],
)
def test_masks_alone_end_by_themselves_near_the_maximum(masks, kind):
    X = load_iris().data[:100]  # two clusters
    how = {"covariance_type": kind, "random_state": 0}
    exact = MPTMixture(2, objective="lml", **how).fit(X).score(X)
    model = MPTMixture(2, **masks, **how).fit(X)
    assert exact - 0.05 < model.score(X) < exact + 1e-3
    if kind == "low_rank":  # averages of both belong together
        noise = model.noise_variances_[:, None] * np.eye(4)
        factors = model.factors_
        assert_allclose(factors.swapaxes(1, 2) @ factors + noise, model.covariances_)


def test_loss_is_minus_the_lml():
    X = load_iris().data
    model = MPTMixture(2, objective="lml", tol=1e-6, random_state=0).fit(X)
    assert_allclose(-model.loss_curve_[-1], model.score(X), atol=1e-4)
    assert (np.diff(model.loss_curve_) < 1e-9).all()


def test_latent_classes_are_recovered():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 1500)
    prob = np.array([[0.9, 0.8, 0.85, 0.1, 0.2], [0.2, 0.1, 0.3, 0.9, 0.7]])
    X = (rng.random((1500, 5)) < prob[label]).astype(float)
    X[rng.random(X.shape) < 0.2] = np.nan
    model = MPTMixture(2, likelihood="bernoulli", random_state=0).fit(X)
    found = model.means_[model.means_[:, 0].argsort()[::-1]]
    assert_allclose(found, prob, atol=0.06)
    agree = np.mean(model.predict(X) == label)
    assert max(agree, 1 - agree) > 0.9


def test_fits_are_the_same_in_any_number_of_parts(monkeypatch):
    rng = np.random.default_rng(0)
    X = np.c_[rng.normal(size=(60, 3)), rng.random((60, 2)) < 0.5]
    X[rng.random(X.shape) < 0.3] = np.nan
    kinds = ["gaussian"] * 3 + ["bernoulli"] * 2
    model = MPTMixture(2, likelihood=kinds, objective="lml", random_state=0)
    weight = rng.random(60)
    whole = model.fit(X, sample_weight=weight).score_samples(X)
    monkeypatch.setattr("sklearn_mpt._mixture.density.CHUNK_BYTES", 5000)
    parts = model.fit(X, sample_weight=weight).score_samples(X)
    assert_allclose(parts, whole, atol=1e-9)


def test_a_table_of_several_kinds_is_filled_in():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 300)
    numbers = 4.0 * label + rng.normal(size=300)
    colour = np.where(rng.random(300) < 0.9, label, 1 - label)
    X = np.column_stack([numbers, colour, rng.poisson(1 + 5 * label)]).astype(float)
    kinds = ["gaussian", "bernoulli", "poisson"]
    model = MPTMixture(2, likelihood=kinds, random_state=0).fit(X)
    holes = X.copy()
    holes[:, 1] = np.nan
    filled = MPTImputer(model).fit(X).transform(holes)
    assert np.mean(filled[:, 1].round() == X[:, 1]) > 0.85
    assert model.sample(5, random_state=0).shape == (5, 3)


def test_draws_have_the_moments_of_the_conditional():
    """One row many times: mean and covariance of what is missing, by SciPy."""
    model, _ = known()
    x = np.array([[1.0, np.nan, np.nan, 0.5]])
    seen, gone = [0, 3], [1, 2]
    weights, means, spreads = [], [], []
    for w, m, c in zip(WEIGHTS, np.array(MEANS), covariances(), strict=True):
        block = np.linalg.solve(c[np.ix_(seen, seen)], c[np.ix_(seen, gone)]).T
        weights.append(
            w * multivariate_normal(m[seen], c[np.ix_(seen, seen)]).pdf(x[0, seen])
        )
        means.append(m[gone] + block @ (x[0, seen] - m[seen]))
        spreads.append(c[np.ix_(gone, gone)] - block @ c[np.ix_(seen, gone)])
    weights = np.array(weights) / np.sum(weights)
    mean = weights @ np.array(means)
    second = sum(
        w * (s + np.outer(m - mean, m - mean))
        for w, m, s in zip(weights, means, spreads, strict=True)
    )
    assert_allclose(model.impute(x)[0, gone], mean)
    many = np.repeat(x, 20000, axis=0)
    drawn = model.impute(many, method="sample", random_state=0)[:, gone]
    error = np.sqrt(np.diag(second) / len(drawn))
    assert (np.abs(drawn.mean(0) - mean) < 4 * error).all()
    assert_allclose(np.cov(drawn.T), second, rtol=0.1, atol=0.1)


def test_parts_of_a_stream():
    X = load_iris().data
    model, rng = MPTMixture(2, random_state=0), np.random.default_rng(0)
    for _ in range(40):
        model.partial_fit(X[rng.choice(150, 75, replace=False)])
    best = MPTMixture(2, objective="lml", random_state=0).fit(X)
    assert model.score(X) > best.score(X) - 0.05


def test_collapsed_components_warn():
    X = np.r_[np.random.default_rng(0).normal(size=(40, 2)), np.full((10, 2), 9.0)]
    with pytest.warns(UserWarning, match=r"component\(s\) \[\d\] fell to the floor"):
        MPTMixture(2, random_state=0).fit(X)


@pytest.mark.filterwarnings("ignore:All 2|Training diverged")
@pytest.mark.parametrize("form", ["full", "low_rank"])
def test_constant_columns_warn_without_a_floor(form):
    X = np.random.default_rng(0).normal(size=(60, 3)) * [1, 0, 1] + [0, 2, 0]
    model = MPTMixture(2, covariance_type=form, reg_covar=0.0, random_state=0)
    with pytest.warns(UserWarning, match=r"component\(s\) \[0, 1\] fell to"):
        model.fit(X)


@pytest.mark.filterwarnings("ignore:All 2|Training diverged|.* stand for fewer")
@pytest.mark.parametrize(("form", "unit"), [("full", 1e-6), ("tied", 1e4)])
def test_sums_of_columns_warn_in_every_unit(form, unit):
    """A singular covariance has no density, but for rounding errors."""
    X = np.random.default_rng(0).normal(size=(60, 2)) * [1, 3] + [5, 8]
    X = unit * np.c_[X, X.sum(1)]
    for reg_covar in (0.0, 1e-6 * unit**2):
        model = MPTMixture(2, covariance_type=form, reg_covar=reg_covar, random_state=0)
        with pytest.warns(UserWarning, match=r"component\(s\) \[0, 1\] fell to"):
            model.fit(X)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("covariance_type", "round", "covariance_type"),
        ("init_params", "best", "init_params"),
        ("n_init", 0, "n_init"),
        ("n_factors", 0.5, "n_factors"),
        ("reg_covar", -1.0, "reg_covar"),
        ("weights_init", [0.5, 0.6], "add up to 1"),
        ("means_init", [[0.0]], r"means_init must have shape \(2, 4\)"),
        ("precisions_init", -np.ones((2, 4, 4)), "positive definite"),
        ("n_components", 151, "n_components=151"),
    ],
)
def test_bad_parameters_are_refused(name, value, message):
    model = MPTMixture(2).set_params(**{name: value})
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(load_iris().data)


@pytest.mark.filterwarnings("ignore:The variance of component")
@pytest.mark.parametrize("constant", [0.0, 0.3, 1.0, 1000.1])
@pytest.mark.parametrize("start", ["kmeans", "k-means++"])
def test_a_constant_number_beside_other_kinds_does_not_hide_the_clusters(
    constant, start
):
    rng = np.random.default_rng(0)
    cluster = rng.integers(2, size=(200, 1))
    X = rng.normal(size=(200, 3)) + 6 * cluster
    X = np.column_stack([X, np.full(200, constant), rng.integers(2, size=200)])
    kinds = ["gaussian"] * 4 + ["bernoulli"]
    params = {"init_params": start, "max_iter": 0, "random_state": 1}
    model = MPTMixture(2, likelihood=kinds, **params).fit(X)
    agree = np.mean(model.predict(X) == cluster[:, 0])
    assert max(agree, 1 - agree) > 0.99


def test_components_of_rows_are_the_most_probable_ones():
    X = load_iris().data.copy()
    X[::7, 1] = np.nan
    model = MPTMixture(3, random_state=0)
    labels = model.fit_predict(X)
    proba = model.predict_proba(X)
    assert_array_equal(labels, proba.argmax(axis=1))
    assert_array_equal(labels, model.predict(X))
    assert_array_equal(proba, model.transform(X))
    assert model.transform(X.astype(np.float32)).dtype == np.float32


def cigars(seed=0):
    """Rows of two long parallel clusters, which k-means cuts across."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(400, 2)) * [10, 1]
    X[:200, 1] += 6
    return X


@pytest.mark.parametrize("has_gaps", [True, False])
def test_several_starts_find_parallel_clusters(has_gaps):
    """With gaps, or beside columns that say nothing of the clusters."""
    rng, X, kinds = np.random.default_rng(1), cigars(), ["gaussian"] * 2
    if has_gaps:
        X[rng.random(X.shape) < 0.15] = np.nan
    else:
        X, kinds = np.c_[X, rng.poisson(4, size=X.shape)], kinds + ["poisson"] * 2
    model = MPTMixture(2, likelihood=kinds, n_init=4, random_state=0).fit(X)
    assert_allclose(np.sort(model.means_[:, 1]), [0, 6], atol=0.5)


def test_all_starts_are_of_the_kind_that_is_asked_for():
    X, params = cigars(), {"n_init": 3, "random_state": 0}
    across = MPTMixture(2, init_params="kmeans", **params).fit(X).score(X)
    assert across < MPTMixture(2, **params).fit(X).score(X) - 0.1
    merged = {"init_params": "hierarchical", "max_iter": 0}
    one, other = (MPTMixture(2, random_state=s, **merged).fit(X) for s in (0, 1))
    assert_array_equal(one.means_, other.means_)


(STARTS,) = MPTMixture._parameter_constraints["init_params"]


@pytest.mark.parametrize("kind", sorted(STARTS.options - {"auto"}))
def test_starts_of_every_kind_are_those_of_weighted_rows(kind):
    X = np.r_[cigars()[:100], np.full((100, 2), 1e4)]
    weight = np.r_[np.ones(100), np.full(100, 1e-6)]
    params = {"init_params": kind, "max_iter": 0, "random_state": 0}
    model = MPTMixture(2, **params).fit(X, sample_weight=weight)
    assert np.abs(model.weights_ @ model.means_).max() < 20


def test_more_starts_do_not_end_below_one():
    """Of four short runs the best is not that which ends best."""
    rng = np.random.default_rng(39)
    X = rng.normal(size=(80, 2))
    X = np.c_[X, X[:, 0] * X[:, 1]]
    params = {"n_components": 3, "objective": "lml", "random_state": 39}
    one, four = (MPTMixture(n_init=n, **params).fit(X).score(X) for n in (1, 4))
    assert four > one - 1e-4


@pytest.mark.parametrize("kind", ["bernoulli", "categorical", "poisson"])
def test_components_that_are_all_the_same_warn(kind):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (100, 3)).astype(float)
    # a prior that outweighs the rows makes components alike
    weight = np.full(len(X), 1e-3)
    model = MPTMixture(2, likelihood=kind, random_state=0)
    with (
        pytest.warns(UserWarning, match="adds up to 0.1"),
        pytest.warns(UserWarning, match="All 2 components have nearly the same"),
    ):
        model.fit(X, sample_weight=weight)
    one = MPTMixture(1, likelihood=kind).fit(X)
    assert_allclose(model.score(X), one.score(X), atol=1e-2)


def test_counts_without_clusters_warn_and_clusters_do_not():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (100, 3)).astype(float)
    model = MPTMixture(2, likelihood="poisson", random_state=0)
    with pytest.warns(UserWarning, match="use n_components=1, or other starts"):
        model.fit(X)
    X[:2] = 30  # a component of few rows is another one
    assert model.fit(X).weights_.min() < 0.03


def test_a_table_of_frequencies_has_its_rows_written_out():
    rng = np.random.default_rng(0)
    X = np.vstack([rng.poisson(2, (1500, 2)), rng.poisson(8, (1500, 2))]) * 1.0
    rows, weight = np.unique(X, axis=0, return_counts=True)
    weighted, plain = (MPTMixture(2, likelihood="poisson", random_state=0),) * 2
    score = weighted.fit(rows, sample_weight=weight).score(X)
    assert_allclose(score, plain.fit(X).score(X), atol=1e-3)
    start = {"max_iter": 0}
    found = weighted.set_params(**start).fit(rows, sample_weight=weight).means_
    assert_allclose(np.sort(found, 0), np.sort(plain.fit(X).means_, 0), rtol=0.02)


@pytest.mark.parametrize("form", [*KINDS, "low_rank"])
@pytest.mark.filterwarnings(
    "ignore:The variance|Component|Maximum|Number of dist|All 2"
)
def test_odd_tables_let_no_warning_of_numbers_escape(form):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 3))
    gaps = np.where(rng.random(X.shape) < 0.7, np.nan, X)
    gaps[0] = 1.0
    tables = (
        1e100 * X,
        1e-100 * X,
        X * [1e-8, 1, 1e8],
        X[:2],
        gaps,
        np.full((9, 2), 3.0),
    )
    with np.errstate(all="raise", under="ignore"):
        for table in tables:
            model = MPTMixture(
                2, covariance_type=form, n_init=2, max_iter=5, random_state=0
            )
            assert np.isfinite(model.fit(table).score(table))
