"""How the nets of a deep model are built and trained where parameters are "auto"."""

from dataclasses import dataclass

import numpy as np

from sklearn_mpt._deep.start import CURVED, LINEAR, STRONGLY_CURVED, StartKind


@dataclass(frozen=True)
class DeepRecipe:
    """How the nets of a deep model are built and trained.

    Attributes
    ----------
    widths : tuple of int
        Of the hidden layers of the encoder; the decoder has them in reverse.
    activation : str
        Of the hidden layers.
    starts : tuple of StartKind
        Kinds of starts; the one that is best after a few steps goes on.
    batch_size : int
        Rows of a step.
    n_samples : int
        Samples of z for each row of a step.
    n_prior_samples : int
        Samples of the prior in each step.
    min_steps : int
        Steps of an epoch, about, over few rows: it passes over them several times,
        before the losses of the validation rows.
    n_validation_samples : int
        Samples of z for each validation row.
    validation_batch_size : int
        Validation rows that share their samples.
    sets_noise : bool
        Whether validation rows set the noise variance after every epoch, if all
        features share one.
    """

    widths: tuple[int, ...]
    activation: str
    starts: tuple[StartKind, ...]
    batch_size: int
    n_samples: int
    n_prior_samples: int
    min_steps: int
    n_validation_samples: int
    validation_batch_size: int
    sets_noise: bool


def recipe_for(
    likelihood,
    *,
    n_rows,
    n_features,
    n_components,
    hidden_layer_sizes="auto",
    activation="auto",
    objective="mpt",
    batch_size="auto",
    n_importance_samples="auto",
    image_features=256,
    batch_sizes=(32, 128),
    most_prior_samples=128,
    min_steps=16,
    n_validation_samples=16,
    validation_batch_size=256,
):
    """Return the recipe for rows of this kind and parameters of the estimator.

    Parameters
    ----------
    likelihood : Likelihood
    n_rows, n_features, n_components : int
    hidden_layer_sizes, activation, objective, batch_size, n_importance_samples
        As in `MPTDeepVAE`.
    image_features : int
        Number of features from which on nets are those that suit images. What they
        gain is in RESULTS.rst, "Deep models: what the recipe consists of".
    batch_sizes : tuple of int
        Smallest and largest number of rows of a step.
    most_prior_samples : int
        Largest number of samples of the prior in a step.
    min_steps, n_validation_samples, validation_batch_size : int
        As the attributes of `DeepRecipe`.
    """
    has_many_features = n_features >= image_features
    has_many_numbers = (
        has_many_features and likelihood.values_of_each(n_features) is None
    )
    sets_noise = has_many_numbers and objective == "mpt"
    if isinstance(hidden_layer_sizes, str):
        hidden_layer_sizes = (128, 128, 128) if has_many_features else (128, 128)
    if activation == "auto":
        activation = "relu" if has_many_features else "silu"
    if batch_size == "auto":
        batch_size = int(np.clip(n_rows // 16, *batch_sizes))
    if objective == "elbo":
        n_importance_samples = 1
    elif n_importance_samples == "auto":
        n_importance_samples = 16 if objective == "iwae" else 4
    starts = (CURVED, STRONGLY_CURVED, STRONGLY_CURVED, LINEAR)
    if not len(hidden_layer_sizes):  # a linear decoder has no curved start
        starts = (CURVED, LINEAR)
    return DeepRecipe(
        widths=tuple(hidden_layer_sizes),
        activation=activation,
        starts=starts,
        batch_size=batch_size,
        n_samples=n_importance_samples,
        # samples of the prior are near the posteriors only in few dimensions
        n_prior_samples=min(most_prior_samples, 1024 // 2**n_components),
        min_steps=min_steps,
        n_validation_samples=n_validation_samples,
        validation_batch_size=validation_batch_size,
        sets_noise=sets_noise,
    )
