"""The estimator: a net trained by nothing but masks."""

from collections.abc import Sequence

import numpy as np
import torch

from sklearn_mpt._likelihoods import Columns
from sklearn_mpt._masked.family import MaskedFamily
from sklearn_mpt._seeds import RandomState
from sklearn_mpt._tables.estimator import LikelihoodNames, TableMPT


class MPTMaskedAutoencoder(TableMPT):
    def __init__(
        self,
        *,
        likelihood: LikelihoodNames = "gaussian",
        hidden_layer_sizes: Sequence[int] | str = "auto",
        n_mixtures: int = 5,
        n_orders: int = 8,
        dropout: float | str = "auto",
        mask_rate: str | float = "uniform",
        n_masks: int | str = "auto",
        max_iter: int = 150,
        learning_rate: float = 0.002,
        batch_size: int | str = "auto",
        tol: float = 1e-3,
        n_iter_no_change: int = 15,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        verbose: bool = False,
        device: str | torch.device = "auto",
        random_state: RandomState = None,
        n_jobs: int | None = None,
    ):
        self.likelihood = likelihood
        self.hidden_layer_sizes = hidden_layer_sizes
        self.n_mixtures = n_mixtures
        self.n_orders = n_orders
        self.dropout = dropout
        self.mask_rate = mask_rate
        self.n_masks = n_masks
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.verbose = verbose
        self.device = device
        self.random_state = random_state
        self.n_jobs = n_jobs

    objective = "mpt"  # the only one there is

    @property
    def n_components(self):
        return self._n_features_out if hasattr(self, "n_iter_") else 1

    def _family_of(self, likelihood):
        if not isinstance(likelihood, Columns):
            n = self.n_features_in_
            kind = self.likelihoods_[0] if not self._is_of_numbers else self.likelihood
            likelihood = Columns([kind] * n, [1] * n)
        return MaskedFamily(likelihood)
