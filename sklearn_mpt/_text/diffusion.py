"""Masked diffusion models, and other modules that predict masked tokens."""

from collections.abc import Callable
from inspect import Parameter, signature
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from sklearn_mpt._text.texts import show

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class MaskedDiffusionLM(torch.nn.Module):
    r"""Adapt a masked diffusion model to what scores and trains masked language models.

    A masked diffusion model predicts the masked tokens of a text from all others, as
    BERT does. Many also take the time t of the diffusion, at which a token is masked
    with probability t. The adapter calls ``model(input_ids, t)`` with the fraction of
    the tokens of each text that are masked, and never predicts the mask token.

    Minus the evidence lower bound (NELBO) of such a model, for a linear or any other
    schedule, is minus the score of `MPTScorer`: the sum over numbers of masked tokens
    of their mean log-probability ([1]_, [2]_).

    Parameters
    ----------
    model : torch.nn.Module
        Module from ``input_ids``, (n_texts, n_tokens), to logits, (n_texts, n_tokens,
        n_vocabulary), or to an output with ``logits``. If its forward takes
        ``attention_mask``, it is given that.
    tokenizer : transformers.PreTrainedTokenizerBase
        Its tokenizer, with a mask token.
    time : "share", callable or None, default="share"
        The second argument of the module. "share": the fraction of masked tokens,
        float32 of shape (n_texts,). A callable: its result for that fraction, such as
        the noise level by ``lambda t: -torch.log1p(-t)``. None: the module takes no
        time.

    See Also
    --------
    MPTScorer : Takes a module without time as it is.

    References
    ----------
    .. [1] S. Sahoo, M. Arriola, Y. Schiff, A. Gokaslan, E. Marroquin, J. Chiu, A. Rush
       and V. Kuleshov, "Simple and effective masked diffusion language models",
       NeurIPS 2024.
    .. [2] J. Ou, S. Nie, K. Xue, F. Zhu, J. Sun, Z. Li and C. Li, "Your absorbing
       discrete diffusion secretly models the conditional distributions of clean data",
       ICLR 2025.

    Examples
    --------
    >>> import torch
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import PreTrainedTokenizerFast
    >>> vocabulary = {"[MASK]": 0, "a": 1, "b": 2}
    >>> backend = Tokenizer(models.WordLevel(vocabulary))
    >>> backend.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer = PreTrainedTokenizerFast(
    ...     tokenizer_object=backend, mask_token="[MASK]")
    >>> class Uniform(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.bias = torch.nn.Parameter(torch.zeros(3))
    ...     def forward(self, input_ids, t):
    ...         return self.bias + 0 * t[:, None, None] + 0 * input_ids[..., None]
    >>> from sklearn_mpt import MaskedDiffusionLM, MPTScorer
    >>> model = MaskedDiffusionLM(Uniform(), tokenizer)
    >>> scorer = MPTScorer(model, tokenizer).fit()
    >>> bits = -scorer.score(["a b b a"]) / 4 / torch.tensor(2.0).log()
    >>> round(float(bits), 6)
    1.0
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        time: str | Callable | None = "share",
    ):
        super().__init__()
        if not (time is None or time == "share" or callable(time)):
            raise ValueError(
                f"time must be 'share', a callable or None, got {show(time)}."
            )
        self.model = model
        self.mask_token_id = tokenizer.mask_token_id
        self.time = time
        config = getattr(model, "config", None)
        n_tokens = 1 + max(tokenizer.get_vocab().values())
        self.config = config or SimpleNamespace(vocab_size=n_tokens)

    def forward(self, input_ids, attention_mask=None):
        """Return logits of tokens, as masked language models of transformers do.

        Parameters
        ----------
        input_ids : tensor of shape (n_texts, n_tokens)
            Tokens; those to predict are the mask token.
        attention_mask : tensor of shape (n_texts, n_tokens), default=None
            1 for tokens, 0 for padding. None: there is no padding.

        Returns
        -------
        output : transformers.modeling_outputs.MaskedLMOutput
            Its `logits` have the shape (n_texts, n_tokens, n_vocabulary), and are minus
            infinity for the mask token.
        """
        from transformers.modeling_outputs import MaskedLMOutput

        is_masked = input_ids == self.mask_token_id
        is_token = (
            torch.ones_like(input_ids) if attention_mask is None else attention_mask
        )
        fraction = (is_masked & is_token.bool()).sum(1) / is_token.sum(1)
        arguments = [input_ids]
        if self.time is not None:
            arguments.append(fraction if self.time == "share" else self.time(fraction))
        names = signature(self.model.forward).parameters
        more = {"attention_mask": attention_mask} if "attention_mask" in names else {}
        output = self.model(*arguments, **more)
        logits = output if isinstance(output, torch.Tensor) else output["logits"]
        is_mask = torch.arange(logits.shape[-1], device=logits.device)
        is_mask = is_mask == self.mask_token_id
        return MaskedLMOutput(logits=logits.masked_fill(is_mask, -torch.inf))


def adapt_module(model, tokenizer):
    """Return a module of torch that is no model of transformers as one of these."""
    parameters = signature(model.forward).parameters.values()
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        parameter.name
        for parameter in parameters
        if parameter.kind in kinds and parameter.default is Parameter.empty
    ]
    if len(required) != 1:
        raise ValueError(
            "model must take input_ids alone, but the forward method of "
            f"{type(model).__name__} needs {', '.join(required) or 'no argument'}. One "
            "that takes the time of a diffusion too is adapted by "
            "MaskedDiffusionLM(model, tokenizer)."
        )
    return MaskedDiffusionLM(model, tokenizer, time=None)
