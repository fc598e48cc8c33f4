"""Training of the predictors of a column, on rows whose inputs are masked."""

from typing import Any, NamedTuple

import numpy as np
import torch

from sklearn_mpt._autoregressive.families import FAMILIES, WideComponent
from sklearn_mpt._autoregressive.forests import (
    MAX_COPIES,
    CategoryRows,
    ForestRows,
    concatenated,
    fitted_marginal_weight,
    fitted_scale,
    fitted_values_weight,
)
from sklearn_mpt._autoregressive.inputs import (
    MaskedCopies,
    PredictorCoding,
    PredictorInputs,
)
from sklearn_mpt._autoregressive.predictors import (
    default_forest,
    fit_weighted,
    has_leaves,
    has_std,
    is_classifying_forest,
    means,
    named,
    prepared,
)
from sklearn_mpt._checks import N_TORCH_SEEDS, seed_from
from sklearn_mpt._likelihoods.levels import smoothed_fractions
from sklearn_mpt._measure.masks import fixed_size
from sklearn_mpt._numbers import MIN_WIDTH, ROUNDING
from sklearn_mpt._optim.masks import (
    RowMasks,
)

# Least mean of counts and amounts, as a fraction of the mean of the column: other
# counts would be impossible given a leaf that holds zeros only.
MIN_MEAN = 1e-3
# Weight of the numbers in leaves below which they are not kept. Such a weight says that
# they explain less than 1% of held-out rows, and they take memory for all training rows
# in each tree.
MIN_VALUES_WEIGHT = 0.01


class NetworkSettings(NamedTuple):
    """Settings of all columns."""

    classifier: Any
    regressor: Any
    n_masks: int
    max_rows: int | None
    mask_rate: str | float
    marginal_weight: float
    calibrate: bool
    names: list

    def predictor(self, is_classifier, n_rows, rng):
        """Return an unfitted predictor with seeds."""
        given = self.classifier if is_classifier else self.regressor
        predictor = default_forest(is_classifier) if given is None else given
        return prepared(predictor, n_rows, rng)


def visible_sets(present, n_features, n_masks, mask_rate, rng):
    """Return the visible entries of copies of rows, bool (n_masks * n, k).

    With a uniform rate the first copy of a row is the row as it is, and others hide 1
    to all of its entries.

    present : entries of the columns that are read, bool (n, k). n_features : number of
    all columns; a fixed rate hides one that is not read, too: the column itself.
    """
    n, k = present.shape
    hidden = np.zeros((n_masks, n, k), dtype=bool)
    if mask_rate == "uniform":
        masks, entries = RowMasks(mask_rate, k), torch.from_numpy(present)
        generator = torch.Generator(device="cpu")
        generator.manual_seed(seed_from(rng, N_TORCH_SEEDS))
        for copy in hidden[1:] if k else ():
            copy[:] = masks.draw(entries, generator)[0].numpy()
    else:
        n_hidden = fixed_size(mask_rate, n_features) - 1  # the column itself is one
        of_read = rng.hypergeometric(k, n_features - 1 - k, n_hidden, (n_masks, n, 1))
        rank = rng.random(hidden.shape).argsort(axis=2).argsort(axis=2)
        hidden = rank < of_read
    return (present & ~hidden).reshape(n_masks * n, k)


def fit_column(rows, weight, column, read, columns, settings, seed):
    """Fit the predictors of a column."""
    kind, rng = columns.kinds[column], np.random.default_rng(seed)
    has_target = ~np.isnan(rows[:, column])
    x = rows[has_target, column]
    weight = None if weight is None else weight[has_target]
    kept = np.arange(len(x))
    if settings.max_rows is not None and len(x) > settings.max_rows:
        kept = np.sort(rng.choice(len(x), settings.max_rows, replace=False))
    inputs = rows[np.ix_(np.flatnonzero(has_target)[kept], read)]
    n_masks = settings.n_masks
    visible = visible_sets(
        ~np.isnan(inputs), rows.shape[1], n_masks, settings.mask_rate, rng
    )
    copies = MaskedCopies(
        np.tile(kept, n_masks),
        PredictorInputs(
            PredictorCoding(columns, read), np.tile(inputs, (n_masks, 1)), visible
        ),
    )
    fit = _ColumnFit(copies, weight, settings, settings.names[column], rng)
    if kind in FAMILIES:
        return fit.numbers(x, kind)
    return fit.categories(x, kind, columns.n_categories[column])


class _ColumnFit(NamedTuple):
    """Fits of the predictors of one column."""

    copies: MaskedCopies
    weight: np.ndarray | None
    settings: NetworkSettings
    name: Any
    rng: np.random.Generator

    def categories(self, x, kind, n_categories=2):
        n_categories = max(2, n_categories)
        marginal = smoothed_fractions(x[:, None], n_categories, self.weight)[0]
        learned = {"kind": kind, "marginal": marginal}
        if len(np.unique(x[self.copies.rows])) < 2:
            return [], learned
        predictor = self._fitted(x, True)
        if is_classifying_forest(predictor) and self.settings.calibrate:
            weight = self._category_weight(predictor, x, marginal)
            learned["marginal_weight"] = weight
        return [predictor], learned

    def _category_weight(self, forest, x, marginal):
        """Return the weight of the frequencies of all rows beside a forest."""
        rows = CategoryRows(self.copies, x, len(marginal), self.weight)
        chosen = self._chosen_copies()
        if forest.bootstrap:
            held_out = rows.out_of_bag(forest, chosen)
        else:
            held_out = concatenated(
                rows.predicted(other, chosen[out[chosen]])
                for out, other in self._folds(x, True)
            )
        return fitted_marginal_weight(held_out, marginal, self.settings.marginal_weight)

    def _chosen_copies(self):
        """Return the copies by which forests are calibrated."""
        return self.rng.permutation(len(self.copies.rows))[:MAX_COPIES]

    def numbers(self, x, kind):
        y = FAMILIES[kind].target(x)
        mean, variance = 0.0, 1.0
        if len(y):
            mean = np.average(y, weights=self.weight)
            variance = np.average((y - mean) ** 2, weights=self.weight)
        std = np.sqrt(variance)
        values = np.unique(y)
        gaps = np.diff(values)
        step = gaps[gaps > ROUNDING * std].min(initial=np.inf)
        # rounding to a step has the variance of a uniform distribution
        rounded = 0.0 if step == np.inf else step**2 / 12
        is_constant = step == np.inf
        floor = (MIN_WIDTH * (1.0 if std == 0 else std)) ** 2
        learned = {
            "kind": kind,
            "mean": float(mean),
            "variance": float(max(variance, floor)),
            "min_variance": float(max(rounded, floor)),
            "min_mean": -np.inf,
        }
        has_values = FAMILIES[kind].has_values and len(values) < len(y)
        if FAMILIES[kind].is_positive:
            learned["min_mean"] = float(max(MIN_MEAN * mean, MIN_WIDTH**2))
            learned["mean"] = float(max(mean, MIN_WIDTH**2))
        if is_constant:
            return [], learned
        predictor = self._fitted(y, False)
        if has_leaves(predictor) and not self.settings.calibrate:
            learned |= {"scale": np.ones(2), "values": None}
        elif has_leaves(predictor):
            learned |= self._calibrated(predictor, x, learned, has_values)
        elif not has_std(predictor):
            learned["residual_variance"] = self._residual_variance(y)
        return [predictor], learned

    @np.errstate(under="ignore")  # densities far out are zero
    def _calibrated(self, forest, x, learned, has_values):
        """Return what the conditional of a forest needs beside it."""
        family, min_variance = FAMILIES[learned["kind"]], learned["min_variance"]
        rows = ForestRows(self.copies, x, self.weight, family, min_variance, has_values)
        values, counts = rows.leaf_values(forest, slice(None))
        chosen = self._chosen_copies()
        if forest.bootstrap:
            held_out = rows.out_of_bag(forest, values, counts, chosen)
        else:
            folds = self._folds(family.target(x), False)
            held_out = concatenated(
                rows.predicted(
                    other, rows.leaf_values(other, ~out)[0], chosen[out[chosen]]
                )
                for out, other in folds
            )
        limits = learned["min_mean"], min_variance
        wide = WideComponent.from_column(learned, self.settings.marginal_weight)
        scale = fitted_scale(family, held_out, limits, wide)
        if not has_values:
            return {"scale": scale, "values": None}
        weight = fitted_values_weight(family, held_out, scale, limits, wide)
        if weight.max() < MIN_VALUES_WEIGHT:
            return {"scale": scale, "values": None}
        return {"scale": scale, "values": values.arrays(), "values_weight": weight}

    def _fitted(self, y, is_classifier, subset=slice(None)):
        """Return a predictor fitted to (some) copies."""
        n_rows = len(np.unique(self.copies.rows))
        predictor = self.settings.predictor(is_classifier, n_rows, self.rng)
        rows = self.copies.rows[subset]
        Z = self.copies.inputs.given_to(predictor)[subset]
        weight = None if self.weight is None else self.weight[rows]
        with named([predictor], self.name, "fit"):
            fit_weighted(predictor, Z, y[rows], weight)
        return predictor

    def _residual_variance(self, y):
        """Return variances of residuals of rows that are left out; (k + 1,)."""
        from sklearn.isotonic import IsotonicRegression  # its import takes long

        squares = np.empty(len(self.copies.rows))
        for out, predictor in self._folds(y, False):
            Z = self.copies.inputs.given_to(predictor)[out]
            with named([predictor], self.name, "predict"):
                predicted = means(predictor, Z)[:, 0]
            squares[out] = (y[self.copies.rows[out]] - predicted) ** 2
        n_visible = self.copies.inputs.n_visible
        weight = None if self.weight is None else self.weight[self.copies.rows]
        isotonic = IsotonicRegression(increasing=False, out_of_bounds="clip")
        isotonic.fit(n_visible, squares, sample_weight=weight)
        return isotonic.predict(np.arange(self.copies.inputs.visible.shape[1] + 1))

    def _folds(self, y, is_classifier, n_folds=3):
        """Yield the copies of rows that are left out, and a predictor of the others."""
        fold = self.rng.permutation(len(y)) % min(n_folds, len(y))
        copy_fold = fold[self.copies.rows]
        for k in range(fold.max() + 1):
            out = copy_fold == k
            yield out, self._fitted(y, is_classifier, ~out)
