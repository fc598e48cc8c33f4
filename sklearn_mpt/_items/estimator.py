"""Item response models: answers of people to questions, with gaps."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import chi2
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, gen_batches
from sklearn.utils._param_validation import StrOptions

from sklearn_mpt._checks import (
    POSITIVE,
    check_bool,
    check_choice,
    check_device,
    check_int,
    check_real,
    check_sample_weight,
    warn_caller,
)
from sklearn_mpt._items import item_statistics as statistics
from sklearn_mpt._items import limited_information as limited
from sklearn_mpt._items.abilities import Abilities, likelihood_modes, posterior_modes
from sklearn_mpt._items.answers import Answers
from sklearn_mpt._items.curves import BINARY, MODELS, WITHOUT_SLOPE, Items
from sklearn_mpt._items.dif import DifferentialFunctioning, dif_by_likelihood_ratio
from sklearn_mpt._items.given import (
    given_items,
    given_population,
    given_slopes,
    given_thresholds,
)
from sklearn_mpt._items.information import (
    covariance_of,
    observed_information,
    population_scores,
)
from sklearn_mpt._items.masks import MaskedItemSolver
from sklearn_mpt._items.model import ItemModel, attributes_of, shaped
from sklearn_mpt._items.nodes import MAX_DIMS
from sklearn_mpt._items.rotation import ROTATIONS
from sklearn_mpt._items.start import first_slopes, shares
from sklearn_mpt._items.training import LONG_SLOPE, ItemSolver, Objective, Priors
from sklearn_mpt._latent.base import BaseMPT, LatentMixin
from sklearn_mpt._latent.density import own_mode
from sklearn_mpt._seeds import RandomState

METHODS = ("eap", "map", "ml", "plausible")
STEP = 1e-5  # of central differences
BLOCK = 2**22  # probabilities of answers that are computed at a time
DESCRIBED = ("discrimination", "intercept", "difficulty", "guessing")
MOST_SUM_SCORES = 2**27  # numbers in the distributions of sum scores


class ItemParameters(NamedTuple):
    """Parameters of items and their standard errors.

    Attributes
    ----------
    discrimination, discrimination_std_error : ndarray
        Of shape (n_items,), or (n_items, n_components).
    intercept, intercept_std_error : ndarray
        Of shape (n_items,), or (n_items, n_categories - 1).
    difficulty, difficulty_std_error : ndarray
        The same, by the delta method.
    guessing, guessing_std_error : ndarray of shape (n_items,)
    latent_mean, latent_mean_std_error : ndarray of shape (n_groups, n_components)
    latent_variance, latent_variance_std_error : ndarray of the same shape
    covariance : ndarray of shape (n_items, n_parameters, n_parameters)
        Of the discriminations, intercepts and guessing of each item. The variance is 0
        where a parameter is fixed or the item does not have it.
    """

    discrimination: Any
    discrimination_std_error: Any
    intercept: Any
    intercept_std_error: Any
    difficulty: Any
    difficulty_std_error: Any
    guessing: Any
    guessing_std_error: Any
    latent_mean: Any
    latent_mean_std_error: Any
    latent_variance: Any
    latent_variance_std_error: Any
    covariance: Any


class TestInformation(NamedTuple):
    """Fisher information about abilities.

    Attributes
    ----------
    items : ndarray of shape (n_theta, n_items)
        Information of each item; for several abilities, the trace of its matrix.
    test : ndarray of shape (n_theta,)
    """

    items: np.ndarray
    test: np.ndarray


class Reliability(NamedTuple):
    """Reliability of EAP abilities; arrays of shape (n_components,).

    Attributes
    ----------
    empirical : ndarray
        Variance of the abilities of the rows, divided by the sum of this variance and
        the mean of their squared standard errors.
    marginal : ndarray
        Mean of :math:`I(z) / (I(z) + 1 / \\sigma^2)` over the population.
    """

    empirical: np.ndarray
    marginal: np.ndarray


class LikelihoodRatio(NamedTuple):
    """Likelihood-ratio test: statistic, degrees of freedom and p-value."""

    statistic: float
    df: int
    p_value: float


class MPTItemResponse(LatentMixin, BaseMPT):
    """Item response models, for answers that may be missing.

    Each person has one ability z, or several, with a normal distribution over the
    population, and answers questions (items) with probabilities that depend on z. Items
    can be graded or nominal, can allow for guessing, and can differ in kind. Groups of
    people can differ in the mean and the variance of z. Parameters are estimated by
    marginal maximum likelihood, as in the R packages mirt and ltm. The :doc:`guide
    </item_response>` has the equations, tests of fit, and how all is computed.

    Parameters
    ----------
    model : str or sequence of str, default="2pl"
        The model of all items, or of each. For answers 0 and 1: "rasch" (all slopes are
        one, and the variance of z is free), "2pl" (slope and intercept) or "3pl" (also
        a probability of guessing the right answer). For answers 0, 1, ..., C - 1 [1]_:
        "graded" (cumulative logits), "partial_credit" (logits of adjacent answers, all
        slopes one, and the variance of z free), "gpcm" (the same with free slopes) or
        "nominal" (a slope and an intercept for each answer).
    n_components : int, default=1
        Number of abilities, up to 3. More than one is allowed only if all slopes are
        free and no item is nominal; `MPTLinearVAE` has no such limits.
    rotation : {"varimax", "quartimax", "oblimin"}, default=None
        Rotation of several abilities to simple structure of the standardised loadings.
        "oblimin" allows correlated abilities. None keeps the principal axes.
    slope_prior : float, default=None
        Standard deviation of a normal prior of the slopes. None is no prior, but if a
        slope exceeds 10, the excess has one of standard deviation 1, and `fit` warns.
    guessing_prior : tuple of (float, float), default=None
        Mean and standard deviation of a normal prior of the logit of guessing.
    objective : {"lml", "mpt"}, default="lml"
        The objective of training: the log marginal likelihood (LML), without masks; or
        the masked scores, whose sum over all sizes of masks is the LML [2]_. With a
        uniform mask rate both lead to the same parameters, and "mpt" with
        ``n_masks="auto"`` ends with steps on the LML.
    mask_rate : "uniform", float or int, default="uniform"
        Share or number of items that each mask hides, for "mpt". Training is biased for
        a fixed rate or size.
    n_masks : int or "auto", default="auto"
        Number of masks in each step, among which the rows are divided. "auto" is 32.
        With an int, all steps are by masks.
    max_iter : int, default=1000
        Largest number of steps. 0 keeps the start.
    learning_rate : float, default=1.0
        Size of the first steps for "mpt"; 1 is a full step of EM.
    tol : float, default=1e-7
        Training ends when the expected further gain is less than `tol` times the number
        of parameters, in nats of the log-likelihood of all rows.
    warm_start : bool, default=False
        Whether `fit` starts from the parameters of the previous call.
    verbose : bool, default=False
        Whether to print the loss of each step.
    device : str or torch.device, default="auto"
        Device of the computations; "auto" is CUDA if it is available, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Determines the masks, and the draws of `sample`, `impute` and `abilities`.
    n_jobs : int, default=None
        Number of joblib workers of `mpt_curve` and `feature_contributions`, unless
        these get another number; `fit` does not use it.

    Attributes
    ----------
    discrimination_ : ndarray of shape (n_items,) or (n_items, n_components)
        Slopes; their sum is positive.
    intercept_ : ndarray of shape (n_items,) or (n_items, n_categories - 1)
        Logits d at z = 0, defined as in mirt. "graded": logit of answer c or a higher
        one. "gpcm", "partial_credit" and "nominal": log-probability of answer c less
        that of answer 0. NaN beyond the answers of an item.
    difficulty_ : ndarray of the shape of `intercept_`
        Values of z at the thresholds: -d / a, and for partial credit the z at which
        answers c - 1 and c are equally probable. NaN for nominal items.
    guessing_ : ndarray of shape (n_items,)
        Lower asymptotes; 0 unless the item is "3pl".
    category_scores_ : ndarray of shape (n_items, n_categories)
        Factor of the slope for each answer: 0..C-1, estimated for nominal items except
        for the first and the last.
    n_categories_ : ndarray of int, of shape (n_items,)
        Numbers of answers.
    latent_mean_, latent_variance_ : ndarray of shape (n_groups, n_components)
        Mean and variance of z in each group. In the first group they are 0 and 1; the
        variance is free if slopes are fixed.
    factor_correlation_ : ndarray of shape (n_components, n_components)
        Correlations of the abilities.
    groups_ : ndarray of shape (n_groups,)
        Labels of the groups. Only `abilities` and `log_likelihood` take that of a row;
        other methods use the distribution of z in all groups together.
    n_iter_ : int
        Number of steps.
    loss_curve_ : list of float
        Minus the objective after each step, in nats per row.
    lml_method_ : str
        How `score_samples` computes the LML: "quadrature".
    n_features_in_ : int
        Number of items in `fit`; `feature_names_in_` has their names, if strings.

    See Also
    --------
    MPTLinearVAE : More abilities, and answers beside other columns, without statistics.

    References
    ----------
    .. [1] F. B. Baker and S.-H. Kim, "Item response theory: parameter estimation
       techniques", CRC Press, 2004.
    .. [2] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023, Proposition 1.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import MPTItemResponse
    >>> rng = np.random.default_rng(0)
    >>> z, difficulty = rng.normal(size=(500, 1)), np.linspace(-1.5, 1.5, 6)
    >>> X = 1.0 * (rng.random((500, 6)) < 1 / (1 + np.exp(difficulty - z)))
    >>> X[rng.random(X.shape) < 0.1] = np.nan
    >>> model = MPTItemResponse(model="rasch").fit(X)
    >>> bool(np.abs(model.difficulty_ - difficulty).max() < 0.4)
    True
    >>> model.abilities(X[:2], method="map").theta.shape
    (2, 1)
    """

    discrimination_: np.ndarray
    intercept_: np.ndarray
    difficulty_: np.ndarray
    guessing_: np.ndarray
    category_scores_: np.ndarray
    n_categories_: np.ndarray
    latent_mean_: np.ndarray
    latent_variance_: np.ndarray
    factor_correlation_: np.ndarray
    groups_: np.ndarray

    n_iter_no_change = 1
    _parameter_constraints: ClassVar[dict] = BaseMPT._parameter_constraints | {
        "objective": [StrOptions({"mpt", "lml"})],
        "rotation": [StrOptions({*ROTATIONS}), None],
        "slope_prior": [POSITIVE, None],
    }
    _bound_parameters = ("model",)
    _group_codes: np.ndarray | None = None  # groups of the rows that `fit` trains on

    def __init__(
        self,
        model: str | Sequence[str] = "2pl",
        n_components: int = 1,
        *,
        rotation: str | None = None,
        slope_prior: float | None = None,
        guessing_prior: tuple[float, float] | None = None,
        objective: str = "lml",
        mask_rate: str | float = "uniform",
        n_masks: int | str = "auto",
        max_iter: int = 1000,
        learning_rate: float = 1.0,
        tol: float = 1e-7,
        warm_start: bool = False,
        verbose: bool = False,
        device: str | torch.device = "auto",
        random_state: RandomState = None,
        n_jobs: int | None = None,
    ):
        self.model = model
        self.n_components = n_components
        self.rotation = rotation
        self.slope_prior = slope_prior
        self.guessing_prior = guessing_prior
        self.objective = objective
        self.mask_rate = mask_rate
        self.n_masks = n_masks
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose
        self.device = device
        self.random_state = random_state
        self.n_jobs = n_jobs

    # Training

    def fit(
        self,
        X: ArrayLike,
        y: object = None,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fit the model to X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers of people, codes 0, 1, 2, ...; NaN marks missing ones.
        y : Ignored
            Not used, present for API consistency by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row: a row with weight 2 counts twice, a row with weight 0 is
            left out. None is 1.
        groups : array-like of shape (n_samples,), default=None
            Group of each person. Groups differ in the mean and the variance of z; items
            have the same parameters in all groups. The first group, in sorted order,
            has mean 0 and variance 1. Allowed for models of one ability only.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError, TypeError
            If a parameter or X is not valid; the message says what is allowed.

        Warns
        -----
        ConvergenceWarning
            If `max_iter` was reached; if a slope has no finite maximum likelihood; or
            if nobody gave one of the answers.
        """
        labels, codes = self._coded(groups, X)
        if sample_weight is not None and codes is not None:
            weight = check_sample_weight(sample_weight, X)
            codes = codes[weight > 0]
        self._group_codes, self._group_labels = codes, labels
        try:
            super().fit(X, y, sample_weight)
        finally:
            for name in ("_group_codes", "_group_labels"):
                self.__dict__.pop(name, None)
        return self

    def _coded(self, groups, X, known=None):
        """Labels of groups, and the code of each row; None if there are none."""
        if groups is None:
            return np.array(["all"]), None
        groups = np.asarray(groups)
        n_rows = len(X) if hasattr(X, "__len__") else np.shape(X)[0]
        if groups.shape != (n_rows,):
            raise ValueError(
                f"groups must have shape (n_samples,) = ({n_rows},), got "
                f"{groups.shape}."
            )
        if groups.dtype.kind == "f" and np.isnan(groups).any():
            raise ValueError("groups must not contain NaN.")
        labels, codes = np.unique(groups, return_inverse=True)
        if known is not None:
            strange = labels[~np.isin(labels, known)]
            if len(strange):
                raise ValueError(
                    f"groups must be among those of fit, {known.tolist()}, got "
                    f"{strange[:5].tolist()}."
                )
            codes = np.searchsorted(known, groups)
        elif len(labels) > 100:
            raise ValueError(
                f"groups has {len(labels)} different labels; at most 100 are allowed."
            )
        return labels, codes

    def _names(self, n_items):
        """The name of the model of each item, checked."""
        if isinstance(self.model, str):
            check_choice(self.model, "model", MODELS)
            return [self.model] * n_items
        if not isinstance(self.model, list | tuple | np.ndarray):
            raise ValueError(
                f"model must be one of {', '.join(map(repr, MODELS))}, or a list of "
                f"them, one for each item, got {self.model!r}."
            )
        names = list(self.model)
        if len(names) != n_items:
            raise ValueError(
                f"model must have one name for each of the {n_items} items, got "
                f"{len(names)}."
            )
        for name in names:
            check_choice(name, "Each name in model", MODELS)
        return [str(name) for name in names]

    def _check_parameters(self, n_features):
        names = self._names(n_features)
        if self.n_components > MAX_DIMS:
            raise ValueError(
                f"n_components == {self.n_components}, must be <= {MAX_DIMS}, because "
                "integrals over z use a grid. MPTLinearVAE(likelihood='bernoulli') "
                "allows more."
            )
        if self.n_components > 1:
            fixed = sorted({*names} & {*WITHOUT_SLOPE, "nominal"})
            if fixed:
                raise ValueError(
                    f"n_components must be 1 where items are {fixed[0]!r}, got "
                    f"{self.n_components}."
                )
            if self._group_codes is not None:
                raise ValueError(
                    "groups are for one ability: n_components must be 1, got "
                    f"{self.n_components}."
                )
        if self.guessing_prior is not None:
            self._check_guessing_prior()

    def _check_guessing_prior(self):
        prior = self.guessing_prior
        is_pair = isinstance(prior, tuple | list) and len(prior) == 2
        if not is_pair or isinstance(prior[0], str | bool):
            raise ValueError(
                "guessing_prior must be None, or the mean and the standard deviation "
                f"of a logit, got {prior!r}."
            )
        mean, deviation = prior
        if not isinstance(mean, Real) or not math.isfinite(mean):
            raise ValueError(
                f"The mean of guessing_prior must be a finite number, got {mean!r}."
            )
        check_real(deviation, "The standard deviation of guessing_prior", "neither")

    def _check_values(self, X):
        names = self._names(X.shape[1])
        present = ~np.isnan(X)
        values = np.where(present, X, 0.0)
        bad = (values < 0) | (values != np.floor(values)) | (values > 100)
        most = getattr(self, "n_categories_", None)
        if most is None or len(most) != X.shape[1]:
            limits = np.array([2 if name in BINARY else 128 for name in names])
        else:
            limits = most
        bad |= values >= limits
        if bad.any():
            i, j = np.argwhere(bad)[0]
            last = min(int(limits[j]) - 1, 100)
            raise ValueError(
                f"Answers to item {j} (model {names[j]!r}) must be codes "
                f"0..{last}, or NaN where missing, got {X[i, j]}."
            )

    @property
    def _n_features_out(self):
        return vars(self)["factor_correlation_"].shape[0]

    @property
    def _priors(self):
        prior = self.guessing_prior
        return Priors(self.slope_prior, None if prior is None else tuple(prior))

    def _start(self, X, rng, weight):
        names = self._names(X.shape[1])
        counts = np.maximum(2, np.nanmax(X, axis=0).astype(int) + 1)
        items = Items(names, counts, self.n_components)
        share = shares(X, items.most, weight)
        slopes = first_slopes(X, self.n_components, weight)
        if items.has_fixed_scale:
            slopes = np.ones_like(slopes)
        point = items.start(share, slopes)
        n_groups = 1 if self._group_codes is None else len(self._group_labels)
        codes = (
            np.zeros(len(X), int) if self._group_codes is None else self._group_codes
        )
        own, _ = attributes_of(items, point, self.rotation)
        counted = np.bincount(codes, weight, n_groups)
        shape = n_groups, self.n_components
        return own | {
            "lml_method_": "quadrature",
            "n_categories_": counts,
            "latent_mean_": np.zeros(shape),
            "latent_variance_": np.ones(shape),
            "groups_": getattr(self, "_group_labels", np.array(["all"])),
            "_group_share": counted / counted.sum(),
        }

    def _model_of(self, fitted):
        return ItemModel.of(fitted, self._names(len(fitted["n_categories_"])))

    def _density_of(self, fitted, device):
        return self._model_of(fitted).density(device)

    def _measures_of_columns(self):
        """Return the measure of each column; see `_measures_of_columns` in contract."""
        return ["probability"] * self.n_features_in_

    def _solver(self, problem):
        model = self._model_of(problem.fitted)
        codes = self._group_codes
        if len(model.mean) > 1:
            if codes is None:
                raise ValueError(
                    f"The model has {len(model.mean)} groups, but the parameter groups "
                    "was not given: fit it with groups."
                )
            known = problem.fitted["groups_"]
            if not np.array_equal(known, self._group_labels):
                raise ValueError(
                    f"groups must be those of the fitted model, {known.tolist()}, got "
                    f"{self._group_labels.tolist()}."
                )
        answers = Answers(
            problem.X, model.items.most, problem.weight, codes, problem.device
        )
        unseen = None
        if problem.is_all:
            unseen = _unseen(problem.X, model.items).to(problem.device)
        objective = Objective(answers, model.layout, self._priors, unseen)
        point = model.start(problem.device)
        settings = {"tol": self.tol, "n_before": problem.fitted["n_iter_"]}
        if self.objective == "lml" or not problem.is_all:
            return ItemSolver(objective, point, **settings)
        return MaskedItemSolver(
            objective,
            point,
            rng=problem.rng,
            mask_rate=self.mask_rate,
            n_masks=self.n_masks,
            learning_rate=self.learning_rate,
            **settings,
        )

    def _trained_attributes(self, result, fitted):
        model = self._model_of(fitted)
        point = result.detach().cpu()
        items, layout = model.items, model.layout
        n_items = items.n_parameters
        rotation = self.rotation
        own, sign = attributes_of(items, point[:n_items].numpy(), rotation)
        population = layout.population(point)
        mean, deviation = population.mean.numpy(), population.deviation.numpy()
        return own | {"latent_mean_": sign * mean, "latent_variance_": deviation**2}

    def _warn_of_limits(self, fitted, n_samples):
        names = fitted.get("feature_names_in_", np.arange(len(fitted["n_categories_"])))
        if self.slope_prior is None:
            slopes = fitted["discrimination_"].reshape(len(names), -1)
            long = np.flatnonzero(np.linalg.norm(slopes, axis=1) > LONG_SLOPE)
            if len(long):
                warn_caller(
                    f"The slopes of {len(long)} item(s), {names[long[:10]].tolist()}, "
                    f"exceed {LONG_SLOPE:g}: these items separate people, and their "
                    "likelihood may have no finite maximum. A normal prior keeps the "
                    "excess small; slope_prior=2.0, for instance, would bound all "
                    "slopes.",
                    ConvergenceWarning,
                )

    # People

    def abilities(
        self,
        X: ArrayLike,
        method: str = "eap",
        *,
        groups: ArrayLike | None = None,
        n_draws: int = 1,
        random_state: RandomState = None,
    ) -> Abilities:
        """Estimate abilities of people, with standard errors.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        method : {"eap", "map", "ml", "plausible"}, default="eap"
            "eap": mean of the posterior. "map": mode of the posterior. "ml": mode of
            the likelihood, which is infinite if the likelihood has no maximum, as for
            people with all answers right, and NaN for people without answers.
            "plausible": draws from the posterior (plausible values).
        groups : array-like of shape (n_samples,), default=None
            Group of each person; the prior of z has the mean and variance of that
            group. With None the prior is that of all groups together.
        n_draws : int, default=1
            Number of plausible values of each person.
        random_state : int, RandomState instance or None, default=None
            Determines plausible values. None takes the `random_state` of the estimator.

        Returns
        -------
        abilities : named tuple
            `theta`, of shape (n_samples, n_components), or (n_draws, n_samples,
            n_components) for several draws; and `std_error`, the standard deviation of
            the posterior for "eap" and "plausible", and otherwise computed from the
            second derivatives at the mode.
        """
        check_choice(method, "method", METHODS)
        check_int(n_draws, "n_draws")
        self._check_is_fitted()
        _, codes = self._coded(groups, X, self.groups_)
        rows, density = self._validate_rows(X), self._density()
        if method in ("map", "ml"):
            return self._modal_abilities(rows, density, codes, method == "map")
        found = self._posterior_abilities(rows, density, codes)
        if method == "eap":
            return found
        drawn = self._drawn_abilities(rows, density, codes, n_draws, random_state)
        return found._replace(theta=drawn)

    def _posterior_abilities(self, X, density, codes):
        """Means and standard deviations of the posteriors of rows."""

        def moments(rows, codes=None):
            of = None if codes is None else density.of_groups[codes[:, 0].long()]
            mean, covariance = density.latent_moments(rows, of)
            variance = covariance.diagonal(dim1=1, dim2=2).clamp(min=0)
            return torch.stack([mean, variance.sqrt()], 1)

        both = self._map_rows(density, moments, *_with_codes(X, codes))
        return Abilities(both[:, 0], both[:, 1])

    def _drawn_abilities(self, X, density, codes, n_draws, random_state):
        rng = self._own_generator(random_state)
        with own_mode():
            finer = density.finer()

        def draw(rows, codes=None):
            of = None if codes is None else finer.of_groups[codes[:, 0].long()]
            return finer.draw_latent(rows, rng, n_draws, of)

        drawn = self._map_rows(finer, draw, *_with_codes(X, codes))
        return drawn[:, 0] if n_draws == 1 else drawn.transpose(1, 0, 2)

    def _modal_abilities(self, X, density, codes, has_prior):
        """Modes of posteriors, or of likelihoods."""
        of_rows = posterior_modes if has_prior else likelihood_modes

        def stacked(rows, codes=None):
            return torch.stack(of_rows(density, rows, codes), 1)

        both = self._map_rows(density, stacked, *_with_codes(X, codes))
        return Abilities(both[:, 0], both[:, 1])

    def person_fit(self, X: ArrayLike, theta: ArrayLike | None = None):
        """Compute statistics of the fit of each person.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones, which are left out.
        theta : array-like of shape (n_samples, n_components), default=None
            Abilities. None is the result of `transform`.

        Returns
        -------
        fit : named tuple
            `zh`, the standardised log-probability of the answers, low for unusual
            answers; `infit` and `outfit`, weighted and unweighted mean squares of the
            standardised residuals, with expected value 1. Arrays of shape (n_samples,).
        """
        parts = self._moments(X, None, theta)
        sums = [statistics.sums_of(moments, w, 1) for moments, w in parts]
        infit, outfit, zh = statistics.fit_of(np.concatenate(sums, axis=1))
        return statistics.PersonFit(zh, infit, outfit)

    def reliability(
        self, X: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Reliability:
        r"""Compute the reliability of EAP abilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.

        Returns
        -------
        reliability : named tuple
            `empirical`, the variance of the abilities divided by the sum of this
            variance and the mean of their squared standard errors; and `marginal`, the
            mean of :math:`I(z) / (I(z) + 1 / \sigma^2)` over the population, which does
            not depend on X.
        """
        theta, error = self.abilities(X)
        weight = check_sample_weight(sample_weight, theta)
        mean = np.average(theta, axis=0, weights=weight)
        spread = weight @ (theta - mean) ** 2 / (weight.sum() - 1)
        noise = np.average(error**2, axis=0, weights=weight)
        density = self._density()
        with own_mode():
            weights = density.log_weight.exp()
            curves = density.items.curves(density.point, density.grid.z)
            told = density.items.information_of_z(curves, density.point).sum(0)
            mean_z = weights @ density.grid.z
            variance = weights @ density.grid.z**2 - mean_z**2
            marginal = (told / (told + 1 / variance[:, None])) @ weights
        return Reliability(spread / (spread + noise), marginal.cpu().numpy())

    # Items

    def information(self, theta: ArrayLike) -> TestInformation:
        """Compute the Fisher information of the items and the test about abilities.

        Parameters
        ----------
        theta : array-like of shape (n_theta,) or (n_theta, n_components)
            Abilities.

        Returns
        -------
        information : named tuple
            Fisher information: `items`, of shape (n_theta, n_items), and `test`, its
            sum over the items, of shape (n_theta,); with several abilities the trace.
        """
        self._check_is_fitted()
        theta = np.asarray(theta, dtype=float)
        theta = check_array(theta.reshape(-1, 1) if theta.ndim < 2 else theta)
        if theta.shape[1] != self._n_features_out:
            raise ValueError(
                f"theta must have n_components={self._n_features_out} columns, got "
                f"{theta.shape[1]}."
            )
        density = self._density()
        with own_mode():
            z = density.of_abilities(self._tensor(theta))
            curves = density.items.curves(density.point, z)
            by_item = np.zeros((len(theta), self.n_features_in_))
            inverse = torch.linalg.inv(density.root)
            for block, curve in zip(density.items.blocks, curves, strict=True):
                slopes = block.split(density.point)[0] @ inverse.T
                told = (curve.log_prob.exp() * curve.eta**2).sum(1)
                told = (slopes**2).sum(1)[:, None] * told
                by_item[:, block.items.numpy()] = told.T.cpu().numpy()
        return TestInformation(by_item, by_item.sum(axis=1))

    def item_probabilities(self, theta: ArrayLike) -> np.ndarray:
        """Compute the probability of each answer, given abilities.

        Parameters
        ----------
        theta : array-like of shape (n_theta,) or (n_theta, n_components)
            Abilities.

        Returns
        -------
        prob : ndarray of shape (n_theta, n_items, n_categories)
            0 beyond the answers of an item.
        """
        self._check_is_fitted()
        theta = np.asarray(theta, dtype=float)
        theta = check_array(theta.reshape(-1, 1) if theta.ndim < 2 else theta)
        density = self._density()
        return self._prob_of(density, theta)

    def _prob_of(self, density, theta):
        with own_mode():
            z = density.of_abilities(self._tensor(theta))
            prob = density.items.prob(density.items.curves(density.point, z))
            return prob.permute(2, 0, 1).cpu().numpy()

    def item_parameters(
        self,
        X: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        as_frame: bool = False,
    ) -> Any:
        r"""Return the parameters of the items, with standard errors.

        The covariance of the estimates is the inverse of the observed information at
        the fitted parameters, computed by Louis' identity [1]_. The curvature of
        priors, if there are any, is part of it. Standard errors of difficulties and
        guessing are computed by the delta method.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items), default=None
            The training rows; NaN marks missing answers. If None, the standard errors
            are NaN.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row, as in `fit`.
        groups : array-like of shape (n_samples,), default=None
            Group of each person, as in `fit`.
        as_frame : bool, default=False
            Whether to return a pandas DataFrame with a row for each item.

        Returns
        -------
        parameters : named tuple or DataFrame
            `discrimination`, `intercept`, `difficulty` and `guessing`, of the shapes of
            the fitted attributes, `latent_mean` and `latent_variance`; each with
            ``_std_error``, 0 where it is fixed. And `covariance`, of shape (n_items,
            n_parameters, n_parameters): of discriminations, intercepts and guessing of
            each item.

        Warns
        -----
        UserWarning
            If the rows do not determine some parameters, which have no standard errors.

        Notes
        -----
        With several abilities the errors are those of the rotated slopes. With more
        than 3000 parameters the information of each item is computed separately: an
        ability is then known from many items, and the errors of one item hardly depend
        on the parameters of the others.

        References
        ----------
        .. [1] T. A. Louis, "Finding the observed information matrix when using the EM
           algorithm", Journal of the Royal Statistical Society B 44, 1982.
        """
        check_bool(as_frame, "as_frame")
        self._check_is_fitted()
        model = self._model_of(vars(self))
        found = model.items.describe(model.point)
        found = {name: getattr(self, f"{name}_") for name in DESCRIBED}
        d, K, steps = len(model.items), model.items.n_dims, model.items.most - 1
        width = K + steps + 1
        covariance = np.full((d, width, width), np.nan)
        errors = {name: np.full(np.shape(found[name]), np.nan) for name in DESCRIBED}
        latent = {
            "latent_mean": self.latent_mean_,
            "latent_variance": self.latent_variance_,
        }
        latent_errors = {name: np.full(v.shape, np.nan) for name, v in latent.items()}
        if X is not None:
            covariance, difficulty, latent_errors = self._covariances(
                model, X, sample_weight, groups
            )
            deviation = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
            errors["discrimination"] = deviation[:, :K].reshape(
                found["discrimination"].shape
            )
            shape = found["intercept"].shape
            errors["intercept"] = np.where(
                np.isnan(found["intercept"]),
                np.nan,
                deviation[:, K : K + steps].reshape(shape),
            )
            errors["difficulty"] = difficulty.reshape(shape)
            errors["guessing"] = deviation[:, -1]
        values = {}
        for name in DESCRIBED:
            values[name], values[f"{name}_std_error"] = found[name], errors[name]
        for name, value in latent.items():
            values[name], values[f"{name}_std_error"] = value, latent_errors[name]
        parameters = ItemParameters(**values, covariance=covariance)
        return self._as_frame(parameters) if as_frame else parameters

    def _as_frame(self, parameters):
        import pandas as pd

        columns = {}
        for name in DESCRIBED:
            for part in (name, f"{name}_std_error"):
                value = getattr(parameters, part)
                if value.ndim == 1:
                    columns[part] = value
                else:
                    columns |= {
                        f"{part}_{c + 1}": value[:, c] for c in range(value.shape[1])
                    }
        names = getattr(self, "feature_names_in_", np.arange(self.n_features_in_))
        return pd.DataFrame(columns, index=names)

    def _objective_on(self, model, X, sample_weight, groups):
        """Return the objective on these rows, and the fitted flat parameters."""
        rows = self._validate_rows(X)
        weight = check_sample_weight(sample_weight, rows)
        codes = self._codes_of(groups, X)
        device = check_device(self.device)
        answers = Answers(rows, model.items.most, weight, codes, device)
        objective = Objective(answers, model.layout, self._priors)
        point = model.start(device)
        objective.place_nodes(point)
        return objective, point

    def _codes_of(self, groups, X):
        if groups is not None:
            return self._coded(groups, X, self.groups_)[1]
        if len(self.groups_) > 1:
            raise ValueError(
                f"The model has {len(self.groups_)} groups: the parameter groups must "
                "give the group of each row."
            )
        return None

    def _covariances(self, model, X, sample_weight, groups):
        """Return covariances of the parameters of each item, and other errors."""
        items = model.items
        with own_mode():
            objective, point = self._objective_on(model, X, sample_weight, groups)
            information = observed_information(objective, point)
        K = items.n_dims
        flat = point.cpu().numpy()
        by_items = isinstance(information, list)
        if by_items:
            blocks = [np.linalg.inv(part) for part in information]
            whole = None
        else:
            whole = covariance_of(information, K * (K - 1) // 2)
            blocks = []
            for block in items.blocks:
                j, w = len(block.items), block.width
                part = whole[block.parameters, block.parameters].reshape(j, w, j, w)
                blocks.append(part[np.arange(j), :, np.arange(j)])
        latent = self._latent_errors(model, whole)
        if K > 1 and whole is not None:
            covariance, difficulty = self._rotated_covariances(model, flat, whole)
            return covariance, difficulty, latent
        covariance, difficulty = _delta(items, flat[: items.n_parameters], blocks)
        return covariance, difficulty, latent

    def _latent_errors(self, model, whole):
        mean = np.zeros(self.latent_mean_.shape)
        variance = np.zeros(self.latent_variance_.shape)
        layout = model.layout
        of_mean, of_deviation = layout.places
        if whole is None:
            mean[layout.free_mean] = variance[layout.free_variance] = np.nan
        else:
            deviations = np.sqrt(np.diagonal(whole))
            mean[layout.free_mean] = deviations[of_mean, None]
            variance[layout.free_variance] = (
                2 * self.latent_variance_[layout.free_variance]
                * deviations[of_deviation, None]
            )  # fmt: skip
        return {"latent_mean": mean, "latent_variance": variance}

    def _rotated_covariances(self, model, flat, whole):
        """Covariances after rotation, by its numerical derivatives."""
        items = model.items

        def of_users(at):
            found, _ = attributes_of(items, at, self.rotation, model.root)
            d = len(items)
            intercept = found["intercept_"].reshape(d, -1)
            difficulty = found["difficulty_"].reshape(d, -1)
            parts = found["discrimination_"], intercept, found["guessing_"][:, None]
            return np.concatenate([*parts, difficulty], 1)

        base = of_users(flat)
        width = items.n_dims + items.most  # of the covariance matrix of an item
        jacobian = np.zeros((*base.shape, len(flat)))
        for p in range(len(flat)):
            step = np.zeros(len(flat))
            step[p] = STEP
            jacobian[..., p] = (of_users(flat + step) - of_users(flat - step)) / (
                2 * STEP
            )
        jacobian = np.nan_to_num(jacobian)
        every = jacobian @ whole @ jacobian.transpose(0, 2, 1)
        deviation = np.sqrt(np.diagonal(every, axis1=1, axis2=2))
        return every[:, :width, :width], deviation[:, width:]

    # Fit

    def _moments(self, X, sample_weight, theta=None):
        """Yield the moments of the answers of blocks of people, and their weights.

        theta : abilities; None is the result of `transform`.
        """
        rows = self._validate_rows(X).astype(float)
        weight = check_sample_weight(sample_weight, rows)
        density = self._density()
        if theta is None:
            theta = self._posterior_abilities(rows, density, None).theta
        theta = check_array(theta, ensure_all_finite="allow-nan")
        if np.shape(theta) != (len(rows), self._n_features_out):
            raise ValueError(
                "theta must have shape (n_samples, n_components) = "
                f"({len(rows)}, {self._n_features_out}), got {np.shape(theta)}."
            )
        size = max(1, BLOCK // (rows.shape[1] * density.items.most))
        for part in gen_batches(len(rows), size):
            prob = self._prob_of(density, theta[part])
            yield statistics.moments_of(rows[part], prob), weight[part]

    def _complete_rows(self, X, sample_weight, what):
        rows = self._validate_rows(X).astype(float)
        gaps = np.isnan(rows).any(axis=1)
        if gaps.any():
            raise ValueError(
                f"{what} needs complete rows, but {np.count_nonzero(gaps)} of "
                f"{len(rows)} have missing answers: leave these out, or fill them in "
                "by impute(X, method='sample')."
            )
        if len(self.groups_) > 1:
            raise ValueError(
                f"{what} is for models of one group, and this one has "
                f"{len(self.groups_)}: fit each group by itself."
            )
        return rows, check_sample_weight(sample_weight, rows)

    def item_fit(
        self, X: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> statistics.ItemFit:
        """Compute statistics of the fit of each item.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones. S-X2 uses complete rows only, the other
            statistics use all rows.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.

        Returns
        -------
        fit : named tuple
            Arrays of shape (n_items,). `s_x2`, `df_s_x2` and `p_s_x2`: comparison of
            the observed with the expected answers for each sum score, after collapsing
            cells in which less than one person is expected (Orlando and Thissen; Kang
            and Chen); NaN without degrees of freedom. `infit` and `outfit`: weighted
            and unweighted mean of the squared standardised residuals at EAP abilities.
            `zh`: standardised log-probability (Drasgow and others).

        Raises
        ------
        ValueError
            If no row is complete, or there are several groups.
        """
        rows = self._validate_rows(X).astype(float)
        weight = check_sample_weight(sample_weight, rows)
        value, df = self._s_x2(rows, weight)
        p = np.where(df > 0, chi2.sf(value, np.maximum(df, 1)), np.nan)
        parts = self._moments(rows, weight)
        sums = sum(statistics.sums_of(moments, w, 0) for moments, w in parts)
        infit, outfit, zh = statistics.fit_of(sums)
        return statistics.ItemFit(value, df, p, infit, outfit, zh)

    def _s_x2(self, rows, weight):
        """S-X2 of the complete rows and its degrees of freedom, for each item."""
        density, model = self._density(), self._model_of(vars(self))
        n_items, largest = rows.shape[1], int((self.n_categories_ - 1).sum())
        if n_items * largest * len(density.grid.z) > MOST_SUM_SCORES:
            warn_caller(
                f"S-X2 is not computed for {n_items} items: the distributions of sum "
                "scores up to "
                f"{largest} would not fit the memory. Take fewer items.",
            )
            return np.full(n_items, np.nan), np.zeros(n_items, dtype=int)
        whole = ~np.isnan(rows).any(axis=1) & (weight > 0)
        if not whole.any():
            raise ValueError(
                "item_fit needs some complete rows for S-X2, but all rows have missing "
                "answers."
            )
        rows, weight = self._complete_rows(rows[whole], weight[whole], "item_fit")
        tables = statistics.score_tables(
            rows,
            weight,
            density.prob.numpy(force=True),
            model.items.n_categories,
            density.log_weight.exp().numpy(force=True),
        )
        counts = np.zeros(n_items, dtype=int)
        for block in model.items.blocks:
            counts[block.items.numpy()] = block.width
        of_z = model.layout.n_parameters - model.items.n_parameters
        return statistics.s_x2(tables, counts + of_z)

    def residual_correlations(
        self, X: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> np.ndarray:
        """Compute correlations of residuals of pairs of items, Yen's Q3.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; each pair uses the rows that have answers to both items.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.

        Returns
        -------
        q3 : ndarray of shape (n_items, n_items)
            Correlations of the residuals: answers less the expected answers at EAP
            abilities. Large values show items that depend on each other given z.
            Without such items the values are slightly negative.
        """
        parts = self._moments(X, sample_weight)
        sums = sum(statistics.pair_sums(moments, w) for moments, w in parts)
        return statistics.residual_correlations(sums)

    def model_fit(
        self, X: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> limited.ModelFit:
        """Test the model on the moments of single items and of pairs.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            The training rows, without gaps.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.

        Returns
        -------
        fit : named tuple
            `m2`, `df` and `p`: M2 for two answers (Maydeu-Olivares and Joe), M2* for
            more (Cai and Hansen); `rmsea` and `rmsea_interval`, of 90%; `srmsr`, the
            root mean square of residual correlations; and for more than two answers
            `c2`, `df_c2`, `p_c2` and `rmsea_c2` (Cai and Monroe), NaN for two. NaN too
            where there are no degrees of freedom.

        Raises
        ------
        ValueError
            If answers are missing, there are several groups, or too many pairs of items
            for a matrix over them.
        """
        rows, weight = self._complete_rows(X, sample_weight, "model_fit")
        model, density = self._model_of(vars(self)), self._density()
        n_items = rows.shape[1]
        n_moments = (
            int((model.items.n_categories - 1).sum()) + n_items * (n_items - 1) // 2
        )
        if n_moments > limited.MOST_MOMENTS:
            raise ValueError(
                f"model_fit needs the covariance of {n_moments} moments of {n_items} "
                f"items, more than {limited.MOST_MOMENTS}: take fewer items."
            )
        with own_mode():
            fitted = _at_nodes(model, density)
        m2 = limited.moment_statistic(rows, weight, fitted, by_category=False)
        c2 = (math.nan,) * 2
        if model.items.most > 2:
            c2 = limited.moment_statistic(rows, weight, fitted, by_category=True)
        n_rows = weight.sum()
        return limited.ModelFit(
            m2[0],
            m2[1],
            _p_value(*m2),
            limited.rmsea(m2[0], m2[1], n_rows),
            limited.rmsea_interval(m2[0], m2[1], n_rows),
            limited.srmsr(rows, weight, fitted),
            c2[0],
            c2[1],
            _p_value(*c2),
            limited.rmsea(c2[0], c2[1], n_rows),
        )

    # Comparison

    @property
    def _n_parameters(self):
        model = self._model_of(vars(self))
        K = model.items.n_dims
        return model.layout.n_parameters - K * (K - 1) // 2

    def log_likelihood(
        self,
        X: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> float:
        """Compute the log marginal likelihood of all rows together.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.
        groups : array-like of shape (n_samples,), default=None
            Group of each person; needed if the model has several.

        Returns
        -------
        float
            In nats.
        """
        self._check_is_fitted()
        rows, density = self._validate_rows(X), self._density()
        weight = check_sample_weight(sample_weight, rows)
        codes = self._codes_of(groups, X)
        if codes is None:
            return float(weight @ self.score_samples(X))

        def of_rows(part, codes):
            of = density.of_groups[codes[:, 0].long()]
            return density.log_joint(part, log_weight=of).logsumexp(1)

        scores = self._map_rows(density, of_rows, rows, codes[:, None])
        return float(weight @ scores)

    def aic(
        self,
        X: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> float:
        """Compute Akaike's information criterion on X; the lower the better.

        Parameters
        ----------
        X, sample_weight, groups
            As in `log_likelihood`.

        Returns
        -------
        aic : float
            -2 times the log-likelihood, plus 2 for each parameter.
        """
        value = self.log_likelihood(X, sample_weight, groups=groups)
        return -2 * value + 2 * self._n_parameters

    def bic(
        self,
        X: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> float:
        """Compute the Bayesian information criterion on X; the lower the better.

        Parameters
        ----------
        X, sample_weight, groups
            As in `log_likelihood`.

        Returns
        -------
        bic : float
            -2 times the log-likelihood, plus for each parameter the logarithm of the
            number of rows, or of the sum of their weights.
        """
        value = self.log_likelihood(X, sample_weight, groups=groups)
        n_rows = np.shape(X)[0] if sample_weight is None else np.sum(sample_weight)
        return float(-2 * value + np.log(n_rows) * self._n_parameters)

    def likelihood_ratio_test(
        self,
        nested: "MPTItemResponse",
        X: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> LikelihoodRatio:
        """Test a model that is a special case of this one.

        Parameters
        ----------
        nested : MPTItemResponse
            Fitted to the same rows, with fewer parameters: "rasch" in "2pl", for
            instance, or fewer abilities.
        X, sample_weight, groups
            As in `log_likelihood`.

        Returns
        -------
        test : named tuple
            `statistic`, twice the difference of the log-likelihoods; `df`, that of the
            numbers of parameters; and `p_value`, by the chi-squared distribution.

        Raises
        ------
        ValueError
            If `nested` has no fewer parameters.
        """
        df = self._n_parameters - nested._n_parameters
        if df <= 0:
            raise ValueError(
                f"nested must have fewer parameters than {self._n_parameters}, got "
                f"{nested._n_parameters}."
            )
        of = (X, sample_weight)
        gain = self.log_likelihood(*of, groups=groups) - nested.log_likelihood(
            *of, groups=groups if len(nested.groups_) > 1 else None
        )
        return LikelihoodRatio(2 * gain, df, float(chi2.sf(max(2 * gain, 0), df)))

    def dif(
        self,
        X: ArrayLike,
        group: ArrayLike,
        *,
        anchors: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> DifferentialFunctioning:
        """Test each item for differential functioning in groups, by likelihood ratio.

        Groups can differ in the mean and the variance of z. For each item two models
        are compared: in one the item has separate parameters in each group, in the
        other it has the same parameters in all groups.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        group : array-like of shape (n_samples,)
            Group of each person.
        anchors : array-like of int, default=None
            Items with the same parameters in all groups, which are not tested. If
            given, all other items have separate parameters in each group, except the
            tested item in the smaller model. If None, all items but the tested one are
            anchors.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.

        Returns
        -------
        test : named tuple
            `statistic`, `p_value` and `df`, arrays of shape (n_items,); NaN for
            anchors.

        Notes
        -----
        The models are fitted starting from the items of this estimator. The estimator
        itself does not change.
        """
        self._check_is_fitted()
        rows = self._validate_rows(X).astype(float)
        weight = check_sample_weight(sample_weight, rows)
        if self._n_features_out > 1:
            raise ValueError(
                "dif is for one ability, but the model has "
                f"n_components={self._n_features_out}."
            )
        labels, codes = self._coded(group, X)
        if len(labels) < 2:
            raise ValueError(
                f"group must have at least two labels, got {labels.tolist()}."
            )
        if anchors is not None:
            anchors = np.unique(np.asarray(anchors, dtype=int))
            n_items = rows.shape[1]
            if len(anchors) == 0 or anchors[0] < 0 or anchors[-1] >= n_items:
                raise ValueError(
                    f"anchors must be some of the items 0..{n_items - 1}, got "
                    f"{anchors.tolist()}."
                )
        with own_mode():
            return dif_by_likelihood_ratio(
                self._model_of(vars(self)),
                rows,
                weight,
                codes,
                anchors,
                self._priors,
                check_device(self.device),
            )

    # Fixed items

    @classmethod
    def from_items(
        cls,
        *,
        model: str | Sequence[str] = "2pl",
        discrimination: ArrayLike | None = None,
        intercept: ArrayLike | None = None,
        difficulty: ArrayLike | None = None,
        guessing: ArrayLike | None = None,
        category_scores: ArrayLike | None = None,
        latent_mean: float | ArrayLike = 0.0,
        latent_variance: float | ArrayLike = 1.0,
        factor_correlation: ArrayLike | None = None,
        device: str | torch.device = "auto",
        random_state: RandomState = None,
    ) -> "MPTItemResponse":
        """Make a model of items whose parameters are known, without a fit.

        The model can score new people, estimate their abilities and fill in answers.

        Parameters
        ----------
        model : str or sequence of str, default="2pl"
            The model of the items, as in the class.
        discrimination : array-like of shape (n_items,) or (n_items, n_components), \
                default=None
            Slopes; None is one for all.
        intercept : array-like of shape (n_items,) or (n_items, n_categories - 1), \
                default=None
            As `intercept_`; NaN beyond the answers of an item.
        difficulty : array-like of the same shape, default=None
            As `difficulty_`, instead of `intercept`; not for nominal items.
        guessing : array-like of shape (n_items,), default=None
            Lower asymptotes of "3pl" items; None is 0.
        category_scores : array-like of shape (n_items, n_categories), default=None
            As `category_scores_`, for nominal items; None is 0, 1, 2, ...
        latent_mean, latent_variance : float or array-like of shape (n_groups,), \
                default=0.0 and 1.0
            Mean and variance of z in the population. Several values define as many
            groups, with equal shares.
        factor_correlation : array-like of shape (n_components, n_components), \
                default=None
            Correlations of several abilities; None is no correlation.
        device, random_state
            As in the class.

        Returns
        -------
        model : MPTItemResponse
            A model that works as a fitted one.

        Examples
        --------
        >>> from sklearn_mpt import MPTItemResponse
        >>> model = MPTItemResponse.from_items(
        ...     discrimination=[1.0, 1.5, 0.8], difficulty=[-1.0, 0.0, 1.0]
        ... )
        >>> model.abilities([[1, 1, 0]], method="ml").theta.round(3)
        array([[0.988]])
        """
        thresholds = given_thresholds(intercept, difficulty)
        slopes = given_slopes(discrimination, len(thresholds))
        d, n_dims = slopes.shape
        made = cls(model, n_dims, device=device, random_state=random_state)
        made._check_parameters(d)
        items, point = given_items(
            made._names(d), slopes, intercept, thresholds, guessing, category_scores
        )
        population = given_population(
            latent_mean, latent_variance, factor_correlation, n_dims
        )
        fitted = shaped(items.describe(point), items) | population
        fitted |= {
            "lml_method_": "quadrature",
            "n_categories_": items.n_categories,
            "n_features_in_": d,
            "n_iter_": 0,
            "loss_curve_": [],
        }
        made.__dict__.update(made._new_state() | fitted)
        return made


def _unseen(X, items):
    """Categories that nobody chose; a tensor of bool (d, c), with a warning."""
    seen = np.stack([(X == c).any(axis=0) for c in range(items.most)], 1)
    real = np.arange(items.most) < items.n_categories[:, None]
    unseen = ~seen & real
    if unseen.any():
        j = np.flatnonzero(unseen.any(axis=1))
        warn_caller(
            f"Nobody gave some of the answers 0..C-1 to the item(s) {j[:10].tolist()}: "
            "each of these is counted as given by half a person, so that estimates are "
            "finite. Drop the items, or code the answers 0, 1, 2, ... without gaps.",
            ConvergenceWarning,
        )
    return torch.from_numpy(unseen)


def _delta(items, point, blocks):
    """Return covariances of the parameters of items, and errors of difficulties.

    blocks : covariances of flat parameters, (j, q, q) for each block.
    """
    d, K, steps = len(items), items.n_dims, items.most - 1
    width = K + steps + 1
    covariance, errors = np.zeros((d, width, width)), np.full((d, steps), np.nan)

    def of_users(at):
        found = items.describe(at)
        parts = (
            found["discrimination"],
            np.nan_to_num(found["intercept"]),
            found["guessing"][:, None],
            found["difficulty"],
        )
        return np.concatenate(parts, 1)

    for block, part in zip(items.blocks, blocks, strict=True):
        chosen = block.items.numpy()
        jacobian = np.zeros((len(chosen), width + steps, block.width))
        for q in range(block.width):
            place = block.parameters.start + np.arange(len(chosen)) * block.width + q
            step = np.zeros(len(point))
            step[place] = STEP * np.maximum(1, np.abs(point[place]))
            off = of_users(point + step) - of_users(point - step)
            jacobian[:, :, q] = off[chosen] / (2 * step[place][:, None])
        missing = np.isnan(jacobian).any(axis=2)
        jacobian = np.nan_to_num(jacobian)
        every = jacobian @ part @ jacobian.transpose(0, 2, 1)
        covariance[chosen] = every[:, :width, :width]
        deviation = np.sqrt(np.diagonal(every, axis1=1, axis2=2))
        deviation = np.where(missing, np.nan, deviation)
        errors[chosen] = deviation[:, width:]
    return covariance, errors


def _with_codes(X, codes):
    """Append the codes of groups to the rows, if there are any, as a column."""
    return (X,) if codes is None else (X, codes[:, None])


def _p_value(value, df):
    return float(chi2.sf(value, df)) if df > 0 else math.nan


def _at_nodes(model, density):
    """Return the arrays of a model that the statistics of moments use."""
    items, layout, grid = model.items, model.layout, density.grid
    point = density.point
    curves = items.curves(point, grid.z)
    scores = [
        block.scores(curve, grid.z).numpy(force=True)
        for block, curve in zip(items.blocks, curves, strict=True)
    ]
    whole = torch.cat([point, model.start(point.device)[items.n_parameters :]])
    of_z = population_scores(layout, whole, grid.z)[0].numpy(force=True)
    weight = density.log_weight.exp().numpy(force=True)
    prob = density.prob.numpy(force=True)
    n_free = model.layout.n_parameters - items.n_dims * (items.n_dims - 1) // 2
    return limited.AtNodes(items, prob, scores, of_z, weight, n_free)
