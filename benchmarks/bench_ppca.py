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

Run all in about ten minutes on two cores, or some, or small versions in one minute::

    python benchmarks/bench_ppca.py
    python benchmarks/bench_ppca.py fit curve
    python benchmarks/bench_ppca.py --quick

Competitors take turns and the fastest of several runs counts. One thread is the
default because these matrices are small: where others use the machine too, a second
torch thread makes them many times slower, and noisy (``--threads 2`` shows it).
"""

import os
import warnings

import numpy as np
import sklearn
import torch
from measuring import (
    fastest,
    parse_parts,
    parser_of,
    print_machine,
    print_table,
    seconds,
)
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
)
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale
from threadpoolctl import threadpool_limits

from sklearn_mpt import MPTCurve, MPTProbabilisticPCA, mpt_curve

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


PARTS = {
    "curve": bench_curve,
    "fit": bench_fit,
}


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="small versions")
    parser.add_argument("--threads", type=int, default=1, help="of torch and BLAS")
    return parse_parts(parser, PARTS)


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
