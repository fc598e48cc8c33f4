"""Which tokens of a text are hidden, and how scores are made of their predictions."""

# A row is one input of the model: the tokens of a window, some of them hidden. The
# targets are the hidden tokens that are scored.

import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.special import binom, factorial

from sklearn_mpt._checks import check_real
from sklearn_mpt._measure.contract import LOG_PROBABILITY
from sklearn_mpt._measure.curve import (
    MaskNoise,
    MPTCurve,
    contrast_scale,
    degrees_of_sum,
    student_factor,
)
from sklearn_mpt._measure.masks import mask_size
from sklearn_mpt._text.windows import scored_text, show

PERCENT = np.arange(1, 100)  # mask rates of curves of texts, in percent


class WindowScores(NamedTuple):
    """The score of a window: a sum of independent terms, and the same by tokens."""

    # The sum of squares of the contrasts of a term estimates its variance over masks.

    terms: np.ndarray  # of "mpt", one for each mask size; shape (n_terms,)
    contrasts: np.ndarray  # shape (n_terms, n_draws)
    tokens: np.ndarray  # contributions of the tokens, shape (n_positions,)
    token_contrasts: np.ndarray  # shape (n_draws, n_positions)


NO_SCORES = WindowScores(np.zeros(0), np.zeros((0, 0)), np.zeros(0), np.zeros((0, 0)))


@dataclass(frozen=True, eq=False)
class MaskDraw:
    """Settings of a draw of masks."""

    # method : in `METHODS`; None hides all tokens of a window at once. rates : None is
    # all sizes, which count tokens, or words if `mask_blocks` is "word".

    method: str | None
    seed: int
    n_masks: int = 1
    rates: np.ndarray | None = None
    mask_blocks: str | None = None

    @property
    def _method(self):
        return METHODS.get(self.method, TOGETHER)

    def units(self, window):
        """Return the number 0, 1, ... of the unit of each position, (n_positions,)."""
        if self.mask_blocks is None:
            return np.arange(len(window.positions))
        return np.unique(window.words[window.positions], return_inverse=True)[1]

    def n_units(self, window):
        return len(np.unique(self.units(window)))

    def sizes(self, n_units):
        """Return the mask sizes to score in a window, increasing."""
        if self.rates is None:
            return np.arange(1, n_units + 1)
        return np.unique([mask_size(rate, n_units) for rate in self.rates])

    def n_rows(self, window):
        """Return an upper bound of the number of rows of a window."""
        n_masks = self.n_masks if self._method.is_random else 1
        return n_masks * len(self.sizes(self.n_units(window)))

    def plan(self, window):
        """Yield the rows of a window: (hidden, target), bool of shape (n_tokens,)."""
        return self._method.plan(window, self)

    def estimate(self, window, log_prob, targets):
        """Return the `WindowScores` of a window."""
        # log_prob, targets : of all rows, ordered by terms, then by draws; each draw of
        # an order has a row for each step.
        tokens, positions = np.concatenate(targets), window.positions
        if not self._method.is_random:
            values = np.zeros(len(window))
            values[tokens] = log_prob
            values = values[positions]
            nothing = np.zeros((1, len(values)))
            return WindowScores(
                values.sum(keepdims=True), np.zeros((1, 1)), values, nothing
            )
        n_units = self.n_units(window)
        if self.method == "mpt":
            sizes = self.sizes(n_units)
            n_all = _n_sets(n_units, sizes)
        else:
            sizes, n_all = np.ones(1), np.array([factorial(n_units)])
        counts = np.minimum(self.n_masks, n_all).astype(int)  # of the draws of terms
        term = np.repeat(np.arange(len(counts)), counts)  # of each draw, and its index
        index = np.arange(len(term)) - np.repeat(np.cumsum(counts) - counts, counts)
        draw = np.repeat(np.arange(len(term)), len(targets) // len(term))
        draw = np.repeat(draw, [len(of_row) for of_row in targets])  # of each target
        term_of, index_of = term[draw], index[draw]
        values = log_prob / sizes[term_of]
        draws = np.bincount(draw, values)
        terms = np.bincount(term, draws) / counts
        scale = contrast_scale(counts, n_all)
        contrasts = np.zeros((len(counts), counts.max()))
        with np.errstate(invalid="ignore"):  # from tokens of probability 0
            deviations = scale[term] * (draws - terms[term])
            noise = scale[term_of] * values
        contrasts[term, index] = np.where(scale[term] == 0, 0.0, deviations)
        noise = np.where(scale[term_of] == 0, 0.0, noise)
        shape = counts.max(), len(window)
        noise = np.bincount(index_of * shape[1] + tokens, noise, np.prod(shape))
        noise = noise.reshape(shape)[:, positions]
        with np.errstate(invalid="ignore"):
            noise = noise - noise.mean(axis=0)
        of_tokens = np.bincount(tokens, values / counts[term_of], len(window))
        return WindowScores(terms, contrasts, of_tokens[positions], noise)

    def generator(self, window, stream):
        """Return a random generator that depends on the seed and the tokens."""
        # So masks do not depend on batches, order of texts or processes, and are the
        # same for all models with the same tokenisation.
        key = hashlib.blake2b(digest_size=16)
        tokens = window.inputs["input_ids"] if window.key is None else window.key
        for part in ([self.seed], tokens, window.positions):
            key.update(np.asarray(part, dtype="<i8").tobytes())
        return np.random.default_rng([int.from_bytes(key.digest(), "little"), stream])

    def draw_distinct(self, rng, n, size, n_all):
        """Yield distinct random sets of a size, or orders if it is None, of `n_all`."""
        found = {}
        while len(found) < min(self.n_masks, n_all):
            drawn = rng.permutation(n)[:size]
            key = (drawn if size is None else np.sort(drawn)).tobytes()
            found.setdefault(key, drawn)
        yield from found.values()


@dataclass(frozen=True)
class ScoringMethod:
    """The rows of a method, and what its scores are."""

    # is_centred : whether tokens of long texts need context on both sides.

    plan: Callable
    is_random: bool = False
    is_centred: bool = False
    kind: str = LOG_PROBABILITY


def plan_sets(window, draw):
    """Hide random sets of every size, and score all hidden tokens."""
    units, n_units = draw.units(window), draw.n_units(window)
    for size in draw.sizes(n_units):
        rng = draw.generator(window, int(size))
        for chosen in draw.draw_distinct(rng, n_units, size, _n_sets(n_units, size)):
            is_chosen = np.zeros(n_units, dtype=bool)
            is_chosen[chosen] = True
            hidden = window.at(window.positions[is_chosen[units]])
            yield hidden, hidden


def plan_orders(window, draw):
    """Hide the tokens that come later in a random order, and score the next one."""
    rng, n = draw.generator(window, 0), len(window.positions)
    for order in draw.draw_distinct(rng, n, None, factorial(n)):
        positions = window.positions[order]
        for step in range(n):
            yield window.at(positions[step:]), window.at(positions[step])


def plan_left_to_right(window, draw):
    """Hide all later tokens, and score the next one."""
    for step, position in enumerate(window.positions):
        yield window.at(window.positions[step:]), window.at(position)


def plan_together(window, draw):
    """Hide all tokens, and score each of them."""
    hidden = window.at(window.positions)
    yield hidden, hidden


def plan_singles(window, draw):
    """Hide each token alone."""
    for position in window.positions:
        target = window.at(position)
        yield target, target


def plan_words(window, draw):
    """Hide each token and the later tokens of its word, and score the first."""
    for position in window.positions:
        hidden = window.is_maskable & (window.words == window.words[position])
        hidden[:position] = False
        yield hidden, window.at(position)


METHODS = {
    "mpt": ScoringMethod(plan_sets, is_random=True),
    "pll": ScoringMethod(plan_singles, is_centred=True, kind="pseudo-log-likelihood"),
    "pll_word_l2r": ScoringMethod(
        plan_words, is_centred=True, kind="pseudo-log-likelihood within words"
    ),
    "chain": ScoringMethod(plan_orders, is_random=True),
    "ordered": ScoringMethod(plan_left_to_right),
}
TOGETHER = ScoringMethod(plan_together)


def _n_sets(n, sizes):
    """Return the number of sets of each size as floats; inf if too large."""
    return np.rint(binom(n, sizes))


def check_rates(mask_rates):
    """Return the mask rates as an array, 0.01 to 0.99 for None."""
    if mask_rates is None:
        return PERCENT / 100
    try:
        rates = np.asarray(mask_rates)
        valid = rates.ndim == 1 and rates.size and rates.dtype.kind in "fiu"
        valid = valid and ((rates > 0) & (rates <= 1)).all()
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise ValueError(
            "mask_rates must be None or a non-empty sequence of floats in (0, 1], got "
            f"{show(mask_rates)}."
        )
    return rates.astype(float)


@dataclass(frozen=True, eq=False, repr=False)
class TextCurve(MPTCurve):
    """Masked scores of texts at mask rates 0.01 to 0.99, averaged over the texts.

    `mask_sizes` are percentages, and `n_features` is 100. As texts differ in length,
    the log marginal likelihood is not the area under the curve; it is the mean over
    texts of the sum over all sizes of each text. If masks hide whole words
    (`has_blocks`), percentages are those of words, and `total` is that sum.

    Parameters
    ----------
    mask_sizes, scores, std_errors, n_features
        As in :class:`MPTCurve`, in nats per hidden token.
    text_scores : ndarray of shape (n_sizes,)
        Mean over texts of the number of tokens times the score, in nats per text.
    text_lml : float
        Mean log marginal likelihood per text, in nats.
    text_noise : MaskNoise
        What the draw of the masks adds to it: a row for each term of each text.
    """

    text_scores: np.ndarray
    text_lml: float
    text_noise: MaskNoise

    @property
    def _labels(self):
        unit, total = ("words", "sum") if self.has_blocks else ("tokens", "LML")
        return f"Hidden {unit} (%)", "token", total

    @property
    def total(self) -> float:
        return self.text_lml

    def _error_of_total(self):
        return self.text_noise.of_sum(1.0)

    def __sub__(self, other: MPTCurve) -> "TextCurve":
        """Subtract the curve of another model on the same texts and masks.

        Both tokenizers must give the same tokens, because these determine the masks.
        """
        difference = super().__sub__(other)
        if not (isinstance(difference, TextCurve) and isinstance(other, TextCurve)):
            return NotImplemented
        noise, others = self.text_noise, other.text_noise
        return replace(
            difference,
            text_scores=self.text_scores - other.text_scores,
            text_lml=self.text_lml - other.text_lml,
            text_noise=replace(noise, contrasts=noise.contrasts - others.contrasts),
        )

    def fixed_rate(self, rate: float) -> float:
        check_real(rate, "rate", "right", 1)
        return float(np.interp(100 * rate, self.mask_sizes, self.text_scores))


def text_curve(scores):
    """Average `TextScores` over the texts."""
    # Repeated texts have the same masks, and so the same errors.
    rates = PERCENT / 100
    n_positions, at_rates = scores.at_rates(rates)
    counts = np.bincount(scores.first, minlength=len(n_positions))
    has_tokens = n_positions > 0
    per_token = at_rates[has_tokens] / n_positions[has_tokens, None]
    noise = scores.noise_at_rates(rates, counts / max(1, counts[has_tokens].sum()))
    return TextCurve(
        mask_sizes=PERCENT,
        scores=_average(per_token, counts[has_tokens]),
        std_errors=noise.std_errors,
        n_features=100,
        text_scores=_average(at_rates, counts),
        text_lml=float(_average(scores.totals(), counts)),
        text_noise=scores.noise_of_terms(counts / counts.sum()),
        noise=noise,
        has_blocks=scores.draw.mask_blocks is not None,
    )


def _average(values, counts):
    """Average values of texts that occur counts[i] times."""
    with np.errstate(invalid="ignore"):
        return counts @ values / counts.sum()


@dataclass(frozen=True, eq=False)
class TextScores:
    """Scores of the windows of all distinct texts."""

    windows: list
    scores: list  # WindowScores of each window
    draw: MaskDraw
    first: np.ndarray  # index of the first text equal to each, shape (n_texts,)

    def totals(self):
        """Return the scores of the texts, (n_texts,)."""
        totals = np.zeros(len(self.first))
        for window, score in self._pairs():
            totals[window.text] += score.terms.sum()
        return totals[self.first]

    def std_errors(self):
        """Return standard errors of the totals over masks, (n_texts,)."""
        # Enlarged by Student's t, so that plus or minus 1.96 of them is a 95% interval.
        errors = np.zeros(len(self.first))
        for text, pieces in self._pairs_by_text().items():
            errors[text] = std_error([score for _, score in pieces])
        return errors[self.first]

    def std_error_of_sum(self):
        """Return the standard error of the sum over texts, enlarged in the same way."""
        counts = np.bincount(self.first, minlength=len(self.first))
        return std_error(self.scores, [counts[window.text] for window in self.windows])

    def n_tokens(self):
        """Return the number of scored tokens of each text, (n_texts,)."""
        counts = np.zeros(len(self.first), dtype=int)
        for window in self.windows:
            counts[window.text] += len(window.positions)
        return counts[self.first]

    def at_rates(self, rates):
        """Return numbers of tokens, (n_texts,), and sums of n_units * S(rate)."""
        sums = np.zeros((len(self.first), len(rates)))
        for window, score in self._pairs():
            n = self.draw.n_units(window)
            sums[window.text] += n * score.terms[self._columns(rates, n)] if n else 0
        return self.n_tokens(), sums[self.first]

    def noise_at_rates(self, rates, weights):
        """Return the noise, by rate, of the weighted sum over texts of token scores."""
        n_tokens, blocks = self.n_tokens(), [np.zeros((len(rates), 0))]
        for window, score in self._pairs():
            n = self.draw.n_units(window)
            if n:
                weight = weights[window.text] * n / n_tokens[window.text]
                blocks.append(weight * score.contrasts[self._columns(rates, n)])
        contrasts = np.concatenate(blocks, axis=1)
        degrees = np.full(len(rates), contrasts.shape[1] - (len(blocks) - 1))
        return MaskNoise(contrasts, degrees, self._identity())

    def noise_of_terms(self, weights):
        """Return the weighted noise of the terms of all texts; each term has a row."""
        n_draws = max((score.contrasts.shape[1] for score in self.scores), default=0)
        blocks, degrees = [np.zeros((n_draws, 0))], []
        for window, score in self._pairs():
            text_noise = weights[window.text] * score.contrasts.T
            blocks.append(_pad(text_noise, n_draws))
            degrees += [len(text_noise) - 1] * text_noise.shape[1]
        contrasts = np.hstack(blocks).T
        return MaskNoise(contrasts, np.array(degrees), self._identity())

    def _columns(self, rates, n_units):
        """Return the indices of the mask sizes of a window at these rates."""
        sizes = [mask_size(rate, n_units) for rate in rates]
        return np.searchsorted(self.draw.sizes(n_units), sizes)

    def _identity(self):
        """Return a key that is equal for equal masks, from the tokens and the seed."""
        key = hashlib.blake2b(np.asarray(self.first, "<i8").tobytes())
        for window in self.windows:
            for part in ([window.text], window.inputs["input_ids"], window.positions):
                key.update(np.asarray(part, dtype="<i8").tobytes())
        draw = self.draw
        draw_params = draw.seed, draw.n_masks, draw.mask_blocks
        return {"seed, masks, blocks, tokens": (*draw_params, key.hexdigest())}

    def tokens(self, texts, tokenizer):
        """Return the `TokenScores` of each text."""
        columns = {
            index: _token_scores(texts[index], pieces, tokenizer)
            for index, pieces in self._pairs_by_text().items()
        }
        return [columns[index] for index in self.first]

    def _pairs(self):
        return zip(self.windows, self.scores, strict=True)

    def _pairs_by_text(self):
        by_text = defaultdict(list)
        for window, score in self._pairs():
            by_text[window.text].append((window, score))
        return by_text


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Contributions of the tokens of a text to its score.

    Parameters
    ----------
    text : str
        The text; the second of a (context, text) pair, or the scored part of a text.
    tokens : list of str of length n_tokens
        The scored tokens, as the tokenizer writes them.
    offsets : ndarray of shape (n_tokens, 2)
        Start and end of each token in `text`; -1 if they are unknown, as for
        tokenizers that change characters.
    words : ndarray of shape (n_tokens,)
        Index of the word of each token, by the rules of the tokenizer.
    log_prob : ndarray of shape (n_tokens,)
        Contributions to the score of the text, in nats; they sum to it.
    contrasts : ndarray of shape (n_draws, n_tokens)
        What each draw of masks, or order, adds to the contributions as noise: an
        unbiased estimate of their covariance is ``contrasts.T @ contrasts``.

    Attributes
    ----------
    std_error : ndarray of shape (n_tokens,)
        Standard errors of the contributions over masks; 0 where nothing is random, NaN
        where something is and `n_masks` is 1.
    """

    text: str
    tokens: list
    offsets: np.ndarray
    words: np.ndarray
    log_prob: np.ndarray
    contrasts: np.ndarray

    def __len__(self):
        return len(self.tokens)

    @property
    def std_error(self) -> np.ndarray:
        return np.sqrt(np.sum(self.contrasts**2, axis=0))

    @property
    def pieces(self) -> list[str]:
        """The text cut before each token; the tokens, if offsets are unknown."""
        if (self.offsets < 0).any():
            return list(self.tokens)
        bounds = [0, *self.offsets[1:, 0], len(self.text)][: len(self) + 1]
        return [self.text[start:stop] for start, stop in pairwise(bounds)]

    def by_word(self) -> "TokenScores":
        """Add up the contributions of the tokens of each word.

        Returns
        -------
        words : TokenScores
            One entry for each word; `tokens` are the words as written in the text.
        """
        words, starts = np.unique(self.words, return_index=True)
        if len(words) == 0 or (self.offsets < 0).any():
            return self  # without offsets each token is a word
        stops = np.append(starts[1:], len(self)) - 1
        offsets = np.stack([self.offsets[starts, 0], self.offsets[stops, 1]], axis=1)
        return TokenScores(
            text=self.text,
            tokens=[self.text[start:stop].strip() for start, stop in offsets],
            offsets=offsets,
            words=words,
            log_prob=np.add.reduceat(self.log_prob, starts),
            contrasts=np.add.reduceat(self.contrasts, starts, axis=1),
        )


def frame_of_tokens(parts):
    """Return a DataFrame of a list of `TokenScores`, with a row for each token."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("as_frame=True needs pandas: pip install pandas.") from error

    def join(values, dtype):
        return np.concatenate([np.zeros(0, dtype), *map(values, parts)])

    return pd.DataFrame(
        {
            "text": np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
            "token": join(lambda part: np.array(part.tokens, dtype=object), object),
            "start": join(lambda part: part.offsets[:, 0], int),
            "end": join(lambda part: part.offsets[:, 1], int),
            "word": join(lambda part: part.words, int),
            "log_prob": join(lambda part: part.log_prob, float),
            "std_error": join(lambda part: part.std_error, float),
        }
    )


def _token_scores(text, parts, tokenizer):
    """Join the windows of a text, given with their `WindowScores`."""

    def join(values):
        return np.concatenate([values(window)[window.positions] for window, _ in parts])

    ids = join(lambda window: window.inputs["input_ids"])
    contrasts = [score.token_contrasts for _, score in parts]
    n_draws = max(map(len, contrasts))
    return TokenScores(
        text=scored_text(text),
        tokens=tokenizer.convert_ids_to_tokens(ids.tolist()),
        offsets=join(lambda window: window.offsets),
        words=join(lambda window: window.words),
        log_prob=np.concatenate([score.tokens for _, score in parts]),
        contrasts=np.hstack([_pad(of_part, n_draws) for of_part in contrasts]),
    )


def difference(score, other):
    """Subtract the `WindowScores` of another window with the same draws of masks."""
    pairs = zip(score, other, strict=True)
    return type(score)(*(value - others for value, others in pairs))


def std_error(scores, counts=None):
    """Return the standard error of a sum of `WindowScores`, each a number of times."""
    # Variances over masks of the terms add up; 1.96 errors are to cover 95%.
    counts = np.ones(len(scores)) if counts is None else counts
    variances, degrees = [np.zeros(0)], [np.zeros(0)]
    for score, count in zip(scores, counts, strict=True):
        variances.append(count**2 * np.sum(score.contrasts**2, axis=1))
        n_draws = score.contrasts.shape[1]
        degrees.append(np.full(len(score.contrasts), max(1, n_draws - 1)))
    variances = np.concatenate(variances)
    degrees = degrees_of_sum(variances, np.concatenate(degrees))
    return np.sqrt(variances.sum()) * student_factor(degrees)


def _pad(contrasts, n_rows):
    """Append rows of zeros."""
    return np.pad(contrasts, [(0, n_rows - len(contrasts)), (0, 0)])
