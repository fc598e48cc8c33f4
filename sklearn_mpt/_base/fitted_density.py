"""What every fitted model computes: scores, conditionals, imputations, samples."""

from __future__ import annotations

import importlib
from functools import partial
from typing import ClassVar, Literal, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn import get_config
from sklearn.base import ClassNamePrefixFeaturesOutMixin, DensityMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from sklearn_mpt._base.density import as_tensor, as_view, torch_modes
from sklearn_mpt._base.state import check_bound_parameters
from sklearn_mpt._checks import (
    RandomState,
    check_as_fitted,
    check_bool,
    check_choice,
    check_device,
    check_int,
    spawn_seeds,
    warn_caller,
)
from sklearn_mpt._measure.contract import feature_names, given_or_parameter
from sklearn_mpt._numbers import CHUNK_BYTES
from sklearn_mpt._tables.frames import check_columns, output_library, readable_numbers
from sklearn_mpt._tables.weights import (
    check_mask,
    check_orders,
    check_sample_weight,
    sums_of_rows,
)


class FittedDensityMixin(DensityMixin):
    """Mixin for estimators whose fitted attributes define a `Density`.

    The estimator has `_density_of`, `_read_rows`, `_check_values`, `_as_given`
    and `_frame`; see `BaseMPT`.
    """

    n_features_in_: int

    @property
    def _hooks(self):
        """Names of the methods of the contract that are faster than its loops."""
        return ()

    # Scores

    @overload
    def score_samples(
        self, X: ArrayLike, return_std: Literal[False] = False
    ) -> np.ndarray: ...
    @overload
    def score_samples(
        self, X: ArrayLike, return_std: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray]: ...
    def score_samples(
        self, X: ArrayLike, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        r"""Compute the log marginal likelihood :math:`\log p(x)` of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to score. Missing entries (NaN) are integrated out: the score is the
            log-density of the entries present, and 0.0 where there are none.
        return_std : bool, default=False
            Whether to return the error of the integration over z, too. It is no
            standard deviation of the density over rows.

        Returns
        -------
        log_prob : ndarray of shape (n_samples,)
            In nats.
        std_error : ndarray of shape (n_samples,)
            Standard error of the integration, in nats; zero where the score is exact,
            or a quadrature accurate to 1e-4. By importance sampling, from independent
            scramblings of the points, so large that 1.96 of them cover 95%. Only if
            `return_std` is True.

        Warns
        -----
        UserWarning
            If a standard error exceeds 0.5 nats.
        """
        check_bool(return_std, "return_std")
        X, density = self._validate_rows(X), self._density()
        scored = self._map_rows(density, lambda x: torch.stack(density.lml(x), 1), X)
        log_prob, std_error, *n_effective = scored.T
        is_uncertain = std_error > 0.5  # nats
        if is_uncertain.any():
            points = ""
            if n_effective:
                least = n_effective[0][is_uncertain].min()
                points = f", and rest on as few as {least:.3g} effective points"
            warn_caller(
                f"The log marginal likelihoods of {np.count_nonzero(is_uncertain)} of "
                f"{len(X)} rows are uncertain by up to {std_error.max():.2g} nats"
                f"{points}: the posterior of the latent variables is hard to "
                "integrate over.",
            )
        return (log_prob, std_error) if return_std else log_prob

    def score(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Compute the mean log marginal likelihood of the rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to score; NaN marks missing entries.
        y : Ignored
            Not used, present for API consistency by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            What each row counts in the mean; None is 1.

        Returns
        -------
        float
            In nats per row.
        """
        log_prob = self.score_samples(X)
        if sample_weight is not None:
            sample_weight = check_sample_weight(sample_weight, X)
        return float(np.average(log_prob, weights=sample_weight))

    # Conditionals

    def conditional_log_prob(self, X: ArrayLike, mask: ArrayLike) -> np.ndarray:
        r"""Compute :math:`\log p(x_j \mid x_R)` for the hidden entries of each row.

        R are the features that are neither hidden nor missing. A hidden value enters
        only its own term.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        mask : array-like of bool, of shape (n_features,) or (n_samples, n_features)
            True where a feature is hidden. Names of its columns must be those of X.

        Returns
        -------
        log_prob : ndarray of shape (n_samples, n_features)
            In nats; 0.0 where not hidden, or missing.
        """
        names = feature_names(self, X)
        X, density = self._validate_rows(X), self._density()
        mask = check_mask(mask, len(X), names or range(X.shape[1]))
        return self._map_rows(density, density.conditional_log_prob, X, mask)

    @available_if(lambda self: "mean_masked_scores" in self._hooks)
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
        names = feature_names(self, X)
        X, density = self._validate_rows(X), self._density()
        masks = check_mask(masks, np.shape(masks)[0], names or range(X.shape[1]))
        masks = self._tensor(masks)
        with torch_modes():
            rows = as_view(X, masks.device)
            n_rows = _n_rows(density.row_bytes)
            scores = density.mean_masked_scores(rows, masks, n_rows)
        return scores.cpu().numpy()

    @available_if(lambda self: "chain_log_prob" in self._hooks)
    def chain_log_prob(self, X: ArrayLike, orders: ArrayLike) -> np.ndarray:
        """Compute the log-probability of each feature given those before it.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        orders : array-like of int, of shape (n_orders, n_features) or \
                (n_orders, n_samples, n_features)
            Orders of the features, for all rows or for each.

        Returns
        -------
        log_prob : ndarray of shape (n_orders, n_samples, n_features)
            In nats, by feature; 0.0 where missing. The sum over features is the
            log-probability of the row, along each order.
        """
        X, density = self._validate_rows(X), self._density()
        orders = check_orders(orders, *X.shape).swapaxes(0, 1)

        def along(rows, order):
            return density.chain_log_prob(rows, order.long())

        return self._map_rows(density, along, X, orders).swapaxes(0, 1)

    # Imputation and samples

    def impute(
        self, X: ArrayLike, method: str = "mean", random_state: RandomState = None
    ) -> np.ndarray:
        """Fill in the missing entries of each row, given those present.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        method : {"mean", "sample"}, default="mean"
            "mean" is the conditional expectation of each missing entry, or its most
            probable category; "sample" one joint draw of all that are missing in a row.
            Intervals are filled, too, with numbers within them.
        random_state : int, RandomState instance or None, default=None
            Determines the draws. None takes the estimator's own. With an int, every
            call draws by the same random numbers: fill a table in one call, or give a
            RandomState instance.

        Returns
        -------
        X : ndarray or DataFrame of shape (n_samples, n_features)
            A copy; present entries are unchanged. It is a DataFrame if X is one and
            the model's `likelihood` determines kinds of columns. Its columns keep their
            dtypes where these can hold all values of the imputation, and otherwise get
            those of `fit`: integers that gaps turned into floats are integers again.
            Integers are rounded, and kept within the range of the dtype in `fit`. The
            imputation of a row does not depend on other rows.
        """
        check_choice(method, "method", ["mean", "sample"])
        rows, density = self._validate_rows(X), self._density()
        fill = density.expect
        if method == "sample":
            fill = partial(density.draw, rng=self._generator_for(random_state))

        def filled(part):
            return torch.where(density.is_open(part), fill(part), part)

        return self._as_given(
            self._map_rows(density, filled, rows, dtype=rows.dtype), X
        )

    def sample(
        self, n_samples: int = 1, random_state: RandomState = None
    ) -> np.ndarray:
        """Draw rows from the model.

        Parameters
        ----------
        n_samples : int, default=1
            Number of rows.
        random_state : int, RandomState instance or None, default=None
            Determines the draws. None takes the estimator's own.

        Returns
        -------
        X : ndarray or DataFrame of shape (n_samples, n_features)
            Independent rows, without missing entries. It is a DataFrame if `fit` had
            one, with its names, and with its dtypes and categories where `likelihood`
            determines kinds of columns. `set_output` chooses another container.
        """
        self._check_is_fitted()
        check_int(n_samples, "n_samples")
        all_missing = np.broadcast_to(np.nan, (n_samples, self.n_features_in_))
        rng, density = self._generator_for(random_state), self._density()
        drawn = self._map_rows(
            density, lambda rows: density.draw(rows, rng), all_missing
        )
        library = output_library(self, getattr(self, "_library", ""))
        if not library:
            return self._as_given(drawn)
        names = getattr(self, "_table_names", None)
        if names is None:
            names = _check_feature_names_in(self).tolist()
        return self._frame(drawn, names, importlib.import_module(library))

    # Rows and fitted attributes

    def _generator_for(self, random_state):
        random_state = given_or_parameter(self, "random_state", random_state)
        return np.random.default_rng(spawn_seeds(random_state, 1)[0])

    def _validate_rows(self, X):
        """Return rows to score as an array of numbers, NaN where missing."""
        self._check_is_fitted()
        rows = self._read_rows(X)
        self._check_names(X)
        self._check_values(rows)
        return rows

    def _check_names(self, X):
        """Refuse columns in another order than in `fit`, also if names are numbers."""
        names = getattr(self, "_table_names", None)
        check_columns(X, names, "X", "columns of fit")

    def _check_training_weight(self, X, sample_weight, results="Standard errors are"):
        """Return what rows count; warn if `fit` had others than results are for."""
        weight = check_sample_weight(sample_weight, X)
        trained = getattr(self, "_training_sums", None)  # None of parts of a stream
        if trained is not None and not np.allclose(
            sums_of_rows(X, weight), trained, rtol=1e-5, atol=0
        ):
            warn_caller(
                f"{results} for the rows of fit, but X and sample_weight "
                f"({weight.sum():.6g} rows in all) are not those of fit "
                f"({trained[0]:.6g})."
            )
        return weight

    def _check_is_fitted(self):
        check_is_fitted(self)
        check_bound_parameters(self, self._bound)

    def _density(self):
        """Return the density of the fitted attributes."""
        with torch_modes():
            return self._density_of(vars(self), check_device(self.device))

    def _tensor(self, array):
        with torch_modes():
            return as_tensor(array, check_device(self.device))

    def _map_rows(self, density, function, *arrays, dtype=None):
        """Apply a function of tensors in double precision to chunks of rows.

        Arrays of one row, such as a mask, are given with all chunks.
        """
        result = None
        with torch_modes():
            device, n_rows = check_device(self.device), _n_rows(density.row_bytes)
            for start in range(0, len(arrays[0]), n_rows):
                rows = slice(start, start + n_rows)
                parts = (a if len(a) == 1 else a[rows] for a in arrays)
                part = function(*(as_tensor(a, device) for a in parts)).cpu().numpy()
                if result is None:
                    shape = len(arrays[0]), *part.shape[1:]
                    result = np.empty(shape, dtype or part.dtype)
                result[rows] = part
        return result


def _n_rows(row_bytes):
    """Return the number of rows that fit working_memory and CHUNK_BYTES."""
    budget = min(get_config()["working_memory"] * 2**20, CHUNK_BYTES)
    return max(1, int(budget // row_bytes))


class LatentMixin(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, FittedDensityMixin
):
    """Mixin for models of continuous latent variables z."""

    # Z is data: scikit-learn would take it as metadata
    __metadata_request__inverse_transform: ClassVar = {"Z": UNUSED}
    components_: np.ndarray

    @property
    def _n_features_out(self):
        return len(self.components_)

    def _check_fitted_parameters(self):
        check_as_fitted(self.n_components, self._n_features_out, "n_components")

    def transform(self, X: ArrayLike) -> np.ndarray:
        r"""Compute the posterior mean of the latent variables of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.

        Returns
        -------
        Z : ndarray of shape (n_samples, n_components)
            :math:`E[z \mid x_R]`.
        """
        X, density = self._validate_rows(X), self._density()
        return self._map_rows(density, density.latent_mean, X, dtype=X.dtype)

    def posterior(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        r"""Compute mean and covariance of the latent variables of each row.

        The square roots of the variances are the standard errors of `transform`, of
        abilities for instance.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.

        Returns
        -------
        mean : ndarray of shape (n_samples, n_components)
            :math:`E[z \mid x_R]`, as `transform` returns it.
        covariance : ndarray of shape (n_samples, n_components, n_components)
            Covariance of z given the observed features of each row.
        """
        X, density = self._validate_rows(X), self._density()

        def moments(rows):
            mean, covariance = density.latent_moments(rows)
            return torch.cat([mean[:, None], covariance], 1)

        moments_of_z = self._map_rows(density, moments, X)
        return moments_of_z[:, 0], moments_of_z[:, 1:]

    def inverse_transform(self, Z: ArrayLike) -> np.ndarray:
        """Compute the expected row for given latent variables.

        Parameters
        ----------
        Z : array-like of shape (n_samples, n_components)
            Latent variables.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            Expected values, in the units of the training rows; of categories, the most
            probable one.
        """
        self._check_is_fitted()
        Z = check_array(readable_numbers(Z), dtype=[np.float64, np.float32])
        if Z.shape[1] != self._n_features_out:
            raise ValueError(
                f"Z must have n_components={self._n_features_out} columns, "
                f"got {Z.shape[1]}."
            )
        return self._decoded(self._density(), Z)

    def _decoded(self, density, Z):
        """Return expected rows, in the form in which rows come."""
        return self._as_given(self._map_rows(density, density.decode, Z, dtype=Z.dtype))
