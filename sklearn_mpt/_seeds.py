"""Independent random numbers, whatever the number of workers."""

import numpy as np
from sklearn.utils import check_random_state

RandomState = int | np.random.RandomState | None


def spawn_seeds(random_state, n_seeds):
    """Derive independent seeds from a scikit-learn random state."""
    entropy = check_random_state(random_state).randint(0, 2**32, 4, dtype=np.uint32)
    return np.random.SeedSequence(entropy.tolist()).spawn(n_seeds)


def draw_seed(random_state):
    """Draw one integer from a scikit-learn random state."""
    return int(check_random_state(random_state).randint(2**31 - 1))
