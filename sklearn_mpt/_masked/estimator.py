"""The estimator: a net trained by nothing but masks."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike

from sklearn_mpt._checks import (
    check_bool,
    check_choice,
    check_int,
    check_real,
    warn_caller,
    warn_constant,
)
from sklearn_mpt._frames import plain
from sklearn_mpt._latent.density import Units, as_tensor
from sklearn_mpt._latent.own_module import OwnModule, check_own
from sklearn_mpt._likelihoods import Columns
from sklearn_mpt._masked.columns import WIDTH_FLOOR
from sklearn_mpt._masked.density import MaskedDensity
from sklearn_mpt._masked.linear_start import count_factors, fit_linear
from sklearn_mpt._masked.module import NUMBERS, MaskedModule
from sklearn_mpt._masked.net import OwnNet, ResidualNet
from sklearn_mpt._masked.recipe import recipe_for
from sklearn_mpt._masked.training import MaskedSolver, MaskSizes, Rows
from sklearn_mpt._seeds import RandomState
from sklearn_mpt._tables.estimator import LikelihoodNames, TableMPT

OFTEN = 0.1  # share of the entries of a column at the floor that deserves a warning


class MPTMaskedAutoencoder(TableMPT):
    r"""Net that fills in blanks, trained by masked pre-training (MPT).

    A residual net sees the visible columns of a row, and which they are, and gives the
    conditional distribution of every hidden column: probabilities of categories, rates
    of counts, mixtures of Gaussians for numbers. Each step of training hides a random
    set of columns of each row and scores all of them. With a uniform mask rate the loss
    is, in expectation over masks, minus a lower bound of the log-density of the mixture
    over all orders of the columns ([1]_, Proposition 1; [2]_). There are no latent
    variables, and so no integral: densities are exact sums along orders.

    Parameters
    ----------
    likelihood : str, sequence of str or dict, default="gaussian"
        Kind of the columns: "gaussian" (numbers, each a mixture of Gaussians),
        "bernoulli" (0 and 1, or booleans), "categorical", "ordinal", "partial_credit",
        "poisson" (counts), "negative_binomial", "lognormal", "gamma" or
        "zero_lognormal". One name for all columns, one for each, a dict, "from_dtype"
        or "auto", as in `MPTLinearVAE`. Thresholds and dispersions depend on what is
        visible, too.
        An instance of a likelihood of one's own is that of all columns.
    net : torch.nn.Module or callable, default=None
        A net of one's own in place of the residual one, or a function of the numbers of
        inputs and outputs that returns one. It maps tensors of shape (n, n_inputs) to
        (n, n_outputs): see Notes. A module is copied, and its weights are where
        training starts.
    hidden_layer_sizes : sequence of int or "auto", default="auto"
        Widths of the residual blocks, of two layers each. ``()`` is a linear net.
        "auto" is two blocks whose width, 64 to 512, grows with the fourth root of
        n_samples times n_features. Not used with a `net`.
    n_mixtures : int, default=5
        Number of Gaussians in the conditional of a column of numbers.
    n_orders : int, default=8
        Number of random orders of the columns whose mixture is the density. Every other
        one is the one before, reversed.
    dropout : float or "auto", default="auto"
        Share of hidden values in [0, 1) that a step of training leaves out. "auto" is
        D / (D + N / 10) for N rows of D columns, D / (D + 3 N / 10) if all are numbers
        and between if some are, but 0.02 to 0.5; categories count as columns. Not used
        with a `net`, which may have layers that drop values.
    mask_rate : "uniform", float or int, default="uniform"
        How many columns each mask hides. "uniform" draws the number from 1 to all that
        are present, and trains the bound; a float in (0, 1] is a fixed rate and an int
        a fixed number, which train D times the score of that size.
    n_masks : int or "auto", default="auto"
        Masks drawn in each step. "auto" is one for each row. With fewer, rows take
        turns with masks; with more, rows come several times.
    max_iter : int, default=150
        Number of epochs, if rows held out do not end training earlier. 0 keeps the
        initial net, whose outputs are the same for all rows beside a linear model of
        the numbers.
    learning_rate : float, default=0.002
        Step size of AdamW [3]_, in the epochs before it falls to 0.
    batch_size : int or "auto", default="auto"
        Rows per step. "auto" is a 64th of them, but 32 to 256. An epoch passes over the
        rows until it has 64 steps, or once if it has more.
    tol : float, default=1e-3
        Improvement of the loss of rows held out, in nats per row, that counts as one.
    n_iter_no_change : int, default=15
        Number of epochs without such improvement after which steps begin to fall.
    early_stopping : bool, default=True
        Whether `fit` holds out some rows, lets steps fall when their loss does not
        improve, and keeps the averaged weights that suit them best.
    validation_fraction : float, default=0.1
        Share of the rows that is held out.
    warm_start : bool, default=False
        Whether `fit` goes on from the parameters of the previous call.
    verbose : bool, default=False
        Whether to print the loss of each epoch.
    device : str or torch.device, default="auto"
        Where to compute; "auto" takes CUDA if there is any, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Determines the initial net, orders, rows held out, minibatches and masks.
    n_jobs : int, default=None
        Number of joblib workers that `mpt_curve` and `feature_contributions` use for
        this model unless told otherwise.

    Attributes
    ----------
    hidden_layer_sizes_ : list of int
        Widths of the residual blocks. Only without a `net`.
    dropout_ : float
        Share of hidden values left out in training. Only without a `net`.
    n_mixtures_ : int
        Number of Gaussians for each column of numbers.
    orders_ : ndarray of shape (n_orders, n_features)
        The orders whose mixture is the density.
    module_ : torch.nn.Module
        A copy of the trained net, in single precision on the CPU: of the class of
        `net`, if one was given.
    likelihoods_ : list of str
        Kind of each feature. Only if `likelihood` tells kinds of columns.
    categories_ : list of ndarray, or None
        Categories of each feature, None where it has none. Only with `likelihoods_`.
    n_iter_ : int
        Number of epochs trained.
    loss_curve_ : list of float
        Minus the training objective in each epoch, in nats per row; values of the net
        were left out (see `dropout`).
    lml_method_ : str
        How `score_samples` computes densities: "exact".
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where all are strings.

    See Also
    --------
    MPTDeepVAE : A net with latent variables, whose conditionals are those of one joint.
    lml_samples : The mean over random orders in place of their mixture.

    Notes
    -----
    The conditionals of the net are those of no one joint distribution, so each order of
    the columns is a density of its own. `score_samples` is the log-density of the
    mixture of `n_orders` of them,

    .. math:: \log \frac{1}{n} \sum_\pi \prod_t
              p(x_{\pi_t} \mid x_{\pi_1}, \dots, x_{\pi_{t-1}}),

    which is exactly normalised; its standard errors are 0. :func:`mpt_curve` and
    :func:`lml_samples` give the mean over orders, a lower bound of the mixture of all.
    With missing entries the mixture is one of the orders of the entries present.

    Numbers are standardised, and conditionals start from factor analysis of the numbers
    (up to 32 factors, one for every 40 rows): the net learns what that misses. No
    component of a mixture is narrower than 0.003 standard deviations of its column; a
    warning says where most of a column is at that floor, as with few distinct values,
    whose densities have no upper bound.

    Weights are averaged over about 400 steps. With rows held out, steps are of one size
    until these do not improve for `n_iter_no_change` epochs, or 0.6 `max_iter` epochs
    have passed; they then fall to 0 over two thirds as many epochs again.

    `impute` draws fill one column after the other in a random order, `sample` along the
    orders of the mixture. `transform` returns the last hidden layer given what is
    visible. A pass costs :math:`O(D h + h^2)` for each row, with width h, and
    `score_samples` D passes for each order. Scores are computed in double precision.

    The inputs of a `net` are first the values of the columns, then whether each is
    visible, 1 or 0. Numbers enter standardised, those that are hidden as factor
    analysis expects them; 0 and 1 as -1 and 1; counts as log(1 + x); each category by
    an indicator; what is hidden as 0. The outputs are, for each number, `n_mixtures`
    logits, as many centres and as many logarithms of widths; the logit of a yes or no;
    the logits of categories; the logarithm of the rate of a count. What suits each
    column alone is added to them. Columns of different kinds are grouped, by the names
    of the kinds and the numbers of categories. The net must also work in double
    precision, in which scores are computed. In training it is in training mode: layers
    that drop values or normalise batches do so. Its weights and buffers are kept as
    arrays, beside `net` itself; `transform` takes its method ``last_hidden`` of the
    inputs if it has one, and else its outputs.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.
    .. [2] B. Uria, I. Murray and H. Larochelle, "A deep and tractable density
       estimator", ICML 2014.
    .. [3] I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", ICLR
       2019.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import MPTMaskedAutoencoder
    >>> rng = np.random.default_rng(0)
    >>> first = rng.integers(0, 2, 300)
    >>> X = np.column_stack([first, first, rng.integers(0, 2, 300)]).astype(float)
    >>> model = MPTMaskedAutoencoder(
    ...     likelihood="bernoulli", hidden_layer_sizes=(16,), max_iter=5, random_state=0
    ... ).fit(X)
    >>> every = np.array([[a, b, c] for a in (0, 1) for b in (0, 1) for c in (0, 1)])
    >>> float(np.exp(model.score_samples(every)).sum().round(6))
    1.0
    >>> model.impute([[1.0, np.nan, 0.0]]).round().tolist()
    [[1.0, 1.0, 0.0]]
    """

    hidden_layer_sizes_: list[int]
    dropout_: float
    n_mixtures_: int
    orders_: np.ndarray

    _bound_parameters = ("likelihood", "net", "n_mixtures", "n_orders")
    _objectives = ("mpt",)

    def __init__(
        self,
        *,
        likelihood: LikelihoodNames = "gaussian",
        net: OwnModule | None = None,
        hidden_layer_sizes: Sequence[int] | str = "auto",
        n_mixtures: int = 5,
        n_orders: int = 8,
        dropout: float | str = "auto",
        mask_rate: str | float = "uniform",
        n_masks: int | str = "auto",
        max_iter: int = 150,
        learning_rate: float = 0.002,
        batch_size: int | str = "auto",
        tol: float = 1e-3,
        n_iter_no_change: int = 15,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        verbose: bool = False,
        device: str | torch.device = "auto",
        random_state: RandomState = None,
        n_jobs: int | None = None,
    ):
        self.likelihood = likelihood
        self.net = net
        self.hidden_layer_sizes = hidden_layer_sizes
        self.n_mixtures = n_mixtures
        self.n_orders = n_orders
        self.dropout = dropout
        self.mask_rate = mask_rate
        self.n_masks = n_masks
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
        """A copy of the trained net, in single precision on the CPU."""
        self._check_is_fitted()
        net = self._module(vars(self)).net
        return net.module if isinstance(net, OwnNet) else net

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Compute the last hidden layer of the net, given the present columns.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.

        Returns
        -------
        hidden : ndarray of shape (n_samples, n_units)
        """
        X, density = self._validate_rows(X), self._density()
        return self._map_rows(density, density.last_hidden, X, dtype=X.dtype)

    def _likelihood(self):
        likelihood = super()._likelihood()
        if isinstance(likelihood, Columns):
            return likelihood
        kind = self.likelihood if self._is_of_numbers else self.likelihoods_[0]
        n_features = self.n_features_in_
        names = getattr(self, "feature_names_in_", None)
        return Columns([kind] * n_features, [1] * n_features, names)

    def _check_parameters(self, n_features):
        check_own(self.net, "net")
        _check_widths(self.hidden_layer_sizes)
        check_int(self.n_mixtures, "n_mixtures")
        check_int(self.n_orders, "n_orders")
        _check_dropout(self.dropout)
        check_bool(self.early_stopping, "early_stopping")
        check_real(self.validation_fraction, "validation_fraction", "neither", 1)

    def _check_fitted_parameters(self):
        sizes = self.hidden_layer_sizes
        if self.net is not None or isinstance(sizes, str):
            return
        if list(sizes) != self.hidden_layer_sizes_:
            raise ValueError(
                f"hidden_layer_sizes={plain(sizes)!r} differs from the "
                f"{self.hidden_layer_sizes_} of the fitted model that training "
                "goes on with; set warm_start=False, or clone the estimator, to start "
                "anew."
            )

    @property
    def _n_features_out(self):
        return self._module(vars(self)).net.n_hidden

    def _start(self, X, rng, weight):
        columns = self._likelihood()
        # numbers by which the columns enter the net, without their indicators
        n_numbers = columns.kinds.count(NUMBERS)
        recipe = recipe_for(len(X), sum(columns.n_reads_each), n_numbers)
        widths, dropout = self.hidden_layer_sizes, self.dropout
        widths = recipe.widths if isinstance(widths, str) else tuple(widths)
        dropout = recipe.dropout if isinstance(dropout, str) else float(dropout)
        weight = np.ones(len(X)) if weight is None else weight / weight.mean()
        shift, scale = columns.units(X, weight)
        fitted = {
            "lml_method_": "exact",
            "n_mixtures_": int(self.n_mixtures),
            "orders_": _draw_orders(self.n_orders, X.shape[1], rng),
            "_shift": shift,
            "_scale": scale,
            "_constant": np.flatnonzero(columns.constant(X)),
            "_batch_size": recipe.batch_size,
            "_at_floor": np.zeros(X.shape[1]),
        }
        numbers = np.flatnonzero([kind == NUMBERS for kind in columns.kinds])
        rows = (X[:, numbers].astype(np.float64) - shift[numbers]) / scale[numbers]
        n_factors = count_factors(len(X), len(numbers))
        if len(numbers):
            fitted["_linear"] = list(fit_linear(rows, weight, n_factors, rng))
        else:
            fitted["_linear"] = [np.zeros((0, 0)), np.zeros(0)]
        fitted["_reading"] = self._empty_module(fitted).reading(X, weight)
        if self.net is None:
            fitted["hidden_layer_sizes_"] = [int(width) for width in widths]
            fitted["dropout_"] = dropout
        module = self._empty_module(fitted)
        intercept = module.start(X, weight)
        if self.net is None:
            net = self._empty_net(module, fitted).initialise(rng, intercept)
        else:
            seed = int(rng.integers(2**63))
            net = OwnNet(self.net, module.n_inputs, intercept, "net", seed)
        return fitted | {"_net": _arrays(net)}

    def _empty_module(self, fitted):
        columns = self._likelihood()
        kinds, counts = columns.kinds, columns.n_categories
        return MaskedModule(
            kinds,
            counts,
            fitted["n_mixtures_"],
            fitted["_linear"],
            fitted.get("_reading"),
        )

    def _empty_net(self, module, fitted):
        if self.net is not None:
            nothing = np.zeros(module.n_outputs)
            return OwnNet(self.net, module.n_inputs, nothing, "net")
        widths, dropout = fitted["hidden_layer_sizes_"], fitted["dropout_"]
        return ResidualNet(module.n_inputs, module.n_outputs, widths, dropout)

    def _module(self, fitted):
        """Return the fitted module, on the CPU and in single precision."""
        module = self._empty_module(fitted)
        module.net = self._empty_net(module, fitted)
        module.net.load_state_dict(
            {name: torch.tensor(array) for name, array in fitted["_net"].items()}
        )
        return module

    def _density_of(self, fitted, device):
        module = self._module(fitted).to(device).double()
        orders = torch.tensor(fitted["orders_"], device=device)
        return MaskedDensity(module, Units.of(fitted, device), orders)

    def _solver(self, problem):
        fitted, device = problem.fitted, problem.device
        units = Units.of(fitted, device)
        X = as_tensor(problem.X, device)
        weight = torch.ones(len(X)).to(X)
        if problem.weight is not None:
            weight = as_tensor(problem.weight / problem.weight.mean(), device)
        log_scale = float(((~X.isnan() * units.log_scale).sum(1) * weight).mean())
        X, weight = units.standardise(X).float(), weight.float()
        chosen, others = self._split(problem)
        rows = Rows(X[chosen], weight[chosen])
        held_out = Rows(X[others], weight[others]) if len(others) else None
        generator = torch.Generator(device=device)
        generator.manual_seed(int(problem.rng.integers(2**63)))
        batch_size, n_masks = self.batch_size, self.n_masks
        return MaskedSolver(
            self._module(fitted).to(device),
            rows,
            held_out,
            sizes=MaskSizes(self.mask_rate, X.shape[1]),
            generator=generator,
            batch_size=fitted["_batch_size"] if batch_size == "auto" else batch_size,
            n_masks=None if n_masks == "auto" else int(n_masks),
            learning_rate=self.learning_rate,
            log_scale=log_scale,
            tol=self.tol,
            n_iter_no_change=self.n_iter_no_change,
            is_part=not problem.is_all,
        )

    def _split(self, problem):
        """Numbers of the rows to train on, and of those that end training."""
        n_rows = len(problem.X)
        n_held_out = 0
        if self.early_stopping and problem.is_all:
            n_held_out = int(self.validation_fraction * n_rows)
        # the same rows in a warm start
        order = np.random.default_rng(problem.fitted["_seed"]).permutation(n_rows)
        return np.sort(order[n_held_out:]), np.sort(order[:n_held_out])

    def _trained_attributes(self, module, fitted):
        return {
            "_net": _arrays(module.net),
            "_at_floor": module.share_at_floor(),
        }

    def _warn_of_limits(self, fitted, n_samples):
        numbers = [kind == NUMBERS for kind in self._likelihood().kinds]
        if not any(numbers):
            return
        constant, at_floor = fitted["_constant"], fitted["_at_floor"]
        warn_constant(constant, fitted)
        often = np.flatnonzero(at_floor > OFTEN)
        often = np.setdiff1d(often, constant)
        if len(often):
            names = fitted.get("feature_names_in_", np.arange(len(at_floor)))
            warn_caller(
                f"Column(s) {names[often[:10]].tolist()} of X have conditionals of the "
                f"least width, {WIDTH_FLOOR} standard deviations, for more than "
                f"{OFTEN:.0%} of their entries: they hold few distinct values, or are "
                "functions of other columns, and their densities have no upper bound. "
                "Values that are few may be 'categorical'.",
            )


def _arrays(module):
    state = module.state_dict()
    return {name: tensor.cpu().numpy().copy() for name, tensor in state.items()}


def _draw_orders(n_orders, n_features, rng):
    """Orders of the columns; with an even number, each comes with its reverse."""
    orders = np.empty((n_orders, n_features), dtype=np.int64)
    for i in range(0, n_orders, 2):
        orders[i] = rng.permutation(n_features)
        orders[i + 1 : i + 2] = orders[i, ::-1]
    return orders


def _check_widths(sizes):
    if isinstance(sizes, str):
        check_choice(sizes, "hidden_layer_sizes", ["auto"])
        return
    try:
        sizes = list(sizes)
    except TypeError:
        raise TypeError(
            "hidden_layer_sizes must be 'auto' or a sequence of int, got "
            f"{plain(sizes)!r}."
        ) from None
    for size in sizes:
        check_int(size, "each of hidden_layer_sizes")


def _check_dropout(dropout):
    if isinstance(dropout, str):
        check_choice(dropout, "dropout", ["auto"])
        return
    check_real(dropout, "dropout", "left", 1)
