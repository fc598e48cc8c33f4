"""A linear latent variable model of any kinds of features, trained by masking."""

import numpy as np
import torch

from sklearn_mpt._checks import check_choice, check_real
from sklearn_mpt._likelihoods import Gaussian
from sklearn_mpt._linear.gaussian_estimator import GaussianLinear
from sklearn_mpt._linear.gaussian_training import check_rotation
from sklearn_mpt._linear.integrated_estimator import IntegratedLinear
from sklearn_mpt._seeds import RandomState
from sklearn_mpt._tables.estimator import LikelihoodNames, TableMPT
from sklearn_mpt._tables.standard_errors import StandardErrorsMixin


class MPTLinearVAE(StandardErrorsMixin, TableMPT, GaussianLinear, IntegratedLinear):
    r"""Linear latent variable model trained by masked pre-training (MPT).

    Every feature has a location that is linear in z, standard normal: the mean of a
    number, the logit of a yes or no, the logits of categories, the logarithm of the
    rate of a count. With 0 and 1 alone that is logistic principal components, and with
    one component the two-parameter item response model; with numbers alone it is
    `MPTProbabilisticPCA`, or factor analysis. Training hides random features and
    maximises the log-probability of each given others that are seen; with a uniform
    mask rate that is, in expectation over masks, the log marginal likelihood (LML)
    ([1]_, Proposition 1). With ``n_masks="auto"`` masks are drawn until their noise
    hides what is left to gain; the last epochs sum the scores of all mask sizes at
    once. One case draws no masks: with a uniform rate and counts, or
    with numbers beside columns of other kinds, the sum of the scores of all mask sizes
    is computed at once. Columns of zeros and ones, of categories, or of numbers alone
    are trained by random masks; where zeros and ones have few masks and distinct rows,
    by all of their masks.

    Parameters
    ----------
    n_components : int, default=2
        Number K of latent variables; at most n_features with a Gaussian likelihood.
    likelihood : str, sequence of str or dict, default="gaussian"
        Distribution of features given z: "gaussian" (numbers), "bernoulli" (0 and 1, or
        booleans), "categorical" or "poisson" (counts). One name for all columns; a
        sequence of names, one for each; or a dict from columns, by name or number, to
        names, the others Gaussian. "from_dtype" takes a DataFrame: booleans are
        "bernoulli"; categories, strings and objects "categorical"; other numbers
        "gaussian". Categories are codes 0, 1, 2, ... in arrays.
    noise : {"shared", "per_feature"}, default="shared"
        Whether Gaussian features, if all are, have one noise variance, or each its own:
        factor analysis. Beside other kinds each has its own.
    rotation : {"varimax", "quartimax"}, default=None
        How components are rotated after training, so that each feature has few large
        ones; None leaves the principal axes. The distribution of the rows does not
        change.
    slope_prior : float, default=None
        Standard deviation of a normal prior of the components, in locations per unit of
        z, for features that are not all Gaussian. None is no prior, maximum likelihood,
        but for features that separate the rows: what a slope exceeds 10 by has a normal
        prior of standard deviation 1, and a warning says so.
    mask_rate : "uniform", float or int, default="uniform"
        How many features each mask hides. "uniform" is unbiased for the LML; a float
        in (0, 1] is a fixed rate and an int a fixed size, both biased.
    n_masks : int or "auto", default="auto"
        Masks per step, at least, which rows get in turn. A Gaussian likelihood takes
        them as `MPTProbabilisticPCA` does; counts, and numbers beside other columns,
        need none with a uniform mask rate (see Notes). An int trains by masks alone.
        "auto" is 32, 64 for a Gaussian likelihood, and for a uniform rate ends with
        epochs without masks, on the sum of the scores of all sizes.
    objective : {"mpt", "elbo", "lml"}, default="mpt"
        What is maximised: the masked scores; or for comparison the evidence lower
        bound, with the best Gaussian posterior for each row, or the LML itself. For a
        Gaussian likelihood that bound is the LML. All by the same steps, of which the
        last makes EM with one Newton step for each M-step; complete Gaussian rows with
        shared noise have a closed form.
    init : {"random", "pca"} or dict, default="random"
        Where training starts: random components, unless all features are Gaussian the
        best of three short runs; those of principal components (on mean-imputed rows if
        entries are missing); or given arrays, `components`
        (n_components, n_locations) and `intercept` (n_locations,), and
        `noise_variance` (n_features,) if some are Gaussian; or if all are,
        `components`, `mean` (n_features,) and `noise_variance`. A random start of
        ``noise="per_feature"`` is the best of five short runs.
    max_iter : int, default=1000
        Largest number of epochs. 0 keeps the initial parameters.
    learning_rate : float, default=1.0
        Size of the first steps; 1 is a full one, as EM takes it.
    batch_size : int or "auto", default="auto"
        Rows per step. "auto" is all of them, up to 131072 with a Gaussian likelihood
        and 65536 with others. Complete rows with a Gaussian likelihood enter every step
        through their second moments.
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
        Determines the initial components, minibatches, masks and points of integration.
    n_jobs : int, default=None
        Number of joblib workers that `mpt_curve` and `feature_contributions` use for
        this model unless told otherwise.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_locations)
        Slopes of the locations in z, rotated to the principal axes, orthogonal and
        longest first, or as `rotation` says. (Not rotated if ``max_iter=0``. Gaussian
        features with noise of their own count in units of their standard deviations.) A
        feature has one location, and a categorical one C, of mean zero, in the order of
        `categories_`.
    intercept_ : ndarray of shape (n_locations,)
        Locations at z = 0, if some feature is not Gaussian.
    mean_ : ndarray of shape (n_features,)
        Mean of the features, in the place of `intercept_`, if all are Gaussian.
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
        How `score_samples` computes the LML: "exact" with a Gaussian likelihood, else
        "quadrature" for up to three components and "importance" for more.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where all are strings.

    See Also
    --------
    MPTProbabilisticPCA : The same model with a Gaussian likelihood.
    sklearn.decomposition.PCA : Principal components of continuous features.

    Notes
    -----
    Integrals over the posterior of z given the observed features are sums over S nodes
    around its mode, found by Newton's method [2]_. Up to three components they are
    Gauss-Hermite nodes. `score_samples`, `conditional_log_prob`, `transform` and
    `impute` use three grids for each row and refine them until they agree to 1e-4 nats
    (or 1e-4 in a mean); where the finest do not, their difference is the standard
    error. Rows of 0 and 1 alone first try two grids over the prior that they share, if
    up to 65536 nodes (2^23 / D from 128 features on) resolve every posterior.

    For more components nodes are scrambled Sobol points of a mixture of the prior and a
    Gaussian. Of that at the mode and the one that nearly has the best evidence lower
    bound, it is the better by that bound, :math:`1 + 0.4 / \sqrt{K}` times as wide. 8
    independent scramblings give the standard error, times what makes 1.96 of them a 95%
    interval by Student's t. A row gets more points, up to 1024 from the Gaussian in
    each scrambling, until their weights promise 0.02 nats; for a conditional or a mean,
    until the standard error is below 0.1 nats or 0.05. A row's points have a digital
    shift of their own, so that errors of rows average out, and depend on nothing but
    what is observed of the row and a seed fixed by `fit`.

    The LML of binary features has local maxima. A random start, unless all features are
    Gaussian, is that of the best likelihood after eight steps, on up to 500 rows, from
    the components of the rows and of rows resampled twice (from 200 features on, that
    of the rows at once). Where the last tenth of a nat matters, fit from several
    `random_state` besides, and keep the highest `score`.

    With a uniform mask rate every feature is a target: hidden ones given the visible
    ones R, and each visible one given the rest of R. With weights :math:`r_s` of nodes
    :math:`z_s` in the posterior given :math:`x_R`, those are

    .. math:: \log \sum_s r_s \, p(x_j \mid z_s), \qquad
              -\log \sum_s \frac{r_s}{p(x_j \mid z_s)}.

    The second is the conditional predictive ordinate [3]_. Their sum has the
    expectation of the masked score and a much smaller variance. Its gradient g in
    :math:`B = (W, b)` is in expectation that of the LML, so a step divides it by
    what the M-step of EM inverts, the Fisher information of each feature,

    .. math:: I_j = \sum_{i, s} r_{is} \, p_{sj} (1 - p_{sj})
              \begin{pmatrix} z_s \\ 1 \end{pmatrix}
              \begin{pmatrix} z_s \\ 1 \end{pmatrix}^\top, \qquad
              B \leftarrow (B + \eta I^{-1} g) \exp(\eta G),

    where G changes the scale and the mean of z at once, as parameter expansion does
    [4]_. How steps fall, how points are averaged [5]_ and the case of Gaussian features
    are told in `MPTProbabilisticPCA`.

    A count, or a number with little noise, may tell z more closely than the nodes in
    the posterior of the others are spaced. With a uniform mask rate all sizes are then
    trained at once: along any order of the features the scores add up to the LML of the
    row, over nodes in the posterior of all of it. (With a fixed rate they are taken as
    above, and the noise comes out too large where it is small.) Conditionals that no
    grid around the visible features resolves are differences of two likelihoods.

    Where one grid over the prior resolves every posterior, as the largest information
    that rows could have tells, rows share its S nodes, and a step is a few products of
    matrices: an epoch costs :math:`O(N S D + S D K^2)`. Otherwise, and for more than
    three components, each row has S nodes around its mode (15; 7 x 7, or 5 x 5 from 200
    features; 5 x 5 x 5; or 72 points), and it costs :math:`O(N S D K^2)`. Few rows come
    several times in a step. Up to eight features whose distinct rows are few have every
    mask of every row in each step: nothing is random.
    Scoring costs :math:`O(N D (S K + K^2))` for each round of refinement. Memory beside
    X, and beside a copy of it for each of 0 and 1, is a few times 32 MiB.

    A feature that is constant in the training rows has no finite maximum likelihood
    logit: it keeps the one at which half an observation of each value is added. Nor has
    one that separates the rows a finite slope: see `slope_prior`.

    Where kinds are mixed, a score adds log-densities and log-probabilities: compare
    models of the same kinds. A Gaussian feature has nodes of its own for each row, as
    have categories and counts.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.
    .. [2] J. C. Naylor and A. F. M. Smith, "Applications of a method for the efficient
       computation of posterior distributions", Applied Statistics 31, 1982.
    .. [3] S. Geisser and W. F. Eddy, "A predictive approach to model selection", JASA
       74, 1979.
    .. [4] C. Liu, D. B. Rubin and Y. N. Wu, "Parameter expansion to accelerate EM: the
       PX-EM algorithm", Biometrika 85, 1998.
    .. [5] B. T. Polyak and A. B. Juditsky, "Acceleration of stochastic approximation by
       averaging", SIAM Journal on Control and Optimization 30, 1992.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from sklearn_mpt import MPTLinearVAE
    >>> X = (load_digits().data[:200] > 7).astype(float)
    >>> model = MPTLinearVAE(n_components=1, likelihood="bernoulli", random_state=0)
    >>> model = model.fit(X)
    >>> prob = X.mean(axis=0).clip(0.01, 0.99)
    >>> independent = np.mean(X @ np.log(prob) + (1 - X) @ np.log1p(-prob))
    >>> bool(model.score(X) > independent + 1)
    True
    >>> model.transform(X).shape, model.lml_method_
    ((200, 1), 'quadrature')
    """

    components_: np.ndarray
    mean_: np.ndarray
    intercept_: np.ndarray
    noise_variance_: float | np.ndarray

    _bound_parameters = ("likelihood", "noise")
    # for a Gaussian likelihood the evidence lower bound is the LML
    _objectives = ("mpt", "elbo", "lml")

    def __init__(
        self,
        n_components: int = 2,
        *,
        likelihood: LikelihoodNames = "gaussian",
        noise: str = "shared",
        rotation: str | None = None,
        slope_prior: float | None = None,
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
        self.likelihood = likelihood
        self.noise = noise
        self.rotation = rotation
        self.slope_prior = slope_prior
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
    def _kind(self):
        """The base class whose methods suit the likelihood."""
        is_gaussian = isinstance(self._likelihood(), Gaussian)
        return GaussianLinear if is_gaussian else IntegratedLinear

    def _check_parameters(self, n_features):
        check_choice(self.noise, "noise", ["shared", "per_feature"])
        check_rotation(self.rotation)
        if self.slope_prior is not None:
            check_real(self.slope_prior, "slope_prior", "neither")
        self._kind._check_parameters(self, n_features)

    def _start(self, X, rng, weight):
        return self._kind._start(self, X, rng, weight)

    def _solver(self, problem):
        return self._kind._solver(self, problem)

    def _trained_attributes(self, result, fitted):
        return self._kind._trained_attributes(self, result, fitted)

    def _density_of(self, fitted, device):
        return self._kind._density_of(self, fitted, device)

    def _information(self, X, weight):
        return self._kind._information(self, X, weight)

    def _warn_of_limits(self, fitted, n_samples):
        self._kind._warn_of_limits(self, fitted, n_samples)
