"""Fill in mask tokens, one after the other, and write them into the text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._checks import (
    RandomState,
    check_choice,
    check_int,
    check_real,
    draw_seed,
    warn_caller,
)
from sklearn_mpt._matrices import drawn_codes
from sklearn_mpt._text.loading import OpenedModelMixin
from sklearn_mpt._text.masked_lm import MaskedWindow, predict_by_row
from sklearn_mpt._text.windows import (
    BEGINS,
    Texts,
    Window,
    all_special_ids,
    check_lengths,
    check_texts,
    rule_of_words,
    show,
    strings_of,
    whole_text,
    without_marks,
)

FILL_ORDERS = ("random", "left_to_right", "confident")


class Fill(NamedTuple):
    """A text whose mask tokens have been filled in.

    text : the text, or the (context, text) pair, that was given, with the tokens in the
    place of its mask tokens. tokens : the tokens that were filled in, from left to
    right. log_prob : log-probability of these tokens given the rest, in the order in
    which they were filled in, at temperature 1; in nats. prob : the probability.
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
            Texts with mask tokens, such as ``"[MASK]"``; of a part of a text, the whole
            text.
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
        texts = [whole_text(text) for text in check_texts(X)]
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
        check_real(temperature, "temperature", "left")
        blanks = self._blanks(windows, n_samples, order, random_state)
        unmasker = Unmasker(*self._open_again())
        if top_k is None:
            unmasker.fill(blanks, temperature)
            starts = range(0, len(blanks), n_samples)
            found = [blanks[start : start + n_samples] for start in starts]
        else:
            found = unmasker.search(blanks, top_k, beam_size)
        tokenizer = self._open_again()[1]
        writer = TextWriter(tokenizer)
        return [
            [
                Fill(
                    writer.write(text, blank.window, blank.positions),
                    tokenizer.convert_ids_to_tokens(blank.ids),
                    blank.log_prob,
                )
                for blank in of_text
            ]
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
        windows = self._windows([whole_text(text) for text in check_texts(X)])
        check_lengths(windows, self.max_length_)
        self._warn_of_no_masks(windows)
        language_model, tokenizer = self._open_again()
        masks = [w.inputs["input_ids"] == self.mask_token_id_ for w in windows]
        rows = [MaskedWindow(i, m, m) for i, m in enumerate(masks) if m.any()]
        allowed = Unmasker(language_model, tokenizer).allowed
        log_prob = [np.zeros((0, len(tokenizer)))] * len(windows)
        found = predict_by_row(language_model, windows, rows, allowed)
        for row, values in zip(rows, found, strict=True):
            log_prob[row.window] = values
        return log_prob

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

    def _rank(self, texts, targets, top_k):
        """Fill in each of some targets, and list them by their probabilities."""
        targets = strings_of(targets, "targets")
        if not targets:
            raise TypeError("targets must be a non-empty sequence of str, got none.")
        for index, target in enumerate(targets):
            if not isinstance(target, str) or not target.strip():
                raise TypeError(
                    f"targets[{index}] must be a str with a word, got {show(target)}."
                )
        tokenizer = self._open_again()[1]
        mask = tokenizer.mask_token
        filled = [
            text.replace(mask, target)
            if isinstance(text, str)
            else tuple(part.replace(mask, target) for part in text)
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
        Unmasker(*self._open_again()).fill(blanks)
        fills = [
            Fill(text, tokenizer.convert_ids_to_tokens(blank.ids), blank.log_prob)
            for text, blank in zip(filled, blanks, strict=True)
        ]
        return [
            sorted(fills[i : i + len(targets)], key=lambda fill: -fill.log_prob)[:top_k]
            for i in range(0, len(fills), len(targets))
        ]

    def _blanks(self, windows, n_samples, order, random_state, given=None):
        """Return the `MaskedPositions` of copies of windows."""
        # given : windows with the tokens that are put in the place of mask tokens.
        check_choice(order, "order", FILL_ORDERS)
        seed = draw_seed(self.random_state if random_state is None else random_state)
        blanks = []
        for index, window in enumerate(windows):
            ids = window.inputs["input_ids"]
            positions = np.flatnonzero(ids == self.mask_token_id_)
            known = None if given is None else given[index].inputs["input_ids"]
            for i in range(n_samples):
                rng = np.random.default_rng([seed, index, i])
                uniform = rng.random(len(positions))
                orders = {
                    "random": rng.permutation(positions),
                    "left_to_right": positions,
                }
                blank = with_own_ids(window), positions, orders.get(order), uniform
                blanks.append(MaskedPositions(*blank, known))
        return blanks


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


class TextWriter:
    """Puts tokens in the place of the mask tokens of a text, and keeps the rest."""

    # A token that goes on with the word before it follows without a space. One that
    # begins a word has a space before it, if tokens own their spaces, or letters would
    # touch.

    def __init__(self, tokenizer):
        vocabulary = tokenizer.get_vocab()
        self.tokenizer = tokenizer
        self.owns_spaces = any(token.startswith(BEGINS) for token in vocabulary)
        self.goes_on = rule_of_words(tokenizer)

    def write(self, text, window, positions):
        """Return a text, or a (context, text) pair, with the tokens of its window."""
        # Where the offsets of tokens are unknown, it is as the tokenizer decodes it.
        ids = window.inputs["input_ids"].tolist()
        if (window.offsets < 0).any():
            return self.tokenizer.decode(ids, skip_special_tokens=True)
        tokens = np.array(self.tokenizer.convert_ids_to_tokens(ids), dtype=object)
        is_filled = window.at(positions)
        # added tokens have no word
        parts = [window.is_fixed & (window.words >= 0), ~window.is_fixed]
        written = [
            self._write(part, tokens[own], window.offsets[own], is_filled[own])
            for part, own in zip(
                ("", text) if isinstance(text, str) else text, parts, strict=True
            )
        ]
        return written[1] if isinstance(text, str) else tuple(written)

    def _write(self, text, tokens, offsets, is_filled):
        written, position = "", 0
        for first, stop, goes_on in self._groups(tokens, is_filled):
            start, end = offsets[first][0], offsets[stop - 1][1]
            hidden = text[start:end]
            end -= len(hidden) - len(hidden.rstrip())
            own = tokens[first:stop].tolist()
            if self.owns_spaces:
                piece = self.tokenizer.convert_tokens_to_string(own).lstrip(" ")
            else:
                piece = "".join(map(without_marks, own))
                start += len(hidden) - len(hidden.lstrip())
            before = written + text[position:start]
            if goes_on:  # spaces that are a token of their own stay
                kept = max(position, offsets[first - 1][1])
                before = written + text[position:kept] + text[kept:start].rstrip()
            elif before and not before[-1].isspace() and self.goes_on is not None:
                touches = before[-1].isalnum() and piece[:1].isalnum()
                before += " " if self.owns_spaces or touches else ""
            written, position = before + piece, end
        return written + text[position:]

    def _groups(self, tokens, is_filled):
        """Return first, stop and whether it goes on, of each run of filled tokens."""
        # Tokens of one word are in one run.
        groups = []
        for i in np.flatnonzero(is_filled).tolist():
            goes_on = bool(
                i and self.goes_on and self.goes_on(tokens[i - 1], tokens[i])
            )
            if goes_on and groups and groups[-1][1] == i:
                groups[-1][1] = i + 1
            else:
                groups.append([i, i + 1, goes_on])
        return groups


@dataclass
class MaskedPositions:
    """The mask tokens of one copy of a text, and the tokens put there so far."""

    window: Window
    positions: np.ndarray
    order: np.ndarray | None  # in which positions are filled; None: most certain first
    uniform: np.ndarray  # numbers for the draws
    given: np.ndarray | None = None  # tokens of the text that are put; None: draw them
    log_prob: float = 0.0
    is_open: np.ndarray = field(init=False)

    def __post_init__(self):
        self.is_open = self.window.at(self.positions)

    @property
    def step(self):
        """Number of tokens put so far."""
        return len(self.positions) - int(self.is_open.sum())

    @property
    def ids(self):
        """Tokens at the positions."""
        return self.window.inputs["input_ids"][self.positions].tolist()

    def choose(self, position, log_prob, temperature):
        """Return the token to put: the given one, a draw, or the most probable one."""
        if self.given is not None:
            return self.given[position]
        if temperature == 0:
            return int(log_prob.argmax())
        with np.errstate(invalid="ignore"):
            weights = np.exp((log_prob - log_prob.max()) / temperature)
        return int(drawn_codes(weights, self.uniform[self.step]))

    def put(self, position, token, log_prob):
        self.window.inputs["input_ids"][position] = token
        self.is_open[position] = False
        self.log_prob += float(log_prob)

    def with_token(self, position, token, log_prob):
        """Return a copy in which a token is put."""
        copy = replace(self, window=with_own_ids(self.window))
        copy.is_open = self.is_open.copy()
        copy.put(position, token, log_prob)
        return copy


def with_own_ids(window, positions=(), tokens=()):
    """Return a window with its own array of tokens, with some others at positions."""
    ids = window.inputs["input_ids"].copy()
    ids[np.asarray(positions, dtype=int)] = tokens
    return replace(window, inputs=window.inputs | {"input_ids": ids})


class Unmasker:
    """Predicts mask tokens, of which special tokens have no probability."""

    def __init__(self, language_model, tokenizer):
        self.language_model = language_model
        self.n_tokens = len(tokenizer)
        forbidden = np.array(all_special_ids(tokenizer), dtype=int)
        self.forbidden = forbidden[forbidden < self.n_tokens]

    def fill(self, blanks, temperature=1.0):
        """Put a token at every position of some `MaskedPositions`."""
        while blanks := [blank for blank in blanks if blank.is_open.any()]:
            for blank, position, log_prob in self._next_tokens(blanks, self.allowed):
                token = blank.choose(position, log_prob, temperature)
                blank.put(position, token, log_prob[token])

    def search(self, blanks, n_best, beam_size):
        """Return the `n_best` most probable fills of each text, by beam search."""
        n_kept = max(n_best, beam_size)

        def most_probable(logits, labels):  # log-probabilities, then their tokens
            log_prob = self.allowed(logits, labels)
            best = log_prob.topk(min(n_kept, log_prob.shape[1]))
            return torch.cat([best.values, best.indices.double()], 1)

        beams = {i: [blank] for i, blank in enumerate(blanks)}
        while open_beams := {i: b for i, b in beams.items() if b[0].is_open.any()}:
            owners = [i for i, beam in open_beams.items() for _ in beam]
            begun = [blank for beam in open_beams.values() for blank in beam]
            grown = defaultdict(list)
            predicted = self._next_tokens(begun, most_probable)
            for i, (blank, position, values) in zip(owners, predicted, strict=True):
                log_prob, tokens = np.split(values, 2)
                for value, token in zip(log_prob, tokens.astype(int), strict=True):
                    put = blank, position, token, value
                    grown[i].append((blank.log_prob + value, put))
            for i, candidates in grown.items():
                candidates.sort(key=lambda candidate: -candidate[0])
                beams[i] = [
                    blank.with_token(*put)
                    for total, (blank, *put) in candidates[:n_kept]
                    if total > -np.inf
                ]
        return [beams[i][:n_best] for i in range(len(blanks))]

    def _next_tokens(self, blanks, pick):
        """Yield each text, its next position, and what a model predicts there."""
        positions = [b.order[b.step] if b.order is not None else None for b in blanks]
        predict = partial(
            predict_by_row, self.language_model, [blank.window for blank in blanks]
        )
        rows = [
            MaskedWindow(i, blank.is_open, blank.is_open)
            for i, blank in enumerate(blanks)
            if blank.order is None
        ]
        largest = predict(rows, lambda *args: self.allowed(*args).amax(1))
        for row, values in zip(rows, largest, strict=True):
            positions[row.window] = np.flatnonzero(row.target)[values.argmax()]
        rows = [
            MaskedWindow(i, blank.is_open, blank.window.at(positions[i]))
            for i, blank in enumerate(blanks)
        ]
        predictions = chain.from_iterable(predict(rows, pick))
        return zip(blanks, positions, predictions, strict=True)

    def allowed(self, logits, labels):
        """Return log-probabilities among the tokens that may be put."""
        logits = logits[:, : self.n_tokens].double().clone()
        logits[:, self.forbidden] = -np.inf
        return logits.log_softmax(1)
