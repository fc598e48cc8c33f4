"""The estimator that scores texts by a masked language model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, Literal, overload

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
from sklearn_mpt._checks import (
    AUTO,
    COUNT,
    N_JOBS,
    VERBOSE,
    RandomState,
    check,
    check_bool,
    check_choice,
    check_n_jobs,
    draw_seed,
)
from sklearn_mpt._text.filling import FillingMixin
from sklearn_mpt._text.loading import OpeningParams, check_words
from sklearn_mpt._text.masked_lm import probe, score_windows
from sklearn_mpt._text.masks import (
    METHODS,
    MaskDraw,
    TextScores,
    TokenScores,
    check_rates,
    frame_of_tokens,
    text_curve,
)
from sklearn_mpt._text.variants import VariantsMixin
from sklearn_mpt._text.windows import (
    Texts,
    check_lengths,
    check_texts,
    fit_windows,
    longest_input,
    warn_of_cut_tokens,
    warn_of_no_words,
    whole_text,
)

AUTO_MASKS_OF_RATES = 2  # masks of each rate in `transform`, if n_masks is "auto"
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
            self.uses_gathered_head_ = probe(language_model, len(tokenizer))
            language_model.gathered = self.uses_gathered_head_
            if texts is not None:
                wholes = [whole_text(text) for text in texts]
                warn_of_no_words(tokenizer, self._distinct_windows(wholes)[0])
            model = language_model.model
            self.max_length_ = longest_input(model, tokenizer, self.max_length)
            self.n_parameters_ = sum(tensor.numel() for tensor in model.parameters())
            self.mask_token_id_ = tokenizer.mask_token_id
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

    @overload
    def score_samples(
        self, X: Texts, return_std: Literal[False] = False
    ) -> np.ndarray: ...
    @overload
    def score_samples(
        self, X: Texts, return_std: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray]: ...
    def score_samples(
        self, X: Texts, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Compute the log-probability of each text by the chosen `method`.

        It is the log-probability given the number of tokens.

        Parameters
        ----------
        X : iterable of str, of (str, str) or of (str, int, int) tuples
            Texts; (context, text) pairs, of which only the text is scored; or (text,
            start, stop) parts of texts, of which the characters from `start` to `stop`
            are scored, given the rest of the text. A token is in the part that holds
            its first character that is no white space, or its first character if there
            is no such one. Pairs may be two columns of a DataFrame or an array, and
            parts three.
        return_std : bool, default=False
            Whether to return the standard error over masks too.

        Returns
        -------
        log_prob : ndarray of shape (n_texts,)
            Log-probabilities in nats per text, given its number of tokens; 0.0 for a
            text without tokens to hide.
        std_error : ndarray of shape (n_texts,)
            Standard error from drawing masks, in nats: of "mpt" the variances over the
            masks of each size, summed over sizes; of "chain" the spread over orders.
            It is enlarged, by Student's t, so that plus or minus 1.96 standard errors
            is about a 95% interval: the :doc:`guide </texts>` has figures. Zero if the
            method is not random or all masks are used, NaN if it is and `n_masks` is 1,
            as a single draw has no estimate of its error, or the text has probability
            0. Only if `return_std` is True.

        Raises
        ------
        TypeError, ValueError
            If X is not a list of texts or of pairs, or mixes them; if a text is longer
            than `max_length_` and `overflow` is "error"; if a context leaves no room
            for the text; if a prediction is NaN; if the scorer was unpickled and the
            files in the folder of its model have changed.

        Warns
        -----
        UserWarning
            If a part begins within a token, which then is not scored.
        """
        self._check_is_fitted()
        check_bool(return_std, "return_std")
        scores = self._score_texts(X, self._draw())
        log_prob = scores.totals()
        return (log_prob, scores.std_errors()) if return_std else log_prob

    def score(self, X: Texts, y: object = None) -> float:
        """Compute the mean log-probability of the texts.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts, or pairs of a context and a text.
        y : Ignored
            Not used, present for API consistency by convention.

        Returns
        -------
        float
            Log-probability in nats per text, given its number of tokens.
        """
        return float(np.mean(self.score_samples(X)))

    def count_tokens(self, X: Texts) -> np.ndarray:
        """Count the tokens of each text that can be hidden, and so are scored.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts, or (context, text) pairs, of which only the text counts.

        Returns
        -------
        n_tokens : ndarray of int of shape (n_texts,)
            Numbers of tokens without special tokens, before longer texts are cut.
        """
        self._check_is_fitted()
        windows = self._windows(check_texts(X))
        return np.array([len(window.positions) for window in windows])

    def token_scores(
        self, X: Texts, *, as_frame: bool = False
    ) -> list[TokenScores] | Any:
        """Compute the contribution of each token to the score of its text.

        For "pll", "pll_word_l2r" and "ordered", it is the log-probability of the token
        given the visible tokens. For "chain", it is the mean over orders of the
        log-probability of the token given those before it, which is an estimate of its
        Shapley value. For "mpt", it is an estimate of the Shapley value from all masks
        that hide the token.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts, or (context, text) pairs, of which only the text is scored.
        as_frame : bool, default=False
            Whether to return a pandas DataFrame with a row for each token: the
            index of its `text`, `token`, its `start` and `end` in the text, the index
            of its `word`, `log_prob` and `std_error`.

        Returns
        -------
        list of TokenScores of length n_texts
            Each has `text`; its `tokens`; their `offsets` in the text, of shape
            (n_tokens, 2), and the `pieces` of the text at these offsets; the index of
            the word of each token, `words`; `log_prob` and `std_error` over masks, in
            nats, of shape (n_tokens,); `contrasts` of shape (n_draws, n_tokens), where
            ``contrasts.T @ contrasts`` estimates the covariance of the errors; and the
            method `by_word()`, which returns the same for words. The sum of `log_prob`
            is the score of the text. Special tokens in a text are left out, as they are
            not scored.
        """
        self._check_is_fitted()
        check_bool(as_frame, "as_frame")
        texts = check_texts(X)
        scores = self._score_texts(texts, self._draw())
        parts = scores.tokens(texts, self._open_again()[1])
        return frame_of_tokens(parts) if as_frame else parts

    def conditional_log_prob(
        self, X: Texts, mask: Iterable[ArrayLike]
    ) -> list[np.ndarray]:
        r"""Compute the log-probability of each hidden token given the visible tokens.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts, or (context, text) pairs, not longer than `max_length_`.
        mask : iterable of array-like of bool of shape (n_tokens,)
            One for each text, True where a token is hidden. The tokens are those that
            `token_scores` lists.

        Returns
        -------
        list of ndarray of shape (n_tokens,)
            :math:`\log p(x_j \mid x_R)` in nats at hidden tokens, 0 at visible ones.

        Raises
        ------
        TypeError, ValueError
            If a mask does not fit its text, if a text is too long, or as
            `score_samples` does.
        """
        self._check_is_fitted()
        windows = self._windows(check_texts(X))
        if not hasattr(mask, "__iter__"):
            raise TypeError(
                "mask must be a list of boolean arrays, one for each text, got a "
                f"single {type(mask).__name__}."
            )
        masks = [np.asarray(text_mask) for text_mask in mask]
        if len(masks) != len(windows):
            raise ValueError(
                f"mask must hold one mask for each text, got {len(masks)} for "
                f"{len(windows)} texts."
            )
        for index, (hidden, window) in enumerate(zip(masks, windows, strict=True)):
            n_tokens = len(window.positions)
            if hidden.shape != (n_tokens,) or (n_tokens and hidden.dtype != bool):
                raise ValueError(
                    f"mask[{index}] must hold a bool for each of the {n_tokens} tokens "
                    f"of its text, got shape {hidden.shape} and dtype {hidden.dtype}."
                )
        masks = [hidden.astype(bool) for hidden in masks]
        check_lengths(windows, self.max_length_)
        chosen = [
            replace(window, positions=window.positions[hidden])
            for hidden, window in zip(masks, windows, strict=True)
        ]
        draw = MaskDraw(None, self._seed)
        language_model, _ = self._open_again()
        scores = score_windows(language_model, chosen, draw, self.n_jobs, self.verbose)
        log_prob = [np.zeros(len(hidden)) for hidden in masks]
        for values, hidden, score in zip(log_prob, masks, scores, strict=True):
            values[hidden] = score.tokens
        return log_prob

    @overload
    def perplexity(self, X: Texts, return_std: Literal[False] = False) -> float: ...
    @overload
    def perplexity(
        self, X: Texts, return_std: Literal[True]
    ) -> tuple[float, float]: ...
    def perplexity(
        self, X: Texts, return_std: bool = False
    ) -> float | tuple[float, float]:
        r"""Compute the perplexity per token of all texts together.

        It is :math:`\exp(-\sum_i s_i / \sum_i L_i)`, where :math:`s_i` is the score of
        text i by `method` and :math:`L_i` its number of scored tokens. For "pll" and
        "pll_word_l2r" it is the pseudo-perplexity of Salazar et al. [1]_; for "mpt"
        and "chain", an upper bound of a perplexity.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts, or (context, text) pairs, of which only the text counts.
        return_std : bool, default=False
            Whether to return the standard error from drawing masks too.

        Returns
        -------
        perplexity : float
            NaN if no text has tokens to hide, as for ``[""]``; infinite if it is too
            large for a float. Perplexities of models with different tokenizers cannot
            be compared, because their tokens differ.
        std_error : float
            The perplexity times the standard error of its logarithm (a first-order
            approximation); NaN if masks are random and `n_masks` is 1. Only if
            `return_std` is True.

        Raises
        ------
        TypeError, ValueError
            As in `score_samples`; also if there are no texts.

        References
        ----------
        .. [1] J. Salazar, D. Liang, T. Q. Nguyen and K. Kirchhoff, "Masked language
           model scoring", ACL 2020.
        """
        self._check_is_fitted()
        check_bool(return_std, "return_std")
        scores = self._score_texts(X, self._draw())
        n_tokens = scores.n_tokens().sum()
        with np.errstate(over="ignore", invalid="ignore"):
            perplexity = np.exp(-scores.totals().sum() / n_tokens)
            of_log = scores.std_error_of_sum() / n_tokens
            error = 0.0 if of_log == 0 else perplexity * of_log  # may be 0 times inf
        return (float(perplexity), float(error)) if return_std else float(perplexity)

    def _draw(self, method=None, seed=None, n_masks=None):
        """Return the draw of the parameters, but for what is given."""
        n_masks = self.n_masks if n_masks is None else n_masks
        # masks of each size, or orders of a text
        n_masks = 4 if n_masks == "auto" else n_masks
        seed = self._seed if seed is None else seed
        return MaskDraw(method or self.method, seed, n_masks)

    def _masked_score_curve(self, X, n_masks, mask_blocks, random_state, n_jobs):
        """Compute what `mpt_curve` returns for texts."""
        self._check_is_fitted()
        if mask_blocks is not None:
            check_choice(mask_blocks, "mask_blocks", ["word"])
        check(n_masks, "n_masks", AUTO, COUNT, None)
        check_n_jobs(n_jobs)
        seed = None if random_state is None else draw_seed(random_state)
        draw = replace(self._draw("mpt", seed, n_masks), mask_blocks=mask_blocks)
        return text_curve(self._score_texts(X, draw, n_jobs))

    def _kind_of_scores(self):
        return METHODS[self.method].kind

    def _score_samples_on_masks(self, X, seed, n_jobs):
        """Compute `score_samples` with the masks of a seed, for `compare_lml`."""
        self._check_is_fitted()
        return self._score_texts(X, self._draw(seed=seed), n_jobs).totals()

    def _token_contributions(self, X, n_orders, random_state, n_jobs):
        """Compute what `feature_contributions` returns for texts."""
        texts = check_texts(X)
        scores = self._score_along_orders(texts, n_orders, random_state, n_jobs)
        parts = scores.tokens(texts, self._open_again()[1])
        values = [part.log_prob for part in parts]
        errors = [part.std_error for part in parts]
        pieces = [np.array(part.pieces, dtype=object) for part in parts]
        return values, errors, pieces, None

    def _lml_along_orders(self, X, n_orders, random_state, n_jobs):
        """Compute what `lml_samples` returns for texts."""
        scores = self._score_along_orders(X, n_orders, random_state, n_jobs)
        return scores.totals(), scores.std_errors()

    def _score_along_orders(self, X, n_orders, random_state, n_jobs):
        self._check_is_fitted()
        seed = None if random_state is None else draw_seed(random_state)
        return self._score_texts(X, self._draw("chain", seed, n_orders), n_jobs)

    def _score_texts(self, X, draw, n_jobs=None):
        language_model, tokenizer = self._open_again()
        check_words(draw.method, tokenizer, draw.mask_blocks)
        texts = check_texts(X)
        windows, first = self._distinct_windows(texts)
        warn_of_no_words(tokenizer, windows)
        warn_of_cut_tokens(windows, texts)
        is_centred = METHODS[draw.method].is_centred
        windows = fit_windows(windows, self.max_length_, self.overflow, is_centred)
        n_jobs = self.n_jobs if n_jobs is None else n_jobs
        scores = score_windows(language_model, windows, draw, n_jobs, self.verbose)
        return TextScores(windows, scores, draw, first)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []
        tags.non_deterministic = False
        return tags
