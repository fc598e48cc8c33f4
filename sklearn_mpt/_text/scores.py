"""Methods of `MPTScorer` that score texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import (
    AUTO,
    COUNT,
    check,
    check_bool,
    check_choice,
    check_n_jobs,
    draw_seed,
)
from sklearn_mpt._text.batches import score_windows
from sklearn_mpt._text.loading import OpenedModelMixin, check_words
from sklearn_mpt._text.masks import METHODS, MaskDraw
from sklearn_mpt._text.results import (
    TextScores,
    TokenScores,
    frame_of_tokens,
    text_curve,
)
from sklearn_mpt._text.texts import Texts, check_texts
from sklearn_mpt._text.windows import (
    check_lengths,
    fit_windows,
    warn_of_cut_tokens,
    warn_of_no_words,
)

AUTO_MASKS = 4  # masks of each size, or orders of a text, if n_masks is "auto"


class TextScoresMixin(OpenedModelMixin):
    """Score texts as a whole and by their tokens."""

    n_jobs: int | None
    verbose: bool
    _seed: int

    @overload
    def score_samples(
        self, X: Texts, return_std: Literal[False] = False
    ) -> np.ndarray: ...
    @overload
    def score_samples(
        self, X: Texts, return_std: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray]: ...
    def score_samples(
        self, X: Texts, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Compute the log-probability of each text by the chosen `method`.

        It is the log-probability given the number of tokens.

        Parameters
        ----------
        X : iterable of str, of (str, str) or of (str, int, int) tuples
            Texts; (context, text) pairs, of which only the text is scored; or (text,
            start, stop) parts of texts, of which the characters from `start` to `stop`
            are scored, given the rest of the text. A token is in the part that holds
            its first character that is no white space, or its first character if there
            is no such one. Pairs may be two columns of a DataFrame or an array, and
            parts three.
        return_std : bool, default=False
            Whether to return the standard error over masks too.

        Returns
        -------
        log_prob : ndarray of shape (n_texts,)
            Log-probabilities in nats per text, given its number of tokens; 0.0 for a
            text without tokens to hide.
        std_error : ndarray of shape (n_texts,)
            Standard error from drawing masks, in nats: of "mpt" the variances over the
            masks of each size, summed over sizes; of "chain" the spread over orders.
            It is enlarged, by Student's t, so that plus or minus 1.96 standard errors
            is about a 95% interval: the :doc:`guide </texts>` has figures. Zero if the
            method is not random or all masks are used, NaN if it is and `n_masks` is 1,
            as a single draw has no estimate of its error, or the text has probability
            0. Only if `return_std` is True.

        Raises
        ------
        TypeError, ValueError
            If X is not a list of texts or of pairs, or mixes them; if a text is longer
            than `max_length_` and `overflow` is "error"; if a context leaves no room
            for the text; if a prediction is NaN; if the scorer was unpickled and the
            files in the folder of its model have changed.

        Warns
        -----
        UserWarning
            If a part begins within a token, which then is not scored.
        """
        self._check_is_fitted()
        check_bool(return_std, "return_std")
        scores = self._score_texts(X, self._draw())
        log_prob = scores.totals()
        return (log_prob, scores.std_errors()) if return_std else log_prob

    def score(self, X: Texts, y: object = None) -> float:
        """Compute the mean log-probability of the texts.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts, or pairs of a context and a text.
        y : Ignored
            Not used, present for API consistency by convention.

        Returns
        -------
        float
            Log-probability in nats per text, given its number of tokens.
        """
        return float(np.mean(self.score_samples(X)))

    def count_tokens(self, X: Texts) -> np.ndarray:
        """Count the tokens of each text that can be hidden, and so are scored.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts, or (context, text) pairs, of which only the text counts.

        Returns
        -------
        n_tokens : ndarray of int of shape (n_texts,)
            Numbers of tokens without special tokens, before longer texts are cut.
        """
        self._check_is_fitted()
        windows = self._windows(check_texts(X))
        return np.array([len(window.positions) for window in windows])

    def token_scores(
        self, X: Texts, *, as_frame: bool = False
    ) -> list[TokenScores] | Any:
        """Compute the contribution of each token to the score of its text.

        For "pll", "pll_word_l2r" and "ordered", it is the log-probability of the token
        given the visible tokens. For "chain", it is the mean over orders of the
        log-probability of the token given those before it, which is an estimate of its
        Shapley value. For "mpt", it is an estimate of the Shapley value from all masks
        that hide the token.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts, or (context, text) pairs, of which only the text is scored.
        as_frame : bool, default=False
            Whether to return a pandas DataFrame with a row for each token: the
            index of its `text`, `token`, its `start` and `end` in the text, the index
            of its `word`, `log_prob` and `std_error`.

        Returns
        -------
        list of TokenScores of length n_texts
            Each has `text`; its `tokens`; their `offsets` in the text, of shape
            (n_tokens, 2), and the `pieces` of the text at these offsets; the index of
            the word of each token, `words`; `log_prob` and `std_error` over masks, in
            nats, of shape (n_tokens,); `contrasts` of shape (n_draws, n_tokens), where
            ``contrasts.T @ contrasts`` estimates the covariance of the errors; and the
            method `by_word()`, which returns the same for words. The sum of `log_prob`
            is the score of the text. Special tokens in a text are left out, as they are
            not scored.
        """
        self._check_is_fitted()
        check_bool(as_frame, "as_frame")
        texts = check_texts(X)
        scores = self._score_texts(texts, self._draw())
        parts = scores.tokens(texts, self._open_again()[1])
        return frame_of_tokens(parts) if as_frame else parts

    def conditional_log_prob(
        self, X: Texts, mask: Iterable[ArrayLike]
    ) -> list[np.ndarray]:
        r"""Compute the log-probability of each hidden token given the visible tokens.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts, or (context, text) pairs, not longer than `max_length_`.
        mask : iterable of array-like of bool of shape (n_tokens,)
            One for each text, True where a token is hidden. The tokens are those that
            `token_scores` lists.

        Returns
        -------
        list of ndarray of shape (n_tokens,)
            :math:`\log p(x_j \mid x_R)` in nats at hidden tokens, 0 at visible ones.

        Raises
        ------
        TypeError, ValueError
            If a mask does not fit its text, if a text is too long, or as
            `score_samples` does.
        """
        self._check_is_fitted()
        windows = self._windows(check_texts(X))
        masks = check_masks(mask, windows)
        check_lengths(windows, self.max_length_)
        chosen = [
            replace(window, positions=window.positions[text_mask])
            for window, text_mask in zip(windows, masks, strict=True)
        ]
        draw = MaskDraw(None, self._seed)
        language_model, _ = self._open_again()
        scores = score_windows(language_model, chosen, draw, self.n_jobs, self.verbose)
        log_prob = [np.zeros(len(text_mask)) for text_mask in masks]
        for values, text_mask, score in zip(log_prob, masks, scores, strict=True):
            values[text_mask] = score.tokens
        return log_prob

    @overload
    def perplexity(self, X: Texts, return_std: Literal[False] = False) -> float: ...
    @overload
    def perplexity(
        self, X: Texts, return_std: Literal[True]
    ) -> tuple[float, float]: ...
    def perplexity(
        self, X: Texts, return_std: bool = False
    ) -> float | tuple[float, float]:
        r"""Compute the perplexity per token of all texts together.

        It is :math:`\exp(-\sum_i s_i / \sum_i L_i)`, where :math:`s_i` is the score of
        text i by `method` and :math:`L_i` its number of scored tokens. For "pll" and
        "pll_word_l2r" it is the pseudo-perplexity of Salazar et al. [1]_; for "mpt"
        and "chain", an upper bound of a perplexity.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts, or (context, text) pairs, of which only the text counts.
        return_std : bool, default=False
            Whether to return the standard error from drawing masks too.

        Returns
        -------
        perplexity : float
            NaN if no text has tokens to hide, as for ``[""]``; infinite if it is too
            large for a float. Perplexities of models with different tokenizers cannot
            be compared, because their tokens differ.
        std_error : float
            The perplexity times the standard error of its logarithm (a first-order
            approximation); NaN if masks are random and `n_masks` is 1. Only if
            `return_std` is True.

        Raises
        ------
        TypeError, ValueError
            As in `score_samples`; also if there are no texts.

        References
        ----------
        .. [1] J. Salazar, D. Liang, T. Q. Nguyen and K. Kirchhoff, "Masked language
           model scoring", ACL 2020.
        """
        self._check_is_fitted()
        check_bool(return_std, "return_std")
        scores = self._score_texts(X, self._draw())
        n_tokens = scores.n_tokens().sum()
        with np.errstate(over="ignore", invalid="ignore"):
            perplexity = np.exp(-scores.totals().sum() / n_tokens)
            of_log = scores.std_error_of_sum() / n_tokens
            error = 0.0 if of_log == 0 else perplexity * of_log  # may be 0 times inf
        return (float(perplexity), float(error)) if return_std else float(perplexity)

    def _draw(self):
        return self._draw_of(self.method, self._seed, self.n_masks)

    def _draw_of(self, method, seed, n_masks):
        return MaskDraw(method, seed, AUTO_MASKS if n_masks == "auto" else n_masks)

    def _masked_score_curve(self, X, n_masks, mask_blocks, random_state, n_jobs):
        """Compute what `mpt_curve` returns for texts."""
        self._check_is_fitted()
        if mask_blocks is not None:
            check_choice(mask_blocks, "mask_blocks", ["word"])
        n_masks = self.n_masks if n_masks is None else n_masks
        check(n_masks, "n_masks", AUTO, COUNT)
        check_n_jobs(n_jobs)
        seed = self._seed if random_state is None else draw_seed(random_state)
        draw = replace(self._draw_of("mpt", seed, n_masks), mask_blocks=mask_blocks)
        return text_curve(self._score_texts(X, draw, n_jobs))

    def _kind_of_scores(self):
        return METHODS[self.method].kind

    def _score_samples_on_masks(self, X, seed, n_jobs):
        """Compute `score_samples` with the masks of a seed, for `compare_lml`."""
        self._check_is_fitted()
        draw = self._draw_of(self.method, seed, self.n_masks)
        return self._score_texts(X, draw, n_jobs).totals()

    def _token_contributions(self, X, n_orders, random_state, n_jobs):
        """Compute what `feature_contributions` returns for texts."""
        texts = check_texts(X)
        scores = self._score_along_orders(texts, n_orders, random_state, n_jobs)
        parts = scores.tokens(texts, self._open_again()[1])
        values = [part.log_prob for part in parts]
        errors = [part.std_error for part in parts]
        pieces = [np.array(part.pieces, dtype=object) for part in parts]
        return values, errors, pieces, None

    def _lml_along_orders(self, X, n_orders, random_state, n_jobs):
        """Compute what `lml_samples` returns for texts."""
        scores = self._score_along_orders(X, n_orders, random_state, n_jobs)
        return scores.totals(), scores.std_errors()

    def _score_along_orders(self, X, n_orders, random_state, n_jobs):
        self._check_is_fitted()
        seed = self._seed if random_state is None else draw_seed(random_state)
        return self._score_texts(X, MaskDraw("chain", seed, n_orders), n_jobs)

    def _score_texts(self, X, draw, n_jobs=None):
        language_model, tokenizer = self._open_again()
        check_words(draw.method, tokenizer, draw.mask_blocks)
        texts = check_texts(X)
        windows, first = self._distinct_windows(texts)
        warn_of_no_words(tokenizer, windows)
        warn_of_cut_tokens(windows, texts)
        is_centred = METHODS[draw.method].is_centred
        windows = fit_windows(windows, self.max_length_, self.overflow, is_centred)
        n_jobs = self.n_jobs if n_jobs is None else n_jobs
        scores = score_windows(language_model, windows, draw, n_jobs, self.verbose)
        return TextScores(windows, scores, draw, first)


def check_masks(masks, windows):
    """Check that there is one mask for each token of each text; return arrays."""
    if not hasattr(masks, "__iter__"):
        raise TypeError(
            "mask must be a list of boolean arrays, one for each text, got a single "
            f"{type(masks).__name__}."
        )
    masks = [np.asarray(mask) for mask in masks]
    if len(masks) != len(windows):
        raise ValueError(
            f"mask must hold one mask for each text, got {len(masks)} for "
            f"{len(windows)} texts."
        )
    for index, (mask, window) in enumerate(zip(masks, windows, strict=True)):
        n_tokens = len(window.positions)
        if mask.shape != (n_tokens,) or (n_tokens and mask.dtype != bool):
            raise ValueError(
                f"mask[{index}] must hold a bool for each of the {n_tokens} tokens of "
                f"its text, got shape {mask.shape} and dtype {mask.dtype}."
            )
    return [mask.astype(bool) for mask in masks]
