"""Between the fitted arrays of a deep model and its torch module.

The module works on standardised rows; the decoder's arrays are in the units of the
rows.
"""

from sklearn_mpt._deep.encoder import Encoder
from sklearn_mpt._deep.layers import Layers
from sklearn_mpt._deep.model import DeepModule
from sklearn_mpt._latent.model import as_tensor


def module_of(fitted, activation, likelihood, device):
    """Return the fitted module, in double precision.

    activation : name of that of the nets; likelihood : whatever its parameters are.
    """
    shift, scale = fitted["_shift"], fitted["_scale"]
    *coefs, last_coef = fitted["decoder_coefs_"]
    *intercepts, last = fitted["decoder_intercepts_"]
    decoder = (
        [*coefs, last_coef / scale],
        [*intercepts, (last - shift) / scale],
    )
    encoder = fitted["encoder_coefs_"], fitted["encoder_intercepts_"]
    return DeepModule(
        _layers(*decoder, activation, device),
        Encoder(
            as_tensor(fitted["encoder_information_"], device),
            as_tensor(fitted["encoder_precision_"], device),
            _layers(*encoder, activation, device),
        ),
        likelihood.from_attributes(fitted, scale).to(device),
    )


def _layers(coefs, intercepts, activation, device):
    """A net of the arrays, or None if there are none."""
    if not coefs:
        return None
    coefs, intercepts = (
        [as_tensor(array, device) for array in arrays] for arrays in (coefs, intercepts)
    )
    return Layers(coefs, intercepts, activation)


def attributes_of(module, shift, scale):
    """Return the fitted arrays of a module."""
    coefs, intercepts = _arrays(module.decoder)
    coefs[-1] *= scale
    intercepts[-1] = scale * intercepts[-1] + shift
    encoder_coefs, encoder_intercepts = _arrays(module.encoder.net)
    return module.likelihood.attributes(scale) | {
        "decoder_coefs_": coefs,
        "decoder_intercepts_": intercepts,
        "encoder_coefs_": encoder_coefs,
        "encoder_intercepts_": encoder_intercepts,
        "encoder_information_": _array(module.encoder.information),
        "encoder_precision_": _array(module.encoder.precision),
    }


def _arrays(layers):
    if layers is None:
        return [], []
    return (
        [_array(coef) for coef in layers.coefs],
        [_array(intercept) for intercept in layers.intercepts],
    )


def _array(tensor):
    return tensor.detach().double().cpu().numpy().copy()
