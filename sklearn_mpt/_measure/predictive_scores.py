"""Log predictive probabilities of rows, or of targets given rows, by any estimator."""

import inspect

import numpy as np
from scipy import stats
from sklearn.utils import get_tags

from sklearn_mpt._measure.pipelines import check_pipeline, last_step, resolve_model


def predictive_score(estimator, y):
    """Return the function that scores rows, or targets y, by a fitted estimator."""
    kind, is_joint = _kind(estimator), hasattr(estimator, "joint_log_prob")
    if y is None or kind == "density_estimator":
        is_joint = hasattr(last_step(estimator), "joint_log_prob")
        has_scores = is_joint or hasattr(estimator, "score_samples")
        if has_scores and kind != "outlier_detector":
            check_pipeline(estimator)
            return _log_density
        needed = "a density estimator with score_samples, if y is None"
    elif kind == "classifier":
        if is_joint or hasattr(estimator, "predict_log_proba"):
            return log_proba
        needed = "a classifier with predict_log_proba"
    else:
        if is_joint:
            return _log_normal
        if _predicts_std(estimator):
            _check_noise(last_step(estimator))
            return _log_normal
        needed = "a regressor with predict(X, return_std=True)"
    raise TypeError(f"estimator must be {needed}, got {estimator!r}.")


def _check_noise(regressor):
    """Refuse noise that predictions leave out: they are not those of targets."""
    from sklearn.gaussian_process import GaussianProcessRegressor

    if not isinstance(regressor, GaussianProcessRegressor):
        return
    if not np.array_equal(regressor.alpha, GaussianProcessRegressor().alpha):
        raise ValueError(
            f"alpha={regressor.alpha!r} is noise that the predictions of a "
            "GaussianProcessRegressor leave out, so they are not those of y: add a "
            "WhiteKernel to its kernel, and leave alpha at its default."
        )


def _kind(estimator):
    has_tags = hasattr(estimator, "__sklearn_tags__")
    return get_tags(estimator).estimator_type if has_tags else None


def _predicts_std(estimator):
    predict = getattr(estimator, "predict", None)
    return predict is not None and _takes(predict, "return_std", by_keywords=True)


def _takes(method, name, by_keywords=False):
    """Return whether a method has an argument, or if `by_keywords` takes any."""
    parameters = inspect.signature(method).parameters.values()
    return any(
        p.name == name or (by_keywords and p.kind is inspect.Parameter.VAR_KEYWORD)
        for p in parameters
    )


def _log_density(model, X, y):
    model = resolve_model(model)
    if hasattr(model, "joint_log_prob"):
        return model.joint_log_prob(X)
    return model.score_samples(X)


def log_proba(model, X, y):
    if hasattr(model, "joint_log_prob"):
        return model.joint_log_prob(X, y)
    log_proba = np.asarray(model.predict_log_proba(X))
    column = {label: k for k, label in enumerate(model.classes_.tolist())}
    unseen = [label for label in np.asarray(y).tolist() if label not in column]
    if unseen:
        raise ValueError(
            f"The class {unseen[0]!r} is not among the rows seen before it, and the "
            "classifier gives it no probability: raise n_start."
        )
    columns = [column[label] for label in np.asarray(y).tolist()]
    return log_proba[np.arange(len(columns)), columns]


def _log_normal(model, X, y):
    if hasattr(model, "joint_log_prob"):
        return model.joint_log_prob(X, y)
    y = np.asarray(y)
    if len(y) > 1 and _takes(last_step(model).predict, "return_cov"):
        return _log_joint_normal(y, *_predict(model, X, "return_cov"))
    return stats.norm.logpdf(y, *_predict(model, X, "return_std"))


def _predict(model, X, option):
    """Return the means and standard deviations, or covariances, of predictions."""
    try:
        predicted = model.predict(X, **{option: True})
    except Exception as error:  # of the user's model
        error.add_note(f"It was raised by predict(X, {option}=True).")
        raise
    if not isinstance(predicted, tuple) or len(predicted) != 2:
        raise TypeError(
            f"predict(X, {option}=True) must return a tuple of two arrays, but that of "
            f"{last_step(model)!r} returned a {type(predicted).__name__}: it may take "
            "any argument and ignore this one."
        )
    return predicted


def _log_joint_normal(y, mean, covariance):
    try:
        joint = stats.Covariance.from_cholesky(np.linalg.cholesky(covariance))
    except np.linalg.LinAlgError as error:
        raise ValueError(
            f"The covariance matrix of the predictions of {len(y)} rows, by predict(X, "
            "return_cov=True), is not positive definite: rows of a block are predicted "
            "without noise. Leave steps=None, or give the estimator noise, such as a "
            "WhiteKernel of a Gaussian process."
        ) from error
    return stats.multivariate_normal.logpdf(y, mean, joint)
