"""The estimator: a net trained by nothing but masks."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import ArrayLike

from sklearn_mpt._checks import check_columns_present, check_training_parameters
from sklearn_mpt._likelihoods import Columns
from sklearn_mpt._masked.family import MaskedFamily
from sklearn_mpt._seeds import RandomState
from sklearn_mpt._tables.estimator import LikelihoodNames, TableMPT


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
        "bernoulli" (0 and 1, or booleans), "categorical" or "poisson" (counts). One
        name for all columns; a sequence of names, one for each; a dict from columns, by
        name or number, to names, the others Gaussian; or "from_dtype", as
        `MPTLinearVAE` takes them.
    hidden_layer_sizes : sequence of int or "auto", default="auto"
        Widths of the residual blocks, of two layers each. ``()`` is a linear net.
        "auto" is two blocks whose width, 64 to 512, grows with the fourth root of
        n_samples times n_features.
    n_mixtures : int, default=5
        Number of Gaussians in the conditional of a column of numbers.
    n_orders : int, default=8
        Number of random orders of the columns whose mixture is the density. Every other
        one is the one before, reversed.
    dropout : float or "auto", default="auto"
        Share of hidden values in [0, 1) that a step of training leaves out. "auto" is
        D / (D + N / 10) for N rows of D columns, but 0.02 to 0.5; categories count as
        columns.
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
        Widths of the residual blocks.
    dropout_ : float
        Share of hidden values left out in training.
    n_mixtures_ : int
        Number of Gaussians for each column of numbers.
    orders_ : ndarray of shape (n_orders, n_features)
        The orders whose mixture is the density.
    module_ : torch.nn.Module
        A copy of the fitted module, in single precision on the CPU.
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

    _bound_parameters = ("likelihood", "n_mixtures", "n_orders")

    def __init__(
        self,
        *,
        likelihood: LikelihoodNames = "gaussian",
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
        """A copy of the fitted module, in single precision on the CPU."""
        self._check_is_fitted()
        return self._family.module(vars(self))

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
        X, model = self._validate_rows(X), self._model()
        return self._map_rows(model, model.last_hidden, X, dtype=X.dtype)

    def _family_of(self, likelihood):
        if not isinstance(likelihood, Columns):
            kind = self.likelihood if self._is_of_numbers else self.likelihoods_[0]
            n_features = self.n_features_in_
            names = getattr(self, "feature_names_in_", None)
            likelihood = Columns([kind] * n_features, [1] * n_features, names)
        return MaskedFamily(likelihood)

    def _validate_training_rows(self, X, reset, min_samples):
        X = self._validate_rows(X, reset=reset, min_samples=min_samples)
        given = self.get_params(deep=False)
        settings = SimpleNamespace(**given, n_components=1, objective="mpt")
        check_training_parameters(settings, self._family.objectives, X.shape[1])
        self._family.check_parameters(self, X.shape[1])
        if not reset:
            self._family.check_fitted(self, vars(self))
            return X
        names = getattr(self, "feature_names_in_", np.arange(X.shape[1]))
        check_columns_present(X, names)
        self._warn_if_binary(X)
        return X
