"""Texts that come one after the other: blocks, a cache on disk, frames of tokens."""

import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from text_models import (
    TEXTS,
    JointModel,
    make_letter_tokenizer,
    make_model,
    make_tokenizer,
    random_joint,
)

from sklearn_mpt import MPTScorer


def letters(seed=0, **kwargs):
    kwargs = {"dtype": "float64", "n_masks": 2, **kwargs}
    model = JointModel(random_joint(3, seed))
    return MPTScorer(model, make_letter_tokenizer(), **kwargs).fit()


def all_texts():
    return [" ".join(text) for text in itertools.product("abc", repeat=3)]


def count_blocks(scorer, monkeypatch):
    """Count the texts of the blocks that are scored."""
    sizes, score = [], scorer._score_texts

    def counted(texts, *args, **kwargs):
        sizes.append(len(texts))
        return score(texts, *args, **kwargs)

    monkeypatch.setattr(scorer, "_score_texts", counted)
    return sizes


def test_scores_are_those_of_all_texts_at_once():
    scorer = MPTScorer(make_model().eval(), make_tokenizer()).fit()
    texts = [*TEXTS, TEXTS[1]]
    expected = scorer.score_samples(texts, return_std=True)
    found = pd.DataFrame(scorer.iter_scores(texts, block_size=2))
    assert list(found) == ["text", "log_prob", "std_error", "n_tokens"]
    assert_allclose(found[["log_prob", "std_error"]].T, expected, rtol=1e-5)
    assert_array_equal(found["n_tokens"], scorer.count_tokens(texts))
    lengths = [3, 4, 8]
    longer = [s.log_prob for s in scorer.iter_scores(texts, length_log_prob=lengths)]
    assert_allclose(
        longer, scorer.score_samples(texts, length_log_prob=lengths), rtol=1e-5
    )


def test_a_generator_is_read_block_by_block():
    read = []

    def generate():
        for text in all_texts():
            read.append(text)
            yield text

    scores = letters().iter_scores(generate(), block_size=4)
    assert read == []
    next(scores)
    assert len(read) == 4
    assert len(list(scores)) == 26


def test_what_was_read_before_an_error_is_scored_and_kept(tmp_path, monkeypatch):
    def broken():
        yield from all_texts()[:7]
        raise OSError("the disk is gone")

    scorer = letters()
    scores = scorer.iter_scores(broken(), block_size=5, cache=tmp_path)
    found = [next(scores).log_prob for _ in range(7)]
    with pytest.raises(OSError, match="the disk is gone"):
        next(scores)
    assert_allclose(found, scorer.score_samples(all_texts()[:7]))
    sizes = count_blocks(scorer, monkeypatch)
    again = scorer.iter_scores(all_texts()[::-1], block_size=9, cache=tmp_path)
    log_prob = [score.log_prob for score in again][::-1]
    assert sum(sizes) == 27 - 7
    assert_allclose(log_prob, scorer.score_samples(all_texts()))


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"random_state": 1}, {"method": "pll"}, {"n_masks": 3}],
    ids=str,
)
def test_scores_of_another_model_or_method_are_not_taken(tmp_path, monkeypatch, other):
    texts = all_texts()[:5]
    for settings, n_scored in (({}, 5), (other, 5), ({}, 0), (other, 0)):
        scorer = letters(**settings)
        sizes = count_blocks(scorer, monkeypatch)
        found = [s.log_prob for s in scorer.iter_scores(texts, cache=tmp_path)]
        assert sum(sizes) == n_scored
        assert_allclose(found, letters(**settings).score_samples(texts))


def test_a_context_and_its_text_are_not_one_text(tmp_path):
    scorer = MPTScorer(make_model().eval(), make_tokenizer(), method="pll").fit()
    pairs = [("the cat", "sat"), ("the", "cat sat"), ("the cat", "sat")]
    expected = scorer.score_samples(pairs)
    assert expected[0] == expected[2] != expected[1]
    for _ in range(2):
        found = [s.log_prob for s in scorer.iter_scores(pairs, cache=tmp_path)]
        assert_allclose(found, expected, rtol=1e-6)


def test_a_folder_of_other_files_is_refused(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"its file a\.safetensors holds none"):
        letters().iter_scores(["a"], cache=tmp_path)


@pytest.mark.parametrize("change", [np.nan, np.inf, 3.0, "no checksum"])
def test_a_file_whose_numbers_were_changed_is_refused(tmp_path, change):
    list(letters().iter_scores(all_texts(), cache=tmp_path))
    (path,) = tmp_path.iterdir()
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    stored = load_file(path)
    if change == "no checksum":
        metadata = None
    else:
        stored["log_prob"][3] *= change
    save_file(stored, path, metadata)
    with pytest.raises(ValueError, match=f"The file {path.name} of the cache does not"):
        letters().iter_scores(all_texts(), cache=tmp_path)


def test_what_is_no_folder_of_scores_is_named(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    for place in (path, path / "inner"):
        with pytest.raises(
            ValueError, match=r"cache must be a folder, but .*file.* is"
        ):
            letters().iter_scores(["a"], cache=place)
    (tmp_path / "b.safetensors").mkdir()
    with pytest.raises(ValueError, match=r"b\.safetensors in it is a folder"):
        letters().iter_scores(["a"], cache=tmp_path)
    with pytest.raises(TypeError, match="cache must be the path of a folder, got 3"):
        letters().iter_scores(["a"], cache=3)


def test_threads_share_a_folder(tmp_path):
    scorer = letters()
    expected = scorer.score_samples(all_texts())

    def work(_):
        scores = scorer.iter_scores(all_texts(), cache=tmp_path, block_size=3)
        return [score.log_prob for score in scores]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(work, range(4)):
            assert_allclose(found, expected)
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors"}


def test_scores_are_yielded_before_a_full_disk_is_reported(tmp_path):
    folder = tmp_path / "cache"
    scorer = letters()
    scores = scorer.iter_scores(all_texts(), cache=folder, block_size=4)
    found = [next(scores).log_prob for _ in range(4)]
    shutil.rmtree(folder)
    found += [next(scores).log_prob for _ in range(4)]
    assert_allclose(found, scorer.score_samples(all_texts()[:8]))
    with pytest.raises(OSError, match="cache") as caught:
        next(scores)
    assert "texts 4 to 7 were yielded, but are not in" in caught.value.__notes__[0]


def test_a_model_that_is_trained_in_between_is_another_one(tmp_path):
    model = JointModel(random_joint(3, 0))
    scorer = MPTScorer(model, make_letter_tokenizer(), dtype="float64").fit()
    scores = scorer.iter_scores(all_texts(), block_size=9, cache=tmp_path)
    before = scorer.score_samples(all_texts())
    found = [next(scores).log_prob for _ in range(9)]
    with torch.no_grad():
        model.log_joint.mul_(2)
    after = scorer.score_samples(all_texts())
    found += [score.log_prob for score in scores]
    assert_allclose(found, [*before[:9], *after[9:]])
    with torch.no_grad():
        model.log_joint.div_(2)
    again = [s.log_prob for s in scorer.iter_scores(all_texts(), cache=tmp_path)]
    assert_allclose(again, before)


def test_parameters_are_those_of_fit(tmp_path):
    """A joiner that is set after fit has no effect, in the cache either."""
    scorer = MPTScorer(
        make_model().eval(), make_tokenizer(), method="pll", joiner=" "
    ).fit()
    pairs = [("the cat", "sat"), ("a", "dog")]
    list(scorer.iter_scores(pairs, cache=tmp_path))
    other = MPTScorer(
        make_model().eval(), make_tokenizer(), method="pll", joiner=" . "
    ).fit()
    other.set_params(joiner=" ")
    found = [score.log_prob for score in other.iter_scores(pairs, cache=tmp_path)]
    assert_allclose(found, other.score_samples(pairs), rtol=1e-6)


def test_bad_texts_are_refused_with_their_block():
    scorer = letters()
    with pytest.raises(TypeError, match="texts must be a list of str"):
        scorer.iter_scores("a b")
    with pytest.raises(TypeError, match=r"texts\[1\] must be a str") as caught:
        list(scorer.iter_scores(["a", "b", "c", None], block_size=2))
    assert "the block of texts 2 to 3" in caught.value.__notes__[0]


def test_a_frame_of_tokens_has_a_row_for_each():
    scorer = MPTScorer(make_model().eval(), make_tokenizer(), method="pll").fit()
    texts = [*TEXTS, ""]
    frame = scorer.token_scores(texts, as_frame=True)
    parts = scorer.token_scores(texts)
    assert frame["token"].tolist() == [t for part in parts for t in part.tokens]
    sums = frame.groupby("text")["log_prob"].sum()
    assert_allclose(sums, scorer.score_samples(TEXTS), rtol=1e-6)
    cut = [texts[row.text][row.start : row.end] for row in frame.itertuples()]
    assert cut[:3] == ["the", "cat", "sat"]
    assert np.issubdtype(frame["start"].dtype, np.integer)
    nothing = scorer.token_scores([""], as_frame=True)
    assert list(nothing) == list(frame)
    assert nothing.empty
