"""Independent seeds, the same for any number of workers."""

from __future__ import annotations

from numbers import Integral

import numpy as np
from sklearn.utils import check_random_state

RandomState = int | np.random.RandomState | None
N_SEEDS, N_TORCH_SEEDS = 2**31, 2**63  # seeds that scikit-learn and torch take


def spawn_seeds(random_state, n_seeds):
    """Derive independent seeds from a scikit-learn random state."""
    entropy = _generator(random_state).randint(0, 2**32, 4, dtype=np.uint32)
    return np.random.SeedSequence(entropy.tolist()).spawn(n_seeds)


def check_seed(random_state):
    """Refuse what is no random state, without drawing from it."""
    _generator(random_state)


def draw_seed(random_state):
    """Draw one integer from a scikit-learn random state."""
    return int(_generator(random_state).randint(N_SEEDS - 1))


def seed_from(rng, n_seeds=N_SEEDS):
    """Draw a seed, of `n_seeds`, from a generator of NumPy."""
    return int(rng.integers(n_seeds))


def _generator(random_state):
    is_int = isinstance(random_state, Integral)
    if isinstance(random_state, bool) or (is_int and not 0 <= random_state < 2**32):
        raise _refusal(random_state)
    try:
        return check_random_state(random_state)
    except (ValueError, TypeError) as error:
        raise _refusal(random_state) from error


def _refusal(random_state):
    return ValueError(
        "random_state must be an int in 0..2**32 - 1, a numpy.random.RandomState or "
        f"None, got {random_state!r}."
    )
