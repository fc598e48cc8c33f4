"""Variances of single texts, moderated by those of the texts of `fit`."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import polygamma

pytest.importorskip("transformers")

from test_text_estimates import chain, inconsistent, score_of, truth_of, window_of
from text_models import make_model, make_tokenizer

from sklearn_mpt import MPTScorer, mpt_curve
from sklearn_mpt._text.masks import MaskDraw
from sklearn_mpt._text.moderation import (
    Moderation,
    degrees_of_factor,
    degrees_of_variances,
    find_moderation,
    prior_of_variances,
    scale_of_ratios,
)
from sklearn_mpt._text.results import TextScores
from sklearn_mpt._text.variances import DrawGroups

WORDS = "the cat sat on a mat ran fast . ? dog".split()
SENTENCES = [
    " ".join(np.random.default_rng(seed).choice(WORDS, 12)) for seed in range(16)
]


def test_the_prior_is_that_of_the_variances():
    """Of variances that are drawn as limma takes them to be."""
    rng = np.random.default_rng(0)
    true = 2.0 * 5.0 / rng.chisquare(5.0, size=20_000)
    seen = true * rng.chisquare(3.0, size=len(true)) / 3
    location, degrees = prior_of_variances(seen, 3)
    assert_allclose([location, degrees], [2.0, 5.0], rtol=0.1)


def test_the_prior_of_equal_variances_is_certain():
    seen = np.random.default_rng(0).chisquare(3.0, size=2000) / 3
    location, degrees = prior_of_variances(seen, 3)
    assert_allclose(location, 1, rtol=0.1)
    assert degrees > 30


def test_the_factor_is_that_of_the_ratios():
    ratios = np.sqrt(0.3) * np.random.default_rng(0).standard_t(6, size=5000)
    factor, degrees = scale_of_ratios(ratios, 50.0)
    assert_allclose([factor, degrees], [0.3, 6.0], rtol=0.15)
    assert scale_of_ratios(ratios, 5.0)[1] == pytest.approx(5, rel=0.01)
    assert scale_of_ratios(np.zeros(8), 5.0) == (0.0, 5.0)


@pytest.mark.parametrize(
    ("n_texts", "n_groups", "is_shared"), [(5, 9, True), (20, 3, True), (5, 9, False)]
)
def test_how_well_the_factor_is_known(n_texts, n_groups, is_shared):
    """By its spread over samples in which the groups of a text share its variance.

    Or in which only the estimates of this variance differ, group by group.
    """
    rng = np.random.default_rng(0)
    logs = []
    for _ in range(40):
        shape = (n_texts, 1 if is_shared else n_groups)
        errors = np.sqrt(rng.chisquare(5, size=shape) / 5)
        deviations = rng.normal(size=(n_texts, n_groups))
        deviations -= deviations.mean(axis=1, keepdims=True)
        ratios = (deviations / errors).ravel() * np.sqrt(n_groups / (n_groups - 1))
        logs.append(np.log(scale_of_ratios(ratios, 5.0)[0]))
    of_estimates = 0.0 if is_shared else polygamma(1, 2.5)
    degrees = degrees_of_factor(n_texts, n_groups, 5.0, of_estimates)
    assert_allclose(np.var(logs), polygamma(1, degrees / 2), rtol=0.4)


def test_degrees_of_degrees_show_in_the_spread_of_variances():
    rng = np.random.default_rng(0)
    variances = rng.gamma(2.0, size=(500, 1)) * rng.chisquare(7, size=(500, 3))
    assert_allclose(degrees_of_variances(variances), 7, rtol=0.1)
    variances[:, 0] = 0
    assert degrees_of_variances(variances) == 1


@pytest.mark.parametrize("n_orders", [2, 3, 4, 6, 8, 9])
def test_factors_of_other_numbers_of_orders(n_orders):
    """By the covariance matrix of orders that are alike within groups of four."""
    r = -0.2
    groups = np.arange(n_orders) // 4
    covariance = np.where(groups[:, None] == groups, r, 0.0)
    np.fill_diagonal(covariance, 1.0)
    variance = covariance.mean()
    within = (np.trace(covariance) - n_orders * variance) / (n_orders - 1) / n_orders
    of_four = (1 + 3 * r) / (1 - r)
    found = Moderation(1.0, 5.0, of_four, of_four, 8.0, 40.0, 4)
    assert_allclose(found.factor_of(n_orders, of_four), variance / within)


@pytest.mark.parametrize(("n_texts", "n_groups"), [(24, 4), (4, 10)])
def test_moderated_intervals_cover(n_texts, n_groups):
    """Variances as in limma, and orders of a group that partly cancel."""
    rng = np.random.default_rng(0)
    shape, scales = (n_texts, n_groups), np.ones((n_texts, n_groups))
    hits, widths = [], []
    for _ in range(60):
        true = 2.0 * 6.0 / rng.chisquare(6.0, (2 * n_texts, 1))
        within = true / 0.4 * rng.chisquare(3, (2 * n_texts, n_groups)) / 3
        totals = np.sqrt(true) * rng.normal(size=within.shape)
        old, new = slice(n_texts), slice(n_texts, None)
        found = find_moderation(totals[old], within[old], scales, 4, True)
        variances = found.moderate(within[new], scales, 4)
        enlarged = stats.t.ppf(0.975, found.with_factor(found.degrees)) / 1.96
        errors = enlarged * np.sqrt(variances)
        hits.append(np.abs(totals[new]) <= 1.96 * errors)
        widths.append(errors / np.sqrt(true[new]))
        assert errors.shape == shape
    assert 0.93 < np.mean(hits) < 0.97
    assert np.median(widths) < 1.35


def moderation_of(tables, windows, draw):
    """What `fit` finds from five groups of draws of masks for these tables."""
    numbers = np.zeros((3, len(tables), 5))
    for group in range(5):
        own = replace(draw, seed=1000 + group)
        for i, (table, window) in enumerate(zip(tables, windows, strict=True)):
            score = score_of(table, window, own)
            numbers[:, i, group] = score.terms.sum(), *own.noise_of(window, score)
    return DrawGroups(draw, *numbers).moderation()


def errors_of(tables, windows, draws, truth):
    """Return what `coverage` says of the errors of each of these draws.

    They differ by their moderation only, so all have the same scores.
    """
    scores, errors, of_sums = [], [], []
    for seed in range(150):
        owns = [replace(draw, seed=seed) for draw in draws]
        parts = [score_of(*each, owns[0]) for each in zip(tables, windows, strict=True)]
        texts = [TextScores(windows, parts, o, np.arange(len(windows))) for o in owns]
        scores.append(texts[0].totals())
        errors.append([each.std_errors() for each in texts])
        of_sums.append([each.std_error_of_sum() for each in texts])
    off = np.array(scores) - truth
    return [
        coverage(off, *of_draw)
        for of_draw in zip(
            np.moveaxis(errors, 1, 0), np.transpose(of_sums), strict=True
        )
    ]


def coverage(off, errors, of_sum):
    """Return coverage, median width, and coverage of the interval of the sum."""
    covered = np.mean(np.abs(off) <= 1.96 * errors)
    hits = np.abs(off.sum(axis=1)) <= 1.96 * of_sum
    return covered, np.median(errors / off.std(axis=0, ddof=1)), hits.mean()


def test_standard_errors_of_single_texts_are_moderated():
    tables = [inconsistent(np.random.default_rng(seed)) for seed in range(20)]
    windows = [window_of(6, text) for text in range(20)]
    truth = np.array([truth_of(table) for table in tables[:8]])
    found = moderation_of(tables[8:], windows[8:], chain(0))
    few = tables[:8], windows[:8]
    draws = replace(chain(0), moderation=found), chain(0)
    (covered, width, of_sum), alone = errors_of(*few, draws, truth)
    assert 0.93 <= covered <= 0.98
    assert width < 1.35 < alone[1]
    assert 0.9 < alone[0] < 0.99
    assert 0.9 < alone[2]
    assert 0.9 < of_sum < 0.995


def heavy_tailed(rng):
    """Log-probabilities that are very low for some masks."""
    noise = {}

    def table(visible):
        return noise.setdefault(tuple(visible), np.full(6, -rng.lognormal()))

    return table


@pytest.mark.parametrize("n_masks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_standard_errors_of_independent_masks_are_moderated(n_masks):
    tables = [heavy_tailed(np.random.default_rng(seed)) for seed in range(20)]
    windows = [window_of(6, text) for text in range(20)]
    truth = np.array([truth_of(table) for table in tables[:8]])
    draw = MaskDraw("mpt", 0, n_masks, design="independent")
    found = moderation_of(tables[8:], windows[8:], draw)
    few = tables[:8], windows[:8]
    draws = replace(draw, moderation=found), draw
    (covered, width, _), alone = errors_of(*few, draws, truth)
    assert 0.93 <= covered <= 0.98
    assert width < 1.35
    assert alone[0] < 0.93


def plain(rng, n_tokens):
    """Log-probabilities that do not depend on which others are hidden."""
    log_prob = rng.permutation(np.linspace(-4, 0, n_tokens))
    return lambda visible: log_prob


@pytest.mark.parametrize("n_tokens", [10, 40])
def test_the_scale_is_the_variance_of_plain_tokens(n_tokens):
    """Which is that of means of samples without replacement."""
    table = plain(np.random.default_rng(0), n_tokens)
    draw, window = MaskDraw("mpt", 0, 4, design="independent"), window_of(n_tokens)
    ratios = []
    for seed in range(60):
        own = replace(draw, seed=seed)
        variance, scale = own.noise_of(window, score_of(table, window, own))
        ratios.append(variance / scale)
    assert_allclose(np.mean(ratios), table(None).var(ddof=1), rtol=0.1)


def test_errors_of_long_texts_borrow_from_short_ones():
    lengths = [8] * 12 + [32] * 4
    tables = [plain(np.random.default_rng(i), n) for i, n in enumerate(lengths)]
    windows = [window_of(n, text) for text, n in enumerate(lengths)]
    draw = MaskDraw("mpt", 0, 2, design="independent")
    found = moderation_of(tables[:12], windows[:12], draw)
    windows = [replace(window, text=i) for i, window in enumerate(windows[12:])]
    truth = np.array([table(None).sum() for table in tables[12:]])
    own = replace(draw, moderation=found)
    [(covered, width, _)] = errors_of(tables[12:], windows, [own], truth)
    assert 0.93 <= covered <= 0.98
    assert width < 1.35


def test_errors_of_independent_masks_borrow_from_the_texts_of_fit():
    settings = {"design": "independent", "n_masks": 3}
    alone = MPTScorer(make_model(), make_tokenizer(), **settings).fit()
    informed = MPTScorer(make_model(), make_tokenizer(), **settings).fit(SENTENCES)
    texts = [*SENTENCES[:8], "the cat"]  # of which all masks are drawn
    scores, errors = informed.score_samples(texts, return_std=True)
    same, plain = alone.score_samples(texts, return_std=True)
    assert_allclose(scores, same)
    assert errors[-1] == plain[-1] == 0
    assert np.std(np.log(errors[:-1])) < 0.8 * np.std(np.log(plain[:-1]))


@pytest.mark.parametrize(
    "settings", [{}, {"design": "chain"}, {"method": "chain"}, {"n_masks": 2}]
)
def test_texts_of_fit_give_narrower_intervals(settings):
    def scorer():
        return MPTScorer(make_model(), make_tokenizer(), **settings)

    alone, informed = scorer().fit(), scorer().fit(SENTENCES)
    assert informed.design_ == "chain"
    scores, errors = informed.score_samples(SENTENCES[:8], return_std=True)
    same, wider = alone.score_samples(SENTENCES[:8], return_std=True)
    assert_allclose(scores, same, rtol=1e-5)  # single precision
    assert errors.mean() < 0.95 * wider.mean()
    assert (errors > 0).all()
    single = [informed.score_samples([t], return_std=True)[1][0] for t in SENTENCES[:3]]
    assert_allclose(errors[:3], single, rtol=1e-5)


def test_orders_that_are_all_drawn_have_no_error():
    scorer = MPTScorer(make_model(), make_tokenizer(), n_masks=6).fit(SENTENCES)
    _, errors = scorer.score_samples(["the cat sat", "the", SENTENCES[0]], True)
    assert errors[:2].tolist() == [0.0, 0.0]
    assert errors[2] > 0


def test_the_error_of_one_order_stays_unknown():
    scorer = MPTScorer(make_model(), make_tokenizer(), n_masks=1).fit(SENTENCES)
    assert np.isnan(scorer.score_samples(SENTENCES[:2], return_std=True)[1]).all()


def test_the_error_of_a_curve_is_that_of_the_sum():
    texts = SENTENCES[:5]
    scorer = MPTScorer(make_model(), make_tokenizer()).fit(SENTENCES)
    curve = mpt_curve(scorer, texts)
    scores = scorer._score_texts(texts, scorer._draw())
    factor = scorer._moderations["mpt"].factor_of_sums
    variance = factor * sum(np.sum(score.cautious**2) for score in scores.scores)
    assert_allclose(np.sum(curve.text_noise.contrasts**2), variance / 25)
    alone = mpt_curve(MPTScorer(make_model(), make_tokenizer()).fit(), texts)
    assert curve.lml == alone.lml
    difference = curve - alone  # of the same draws, with other errors
    assert difference.lml == 0
    assert 0 < difference.lml_std_error < alone.lml_std_error


def test_texts_without_enough_tokens_tell_nothing():
    totals, variances = np.zeros((5, 2)), np.zeros((5, 2))
    variances[:3] = 1.0
    ones = np.ones((5, 2))
    assert find_moderation(totals, variances, ones, 4, True) is None
    assert find_moderation(totals, variances + 1, ones, 4, True).factor == 0
