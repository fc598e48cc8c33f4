"""Components from which linear models start."""

import numpy as np
import torch

from sklearn_mpt._gaussian.moments import closed_form, gradients_at, moments_of
from sklearn_mpt._latent.sums import varies_in_rows
from sklearn_mpt._numbers import TINY
from sklearn_mpt._optim.weights import SampleWeights

MAX_START = 3.0  # length of the slopes of a location, so that posteriors are resolved


def start_components(X, intercept, n_components, likelihood, weight=None):
    """Return components that nearly give features their observed correlations."""
    # With small weights w_j, the gradients of entries at the intercepts, over the roots
    # s_j of their information, have the correlations s_i w_i' w_j s_j.
    gradients, size, present = gradients_at(likelihood, X, intercept, weight)
    rows = torch.from_numpy(np.where(present, gradients / size, np.nan))
    mean = rows.new_zeros(rows.shape[1])
    moments = moments_of(rows, SampleWeights.from_array(weight, rows).values, mean)
    components = closed_form(moments, n_components, 0)[0] / size
    lengths = np.linalg.norm(components, axis=0)
    components *= np.minimum(1, MAX_START / np.maximum(lengths, TINY))
    return components * varies(X, likelihood)


def varies(X, likelihood):
    """Return 1.0 for locations of features that are not constant, else 0.0."""
    one_if_varies = varies_in_rows(torch.from_numpy(X), is_all=True)
    return likelihood.to_locations(one_if_varies).numpy()
