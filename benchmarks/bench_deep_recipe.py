"""What each entry of the recipe of MPTDeepVAE is worth.

Tables of different kinds are fitted with the recipe that `fit` takes by default, and
with one entry changed at a time. For each table and change this prints the LML of test
rows and the processor time of the fits: of the default as they are, with the standard
deviation over seeds; of a change the mean difference of fits from the same seed, with
its standard error. An entry whose change makes a difference within the spread over
seeds on all tables is not worth a line of code. The LML is a lower bound, by samples
that 100 test rows share, which takes less time than the scores.

Tables: ``ring``, ``moons`` and ``roll`` (curves), ``answers`` (16 binary columns of a
nonlinear model), ``onehot`` (categories as 100 binary columns), ``mixed`` (numbers,
zeros and ones, categories), ``digits`` and ``digits01`` (64 pixels, real and binary),
``cancer`` and ``wine`` (standardised), ``images`` (digits of 16 x 16 pixels, with
noise), ``patches`` (17 x 17 pixels of two photographs). With ``--data``, a folder of
``debd_<name>.npz`` and ``mnist_small.npz``, also ``nltcs``, ``plants``, ``jester`` and
``mnist``::

    OMP_NUM_THREADS=1 python benchmarks/bench_deep_recipe.py [--quick] [--seeds 5]
        [--tables ring digits] [--changes relu silu] [--rows 1000] [--data folder]

``--numbers`` halves and doubles numbers of the recipe that should matter little, on
eight small tables, and prints the mean difference of LML for each of them in a column::

    OMP_NUM_THREADS=1 python benchmarks/bench_deep_recipe.py --numbers --rows 120
        --seeds 2 --max-iter 100
"""

import argparse
import os
import time
import warnings
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from bench_deep_vae import tree
from scipy.stats import sem
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_sample_images,
    load_wine,
    make_moons,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import scale

import sklearn_mpt
from sklearn_mpt import MPTDeepVAE
from sklearn_mpt._base.density import Units, as_tensor
from sklearn_mpt._deep.density import module_of
from sklearn_mpt._deep.objectives import SampleCounts
from sklearn_mpt._deep.start import CURVED, STRONGLY_CURVED, StartKind
from sklearn_mpt._deep.validation import ValidationRows
from sklearn_mpt._fitting.minibatches import TrainingRows

# Name -> entries of the recipe, and parameters of the estimator.
CHANGES = {
    "2 layers": ({"widths": (128, 128)}, {}),
    "3 layers": ({"widths": (128, 128, 128)}, {}),
    "silu": ({"activation": "silu"}, {}),
    "relu": ({"activation": "relu"}, {}),
    "one start": ({"starts": (CURVED,)}, {}),
    "no linear start": ({"starts": (CURVED, STRONGLY_CURVED, STRONGLY_CURVED)}, {}),
    "8 samples": ({"n_samples": 8}, {}),
    "64 of prior": ({"n_prior_samples": 64}, {}),
    "128 of prior": ({"n_prior_samples": 128}, {}),
    "256 of prior": ({"n_prior_samples": 256}, {}),
    "batch 32": ({"batch_size": 32}, {}),
    "batch 128": ({"batch_size": 128}, {}),
    "sets noise": ({"sets_noise": True}, {}),
    "trains noise": ({"sets_noise": False}, {}),
    "joins no rows": ({}, {"warm_start": True}),
    "rate .008": ({}, {"learning_rate": 0.008}),
    "rate .005": ({}, {"learning_rate": 0.005}),
    "rate .003": ({}, {"learning_rate": 0.003}),
}


def starts(curved=1.5, strongly_curved=4.0, linear=1.5):
    """Return the recipe with other scales of the kinds of starts."""
    several = [StartKind(strongly_curved)] * 2
    return {
        "starts": (StartKind(curved), *several, StartKind(linear, is_linear=True)),
    }


NUMBERS = {
    "no curved start": {"starts": starts()["starts"][1:]},
    "curved start 0.75": starts(curved=0.75),
    "curved start 3": starts(curved=3.0),
    "strongly curved starts 2": starts(strongly_curved=2.0),
    "strongly curved starts 8": starts(strongly_curved=8.0),
    "linear start 0.75": starts(linear=0.75),
    "linear start 3": starts(linear=3.0),
    "8 steps of an epoch": {"min_steps": 8},
    "32 steps of an epoch": {"min_steps": 32},
    "8 validation samples": {"n_validation_samples": 8},
    "32 validation samples": {"n_validation_samples": 32},
}
SMALL_TABLES = "ring moons roll answers onehot mixed cancer wine".split()


class ChangedRecipe(MPTDeepVAE):
    """A deep model some entries of whose recipe are changed."""

    changes: ClassVar[dict] = {}

    def _recipe(self, *args):
        return replace(super()._recipe(*args), **self.changes)


def ring(rng, n):
    angle = rng.uniform(0, 2 * np.pi, n)
    X = np.stack([np.cos(angle), np.sin(angle)], 1)
    return {"n_components": 1}, X + 0.05 * rng.normal(size=X.shape)


def moons(rng, n):
    seed = int(rng.integers(2**31))
    return {"n_components": 2}, make_moons(n, noise=0.06, random_state=seed)[0]


def roll(rng, n):
    angle = 1.5 * np.pi * (1 + 2 * rng.random(n))
    X = [angle * np.cos(angle) / 5, 2.1 * rng.random(n), angle * np.sin(angle) / 5]
    return {"n_components": 2}, np.stack(X, 1) + 0.1 * rng.normal(size=(n, 3))


def answers(rng, n):
    z = rng.normal(size=(n, 2)) + 3 * (rng.random((n, 1)) < 0.3) * [0, 1]
    slopes, intercept = 0.8 * rng.normal(size=(2, 16)), rng.normal(size=16)
    logits = 2.6 * np.tanh(z @ slopes) + intercept
    X = rng.random(logits.shape) < 1 / (1 + np.exp(-logits))
    return {"n_components": 3, "likelihood": "bernoulli"}, X.astype(float)


def onehot(rng, n):
    columns = np.eye(5)[tree(n, rng)[0].astype(int)].reshape(n, -1)
    return {"n_components": 4, "likelihood": "bernoulli"}, columns


def mixed(rng, n):
    z = rng.normal(size=(n, 2))
    numbers = np.sin(1.5 * z @ rng.normal(size=(2, 4))) + 0.3 * rng.normal(size=(n, 4))
    logits = 2 * z @ rng.normal(size=(2, 4)) + rng.logistic(size=(n, 4))
    codes = np.digitize(z @ rng.normal(size=(2, 2)) + rng.normal(size=(n, 2)), [-1, 1])
    kinds = ["gaussian"] * 4 + ["bernoulli"] * 4 + ["categorical"] * 2
    X = np.column_stack([numbers, logits > 0, codes])
    return {"n_components": 2, "likelihood": kinds}, X


def digits(rng, n):
    return {"n_components": 4}, load_digits().data / 16


def digits01(rng, n):
    X = (load_digits().data > 7).astype(float)
    return {"n_components": 4, "likelihood": "bernoulli"}, X


def cancer(rng, n):
    return {"n_components": 3}, scale(load_breast_cancer().data)


def wine(rng, n):
    return {"n_components": 2}, scale(load_wine().data)


def images(rng, n):
    large = np.kron(load_digits().images / 16, np.ones((2, 2))).reshape(-1, 256)
    return {"n_components": 2}, large + 0.1 * rng.normal(size=large.shape)


def patches(rng, n, side=17):
    """Means of 2 x 2 pixels, at random places."""
    photographs = [image.mean(2) / 255 for image in load_sample_images().images]
    X = []
    for _ in range(n):
        photograph = photographs[rng.integers(2)]
        row, column = (rng.integers(size - 2 * side) for size in photograph.shape)
        part = photograph[row : row + 2 * side, column : column + 2 * side]
        X.append(part.reshape(side, 2, side, 2).mean((1, 3)).ravel())
    return {"n_components": 4}, np.array(X)


TABLES = {
    made.__name__: made
    for made in (
        ring,
        moons,
        roll,
        answers,
        onehot,
        mixed,
        digits,
        digits01,
        cancer,
        wine,
        images,
        patches,
    )
}


def read_table(folder, name):
    """Return parameters, training rows and test rows of a table on disk."""
    if name == "mnist":
        arrays = np.load(os.path.join(folder, "mnist_small.npz"))
        parts = (arrays[k].reshape(-1, 784) / 255 for k in ("X_train", "X_test"))
        return {"n_components": 2}, *parts
    arrays = np.load(os.path.join(folder, f"debd_{name}.npz"))
    parts = (arrays[k].astype(float) for k in ("train", "test"))
    return {"n_components": 4, "likelihood": "bernoulli"}, *parts


def table(name, folder, n_rows):
    """Return parameters of the estimator, `n_rows` training rows, 400 test rows."""
    if name not in TABLES:
        parameters, train, test = read_table(folder, name)
        return parameters, train[:n_rows], test[:400]
    parameters, X = TABLES[name](np.random.default_rng(0), n_rows + 400)
    n_test = min(400, len(X) // 3)
    train, test = train_test_split(X, test_size=n_test, random_state=0)
    return parameters, train[:n_rows], test


def bound(model, X):
    """Return a lower bound on the mean LML of rows."""
    fitted, likelihood = vars(model), model._likelihood()
    units = Units.from_attributes(fitted, "cpu")
    rows = units.standardise(as_tensor(X, "cpu"))
    log_scale = (~rows.isnan() * units.log_scale).sum(1).mean()
    counts = SampleCounts(64, 256, model.n_components)
    module = module_of(fitted, likelihood, "cpu").float()
    rows = TrainingRows.from_arrays(rows.float())
    losses = ValidationRows(rows, 100, counts, seed=0).losses(module)
    return float(-losses.mean() - log_scale)


def results(data, changes, given, n_seeds, max_iter):
    """Return the LML of the test rows and the processor time, (n_seeds, 2)."""
    parameters, train, test = data
    estimator = type("Changed", (ChangedRecipe,), {"changes": changes})
    found = []
    for seed in range(n_seeds):
        model = estimator(random_state=seed, max_iter=max_iter, **parameters | given)
        start = time.process_time()
        model.fit(train)
        seconds = time.process_time() - start
        found.append((bound(model, test), seconds))
    return np.array(found)


def print_numbers(names, n_rows, n_seeds, max_iter):
    """Print what other numbers change, for each table in a column."""
    tables = [table(name, None, n_rows) for name in names]
    default = np.array([results(t, {}, {}, n_seeds, max_iter) for t in tables])[..., 0]
    print(" " * 24, *(f"{name:>8}" for name in names))
    for label, part in (("LML", default.mean(1)), ("spread", default.std(1, ddof=1))):
        print(f"{label:<24}", *(f"{lml:8.3f}" for lml in part), flush=True)
    for label, changes in NUMBERS.items():
        changed = [results(t, changes, {}, n_seeds, max_iter)[:, 0] for t in tables]
        gains = (np.array(changed) - default).mean(1)
        print(f"{label:<24}", *(f"{gain:+8.3f}" for gain in gains), flush=True)


def is_default(data, changes, given):
    """Return whether a change leaves the recipe of a table as it is."""
    parameters, train, _ = data
    model = MPTDeepVAE(**parameters, max_iter=0).fit(train)
    recipe = model._recipe(model._likelihood(), *train.shape)
    return not given and replace(recipe, **changes) == recipe


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows and epochs")
    parser.add_argument("--data", help="folder of tables on disk")
    parser.add_argument("--tables", nargs="*", help="default: all there are")
    parser.add_argument("--changes", nargs="*", choices=CHANGES, default=list(CHANGES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1000, help="training rows at most")
    parser.add_argument("--numbers", action="store_true", help="halve and double")
    parser.add_argument("--max-iter", type=int, default=1000, help="epochs at most")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    n_rows, n_seeds, max_iter = arguments.rows, arguments.seeds, arguments.max_iter
    if arguments.quick:
        n_rows, n_seeds, max_iter = 100, 2, 10
    on_disk = ["nltcs", "plants", "jester", "mnist"] if arguments.data else []
    print(f"sklearn_mpt {sklearn_mpt.__version__}, torch {torch.__version__}")
    print(
        f"{torch.get_num_threads()} thread(s), {n_seeds} seeds, {n_rows} rows at most"
    )
    if arguments.numbers:
        print_numbers(arguments.tables or SMALL_TABLES, n_rows, n_seeds, max_iter)
        return
    for name in arguments.tables or [*TABLES, *on_disk]:
        data = table(name, arguments.data, n_rows)
        default = results(data, {}, {}, n_seeds, max_iter)
        (lml, seconds), (spread, _) = default.mean(0), default.std(0, ddof=1)
        shape = " x ".join(map(str, data[1].shape))
        print(
            f"\n{name} ({shape}): LML {lml:.3f} (spread {spread:.3f}), {seconds:.1f} s"
        )
        for change in arguments.changes:
            if is_default(data, *CHANGES[change]):
                continue
            gains = results(data, *CHANGES[change], n_seeds, max_iter) - default
            (gain, more), (error, _) = gains.mean(0), sem(gains)
            print(
                f"    {change:<18} {gain:+8.3f} ± {error:.3f}"
                f" {100 * more / seconds:+5.0f}% time",
                flush=True,
            )


if __name__ == "__main__":
    main()
