"""A deep latent variable model, trained by masking."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from sklearn_mpt._checks import (
    check_bool,
    check_choice,
    check_int_or_auto,
    check_real,
    warn_caller,
    warn_constant,
)
from sklearn_mpt._deep.comparators import (
    BoundRows,
    EncodeDecodeDensity,
    EncodeDecodeRows,
)
from sklearn_mpt._deep.density import DeepDensity, attributes_of, module_of
from sklearn_mpt._deep.nets import OwnDecoder
from sklearn_mpt._deep.objectives import (
    DRAWN_MASKS,
    DrawnMasks,
    HeldOutRows,
    MaskedGains,
    Points,
    n_prior_points,
)
from sklearn_mpt._deep.recipe import architecture_for, check_architecture, recipe_for
from sklearn_mpt._deep.solver import DescentSolver
from sklearn_mpt._deep.start import SMOOTH, start, unexplained
from sklearn_mpt._latent.base import LatentMixin
from sklearn_mpt._latent.density import Units, as_tensor
from sklearn_mpt._latent.natural_gradient import Weights
from sklearn_mpt._latent.own_module import OwnModule, check_own
from sklearn_mpt._latent.schedule_free import REST
from sklearn_mpt._likelihoods.gaussian import NOISE_FLOOR
from sklearn_mpt._seeds import RandomState
from sklearn_mpt._tables.estimator import LikelihoodNames, TableMPT

HELD_OUT_POINTS, HELD_OUT_BATCH = 16, 256
# How features are predicted from others: the density, what trains it if n_masks is
# "auto", and what does if that many masks are drawn.
CONDITIONALS = {
    "importance": (DeepDensity, MaskedGains, DrawnMasks),
    "encode_decode": (EncodeDecodeDensity, EncodeDecodeRows, EncodeDecodeRows),
}


class MPTDeepVAE(LatentMixin, TableMPT):
    r"""Deep latent variable model trained by masked pre-training (MPT).

    A fully connected net, the decoder, maps z, standard normal, to the location of each
    feature: the mean of a number, the logit of a yes or no, the logits of categories,
    the logarithm of the rate of a count. A second net, the encoder, approximates the
    posterior of z given any set of observed features. Masked pre-training maximises the
    log-probability of hidden features given visible ones; with a uniform mask rate that
    is, in expectation over masks, the log marginal likelihood (LML) ([1]_, Proposition
    1). With the defaults, a uniform rate and ``n_masks="auto"``, no masks are drawn for
    the decoder: the sum of the scores of all mask sizes is computed at once, and random
    masks train the encoder alone. With an int `n_masks` so many masks are drawn and all
    features that they hide are scored, as in [1]_.

    Parameters
    ----------
    n_components : int, default=2
        Number K of latent variables.
    likelihood : str, sequence of str or dict, default="gaussian"
        Distribution of features given z: "gaussian" (numbers), "bernoulli" (0 and 1, or
        booleans), "categorical" or "poisson" (counts). One name for all columns; a
        sequence of names, one for each; a dict from columns, by name or number, to
        names, the others Gaussian; or "from_dtype", as `MPTLinearVAE` takes them. An
        instance of a likelihood of one's own is that of all columns. Gaussian features
        share one noise variance, if all are, or have each its own.
    hidden_layer_sizes : sequence of int or "auto", default="auto"
        Widths of the hidden layers of the encoder, from the rows on; the decoder has
        them in reverse. ``()`` makes both linear. "auto" is ``(128, 128)``, and from
        256 features on ``(128, 128, 128)``.
    decoder : torch.nn.Module or callable, default=None
        A decoder of one's own, or a function of the numbers of inputs and outputs that
        returns one: convolutions, for instance. It maps z of shape (n, n_components) to
        locations of shape (n, n_locations) of standardised rows, less those that suit
        each column alone, in single and in double precision. A module is copied, and
        its weights are where training starts. It is always in evaluation mode. None is
        a fully connected net.
    activation : str, default="auto"
        Activation of the hidden layers: "gelu", "logistic", "relu", "silu", "softplus"
        or "tanh". "auto" is "silu", which is smooth, and "relu" from 256 features on.
    n_importance_samples : int or "auto", default="auto"
        Points z per row in training. With ``objective="mpt"`` each row of a minibatch
        uses the points of all of them, and "auto" is 4, or 8 where held-out rows set
        the noise in every epoch (see Notes); masks that train the encoder alone use
        half of them from 8 on. Otherwise "auto" is 16.
        ``objective="elbo"`` uses one.
    conditional : {"importance", "encode_decode"}, default="importance"
        How features are predicted from others: by weighted points, which converges to
        the conditional of the model; or, for comparison, by a short chain that draws z
        from the encoder and hidden features from the decoder in turn [2]_.
    mask_rate : "uniform", float or int, default="uniform"
        How many features each mask hides. "uniform" is unbiased for the LML; a float
        in (0, 1] is a fixed rate and an int a fixed size, both biased.
    n_masks : int or "auto", default="auto"
        How many masks are drawn in each gradient step. An int draws that many. The rows
        of a minibatch get them in turn, each row several if there are more masks than
        rows, and every hidden feature of a row is scored given the visible ones. "auto"
        takes estimates of the same objective with less noise: with a uniform rate the
        decoder is trained on the scores of all mask sizes at once, and with a fixed
        one, 128 masks are drawn and some of the features that they hide are scored (see
        Notes). ``conditional="encode_decode"`` always draws masks, 128 for "auto", but
        one for each row at most.
    objective : {"mpt", "elbo", "iwae"}, default="mpt"
        What is maximised: the masked scores; or for comparison the evidence lower
        bound, or the importance-weighted one [3]_.
    max_iter : int, default=1000
        Largest number of epochs, not counting those in which starts are compared. 0
        keeps the initial parameters.
    learning_rate : float, default=0.015
        Step size of Adam, whose iterates are averaged [5]_. From 256 features on, if
        they are real or counts, it is that of axes of the gradients [6]_, and steps are
        up to twice as large.
    batch_size : int or "auto", default="auto"
        Rows per gradient step. "auto" is a sixteenth of them, but 32 to 128. An epoch
        passes over the rows until it has about 16 steps, or once if it has more.
    tol : float, default=1e-3
        Improvement of the objective, in nats per row, below which training counts as
        converged.
    n_iter_no_change : int, default=20
        Number of epochs over which improvement is judged. With `early_stopping` it is
        two thirds of the epochs so far, one to two times as many; where nothing has
        improved, training goes on from the best parameters with steps a fifth as large,
        and ends where one to two times as many epochs bring no more. With step sizes of
        axes (see `learning_rate`) held-out rows end it where those of twice as many
        epochs gain no more on those before than four standard errors.
    early_stopping : bool, default=True
        Whether `fit` holds out some rows, judges starts and improvement by their LML,
        and keeps the last parameters that are no worse for them than the best by more
        than a standard error; noise is theirs, too. Rows that set it in every epoch
        (see Notes) are trained on in the end, for a fifth more epochs, unless
        `warm_start` tells that they are needed again.
    validation_fraction : float, default=0.1
        Share of the rows that is held out: one of every few that principal components
        explain about as well.
    warm_start : bool, default=False
        Whether `fit` goes on from the parameters of the previous call.
    verbose : bool, default=False
        Whether to print the loss of each epoch.
    device : str or torch.device, default="auto"
        Where to compute; "auto" takes CUDA if there is any, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Determines the initial nets, held-out rows, minibatches, masks and points.
    n_jobs : int, default=None
        Number of joblib workers that `mpt_curve` and `feature_contributions` use for
        this model unless told otherwise.

    Attributes
    ----------
    decoder_coefs_ : list of ndarray of shape (n_in, n_out)
        Coefficients of the decoder's layers, from z to the locations (in the units of
        X, logits or logarithms of rates): one for each feature, or one for each
        category, in the order of `categories_`.
    decoder_intercepts_ : list of ndarray of shape (n_out,)
        Intercepts of the decoder's layers. Neither is there with a `decoder`.
    module_ : torch.nn.Module
        A copy of the trained decoder, in single precision on the CPU: of the class of
        `decoder`, if one was given. It maps z to the locations of standardised rows;
        one that was given does so less those that suit each column alone.
    encoder_coefs_, encoder_intercepts_ : list of ndarray
        The layers of the encoder's net, empty if linear. It sees standardised rows,
        one-hot for categories, 0 where not observed; and as many indicators of what is
        observed.
    encoder_information_ : ndarray of shape (2 * n_locations, n_components)
        What each observed feature adds to precision times mean of the posterior:
        multiples of its value, and constants.
    encoder_precision_ : ndarray of shape (n_components, n_locations)
        Columns whose outer products observed features add to its precision.
    activation_ : str
        Activation of the hidden layers.
    noise_variance_ : float or ndarray of shape (n_features,)
        Variance of the noise, NaN for features that are not Gaussian. Only if some are.
    likelihoods_ : list of str
        Kind of each feature. Only if `likelihood` tells kinds of columns.
    categories_ : list of ndarray, or None
        Categories of each feature, None where it has none. Only with `likelihoods_`.
    n_iter_ : int
        Number of epochs trained.
    loss_curve_ : list of float
        Minus the training objective in each epoch, in nats per row.
    lml_method_ : str
        How `score_samples` computes the LML: "importance".
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where all are strings.

    See Also
    --------
    MPTLinearVAE : The linear model, with a closed form or quadrature.
    mpt_curve : The masked scores whose sum is the LML.

    Notes
    -----
    In training the points z_s of all rows of a minibatch are shared, and points of the
    prior (256, or 64 from 256 features on; fewer in more than two dimensions). With
    weights relative to the mixture that they come from, each row has a bound L(R) on
    the log-probability of any set R of its features, and L(R and B) - L(R) estimates
    :math:`\log p(x_B \mid x_R)`. With a uniform mask rate the scores of all sizes along
    any order of the features add up to L(all), less L of no features, which is near 0.
    With ``n_masks="auto"`` the decoder is trained on L(all), which has no noise of
    masks, and the encoder on what a mask leaves of each row, too. With a fixed size m,
    B is one feature, or from 16 features on a run of scores whose sizes are m on
    average; up to four such sets are scored for each mask. With an int `n_masks` each
    hidden feature is such a B, with weight D / m. Each L(R) is too low on average, more
    so the more features are observed, so that L(R and B) - L(R) is too low, too.
    The posterior of each set is fitted to the weights of its points, as in reweighted
    wake-sleep [4]_. Nets are trained in single precision, on
    rows standardised by one shift and one scale, or one for each of several kinds of
    columns.

    Training starts from the best of four short runs of about 160 steps, by the LML of
    the rows held out: from a smooth decoder, from two that bend more, and from one
    that is linear in z, the principal components; linear nets from the first and the
    last. The last is among the parameters of which some are kept. Kinks of "relu"
    have no size, so that with it the first three are alike. From 256 features on z is
    used from any start, and the smooth one is taken. Noise starts low, at 0.05 D of the
    variance of the rows, but 0.1 to 1 of it, and stays there for 120 steps: with more,
    rows do not tell which z is theirs, and no curve is learned. `max_iter` below 10,
    `partial_fit` and a warm start try no other starts.

    Rows trained on have less noise, as the decoder suits them better than others. With
    `early_stopping` noise variances are therefore multiplied by one factor in the end,
    which suits the rows held out, as far as these are enough to tell it from 1. From
    256 features on, if all are Gaussian and the objective is "mpt", that is done after
    every epoch, by a Newton step, and no other step changes them: what is sharp for the
    rows trained on only, more points would learn too well.

    With `sample_weight`, losses of rows are multiplied by it, over its mean, those of
    held-out rows too; minibatches and held-out rows are drawn of rows that count, each
    alike. A fit is near that of repeated rows, not the same.

    The same `random_state` gives the same fit on one machine with one number of
    threads. Other sums of floating point numbers, by more threads or another device,
    are small differences that grow in training as noise does; so does another
    `random_state`. The user guide tells how much fits differ.

    Scores are computed in double precision by importance sampling: scrambled Sobol
    points of a mixture of the encoder's posterior, the Gaussians around up to four
    modes (two in more than three dimensions), which Gauss-Newton steps reach from the
    encoder's mean and the likeliest of 5120 points that all rows share, and the prior.
    In up to three dimensions a row that fits no mode, or one far out alone, gets 500
    starts, of which the best go on after every few steps.
    8 independent scramblings give the standard error, by Student's t. A row gets more
    points, up to 2048 of each part (512 in more than three dimensions) in each
    scrambling, until their weights promise 0.02 nats. They are not asked for
    the standard error: one that decides when to stop is too small. A conditional gets
    up to 256, until its standard error is below 0.01 nats; one that points around the
    posterior of the visible features do not reach is the difference of two likelihoods.
    What `transform` and `impute` average takes up to 128 points of each part in more
    than three dimensions. A row's points have a digital shift of their own, so that
    errors of rows average out, and depend on nothing but what is observed of the row
    and a seed fixed by `fit`.

    A minibatch of B rows with D features and S points per row costs
    :math:`O(B^2 S (D + K^2))` and B S passes through the nets. With an int `n_masks`, B
    is `n_masks` if that is more; D probabilities are then computed for each pair of a
    row and a point, unless all features are binary, where products of matrices do.
    Memory beside X is a few times 32 MiB in scoring.

    The noise variance is kept above 1e-5 of the mean variance of the features.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.
    .. [2] D. J. Rezende, S. Mohamed and D. Wierstra, "Stochastic backpropagation and
       approximate inference in deep generative models", ICML 2014.
    .. [3] Y. Burda, R. Grosse and R. Salakhutdinov, "Importance weighted autoencoders",
       ICLR 2016.
    .. [4] J. Bornschein and Y. Bengio, "Reweighted wake-sleep", ICLR 2015.
    .. [5] A. Defazio, X. Yang, H. Mehta, K. Mishchenko, A. Khaled and A. Cutkosky,
       "The road less scheduled", NeurIPS 2024.
    .. [6] N. Vyas, D. Morwani, R. Zhao, M. Kwun, I. Shapira, D. Brandfonbrener,
       L. Janson and S. Kakade, "SOAP: improving and stabilizing Shampoo using
       Adam", ICLR 2025.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import MPTDeepVAE, MPTProbabilisticPCA
    >>> X = load_iris().data
    >>> model = MPTDeepVAE(n_components=2, hidden_layer_sizes=(32,), random_state=0)
    >>> model = model.fit(X)
    >>> log_prob, std_error = model.score_samples(X, return_std=True)
    >>> bool((std_error < 0.1).all())
    True
    >>> linear = MPTProbabilisticPCA(n_components=2, random_state=0).fit(X)
    >>> model.score(X) > linear.score(X)
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

    _bound_parameters = ("likelihood", "decoder", "activation")
    _objectives = ("mpt", "elbo", "iwae")

    def __init__(
        self,
        n_components: int = 2,
        *,
        likelihood: LikelihoodNames = "gaussian",
        decoder: OwnModule | None = None,
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
        decoder = self._module_of(vars(self), "cpu").float().decoder
        return decoder.module if isinstance(decoder, OwnDecoder) else decoder

    @property
    def _has_chains(self):
        return self.conditional == "importance"

    @property
    def _n_features_out(self):
        return len(self.encoder_precision_)

    def _architecture(self, n_features):
        sizes, activation = self.hidden_layer_sizes, self.activation
        return architecture_for(n_features, self.n_components, sizes, activation)

    def _check_parameters(self, n_features):
        check_own(self.decoder, "decoder")
        check_architecture(self.hidden_layer_sizes, self.activation)
        check_choice(self.conditional, "conditional", CONDITIONALS)
        check_int_or_auto(self.n_importance_samples, "n_importance_samples")
        check_bool(self.early_stopping, "early_stopping")
        check_real(self.validation_fraction, "validation_fraction", "neither", 1)

    def _check_fitted_parameters(self):
        super()._check_fitted_parameters()
        if self.decoder is not None:
            return
        widths = tuple(len(each) for each in self.decoder_intercepts_[-2::-1])
        if widths != self._architecture(self.n_features_in_).widths:
            raise ValueError(
                f"hidden_layer_sizes={self.hidden_layer_sizes} differ from the "
                f"{widths} of the "
                "fitted model that training goes on with; set warm_start=False, or "
                "clone the estimator, to start anew."
            )

    def _start(self, X, rng, weight):
        likelihood = self._likelihood()
        constant = np.flatnonzero(likelihood.constant(X))
        own = {"lml_method_": "importance", "_constant": constant}
        of = self._architecture(X.shape[1]), likelihood, X
        fitted = own | start(*of, rng, SMOOTH, weight)
        if self.decoder is not None:
            fitted |= self._own_start(fitted, X, rng, weight)
            del fitted["decoder_coefs_"], fitted["decoder_intercepts_"]
        return fitted

    def _own_start(self, fitted, X, rng, weight):
        """Attributes of a decoder of a user."""
        rows = (X - fitted["_shift"]) / fitted["_scale"]
        intercept = self._likelihood().start_location(rows, weight)
        seed = int(rng.integers(2**63))
        decoder = OwnDecoder(
            self.decoder, self.n_components, intercept, "decoder", seed
        )
        return {"_decoder": decoder.arrays()}

    def _module_of(self, fitted, device):
        return module_of(fitted, self._likelihood(), device, self.decoder)

    def _density_of(self, fitted, device):
        module = self._module_of(fitted, device)
        units = Units.of(fitted, device)
        kind, *_ = CONDITIONALS[self.conditional]
        return kind(module, units, device, tuple(fitted["_seed"].tolist()))

    def _trained_attributes(self, module, fitted):
        return attributes_of(module, fitted["_shift"], fitted["_scale"])

    def _solver(self, problem):
        fitted, device = problem.fitted, problem.device
        likelihood, units = self._likelihood(), Units.of(fitted, device)
        module = self._module_of(fitted, device).float()
        rows = units.standardise(as_tensor(problem.X, device))
        log_scale = (~rows.isnan() * units.log_scale).sum(1)
        log_scale *= Weights.of(problem.weight, rows).each
        chosen, others = self._split(problem, rows)
        architecture = self._architecture(rows.shape[1])
        recipe = recipe_for(
            module.likelihood,
            n_rows=len(rows),
            n_features=rows.shape[1],
            n_validation=len(others),
            widths=architecture.widths,
            objective=self.objective,
            batch_size=self.batch_size,
            n_points=self.n_importance_samples,
        )
        is_new = problem.is_new and problem.is_all and self.decoder is None
        kinds = recipe.starts[1:] if is_new else ()
        seeds = np.random.SeedSequence(fitted["_seed"].tolist()).spawn(len(kinds))
        starts = [
            start(architecture, likelihood, problem.X, rng, kind, problem.weight)
            for rng, kind in zip(map(np.random.default_rng, seeds), kinds, strict=True)
        ]
        tunes = recipe.tunes_noise
        return DescentSolver(
            module,
            self._objective(problem, rows.float(), chosen, others, recipe),
            rng=problem.rng,
            others=[
                module_of(each, likelihood, device).float().state_dict()
                for each in starts
            ],
            log_scale=float(log_scale.mean()),
            tol=self.tol,
            n_iter_no_change=self.n_iter_no_change,
            learning_rate=self.learning_rate,
            resting=list(module.likelihood.parameters()),
            rest=math.inf if tunes else REST * problem.is_new,
            # other fits would lose the noise of rows that they are not trained on
            joins=tunes and not self.warm_start,
            turns=recipe.turns,
            stopping=recipe.stopping,
        )

    def _split(self, problem, rows):
        """Numbers of rows to train on, and of those that say when training ends.

        Of these one is drawn from every few rows that are about as hard to explain.
        """
        n_rows, held_out = len(rows), np.zeros(len(rows), dtype=bool)
        rng = np.random.default_rng(problem.fitted["_seed"])
        if self.early_stopping and problem.is_all:
            n_held_out = int(self.validation_fraction * n_rows)
            ends = np.linspace(0, n_rows, n_held_out + 1).astype(int)
            order = unexplained(rows.cpu().numpy(), self.n_components).argsort()
            held_out[order[rng.integers(ends[:-1], ends[1:])]] = True
        return [rng.permutation(np.flatnonzero(part)) for part in (~held_out, held_out)]

    def _objective(self, problem, rows, chosen, others, recipe):
        """Return what is minimised: losses of minibatches, and of validation rows."""
        weight = np.ones(len(rows)) if problem.weight is None else problem.weight
        n_prior = n_prior_points(self.n_components, rows.shape[1])
        points = Points(recipe.n_points, n_prior, self.n_components)
        held_out = None
        if len(others):
            more = HELD_OUT_BATCH, points._replace(per_row=HELD_OUT_POINTS)
            how = problem.fitted["_seed"], weight[others], recipe.tunes_noise
            held_out = HeldOutRows(rows[others], *more, *how)
        of = rows[chosen], recipe.batch_size, points, held_out
        if self.objective != "mpt":
            objective = BoundRows(*of, weight[chosen])
        else:
            _, at_once, drawn = CONDITIONALS[self.conditional]
            is_auto = self.n_masks == "auto"
            kind, n_masks = (at_once, DRAWN_MASKS) if is_auto else (drawn, self.n_masks)
            objective = kind(*of, (self.mask_rate, n_masks), weight[chosen])
        return objective if problem.is_all else objective.as_part()

    def _warn_of_limits(self, fitted, n_samples):
        floor = np.asarray(NOISE_FLOOR * fitted["_scale"] ** 2)
        noise_variance = np.asarray(fitted.get("noise_variance_", np.inf))
        constant, low = fitted["_constant"], noise_variance < 10 * floor
        has_own_noise = np.ndim(low) == 1
        if has_own_noise or len(constant) == len(fitted["_shift"]):
            warn_constant(constant, fitted)
        if has_own_noise:
            low[constant] = False
        elif len(constant) == len(fitted["_shift"]):
            return
        if low.any():
            warn_caller(
                f"noise_variance_={noise_variance[low].min():.3g} fell towards its "
                f"floor of {floor[low].min():.3g}: the model explains the rows almost "
                "without error, and the likelihood may have no maximum. Use fewer "
                "components or smaller nets.",
            )
