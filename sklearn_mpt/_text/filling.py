"""Fill in mask tokens and write texts, one token after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sklearn_mpt._checks import check_choice, check_int, check_real, warn_caller
from sklearn_mpt._seeds import RandomState, draw_seed
from sklearn_mpt._text.excess import AllHiddenExcess, warn_of_excess
from sklearn_mpt._text.filled_texts import TextWriter
from sklearn_mpt._text.loading import OpenedModelMixin
from sklearn_mpt._text.texts import Texts, show, strings_of, whole_text
from sklearn_mpt._text.unmasking import MaskedPositions, Unmasker, with_own_ids
from sklearn_mpt._text.windows import all_special_ids, check_lengths, tokenize

FILL_ORDERS = ("random", "left_to_right", "confident")


class Fill(NamedTuple):
    """A text whose mask tokens have been filled in.

    text : the text, or the (context, text) pair, that was given, with the tokens in the
    place of its mask tokens; of `sample`, as the tokenizer decodes it. tokens : the
    tokens that were filled in, from left to right. log_prob : log-probability of these
    tokens given the rest, in the order in which they were filled in, at temperature 1;
    in nats. prob : the probability.
    """

    text: str | tuple[str, str]
    tokens: list[str]
    log_prob: float

    @property
    def prob(self) -> float:
        return float(np.exp(self.log_prob))


class FillingMixin(OpenedModelMixin):
    """Draw and list tokens in the place of mask tokens."""

    random_state: RandomState
    _excess: AllHiddenExcess | None

    def fill(
        self,
        X: Texts,
        n_samples: int = 1,
        *,
        top_k: int | None = None,
        targets: Sequence[str] | None = None,
        order: str = "random",
        temperature: float = 1.0,
        beam_size: int = 32,
        random_state: RandomState = None,
    ) -> list[list[Fill]]:
        r"""Draw tokens for the mask tokens of each text, or list the most probable.

        Mask tokens are filled in one after the other, each given the tokens before, so
        that the tokens fit each other. If the conditionals of the model belong to a
        joint distribution, draws come from it, in any order. Without `top_k` and
        `targets`, tokens are drawn.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts with mask tokens, such as ``"[MASK]"``; of a part of a text, and of a
            pair with a `joiner`, the whole text.
        n_samples : int, default=1
            Number of draws for each text.
        top_k : int, default=None
            Number of fills to list, the most probable first; of `targets`, if these are
            given. None draws, or lists all targets.
        targets : sequence of str, default=None
            What may stand in the place of the one mask token of each text: words, or
            strings of several tokens, each of which is hidden. All are listed, the most
            probable first. The tokens of every target are filled in from left to right.
            The log-probability of a target is given its number of tokens, so compare
            targets of one length, or add that of the length.
        order : {"random", "left_to_right", "confident"}, default="random"
            The order in which mask tokens are filled in. "random": another random order
            for each draw, or text. "left_to_right": from left to right. "confident": in
            each step the one whose most probable token has the highest probability.
            Not for `targets`.
        temperature : float, default=1.0
            Divisor of log-probabilities before a token is drawn. 0 takes the most
            probable token.
        beam_size : int, default=32
            Number of beginnings that the search for the `top_k` fills goes on with at
            each mask token; `top_k` if that is more. The result is exact for one mask
            token, and for several if no more beginnings exist.
        random_state : int, RandomState instance or None, default=None
            Determines the draws and random orders. None takes the `random_state` of the
            scorer.

        Returns
        -------
        fills : list of list of Fill
            For each text, `n_samples` draws or the listed fills: named tuples of
            `text`, `tokens` and `log_prob`, the log-probability of the tokens in nats,
            whose exponential is the attribute `prob`. Special tokens are never filled
            in; probabilities are normalised over all other tokens.

        Raises
        ------
        TypeError, ValueError
            If X is not a list of texts or pairs; if a text is longer than
            `max_length_`; if `top_k` or `targets` are given and draws are set by
            `n_samples` or `temperature`; if `targets` are given, and `order` is
            "confident", a text has not one mask token, the tokenizer does not know a
            target, or it reads one together with what is beside it.

        Warns
        -----
        UserWarning
            If a text has no mask token, so that nothing is filled in.

        See Also
        --------
        fill_log_prob : The probabilities of all tokens at each mask token.
        """
        self._check_is_fitted()
        check_int(n_samples, "n_samples")
        check_int(beam_size, "beam_size")
        is_list = top_k is not None or targets is not None
        if top_k is not None:
            check_int(top_k, "top_k")
        if is_list and (n_samples != 1 or temperature != 1):
            raise ValueError(
                "n_samples and temperature are those of draws, but top_k and targets "
                f"list fills: leave them out, got {n_samples} and {temperature}."
            )
        texts = [whole_text(text) for text in self._check_texts(X)]
        if targets is not None:
            check_choice(order, "order", FILL_ORDERS)
            if order == "confident":
                raise ValueError(
                    "order is that of draws and of top_k, but targets are filled in "
                    f"from left to right: leave it out, got {order!r}."
                )
            return self._rank(texts, targets, top_k)
        windows = self._windows(texts)
        check_lengths(windows, self.max_length_)
        self._warn_of_no_masks(windows)
        if top_k is None:
            settings = order, temperature, random_state
            return self._draw_fills(windows, n_samples, *settings, texts)
        blanks = self._blanks(windows, 1, order, random_state)
        found = self._unmasker().search(blanks, top_k, beam_size)
        writer = TextWriter(self._open_again()[1])
        return [
            [_write(writer, best, text) for best in of_text]
            for of_text, text in zip(found, texts, strict=True)
        ]

    def fill_log_prob(self, X: Texts) -> list[np.ndarray]:
        r"""Compute the log-probability of every token at each mask token.

        All mask tokens of a text are hidden together, and each is predicted from the
        other tokens.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts with mask tokens, as for `fill`.

        Returns
        -------
        list of ndarray of shape (n_mask_tokens, n_vocabulary)
            Log-probabilities in nats, with a column for each id of the tokenizer; minus
            infinity for special tokens. The probabilities of a row add up to one.
            `fill` draws from them where a text has one mask token.

        Raises
        ------
        TypeError, ValueError
            If X is not a list of texts or pairs, or a text is longer than
            `max_length_`.

        Warns
        -----
        UserWarning
            If a text has no mask token.

        See Also
        --------
        conditional_log_prob : The log-probabilities of the tokens of a text.
        """
        self._check_is_fitted()
        windows = self._windows([whole_text(text) for text in self._check_texts(X)])
        check_lengths(windows, self.max_length_)
        self._warn_of_no_masks(windows)
        blanks = self._blanks(windows, 1, "left_to_right", 0)
        return self._unmasker().log_prob(blanks)

    def _warn_of_no_masks(self, windows):
        mask = self._open_again()[1].mask_token
        without = [
            index
            for index, window in enumerate(windows)
            if self.mask_token_id_ not in window.inputs["input_ids"]
        ]
        if without:
            warn_caller(
                f"{len(without)} of {len(windows)} texts, texts[{without[0]}] the "
                f"first, have no mask token, so nothing is filled in there. Write "
                f"{mask}, the mask token of this model, where a token is wanted."
            )

    def sample(
        self,
        n_samples: int = 1,
        n_tokens: int = 10,
        *,
        order: str = "random",
        temperature: float = 1.0,
        random_state: RandomState = None,
    ) -> list[Fill]:
        """Write texts with a given number of tokens, all of which are drawn.

        Parameters
        ----------
        n_samples : int, default=1
            Number of texts.
        n_tokens : int, default=10
            Number of tokens of each text, without those that the tokenizer adds.
        order : {"random", "left_to_right", "confident"}, default="random"
            The order in which tokens are drawn, as in `fill`.
        temperature : float, default=1.0
            Divisor of log-probabilities before a token is drawn. 0 takes the most
            probable token.
        random_state : int, RandomState instance or None, default=None
            Determines the draws. None takes the `random_state` of the scorer.

        Returns
        -------
        fills : list of Fill
            Each with the text, its tokens, and their log-probability in nats given
            their number.

        Warns
        -----
        UserWarning
            If the model predicts badly where all tokens are hidden, as models that are
            trained at a rate of 15%, so that it does not write texts like those that it
            was trained on. That is known from four or more texts that `fit` had: with
            all tokens hidden, the log-probability of the tokens is lower than the
            predictions expect it to be (minus their entropy), by more than with 15%
            hidden. If `fit` had no texts, a warning says so, but not for masked
            diffusion models.
        """
        self._check_is_fitted()
        check_int(n_samples, "n_samples")
        check_int(n_tokens, "n_tokens")
        language_model, tokenizer = self._open_again()
        text = self._mask_tokens(n_tokens)
        windows, _ = tokenize(tokenizer, [text], language_model.input_names)
        if len(windows[0]) > self.max_length_:
            raise ValueError(
                f"n_tokens={n_tokens} make a text of {len(windows[0])} tokens, more "
                f"than max_length={self.max_length_}."
            )
        (fills,) = self._draw_fills(
            windows, n_samples, order, temperature, random_state
        )
        warn_of_excess(self._excess, language_model.model)
        return fills

    def _mask_tokens(self, n_tokens):
        """Return a text of mask tokens."""
        _, tokenizer = self._open_again()
        for separator in ("", " "):
            text = separator.join([tokenizer.mask_token] * n_tokens)
            ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            if ids == [tokenizer.mask_token_id] * n_tokens:
                return text
        raise ValueError(
            f"tokenizer must read mask tokens as such, but {type(tokenizer).__name__} "
            f"makes {len(ids)} tokens of {n_tokens} {tokenizer.mask_token}."
        )

    def _is_greedy(self, texts, order):
        """Return whether filling in the most probable tokens restores each text."""
        _, tokenizer = self._open_again()
        windows = self._windows(self._check_texts(texts))
        hidden = [
            with_own_ids(window, window.positions, tokenizer.mask_token_id)
            for window in windows
        ]
        fills, is_greedy = self._draw_fills(hidden, 1, order, 0.0, None), []
        for window, (fill,) in zip(windows, fills, strict=True):
            ids = window.inputs["input_ids"][window.positions]
            tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
            is_greedy.append(tokens == fill.tokens)
        return is_greedy

    def _draw_fills(
        self, windows, n_samples, order, temperature, random_state, texts=None
    ):
        """Draw mask tokens of windows, and write them into `texts`, if given."""
        check_real(temperature, "temperature", "left")
        blanks = self._blanks(windows, n_samples, order, random_state)
        self._unmasker().fill(blanks, temperature)
        writer = TextWriter(self._open_again()[1])
        fills = [
            _write(writer, blank, None if texts is None else texts[i // n_samples])
            for i, blank in enumerate(blanks)
        ]
        return [fills[i : i + n_samples] for i in range(0, len(fills), n_samples)]

    def _rank(self, texts, targets, top_k):
        """Fill in each of some targets, and list them by their probabilities."""
        targets = _check_targets(targets)
        tokenizer = self._open_again()[1]
        filled = [
            _replace(text, tokenizer.mask_token, target)
            for text in texts
            for target in targets
        ]
        windows, masked = self._windows(filled), self._windows(texts)
        check_lengths(windows, self.max_length_)
        hidden = []
        for i, window in enumerate(windows):
            index, target = divmod(i, len(targets))
            name = f"targets[{target}], {show(targets[target])}, in texts[{index}]"
            positions = _positions_of_target(window, masked[index], tokenizer, name)
            hidden.append(with_own_ids(window, positions, tokenizer.mask_token_id))
        blanks = self._blanks(hidden, 1, "left_to_right", 0, windows)
        self._unmasker().fill(blanks)
        fills = [
            Fill(text, tokenizer.convert_ids_to_tokens(blank.ids), blank.log_prob)
            for text, blank in zip(filled, blanks, strict=True)
        ]
        return [
            sorted(fills[i : i + len(targets)], key=lambda fill: -fill.log_prob)[:top_k]
            for i in range(0, len(fills), len(targets))
        ]

    def _blanks(self, windows, n_samples, order, random_state, given=None):
        """Return the `MaskedPositions` of copies of windows.

        given : windows with the tokens that are put in the place of mask tokens.
        """
        check_choice(order, "order", FILL_ORDERS)
        seed = draw_seed(self.random_state if random_state is None else random_state)
        known = [None] * len(windows)
        if given is not None:
            known = [window.inputs["input_ids"] for window in given]
        return [
            MaskedPositions.of(
                window, self.mask_token_id_, order, [seed, index, i], known[index]
            )
            for index, window in enumerate(windows)
            for i in range(n_samples)
        ]

    def _unmasker(self):
        return Unmasker(*self._open_again())


def _write(writer, blank, text):
    tokens = writer.tokenizer.convert_ids_to_tokens(blank.ids)
    written = writer.write(text, blank.window, blank.positions)
    return Fill(written, tokens, blank.log_prob)


def _check_targets(targets):
    targets = strings_of(targets, "targets")
    if not targets:
        raise TypeError("targets must be a non-empty sequence of str, got none.")
    for index, target in enumerate(targets):
        if not isinstance(target, str) or not target.strip():
            raise TypeError(
                f"targets[{index}] must be a str with a word, got {show(target)}."
            )
    return targets


def _replace(text, mask, target):
    """Write a target in the place of the mask token of a text or a pair."""
    if isinstance(text, str):
        return text.replace(mask, target)
    return tuple(part.replace(mask, target) for part in text)


def _positions_of_target(window, masked, tokenizer, name):
    """Return the positions of the tokens of a target, by the text with a mask token."""
    ids, before = window.inputs["input_ids"], masked.inputs["input_ids"]
    masks = np.flatnonzero(before == tokenizer.mask_token_id)
    if len(masks) != 1:
        raise ValueError(
            f"targets need texts with one mask token, {tokenizer.mask_token}, which "
            f"may have several tokens, but there are {len(masks)} for {name}."
        )
    start, n_after = masks[0], len(before) - masks[0] - 1
    stop = len(ids) - n_after
    is_same = stop > start and np.array_equal(ids[:start], before[:start])
    if not is_same or not np.array_equal(ids[stop:], before[start + 1 :]):
        raise ValueError(
            f"The tokenizer reads {name}, together with what is beside it. Write "
            "spaces around the mask token, or make what is beside it part of the "
            "targets."
        )
    unknown = {tokenizer.unk_token_id, *all_special_ids(tokenizer)}
    if unknown.intersection(ids[start:stop].tolist()):
        raise ValueError(
            f"The tokenizer does not know {name}: its tokens are "
            f"{tokenizer.convert_ids_to_tokens(ids[start:stop].tolist())}."
        )
    return np.arange(start, stop)
