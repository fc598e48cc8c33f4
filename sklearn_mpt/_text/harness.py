"""An adapter of scorers to the tasks of lm-eval, EleutherAI's evaluation harness."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sklearn_mpt._checks import check_choice, check_int
from sklearn_mpt._messages import how_to_install
from sklearn_mpt._text.filling import FILL_ORDERS
from sklearn_mpt._text.scorer import MPTScorer
from sklearn_mpt._text.slow_tokenizers import starts_of_tokens

try:
    from lm_eval.api.model import LM
except ImportError:
    LM = object


class MPTHarnessLM(LM):
    """Evaluate a masked language model, or a masked diffusion model, by lm-eval.

    lm-eval asks a model for log-probabilities of continuations given a context, for
    log-probabilities of whole documents, and for texts that continue a context. This
    class answers by a fitted scorer. To run tasks, call
    ``lm_eval.simple_evaluate(MPTHarnessLM(scorer), tasks=[...])``. Needs
    ``pip install ".[lm-eval]"``.

    Parameters
    ----------
    scorer : MPTScorer
        A fitted scorer. Its `method` says which log-probability
        is computed. Log-probabilities are conditional on the number of tokens, which
        matters if continuations of different lengths are compared.
    order : {"random", "left_to_right", "confident"}, default="confident"
        The order in which tokens are drawn, as in `MPTScorer.fill`.
    max_gen_toks : int, default=32
        Number of tokens to write if a task does not give one.

    Raises
    ------
    ImportError
        If lm-eval is not installed.

    Notes
    -----
    A context that leaves no room for its continuation is cut from the left. A
    continuation is greedy if the most probable token is taken in each step, in `order`,
    and all are those of the continuation.

    Examples
    --------
    >>> from sklearn_mpt import MPTHarnessLM, MPTScorer
    >>> scorer = MPTScorer("bert-base-uncased").fit()  # doctest: +SKIP
    >>> model = MPTHarnessLM(scorer)  # doctest: +SKIP
    >>> import lm_eval  # doctest: +SKIP
    >>> lm_eval.simple_evaluate(model, tasks=["blimp"])  # doctest: +SKIP
    """

    def __init__(
        self, scorer: MPTScorer, *, order: str = "confident", max_gen_toks: int = 32
    ):
        if LM is object:
            raise ImportError(
                f"MPTHarnessLM needs lm-eval: {how_to_install('lm-eval')}"
            )
        super().__init__()
        check_is_fitted(scorer)
        check_choice(order, "order", FILL_ORDERS)
        check_int(max_gen_toks, "max_gen_toks")
        self.scorer = scorer
        self.order = order
        self.max_gen_toks = max_gen_toks

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Compute log-probabilities of continuations given their contexts.

        Parameters
        ----------
        requests : sequence of lm_eval.api.instance.Instance
            Whose `args` are (context, continuation).
        disable_tqdm : bool, default=False
            Ignored; the scorer's `verbose` shows progress.

        Returns
        -------
        list of (float, bool)
            The log-probability in nats, and whether the continuation is greedy.
        """
        if not requests:
            return []
        pairs = [self._shortened(*request.args) for request in requests]
        log_prob = np.asarray(self.scorer.score_samples(pairs)).tolist()
        is_greedy = self.scorer._is_greedy(pairs, self.order)
        answers = list(zip(log_prob, is_greedy, strict=True))
        self._remember("loglikelihood", requests, answers)
        return answers

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Compute log-probabilities of whole documents.

        Parameters
        ----------
        requests : sequence of lm_eval.api.instance.Instance
            Whose `args` are (document,). Long ones are scored as the scorer's
            `overflow` says; "stride" or "split" leave nothing out.
        disable_tqdm : bool, default=False
            Ignored.

        Returns
        -------
        list of float
            In nats.
        """
        if not requests:
            return []
        texts = [request.args[0] for request in requests]
        answers = np.asarray(self.scorer.score_samples(texts)).tolist()
        self._remember("loglikelihood_rolling", requests, answers)
        return answers

    def generate_until(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[str]:
        """Write text after contexts by filling in mask tokens.

        Parameters
        ----------
        requests : sequence of lm_eval.api.instance.Instance
            Whose `args` are (context, settings). Of the settings, `max_gen_toks` is the
            number of tokens that are written; the text ends before the first of the
            strings `until`; and `temperature` is 0 unless it is given. Equal requests,
            such as the repeats of a task, have different draws.
        disable_tqdm : bool, default=False
            Ignored.

        Returns
        -------
        list of str
            The text for each request, in the order of the requests.
        """
        equal = defaultdict(list)  # indices of equal requests
        for index, request in enumerate(requests):
            equal[repr(request.args)].append(index)
        answers = [""] * len(requests)
        for indices in equal.values():
            context, settings = requests[indices[0]].args
            temperature = float(settings.get("temperature") or 0.0)
            masks = self.scorer._mask_tokens(
                settings.get("max_gen_toks", self.max_gen_toks)
            )
            (fills,) = self.scorer.fill(
                [self._shortened(context, masks)],
                len(indices) if temperature else 1,
                order=self.order,
                temperature=temperature,
            )
            for index, fill in zip(indices, itertools.cycle(fills), strict=False):
                until = settings.get("until")
                answers[index] = _cut(self._tokenizer, fill.tokens, until)
            if not temperature:  # lm-eval would take a draw for all equal requests
                chosen = [requests[indices[0]]], [answers[indices[0]]]
                self._remember("generate_until", *chosen)
        return answers

    @property
    def _tokenizer(self):
        return self.scorer._open_again()[1]

    def _shortened(self, context, continuation):
        """Cut a context from the left so that its continuation has room."""
        tokenizer, joiner = self._tokenizer, self.scorer._joiner
        alone = ("", continuation) if joiner is None else (joiner + continuation,)
        n_tokens = len(tokenizer(*alone, verbose=False)["input_ids"])
        room = max(0, self.scorer.max_length_ - n_tokens)
        while True:
            starts = starts_of_tokens(tokenizer, context)
            n_cut = len(starts) - room
            if n_cut <= 0:
                return context, continuation
            # the rest of a word may be other tokens, hence again
            starts = [start for start in starts[int(n_cut) :] if start > 0]
            context = context[starts[0] :] if starts else ""

    def _remember(self, name, requests, answers):
        """Hand answers to the cache of lm-eval."""
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial(name, request.args, answer)


def _cut(tokenizer, tokens, until):
    """Return tokens as text, which ends before the first of some strings."""
    text = tokenizer.decode(tokenizer.convert_tokens_to_ids(tokens))
    for stop in [until] if isinstance(until, str) else until or []:
        if stop:
            text = text.split(stop)[0]
    return text
