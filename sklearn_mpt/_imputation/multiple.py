"""Fits to rows drawn with replacement, from a fitted estimator on."""

import copy
import warnings

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import has_fit_parameter

from sklearn_mpt._measure.rows import take


def bootstrap_fits(estimator, X, rng, weight=None):
    """Return a copy of a fitted estimator, fitted to rows drawn with replacement."""
    # weight : (n,): as many rows are drawn as the sum, rounded. With `warm_start`
    # training starts from the existing fit.
    n_rows = np.shape(X)[0]
    if weight is None:
        drawn = rng.integers(n_rows, size=n_rows)
    else:
        n_drawn = int(np.floor(weight.sum() + 0.5))
        drawn = rng.choice(n_rows, size=n_drawn, p=weight / weight.sum())
    model = trained_on(estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if has_fit_parameter(model, "sample_weight"):
            weight = np.bincount(drawn, minlength=n_rows).astype(float)
            return model.fit(X, sample_weight=weight)
        return model.fit(take(X, np.sort(drawn)))


def trained_on(estimator):
    """Return a copy of a fitted estimator whose `fit` goes on, if its class can."""
    if "warm_start" in estimator.get_params():
        return copy.deepcopy(estimator).set_params(warm_start=True)
    return clone(estimator)
