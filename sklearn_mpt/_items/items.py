"""Methods for items: parameters, information, item fit, differential functioning."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import chi2
from sklearn.utils import check_array

from sklearn_mpt._base.density import torch_modes
from sklearn_mpt._checks import (
    check_bool,
    check_device,
    check_floats,
    rows_that_count,
    warn_caller,
)
from sklearn_mpt._information.differences import STEP, central_differences
from sklearn_mpt._information.louis import covariance_of
from sklearn_mpt._items import item_statistics as statistics
from sklearn_mpt._items.base import FittedItems
from sklearn_mpt._items.dif import DifferentialFunctioning, dif_by_likelihood_ratio
from sklearn_mpt._items.information import (
    information_and_bounds,
    item_blocks,
)
from sklearn_mpt._items.model import attributes_of, reshape_attributes
from sklearn_mpt._matrices import identity
from sklearn_mpt._messages import listed

PARAMETER_NAMES = ("discrimination", "intercept", "difficulty", "guessing")
MAX_SUM_SCORES = 2**27  # numbers in the distributions of sum scores: 1 GB


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


class ItemsMixin(FittedItems):
    """Mixin of item response models: the methods for items."""

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
        self._check_is_fitted()
        theta = self._check_theta(theta)
        density = self._density()
        with torch_modes():
            z = density.z_of_abilities(self._tensor(theta))
            slopes = density.items.slopes(density.point)
            slopes = slopes @ torch.linalg.inv(density.root).T
            information = density.items.eta_information(density.point, z)
            by_item = (information.T * (slopes**2).sum(1)).cpu().numpy()
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
        self._check_is_fitted()
        theta = self._check_theta(theta)
        return self._prob_of(self._density(), theta)

    def _check_theta(self, theta):
        """Return abilities as an array of shape (n_theta, n_components)."""
        theta = check_floats(theta, "theta")
        theta = check_array(theta.reshape(-1, 1) if theta.ndim < 2 else theta)
        if theta.shape[1] != self._n_features_out:
            raise ValueError(
                f"theta must have n_components={self._n_features_out} columns, got "
                f"{theta.shape[1]}."
            )
        return theta

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
            If guessing of an item is at its bound 0, or all answers to an item are the
            same: the errors of this item are NaN, and those of the others take what is
            at the bound as known.

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
        attributes = {name: getattr(self, f"{name}_") for name in PARAMETER_NAMES}
        K, steps = model.items.n_dims, model.items.max_categories - 1
        width = K + steps + 1
        covariance = np.full((len(model.items), width, width), np.nan)
        errors = {
            name: np.full(np.shape(attributes[name]), np.nan)
            for name in PARAMETER_NAMES
        }
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
                attributes["discrimination"].shape
            )
            shape = attributes["intercept"].shape
            errors["intercept"] = np.where(
                np.isnan(attributes["intercept"]),
                np.nan,
                deviation[:, K : K + steps].reshape(shape),
            )
            errors["difficulty"] = difficulty.reshape(shape)
            errors["guessing"] = deviation[:, -1]
        values = {}
        for name in PARAMETER_NAMES:
            values[name], values[f"{name}_std_error"] = attributes[name], errors[name]
        for name, value in latent.items():
            values[name], values[f"{name}_std_error"] = value, latent_errors[name]
        parameters = ItemParameters(**values, covariance=covariance)
        return self._as_frame(parameters) if as_frame else parameters

    def _as_frame(self, parameters):
        import pandas as pd

        columns = {}
        for name in PARAMETER_NAMES:
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

    def _covariances(self, model, X, sample_weight, groups):
        """Return covariances of the parameters of each item, and other errors."""
        items = model.items
        with torch_modes():
            objective, point = self._objective_on(model, X, sample_weight, groups)
            information, at_bound = information_and_bounds(objective, point)
        K, owner = items.n_dims, items.item_of_parameters
        n_items = items.n_parameters
        constant = objective.answers.are_constant.cpu().numpy()
        guessed = np.isin(np.arange(len(items)), owner[at_bound[:n_items]]) & ~constant
        self._warn_of_lost_items(guessed, constant)
        if at_bound[n_items:].any():
            warn_caller(
                "A variance of z is at its bound, 0, and has no standard error: "
                "answers to different items hardly depend on each other."
            )
        left_out = at_bound.copy()
        left_out[:n_items] |= constant[owner]
        if model.is_fixed is not None:
            left_out[:n_items] |= model.is_fixed
        flat = point.cpu().numpy()
        if isinstance(information, list):
            whole, blocks = None, _inverses(items, information, left_out)
        else:
            whole = np.zeros_like(information)
            free = np.ix_(~left_out, ~left_out)
            whole[free] = covariance_of(information[free], n_rotations=K * (K - 1) // 2)
            blocks = [part.numpy() for part in item_blocks(items, whole)]
        latent = self._latent_errors(model, whole, at_bound)
        if K > 1 and whole is not None:
            covariance, difficulty = self._rotated_covariances(model, flat, whole)
        else:
            covariance, difficulty = _delta(items, flat[: items.n_parameters], blocks)
        covariance[guessed | constant] = difficulty[guessed | constant] = np.nan
        difficulty[~np.isfinite(self.difficulty_.reshape(difficulty.shape))] = np.nan
        return covariance, difficulty, latent

    def _warn_of_lost_items(self, guessed, constant):
        """Warn of items without standard errors; bool (d,) each."""
        names = getattr(self, "feature_names_in_", np.arange(len(constant)))
        if constant.any():
            warn_caller(
                f"All answers to the item(s) {listed(names[constant])} are the same: "
                "the parameters of these items have no standard errors. Drop the items."
            )
        if guessed.any():
            warn_caller(
                f"Guessing of the item(s) {listed(names[guessed])} is at its bound, "
                "0: the rows do not tell it from the slope and the difficulty of these "
                "items, whose parameters have no standard errors. A prior keeps "
                "guessing off the bound: guessing_prior=(-1.4, 1.0) is one with median "
                "0.2.",
            )

    def _latent_errors(self, model, whole, at_bound):
        mean = np.zeros(self.latent_mean_.shape)
        variance = np.zeros(self.latent_variance_.shape)
        layout = model.layout
        means, deviations = layout.population_slices
        if whole is None:
            mean[layout.free_mean] = variance[layout.free_variance] = np.nan
        else:
            errors = np.where(at_bound, np.nan, np.sqrt(np.diagonal(whole)))
            mean[layout.free_mean] = errors[means, None]
            variance[layout.free_variance] = (
                2 * self.latent_variance_[layout.free_variance]
                * errors[deviations, None]
            )  # fmt: skip
        return {"latent_mean": mean, "latent_variance": variance}

    def _rotated_covariances(self, model, flat, whole):
        """Covariances after rotation, by its numerical derivatives."""
        items = model.items

        def reported(point):
            attributes, _ = attributes_of(
                items, point.numpy(), self.rotation, model.root
            )
            return torch.from_numpy(_as_rows(attributes))

        at = torch.from_numpy(flat)
        steps = STEP * identity(len(flat), at)
        differences = central_differences(reported, at, steps)
        jacobian = (differences / STEP).movedim(0, -1).nan_to_num().numpy()
        width = items.n_dims + items.max_categories  # of the covariance of an item
        covariances = jacobian @ whole @ jacobian.transpose(0, 2, 1)
        deviation = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
        return covariances[:, :width, :width], deviation[:, width:]

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
            and Chen); NaN without degrees of freedom, which are those of the cells
            less the parameters of the item. `infit` and `outfit`: weighted and
            unweighted mean of the squared standardised residuals at EAP abilities.
            `zh`: standardised log-probability (Drasgow and others).

        Raises
        ------
        ValueError
            If no row is complete, or there are several groups.
        """
        rows, weight = self._weighted_rows(X, sample_weight)
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
        if n_items * largest * len(density.grid.z) > MAX_SUM_SCORES:
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
        rows, weight = rows[whole], weight[whole]
        self._check_complete(rows, "item_fit")
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
        if model.is_fixed is not None:
            owner = model.items.item_of_parameters
            counts -= np.bincount(owner[model.is_fixed], minlength=n_items)
        return statistics.s_x2(tables, counts)

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
        parts = self._moments(*self._weighted_rows(X, sample_weight))
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
        other it has the same parameters in all groups.

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
            anchors.

        Notes
        -----
        The models are fitted starting from the items of this estimator. The estimator
        itself does not change.
        """
        self._check_is_fitted()
        rows, weight = self._weighted_rows(X, sample_weight)
        if self._n_features_out > 1:
            raise ValueError(
                "dif is for one ability, but the model has "
                f"n_components={self._n_features_out}."
            )
        labels, codes = self._coded_rows_that_count(group, X, sample_weight)
        rows, weight = rows_that_count(rows, weight)
        if len(labels) < 2:
            raise ValueError(
                "group must have at least two labels in rows with a weight above 0, "
                f"got {labels.tolist()}."
            )
        if anchors is not None:
            anchors = _anchors(anchors, rows.shape[1])
        with torch_modes():
            return dif_by_likelihood_ratio(
                self._model_of(vars(self)),
                rows,
                weight,
                codes,
                anchors,
                self._priors,
                check_device(self.device),
            )


def _anchors(anchors, n_items):
    """Return the indices of anchors, in order, given indices or a mask."""
    given = np.asarray(anchors)
    if given.dtype == bool and given.shape == (n_items,):
        given = np.flatnonzero(given)
    is_some = given.dtype.kind in "iu" and given.ndim == 1 and 0 < len(given)
    if not is_some or given.min() < 0 or given.max() >= n_items:
        raise ValueError(
            f"anchors must be some of the items 0..{n_items - 1}, or a boolean mask of "
            f"shape ({n_items},), got {np.asarray(anchors).tolist()}."
        )
    anchor_items = np.unique(given)
    if len(anchor_items) == n_items:
        raise ValueError(
            f"anchors must leave items to test, but all {n_items} are anchors."
        )
    return anchor_items


def _inverses(items, information, left_out):
    """Return inverses of the information of single items, for each block (j, q, q).

    left_out : which parameters have the variance 0 instead, bool (p,).
    """
    inverses = []
    for block, part in zip(items.blocks, information, strict=True):
        out = left_out[block.parameters].reshape(len(block.items), block.width)
        kept = ~out[:, :, None] & ~out[:, None]
        unit = np.eye(block.width) * out[:, None]
        inverses.append(np.linalg.inv(np.where(kept, part, unit)) * kept)
    return inverses


def _as_rows(attributes):
    """Return the parameters of each item as a row, difficulties last."""
    names = "discrimination_", "intercept_", "guessing_", "difficulty_"
    n_items = len(attributes["guessing_"])
    return np.concatenate([attributes[n].reshape(n_items, -1) for n in names], 1)


def _delta(items, point, blocks):
    """Return covariances of the parameters of items, and errors of difficulties.

    blocks : covariances of flat parameters, (j, q, q) for each block.
    """
    d, K, steps = len(items), items.n_dims, items.max_categories - 1
    width = K + steps + 1
    covariance, errors = np.zeros((d, width, width)), np.full((d, steps), np.nan)

    for block, part in zip(items.blocks, blocks, strict=True):
        chosen = block.items.numpy()

        def reported(at, chosen=chosen):
            attributes = reshape_attributes(items.describe(at), items)
            return torch.from_numpy(_as_rows(attributes)[chosen])

        jacobian = block.derivatives(reported, torch.from_numpy(point)).numpy()
        missing = np.isnan(jacobian).any(axis=2)
        jacobian = np.nan_to_num(jacobian)
        covariances = jacobian @ part @ jacobian.transpose(0, 2, 1)
        covariance[chosen] = covariances[:, :width, :width]
        deviation = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
        deviation = np.where(missing, np.nan, deviation)
        errors[chosen] = deviation[:, width:]
    return covariance, errors
