"""The estimator that scores texts by a masked language model."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, DensityMixin, TransformerMixin
from sklearn.utils._param_validation import StrOptions

from sklearn_mpt._checks import (
    AUTO,
    COUNT,
    N_JOBS,
    VERBOSE,
    bound_parameters,
    warn_caller,
)
from sklearn_mpt._persistence import VersionedPickleMixin, all_or_nothing
from sklearn_mpt._seeds import RandomState, draw_seed
from sklearn_mpt._text.excess import measure_excess
from sklearn_mpt._text.filling import FillingMixin
from sklearn_mpt._text.loading import check_words
from sklearn_mpt._text.masked_lm import probe
from sklearn_mpt._text.masks import DESIGNS, METHODS, ORDERS, MaskDraw, check_rates
from sklearn_mpt._text.moderation import MIN_TEXTS
from sklearn_mpt._text.scores import resolve_n_masks
from sklearn_mpt._text.streaming import StreamingMixin
from sklearn_mpt._text.texts import Texts, whole_text
from sklearn_mpt._text.variances import (
    RULES,
    MeasuredDesign,
    measure_designs,
    measure_errors,
)
from sklearn_mpt._text.variants import VariantsMixin
from sklearn_mpt._text.windows import (
    fit_windows,
    longest_input,
    warn_of_unknown,
)

DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
OVERFLOWS = ("error", "truncate", "stride", "split")


class MPTScorer(
    VariantsMixin,
    StreamingMixin,
    FillingMixin,
    TransformerMixin,
    DensityMixin,
    VersionedPickleMixin,
    BaseEstimator,
):
    r"""Score texts by a masked language model.

    For each number m of hidden tokens, from 1 to the number L of tokens of a text, let
    S(m) be the mean log-probability of a hidden token given the visible ones, over
    random sets of m hidden tokens. The score is the sum :math:`\sum_{m=1}^{L} S(m)`.
    Each order of the tokens defines an autoregressive model, and the score is a lower
    bound of the log-probability of the text under the mixture of these models over all
    orders. If the conditionals belong to one joint distribution, it is equal to that
    log-probability ([1]_, Proposition 1). All scores are conditional on L. The
    :doc:`guide </texts>` describes scores, masks, long texts and costs.

    Parameters
    ----------
    model : str, path or torch.nn.Module, default="bert-base-uncased"
        A name on the Hugging Face hub, a folder written by ``save_pretrained``, or a
        loaded masked language model, which is never changed: any module that maps
        ``input_ids`` with mask tokens to logits. Files must be safetensors.
    tokenizer : str, path or transformers.PreTrainedTokenizerBase, default=None
        None loads that of a named model; it must be given with a loaded model.
    mask_rates : array-like of float in (0, 1], default=None
        Mask rates of `transform`. None is 0.01, 0.02, ..., 0.99. In a text of L tokens,
        rate r hides ``max(1, floor(r * L + 0.5))``.
    n_masks : int or "auto", default="auto"
        Number of masks of each size, or of orders. If no more exist, all are used and
        nothing is random. "auto" is 4 orders, or 4 masks of each size where `fit` has
        chosen independent masks, and 2 for ``design="independent"`` and `transform`.
    method : {"mpt", "pll", "pll_word_l2r", "chain", "ordered"}, default="mpt"
        The score that `score_samples` returns. "mpt": the sum above. "pll": the
        pseudo-log-likelihood, with each token given all others [2]_. "pll_word_l2r":
        the same, but with the later tokens of the word hidden too [3]_. "chain": the
        log-probability in random orders, which estimates the same as "mpt". "ordered":
        the exact log-probability in one order. "mpt" and "chain" take `n_masks` rows
        through the network for each token, 4 by default, and the others one row, which
        may be enough: the :doc:`guide </texts>` says for which questions.
    order : {"left_to_right", "confident", "block"}, default="left_to_right"
        The order in which tokens become visible, for "ordered". "confident": in each
        step the token whose most probable prediction has the highest probability.
        "block": `block_size` tokens at a time, whose probabilities are multiplied. With
        each, the probabilities of all texts of one length add up to one.
    block_size : int, default=4
        Number of tokens that become visible at a time if `order` is "block".
    design : {"auto", "chain", "independent"}, default="auto"
        How masks are drawn for "mpt". "chain": tokens become visible one after the
        other in random orders. "independent": masks of each size are drawn
        independently. Both have the same expectation and cost. "auto": the one with
        less variance for some of the texts passed to `fit`; "chain" without texts.
    joiner : str, default=None
        What stands between the context and the text of a pair. None: the tokenizer
        joins them as two sequences. A str, such as ">>" for reactions: they are one
        text with it in between. The context and the joiner are visible and not scored.
    batch_tokens : int, default=4096
        Number of tokens in one forward pass, with padding; halved if memory runs out.
    max_length : int, default=None
        Largest number of tokens of a text, including special tokens. None is the limit
        of the model and the tokenizer.
    overflow : {"error", "truncate", "stride", "split"}, default="error"
        What to do with longer texts. "error": raise. "truncate": cut off the end and
        warn. "stride": use windows that overlap by half; of a context that leaves no
        room for its text, they hold what is around the text. "split": cut them into
        blocks, and score each block as a text of its own.
    device : str or torch.device, default="auto"
        Where to compute; "auto" is CUDA if there is a GPU, else the CPU.
    dtype : {"float32", "bfloat16", "float16", "float64", "auto"}, default="float32"
        Precision of the weights; "auto" is that of the model. Log-probabilities are
        normalised in float32 or float64.
    n_jobs : int, default=None
        Number of joblib workers, which are threads by default. Not used on CUDA.
    random_state : int, RandomState instance or None, default=0
        Determines the masks, together with the tokens of a text: a text has the same
        masks in any batch, and for all models with the same tokenisation.
    revision : str, default=None
        Branch, tag or commit of the named model.
    local_files_only : bool, default=False
        Whether to load from the local cache or folder only.
    trust_remote_code : bool, default=False
        Whether to run code that comes with the named model.
    verbose : bool, default=False
        Whether to show a progress bar, which needs the package rich.

    Attributes
    ----------
    n_parameters_ : int
        Number of parameters of the model.
    mask_token_id_ : int
        Id of the token that replaces hidden tokens.
    max_length_ : int or float
        Largest number of tokens of a text, with special ones; inf if there is no limit.
    uses_gathered_head_ : bool
        Whether the head runs on hidden tokens only; `fit` tests that this is exact.
    design_ : {"chain", "independent"}
        How masks are drawn for "mpt".
    design_variances_ : dict of str to float, or None
        The variance over masks of the score of a text by 4 orders, or 4 masks of each
        size, in squared nats; the mean over the texts that `fit` scored. None if no
        design was chosen.

    See Also
    --------
    mpt_curve : The scores averaged over texts, against the mask rate.
    MaskedDiffusionLM : Adapter of masked diffusion models that take a time.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.
    .. [2] J. Salazar et al., "Masked language model scoring", ACL 2020.
    .. [3] C. Kauf and A. Ivanova, "A better way to do masked language model scoring",
       ACL 2023.

    Examples
    --------
    A model with random weights, and a tokenizer of five words:

    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast
    >>> words = ["[PAD]", "[UNK]", "[MASK]", "the", "cat", "sat", "on", "mat"]
    >>> vocabulary = {word: index for index, word in enumerate(words)}
    >>> backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    >>> backend.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> special = {"unk_token": "[UNK]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    >>> model = BertForMaskedLM(BertConfig(
    ...     vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2))
    >>> from sklearn_mpt import MPTScorer
    >>> scorer = MPTScorer(model, tokenizer, n_masks=5, random_state=0).fit()
    >>> bool(scorer.score(["the cat sat on the mat", "the mat sat"]) < 0)
    True
    """

    # Scores do not depend on these after `fit`, which keeps what it made of them.
    _free_parameters = (
        "model",
        "tokenizer",
        "mask_rates",
        "joiner",
        "batch_tokens",
        "max_length",
        "device",
        "dtype",
        "n_jobs",
        "random_state",
        "revision",
        "local_files_only",
        "trust_remote_code",
        "verbose",
    )
    _parameter_constraints: ClassVar[dict] = {
        "n_masks": [COUNT, AUTO],
        "method": [StrOptions({*METHODS})],
        "design": [AUTO, StrOptions({*DESIGNS})],
        "joiner": [str, None],
        "order": [StrOptions({*ORDERS})],
        "block_size": [COUNT],
        "batch_tokens": [COUNT],
        "max_length": [COUNT, None],
        "overflow": [StrOptions({*OVERFLOWS})],
        "dtype": [StrOptions({*DTYPES})],
        "n_jobs": N_JOBS,
        "revision": [str, None],
        "local_files_only": ["boolean"],
        "trust_remote_code": ["boolean"],
        "verbose": VERBOSE,
    }

    def __init__(
        self,
        model: object = "bert-base-uncased",
        tokenizer: object = None,
        *,
        mask_rates: ArrayLike | None = None,
        n_masks: int | str = "auto",
        method: str = "mpt",
        order: str = "left_to_right",
        block_size: int = 4,
        design: str = "auto",
        joiner: str | None = None,
        batch_tokens: int = 4096,
        max_length: int | None = None,
        overflow: str = "error",
        device: str | torch.device = "auto",
        dtype: str = "float32",
        n_jobs: int | None = None,
        random_state: RandomState = 0,
        revision: str | None = None,
        local_files_only: bool = False,
        trust_remote_code: bool = False,
        verbose: bool = False,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.mask_rates = mask_rates
        self.n_masks = n_masks
        self.method = method
        self.order = order
        self.block_size = block_size
        self.design = design
        self.joiner = joiner
        self.batch_tokens = batch_tokens
        self.max_length = max_length
        self.overflow = overflow
        self.device = device
        self.dtype = dtype
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.revision = revision
        self.local_files_only = local_files_only
        self.trust_remote_code = trust_remote_code
        self.verbose = verbose

    def fit(self, X: Texts | None = None, y: object = None) -> MPTScorer:
        """Load the model and check that it, its tokenizer and the parameters fit.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples, default=None
            Texts like those that will be scored, four or more. If `design` is "auto"
            and `method` "mpt", some are scored to choose the design. Where masks are
            random, some are scored to find out how much variances differ between
            texts, for the standard errors. For `sample`, up to 32 are scored with all
            tokens hidden, to find out whether the model predicts well. A warning is
            given if most of the words of most of the first 100 are unknown to the
            tokenizer.
        y : Ignored
            Not used, present for API consistency by convention.

        Returns
        -------
        self : MPTScorer
            The scorer itself.

        Raises
        ------
        OSError, ImportError
            If a named model or tokenizer cannot be loaded, or has an adapter and peft
            is not installed.
        ValueError, TypeError
            If the model is no masked language model, or predicts differently each
            time; if weights are missing, left over, not finite or on the device "meta",
            or predictions are NaN; if the tokenizer has no mask token, none but special
            tokens or more tokens than the model; or if a parameter is not allowed.

        Warns
        -----
        UserWarning
            If a design is to be chosen, and less than four texts have two or more
            tokens and fit into the model.

        Notes
        -----
        Of up to 32 random texts, the shortest are scored: as many as take at most
        524,288 tokens in all inputs of the model for the choice and for errors, and if
        the design is "chain" as many again for errors of orders. But there are at least
        four, which take the tokens of 16 scores, or of 20 for "chain": 652,800 or
        816,000 if each has 100 tokens and two special ones. They are cut only if they
        have more than 155 tokens. Two more inputs for each of up to 32 texts measure
        how well the model predicts with all tokens hidden.
        """
        with all_or_nothing(self):
            self._load(X)
        return self

    def _load(self, X):
        self._validate_params()
        self._bound = bound_parameters(self, self._free_parameters)
        self._joiner = self.joiner
        texts = None if X is None else self._check_texts(X)
        self._rates = check_rates(self.mask_rates)
        self._seed = draw_seed(self.random_state)
        language_model, tokenizer = self._open()
        check_words(self.method, tokenizer)
        if texts is not None:
            warn_of_unknown(tokenizer, [whole_text(text) for text in texts])
        model = language_model.model
        self.max_length_ = longest_input(model, tokenizer, self.max_length)
        self.n_parameters_ = sum(tensor.numel() for tensor in model.parameters())
        self.mask_token_id_ = tokenizer.mask_token_id
        self.uses_gathered_head_, self._can_pad = probe(language_model, tokenizer)
        language_model.gathered = self.uses_gathered_head_
        language_model.can_pad = self._can_pad
        self._excess = self._measure_excess(texts)
        measured = self._measure(texts)
        self.design_, self.design_variances_ = measured.design, measured.variances
        self._moderations = {self.method: measured.moderation}

    def _measure(self, texts):
        """Measure the variance over masks of some texts, if masks are random."""
        design = "chain" if self.design == "auto" else self.design
        if texts is None or not METHODS[self.method].is_random:
            return MeasuredDesign(design, None, None)
        language_model, _ = self._open_again()
        windows = self._windows_that_fit(texts)
        n_draws = min(RULES.n_draws, self._count_draws(self.method, self.n_masks))
        if self.method == "chain" or self.design != "auto":
            draw = MaskDraw(self.method, self._seed, n_draws, design=design)
            measured = measure_errors(language_model, windows, draw, self.n_jobs)
            return MeasuredDesign(design, None, measured)
        measured = measure_designs(
            language_model, windows, self._seed, n_draws, self.n_jobs
        )
        if measured.variances is None:
            n_known = sum(len(window.positions) > 1 for window in windows)
            warn_caller(
                f"design='auto' needs {MIN_TEXTS} different texts of two or more "
                "tokens that fit into the model to measure the designs, and X has "
                f"{n_known}. So design_ is 'chain', as without texts. Pass more "
                "texts, or set design to 'chain' or 'independent'."
            )
        return measured

    def _measure_excess(self, texts):
        if texts is None:
            return None
        order = np.random.default_rng(self._seed).permutation(len(texts))
        sample = [texts[i] for i in order[: RULES.max_texts]]
        windows = self._windows_that_fit(sample)
        return measure_excess(self._open_again()[0], windows, self._seed)

    def _windows_that_fit(self, texts):
        windows, _ = self._distinct_windows(texts)
        if self.overflow == "error":
            return [window for window in windows if len(window) <= self.max_length_]
        overflow = "stride" if self.overflow == "stride" else "split"
        return fit_windows(windows, self.max_length_, overflow, False)

    def transform(self, X: Texts) -> np.ndarray:
        """Compute the mean log-probability of a hidden token at each mask rate.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts, or pairs of a context and a text.

        Returns
        -------
        scores : ndarray of shape (n_texts, n_rates)
            In nats per hidden token; whatever `method` is. NaN for a text without
            tokens to hide.
        """
        self._check_is_fitted()
        n_masks = resolve_n_masks(self.n_masks, is_chain=False)
        draw = MaskDraw("mpt", self._seed, n_masks, self._rates)
        n_positions, sums = self._score_texts(X, draw).at_rates(self._rates)
        with np.errstate(invalid="ignore"):
            return sums / n_positions[:, None]

    def get_feature_names_out(self, input_features: object = None) -> np.ndarray:
        """Name the columns of `transform` by their mask rates.

        Parameters
        ----------
        input_features : Ignored
            Not used, present for API consistency by convention.

        Returns
        -------
        names : ndarray of str of shape (n_rates,)
            Such as "mask_rate_0.15".
        """
        self._check_is_fitted()
        return np.array([f"mask_rate_{rate:g}" for rate in self._rates], dtype=object)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []
        tags.non_deterministic = False
        return tags
