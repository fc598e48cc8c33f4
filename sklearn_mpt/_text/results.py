"""What a scorer finds about texts: terms, tokens, and the curve over mask rates."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from sklearn_mpt._checks import check_real
from sklearn_mpt._measure.curve import MPTCurve
from sklearn_mpt._measure.masks import mask_size
from sklearn_mpt._text.masks import PERCENT, Draw


@dataclass(frozen=True, eq=False)
class TextCurve(MPTCurve):
    """Masked scores of texts at the mask rates 0.01 to 0.99, averaged over the texts.

    `mask_sizes` are percentages, and `n_features` is 100. The log marginal likelihood
    is not the area, as texts differ in length: it is the mean over the texts of their
    own sums over every size.

    Parameters
    ----------
    mask_sizes, scores, std_errors, n_features
        As in :class:`MPTCurve`, in nats per hidden token.
    text_scores : ndarray of shape (n_sizes,)
        Mean over texts of the number of tokens times the score, in nats per text.
    text_lml : float
        Mean log marginal likelihood per text, in nats.
    text_lml_std_error : float
        Its standard error over masks.
    """

    text_scores: np.ndarray
    text_lml: float
    text_lml_std_error: float

    _labels = ("Hidden tokens (%)", "token", "LML")

    @property
    def lml(self) -> float:
        return self.text_lml

    @property
    def lml_std_error(self) -> float:
        return self.text_lml_std_error

    def fixed_rate(self, rate: float) -> float:
        check_real(rate, "rate", "right", 1)
        return float(np.interp(100 * rate, self.mask_sizes, self.text_scores))


def text_curve(scores):
    """Average `TextScores` over the texts."""
    n_places, at_rates = scores.at_rates(PERCENT / 100)
    counts = np.bincount(scores.first, minlength=len(n_places))
    has_tokens = np.where(n_places > 0, counts, 0)
    per_token = at_rates / np.maximum(n_places, 1)[:, None] ** [[[1]], [[2]]]
    means, std_errors = _average(per_token, has_tokens)
    lml, lml_std_error = _average(scores.totals()[..., None], counts)
    return TextCurve(
        mask_sizes=PERCENT,
        scores=means,
        std_errors=std_errors,
        n_features=100,
        text_scores=_average(at_rates, counts)[0],
        text_lml=float(lml[0]),
        text_lml_std_error=float(lml_std_error[0]),
    )


def _average(pairs, counts):
    """Average values of texts that occur counts[i] times; return standard errors too.

    counts[i] is 0 where text i repeats another: the two have the same masks.
    """
    with np.errstate(invalid="ignore"):
        mean = counts @ pairs[0] / counts.sum()
        variance = counts**2 @ pairs[1] / counts.sum() ** 2
    return mean, np.sqrt(variance)


@dataclass(frozen=True, eq=False)
class TextScores:
    """Scores of the windows of texts; a repeated text has them once."""

    windows: list
    scores: list  # per window: terms and variances (2, n_terms), tokens (n_places,)
    draw: Draw
    first: np.ndarray  # index of the first text that is the same, shape (n_texts,)

    def totals(self):
        """Add up the terms of each text and their variances; shape (2, n_texts)."""
        totals = np.zeros((2, len(self.first)))
        for window, (terms, _) in self._pairs():
            totals[:, window.text] += terms.sum(axis=1)
        return totals[:, self.first]

    def n_tokens(self):
        """Count the tokens that are scored in each text; shape (n_texts,)."""
        counts = np.zeros(len(self.first), dtype=int)
        for window in self.windows:
            counts[window.text] += len(window.places)
        return counts[self.first]

    def at_rates(self, rates):
        """Add up n_places * S(rate) of each text and the variance of that.

        Returns n_places, of shape (n_texts,), and the sums, of shape (2, n_texts,
        n_rates). The terms must be those of method "mpt".
        """
        sums = np.zeros((2, len(self.first), len(rates)))
        for window, (terms, _) in self._pairs():
            n = len(window.places)
            if n:
                sizes = [mask_size(rate, n) for rate in rates]
                columns = terms[:, np.searchsorted(self.draw.sizes(n), sizes)]
                sums[:, window.text] += columns * [[n], [n**2]]
        return self.n_tokens(), sums[:, self.first]

    def tokens(self, texts, tokenizer):
        """Return the `TokenScores` of each text."""
        parts = defaultdict(list)
        for window, (_, log_prob) in self._pairs():
            parts[window.text].append((window, log_prob))
        found = {
            index: _token_scores(texts[index], pieces, tokenizer)
            for index, pieces in parts.items()
        }
        return [found[index] for index in self.first]

    def _pairs(self):
        return zip(self.windows, self.scores, strict=True)


@dataclass(frozen=True, eq=False)
class TokenScores:
    """What the tokens of a text contribute to its score.

    Parameters
    ----------
    text : str
        The text; of a pair, the second.
    tokens : list of str of length n_tokens
        The tokens that are scored, as their tokenizer writes them.
    offsets : ndarray of shape (n_tokens, 2)
        Where each starts and ends in `text`; -1 from a tokenizer that does not know,
        as slow ones do not.
    words : ndarray of shape (n_tokens,)
        Index of the word that each belongs to, by the tokenizer's own rules.
    log_prob : ndarray of shape (n_tokens,)
        Contributions to the score of the text, in nats; they sum to it.
    """

    text: str
    tokens: list
    offsets: np.ndarray
    words: np.ndarray
    log_prob: np.ndarray

    def __len__(self):
        return len(self.tokens)

    def by_word(self) -> "TokenScores":
        """Add the contributions of the tokens of each word.

        Returns
        -------
        words : TokenScores
            One entry for each word; `tokens` are the words as they stand in the text.
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
        )


def _token_scores(text, pieces, tokenizer):
    """Join the windows of a text, given with the scores of their tokens."""

    def join(values):
        return np.concatenate([values(window)[window.places] for window, _ in pieces])

    ids = join(lambda window: window.inputs["input_ids"])
    return TokenScores(
        text=text if isinstance(text, str) else text[1],
        tokens=tokenizer.convert_ids_to_tokens(ids.tolist()),
        offsets=join(lambda window: window.offsets),
        words=join(lambda window: window.words),
        log_prob=np.concatenate([log_prob for _, log_prob in pieces]),
    )
