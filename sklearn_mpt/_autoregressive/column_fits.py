"""Training of the predictors of a column, on rows whose inputs are masked."""

import inspect
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import has_fit_parameter

from sklearn_mpt._autoregressive.conditionals import (
    FAMILIES,
    SCALES,
    LeafValues,
    Leaves,
    NumberConditional,
    draws_of_trees,
    normal_log_prob,
)
from sklearn_mpt._autoregressive.predictors import (
    PredictorInputs,
    columns_read,
    has_leaves,
    has_std,
    is_classifying_forest,
    last_step,
    mean_of_trees,
    means,
    named,
    new_predictor,
)
from sklearn_mpt._checks import N_TORCH_SEEDS, seed_from
from sklearn_mpt._likelihoods.levels import smoothed_fractions
from sklearn_mpt._measure.masks import fixed_size
from sklearn_mpt._numbers import MIN_WIDTH, ROUNDING
from sklearn_mpt._optim.masks import RowMasks
from sklearn_mpt._optim.weights import stacking_weights


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


def fit_column(rows, weight, column, name, read, columns, params, seed):
    """Fit the predictors of a column; `params` are those of the estimator."""
    kind, rng = columns.kinds[column], np.random.default_rng(seed)
    has_target = ~np.isnan(rows[:, column])
    x = rows[has_target, column]
    weight = None if weight is None else weight[has_target]
    kept = np.arange(len(x))
    max_rows, n_masks = params["max_rows"], params["n_masks"]
    if max_rows is not None and len(x) > max_rows:
        kept = np.sort(rng.choice(len(x), max_rows, replace=False))
    inputs = rows[np.ix_(np.flatnonzero(has_target)[kept], read)]
    visible = visible_sets(
        ~np.isnan(inputs), rows.shape[1], n_masks, params["mask_rate"], rng
    )
    copies = np.tile(inputs, (n_masks, 1))
    of_copies = PredictorInputs(columns_read(columns, read), copies, visible)
    fit = _ColumnFit(np.tile(kept, n_masks), of_copies, weight, params, name, rng)
    if kind in FAMILIES:
        return fit.numbers(x, kind)
    return fit.categories(x, kind, columns.n_categories[column])


class _ColumnFit(NamedTuple):
    """Fits of the predictors of one column."""

    rows: np.ndarray  # of which row each copy is
    inputs: PredictorInputs  # of the copies
    weight: np.ndarray | None
    params: dict
    name: Any
    rng: np.random.Generator

    def categories(self, x, kind, n_categories=2):
        n_categories = max(2, n_categories)
        marginal = smoothed_fractions(x[:, None], n_categories, self.weight)[0]
        learned = {"kind": kind, "marginal": marginal}
        if len(np.unique(x[self.rows])) < 2:
            return [], learned
        predictor = self._fitted(x, True)
        if is_classifying_forest(predictor) and self.params["calibrate"]:
            weight = self._marginal_weight(predictor, x, marginal)
            learned["marginal_weight"] = weight
        return [predictor], learned

    def _marginal_weight(self, forest, x, marginal):
        """Return the weight of the frequencies of all rows beside a forest; (2,)."""
        log_probs, index = [], []
        least = self.params["marginal_weight"]
        for other, _, chosen, counts in self._held_out(forest, x, True):
            Z = self.inputs.given_to(other)[chosen]
            code = x[self.rows[chosen]].astype(int)
            prob = mean_of_trees(other, Z, counts[chosen], len(marginal))
            shapes = np.stack([prob[np.arange(len(code)), code], marginal[code]])
            log_probs.append(np.log((1 - least) * shapes + least * marginal[code]))
            index.append(chosen)
        return self._weights(log_probs, index)[:, 1]

    def _weights(self, log_probs, index):
        """Return the weights of shapes at held-out copies; (2, n_shapes)."""
        index = np.concatenate(index)
        visible = self.inputs.fraction_visible[index]
        weight = 1.0 if self.weight is None else self.weight[self.rows[index]]
        ends = np.stack([1 - visible, visible])
        return stacking_weights(np.hstack(log_probs), weight, ends)

    def _held_out(self, forest, y, is_classifier):
        """Yield forests, what copies count in their trees, copies that some of the
        trees have not seen, and which trees; bool (n, n_trees).
        """
        rows = self.rows
        weight = np.ones(len(rows)) if self.weight is None else self.weight[rows]
        # mean log-densities of as many have a standard error of some 0.03
        chosen = self.rng.permutation(len(rows))[:1000]
        if forest.bootstrap:
            counts = list(draws_of_trees(forest, weight))
            n_rows = rows.max() + 1  # trees have not seen the row of a copy at all
            is_seen = [np.bincount(rows, count > 0, n_rows) > 0 for count in counts]
            is_unseen = ~np.column_stack(is_seen)[rows]
            yield forest, counts, chosen[is_unseen[chosen].any(axis=1)], is_unseen
            return
        for out, other in self._folds(y, is_classifier):
            counts = list(draws_of_trees(other, np.where(out, 0.0, weight)))
            is_unseen = np.repeat(out[:, None], len(counts), axis=1)
            yield other, counts, chosen[out[chosen]], is_unseen

    def numbers(self, x, kind):
        y = FAMILIES[kind].target(x)
        mean, variance = 0.0, 1.0
        if len(y):
            mean = np.average(y, weights=self.weight)
            variance = np.average((y - mean) ** 2, weights=self.weight)
        std = np.sqrt(variance)
        gaps = np.diff(np.unique(y))
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
        has_values = not FAMILIES[kind].is_count and rounded >= floor
        if FAMILIES[kind].is_count:
            # others would be impossible given a leaf that holds zeros only
            learned["min_mean"] = float(max(1e-3 * mean, MIN_WIDTH**2))
            learned["mean"] = float(max(mean, MIN_WIDTH**2))
        if is_constant:
            return [], learned
        predictor = self._fitted(y, False)
        if has_leaves(predictor) and not self.params["calibrate"]:
            only_leaves = np.eye(1 + len(SCALES))[[0, 0]]
            learned |= {"shape_weights": only_leaves, "values": None}
        elif has_leaves(predictor):
            learned |= self._calibrated(predictor, x, learned, has_values)
        elif not has_std(predictor):
            learned["residual_variance"] = self._residual_variance(y)
        return [predictor], learned

    @np.errstate(under="ignore")  # densities far out are zero
    def _calibrated(self, forest, x, learned, has_values):
        """Return the weights of shapes given a forest, and the numbers in its leaves"""
        rows, family = self.rows, FAMILIES[learned["kind"]]
        y, limits = family.target(x), (learned["min_mean"], learned["min_variance"])
        column = NumberConditional([], learned, self.params["marginal_weight"])
        log_probs, index = [], []
        for other, counts, chosen, is_unseen in self._held_out(forest, y, False):
            leaves, unseen = Leaves(other), is_unseen[chosen]
            of_copies = leaves.of(self.inputs.given_to(other))
            normals = leaves.shapes(of_copies[chosen], limits, unseen)
            shapes = normal_log_prob(family, x[rows[chosen]], normals, unseen)
            if has_values:
                values = LeafValues.from_rows(of_copies, counts, y[rows])
                args = of_copies[chosen], learned["min_variance"], unseen
                of_values = values.log_prob(family, x[rows[chosen]], *args)
                shapes = np.vstack([shapes, of_values])
            log_probs.append(column.add_wide(shapes, x[rows[chosen]]))
            index.append(chosen)
        weights = self._weights(log_probs, index)
        if not has_values:
            return {"shape_weights": weights, "values": None}
        # they take memory for all training rows in each tree
        if weights[:, -1].max() < 0.01:
            normal = weights[:, :-1] / (1 - weights[:, -1:])
            return {"shape_weights": normal, "values": None}
        if not forest.bootstrap:
            ones = np.ones(len(rows)) if self.weight is None else self.weight[rows]
            of_copies = Leaves(forest).of(self.inputs.given_to(forest))
            counts = draws_of_trees(forest, ones)
            values = LeafValues.from_rows(of_copies, counts, y[rows])
        return {"shape_weights": weights, "values": values.arrays()}

    def _fitted(self, y, is_classifier, subset=slice(None)):
        """Return a predictor fitted to (some) copies."""
        n_rows = len(np.unique(self.rows))
        given = self.params["classifier" if is_classifier else "regressor"]
        predictor = new_predictor(given, is_classifier, n_rows, self.rng)
        rows = self.rows[subset]
        Z = self.inputs.given_to(predictor)[subset]
        weights = {}
        with named([predictor], self.name, "fit"):
            if self.weight is not None:
                last, prefix = last_step(predictor)
                params = inspect.signature(last.fit).parameters.values()
                passes_on = any(param.kind is param.VAR_KEYWORD for param in params)
                if not passes_on and not has_fit_parameter(last, "sample_weight"):
                    raise ValueError(
                        "its fit takes no sample_weight, and X has weights"
                    )
                weights = {f"{prefix}sample_weight": self.weight[rows]}
            predictor.fit(Z, y[rows], **weights)
        return predictor

    def _residual_variance(self, y):
        """Return variances of residuals of rows that are left out; (k + 1,)."""
        from sklearn.isotonic import IsotonicRegression  # its import takes long

        squares = np.empty(len(self.rows))
        for out, predictor in self._folds(y, False):
            Z = self.inputs.given_to(predictor)[out]
            with named([predictor], self.name, "predict"):
                predicted = means(predictor, Z)[:, 0]
            squares[out] = (y[self.rows[out]] - predicted) ** 2
        n_visible = self.inputs.n_visible
        weight = None if self.weight is None else self.weight[self.rows]
        isotonic = IsotonicRegression(increasing=False, out_of_bounds="clip")
        isotonic.fit(n_visible, squares, sample_weight=weight)
        return isotonic.predict(np.arange(self.inputs.visible.shape[1] + 1))

    def _folds(self, y, is_classifier):
        """Yield the copies of rows that are left out, and a predictor of the others."""
        fold = self.rng.permutation(len(y)) % min(3, len(y))
        copy_fold = fold[self.rows]
        for k in range(fold.max() + 1):
            out = copy_fold == k
            yield out, self._fitted(y, is_classifier, ~out)
