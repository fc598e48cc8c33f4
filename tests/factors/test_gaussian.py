import itertools
from functools import partial

import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose, assert_array_equal, assert_array_less
from reference import (
    all_masks,
    by_differences,
    conditional_log_density,
    log_density,
    low_rank_rows,
    masked_score,
)
from scipy.special import comb

torch = pytest.importorskip("torch")

from sklearn_mpt._factors.density import (  # noqa: E402
    LinearGaussian,
    moments_of,
)
from sklearn_mpt._factors.objective import (  # noqa: E402
    GaussianMoments,
    GaussianRows,
    MaskedBatch,
)
from sklearn_mpt._factors.sums import (  # noqa: E402
    SymmetricMatrices,
    likelihood_sums,
    masked_sums,
    moment_likelihood_sums,
    moment_sums,
    resolved_targets,
)
from sklearn_mpt._fitting.masks import FixedMasks, UniformMasks  # noqa: E402
from sklearn_mpt._fitting.natural_gradient import (  # noqa: E402
    Curvature,
    NaturalStep,
    Point,
    apply,
    divide,
    natural_step,
)

N_DIMS, N_FEATURES = 3, 7
SYMMETRIC = SymmetricMatrices(N_DIMS, "cpu")


@pytest.fixture
def model():
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(N_DIMS, N_FEATURES)), rng.normal(size=N_FEATURES)
    return LinearGaussian(*map(torch.tensor, (*arrays, np.array(0.4))))


@pytest.fixture
def joint(model):
    return joint_of(model)


def joint_of(model):
    W, noise = model.components.numpy(), model.noise_variance.numpy()
    return model.mean.numpy(), W.T @ W + noise * np.eye(N_FEATURES)


@pytest.fixture
def point(model):
    coefs = torch.cat([model.components.T, model.mean[:, None]], 1)
    return Point(coefs, model.noise_variance.log())


def model_at(point):
    return LinearGaussian(
        point.coefs[:, :-1].T, point.coefs[:, -1], point.shape_params.exp()
    )


@pytest.fixture
def X():
    return low_rank_rows(25, N_FEATURES, N_DIMS, 0.4, seed=1)


@pytest.fixture
def gaps(X):
    X[0, 2], X[3, :5], X[4] = np.nan, np.nan, np.nan
    return X


def entries(X, hidden):
    """X with a wild number where missing, present, seen, and targets everywhere."""
    present = torch.tensor(~np.isnan(X))
    seen = present & ~torch.tensor(hidden)
    filled = torch.tensor(np.nan_to_num(X, nan=50.0))
    return [filled, *(t.to(torch.float64) for t in (present, seen, present))]


@pytest.fixture
def hidden(X):
    hidden = np.random.default_rng(2).random(X.shape) < 0.5
    hidden[5], hidden[6] = True, False
    return hidden


def leave_one_out(X, hidden, joint):
    """log p of each entry given those seen, without itself, by D x D matrices."""
    columns = [
        conditional_log_density(X, hidden | (np.arange(X.shape[1]) == j), *joint)[:, j]
        for j in range(X.shape[1])
    ]
    return np.column_stack(columns)


def autograd(value_of, point):
    leaves = Point(*(part.clone().requires_grad_() for part in point))
    return Point(*torch.autograd.grad(value_of(leaves), leaves))


def posterior(x, seen, model):
    """Mean and covariance of z given what is seen of a row, by D x D matrices."""
    mean, covariance = joint_of(model)
    W = model.components.numpy()[:, seen]
    gain = W @ np.linalg.inv(covariance[np.ix_(seen, seen)])
    return gain @ (x - mean)[seen], np.eye(N_DIMS) - gain @ W.T


def second_moment(x, seen, model):
    """E (z, 1)(z, 1)'."""
    z, covariance = posterior(x, seen, model)
    second = np.outer(np.r_[z, 1], np.r_[z, 1])
    second[:N_DIMS, :N_DIMS] += covariance
    return second


def information_by_loop(X, seen, model):
    total = np.zeros((N_FEATURES, N_DIMS + 1, N_DIMS + 1))
    for x, s in zip(X, seen, strict=True):
        total[~np.isnan(x)] += second_moment(x, s, model)
    return total / model.noise_variance.item()


def assert_points_close(actual, expected, **tolerance):
    assert_allclose(actual.coefs, expected.coefs, **tolerance)
    assert_allclose(actual.shape_params, expected.shape_params, **tolerance)


def assert_sums_close(actual, expected, **tolerance):
    assert_allclose(actual.value, expected.value, **tolerance)
    assert_points_close(actual.gradient, expected.gradient, **tolerance)
    matrices = actual.information.of_each(), expected.information.of_each()
    assert_points_close(*matrices, **tolerance)


def test_masked_sums_condition_on_the_other_entries_seen(
    model, joint, point, gaps, hidden
):
    sums = masked_sums(*entries(gaps, hidden), point, SYMMETRIC)
    scores = leave_one_out(gaps, hidden, joint).sum(1)
    assert_allclose(sums.value, scores.sum())
    assert_allclose(sums.square, (scores**2).sum())
    assert sums.n_rows == 25


def test_targets_are_weights(joint, point, gaps, hidden):
    X, present, seen, _ = entries(gaps, hidden)
    target = present * torch.tensor(np.random.default_rng(5).random(gaps.shape))
    sums = masked_sums(X, present, seen, target, point, SYMMETRIC)
    expected = (target.numpy() * leave_one_out(gaps, hidden, joint)).sum()
    assert_allclose(sums.value, expected)


def test_gradient_of_masked_sums_is_that_of_conditionals(point, gaps, hidden):
    X, present, seen, _ = entries(gaps, hidden)
    target = present * torch.tensor(np.random.default_rng(5).random(gaps.shape))
    rows, columns = torch.tensor(gaps), torch.eye(N_FEATURES, dtype=torch.bool)

    def value_of(point):
        now, mask = model_at(point), torch.tensor(hidden)
        log_prob = [
            now.conditional_log_prob(rows, mask | column)[:, j]
            for j, column in enumerate(columns)
        ]
        return (target * torch.stack(log_prob, 1)).sum()

    sums = masked_sums(X, present, seen, target, point, SYMMETRIC)
    assert_points_close(sums.gradient, autograd(value_of, point), atol=1e-10)


@pytest.fixture
def uneven(point):
    """A noise variance for each feature."""
    log_noise = np.random.default_rng(6).normal(size=N_FEATURES)
    return Point(point.coefs, torch.tensor(log_noise))


def log_density_of(x, index, point):
    """By the covariance of some entries, for autograd."""
    W, mean = point.coefs[index, :-1], point.coefs[index, -1]
    covariance = W @ W.T + point.shape_params.exp()[index].diag()
    normal = torch.distributions.MultivariateNormal(mean, covariance)
    return normal.log_prob(x[index]) if len(index) else torch.zeros(())


def test_gradients_with_noise_of_each_feature(uneven, gaps, hidden):
    gaps, hidden = gaps[:9], hidden[:9]
    X, present, seen, _ = entries(gaps, hidden)
    target = present * torch.tensor(np.random.default_rng(5).random(gaps.shape))

    def masked_value(point):
        total = 0.0
        for i, j in target.nonzero():
            others = seen[i].clone()
            others[j] = 0
            index = others.nonzero()[:, 0]
            joint = torch.cat([index, j[None]])
            difference = log_density_of(X[i], joint, point)
            difference = difference - log_density_of(X[i], index, point)
            total = total + target[i, j] * difference
        return total

    def likelihood(point):
        parts = [
            log_density_of(x, p.nonzero()[:, 0], point)
            for x, p in zip(X, present, strict=True)
        ]
        return torch.stack(parts).sum()

    for sums, value_of in (
        (masked_sums(X, present, seen, target, uneven, SYMMETRIC), masked_value),
        (likelihood_sums(X, present, uneven, SYMMETRIC), likelihood),
    ):
        assert_allclose(sums.value, value_of(uneven))
        assert_points_close(sums.gradient, autograd(value_of, uneven), atol=1e-9)


def test_masked_sums_with_hardly_any_noise(model, X):
    """Two entries tell less than there are latent variables: each is all but free."""
    tiny = LinearGaussian(model.components, model.mean, torch.tensor(1e-6).double())
    coefs = torch.cat([model.components.T, model.mean[:, None]], 1)
    point = Point(coefs, tiny.noise_variance.log())
    hidden = np.broadcast_to(np.arange(N_FEATURES) > 1, X.shape)
    X, present, seen, _ = entries(X, hidden)
    sums = masked_sums(X, present, seen, seen, point, SYMMETRIC, max_ratio=np.inf)
    scores = leave_one_out(X.numpy(), hidden, joint_of(tiny))[:, :2]
    assert_allclose(sums.value, scores.sum(), rtol=1e-4)


def exact_sum(X, seen, target, point):
    """What `masked_sums` sums, with sixty digits."""
    mp = pytest.importorskip("mpmath")
    with mp.workdps(60):
        W, mean = (
            mp.matrix(a.tolist()) for a in (point.coefs[:, :-1], point.coefs[:, -1])
        )
        S = W * W.T + mp.exp(mp.mpf(point.shape_params.item())) * mp.eye(len(mean))
        total = mp.mpf(0)
        for i, j in target.nonzero().tolist():
            given = [k for k in seen[i].nonzero()[:, 0].tolist() if k != j]
            error, variance = mp.mpf(X[i, j].item()) - mean[j], S[j, j]
            if given:
                inner = mp.matrix([[S[a, b] for b in given] for a in given])
                cross = mp.matrix([S[a, j] for a in given])
                rest = mp.matrix([mp.mpf(X[i, a].item()) - mean[a] for a in given])
                gain = mp.lu_solve(inner, cross)
                error, variance = (
                    error - mp.fdot(gain, rest),
                    variance - mp.fdot(gain, cross),
                )
            total -= (mp.log(2 * mp.pi * variance) + error**2 / variance) / 2
        return float(total)


@pytest.mark.parametrize(("noise", "of_seen"), [
    (1e-5, True),
    (1e-9, False),  # the least that a model may have
])  # fmt: skip
def test_precision_of_masked_sums(model, noise, of_seen):
    """Noise far below the variance of the features: errors grow with their ratio.

    Where variances of what is seen are differences, they grow with its square.
    """
    rng = np.random.default_rng(3)
    X = rng.normal(size=(5, N_DIMS)) @ model.components.numpy() + model.mean.numpy()
    X += noise**0.5 * rng.normal(size=X.shape)
    coefs = torch.cat([model.components.T, model.mean[:, None]], 1)
    point = Point(coefs, torch.tensor(noise).double().log())
    hidden = rng.random(X.shape) < np.linspace(0, 0.9, 5)[:, None]
    X, present, seen, target = entries(X, hidden)
    target = target if of_seen else 1 - seen
    sums = masked_sums(X, present, seen, target, point, SYMMETRIC, max_ratio=np.inf)
    ratio = (model.components**2).sum(0).max().item() / noise
    rounding = np.finfo(float).eps * ratio ** (2 if of_seen else 1)
    exact = exact_sum(X, seen, target, point)
    assert_allclose(sums.value, exact, rtol=0, atol=rounding)


def test_targets_far_beyond_the_noise_are_scored_while_hidden_only():
    """Given few features; over all masks of uniform sizes nothing changes."""
    d = 4
    masks = [np.array(s, float) for s in itertools.product((0, 1), repeat=d)]
    share = [1 / ((d + 1) * comb(d, s.sum())) for s in masks]
    seen = torch.from_numpy(np.array(masks))
    target = torch.ones_like(seen)
    # what is far depends on the target and on the others that are seen, in either way
    others = seen.sum(1, keepdim=True) - seen
    far = others < 2
    ratio = torch.where(far, 1e9, 2.0)
    ratio = torch.where(seen > 0, 1 / ratio, ratio)
    resolved = resolved_targets(target, seen, ratio)
    assert not (resolved * seen * far).any()
    value = torch.from_numpy(np.random.default_rng(0).normal(size=(d, 2**d)))
    rest = (seen[:, None] * (1 - torch.eye(d)) * 2.0 ** torch.arange(d)).sum(2).long()
    scores = value[torch.arange(d), rest]  # of a target given the others that are seen
    weight = torch.tensor(share).double()
    before, now = (weight @ (t * scores).sum(1) for t in (target, resolved))
    assert_allclose(now, before)


def test_targets_near_the_noise_stay_as_they_are(point, X, hidden):
    _, _, seen, target = entries(X, hidden)
    assert resolved_targets(target, seen, torch.full_like(seen, 2.0)) is target


def test_gradient_of_likelihood_sums_is_that_of_the_density(
    model, joint, point, gaps, hidden
):
    X, present, _, _ = entries(gaps, hidden)
    sums = likelihood_sums(X, present, point, SYMMETRIC)
    log_prob = log_density(gaps, *joint)
    assert_allclose(sums.value, log_prob.sum())
    assert_allclose(sums.square, (log_prob**2).sum())
    rows = torch.tensor(gaps)
    gradient = autograd(lambda p: model_at(p).lml(rows)[0].sum(), point)
    assert_points_close(sums.gradient, gradient, atol=1e-10)


@pytest.mark.parametrize("log_noise", [-0.3, np.linspace(-1, 1, N_FEATURES)])
@pytest.mark.parametrize("n_rows", [1, 25])
def test_complete_rows_may_share_a_posterior_covariance(model, log_noise, n_rows):
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.normal(size=(n_rows, N_FEATURES)))
    weight = torch.tensor(rng.random(n_rows))
    coefs = torch.cat([model.components.T, model.mean[:, None]], 1)
    point = Point(coefs, torch.tensor(log_noise).double())
    each, shared = (
        likelihood_sums(X, present, point, SYMMETRIC, weight)
        for present in (torch.ones_like(X), torch.ones_like(X[:1]))
    )
    assert_sums_close(shared, each)
    assert_allclose(shared.rescaling, each.rescaling, atol=1e-12)


@pytest.mark.parametrize("log_noise", [-0.3, np.linspace(-1, 1, N_FEATURES)])
def test_likelihood_sums_of_moments_are_those_of_rows(model, log_noise):
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.normal(size=(30, N_FEATURES)))
    moments = moments_of(X)
    coefs = torch.cat([model.components.T, moments.mean[:, None]], 1)
    point = Point(coefs, torch.tensor(log_noise).double())
    by_rows = likelihood_sums(X, torch.ones_like(X), point, SYMMETRIC)
    of = moments.product, moments.variance, len(X), point, SYMMETRIC
    by_moments = moment_likelihood_sums(*of)
    assert_allclose(by_moments.value, by_rows.value)
    assert_points_close(by_moments.gradient, by_rows.gradient, atol=1e-10)
    matrices = by_moments.information.of_each(), by_rows.information.of_each()
    assert_points_close(*matrices, atol=1e-10)
    assert_allclose(by_moments.rescaling, by_rows.rescaling, atol=1e-10)


def test_slopes_in_the_law_of_z_are_those_of_the_weights(point, gaps, hidden):
    """Half the symmetrised W' g, and W' g of the means, without that product."""
    X, present, seen, target = entries(gaps, hidden)
    for sums in (
        masked_sums(X, present, seen, target, point, SYMMETRIC),
        likelihood_sums(X, present, point, SYMMETRIC),
    ):
        by_gradient = sums._replace(rescaling=None)
        moves = [natural_step(s, point, sums.information) for s in (sums, by_gradient)]
        assert moves[0].rescaling.abs().max() > 0.01
        assert_allclose(moves[0].rescaling, moves[1].rescaling, atol=1e-12)


def test_noise_information_is_that_of_the_density(model):
    """Half the trace of C^-2, or its entries squared, by differences of slopes."""
    rng = np.random.default_rng(0)
    W, variance = model.components.numpy().T, rng.uniform(0.5, 2, N_FEATURES)
    coefs = torch.cat([model.components.T, model.mean[:, None]], 1)
    X = torch.tensor(rng.normal(size=(5, N_FEATURES)))
    objective = GaussianRows(X, N_DIMS, None, "auto", floor=-30.0)
    inverse = np.linalg.inv(W @ W.T + np.diag(variance))
    point = Point(coefs, torch.tensor(variance).log())
    expected = 0.5 * (np.sqrt(variance[:, None] * variance) * inverse) ** 2
    assert_allclose(objective._noise_information(point), expected)
    inverse = np.linalg.inv(W @ W.T + 0.4 * np.eye(N_FEATURES))
    shared = point._replace(shape_params=torch.tensor(0.4).double().log())
    expected = 0.5 * 0.4**2 * np.trace(inverse @ inverse)
    assert_allclose(objective._noise_information(shared), expected)


def test_information_is_the_second_moment_over_the_noise(model, point, gaps, hidden):
    X, present, seen, target = entries(gaps, hidden)
    by_masks = masked_sums(X, present, seen, target, point, SYMMETRIC).information
    by_rows = likelihood_sums(X, present, point, SYMMETRIC).information
    for information, given in ((by_masks, seen), (by_rows, present)):
        expected = information_by_loop(gaps, given.numpy().astype(bool), model)
        assert_allclose(information.coefs, expected)
        assert information.shape_params == present.sum() / 2


def test_natural_step_on_the_likelihood_is_the_m_step(model, point, gaps, hidden):
    """The regression of each feature on z, with the moments of the posterior."""
    X, present, _, _ = entries(gaps, hidden)
    sums = likelihood_sums(X, present, point, SYMMETRIC)
    stepped = point.coefs + divide(sums.gradient, sums.information).coefs
    for j in range(N_FEATURES):
        rows = gaps[~np.isnan(gaps[:, j])]
        second = sum(second_moment(x, ~np.isnan(x), model) for x in rows)
        cross = sum(
            x[j] * np.r_[posterior(x, ~np.isnan(x), model)[0], 1.0] for x in rows
        )
        assert_allclose(stepped[j], np.linalg.solve(second, cross), rtol=1e-6)


def test_change_of_the_law_of_z_is_that_of_its_posterior_moments(
    model, point, gaps, hidden
):
    """Half of mean E zz' - I for the scale, and E z for the mean."""
    X, present, _, _ = entries(gaps, hidden)
    sums = likelihood_sums(X, present, point, SYMMETRIC)
    mean_information = sums.information.times(1 / len(X))
    move = natural_step(sums, point, mean_information)
    moment = np.mean([second_moment(x, ~np.isnan(x), model) for x in gaps], axis=0)
    scale = (moment[:N_DIMS, :N_DIMS] - np.eye(N_DIMS)) / 2
    expected = np.zeros((N_DIMS + 1, N_DIMS + 1))
    expected[:N_DIMS, :N_DIMS], expected[:N_DIMS, N_DIMS] = scale, moment[:N_DIMS, -1]
    largest = max(0.5, np.abs(expected).max())
    assert_allclose(move.rescaling, 0.5 * expected / largest, atol=1e-12)


@pytest.mark.parametrize("size", [1.0, 0.3])
def test_generator_gives_z_another_law(model, point, size):
    rng = np.random.default_rng(6)
    generator = np.zeros((N_DIMS + 1, N_DIMS + 1))
    generator[:N_DIMS] = 0.4 * rng.normal(size=(N_DIMS, N_DIMS + 1))
    still = point.times(0)
    unused = Curvature(*still)
    move = NaturalStep(0.0, 0.0, still, unused, still, torch.tensor(generator), 0.0)
    moved = joint_of(model_at(apply(point, move, size)))
    change = scipy.linalg.expm(size * generator)
    law = change[:N_DIMS, :N_DIMS] @ change[:N_DIMS, :N_DIMS].T, change[:N_DIMS, -1]
    W, noise = model.components.numpy(), model.noise_variance.item()
    assert_allclose(moved[0], law[1] @ W + model.mean.numpy())
    assert_allclose(moved[1], W.T @ law[0] @ W + noise * np.eye(N_FEATURES))


def all_masks_weighted(X):
    """Every set of a row, with the probability that a uniform size gives it."""
    for size in range(N_FEATURES + 1):
        masks = all_masks(N_FEATURES, size)
        for mask in masks:
            weight = 1 / len(masks) / (N_FEATURES + 1)
            *rest, target = entries(X, np.broadcast_to(mask, X.shape))
            yield *rest, weight * target


def test_masked_sums_of_all_masks_are_those_of_the_likelihood(joint, point, gaps):
    """Value and gradient: uniform sizes from 0 on add up to the log density."""
    parts = [masked_sums(*e, point, SYMMETRIC) for e in all_masks_weighted(gaps)]
    assert_allclose(sum(part.value for part in parts), log_density(gaps, *joint).sum())
    X, present, *_ = entries(gaps, np.zeros(gaps.shape, dtype=bool))
    expected = likelihood_sums(X, present, point, SYMMETRIC).gradient
    for k in range(2):
        assert_allclose(sum(p.gradient[k] for p in parts), expected[k], atol=1e-9)


@pytest.mark.parametrize("noise", ["point", "uneven"])
@pytest.mark.parametrize("n_rows", [25, 3], ids=["many rows", "fewer than features"])
def test_moment_sums_are_masked_sums_of_all_rows(noise, X, n_rows, request):
    X, point = X[:n_rows], request.getfixturevalue(noise)
    moments = moments_of(torch.tensor(X))
    point.coefs[:, -1] = moments.mean
    rng = np.random.default_rng(4)
    seen = torch.tensor(rng.random((9, N_FEATURES)) < 0.6).to(torch.float64)
    target = torch.tensor(rng.random(seen.shape))
    by_moments = moment_sums(
        moments.product, moments.variance, seen, target, point, SYMMETRIC
    )
    pairs = torch.tensor(np.tile(X, (9, 1)))
    repeated = (t.repeat_interleave(n_rows, 0) for t in (seen, target / n_rows))
    by_rows = masked_sums(pairs, torch.ones_like(pairs), *repeated, point, SYMMETRIC)
    scaled = by_rows._replace(information=by_rows.information.times(1 / n_rows))
    assert_sums_close(by_moments, scaled, atol=1e-9)
    assert by_moments.n_rows == 9


def test_moment_sums_keep_what_each_mask_says(point, X):
    """Their squares are those of mean scores, one for each mask."""
    moments = moments_of(torch.tensor(X))
    point.coefs[:, -1] = moments.mean
    seen = torch.tensor(np.eye(N_FEATURES))
    arguments = moments.product, moments.variance
    both = moment_sums(*arguments, seen, 1 - seen, point, SYMMETRIC)
    values = [
        moment_sums(*arguments, s[None], 1 - s[None], point, SYMMETRIC).value
        for s in seen
    ]
    assert_allclose(both.square, sum(value**2 for value in values))


def test_moment_problem_is_the_row_problem(point, X):
    """One mask for all rows: the mean over rows is what moments give."""
    moments = moments_of(torch.tensor(X))
    point.coefs[:, -1] = moments.mean
    seen = torch.tensor([1.0, 0, 1, 0, 1, 1, 0], dtype=torch.float64)

    def masks(present, batch, first):
        return present * seen, present * (1 - seen)

    masks.is_uniform = False
    by_moments = GaussianMoments(moments, 4, N_DIMS, masks, floor=-20.0)
    by_rows = GaussianRows(torch.tensor(X), N_DIMS, masks, "auto", floor=-20.0)
    moves = []
    for objective in (by_moments, by_rows):
        (batch,) = objective.batches(np.random.default_rng(0))
        sums = objective.sums(point, batch)
        information = sums.information.times(1 / sums.n_rows)
        moves.append(natural_step(sums, point, information))
    assert_allclose(moves[0].value, moves[1].value)
    assert_points_close(moves[0].step, moves[1].step, atol=1e-9)
    assert_allclose(moves[0].rescaling, moves[1].rescaling, atol=1e-9)


def batch_at(seed=7):
    return MaskedBatch(None, seed)


def weighted_sets(masks, n=60_000):
    """The weight of each draw, in the column of its set of 5 features; (n, 32)."""
    present = torch.ones(n, 5, dtype=torch.float64)
    seen, target = masks(present, batch_at(), 0)
    code = (seen @ 2.0 ** torch.arange(5, dtype=torch.float64)).long()
    weighted = torch.zeros(n, 32, dtype=torch.float64)
    weighted[torch.arange(n), code] = target[:, 0]
    assert (target == target[:, :1]).all()
    return weighted


def largest_z(sample, expected):
    sample = sample.numpy()
    error = sample.std(0) / np.sqrt(len(sample))
    return np.abs((sample.mean(0) - expected) / error).max()


def test_sets_have_uniform_sizes_and_are_alike():
    """Frequencies of all 32 sets within 4.5 standard errors (p < 3e-4)."""
    size = np.array([i.bit_count() for i in range(32)])
    assert largest_z(weighted_sets(UniformMasks()), 1 / 6 / comb(5, size)) < 4.5


def test_missing_entries_are_neither_seen_nor_targets():
    present = torch.tensor(np.random.default_rng(3).random((40, 6)) < 0.6).double()
    for masks in (UniformMasks(), FixedMasks(2)):
        seen, target = masks(present, batch_at(), 0)
        assert_array_equal(seen[present == 0], 0.0)
        assert_array_equal(target[present == 0], 0.0)


@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_fixed_masks_hide_as_many(size):
    present = torch.ones(100, N_FEATURES, dtype=torch.float64)
    seen, target = FixedMasks(size)(present, batch_at(), 0)
    assert_array_equal((1 - seen).sum(1), size)
    assert_allclose(target, (1 - seen) * N_FEATURES / size)


def test_fixed_masks_are_alike():
    """All 21 pairs within 4.5 standard errors of a binomial share (p < 2e-4)."""
    n = 40_000
    hidden = 1 - FixedMasks(2)(torch.ones(n, 7).double(), batch_at(), 0)[0]
    shares = (hidden.T @ hidden)[tuple(torch.triu_indices(7, 7, 1))] / n
    z = (shares - 1 / 21) / np.sqrt(20 / 21**2 / n)
    assert z.abs().max() < 4.5


def test_seeds_and_blocks_give_other_masks():
    masks, present = UniformMasks(), torch.ones(50, 7, dtype=torch.float64)
    draws = [
        masks(present, batch_at(seed), first)[0]
        for seed, first in ((7, 0), (7, 50), (8, 0))
    ]
    assert (draws[0] != draws[1]).any()
    assert (draws[0] != draws[2]).any()
    assert_array_equal(draws[0], masks(present, batch_at(), 0)[0])


def test_row_problem_is_the_contract(joint, point, gaps):
    """Every feature alone, in turn: the sum of all blocks of all batches."""
    eye = torch.eye(N_FEATURES, dtype=torch.float64)

    def masks(present, batch, first):
        hidden = eye[(torch.arange(len(present)) + first) % N_FEATURES]
        return present * (1 - hidden), present * hidden * N_FEATURES

    masks.is_uniform = False
    objective = GaussianRows(torch.tensor(gaps), N_DIMS, masks, 300, floor=-20.0)
    objective.n_block = 64
    scores = np.array(
        [
            N_FEATURES * masked_score(conditional_log_density(gaps, m, *joint), m)
            for m in all_masks(N_FEATURES, 1)
        ]
    )
    for batch in objective.batches(np.random.default_rng(0)):
        sums = objective.sums(point, batch)
        place = np.arange(len(batch.rows)) % N_FEATURES
        # all_masks hides feature 0 first
        assert_allclose(sums.value, scores[place, batch.rows.numpy()].sum())
        assert sums.n_rows == len(batch.rows)


@pytest.mark.parametrize("batch_size", ["auto", 100])
def test_an_epoch_passes_over_all_rows_alike(X, batch_size):
    objective = GaussianRows(
        torch.tensor(X), N_DIMS, UniformMasks(), batch_size, floor=-20.0
    )
    batches = list(objective.batches(np.random.default_rng(0)))
    counts = torch.cat([batch.rows for batch in batches]).bincount(minlength=25)
    assert (counts == counts[0]).all()
    assert len(batches) == objective.n_batches == (1 if batch_size == "auto" else 21)


def test_likelihood_problem_needs_no_masks(joint, point, gaps):
    objective = GaussianRows(torch.tensor(gaps), N_DIMS, None, 10, floor=-20.0)
    rng = np.random.default_rng(0)
    sums = [objective.sums(point, batch) for batch in objective.batches(rng)]
    n_passes = sum(part.n_rows for part in sums) / len(gaps)
    expected = n_passes * log_density(gaps, *joint).sum()
    assert_allclose(sum(part.value for part in sums), expected)
    assert n_passes == 1


@pytest.mark.parametrize("n_rows", [25, 3], ids=["many rows", "fewer than features"])
def test_moment_form_is_the_mean_over_rows(model, X, n_rows):
    masks = np.random.default_rng(2).random((12, 7)) < 0.5
    masks[:, 0], masks[0] = True, True
    rows = torch.tensor(X[:n_rows])
    by_moments = model.moment_scores(moments_of(rows), torch.tensor(masks))
    for mask, score in zip(torch.tensor(masks), by_moments, strict=True):
        log_prob = model.conditional_log_prob(rows, mask[None])
        assert_allclose(masked_score(log_prob, mask).mean(), score)


def test_mean_log_prob_is_the_mean_over_rows(model, joint, X):
    mean = model.mean_log_prob(moments_of(torch.tensor(X)))
    assert_allclose(mean, log_density(X, *joint).mean())


def test_conditionals_are_differences_of_densities(model, joint, gaps, hidden):
    log_prob = model.conditional_log_prob(torch.tensor(gaps), torch.tensor(hidden))
    truth = by_differences(gaps, hidden, lambda rows: log_density(rows, *joint))
    assert_allclose(log_prob, truth, atol=1e-10)


def test_tiny_noise_keeps_its_precision():
    """Eigenvalues from 1e-6 to 1e6: the D x D route in longer arithmetic agrees."""
    mpmath = pytest.importorskip("mpmath")
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(6, 6)))[0][:3]
    components = np.array([1e3, 30.0, 1.0])[:, None] * axes
    model = LinearGaussian(
        torch.tensor(components),
        torch.zeros(6, dtype=torch.float64),
        torch.tensor(1e-6),
    )
    X = rng.normal(size=(1, 3)) @ components + 1e-3 * rng.normal(size=(1, 6))
    with mpmath.workdps(60):
        W = mpmath.matrix(components.tolist())
        S = W.T * W + mpmath.mpf(1e-6) * mpmath.eye(6)
        x = mpmath.matrix(X[0].tolist())
        quadratic = (x.T * mpmath.lu_solve(S, x))[0]
        log_scale = 6 * mpmath.log(2 * mpmath.pi) + mpmath.log(mpmath.det(S))
        expected = float(-(log_scale + quadratic) / 2)
    actual = model.lml(torch.tensor(X))[0].item()
    assert_allclose(actual, expected, rtol=1e-4)


def exact_log_density(x, model):
    """Of the present entries, with 60 digits."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        seen = np.flatnonzero(~np.isnan(x))
        W = mpmath.matrix(model.components.numpy()[:, seen].tolist())
        covariance = W.T * W + float(model.noise_variance) * mpmath.eye(len(seen))
        mean = mpmath.matrix(model.mean.numpy()[seen].tolist())
        offset = mpmath.matrix(x[seen].tolist()) - mean
        distance = (offset.T * mpmath.lu_solve(covariance, offset))[0]
        log_det = mpmath.log(mpmath.det(covariance))
        log_scale = len(seen) * mpmath.log(2 * mpmath.pi)
        return float(-(distance + log_det + log_scale) / 2)


def assert_close_up_to_rounding(actual, expected, X, noise):
    """Compare scores whose residuals may be off by ten roundings of the largest entry.

    The error e of a residual r changes a score by at most (|r| e + e^2) / noise.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    error = 10 * np.finfo(float).eps * np.nanmax(np.abs(X)) / np.sqrt(noise)
    residual = np.sqrt(2 * np.abs(expected))
    allowed = 1e-6 * (1 + np.abs(expected)) + error * (residual + error)
    assert_array_less(np.abs(actual - expected), allowed)


@pytest.mark.parametrize("n_dims", [1, 3, N_FEATURES])
@pytest.mark.parametrize("noise", [1e-14, 1e-9, 1e-6, 1e-2])
def test_rows_far_out_score_alike_by_every_route(n_dims, noise):
    """Joint, conditionals, moments, rank-one updates; along components, and off."""
    rng = np.random.default_rng(4)
    W, mean = rng.normal(size=(n_dims, N_FEATURES)), rng.normal(size=N_FEATURES)
    model = LinearGaussian(*map(torch.tensor, (W, mean, np.array(noise))))
    order = torch.tensor(rng.permutation(N_FEATURES))
    along, off = rng.normal(size=n_dims) @ W, rng.normal(size=N_FEATURES)
    for x in (mean + 1e12 * along, mean + 1e12 * off, mean + along):
        for gaps in ([], [1, 4]):
            X = x.copy()
            X[gaps] = np.nan
            X = torch.tensor(X)[None]
            expected = exact_log_density(X[0].numpy(), model)
            assert_close = partial(
                assert_close_up_to_rounding, X=X.numpy(), noise=noise
            )
            assert_allclose(model.lml(X)[0][0], expected, rtol=1e-9)
            masks = order.argsort() >= torch.arange(N_FEATURES)[:, None]
            log_prob = model.conditional_log_prob(X.expand(N_FEATURES, -1), masks)
            chain = log_prob.gather(1, order[:, None]).sum()
            assert_close(chain, expected)
            own = masked_score(log_prob, masks)
            scores = model.mean_masked_scores(X, masks, 10)
            assert_close(scores, own)
            assert_close(model.chain_log_prob(X, order[None, None]).sum(), expected)


@pytest.mark.parametrize("size", [1e154, 1e200, 1e308])
def test_rows_whose_squares_overflow_have_finite_scores(model, size):
    lowest = np.finfo(float).min
    eye = torch.eye(7, dtype=torch.float64)
    for X in (size * eye.sum(0, keepdim=True), size * eye, -size * eye[:1]):
        log_prob, _ = model.lml(X)
        assert ((lowest <= log_prob) & (log_prob < -1e300)).all()
        hidden = torch.arange(7)[None] == 0
        conditional = model.conditional_log_prob(X, hidden)
        assert conditional.isfinite().all()
        assert conditional[0, 0] < -1e300
