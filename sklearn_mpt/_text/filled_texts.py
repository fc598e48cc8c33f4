"""Write the tokens that were filled in into the text that was given."""

import numpy as np

from sklearn_mpt._text.slow_tokenizers import BEGINS, rule_of_words, without_marks


class TextWriter:
    """Puts tokens in the place of the mask tokens of a text, and keeps the rest.

    A token that goes on with the word before it follows without a space. A token that
    begins a word has a space before it, if the tokens of the tokenizer own their
    spaces, or if the letters of two words would touch.
    """

    def __init__(self, tokenizer):
        vocabulary = tokenizer.get_vocab()
        self.tokenizer = tokenizer
        self.owns_spaces = any(token.startswith(BEGINS) for token in vocabulary)
        self.goes_on = rule_of_words(tokenizer)

    def write(self, text, window, positions):
        """Return a text, or a (context, text) pair, with the tokens of its window.

        positions : those of the tokens that were filled in. Without a text, or where
        the offsets of tokens are unknown, the result is as the tokenizer decodes it.
        """
        ids = window.inputs["input_ids"]
        if text is None or (window.offsets < 0).any():
            return self.tokenizer.decode(ids.tolist(), skip_special_tokens=True)
        tokens = self.tokenizer.convert_ids_to_tokens(ids.tolist())
        is_filled = window.at(positions)

        def write_part(part, is_own):
            own = [tokens[i] for i in np.flatnonzero(is_own)]
            return self._write(part, own, window.offsets[is_own], is_filled[is_own])

        if isinstance(text, str):
            return write_part(text, ~window.is_fixed)
        is_context = window.is_fixed & (window.words >= 0)  # added ones have no word
        return write_part(text[0], is_context), write_part(text[1], ~window.is_fixed)

    def _write(self, text, tokens, offsets, is_filled):
        written, position = "", 0
        for first, stop, goes_on in self._groups(tokens, is_filled):
            start, end = offsets[first][0], offsets[stop - 1][1]
            hidden = text[start:end]
            end -= len(hidden) - len(hidden.rstrip())
            if not self.owns_spaces:
                start += len(hidden) - len(hidden.lstrip())
            before = written + text[position:start]
            piece = self._spell(tokens[first:stop])
            if goes_on:  # spaces that are a token of their own stay
                kept = max(position, offsets[first - 1][1])
                before = written + text[position:kept] + text[kept:start].rstrip()
            elif self._needs_space(before, piece):
                before += " "
            written, position = before + piece, end
        return written + text[position:]

    def _groups(self, tokens, is_filled):
        """Return first, stop and whether it goes on, of each run of filled tokens.

        Tokens of one word are in one run.
        """
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

    def _spell(self, tokens):
        if self.owns_spaces:
            return self.tokenizer.convert_tokens_to_string(tokens).lstrip(" ")
        return "".join(map(without_marks, tokens))

    def _needs_space(self, before, piece):
        if not before or before[-1].isspace() or self.goes_on is None:
            return False
        return self.owns_spaces or (before[-1].isalnum() and piece[:1].isalnum())
