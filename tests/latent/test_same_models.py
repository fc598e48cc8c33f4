"""Linear models and item response models that are the same end at the same fit."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sklearn_mpt import MPTItemResponse, MPTLinearVAE


def rows(n_levels, has_gaps, seed=0):
    rng = np.random.default_rng(seed)
    z, slopes = rng.normal(size=(800, 1)), rng.uniform(0.6, 2.0, 8)
    responses = z * slopes + rng.logistic(size=(800, 8)) + rng.normal(size=8)
    X = np.digitize(responses, [0.0, 1.0, 2.5][: n_levels - 1]).astype(float)
    if has_gaps:
        X[rng.random(X.shape) < 0.15] = np.nan
    return X


@pytest.mark.parametrize(
    ("likelihood", "name", "n_levels", "has_gaps"),
    [
        ("bernoulli", "2pl", 2, True),
        ("ordinal", "graded", 4, False),
        ("partial_credit", "gpcm", 3, True),
        ("categorical", "nominal", 3, False),
    ],
)
def test_fits_of_the_same_model_are_equal(likelihood, name, n_levels, has_gaps):
    X = rows(n_levels, has_gaps)
    items = MPTItemResponse(name, tol=1e-8).fit(X)
    linear = MPTLinearVAE(
        1, likelihood=likelihood, objective="lml", tol=1e-7, random_state=0
    ).fit(X)
    assert linear.score(X) == pytest.approx(items.score(X), abs=1e-6)
    assert_allclose(linear.score_samples(X), items.score_samples(X), atol=0.01)
