"""Probabilistic PCA, trained by masking."""

import numpy as np
import torch

from sklearn_mpt._linear.gaussian_estimator import GaussianLinear
from sklearn_mpt._seeds import RandomState


class MPTProbabilisticPCA(GaussianLinear):
    r"""Probabilistic PCA trained by masked pre-training (MPT).

    The model is :math:`x = W z + \mu + \sigma \epsilon` with standard normal z
    (`n_components` of them) and :math:`\epsilon`. Training hides random features and
    maximises the mean log-probability of the hidden ones given the others. With a
    uniform mask rate that objective is, in expectation over masks, the log marginal
    likelihood (LML) ([1]_, Proposition 1), so the fit is the maximum likelihood
    solution of [2]_; unlike the closed form it takes missing values and minibatches.
    With ``n_masks="auto"`` and a uniform rate, masks are drawn until their noise hides
    what is left to gain; the last epochs sum the scores of all mask sizes at once.

    Parameters
    ----------
    n_components : int, default=2
        Number K of latent variables, in 1..n_features.
    mask_rate : "uniform", float or int, default="uniform"
        How many features each mask hides. "uniform" weighs all sizes
        1..n_features alike and is unbiased for the LML; a float in (0, 1] is a fixed
        rate and an int a fixed size, both biased.
    n_masks : int or "auto", default="auto"
        Masks per step on complete rows; with missing entries, and in `partial_fit`,
        each row has a mask of its own in every step, and several where rows are few.
        An int trains by masks alone. "auto" is 64, and for a uniform rate ends with
        epochs without masks, on the sum of the scores of all sizes.
    objective : {"mpt", "lml"}, default="mpt"
        What is maximised: the masked scores, or the LML itself, for comparison: in
        closed form on complete rows, else by EM with parameter expansion [3]_.
    init : {"random", "pca"} or dict, default="random"
        Where training starts: random components; the closed-form solution (on
        mean-imputed rows if entries are missing); or given arrays `components`
        (n_components, n_features), `mean` (n_features,) and `noise_variance` (a
        positive number).
    max_iter : int, default=1000
        Largest number of epochs. 0 keeps the initial parameters.
    learning_rate : float, default=1.0
        Size of the first steps; 1 is a full one, as EM takes it.
    batch_size : int or "auto", default="auto"
        Rows per step when entries are missing; "auto" is all of them, up to 131072.
        Complete rows enter every step of `fit` through their second moments, at no
        extra cost.
    tol : float, default=1e-4
        Training by masks ends where going on for `n_iter_no_change` epochs would gain
        less, in nats per row. (Or less than 5e-4 of the q / (2N) nats that N rows leave
        uncertain of q parameters, if that is more.) Epochs without masks end where all
        epochs to come would gain less than 0.005 of it.
    n_iter_no_change : int, default=2
        Number of epochs whose gain is weighed against `tol`.
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
        Transpose of W, rotated to the principal axes: its rows are orthogonal,
        longest first. (Not rotated if ``max_iter=0``.)
    mean_ : ndarray of shape (n_features,)
        Mean of the features.
    noise_variance_ : float
        Variance of the noise.
    n_iter_ : int
        Number of epochs trained.
    loss_curve_ : list of float
        Minus the training objective in each epoch, in nats per row: a noisy, unbiased
        estimate of minus the LML if `mask_rate` is "uniform".
    lml_method_ : str
        How `score_samples` computes the LML: "exact".
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where all are strings.

    See Also
    --------
    sklearn.decomposition.PCA : The closed-form solution for complete data.
    sklearn.decomposition.FactorAnalysis : One noise variance per feature.
    mpt_curve : The masked scores whose sum is the LML.

    Notes
    -----
    Features share one noise variance, so their scales matter as they do for PCA.

    The masked score of a row hides each feature with a probability that is itself
    uniform, and predicts every feature from the visible ones but itself. Its gradient g
    in the weights and the mean :math:`b_j = (w_j, \mu_j)` of each feature is, in
    expectation over masks, that of the LML. So what makes EM fast makes masking fast:
    a step divides g by the information that the M-step of EM inverts,

    .. math:: I_j = \frac{1}{\sigma^2} \sum_{i: x_{ij} \text{ present}}
              \mathbb{E} \begin{pmatrix} z_i \\ 1 \end{pmatrix}
              \begin{pmatrix} z_i \\ 1 \end{pmatrix}^\top, \qquad
              B \leftarrow (B + \eta I^{-1} g) \exp(\eta G),

    where G, from :math:`W^\top g_W`, changes the scale and the mean of z at once, as
    parameter expansion does [3]_. The step of the noise variance is its gradient over
    its observed information: that of EM takes z as known, and is far too large where
    there are nearly as many components as features.

    On complete rows masks act on the rows' second moments, and :math:`\mu` is the mean
    of the rows. A step takes masks together with their complements.

    Steps have size `learning_rate` until their directions disagree. From there the
    t-th has :math:`(1 + t / 10)^{-0.6}` times that size and the points are averaged
    [4]_; they are full again if the average drifts far beyond its noise, and one that
    overshoots is halved. `partial_fit` lets steps fall over the whole stream and
    averages its points, the late ones most.

    A component that is weaker than the noise of the first steps shrinks, and would
    grow back too slowly to be noticed: the fit would end at a saddle. So the directions
    that the rows leave unexplained are compared with the components, in the first
    epochs, ever more rarely later, and before training ends. A component that explains
    less than one of these directions would is replaced by it, and training goes on.

    With D features, N rows and P masks, an epoch costs
    :math:`O(P (D^2 K + D K^2 + K^3) + D K^3)` on complete rows, after one pass of
    :math:`O(N D^2)` for the second moments (with fewer than D / 2 rows there is no such
    pass, and N D in place of :math:`D^2`), and
    :math:`O(N (D K^2 + K^3) + D K^3)` with missing entries. Scoring costs
    :math:`O(N D K)` on complete rows. Memory beside X is
    :math:`O(D^2 + P D K + D K^2)`, or :math:`O(D K^2)` with missing entries; what grows
    with N is done in blocks. The steps are short: on a machine that is busy otherwise,
    one thread (``OMP_NUM_THREADS=1``) is much faster than several.

    The noise variance is kept above 1e-9 of the mean variance of the features. Where
    it ends there, K components explain the rows without error and the likelihood has
    no maximum; a warning says so.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.
    .. [2] M. E. Tipping and C. M. Bishop, "Probabilistic principal component analysis",
       Journal of the Royal Statistical Society B 61, 1999.
    .. [3] C. Liu, D. B. Rubin and Y. N. Wu, "Parameter expansion to accelerate EM: the
       PX-EM algorithm", Biometrika 85, 1998.
    .. [4] B. T. Polyak and A. B. Juditsky, "Acceleration of stochastic approximation by
       averaging", SIAM Journal on Control and Optimization 30, 1992.

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

    def _measures_of_columns(self):
        """Say what the contract's `_measures_of_columns` does."""
        return ["density"] * self.n_features_in_
