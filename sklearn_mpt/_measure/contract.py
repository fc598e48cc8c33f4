"""What a masked model's log-probabilities add up to, for any masked model.

A masked model is an object with ``conditional_log_prob(X, mask)``, or that function
itself. Nothing here asks for more.
"""

import numpy as np


def masked_score(log_prob, mask):
    """Average the log-probabilities of the hidden features, per row.

    Dividing by the size of the mask, missing entries included, makes a missing
    feature a null player: the scores of all sizes still add up to log p(observed).

    Parameters
    ----------
    log_prob : ndarray or Tensor of shape (n_samples, n_features)
        Log-probabilities of hidden entries, 0 elsewhere.
    mask : ndarray or Tensor of shape (n_features,) or (n_samples, n_features)
        True where a feature is hidden.

    Returns
    -------
    ndarray or Tensor of shape (n_samples,)
    """
    return log_prob.sum(-1) / mask.sum(-1)


def conditional_log_prob_of(model):
    """Return the function ``(X, mask) -> log_prob`` of a masked model."""
    conditional = getattr(model, "conditional_log_prob", model)
    if not callable(conditional):
        raise TypeError(
            "estimator must have a method conditional_log_prob(X, mask) or be such a "
            f"function, got {model!r}."
        )
    return conditional


def mean_masked_scores(model, X, masks):
    """Average the masked score over rows, for each mask; shape (n_masks,)."""
    if hasattr(model, "mean_masked_scores"):
        return model.mean_masked_scores(X, masks)
    return loop_over_masks(conditional_log_prob_of(model), X, masks)


def loop_over_masks(conditional, X, masks):
    """Compute `mean_masked_scores` with one call of the conditional per mask."""
    return np.array([_mean_score(conditional(X, mask), mask, X) for mask in masks])


def _mean_score(log_prob, mask, X):
    if np.shape(log_prob) != np.shape(X):
        raise ValueError(
            "conditional_log_prob must return one value per entry of X, of shape "
            f"{np.shape(X)}, got {np.shape(log_prob)}."
        )
    return np.mean(masked_score(np.asarray(log_prob), mask))


def own_setting(model, name, value):
    """Return `value`, or where it is None what the model itself says."""
    return getattr(model, name, None) if value is None else value
