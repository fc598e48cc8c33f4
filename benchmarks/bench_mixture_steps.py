"""Steps of EM of mixtures with gaps, and of two ways to accelerate it.

SQUAREM [1]_ extrapolates two steps of EM, in logarithms of weights, means and Cholesky
factors. Quasi-Newton steps are those of linear models, with the information of the
M-step. A step that lowers the log-likelihood is undone. Steps, seconds and final mean
log-likelihood, side by side in one run::

    OMP_NUM_THREADS=1 python benchmarks/bench_mixture_steps.py

.. [1] R. Varadhan and C. Roland, "Simple and globally convergent methods for
   accelerating the convergence of any EM algorithm", Scandinavian Journal of Statistics
   35, 2008.
"""

import time
import warnings

import numpy as np
import torch
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
)
from sklearn.preprocessing import scale

from sklearn_mpt import MPTMixture
from sklearn_mpt._fitting.acceleration import QuasiNewton
from sklearn_mpt._mixture import estimator
from sklearn_mpt._mixture.covariances import Tied
from sklearn_mpt._mixture.density import Components
from sklearn_mpt._mixture.training import EM

warnings.simplefilter("ignore")

GAPS = 0.2  # share of missing entries
MAX_RATIO = 5.0  # of a quasi-Newton step to a step of EM, as in linear models


def flat(components, covariances):
    """Return the parameters in one vector; low-rank ones as loadings and noise."""
    parts = [components.weights.log(), components.means, *covariances(components)]
    return torch.cat([part.flatten() for part in parts])


def unflat(vector, components, covariances, join):
    """Return components whose parameters stand in a vector, of the shapes of others.

    join : from the parts of covariances to covariances, loadings and noise.
    """
    parts = [components.weights, components.means, *covariances(components)]
    pieces = vector.split([part.numel() for part in parts])
    weights, means, *others = (
        piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)
    )
    return Components(weights.softmax(0), means, *join(components, *others))


def roots(components):
    """Return Cholesky factors with logarithms on the diagonal, or logarithms."""
    if components.loadings.shape[2]:
        return components.loadings, components.noise.log()
    if components.covariances.ndim == 2:
        return (components.covariances.log(),)
    root = torch.linalg.cholesky(components.covariances)
    return (root.tril(-1) + root.diagonal(dim1=1, dim2=2).log().diag_embed(),)


def from_roots(components, root, log_noise=None):
    unchanged = components.locations, components.loadings, components.noise
    if log_noise is not None:
        noise = log_noise.exp()
        low_rank = root @ root.mT + noise.diag_embed()
        return low_rank, components.locations, root, noise
    if root.ndim == 2:
        return root.exp(), *unchanged
    root = root.tril(-1) + root.diagonal(dim1=1, dim2=2).exp().diag_embed()
    return root @ root.mT, *unchanged


class Accelerated(EM):
    """EM whose steps are replaced by others, unless these lower the value."""

    def init(self, max_iter):
        super().init(max_iter)
        self._fallback, self._value = None, -np.inf
        self.restart()

    def step(self):
        statistics = self.rows.statistics(self.components)
        value = float(statistics.value) / self.rows.n_rows
        if self._fallback is not None and not value >= self._value - 1e-10:
            self.loss_curve.append(self.loss_curve[-1])  # the step that is undone
            self.components = self._fallback
            self.restart()
            statistics = self.rows.statistics(self.components)
            value = float(statistics.value) / self.rows.n_rows
        after = self.rows.moved(self.components, statistics)
        candidate = self.accelerate(after)
        self._fallback, self._value = None, value
        self.loss_curve.append(-value)
        is_valid = candidate is not None and candidate.is_finite()
        if is_valid and self.rows.step_params.layout.form.is_valid(
            candidate.covariances
        ):
            self._fallback, after = after, candidate
        self.components = after


class Squarem(Accelerated):
    def restart(self):
        self._before = None

    def accelerate(self, after):
        """Extrapolate after each second step of EM."""
        if self._before is None:
            self._before = self.components
            return None
        points = (flat(c, roots) for c in (self._before, self.components, after))
        first, second, third = points
        self._before = None
        change, curvature = second - first, third - 2 * second + first
        length = float(change.norm() / curvature.norm())
        if length <= 1:
            return None
        point = first + 2 * length * change + length**2 * curvature
        return unflat(point, after, roots, from_roots)

    def terminate(self):
        return self._fallback is None and super().terminate()


class QuasiNewtonSteps(Accelerated):
    def restart(self):
        self._memory, self._last = QuasiNewton(), None

    def _covariances(self, components):
        if components.loadings.shape[2]:
            return components.loadings, components.noise.log()
        is_tied = isinstance(self.rows.step_params.layout.form, Tied)
        return (components.covariances[: 1 if is_tied else None],)

    def _from_covariances(self, components, covariances, log_noise=None):
        if log_noise is not None:
            return from_roots(components, covariances, log_noise)
        covariances = covariances.expand_as(components.covariances)
        return covariances, components.locations, components.loadings, components.noise

    def _information(self, vector, power):
        """Multiply by the information of the M-step; divide if `power` is -1."""
        components = self.components
        parts = [components.weights, components.means, *self._covariances(components)]
        pieces = vector.split([part.numel() for part in parts])
        weights, means, *others = (
            piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)
        )
        count = self.rows.n_rows * components.weights
        spread = components.covariances
        is_full = spread.ndim == 3
        if power == 1:
            spread = torch.linalg.inv(spread) if is_full else 1 / spread

        def times(matrices, vectors):
            product = matrices @ vectors[..., None] if is_full else None
            return matrices * vectors if product is None else product[..., 0]

        results = [
            weights * count**power,
            count[:, None] ** power * times(spread, means),
        ]
        if len(others) == 2:
            of_loadings = count[:, None] / components.noise
            of_noise = (count / 2)[:, None] ** power
            results += [
                others[0] * of_loadings[..., None] ** power,
                others[1] * of_noise,
            ]
        else:
            count = count if len(others[0]) == len(count) else count.sum()[None]
            count = (count / 2).view(-1, *[1] * (spread.ndim - 1)) ** power
            spread = spread[: len(others[0])]
            product = spread @ others[0] @ spread if is_full else spread**2 * others[0]
            results.append(count * product)
        return torch.cat([result.flatten() for result in results])

    def accelerate(self, after):
        point = flat(self.components, self._covariances)
        change = flat(after, self._covariances) - point
        gradient = self._information(change, 1)
        if self._last is not None:
            self._memory.add(point - self._last[0], self._last[1], gradient)
        self._last = point, gradient
        if not len(self._memory):
            return None
        step = self._memory.direction(gradient, lambda g: self._information(g, -1))
        squares = step @ self._information(step, 1), change @ gradient
        ratio = float(squares[0] / squares[1]) ** 0.5
        if not np.isfinite(ratio):
            return None
        point = point + min(1.0, MAX_RATIO / ratio) * step
        return unflat(point, after, self._covariances, self._from_covariances)


SOLVERS = {"EM": EM, "SQUAREM": Squarem, "quasi-Newton": QuasiNewtonSteps}


def tables():
    """Names, rows, numbers of components, kinds of covariances and parameters."""
    rng = np.random.default_rng(0)
    digits = load_digits().data[:800] / 16
    digits = digits + 0.05 * rng.normal(size=digits.shape)
    roots_of_three, label = rng.normal(size=(3, 8, 8)), rng.integers(3, size=2000)
    overlap = np.einsum("nij,nj->ni", roots_of_three[label], rng.normal(size=(2000, 8)))
    overlap = overlap + rng.normal(size=(3, 8))[label]
    cancer = scale(load_breast_cancer().data)
    wide = {"reg_covar": 1e-3}
    for name, X, k, kind, params in (
        ("iris", load_iris().data, 3, "full", {}),
        ("wine", scale(load_wine().data), 3, "full", wide),
        ("wine", scale(load_wine().data), 3, "diag", {}),
        ("diabetes", scale(load_diabetes().data), 2, "full", wide),
        ("breast cancer", cancer, 3, "tied", wide),
        ("breast cancer", cancer, 4, "diag", {}),
        ("digits", digits, 4, "low_rank", {"n_factors": 4, "reg_covar": 1e-4}),
        ("overlapping", overlap, 3, "full", {}),
    ):
        X = np.where(rng.random(X.shape) < GAPS, np.nan, X)
        yield (
            f"{name}, {k} {kind}",
            X,
            MPTMixture(
                k, covariance_type=kind, objective="lml", random_state=0, **params
            ),
        )


def fitted(model, X, solver, tol):
    """Return steps, seconds and mean log-likelihood of a fit."""
    estimator.EM = solver
    start = time.process_time()
    model.set_params(tol=tol, max_iter=3000).fit(X)
    seconds = time.process_time() - start
    return f"{model.n_iter_:5d} {seconds:5.2f} {model.score(X):9.4f}"


def main():
    print("Steps, processor seconds and nats per row")
    print(f"{'':26s}" + "".join(f"{name:>21s}" for name in SOLVERS))
    for tol in (1e-4, 1e-8):
        print(f"tol={tol}")
        for name, X, model in tables():
            cells = (fitted(model, X, solver, tol) for solver in SOLVERS.values())
            print(f"{name:26s}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
