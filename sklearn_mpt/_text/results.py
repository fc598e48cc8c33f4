"""Results of `MPTScorer`: scores of texts and tokens, and the curve over mask rates."""

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from sklearn_mpt._checks import check_real
from sklearn_mpt._measure.curve import (
    MaskNoise,
    MPTCurve,
    degrees_of_sum,
    student_factor,
)
from sklearn_mpt._measure.masks import mask_size
from sklearn_mpt._text.masks import PERCENT, MaskDraw
from sklearn_mpt._text.texts import scored_text


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
        return "texts", *draw_params, key.hexdigest()

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
