"""Fill in mask tokens one after the other: draws, given tokens, the most probable."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._probabilities import drawn_codes
from sklearn_mpt._text.batches import MaskedWindow, predict_by_row
from sklearn_mpt._text.windows import Window, all_special_ids


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

    @classmethod
    def of(cls, window, mask_token_id, order, seed, given=None):
        rng = np.random.default_rng(seed)
        positions = np.flatnonzero(window.inputs["input_ids"] == mask_token_id)
        uniform, shuffled = rng.random(len(positions)), rng.permutation(positions)
        orders = {"random": shuffled, "left_to_right": positions, "confident": None}
        return cls(with_own_ids(window), positions, orders[order], uniform, given)

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


class NextTokens(NamedTuple):
    """What a model predicts for the next mask token of each of some texts."""

    blank: MaskedPositions
    position: int
    values: np.ndarray


class Unmasker:
    """Predicts mask tokens, of which special tokens have no probability."""

    def __init__(self, language_model, tokenizer):
        self.language_model = language_model
        forbidden = np.array(all_special_ids(tokenizer), dtype=int)
        n_tokens = self.n_tokens = len(tokenizer)
        self.pick = partial(
            _allowed, forbidden=forbidden[forbidden < n_tokens], n_tokens=n_tokens
        )

    def log_prob(self, blanks):
        """Return arrays (n_positions, n_tokens) of log-probabilities of all tokens.

        blanks : list of `MaskedPositions`, here and below.
        """
        rows = [
            MaskedWindow(i, blank.is_open, blank.is_open)
            for i, blank in enumerate(blanks)
            if len(blank.positions)
        ]
        log_prob = [np.zeros((0, self.n_tokens)) for _ in blanks]
        for row, values in zip(
            rows, self._predict(blanks, rows, self.pick), strict=True
        ):
            log_prob[row.window] = values
        return log_prob

    def fill(self, blanks, temperature=1.0):
        """Put a token at every position."""
        while blanks := [blank for blank in blanks if blank.is_open.any()]:
            for blank, position, log_prob in self._next_tokens(blanks, self.pick):
                token = blank.choose(position, log_prob, temperature)
                blank.put(position, token, log_prob[token])

    def search(self, blanks, n_best, beam_size):
        """Return the `n_best` most probable fills of each text, by beam search."""
        n_kept = max(n_best, beam_size)
        pick = partial(_most_probable, pick=self.pick, n_tokens=n_kept)
        beams = {i: [blank] for i, blank in enumerate(blanks)}
        while open_beams := {i: b for i, b in beams.items() if b[0].is_open.any()}:
            owners = [i for i, beam in open_beams.items() for _ in beam]
            begun = [blank for beam in open_beams.values() for blank in beam]
            grown = defaultdict(list)
            for i, next_ in zip(owners, self._next_tokens(begun, pick), strict=True):
                log_prob, tokens = np.split(next_.values, 2)
                for value, token in zip(log_prob, tokens.astype(int), strict=True):
                    grown[i].append((next_.blank.log_prob + value, next_, token, value))
            for i, candidates in grown.items():
                candidates.sort(key=lambda candidate: -candidate[0])
                beams[i] = [
                    next_.blank.with_token(next_.position, token, value)
                    for total, next_, token, value in candidates[:n_kept]
                    if total > -np.inf
                ]
        return [beams[i][:n_best] for i in range(len(blanks))]

    def _next_tokens(self, blanks, pick):
        """Predict the next token of each text; returns a list of `NextTokens`."""
        positions = self._next_positions(blanks)
        rows = [
            MaskedWindow(i, blank.is_open, blank.window.at(positions[i]))
            for i, blank in enumerate(blanks)
        ]
        predictions = self._predict(blanks, rows, pick)
        return [
            NextTokens(blank, position, values)
            for blank, position, (values,) in zip(
                blanks, positions, predictions, strict=True
            )
        ]

    def _next_positions(self, blanks):
        """Return the position that each text fills in next."""
        positions = [b.order[b.step] if b.order is not None else None for b in blanks]
        rows = [
            MaskedWindow(i, blank.is_open, blank.is_open)
            for i, blank in enumerate(blanks)
            if blank.order is None
        ]
        largest = self._predict(blanks, rows, partial(_largest, pick=self.pick))
        for row, values in zip(rows, largest, strict=True):
            positions[row.window] = np.flatnonzero(row.target)[values.argmax()]
        return positions

    def _predict(self, blanks, rows, pick):
        """Return what a model predicts for the targets of rows."""
        windows = [blank.window for blank in blanks]
        return predict_by_row(self.language_model, windows, rows, pick)


def _allowed(logits, labels, forbidden, n_tokens):
    """Return log-probabilities among the tokens that may be put; -inf for others."""
    logits = logits[:, :n_tokens].double().clone()
    logits[:, forbidden] = -np.inf
    return logits.log_softmax(1)


def _most_probable(logits, labels, pick, n_tokens):
    """Return the largest log-probabilities, and their tokens after them."""
    log_prob = pick(logits, labels)
    best = log_prob.topk(min(n_tokens, log_prob.shape[1]))
    return torch.cat([best.values, best.indices.double()], 1)


def _largest(logits, labels, pick):
    return pick(logits, labels).amax(1)
