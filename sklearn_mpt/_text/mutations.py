"""Variants of a protein, as they are written: substitutions, deletions, sequences."""

import re
from functools import partial
from typing import NamedTuple

import numpy as np

from sklearn_mpt._checks import warn_caller
from sklearn_mpt._text.texts import show

SUBSTITUTION = re.compile(r"([A-Za-z])(\d+)([A-Za-z])")
DELETION = re.compile(r"([A-Za-z])(\d+)(?:_([A-Za-z])(\d+))?del(?:ins([A-Za-z]+))?")
INSERTION = re.compile(r"([A-Za-z])(\d+)_([A-Za-z])(\d+)ins([A-Za-z]+)")
SYNTAX = (
    "'K3R' for a substitution, 'K3R:D7E' for several, 'K3del' or 'K3_D7del' for a "
    "deletion, 'K3_D4insGG' for an insertion, 'K3_D7delinsGG' for both, or a whole "
    "sequence"
)
NO_SEQUENCES = ("WT", "NA", "NAN", "NONE", "NULL")  # which tables hold in their place


class Variant(NamedTuple):
    """A variant: its residues, and the sites where it differs from the wild type.

    `sites` is None if the variant has another length than the wild type.
    """

    residues: list[str]
    sites: np.ndarray | None


def read_variants(variants, wild, first_position, separator=""):
    """Return the `Variant` of each entry.

    Parameters
    ----------
    variants : list of str
    wild : list of str
        Residues of the wild type.
    first_position : int
        Position of the first residue.
    separator : str, default=""
        Separator between the residues of whole sequences.
    """
    return [
        _read(variant, index, wild, first_position, separator)
        for index, variant in enumerate(variants)
    ]


def _read(variant, index, wild, first_position, separator):
    name = f"variants[{index}]"
    if not isinstance(variant, str):
        raise TypeError(f"{name} must be a str, got {show(variant)}.")
    text = variant.strip()
    if _is_sequence(text):
        residues = text.split() if separator else list(text)
        if text.upper() in NO_SEQUENCES and len(residues) != len(wild):
            raise ValueError(
                f"{name} is {text!r}, which would be read as the sequence of a protein "
                f"of {len(residues)} residues, where wild has {len(wild)}. Write '' "
                "for the wild type, and leave out what is missing."
            )
    else:
        residues = _mutated(text, name, wild, first_position)
    if len(residues) != len(wild):
        return Variant(residues, None)
    differs = [new != old for new, old in zip(residues, wild, strict=True)]
    return Variant(residues, np.flatnonzero(differs))


def _is_sequence(text):
    """Return whether a text is the sequence of a variant; '' is the wild type."""
    return bool(text.strip()) and not any(letter.isdigit() for letter in text)


def warn_of_lengths(variants, read, wild):
    """Warn of whole sequences of quite another length, which may be no sequences."""
    unusual = [
        i
        for i, (text, variant) in enumerate(zip(variants, read, strict=True))
        if _is_sequence(text)
        and not len(wild) <= 2 * len(variant.residues) <= 4 * len(wild)
    ]
    if unusual:
        first = unusual[0]
        warn_caller(
            f"{len(unusual)} of {len(read)} variants are whole sequences of less than "
            f"half or more than twice the length of wild, {len(wild)}; variants"
            f"[{first}], {show(variants[first])}, has {len(read[first].residues)} "
            "residues. Their scores compare proteins, not mutations."
        )


def _mutated(text, name, wild, first_position):
    """Return the residues of wild with the mutations of a text."""
    pieces, changed = [[residue] for residue in wild], set()
    for mutation in filter(None, text.split(":")):
        index_of = partial(
            _index_of,
            wild=wild,
            first_position=first_position,
            what=f"{name} has {mutation!r}",
        )
        _mutate(pieces, changed, mutation, name, index_of)
    return [residue for piece in pieces for residue in piece]


def _mutate(pieces, changed, mutation, name, index_of):
    """Write a mutation into the pieces of a sequence, one for each residue of wild.

    changed : set of the indices that other mutations have changed; these are added.
    index_of : function from a residue and its position to its index in wild.
    """
    if match := INSERTION.fullmatch(mutation):
        before, start, after, stop, inserted = match.groups()
        left, right = index_of(before, start), index_of(after, stop)
        if right != left + 1:
            raise ValueError(
                f"{name} has {mutation!r}, whose positions are no neighbours."
            )
        pieces[left] = [*pieces[left], *inserted]
        return
    if match := SUBSTITUTION.fullmatch(mutation):
        old, position, new = match.groups()
        sites, first_piece = [index_of(old, position)], [new]
    elif match := DELETION.fullmatch(mutation):
        first, start, last, stop, inserted = match.groups()
        begin = index_of(first, start)
        end = begin if last is None else index_of(last, stop)
        sites, first_piece = range(begin, end + 1), [*(inserted or "")]
    else:
        raise ValueError(f"{name} must be {SYNTAX}; got {show(mutation)}.")
    if not sites or changed.intersection(sites):
        raise ValueError(f"{name} must change each position once, got {mutation!r}.")
    changed.update(sites)
    for site in sites:  # what other mutations insert after a residue stays
        pieces[site] = pieces[site][1:]
    pieces[sites[0]] = [*first_piece, *pieces[sites[0]]]


def _index_of(residue, position, wild, first_position, what):
    """Return the index of a residue of wild at a position, as str."""
    index = int(position) - first_position
    if not 0 <= index < len(wild):
        last = first_position + len(wild) - 1
        raise ValueError(f"{what}, but positions run from {first_position} to {last}.")
    if wild[index] != residue:
        raise ValueError(
            f"{what}, but the wild type has {wild[index]} at position {position}; see "
            f"first_position.{advice_on_case(residue, wild[index])}"
        )
    return index


def advice_on_case(residues, known):
    """Say so if residues that are not known are known in capital letters."""
    is_case = any(r.islower() and r.upper() in known for r in residues)
    return " Write residues in capital letters, by .upper()." if is_case else ""
