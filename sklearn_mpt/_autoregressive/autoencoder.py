"""The estimator MPTMaskedAutoencoder: a net trained by masks alone."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike

from sklearn_mpt._autoregressive.heads import count_factors, count_mixtures, fit_linear
from sklearn_mpt._autoregressive.net import (
    NUMBERS,
    MaskedDensity,
    MaskedLoss,
    MaskedModule,
    ResidualNet,
    UserNet,
    ValidationLosses,
)
from sklearn_mpt._autoregressive.order_mixture import draw_orders
from sklearn_mpt._base.density import Units, unit_attributes
from sklearn_mpt._base.nets import NetMPT, UserModule, arrays_of, load_arrays
from sklearn_mpt._base.tables import LikelihoodNames, TableMPT
from sklearn_mpt._checks import (
    AUTO,
    COUNT,
    N_TORCH_SEEDS,
    POSITIVE,
    RandomState,
    StrictInterval,
    check_as_fitted,
    check_widths,
    listed,
    seed_from,
    warn_caller,
)
from sklearn_mpt._measure.masks import read_blocks
from sklearn_mpt._numbers import MIN_WIDTH
from sklearn_mpt._optim.masks import RowMasks
from sklearn_mpt._optim.weights import UNSEEN_COUNT, relative_weights
from sklearn_mpt._tables.weights import warn_constant


class MPTMaskedAutoencoder(TableMPT, NetMPT):
    r"""Net that predicts hidden columns, trained by masked pre-training (MPT).

    A residual net takes the visible columns of a row, and which columns are visible. It
    returns the conditional distribution of every hidden column. Each step of training
    hides random columns of each row and scores all of them. With a uniform mask rate,
    the expectation of the loss over masks is minus a lower bound of the log-density of
    the mixture over all orders of the columns ([1]_, Proposition 1; [2]_). There are no
    latent variables and no integrals. The :ref:`user guide <masked_autoencoder>` says
    how the net starts, how it is trained and what it costs.

    Parameters
    ----------
    likelihood : str, sequence of str or dict, default="gaussian"
        Kind of the columns: "gaussian" (numbers, each a mixture of Gaussians),
        "bernoulli" (0 and 1, or booleans), "categorical", "ordinal", "partial_credit",
        "poisson" (counts), "negative_binomial" or "lognormal". One name for all
        columns, one for each, a dict or "from_dtype", as in `MPTLinearVAE`, or an
        instance of your own `Likelihood`. Give
        columns of categories, such as sites of sequences, as "categorical" and not as
        zeros and ones: with 60 columns, rows were 4 nats likelier.
    net : torch.nn.Module or callable, default=None
        Your own net in place of the residual net, or a function that takes the numbers
        of inputs and outputs and returns one: see the guide.
    hidden_layer_sizes : sequence of int or "auto", default="auto"
        Widths of the residual blocks, of two layers each; ``()`` is a linear net.
        "auto" is two blocks, whose width grows with the fourth root of n_samples times
        n_features. Not used with a `net`.
    n_mixtures : int, default=5
        Number of Gaussians in the conditional of a column of numbers, but at most one
        for every 20 rows of `fit`, or of the first part of a stream. A column with
        gaps starts with one for every 20 present entries.
    n_orders : int, default=8
        Number of random orders of the columns whose mixture is the density, at most as
        many as exist. Every second order is the reverse of the one before.
    dropout : float or "auto", default="auto"
        Fraction of hidden units, in [0, 1), that are set to 0 in each step of training.
        "auto" grows with the number of columns per row. Not used with a `net`.
    mask_rate : "uniform", float or int, default="uniform"
        How many columns each mask hides. "uniform" draws the number from 1 to that of
        the present columns, and trains the bound. A float in (0, 1] is a fixed rate and
        an int a fixed number; they train D times the score of that size.
    mask_blocks : array-like of shape (n_features,) or "span", default=None
        Structure of the masks. An array has a label for each column, a Series or dict
        one for each name of a column: columns of one label, such as pixels of one
        patch, are hidden together. With "span", consecutive columns are hidden. See
        `mpt_curve`. The objective is then not a bound of the log-density, and
        `loss_curve_` is not comparable with that of other masks; scores are densities
        all the same. None hides every set of one size with the same probability.
    n_masks : int or "auto", default="auto"
        Number of masks in each step. "auto" is one for each row. If there are fewer,
        several rows share a mask; if there are more, rows are used several times.
    max_iter : int, default=400
        Largest number of epochs; most fits end earlier. With 0 the net stays at its
        start: a linear model of the numbers, and the same outputs for all rows
        otherwise.
    learning_rate : float or "auto", default="auto"
        Step size of Adam. "auto" is 0.01.
    batch_size : int or "auto", default="auto"
        Number of rows in each step. "auto" is two thirds of the rows, 64 to 256. An
        epoch passes over few rows several times, until it has taken about 8 steps, but
        at most half as often as there are rows.
    tol : float, default=1e-3
        Improvement of the loss, in nats per row, below which training ends.
    n_iter_no_change : int, default=15
        Epochs over which it is judged; with `early_stopping` up to twice as many.
    early_stopping : bool, default=True
        Whether validation rows decide on the end of training and the parameters that
        are kept. In the last epochs they are trained on, too.
    validation_fraction : float, default=0.1
        Fraction of the rows that are validation rows.
    warm_start : bool, default=False
        Whether `fit` starts from the parameters of the previous call.
    verbose : bool, default=False
        Whether to print the loss of each epoch.
    device : str or torch.device, default="auto"
        Where to compute; "auto" is CUDA if there is a GPU, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Determines the initial net, orders, validation rows, minibatches and masks.
    n_jobs : int, default=None
        Number of joblib workers of `mpt_curve` and `feature_contributions`, unless
        these get another number.

    Attributes
    ----------
    hidden_layer_sizes_, dropout_ : list of int, float
        Widths of the residual blocks, and fraction of hidden units that were set to 0
        in training. Only without a `net`.
    n_mixtures_ : int
        Number of Gaussians for each column of numbers.
    orders_ : ndarray of shape (n_orders, n_features)
        The orders whose mixture is the density.
    module_ : torch.nn.Module
        A copy of the trained net, in single precision on the CPU.
    likelihoods_, categories_ : list
        Kinds and categories of the columns, if rows are read as a table.
    n_iter_ : int
        Number of epochs trained.
    loss_curve_ : list of float
        Minus the training objective in each epoch, in nats per row, with `dropout`.
    lml_method_ : str
        How `score_samples` computes densities: "exact".
    n_features_in_ : int
        Number of features in `fit`; `feature_names_in_` has their names, if strings.

    See Also
    --------
    MPTDeepVAE : Net with latent variables, whose conditionals belong to one density.
    lml_samples : Mean of the log-density over random orders, instead of their mixture.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.
    .. [2] B. Uria, I. Murray and H. Larochelle, "A deep and tractable density
       estimator", ICML 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import MPTMaskedAutoencoder
    >>> X = np.random.default_rng(0).integers(0, 2, (300, 3)).astype(float)
    >>> X[:, 1] = X[:, 0]
    >>> settings = {"hidden_layer_sizes": (16,), "n_iter_no_change": 3}
    >>> model = MPTMaskedAutoencoder(
    ...     likelihood="bernoulli", **settings, random_state=0
    ... ).fit(X)
    >>> model.impute([[1.0, np.nan, 0.0]]).round().tolist()
    [[1.0, 1.0, 0.0]]
    """

    hidden_layer_sizes_: list[int]
    dropout_: float
    n_mixtures_: int
    orders_: np.ndarray

    _free_parameters = (*NetMPT._free_parameters, "dropout", "mask_blocks")
    _parameter_constraints: ClassVar[dict] = NetMPT._parameter_constraints | {
        "net": [None, torch.nn.Module, callable],
        "learning_rate": [AUTO, POSITIVE],
        "dropout": [AUTO, StrictInterval(Real, 0, 1, closed="left")],
        "n_mixtures": [COUNT],
        "n_orders": [COUNT],
    }

    def __init__(
        self,
        *,
        likelihood: LikelihoodNames = "gaussian",
        net: UserModule | None = None,
        hidden_layer_sizes: Sequence[int] | str = "auto",
        n_mixtures: int = 5,
        n_orders: int = 8,
        dropout: float | str = "auto",
        mask_rate: str | float = "uniform",
        mask_blocks: ArrayLike | str | None = None,
        n_masks: int | str = "auto",
        max_iter: int = 400,
        learning_rate: float | str = "auto",
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
        self.mask_blocks = mask_blocks
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
        return net.module if isinstance(net, UserNet) else net

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Compute the last hidden layer of the net, given the present columns.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.

        Returns
        -------
        hidden : ndarray of shape (n_samples, n_units)
            The units of that layer, which are inputs for other estimators.
        """
        X, density = self._validate_rows(X), self._density()
        return self._map_rows(density, density.last_hidden, X, dtype=X.dtype)

    def _likelihood(self):
        return self._likelihood_by_column()

    @property
    def _hooks(self):
        return ("chain_log_prob",)

    def _check_parameters(self, n_features):
        check_widths(self.hidden_layer_sizes)
        read_blocks(self.mask_blocks, self._table_names or range(n_features))

    def _check_fitted_parameters(self):
        if self.net is None:
            args = self.hidden_layer_sizes, self.hidden_layer_sizes_
            check_as_fitted(*args, "hidden_layer_sizes")

    @property
    def _n_features_out(self):
        return self._module(vars(self)).net.n_hidden

    def _start(self, X, rng, weight):
        columns = self._likelihood()
        # inputs of the net, without the indicators of visible columns
        n_inputs = columns.net_inputs(torch.zeros(1, X.shape[1], device="cpu")).shape[1]
        width, dropout, batch_size = net_settings(len(X), n_inputs)
        weight = relative_weights(weight, len(X))
        fitted = unit_attributes(columns, X, weight) | {
            "lml_method_": "exact",
            "n_mixtures_": count_mixtures(self.n_mixtures, len(X)),
            "orders_": draw_orders(self.n_orders, X.shape[1], rng),
            "_batch_size": batch_size,
            "_at_floor": np.zeros(X.shape[1]),
        }
        numbers = np.flatnonzero([kind == NUMBERS for kind in columns.kinds])
        shift, scale = fitted["_shift"][numbers], fitted["_scale"][numbers]
        rows = X.astype(np.float64)
        rows[:, numbers] = (rows[:, numbers] - shift) / scale
        n_factors = count_factors(len(X), len(numbers))
        linear = fit_linear(rows[:, numbers], weight, n_factors, rng)
        fitted["_linear"] = list(linear)
        module = self._empty_module(fitted)
        fitted["_input_units"] = module.units_of_inputs(rows, weight)
        intercept = module.start(rows, weight, rng)
        if self.net is None:
            is_auto = isinstance(self.hidden_layer_sizes, str)
            widths = [width, width] if is_auto else map(int, self.hidden_layer_sizes)
            is_auto = isinstance(self.dropout, str)
            fitted["hidden_layer_sizes_"] = list(widths)
            fitted["dropout_"] = dropout if is_auto else float(self.dropout)
            net = self._empty_net(module, fitted).initialise(rng, intercept)
        else:
            seed = seed_from(rng, N_TORCH_SEEDS)
            net = UserNet(self.net, module.n_inputs, intercept, "net", seed)
        return fitted | {"_net": arrays_of(net)}

    def _empty_module(self, fitted):
        columns = self._likelihood()
        args = columns.kinds, columns.n_categories, fitted["n_mixtures_"]
        return MaskedModule(*args, fitted["_linear"], fitted.get("_input_units"))

    def _empty_net(self, module, fitted):
        if self.net is not None:
            nothing = np.zeros(module.n_outputs)
            return UserNet(self.net, module.n_inputs, nothing, "net")
        widths, dropout = fitted["hidden_layer_sizes_"], fitted["dropout_"]
        return ResidualNet(module.n_inputs, module.n_outputs, widths, dropout)

    def _module(self, fitted):
        """Return the fitted module, on the CPU and in single precision."""
        module = self._empty_module(fitted)
        module.net = load_arrays(self._empty_net(module, fitted), fitted["_net"])
        return module

    def _density_of(self, fitted, device):
        module = self._module(fitted).to(device).double()
        orders = torch.tensor(fitted["orders_"], device=device)
        return MaskedDensity(module, Units.from_attributes(fitted, device), orders)

    def _epochs(self, data, training):
        fitted, device = data.fitted, data.device
        module = self._module(fitted).to(device)
        rows, held_out = self._split_rows(data)
        generator = torch.Generator(device=device)
        generator.manual_seed(seed_from(data.rng, N_TORCH_SEEDS))
        n_features = data.X.shape[1]
        blocks = read_blocks(self.mask_blocks, self._table_names or range(n_features))
        sizes = RowMasks(self.mask_rate, n_features, blocks)
        batch_size, n_masks, rate = self.batch_size, self.n_masks, self.learning_rate
        loss = MaskedLoss(
            module,
            rows,
            sizes,
            generator,
            fitted["_batch_size"] if batch_size == "auto" else batch_size,
            None if n_masks == "auto" else int(n_masks),
        )
        unseen = self._likelihood().unseen(data.X) if data.is_all else ()
        if len(unseen):
            loss.unseen = torch.from_numpy(unseen).to(rows.X)
            n_rows = len(data.X) if data.weight is None else data.weight.sum()
            loss.unseen_weight = UNSEEN_COUNT / n_rows
        validation = None
        if len(held_out.X):
            validation = ValidationLosses(module, held_out, sizes, generator)
        rate = 0.01 if rate == "auto" else float(rate)
        return self._net_epochs(data, training, module, loss, validation, rate)

    def _trained_attributes(self, module, fitted):
        return {"_net": arrays_of(module.net), "_at_floor": module.at_floor}

    def _warn_of_limits(self, fitted, n_samples):
        numbers = [kind == NUMBERS for kind in self._likelihood().kinds]
        if not any(numbers):
            return
        constant, at_floor = fitted["_constant"], fitted["_at_floor"]
        warn_constant(constant, fitted)
        often = np.flatnonzero(at_floor > 0.1)
        often = np.setdiff1d(often, constant)
        if len(often):
            names = fitted.get("feature_names_in_", np.arange(len(at_floor)))
            warn_caller(
                f"Column(s) {listed(names[often])} of X have conditionals of the "
                f"least width, {MIN_WIDTH} standard deviations, for more than "
                "10% of their entries: they hold few distinct values, or are functions "
                "of other columns, and their densities have no upper bound. "
                "Values that are few may be 'categorical'."
            )


def net_settings(n_samples, n_features):
    """Return the width of a net, its dropout, and the size of batches, if "auto".

    The width grows with the fourth root of rows times columns, in steps of 16 units;
    more units do not improve the net. Dropout grows with the root of the ratio of
    columns to rows, because a net overfits few long rows: it is 0.5 with as many rows
    as columns, and 0.1 with 25 times as many. A batch has two thirds of the rows: how
    far a net comes depends on the number of rows that it has seen, and large batches
    take less time for each. What other batches and step sizes do is in
    benchmarks/RESULTS.rst, "Masked autoencoder: batches".
    """
    size = 5 * (n_samples / 1000) ** 0.25 * (n_features / 16) ** 0.25
    width = int(np.clip(16 * round(size), 64, 512))
    dropout = np.clip(0.5 * np.sqrt(n_features / n_samples), 0.02, 0.5)
    return width, float(dropout), int(np.clip(2 * n_samples // 3, 64, 256))
