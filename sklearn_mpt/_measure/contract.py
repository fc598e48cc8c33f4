"""The methods of a masked model that generic code calls, and the masked score.

A masked model is an object with a method ``conditional_log_prob(X, mask)``, or a
function with these arguments. X is a copy of some rows, an array or a DataFrame. `mask`
is a boolean array of shape (n_features,) or (n_samples, n_features), True where hidden.
The result has the shape of X. At entries that are hidden and present it is a
log-probability in nats, -inf for an event of probability 0; NaN and inf are refused. At
other entries it is not used. A torch module gets tensors instead of arrays.

Two more methods are optional. They make scores faster and must not change them;
without them, ``conditional_log_prob`` is called in a loop. The array X that they get is
read-only:

``mean_masked_scores(X, masks)``
    The masked score averaged over rows, for each mask; array (n_masks,).
``chain_log_prob(X, orders)``
    Log-probabilities along orders of the features, which become visible one after the
    other. `orders` holds integers of shape (n_orders, n_features), or (n_orders,
    n_samples, n_features) with an order for each row. Returns an array (n_orders,
    n_samples, n_features). It has the log-probability of each feature given those
    before it in the order, and 0.0 where the feature is missing.

Another optional method returns whether log-probabilities are densities:

``_measures_of_columns()``
    For each feature "density", "probability", or None if it is not known.

Another tells scores of different kinds apart, which must not be compared:

``_kind_of_scores()``
    What ``score_samples`` returns, such as "pseudo-log-likelihood". Models without it
    return a "log-probability", which may be a density or a bound.

A model of rows of several lengths, such as texts, takes no mask of shape (n_features,).
It has these methods instead, with the arguments of the public functions:

``_masked_score_curve(X, n_masks, mask_blocks, random_state, n_jobs)``
    Returns the result of `mpt_curve`.
``_lml_along_orders(X, n_orders, random_state, n_jobs)``
    Returns the result of `lml_samples` with ``return_std=True``.
``_token_contributions(X, n_orders, random_state, n_jobs)``
    Returns contributions, their standard errors, the tokens of each text, and names of
    tokens or None, from which `feature_contributions` makes its result.
``_score_samples_on_masks(X, random_state, n_jobs)``
    Returns the score of each row for `compare_lml`, with masks that depend on the seed.
"""

import copy
import sys
from itertools import chain

import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe

from sklearn_mpt._checks import joined, listed, plain
from sklearn_mpt._measure.rows import Rows, as_numbers, copy_of, holds_numbers
from sklearn_mpt._tables.frames import column_names, fill_masked


def is_module(model):
    """Return whether a model is a torch module, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


class ModuleConditional:
    """The conditionals of a torch module, as a function of arrays.

    The module, or its method ``conditional_log_prob`` if it has one, is called with
    tensors: rows in the dtype of its parameters, NaN where missing, and a boolean mask,
    both on its device. It runs in evaluation mode and without gradients. If the module
    is in training mode, it is not changed: a copy that shares all parameters and
    buffers is evaluated.
    """

    def __init__(self, module):
        self.module = module
        if any(part.training for part in module.modules()):
            shared = {id(t): t for t in chain(module.parameters(), module.buffers())}
            try:
                self.module = copy.deepcopy(module, shared).eval()
            except Exception as error:  # the module's parts are the user's
                raise TypeError(
                    f"{type(module).__name__} is in training mode and cannot be copied "
                    "for evaluation: call its method eval() first."
                ) from error

    def __call__(self, X, mask):
        import torch

        tensors = chain(self.module.parameters(), self.module.buffers())
        like = next(
            (t for t in tensors if t.is_floating_point()), torch.empty(0, device="cpu")
        )
        rows = torch.as_tensor(X).to(device=like.device, dtype=like.dtype)
        function = getattr(self.module, "conditional_log_prob", self.module)
        with torch.no_grad():
            return function(rows, torch.as_tensor(mask, device=like.device))


LOG_PROBABILITY = "log-probability"
# Differences of log-probabilities, relative or in nats:
MIN_CHANGE = 1e-4  # larger than rounding errors in single precision
MAX_ORDER_CHANGE = 1e-5  # largest between integrals of one joint, by quadrature


def masked_score(log_prob, mask):
    """Average the log-probabilities of the hidden features, per row.

    The sum is divided by the size of the mask, missing entries included. Then a missing
    feature contributes 0, and the scores of all sizes add up to log p(observed).
    """
    return log_prob.sum(-1) / mask.sum(-1)


class CheckedConditional:
    """Call the function ``(X, mask) -> log_prob`` of a masked model, with checks.

    The function gets copies of the rows and of the mask, so that it cannot change the
    originals. If it fails on a mask of shape (n_features,), it gets a mask for each row
    in this and in all later calls.
    """

    def __init__(self, model):
        if is_module(model):
            self.function = ModuleConditional(model)
        else:
            self.function = getattr(model, "conditional_log_prob", model)
        self.chain_log_prob = getattr(model, "chain_log_prob", None)
        # False for a method of an estimator, which checks its own rows
        self.is_function = is_module(model) or self.function is model
        self.is_single = False  # whether results are in single precision or less
        if not callable(self.function):
            raise TypeError(
                "estimator must have a method conditional_log_prob(X, mask) or be such "
                f"a function, got {model!r}."
            )
        self.refusal = None  # the error that a mask of shape (n_features,) caused

    def __call__(self, rows, mask):
        """Return the log-probabilities as an array of floats, of the shape of X.

        The function may use the same array again: copy it to keep it.
        """
        for_each_row = np.broadcast_to(mask, rows.shape)
        if self.refusal is not None:
            return self._ask(rows, for_each_row)
        try:
            return self._ask(rows, mask)
        except Exception as error:  # the function is the user's
            if mask.ndim == 2:
                raise
            try:
                log_prob = self._ask(rows, for_each_row)
            except Exception as other:
                error.add_note(
                    "Called with a mask for each row instead, of shape "
                    f"{rows.shape}, it raised {type(other).__name__}: {other}"
                )
                raise error from None
            self.refusal = error
            return log_prob

    def _ask(self, rows, mask):
        try:
            returned = self.function(copy_of(rows.values), mask.copy())
            if isinstance(returned, tuple):  # of nets, logits and a loss for instance
                raise TypeError(
                    "conditional_log_prob must return the array of log-probabilities "
                    f"alone, got a tuple of {len(returned)}."
                )
            self.is_single = str(getattr(returned, "dtype", "")).endswith(("32", "16"))
            log_prob = as_array(returned)
        except Exception as error:
            error.add_note(
                "It was raised when conditional_log_prob(X, mask) was called with X of "
                f"shape {rows.shape} and a boolean mask of shape {mask.shape}, True "
                "where hidden."
            )
            raise
        if log_prob.dtype.kind not in "fiu":
            raise TypeError(
                f"Log-probabilities must be real numbers, got dtype {log_prob.dtype}"
                f"{_for_mask(mask)}."
            )
        if log_prob.shape != rows.shape:
            raise ValueError(
                "conditional_log_prob must return one value per entry of X, of shape "
                f"{rows.shape}, got {log_prob.shape}{_for_mask(mask)}."
            )
        return log_prob.astype(np.float64, copy=False)


def _for_mask(mask):
    return f" for the mask {describe_mask(mask)}" if mask.ndim == 1 else ""


def describe_mask(mask):
    """Describe which features a mask of shape (n_features,) hides, for messages."""
    hidden = np.flatnonzero(mask)
    return f"that hides the features {listed(hidden)} ({len(hidden)} of {len(mask)})"


def feature_names(model, X):
    """Return the names of the columns of a DataFrame, or of those of `fit`, or None."""
    if is_into_dataframe(X):
        return column_names(X)
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else list(map(plain, names))


def refuse_texts(model, name, advice=""):
    """Raise an error if a function, by its name, is called with a model of texts."""
    if hasattr(model, "_lml_along_orders"):
        raise TypeError(
            f"{name} takes models of rows, got {type(model).__name__}, a model of "
            f"texts{advice}."
        )


def check_rows(model, X):
    """Return X as `Rows`, for calls of a model.

    An estimator checks its own rows and may need the names and the kinds of their
    columns, so it gets X as it is. Another function gets an array of numbers, unless X
    is a DataFrame with columns of other values.
    """
    X = fill_masked(X)
    is_function = CheckedConditional(model).is_function
    if is_into_dataframe(X):
        if 0 in np.shape(X):
            raise ValueError(
                "X must have at least one row and one column, got the shape "
                f"{np.shape(X)}."
            )
        owner = getattr(model, "__self__", None)
        takes_names = not is_function or hasattr(owner, "feature_names_in_")
        if takes_names or not holds_numbers(X):
            return Rows.from_table(X)
        X = as_numbers(X)
    from sklearn.utils.validation import check_array  # models load without sklearn

    numbers = {"dtype": "numeric", "ensure_all_finite": "allow-nan"}
    any_values = {"dtype": None, "ensure_all_finite": False}
    options = numbers if is_function else any_values
    return Rows.from_table(check_array(X, **options, input_name="X"))


def as_array(values):
    """Return the result of a model as an array; it may be a tensor with gradients."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double()
    return np.asarray(values)


def hidden_log_prob(conditional, rows, mask):
    """Return log-probabilities of hidden entries, and 0 at visible and missing ones.

    -inf is allowed, for events of probability 0. NaN and inf are errors.
    """
    log_prob = conditional(rows, mask)
    targets = rows.targets(mask)
    wrong = targets & ~(log_prob < np.inf)
    if wrong.any():
        i, j = np.argwhere(wrong)[0].tolist()
        gaps = ""
        if rows.missing is not None and rows.missing[i].any():
            gaps = (
                f" The features {listed(np.flatnonzero(rows.missing[i]))} of that "
                "row are missing (NaN): a model must leave them out, as if they "
                "were hidden."
            )
        raise ValueError(
            "Log-probabilities must be numbers below infinity, got "
            f"{log_prob[i, j]} at feature {j} of row {rows.number(i)}, for the mask "
            f"{describe_mask(np.broadcast_to(mask, rows.shape)[i])}.{gaps}"
        )
    return np.where(targets, log_prob, 0.0)


def measures_of_columns(model, n_features=0):
    """Return the result of the model's `_measures_of_columns`, or None n times."""
    ask = getattr(model, "_measures_of_columns", None)
    return [None] * n_features if ask is None else ask()


def kind_of_scores(model):
    """Return the result of the model's `_kind_of_scores`, or a log-probability."""
    ask = getattr(model, "_kind_of_scores", None)
    return LOG_PROBABILITY if ask is None else ask()


def mean_masked_scores(model, rows, masks):
    """Average the masked score over rows, for each mask; shape (n_masks,)."""
    if hasattr(model, "mean_masked_scores"):
        scores = as_array(model.mean_masked_scores(rows.readonly_view(), masks))
        return _check_scores(scores, (len(masks),), "mean_masked_scores")
    conditional = CheckedConditional(model)
    return np.array(
        [
            masked_score(hidden_log_prob(conditional, rows, mask), mask).mean()
            for mask in masks
        ]
    )


def _check_scores(scores, shape, name):
    """Check the result of an optional method of a model."""
    wrong = scores[~(scores < np.inf)]
    if scores.shape != shape or len(wrong):
        raise ValueError(
            f"{name} must return numbers below infinity, of shape {shape}, got "
            f"{joined(wrong[:1]) or 'others'} in an array of shape {scores.shape}."
        )
    return scores


def chain_log_prob(conditional, rows, orders):
    """Compute log p(x_j | features before j); (n_orders, n_samples, n_features)."""
    shape = len(orders), *rows.shape
    if conditional.chain_log_prob is not None:
        terms = as_array(conditional.chain_log_prob(rows.readonly_view(), orders))
        return _check_scores(terms, shape, "chain_log_prob")
    terms = np.empty(shape)
    for order, along in zip(orders, terms, strict=True):
        places = order.argsort(-1)
        for place in range(shape[2]):
            is_next = np.broadcast_to(places == place, rows.shape)
            log_prob = hidden_log_prob(conditional, rows, places >= place)
            along[is_next] = log_prob[is_next]
    return terms


def takes_row_masks(conditional, rows):
    """Return whether a function takes a mask for each row, not only one for all rows.

    The function is called with up to four rows and four masks, in all pairs. It is then
    called with each row and a different mask. The results must agree with those of the
    pairs, and they must differ clearly from the results for the other masks. Otherwise
    the test cannot detect a function that uses one mask for all rows; this happens if
    the hidden features do not depend on the visible ones.
    """
    rows = few_rows(rows)
    n_rows, n_features = rows.shape
    if n_rows < 2 or n_features < 2:
        return False
    half, other = np.random.default_rng(0).random((2, n_features)).argsort(1) % 2 == 1
    masks = np.stack([np.ones(n_features, bool), half, ~half, other])
    try:
        separate = np.stack(
            [hidden_log_prob(conditional, rows, mask) for mask in masks]
        )
        for shift in range(len(masks)):
            mask_index = (np.arange(n_rows) + shift) % len(masks)
            together = hidden_log_prob(conditional, rows, masks[mask_index])
            log_prob_by_mask = separate[mask_index, np.arange(n_rows)]
            if (change_of(log_prob_by_mask, together) > MAX_ORDER_CHANGE).any():
                return False
    except Exception:  # the user's function; a real error appears in the next call
        return False
    for k in range(len(masks)):  # do results differ clearly at entries hidden by both?
        shared = [rows.targets(masks[k] & mask) for mask in masks]
        pairs = zip(separate, shared, strict=True)
        changes = [change_of(separate[k][at], other[at]) for other, at in pairs]
        if not any((change > MIN_CHANGE).any() for change in changes):
            return False
    return True


def change_of(log_prob, other):
    """Return differences, relative or in nats: 0 where both are -inf, inf if one is."""
    with np.errstate(invalid="ignore"):
        change = np.abs(other - log_prob) / np.maximum(1, np.abs(log_prob))
    return np.where(log_prob == other, 0.0, np.nan_to_num(change, nan=np.inf))


def wants_row_orders(conditional, rows):
    """Return whether each row should have its own random orders.

    With its own orders the errors of the rows average out. This needs a function that
    takes a mask for each row. It is useful only for conditionals that do not belong to
    one joint density: those of a joint give the same sum along any order, and masks
    that rows share can cost less. So pairs of features are scored in both orders.
    """
    if not takes_row_masks(conditional, rows):
        return False
    rows = few_rows(rows)
    n_features = rows.shape[1]
    order = np.random.default_rng(1).permutation(n_features)
    for t in sorted({0, (n_features - 1) // 2, n_features - 2}):
        pair, hidden = order[[t, t + 1]], np.zeros((3, n_features), dtype=bool)
        hidden[:, order[t:]] = True
        hidden[[1, 2], pair] = False
        joint, second, first = [
            hidden_log_prob(conditional, rows, mask)[:, pair] for mask in hidden
        ]
        forward, backward = joint[:, 0] + second[:, 1], joint[:, 1] + first[:, 0]
        if (change_of(forward, backward) > MAX_ORDER_CHANGE).any():
            return True
    return False


def few_rows(rows):
    """Return four rows with the fewest missing entries, on which models are tried."""
    if rows.missing is None:
        return rows.slice(0, min(4, len(rows)))
    first = np.sort(np.argsort(rows.missing.sum(axis=1), kind="stable")[:4])
    return rows.take(first)


def given_or_parameter(model, name, value):
    """Return `value`, or if it is None the model's parameter of that name."""
    return getattr(model, name, None) if value is None else value
