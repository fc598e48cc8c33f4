"""Standard errors beside those of a likelihood that is written down here again.

Its Hessian in the parameters that users know, by autograd, is a second route to the
observed information.
"""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import expit

from sklearn_mpt import MPTItemResponse

BINARY = ("rasch", "2pl", "3pl")
WITHOUT_SLOPE = ("rasch", "partial_credit")
NAMES = (*BINARY, "graded", "partial_credit", "gpcm", "nominal")
NODES = torch.linspace(-6, 6, 97).double()
LOG_WEIGHTS = (-0.5 * NODES**2).log_softmax(0)


def answers(name, n, shift=0.0, seed=0):
    """Answers to five items, 0 to 2 or right and wrong, with some gaps."""
    rng = np.random.default_rng(seed)
    z, slopes = shift + rng.normal(size=(n, 1, 1)), np.linspace(0.8, 1.6, 5)[:, None]
    cuts = np.array([0.0] if name in BINARY else [0.8, -0.8])
    prob = expit(slopes * z + cuts + np.linspace(-0.5, 0.5, 5)[:, None])
    X = (rng.random(prob.shape) < prob).sum(axis=2).astype(float)
    if name == "3pl":
        X[rng.random(X.shape) < 0.2] = 1.0
    X[rng.random(X.shape) < 0.1] = np.nan
    return X


def log_probs(name, z, slope, intercept, guessing, scores):
    """Log-probabilities of all answers to an item at z; (c, s)."""
    if name in (*BINARY, "graded"):
        below = (1 - guessing) * torch.sigmoid(-slope * z - intercept[:, None])
        ends = torch.zeros_like(z)[None], torch.ones_like(z)[None]
        return torch.cat([ends[0], below, ends[1]]).diff(dim=0).log()
    steps = torch.cat([intercept.new_zeros(1), intercept])
    return (scores[:, None] * slope * z + steps[:, None]).log_softmax(0)


def parameters_of(model):
    """Fitted attributes with a row for each item or group, as tensors."""
    names = "discrimination guessing category_scores latent_mean latent_variance"
    arrays = {name: getattr(model, f"{name}_") for name in names.split()}
    arrays["intercept"] = model.intercept_.reshape(5, -1)
    return {name: torch.from_numpy(np.array(a)) for name, a in arrays.items()}


def free_places(model):
    """The entries of `parameters_of` that a model estimates: names and indices."""
    name, fixed, free = model.model, model.fixed or {}, []
    items = [j for j in range(5) if j not in fixed]
    if name not in WITHOUT_SLOPE:
        free += [("discrimination", (j,)) for j in items]
    n_steps = model.intercept_.reshape(5, -1).shape[1]
    free += [("intercept", (j, c)) for j in items for c in range(n_steps)]
    if name == "3pl":
        free += [("guessing", (j,)) for j in items]
    if name == "nominal":
        free += [("category_scores", (j, 1)) for j in items]
    is_reference = model.groups_ == model.reference_group_
    for g in range(len(model.groups_)):
        if not is_reference[g] or model.population == "free":
            free += [("latent_mean", (g, 0)), ("latent_variance", (g, 0))]
        elif name in WITHOUT_SLOPE:
            free.append(("latent_variance", (g, 0)))
    return free


def log_likelihood(model, X, weight, codes, free, values):
    """Log-likelihood of rows, with priors, at other values of the free parameters."""
    params = parameters_of(model)
    for (name, place), value in zip(free, values, strict=True):
        at = tuple(torch.tensor(i) for i in place)
        params[name] = params[name].index_put(at, value)
    deviation = params["latent_variance"].sqrt()
    z = params["latent_mean"] + deviation * NODES  # shape: (g, s)
    total = LOG_WEIGHTS.expand(len(X), -1)
    names = "discrimination intercept guessing category_scores".split()
    for j, x in enumerate(torch.from_numpy(X.T)):
        item = [params[name][j] for name in names]
        table = torch.stack([log_probs(model.model, one, *item) for one in z])
        chosen = table[codes, x.nan_to_num().long()]
        total = total + torch.where(x.isnan()[:, None], 0.0, chosen)
    value = torch.from_numpy(weight) @ total.logsumexp(1)
    if model.guessing_prior:
        mean, spread = model.guessing_prior
        guessing = torch.stack(
            [v for (name, _), v in zip(free, values, strict=True) if name == "guessing"]
        )
        value = value - 0.5 * (((guessing.logit() - mean) / spread) ** 2).sum()
    return value


def check_errors(model, X, weight, groups=None):
    codes = torch.zeros(len(X), dtype=torch.int64)
    if groups is not None:
        codes = torch.from_numpy(np.searchsorted(model.groups_, groups))
    free, params = free_places(model), parameters_of(model)
    at = torch.stack([params[name][place] for name, place in free])

    def function(values):
        return log_likelihood(model, X, weight, codes, free, values)

    information = -torch.autograd.functional.hessian(function, at)
    expected = torch.linalg.inv(information).diagonal().sqrt().numpy()
    found = model.item_parameters(X, weight, groups=groups)
    errors = {
        name: getattr(found, f"{name}_std_error")
        for name in params
        if name != "category_scores"
    }
    errors["intercept"] = errors["intercept"].reshape(5, -1)
    for (name, place), error in zip(free, expected, strict=True):
        if name in errors:
            assert_allclose(errors[name][place], error, rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("name", NAMES)
def test_errors_of_rows_with_weights(name):
    X = answers(name, 400)
    weight = np.random.default_rng(1).integers(1, 5, len(X)).astype(float)
    prior = (-1.4, 0.4) if name == "3pl" else None
    model = MPTItemResponse(name, guessing_prior=prior, tol=1e-10)
    check_errors(model.fit(X, sample_weight=weight), X, weight)


@pytest.mark.parametrize("name", NAMES)
def test_errors_of_linked_groups(name):
    """Groups answer some items in common, and some are anchors of a given scale."""
    X = np.concatenate([answers(name, 300), answers(name, 250, 0.8, 1)])
    X[:300, 4] = X[300:, 0] = np.nan
    groups, weight = np.repeat(["a", "b"], [300, 250]), np.ones(550)
    prior = (-1.4, 0.4) if name == "3pl" else None
    anchor = {"intercept": 0.3 if name in BINARY else [0.7, -0.9]}
    if name not in WITHOUT_SLOPE:
        anchor["discrimination"] = 1.2
    if name == "3pl":
        anchor["guessing"] = 0.2
    if name == "nominal":
        anchor["category_scores"] = [0, 1.2, 2]
    for params in ({}, {"fixed": {1: anchor, 3: anchor}, "population": "free"}):
        model = MPTItemResponse(name, guessing_prior=prior, tol=1e-10, **params)
        check_errors(model.fit(X, groups=groups), X, weight, groups)


@pytest.mark.parametrize("guessing", [0.0, 0.2])
def test_errors_where_guessing_is_fixed(guessing):
    """A fixed probability is at no bound; without guessing errors are those of 2pl."""
    X = answers("3pl", 400)
    fixed = {j: {"guessing": guessing} for j in range(5)}
    found = MPTItemResponse("3pl", fixed=fixed, tol=1e-10).fit(X).item_parameters(X)
    assert (found.guessing_std_error == 0).all()
    assert np.isfinite(found.difficulty_std_error).all()
    if guessing == 0:
        expected = MPTItemResponse("2pl", tol=1e-10).fit(X).item_parameters(X)
        for name in ("discrimination", "intercept", "difficulty"):
            error, other = (
                getattr(of, f"{name}_std_error") for of in (found, expected)
            )
            assert_allclose(error, other, rtol=1e-3)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ["2pl", "graded"])
def test_a_group_without_answers_has_no_errors_and_changes_no_others(name):
    X, groups = answers(name, 300), np.repeat(["a", "b", "c"], 100)
    X[200:] = np.nan
    model = MPTItemResponse(name).fit(X, groups=groups)
    with pytest.warns(
        UserWarning, match=r"group\(s\) \['c'\] are those of people with"
    ):
        found = model.item_parameters(X, groups=groups)
    alone = MPTItemResponse(name).fit(X[:200], groups=groups[:200])
    expected = alone.item_parameters(X[:200], groups=groups[:200])
    for part in ("latent_mean_std_error", "latent_variance_std_error"):
        assert np.isnan(getattr(found, part)[2, 0])
        assert_allclose(getattr(found, part)[:2], getattr(expected, part), rtol=2e-3)
    assert_allclose(found.covariance, expected.covariance, rtol=2e-3, atol=1e-4)
