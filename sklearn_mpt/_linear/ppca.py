"""Probabilistic PCA, trained by masking."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import StrOptions

from sklearn_mpt._checks import RandomState
from sklearn_mpt._linear.estimator import LinearMPT
from sklearn_mpt._linear.gaussian_model import GaussianModel


class MPTProbabilisticPCA(LinearMPT):
    r"""Probabilistic PCA trained by masked pre-training (MPT).

    The model is :math:`x = W z + \mu + \sigma \epsilon`, where the `n_components`
    entries of z, and those of :math:`\epsilon`, are standard normal. Training hides
    random features and maximises the mean log-probability of the hidden features given
    the others. With a uniform mask rate, the expectation of this objective over masks
    is the log marginal likelihood (LML) ([1]_, Proposition 1), so the fit is the
    maximum likelihood solution of [2]_. Unlike the closed form, it allows missing
    values and minibatches. With ``n_masks="auto"`` and a uniform rate, masks are drawn
    until the remaining gain is smaller than their noise; the last epochs use the sum of
    the scores of all mask sizes, without masks.

    Parameters
    ----------
    n_components : int, default=2
        Number K of latent variables, in 1..n_features.
    mask_rate : "uniform", float or int, default="uniform"
        How many features each mask hides. "uniform" weighs all sizes
        1..n_features alike and is unbiased for the LML; a float in (0, 1] is a fixed
        rate and an int a fixed size. These maximise the score of that size alone, at
        parameters with a lower LML.
    n_masks : int or "auto", default="auto"
        Number of masks in each step. With missing entries the rows are divided among
        them, and have several if they are few. With an int, all epochs use masks.
        "auto" is 32 masks, or all of a fixed size if they are at most 512; with a
        uniform rate they are drawn in at most ten epochs, and the last epochs use the
        sum of the scores of all sizes, without masks.
    objective : {"mpt", "lml"}, default="mpt"
        What training maximises: the masked scores; or, for comparison, the LML, in
        closed form for complete rows, else by EM with parameter expansion.
    init : {"random", "pca"} or dict, default="random"
        Starting values: components that explain the data along random directions; the
        closed-form solution (on mean-imputed rows if entries are missing); or a dict of
        arrays `components` (n_components, n_features), `mean` (n_features,) and
        `noise_variance` (a positive number).
    max_iter : int, default=1000
        Largest number of epochs. With 0 the parameters stay at their start.
    learning_rate : float, default=1.0
        Size of the first steps; 1 is a full step, as in EM. With longer ones and few
        masks a fit may end below its start, as `loss_curve_` then shows.
    batch_size : int or "auto", default="auto"
        Number of rows in each step, if entries are missing. "auto" is all rows, up to
        131072. If rows are complete, every step of `fit` uses the second moments of all
        rows.
    tol : float, default=1e-4
        Training with masks ends when the expected gain of another `n_iter_no_change`
        epochs is less than this, in nats per row. Epochs without masks end when all
        epochs to come are expected to gain less than 0.005 of this.
    n_iter_no_change : int, default=2
        Number of epochs whose expected gain is compared with `tol`.
    warm_start : bool, default=False
        Whether `fit` starts from the parameters of the previous call.
    verbose : bool, default=False
        Whether to print the loss of each epoch.
    device : str or torch.device, default="auto"
        Where to compute; "auto" is CUDA if there is a GPU, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Determines the initial components and the masks.
    n_jobs : int, default=None
        Number of joblib workers of `mpt_curve` and `feature_contributions`, unless
        these get another number; `fit` does not use it.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Transpose of W, rotated to the principal axes: its rows are orthogonal, in the
        order of decreasing length. (Not rotated if ``max_iter=0``.)
    mean_ : ndarray of shape (n_features,)
        Mean of the features.
    noise_variance_ : float
        Variance of the noise.
    n_iter_ : int
        Number of epochs trained.
    loss_curve_ : list of float
        Minus the training objective in each epoch, in nats per row. If `mask_rate` is
        "uniform", it is an unbiased estimate of minus the LML.
    lml_method_ : str
        How `score_samples` computes the LML: "exact".
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if all are strings.

    See Also
    --------
    sklearn.decomposition.PCA : The closed-form solution for complete rows.
    sklearn.decomposition.FactorAnalysis : A noise variance for each feature.
    mpt_curve : The masked scores whose sum is the LML.

    Notes
    -----
    All features have the same noise variance, so their scales matter, as in PCA.

    The :ref:`user guide <training>` describes the steps, when training ends, and the
    cost of an epoch and of a score.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.
    .. [2] M. E. Tipping and C. M. Bishop, "Probabilistic principal component analysis",
       Journal of the Royal Statistical Society B 61, 1999.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import MPTProbabilisticPCA
    >>> X = load_iris().data
    >>> model = MPTProbabilisticPCA(n_components=2, mask_rate="uniform", random_state=0)
    >>> model = model.fit(X)
    >>> closed_form = MPTProbabilisticPCA(n_components=2, init="pca", max_iter=0).fit(X)
    >>> 0 <= closed_form.score(X) - model.score(X) < 0.01
    True
    """

    components_: np.ndarray
    mean_: np.ndarray
    noise_variance_: float
    _parameter_constraints: ClassVar[dict] = LinearMPT._parameter_constraints | {
        "objective": [StrOptions({"mpt", "lml"})],
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        mask_rate: str | float = "uniform",
        n_masks: int | str = "auto",
        objective: str = "mpt",
        init: str | dict = "random",
        max_iter: int = 1000,
        learning_rate: float = 1.0,
        batch_size: int | str = "auto",
        tol: float = 1e-4,
        n_iter_no_change: int = 2,
        warm_start: bool = False,
        verbose: bool = False,
        device: str | torch.device = "auto",
        random_state: RandomState = None,
        n_jobs: int | None = None,
    ):
        self.n_components = n_components
        self.mask_rate = mask_rate
        self.n_masks = n_masks
        self.objective = objective
        self.init = init
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.verbose = verbose
        self.device = device
        self.random_state = random_state
        self.n_jobs = n_jobs

    @property
    def _model(self):
        return GaussianModel(self)

    def _measures_of_columns(self):
        """Return the measure of each column; see `_measures_of_columns` in contract."""
        return ["density"] * self.n_features_in_
