"""Nets and likelihoods of users inside the estimators."""

import copy
import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import geom
from sklearn.base import clone
from sklearn.datasets import load_digits
from torch.nn import functional

from sklearn_mpt import MPTDeepVAE, MPTLinearVAE, MPTMaskedAutoencoder
from sklearn_mpt._likelihoods import Likelihood

pytestmark = pytest.mark.filterwarnings("ignore")
DIGITS = (load_digits().data[:400] > 7).astype(float)


class ConvNet(torch.nn.Module):
    """Two channels, values and what is visible, to a logit for each pixel."""

    def __init__(self, n_inputs, n_outputs):
        super().__init__()
        assert (n_inputs, n_outputs) == (128, 64)
        self.first = torch.nn.Conv2d(2, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.drop = torch.nn.Dropout(0.1)
        self.last = torch.nn.Conv2d(8, 1, 3, padding=1)

    def last_hidden(self, inputs):
        hidden = self.norm(self.first(inputs.view(-1, 2, 8, 8)))
        return self.drop(functional.relu(hidden)).flatten(1)

    def forward(self, inputs):
        return self.last(self.last_hidden(inputs).view(-1, 8, 8, 8)).flatten(1)


class ConvDecoder(torch.nn.Module):
    """From z by upsampling and a convolution to a location for each pixel."""

    def __init__(self, n_components, n_locations):
        super().__init__()
        assert n_locations == 64
        self.first = torch.nn.Linear(n_components, 4 * 4 * 4)
        self.up = torch.nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.last = torch.nn.Conv2d(4, 1, 3, padding=1)

    def forward(self, z):
        hidden = functional.silu(self.first(z)).view(-1, 4, 4, 4)
        return self.last(functional.silu(self.up(hidden))).flatten(1)


def masked(**parameters):
    defaults = {"max_iter": 4, "batch_size": 64, "n_orders": 1, "random_state": 0}
    return MPTMaskedAutoencoder(
        likelihood="bernoulli", **defaults | {"net": ConvNet} | parameters
    )


def deep(**parameters):
    defaults = {"max_iter": 3, "random_state": 0, "likelihood": "bernoulli"}
    return MPTDeepVAE(2, **defaults | {"decoder": ConvDecoder} | parameters)


@pytest.mark.parametrize("make", [masked, deep])
def test_own_nets_learn_and_are_given_back(make):
    torch_state = torch.get_rng_state()
    start, model = make(max_iter=0).fit(DIGITS), make().fit(DIGITS)
    rows = DIGITS[:20]
    assert model.score(rows) > start.score(rows) + 0.1
    again = clone(model).fit(DIGITS)
    assert_array_equal(again.score_samples(rows[:4]), model.score_samples(rows[:4]))
    kept = pickle.loads(pickle.dumps(model))
    assert_array_equal(kept.score_samples(rows[:4]), model.score_samples(rows[:4]))
    assert kept.partial_fit(DIGITS[:64]).n_iter_ == model.n_iter_ + 1
    assert torch.equal(torch.get_rng_state(), torch_state)
    module = model.module_
    assert type(module) in (ConvNet, ConvDecoder)
    assert all(p.dtype == torch.float32 for p in module.parameters())
    holds = [v for v in vars(model).values() if isinstance(v, torch.nn.Module)]
    assert holds == []  # what is fitted are arrays
    # a trained module is where training starts
    name = "net" if make is masked else "decoder"
    given = make(**{name: module}, max_iter=0).fit(DIGITS)
    for before, after in zip(
        module.state_dict().values(), given.module_.state_dict().values(), strict=True
    ):
        assert torch.equal(before, after)
    make(**{name: module}, max_iter=1).fit(DIGITS)
    for before, after in zip(
        module.state_dict().values(), model.module_.state_dict().values(), strict=True
    ):
        assert torch.equal(before, after)  # a copy was trained
    with pytest.raises(ValueError, match=f"(?s){name}=.* differs from"):
        model.set_params(**{name: module}).score(rows)


def test_layers_of_own_nets_are_trained_as_such_and_scored_without_noise():
    model = masked(max_iter=1).fit(DIGITS)
    module = model.module_
    assert int(module.norm.num_batches_tracked) > 0
    rows = np.where(np.random.default_rng(0).random((6, 64)) < 0.3, np.nan, DIGITS[:6])
    hidden = model.transform(rows)
    assert hidden.shape == (6, 512)
    assert len(model.get_feature_names_out()) == 512
    seen = torch.tensor(~np.isnan(rows))
    inputs = torch.cat([torch.tensor(2 * np.nan_to_num(rows) - 1) * seen, seen], 1)
    assert_allclose(hidden, module.double().last_hidden(inputs).detach())


def test_own_decoders_of_numbers_fill_gaps():
    X = load_digits().data[:60] / 16
    model = deep(likelihood="gaussian").fit(X)
    gaps = np.where(np.random.default_rng(0).random((5, 64)) < 0.3, np.nan, X[:5])
    assert np.isfinite(model.impute(gaps)).all()
    locations = model.inverse_transform(np.zeros((1, 2)))
    assert_allclose(
        locations[0],
        model.module_(torch.zeros(1, 2)).detach().numpy()[0] * model._scale
        + model._scale * model._decoder["intercept"]
        + model._shift,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("net", "error", "message"),
    [
        (3, TypeError, "must be None, an instance of .torch.* or a callable. Got 3"),
        (lambda n, m: None, TypeError, r"\(.*64\) must return a torch.nn.Module"),
        (torch.nn.Linear(5, 64), ValueError, "it raised: .*cannot be multiplied"),
        (
            lambda n, m: torch.nn.Linear(n, m + 1),
            ValueError,
            r"gave shape \(2, 65\) of torch.float64",
        ),
        (torch.nn.Identity(), ValueError, r"must map tensors of shape \(n, "),
    ],
)
def test_nets_that_do_not_fit_are_refused(net, error, message):
    for model in (masked(net=net), deep(decoder=net)):
        with pytest.raises(error, match=message):
            model.fit(DIGITS)


class MaskedNet(torch.nn.Module):
    """A net of rows and a mask, as the page on the paper has it."""

    def __init__(self, n_features):
        super().__init__()
        self.layers = torch.nn.Linear(2 * n_features, n_features)

    def logits(self, X, hidden):
        visible = torch.where(hidden, 0.0, 2 * X - 1)
        return self.layers(torch.cat([visible, (~hidden).to(X.dtype)], 1))

    def forward(self, X, mask):
        hidden = mask.expand(X.shape)
        log_prob = functional.logsigmoid((2 * X - 1) * self.logits(X, hidden))
        return torch.where(hidden, log_prob, 0.0)


def test_a_net_of_rows_and_a_mask_is_refused_and_its_layers_are_taken():
    net, X = MaskedNet(64), DIGITS[:30]
    for model in (masked(net=net), deep(decoder=net)):
        with pytest.raises(ValueError, match="required positional argument"):
            model.fit(DIGITS)
    model = masked(net=net.layers, max_iter=0).fit(DIGITS)
    mask = np.random.default_rng(0).random(X.shape) < 0.5
    rows, hidden = torch.from_numpy(X).float(), torch.from_numpy(mask)
    start = np.log(DIGITS.sum(0) + 0.5) - np.log((1 - DIGITS).sum(0) + 0.5)
    with torch.no_grad():
        logits = net.logits(rows, hidden).numpy() + start
    expected = -np.logaddexp(0, (1 - 2 * X) * logits)
    assert_allclose(
        model.conditional_log_prob(X, mask), np.where(mask, expected, 0), atol=1e-4
    )


class Geometric(Likelihood):
    """Numbers of failures before a success, given the logit of the latter."""

    bounds = (0.0, np.inf)

    def __init__(self, name="failures"):
        super().__init__()
        self.name = name

    def check_rows(self, X):
        if (X[~np.isnan(X)] < 0).any():
            raise ValueError(f"{self.name} must not be negative.")

    @staticmethod
    def start_location(X, weight=None):
        n_present = (~np.isnan(X)).sum(axis=0)
        return np.log(n_present + 0.5) - np.log(np.nansum(X, axis=0) + 0.5)

    def entry_log_prob(self, X, location):
        return functional.logsigmoid(location) + X * functional.logsigmoid(-location)

    def pair_log_prob(self, X, observed, location):
        success, failure = (functional.logsigmoid(sign * location) for sign in (1, -1))
        return observed.expand_as(X) @ success.T + X @ failure.T

    def derivatives(self, X, location):
        prob = torch.sigmoid(location)
        return 1 - prob * (1 + X), 1 - prob

    def mean(self, location):
        return torch.exp(-location)

    def draw(self, location, uniform):
        log_miss = functional.logsigmoid(-location)
        return torch.floor(torch.log1p(-uniform) / log_miss)


@pytest.mark.parametrize("kind", [MPTMaskedAutoencoder, MPTDeepVAE, MPTLinearVAE])
def test_likelihoods_of_ones_own(kind):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(150, 1))
    X = rng.geometric(1 / (1 + np.exp(z * [1, -1, 1]))) - 1.0
    own = Geometric("Misses")
    model = kind(likelihood=own, max_iter=3, random_state=0).fit(X)
    grid = np.arange(12.0)
    rows = np.repeat(X[:1], len(grid), 0)
    rows[:, 1] = grid
    prob = np.exp(model.conditional_log_prob(rows, [False, True, False])[:, 1])
    assert 0.6 < prob.sum() < 1 + 1e-3
    gaps = np.where(rng.random((3, 3)) < 0.3, np.nan, X[:3])
    assert np.isfinite(model.impute(gaps)).all()
    assert set(np.unique(model.sample(50, random_state=0) % 1)) == {0.0}
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert_array_equal(other.score_samples(X[:3]), model.score_samples(X[:3]))
    with pytest.raises(ValueError, match="Misses must not be negative"):
        clone(model).fit(-X)


def test_means_that_overflow_far_from_all_rows_are_imputed():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(60, 1))
    X = rng.geometric(1 / (1 + np.exp(z * [1, -1, 1]))) - 1.0
    model = MPTDeepVAE(
        hidden_layer_sizes=(16,), likelihood=Geometric(), max_iter=1, random_state=0
    )
    X[:6] = np.where(rng.random((6, 3)) < 0.4, np.nan, X[:6])
    filled = model.fit(X).impute(X[:6])
    assert (filled >= 0).all()
    assert filled.max() <= 10 * np.nanmax(X)


def test_a_likelihood_of_ones_own_is_the_distribution():
    X = np.array([[0.0, 3.0], [1.0, 0.0], [2.0, 5.0], [0.0, 1.0]])
    model = MPTMaskedAutoencoder(
        likelihood=Geometric(), max_iter=0, random_state=0
    ).fit(X)
    rate = (4 + 0.5) / (4 + X.sum(0) + 1)
    expected = geom.logpmf(X + 1, rate).sum(1)
    assert_allclose(model.score_samples(X), expected, rtol=1e-6)
