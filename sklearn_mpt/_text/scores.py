"""Methods of `MPTScorer` that score texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import (
    check_bool,
    check_choice,
    check_int_or_auto,
    check_n_jobs,
)
from sklearn_mpt._measure.contributions import Contributions
from sklearn_mpt._seeds import draw_seed
from sklearn_mpt._text.batches import score_windows
from sklearn_mpt._text.lengths import LengthLogProb, length_term
from sklearn_mpt._text.loading import OpenedModelMixin, check_words
from sklearn_mpt._text.masks import METHODS, MaskDraw
from sklearn_mpt._text.parts import warn_of_cut_tokens
from sklearn_mpt._text.results import (
    TextScores,
    TokenScores,
    frame_of_tokens,
    text_curve,
)
from sklearn_mpt._text.texts import Texts, scored_text
from sklearn_mpt._text.windows import check_lengths, fit_windows, warn_of_no_words

# Orders of a text, and masks of each size, if n_masks is "auto": `balanced_orders` come
# in fours, and two masks are the fewest from which a variance can be estimated.
AUTO_ORDERS, AUTO_MASKS = 4, 2
# Windows with a second draw, for the error of a sum: with so many degrees of freedom
# the root of a variance has an error of 18%.
MIN_SECOND_DRAWS = 16
UNITS = ("token", "character", "byte")


class TextScoresMixin(OpenedModelMixin):
    """Score texts as a whole and by their tokens."""

    n_jobs: int | None
    verbose: bool
    design_: str
    _seed: int
    _moderations: dict

    @overload
    def score_samples(
        self,
        X: Texts,
        return_std: Literal[False] = False,
        *,
        length_log_prob: LengthLogProb | None = None,
    ) -> np.ndarray: ...
    @overload
    def score_samples(
        self,
        X: Texts,
        return_std: Literal[True],
        *,
        length_log_prob: LengthLogProb | None = None,
    ) -> tuple[np.ndarray, np.ndarray]: ...
    def score_samples(
        self,
        X: Texts,
        return_std: bool = False,
        *,
        length_log_prob: LengthLogProb | None = None,
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Compute the log-probability of each text by the chosen `method`.

        It is the log-probability given the number of tokens. To compare texts of
        different lengths, add the log-probability of the length by `length_log_prob`.

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
            Whether to return the standard error over masks too. Give some texts to
            `fit`: without, the error of a text comes from its few masks alone, and
            that of orders is too large, at times by far.
        length_log_prob : callable or array-like of int, default=None
            Distribution of the number of tokens. Either a callable that takes an int
            array of shape (n_texts,) and returns log-probabilities; or the numbers of
            tokens of other texts, such as training texts, from `count_tokens`. If c of
            n such texts have the length l, the probability of l is
            :math:`(c + g(l)) / (n + 1)`, where g is the geometric distribution with
            their mean. None adds nothing.

        Returns
        -------
        log_prob : ndarray of shape (n_texts,)
            Log-probabilities in nats per text, given its number of tokens unless
            `length_log_prob` adds that; 0.0 for a text without tokens to hide.
        std_error : ndarray of shape (n_texts,)
            Standard error from drawing masks, in nats. It is enlarged, by Student's t,
            so that plus or minus 1.96 standard errors is a 95% interval. If `fit` had
            four or more texts, their variances moderate that of each text; without,
            errors of means over orders are wider. Texts of `fit` may have other lengths
            than those that are scored; the :doc:`guide </texts>` has figures. Zero if
            the method is not random, NaN if it is and `n_masks` is 1, as a single draw
            has no estimate of its error, or the text has probability 0. Only if
            `return_std` is True.

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
            If `design_` is "chain", and with independent masks the standard errors of
            these texts, 10 or more, would be less than half as large; or if a part, or
            the text of a pair with a `joiner`, begins within a token, which then is not
            scored.
        """
        self._check_is_fitted()
        check_bool(return_std, "return_std")
        scores = self._score_texts(X, self._draw())
        scores.warn_of_noise()
        n_tokens = scores.n_tokens()
        log_prob = scores.totals() + length_term(length_log_prob, n_tokens)
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
        windows = self._windows(self._check_texts(X))
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
        texts = self._check_texts(X)
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
        windows = self._windows(self._check_texts(X))
        masks = check_masks(mask, windows)
        check_lengths(windows, self.max_length_)
        chosen = [
            replace(window, positions=window.positions[text_mask])
            for window, text_mask in zip(windows, masks, strict=True)
        ]
        draw = MaskDraw.of_all_tokens(self._seed)
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
            approximation). If `n_masks` is 1, a tenth of the texts, or 16 if that is
            more, are scored with a second draw of masks for it. Only if `return_std` is
            True.

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
        total, error, n_tokens = self._sum_of_scores(X, return_std)
        with np.errstate(over="ignore", invalid="ignore"):
            perplexity = np.exp(-total / n_tokens)
            of_log = error / n_tokens
            error = 0.0 if of_log == 0 else perplexity * of_log  # may be 0 times inf
        return (float(perplexity), float(error)) if return_std else float(perplexity)

    @overload
    def bits_per(
        self, X: Texts, unit: str = "token", return_std: Literal[False] = False
    ) -> float: ...
    @overload
    def bits_per(
        self, X: Texts, unit: str = "token", *, return_std: Literal[True]
    ) -> tuple[float, float]: ...
    @overload
    def bits_per(
        self, X: Texts, unit: str, return_std: Literal[True]
    ) -> tuple[float, float]: ...
    def bits_per(
        self, X: Texts, unit: str = "token", return_std: bool = False
    ) -> float | tuple[float, float]:
        r"""Compute the bits per token, character or byte of the texts together.

        It is :math:`-\sum_i s_i / (\ln 2 \sum_i U_i)`, with the scores :math:`s_i` of
        the texts by `method`, given their numbers of tokens, and their numbers of units
        :math:`U_i`. For masked diffusion models and "mpt" it is the NELBO in bits.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts, or (context, text) pairs, of which only the text counts.
        unit : {"token", "character", "byte"}, default="token"
            Bytes are those of UTF-8. Models with different tokenizers compare in
            characters and bytes. Those of special tokens in a text, which are not
            scored, do not count.
        return_std : bool, default=False
            Whether to return the standard error from drawing masks too.

        Returns
        -------
        bits : float
            NaN if the texts have no unit, as for ``[""]``.
        std_error : float
            Standard error from drawing masks, as in `perplexity`. Only if `return_std`
            is True.

        Raises
        ------
        TypeError, ValueError
            As in `score_samples`; also if `unit` is not "token" and a text is cut by
            ``overflow="truncate"``.
        """
        self._check_is_fitted()
        check_choice(unit, "unit", UNITS)
        check_bool(return_std, "return_std")
        texts = self._check_texts(X)
        total, error, n_tokens = self._sum_of_scores(texts, return_std)
        n_units = n_tokens if unit == "token" else self._count(unit, texts, n_tokens)
        with np.errstate(invalid="ignore", divide="ignore"):
            per_nat = 1 / (np.log(2) * np.float64(n_units))
            bits, error = -total * per_nat, error * per_nat
        return (float(bits), float(error)) if return_std else float(bits)

    def _count(self, unit, texts, n_scored):
        """Count characters or bytes of texts, all of whose tokens must be scored.

        Special tokens in a text are not scored, so their characters do not count.
        """
        _, tokenizer = self._open_again()
        windows = self._windows(texts)
        if n_scored < sum(len(window.positions) for window in windows):
            raise ValueError(
                f"unit={unit!r} counts whole texts, but overflow='truncate' cuts "
                "some; set overflow to 'stride' or 'split', or unit to 'token'."
            )
        n_units = 0
        for text, window in zip(texts, windows, strict=True):
            is_special = ~(window.is_fixed | window.is_maskable)
            ids = window.inputs["input_ids"][is_special].tolist()
            special = tokenizer.convert_ids_to_tokens(ids)
            n_units += _length(unit, scored_text(text)) - _length(
                unit, "".join(special)
            )
        return n_units

    def _draw(self):
        return self._draw_of(self.method, self._seed, self.n_masks)

    def _count_draws(self, method, n_masks):
        return resolve_n_masks(
            n_masks, method == "chain" or self.design != "independent"
        )

    def _draw_of(self, method, seed, n_masks):
        n_draws = self._count_draws(method, n_masks)
        return MaskDraw(
            method,
            seed,
            n_draws,
            design=self.design_,
            order=self.order,
            block_size=self.block_size,
            moderation=self._moderations.get(method) if n_draws > 1 else None,
        )

    def _sum_of_scores(self, texts, return_std):
        """Return the sum of the scores of texts, its error, and how many tokens."""
        scores = self._score_texts(texts, self._draw())
        scores.warn_of_noise()
        with np.errstate(invalid="ignore"):  # from tokens of probability 0
            error = self._error_of_sum(scores, return_std)
        return scores.totals().sum(), error, scores.n_tokens().sum()

    def _error_of_sum(self, scores, is_wanted):
        """Return the standard error of the sum of the scores of texts.

        If there is one draw of masks, some windows get a second one.
        """
        unknown = scores.without_error() if is_wanted else []
        if not len(unknown):
            return scores.std_error_of_sum()
        rng = np.random.default_rng([self._seed, *b"second draws"])
        n_picked = min(len(unknown), max(MIN_SECOND_DRAWS, len(unknown) // 10))
        picked = rng.permutation(unknown)[:n_picked]
        draw, windows = scores.draw.after_first(), [scores.windows[i] for i in picked]
        again = score_windows(self._open_again()[0], windows, draw, self.n_jobs)
        return scores.std_error_by_second_draws(dict(zip(picked, again, strict=True)))

    def _masked_score_curve(self, X, n_masks, mask_blocks, random_state, n_jobs):
        """Compute what `mpt_curve` returns for texts."""
        self._check_is_fitted()
        if mask_blocks is not None:
            check_choice(mask_blocks, "mask_blocks", ["word"])
        n_masks = self.n_masks if n_masks is None else n_masks
        check_int_or_auto(n_masks, "n_masks")
        check_n_jobs(n_jobs)
        seed = self._seed if random_state is None else draw_seed(random_state)
        draw = self._draw_of("mpt", seed, n_masks)
        if mask_blocks is not None:  # variances of `fit` are those of other masks
            draw = replace(
                draw, design="independent", mask_blocks=mask_blocks, moderation=None
            )
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
        texts = self._check_texts(X)
        scores = self._score_along_orders(texts, n_orders, random_state, n_jobs)
        parts = scores.tokens(texts, self._open_again()[1])
        return Contributions(
            [part.log_prob for part in parts],
            [part.std_error for part in parts],
            [np.array(part.pieces, dtype=object) for part in parts],
        )

    def _lml_along_orders(self, X, n_orders, random_state, n_jobs):
        """Compute what `lml_samples` returns for texts."""
        scores = self._score_along_orders(X, n_orders, random_state, n_jobs)
        return scores.totals(), scores.std_errors()

    def _score_along_orders(self, X, n_orders, random_state, n_jobs):
        self._check_is_fitted()
        seed = self._seed if random_state is None else draw_seed(random_state)
        return self._score_texts(X, MaskDraw("chain", seed, n_orders), n_jobs)

    def _score_texts(self, X, draw, n_jobs=None, verbose=None):
        language_model, tokenizer = self._open_again()
        check_words(draw.method, tokenizer, draw.mask_blocks)
        texts = self._check_texts(X)
        windows, first = self._distinct_windows(texts)
        warn_of_no_words(tokenizer, windows)
        warn_of_cut_tokens(windows, texts)
        is_centred = METHODS[draw.method].is_centred
        windows = fit_windows(windows, self.max_length_, self.overflow, is_centred)
        n_jobs = self.n_jobs if n_jobs is None else n_jobs
        verbose = self.verbose if verbose is None else verbose
        scores = score_windows(language_model, windows, draw, n_jobs, verbose)
        return TextScores(windows, scores, draw, first)


def _length(unit, text):
    """Count the characters of a text, or its bytes in UTF-8."""
    return len(text.encode() if unit == "byte" else text)


def resolve_n_masks(n_masks, is_chain):
    """Return the number of orders, or of masks of each size, to draw."""
    if n_masks == "auto":
        return AUTO_ORDERS if is_chain else AUTO_MASKS
    return n_masks


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
