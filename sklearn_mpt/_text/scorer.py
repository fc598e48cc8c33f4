"""The estimator that scores texts by a masked language model."""

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, DensityMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from sklearn_mpt._persistence import VersionedPickleMixin, all_or_nothing
from sklearn_mpt._seeds import RandomState, draw_seed
from sklearn_mpt._text.filling import FillingMixin
from sklearn_mpt._text.loading import OpenedModelMixin, check_words
from sklearn_mpt._text.masked_lm import probe
from sklearn_mpt._text.masks import Draw, check_rates
from sklearn_mpt._text.scores import (
    Texts,
    TextScoresMixin,
    check_scorer_parameters,
    count_masks,
)
from sklearn_mpt._text.streaming import StreamingMixin
from sklearn_mpt._text.texts import check_texts
from sklearn_mpt._text.variants import VariantsMixin
from sklearn_mpt._text.windows import longest_input, warn_of_unknown


class MPTScorer(
    OpenedModelMixin,
    TextScoresMixin,
    FillingMixin,
    VariantsMixin,
    StreamingMixin,
    TransformerMixin,
    DensityMixin,
    VersionedPickleMixin,
    BaseEstimator,
):
    r"""Score texts by a masked language model.

    For each number m of hidden tokens, from one to all L of a text, random sets of m
    tokens are replaced by the mask token, and their log-probabilities given the others
    are averaged:

    .. math:: S(m) = \mathbb{E}_{|M| = m} \frac{1}{m} \sum_{j \in M}
              \log p(x_j \mid x_R).

    Their sum :math:`\sum_{m=1}^{L} S(m)` is a lower bound of the log-probability of the
    text under the mixture, over all orders, of the autoregressive models that predict
    its tokens in that order; for the conditionals of one joint distribution it is that
    log-probability ([1]_, Proposition 1). All scores are given the number of tokens of
    the text, :math:`\log p(x \mid L)`, as nothing in masks says how probable that is.

    Parameters
    ----------
    model : str, path or torch.nn.Module, default="bert-base-uncased"
        A name on the Hugging Face hub, a folder written by ``save_pretrained``, or a
        loaded masked language model, which is never changed. Weights are read from
        safetensors only. It may be any module from ``input_ids``, with mask tokens
        among them, to logits, such as a masked diffusion model; one that takes the time
        of a diffusion is adapted by :class:`MaskedDiffusionLM`.
    tokenizer : str, path or transformers.PreTrainedTokenizerBase, default=None
        None loads that of a named model; a loaded model needs one.
    mask_rates : array-like of float in (0, 1], default=None
        The rates of `transform`. None means 0.01, 0.02, ..., 0.99. Rate r hides
        ``max(1, floor(r * L + 0.5))`` tokens of a text of L.
    n_masks : int or "auto", default="auto"
        Random masks per size, or orders. They are different ones; where there are no
        more, all are taken and nothing is random. With 1 standard errors are unknown,
        and with 2 or 3 orders they are wide. "auto" is 4 orders, which are balanced, or
        2 masks per size where these are independent, as in `transform`.
    method : {"mpt", "pll", "pll_word_l2r", "chain", "ordered"}, default="mpt"
        What `score_samples` returns: "mpt" the sum above; "pll" the pseudo-
        log-likelihood, each token given all others [2]_; "pll_word_l2r" the same, but
        the later tokens of the word hidden too [3]_; "chain" the log-probability in
        random orders, one token after the other, which estimates the same as "mpt";
        "ordered" that of one order, exactly.
    order : {"left_to_right", "confident", "block"}, default="left_to_right"
        In which order tokens become visible for "ordered": from left to right; always
        the one of which the model is most certain, by the largest probability that any
        token has in its place, as masked diffusion models are sampled; or `block_size`
        at a time from left to right, whose probabilities are multiplied. With each of
        them the probabilities of all texts of one length add up to one.
    block_size : int, default=4
        Tokens that become visible at a time if `order` is "block".
    design : {"chain", "independent"}, default="chain"
        How masks are drawn for "mpt". "chain" draws orders: tokens become visible one
        after the other, and after each all that are hidden are scored; the next ones
        alone serve as control variates, see Notes. "independent" draws masks of each
        size apart, as the formula has it. Both estimate the same, by as many passes.
        `transform` has independent masks.
    batch_tokens : int, default=4096
        Tokens in one forward pass, padding included; more pays off on a GPU. A single
        text that is longer has a pass of its own. Halved where memory runs out.
    max_length : int, default=None
        Most tokens of a text, special ones included. None takes what the model and the
        tokenizer allow.
    overflow : {"error", "truncate", "stride", "split"}, default="error"
        What to do with longer texts: raise; cut the end off and warn; see them through
        windows that overlap by half, see Notes; or split them into blocks, each of
        which is scored as a text of its own.
    device : str or torch.device, default="auto"
        Where to compute; "auto" takes CUDA if there is any, else the CPU.
    dtype : {"float32", "bfloat16", "float16", "float64", "auto"}, default="float32"
        Of the weights; "auto" is that of the model. Log-probabilities are normalised
        in float32 at least.
    n_jobs : int, default=None
        Number of joblib workers, threads by default. Processes, as chosen by
        ``joblib.parallel_config``, load a named model once each; a loaded one is sent
        once to each. Not used on CUDA.
    random_state : int, RandomState instance or None, default=0
        Determines the masks, together with the tokens of a text: the same text has the
        same masks in any batch, and for any model with the same tokenisation.
    revision : str, default=None
        Branch, tag or commit of the named model.
    local_files_only : bool, default=False
        Whether to load from the local cache or folder only.
    trust_remote_code : bool, default=False
        Whether to run code that comes with the named model.
    verbose : bool, default=False
        Whether to show a progress bar, which needs the package rich, as
        `sklearn.callback.ProgressBar` does for the other estimators.

    Attributes
    ----------
    n_parameters_ : int
        Number of parameters of the model.
    mask_token_id_ : int
        Token that stands for hidden ones.
    max_length_ : int or float
        Most tokens of a text, special ones included; infinite if nothing limits it.
    uses_gathered_head_ : bool
        Whether the model's head runs on hidden tokens alone. `fit` tries that; where
        the numbers are not those of a full pass, all positions are computed.

    See Also
    --------
    mpt_curve : The scores averaged over texts, against the mask rate.
    MaskedDiffusionLM : Adapter of masked diffusion models.

    Notes
    -----
    Tokens that the tokenizer adds, and special ones written in a text, are never
    hidden. A text without other tokens scores 0.0, and its row of `transform` is NaN.

    A pickle of a scorer of a named model holds its name, not its weights: the model is
    read again. Of a folder it holds a hash of the files that `fit` read, and a folder
    that has changed since is refused; of a name on the hub it holds the commit, where
    the cache tells it, and that commit is read. A loaded model goes into the pickle. It
    is shared with the scorer, not copied, if it has the `dtype` and is on the `device`
    that are asked for: if its weights are trained after `fit`, the scores follow.

    Texts may be pairs (context, text): the text alone is scored, and the context, which
    stands before it as the tokenizer joins two sequences, is never hidden.

    In one order of the tokens let :math:`a_t` be the mean log-probability of all that
    are hidden after t are visible, and :math:`b_t` that of the next one. The sums A of
    the former and C of the latter have the same expectation over orders, the score; the
    chain design averages :math:`C - w (C - A)`, with the w that has the least variance
    as far as the orders of the text can tell. Orders come in fours that are balanced:
    a token is late in as many as it is early.

    Each different text is scored once. A text of L tokens takes ``L * n_masks`` passes
    of one row, for "pll" and "ordered" L. The vocabulary projection runs at hidden
    positions only.

    With ``overflow="stride"`` each token is scored in one window, and the scores of the
    windows add up. For "mpt" and "chain" it is the first window that holds the token:
    a window is scored given the half of it that the window before scored, so the sum is
    a bound of the log-probability still, with context cut short. For "pll" it is the
    window where the token is farthest from the edges. A context is in every window.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.
    .. [2] J. Salazar, D. Liang, T. Q. Nguyen and K. Kirchhoff, "Masked language model
       scoring", ACL 2020.
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
    >>> tokenizer = PreTrainedTokenizerFast(
    ...     tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]",
    ...     mask_token="[MASK]")
    >>> model = BertForMaskedLM(BertConfig(
    ...     vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2))
    >>> from sklearn_mpt import MPTScorer
    >>> texts = ["the cat sat on the mat", "the mat sat"]
    >>> scorer = MPTScorer(model, tokenizer, n_masks=5, random_state=0).fit(texts)
    >>> log_prob, std_error = scorer.score_samples(texts, return_std=True)
    >>> bool((log_prob < 0).all())
    True

    What its tokens contribute to the score of a text:

    >>> parts = scorer.token_scores(texts)
    >>> parts[1].tokens
    ['the', 'mat', 'sat']
    >>> bool(abs(parts[1].log_prob.sum() - log_prob[1]) < 1e-9)
    True
    >>> (fills,) = scorer.fill(["the [MASK] sat on the [MASK]"], n_samples=3)
    >>> [len(fill.tokens) for fill in fills]
    [2, 2, 2]
    """

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
        design: str = "chain",
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

    def fit(self, X: Texts | None = None, y: object = None) -> "MPTScorer":
        """Load the model and check that it, its tokenizer and the parameters fit.

        Nothing is learned from the texts.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples, default=None
            Texts. Their type is checked, and a warning is given if most of the words
            of most of the first 100 are unknown to the tokenizer.
        y : Ignored
            Not used, present for API consistency by convention.

        Returns
        -------
        self : MPTScorer

        Raises
        ------
        OSError
            If a named model or tokenizer cannot be loaded.
        ValueError, TypeError
            If the model is no masked language model, or predicts differently each
            time; if weights are missing, left over, not finite or on the device "meta",
            or predictions are NaN; if the tokenizer has no mask token, none but special
            tokens or more tokens than the model; or if a parameter is not allowed.
        """
        with all_or_nothing(self):
            self._load(X)
        return self

    def _load(self, X):
        check_scorer_parameters(self)
        texts = None if X is None else check_texts(X)
        self._rates = check_rates(self.mask_rates)
        self._seed = draw_seed(self.random_state)
        language_model, tokenizer = self._open()
        check_words(self.method, tokenizer)
        if texts is not None:
            warn_of_unknown(tokenizer, texts)
        model = language_model.model
        self.max_length_ = longest_input(model, tokenizer, self.max_length)
        self.n_parameters_ = sum(tensor.numel() for tensor in model.parameters())
        self.mask_token_id_ = tokenizer.mask_token_id
        self.uses_gathered_head_, self._can_pad = probe(language_model, tokenizer)
        language_model.gathered = self.uses_gathered_head_
        language_model.can_pad = self._can_pad

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
        check_is_fitted(self)
        n_masks = count_masks(self.n_masks, is_chain=False)
        draw = Draw("mpt", self._seed, n_masks, self._rates)
        n_places, sums = self._score_texts(X, draw).at_rates(self._rates)
        with np.errstate(invalid="ignore"):
            return sums / n_places[:, None]

    def get_feature_names_out(self, input_features: object = None) -> np.ndarray:
        """Name the columns of `transform` by their mask rates.

        Parameters
        ----------
        input_features : Ignored
            Not used, present for API consistency by convention.

        Returns
        -------
        names : ndarray of str of shape (n_rates,)
        """
        check_is_fitted(self)
        return np.array([f"mask_rate_{rate:g}" for rate in self._rates], dtype=object)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []
        tags.non_deterministic = False
        return tags
