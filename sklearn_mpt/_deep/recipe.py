"""How the nets of a deep model are built and trained where parameters are "auto"."""

from typing import NamedTuple

import numpy as np

from sklearn_mpt._deep.start import CURVED, LINEAR, StartKind

# From so many features on, nets are those that suit images. What they gain is in
# benchmarks/RESULTS.rst, "Deep models: what the recipe consists of".
IMAGE_FEATURES = 256


class DeepRecipe(NamedTuple):
    """How the nets of a deep model are built and trained."""

    widths: tuple[int, ...]  # of the encoder's hidden layers; the decoder's in reverse
    activation: str
    starts: tuple[StartKind, ...]  # the best one after a few steps goes on
    batch_size: int
    n_samples: int  # samples of z for each row of a step
    n_prior_samples: int  # of the prior, in each step
    # whether validation rows set a noise variance of all features after every epoch
    sets_noise: bool


def recipe_for(params, likelihood, n_rows, n_features):
    """Return the recipe for rows of this kind."""
    is_image, objective = n_features >= IMAGE_FEATURES, params.objective
    has_many_numbers = is_image and likelihood.values_of_each(n_features) is None
    widths, batch_size = params.hidden_layer_sizes, params.batch_size
    if isinstance(widths, str):
        widths = (128, 128, 128) if is_image else (128, 128)
    activation = params.activation
    if activation == "auto":
        activation = "relu" if is_image else "silu"
    n_samples = params.n_importance_samples
    if objective == "elbo":
        n_samples = 1
    elif n_samples == "auto":
        n_samples = 16 if objective == "iwae" else 4
    return DeepRecipe(
        widths=tuple(widths),
        activation=activation,
        # starts of a linear decoder are no more curved than each other
        starts=(CURVED, CURVED, LINEAR) if len(widths) else (CURVED, LINEAR),
        batch_size=int(np.clip(n_rows // 16, 32, 128))
        if batch_size == "auto"
        else batch_size,
        n_samples=n_samples,
        # samples of the prior are near the posteriors only in few dimensions
        n_prior_samples=min(128, 1024 // 2**params.n_components),
        sets_noise=has_many_numbers and objective == "mpt",
    )
