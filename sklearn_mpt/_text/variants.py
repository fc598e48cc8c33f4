"""Log-ratios of the probabilities of protein variants and of the wild type."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, overload

import numpy as np

from sklearn_mpt._checks import check_bool, check_choice, check_int
from sklearn_mpt._text.loading import OpenedModelMixin
from sklearn_mpt._text.masked_lm import MaskedWindow, predict_by_row, score_windows
from sklearn_mpt._text.masks import MaskDraw, difference, std_error
from sklearn_mpt._text.windows import (
    Window,
    centred_start,
    fit_windows,
    show,
    strings_of,
    take,
    tokenize,
)

CONVENTIONS = ("joint", "masked-marginal", "wild-type-marginal")
SUBSTITUTION = re.compile(r"([A-Za-z])(\d+)([A-Za-z])")
OTHER_LENGTH = (
    "score_variants compares sequences of one length. For deletions and insertions, "
    "write both sequences, and take the difference of their score_samples."
)


class Variant(NamedTuple):
    """The residues of a variant, and the sites where it differs from the wild type."""

    residues: list[str]
    sites: np.ndarray


class Protein(NamedTuple):
    """The tokens of a wild type, and how many residues a model takes at a time."""

    # If it takes fewer than there are, sites are scored in groups that fit into a
    # window. The windows go from left to right, and hold no site of a later group.

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

    @property
    def wild(self):
        """Tokens of the wild type."""
        return self.window.inputs["input_ids"]

    def view(self, ids, sites, index):
        """Return a window with these tokens, scored at a group of sites."""
        whole = replace(
            self.window,
            text=index,
            inputs=self.window.inputs | {"input_ids": ids},
            positions=self.body[sites],
            key=self.wild,  # gives variants the same orders
        )
        if len(self.body) <= self.room:
            return whole
        n_sites = sites[-1] + 1 - sites[0]  # in the middle of the window
        start = centred_start(sites[0], n_sites, self.room, len(self.body))
        added = np.setdiff1d(np.arange(len(self.window)), self.body)
        kept = np.union1d(added, self.body[start : start + self.room])
        part = take(whole, kept, whole.positions)
        return replace(part, key=whole.key[kept])


class VariantsMixin(OpenedModelMixin):
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
            ``"K3R"`` replaces K at position 3 by R, and ``"K3R:D7E"`` is a double
            mutant. An entry without digits is the whole sequence of a variant, as long
            as the wild type; ``""`` is the wild type. Only the resulting sequence
            counts, not how it is written. For deletions and insertions, take the
            difference of two `score_samples`.
        method : {"joint", "masked-marginal", "wild-type-marginal"}, default="joint"
            How the mutated sites are scored.
        n_orders : int, default=24
            Number of orders of the sites for "joint". 24 are all orders of four sites,
            so with up to four sites nothing is random. The wild type is scored in the
            same orders as the variant.
        first_position : int, default=1
            Position of the first residue of `wild`.
        return_std : bool, default=False
            Whether to return the standard error over orders too.

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
            If a variant cannot be read, has another length than the wild type, names a
            residue that differs from that of the wild type, or has a residue that the
            tokenizer does not know; if the tokenizer does not give one token for each
            residue; or if the protein is longer than `max_length_` and `overflow` is
            not "stride".

        Notes
        -----
        "masked-marginal" is :math:`\sum_{j \in T} [\log p(y_j \mid x_{-j}) - \log
        p(x_j \mid x_{-j})]`: each site is hidden by itself, with the residues of the
        wild type at all others. "wild-type-marginal" hides nothing and takes all
        log-ratios from the predictions for x [1]_. For a model with independent
        residues, all methods give the same result.

        For a protein longer than `max_length_`, ``overflow="stride"``
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
        read = [
            _read(text, f"variants[{i}]", residues, first_position, separator)
            for i, text in enumerate(variants)
        ]
        protein = self._protein(residues, read, separator)
        results = np.zeros((2, len(read)))
        mutated = [i for i, variant in enumerate(read) if variant.sites.size]
        chosen = [read[i] for i in mutated]
        with np.errstate(invalid="ignore"):  # from residues of probability 0
            if chosen and method == "joint":
                results[:, mutated] = self._joint_ratios(protein, chosen, n_orders)
            elif chosen:
                hides = method == "masked-marginal"
                results[0, mutated] = self._marginal_ratios(protein, chosen, hides)
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
        if len(window) > self.max_length_ and self.overflow != "stride":
            raise ValueError(
                f"wild has {len(window)} tokens, more than max_length="
                f"{self.max_length_}: set overflow='stride', or cut it to the part "
                "around the mutations, and set first_position."
            )
        room = self.max_length_ - (len(window) - len(body))
        if room < 1:
            raise ValueError(
                f"max_length={self.max_length_} leaves no room for a residue."
            )
        window = replace(window, is_maskable=~window.is_fixed)
        return Protein(window, body, dict(zip(kinds, ids, strict=True)), room)

    def _joint_ratios(self, protein, variants, n_orders):
        """Return log-ratios along orders of the sites, and errors; (2, n_variants)."""
        draw = MaskDraw("chain", self._seed, n_orders)
        windows, owners = [], []
        for i, variant in enumerate(variants):
            ids = protein.wild.copy()
            ids[protein.body] = [protein.ids[residue] for residue in variant.residues]
            for group in protein.groups(variant.sites):
                for tokens in (ids, protein.wild):
                    windows.append(protein.view(tokens, group, len(windows)))
                owners.append(i)
        # many windows may be the same one of the wild type
        arrays = [(w.inputs["input_ids"], w.positions, w.key) for w in windows]
        keys = [tuple(array.tobytes() for array in row) for row in arrays]
        distinct = dict(zip(keys, windows, strict=True))
        scores = score_windows(
            self._open_again()[0],
            list(distinct.values()),
            draw,
            self.n_jobs,
            self.verbose,
        )
        score_of = dict(zip(distinct, scores, strict=True))
        ratios = np.zeros((2, len(variants)))
        for i, key, of_wild in zip(owners, keys[::2], keys[1::2], strict=True):
            ratio = difference(score_of[key], score_of[of_wild])
            ratios[0, i] += ratio.tokens.sum()
            ratios[1, i] = np.hypot(ratios[1, i], std_error([ratio]))
        return ratios

    def _marginal_ratios(self, protein, variants, hides):
        """Return sums over sites of log-ratios at other residues of the wild type."""
        # hides : whether a site is hidden where it is predicted.
        wild = protein.wild[protein.body]
        sites = np.unique(np.concatenate([variant.sites for variant in variants]))
        if hides:
            windows = [
                protein.view(protein.wild, sites[[i]], i) for i in range(len(sites))
            ]
        else:
            sites = np.arange(len(protein.body))
            whole = replace(protein.window, positions=protein.body)
            n_tokens = len(whole) - len(protein.body) + protein.room
            windows = fit_windows([whole], n_tokens, "stride", centred=True)
        rows = []
        for i, window in enumerate(windows):
            target = window.at(window.positions)
            rows.append(MaskedWindow(i, target & hides, target))
        predictions = predict_by_row(
            self._open_again()[0],
            windows,
            rows,
            lambda logits, labels: logits.double().log_softmax(1),
        )
        table = dict(zip(sites, np.concatenate(predictions), strict=True))
        return [
            sum(
                table[site][protein.ids[variant.residues[site]]]
                - table[site][wild[site]]
                for site in variant.sites
            )
            for variant in variants
        ]


def _read(text, name, wild, first_position, separator):
    """Return the `Variant` that a text writes; `name` is that for messages."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, got {show(text)}.")
    text = text.strip()
    if text and not any(letter.isdigit() for letter in text):
        residues = text.split() if separator else list(text)
        if len(residues) != len(wild):
            raise ValueError(
                f"{name}, {show(text)}, would be the sequence of a protein of "
                f"{len(residues)} residues, where wild has {len(wild)}: {OTHER_LENGTH} "
                "Write '' for the wild type, and leave out what is missing."
            )
    else:
        residues, changed = list(wild), set()
        for mutation in filter(None, text.split(":")):
            match = SUBSTITUTION.fullmatch(mutation)
            if not match:
                advice = f" {OTHER_LENGTH}" if re.search("del|ins", mutation) else ""
                raise ValueError(
                    f"{name} must be 'K3R' for a substitution, 'K3R:D7E' for several, "
                    f"or a whole sequence; got {show(mutation)}.{advice}"
                )
            old, position, new = match.groups()
            site = int(position) - first_position
            if not 0 <= site < len(wild):
                raise ValueError(
                    f"{name} has {mutation!r}, but positions run from {first_position} "
                    f"to {first_position + len(wild) - 1}."
                )
            if wild[site] != old:
                raise ValueError(
                    f"{name} has {mutation!r}, but the wild type has {wild[site]} at "
                    f"position {position}; see first_position."
                    f"{advice_on_case(old, wild[site])}"
                )
            if site in changed:
                raise ValueError(
                    f"{name} must change each position once, got {mutation!r}."
                )
            changed.add(site)
            residues[site] = new
    differs = [new != old for new, old in zip(residues, wild, strict=True)]
    return Variant(residues, np.flatnonzero(differs))


def advice_on_case(residues, known):
    """Say so if residues that are not known are known in capital letters."""
    is_case = any(r.islower() and r.upper() in known for r in residues)
    return " Write residues in capital letters, by .upper()." if is_case else ""
