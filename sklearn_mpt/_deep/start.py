"""Where a deep model starts, as arrays."""

from typing import NamedTuple

import numpy as np
import torch
from sklearn.utils.extmath import randomized_svd

from sklearn_mpt._deep.nets import initial_layers, spread_layers

N_POINTS = 512  # by which layers are scaled
# Features times the variance of their locations, at most 1: with more, every value of z
# explains some rows, and none is unused.
VIVID = 20
# Noise at first, in variances of the rows: with more, rows do not tell which z is
# theirs, and the decoder does not bend.
NOISE_SHARE, MIN_NOISE_SHARE = 0.05, 0.1  # the first for each feature
TINY = np.finfo(float).tiny


class Architecture(NamedTuple):
    """What the nets are: widths are those of the hidden layers of the encoder."""

    n_components: int
    widths: tuple[int, ...]
    activation: str


class Kind(NamedTuple):
    """A kind of start: how far from linear the decoder is, or that it is linear."""

    bend: float
    is_linear: bool = False


SMOOTH, CURLED, LINEAR = Kind(1.5), Kind(4.0), Kind(1.5, is_linear=True)


class WeightedRows(NamedTuple):
    """Standardised rows, NaN where missing, and what each counts, of mean 1."""

    X: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, X, weight):
        weight = np.ones(len(X)) if weight is None else weight
        return cls(X, weight * (len(X) / weight.sum()))

    def total(self, entries):
        """Sum what there is of each row, (n, m), over what the rows count; (m,)."""
        return (self.weight[:, None] * entries).sum(0)

    def some(self, n_rows, rng):
        """Draw as many rows, each as often as it counts; return their numbers."""
        order = rng.permutation(len(self.X))
        ends = self.weight[order].cumsum()
        return order[np.searchsorted(ends, np.arange(min(n_rows, len(order))) + 0.5)]


def start(architecture, likelihood, X, rng, kind, weight=None):
    """Return fitted attributes from which training starts.

    weight : what each row counts, (n,); None is 1.
    """
    n_components, widths, activation = architecture
    shift, scale = likelihood.units(X, weight)
    rows = WeightedRows.of((X - shift) / scale, weight)
    location = likelihood.start_location(rows.X, weight)
    sizes = [n_components, *widths[::-1], len(location)]
    decoder, basis = _decoder_start(sizes, location, activation, kind.bend, rng)
    own = {"activation_": activation}
    own |= likelihood.start_attributes(rows.X, scale, weight)
    if widths:
        own = _with_less_noise(own, X.shape[1])
    fitted = own | {"_shift": shift, "_scale": scale}
    fitted |= _encoder_start(architecture, likelihood, rows, rng)
    if kind.is_linear:
        fitted |= linear_part(likelihood, fitted, rows, (location, decoder, basis))
    return fitted | _restored(likelihood, fitted, decoder)


def _decoder_start(sizes, location, activation, bend, rng):
    """Return coefficients and intercepts, and the basis for `linear_part`.

    The locations that suit the rows best are the averages over z.
    """
    coefs, intercepts = initial_layers(sizes, rng)
    points = rng.normal(size=(N_POINTS, sizes[0]))
    last = spread_layers(coefs, intercepts, activation, points, (bend, rng))
    size = min(1.0, np.sqrt(VIVID / len(location)))
    coefs[-1] *= size / max((last @ coefs[-1]).std(), 1e-12)
    intercepts[-1] = location - (last @ coefs[-1]).mean(0)
    return (coefs, intercepts), (points, last)


def _restored(likelihood, fitted, decoder):
    """Attributes of a decoder, in the units of the rows."""
    shift, scale = (likelihood.spread_units(fitted[u]) for u in ("_shift", "_scale"))
    (*coefs, last_coef), (*intercepts, last) = decoder
    return {
        "decoder_coefs_": [*coefs, scale * last_coef],
        "decoder_intercepts_": [*intercepts, scale * last + shift],
    }


def _with_less_noise(attributes, n_features):
    """Return the likelihood's attributes, with less noise where it has any."""
    if "noise_variance_" not in attributes:
        return attributes
    share = np.clip(NOISE_SHARE * n_features, MIN_NOISE_SHARE, 1)
    return attributes | {"noise_variance_": share * attributes["noise_variance_"]}


def _encoder_start(architecture, likelihood, rows, rng):
    """The net's last layer is zero: it starts from the additive posterior."""
    n_components, widths, activation = architecture
    inputs, seen = _read(likelihood, rows.X)
    n_inputs = inputs.shape[1]
    n_outputs = n_components + n_components * (n_components + 1) // 2
    unit = 1 / np.sqrt(n_inputs)
    slope = 0.1 * unit * rng.normal(size=(n_inputs, n_components))
    coefs, intercepts = [], []
    if widths:
        sizes = [2 * n_inputs, *widths, n_outputs]
        coefs, intercepts = initial_layers(sizes, rng)
        some = rows.some(N_POINTS, rng)
        entering = np.concatenate([inputs[some], seen[some]], 1)
        spread_layers(coefs, intercepts, activation, entering, (1.0, rng))
        coefs[-1][:], intercepts[-1][:] = 0, 0
    centre = rows.total(inputs) / np.maximum(rows.total(seen), TINY)
    return {
        "encoder_information_": np.concatenate([slope, -centre[:, None] * slope]),
        "encoder_precision_": unit * rng.normal(size=(n_components, n_inputs)),
        "encoder_coefs_": coefs,
        "encoder_intercepts_": intercepts,
    }


def _read(likelihood, X):
    """Return what the encoder reads of rows, 0.0 where missing, and what it sees."""
    seen = likelihood.spread(torch.from_numpy(~np.isnan(X))).numpy()
    inputs = likelihood.inputs(torch.from_numpy(np.nan_to_num(X))).numpy()
    return inputs * seen, seen


def linear_part(likelihood, fitted, rows, start):
    """Make a decoder linear in z, as principal components are; return attributes.

    Rows enter by their slopes in the location, in units of the Fisher information:
    for Gaussian features that is probabilistic PCA, with the encoder its posterior.

    start : where slopes are taken, (l,); coefficients and intercepts, of which the last
    change; points z, and values of the last hidden layer.
    """
    location, (coefs, intercepts), (points, last) = start
    kind = likelihood.from_attributes(fitted, fitted["_scale"])
    slope, information = _derivatives(kind, rows, location)
    size = np.sqrt(rows.weight)[:, None]
    W, noise = _principal(size * (slope / np.sqrt(information)), points.shape[1])
    W = W / np.sqrt(information)
    basis = np.column_stack([last, np.ones(len(last))])
    solution = np.linalg.lstsq(basis, points @ W, rcond=1e-6)[0]
    coefs[-1], intercepts[-1] = solution[:-1], location + solution[-1]
    pull = _line(*_read(likelihood, rows.X), slope, rows.total)
    own = {}
    if "noise_variance_" in fitted:
        own = {"noise_variance_": noise * fitted["noise_variance_"]}
    return own | {
        "encoder_information_": pull / noise * np.concatenate([W.T, W.T]),
        "encoder_precision_": W * np.sqrt(information / noise),
    }


def _line(inputs, seen, slope, total):
    """Coefficients, then constants, of slopes that are linear in inputs; (2 l, 1).

    total : what sums over rows.
    """
    count = np.maximum(total(seen), TINY)
    centres = total(inputs) / count, total(slope) / count
    apart = seen * (inputs - centres[0])
    coefs = total(apart * slope) / np.maximum(total(apart**2), 1e-12)
    return np.concatenate([coefs, centres[1] - coefs * centres[0]])[:, None]


def _derivatives(likelihood, rows, location):
    """Slope of each location, 0 if missing, and the information on it; arrays."""
    X = rows.X
    seen = likelihood.spread(torch.from_numpy(~np.isnan(X)))
    entries = torch.from_numpy(np.nan_to_num(X))
    with torch.no_grad():
        slope, information = likelihood.derivatives(
            entries, torch.from_numpy(location).expand(seen.shape)
        )
    slope, information, seen = (seen * slope).numpy(), information.numpy(), seen.numpy()
    return slope, rows.total(seen * information) / np.maximum(rows.total(seen), TINY)


def unexplained(X, n_components):
    """Squared distances of standardised rows from their principal components; (n,).

    NaN, which is missing, counts as 0. A component less than there are features is
    taken at most, as none would be left.
    """
    X = np.nan_to_num(X)
    n_kept = min(n_components, X.shape[1] - 1)
    distance = (X**2).sum(1)
    if n_kept:
        _, _, directions = randomized_svd(X, n_kept, random_state=0)
        distance -= ((X @ directions.T) ** 2).sum(1)
    return distance


def _principal(slope, n_components):
    """Components (k, d) of probabilistic PCA, and the variance of its noise."""
    n_samples, n_features = slope.shape
    n_kept = min(n_components, n_samples, n_features)
    _, size, directions = randomized_svd(slope, n_kept, random_state=0)
    variances = size**2 / n_samples
    rest = (slope**2).sum() / n_samples - variances.sum()
    noise = max(rest / max(1, n_features - n_kept), 1e-3 * variances.max(), 1e-6)
    W = np.zeros((n_components, n_features))
    W[:n_kept] = np.sqrt(np.maximum(variances - noise, 0))[:, None] * directions
    return W, noise
