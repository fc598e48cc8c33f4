"""Time MPTProbabilisticPCA and mpt_curve against textbook code and the closed form.

Parts:

- ``curve``: `mpt_curve` against a loop that, for one random mask of every size,
  inverts the |R| x |R| observed block of the D x D covariance and averages the
  conditional log-density over rows. Both are priced per mask of every size.
- ``fit``: the default fit against (a) training by autograd through that same inverse,
  4 random masks per step over all rows, Adam with step size 0.03 / (1 + t / 100) (the
  best of the constant and decaying ones that were tried), stopped at our LML or at a
  time limit and priced at the speed of its fastest 50 steps; and (b) the closed form of
  `sklearn.decomposition.PCA` with its default solver.
- ``starts``: the default fit from random starts beside one from principal components:
  nats below the closed form, worst of four seeds, epochs and processor time.
- ``jobs``: `mpt_curve` on rows with missing values, by one worker and by two.
- ``gaps``: the default fit of rows with missing entries against EM with parameter
  expansion, in processor time and nats below the optimum; and against
  `sklearn.impute.IterativeImputer`, in time and error of imputation.
- ``stream``: 10^5 (``--million``: 10^6) rows of 50 features, 30% missing, in
  minibatches, and the memory that the fit takes beside them.
- ``wide``: 5000 complete features, against `sklearn.decomposition.PCA`.
- ``growth``: fit and curve as rows or features become more, and the variance of the
  curve's LML under the two allocations at equal cost.

Run all in about ten minutes on two cores, or some, or small versions in one minute::

    python benchmarks/bench_ppca.py
    python benchmarks/bench_ppca.py fit curve
    python benchmarks/bench_ppca.py stream --million
    python benchmarks/bench_ppca.py --quick

Competitors take turns and the fastest of several runs counts. One thread is the
default because these matrices are small: where others use the machine too, a second
torch thread makes them many times slower, and noisy (``--threads 2`` shows it).
"""

import os
import resource
import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np
import sklearn
import torch
from joblib import parallel_config
from measuring import (
    fastest,
    parse_parts,
    parser_of,
    print_machine,
    print_table,
    processor_seconds,
    seconds,
)
from scipy.stats import f as f_distribution
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
)
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale
from threadpoolctl import threadpool_limits

from sklearn_mpt import MPTCurve, MPTProbabilisticPCA, mpt_curve

try:
    from sklearn.impute import IterativeImputer
except ImportError:  # up to scikit-learn 1.9 it is experimental
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

LOG_2PI = np.log(2 * np.pi)
NOISE = 0.5  # standard deviation of the noise in simulated rows


# Measuring and printing


def times_as_long(ratio):
    """Format how many times longer something takes."""
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def set_threads(n_threads):
    """Limit torch; return the context in which the other libraries are limited."""
    torch.set_num_threads(n_threads)
    return threadpool_limits(n_threads)


# Models and data


def simulate(n_rows, n_features, n_components, seed=0):
    """Rows of a random model, and the estimator that has its parameters."""
    rng = np.random.default_rng(seed)
    components = rng.normal(size=(n_components, n_features))
    X = rng.normal(size=(n_rows, n_components)) @ components
    X += NOISE * rng.normal(size=X.shape)
    init = {
        "components": components,
        "mean": np.zeros(n_features),
        "noise_variance": NOISE**2,
    }
    model = MPTProbabilisticPCA(n_components, init=init, max_iter=0, random_state=0)
    return X, model.fit(X)


def optimal_lml(X, n_components):
    """LML of the closed-form solution (Tipping and Bishop), in nats per row."""
    values = np.linalg.eigvalsh(np.cov(X.T, bias=True))[::-1]
    noise = values[n_components:].mean()
    log_det = np.log(values[:n_components]).sum()
    log_det += (len(values) - n_components) * np.log(noise)
    return -0.5 * (len(values) * (LOG_2PI + 1) + log_det)


# Part 1: the curve


def textbook_conditional(X, hidden, covariance, mean):
    """Return log p(x_j | x_R) of the hidden features, through the inverse of C_RR."""
    seen = ~hidden
    gain = covariance[np.ix_(hidden, seen)] @ np.linalg.inv(
        covariance[np.ix_(seen, seen)]
    )
    expected = mean[hidden] + (X[:, seen] - mean[seen]) @ gain.T
    variance = covariance.diagonal()[hidden] - np.einsum(
        "ij,ij->i", gain, covariance[np.ix_(hidden, seen)]
    )
    return -0.5 * (
        LOG_2PI + np.log(variance) + (X[:, hidden] - expected) ** 2 / variance
    )


def textbook_sweep(X, masks, model):
    """Score each mask; return the scores and the seconds that each took."""
    n_features = X.shape[1]
    covariance = model.components_.T @ model.components_
    covariance += model.noise_variance_ * np.eye(n_features)
    scores, times = np.empty(len(masks)), np.empty(len(masks))
    for i, mask in enumerate(masks):
        times[i], log_prob = seconds(
            lambda mask=mask: textbook_conditional(X, mask, covariance, model.mean_)
        )
        scores[i] = log_prob.mean()
    return scores, times


def one_mask_per_size(sizes, n_features, seed=0):
    rng = np.random.default_rng(seed)
    masks = np.zeros((len(sizes), n_features), dtype=bool)
    for mask, size in zip(masks, sizes, strict=True):
        mask[rng.permutation(n_features)[:size]] = True
    return masks


def sizes_of_loop(n_features, n_sizes):
    """All sizes, or `n_sizes` evenly spaced and the last ones, where scores fall."""
    spaced = np.linspace(1, n_features, n_sizes).round().astype(int)
    return np.union1d(spaced, np.arange(n_features - 15, n_features + 1))


def curve_case(n_features, n_rows, n_sizes, n_masks, repeats):
    """Compare on one shape."""
    X, model = simulate(n_rows, n_features, n_components=5)
    sizes = sizes_of_loop(n_features, n_sizes)
    masks = one_mask_per_size(sizes, n_features)
    calls = [
        lambda: textbook_sweep(X, masks, model),
        lambda: mpt_curve(model, X, n_masks=n_masks),
        lambda: mpt_curve(model, X, n_masks=1),
    ]
    (sweep, many, once), results = fastest(calls, repeats)
    (scores, times), curve, _ = results
    every_size = np.interp(np.arange(1, n_features + 1), sizes, times)
    loop, ours = sweep * every_size.sum() / times.sum(), many / n_masks
    std_errors = curve.std_errors[sizes - 1] * np.sqrt(n_masks)
    loop_curve = MPTCurve(sizes, scores, std_errors, n_features)
    noise = np.hypot(loop_curve.lml_std_error, curve.lml_std_error)
    difference = np.abs(model.mean_masked_scores(X, masks) - scores).max()
    return [
        f"{n_features}",
        f"{n_rows}",
        f"{len(sizes)}",
        f"{loop:.3f}",
        f"{ours:.5f}",
        times_as_long(loop / ours),
        f"{once:.4f}",
        times_as_long(loop / once),
        f"{loop_curve.lml:.2f}",
        f"{curve.lml:.2f}",
        f"{(loop_curve.lml - curve.lml) / noise:+.1f}",
        f"{model.score(X):.2f}",
        f"{difference:.0e}",
    ]


def bench_curve(quick):
    n_masks = 10
    cases = [  # n_features, n_rows, sizes that the loop runs, repeats
        (50, 100, 50, 3),
        (50, 10000, 50, 3),
        (200, 100, 200, 3),
        (200, 10000, 200, 2),
        (512, 100, 512, 2),
        (512, 10000, 20, 2),
    ]
    if quick:
        cases = [(50, 100, 50, 3), (50, 10000, 50, 2), (200, 100, 200, 2)]
    rows = [curve_case(*case[:3], n_masks, case[3]) for case in cases]
    print_table(
        "curve: seconds per mask of every size, K = 5, known parameters. 'P=1' is "
        "mpt_curve with one mask\nper size in all, the others share a call of "
        f"P = {n_masks}. Where the loop ran fewer sizes than D, its time\nand LML are "
        "interpolated. z: difference of the LMLs in standard errors; 'same' is the "
        "largest\ndifference of the scores on the loop's own masks.",
        "D|N|sizes|loop s|ours s|ratio|P=1 s|ratio|loop LML|our LML|z|exact LML|same",
        rows,
    )


# Part 2: the fit


class TextbookPPCA:
    """Masked training by autograd through the |R| x |R| inverse."""

    n_masks = 4
    check_every = 50  # steps

    def __init__(self, X, n_components, seed):
        self.X = torch.tensor(X)
        self.rng = np.random.default_rng(seed)
        self.moments = X.mean(axis=0), np.cov(X.T, bias=True)
        variance = np.trace(self.moments[1]) / X.shape[1]
        components = self.rng.normal(size=(X.shape[1], n_components))
        self.parameters = [
            torch.tensor(components * np.sqrt(variance / n_components)),
            torch.tensor(self.moments[0]),
            torch.tensor(np.log(variance)),
        ]
        for parameter in self.parameters:
            parameter.requires_grad_()
        self.optimizer = torch.optim.Adam(self.parameters)
        self.n_steps = 0

    def covariance(self):
        components, mean, log_noise = self.parameters
        eye = torch.eye(len(mean), dtype=mean.dtype)
        return components @ components.T + log_noise.exp() * eye

    def loss(self):
        """Minus D times the mean score of one mask of each of a few sizes."""
        n_features, covariance, total = self.X.shape[1], self.covariance(), 0.0
        quantiles = np.arange(self.n_masks) + self.rng.random(self.n_masks)
        for size in 1 + (quantiles / self.n_masks * n_features).astype(int):
            order = torch.from_numpy(self.rng.permutation(n_features))
            total = total + self.score(covariance, order[:size], order[size:])
        return -n_features * total / self.n_masks

    def score(self, covariance, hidden, seen):
        mean = self.parameters[1]
        cross = covariance[hidden][:, seen]
        gain = cross @ torch.linalg.inv(covariance[seen][:, seen])
        expected = mean[hidden] + (self.X[:, seen] - mean[seen]) @ gain.T
        variance = covariance.diagonal()[hidden] - (gain * cross).sum(1)
        error = (self.X[:, hidden] - expected) ** 2
        return -0.5 * (LOG_2PI + variance.log() + error / variance).mean()

    def steps(self):
        for _ in range(self.check_every):
            self.optimizer.param_groups[0]["lr"] = 0.03 / (1 + self.n_steps / 100)
            self.optimizer.zero_grad()
            self.loss().backward()
            self.optimizer.step()
            self.n_steps += 1

    @torch.no_grad()
    def lml(self):
        covariance = self.covariance().numpy()
        mean, second = self.moments
        offset = mean - self.parameters[1].numpy()
        second = second + np.outer(offset, offset)
        distance = np.trace(np.linalg.solve(covariance, second))
        log_det = np.linalg.slogdet(covariance)[1]
        return -0.5 * (len(mean) * LOG_2PI + log_det + distance)

    def train(self, target, limit):
        """Train until the LML is `target`, or `limit` seconds; return cost and LML."""
        times = []
        while sum(times) < limit and (not times or self.lml() < target):
            times.append(seconds(self.steps)[0])
        return len(times) * min(times), self.lml()


def fit_datasets():
    return {
        "digits/16": (load_digits().data / 16, 10),
        "breast cancer": (scale(load_breast_cancer().data), 10),
        "simulated": (simulate(2000, 10, n_components=2)[0], 2),
    }


def time_fits(X, n_components, seeds, repeats):
    """Fit each seed in turn with the closed form; return models, times, both PCAs."""
    models = [MPTProbabilisticPCA(n_components, random_state=s) for s in seeds]
    pca = PCA(n_components)
    closed, ours = [], []
    for _ in range(repeats):
        ours.append([seconds(lambda m=m: m.fit(X))[0] for m in models])
        closed.append(fastest([lambda: pca.fit(X)], 20)[0][0])
    return models, np.median(np.min(ours, axis=0)), min(closed), pca._fit_svd_solver


def fit_case(name, X, n_components, limit, repeats, seeds):
    """Compare on one data set."""
    models, ours, closed, solver = time_fits(X, n_components, seeds, repeats)
    best = optimal_lml(X, n_components)
    lmls = [model.score(X) for model in models]
    cost, reached = TextbookPPCA(X, n_components, seed=0).train(min(lmls), limit)
    more = "" if reached >= min(lmls) else ">"
    n_iter = np.median([model.n_iter_ for model in models])
    return [
        name,
        f"{len(X)}x{X.shape[1]}",
        f"{n_components}",
        f"{best - np.median(lmls):.1e}",
        f"{best - min(lmls):.1e}",
        f"{n_iter:.0f}",
        f"{ours:.2f}",
        f"{1000 * closed:.2f}",
        solver,
        f"{ours / closed:.0f}",
        f"{more}{cost:.1f}",
        f"{best - reached:.1e}",
        more + times_as_long(cost / ours),
    ]


def bench_fit(quick):
    limit, repeats, n_seeds = (2, 1, 1) if quick else (30, 3, 3)
    rows = [
        fit_case(name, X, n_components, limit, repeats, range(n_seeds))
        for name, (X, n_components) in fit_datasets().items()
    ]
    print_table(
        f"fit: default MPTProbabilisticPCA with {n_seeds} seed(s) (gap to the "
        "closed-form LML in nats per row:\nmedian and worst; epochs and seconds: "
        "median), sklearn PCA, and the textbook loop, which stops\nat our worst LML or "
        f"after {limit} s ('>'). 'x PCA': our time in closed-form fits; 'x fit': the\n"
        "loop's time in our fits.",
        "data|shape|K|gap|worst|epochs|fit s|PCA ms|solver|x PCA|loop s|loop gap|x fit",
        rows,
    )


# Part 3: workers


@dataclass
class Workers:
    """A way to run `mpt_curve`."""

    n_jobs: int
    backend: str
    n_threads: int

    def run(self, model, X, sizes):
        before = torch.get_num_threads()
        with set_threads(self.n_threads), parallel_config(backend=self.backend):
            curve = mpt_curve(
                model,
                X,
                mask_sizes=sizes,
                n_masks=2,
                random_state=0,
                n_jobs=self.n_jobs,
            )
        torch.set_num_threads(before)
        return curve


def bench_starts(quick):
    """Random starts beside the principal components, weak components included."""
    tables = {"iris": load_iris, "wine": load_wine, "diabetes": load_diabetes}
    tables |= {} if quick else {"breast cancer": load_breast_cancer}
    rows = []
    for name, load in tables.items():
        X = load().data
        for n_components in (2, 3, 5, 8, 12, X.shape[1] - 1):
            if n_components < X.shape[1]:
                rows.append(start_case(name, X, n_components))
    header = "rows|K|nats short|epochs|from components|seconds"
    print_table("Random starts, worst of four seeds", header, rows)


def start_case(name, X, n_components):
    exact = MPTProbabilisticPCA(n_components, init="pca", max_iter=0).fit(X)
    near = MPTProbabilisticPCA(n_components, init="pca", random_state=0).fit(X)
    fits, spent = [], []
    for seed in range(4):
        model = MPTProbabilisticPCA(n_components, random_state=seed)
        spent.append(processor_seconds(lambda model=model: model.fit(X))[0])
        fits.append(model)
    short = max(exact.score(X) - model.score(X) for model in fits)
    epochs = max(model.n_iter_ for model in fits)
    numbers = f"{short:.5f}", str(epochs), str(near.n_iter_), f"{max(spent):.2f}"
    return [name, str(n_components), *numbers]


def bench_jobs(quick):
    n_features, n_rows, n_sizes = (200, 500, 10) if quick else (200, 2000, 20)
    X, model = simulate(n_rows, n_features, n_components=10)
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    sizes = np.linspace(1, n_features, n_sizes).round().astype(int)
    ways = [
        Workers(1, "loky", 1),
        Workers(1, "loky", 2),
        Workers(2, "loky", 1),
        Workers(2, "threading", 1),
    ]
    cold, _ = seconds(lambda: ways[2].run(model, X, sizes))
    calls = [lambda way=way: way.run(model, X, sizes) for way in ways]
    times, curves = fastest(calls, 1 if quick else 2)
    scores = curves[0].scores
    rows = [
        [
            f"{way.n_jobs}",
            way.backend if way.n_jobs > 1 else "none",
            f"{way.n_threads}",
            f"{elapsed:.2f}",
            f"{times[0] / elapsed:.2f}",
            f"{np.abs(curve.scores / scores - 1).max():.0e}",
        ]
        for way, elapsed, curve in zip(ways, times, curves, strict=True)
    ]
    print_table(
        f"jobs: mpt_curve with D = {n_features}, N = {n_rows}, K = 10, 10% missing, "
        f"{2 * n_sizes} masks; 'difference'\nis the largest relative one of the scores "
        f"from the first row. The first loky call took {cold:.1f} s.",
        "n_jobs|backend|threads|seconds|speed-up|difference",
        rows,
    )


# Part 4: rows with gaps


def with_gaps(X, share, seed=0):
    gone = np.random.default_rng(seed).random(X.shape) < share
    return np.where(gone, np.nan, X)


class EM:
    """EM with parameter expansion on rows with missing entries."""

    def __init__(self, X, n_components, seed=0):
        self.present = (~np.isnan(X)).astype(float)
        self.X = X
        self.values = np.nan_to_num(X)
        rng = np.random.default_rng(seed)
        self.W = np.nanstd(X) * rng.normal(size=(X.shape[1], n_components))
        self.W /= np.sqrt(n_components)
        self.mean, self.noise = np.nanmean(X, axis=0), np.nanvar(X)

    def step(self):
        n_rows, K = len(self.X), self.W.shape[1]
        outer = (self.W[:, :, None] * self.W[:, None]).reshape(-1, K * K)
        precision = np.eye(K) + (self.present @ outer).reshape(-1, K, K) / self.noise
        C = np.linalg.inv(precision)
        residual = (self.values - self.mean) * self.present
        z = (C @ (residual @ self.W / self.noise)[..., None])[..., 0]
        second = np.empty((n_rows, K + 1, K + 1))
        second[:, :K, :K] = C + z[:, :, None] * z[:, None]
        second[:, :K, K] = second[:, K, :K] = z
        second[:, K, K] = 1
        sums = (self.present.T @ second.reshape(n_rows, -1)).reshape(-1, K + 1, K + 1)
        moments = self.values.T @ second[:, K]
        B = np.linalg.solve(sums, moments[..., None])[..., 0]
        squares = np.sum(self.values**2) - np.sum(B * moments)
        self.noise = squares / self.present.sum()
        centre = z.mean(axis=0)
        spread = second[:, :K, :K].mean(axis=0) - np.outer(centre, centre)
        self.mean = B[:, K] + B[:, :K] @ centre
        self.W = B[:, :K] @ np.linalg.cholesky(spread)

    def lml(self):
        init = {
            "components": self.W.T,
            "mean": self.mean,
            "noise_variance": self.noise,
        }
        model = MPTProbabilisticPCA(self.W.shape[1], init=init, max_iter=0)
        return model.fit(self.X).score(self.X)

    def climb(self, n_steps=400, least=1e-7):
        """Return the processor time and the LML of each step until it gains nothing."""
        spent, trace = 0.0, []
        while len(trace) < n_steps:
            spent += processor_seconds(self.step)[0]
            trace.append((spent, self.lml()))
            if len(trace) > 5 and trace[-1][1] - trace[-2][1] < least:
                break
        return np.array(trace)


def gap_case(name, X, n_components, share):
    """Compare with EM, and imputations with those of IterativeImputer."""
    gappy = with_gaps(X, share)
    trace = EM(gappy, n_components).climb()
    best = trace[-1, 1]
    em = trace[trace[:, 1] > best - 1e-3][0, 0]
    model = MPTProbabilisticPCA(n_components, random_state=0)
    ours, _ = processor_seconds(lambda: model.fit(gappy))
    imputer = IterativeImputer(max_iter=5, random_state=0)
    iterative, filled = processor_seconds(lambda: imputer.fit_transform(gappy))
    gone = np.isnan(gappy)
    errors = [
        np.sqrt(np.mean((result - X)[gone] ** 2)) / np.std(X)
        for result in (model.impute(gappy), filled)
    ]
    return [
        name,
        f"{len(X)}x{X.shape[1]}",
        f"{n_components}",
        f"{share:.0%}",
        f"{best - model.score(gappy):.1e}",
        f"{model.n_iter_}",
        f"{ours:.2f}",
        f"{em:.2f}",
        times_as_long(ours / em),
        f"{iterative:.2f}",
        f"{errors[0]:.3f}",
        f"{errors[1]:.3f}",
    ]


def bench_gaps(quick):
    digits = load_digits().data / 16
    cases = [
        ("digits", digits, 10, 0.1),
        ("digits", digits, 10, 0.3),
        ("digits", digits, 10, 0.6),
        ("breast cancer", scale(load_breast_cancer().data), 5, 0.3),
        ("simulated", simulate(2000, 100, 20)[0], 20, 0.3),
        ("simulated", simulate(20000, 50, 5)[0], 5, 0.3),
    ]
    rows = [gap_case(*case) for case in (cases[1:4:2] if quick else cases)]
    print_table(
        "gaps: default fit (nats per row below the optimum, epochs, processor s), "
        "EM\nto 0.001 nats, and IterativeImputer with 5 rounds. Errors of imputed "
        "entries in standard deviations of all.",
        "data|shape|K|gone|gap|epochs|fit s|EM s|x EM|imputer s|our error|its error",
        rows,
    )


def bench_stream(quick, n_rows=10**5):
    n_rows = 10**4 if quick else n_rows
    X, known = simulate(n_rows, 50, n_components=5)
    X[np.random.default_rng(0).random(X.shape) < 0.3] = np.nan
    rows = [stream_case(X, known, batch_size) for batch_size in (4096, "auto")]
    print_table(
        f"stream: default fit of {n_rows} x 50 rows, K = 5, 30% missing. 'above truth' "
        "is the LML less that of\nthe parameters that made the rows; peak is what the "
        "process took more than before the fit.",
        "batch_size|epochs|processor s|s/epoch|above truth|MB of X|peak MB more",
        rows,
    )


def stream_case(X, known, batch_size):
    model = MPTProbabilisticPCA(5, batch_size=batch_size, random_state=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    elapsed, _ = processor_seconds(lambda: model.fit(X))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return [
        f"{batch_size}",
        f"{model.n_iter_}",
        f"{elapsed:.1f}",
        f"{elapsed / model.n_iter_:.2f}",
        f"{model.score(X) - known.score(X):.1e}",
        f"{X.nbytes / 1e6:.0f}",
        f"{peak / 1e3:.0f}",
    ]


def bench_wide(quick):
    n_rows, n_features = (500, 1000) if quick else (1000, 5000)
    X, _ = simulate(n_rows, n_features, n_components=5)
    model = MPTProbabilisticPCA(5, random_state=0)
    ours, _ = processor_seconds(lambda: model.fit(X))
    solvers = ["full", "randomized"]
    pcas = [PCA(5, svd_solver=solver, random_state=0) for solver in solvers]
    times = [processor_seconds(lambda p=p: p.fit(X))[0] for p in pcas]
    values = np.linalg.svd(X - X.mean(axis=0), compute_uv=False) ** 2 / n_rows
    values = np.append(values, np.zeros(n_features - len(values)))
    noise = values[5:].mean()
    log_det = np.log(values[:5]).sum() + (n_features - 5) * np.log(noise)
    best = -0.5 * (n_features * (LOG_2PI + 1) + log_det)
    row = [f"{n_rows}x{n_features}", f"{best - model.score(X):.1e}", f"{model.n_iter_}"]
    row += [f"{t:.2f}" for t in (ours, *times)]
    print_table(
        "wide: default fit of complete rows with K = 5 (nats per row below the closed "
        "form, processor seconds).",
        "shape|gap|epochs|fit s|PCA full s|PCA randomized s",
        [row],
    )


# Part 5: growth


def growth_case(n_rows, n_features, repeats):
    X, known = simulate(n_rows, n_features, n_components=5)
    model = MPTProbabilisticPCA(5, random_state=0)
    (fit, curve), _ = fastest(
        [lambda: model.fit(X), lambda: mpt_curve(known, X, n_masks=1)], repeats
    )
    return [
        f"{n_rows}",
        f"{n_features}",
        f"{optimal_lml(X, 5) - model.score(X):.1e}",
        f"{model.n_iter_}",
        f"{fit:.2f}",
        f"{1000 * fit / model.n_iter_:.2f}",
        f"{curve:.4f}",
        f"{1e6 * curve / n_features:.0f}",
    ]


def bench_growth(quick):
    row_counts = [100, 10000] if quick else [100, 1000, 10000, 100000]
    feature_counts = [10, 100] if quick else [10, 30, 100, 300, 1000]
    shapes = [(n_rows, 50) for n_rows in row_counts]
    shapes += [(1000, n_features) for n_features in feature_counts]
    rows = [
        growth_case(*shape, 1 if quick or shape[1] > 500 else 2) for shape in shapes
    ]
    print_table(
        "growth: default fit with K = 5 (gap to the closed-form LML in nats per row), "
        "and mpt_curve\nwith one mask per size.",
        "N|D|gap|epochs|fit s|ms/epoch|curve s|us/mask",
        rows,
    )
    bench_allocation(20 if quick else 60)


def bench_allocation(n_seeds, n_masks=10):
    X, model = simulate(40, 150, n_components=5)
    rules = ["equal", "neyman"]

    def measure(rule, seed):
        options = {"design": "independent", "allocation": rule}
        return mpt_curve(model, X, n_masks=n_masks, random_state=seed, **options)

    runs = [
        [seconds(lambda r=rule, s=seed: measure(r, s)) for rule in rules]
        for seed in range(n_seeds)
    ]
    exact = model.score(X)
    rows = [
        allocation_row(rule, [turn[i] for turn in runs], exact)
        for i, rule in enumerate(rules)
    ]
    variances = [np.var([turn[i][1].lml for turn in runs], ddof=1) for i in range(2)]
    ratio = variances[0] / variances[1]
    low, high = f_distribution.ppf([0.025, 0.975], n_seeds - 1, n_seeds - 1)
    print_table(
        f"allocation: LML of 40 rows, D = 150, K = 5, known parameters, P = {n_masks}, "
        f"{n_seeds} seeds. Variance ratio\nequal / neyman: {ratio:.2f}, 95% interval "
        f"{ratio / high:.2f} to {ratio / low:.2f} (if normal).",
        "allocation|bias/se|sd|reported|seconds",
        rows,
    )


def allocation_row(rule, runs, exact):
    lmls = np.array([curve.lml for _, curve in runs])
    sd = lmls.std(ddof=1)
    reported = np.sqrt(np.mean([curve.lml_std_error**2 for _, curve in runs]))
    return [
        rule,
        f"{(lmls.mean() - exact) / (sd / np.sqrt(len(lmls))):+.1f}",
        f"{sd:.4f}",
        f"{reported:.4f}",
        f"{min(elapsed for elapsed, _ in runs):.3f}",
    ]


PARTS = {
    "curve": bench_curve,
    "fit": bench_fit,
    "starts": bench_starts,
    "jobs": bench_jobs,
    "gaps": bench_gaps,
    "stream": bench_stream,
    "wide": bench_wide,
    "growth": bench_growth,
}


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="small versions")
    parser.add_argument("--million", action="store_true", help="rows of part stream")
    parser.add_argument("--threads", type=int, default=1, help="of torch and BLAS")
    arguments = parse_parts(parser, PARTS)
    if arguments.million:
        PARTS["stream"] = partial(bench_stream, n_rows=10**6)
    return arguments


def warm_up():
    """Let torch import what it imports on first use."""
    X, model = simulate(50, 5, n_components=2)
    MPTProbabilisticPCA(random_state=0).fit(X)
    mpt_curve(model, X)


def main():
    arguments = parse_arguments()
    warnings.simplefilter("ignore", ConvergenceWarning)
    with set_threads(arguments.threads):
        print_machine(sklearn)
        warm_up()
        for part in arguments.parts:
            elapsed, _ = seconds(lambda part=part: PARTS[part](arguments.quick))
            load = os.getloadavg()[0]
            print(f"({part}: {elapsed:.0f} s, load {load:.1f})", flush=True)


if __name__ == "__main__":
    main()
