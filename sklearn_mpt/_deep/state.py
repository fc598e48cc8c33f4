"""Between the fitted arrays of a deep model and its torch modules.

Modules work on standardised rows; the decoder's arrays are in the units of the rows.
"""

import numpy as np

from sklearn_mpt._deep.encoder import Encoder
from sklearn_mpt._deep.layers import Layers
from sklearn_mpt._deep.model import BernoulliLikelihood, DeepModel, GaussianLikelihood


def model_of(estimator):
    """Return the fitted model, in double precision."""
    as_tensor, scale = estimator._tensor, estimator._scale
    coefs, intercepts = list(estimator.decoder_coefs_), estimator.decoder_intercepts_
    coefs[-1] = coefs[-1] / scale
    intercepts = [*intercepts[:-1], (intercepts[-1] - estimator._shift) / scale]
    encoder = Encoder(
        as_tensor(estimator.encoder_information_),
        as_tensor(estimator.encoder_precision_),
        _layers(estimator, estimator.encoder_coefs_, estimator.encoder_intercepts_),
    )
    likelihood = BernoulliLikelihood()
    if estimator.likelihood == "gaussian":
        variance = estimator.noise_variance_ / scale**2
        likelihood = GaussianLikelihood(as_tensor(np.asarray(variance)))
    return DeepModel(_layers(estimator, coefs, intercepts), encoder, likelihood)


def _layers(estimator, coefs, intercepts):
    """A net of the arrays, or None if there are none."""
    if not coefs:
        return None
    coefs, intercepts = (
        [estimator._tensor(array) for array in arrays] for arrays in (coefs, intercepts)
    )
    return Layers(coefs, intercepts, estimator.activation)


def attributes_of(model, shift, scale):
    """Return the fitted arrays of a model."""
    coefs, intercepts = _arrays(model.decoder)
    coefs[-1] *= scale
    intercepts[-1] = scale * intercepts[-1] + shift
    encoder_coefs, encoder_intercepts = _arrays(model.encoder.net)
    fitted = {
        "decoder_coefs_": coefs,
        "decoder_intercepts_": intercepts,
        "encoder_coefs_": encoder_coefs,
        "encoder_intercepts_": encoder_intercepts,
        "encoder_information_": _array(model.encoder.information),
        "encoder_precision_": _array(model.encoder.precision),
    }
    noise_variance = getattr(model.likelihood, "noise_variance", None)
    if noise_variance is not None:
        fitted["noise_variance_"] = float(_array(noise_variance)) * scale**2
    return fitted


def _arrays(layers):
    if layers is None:
        return [], []
    return (
        [_array(coef) for coef in layers.coefs],
        [_array(intercept) for intercept in layers.intercepts],
    )


def _array(tensor):
    return tensor.detach().double().cpu().numpy().copy()
