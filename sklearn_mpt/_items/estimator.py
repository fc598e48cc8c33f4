"""Item response models: answers of people to questions, with gaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import StrOptions

from sklearn_mpt._base.iterative import IterativeMPT
from sklearn_mpt._checks import (
    POSITIVE,
    check_real,
    warn_caller,
)
from sklearn_mpt._factors.rotation import ROTATIONS
from sklearn_mpt._fitting.phases import Phases
from sklearn_mpt._fitting.priors import LONG_SLOPE
from sklearn_mpt._integration.quadrature import MAX_GRID_DIMS
from sklearn_mpt._items.answers import MAX_CATEGORIES, merged_answers
from sklearn_mpt._items.curves import BINARY, WITHOUT_SLOPE, Items
from sklearn_mpt._items.fixed_parameters import FixedParameters
from sklearn_mpt._items.given_parameters import (
    given_items,
    given_population,
    given_slopes,
    given_thresholds,
)
from sklearn_mpt._items.items import ItemsMixin
from sklearn_mpt._items.levels import KINDS
from sklearn_mpt._items.masks import MaskedItemSolver
from sklearn_mpt._items.model import attributes_of, reshape_attributes
from sklearn_mpt._items.model_fit import ModelFitMixin
from sklearn_mpt._items.people import PeopleMixin
from sklearn_mpt._items.solver import ItemSolver
from sklearn_mpt._items.start import first_slopes
from sklearn_mpt._likelihoods.levels import smoothed_fractions
from sklearn_mpt._messages import listed
from sklearn_mpt._seeds import RandomState


class MPTItemResponse(PeopleMixin, ItemsMixin, ModelFitMixin):
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
        "nominal" (a slope and an intercept for each answer). Answers can also be other
        whole numbers, such as 1 to 5, or categories; see `fit`.
    n_components : int, default=1
        Number of abilities. More than one is allowed only if all slopes are free and
        no item is nominal; `MPTLinearVAE` has no such limits. Integrals over more than
        3 abilities are by importance sampling.
    rotation : {"varimax", "quartimax", "oblimin", "promax"}, default=None
        Rotation of several abilities to simple structure of the standardised loadings.
        "oblimin" and "promax" allow correlated abilities. None is the principal axes.
    slope_prior : float, default=None
        Standard deviation of a normal prior of the slopes. None is no prior, but if a
        slope exceeds 10, the excess has one of standard deviation 1, and `fit` warns.
    guessing_prior : tuple of (float, float), default=None
        Mean and standard deviation of a normal prior of the logit of guessing.
    fixed : dict, default=None
        Parameters that are given, and not estimated: a dict from items, by name or
        index, to dicts of "discrimination", "intercept" or "difficulty", and
        "guessing", as in the attributes. None estimates all.
    population : {"standard", "free"}, default="standard"
        "free" estimates mean and variance of z in all groups; the fixed parameters of
        items then define the scale.
    reference_group : object, default=None
        Label of the group whose mean of z is 0 and whose variance is 1, if `fit` gets
        groups. None is the first in sorted order. Only the scale of z depends on it.
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
        answers c - 1 and c are equally probable. NaN for nominal items. Infinite where
        all answers in `fit` are on one side of the threshold.
    guessing_ : ndarray of shape (n_items,)
        Lower asymptotes; 0 unless the item is "3pl".
    category_scores_ : ndarray of shape (n_items, n_categories)
        Factor of the slope for each answer: 0..C-1, estimated for nominal items except
        for the first and the last.
    n_categories_ : ndarray of int, of shape (n_items,)
        Numbers of answers.
    categories_ : list of (ndarray or None)
        Answers of each item in the order of their codes 0, 1, 2, ..., by which other
        attributes count them. None for 0 and 1.
    likelihoods_ : list of str
        Kind of the answers of each item: "bernoulli" for 0 and 1, "ordinal" or
        "categorical".
    latent_mean_, latent_variance_ : ndarray of shape (n_groups, n_components)
        Mean and variance of z in each group. In the reference group they are 0 and 1;
        the variance is free if slopes are fixed.
    factor_correlation_ : ndarray of shape (n_components, n_components)
        Correlations of the abilities.
    groups_ : ndarray of shape (n_groups,)
        Labels of the groups. Only `abilities` and `log_likelihood` take that of a row;
        other methods use the distribution of z in all groups together.
    reference_group_ : object
        Label of the group whose mean of z is 0.
    n_iter_ : int
        Number of steps.
    loss_curve_ : list of float
        Minus the objective after each step, in nats per row.
    lml_method_ : str
        How `score_samples` computes the LML: "quadrature", or "importance" for more
        than 3 abilities.
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

    n_iter_no_change = 1
    _parameter_constraints: ClassVar[dict] = IterativeMPT._parameter_constraints | {
        "fixed": [dict, None],
        "population": [StrOptions({"standard", "free"})],
        "objective": [StrOptions({"mpt", "lml"})],
        "rotation": [StrOptions({*ROTATIONS}), None],
        "slope_prior": [POSITIVE, None],
    }
    _group_codes: np.ndarray | None = None  # groups of the rows that `fit` trains on

    def __init__(
        self,
        model: str | Sequence[str] = "2pl",
        n_components: int = 1,
        *,
        rotation: str | None = None,
        slope_prior: float | None = None,
        guessing_prior: tuple[float, float] | None = None,
        fixed: dict | None = None,
        population: str = "standard",
        reference_group: object = None,
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
        self.fixed = fixed
        self.population = population
        self.reference_group = reference_group
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
        X : array-like or DataFrame of shape (n_samples, n_items)
            Answers of people; NaN marks missing ones. Those to items with two answers
            are 0 and 1. The answers to another item are the whole numbers from the
            least to the largest that anyone gave: 0, 1, 2, ... or 1 to 5. In a
            DataFrame they can be ordered categories, with levels that nobody chose, and
            strings if the item is nominal.
        y : Ignored
            Not used, present for API consistency by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row: a row with weight 2 counts twice, a row with weight 0 is
            left out. None is 1.
        groups : array-like of shape (n_samples,), default=None
            Group of each person. Groups differ in the mean and the variance of z; items
            have the same parameters in all groups. The `reference_group`, or the first
            in sorted order, has mean 0 and variance 1. Allowed for models of one
            ability only.

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
        labels, codes = self._coded_rows_that_count(groups, X, sample_weight)
        self._group_codes, self._group_labels = codes, labels
        try:
            super().fit(X, y, sample_weight)
        finally:
            for name in ("_group_codes", "_group_labels"):
                self.__dict__.pop(name, None)
        return self

    def _check_parameters(self, n_features):
        names = self._names(n_features)
        if self.n_components > n_features:
            raise ValueError(
                f"n_components={self.n_components} must be at most n_items="
                f"{n_features}."
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
        if self.reference_group is not None:
            self._check_reference_group()

    def _check_reference_group(self):
        if self._group_codes is None:
            raise ValueError(
                f"reference_group={self.reference_group!r} is for fits with groups, "
                "but the parameter groups was not given."
            )
        labels = self._group_labels.tolist()
        if self.reference_group not in labels:
            raise ValueError(
                f"reference_group must be one of the groups, {listed(labels)}, got "
                f"{self.reference_group!r}."
            )

    def _has_priors(self, n_features):
        return self.slope_prior is not None or self.guessing_prior is not None

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
        bad = (values < 0) | (values != np.floor(values))
        most = getattr(self, "n_categories_", None)
        if most is None or len(most) != X.shape[1]:
            limits = np.array([2 if n in BINARY else MAX_CATEGORIES for n in names])
        else:
            limits = most
        bad |= values >= limits
        if bad.any():
            i, j = np.argwhere(bad)[0]
            raise ValueError(
                f"Answers to item {j} (model {names[j]!r}) must be codes "
                f"0..{int(limits[j]) - 1}, or NaN where missing, got {X[i, j]}."
            )

    def _start(self, X, rng, weight):
        names = self._names(X.shape[1])
        counts = [
            2 if answers is None else len(answers) for answers in self.categories_
        ]
        items = Items(names, counts, self.n_components)
        proportions = smoothed_fractions(X, items.max_categories, weight)
        slopes = first_slopes(X, self.n_components, weight)
        if items.has_fixed_scale:
            slopes = np.ones_like(slopes)
        fixed, point = self._fixed_parameters(items), items.start(proportions, slopes)
        if fixed is not None:
            point = items.point(**_without_difficulty(fixed.of(items.describe(point))))
        n_groups = 1 if self._group_codes is None else len(self._group_labels)
        codes = (
            np.zeros(len(X), int) if self._group_codes is None else self._group_codes
        )
        is_signed = fixed is not None
        args = items, point, self.rotation
        item_attributes, _ = attributes_of(*args, is_signed=is_signed)
        counted = np.bincount(codes, weight, n_groups)
        shape = n_groups, self.n_components
        labels = getattr(self, "_group_labels", np.array(["all"]))
        label = 0
        if self.reference_group is not None:
            label = labels.tolist().index(self.reference_group)
        return item_attributes | {
            "lml_method_": _lml_method(self.n_components),
            "n_categories_": np.array(counts),
            "latent_mean_": np.zeros(shape),
            "latent_variance_": np.ones(shape),
            "groups_": labels,
            "reference_group_": labels.tolist()[label],
            "_group_share": counted / counted.sum(),
            "_is_fixed": None if fixed is None else fixed.is_fixed,
            "_has_free_population": self.population == "free",
        }

    def _fixed_parameters(self, items):
        """Return the parameters that are fixed, or None."""
        if not self.fixed:
            if self.population == "free":
                raise ValueError(
                    "population='free' needs items whose parameters are fixed, to "
                    f"define the scale of z, got fixed={self.fixed!r}."
                )
            return None
        labels = getattr(self, "feature_names_in_", range(len(items)))
        fixed = FixedParameters.of_items(self.fixed, items, list(labels))
        if self.population == "free" and not (fixed.sets_scale and items.n_dims == 1):
            raise ValueError(
                "population='free' is for one ability, and needs an item with fixed "
                "discrimination and intercept or difficulty, or two with fixed "
                "intercepts."
            )
        return fixed

    def _train(self, data, context):
        fitted = super()._train(data, context)
        slopes = fitted["discrimination_"]
        difficulty = _with_infinite(fitted["difficulty_"], slopes, data.X)
        model = self._model_of(fitted)
        if model.is_fixed is not None:
            owner = model.items.item_of_parameters
            has_fixed = np.isin(np.arange(len(slopes)), owner[model.is_fixed])
            difficulty[has_fixed] = fitted["difficulty_"][has_fixed]
        return fitted | {"difficulty_": difficulty}

    def _density_of(self, fitted, device):
        return self._model_of(fitted).density(device)

    def _measures_of_columns(self):
        """Return the measure of each column; see `_measures_of_columns` in contract."""
        return ["probability"] * self.n_features_in_

    def _solver(self, data):
        model = self._model_of(data.fitted)
        codes = self._group_codes
        if len(model.mean) > 1:
            if codes is None:
                raise ValueError(
                    f"The model has {len(model.mean)} groups, but the parameter groups "
                    "was not given: fit it with groups."
                )
            known = data.fitted["groups_"]
            if not np.array_equal(known, self._group_labels):
                raise ValueError(
                    f"groups must be those of the fitted model, {listed(known)}, got "
                    f"{listed(self._group_labels)}."
                )
        answers = merged_answers(
            data.X, model.items.max_categories, data.weight, codes, data.device
        )
        unseen = None
        if data.is_all:
            unseen = _unseen(data.X, model.items).to(data.device)
        objective = model.objective(answers, self._priors, unseen)
        point = model.start(data.device)
        if self.objective == "lml" or not data.is_all:
            n_before = data.fitted["n_iter_"]
            return ItemSolver(objective, point, self.tol, n_before)
        masked = MaskedItemSolver(
            objective,
            point,
            len(data.X),
            rng=data.rng,
            mask_rate=self.mask_rate,
            n_masks=self.n_masks,
            learning_rate=self.learning_rate,
            tol=self.tol,
        )
        return Phases(masked)

    def _trained_attributes(self, result, fitted):
        model = self._model_of(fitted)
        point = result.detach().cpu()
        items, layout = model.items, model.layout
        n_items = items.n_parameters
        rotation = self.rotation
        item_attributes, sign = attributes_of(
            items,
            point[:n_items].numpy(),
            rotation,
            is_signed=model.is_fixed is not None,
        )
        population = layout.population(point)
        mean, deviation = population.mean.numpy(), population.deviation.numpy()
        return item_attributes | {
            "latent_mean_": sign * mean,
            "latent_variance_": deviation**2,
        }

    def _warn_of_limits(self, fitted, n_samples):
        names = fitted.get("feature_names_in_", np.arange(len(fitted["n_categories_"])))
        if self.slope_prior is None:
            slopes = fitted["discrimination_"].reshape(len(names), -1)
            long_slopes = np.flatnonzero(np.linalg.norm(slopes, axis=1) > LONG_SLOPE)
            if len(long_slopes):
                warn_caller(
                    f"The slopes of {len(long_slopes)} item(s), "
                    f"{listed(names[long_slopes])}, exceed {LONG_SLOPE:g}: these "
                    "items separate people, and their likelihood may have no finite "
                    "maximum. A normal prior keeps the excess small; slope_prior=2.0, "
                    "for instance, would bound all "
                    "slopes.",
                    ConvergenceWarning,
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
    ) -> MPTItemResponse:
        """Make a model of items whose parameters are known, without a fit.

        The model can score new people, estimate their abilities and fill in answers.

        Parameters
        ----------
        model : str or sequence of str, default="2pl"
            The model of the items, as in the class.
        discrimination : array-like of shape (n_items,) or (n_items, n_components), \
                default=None
            Slopes; None is one for all. Only 1 for "rasch" and "partial_credit" items,
            where `latent_variance` sets the scale.
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
            groups, with equal shares. For more than three abilities they must be 0 and
            1.
        factor_correlation : array-like of shape (n_components, n_components), \
                default=None
            Correlations of several abilities; None is no correlation.
        device : str or torch.device, default="auto"
            As in the class.
        random_state : int, RandomState instance or None, default=None
            As in the class.

        Returns
        -------
        model : MPTItemResponse
            A model that works as a fitted one.

        Raises
        ------
        ValueError
            If a value is not allowed, or if an item has no such parameter: slopes other
            than 1 of "rasch" items, `guessing` of others than "3pl", `category_scores`
            other than 0, 1, 2, ... of others than "nominal".

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
        if n_dims > MAX_GRID_DIMS and not _is_standard(population):
            raise ValueError(
                "latent_mean must be 0 and latent_variance 1 for more than "
                f"{MAX_GRID_DIMS} abilities, got {latent_mean!r} and "
                f"{latent_variance!r} for {n_dims}."
            )
        fitted = reshape_attributes(items.describe(point), items) | population
        fitted |= {
            "lml_method_": _lml_method(n_dims),
            "n_categories_": items.n_categories,
            "n_features_in_": d,
            "categories_": [np.arange(count) for count in items.n_categories],
            "likelihoods_": [KINDS.get(name, "bernoulli") for name in items.names],
            "_storage": [],
            "_takes_codes": True,
            "n_iter_": 0,
            "loss_curve_": [],
        }
        made.__dict__.update(made._new_state() | fitted)
        return made


def _without_difficulty(attributes):
    return {name: value for name, value in attributes.items() if name != "difficulty"}


def _is_standard(population):
    """Return whether there is one group, with mean 0 and variance 1."""
    mean, variance = population["latent_mean_"], population["latent_variance_"]
    return len(mean) == 1 and (mean == 0).all() and (variance == 1).all()


def _lml_method(n_dims):
    return "quadrature" if n_dims <= MAX_GRID_DIMS else "importance"


def _with_infinite(difficulty, discrimination, X):
    """Return difficulties, infinite if all answers are on one side of a threshold."""
    thresholds = np.arange(1, 1 + difficulty[0].size)
    lowest, highest = np.nanmin(X, axis=0)[:, None], np.nanmax(X, axis=0)[:, None]
    sides = [lowest >= thresholds, highest < thresholds]
    limit = np.select(sides, [-np.inf, np.inf], 0.0)
    if (
        discrimination.ndim == 1
    ):  # a length has no sign, nor has a slope without answers
        is_reversed = (discrimination[:, None] < 0) & (lowest < highest)
        limit = np.where(is_reversed, -limit, limit)
    limit = limit.reshape(difficulty.shape)
    return np.where(np.isinf(limit) & ~np.isnan(difficulty), limit, difficulty)


def _unseen(X, items):
    """Categories that nobody chose; a tensor of bool (d, c), with a warning."""
    unseen = items.unseen(X)
    if unseen.any():
        j = np.flatnonzero(unseen.any(axis=1))
        warn_caller(
            f"Nobody gave some of the answers 0..C-1 to the item(s) {listed(j)}: "
            "each of these is counted as given by half a person, so that intercepts "
            "are finite. Difficulties of thresholds with all answers on one side are "
            "infinite. Drop the items, or code the answers 0, 1, 2, ... without gaps.",
            ConvergenceWarning,
        )
    return torch.from_numpy(unseen)
