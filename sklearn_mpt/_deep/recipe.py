"""What the training of a deep model takes where its parameters are "auto"."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sklearn_mpt._checks import check_choice, check_int
from sklearn_mpt._deep.early_stopping import Stopping
from sklearn_mpt._deep.nets import ACTIVATIONS
from sklearn_mpt._deep.start import CURLED, LINEAR, SMOOTH, Architecture, Kind

MANY_FEATURES = 256  # images
# Hidden layers of the encoder: images take more of them, and learn faster by them.
WIDTHS, WIDTHS_IF_MANY = (128, 128), (128, 128, 128)
# Points for each row, if n_importance_samples is "auto". Where validation rows set the
# noise variance, points may be more, and rows sharper.
OWN_POINTS, SHARED_POINTS, SHARED_POINTS_IF_TUNED = 16, 4, 8
# Rows of a step: each costs as many products of features as there are rows.
SMALLEST_BATCH, LARGEST_BATCH = 32, 128


class Recipe(NamedTuple):
    """How a deep model is trained.

    starts : kinds of starts, of which the best after a few steps goes on.
    batch_size : rows of a step.
    n_points : points z for each row of a step.
    tunes_noise : whether validation rows set the noise variance.
    turns : whether steps are taken along the axes of gradients.
    stopping : when the losses of validation rows end training.
    """

    starts: tuple[Kind, ...]
    batch_size: int
    n_points: int
    tunes_noise: bool
    turns: bool
    stopping: Stopping


def recipe_for(
    likelihood,
    *,
    n_rows,
    n_features,
    n_validation,
    widths,
    objective,
    batch_size,
    n_points,
):
    """Return the recipe for rows of this kind, and these parameters of the estimator.

    Many features that are not all 0 and 1 are learned faster along the axes of
    gradients, and so steadily that training ends sooner; smaller steps gain nothing
    there. Where such features share one noise variance, masked training lets validation
    rows set it.
    """
    many = n_features >= MANY_FEATURES
    turns = many and likelihood.is_sharp
    n_noises = sum(noise.numel() for noise in likelihood.noises())
    tunes = turns and n_noises == 1 and objective == "mpt" and n_validation > 0
    if batch_size == "auto":
        batch_size = int(np.clip(n_rows // 16, SMALLEST_BATCH, LARGEST_BATCH))
    stopping = Stopping(slows_down=False, by_rows=True) if turns else Stopping()
    return Recipe(
        starts=_starts(many, widths),
        batch_size=batch_size,
        n_points=_n_points(objective, n_points, tunes),
        tunes_noise=tunes,
        turns=turns,
        stopping=stopping,
    )


def _starts(many, widths):
    """Many features use z from any start."""
    if many:
        return (SMOOTH,)
    return (SMOOTH, CURLED, CURLED, LINEAR) if widths else (SMOOTH, LINEAR)


def _n_points(objective, n_points, tunes):
    if objective == "elbo":
        return 1
    if n_points != "auto":
        return n_points
    if objective != "mpt":
        return OWN_POINTS
    return SHARED_POINTS_IF_TUNED if tunes else SHARED_POINTS


def architecture_for(n_features, n_components, hidden_layer_sizes, activation):
    """Return the nets: smooth activations for curves, those with kinks for images."""
    many = n_features >= MANY_FEATURES
    if isinstance(hidden_layer_sizes, str):
        hidden_layer_sizes = WIDTHS_IF_MANY if many else WIDTHS
    if activation == "auto":
        activation = "relu" if many else "silu"
    return Architecture(n_components, tuple(hidden_layer_sizes), activation)


def check_architecture(hidden_layer_sizes, activation):
    """Check the parameters that say what the nets are."""
    check_choice(activation, "activation", ["auto", *ACTIVATIONS])
    sizes = hidden_layer_sizes
    if isinstance(sizes, str):
        check_choice(sizes, "hidden_layer_sizes", ["auto"])
        return
    if not isinstance(sizes, Sequence | np.ndarray):
        raise TypeError(
            "hidden_layer_sizes must be a sequence of ints, such as (128, 128), () for "
            f"linear maps, or 'auto', got {sizes!r}."
        )
    for size in sizes:
        check_int(size, "hidden_layer_sizes")
