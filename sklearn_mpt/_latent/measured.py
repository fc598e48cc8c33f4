"""What measuring by masks asks of an estimator: the contract, and its hooks."""

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn import get_config
from sklearn.utils import gen_batches
from sklearn.utils.metaestimators import available_if

from sklearn_mpt._checks import check_device, check_mask
from sklearn_mpt._latent.fitting import Family
from sklearn_mpt._latent.model import as_tensor, as_view, own_mode

CHUNK_BYTES = 2**25  # larger chunks of rows are slower: they leave the caches


class MeasuredMixin:
    """Mixin for estimators whose `Family` makes a `Model` of what is fitted."""

    device: str | torch.device
    _validate_rows: Callable[..., np.ndarray]

    @property
    @abstractmethod
    def _family(self) -> Family:
        """What kind of model this is."""

    def _model(self):
        """Return the maths of the fitted attributes."""
        with own_mode():
            return self._family.model(self, vars(self), check_device(self.device))

    def conditional_log_prob(self, X: ArrayLike, mask: ArrayLike) -> np.ndarray:
        r"""Compute :math:`\log p(x_j \mid x_R)` for the hidden entries of each row.

        R are the features that are neither hidden nor missing. A hidden value enters
        only its own term.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        mask : array-like of bool, of shape (n_features,) or (n_samples, n_features)
            True where a feature is hidden.

        Returns
        -------
        log_prob : ndarray of shape (n_samples, n_features)
            In nats; 0.0 where not hidden, or missing.
        """
        X, model = self._validate_rows(X), self._model()
        mask = check_mask(mask, *X.shape)
        if len(mask) == len(X):
            return self._map_rows(model, model.conditional_log_prob, X, mask)
        shared = self._tensor(mask)
        return self._map_rows(
            model, lambda rows: model.conditional_log_prob(rows, shared), X
        )

    def mean_masked_scores(self, X: ArrayLike, masks: ArrayLike) -> np.ndarray:
        """Average the masked score over rows, for each of several masks.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        masks : array-like of bool, of shape (n_masks, n_features)
            True where a feature is hidden.

        Returns
        -------
        scores : ndarray of shape (n_masks,)
            In nats per hidden feature.
        """
        X, model, masks = self._validate_rows(X), self._model(), np.asarray(masks)
        masks = self._tensor(check_mask(masks, len(masks), X.shape[1]))
        with own_mode():
            rows = as_view(X, masks.device)
            scores = model.mean_masked_scores(rows, masks, _n_rows(model))
        return scores.cpu().numpy()

    @available_if(lambda self: self._family.has_chains(self))
    def mean_chain_scores(self, X: ArrayLike, orders: ArrayLike) -> np.ndarray:
        """Average over rows what is scored while features become visible in order.

        `MPTDeepVAE` has it unless ``conditional="encode_decode"``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        orders : array-like of int, of shape (n_orders, n_features) or \
                (n_orders, n_samples, n_features)
            Orders of the features, for all rows or for each.

        Returns
        -------
        scores : ndarray of shape (2, n_orders, n_features)
            Given the first t features of an order, in nats: the mean score of all
            others, and the log-probability of the next one alone.
        """
        X, device = self._validate_rows(X), check_device(self.device)
        with own_mode():
            orders = torch.from_numpy(np.require(orders, None, ["C", "W"])).to(device)
            scores = self._model().mean_chain_scores(as_view(X, device), orders)
        return scores.cpu().numpy()

    def _tensor(self, array):
        with own_mode():
            return as_tensor(array, check_device(self.device))

    def _map_rows(self, model, function, *arrays, dtype=None):
        """Apply a function of tensors in double precision to chunks of rows.

        dtype : of the result; None is what the function returns.
        """
        result = None
        with own_mode():
            for rows in gen_batches(len(arrays[0]), _n_rows(model)):
                part = function(*(self._tensor(array[rows]) for array in arrays))
                part = part.cpu().numpy()
                if result is None:
                    shape = len(arrays[0]), *part.shape[1:]
                    result = np.empty(shape, dtype or part.dtype)
                result[rows] = part
        return result


def _n_rows(model):
    """Rows of a chunk that fits scikit-learn's working_memory, and CHUNK_BYTES."""
    budget = min(get_config()["working_memory"] * 2**20, CHUNK_BYTES)
    return max(1, int(budget // model.row_bytes))
