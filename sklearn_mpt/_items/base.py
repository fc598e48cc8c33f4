"""What the methods of fitted item response models share."""

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.utils import check_array

from sklearn_mpt._base.density import torch_modes
from sklearn_mpt._base.iterative import IterativeMPT
from sklearn_mpt._base.latent import LatentMixin
from sklearn_mpt._base.tables import TableMPT
from sklearn_mpt._checks import (
    check_choice,
    check_device,
    check_sample_weight,
    counted_rows,
)
from sklearn_mpt._frames import column_names, columns_of
from sklearn_mpt._items import item_statistics as statistics
from sklearn_mpt._items.abilities import Abilities
from sklearn_mpt._items.answers import merged_answers
from sklearn_mpt._items.curves import BINARY, MODELS
from sklearn_mpt._items.levels import (
    answers_of,
    check_two_answers,
    expected_answers,
    has_ordered_columns,
    kind_of_answers,
)
from sklearn_mpt._items.model import ItemModel
from sklearn_mpt._items.objective import Priors
from sklearn_mpt._messages import listed
from sklearn_mpt._numbers import CHUNK_ENTRIES, chunk_slices
from sklearn_mpt._tables.reader import TableReader

# Codes of groups are integers of 8 bits; more labels are likely to be those of rows.
MAX_GROUPS = 100


class FittedItems(LatentMixin, TableMPT, IterativeMPT):
    """Base of the methods for people, for items and for the whole model."""

    _advice_on_strings = (
        "Items of the models 'graded', 'partial_credit' and 'gpcm' take ordered "
        "categories, and 'nominal' ones strings."
    )
    _advice_on_categories = (
        "items that are 'nominal' take them, and 'graded', 'partial_credit' and 'gpcm' "
        "ones if they are ordered."
    )
    _takes_codes: bool  # whether answers are codes 0, 1, 2, ... already

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
            self._takes_codes = is_binary and not has_ordered_columns(X)
        return super()._read_rows(X, reset, min_samples)

    def _advice_on(self, X):
        return f". {self._advice_on_strings}"

    def _learn_columns(self, X):
        names = self._names(np.shape(X)[1])
        if self._takes_codes:
            reader = TableReader(["bernoulli"] * len(names), [None] * len(names), [])
        else:
            kinds = list(map(kind_of_answers, names, columns_of(X)))
            reader = TableReader.from_table(X, kinds, answers_of)
            labels = column_names(X)
            for args in zip(names, labels, reader.categories, strict=True):
                check_two_answers(*args)
        self.likelihoods_, self.categories_, self._storage = reader

    def _decoded(self, density, Z):
        """Return expected answers as numbers; medians and modes of others."""
        if self._is_of_numbers:
            return super()._decoded(density, Z)
        prob = self._prob_of(density, Z)
        columns = [
            expected_answers(prob[:, j], known, kind)
            for j, (known, kind) in enumerate(
                zip(self.categories_, self.likelihoods_, strict=True)
            )
        ]
        if all(column.dtype.kind == "f" for column in columns):
            return np.column_stack(columns).astype(Z.dtype)
        return np.column_stack([column.astype(object) for column in columns])

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

    def _moments(self, rows, weight, theta=None):
        """Yield the moments of the answers of blocks of people, and their weights.

        rows : codes of answers. weight : (n,). theta : abilities; None is the result of
        `transform`.
        """
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

    def _check_complete(self, rows, purpose):
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

    def _weighted_rows(self, X, sample_weight):
        """Return codes of answers as floats, and what each row counts."""
        rows = self._validate_rows(X).astype(float)
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
