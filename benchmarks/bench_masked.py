"""The masked autoencoder beside other models, at equal processor time.

Held-out nats per row of models that had as many seconds of one core each. What a model
does not take, it skips: MADE is for 0 and 1, GaussianMixture for numbers::

    OMP_NUM_THREADS=1 python benchmarks/bench_masked.py             # minutes
    OMP_NUM_THREADS=1 python benchmarks/bench_masked.py --small     # one minute
    OMP_NUM_THREADS=1 python benchmarks/bench_masked.py --fits      # default fits
    OMP_NUM_THREADS=1 python benchmarks/bench_masked.py --sites     # or zeros and ones
    OMP_NUM_THREADS=1 python benchmarks/bench_masked.py --long      # rows of 60 sites
    OMP_NUM_THREADS=1 python benchmarks/bench_masked.py --patience  # before the end
"""

import argparse
import itertools
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
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import scale
from torch.nn import functional

from sklearn_mpt import (
    MPTDeepVAE,
    MPTDependencyNetwork,
    MPTMaskedAutoencoder,
    MPTMixture,
)

warnings.simplefilter("ignore")


def chain(n_samples=2000, n_sites=40):
    """Sites with three states, one-hot: most are like the site before."""
    rng = np.random.default_rng(0)
    state = np.empty((n_samples, n_sites), dtype=int)
    state[:, 0] = rng.integers(0, 3, n_samples)
    for j in range(1, n_sites):
        is_new = rng.random(n_samples) < 0.15
        state[:, j] = np.where(is_new, rng.integers(0, 3, n_samples), state[:, j - 1])
    return np.eye(3)[state].reshape(n_samples, -1)


def ring(n_samples=2000):
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, 2 * np.pi, n_samples)
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    return points + 0.1 * rng.normal(size=points.shape)


def numbers(n_samples=1400, n_columns=20, n_factors=5):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n_samples, n_factors))
    X = np.tanh(z @ rng.normal(size=(n_factors, n_columns)))
    return X + 0.2 * rng.normal(size=X.shape)


def mixed(n_samples=900):
    """Four curved numbers, four columns of 0 and 1, two of three categories."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=(n_samples, 2))
    waves = np.sin(1.5 * z @ rng.normal(size=(2, 4)))
    waves += 0.3 * rng.normal(size=waves.shape)
    logits = 2 * z @ rng.normal(size=(2, 4)) + rng.logistic(size=waves.shape)
    location = z @ rng.normal(size=(2, 2)) + rng.normal(size=(n_samples, 2))
    X = np.column_stack([waves, logits > 0, np.digitize(location, [-1, 1])])
    return X.astype(float)


def tables_of_fits():
    """Names, kinds, rows, and how many of them are held out."""
    yield "numbers", "gaussian", numbers(), 400
    yield "cancer", "gaussian", scale(load_breast_cancer().data), 0.25
    yield "wine", "gaussian", scale(load_wine().data), 0.25
    yield "diabetes", "gaussian", scale(load_diabetes().data), 0.25
    yield "iris", "gaussian", scale(load_iris().data), 0.25
    yield "ring", "gaussian", ring(1400), 400
    yield "digits", "bernoulli", (load_digits().data[:, ::2] > 7).astype(float), 400
    kinds = ["gaussian"] * 4 + ["bernoulli"] * 4 + ["categorical"] * 2
    yield "mixed", kinds, mixed(), 0.25
    yield "sites", "bernoulli", chain(900, 20), 0.25


def print_fits(seed=0):
    """Print held-out nats, seconds and epochs of default fits to 1000 rows at most."""
    for name, kind, X, n_test in tables_of_fits():
        train, test = train_test_split(X, test_size=n_test, random_state=seed)
        started = time.process_time()
        model = MPTMaskedAutoencoder(likelihood=kind, random_state=seed)
        model.fit(train[:1000])
        seconds = time.process_time() - started
        print(
            f"{name:10s}{model.score(test):9.3f} {seconds:5.1f} s {model.n_iter_:5d}",
            flush=True,
        )


N_STATES = 4


def sites_of_chain(n_rows, rng, n_sites=20):
    """Sites whose state depends on that of the site before."""
    given = rng.dirichlet(np.full(N_STATES, 0.4), size=(n_sites, N_STATES))
    states = [rng.integers(N_STATES, size=n_rows)]
    for j in range(1, n_sites):
        states.append(drawn(given[j][states[-1]], rng))
    return np.column_stack(states)


def sites_of_tree(n_rows, rng, sizes=(6, 20)):
    """Sites at the ends of a tree of hidden states, with so many on each level."""
    level = [rng.integers(N_STATES, size=n_rows)]
    for size in sizes:
        above = np.arange(size) * len(level) // size
        given = rng.dirichlet(np.full(N_STATES, 0.4), size=(size, N_STATES))
        level = [
            drawn(part[level[j]], rng) for part, j in zip(given, above, strict=True)
        ]
    return np.column_stack(level)


def sites_of_splices(n_rows, rng, n_sites=60):
    """Chains around the start of an intron, around its end, or neither."""
    exon = rng.dirichlet(np.full(4, 5.0), size=4)
    intron = rng.dirichlet([2.0, 1, 1, 4], size=4)
    kind, middle = rng.integers(3, size=n_rows), n_sites // 2
    states = np.empty((n_rows, n_sites), dtype=int)
    states[:, 0] = rng.integers(4, size=n_rows)
    for j in range(1, n_sites):
        is_intron = kind == (1 if j < middle else 0)
        prob = np.where(
            is_intron[:, None], intron[states[:, j - 1]], exon[states[:, j - 1]]
        )
        states[:, j] = drawn(prob, rng)
    # letters that are kept by sites before and after the start, one side for the other
    is_start, is_end = kind == 0, kind == 1
    left = rng.random(n_rows) < 0.5
    for place, letter in enumerate([0, 0, 2, 2, 3, 0, 0, 2, 3], start=-3):
        share = np.where(left == (place < 0), 0.9, 0.45)
        share = 0.99 if place in (0, 1) else share
        is_kept = is_start & (rng.random(n_rows) < share)
        states[is_kept, middle + place] = letter
    # a tract of two letters of any length, then the end
    length = rng.integers(6, 16, size=n_rows)
    for place in range(-18, -3):
        is_tract = is_end & (place >= -3 - length) & (rng.random(n_rows) < 0.8)
        letter = np.where(rng.random(n_rows) < 0.6, 3, 1)
        states[is_tract, middle + place] = letter[is_tract]
    for place, letter in enumerate([1, 0, 2, 2], start=-3):
        is_kept = is_end & (rng.random(n_rows) < (0.99 if place in (-2, -1) else 0.65))
        states[is_kept, middle + place] = letter
    return states


def greys(n_rows, rng):
    """Digits in four greys, of pixels that are not always white."""
    codes = np.digitize(load_digits().data, [1, 6, 12])
    codes = codes[:, (codes > 0).mean(0) > 0.01]
    return rng.permutation(codes)[:n_rows]


def drawn(prob, rng):
    return (rng.random((len(prob), 1)) > prob[:, :-1].cumsum(1)).sum(1)


def print_sites(n_train=500, n_test=300, seeds=2):
    """Print nats per row of sites as categories, and as zeros and ones for states."""
    print(f"{'':10s}{'categories':>12s}{'s':>6s}{'zeros, ones':>14s}{'s':>6s}")
    for make in (sites_of_chain, sites_of_tree):
        for seed in range(seeds):
            rows = make(n_train + n_test, np.random.default_rng(seed))
            line = f"{make.__name__.removeprefix('sites_of_'):10s}"
            for X, kind in ((rows, "categorical"), (indicators(rows), "bernoulli")):
                start, X = time.process_time(), X.astype(float)
                model = MPTMaskedAutoencoder(likelihood=kind, random_state=0)
                score = model.fit(X[:n_train]).score(X[n_train:])
                line += f"{score:13.3f}{time.process_time() - start:6.1f}"
            print(line, flush=True)


def indicators(rows):
    """Zeros and ones for all states but the first."""
    return (rows[..., None] == np.arange(1, N_STATES)).reshape(len(rows), -1)


def tables_of_sites(n_rows):
    """Names and codes of long rows."""
    rng = np.random.default_rng(0)
    yield "hidden tree", sites_of_tree(n_rows, rng, (4, 16, 60))
    yield "splices", sites_of_splices(n_rows, rng)
    yield "greys of digits", greys(n_rows, rng)


def print_long_rows(n_train=1600, n_test=400):
    """Print nats per row, and seconds of fits, of models of long rows of categories.

    The autoencoder also gets zeros and ones for states. The number of components of a
    mixture is the best of four for the rows held out.
    """
    print(f"{'nats per row, seconds':22s}{'zeros, ones':>18s}", end="")
    print(f"{'categories':>18s}{'network':>18s}{'mixture':>18s}")
    for name, rows in tables_of_sites(n_train + n_test):
        line = f"{name:15s}{len(rows) - n_test:5d} x{rows.shape[1]:3d}"
        models = [MPTMaskedAutoencoder(likelihood="bernoulli", random_state=0)]
        how = {"likelihood": "categorical", "random_state": 0}
        models += [MPTMaskedAutoencoder(**how), MPTDependencyNetwork(**how)]
        for k, model in enumerate(models):
            X = (rows if k else indicators(rows)).astype(float)
            line += "{:12.3f}{:6.1f}".format(*score_and_seconds(model, X, n_test))
        X, sizes = rows.astype(float), (5, 10, 20, 40)
        mixtures = [MPTMixture(size, **how) for size in sizes]
        found = [score_and_seconds(model, X, n_test) for model in mixtures]
        print(line + "{:12.3f}{:6.1f}".format(*max(found)), flush=True)


def score_and_seconds(model, X, n_test):
    """Mean log-probability of the last rows, and seconds of a fit to the others."""
    started = time.process_time()
    model.fit(X[:-n_test])
    seconds = time.process_time() - started
    return model.score(X[-n_test:]), seconds


PATIENCE = 5, 10, 15, 20


def print_patience(seed=0):
    """Print held-out nats, seconds and epochs by `n_iter_no_change`."""
    print(f"{'':20s}" + "".join(f"{n:23d}" for n in PATIENCE))
    for name, kind, X, n_test in tables_of_fits():
        train, test = train_test_split(X, test_size=n_test, random_state=seed)
        rows = np.concatenate([train[:1000], test])
        line = f"{name:10s}{len(rows) - len(test):5d} x{X.shape[1]:3d}"
        for n_epochs in PATIENCE:
            how = {"n_iter_no_change": n_epochs, "random_state": seed}
            model = MPTMaskedAutoencoder(likelihood=kind, **how)
            score, seconds = score_and_seconds(model, rows, len(test))
            line += f"{score:12.3f}{seconds:6.1f}{model.n_iter_:5d}"
        print(line, flush=True)


def tables(small):
    """Names, kinds and rows."""
    yield "ring", "gaussian", ring()
    yield "chain of sites, one-hot", "bernoulli", chain()
    if small:
        return
    yield "binary digits", "bernoulli", (load_digits().data > 7).astype(float)
    yield "breast cancer", "gaussian", scale(load_breast_cancer().data)
    yield "wine", "gaussian", scale(load_wine().data)


def within(make, train, seconds):
    """Fit a model with as many epochs as there is time for."""
    started = time.process_time()
    make(max_iter=1).fit(train)
    once = time.process_time() - started
    make(max_iter=3).fit(train)
    epoch = max((time.process_time() - started - 2 * once) / 2, 1e-4)
    left = seconds - (time.process_time() - started)
    return make(max_iter=max(1, int(left / epoch))).fit(train)


def masked(kind, train, test, seconds):
    def make(max_iter):
        return MPTMaskedAutoencoder(likelihood=kind, max_iter=max_iter, random_state=0)

    return within(make, train, seconds).score(test)


def deep(kind, train, test, seconds):
    def make(max_iter):
        return MPTDeepVAE(2, likelihood=kind, max_iter=max_iter, random_state=0)

    return within(make, train, seconds).score(test)


class MADE(torch.nn.Module):
    """Logits of each feature given those before it, by layers with masks."""

    def __init__(self, n_features, width=256):
        super().__init__()
        degrees = torch.arange(1, n_features + 1)
        hidden = torch.randint(1, max(2, n_features), (2, width)).sort(1).values
        sizes = [degrees, hidden[0], hidden[1], degrees]
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(len(a), len(b)) for a, b in itertools.pairwise(sizes)
        )
        masks = [
            hidden[0][:, None] >= degrees,
            hidden[1][:, None] >= hidden[0],
            degrees[:, None] > hidden[1],
        ]
        for i, mask in enumerate(masks):
            self.register_buffer(f"mask_{i}", mask.float())

    def forward(self, X):
        h = X
        for i, layer in enumerate(self.layers):
            mask = getattr(self, f"mask_{i}")
            h = functional.linear(h, layer.weight * mask, layer.bias)
            h = functional.relu(h) if i < 2 else h
        return functional.logsigmoid((2 * X - 1) * h).sum(1)


def made(kind, train, test, seconds):
    """Adam until the time is over; the weights that suit validation rows best."""
    if kind != "bernoulli":
        return np.nan
    started = time.process_time()
    torch.manual_seed(0)
    train, test = (torch.tensor(X, dtype=torch.float32) for X in (train, test))
    validation, train = train[: len(train) // 10], train[len(train) // 10 :]
    net, best, score = MADE(train.shape[1]), -np.inf, np.nan
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    while time.process_time() - started < seconds:
        for rows in train[torch.randperm(len(train))].split(64):
            optimizer.zero_grad()
            (-net(rows).mean()).backward()
            optimizer.step()
        with torch.no_grad():
            if net(validation).mean() > best:
                best, score = net(validation).mean(), float(net(test).mean())
    return score


def mixture(kind, train, test, seconds):
    """The number of components by validation rows, doubled until the time is over."""
    if kind != "gaussian":
        return np.nan
    started, n_components, best, score = time.process_time(), 1, -np.inf, np.nan
    fitted, validation = train_test_split(train, test_size=0.1, random_state=0)
    while time.process_time() - started < seconds and n_components < len(fitted) // 4:
        how = {"n_components": n_components, "reg_covar": 1e-3, "random_state": 0}
        model = GaussianMixture(**how).fit(fitted)
        if model.score(validation) > best:
            best = model.score(validation)
            score = GaussianMixture(**how).fit(train).score(test)
        n_components *= 2
    return score


MODELS = {
    "masked": masked,
    "deep latent": deep,
    "MADE": made,
    "GaussianMixture": mixture,
}


PARTS = {
    "fits": print_fits,
    "sites": print_sites,
    "long": print_long_rows,
    "patience": print_patience,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--small", action="store_true", help="two tables, 6 seconds")
    parser.add_argument("--seconds", type=float, help="for each model and table")
    for part, show in PARTS.items():
        parser.add_argument(f"--{part}", action="store_true", help=show.__doc__)
    arguments = parser.parse_args()
    for part, show in PARTS.items():
        if getattr(arguments, part):
            show()
            return
    seconds = arguments.seconds or (6 if arguments.small else 12)
    print(f"Held-out nats per row after {seconds:g} processor seconds each")
    print(f"{'':26s}" + "".join(f"{name:>17s}" for name in MODELS))
    for name, kind, X in tables(arguments.small):
        train, test = train_test_split(X, test_size=0.2, random_state=0)
        found = [fit(kind, train, test, seconds) for fit in MODELS.values()]
        print(f"{name:26s}" + "".join(f"{value:17.2f}" for value in found), flush=True)


if __name__ == "__main__":
    main()
