"""The designs of `mpt_curve`: no bias, and errors that cover, whatever the model."""

import itertools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from recorder import Recorder, masks_of, masks_of_rows

from sklearn_mpt import MPTProbabilisticPCA, mpt_curve

DESIGNS = ["balanced", "independent"]


def model_of(n_features, n_components=2, n_rows=20, seed=0):
    rng = np.random.default_rng(seed)
    start = {
        "components": rng.normal(size=(n_components, n_features)),
        "mean": rng.normal(size=n_features),
        "noise_variance": 0.3,
    }
    model = MPTProbabilisticPCA(n_components, init=start, max_iter=0, random_state=0)
    model.fit(rng.normal(size=(10, n_features)))
    return model, model.sample(n_rows, random_state=seed)


def no_joint(X, mask):
    """Conditionals that no joint density has."""
    visible = np.where(mask, 0.0, X)
    mean = visible.sum(axis=1, keepdims=True) / (~mask).sum(-1, keepdims=True).clip(1)
    weight = 1 + 0.5 * np.cos(np.arange(X.shape[1]))
    return np.where(mask, -weight * (X - 0.8 * mean) ** 2, 0.0)


def shared_masks_only(conditional):
    def function(X, mask):
        assert mask.ndim == 1
        return conditional(X, mask)

    return function


def z_scores(function, X, truth, n_seeds, **options):
    curves = [mpt_curve(function, X, random_state=s, **options) for s in range(n_seeds)]
    error = np.array([curve.lml for curve in curves]) - truth
    covers = [
        low - 1e-9 <= truth <= high + 1e-9
        for low, high in (curve.lml_interval() for curve in curves)
    ]
    return error, np.array([c.lml_std_error for c in curves]), np.mean(covers)


def test_designs_agree_on_every_size():
    model, X = model_of(6, 3)
    sizes = {"mask_sizes": [2, 4]}
    exact = mpt_curve(
        model, X, n_masks=20, **sizes, design="independent", random_state=0
    )
    assert exact.std_errors.max() == 0  # there are no more masks of any size
    function = model.conditional_log_prob
    curves = [
        mpt_curve(function, X, n_masks=8, random_state=s, **sizes) for s in range(20)
    ]
    error = np.array([curve.scores for curve in curves]) - exact.scores
    spread = error.std(axis=0, ddof=1) / np.sqrt(20)
    assert np.all(np.abs(error.mean(axis=0)) <= 4.5 * spread + 1e-12)


@pytest.mark.parametrize("has_gaps", [False, True])
def test_all_masks_are_the_average_over_all_that_exist(has_gaps):
    model, X = model_of(5)
    X[::3, 1] = np.nan if has_gaps else 0.0
    function = model.conditional_log_prob if has_gaps else no_joint
    curve = mpt_curve(function, X, design="all", random_state=1)
    masks = np.array(list(itertools.product([False, True], repeat=5)))[1:]
    present = ~np.isnan(X)
    scores = [
        np.where(present, function(X, mask), 0.0)[:, mask].sum() / mask.sum() / len(X)
        for mask in masks
    ]
    of_size = [np.equal(masks.sum(axis=1), size) for size in range(1, 6)]
    assert_allclose(curve.scores, [np.mean(np.array(scores)[own]) for own in of_size])
    assert (curve.std_errors == 0).all()
    assert curve.lml_std_error == 0
    another = mpt_curve(function, X, design="all", random_state=2)
    assert (curve - another).lml == 0


@pytest.mark.parametrize(
    ("n_features", "options", "message"),
    [
        (13, {}, r"at most 12 features, got 13, which have 2\^13 - 1 masks"),
        (4, {"n_masks": 3}, "n_masks must be None with design='all', got 3"),
        (
            4,
            {"allocation": "neyman"},
            "needs design='independent' or 'auto'",
        ),
    ],
)
def test_what_does_not_go_with_all_masks_is_refused(n_features, options, message):
    with pytest.raises(ValueError, match=message):
        mpt_curve(no_joint, np.zeros((2, n_features)), design="all", **options)


@pytest.mark.parametrize(
    ("design", "n_masks", "n_features", "shared"),
    [
        ("balanced", 3, 10, False),
        ("balanced", 10, 10, False),
        ("balanced", 3, 10, True),
        ("balanced", 10, 10, True),
        ("independent", 3, 8, True),
        ("independent", 10, 8, True),
        ("balanced", 2, 3, False),
        ("independent", 2, 4, True),
    ],
)
@pytest.mark.parametrize("outlier", [False, True])
@pytest.mark.slow
def test_intervals_cover(design, n_masks, n_features, shared, outlier):
    X = model_of(n_features)[1]
    if outlier:
        X[0] += 15
    truth = mpt_curve(no_joint, X, n_masks=252, design="independent").lml
    function = shared_masks_only(no_joint) if shared else no_joint
    options = {"design": design, "n_masks": n_masks}
    error, std_error, covered = z_scores(function, X, truth, 200, **options)
    assert abs(error.mean()) < 4 * error.std(ddof=1) / np.sqrt(200)
    # two degrees of freedom do not make skewed errors normal
    assert covered >= (0.9 if n_masks == 10 else 0.85)
    # the variance is estimated without bias
    assert 0.7 < np.mean(std_error**2) / error.var() < 1.4


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("n_masks", [2, 3])
def test_two_features_have_few_masks_and_no_error(design, n_masks):
    X = model_of(2, 1)[1]
    curve = mpt_curve(no_joint, X, n_masks=n_masks, design=design)
    expected = mpt_curve(no_joint, X, n_masks=50, design="independent")
    assert_allclose(curve.scores, expected.scores)
    assert_allclose(curve.std_errors, 0)


@pytest.mark.parametrize("n_drawn", [2, 3, 5, 6])
def test_errors_are_those_of_samples_without_repetition(n_drawn):
    """With all of the six masks there is no error."""
    values = np.random.default_rng(0).exponential(size=6)
    recorder = Recorder(lambda masks: masks @ values)
    options = {"design": "independent", "mask_sizes": [1], "n_masks": n_drawn}
    curve = mpt_curve(recorder, np.zeros((2, 6)), random_state=0, **options)
    drawn = np.concatenate(recorder.masks) @ values
    assert_allclose(curve.scores, drawn.mean())
    variance = drawn.var(ddof=1) / n_drawn * (1 - n_drawn / 6)
    assert_allclose(curve.std_errors, np.sqrt(variance), atol=1e-15)


@pytest.mark.slow
def test_neyman_has_no_bias_on_skewed_scores():
    def skewed(X, mask):  # what matters is whether feature 0 is seen
        return np.where(mask, np.where(mask[0], -10.0, -10 - X), 0.0)

    X = np.exp(np.random.default_rng(0).normal(size=(3, 12)) * 2)
    truth = mpt_curve(skewed, X, n_masks=1000, design="independent").lml
    options = {"n_masks": 6, "allocation": "neyman"}
    error, _, _ = z_scores(skewed, X, truth, 600, **options)
    assert abs(error.mean()) < 4 * error.std(ddof=1) / np.sqrt(600)


@pytest.mark.slow
def test_neyman_spends_the_same_and_varies_less():
    model, X = model_of(30, 3, n_rows=25)
    n_calls, variances = [0, 0], []
    for i, allocation in enumerate(("equal", "neyman")):

        def counting(X, mask, i=i):
            n_calls[i] += len(X) == 25  # not those of checks
            return model.conditional_log_prob(X, mask)

        options = {"n_masks": 6, "design": "independent", "allocation": allocation}
        variances.append(z_scores(counting, X, 0.0, 15, **options)[0].var())
    # there is one mask that hides everything
    assert 15 * 6 * 29 < n_calls[1] <= n_calls[0] == 15 * (6 * 29 + 1)
    assert variances[1] < variances[0]


def test_balanced_masks_vary_less():
    X = model_of(10, 3, n_rows=40)[1]
    spread = {
        design: z_scores(no_joint, X, 0.0, 20, n_masks=6, design=design)[0].var()
        for design in ("balanced", "independent")
    }
    assert spread["balanced"] < 0.5 * spread["independent"]


@pytest.mark.parametrize("allocation", ["equal", "neyman"])
def test_curves_of_blocks_are_averages_over_their_masks(allocation):
    """Each way to pair four features, against all masks that hide the pairs.

    The mean over the three ways to pair them has no bias.
    """
    model, X = model_of(4)
    totals = []
    for partner in (1, 2, 3):
        blocks = np.isin(np.arange(4), [0, partner]).tolist()
        first, second = ([j for j in range(4) if blocks[j] == own] for own in (1, 0))
        masks = [[[j] for j in range(4)], [first, second]]
        masks.append([*([*first, j] for j in second), *([*second, j] for j in first)])
        masks.append([[0, 1, 2, 3]])
        expected = [
            np.mean([
                model.conditional_log_prob(X, np.isin(np.arange(4), hidden))[:, hidden]
                for hidden in of_size
            ])
            for of_size in masks
        ]  # fmt: skip
        totals.append(sum(expected))
        curve = mpt_curve(
            model,
            X,
            n_masks=400,
            mask_blocks=blocks,
            allocation=allocation,
            random_state=0,
        )
        error = curve.scores - expected
        assert (np.abs(error) <= 4 * curve.std_errors + 1e-12).all()
        assert curve.std_errors[3] == 0
        assert abs(curve.total - sum(expected)) < 4 * np.linalg.norm(curve.std_errors)
    assert np.mean(totals) == pytest.approx(model.score(X), abs=1e-9)
    assert np.std(totals) > 0.02  # one pairing alone has a bias
    assert "sum over sizes" in repr(curve)
    for ask in (lambda: curve.lml, lambda: curve.bias(0.5), curve.lml_interval):
        with pytest.raises(ValueError, match="do not add up to the log marginal"):
            ask()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_blocks": [0, 1]}, "a label for each of the 5 features, got shape"),
        ({"mask_blocks": "row"}, "mask_blocks must be None, 'span', or an array"),
        ({"mask_blocks": "span", "design": "all"}, "mask_blocks needs design="),
        ({"mask_blocks": "span", "design": "balanced"}, "mask_blocks needs design="),
    ],
)
def test_blocks_that_are_not_allowed_are_named(options, message):
    model, X = model_of(5)
    with pytest.raises(ValueError, match=message):
        mpt_curve(model, X, **options)


def test_only_hidden_and_present_entries_count():
    model, X = model_of(5)
    X[::2, 1] = np.nan

    def careless(X, mask):
        log_prob = model.conditional_log_prob(X, mask) + np.where(mask, 0, 1e9)
        return np.where(np.isnan(X), np.nan, log_prob)

    for design in DESIGNS:
        options = {"design": design, "n_masks": 3, "random_state": 0}
        curve = mpt_curve(careless, X, **options)
        expected = mpt_curve(model.conditional_log_prob, X, **options)
        assert_allclose(curve.scores, expected.scores)


def negative_square(X, mask):
    return -(X**2) * mask


def gets_row_masks(function, X):
    """Whether the curve of a function draws masks for each row."""
    curve = mpt_curve(function, X, n_masks=2, design="balanced", random_state=0)
    return dict(curve.noise.draw)["masks for each row"]


def test_row_masks_are_used_where_the_function_takes_them():
    model, X = model_of(5)
    conditional = model.conditional_log_prob
    assert gets_row_masks(conditional, X[:2])
    assert not gets_row_masks(shared_masks_only(conditional), X[:2])


def reads_one_mask(which):
    """A function that takes masks for each row, and then conditions on one of them."""

    def function(X, mask):
        one = np.atleast_2d(mask)[which]
        return np.where(mask, no_joint(np.nan_to_num(X), one), 0.0)

    return function


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("n_features", [2, 3, 8])
def test_a_function_that_reads_one_mask_gets_no_others(which, n_features):
    """Whatever entries of the first rows are missing, or independent of the rest."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, n_features))
    function = reads_one_mask(which)
    assert gets_row_masks(no_joint, X)
    assert not gets_row_masks(function, X)
    gaps = X.copy()
    gaps[:3, :2] = np.nan
    assert not gets_row_masks(function, gaps)
    assert not gets_row_masks(function, np.where(rng.random(X.shape) < 0.6, np.nan, X))
    assert not gets_row_masks(function, np.full_like(X, np.nan))


def test_masks_of_functions_that_cannot_be_told_apart_are_shared():
    """If nothing depends on what is visible, a wrong reading does not show."""
    X = np.random.default_rng(0).normal(size=(6, 4))
    shapes = set()

    def independent(X, mask):
        shapes.add((mask.ndim, X.shape))
        return np.where(mask, -(X**2), 0.0)

    mpt_curve(independent, X, n_masks=2, design="balanced", random_state=0)
    assert {ndim for ndim, shape in shapes if shape == X.shape} == {1}


@pytest.mark.parametrize("design", DESIGNS)
def test_a_function_that_wants_a_mask_for_each_row_gets_them(design):
    X = model_of(5)[1]

    def function(X, mask):
        assert mask.shape == X.shape
        return no_joint(X, mask)

    options = {"design": design, "n_masks": 3, "random_state": 0}
    curve = mpt_curve(function, X, **options)
    assert_allclose(curve.scores, mpt_curve(no_joint, X, **options).scores)


def impossible(X, mask):
    """Conditionals of which one is -inf wherever feature 2 is hidden in row 4."""
    log_prob = no_joint(X, mask)
    is_it = np.broadcast_to(mask, X.shape)[:, 2] & (X[:, 2] > 50)
    log_prob[:, 2] = np.where(is_it, -np.inf, log_prob[:, 2])
    return log_prob


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("n_masks", [1, 3, 8])
@pytest.mark.parametrize(
    "options", [*({"design": name} for name in DESIGNS), {"allocation": "neyman"}]
)
def test_a_row_of_probability_zero_has_an_infinite_curve(options, n_masks, shared):
    X = model_of(6)[1]
    X[4, 2] = 100
    function = shared_masks_only(impossible) if shared else impossible
    curve = mpt_curve(function, X, n_masks=n_masks, random_state=0, **options)
    assert curve.lml == curve.scores[-1] == -np.inf
    assert np.isnan(curve.std_errors[np.isinf(curve.scores)]).all()
    assert np.isnan([curve.lml_std_error, *curve.lml_interval()]).all()
    finite = np.isfinite(curve.scores)
    assert np.isfinite(curve.std_errors[finite]).all() or n_masks == 1
    assert np.isnan((curve - curve).lml)


def test_the_optional_method_is_checked():
    X = model_of(4)[1]

    class Model:
        def conditional_log_prob(self, X, mask):
            return no_joint(X, mask)

    name = "mean_masked_scores"
    setattr(Model, name, lambda self, X, masks: np.zeros(3))
    with pytest.raises(ValueError, match=rf"{name} .*others in an array of shape \(3,"):
        mpt_curve(Model(), X, n_masks=2, random_state=0)
    setattr(Model, name, lambda self, X, masks: np.full(len(masks), np.nan))
    with pytest.raises(ValueError, match=f"{name} .*numbers below infinity.* got nan"):
        mpt_curve(Model(), X, n_masks=2, random_state=0)


def test_a_row_that_varies_most_leaves_few_degrees_of_freedom():
    X = model_of(6)[1]
    alike = mpt_curve(no_joint, X, design="balanced", n_masks=4, random_state=0)
    X[3] *= 1e4
    alone = mpt_curve(no_joint, X, design="balanced", n_masks=4, random_state=0)
    assert_array_equal(alone.noise.degrees, alike.noise.degrees)
    reach = [
        (curve.lml_interval()[1] - curve.lml) / curve.lml_std_error
        for curve in (alike, alone)
    ]
    assert 1.96 < reach[0] < 2.2
    assert reach[1] > 2.2


@pytest.mark.parametrize("options", [{"allocation": "neyman"}, {"design": "balanced"}])
def test_more_masks_than_a_float_can_count(options):
    X = np.random.default_rng(0).normal(size=(2, 1100))
    curve = mpt_curve(
        negative_square, X, mask_sizes=[2, 550], n_masks=4, random_state=0, **options
    )
    assert np.isfinite(curve.std_errors).all()


def test_a_difference_of_curves_says_what_differs(known):
    model, X = known
    function = model.conditional_log_prob
    auto = mpt_curve(function, X, random_state=0)
    by_name = mpt_curve(function, X, design="balanced", random_state=0)
    assert (auto - by_name).lml == 0
    for other, message in (
        (
            mpt_curve(model, X, design="balanced", random_state=0),
            "'masks for each row'",
        ),
        (
            mpt_curve(function, X, n_masks=3, random_state=0),
            "'n_masks' differs: 10 and",
        ),
        (
            mpt_curve(function, X, design="independent", random_state=0),
            "'design' differs: balanced and independent",
        ),
        (mpt_curve(function, X, random_state=1), "'random_state' differs"),
        (mpt_curve(function, X[:9], random_state=0), "'number of rows' differs"),
    ):
        with pytest.raises(ValueError, match=f"needs the same masks.* Here {message}"):
            auto - other
    with pytest.raises(TypeError, match="unsupported operand"):
        auto - 1.0


def test_tensors_with_gradients_are_a_model():
    weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))

    def module(X, mask):
        X = torch.as_tensor(X)
        return torch.where(torch.as_tensor(mask), -((X - weight) ** 2), 0.0)

    X = np.random.default_rng(0).normal(size=(6, 4))
    for design in DESIGNS:
        curve = mpt_curve(module, X, n_masks=6, design=design)
        assert abs(curve.lml + (X**2).sum(1).mean()) <= 5 * curve.lml_std_error + 1e-12


@pytest.mark.parametrize("n_masks", [1, 2])
def test_neyman_without_masks_to_share_out_is_independent(n_masks):
    X = model_of(6)[1]
    options = {"n_masks": n_masks, "random_state": 0}
    neyman = mpt_curve(no_joint, X, allocation="neyman", **options)
    expected = mpt_curve(no_joint, X, design="independent", **options)
    assert_array_equal(neyman.scores, expected.scores)
    assert_array_equal(neyman.std_errors, expected.std_errors)


def test_independent_masks_are_distinct_and_hide_all_pairs_alike():
    """A pair of twenty features, of which ten are hidden: 10 * 9 / (20 * 19)."""
    masks = masks_of(20, 10, 3000)
    assert len(np.unique(masks, axis=0)) == 3000
    assert (masks.sum(axis=1) == 10).all()
    assert_array_equal(masks_of(20, 10, 5), masks[:5])
    pairs = (masks.T.astype(float) @ masks / 3000)[np.triu_indices(20, 1)]
    assert_allclose(pairs, 9 / 38, atol=5 * np.sqrt(9 / 38 * 29 / 38 / 3000))


def test_balanced_masks_hide_each_feature_once_before_any_twice():
    """Rows have two sets of masks each, and all have others."""
    masks = masks_of_rows(10, 12, size=3, n_masks=8)
    assert (masks.reshape(2, 4, 10, 12).sum(axis=1) == 1).all()
    assert len(np.unique(masks[0], axis=0)) > 5


@pytest.mark.parametrize("size", [2, 3])
def test_masks_of_blocks_hide_whole_blocks_and_a_part_of_one_more(size):
    labels = ["a", "b", "a", "c", "b", "c"]
    masks = masks_of(6, size, 3000, mask_blocks=labels)
    assert (masks.sum(axis=1) == size).all()
    by_block = masks @ np.equal.outer(labels, list("abc")).astype(int)
    assert ((by_block == 1).sum(axis=1) == size % 2).all()
    assert_allclose(masks.mean(axis=0), size / 6, atol=4 * np.sqrt(0.25 / 3000))


def test_spans_are_consecutive_and_hide_all_features_alike():
    masks = masks_of(8, 3, 5000, mask_blocks="span")
    starts = masks & ~np.roll(masks, 1, axis=1)
    assert (masks.sum(axis=1) == 3).all()
    assert (starts.sum(axis=1) == 1).all()
    assert_allclose(starts.mean(axis=0), 1 / 8, atol=4 * np.sqrt(7 / 64 / 5000))
