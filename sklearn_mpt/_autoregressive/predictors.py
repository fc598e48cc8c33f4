"""What predictors of scikit-learn give: probabilities, or means and variances.

A forest gives the mean and the variance of a leaf for each of its trees, a regressor
with ``predict(X, return_std=True)`` a mean and a variance, and any other a mean.
"""

import inspect
from contextlib import contextmanager

import numpy as np
from sklearn.base import clone
from sklearn.utils import get_tags
from sklearn.utils.validation import has_fit_parameter

from sklearn_mpt._checks import seed_from
from sklearn_mpt._messages import plain

N_TREES, LEAF_ROWS = 60, 3  # of a forest; the documented defaults of the estimator
# criteria for which the impurity of a leaf is the variance of its rows
SQUARED_CRITERIA = "squared_error", "friedman_mse"
# Distance of a sum of probabilities from 1 that is rounding, in half precision too.
PROBABILITY_TOL = 1e-2


def _forests():
    """Return the kinds of forests: classifiers, and regressors."""
    # here, as the import takes half as long as that of all else
    from sklearn import ensemble

    classifiers = ensemble.RandomForestClassifier, ensemble.ExtraTreesClassifier
    regressors = ensemble.RandomForestRegressor, ensemble.ExtraTreesRegressor
    return classifiers, regressors


def default_forest(is_classifier):
    """Return an unfitted forest."""
    (classifier, _), (regressor, _) = _forests()
    params = {"n_estimators": N_TREES, "min_samples_leaf": LEAF_ROWS}
    if is_classifier:
        return classifier(max_features="sqrt", **params)
    return regressor(max_features=0.5, **params)


def prepared(predictor, n_rows, rng):
    """Return a clone whose parameters `random_state` that are None have seeds.

    Each tree of a forest draws as many copies as there are rows, so that few leaves
    hold copies of one row only.
    """
    predictor = clone(predictor)
    params = predictor.get_params(deep=True)
    if is_forest(predictor) and predictor.bootstrap:
        if predictor.max_samples is None:
            predictor.set_params(max_samples=n_rows)
    names = [n for n in params if n == "random_state" or n.endswith("__random_state")]
    seeds = {n: seed_from(rng) for n in sorted(names) if params[n] is None}
    return predictor.set_params(**seeds) if seeds else predictor


def last_step(predictor):
    """Return the predictor at the end of pipelines, and the prefix of its parameters"""
    prefix = ""
    while hasattr(predictor, "steps"):
        name, predictor = predictor.steps[-1]
        prefix += f"{name}__"
    return predictor, prefix


def fit_weighted(predictor, Z, y, weight):
    """Fit a predictor to rows with weights; None is 1 for each."""
    if weight is None:
        return predictor.fit(Z, y)
    last, prefix = last_step(predictor)
    if not _takes_weights(last):
        raise ValueError("its fit takes no sample_weight, and X has weights")
    return predictor.fit(Z, y, **{f"{prefix}sample_weight": weight})


def _takes_weights(predictor):
    """Return whether ``fit`` takes `sample_weight`, or any parameter to pass it on."""
    params = inspect.signature(predictor.fit).parameters.values()
    passes_on = any(param.kind is param.VAR_KEYWORD for param in params)
    return passes_on or has_fit_parameter(predictor, "sample_weight")


def takes_gaps(predictor):
    """Return whether a predictor takes NaN, by its tags; without tags it does not."""
    has_tags = hasattr(predictor, "__sklearn_tags__")
    return has_tags and get_tags(predictor).input_tags.allow_nan


def is_forest(predictor):
    """Return whether a predictor is a forest of scikit-learn."""
    return isinstance(predictor, sum(_forests(), ()))


def has_leaves(predictor):
    """Return whether a regressor is a forest with a mean and a variance in leaves."""
    _, regressors = _forests()
    return isinstance(predictor, regressors) and predictor.criterion in SQUARED_CRITERIA


def is_classifying_forest(predictor):
    """Return whether a predictor is a forest of classification trees."""
    classifiers, _ = _forests()
    return isinstance(predictor, classifiers)


def has_std(predictor):
    """Return whether ``predict`` of a regressor returns standard deviations."""
    last, _ = last_step(predictor)
    return "return_std" in inspect.signature(last.predict).parameters


def with_std(predictor, Z):
    """Return means and variances by ``return_std``; (n, 1) each."""
    answer = predictor.predict(Z, return_std=True)
    mean, std = (_checked("predict", array, (len(Z), 1)) for array in answer)
    return mean, std**2


def means(predictor, Z):
    """Return what ``predict`` of a regressor returns; (n, 1)."""
    return _checked("predict", predictor.predict(Z), (len(Z), 1))


def probabilities(classifier, Z, n_categories):
    """Return the probabilities of the codes 0..C-1; 0 for codes it has not seen."""
    codes = np.asarray(classifier.classes_).astype(int)
    prob = np.zeros((len(Z), n_categories))
    predicted = classifier.predict_proba(Z)
    prob[:, codes] = _checked("predict_proba", predicted, (len(Z), len(codes)))
    total = prob.sum(axis=1, keepdims=True)
    if (prob < 0).any() or np.abs(total - 1).max(initial=0) > PROBABILITY_TOL:
        raise ValueError(
            "predict_proba must return probabilities that add up to 1, got "
            f"{prob[np.abs(total - 1).argmax(), codes].tolist()}"
        )
    return prob / total


def _checked(method, returned, shape):
    """Return what a method of a predictor returned as numbers of a shape."""
    returned = np.asarray(returned, dtype=np.float64)
    if returned.size != np.prod(shape):
        raise ValueError(f"{method} returned shape {returned.shape}, expected {shape}")
    returned = returned.reshape(shape)
    n_bad = (~np.isfinite(returned)).any(axis=1).sum()
    if n_bad:
        raise ValueError(
            f"{method} must return finite numbers, got others in {n_bad} of "
            f"{shape[0]} rows"
        )
    return returned


def mean_of_trees(forest, Z, counts, n_categories):
    """Return the mean probabilities of the codes 0..C-1 by the trees that count."""
    codes = forest.classes_.astype(int)
    total, prob = np.zeros((len(Z), len(codes))), np.zeros((len(Z), n_categories))
    Z = Z.astype(np.float32)  # as in predict_proba of forests
    for tree, count in zip(forest.estimators_, counts.T, strict=True):
        if count.any():
            total[count] += tree.predict_proba(Z[count])
    prob[:, codes] = total / counts.sum(axis=1, keepdims=True)
    return prob


@contextmanager
def named(predictors, column, method):
    """Name the predictors and the column in errors that the block raises."""
    try:
        with np.errstate(all="warn", under="ignore"):
            yield
    except Exception as error:  # the predictor is the user's
        names = " or ".join(map(repr, predictors))
        raise ValueError(
            f"{names} failed to {method} column {plain(column)!r}: "
            f"{type(error).__name__}: {error}"
        ) from error
