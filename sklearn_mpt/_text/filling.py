"""Fill in mask tokens and write texts, one token after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._checks import check_choice, check_int, check_real, warn_caller
from sklearn_mpt._measure.masks import mask_size
from sklearn_mpt._probabilities import drawn_codes
from sklearn_mpt._seeds import RandomState, draw_seed
from sklearn_mpt._text.batches import MaskedWindow, predict_by_row
from sklearn_mpt._text.diffusion import MaskedDiffusionLM
from sklearn_mpt._text.filled_texts import TextWriter
from sklearn_mpt._text.masked_lm import log_softmax
from sklearn_mpt._text.moderation import MIN_TEXTS
from sklearn_mpt._text.texts import Texts, whole_text
from sklearn_mpt._text.variances import RULES
from sklearn_mpt._text.windows import all_special_ids, tokenize

LOW_RATE = 0.15  # at which BERT and most masked language models were trained
# Nats per token: between models trained at all rates or at 50%, and models trained at
# 15%, in the table of `bench_scorer.py sample` in benchmarks/RESULTS.rst.
TOO_LARGE = 0.5
FILL_ORDERS = ("random", "left_to_right", "confident")


class Fill(NamedTuple):
    """A text whose mask tokens have been filled in.

    text : the text, or the (context, text) pair, that was given, with the tokens in the
    place of its mask tokens; of `sample`, as the tokenizer decodes it. tokens : the
    tokens that were filled in, from left to right. log_prob : log-probability of these
    tokens given the rest, in the order in which they were drawn, at temperature 1; in
    nats.
    """

    text: str | tuple[str, str]
    tokens: list[str]
    log_prob: float


class FillingMixin:
    """Draw tokens in the place of mask tokens."""

    _check_is_fitted: Callable
    _check_texts: Callable
    _open_again: Callable
    _windows: Callable
    mask_token_id_: int
    max_length_: int
    random_state: RandomState
    _excess: AllHiddenExcess | None

    def fill(
        self,
        X: Texts,
        n_samples: int = 1,
        *,
        order: str = "random",
        temperature: float = 1.0,
        random_state: RandomState = None,
    ) -> list[list[Fill]]:
        r"""Draw tokens for the mask tokens of each text, given all others.

        Mask tokens are filled in one after the other, each given the tokens drawn
        before, so that the tokens fit each other. If the conditionals of the model
        belong to a joint distribution, draws come from it, in any order.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts with mask tokens, such as ``"[MASK]"``; of a part of a text, and of a
            pair with a `joiner`, the whole text.
        n_samples : int, default=1
            Number of draws for each text.
        order : {"random", "left_to_right", "confident"}, default="random"
            The order in which mask tokens are filled in. "random": another random order
            for each draw. "left_to_right": from left to right. "confident": in each
            step the one whose most probable token has the highest probability.
        temperature : float, default=1.0
            Divisor of log-probabilities before a token is drawn. 0 takes the most
            probable token.
        random_state : int, RandomState instance or None, default=None
            Determines the draws. None takes the `random_state` of the scorer.

        Returns
        -------
        fills : list of list of Fill, n_samples of each text
            Named tuples of `text`, `tokens` and `log_prob`, the log-probability of the
            tokens in nats. Special tokens are never drawn; probabilities are normalised
            over all other tokens.

        Raises
        ------
        TypeError, ValueError
            If X is not a list of texts or pairs, or a text is longer than
            `max_length_`.

        Warns
        -----
        UserWarning
            If a text has no mask token, so that nothing is filled in.
        """
        self._check_is_fitted()
        check_int(n_samples, "n_samples")
        texts = [whole_text(text) for text in self._check_texts(X)]
        windows = self._windows(texts)
        for index, window in enumerate(windows):
            if len(window) > self.max_length_:
                raise ValueError(
                    f"texts[{index}] has {len(window)} tokens, more than max_length="
                    f"{self.max_length_}."
                )
        self._warn_of_no_masks(windows)
        settings = n_samples, order, temperature, random_state
        return self._fill(windows, *settings, texts)

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
        blank = self._blank(n_tokens)
        windows, _ = tokenize(tokenizer, [blank], language_model.input_names)
        if len(windows[0]) > self.max_length_:
            raise ValueError(
                f"n_tokens={n_tokens} make a text of {len(windows[0])} tokens, more "
                f"than max_length={self.max_length_}."
            )
        (fills,) = self._fill(windows, n_samples, order, temperature, random_state)
        _warn_of_excess(self._excess, language_model.model)
        return fills

    def _blank(self, n_tokens):
        """Return a text of mask tokens."""
        _, tokenizer = self._open_again()
        for separator in ("", " "):
            blank = separator.join([tokenizer.mask_token] * n_tokens)
            ids = tokenizer(blank, add_special_tokens=False, verbose=False)["input_ids"]
            if ids == [tokenizer.mask_token_id] * n_tokens:
                return blank
        raise ValueError(
            f"tokenizer must read mask tokens as such, but {type(tokenizer).__name__} "
            f"makes {len(ids)} tokens of {n_tokens} {tokenizer.mask_token}."
        )

    def _is_greedy(self, texts, order):
        """Return whether filling in the most probable tokens restores each text."""
        _, tokenizer = self._open_again()
        windows, hidden = self._windows(self._check_texts(texts)), []
        for window in windows:
            ids = window.inputs["input_ids"].copy()
            ids[window.places] = tokenizer.mask_token_id
            inputs = window.inputs | {"input_ids": ids}
            hidden.append(replace(window, inputs=inputs))
        fills, is_greedy = self._fill(hidden, 1, order, 0.0, None), []
        for window, (fill,) in zip(windows, fills, strict=True):
            ids = window.inputs["input_ids"][window.places]
            tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
            is_greedy.append(tokens == fill.tokens)
        return is_greedy

    def _fill(self, windows, n_samples, order, temperature, random_state, texts=None):
        """Fill in the mask tokens of windows, and write them into `texts`, if given."""
        check_choice(order, "order", FILL_ORDERS)
        check_real(temperature, "temperature", "left")
        if random_state is None:
            random_state = self.random_state
        seed = draw_seed(random_state)
        language_model, tokenizer = self._open_again()
        blanks = [
            MaskedPlaces.of(window, tokenizer.mask_token_id, order, [seed, index, i])
            for index, window in enumerate(windows)
            for i in range(n_samples)
        ]
        # longest first, as batches are packed
        ranks = sorted(range(len(blanks)), key=lambda i: -len(blanks[i].window))
        _fill_all([blanks[i] for i in ranks], language_model, tokenizer, temperature)
        writer = TextWriter(tokenizer)
        fills = [
            copy.fill(writer, None if texts is None else texts[i // n_samples])
            for i, copy in enumerate(blanks)
        ]
        return [fills[i : i + n_samples] for i in range(0, len(fills), n_samples)]


class MaskedPlaces:
    """The mask tokens of one copy of a text, and the tokens drawn for them so far."""

    def __init__(self, window, places, order, uniform):
        self.window = window
        self.places = places
        self.order = order  # places in the order of drawing; None: most certain first
        self.uniform = uniform
        self.log_prob = 0.0
        self.is_open = np.zeros(len(window), dtype=bool)
        self.is_open[places] = True

    @classmethod
    def of(cls, window, mask_token_id, order, seed):
        rng = np.random.default_rng(seed)
        places = np.flatnonzero(window.inputs["input_ids"] == mask_token_id)
        uniform, shuffled = rng.random(len(places)), rng.permutation(places)
        orders = {"random": shuffled, "left_to_right": places, "confident": None}
        ids = window.inputs["input_ids"].copy()
        window = replace(window, inputs=window.inputs | {"input_ids": ids})
        return cls(window, places, orders[order], uniform)

    def put(self, place, token, log_prob):
        self.window.inputs["input_ids"][place] = token
        self.is_open[place] = False
        self.log_prob += float(log_prob)

    def fill(self, writer, text):
        ids = self.window.inputs["input_ids"][self.places].tolist()
        tokens = writer.tokenizer.convert_ids_to_tokens(ids)
        written = writer.write(text, self.window, self.places)
        return Fill(written, tokens, self.log_prob)


def _fill_all(blanks, language_model, tokenizer, temperature):
    """Draw a token for one mask token of every text, until none is left."""
    windows = [copy.window for copy in blanks]
    forbidden = np.array(all_special_ids(tokenizer), dtype=int)
    ask = partial(predict_by_row, language_model, windows)
    pick = partial(_allowed, forbidden=forbidden, n_tokens=len(tokenizer))
    for step in range(max((len(copy.places) for copy in blanks), default=0)):
        live = [i for i, copy in enumerate(blanks) if copy.is_open.any()]
        chosen = _choose(blanks, live, step, ask, pick)
        rows = [MaskedWindow(i, blanks[i].is_open, chosen[i]) for i in live]
        for i, (log_prob,) in zip(live, ask(rows, pick), strict=True):
            token = _draw(log_prob, blanks[i].uniform[step], temperature)
            blanks[i].put(np.flatnonzero(chosen[i])[0], token, log_prob[token])


def _choose(blanks, live, step, ask, pick):
    """Return a mask of the mask token that each text fills in next."""
    chosen = {i: np.zeros_like(blanks[i].is_open) for i in live}
    for i in live:
        if blanks[i].order is not None:
            chosen[i][blanks[i].order[step]] = True
    rows = [
        MaskedWindow(i, blanks[i].is_open, blanks[i].is_open)
        for i in live
        if blanks[i].order is None
    ]
    if rows:
        largest = ask(rows, partial(_largest, pick=pick))
        for row, values in zip(rows, largest, strict=True):
            chosen[row.window][np.flatnonzero(row.target)[values.argmax()]] = True
    return chosen


def _allowed(logits, labels, forbidden, n_tokens):
    """Return log-probabilities among the tokens that may be drawn; -inf for others."""
    logits = logits[:, :n_tokens].double().clone()
    logits[:, forbidden[forbidden < n_tokens]] = -np.inf
    return logits.log_softmax(1)


def _largest(logits, labels, pick):
    return pick(logits, labels).amax(1)


def _draw(log_prob, uniform, temperature):
    """Draw a token by a uniform number, or take the most probable one."""
    if temperature == 0:
        return int(log_prob.argmax())
    with np.errstate(invalid="ignore"):
        weights = np.exp((log_prob - log_prob.max()) / temperature)
    return int(drawn_codes(weights, uniform))


class AllHiddenExcess(NamedTuple):
    """By how much more predictions are wrong, than they expect, if all is hidden.

    mean : in nats per token, with all tokens hidden less with 15% hidden. std_error :
    of this mean over texts.
    """

    mean: float
    std_error: float

    @property
    def is_large(self):
        """Whether the mean is above `TOO_LARGE`, and above three standard errors."""
        return self.mean > TOO_LARGE and not self.mean <= 3 * self.std_error


def measure_excess(language_model, windows, seed):
    """Return the `AllHiddenExcess` of a model on texts; None if there are few.

    The expected log-probability of a token under predictions is minus their entropy. If
    they are calibrated, its mean over texts is the mean log-probability of the tokens.
    """
    windows = [window for window in windows if len(window.places) > 1][
        : RULES.max_texts
    ]
    if len(windows) < MIN_TEXTS:
        return None
    windows = sorted(windows, key=lambda window: -len(window))
    rng, rows = np.random.default_rng([seed, *b"excess"]), []
    for index, window in enumerate(windows):
        n_hidden = mask_size(LOW_RATE, len(window.places))
        for places in (window.places, rng.permutation(window.places)[:n_hidden]):
            hidden = np.isin(np.arange(len(window)), places)
            rows.append(MaskedWindow(index, hidden, hidden))
    surprises = predict_by_row(language_model, windows, rows, _surprise)
    means = np.array([values.mean() for values in surprises])
    with np.errstate(invalid="ignore"):  # of tokens with probability 0
        differences = means[::2] - means[1::2]
        spread = differences.std(ddof=1)
    return AllHiddenExcess(
        float(differences.mean()), float(spread / len(windows) ** 0.5)
    )


def _surprise(logits, labels):
    """Return minus the log-probability of tokens, less its expectation."""
    log_prob = log_softmax(logits)
    entropy = torch.special.entr(log_prob.exp()).sum(1)
    return -log_prob.gather(1, labels[:, None])[:, 0] - entropy


def _warn_of_excess(excess, model):
    if excess is None and not isinstance(model, MaskedDiffusionLM):
        warn_caller(
            "It is unknown whether the model predicts well if all tokens are hidden, "
            f"as they are where sample starts: fit had less than {MIN_TEXTS} texts. "
            "Those that are trained at a rate of 15%, as BERT is, do not."
        )
    elif excess is not None and excess.is_large:
        warn_caller(
            "The model predicts badly if all tokens are hidden, as they are where "
            "sample starts: tokens of the texts passed to fit are less probable by "
            f"{excess.mean:.1f} nats than its predictions expect, compared with 15% "
            "hidden. Models that are trained at a rate of 15%, as BERT is, do not "
            "write texts like those that they were trained on; mpt_loss trains at all "
            "rates."
        )
