"""The estimator that scores texts by a masked language model."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, DensityMixin, TransformerMixin
from sklearn.utils._param_validation import StrOptions

from sklearn_mpt._base.state import (
    VersionedPickleMixin,
    all_or_nothing,
    bound_parameters,
)
from sklearn_mpt._checks import AUTO, COUNT, N_JOBS, VERBOSE, RandomState, draw_seed
from sklearn_mpt._text.filling import FillingMixin
from sklearn_mpt._text.loading import OpeningParams, check_words
from sklearn_mpt._text.masked_lm import probe
from sklearn_mpt._text.masks import METHODS, MaskDraw, check_rates
from sklearn_mpt._text.texts import Texts, check_texts, whole_text
from sklearn_mpt._text.variants import VariantsMixin
from sklearn_mpt._text.windows import longest_input, warn_of_no_words

AUTO_MASKS_OF_RATES = 2  # masks of each size in `transform`, if n_masks is "auto"
DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
OVERFLOWS = ("error", "truncate", "stride", "split")


class MPTScorer(
    VariantsMixin,
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
        nothing is random. "auto" is 4, and 2 in `transform`.
    method : {"mpt", "pll", "pll_word_l2r", "chain", "ordered"}, default="mpt"
        The score that `score_samples` returns. "mpt": the sum above, from masks of each
        size that are drawn independently. "pll": the pseudo-log-likelihood, with each
        token given all others [2]_. "pll_word_l2r": the same, but with the later tokens
        of the word hidden too [3]_; it needs a fast tokenizer. "chain": the
        log-probability in random orders, which estimates the same as "mpt". "ordered":
        the exact log-probability from left to right. "mpt" and "chain" take `n_masks`
        rows through the network for each token, and the others one row, which may be
        enough: the :doc:`guide </texts>` says for which questions.
    batch_tokens : int, default=4096
        Number of tokens in one forward pass; halved if memory runs out.
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

    _parameter_constraints: ClassVar[dict] = {
        "n_masks": [COUNT, AUTO],
        "method": [StrOptions({*METHODS})],
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
            Texts like those that will be scored. A warning is given if they hold words
            that the tokenizer does not know.
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
        """
        with all_or_nothing(self):
            self._validate_params()
            # of the others, `fit` keeps what it makes of them
            free = self.get_params().keys() - {"n_masks", "method", "overflow"}
            self._bound = bound_parameters(self, free)
            texts = None if X is None else check_texts(X)
            self._rates = check_rates(self.mask_rates)
            self._seed = draw_seed(self.random_state)
            *opened, self._opening_params = OpeningParams.of(self).open()
            self._opened = language_model, tokenizer = tuple(opened)
            check_words(self.method, tokenizer)
            if texts is not None:
                wholes = [whole_text(text) for text in texts]
                warn_of_no_words(tokenizer, self._distinct_windows(wholes)[0])
            model = language_model.model
            self.max_length_ = longest_input(model, tokenizer, self.max_length)
            self.n_parameters_ = sum(tensor.numel() for tensor in model.parameters())
            self.mask_token_id_ = tokenizer.mask_token_id
            self.uses_gathered_head_ = probe(language_model, len(tokenizer))
            language_model.gathered = self.uses_gathered_head_
        return self

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
        is_auto = self.n_masks == "auto"
        n_masks = AUTO_MASKS_OF_RATES if is_auto else int(self.n_masks)
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
