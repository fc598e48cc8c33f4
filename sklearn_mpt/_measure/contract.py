"""What generic code asks of a masked model, and what its answers add up to.

A masked model is an object with ``conditional_log_prob(X, mask)``, or that function
itself. Two methods beside it are optional, for speed and never for meaning; where
they are missing, that function is called in a loop:

``mean_masked_scores(X, masks)``
    The masked score averaged over rows, for each mask; array (n_masks,).
``mean_chain_scores(X, orders)``
    The same for nested masks: features become visible one after the other. `orders`
    holds integers of shape (n_orders, n_features), or (n_orders, n_samples,
    n_features) with an order for each row. Returns an array (2, n_orders, n_features);
    at place t of each order, averaged over rows: the masked score of all features not
    among the first t, and the log-probability of the next one alone, both given the
    first t.
"""

import numpy as np

BLOCK_ENTRIES = 2**20  # of rows that are worked on at a time


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


def fill_masked(X):
    """Return X, with the masked entries of a masked array as gaps."""
    if not np.ma.isMaskedArray(X):
        return X
    return X.astype(np.result_type(X.dtype, np.float32)).filled(np.nan)


def check_rows(model, X):
    """Return the rows as the model takes them, and whether some entries are missing.

    An estimator checks its own rows, and may want the names of their columns.
    """
    rows = X = fill_masked(X)
    is_function = conditional_log_prob_of(model) is model
    from sklearn.utils.validation import check_array  # models load without sklearn

    array = check_array(
        X,
        dtype="numeric" if is_function else None,
        ensure_all_finite="allow-nan" if is_function else False,
        input_name="X",
    )
    has_gaps = array.dtype.kind not in "biu" and bool((array != array).any())
    return (array if is_function else rows), has_gaps


def as_array(values):
    """Return an array of what a model returns, torch tensors with gradients too."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double()
    return np.asarray(values)


def hidden_log_prob(conditional, X, mask):
    """Ask for the hidden entries; whatever comes at the others does not count."""
    log_prob = as_array(conditional(X, mask))
    if log_prob.shape != np.shape(X):
        raise ValueError(
            "conditional_log_prob must return one value per entry of X, of shape "
            f"{np.shape(X)}, got {log_prob.shape}."
        )
    return np.where(mask, log_prob, 0.0)


def mean_masked_scores(model, X, masks):
    """Average the masked score over rows, for each mask; shape (n_masks,)."""
    if hasattr(model, "mean_masked_scores"):
        return model.mean_masked_scores(X, masks)
    return loop_over_masks(conditional_log_prob_of(model), X, masks)


def loop_over_masks(conditional, X, masks):
    """Compute `mean_masked_scores` with one call of the conditional per mask."""
    return np.array(
        [
            masked_score(hidden_log_prob(conditional, X, mask), mask).mean()
            for mask in masks
        ]
    )


def mean_chain_scores(model, X, orders):
    """Average the scores along orders over rows; shape (2, n_orders, n_features)."""
    if hasattr(model, "mean_chain_scores"):
        return model.mean_chain_scores(X, orders)
    conditional = conditional_log_prob_of(model)
    return np.stack([_loop_over_order(conditional, X, order) for order in orders], 1)


def _loop_over_order(conditional, X, order):
    """Compute `mean_chain_scores` of one order with one call per feature."""
    places = np.argsort(order, axis=-1)
    scores = np.empty((2, places.shape[-1]))
    for t in range(places.shape[-1]):
        mask = places >= t
        log_prob = hidden_log_prob(conditional, X, mask)
        scores[0, t] = masked_score(log_prob, mask).mean()
        scores[1, t] = np.where(places == t, log_prob, 0.0).sum(1).mean()
    return scores


def log_prob_along(conditional, X, order):
    """Compute log p(x_j | features before j in the order); (n_samples, n_features)."""
    terms = np.empty(np.shape(X))
    mask = np.ones(len(order), dtype=bool)
    for feature in order:
        terms[:, feature] = hidden_log_prob(conditional, X, mask)[:, feature]
        mask[feature] = False
    return terms


def row_blocks(X):
    """Yield slices of rows, and those rows, so that few are worked on at a time."""
    from sklearn.utils import _safe_indexing, gen_batches  # models load without sklearn

    n_rows, n_features = np.shape(X)
    for rows in gen_batches(n_rows, max(1, BLOCK_ENTRIES // n_features)):
        is_all = rows.stop - rows.start == n_rows
        which = np.arange(rows.start, rows.stop)
        yield rows, X if is_all else _safe_indexing(X, which)


def takes_row_masks(conditional, X):
    """Whether a function takes a mask for each row, and not only one for all."""
    masks = np.eye(2, np.shape(X)[1], dtype=bool)
    if len(X) != 2 or masks.shape[1] < 2:
        return False
    try:
        together = hidden_log_prob(conditional, X, masks)
    except Exception:  # the function is the user's
        return False
    apart = [hidden_log_prob(conditional, X, masks[i])[i] for i in range(2)]
    return np.allclose(together, apart, equal_nan=True)


def own_setting(model, name, value):
    """Return `value`, or where it is None what the model itself says."""
    return getattr(model, name, None) if value is None else value
