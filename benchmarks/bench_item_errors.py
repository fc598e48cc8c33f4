"""Coverage of intervals of 95% that `MPTItemResponse` reports, on tables drawn anew.

For each model, of 8 items and so many people, this prints the fraction of intervals of
1.96 standard errors that cover the parameter, or the ability, and the number without a
standard error. Guessing is .2, its prior has this median; the second group has mean .5
and variance 1.44::

    OMP_NUM_THREADS=1 python benchmarks/bench_item_errors.py 300 100
"""

import sys
import warnings
from collections import defaultdict

import numpy as np

from sklearn_mpt import MPTItemResponse

N_ITEMS = 8
MODELS = "2pl", "3pl", "3pl prior", "graded", "gpcm", "nominal", "groups"


def made_items(name):
    rng = np.random.default_rng(1)
    slopes, params = rng.uniform(0.8, 1.8, N_ITEMS), {}
    if name in ("2pl", "3pl"):
        intercepts = -slopes * rng.uniform(-1.2, 1.2, N_ITEMS)
    else:
        ends = (0.4, 1.2), (-1.2, -0.4)
        intercepts = np.stack([rng.uniform(*end, N_ITEMS) for end in ends], 1)
    if name == "3pl":
        params["guessing"] = np.full(N_ITEMS, 0.2)
    if name == "nominal":
        scores = np.tile([0.0, 1.0, 2.0], (N_ITEMS, 1))
        scores[:, 1] = rng.uniform(0.6, 1.4, N_ITEMS)
        params["category_scores"] = scores
    return MPTItemResponse.from_items(
        model=name, discrimination=slopes, intercept=intercepts, **params
    )


def intervals(case, true, n_people, seed):
    """Yield names, estimates, standard errors and true values."""
    rng = np.random.default_rng([seed, n_people])
    z, groups = rng.normal(size=n_people), None
    if case == "groups":
        groups = 1 * (np.arange(n_people) >= n_people // 2)
        z = np.where(groups == 1, 0.5 + 1.2 * z, z)
    cumulative = true.item_probabilities(z).cumsum(2)[..., :-1]
    X = 1.0 * (rng.random((n_people, N_ITEMS, 1)) > cumulative).sum(2)
    prior = (-1.4, 0.7) if "prior" in case else None
    model = MPTItemResponse(true.model, guessing_prior=prior).fit(X, groups=groups)
    found = model.item_parameters(X, groups=groups)
    for name in ("discrimination", "intercept", "difficulty", "guessing"):
        error = getattr(found, f"{name}_std_error")
        yield name, getattr(found, name), error, getattr(true, f"{name}_")
    if groups is not None:
        yield "mean", found.latent_mean[1], found.latent_mean_std_error[1], 0.5
        error = found.latent_variance_std_error[1]
        yield "variance", found.latent_variance[1], error, 1.44
    theta, error = model.abilities(X, groups=groups)
    yield "ability", theta[:, 0], error[:, 0], z


def main():
    warnings.simplefilter("ignore")
    n_people, n_tables = map(int, sys.argv[1:])
    for case in MODELS:
        covered, without = defaultdict(list), defaultdict(int)
        true = made_items("2pl" if case == "groups" else case.split()[0])
        for seed in range(n_tables):
            for name, estimate, error, value in intervals(case, true, n_people, seed):
                has_error = np.isfinite(error) & (error > 0)
                without[name] += np.count_nonzero(np.isnan(error))
                is_near = np.abs(estimate - value) < 1.96 * error
                covered[name] += is_near[has_error].tolist()
        parts = [
            f"{name} {np.mean(hits):.3f} ({without[name]} without)"
            for name, hits in covered.items()
            if hits
        ]
        print(f"{n_people} people, {case}:", ", ".join(parts), flush=True)


if __name__ == "__main__":
    main()
