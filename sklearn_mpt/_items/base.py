"""What the methods of fitted item response models share."""

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.utils import check_array

from sklearn_mpt._base.density import torch_modes
from sklearn_mpt._base.iterative import IterativeMPT
from sklearn_mpt._base.latent import LatentMixin
from sklearn_mpt._checks import (
    check_choice,
    check_device,
    check_sample_weight,
    counted_rows,
)
from sklearn_mpt._items import item_statistics as statistics
from sklearn_mpt._items.abilities import Abilities
from sklearn_mpt._items.answers import merged_answers
from sklearn_mpt._items.curves import MODELS
from sklearn_mpt._items.model import ItemModel
from sklearn_mpt._items.objective import Priors
from sklearn_mpt._messages import listed
from sklearn_mpt._numbers import CHUNK_ENTRIES, chunk_slices

# Codes of groups are integers of 8 bits; more labels are likely to be those of rows.
MAX_GROUPS = 100


class FittedItems(LatentMixin, IterativeMPT):
    """Base of the methods for people, for items and for the whole model."""

    model: str | Sequence[str]
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
    rotation: str | None
    slope_prior: float | None
    guessing_prior: tuple[float, float] | None

    @property
    def _n_features_out(self):
        return self.factor_correlation_.shape[0]

    @property
    def _priors(self):
        prior = self.guessing_prior
        return Priors(self.slope_prior, None if prior is None else tuple(prior))

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

    def _model_of(self, fitted):
        return ItemModel.from_attributes(
            fitted, self._names(len(fitted["n_categories_"]))
        )

    def _coded_rows_that_count(self, groups, X, sample_weight):
        """Labels of groups and codes of the rows whose weight is not 0.

        A group without such rows has no label.
        """
        labels, codes = self._coded(groups, X)
        if codes is None or sample_weight is None:
            return labels, codes
        counts = counted_rows(check_sample_weight(sample_weight, X))
        kept, codes = np.unique(codes[counts], return_inverse=True)
        return labels[kept], codes

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
            n_missing = np.count_nonzero(np.isnan(groups))
            raise ValueError(f"groups must not contain NaN, got {n_missing} of them.")
        labels, codes = np.unique(groups, return_inverse=True)
        if known is not None:
            unknown = labels[~np.isin(labels, known)]
            if len(unknown):
                raise ValueError(
                    f"groups must be among those of fit, {listed(known)}, got "
                    f"{listed(unknown)}."
                )
            codes = np.searchsorted(known, groups)
        elif len(labels) > MAX_GROUPS:
            raise ValueError(
                f"groups has {len(labels)} different labels; at most {MAX_GROUPS} are "
                "allowed."
            )
        return labels, codes

    def _codes_of(self, groups, X):
        if groups is not None:
            return self._coded(groups, X, self.groups_)[1]
        if len(self.groups_) > 1:
            raise ValueError(
                f"The model has {len(self.groups_)} groups: the parameter groups must "
                "give the group of each row."
            )
        return None

    def _prob_of(self, density, theta):
        with torch_modes():
            z = density.z_of_abilities(self._tensor(theta))
            prob = density.items.prob(density.items.log_prob(density.point, z))
            return prob.permute(2, 0, 1).cpu().numpy()

    def _posterior_abilities(self, X, density, codes):
        """Means and standard deviations of the posteriors of rows."""

        def moments(rows, codes=None):
            log_weight = density.row_log_weight(codes)
            mean, covariance = density.latent_moments(rows, log_weight)
            variance = covariance.diagonal(dim1=1, dim2=2).clamp(min=0)
            return torch.stack([mean, variance.sqrt()], 1)

        moments_of_z = self._map_rows(density, moments, *with_codes(X, codes))
        return Abilities(moments_of_z[:, 0], moments_of_z[:, 1])

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
        n_answers = rows.shape[1] * density.items.max_categories
        for part in chunk_slices(len(rows), n_answers, CHUNK_ENTRIES):
            prob = self._prob_of(density, theta[part])
            yield statistics.moments_of(rows[part], prob), weight[part]

    def _complete_rows(self, X, sample_weight, purpose):
        rows = self._validate_rows(X).astype(float)
        gaps = np.isnan(rows).any(axis=1)
        if gaps.any():
            raise ValueError(
                f"{purpose} needs complete rows, but {np.count_nonzero(gaps)} of "
                f"{len(rows)} have missing answers: leave these out, or fill them in "
                "by impute(X, method='sample')."
            )
        if len(self.groups_) > 1:
            raise ValueError(
                f"{purpose} is for models of one group, and this one has "
                f"{len(self.groups_)}: fit each group by itself."
            )
        return rows, check_sample_weight(sample_weight, rows)

    def _objective_on(self, model, X, sample_weight, groups):
        """Return the objective on these rows, and the fitted flat parameters."""
        rows = self._validate_rows(X)
        weight = check_sample_weight(sample_weight, rows)
        codes = self._codes_of(groups, X)
        device = check_device(self.device)
        answers = merged_answers(
            rows, model.items.max_categories, weight, codes, device
        )
        objective = model.objective(answers, self._priors)
        point = model.start(device)
        objective.refine()
        objective.place_nodes(point)
        return objective, point


def with_codes(X, codes):
    """Append the codes of groups to the rows, if there are any, as a column."""
    return (X,) if codes is None else (X, codes[:, None])
