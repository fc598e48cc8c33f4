"""Item response models: answers of people to questions, with gaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from narwhals.stable.v2.dependencies import is_into_dataframe
from numpy.typing import ArrayLike
from scipy.stats import chi2
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Bunch, check_array
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from sklearn_mpt._base.density import torch_modes
from sklearn_mpt._base.estimator import in_callback_context
from sklearn_mpt._base.fitted_density import LatentMixin
from sklearn_mpt._base.inference import bayesian
from sklearn_mpt._base.iterative import IterativeMPT
from sklearn_mpt._base.state import all_or_nothing
from sklearn_mpt._base.tables import TableMPT
from sklearn_mpt._checks import (
    POSITIVE,
    RandomState,
    check_bool,
    check_choice,
    check_device,
    check_floats,
    check_int,
    check_real,
    check_shape,
    listed,
    warn_caller,
)
from sklearn_mpt._gaussian.rotation import ROTATIONS
from sklearn_mpt._items import errors as parameters
from sklearn_mpt._items import item_statistics as statistics
from sklearn_mpt._items.density import (
    METHODS,
    MODES,
    Abilities,
    ItemDensity,
    Reliability,
    moments,
)
from sklearn_mpt._items.fixed_parameters import (
    FixedParameters,
    given_population,
    item_arrays,
    known_items,
)
from sklearn_mpt._items.groups import (
    DifferentialFunctioning,
    Groups,
    anchor_items,
    codes_of,
    dif_by_likelihood_ratio,
    far_groups,
)
from sklearn_mpt._items.items import (
    BINARY,
    KINDS,
    MODELS,
    WITHOUT_SLOPE,
    Items,
    answers_of,
    kind_of_answers,
)
from sklearn_mpt._items.model import ItemModel, attributes_of, reshape_attributes
from sklearn_mpt._items.model_fit import LikelihoodRatio, ModelFit, model_fit
from sklearn_mpt._items.objective import ItemRows
from sklearn_mpt._latent.answers import MAX_CATEGORIES
from sklearn_mpt._latent.quadrature import MAX_GRID_DIMS
from sklearn_mpt._matrices import median_codes
from sklearn_mpt._numbers import CHUNK_ENTRIES, chunk_slices
from sklearn_mpt._optim.steps import ascent_on_part
from sklearn_mpt._optim.weights import LONG_SLOPE
from sklearn_mpt._tables.frames import (
    aligned,
    column_names,
    columns_of,
    first_labels,
    labels_of,
)
from sklearn_mpt._tables.kinds import is_of_categories, is_ordered
from sklearn_mpt._tables.reader import TableReader
from sklearn_mpt._tables.weights import check_sample_weight, counted_rows


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


class MPTItemResponse(LatentMixin, TableMPT, IterativeMPT):
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
        3 abilities are over quasi-random points, and have errors.
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
        index, to dicts of "discrimination", "intercept" or "difficulty", "guessing" and
        "category_scores", as in the attributes. None estimates all.
    population : {"standard", "free"}, default="standard"
        "free" estimates mean and variance of z in all groups; the fixed parameters of
        items then define the scale.
    reference_group : object, default=None
        Label of the group whose mean of z is 0 and whose variance is 1, if `fit` gets
        groups. None is the first in sorted order. Only the scale of z depends on it.
    max_iter : int, default=1000
        Largest number of steps. 0 keeps the start.
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
        Determines the draws of `sample`, `impute` and `abilities`, and quasi-random
        points of more than 3 abilities.
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
        Labels of the groups. Methods without the argument `groups` use the distribution
        of z in all groups together.
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

    _advice_on_strings = (
        "Items of the models 'graded', 'partial_credit' and 'gpcm' take ordered "
        "categories, and 'nominal' ones strings."
    )
    _advice_on_categories = (
        "items that are 'nominal' take them, and 'graded', 'partial_credit' and 'gpcm' "
        "ones if they are ordered."
    )
    _takes_codes: bool  # whether answers are codes 0, 1, 2, ... already

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
    _parameter_constraints: ClassVar[dict] = IterativeMPT._parameter_constraints | {
        "fixed": [dict, None],
        "population": [StrOptions({"standard", "free"})],
        "rotation": [StrOptions({*ROTATIONS}), None],
        "slope_prior": [POSITIVE, None],
    }

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
        max_iter: int = 1000,
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
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose
        self.device = device
        self.random_state = random_state
        self.n_jobs = n_jobs

    # Training

    @in_callback_context
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
            Group of each person, by position as X has its rows, not by labels. Groups
            differ in the mean and the variance of z; items have the same parameters in
            all groups. The `reference_group`, or the first in sorted order, has mean 0
            and variance 1. Allowed for models of one ability only.

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
            If `max_iter` was reached; if a slope, or the mean of z in a group, has no
            finite maximum likelihood; or if nobody gave one of the answers.
        """
        if groups is not None:
            groups = Groups.of_rows(groups, X, sample_weight)
        with all_or_nothing(self), torch_modes(with_grad=True):
            data, context = self._start_training(X, sample_weight, groups=groups)
            self.__dict__.update(self._train(data, context))
            self._tell_of_end(data, context)
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
        prior = self.guessing_prior
        if prior is None:
            return
        is_pair = isinstance(prior, tuple | list) and len(prior) == 2
        if not is_pair or not all(
            isinstance(value, Real) and math.isfinite(value) for value in prior
        ):
            raise ValueError(
                "guessing_prior must be None, or the mean and the standard deviation "
                f"of a logit, which are finite numbers, got {prior!r}."
            )
        check_real(prior[1], "The standard deviation of guessing_prior", "neither")

    def _check_groups(self, groups):
        """Refuse groups, or None, that do not suit the parameters."""
        if groups is not None and self.n_components > 1:
            raise ValueError(
                "groups are for one ability: n_components must be 1, got "
                f"{self.n_components}."
            )
        if self.reference_group is None:
            return
        if groups is None:
            raise ValueError(
                f"reference_group={self.reference_group!r} is for fits with groups, "
                "but the parameter groups was not given."
            )
        labels = groups.labels.tolist()
        if self.reference_group not in labels:
            raise ValueError(
                f"reference_group must be one of the groups, {listed(labels)}, got "
                f"{self.reference_group!r}."
            )

    def _has_priors(self, n_features):
        return self.slope_prior is not None or self.guessing_prior is not None

    def _check_values(self, X):
        names, values = self._names(X.shape[1]), np.nan_to_num(X)
        limits = np.array([2 if n in BINARY else MAX_CATEGORIES for n in names])
        known = getattr(self, "n_categories_", limits)
        limits = known if len(known) == len(limits) else limits
        bad = (values < 0) | (values != np.floor(values)) | (values >= limits)
        if bad.any():
            i, j = np.argwhere(bad)[0]
            raise ValueError(
                f"Answers to item {j} (model {names[j]!r}) must be codes "
                f"0..{int(limits[j]) - 1}, or NaN where missing, got {X[i, j]}."
            )

    def _start(self, X, rng, weight, groups=None):
        self._check_groups(groups)
        names = self._names(X.shape[1])
        counts = [
            2 if answers is None else len(answers) for answers in self.categories_
        ]
        items = Items(names, counts, self.n_components)
        labels = list(getattr(self, "feature_names_in_", range(len(items))))
        fixed = FixedParameters.of_items(self.fixed or {}, items, labels)
        is_free, flat = self.population == "free", items.start(X, weight)
        if is_free and not (fixed.sets_scale and items.n_dims == 1):
            raise ValueError(
                "population='free' is for one ability, and needs an item with fixed "
                "discrimination and intercept or difficulty, or two with fixed "
                f"intercepts, to define the scale of z, got fixed={self.fixed!r}."
            )
        is_signed = bool(fixed.is_fixed.any())
        if is_signed:
            flat = fixed.flat(items, flat)
        has_scale = not (is_free or items.has_fixed_scale)
        is_known = has_scale and fixed.is_fixed[items.are_parameters].all()
        if len(X) < 2 and not is_known:
            raise ValueError(
                "Found 1 person with answers, but fit needs 2 or more of them, unless "
                "all parameters of the items are fixed, and population='standard'."
            )
        if groups is None:
            groups = Groups(np.array(["all"]), np.zeros(len(X), int))
        args = items, flat, self.rotation
        item_attributes, _ = attributes_of(*args, is_signed=is_signed)
        labels = groups.labels.tolist()
        shape = len(labels), self.n_components
        counted = np.bincount(groups.codes, weight, len(labels))
        reference = self.reference_group
        return item_attributes | {
            "lml_method_": _lml_method(self.n_components),
            "n_categories_": np.array(counts),
            "latent_mean_": np.zeros(shape),
            "latent_variance_": np.ones(shape),
            "groups_": groups.labels,
            "reference_group_": labels[0] if reference is None else reference,
            "_group_weight": counted / counted.sum(),
            "_is_fixed": fixed.is_fixed,
            "_has_free_population": is_free,
        }

    @property
    def _least_rows(self):
        return 1 if self.fixed else 2

    def _train(self, data, context):
        fitted = super()._train(data, context)
        model, difficulty = self._model_of(fitted), fitted["difficulty_"]
        if model.free_population[:, 1:].any():
            is_far = far_groups(model, data.X, self._codes_in_training(data))
            if is_far.any():
                far = f" of {listed(fitted['groups_'][is_far])}"
                warn_caller(
                    f"All answers{far if len(is_far) > 1 else ''} are those of "
                    "people with the highest z, or the lowest, or missing: the mean of "
                    "z has no finite estimate by maximum likelihood, and latent_mean_ "
                    "is where training ended. Leave these people out.",
                    ConvergenceWarning,
                )
        # thresholds with all answers on one side are infinite, unless they are given
        slopes, steps = fitted["discrimination_"], np.arange(1, 1 + difficulty[0].size)
        low, high = np.nanmin(data.X, 0)[:, None], np.nanmax(data.X, 0)[:, None]
        infinite = np.select([low >= steps, high < steps], [-np.inf, np.inf], np.nan)
        if slopes.ndim == 1:
            # a length has no sign, nor has a slope without answers
            infinite[(slopes < 0) & (low < high)[:, 0]] *= -1
        infinite = infinite.reshape(difficulty.shape)
        owner = model.items.item_of_parameters
        infinite[owner[model.is_fixed]] = np.nan
        is_infinite = ~np.isnan(infinite) & ~np.isnan(difficulty)
        return fitted | {"difficulty_": np.where(is_infinite, infinite, difficulty)}

    def _density_of(self, fitted, device):
        return self._model_of(fitted).density(device)

    def _measures_of_columns(self):
        """Return the measure of each column; see `_measures_of_columns` in contract."""
        return ["probability"] * self.n_features_in_

    def _epochs(self, data, training):
        model = self._model_of(data.fitted)
        codes = self._codes_in_training(data)
        args = data.weight, codes, self._priors, data.device, data.is_all
        objective = ItemRows(model, data.X, *args)
        if data.is_all:
            unseen = np.flatnonzero(model.unseen(data.X).any(axis=1))
            if len(unseen):
                warn_caller(
                    "Nobody gave some of the answers 0..C-1 to the item(s) "
                    f"{listed(unseen)}: each of these is counted as given by half a "
                    "person, so that intercepts are finite. Difficulties of thresholds "
                    "with all answers on one side are infinite. Drop the items, or "
                    "code the answers 0, 1, 2, ... without gaps.",
                    ConvergenceWarning,
                )
            return model.ascent(training, objective, self.tol)
        training.params, n_steps = model.start(data.device), data.fitted["n_iter_"]
        params = {"learning_rate": 1.0, "rng": data.rng, "n_steps": n_steps}
        return ascent_on_part(training, objective, **params)

    def _codes_in_training(self, data):
        """Return the codes of the groups of training rows."""
        known, groups = data.fitted["groups_"], data.groups
        if groups is None:
            return codes_of(None, data.X, known)
        if not np.array_equal(known, groups.labels):
            raise ValueError(
                f"groups must be those of the fitted model, {listed(known)}, got "
                f"{listed(groups.labels)}."
            )
        return groups.codes

    def _trained_attributes(self, result, fitted):
        model = self._model_of(fitted).ended_at(result)
        args = model.items, model.flat, self.rotation
        is_signed = bool(model.is_fixed.any())
        item_attributes, sign = attributes_of(*args, is_signed=is_signed)
        return item_attributes | {
            "latent_mean_": sign * model.mean,
            "latent_variance_": model.variance,
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
                    "for instance, would bound all slopes.",
                    ConvergenceWarning,
                )

    @property
    def _n_features_out(self):
        return self.factor_correlation_.shape[0]

    @property
    def _priors(self):
        return {"slope_prior": self.slope_prior, "guessing_prior": self.guessing_prior}

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

    # Answers

    @property
    def _is_of_numbers(self):
        return self._takes_codes

    @property
    def _kinds(self):
        return self.likelihoods_

    def _read_rows(self, X, reset=False, min_samples=1):
        if reset:
            is_binary = all(name in BINARY for name in np.ravel(self.model).tolist())
            if is_binary and is_into_dataframe(X):
                columns = columns_of(X, is_wanted=is_of_categories)
                is_binary = not any(map(is_ordered, columns))
            self._takes_codes = is_binary
        return super()._read_rows(X, reset, min_samples)

    def _learn_columns(self, X):
        names = self._names(np.shape(X)[1])
        if self._takes_codes:
            reader = TableReader(["bernoulli"] * len(names), [None] * len(names), [])
        else:
            kinds = list(map(kind_of_answers, names, columns_of(X)))
            reader = TableReader.from_table(X, kinds, answers_of)
            labels = column_names(X)
            for name, label, known in zip(
                names, labels, reader.categories, strict=True
            ):
                if name in BINARY and known is not None and len(known) != 2:
                    raise ValueError(
                        f"Column {label!r} has {len(known)} levels, {listed(known)}, "
                        f"but its model {name!r} takes two: use 'graded', or another "
                        "model for ordered answers."
                    )
        self.likelihoods_, self.categories_, self._storage = reader

    def _decoded(self, density, Z):
        """Return expected answers as numbers; medians and modes of others."""
        if self._is_of_numbers:
            return super()._decoded(density, Z)
        columns, probs = [], density.prob_of_abilities(self._tensor(Z))
        for j, known in enumerate(self.categories_):
            prob = probs[:, j] if known is None else probs[:, j, : len(known)]
            if known is None:
                columns.append(prob[:, 1])
            elif known.dtype.kind in "fiu":
                columns.append(prob @ known.astype(float))
            elif self.likelihoods_[j] == "categorical":
                columns.append(known[prob.argmax(1)])
            else:
                columns.append(known[median_codes(prob)])
        if all(column.dtype.kind == "f" for column in columns):
            return np.column_stack(columns).astype(Z.dtype)
        return np.column_stack([column.astype(object) for column in columns])

    def _model_of(self, fitted):
        return ItemModel.from_attributes(
            fitted, self._names(len(fitted["n_categories_"]))
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
        Series, DataFrames with a row for each item, and dicts are matched by their
        labels. Items have the names, and the order, of the first that has any.

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
            groups, of equal weight. For more than three abilities they must be 0 and
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
        given = {
            "discrimination": discrimination,
            "intercept": intercept,
            "difficulty": difficulty,
            "guessing": guessing,
            "category_scores": category_scores,
        }
        labels = first_labels(given.values())
        given = {k: aligned(v, [labels], k, "items") for k, v in given.items()}
        if discrimination is not None:
            abilities = labels_of(discrimination, 1)
            factor_correlation = aligned(
                factor_correlation, [abilities] * 2, "factor_correlation", "abilities"
            )
        d, n_dims = item_arrays(given)[0].shape
        made = cls(model, n_dims, device=device, random_state=random_state)
        made._check_parameters(d)
        items, flat = known_items(given, made._names(d), labels or range(d))
        made.__dict__.update(
            made._new_state()
            | reshape_attributes(items.describe(flat), items)
            | given_population(latent_mean, latent_variance, factor_correlation, n_dims)
            | {
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
        )
        if labels and all(isinstance(label, str) for label in labels):
            made.feature_names_in_ = np.array(labels, dtype=object)
        return made

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
            group. With None the prior is that of all groups together, with a warning
            if there are several: differences of groups are then too small.
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
        people = self._people(X, groups, has_prior=method != "ml")
        if method in MODES:
            found = self._of_people(MODES[method], *people)
            return Abilities(found[:, 0], found[:, 1])
        estimates = self._posterior_abilities(*people)
        if method == "eap":
            return estimates
        rng = self._generator_for(random_state)

        def draw(density, rows):
            return density.draw_abilities(rows, rng, n_draws)

        drawn = self._of_people(draw, *people)
        theta = drawn[:, 0] if n_draws == 1 else drawn.transpose(1, 0, 2)
        return estimates._replace(theta=theta)

    def _of_people(self, function, rows, codes):
        """Apply a function of density and rows to the people of each group."""
        # codes : of the groups, (n,), None for the prior of all of them together.
        if codes is None or len(self.groups_) == 1:
            density = self._density()
            return self._map_rows(density, lambda part: function(density, part), rows)
        found, model = None, self._model_of(vars(self))
        for group in np.unique(codes):
            with torch_modes():
                density = model.density(check_device(self.device), group)
            own = codes == group
            part = self._map_rows(
                density, lambda rows, d=density: function(d, rows), rows[own]
            )
            if found is None:
                found = np.empty((len(rows), *part.shape[1:]))
            found[own] = part
        return found

    def _posterior_abilities(self, rows, codes=None):
        """Return means and standard deviations of the posteriors of rows."""
        found = self._of_people(moments, rows, codes)
        variance = np.diagonal(found[:, 1:], axis1=1, axis2=2)
        return Abilities(found[:, 0], np.sqrt(variance.clip(min=0)))

    def _people(self, X, groups, has_prior=True):
        """Return codes of answers, and of groups; None if these are not given."""
        rows = self._validate_rows(X)
        if groups is not None:
            return rows, codes_of(groups, X, self.groups_)
        was_fitted = hasattr(self, "_training_sums")  # not made by `from_items`
        if has_prior and was_fitted and len(self.groups_) > 1:
            warn_caller(
                f"The model has the groups {listed(self.groups_)}, and groups= was not "
                "given: abilities have the prior of all groups together, so that "
                "differences of groups are too small. Pass groups=, the group of each "
                "row."
            )
        return rows, None

    def transform(self, X: ArrayLike, *, groups: ArrayLike | None = None) -> np.ndarray:
        r"""Compute the posterior mean of the abilities of each person.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        groups : array-like of shape (n_samples,), default=None
            Group of each person, as in `abilities`. In a Pipeline it comes by metadata
            routing, after ``set_transform_request(groups=True)``.

        Returns
        -------
        Z : ndarray of shape (n_samples, n_components)
            :math:`E[z \mid x_R]`.
        """
        people = self._people(X, groups)
        means = self._of_people(ItemDensity.latent_mean, *people)
        return means.astype(people[0].dtype)

    def fit_transform(
        self,
        X: ArrayLike,
        y: object = None,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> np.ndarray:
        """Fit the model, and compute the posterior mean of the abilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        y : Ignored
            Not used, present for API consistency by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row, as in `fit`.
        groups : array-like of shape (n_samples,), default=None
            Group of each person, as in `fit`.

        Returns
        -------
        Z : ndarray of shape (n_samples, n_components)
            The result of `transform`.
        """
        fitted = self.fit(X, y, sample_weight, groups=groups)
        return fitted.transform(X, groups=groups)

    def posterior(
        self, X: ArrayLike, *, groups: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        r"""Compute mean and covariance of the abilities of each person.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        groups : array-like of shape (n_samples,), default=None
            Group of each person, as in `abilities`.

        Returns
        -------
        mean : ndarray of shape (n_samples, n_components)
            :math:`E[z \mid x_R]`, as `transform` returns it.
        covariance : ndarray of shape (n_samples, n_components, n_components)
            Covariance of z given the answers of each person.
        """
        found = self._of_people(moments, *self._people(X, groups))
        return found[:, 0], found[:, 1:]

    def person_fit(
        self, X: ArrayLike, theta: ArrayLike | None = None
    ) -> statistics.PersonFit:
        r"""Compute statistics of the fit of each person.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones, which are left out.
        theta : array-like of shape (n_samples, n_components), default=None
            Abilities. None is the result of `transform` without groups.

        Returns
        -------
        fit : named tuple
            `zh`, the standardised log-probability of the answers, low for unusual
            answers; `infit` and `outfit`, weighted and unweighted mean squares of the
            standardised residuals. Arrays of shape (n_samples,).

        Notes
        -----
        At known abilities infit and outfit have the mean 1, and `zh` the mean 0 and the
        standard deviation 1. Abilities that are estimated from the same answers fit
        them better. For people who follow the model, with slopes of 1 and difficulties
        from -2 to 2, EAP abilities from 10 and 40 items gave a mean infit of .89 and
        .96, a mean outfit of .83 and .94, and `zh` of mean .29 and .20, standard
        deviation .92. Cut-offs that assume known abilities are then off: 15% and 9% of
        these people had an outfit above 1.3, and 3.4% a `zh` below -1.645. To set a
        cut-off, draw people by `sample` and compute their statistics.
        """
        rows, weight, _ = self._counted_rows(X)
        parts = self._moments(rows, weight, theta)
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
            variance and the mean of their squared standard errors; and `marginal`, 1
            less the mean of the diagonal of :math:`(I(\theta) + \Sigma^{-1})^{-1}` over
            the population, divided by the variances of the abilities. :math:`I` is the
            Fisher information of the test and :math:`\Sigma` the covariance of the
            abilities. `marginal` does not depend on X.

        Raises
        ------
        ValueError
            If X has one row, or `sample_weight` adds up to 1 or less.
        """
        theta, error = self._posterior_abilities(self._validate_rows(X))
        weight = check_sample_weight(sample_weight, X)
        if weight.sum() <= 1:
            raise ValueError(
                "reliability needs the variance of abilities of more than one person, "
                f"but rows, or their sample_weight, add up to {weight.sum():.6g}."
            )
        mean = np.average(theta, axis=0, weights=weight)
        variance = weight @ (theta - mean) ** 2 / (weight.sum() - 1)
        noise = np.average(error**2, axis=0, weights=weight)
        with torch_modes():
            marginal = self._density().marginal_reliability().cpu().numpy()
        return Reliability(variance / (variance + noise), marginal)

    def _moments(self, rows, weight, theta=None, density=None):
        """Yield the moments of the answers of blocks of people, and their weights.

        rows : codes of answers. weight : (n,). theta : abilities; None is the means of
        the posteriors. density : None is that of the model.
        """
        density = density or self._density()
        if theta is None:
            theta = self._map_rows(density, density.latent_mean, rows)
        theta = check_array(theta, ensure_all_finite="allow-nan")
        shape = len(rows), self._n_features_out
        check_shape(theta, "theta", shape, "(n_samples, n_components)")
        order = density.items.answer_order(density.joint)
        rows = statistics.ranks_of(rows, order)
        for part in chunk_slices(len(rows), order.size, CHUNK_ENTRIES):
            prob = density.prob_of_abilities(self._tensor(theta[part]))
            prob = np.take_along_axis(prob, order[None], 2)
            yield statistics.moments_of(rows[part], prob), weight[part]

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

        Raises
        ------
        ValueError
            If `theta` does not have n_components columns.
        """
        by_item = self._density().information_of_items(self._abilities(theta))
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

        Raises
        ------
        ValueError
            If `theta` does not have n_components columns.
        """
        return self._density().prob_of_abilities(self._abilities(theta))

    def _abilities(self, theta):
        """Return given abilities as a tensor of shape (n_theta, n_components)."""
        self._check_is_fitted()
        theta = check_floats(theta, "theta")
        theta = check_array(theta.reshape(-1, 1) if theta.ndim < 2 else theta)
        if theta.shape[1] != self._n_features_out:
            raise ValueError(
                f"theta must have n_components={self._n_features_out} columns, got "
                f"{theta.shape[1]}."
            )
        return self._tensor(theta)

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
        the fitted parameters [1]_, computed by automatic differentiation. The curvature
        of priors, if there are any, is part of it. Standard errors of difficulties and
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

        Raises
        ------
        ValueError
            If X is given, and the model has more than 2000 parameters.

        Warns
        -----
        UserWarning
            If X and `sample_weight` are not those of the last `fit`.
            If the rows do not determine some parameters, which have no standard errors.
            If guessing of an item is at its bound 0, or all answers to an item are the
            same: the errors of this item are NaN, and those of the others take what is
            at the bound as known. So are those of a group without answers, or with only
            the best or the worst ones.

        Notes
        -----
        Of 100 tables of 300 people and 8 items, intervals of 1.96 standard errors
        covered 94% to 96% of the parameters, except of "3pl" items: without a
        `guessing_prior` 45% of these had no errors, as guessing was at its bound, and
        intervals of the others covered 88% of the slopes, 78% of the difficulties and
        73% of the probabilities of guessing. A prior around the true value covered 94%,
        98% and 98%.

        With several abilities the errors are those of the rotated slopes. P parameters
        cost P passes over the rows.

        References
        ----------
        .. [1] B. Efron and D. V. Hinkley, "Assessing the accuracy of the maximum
           likelihood estimator: observed versus expected Fisher information",
           Biometrika 65, 1978.
        """
        check_bool(as_frame, "as_frame")
        self._check_is_fitted()
        names, errors = self._item_names, None
        if X is not None:
            rows = X, sample_weight, groups
            errors = self._errors_by(parameters.errors_of, self.rotation, *rows)
        found = parameters.item_parameters(vars(self), errors)
        return parameters.as_frame_of(found, names) if as_frame else found

    def factor_loadings(
        self,
        X: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        rotation: str | None = None,
    ) -> Bunch:
        r"""Compute standardised loadings of the latent responses of the items.

        An answer is the level of a latent response, the logit at z plus logistic noise
        of variance :math:`\pi^2 / 3`. Loadings are those of responses with variance 1,
        in the reference group: with uncorrelated abilities, the correlations of
        responses and abilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items), default=None
            The training rows; NaN marks missing answers. With them, standard errors are
            computed by the delta method, from the observed information.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row, as in `fit`.
        groups : array-like of shape (n_samples,), default=None
            Group of each person, as in `fit`.
        rotation : {"varimax", "quartimax", "oblimin", "promax"}, default=None
            How the abilities are rotated. None leaves the axes of `fit`.

        Returns
        -------
        solution : Bunch
            As `MPTLinearVAE.factor_loadings` returns it: ``loadings``, ``structure``,
            ``factor_correlation``, ``communality``, ``uniqueness``,
            ``explained_variance`` and ``rotation_matrix``; and with X the standard
            errors ``loadings_error``, ``factor_correlation_error`` and
            ``communality_error``.

        Raises
        ------
        ValueError
            If items are "3pl" or "nominal", or "gpcm" or "partial_credit" with more
            than two answers: they have no such response.
        """
        self._check_is_fitted()
        if rotation is not None:
            check_choice(rotation, "rotation", ROTATIONS)
        model, names = self._model_of(vars(self)), self._item_names
        kinds = model.items.likelihood.kinds
        without = [j for j, k in enumerate(kinds) if k not in ("bernoulli", "ordinal")]
        if without:
            models = sorted({model.items.names[j] for j in without})
            raise ValueError(
                "factor_loadings needs items whose answers are levels of a response "
                f"with logistic noise, and the item(s) {listed(names[without])} are "
                f"{listed(models)}."
            )
        solution = Bunch(**parameters.loadings_of(model, rotation))
        if X is not None:
            rows = X, sample_weight, groups
            solution |= self._errors_by(parameters.loading_errors, rotation, *rows)
        return solution

    def item_fit(
        self,
        X: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> statistics.ItemFit:
        """Compute statistics of the fit of each item.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones. S-X2 uses complete rows only, the other
            statistics use all rows.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.
        groups : array-like of shape (n_samples,), default=None
            Group of each person; needed if the model has several. Each group is tested
            by itself: all rows are of one.

        Returns
        -------
        fit : named tuple
            Arrays of shape (n_items,). `s_x2`, `df_s_x2` and `p_s_x2`: comparison of
            the observed with the expected answers for each sum score, after collapsing
            cells in which less than one person is expected (Orlando and Thissen; Kang
            and Chen); NaN without degrees of freedom, which are those of the cells
            less the parameters of the item. `infit` and `outfit`: weighted and
            unweighted mean of the squared standardised residuals at EAP abilities.
            `zh`: standardised log-probability (Drasgow and others).

        Raises
        ------
        ValueError
            If no row is complete, or the rows are not of one group.
        """
        rows, weight, index = self._counted_rows(X, sample_weight)
        model, density, _ = self._one_group(groups, X, index, "item_fit")
        value, df = statistics.s_x2(model, density, rows, weight)
        parts = self._moments(rows, weight, density=density)
        sums = sum(statistics.sums_of(moments, w, 0) for moments, w in parts)
        infit, outfit, zh = statistics.fit_of(sums)
        return statistics.ItemFit(value, df, chi2.sf(value, df), infit, outfit, zh)

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
        rows, weight, _ = self._counted_rows(X, sample_weight)
        parts = self._moments(rows, weight)
        sums = sum(statistics.pair_sums(moments, w) for moments, w in parts)
        return statistics.residual_correlations(sums)

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
        other it has the same parameters in all groups. Both maximise the likelihood,
        without `slope_prior` and `guessing_prior`, beside which the statistic would
        not be chi-squared.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        group : array-like of shape (n_samples,)
            Group of each person.
        anchors : array-like of int, or of bool of shape (n_items,), default=None
            Indices or a mask of items with the same parameters in all groups, which are
            not tested. If given, all other items have separate parameters in each
            group, except the tested item in the smaller model. If None, all items but
            the tested one are anchors.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.

        Returns
        -------
        test : named tuple
            `statistic`, `p_value` and `df`, arrays of shape (n_items,); NaN for
            anchors, and for items that only one group has answered. Groups without
            answers to an item add nothing to its degrees of freedom.

        Notes
        -----
        The models are fitted starting from the items of this estimator, and the second
        of each pair also from the estimates of the first, as the likelihood can have
        several maxima. The estimator itself does not change.
        """
        self._check_is_fitted()
        rows, weight, _ = self._counted_rows(X, sample_weight)
        if self._n_features_out > 1:
            raise ValueError(
                "dif is for one ability, but the model has "
                f"n_components={self._n_features_out}."
            )
        groups = Groups.of_rows(group, X, sample_weight)
        if len(groups.labels) < 2:
            raise ValueError(
                "group must have at least two labels in rows with a weight above 0, "
                f"got {groups.labels.tolist()}."
            )
        if anchors is not None:
            anchors = anchor_items(anchors, self._item_names)
        with torch_modes():
            return dif_by_likelihood_ratio(
                self._model_of(vars(self)),
                rows,
                weight,
                groups.codes,
                anchors,
                check_device(self.device),
            )

    # The whole model

    def model_fit(
        self,
        X: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> ModelFit:
        """Test the model on the moments of single items and of pairs.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            The training rows; those with gaps are left out, with a warning.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.
        groups : array-like of shape (n_samples,), default=None
            Group of each person; needed if the model has several. Each group is tested
            by itself: all rows are of one.

        Returns
        -------
        fit : named tuple
            `m2`, `df` and `p`: M2 for two answers (Maydeu-Olivares and Joe), M2* for
            more (Cai and Hansen); `rmsea` and `rmsea_interval`, of 90%; `srmsr`, the
            root mean square of residual correlations; and for more than two answers
            `c2`, `df_c2`, `p_c2` and `rmsea_c2` (Cai and Monroe), NaN for two. NaN too
            where there are no degrees of freedom, and `srmsr` where all answers to an
            item are the same.

        Raises
        ------
        ValueError
            If no row is complete, the rows are not of one group, or there are too many
            pairs of items for a matrix over them.

        Warns
        -----
        UserWarning
            If rows with gaps are left out.
        """
        rows, weight, index = self._counted_rows(X, sample_weight)
        model, density, group = self._one_group(groups, X, index, "model_fit")
        whole = ~np.isnan(rows).any(axis=1)
        if not whole.any():
            raise ValueError(
                "model_fit needs complete rows, but all rows have missing answers: "
                "take fewer items."
            )
        if not whole.all():
            warn_caller(
                f"model_fit is that of the {np.count_nonzero(whole)} complete rows of "
                f"{len(rows)}: the others have missing answers."
            )
        return model_fit(model, density, group, rows[whole], weight[whole])

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
        rows, weight, index = self._counted_rows(X, sample_weight)
        codes = codes_of(groups, X, self.groups_, index)

        def lml(density, rows):
            return density.lml(rows)[0]

        return float(weight @ self._of_people(lml, rows, codes))

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
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.
        groups : array-like of shape (n_samples,), default=None
            Group of each person; needed if the model has several.

        Returns
        -------
        aic : float
            -2 times the log-likelihood, plus 2 for each parameter.
        """
        value = self.log_likelihood(X, sample_weight, groups=groups)
        return float(-2 * value + 2 * self._n_parameters)

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
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.
        groups : array-like of shape (n_samples,), default=None
            Group of each person; needed if the model has several.

        Returns
        -------
        bic : float
            -2 times the log-likelihood, plus for each parameter the logarithm of the
            number of rows that have an answer, or of the sum of their weights.

        Raises
        ------
        ValueError
            If all answers are missing.
        """
        value = self.log_likelihood(X, sample_weight, groups=groups)
        rows, weight, _ = self._counted_rows(X, sample_weight)
        return bayesian(value, self._n_parameters, rows, weight)

    def likelihood_ratio_test(
        self,
        nested: MPTItemResponse,
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
        X : array-like of shape (n_samples, n_items)
            Answers; NaN marks missing ones.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.
        groups : array-like of shape (n_samples,), default=None
            Group of each person; needed if the model has several.

        Returns
        -------
        test : named tuple
            `statistic`, twice the difference of the log-likelihoods; `df`, that of the
            numbers of parameters; and `p_value`, by the chi-squared distribution.

        Raises
        ------
        ValueError
            If `nested` has no fewer parameters, or a model has a prior: it is not at
            the maximum of the likelihood.

        Warns
        -----
        UserWarning
            If items of `nested` have no guessing, and those of this model have: 0 is a
            bound of guessing, where the statistic is smaller than chi-squared. Of 6
            items without guessing, 3PL beside 2PL had a mean statistic of 2.9 where
            chi-squared has 6. `p_value` is then an upper bound. If X and
            `sample_weight` are not those of the last `fit` of both models.
        """
        n_guessing = []
        for model, name in ((self, "this model"), (nested, "nested")):
            model._check_is_fitted()
            items = model._model_of(vars(model)).items
            n_guessing.append(len(items.guessing))
            matters = {
                "slope_prior": not {*items.names} <= {*WITHOUT_SLOPE},
                "guessing_prior": n_guessing[-1] > 0,
            }
            for parameter, value in model._priors.items():
                if value is not None and matters[parameter]:
                    raise ValueError(
                        "likelihood_ratio_test compares maxima of the likelihood, but "
                        f"{name} has {parameter}={value!r}: fit both models without "
                        "priors, or compare their score on held-out rows."
                    )
        df = self._n_parameters - nested._n_parameters
        if df <= 0:
            raise ValueError(
                f"nested must have fewer parameters than {self._n_parameters}, got "
                f"{nested._n_parameters}."
            )
        if n_guessing[0] > n_guessing[1]:
            warn_caller(
                f"Guessing of {n_guessing[0] - n_guessing[1]} item(s) is at its bound, "
                "0, in nested: the statistic is then smaller than chi-squared, and "
                "p_value is an upper bound of the probability."
            )
        args = (X, sample_weight)
        for model in (self, nested):
            rows, weight, _ = model._counted_rows(*args)
            model._check_training_weight(rows, weight, "Likelihood ratios are")
        gain = self.log_likelihood(*args, groups=groups) - nested.log_likelihood(
            *args, groups=groups if len(nested.groups_) > 1 else None
        )
        return LikelihoodRatio(2 * gain, df, float(chi2.sf(max(2 * gain, 0), df)))

    @property
    def _n_parameters(self):
        check_is_fitted(self)
        return self._model_of(vars(self)).n_parameters

    # Fitted models

    @property
    def _item_names(self):
        return getattr(self, "feature_names_in_", np.arange(self.n_features_in_))

    def _one_group(self, groups, X, index, purpose):
        """Return model, density and index of the only group of rows.

        index : of the rows of X that count.
        """
        model = self._model_of(vars(self))
        if len(self.groups_) == 1 and groups is None:
            return model, self._density(), 0
        label = self.groups_.tolist()[0]
        example = f"{purpose}(X[g == {label!r}], groups=g[g == {label!r}])"
        if groups is None:
            raise ValueError(
                f"{purpose} tests one group at a time, and the model has the groups "
                f"{listed(self.groups_)}: {example}."
            )
        codes = np.unique(codes_of(groups, X, self.groups_, index))
        if len(codes) != 1:
            raise ValueError(
                f"{purpose} tests one group at a time, but groups has the labels "
                f"{listed(self.groups_[codes])}: {example}."
            )
        with torch_modes():
            return model, model.density(check_device(self.device), codes[0]), codes[0]

    def _counted_rows(self, X, sample_weight=None):
        """Return codes of answers of rows whose weight is not 0, weights, and indices.

        The indices are those of these rows in X.
        """
        rows = self._validate_rows(X)
        weight = check_sample_weight(sample_weight, X)
        index = counted_rows(weight)
        return rows[index].astype(float), weight[index], index

    def _errors_by(self, function, rotation, X, sample_weight, groups):
        """Return standard errors by a function of the model and the training rows."""
        rows, weight, index = self._counted_rows(X, sample_weight)
        self._check_training_weight(rows, weight)
        codes = codes_of(groups, X, self.groups_, index)
        model, device = self._model_of(vars(self)), check_device(self.device)
        with torch_modes():
            objective = ItemRows(model, rows, weight, codes, self._priors, device)
            return function(model, objective, rotation, self._item_names, self.groups_)


def _lml_method(n_dims):
    return "quadrature" if n_dims <= MAX_GRID_DIMS else "importance"
