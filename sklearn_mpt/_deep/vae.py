"""A deep latent variable model, trained by masking."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import StrOptions

from sklearn_mpt._base.density import Units, as_tensor
from sklearn_mpt._base.fitted_density import LatentMixin
from sklearn_mpt._base.nets import NetMPT, UserModule, arrays_of
from sklearn_mpt._base.tables import LikelihoodNames, TableMPT
from sklearn_mpt._checks import (
    AUTO,
    COUNT,
    N_TORCH_SEEDS,
    RandomState,
    check_as_fitted,
    check_widths,
    seed_from,
    warn_caller,
)
from sklearn_mpt._deep.density import (
    DeepDensity,
    EncodeDecodeDensity,
    attributes_of,
    module_of,
)
from sklearn_mpt._deep.nets import (
    ACTIVATIONS,
    IMAGE_FEATURES,
    UserDecoder,
    start,
    widths_and_activation,
)
from sklearn_mpt._deep.objectives import (
    RowLoss,
    ValidationRows,
    bound_gain_losses,
    bound_losses,
    drawn_mask_losses,
    encode_decode_losses,
)
from sklearn_mpt._likelihoods.base import noises_of
from sklearn_mpt._likelihoods.gaussian import SINGLE_NOISE_FLOOR
from sklearn_mpt._optim.weights import UNSEEN_COUNT, relative_weights
from sklearn_mpt._tables.weights import warn_constant

# How features are predicted from others: the density, the loss that trains it if
# n_masks is "auto", and the loss if n_masks is a number.
CONDITIONALS: dict[str, tuple] = {
    "importance": (DeepDensity, bound_gain_losses, drawn_mask_losses),
    "encode_decode": (EncodeDecodeDensity, encode_decode_losses, encode_decode_losses),
}


class MPTDeepVAE(LatentMixin, TableMPT, NetMPT):
    r"""Deep latent variable model trained by masked pre-training (MPT).

    The decoder, a net, maps latent variables z, standard normal, to the
    :term:`location` of each feature. The encoder, a second net, approximates the
    posterior of z given any set of observed features. Training maximises the
    log-probability of hidden features given visible ones; with a uniform mask rate that
    is, in expectation over masks, the log marginal likelihood (LML) ([1]_, Proposition
    1). With the defaults no masks are drawn for the decoder: the scores of all mask
    sizes are summed at once, and random masks train the encoder alone. An int as
    `n_masks` trains by drawn masks, as [1]_ does. The :ref:`user guide <deep_model>`
    says how all is computed.

    Parameters
    ----------
    n_components : int, default=2
        Number K of latent variables.
    likelihood : str, sequence of str or dict, default="gaussian"
        Distribution of features given z: "gaussian" (numbers), "bernoulli" (0 and 1, or
        booleans), "categorical", "ordinal", "partial_credit", "poisson" (counts),
        "negative_binomial" or "lognormal". One name for all columns, one for each, a
        dict or "from_dtype", as in `MPTLinearVAE`; or an instance for all columns.
        If all columns are Gaussian, they share one noise variance and one unit:
        standardise columns of several units.
    decoder : torch.nn.Module or callable, default=None
        A decoder of one's own, or a function of the numbers of inputs and outputs that
        returns one: see the guide. None is a fully connected net.
    hidden_layer_sizes : sequence of int or "auto", default="auto"
        Widths of the hidden layers of the encoder, from the rows on; the decoder has
        them in reverse. ``()`` makes both linear. "auto" is ``(128, 128)``, and from
        256 features on ``(128, 128, 128)``.
    activation : str, default="auto"
        Activation of the hidden layers: "gelu", "logistic", "relu", "silu", "softplus"
        or "tanh". "auto" is "silu", which is smooth, and "relu" from 256 features on.
    n_importance_samples : int or "auto", default="auto"
        Samples of z for each row of a minibatch. "auto" is 4, and 16 with
        ``objective="iwae"``; "elbo" always takes one.
    conditional : {"importance", "encode_decode"}, default="importance"
        Prediction of features from others: by weighted samples, or, for comparison, by
        a chain that draws z and hidden features in turn (Rezende et al., 2014).
    mask_rate : "uniform", float or int, default="uniform"
        Fraction of hidden features, or their number if an int. "uniform" weighs all
        numbers alike and is unbiased for the LML.
    n_masks : int or "auto", default="auto"
        Masks drawn in each gradient step, which the rows of a minibatch get in turn,
        several each if rows are fewer. "auto" sums the scores of all mask sizes if the
        rate is uniform, and else draws one for each row.
    objective : {"mpt", "elbo", "iwae"}, default="mpt"
        What is maximised: the masked scores; or for comparison the evidence lower
        bound, or the importance-weighted one.
    max_iter : int, default=1000
        Largest number of epochs. 0 keeps the initial nets.
    learning_rate : float, default=0.015
        Step size of Adam.
    batch_size : int or "auto", default="auto"
        Rows per gradient step. "auto" is a sixteenth of them, but 32 to 128.
    tol : float, default=1e-3
        Improvement of the objective, in nats per row, below which training ends.
    n_iter_no_change : int, default=20
        Epochs over which it is judged; with `early_stopping` up to twice as many.
    early_stopping : bool, default=True
        Whether validation rows decide on the end of training, the parameters
        that are kept, and the noise. In the last epochs they are trained on, too.
    validation_fraction : float, default=0.1
        Fraction of the rows that are validation rows.
    warm_start : bool, default=False
        Whether `fit` goes on from the parameters of the previous call.
    verbose : bool, default=False
        Whether to print the loss of each epoch.
    device : str or torch.device, default="auto"
        Where to compute; "auto" takes CUDA if there is any, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Determines the initial nets, validation rows, minibatches, masks and samples.
    n_jobs : int, default=None
        Joblib workers of `mpt_curve` and `feature_contributions`, if these are not
        given a number; `fit` does not use it.

    Attributes
    ----------
    decoder_coefs_, decoder_intercepts_ : list of ndarray
        Layers of shapes (n_in, n_out) and (n_out,), from z to locations in the units
        of X: one for each feature, or for each category in the order of `categories_`.
        Only without a `decoder`.
    module_ : torch.nn.Module
        A copy of the trained decoder, in single precision on the CPU.
    encoder_coefs_, encoder_intercepts_ : list of ndarray
        Layers of the encoder, from standardised rows and as many indicators.
    encoder_information_, encoder_precision_ : ndarray
        What observed features add to the natural parameters of the posterior.
    activation_ : str
        Activation of the hidden layers.
    noise_variance_ : float or ndarray of shape (n_features,)
        Variance of the noise, NaN for features that have none. Only if some have.
    dispersion_, thresholds_ : ndarray
        Of amounts and counts, and of levels in order, as in `MPTLinearVAE`.
    likelihoods_, categories_ : list
        Kind and categories of each feature. Only if `likelihood` has kinds of columns.
    n_iter_ : int
        Number of epochs trained.
    loss_curve_ : list of float
        Minus the training objective in each epoch, in nats per row.
    lml_method_ : str
        How `score_samples` computes the LML: "importance".
    n_features_in_ : int
        Number of features in `fit`; `feature_names_in_` has their names, if strings.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import MPTDeepVAE
    >>> X = load_iris().data[::3]
    >>> settings = {"hidden_layer_sizes": (32,), "n_iter_no_change": 5}
    >>> model = MPTDeepVAE(n_components=1, **settings, random_state=0).fit(X)
    >>> log_prob, std_error = model.score_samples(X, return_std=True)
    >>> bool((std_error < 0.1).all())
    True
    """

    decoder_coefs_: list[np.ndarray]
    decoder_intercepts_: list[np.ndarray]
    encoder_coefs_: list[np.ndarray]
    encoder_intercepts_: list[np.ndarray]
    encoder_information_: np.ndarray
    encoder_precision_: np.ndarray
    activation_: str
    noise_variance_: float | np.ndarray

    _free_parameters = (*NetMPT._free_parameters, "n_importance_samples")
    _parameter_constraints: ClassVar[dict] = NetMPT._parameter_constraints | {
        "decoder": [None, torch.nn.Module, callable],
        "activation": [StrOptions({"auto", *ACTIVATIONS})],
        "n_importance_samples": [COUNT, AUTO],
        "conditional": [StrOptions({*CONDITIONALS})],
        "objective": [StrOptions({"mpt", "elbo", "iwae"})],
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        likelihood: LikelihoodNames = "gaussian",
        decoder: UserModule | None = None,
        hidden_layer_sizes: Sequence[int] | str = "auto",
        activation: str = "auto",
        n_importance_samples: int | str = "auto",
        conditional: str = "importance",
        mask_rate: str | float = "uniform",
        n_masks: int | str = "auto",
        objective: str = "mpt",
        max_iter: int = 1000,
        learning_rate: float = 0.015,
        batch_size: int | str = "auto",
        tol: float = 1e-3,
        n_iter_no_change: int = 20,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        verbose: bool = False,
        device: str | torch.device = "auto",
        random_state: RandomState = None,
        n_jobs: int | None = None,
    ):
        self.n_components = n_components
        self.likelihood = likelihood
        self.decoder = decoder
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.n_importance_samples = n_importance_samples
        self.conditional = conditional
        self.mask_rate = mask_rate
        self.n_masks = n_masks
        self.objective = objective
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.verbose = verbose
        self.device = device
        self.random_state = random_state
        self.n_jobs = n_jobs

    @property
    def module_(self) -> torch.nn.Module:
        """A copy of the trained decoder, in single precision on the CPU.

        It maps z to the locations of standardised rows; that of a user does so up to
        those that suit each column alone.
        """
        self._check_is_fitted()
        module = module_of(vars(self), self._likelihood(), "cpu", self.decoder)
        decoder = module.float().decoder
        return decoder.module if isinstance(decoder, UserDecoder) else decoder

    @property
    def _n_features_out(self):
        return len(self.encoder_precision_)

    def _check_parameters(self, n_features):
        check_widths(self.hidden_layer_sizes)

    def _check_fitted_parameters(self):
        super()._check_fitted_parameters()
        if self.decoder is not None:
            return
        widths = [len(intercepts) for intercepts in self.decoder_intercepts_[-2::-1]]
        check_as_fitted(self.hidden_layer_sizes, widths, "hidden_layer_sizes")

    def _start(self, X, rng, weight):
        likelihood = self._likelihood()
        net = widths_and_activation(
            self.hidden_layer_sizes, self.activation, X.shape[1]
        )
        fitted = start(*net, self.n_components, likelihood, X, rng, weight)
        fitted["lml_method_"] = "importance"
        if self.decoder is not None:
            rows = (X - fitted["_shift"]) / fitted["_scale"]
            intercept = likelihood.start_location(
                rows, relative_weights(weight, len(X))
            )
            seed = seed_from(rng, N_TORCH_SEEDS)
            decoder = UserDecoder(
                self.decoder, self.n_components, intercept, "decoder", seed
            )
            fitted["_decoder"] = arrays_of(decoder)
            del fitted["decoder_coefs_"], fitted["decoder_intercepts_"]
        return fitted

    def _density_of(self, fitted, device):
        module = module_of(fitted, self._likelihood(), device, self.decoder)
        units = Units.from_attributes(fitted, device)
        kind, *_ = CONDITIONALS[self.conditional]
        return kind(module, units, device, tuple(fitted["_seed"].tolist()))

    def _trained_attributes(self, module, fitted):
        return attributes_of(module, fitted["_shift"], fitted["_scale"])

    def _epochs(self, data, training):
        fitted, likelihood = data.fitted, self._likelihood()
        module = module_of(fitted, likelihood, data.device, self.decoder).float()
        rows, held_out = self._split_rows(data)
        n_rows, n_features = data.X.shape
        # samples of the prior are near the posteriors only in few dimensions
        n_prior, validation = min(128, 1024 // 2**self.n_components), None
        if len(held_out.X):
            noises = noises_of(module.likelihood)
            is_image = n_features >= IMAGE_FEATURES
            sets_noise = (
                is_image
                and likelihood.values_of_each(n_features) is None
                and self.objective == "mpt"
                and sum(noise.numel() for noise in noises) == 1
            )
            for noise in noises:
                noise.requires_grad_(not sets_noise)
            validation = ValidationRows(
                held_out, n_prior, self.n_components, fitted["_seed"], sets_noise
            )
        n_masks = None if self.n_masks == "auto" else self.n_masks
        batch_size, n_samples = self.batch_size, self.n_importance_samples
        if batch_size == "auto":
            batch_size = np.clip(n_rows // 16, 32, 128)
        if self.objective == "elbo":
            n_samples = 1
        elif n_samples == "auto":
            n_samples = 16 if self.objective == "iwae" else 4
        params = {"n_samples": n_samples, "n_prior": n_prior}
        if self.objective == "mpt":
            _, at_once, drawn = CONDITIONALS[self.conditional]
            kind = at_once if n_masks is None else drawn
            params |= {"mask_rate": self.mask_rate, "n_masks": n_masks}
        else:
            kind, n_masks = bound_losses, None
        of_rows = functools.partial(kind, **params)
        loss = RowLoss(rows, batch_size, data.rng, of_rows, n_masks)
        unseen = likelihood.unseen(data.X) if data.is_all else ()
        if len(unseen):
            loss.unseen = as_tensor(unseen, data.device)
            total = n_rows if data.weight is None else data.weight.sum()
            loss.unseen_weight = UNSEEN_COUNT / total
        return self._net_epochs(
            data, training, module, loss, validation, self.learning_rate
        )

    def _warn_of_limits(self, fitted, n_samples):
        floor = np.asarray(SINGLE_NOISE_FLOOR * fitted["_scale"] ** 2)
        noise_variance = np.asarray(fitted.get("noise_variance_", np.inf))
        constant, low = fitted["_constant"], noise_variance < 10 * floor
        is_per_feature = np.ndim(low) == 1
        if is_per_feature or len(constant) == len(fitted["_shift"]):
            warn_constant(constant, fitted)
        if is_per_feature:
            low[constant] = False
            # logarithms of amounts have a floor of their own, far below
            kinds = getattr(self._likelihood(), "kinds", "gaussian")
            low &= np.array(kinds) == "gaussian"
        elif len(constant) == len(fitted["_shift"]):
            return
        if low.any():
            warn_caller(
                f"noise_variance_={noise_variance[low].min():.3g} fell towards its "
                f"floor of {floor[low].min():.3g}: the model explains the rows almost "
                "without error, and the likelihood may have no maximum. Use fewer "
                "components or smaller nets.",
            )
