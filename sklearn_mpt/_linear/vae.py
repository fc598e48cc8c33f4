"""A linear variational autoencoder, trained by masking."""

import numpy as np
import torch

from sklearn_mpt._checks import check_choice
from sklearn_mpt._latent.estimator import BaseMPT
from sklearn_mpt._likelihoods import Bernoulli
from sklearn_mpt._linear.gaussian_family import GaussianFamily
from sklearn_mpt._linear.integrated_family import IntegratedFamily
from sklearn_mpt._seeds import RandomState

# The evidence lower bound of Gaussian features is the LML.
FAMILIES = {
    "gaussian": GaussianFamily(("mpt", "elbo", "lml")),
    "bernoulli": IntegratedFamily(Bernoulli),
}


class MPTLinearVAE(BaseMPT):
    r"""Linear latent variable model trained by masked pre-training (MPT).

    With a Bernoulli likelihood, feature j of a binary row is 1 with probability
    :math:`\sigma(z^\top w_j + b_j)`, z standard normal: logistic principal components,
    and with one component the two-parameter item response model. With a Gaussian
    likelihood it is `MPTProbabilisticPCA`. Training hides random features and maximises
    the log-probability of each given others that are seen; with a uniform mask rate
    that is, in expectation over masks, the log marginal likelihood (LML) ([1]_,
    Proposition 1).

    Parameters
    ----------
    n_components : int, default=2
        Number K of latent variables; at most n_features with a Gaussian likelihood.
    likelihood : {"gaussian", "bernoulli"}, default="gaussian"
        Distribution of a feature given z. "bernoulli" takes rows of 0 and 1.
    mask_rate : "uniform", float or int, default="uniform"
        How many features each mask hides. "uniform" is unbiased for the LML; a float
        in (0, 1] is a fixed rate and an int a fixed size, both biased.
    n_masks : int, default=128
        Masks per gradient step.
    objective : {"mpt", "elbo", "lml"}, default="mpt"
        What is maximised: the masked scores; or for comparison the evidence lower
        bound, with the best Gaussian posterior for each row, or the LML itself. For a
        Gaussian likelihood that bound is the LML.
    init : {"random", "pca"} or dict, default="random"
        Where training starts: random components; those of principal components (on
        mean-imputed rows if entries are missing); or given arrays, `components`
        (n_components, n_features) and `intercept` (n_features,), or with a Gaussian
        likelihood `components`, `mean` (n_features,) and `noise_variance`.
    max_iter : int, default=1000
        Largest number of epochs. 0 keeps the initial parameters.
    learning_rate : float, default=0.1
        Step size of Adam, in logits, or in standard deviations of Gaussian noise.
    batch_size : int or "auto", default="auto"
        Rows per gradient step. "auto" is an eighth of them, but 16 to 1024, and fewer
        where n_features is large. Complete rows with a Gaussian likelihood enter every
        step through their second moments.
    tol : float, default=1e-4
        Improvement of the objective, in nats per row over `n_iter_no_change` epochs,
        below which training counts as converged.
    n_iter_no_change : int, default=10
        Number of epochs over which improvement is judged.
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
    components_ : ndarray of shape (n_components, n_features)
        Rows of W, rotated to the principal axes: orthogonal, longest first. (Not
        rotated if ``max_iter=0``.)
    intercept_ : ndarray of shape (n_features,)
        Logits at z = 0. Only with a Bernoulli likelihood.
    mean_ : ndarray of shape (n_features,)
        Mean of the features. Only with a Gaussian likelihood.
    noise_variance_ : float
        Variance of the noise. Only with a Gaussian likelihood.
    n_iter_ : int
        Number of epochs trained.
    loss_curve_ : list of float
        Minus the training objective after each epoch, in nats per row.
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
    sklearn.decomposition.PCA : Principal components of real features.

    Notes
    -----
    Integrals over the posterior of z given the observed features are sums over S nodes
    around its mode, found by Newton's method [2]_. Up to three components they are
    Gauss-Hermite nodes. `score_samples`, `conditional_log_prob`, `transform` and
    `impute` use two grids for each row and refine them until they agree to 1e-4 nats
    (or 1e-4 in a mean); where the finest do not, their difference is the standard
    error. For more components they are scrambled Sobol points of a mixture of the
    Gaussian at the mode and the prior, in 8 independent scramblings that give the
    standard error; a row gets more points until it is below 0.02 nats (0.1 for a
    conditional), or 1024 points in each scrambling are used. A row's points depend on
    nothing but the row and `random_state`.

    The LML of binary features has local maxima: fit from several `random_state` and
    keep the highest `score` where the last tenth of a nat matters.

    With a uniform mask rate, every feature is a target: hidden ones given the observed
    ones R, and each observed one given the rest of R, from the same nodes. That has the
    expectation of the masked score, and a much smaller variance. Training uses a fixed
    grid (15 nodes; 7 x 7, or 5 x 5 from 200 features; 5 x 5 x 5) or 72 points.

    With N rows and D features an epoch costs :math:`O(N D (S K + K^2))`, and scoring
    the same times the rounds of refinement. Memory beside X is a few times 32 MiB in
    scoring, 64 MiB in training.

    A feature that is constant in the training rows has no finite maximum likelihood
    logit: it keeps the one at which half an observation of each value is added.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.
    .. [2] J. C. Naylor and A. F. M. Smith, "Applications of a method for the efficient
       computation of posterior distributions", Applied Statistics 31, 1982.

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
    noise_variance_: float

    def __init__(
        self,
        n_components: int = 2,
        *,
        likelihood: str = "gaussian",
        mask_rate: str | float = "uniform",
        n_masks: int = 32,
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
    def _family(self):
        check_choice(self.likelihood, "likelihood", list(FAMILIES))
        return FAMILIES[self.likelihood]
