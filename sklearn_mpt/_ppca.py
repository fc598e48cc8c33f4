"""Probabilistic PCA, trained by masking."""

import warnings

import numpy as np
import torch
from numpy.typing import ArrayLike

from sklearn_mpt import _gaussian, _gaussian_start
from sklearn_mpt._base import BaseMPT
from sklearn_mpt._objective import RandomState, loop_over_masks
from sklearn_mpt._training import LikelihoodRows, MaskDraw, MaskedRows
from sklearn_mpt._validation import check_choice, check_mask

# Smallest noise variance, relative to the mean variance of the features.
NOISE_FLOOR = 1e-9


class MPTProbabilisticPCA(BaseMPT):
    r"""Probabilistic PCA trained by masked pre-training (MPT).

    The model is :math:`x = W^\top z + \mu + \sigma \epsilon` with standard normal
    z (`n_components` of them) and :math:`\epsilon`. Training hides random features and
    maximises the mean log-probability of the hidden ones given the others. With a
    uniform mask rate that objective is, in expectation over masks, the log marginal
    likelihood (LML) ([1]_, Proposition 1), so the fit is the maximum likelihood
    solution of [2]_; unlike the closed form it takes missing values and minibatches.

    Parameters
    ----------
    n_components : int, default=2
        Number K of latent variables, in 1..n_features.
    mask_rate : "uniform", float or int, default="uniform"
        How many features each mask hides. "uniform" draws the size from
        1..n_features and is unbiased for the LML; a float in (0, 1] is a fixed rate and
        an int a fixed size, both biased.
    n_masks : int, default=64
        Masks per gradient step.
    objective : {"mpt", "lml"}, default="mpt"
        What is maximised: the masked scores, or the LML itself, for comparison.
    init : {"random", "pca"} or dict, default="random"
        Where training starts: random components; the closed-form solution (on
        mean-imputed rows if entries are missing); or given arrays `components`
        (n_components, n_features), `mean` (n_features,) and `noise_variance` (a
        positive number).
    max_iter : int, default=1000
        Largest number of epochs. 0 keeps the initial parameters.
    learning_rate : float, default=0.1
        Step size of Adam, in standard deviations of the noise.
    batch_size : int or "auto", default="auto"
        Rows per gradient step when entries are missing; "auto" is a sixteenth of them,
        but 256 to 4096. Complete rows enter every step through their second moments, at
        no extra cost.
    tol : float, default=1e-4
        Improvement of the objective, in nats per row over `n_iter_no_change` epochs,
        below which training counts as converged.
    n_iter_no_change : int, default=20
        Number of epochs over which improvement is judged.
    warm_start : bool, default=False
        Whether `fit` goes on from the parameters of the previous call.
    verbose : bool, default=False
        Whether to print the loss of each epoch.
    device : str or torch.device, default="auto"
        Where to compute; "auto" takes CUDA if there is any, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Determines the initial components and the masks.
    n_jobs : int, default=None
        Number of joblib workers that `mpt_curve` and `feature_contributions` use for
        this model unless told otherwise.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Rows of W, rotated to the principal axes: orthogonal, longest first. (Not
        rotated if ``max_iter=0``.)
    mean_ : ndarray of shape (n_features,)
        Mean of the features.
    noise_variance_ : float
        Variance of the noise.
    n_iter_ : int
        Number of epochs trained.
    loss_curve_ : list of float
        Minus the training objective after each epoch, in nats per row: a noisy,
        unbiased estimate of minus the LML if `mask_rate` is "uniform".
    lml_method_ : str
        How `score_samples` computes the LML: "exact".
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features, where all are strings.

    See Also
    --------
    sklearn.decomposition.PCA : The closed-form solution for complete data.
    sklearn.decomposition.FactorAnalysis : One noise variance per feature.
    mpt_curve : The masked scores whose sum is the LML.

    Notes
    -----
    Features share one noise variance, so their scales matter as they do for PCA.
    Steps are measured in standard deviations of the noise, so the fit does not depend
    on the unit or the origin of X. On complete rows `fit` sets the mean to that of the
    rows, which maximises the score of every mask; otherwise it is learned.

    With D features, N rows and P masks, a gradient step costs
    :math:`O(P (D^2 K + D K^2 + K^3))` on complete data, after one pass of
    :math:`O(N D^2)` for the second moments; with missing entries an epoch costs
    :math:`O(N (D K^2 + K^3))`. Scoring costs :math:`O(N D K)` on complete rows. Memory
    is :math:`O(D^2 + P D K)` beside X; what grows with N is done in chunks within
    ``sklearn.get_config()["working_memory"]``. The steps are short: on a machine that
    is busy otherwise, one thread (``OMP_NUM_THREADS=1``) is much faster than several.

    The noise variance is kept above 1e-9 of the mean variance of the features. Where
    it ends there, K components explain the rows without error and the likelihood has
    no maximum; a warning says so.

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

    _objectives = ("mpt", "lml")

    def __init__(
        self,
        n_components: int = 2,
        *,
        mask_rate: str | float = "uniform",
        n_masks: int = 64,
        objective: str = "mpt",
        init: str | dict = "random",
        max_iter: int = 1000,
        learning_rate: float = 0.1,
        batch_size: int | str = "auto",
        tol: float = 1e-4,
        n_iter_no_change: int = 20,
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

    def mean_masked_scores(self, X: ArrayLike, masks: ArrayLike) -> np.ndarray:
        """Average the masked score over rows, for each of several masks.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        masks : array-like of bool, of shape (n_masks, n_features)
            True where a feature is hidden.

        Returns
        -------
        scores : ndarray of shape (n_masks,)
            In nats per hidden feature.
        """
        X = self._validate_rows(X)
        masks = np.asarray(masks)
        masks = check_mask(masks, len(masks), X.shape[1])
        if np.isnan(X).any():
            return loop_over_masks(self.conditional_log_prob, X, masks)
        moments = _gaussian.moments(self._tensor(X))
        return self._map_rows(
            lambda rows: _gaussian.mean_masked_scores(moments, rows, self._parameters),
            masks,
        )

    @property
    def _parameters(self):
        return _gaussian.Gaussian(
            self._tensor(self.components_),
            self._tensor(self.mean_),
            self._tensor(np.asarray(self.noise_variance_)),
        )

    @property
    def _row_bytes(self):
        n_components, n_features = self.components_.shape
        return 8 * (6 * n_features * n_components + 4 * n_components**2)

    def _score_rows(self, X):
        log_prob = _gaussian.log_prob(X, self._parameters)
        return torch.stack([log_prob, torch.zeros_like(log_prob)], dim=1)

    def _conditional_rows(self, X, mask):
        return _gaussian.conditional_log_prob(X, mask, self._parameters)

    def _transform_rows(self, X):
        return _gaussian.posterior_mean(X, self._parameters)

    def _decode(self, Z):
        return Z @ self.components_ + self.mean_

    def _expect_rows(self, X):
        parameters = self._parameters
        Z = _gaussian.posterior_mean(X, parameters)
        return Z @ parameters.components + parameters.mean

    def _draw_rows(self, X, rng):
        parameters = self._parameters
        latent_noise = self._tensor(rng.normal(size=(len(X), self._n_features_out)))
        noise = self._tensor(rng.normal(size=X.shape))
        return _gaussian.draw(X, parameters, latent_noise, noise)

    def _check_own_parameters(self, n_features):
        if self.n_components > n_features:
            raise ValueError(
                f"n_components={self.n_components} must be at most "
                f"n_features={n_features}."
            )
        if not isinstance(self.init, dict):
            check_choice(self.init, "init", ["random", "pca"])

    def _initialize(self, X, rng):
        shift, scale = _gaussian_start.location_and_scale(X)
        shape = (self.n_components, X.shape[1])
        self.lml_method_ = "exact"
        self._noise_floor = NOISE_FLOOR * scale**2
        if isinstance(self.init, dict):
            self._set(_gaussian_start.check_init(self.init, shape))
        elif self.init == "pca":
            self._set(
                _gaussian_start.closed_form(X, shift, shape[0], self._noise_floor)
            )
        else:
            self.components_ = scale * rng.normal(size=shape) / np.sqrt(shape[0])
            self.mean_ = shift
            self.noise_variance_ = scale**2

    def _training_problem(self, X, is_all):
        floor = self._tensor(np.asarray(self._noise_floor))
        model = _gaussian.GaussianModel(*self._parameters, floor)
        rows, has_gaps = self._tensor(X), np.isnan(X).any()
        draw_masks = MaskDraw(self.mask_rate, self.n_masks, X.shape[1], rows.device)
        size = self.batch_size
        if size == "auto":
            size = int(np.clip(len(X) // 16, 256, 4096))
        if self.objective == "mpt" and has_gaps:
            return model, MaskedRows(rows, draw_masks, size)
        if self.objective == "lml" and has_gaps:
            return model, LikelihoodRows(rows, size)
        moments = _gaussian.moments(rows)
        if is_all:  # the score of every mask is largest at the mean of the rows
            model.fix_mean(moments.mean)
        if self.objective == "mpt":
            return model, _gaussian.MaskedMoments(moments, draw_masks)
        return model, _gaussian.LikelihoodMoments(moments)

    def _fitted_attributes(self, model):
        with torch.no_grad():
            components, mean, noise_variance = (
                tensor.cpu().numpy() for tensor in model.parameters_now
            )
        return {
            "components_": _gaussian_start.principal_axes(components),
            "mean_": mean,
            "noise_variance_": float(noise_variance),
        }

    def _warn_about_fit(self, n_samples):
        at_floor = self.noise_variance_ < 10 * self._noise_floor
        rank = min(n_samples - 1, self.n_features_in_)
        if at_floor or rank < min(self.n_components + 1, self.n_features_in_):
            warnings.warn(
                f"n_components={self.n_components} explain the n_samples={n_samples} "
                "without error: the likelihood has no maximum, and noise_variance_="
                f"{self.noise_variance_:.3g} fell towards its floor of "
                f"{self._noise_floor:.3g}. Use fewer components.",
                stacklevel=5,
            )
