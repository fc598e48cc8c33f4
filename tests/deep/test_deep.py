import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from reference import all_masks, dense_grid, masked_score
from scipy.stats import multivariate_normal

from sklearn_mpt._deep.density import DeepModule
from sklearn_mpt._deep.nets import Encoder, Layers, initial_layers
from sklearn_mpt._deep.objectives import row_sample_bound, shared_bounds, shared_scores
from sklearn_mpt._latent.integrals import rows_of
from sklearn_mpt._likelihoods import Bernoulli, Columns, Gaussian

N_DIMS, N_FEATURES = 2, 5


def tensor(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


def some_net(sizes, activation="silu", seed=0):
    parts = initial_layers(sizes, np.random.default_rng(seed))
    return Layers(*([torch.tensor(a) for a in part] for part in parts), activation)


def some_encoder(hidden=(7,)):
    n_outputs = N_DIMS + N_DIMS * (N_DIMS + 1) // 2
    net = some_net([2 * N_FEATURES, *hidden, n_outputs]) if hidden else None
    return Encoder(
        0.2 * tensor(2 * N_FEATURES, N_DIMS), 0.2 * tensor(N_DIMS, N_FEATURES), net
    )


def linear_gaussian(noise_variance=0.5):
    """A linear decoder, and the encoder that is its exact posterior."""
    decoder = some_net([N_DIMS, N_FEATURES])
    W, b = decoder.coefs[0].data, decoder.intercepts[0].data
    information = torch.cat([W.T, -b[:, None] * W.T]) / noise_variance
    encoder = Encoder(information, W / noise_variance**0.5, None)
    noise = Gaussian(torch.tensor(noise_variance, dtype=torch.float64))
    covariance = W.T @ W + noise_variance * torch.eye(N_FEATURES)
    return DeepModule(decoder, encoder, noise), b.numpy(), covariance.numpy()


def some_model(likelihood):
    if likelihood == "bernoulli":
        likelihood = Bernoulli()
    else:
        likelihood = Gaussian(torch.tensor(0.3, dtype=torch.float64))
    return DeepModule(some_net([N_DIMS, 6, N_FEATURES]), some_encoder(), likelihood)


def some_rows(likelihood, n=4):
    X = tensor(n, N_FEATURES, seed=3)
    return (X > 0).to(X.dtype) if likelihood == "bernoulli" else X


def log_density(X, observed, mean, covariance):
    return [
        multivariate_normal(mean[seen], covariance[np.ix_(seen, seen)]).logpdf(x[seen])
        if seen.any()
        else 0.0
        for x, seen in zip(X, observed, strict=True)
    ]


@pytest.mark.parametrize(
    "activation", ["gelu", "relu", "logistic", "silu", "softplus", "tanh"]
)
def test_jacobian_is_that_of_autograd(activation):
    net, z = some_net([N_DIMS, 4, 6, N_FEATURES], activation), tensor(3, N_DIMS)
    value, jacobian = net.value_and_jacobian(z)
    assert_allclose(value.detach(), net(z).detach())
    for i, row in enumerate(z):
        expected = torch.autograd.functional.jacobian(net, row)
        assert_allclose(jacobian[i].detach().T, expected, atol=1e-12)


def test_bounds_are_exact_where_the_encoder_is():
    model, mean, covariance = linear_gaussian()
    X = tensor(40, N_FEATURES, seed=1)
    observed = tensor(1, 40, N_FEATURES, seed=2) > 0
    noise = tensor(40, 200, N_DIMS, seed=3)
    bound, posterior_fit = shared_bounds(model, X, observed, noise, noise[:0, 0])
    expected = log_density(X.numpy(), observed[0].numpy(), mean, covariance)
    assert_allclose(bound[0].detach(), expected, atol=0.05)
    entropy = model.posterior(X, observed[0]).root.diagonal(dim1=1, dim2=2).log().sum(1)
    exact_fit = -entropy - N_DIMS * (0.5 + 0.5 * np.log(2 * np.pi))
    assert_allclose(posterior_fit[0].detach(), exact_fit.detach(), atol=0.25)
    own = row_sample_bound(model, X, noise[:, :1])
    complete = np.ones(X.shape, dtype=bool)
    assert_allclose(own.detach(), log_density(X.numpy(), complete, mean, covariance))


@pytest.mark.parametrize("name", ["bernoulli", "gaussian"])
def test_bounds_are_below_the_density_and_approach_it(name):
    model, X = some_model(name), some_rows(name)
    X = torch.clamp(X, -1, 1)  # near enough for the weights to have a variance
    X[0, :2] = torch.nan
    z, log_weight = dense_grid(N_DIMS, n_per_dim=101)
    observed = ~torch.isnan(X)

    def of_own_points(seed, n):
        return row_sample_bound(model, X, tensor(4, n, N_DIMS, seed=seed))

    def of_shared_points(seed, n_prior):
        noise = tensor(4, 2, N_DIMS, seed=seed)
        prior_samples = tensor(n_prior, N_DIMS, seed=seed + 1000)
        return shared_bounds(model, X, observed[None], noise, prior_samples)[0][0]

    def draws(bound, n):
        return torch.stack([bound(seed, n) for seed in range(200)])

    with torch.no_grad():
        location = model.decoder(torch.tensor(z))
        kind = torch.distributions.Bernoulli(logits=location)
        if name == "gaussian":
            kind = torch.distributions.Normal(location, 0.3**0.5)
        each = kind.log_prob(X.nan_to_num(0.0)[:, None]) * observed[:, None]
        exact = torch.logsumexp(each.sum(2) + torch.tensor(log_weight), 1)
        elbo, iwae = draws(of_own_points, 1), draws(of_own_points, 8)
        shared, with_prior = draws(of_shared_points, 0), draws(of_shared_points, 6)
    assert (elbo.mean(0) < iwae.mean(0)).all()
    for bound in (iwae, shared, with_prior):
        mass = (bound - exact).exp()  # unbiased: its mean is 1
        assert ((mass.mean(0) - 1) / (mass.std(0) / 200**0.5)).abs().max() < 4


def model_of_columns():
    """Two numbers, a count and two categories of three: five columns, nine numbers."""
    kinds = ["gaussian", "categorical", "gaussian", "poisson", "categorical"]
    likelihood = Columns(kinds, [1, 3, 1, 1, 3])
    net = some_net([2 * 9, 7, N_DIMS + N_DIMS * (N_DIMS + 1) // 2])
    encoder = Encoder(0.2 * tensor(18, N_DIMS), 0.2 * tensor(N_DIMS, 9), net)
    X = torch.tensor(
        [[0.3, 0, -1, 2, 2], [1.2, 2, 0.4, 0, 1], [-2, 1, 0, 1, 0], [0, 0, 1, 5, 2]]
    ).double()
    return DeepModule(some_net([N_DIMS, 6, 9]), encoder, likelihood), X


def model_and_rows(name):
    if name == "columns":
        return model_of_columns()
    return some_model(name), some_rows(name)


@pytest.mark.parametrize("name", ["bernoulli", "gaussian", "columns"])
def test_drawn_masks_are_unbiased_for_all_sizes_at_once(name, monkeypatch):
    """At points that do not depend on the mask, over all masks there are."""
    model, X = model_and_rows(name)
    X[2, 1] = torch.nan
    posterior = model.posterior(X, ~torch.isnan(X))
    twice = type(posterior)(*(torch.cat([part, part]).detach() for part in posterior))
    monkeypatch.setattr(model.encoder, "forward", lambda *rows: twice)
    points = tensor(4, 2, N_DIMS, seed=1), tensor(6, N_DIMS, seed=2)
    total = 0
    for size in range(1, N_FEATURES + 1):
        masks = all_masks(N_FEATURES, size)
        for mask in torch.tensor(masks)[:, None].expand(-1, *X.shape):
            log_prob, _ = shared_scores(model, X, mask, *points)
            total += masked_score(log_prob, mask) / len(masks)
    present = ~torch.isnan(X)
    observed = torch.stack([torch.zeros_like(present), present])
    # that of no features has no gradient
    bounds, _ = shared_bounds(model, X, observed, *points, scored=[False, True])
    at_once = bounds[1] - bounds[0]
    assert_allclose(total.detach(), at_once.detach())
    parameters = [*model.decoder.parameters(), *model.likelihood.parameters()]
    found, expected = (
        torch.autograd.grad(loss.sum(), parameters) for loss in (total, at_once)
    )
    for a, b in zip(found, expected, strict=True):
        assert_allclose(a, b, atol=1e-10)


class Fold(torch.nn.Module):
    """A decoder of one number by z squared: the posterior has two modes."""

    intercepts = (torch.zeros(1),)
    width = 1

    def forward(self, z):
        return z**2

    def value_and_jacobian(self, z):
        return z**2, 2 * z[:, :, None]


def test_both_modes_of_a_folded_decoder_are_found():
    likelihood = Gaussian(torch.tensor(0.01, dtype=torch.float64))
    nothing = torch.zeros(2, 1, dtype=torch.float64)
    module = DeepModule(Fold(), Encoder(nothing, nothing[:1], None), likelihood)
    with torch.no_grad():
        rows = rows_of(torch.tensor([[4.0], [0.25], [100.0]], dtype=torch.float64))
        _, *found = module.propose(rows)
    means = torch.stack([posterior.mean[:, 0] for posterior in found], 1)
    for row, root in zip(means.numpy(), (2, 0.5, 10), strict=True):
        # the prior pulls the modes towards 0
        assert_allclose([row.min(), row.max()], [-root, root], rtol=0.02)
