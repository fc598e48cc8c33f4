"""Variances of single texts, moderated by those of the texts of `fit`."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import polygamma

pytest.importorskip("transformers")

from test_text_estimates import chain, inconsistent, score_of, truth_of, window_of
from text_models import TEXTS, make_model, make_tokenizer

from sklearn_mpt import MPTScorer
from sklearn_mpt._text.designs import Groups
from sklearn_mpt._text.masks import Draw
from sklearn_mpt._text.moderation import (
    Moderation,
    factor_of_ratios,
    find_moderation,
    inverse_trigamma,
    prior_of_variances,
)
from sklearn_mpt._text.results import TextScores

WORDS = "the cat sat on a mat ran fast . ? dog".split()
SENTENCES = [
    " ".join(np.random.default_rng(seed).choice(WORDS, 12)) for seed in range(16)
]


def test_inverse_trigamma():
    for x in (1e-3, 0.4, 3.0, 500.0):
        assert_allclose(inverse_trigamma(polygamma(1, x)), x, rtol=1e-6)
    assert inverse_trigamma(-0.1) == inverse_trigamma(0.0) > 1e5


def test_the_prior_is_that_of_the_variances():
    """Of variances that are drawn as limma takes them to be."""
    rng = np.random.default_rng(0)
    true = 2.0 * 5.0 / rng.chisquare(5.0, size=20_000)
    seen = true * rng.chisquare(3.0, size=len(true)) / 3
    location, freedom = prior_of_variances(seen, 3)
    assert_allclose([location, freedom], [2.0, 5.0], rtol=0.1)


def test_the_prior_of_equal_variances_is_certain():
    seen = np.random.default_rng(0).chisquare(3.0, size=2000) / 3
    location, freedom = prior_of_variances(seen, 3)
    assert_allclose(location, 1, rtol=0.1)
    assert freedom > 30


def test_the_factor_is_that_of_the_ratios():
    ratios = 0.3 * np.random.default_rng(0).f(2, 9, size=20_000)
    factor, freedom = factor_of_ratios(ratios, 2, 9)
    assert_allclose(factor, 0.3, rtol=0.03)
    few = np.random.default_rng(1).f(2, 9, size=(400, 10))
    spread = np.var([np.log(factor_of_ratios(row, 2, 9)[0]) for row in few])
    assert_allclose(factor_of_ratios(few[0], 2, 9)[1], 2 / spread, rtol=0.25)
    assert freedom == pytest.approx(2 * 20_000 * 9 / 13)


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
    found = Moderation(of_four, of_four, 10.0, 4, 1.0, 5.0, 48.0)
    assert_allclose(found.factor_of(n_orders, of_four), variance / within)


def test_moderated_intervals_cover():
    """Their width is that of Student's t with the degrees of both sources."""
    rng = np.random.default_rng(0)
    n_texts, n_groups = 60, 3
    hits, widths = [], []
    for _ in range(100):
        true = np.full(2 * n_texts, 2.0) * 6.0 / rng.chisquare(6.0, 2 * n_texts)
        within = true[:, None] / 0.4 * rng.chisquare(3, (2 * n_texts, n_groups)) / 3
        totals = np.sqrt(true[:, None]) * rng.normal(size=within.shape)
        seen, new = slice(n_texts), slice(n_texts, None)
        scales = np.ones(n_texts)
        found = find_moderation(totals[seen], within[seen], scales, 4, True)
        variances, freedom = found.moderate(within[new, 0], scales, 4)
        assert freedom > 6
        reach = 1.96 * np.sqrt(variances)
        hits.append(np.abs(totals[new, 0]) <= reach * 1.15)
        widths.append(reach / np.sqrt(true[new]))
    assert 0.93 < np.mean(hits) < 0.98
    assert np.median(widths) < 1.3 * 1.96


def moderation_of(tables, windows):
    """What `fit` finds from five groups of orders of these tables."""
    numbers = np.zeros((3, len(tables), 5))
    for group in range(5):
        draw = chain(1000 + group)
        for i, (table, window) in enumerate(zip(tables, windows, strict=True)):
            score = score_of(table, window, draw)
            numbers[:, i, group] = score.parts.sum(), *draw.noise_of(window, score)
    return Groups(chain(0), *numbers).moderation()


def test_standard_errors_of_single_texts_are_moderated():
    tables = [inconsistent(np.random.default_rng(seed)) for seed in range(20)]
    windows = [window_of(6, text) for text in range(20)]
    found = moderation_of(tables[8:], windows[8:])
    truth = np.array([truth_of(table) for table in tables[:8]])
    scores, errors, without, of_sum = [], [], [], []
    for seed in range(150):
        draw = Draw("mpt", seed, 4, design="chain", moderation=found)
        parts = [score_of(tables[i], windows[i], draw) for i in range(8)]
        texts = TextScores(windows[:8], parts, draw, np.arange(8))
        scores.append(texts.totals()[0])
        errors.append(texts.std_errors())
        of_sum.append(texts.std_error_of_sum())
        plain = TextScores(windows[:8], parts, chain(seed), np.arange(8))
        without.append(plain.std_errors())
    scores, errors = np.array(scores), np.array(errors)
    covered = np.mean(np.abs(scores - truth) <= 1.96 * errors)
    spread = scores.std(axis=0, ddof=1)
    assert 0.93 <= covered <= 0.98
    assert np.median(errors / spread) < 1.35 < np.median(without / spread)
    hits = np.abs((scores - truth).sum(axis=1)) <= 1.96 * np.array(of_sum)
    assert 0.9 < hits.mean() < 0.995


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
    assert_allclose(scores, same)
    assert errors.mean() < 0.95 * wider.mean()
    assert (errors > 0).all()
    single = [informed.score_samples([t], return_std=True)[1][0] for t in SENTENCES[:3]]
    assert_allclose(errors[:3], single)


def test_orders_that_are_all_drawn_have_no_error():
    scorer = MPTScorer(make_model(), make_tokenizer(), n_masks=6).fit(SENTENCES)
    _, errors = scorer.score_samples(["the cat sat", "the", SENTENCES[0]], True)
    assert errors[:2].tolist() == [0.0, 0.0]
    assert errors[2] > 0


def test_the_error_of_one_order_stays_unknown():
    scorer = MPTScorer(make_model(), make_tokenizer(), n_masks=1).fit(SENTENCES)
    assert np.isnan(scorer.score_samples(SENTENCES[:2], return_std=True)[1]).all()


def test_the_error_of_a_curve_is_that_of_the_sum():
    from sklearn_mpt import mpt_curve

    scorer = MPTScorer(make_model(), make_tokenizer()).fit(SENTENCES)
    curve = mpt_curve(scorer, SENTENCES[:5])
    _, variances = scorer._score_texts(SENTENCES[:5], scorer._draw()).totals()
    assert curve.lml_std_error > 0
    alone = mpt_curve(MPTScorer(make_model(), make_tokenizer()).fit(), SENTENCES[:5])
    assert curve.lml == alone.lml
    assert curve.lml_std_error < alone.lml_std_error
    assert len(variances) == 5


def test_texts_without_enough_tokens_tell_nothing():
    totals, variances = np.zeros((5, 2)), np.zeros((5, 2))
    variances[:3] = 1.0
    assert find_moderation(totals, variances, np.ones(5), 4, True) is None
    assert find_moderation(totals[:4], variances[:4] + 1, np.ones(4), 4, True)
    assert len(TEXTS) == 5
