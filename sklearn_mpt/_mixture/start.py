"""Starting values of mixtures: moments, features to cluster, arrays of the user."""

import numpy as np
import torch

from sklearn_mpt._checks import check_floats
from sklearn_mpt._mixture.density import MixtureDensity
from sklearn_mpt._mixture.training import statistics_of_shares
from sklearn_mpt._numbers import TINY


def statistics(classes, layout, rows, share):
    """Add up the statistics of all rows for given responsibilities.

    share : responsibilities times sample weights, (n, K). Rows with the same gaps must
    follow each other.
    """
    density = MixtureDensity(classes, layout)
    parts = density.blocks(~rows.isnan())
    first, *others = (
        statistics_of_shares(density, rows[part], share[part], 1 / float(share.sum()))
        for part in parts
    )
    for other in others:
        first = first + other
    return first


def features_of(X, layout, variance):
    """Return the features by which rows are clustered, with means in place of gaps.

    If all columns are Gaussian they are not scaled, as in `GaussianMixture`. Otherwise
    Gaussian columns are divided by their standard deviations.
    """
    columns = [X[:, layout.gaussian.numpy()]]
    if layout.likelihood is not None:
        columns = [columns[0] / np.sqrt(np.maximum(variance, TINY))]
        others = torch.from_numpy(X[:, layout.others.numpy()].astype(float))
        read = layout.likelihood.inputs(torch.nan_to_num(others))
        is_missing = layout.likelihood.to_locations(others.isnan().double()) > 0
        columns.append(torch.where(is_missing, torch.nan, read).numpy())
    features = np.concatenate(columns, axis=1)
    return np.where(np.isnan(features), np.nanmean(features, axis=0), features)


def given_array(value, name, shape):
    """Check an array that the user gives to start from; None stays None."""
    if value is None:
        return None
    array = check_floats(value, name)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite.")
    return array
