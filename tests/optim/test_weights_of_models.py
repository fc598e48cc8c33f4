"""Weights of models that are mixed."""

import numpy as np
from numpy.testing import assert_allclose
from scipy.special import logsumexp

from sklearn_mpt._optim.weights import stacking_weights


def test_weights_of_models_maximise_the_log_probability_of_hidden_entries():
    """With one additional entry that only this model explains."""
    log_probs = np.random.default_rng(0).normal(size=(2, 40))
    share = np.linspace(0.001, 0.999, 999)
    value = [logsumexp(log_probs.T, b=[w, 1 - w], axis=1).sum() for w in share]
    best = share[np.argmax(value + np.log(share) + np.log(1 - share))]
    assert_allclose(stacking_weights(log_probs)[0], best, atol=0.003)


def test_weights_that_differ_between_ends_are_fitted_as_they_are_mixed():
    """Entries between the ends have parts of the weights of both."""
    log_probs = np.random.default_rng(0).normal(size=(2, 200))
    place = np.linspace(0, 1, 200)
    log_probs[0] += 2 * place
    ends = np.stack([1 - place, place])
    share = np.linspace(0.02, 0.98, 97)
    first, last = (end[..., None] for end in np.meshgrid(share, share))
    of_entries = first * ends[0] + last * ends[1]
    each = np.stack([of_entries, 1 - of_entries])
    value = logsumexp(log_probs[:, None, None], b=each, axis=0).sum(axis=-1)
    value += sum(np.log(w * (1 - w))[..., 0] for w in (first, last))
    i, j = np.unravel_index(value.argmax(), value.shape)
    weights = stacking_weights(log_probs, 1.0, ends)
    assert_allclose(weights.sum(axis=1), 1)
    assert_allclose(weights[:, 0], [share[j], share[i]], atol=0.02)
