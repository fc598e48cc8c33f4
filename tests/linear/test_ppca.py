import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from reference import (
    conditional_log_density,
    covariance_of,
    log_density,
    low_rank_rows,
    ml_optimum,
)
from scipy.stats import kstest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

from sklearn_mpt import MPTProbabilisticPCA, mpt_curve


def test_conditionals_are_those_of_the_joint_density(known):
    model, X = known
    X[np.random.default_rng(1).random(X.shape) < 0.2] = np.nan
    mask = np.random.default_rng(2).random(X.shape) < 0.5
    expected = conditional_log_density(X, mask, model.mean_, covariance_of(model))
    assert_allclose(model.conditional_log_prob(X, mask), expected, atol=1e-10)


def test_score_samples_is_the_density_of_what_is_present(known):
    model, X = known
    X[np.random.default_rng(1).random(X.shape) < 0.4] = np.nan
    log_prob, std_error = model.score_samples(X, return_std=True)
    assert_allclose(log_prob, log_density(X, model.mean_, covariance_of(model)))
    assert_array_equal(std_error, 0.0)


def test_score_is_that_of_scikit_learn_pca():
    X = load_iris().data
    model = MPTProbabilisticPCA(n_components=2, init="pca", max_iter=0).fit(X)
    pca = PCA(n_components=2).fit(X)
    # PCA divides its variances by n - 1, the likelihood by n
    factor = (len(X) - 1) / len(X)
    pca.explained_variance_ *= factor
    pca.noise_variance_ *= factor
    assert_allclose(model.score_samples(X), pca.score_samples(X))
    assert_allclose(np.abs(model.transform(X).mean(axis=0)), 0, atol=1e-12)


def test_transform_is_the_posterior_mean_and_inverts(known):
    model, X = known
    W, noise = model.components_, model.noise_variance_
    expected = (X - model.mean_) @ W.T @ np.linalg.inv(W @ W.T + noise * np.eye(2))
    assert_allclose(model.transform(X), expected)
    assert_allclose(model.inverse_transform(expected), expected @ W + model.mean_)


def test_imputation_by_the_mean_is_the_conditional_mean(known):
    model, X = known
    hidden = np.array([0, 3])
    seen = np.array([1, 2, 4, 5])
    S = covariance_of(model)
    gain = S[np.ix_(hidden, seen)] @ np.linalg.inv(S[np.ix_(seen, seen)])
    expected = model.mean_[hidden] + (X[:, seen] - model.mean_[seen]) @ gain.T
    gappy = X.copy()
    gappy[:, hidden] = np.nan
    assert_allclose(model.impute(gappy)[:, hidden], expected)


def test_imputation_by_sampling_is_a_joint_draw(known):
    model, X = known
    row = X[0].copy()
    row[[0, 3]] = np.nan
    draws = model.impute(np.tile(row, (20000, 1)), method="sample")[:, [0, 3]]
    hidden, seen = [0, 3], [1, 2, 4, 5]
    S = covariance_of(model)
    gain = S[np.ix_(hidden, seen)] @ np.linalg.inv(S[np.ix_(seen, seen)])
    expected = S[np.ix_(hidden, hidden)] - gain @ S[np.ix_(seen, hidden)]
    # a sample covariance of n draws has standard error at most sqrt(2 / n) of its size
    tolerance = 5 * np.sqrt(2 / 20000) * expected.max()
    assert_allclose(np.cov(draws.T), expected, atol=tolerance)


def test_samples_have_the_density_of_the_model(known):
    model, _ = known
    X = model.sample(5000, random_state=0)
    whitened = np.linalg.solve(
        np.linalg.cholesky(covariance_of(model)), (X - model.mean_).T
    )
    assert kstest(whitened.ravel(), "norm").pvalue > 1e-3


@pytest.mark.parametrize(
    ("X", "n_components"),
    [
        (load_digits().data / 16, 10),
        (scale(load_breast_cancer().data), 1),
        (low_rank_rows(500, 200, 5, 0.2, seed=7), 10),
    ],
    ids=["digits", "breast_cancer", "wide"],
)
def test_default_fit_reaches_the_maximum_likelihood_solution(X, n_components):
    model = MPTProbabilisticPCA(n_components=n_components, random_state=1).fit(X)
    gap = ml_optimum(X, n_components) - model.score(X)
    assert -1e-9 < gap < 0.01


def test_default_fit_copes_with_features_of_very_different_variance():
    X = load_breast_cancer().data
    assert X.var(axis=0).max() > 1e10 * X.var(axis=0).min()
    model = MPTProbabilisticPCA(n_components=10, random_state=0).fit(X)
    assert ml_optimum(X, 10) - model.score(X) < 0.1


@pytest.mark.parametrize("mask_rate", [0.2, 3])
def test_fixed_rates_and_sizes_maximise_the_likelihood_too(mask_rate):
    X = low_rank_rows(1000, 10, 2, 0.2, seed=1)
    for seed in range(2):  # starts
        model = MPTProbabilisticPCA(mask_rate=mask_rate, random_state=seed).fit(X)
        assert ml_optimum(X, 2) - model.score(X) < 0.02


def test_few_masks_of_rows_with_gaps_lead_to_the_optimum():
    """Along a ridge, noise hides what each step gains."""
    X = load_diabetes().data.copy()
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    best = MPTProbabilisticPCA(3, objective="lml", init="pca", tol=1e-6).fit(X)
    model = MPTProbabilisticPCA(3, n_masks=4, random_state=0).fit(X)
    assert best.score(X) - model.score(X) < 0.01


def test_starts_have_the_variance_of_the_data():
    """Masks of few features hardly determine it, so that steps do not repair it."""
    X = low_rank_rows(1000, 10, 2, 0.2, seed=1) * 100 + 1000
    start = MPTProbabilisticPCA(max_iter=0, random_state=0).fit(X)
    z_variance = np.linalg.eigvalsh(start.transform(X).T @ start.transform(X) / len(X))
    assert z_variance.min() > 0.5  # less than 1 by the noise
    assert z_variance.max() < 1


def test_rows_without_structure_take_few_epochs():
    """Directions explain about as much, so natural steps alone take hundreds."""
    X = np.random.default_rng(0).normal(size=(100, 300))
    model = MPTProbabilisticPCA(5, random_state=0).fit(X)
    exact = MPTProbabilisticPCA(5, objective="lml").fit(X)
    assert model.score(X) > exact.score(X) - 1e-3
    assert model.n_iter_ < 80


def test_loss_curve_estimates_the_objective():
    X = low_rank_rows(1000, 10, 2, 0.2, seed=1)
    uniform = MPTProbabilisticPCA(random_state=0).fit(X)
    fixed = MPTProbabilisticPCA(mask_rate=0.2, random_state=0).fit(X)
    curve = mpt_curve(fixed, X, n_masks=1000, random_state=0)
    assert_allclose(-uniform.loss_curve_[-1], uniform.score(X), atol=1e-6)
    # three standard errors of the mean of five epochs, each by its own masks
    assert abs(-np.mean(fixed.loss_curve_[-5:]) - curve.fixed_rate(0.2)) < 0.35
    assert abs(curve.bias(0.2)) > 0.3


def test_likelihood_objective_reaches_the_optimum():
    X = load_iris().data
    model = MPTProbabilisticPCA(objective="lml", random_state=0).fit(X)
    assert abs(ml_optimum(X, 2) - model.score(X)) < 1e-4
    assert_allclose(-model.loss_curve_[-1], model.score(X), atol=1e-4)


@pytest.mark.parametrize("objective", ["mpt", "lml"])
def test_fit_with_missing_entries_beats_mean_imputation(objective):
    complete = low_rank_rows(600, 12, 2, 0.2, seed=3)
    X = np.where(
        np.random.default_rng(0).random(complete.shape) < 0.3, np.nan, complete
    )
    model = MPTProbabilisticPCA(objective=objective, random_state=0).fit(X)
    on_means = MPTProbabilisticPCA(init="pca", max_iter=0).fit(X)
    best = MPTProbabilisticPCA(init="pca", max_iter=0).fit(complete)
    assert model.score(X) > on_means.score(X) + 0.1
    # what the hidden entries would add to the fit of 600 rows is small
    assert best.score(complete) - model.score(complete) < 0.2


def test_components_are_orthogonal_ordered_and_of_definite_sign():
    X = load_iris().data
    model = MPTProbabilisticPCA(n_components=3, random_state=0).fit(X)
    gram = model.components_ @ model.components_.T
    lengths = gram.diagonal()
    assert_allclose(gram, np.diag(lengths), atol=1e-10)
    assert (np.diff(lengths) < 0).all()
    pca = PCA(n_components=3).fit(X)
    cosines = np.sum(model.components_ * pca.components_, axis=1) / np.sqrt(lengths)
    assert (cosines[:2] > 0.999).all()


def test_pca_start_is_the_optimum():
    X = load_digits().data
    model = MPTProbabilisticPCA(n_components=5, init="pca", max_iter=0).fit(X)
    assert_allclose(model.score(X), ml_optimum(X, 5))
    assert model.n_iter_ == 0
    assert model.loss_curve_ == []


def test_dict_start_is_kept_and_then_learned():
    X = load_iris().data
    start = {"components": np.eye(2, 4), "mean": np.zeros(4), "noise_variance": 1.0}
    kept = MPTProbabilisticPCA(init=start, max_iter=0).fit(X)
    assert_array_equal(kept.components_, start["components"])
    assert_array_equal(kept.mean_, start["mean"])
    assert kept.noise_variance_ == 1.0
    learned = MPTProbabilisticPCA(init=start, random_state=0).fit(X)
    assert ml_optimum(X, 2) - learned.score(X) < 0.01
    assert_allclose(learned.mean_, X.mean(axis=0))


def test_mean_is_learned_where_entries_are_missing():
    X = load_iris().data
    start = {"components": np.eye(2, 4), "mean": np.zeros(4), "noise_variance": 1.0}
    gappy = X.copy()
    gappy[0, 0] = np.nan
    model = MPTProbabilisticPCA(init=start, random_state=0).fit(gappy)
    assert ml_optimum(X, 2) - model.score(X) < 0.05
    assert_allclose(model.mean_, X.mean(axis=0), atol=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"components": np.eye(3, 4)},
            r"init\['components'\] must have shape \(2, 4\)",
        ),
        ({"mean": np.full(4, np.nan)}, r"init\['mean'\] must be finite"),
        ({"noise_variance": 0.0}, r"init\['noise_variance'\] must be > 0, got 0\.0"),
        ({"noise": 1.0}, r"init must have the keys .* 'noise_variance'\], got"),
    ],
)
def test_bad_dict_starts_are_refused(change, message):
    start = {"components": np.eye(2, 4), "mean": np.zeros(4), "noise_variance": 1.0}
    with pytest.raises(ValueError, match=message):
        MPTProbabilisticPCA(init=start | change).fit(load_iris().data)


@pytest.mark.parametrize("factor", [1e-6, 0.3, 1e6])
@pytest.mark.parametrize("shift", [-1e6, 0.7, 1e6])
def test_density_follows_scale_and_shift(factor, shift):
    X = low_rank_rows(40, 5, 2, 0.3, seed=0)
    moved = factor * (X + shift)
    plain, other = (
        MPTProbabilisticPCA(init="pca", max_iter=0).fit(rows) for rows in (X, moved)
    )
    expected = plain.score_samples(X) - 5 * np.log(factor)
    assert_allclose(other.score_samples(moved), expected, atol=1e-5)


def test_training_follows_scale_and_shift():
    X = low_rank_rows(200, 6, 2, 0.3, seed=0)
    plain = MPTProbabilisticPCA(random_state=0).fit(X)
    other = MPTProbabilisticPCA(random_state=0).fit(1e6 * X + 1e8)
    expected = plain.score(X) - 6 * np.log(1e6)
    assert_allclose(other.score(1e6 * X + 1e8), expected, atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_density_follows_permutations_of_rows_and_features(seed):
    rng = np.random.default_rng(seed)
    X = low_rank_rows(30, 6, 2, 0.3, seed)
    rows, features = rng.permutation(30), rng.permutation(6)
    model = MPTProbabilisticPCA(init="pca", max_iter=0).fit(X)
    start = {
        "components": model.components_[:, features],
        "mean": model.mean_[features],
        "noise_variance": model.noise_variance_,
    }
    permuted = MPTProbabilisticPCA(init=start, max_iter=0).fit(X[:, features])
    X[rng.random(X.shape) < 0.3] = np.nan
    mask = rng.random(X.shape) < 0.5
    assert_allclose(
        permuted.score_samples(X[rows][:, features]), model.score_samples(X)[rows]
    )
    assert_allclose(
        permuted.conditional_log_prob(X[rows][:, features], mask[rows][:, features]),
        model.conditional_log_prob(X, mask)[rows][:, features],
        atol=1e-10,
    )


def test_table_1_of_the_reference_publication():
    """LML and its estimate from one mask per size, D = 200, K = 5, five seeds."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(1991)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    W, Z, noise = normal(200, 5), normal(1000, 5), 0.2 * normal(1000, 1)
    X = (Z @ W.T + noise).double().numpy()
    start = {
        "components": W.T.double().numpy(),
        "mean": np.zeros(200),
        "noise_variance": 0.2,
    }
    model = MPTProbabilisticPCA(n_components=5, init=start, max_iter=0).fit(X)
    assert_allclose(model.score(X), -60.344, atol=6e-4)
    lmls = []
    for seed in (4, 44, 444, 4444, 44444):
        generator = torch.Generator().manual_seed(seed)
        masks = np.zeros((200, 200), dtype=bool)
        for size in range(1, 201):
            hidden = torch.randperm(200, generator=generator)[:size].numpy()
            masks[size - 1, hidden] = True
        lmls.append(model.mean_masked_scores(X, masks).sum())
    assert_allclose(np.mean(lmls), -60.445, atol=1.1e-3)
    assert_allclose(np.std(lmls, ddof=1), 0.475, atol=1.1e-3)


@pytest.mark.parametrize("unit", [1e-140, 1e-90, 1e90, 1e140])
@pytest.mark.parametrize("has_gaps", [False, True])
def test_units_of_rows_do_not_matter_to_curves(unit, has_gaps):
    rng = np.random.default_rng(0)
    X = unit * (rng.normal(size=(30, 2)) @ rng.normal(size=(2, 5)))
    X += 0.5 * unit * rng.normal(size=X.shape)
    if has_gaps:
        X[rng.random(X.shape) < 0.1] = np.nan
    model = MPTProbabilisticPCA(init="pca", max_iter=0).fit(X)
    lml = mpt_curve(model, X, design="all").lml
    assert_allclose(lml, model.score(X), rtol=1e-10)


def test_one_feature():
    X = np.random.default_rng(0).normal(3, 2, size=(200, 1))
    model = MPTProbabilisticPCA(n_components=1, random_state=0).fit(X)
    expected = -0.5 * (np.log(2 * np.pi * X.var()) + 1)
    assert abs(expected - model.score(X)) < 0.001
    with pytest.raises(ValueError, match=r"n_components=2 .* n_features=1"):
        MPTProbabilisticPCA(n_components=2).fit(X)


def test_as_many_components_as_features():
    X = load_iris().data
    model = MPTProbabilisticPCA(n_components=4, random_state=0).fit(X)
    S = np.cov(X.T, bias=True)
    expected = -0.5 * (np.linalg.slogdet(2 * np.pi * S)[1] + 4)
    assert -1e-9 <= expected - model.score(X) < 0.02


def test_a_constant_feature_is_no_trouble():
    X = load_iris().data.copy()
    X[:, 1] = 7.0
    model = MPTProbabilisticPCA(random_state=0).fit(X)
    assert ml_optimum(X, 2) - model.score(X) < 0.01


@pytest.mark.parametrize(
    "X",
    [
        np.ones((10, 3)),
        np.tile(np.random.default_rng(0).normal(size=(50, 1)), (1, 3)),
        np.random.default_rng(0).normal(size=(2, 20)),
        np.random.default_rng(0).normal(size=(3, 100)),
    ],
    ids=["constant", "duplicated", "two rows", "rows on a plane"],
)
def test_rows_explained_without_error_stop_at_the_noise_floor(X):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = MPTProbabilisticPCA(random_state=0).fit(X)
    assert any("fell towards its floor" in str(warning.message) for warning in caught)
    assert np.isfinite(model.score(X))
    assert model.noise_variance_ > 0


@pytest.mark.parametrize("factor", [1e200, 1e-200])
def test_values_whose_squares_overflow_are_refused(factor):
    with pytest.raises(ValueError, match="rescale X"):
        MPTProbabilisticPCA().fit(factor * load_iris().data)


def test_float32_rows_give_float32_rows():
    X = load_iris().data.astype(np.float32)
    model = MPTProbabilisticPCA(random_state=0).fit(X)
    assert model.transform(X).dtype == np.float32
    assert model.inverse_transform(model.transform(X)).dtype == np.float32
    assert model.impute(np.where(X > 7, np.nan, X)).dtype == np.float32
    assert model.score_samples(X).dtype == np.float64
    assert abs(ml_optimum(X.astype(float), 2) - model.score(X)) < 0.01


def test_too_few_epochs_warn():
    with pytest.warns(ConvergenceWarning, match=r"max_iter=3\) reached"):
        model = MPTProbabilisticPCA(max_iter=3, random_state=0).fit(load_iris().data)
    assert model.n_iter_ == 3


@pytest.mark.parametrize("learning_rate", [10.0, 1e4])
@pytest.mark.parametrize("seed", [0, 1])
def test_steps_far_too_long_are_taken_back(learning_rate, seed):
    X = load_iris().data
    model = MPTProbabilisticPCA(learning_rate=learning_rate, random_state=seed).fit(X)
    assert ml_optimum(X, 2) - model.score(X) < 1e-3


def test_partial_fit_on_a_stream_approaches_the_optimum():
    X = low_rank_rows(300, 9, 2, 0.2, seed=6)
    model = MPTProbabilisticPCA(random_state=0)
    for _ in range(40):
        for part in np.array_split(X, 3):
            model.partial_fit(part)
    assert ml_optimum(X, 2) - model.score(X) < 0.1
    model.partial_fit(X[:1])
    assert model.n_iter_ == 121


def test_pipeline_and_grid_search_pick_what_the_closed_form_picks():
    X = load_breast_cancer().data
    candidates = [1, 5, 10]
    ours = GridSearchCV(
        make_pipeline(StandardScaler(), MPTProbabilisticPCA(random_state=0)),
        {"mptprobabilisticpca__n_components": candidates},
        cv=3,
    ).fit(X)
    closed_form = GridSearchCV(
        make_pipeline(StandardScaler(), PCA(svd_solver="full")),
        {"pca__n_components": candidates},
        cv=3,
    ).fit(X)
    assert list(ours.best_params_.values()) == list(closed_form.best_params_.values())


def test_set_output_names_the_columns():
    pytest.importorskip("pandas")
    frame = load_iris(as_frame=True).data
    model = MPTProbabilisticPCA(random_state=0).set_output(transform="pandas")
    Z = model.fit(frame).transform(frame)
    assert list(Z.columns) == ["mptprobabilisticpca0", "mptprobabilisticpca1"]
    assert list(model.feature_names_in_) == list(frame.columns)
    curve = mpt_curve(model, frame, n_masks=2, random_state=0)
    assert np.isfinite(curve.lml)


def test_verbose_prints_the_loss(capsys):
    with pytest.warns(ConvergenceWarning):
        MPTProbabilisticPCA(max_iter=2, verbose=True).fit(load_iris().data)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in printed] == ["Iteration 1", "Iteration 2"]


@pytest.mark.gpu
def test_cuda_gives_the_numbers_of_the_cpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    X = load_digits().data / 16
    models = [
        MPTProbabilisticPCA(n_components=5, random_state=0, device=device).fit(X)
        for device in ("cpu", "cuda")
    ]
    assert_allclose(models[1].score(X), models[0].score(X), atol=1e-3)
    on_cpu = models[1].set_params(device="cpu")
    assert_allclose(on_cpu.score(X), models[0].score(X), atol=1e-3)


@pytest.mark.parametrize("n_components", [3, 30])
def test_closed_form_of_wide_rows_is_that_of_their_covariance(n_components):
    X = np.random.default_rng(0).normal(size=(12, 40)) * np.linspace(1, 3, 40)
    weight = np.random.default_rng(1).uniform(0.5, 2, size=12)
    model = MPTProbabilisticPCA(n_components, objective="lml")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # more components than rows
        model.fit(X, sample_weight=weight)
    covariance = np.cov(X.T, aweights=weight, bias=True)
    values, vectors = np.linalg.eigh(covariance)
    noise = max(values[:-n_components].mean(), 1e-9 * np.trace(covariance) / 40)
    lengths = np.maximum(values[-n_components:] - noise, 0)
    expected = (vectors[:, -n_components:] * lengths) @ vectors[:, -n_components:].T
    assert model.noise_variance_ == pytest.approx(noise, rel=1e-9)
    W = model.components_
    assert_allclose(W.T @ W, expected, atol=1e-9 * np.trace(covariance))
