"""Forests that read rows whose gaps another model has filled in."""

import copy
from typing import Self

import numpy as np
from sklearn.base import BaseEstimator

from sklearn_mpt._dependency.conditionals import conditional_of
from sklearn_mpt._dependency.inputs import PredictorCoding, PredictorInputs
from sklearn_mpt._dependency.packing import packed, unpacked
from sklearn_mpt._dependency.relevance import most_related
from sklearn_mpt._dependency.training import NetworkSettings, fit_column
from sklearn_mpt._imputation.coded_models import CodedModel
from sklearn_mpt._imputation.coded_rows import CODES, CodedRows, HiddenRows
from sklearn_mpt._imputation.expectations import expected
from sklearn_mpt._imputation.weights import ModelWeights
from sklearn_mpt._likelihoods.columns import Columns
from sklearn_mpt._seeds import seed_from


class FilledForests(BaseEstimator):
    """A forest for each column that reads the others without gaps, as missForest [1]_.

    Trees that read gaps lose at each split the rows that lack its column. Here another
    model fills them in by its expectations, and forests predict what it misses. They
    are trained on entries that are present, beside entries filled in given all others.

    Parameters
    ----------
    filler : CodedModel
    classifier, regressor : RandomForestClassifier, RandomForestRegressor
    max_inputs, max_rows, marginal_weight : as those of `MPTDependencyNetwork`
    random_state : int

    References
    ----------
    .. [1] D. J. Stekhoven and P. Buehlmann, "MissForest - non-parametric missing value
       imputation for mixed-type data", Bioinformatics 28, 2012.
    """

    def __init__(
        self,
        filler: CodedModel,
        classifier: BaseEstimator,
        regressor: BaseEstimator,
        max_inputs: int = 20,
        max_rows: int = 10_000,
        marginal_weight: float = 0.01,
        random_state: int = 0,
    ):
        self.filler = filler
        self.classifier = classifier
        self.regressor = regressor
        self.max_inputs = max_inputs
        self.max_rows = max_rows
        self.marginal_weight = marginal_weight
        self.random_state = random_state

    def set_warm_start(self, **params) -> Self:
        """Let the next `fit` of the filling model start from the last."""
        self.filler.set_warm_start(**params)
        return self

    def fit(self, rows: CodedRows, sample_weight=None) -> Self:
        self.filler.fit(rows, sample_weight)
        filled, seen = self._filled(rows), rows.coded(CODES, False)
        layout, rng = rows.coding.layout, np.random.default_rng(self.random_state)
        self._kinds = list(layout.kinds)
        self._counts = np.maximum(layout.n_categories, 1)
        columns = self._columns
        self._read = most_related(filled, sample_weight, columns, self.max_inputs, rng)
        settings = NetworkSettings(
            self.classifier,
            self.regressor,
            n_masks=1,
            max_rows=self.max_rows,
            mask_rate="uniform",
            marginal_weight=self.marginal_weight,
            calibrate=False,
            names=list(range(len(self._kinds))),
        )
        seeds = np.random.SeedSequence(seed_from(rng)).spawn(len(self._read))
        self._fits = []
        for j, (read, seed) in enumerate(zip(self._read, seeds, strict=True)):
            X = filled.copy()
            X[:, j] = seen[:, j]
            fit = fit_column(X, sample_weight, j, read, columns, settings, seed)
            self._fits.append(fit)
        self._store_conditionals()
        return self

    @property
    def _columns(self):
        return Columns(self._kinds, self._counts.tolist())

    def _store_conditionals(self):
        columns = self._columns
        self._codings = [PredictorCoding(columns, read) for read in self._read]
        self._conditionals = [
            conditional_of(*fit, self.marginal_weight) for fit in self._fits
        ]

    def _filled(self, rows):
        """Return coded rows whose gaps are filled in by expectations, (n, d)."""
        weight = np.ones((1, rows.numbers.shape[1]))
        filled = expected([self.filler], ModelWeights(weight, weight), rows)
        return CodedRows(filled, rows.coding).coded(CODES, False)

    def _inputs(self, X, j):
        coding = self._codings[j]
        read = X[:, coding.columns]
        return PredictorInputs(coding, read, np.ones(read.shape, dtype=bool))

    def conditional_log_prob(self, rows: CodedRows, mask):
        mask = np.broadcast_to(mask, rows.numbers.shape)
        hidden, codes = mask & ~rows.gaps, rows.coded(CODES, False)
        X = self._filled(HiddenRows(rows, mask | rows.gaps))
        log_prob = np.zeros(mask.shape)
        for j in np.flatnonzero(hidden.any(axis=0)):
            entries = hidden[:, j]
            log_prob[entries, j] = self._conditionals[j].log_prob(
                self._inputs(X[entries], j), codes[entries, j]
            )
        return rows.as_densities(log_prob, mask, False)

    def expected(self, rows: CodedRows, columns):
        X, gaps, counts = self._filled(rows), rows.gaps, rows.coding.layout.n_categories
        mean, log_probs = X.copy(), {j: np.zeros((len(X), counts[j])) for j in columns}
        for j in np.flatnonzero(gaps.any(axis=0)):
            inputs, conditional = self._inputs(X[gaps[:, j]], j), self._conditionals[j]
            if j in log_probs:
                log_probs[j][gaps[:, j]] = conditional.log_probs(inputs)
            elif not counts[j]:
                mean[gaps[:, j], j] = conditional.mean(inputs)
        transform = rows.coding.transforms[False]
        return transform.shift + transform.scale * mean, list(log_probs.values())

    def draw(self, rows: CodedRows, random_state=None):
        """Return rows without gaps: drawn by the filling model, then column by column.

        Each column is drawn given all others, as in chained equations.
        """
        rng, gaps = np.random.default_rng(random_state), rows.gaps
        drawn = self.filler.draw(rows, random_state=seed_from(rng))
        X = CodedRows(drawn, rows.coding).coded(CODES, False).copy()
        for j in rng.permutation(np.flatnonzero(gaps.any(axis=0))):
            entries = gaps[:, j]
            noise = rng.random((np.count_nonzero(entries), 2))
            X[entries, j] = self._conditionals[j].draw(
                self._inputs(X[entries], j), noise
            )
        return np.where(gaps, rows.coding.decode(X, CODES, False), rows.numbers)

    def __deepcopy__(self, memo):
        """Return a copy that shares the trees, which no method changes."""
        copied = type(self).__new__(type(self))
        vars(copied).update(vars(self))
        copied.filler = copy.deepcopy(self.filler, memo)
        return copied

    def __getstate__(self):
        state = super().__getstate__()
        if "_fits" not in state:
            return state
        fits = [(list(map(packed, forests)), other) for forests, other in self._fits]
        computed = "_codings", "_conditionals"
        state = {name: v for name, v in state.items() if name not in computed}
        return state | {"_fits": fits}

    def __setstate__(self, state):
        super().__setstate__(state)
        if "_fits" in state:
            self._fits = [
                (list(map(unpacked, forests)), other) for forests, other in self._fits
            ]
            self._store_conditionals()
