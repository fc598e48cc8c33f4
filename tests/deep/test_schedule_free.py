"""Adam in the eigenbasis of the covariances of gradients."""

import numpy as np
import torch
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mpt._deep.schedule_free import (
    AdamSteps,
    Eigenbasis,
    ScheduleFreeAdam,
)


def drawn(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal(shape))


def flat(*parts):
    return torch.cat([part.flatten() for part in parts])


def followed(parameters, gradients, **steps):
    basis = Eigenbasis(parameters, AdamSteps(**steps))
    for step, gradient in enumerate(gradients, start=1):
        basis.update(gradient, step)
    return basis


def test_rotating_forth_and_back_is_the_identity_and_keeps_lengths():
    parameters = [
        drawn(5, 3),
        drawn(4),
        drawn(1, 6),
        drawn(7, 2),
    ]
    size = sum(p.numel() for p in parameters)
    basis = followed(parameters, drawn(12, size), max_rotated_side=6)
    vector = drawn(size, seed=1)
    rotated = vector.clone()
    basis.rotate(rotated)
    assert_allclose(rotated.norm(), vector.norm())
    assert not np.isclose(rotated[:15], vector[:15]).any()
    assert_array_equal(rotated[15:19], vector[15:19])  # no matrix
    basis.rotate(rotated, inverse=True)
    assert_allclose(rotated, vector)


def test_a_side_that_is_too_long_is_not_rotated():
    wide = drawn(2, 7)
    basis = followed([wide], drawn(12, wide.numel()), max_rotated_side=6)
    rotated = wide.clone()
    basis.rotate(rotated.view(-1))
    # only rows are mixed: columns keep their lengths
    assert_allclose(rotated.norm(dim=0), wide.norm(dim=0))
    assert not np.isclose(rotated.norm(dim=1), wide.norm(dim=1)).any()


def test_a_matrix_with_a_very_long_side_is_not_rotated():
    long = drawn(7, 3)
    parameters, gradients = [long, drawn(3, 3)], drawn(12, long.numel() + 9)
    basis = followed(parameters, gradients, max_side=6)
    vector = drawn(long.numel() + 9, seed=1)
    rotated = vector.clone()
    basis.rotate(rotated)
    assert_array_equal(rotated[:-9], vector[:-9])
    assert not np.isclose(rotated[-9:], vector[-9:]).any()


def largest_correlation(M):
    return abs(np.corrcoef(M)[np.triu_indices(len(M), 1)]).max()


def test_gradients_are_uncorrelated_in_their_eigenbasis():
    mixing = drawn(4, 4)
    gradients = [flat(mixing @ drawn(4, 300, seed=s)) for s in range(60)]
    basis = followed([drawn(4, 300)], gradients)
    before = largest_correlation(gradients[-1].view(4, 300))
    basis.rotate(gradients[-1])
    assert before > 0.5
    assert largest_correlation(gradients[-1].view(4, 300)) < 0.2


class Regression(torch.nn.Module):
    """Coefficients of inputs that are strongly correlated."""

    def __init__(self):
        super().__init__()
        self.coefs = torch.nn.Parameter(torch.zeros(20, 3, dtype=torch.float64))
        inputs = drawn(200, 20) * torch.logspace(0, -2, 20, dtype=torch.float64)
        self.inputs = inputs @ torch.linalg.qr(drawn(20, 20, seed=1)).Q
        self.outputs = self.inputs @ (self.inputs.pinverse() @ drawn(200, 3, seed=2))

    def loss(self):
        return ((self.inputs @ self.coefs - self.outputs) ** 2).mean()


def trained(n_steps, rotates):
    module = Regression()
    optimizer = ScheduleFreeAdam(module, 0.03, rotates=rotates)
    optimizer.resume()
    for _ in range(n_steps):
        optimizer.step(torch.autograd.grad(module.loss(), module.coefs)[0].flatten())
    optimizer.show(optimizer.average)
    return module.loss().item()


def test_correlated_inputs_take_fewer_steps_in_the_eigenbasis():
    assert trained(1000, rotates=True) < 0.1 * trained(1000, rotates=False)


def test_a_loaded_state_goes_on_as_if_never_interrupted():
    gradients = drawn(30, 60)
    optimizer = ScheduleFreeAdam(Regression(), 0.1, rotates=True)
    for gradient in gradients:
        optimizer.step(gradient)
    resumed = ScheduleFreeAdam(Regression(), 0.1, rotates=True)
    resumed.load(optimizer.state())
    resumed.average.copy_(optimizer.average)
    for one in (optimizer, resumed):
        one.step(gradients[0])
        one.show(one.average)
    assert_array_equal(resumed.point, optimizer.point)


def test_a_share_of_a_step_moves_that_much_and_counts_that_much():
    """Eight shares of an eighth, along one gradient, are one step."""
    ends = []
    for n_steps, share in ((8, 1.0), (64, 0.125)):
        module = torch.nn.Linear(3, 1, bias=False).double()
        torch.nn.init.zeros_(module.weight)
        optimizer = ScheduleFreeAdam(
            module, 0.1, delay=0, steps=AdamSteps(warm_up=1e-9)
        )
        for _ in range(n_steps):
            optimizer.step(torch.tensor([1.0, -2.0, 0.5]).double(), share)
        ends.append((optimizer.iterate, optimizer.average))
    (iterate, average), (by_shares, average_by_shares) = ends
    assert_allclose(by_shares, iterate)
    assert_allclose(average_by_shares, average, rtol=0.1)
