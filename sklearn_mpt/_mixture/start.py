"""Starting values of mixtures: moments, features to cluster, arrays of the user."""

from functools import reduce
from operator import add

import numpy as np
import torch

from sklearn_mpt._checks import check_finite, check_floats
from sklearn_mpt._mixture.density import MixtureDensity
from sklearn_mpt._mixture.em import (
    location_derivatives_of,
    m_step,
    scoring_step,
    statistics_of_responsibilities,
)


def fitted_to_shares(
    components, share, rows, step_params, *, n_gaussian_steps=3, n_location_steps=10
):
    """Return components that fit given responsibilities, by a few M-steps.

    share : responsibilities times sample weights, (n, K). rows : (n, d), NaN where
    missing; those with the same gaps must follow each other. step_params : MStepParams.
    n_gaussian_steps : number of M-steps of Gaussian columns with gaps.
    n_location_steps : that of other columns, whose steps are shorter.
    """
    layout, n_rows = step_params.layout, float(share.sum())
    parts = MixtureDensity(components, layout).parts(~rows.isnan())
    has_gaps = bool(rows[:, layout.gaussian].isnan().any())
    n_steps = n_gaussian_steps if has_gaps else 1  # further steps have the same result
    for _ in range(n_steps):
        density = MixtureDensity(components, layout)
        statistics = _sum(
            statistics_of_responsibilities(
                density, rows[part], share[part], 1 / n_rows, patterns
            )
            for part, patterns in parts
        )
        after = m_step(components, statistics, n_rows, 1.0, step_params, False)
        if after is None:
            return components
        components = after
    n_steps = 0 if layout.likelihood is None else n_location_steps - n_steps
    for _ in range(n_steps):
        density = MixtureDensity(components, layout)
        derivatives = _sum(
            torch.stack(
                location_derivatives_of(density, rows[part], share[part], 1 / n_rows)
            )
            for part, _ in parts
        )
        locations = scoring_step(components.locations, *derivatives, n_rows)
        components = components._replace(locations=locations)
    return components


def _sum(parts):
    return reduce(add, parts)


def features_of(X, layout, scale):
    """Return the features by which rows are clustered, with means in place of gaps.

    If all columns are Gaussian they are not scaled, as in `GaussianMixture`. Otherwise
    Gaussian columns are divided by `scale`, (g,).
    """
    columns = [X[:, layout.gaussian.numpy()]]
    if layout.likelihood is not None:
        columns = [columns[0] / scale]
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
    check_finite(array, name)
    return array
