"""Draws of hidden features given visible ones, for Shapley values of a predictor."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import RandomState, check_floats, check_int, draw_seed
from sklearn_mpt._measure.contract import feature_names
from sklearn_mpt._tables.frames import check_columns


class ConditionalMasker:
    r"""Draw hidden features of a row given the visible ones, for Shapley values.

    Shapley values of a prediction f(x) use its average when only the features R of a
    row are known. The maskers of the package shap draw the other features from a
    background data set, independently of R. This one draws them jointly from the
    conditional distribution :math:`p(x_M \mid x_R)` of a model, which gives conditional
    Shapley values [1]_. Pass it to shap as ``shap.Explainer(f, masker)``, or pass its
    :meth:`game` to shapiq.

    Parameters
    ----------
    model : estimator
        A fitted model of the rows with a method
        ``impute(X, method="sample", random_state=...)``, such as those of this package.
    n_samples : int, default=100
        Number of draws for each set of visible features.
    random_state : int, RandomState instance or None, default=None
        Determines the draws. The random numbers are the same in every call, so all sets
        of features are compared on the same random numbers.

    See Also
    --------
    feature_contributions : Shapley values of the log-density of a row.

    References
    ----------
    .. [1] K. Aas, M. Jullum and A. Løland, "Explaining individual predictions when
       features are dependent: more accurate approximations to Shapley values",
       Artificial Intelligence 298, 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import ConditionalMasker, MPTProbabilisticPCA
    >>> X = load_iris().data
    >>> model = MPTProbabilisticPCA(init="pca", max_iter=0).fit(X)
    >>> masker = ConditionalMasker(model, n_samples=3, random_state=0)
    >>> (drawn,) = masker(np.array([True, True, False, False]), X[0])
    >>> drawn.shape, bool((drawn[:, :2] == X[0, :2]).all())
    ((3, 4), True)
    """

    immutable_outputs = True  # shap may keep the returned arrays

    def __init__(
        self, model: object, *, n_samples: int = 100, random_state: RandomState = None
    ):
        check_int(n_samples, "n_samples")
        if not hasattr(model, "impute"):
            raise TypeError(
                "model must have a method impute(X, method='sample', random_state=...)"
                f", got {model!r}."
            )
        self.model = model
        self.n_samples = int(n_samples)
        self.seed = draw_seed(random_state)

    def __call__(self, mask: ArrayLike, x: ArrayLike) -> tuple[np.ndarray]:
        """Return draws of a row, given its visible features.

        Parameters
        ----------
        mask : array-like of bool of shape (n_features,)
            True where a feature is visible. This is the convention of shap; everywhere
            else in this package True means hidden. A single True or False is for all
            features.
        x : array-like of shape (n_features,)
            The row.

        Returns
        -------
        draws : tuple of one ndarray of shape (n_samples, n_features)
            The draws, as shap expects them.
        """
        names = feature_names(self.model, None)
        check_columns(x, names, "x")
        check_columns(mask, names, "mask")
        x = check_floats(x, "x").reshape(-1)
        hidden = ~np.broadcast_to(np.asarray(mask, dtype=bool), x.shape)
        rows = np.tile(np.where(hidden, np.nan, x), (self.n_samples, 1))
        if not hidden.any():
            return (rows,)
        options = {"method": "sample", "random_state": self.seed}
        with warnings.catch_warnings():  # shap gives arrays, whatever `fit` was given
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            return (np.asarray(self.model.impute(rows, **options)),)

    def shape(self, x: ArrayLike) -> tuple[int, int]:
        """Return the number of draws and of features, for shap.

        Parameters
        ----------
        x : array-like of shape (n_features,)
            A row.

        Returns
        -------
        shape : tuple of int
            `n_samples`, and the number of features of `x`.
        """
        return self.n_samples, np.size(x)

    def game(self, predict, x: ArrayLike):
        """Return the game of a row: the mean prediction given sets of visible features.

        Parameters
        ----------
        predict : callable
            Function from rows (n, n_features) to predictions (n,).
        x : array-like of shape (n_features,)
            The row.

        Returns
        -------
        callable
            Function from sets, bool of shape (n_sets, n_features), to values (n_sets,),
            for the approximators and exact computers of shapiq.
        """

        def value(sets):
            sets = np.atleast_2d(np.asarray(sets, dtype=bool))
            rows = np.concatenate([self(one, x)[0] for one in sets])
            predictions = np.asarray(predict(rows), dtype=float)
            return predictions.reshape(len(sets), self.n_samples).mean(axis=1)

        return value
