"""Pipelines of scikit-learn as models of the rows that they take.

A density estimator after a scaler has log-densities of scaled rows. Those of the rows
themselves have other units: by the change of variables, the logarithm of the derivative
of the transform is added for each feature.
"""

from collections.abc import Mapping

import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from sklearn_mpt._measure.contract import masked_score, measures_of_columns
from sklearn_mpt._measure.rows import as_numbers

# Logarithms of derivatives
FUNCTIONS: Mapping = {
    None: np.zeros_like,
    np.log: lambda X: -np.log(X),
    np.log1p: lambda X: -np.log1p(X),
    np.sqrt: lambda X: -np.log(2 * np.sqrt(X)),
}


def _over_scale(scaler, X):
    return 0.0 if scaler.scale_ is None else -np.log(scaler.scale_)


def _of_power(power, X):
    lambdas_less_one = power.lambdas_ - 1
    if power.method == "box-cox":
        log_derivative = lambdas_less_one * np.log(X)
    else:
        log_derivative = lambdas_less_one * np.sign(X) * np.log1p(np.abs(X))
    if power.standardize:
        log_derivative += _over_scale(power._scaler, X)
    return log_derivative


# Transforms of each feature by itself; subclasses can transform in another way.
LOG_DERIVATIVES = {
    StandardScaler: _over_scale,
    MaxAbsScaler: _over_scale,
    RobustScaler: _over_scale,
    MinMaxScaler: lambda scaler, X: np.log(scaler.scale_),
    PowerTransformer: _of_power,
    FunctionTransformer: lambda transformer, X: FUNCTIONS[transformer.func](X),
}


def resolve_model(model: object) -> object:
    """Return the model that a search or a Pipeline has fitted, in the units of X."""
    if isinstance(model, FrozenEstimator):
        return resolve_model(model.estimator)
    if isinstance(model, BaseEstimator) and hasattr(model, "best_estimator_"):
        return resolve_model(model.best_estimator_)
    if hasattr(model, "__sklearn_is_fitted__"):
        check_is_fitted(model)
    if not isinstance(model, Pipeline):
        return model
    check_pipeline(model)
    if not _transformers(model):
        return resolve_model(model[-1])
    return TextPipeline(model) if _takes_texts(model[-1]) else PipelineModel(model)


def last_step(model: object) -> object:
    """Return the last step of a Pipeline; other models are returned as they are."""
    return model[-1] if isinstance(model, Pipeline) else model


def check_pipeline(model: object) -> None:
    """Refuse a Pipeline, fitted or not, whose transforms have no known derivatives."""
    if isinstance(model, Pipeline) and not _takes_texts(model[-1]):
        for name, transformer in _transformers(model):
            is_known = type(transformer) in LOG_DERIVATIVES
            if type(transformer) is FunctionTransformer:
                is_known = transformer.func in FUNCTIONS and not transformer.kw_args
            if not is_known or getattr(transformer, "clip", False):
                raise TypeError(
                    f"The step {name!r} of a Pipeline, {transformer!r}, has no known "
                    "derivative, so densities after it cannot be given in the units "
                    "of X. Known are StandardScaler, MinMaxScaler without clip, "
                    "MaxAbsScaler, RobustScaler, PowerTransformer, and "
                    "FunctionTransformer of np.log, np.log1p or np.sqrt. Transform X "
                    "before, and compare models of the same transformed rows."
                )


def _takes_texts(model):
    """Return whether a model scores texts, whose probabilities have no units."""
    return isinstance(model, BaseEstimator) and get_tags(model).input_tags.string


def _transformers(pipeline):
    """Return names and transformers of the steps before the last one that do any."""
    return [
        (name, step)
        for name, step in pipeline.steps[:-1]
        if step is not None and step != "passthrough"
    ]


def _last_has(name):
    return available_if(lambda self: hasattr(self.model, name))


def _of_transformed(name):
    """Return the method of the last step of that name, for what its transforms take."""

    @_last_has(name)
    def method(self, X, *args, **options):
        for _, transformer in self.transformers:
            X = transformer.transform(X)
        return getattr(self.model, name)(X, *args, **options)

    return method


class FittedPipeline:
    """Base of fitted Pipelines as models of what their first step takes."""

    def __init__(self, pipeline: Pipeline):
        self.pipeline = pipeline
        self.transformers = _transformers(pipeline)
        self.model = resolve_model(pipeline[-1])

    def __repr__(self):
        return repr(self.pipeline)

    def __sklearn_tags__(self):
        return get_tags(self.model)


class TextPipeline(FittedPipeline):
    """A fitted Pipeline as a model of the texts, or whatever it takes instead.

    Probabilities of texts have no units, so its transforms may be any.
    """

    @_last_has("_kind_of_scores")
    def _kind_of_scores(self):
        return self.model._kind_of_scores()

    score_samples = _of_transformed("score_samples")
    conditional_log_prob = _of_transformed("conditional_log_prob")
    _masked_score_curve = _of_transformed("_masked_score_curve")
    _lml_along_orders = _of_transformed("_lml_along_orders")
    _token_contributions = _of_transformed("_token_contributions")
    _score_samples_on_masks = _of_transformed("_score_samples_on_masks")


class PipelineModel(FittedPipeline):
    """A fitted Pipeline as a masked model and a density of the rows that it takes.

    Its transforms have known derivatives. It has those methods of the contract that the
    last step has.
    """

    def __init__(self, pipeline):
        super().__init__(pipeline)
        self.random_state = getattr(self.model, "random_state", None)
        self.n_jobs = getattr(self.model, "n_jobs", None)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(pipeline, name):
                setattr(self, name, getattr(pipeline, name))

    @_last_has("_measures_of_columns")
    def _measures_of_columns(self):
        return self.model._measures_of_columns()

    def _transform(self, X):
        """Return the rows after all transforms, and the logarithms of derivatives."""
        log_derivative = np.zeros(np.shape(X))
        for _, transformer in self.transformers:
            numbers = as_numbers(X) if is_into_dataframe(X) else X
            numbers = np.asarray(numbers, dtype=np.float64)
            with np.errstate(divide="ignore", invalid="ignore"):
                log_derivative += LOG_DERIVATIVES[type(transformer)](
                    transformer, numbers
                )
            log_derivative[np.isnan(numbers)] = 0.0
            X = transformer.transform(X)
        measures = measures_of_columns(self.model, len(log_derivative.T))
        # probabilities have no units
        log_derivative[:, np.array(measures) == "probability"] = 0.0
        return X, log_derivative

    @_last_has("score_samples")
    def score_samples(self, X, **options):
        X, log_derivative = self._transform(X)
        scores = self.model.score_samples(X, **options)
        if isinstance(scores, tuple):  # with standard errors
            return scores[0] + log_derivative.sum(axis=1), *scores[1:]
        return np.asarray(scores) + log_derivative.sum(axis=1)

    @_last_has("joint_log_prob")
    def joint_log_prob(self, X):
        X, log_derivative = self._transform(X)
        return self.model.joint_log_prob(X) + log_derivative.sum()

    @_last_has("conditional_log_prob")
    def conditional_log_prob(self, X, mask):
        X, log_derivative = self._transform(X)
        log_prob = np.asarray(self.model.conditional_log_prob(X, mask))
        return log_prob + np.where(mask, log_derivative, 0.0)

    @_last_has("mean_masked_scores")
    def mean_masked_scores(self, X, masks):
        X, log_derivative = self._transform(X)
        scores = np.asarray(self.model.mean_masked_scores(X, masks))
        mean = np.where(masks, log_derivative.mean(axis=0), 0.0)
        return scores + masked_score(mean, masks)

    @_last_has("chain_log_prob")
    def chain_log_prob(self, X, orders):
        X, log_derivative = self._transform(X)
        return np.asarray(self.model.chain_log_prob(X, orders)) + log_derivative
