import copy
import functools
import pickle
import sys
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
import torch
from numpy.testing import assert_allclose, assert_array_equal
from packaging.version import Version
from reference import mask_size
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from text_models import (
    TEXTS,
    JointModel,
    ModelWithoutOneLetter,
    all_texts,
    make_letter_tokenizer,
    make_model,
    make_protein_tokenizer,
    make_tokenizer,
    random_joint,
)

from sklearn_mpt import (
    MPTCurveDisplay,
    MPTScorer,
    check_masked_model,
    compare_lml,
    feature_contributions,
    lml_samples,
    mpt_curve,
)

N_TOKENS = np.array([7, 7, 2, 9, 1])  # of TEXTS


def make_scorer(**kwargs):
    return MPTScorer(make_model(), make_tokenizer(), **{"random_state": 0} | kwargs)


def joint_scorer(log_joint, **kwargs):
    model = JointModel(log_joint)
    settings = {"dtype": "float64", "random_state": 0} | kwargs
    return MPTScorer(model, make_letter_tokenizer(), **settings)


@functools.cache
def fit_once():
    return make_scorer(n_masks=2, mask_rates=[0.15, 0.5, 1.0]).fit(TEXTS)


@pytest.fixture
def scorer():
    """A fitted scorer, whose parameters a test may change."""
    return copy.copy(fit_once())


# Against an explicit joint distribution


@pytest.mark.parametrize("method", ["mpt", "chain"])
def test_all_masks_of_exact_conditionals_sum_to_the_log_probability(method):
    log_joint = random_joint(4)
    scorer = joint_scorer(log_joint, method=method, n_masks=24)
    texts = all_texts(4)
    log_prob, std_error = scorer.fit(texts).score_samples(texts, return_std=True)
    assert_allclose(log_prob, log_joint.flatten(), atol=1e-10)
    assert_allclose(std_error, 0, atol=1e-10)


@pytest.mark.parametrize("method", ["pll", "pll_word_l2r", "ordered", "mpt", "chain"])
def test_probability_zero_without_random_masks_has_no_error(method):
    """All orders and masks are drawn."""
    model, tokenizer = ModelWithoutOneLetter(random_joint(3)), make_letter_tokenizer()
    settings = {"method": method, "n_masks": 6, "dtype": "float64"}
    scorer = MPTScorer(model, tokenizer, **settings).fit()
    scored = ["a b a", "a c a", "c", "c a b"]
    log_prob, std_error = scorer.score_samples(scored, return_std=True)
    assert_array_equal(np.isneginf(log_prob), [False, True, True, True])
    assert_allclose(std_error, 0, atol=1e-12)
    assert np.isfinite(log_prob[0])
    for tokens in scorer.token_scores(scored):
        assert_allclose(tokens.std_error, 0, atol=1e-12)
    assert scorer.perplexity(scored, return_std=True) == (np.inf, 0.0)


def test_few_masks_estimate_the_log_probability():
    log_joint = random_joint(4)
    texts = all_texts(4)[::16]
    estimates = [
        joint_scorer(log_joint, n_masks=2, random_state=seed).fit().score_samples(texts)
        for seed in range(30)
    ]
    error = np.mean(estimates, axis=0) - log_joint.flatten().numpy()[::16]
    z = error / (np.std(estimates, axis=0, ddof=1) / np.sqrt(30))
    assert np.abs(z).max() < 4
    assert np.std(estimates, axis=0).min() > 0


def test_pll_is_the_sum_of_full_conditionals():
    log_joint = random_joint(3)
    scorer = joint_scorer(log_joint, method="pll").fit(["a b c"])
    conditionals = [log_joint - log_joint.logsumexp(i, keepdim=True) for i in range(3)]
    expected = sum(conditionals).flatten()
    log_prob, std_error = scorer.score_samples(all_texts(3), return_std=True)
    assert_allclose(log_prob, expected)
    assert_array_equal(std_error, 0)


@pytest.mark.parametrize("method", ["mpt", "ordered"])
def test_strides_are_a_chain_of_windows(method):
    log_joint = random_joint(3)
    how = {"max_length": 3, "overflow": "stride", "method": method}
    scorer = joint_scorer(log_joint, n_masks=6, **how)
    log_prob = scorer.fit().score_samples(["a c b b", "a c b b a"])
    given_two = log_joint - log_joint.logsumexp(2, keepdim=True)
    expected = log_joint[0, 2, 1] + given_two[2, 1, 1]
    assert_allclose(log_prob, [expected, expected + given_two[1, 1, 0]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "n_masks", "n_all"), [("mpt", 4, 10), ("chain", 10, 120)]
)
def test_intervals_of_scores_cover(method, n_masks, n_all):
    """A model of no joint distribution, against all its masks or orders.

    Variances of orders are too large on average, as orders come in balanced fours.
    """
    texts = ["the cat sat on a", "a dog ran on the"]
    model, tokenizer = make_model(), make_tokenizer()

    def scores(n_masks, seed):
        how = {"n_masks": n_masks, "random_state": seed}
        scorer = MPTScorer(model, tokenizer, method=method, **how)
        return scorer.fit().score_samples(texts, return_std=True)

    truth, no_error = scores(n_all, 0)
    assert_allclose(no_error, 0, atol=1e-10)
    value, error = np.stack([scores(n_masks, seed) for seed in range(200)], 1)
    off = value - truth
    assert (np.abs(off.mean(0)) < 4 * off.std(0) / np.sqrt(200)).all()
    largest = 1.4 if method == "mpt" else 2
    ratio = (error**2).mean(0) / off.var(0)
    assert (ratio > 0.6).all()
    assert (ratio < largest).all()
    # ten draws, taken as normal
    assert 0.85 <= np.mean(np.abs(off) <= 1.96 * error) <= 0.99


# Against one forward pass at a time


def log_prob_by_hand(ids, hidden, target):
    masked = torch.tensor(ids)
    masked[hidden] = 4
    with torch.no_grad():
        logits = make_model().eval()(input_ids=masked[None]).logits[0, target]
    return float(logits.log_softmax(-1)[ids[target]])


def test_pll_word_l2r_by_hand():
    scorer = make_scorer(method="pll_word_l2r").fit()
    text = "unhappily the dogs"  # [CLS] un ##happi ##ly the dog ##s [SEP]
    ids = make_tokenizer()(text)["input_ids"]
    assert len(ids) == 8
    hidden = {1: [1, 2, 3], 2: [2, 3], 3: [3], 4: [4], 5: [5, 6], 6: [6]}
    expected = sum(log_prob_by_hand(ids, h, target) for target, h in hidden.items())
    assert_allclose(scorer.score_samples([text]), expected, rtol=1e-5)
    assert_allclose(
        make_scorer(method="pll").fit().score_samples(["the cat"]),
        scorer.score_samples(["the cat"]),
    )


def test_rates_are_those_of_the_full_curve_by_size():
    rates = np.array([0.01, 0.15, 0.5, 0.77, 1.0])
    scorer = make_scorer(n_masks=9, mask_rates=rates).fit()
    ids = make_tokenizer()(TEXTS[2])["input_ids"]  # two tokens: every mask is drawn
    alone = [log_prob_by_hand(ids, [position], position) for position in (1, 2)]
    both = [log_prob_by_hand(ids, [1, 2], position) for position in (1, 2)]
    by_size = {1: np.mean(alone), 2: np.mean(both)}
    expected = [by_size[mask_size(rate, 2)] for rate in rates]
    assert_allclose(scorer.transform(TEXTS)[2], expected, rtol=1e-5)


# Invariances


def test_a_text_does_not_depend_on_its_batch(scorer):
    log_prob, features = scorer.score_samples(TEXTS), scorer.transform(TEXTS)
    reverse = scorer.score_samples(TEXTS[::-1])[::-1]
    assert_allclose(reverse, log_prob, rtol=1e-5)
    for i, text in enumerate(TEXTS):
        assert_allclose(scorer.score_samples([text]), log_prob[i], rtol=1e-5)
        assert_allclose(scorer.transform([text])[0], features[i], rtol=1e-5)


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("settings", [{"batch_tokens": 1}, {"n_jobs": 2}])
def test_numbers_do_not_depend_on_batches_or_jobs(scorer, settings):
    settings = {"batch_tokens": 32, **settings}
    other = make_scorer(n_masks=2, **settings).fit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log_prob = other.score_samples(TEXTS)
    assert_allclose(log_prob, scorer.score_samples(TEXTS), rtol=1e-5)


def test_batches_are_small_and_repeated_texts_are_scored_once(scorer, monkeypatch):
    shapes = []
    scorer.set_params(batch_tokens=40).fit()
    language_model = scorer._opened[0]
    log_prob = language_model.log_prob
    monkeypatch.setattr(
        language_model,
        "log_prob",
        lambda b, *more: shapes.append(b.hidden.shape) or log_prob(b, *more),
    )
    once = scorer.score_samples(TEXTS)
    n_masks = sum(2 * (n - 1) + 1 for n in N_TOKENS)  # of all tokens there is one
    assert sum(n_rows for n_rows, _ in shapes) == n_masks
    assert max(np.prod(shape) for shape in shapes) <= 40
    lengths = [length for _, length in shapes]
    assert lengths == sorted(lengths, reverse=True)
    assert_array_equal(scorer.score_samples(TEXTS * 3), np.tile(once, 3))
    assert sum(n_rows for n_rows, _ in shapes) == 2 * n_masks


def test_methods_do_not_change_the_features(scorer):
    chain = clone(scorer).set_params(method="chain").fit()
    assert_array_equal(chain.transform(TEXTS), scorer.transform(TEXTS))


@pytest.mark.filterwarnings("ignore:.* hold .MASK.")
def test_texts_without_tokens(scorer):
    texts = ["", "[MASK]", "the cat"]
    log_prob, std_error = scorer.score_samples(texts, return_std=True)
    assert_array_equal(log_prob[:2], 0.0)
    assert_array_equal(std_error[:2], 0.0)
    features = scorer.transform(texts)
    assert np.isnan(features[:2]).all()
    assert np.isfinite(features[2]).all()
    assert_array_equal(scorer.score_samples([""]), [0.0])
    curve = mpt_curve(scorer, ["", "[MASK]"])
    assert np.isnan(curve.scores).all()
    assert curve.lml == curve.lml_std_error == 0.0
    assert curve.lml_interval() == (0.0, 0.0)


def test_many_more_masks_than_there_are_take_no_memory(scorer):
    curve = mpt_curve(scorer, ["a dog", "fast"], n_masks=10**15)
    few = mpt_curve(scorer, ["a dog", "fast"], n_masks=2)
    assert_allclose(curve.lml, few.lml, rtol=1e-5)  # single precision
    assert curve.lml_std_error == 0
    assert curve.text_noise.contrasts.shape[1] == 2


def test_standard_errors_are_unknown_from_one_mask():
    scorer = make_scorer(n_masks=1).fit(TEXTS)
    _, std_error = scorer.score_samples(TEXTS, return_std=True)
    assert_array_equal(np.isnan(std_error), N_TOKENS > 1)
    value, error = scorer.perplexity(TEXTS, return_std=True)
    assert value == scorer.perplexity(TEXTS)
    assert np.isnan(error)


@pytest.mark.parametrize("method", ["mpt", "chain", "pll", "pll_word_l2r"])
def test_standard_errors_are_known_by_default(method):
    scorer = make_scorer(method=method).fit(TEXTS)
    _, std_error = scorer.score_samples(TEXTS, return_std=True)
    is_random = method in ("mpt", "chain")
    is_random &= N_TOKENS > 2  # of two tokens, two masks of a size, or orders, are all
    assert_array_equal(std_error > 0, is_random)


# The curve


def test_curve_averages_the_features_and_the_sums():
    scorer = make_scorer(n_masks=3).fit()
    texts = [*TEXTS, TEXTS[0], ""]
    curve = mpt_curve(scorer, texts)
    assert_allclose(curve.mask_rates, np.arange(1, 100) / 100)
    features = scorer.transform(texts)
    assert_allclose(curve.scores, np.nanmean(features, axis=0))
    scores = scorer._score_texts(texts, scorer._draw())
    assert_allclose(curve.lml, scores.totals().mean())
    variance = np.array([np.sum(score.contrasts**2) for score in scores.scores])
    unique = np.append(4 * variance[0], variance[1:5])  # repeated: the same masks
    assert_allclose(curve.lml_std_error, np.sqrt(np.sum(unique)) / 7)
    assert_allclose(curve.area(512), 0.01 * 512 * curve.scores.sum())
    n_tokens = np.append(N_TOKENS, [7, 0])
    fixed = np.mean(n_tokens * np.nan_to_num(features[:, 14]))
    assert_allclose(curve.fixed_rate(0.15), fixed)
    assert_allclose(curve.bias(0.15), curve.lml - fixed)


@pytest.mark.usefixtures("in_threads")
def test_curve_takes_its_own_masks_and_jobs():
    scorer = make_scorer(random_state=3).fit()
    curve = mpt_curve(scorer, TEXTS, n_masks=4, n_jobs=2)
    more = make_scorer(random_state=3, n_masks=4).fit()
    assert_allclose(curve.scores, mpt_curve(more, TEXTS).scores, rtol=1e-6)
    other = mpt_curve(scorer, TEXTS, n_masks=4, random_state=4)
    assert (other.scores != curve.scores).any()


def assert_errors_are_over_masks(curves, rtol):
    """They are curves of the same texts by different masks."""
    lml = np.array([curve.lml for curve in curves])
    variances = [curve.lml_std_error**2 for curve in curves]
    assert_allclose(np.mean(variances), lml.var(ddof=1), rtol=rtol)
    scores = np.array([curve.scores for curve in curves])
    variances = np.mean([curve.std_errors**2 for curve in curves], axis=0)
    assert_allclose(variances, scores.var(axis=0, ddof=1), rtol=0.5, atol=1e-10)


@pytest.mark.slow
def test_standard_errors_of_curves_and_of_their_differences_are_over_masks():
    models = make_model(), make_model(initializer_range=0.4)
    scorers = [MPTScorer(model, make_tokenizer(), n_masks=2).fit() for model in models]
    texts = [*TEXTS, TEXTS[0], ""]
    curves, others = (
        [mpt_curve(scorer, texts, random_state=seed) for seed in range(120)]
        for scorer in scorers
    )
    runs = [mine - other for mine, other in zip(curves, others, strict=True)]
    assert_errors_are_over_masks(curves, rtol=0.3)
    assert_errors_are_over_masks(runs, rtol=0.35)
    mine, other = curves[-1], others[-1]
    assert_allclose(runs[-1].scores, mine.scores - other.scores)
    assert_allclose(runs[-1].lml, mine.lml - other.lml)
    assert_allclose(runs[-1].bias(0.15), mine.bias(0.15) - other.bias(0.15))
    assert_allclose((mine - mine).lml_std_error, 0)


@pytest.mark.parametrize(
    "other", [{"n_masks": 3}, {"random_state": 1}, {"texts": TEXTS[::-1]}]
)
def test_curves_of_texts_on_other_masks_are_not_subtracted(scorer, other):
    texts = other.pop("texts", TEXTS)
    with pytest.raises(ValueError, match="A difference of curves needs the same masks"):
        mpt_curve(scorer, TEXTS) - mpt_curve(scorer, texts, **other)


def test_curve_refuses_what_has_no_meaning_for_texts(scorer):
    for kwargs in ({"mask_sizes": [1, 2]}, {"allocation": "neyman"}):
        with pytest.raises(ValueError, match=r"For texts, .* mask_sizes must be None"):
            mpt_curve(scorer, TEXTS, **kwargs)
    with pytest.raises(ValueError, match="n_masks"):
        mpt_curve(scorer, TEXTS, n_masks=0)
    with pytest.raises(ValueError, match="rate"):
        mpt_curve(scorer, TEXTS).fixed_rate(0)


def test_display_of_texts(scorer):
    display = MPTCurveDisplay.from_estimator(scorer, TEXTS)
    plt.close(display.figure_)
    assert display.ax_.get_xlabel() == "Hidden tokens (%)"
    assert display.ax_.get_ylabel().endswith("(nats per token)")
    label = display.line_.get_label()
    assert label.startswith(f"MPTScorer\nLML = {display.curve.lml:.2f} ± ")


# As a scikit-learn estimator


def test_parameters_are_stored_and_nothing_is_done_in_init():
    parameters = MPTScorer().get_params()
    scorer = MPTScorer(**{name: object() for name in parameters})
    assert sorted(vars(scorer)) == sorted(parameters)


def test_methods_of_an_unfitted_scorer_raise():
    scorer = make_scorer()
    calls = [scorer.transform, scorer.score_samples, scorer.score]
    for call in [*calls, lambda texts: mpt_curve(scorer, texts)]:
        with pytest.raises(NotFittedError):
            call(TEXTS)
    with pytest.raises(NotFittedError):
        scorer.get_feature_names_out()


def test_fit_is_idempotent_and_learns_nothing_from_texts(scorer):
    before = scorer.transform(TEXTS)
    assert scorer.fit(TEXTS) is scorer
    assert_array_equal(scorer.transform(TEXTS), before)
    assert_array_equal(scorer.fit().transform(TEXTS), before)
    assert_array_equal(scorer.fit_transform(TEXTS), before)
    assert scorer.n_parameters_ == make_model().num_parameters()
    assert scorer.mask_token_id_ == 4
    assert scorer.max_length_ == 512
    assert scorer.uses_gathered_head_ is True


def test_set_output(scorer):
    expected = scorer.transform(TEXTS)
    names = ["mask_rate_0.15", "mask_rate_0.5", "mask_rate_1"]
    assert list(scorer.get_feature_names_out()) == names
    column = pd.Series(TEXTS, index=list("abcde"))
    frame = scorer.set_output(transform="pandas").transform(column)
    assert list(frame.columns) == names
    if Version(sklearn.__version__) >= Version("1.7"):  # before, only of DataFrames
        assert list(frame.index) == list("abcde")
    assert_array_equal(frame, expected)
    frame = scorer.set_output(transform="polars").transform(TEXTS)
    assert frame.columns == names
    assert clone(scorer).fit(TEXTS).transform(TEXTS).columns == names


def test_clone_shares_a_loaded_model_and_nothing_fitted(scorer):
    copy = clone(scorer)
    assert copy.model is scorer.model
    assert copy.tokenizer is scorer.tokenizer
    assert copy.mask_rates is not scorer.mask_rates
    assert copy.get_params() == scorer.get_params()
    with pytest.raises(NotFittedError):
        copy.transform(TEXTS)


def test_a_scorer_of_a_loaded_model_is_pickled_with_it(scorer):
    copy = pickle.loads(pickle.dumps(scorer))
    assert_array_equal(copy.score_samples(TEXTS), scorer.score_samples(TEXTS))


def test_grid_search():
    grid = {"method": ["mpt", "pll", "chain"]}
    search = GridSearchCV(make_scorer(), grid, cv=2).fit(TEXTS)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    pipeline = make_pipeline(make_scorer(), LogisticRegression())
    grid = {"mptscorer__mask_rates": [[0.5], [0.1, 0.9]]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(TEXTS * 2, [0, 1] * 5)
    assert set(search.predict(TEXTS)) <= {0, 1}


def test_random_states_determine_the_masks():
    def scores(random_state):
        return make_scorer(random_state=random_state).fit().score_samples(TEXTS)

    assert_array_equal(scores(0), scores(0))
    assert (scores(0) != scores(1)).any()
    rng = np.random.RandomState(0)
    assert_array_equal(scores(rng), scores(0))
    scorer = make_scorer(random_state=None).fit()
    assert_array_equal(scorer.score_samples(TEXTS), scorer.score_samples(TEXTS))


def test_progress_is_shown_if_asked(scorer, capsys, monkeypatch):
    pytest.importorskip("rich")
    log_prob = scorer.score_samples(TEXTS)
    assert capsys.readouterr().out == ""
    scorer.set_params(verbose=True)
    assert_array_equal(scorer.score_samples(TEXTS), log_prob)
    shown = capsys.readouterr().out
    assert "MPTScorer - score" in shown
    assert "100%" in shown
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    with pytest.raises(ImportError, match=r"needs rich: pip install '\.\[progress\]'"):
        scorer.score_samples(TEXTS)


# Bad input


MISSING = r"texts\[1\] .* of type {}\. Texts that are missing must be dropped"
BAD_TEXTS = [
    ("one text", "texts must be a list of str, .* a single str"),
    (b"one text", "a list of str, .* a single bytes"),
    (None, "a list of str, .* a single NoneType"),
    ({"a": "the cat"}, "another sequence with an order, got a dict"),
    ({"a", "b"}, "another sequence with an order, got a set"),
    ([], "at least one text, got none"),
    ([b"b"], r"texts\[0\] must be a str, or .* got b'b' of type bytes\. Decode it"),
    (np.array([b"b"]), r"got b'b' of type bytes_\. Decode it, by \.decode\(\)"),
    (np.array([1.5]), r"texts\[0\] .* got 1\.5 of type float64\."),
    ([[1]], r"texts\[0\] must be a str, or .* got \[1\] of type"),
    ([b"x" * 10**6], r"texts\[0\] .{,220}$"),
    (["a", None], MISSING.format("NoneType")),
    (pl.Series(["a", None]), MISSING.format("NoneType")),
    (pd.Series(["a", pd.NA], dtype="string"), MISSING.format("NAType")),
    (np.ma.array(["a", "b"], mask=[0, 1], dtype=object), MISSING.format("MaskedCo.*")),
    ([("a", None)], r"texts\[0\] must be a str, or .* got \('a', None\) of type tuple"),
    ([("a", "b", "c")], r"texts\[0\] must be a str, or .* got \('a', 'b', 'c'"),
    ([("a",)], r"texts\[0\] must be a str, or .* got \('a',\) of type tuple\.$"),
    ([(np.str_("a"), np.float64(1.5))], r"got \('a', 1\.5\) of type tuple\."),
    ([("the cat", 0.0, 3)], r"two ints, got \('the cat', 0.0, 3\)"),
    (["a", "b\ud800"], r"texts\[1\] holds '\\ud800' at 1, half of a surr"),
    (["a", ("a", "b")], r"texts\[0\] is a str and texts\[1\] a pair"),
    ([("a", "b"), "a"], r"texts\[0\] is a pair and texts\[1\] a str"),
    ([("the cat", 0, 3), ("a", "b")], "a part and texts.1. a pair"),
    ([("the cat", 2, 1)], "start <= stop <= 7, .* got 2 and 1"),
    ([("the cat", 0, 8)], "start <= stop <= 7, .* got 0 and 8"),
    (np.array([list("abcd")]), r"two columns, .* shape \(1, 4\)"),
    (np.array([[["a"]]]), r"two columns, .* shape \(1, 1, 1\)"),
]


@pytest.mark.parametrize(("texts", "message"), BAD_TEXTS)
def test_bad_texts_are_refused(scorer, texts, message):
    calls = [scorer.transform, scorer.score_samples, scorer.token_scores, scorer.fit]
    for call in calls if texts is not None else calls[:-1]:
        with pytest.raises((TypeError, ValueError), match=message):
            call(texts)


def test_fit_warns_of_texts_that_the_tokenizer_does_not_know(scorer):
    message = r"1 of 3 different texts, texts\[2\] the first, hold \[UNK\]: the token"
    for texts in (
        ["the cat", "", "quark a cow"],
        [("the", "a"), ("", ""), ("a", "cow")],
    ):
        with pytest.warns(UserWarning, match=message) as record:
            clone(scorer).fit(texts)
        assert record[0].filename == __file__
    clone(scorer).fit(["the cat", ""])


LATER = {
    "n_masks": 7,
    "method": "pll",
    "overflow": "truncate",
    "mask_rates": [0.9],
    "batch_tokens": 50,
    "max_length": 5,
    "dtype": "bfloat16",
    "n_jobs": 2,
    "random_state": 9,
    "model": None,
    "tokenizer": None,
}
METHODS_OF_TEXTS = {
    "score_samples": lambda scorer: scorer.score_samples(TEXTS),
    "transform": lambda scorer: scorer.transform(TEXTS),
    "perplexity": lambda scorer: scorer.perplexity(TEXTS),
    "token_scores": lambda scorer: scorer.token_scores(TEXTS)[0].log_prob,
}


@functools.cache
def fit_without_texts():
    return copy.copy(fit_once()).fit()


@functools.cache
def results_without_texts():
    return {key: call(fit_without_texts()) for key, call in METHODS_OF_TEXTS.items()}


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("name", LATER)
def test_parameters_changed_after_fit_are_refused_or_change_nothing(name):
    fitted, before = copy.copy(fit_without_texts()), results_without_texts()
    fitted.set_params(**{name: LATER[name]})
    for key, call in METHODS_OF_TEXTS.items():
        try:
            after = call(fitted)
        except ValueError as error:
            assert f"{name}=" in str(error)  # noqa: PT017
        else:
            assert_allclose(after, before[key], rtol=1e-6)


def test_long_texts(scorer):
    texts = ["the cat", "the " * 10, "a", "dog " * 7]
    scorer.set_params(max_length=6).fit()
    with pytest.raises(ValueError, match=r"texts\[1\] has 12 tokens, .* max_length=6"):
        scorer.score_samples(texts)
    scorer.set_params(overflow="truncate").fit()
    with pytest.warns(UserWarning, match="2 of 4 different texts are cut") as record:
        log_prob = scorer.score_samples(texts)
    assert record[0].filename == __file__
    assert_allclose(log_prob[1], scorer.score_samples(["the " * 4]), rtol=1e-5)
    scorer.set_params(overflow="stride").fit()
    assert np.isfinite(scorer.transform(texts)).all()
    assert scorer.score_samples(texts)[1] < log_prob[1]


def test_a_pipeline_of_texts_is_measured_as_its_last_step(scorer):
    scorer = clone(scorer).set_params(n_masks=2)
    choose = FunctionTransformer(lambda pairs: [pair[0] for pair in pairs])
    pairs = [(text, "a dog") for text in TEXTS]
    pipe = make_pipeline(choose, scorer).fit(pairs)
    alone, single = pipe[-1], make_pipeline(pipe[-1])
    for measure in (
        lambda *args: mpt_curve(*args).text_scores,
        lml_samples,
        lambda *args: np.concatenate(feature_contributions(*args, n_orders=2)),
        lambda *args: compare_lml([args[0]] * 2, args[1], random_state=1).row_lml,
    ):
        expected = measure(alone, TEXTS)
        assert_allclose(measure(pipe, pairs), expected)
        assert_allclose(measure(single, TEXTS), expected)
    for refused in ((pipe, pairs), (alone, TEXTS)):
        with pytest.raises(TypeError, match="a model of texts"):
            check_masked_model(*refused)


# Probabilities from left to right, and tokenizers written in Python


class Inconsistent(JointModel):
    """Conditionals of three letters that belong to no joint distribution."""

    def forward(self, input_ids):
        output = super().forward(input_ids)
        weights = torch.arange(1.0, input_ids.shape[1] + 1).to(self.dtype)
        visible = (input_ids * weights).sum(1)
        shift = torch.sin(torch.outer(visible, 1 + torch.arange(3).to(self.dtype)))
        output.logits[..., 1:] += 2 * shift[:, None] * weights[:, None]
        return output


def test_probabilities_of_all_texts_add_up_to_one():
    model, tokenizer = Inconsistent(random_joint(4)), make_letter_tokenizer()
    scorer = MPTScorer(model, tokenizer, method="ordered", dtype="float64").fit()
    log_prob, std_error = scorer.score_samples(all_texts(4), return_std=True)
    assert_allclose(np.exp(log_prob).sum(), 1, rtol=1e-9)
    assert not std_error.any()


@pytest.mark.usefixtures("in_threads")
def test_tokens_add_up_in_any_batch():
    settings = {"method": "ordered", "batch_tokens": 12, "n_jobs": 2}
    small = MPTScorer(make_model(), make_tokenizer(), **settings).fit()
    large = MPTScorer(make_model(), make_tokenizer(), method="ordered").fit()
    log_prob = large.score_samples([*TEXTS, TEXTS[0], ""])
    assert_allclose(small.score_samples([*TEXTS, TEXTS[0], ""]), log_prob, rtol=1e-5)
    assert log_prob[-1] == 0
    parts = large.token_scores(TEXTS)
    assert_allclose([p.log_prob.sum() for p in parts], log_prob[: len(TEXTS)])
    assert not any(part.std_error.any() for part in parts)


@pytest.fixture
def proteins(tmp_path):
    """A scorer with a tokenizer written in Python."""
    tokenizer = make_protein_tokenizer(tmp_path)
    return MPTScorer(make_model("esm"), tokenizer, method="pll").fit()


def test_tokenizers_in_python_have_tokens_contexts_and_fills(proteins):
    (part,) = proteins.token_scores(["ACDA"])
    assert proteins._opened[1]("ACDA")["input_ids"] == [0, 5, 6, 7, 5, 2]
    assert part.tokens == part.pieces == part.by_word().tokens == list("ACDA")
    assert_allclose(part.log_prob.sum(), proteins.score(["ACDA"]))
    given, pair = proteins.token_scores([("ACD", "GHI"), ("ACD", "GHI")])
    assert given.tokens == list("GHI")
    assert pair.text == "GHI"
    # ESM joins two proteins by <eos>
    hidden = [[False] * 3 + [i == j for i in range(3)] for j in range(3)]
    texts = ["ACD<eos>GHI"] * 3  # of which <eos> is never hidden
    by_hand = sum(sum(own) for own in proteins.conditional_log_prob(texts, hidden))
    assert_allclose(proteins.score([("ACD", "GHI")]), by_hand, rtol=1e-5)
    ((fill,),) = proteins.fill(["AC<mask>A"])
    assert fill.text.replace(" ", "") == f"AC{fill.tokens[0]}A"
    ratios = proteins.score_variants("ACDA", ["D3A", "A1C:D3A", ""])
    assert_array_equal(ratios != 0, [True, True, False])


def test_what_needs_words_asks_for_a_fast_tokenizer(proteins):
    message = "needs a fast tokenizer, which knows the words of a text, and EsmToken"
    with pytest.raises(ValueError, match=message):
        proteins.set_params(method="pll_word_l2r").fit()
    with pytest.raises(ValueError, match=message):
        mpt_curve(proteins.set_params(method="mpt").fit(), ["ACD"], mask_blocks="word")
    with pytest.raises(ValueError, match="Use a fast tokenizer"):
        proteins.score_samples([("ACDA", 0, 2)])
