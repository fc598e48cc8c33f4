import warnings

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from text_models import TEXTS, make_tokenizer

from sklearn_mpt._text.windows import fit_windows, tokenize

NAMES = {"input_ids", "attention_mask"}


def windows_of(texts, **kwargs):
    return tokenize(make_tokenizer(**kwargs), texts, NAMES)[0]


def scored_ids(window):
    return window.inputs["input_ids"][window.positions]


def test_only_inputs_of_the_model_are_kept():
    assert set(windows_of(TEXTS)[0].inputs) == NAMES
    only = tokenize(make_tokenizer(), TEXTS, {"input_ids", "labels"})[0][0]
    assert set(only.inputs) == {"input_ids"}


def test_added_tokens_are_not_maskable_but_unknown_ones_are():
    (window,) = windows_of(["the xyz [MASK] cat [SEP]"])
    assert_array_equal(window.inputs["input_ids"], [2, 5, 1, 4, 7, 3, 3])
    assert_array_equal(window.positions, [1, 2, 4])
    assert_array_equal(window.is_fixed.nonzero()[0], [0, 6])


def test_words_are_those_of_the_tokenizer():
    (window,) = windows_of(["unhappily the"])
    assert_array_equal(window.words, [-1, 0, 0, 0, 1, -1])


def test_each_different_text_has_one_window():
    windows, first = tokenize(make_tokenizer(), ["a", "the", "a", "cat", "the"], NAMES)
    assert [window.text for window in windows] == [0, 1, 3]
    assert_array_equal(first, [0, 1, 0, 3, 1])


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("n_words", [4, 5, 6, 7, 11, 30])
@pytest.mark.parametrize("max_length", [3, 4, 6])
def test_strides_score_each_token_once_in_a_full_window(n_words, max_length, centred):
    words = np.random.default_rng(0).choice(["the", "a", "cat", "dog"], n_words)
    (window,) = windows_of([" ".join(words)])
    pieces = fit_windows([window], max_length, "stride", centred)
    assert_array_equal(
        np.concatenate([scored_ids(p) for p in pieces]), scored_ids(window)
    )
    for piece in pieces:
        assert len(piece) == min(max_length, len(window))
        assert_array_equal(piece.inputs["input_ids"][[0, -1]], [2, 3])


def test_strides_give_context_on_both_sides_or_before():
    (window,) = windows_of(["the a cat dog sat ran on mat fast happy"])
    before = fit_windows([window], 6, "stride", False)
    assert [list(piece.positions) for piece in before] == [[1, 2, 3, 4]] + 3 * [[3, 4]]
    both = fit_windows([window], 6, "stride", True)
    positions = [list(piece.positions) for piece in both]
    assert positions == [[1, 2, 3], [2, 3], [2, 3], [2, 3, 4]]


def test_truncation_keeps_the_beginning_and_counts():
    windows = windows_of(["the a cat dog", "the", "cat cat cat cat"])
    with pytest.warns(UserWarning, match="2 of 3 different texts are cut .*=4 tokens"):
        pieces = fit_windows(windows, 4, "truncate", True)
    assert [list(scored_ids(piece)) for piece in pieces] == [[5, 6], [5], [7, 7]]


def test_a_text_too_long_is_named():
    windows = windows_of(["the", "the", "a cat", "the a cat dog"])
    with pytest.raises(ValueError, match=r"texts\[3\] has 6 tokens, .* max_length=4"):
        fit_windows(windows, 4, "error", True)


def test_texts_that_fit_are_left_alone():
    windows = windows_of(TEXTS)
    longest = max(map(len, windows))
    for overflow in ("error", "truncate", "stride"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert fit_windows(windows, longest, overflow, True) == windows
