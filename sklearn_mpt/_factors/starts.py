"""Where factor analysis starts: principal components, from moments or rows."""

import numpy as np
from scipy.linalg import eigh

from sklearn_mpt._factors.rotation import principal_axes


def closed_form(moments, n_components, noise_floor):
    """Return the maximum likelihood solution for second moments (Tipping, Bishop).

    moments : Moments. If their covariance is a product of the rows, which are fewer
    than the features, the eigenvectors lie in the span of the rows.
    """
    factors = [factor.cpu().numpy() for factor in moments.covariance_factors]
    n_features = len(moments.mean)
    values, vectors = eigh(factors[0] if len(factors) == 1 else factors[1] @ factors[0])
    values, vectors = values[::-1], vectors[:, ::-1]
    n_rest = n_features - n_components
    rest = values[n_components:].sum() / n_rest if n_rest > 0 else values[-1]
    noise_variance = max(float(rest), noise_floor)
    values, vectors = values[:n_components], vectors[:, :n_components]
    lengths = np.sqrt(np.maximum(values - noise_variance, 0))
    if len(factors) == 2:
        with_length = lengths > 0
        lengths[with_length] /= np.sqrt(values[with_length])
        vectors = factors[0] @ vectors
    components = np.zeros((n_components, n_features))
    components[: len(lengths)] = (vectors * lengths).T
    return {
        "components_": principal_axes(components),
        "mean_": moments.mean.cpu().numpy(),
        "noise_variance_": noise_variance,
    }
