"""Log-ratios of the probabilities of protein variants and of the wild type."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, overload

import numpy as np

from sklearn_mpt._checks import check_bool, check_choice, check_int
from sklearn_mpt._text.batches import MaskedWindow, predict_by_row, score_windows
from sklearn_mpt._text.lengths import LengthLogProb, length_term
from sklearn_mpt._text.masks import MaskDraw
from sklearn_mpt._text.mutations import (
    advice_on_case,
    read_variants,
    warn_of_lengths,
)
from sklearn_mpt._text.results import difference, std_error
from sklearn_mpt._text.scores import TextScoresMixin
from sklearn_mpt._text.texts import show, strings_of
from sklearn_mpt._text.windows import (
    Window,
    centred_start,
    fit_windows,
    take,
    tokenize,
)

CONVENTIONS = (
    "joint",
    "masked-marginal",
    "wild-type-marginal",
    "mutant-marginal",
    "pseudo-perplexity",
)
# Rows whose log-probabilities of all tokens are held; the vocabularies of proteins have
# about thirty tokens.
ROWS_AT_A_TIME = 256


class Protein(NamedTuple):
    """The tokens of a wild type, and how many of its residues a model takes at a time.

    If it takes fewer than there are, sites are scored in groups that fit into a window.
    The windows of groups go from left to right, and hold no site of a later group.
    """

    window: Window
    body: np.ndarray  # positions of the residues among the tokens
    ids: dict[str, int]  # token of each residue
    room: int

    def groups(self, sites):
        """Cut sites into groups, each of which fits into a window."""
        starts, first = [], -np.inf
        for i, site in enumerate(sites):
            if site >= first + self.room:
                starts.append(i)
                first = site
        return np.split(sites, starts[1:])

    def mutated(self, variant):
        """Return the tokens of a variant of the same length."""
        ids = self.window.inputs["input_ids"].copy()
        ids[self.body] = [self.ids[residue] for residue in variant.residues]
        return ids

    def wild(self):
        """Return the tokens of the wild type."""
        return self.window.inputs["input_ids"]

    def view(self, ids, sites, index):
        """Return a window with these tokens, scored at a group of sites."""
        whole = replace(
            self.window,
            text=index,
            inputs=self.window.inputs | {"input_ids": ids},
            positions=self.body[sites],
            key=self.wild(),  # gives variants the same orders
        )
        if len(self.body) <= self.room:
            return whole
        kept = self._around(sites)
        part = take(whole, kept, whole.positions)
        return replace(part, key=whole.key[kept])

    def _around(self, sites):
        """Return the positions of the window in whose middle the sites are."""
        n_sites = sites[-1] + 1 - sites[0]
        start = centred_start(sites[0], n_sites, self.room, len(self.body))
        added = np.setdiff1d(np.arange(len(self.window)), self.body)
        return np.union1d(added, self.body[start : start + self.room])


class VariantsMixin(TextScoresMixin):
    """Compare variants of a protein with the wild type."""

    @overload
    def score_variants(
        self,
        wild: str,
        variants: Sequence[str],
        *,
        method: str = "joint",
        n_orders: int = 24,
        first_position: int = 1,
        length_log_prob: LengthLogProb | None = None,
        return_std: Literal[False] = False,
    ) -> np.ndarray: ...
    @overload
    def score_variants(
        self,
        wild: str,
        variants: Sequence[str],
        *,
        method: str = "joint",
        n_orders: int = 24,
        first_position: int = 1,
        length_log_prob: LengthLogProb | None = None,
        return_std: Literal[True],
    ) -> tuple[np.ndarray, np.ndarray]: ...
    def score_variants(
        self,
        wild: str,
        variants: Sequence[str],
        *,
        method: str = "joint",
        n_orders: int = 24,
        first_position: int = 1,
        length_log_prob: LengthLogProb | None = None,
        return_std: bool = False,
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        r"""Compute log-ratios of the probabilities of variants and of the wild type.

        Let T be the sites at which a variant y differs from the wild type x, and
        :math:`x_R` all other residues, which are the same in both. For method "joint",
        the score is

        .. math:: s = \log p(y_T \mid x_R) - \log p(x_T \mid x_R),

        where each term is the mean over orders of T of the sum of log-probabilities of
        one residue after the other. If the conditionals belong to one joint
        distribution, s is :math:`\log p(y) - \log p(x)`. The other methods are
        conventions that add up separate terms for the sites (see Notes).

        Parameters
        ----------
        wild : str
            Sequence of the wild type, one letter for each residue, with spaces between
            them if the tokenizer needs spaces.
        variants : sequence of str
            Mutations of the wild type, with positions counted from `first_position`.
            ``"K3R"`` replaces K at position 3 by R, ``"K3R:D7E"`` is a double mutant,
            ``"K3del"`` and ``"K3_D7del"`` are deletions, ``"K3_D4insGG"`` inserts GG,
            and ``"K3_D7delinsGG"`` puts GG in the place of residues. An entry without
            digits is the whole sequence of a variant; ``""`` is the wild type. Only
            the resulting sequence counts, not how it is written.
        method : str, default="joint"
            One of "joint", "masked-marginal", "wild-type-marginal", "mutant-marginal"
            and "pseudo-perplexity". Variants of another length have no common sites
            with the wild type. They need "joint", which is then the difference of
            `score_samples`, or "pseudo-perplexity".
        n_orders : int, default=24
            Number of orders of the sites for "joint". 24 are all orders of four sites,
            so with up to four sites nothing is random. The wild type is scored in the
            same orders as the variant.
        first_position : int, default=1
            Position of the first residue of `wild`.
        length_log_prob : callable or array-like of int, default=None
            Log-probability of the number of tokens, as in `score_samples`, for
            deletions and insertions. Without it scores are conditional on that number.
        return_std : bool, default=False
            Whether to return the standard error over orders, or masks, too.

        Returns
        -------
        log_ratio : ndarray of shape (n_variants,)
            Log-ratios in nats, positive if the variant is more probable than the wild
            type; NaN if both have probability 0.
        std_error : ndarray of shape (n_variants,)
            Standard errors; 0 if nothing is random. Only if `return_std` is True.

        Raises
        ------
        TypeError, ValueError
            If a variant cannot be read, names a residue that differs from that of the
            wild type, or has a residue that the tokenizer does not know; if the
            tokenizer does not give one token for each residue; if the protein is longer
            than `max_length_` and `overflow` is not "stride"; or if `method` does not
            allow variants of another length.

        Warns
        -----
        UserWarning
            If a whole sequence has less than half or more than twice the length of the
            wild type.

        Notes
        -----
        "masked-marginal" is :math:`\sum_{j \in T} [\log p(y_j \mid x_R) - \log p(x_j
        \mid x_R)]`: all sites are hidden together, and each is predicted without the
        residues at the others. (Some programs hide one site at a time, with the
        residues of the wild type at the others.) "wild-type-marginal" hides nothing and
        takes all log-ratios from the predictions for x, "mutant-marginal" from those
        for y [1]_. "pseudo-perplexity" is the difference of the pseudo-log-likelihoods
        of the whole sequences. For a model with independent residues, all methods give
        the same result. For a protein longer than `max_length_`, ``overflow="stride"``
        puts the sites in the middle of a window, and residues outside of it are not
        seen. Sites that do not fit into one window are scored in groups, from left to
        right, each in a window of its own.

        For residues in contact, all methods but "joint" ignore that these must fit each
        other: two mutations that each break a contact may restore it together.

        References
        ----------
        .. [1] J. Meier, R. Rao, R. Verkuil, J. Liu, T. Sercu and A. Rives, "Language
           models enable zero-shot prediction of the effects of mutations on protein
           function", NeurIPS 2021.
        """
        self._check_is_fitted()
        check_choice(method, "method", CONVENTIONS)
        check_int(n_orders, "n_orders")
        check_int(first_position, "first_position", min_val=-sys.maxsize)
        check_bool(return_std, "return_std")
        if not isinstance(wild, str):
            raise TypeError(f"wild must be a str, got {show(wild)}.")
        variants = strings_of(variants, "variants")
        separator = " " if " " in wild.strip() else ""
        residues = wild.split() if separator else list(wild.strip())
        read = read_variants(variants, residues, first_position, separator)
        is_whole = _compared_as_wholes(variants, read, method)
        warn_of_lengths(variants, read, residues)
        protein = self._protein(residues, read, separator)
        results = np.zeros((2, len(read)))
        at_sites = [i for i, v in enumerate(read) if not is_whole[i] and v.sites.size]
        wholes = np.flatnonzero(is_whole)
        with np.errstate(invalid="ignore"):  # from residues of probability 0
            if at_sites:
                chosen = [read[i] for i in at_sites]
                results[:, at_sites] = self._at_sites(protein, chosen, method, n_orders)
            if len(wholes):
                sequences = [residues, *(read[i].residues for i in wholes)]
                texts = [separator.join(sequence) for sequence in sequences]
                results[:, wholes] = self._against_first(texts, method, length_log_prob)
        return (results[0], results[1]) if return_std else results[0]

    def _protein(self, residues, variants, separator):
        """Tokenize the wild type, and find the token of each residue."""
        language_model, tokenizer = self._open_again()
        kinds = sorted({*residues, *(r for v in variants for r in v.residues)})
        texts = [separator.join(part) for part in (residues, kinds)]
        windows, first = tokenize(tokenizer, texts, language_model.input_names)
        window, of_kinds = windows[0], windows[first[1]]
        body = np.flatnonzero(~window.is_fixed)
        ids = of_kinds.inputs["input_ids"][~of_kinds.is_fixed].tolist()
        if len(body) != len(residues) or len(ids) != len(kinds):
            raise ValueError(
                "score_variants needs one token for each residue, but the tokenizer "
                f"makes {len(body)} of the {len(residues)} residues of wild. Write "
                "spaces between the residues if the tokenizer needs them, and capital "
                "letters if it knows only these."
            )
        _check_residues(kinds, ids, tokenizer)
        room = self._room_for_residues(len(window), len(body))
        window = replace(window, is_maskable=~window.is_fixed)
        return Protein(window, body, dict(zip(kinds, ids, strict=True)), room)

    def _room_for_residues(self, n_tokens, n_residues):
        """Return how many residues an input of the model holds."""
        if n_tokens > self.max_length_ and self.overflow != "stride":
            raise ValueError(
                f"wild has {n_tokens} tokens, more than max_length="
                f"{self.max_length_}: set overflow='stride', or cut it to the part "
                "around the mutations, and set first_position."
            )
        room = self.max_length_ - (n_tokens - n_residues)
        if room < 1:
            raise ValueError(
                f"max_length={self.max_length_} leaves no room for a residue."
            )
        return room

    def _at_sites(self, protein, variants, method, n_orders):
        """Score substitutions; returns log-ratios and errors, (2, n_variants)."""
        language_model, tokenizer = self._open_again()
        if method in MARGINALS:
            ratios = MARGINALS[method](language_model, protein, variants)
            return np.stack([ratios, np.zeros(len(ratios))])
        if method == "masked-marginal":
            draw = MaskDraw.of_all_tokens(self._seed)
        else:
            draw = MaskDraw("chain", self._seed, n_orders)
        windows, owners = [], []
        for i, variant in enumerate(variants):
            for group in protein.groups(variant.sites):
                for ids in (protein.mutated(variant), protein.wild().copy()):
                    if method == "masked-marginal":
                        others = np.setdiff1d(variant.sites, group)
                        ids[protein.body[others]] = tokenizer.mask_token_id
                    windows.append(protein.view(ids, group, len(windows)))
                owners.append(i)
        scores = self._score_distinct(language_model, windows, draw)
        ratios = np.zeros((2, len(variants)))
        for i, score, of_wild in zip(owners, scores[::2], scores[1::2], strict=True):
            ratio = difference(score, of_wild)
            ratios[0, i] += ratio.tokens.sum()
            ratios[1, i] = np.hypot(ratios[1, i], std_error([ratio], [1]))
        return ratios

    def _score_distinct(self, language_model, windows, draw):
        """Score windows, of which many may be the same one of the wild type."""
        arrays = [(w.inputs["input_ids"], w.positions, w.key) for w in windows]
        keys = [tuple(array.tobytes() for array in row) for row in arrays]
        distinct = list(dict(zip(keys, windows, strict=True)).values())
        scores = score_windows(
            language_model, distinct, draw, self.n_jobs, self.verbose
        )
        score_of = dict(zip(dict.fromkeys(keys), scores, strict=True))
        return [score_of[key] for key in keys]

    def _against_first(self, texts, method, length_log_prob):
        """Score texts less the first; returns log-ratios and errors."""
        draw = self._draw() if method == "joint" else MaskDraw("pll", self._seed, 1)
        scores = self._score_texts(texts, draw)
        totals, errors = scores.totals(), scores.std_errors()
        totals = totals + length_term(length_log_prob, scores.n_tokens())
        return totals[1:] - totals[0], np.hypot(errors[1:], errors[0])


def _compared_as_wholes(variants, read, method):
    """Return which variants are compared with the wild type as whole sequences."""
    if method == "pseudo-perplexity":
        return np.ones(len(read), dtype=bool)
    is_whole = np.array([variant.sites is None for variant in read], dtype=bool)
    if method != "joint" and is_whole.any():
        first = is_whole.argmax()
        raise ValueError(
            f"variants[{first}], {show(variants[first])}, has another length than the "
            f"wild type, and method={method!r} compares residues site by site; set it "
            "to 'joint' or 'pseudo-perplexity'."
        )
    return is_whole


def _check_residues(kinds, ids, tokenizer):
    """Refuse residues that have no token of their own."""
    no_residue = {tokenizer.unk_token_id, tokenizer.mask_token_id}
    unknown = [
        kind
        for kind, token in zip(kinds, ids, strict=True)
        if token in no_residue or ids.count(token) > 1
    ]
    if unknown:
        raise ValueError(
            "The tokenizer must know all residues of wild and variants, but "
            f"{', '.join(map(repr, unknown))} have no token of their own: their "
            "scores would be those of other residues."
            f"{advice_on_case(unknown, tokenizer.get_vocab())}"
        )


def _wild_type_marginals(language_model, protein, variants):
    whole = replace(protein.window, positions=protein.body)
    max_tokens = len(whole) - len(protein.body) + protein.room
    windows = fit_windows([whole], max_tokens, "stride", centred=True)
    table = np.concatenate(_log_probs(language_model, windows))
    wild = protein.wild()[protein.body]
    return [
        sum(
            table[site, protein.ids[variant.residues[site]]] - table[site, wild[site]]
            for site in variant.sites
        )
        for variant in variants
    ]


def _mutant_marginals(language_model, protein, variants):
    ratios = np.zeros(len(variants))
    pairs = [(i, g) for i, v in enumerate(variants) for g in protein.groups(v.sites)]
    for start in range(0, len(pairs), ROWS_AT_A_TIME):
        part = pairs[start : start + ROWS_AT_A_TIME]
        windows = [
            protein.view(protein.mutated(variants[i]), group, i) for i, group in part
        ]
        tables = _log_probs(language_model, windows)
        for (i, group), window, table in zip(part, windows, tables, strict=True):
            mutant = window.inputs["input_ids"][window.positions]
            wild = protein.wild()[protein.body[group]]
            rows = np.arange(len(table))
            ratios[i] += (table[rows, mutant] - table[rows, wild]).sum()
    return ratios


MARGINALS = {
    "wild-type-marginal": _wild_type_marginals,
    "mutant-marginal": _mutant_marginals,
}


def _log_probs(language_model, windows):
    """Return log-probabilities of all tokens at the positions of windows.

    Nothing is hidden. The result is an array for each window, of shape (n_positions,
    n_vocabulary).
    """
    rows = [
        MaskedWindow(i, np.zeros(len(w), bool), w.at(w.positions))
        for i, w in enumerate(windows)
    ]
    return predict_by_row(language_model, windows, rows, _log_softmax)


def _log_softmax(logits, labels):
    return logits.double().log_softmax(1)
