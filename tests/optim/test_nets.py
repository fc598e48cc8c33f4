"""Nets trained on functions of one parameter, and on minibatches of weighted rows."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mpt._optim.nets import (
    MinibatchLoss,
    TrainingRows,
    train_net,
    train_net_on_part,
)
from sklearn_mpt._optim.steps import Training, run


class Point(torch.nn.Module):
    """One parameter, so that what the loop does with it is plain to see."""

    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor(5.0, dtype=torch.float64))


class NoisyParabola:
    """(x - 1)^2 plus a random slope: minimised at 1 in expectation."""

    step_weight = 1.0

    def __init__(self, noise):
        self.noise = noise
        self.rng = np.random.default_rng(0)

    def batches(self):
        yield torch.tensor(self.noise * self.rng.normal(size=8))

    def losses(self, module, batch):
        return (module.x - 1) ** 2 + batch * (module.x - 1)

    def after_training(self, module):
        """There is nothing to set."""


class Cliff(NoisyParabola):
    """Falls steadily until x passes 4.5, and is infinite from there on."""

    def losses(self, module, batch):
        return torch.where(module.x > 4.5, module.x, torch.inf) + 0 * batch


def trained(objective, max_iter=3000, *, module=None, window=10, tol=1e-4, **params):
    """The training on an objective, and its end."""
    training, module = Training(max_iter), module or Point()
    params |= {"tol": tol, "n_iter_no_change": window}
    run(training, train_net(training, module, objective, 0.1, **params))
    return training


def end_of(training):
    return training.params.x.item()


def test_stops_at_the_minimum_of_a_deterministic_objective():
    training = trained(NoisyParabola(noise=0.0), window=200)  # an epoch is one step
    assert (end_of(training) - 1) ** 2 < 1e-4  # tol
    assert len(training.loss_curve) < 3000


def test_averaging_removes_the_noise():
    training = trained(NoisyParabola(noise=3.0), window=200)
    # one step sees a slope of standard deviation 3 / sqrt(8)
    assert abs(end_of(training) - 1) < 0.15


def test_divergence_restores_the_best_finite_state():
    training, module = Training(3000), Point()
    with pytest.raises(FloatingPointError):
        run(training, train_net(training, module, Cliff(noise=0.0), 0.1))
    assert 4.5 < module.x.item() < 5
    assert np.isfinite(training.loss_curve).all()


def test_divergence_in_the_very_last_step_is_noticed():
    class LastStep(Cliff):
        def losses(self, module, batch):
            return torch.where(module.x == 5, module.x, torch.nan) + 0 * batch

    training, module = Training(1), Point()
    with pytest.raises(FloatingPointError):
        run(training, train_net_on_part(training, module, LastStep(0.0), 0.1))
    assert module.x.item() == 5
    assert training.state["progress"][0] == 0


def part(module, state=None, objective=None):
    training = Training(1, state=state or {})
    objective = objective or NoisyParabola(0.3)
    run(training, train_net_on_part(training, module, objective, 0.1))
    return training.state


def test_a_stream_goes_on_where_its_state_says():
    module, ends, state = Point(), [], {}
    for _ in range(80):
        state = part(module, state)
        ends.append(module.x.item())
    assert state["progress"][0] == 80
    assert all(isinstance(array, np.ndarray) for array in state.values())
    assert 5 > ends[20] > ends[40] > ends[79] > 1


def test_an_interruption_keeps_a_finite_model():
    class Interrupted(NoisyParabola):
        n_left = 7

        def batches(self):
            if not self.n_left:
                raise KeyboardInterrupt
            self.n_left -= 1
            yield from super().batches()

    training, module = Training(3000), Point()
    with pytest.raises(KeyboardInterrupt):
        run(training, train_net(training, module, Interrupted(noise=0.0), 0.1))
    assert len(training.loss_curve) == 7
    assert 1 < module.x.item() < 5


class ValidationParabola:
    """Validation rows whose losses are lowest where x is 3 or another number."""

    def __init__(self, best=3.0, spread=0.0):
        self.best = best
        self.slopes = np.random.default_rng(1).normal(size=50) * spread

    def losses(self, module):
        x = module.x.item()
        return (x - self.best) ** 2 + self.slopes * x

    def after_epoch(self, module):
        return self.losses(module)

    def after_training(self, module):
        """There is no noise to set."""


def test_the_best_held_out_parameters_are_kept():
    class Noted(ValidationParabola):
        def __init__(self):
            super().__init__()
            self.means = []

        def after_epoch(self, module):
            self.means.append(self.losses(module).mean())
            return self.losses(module)

    validation = Noted()
    training = trained(NoisyParabola(noise=0.3), validation=validation)
    reached = (end_of(training) - 3) ** 2
    assert np.isclose(reached, min(validation.means))
    assert reached < 0.1 < max(validation.means)
    assert reached < validation.means[-1]


class TwoPoints(Point):
    """A second parameter, which validation rows set and no step changes."""

    def __init__(self, is_trained=False):
        super().__init__()
        start = torch.tensor(5.0, dtype=torch.float64)
        self.noise = torch.nn.Parameter(start, requires_grad=is_trained)


def test_validation_rows_set_what_no_step_changes():
    class Halving(ValidationParabola):
        def losses(self, module):
            return np.full(2, (module.noise.item() - self.best) ** 2)

        def after_epoch(self, module):
            module.noise.copy_(module.noise / 2 + self.best / 2)
            return self.losses(module)

    module = TwoPoints()
    trained(NoisyParabola(0.3), max_iter=4, module=module, validation=Halving())
    assert module.noise.item() == 3 + 2 / 2**4  # halfway from 5 every time


def test_a_parameter_without_a_past_starts_at_its_value():
    """Validation rows set it in `fit`; a later `partial_fit` trains it."""
    module = TwoPoints()
    state = part(module)
    module.noise.requires_grad_()
    part(module, state)  # no loss depends on it
    assert module.noise.item() == 5
    assert module.x.item() != 5


class Joining(NoisyParabola):
    """Rows whose best is 3 join those whose best is 1, which moves it to 2."""

    centre = 1.0

    def losses(self, module, batch):
        return (module.x - self.centre) ** 2 + batch * (module.x - self.centre)

    def join(self, rows):
        assert rows.n_set == 1  # noise is theirs
        self.centre = 2.0


class Counting(ValidationParabola):
    n_set = 0

    def after_training(self, module):
        self.n_set += 1


def joining(joins, max_iter=3000):
    params = {"window": 100, "joined_fraction": 0.2, "joins": joins}
    return trained(Joining(0.3), max_iter, validation=Counting(), **params)


def test_rows_that_ended_training_join_it_for_a_while():
    apart, joined = (joining(joins) for joins in (False, True))
    n_epochs = len(apart.loss_curve)
    assert joined.loss_curve[:n_epochs] == apart.loss_curve
    assert len(joined.loss_curve) == int(1.2 * n_epochs)
    assert end_of(apart) == pytest.approx(3, abs=0.1)
    assert 2 < end_of(joined) < end_of(apart) - 0.05  # on the way to 2
    for n_left in (0, 3):
        training = joining(True, max_iter=n_epochs + n_left)
        assert len(training.loss_curve) == n_epochs + n_left


def test_what_validation_rows_set_last_stays_while_they_are_trained_on():
    class Setting(ValidationParabola):
        @torch.no_grad()
        def after_training(self, module):
            module.noise.fill_(2.5)
            module.noise.requires_grad_(False)

    class BothParabolas(Joining):
        def losses(self, module, batch):
            return super().losses(module, batch) + (module.noise - 1) ** 2

        def join(self, rows):
            """Train on the same parabolas."""

    module = TwoPoints(is_trained=True)
    params = {"window": 20, "joins": True, "validation": Setting()}
    trained(BothParabolas(0.3), module=module, **params)
    assert module.noise.item() == 2.5


def test_the_last_parameters_that_are_no_worse_than_the_best_are_kept():
    class Scripted(ValidationParabola):
        """Losses of two rows, epoch by epoch; before, they are 9."""

        def __init__(self, *script):
            self.script, self.ends = iter([(9.0, 9.0), *script]), []

        def losses(self, module):
            self.ends.append(module.x.item())
            return np.array(next(self.script))

    script = [(1.0, 3.0), (2.0, 2.6), (2.0, 4.0), (2.5, 3.0)]  # errors 0.5, 0, 0.5
    validation = Scripted(*script)
    training = trained(NoisyParabola(0.3), max_iter=4, validation=validation)
    assert len(set(validation.ends)) == 5
    assert end_of(training) == validation.ends[2]


WEIGHT = np.arange(1.0, 41.0)


class Loss(MinibatchLoss):
    def batches(self):
        yield self.rows.X, self.rows.relative_weight

    def losses(self, module, batch):
        X, weight = batch
        return weight * X[:, 0]


def rows(n=40, weight=WEIGHT):
    return TrainingRows.from_arrays(torch.arange(float(n))[:, None], weight)


def mean_loss(loss):
    return loss.losses(None, next(loss.batches())).mean()


def test_the_mean_loss_of_any_rows_is_weighted():
    of_all, first = Loss(rows(), 10), Loss(rows().take(slice(30)), 10)
    expected = np.average(np.arange(40), weights=WEIGHT)
    assert_allclose(mean_loss(of_all), expected, rtol=1e-6)
    of_first = np.average(np.arange(30), weights=WEIGHT[:30])
    assert_allclose(mean_loss(first), of_first, rtol=1e-6)
    first.join(Loss(rows().take(slice(30, None)), 10))
    assert_allclose(mean_loss(first), expected, rtol=1e-6)


def test_rows_are_split_alike_by_the_same_seed():
    parts = rows().split(7, seed=3)
    again, other = rows().split(7, seed=3), rows().split(7, seed=4)
    assert [len(part.X) for part in parts] == [33, 7]
    numbers = torch.cat([part.X[:, 0] for part in parts])
    assert_array_equal(numbers.sort().values, np.arange(40))
    for part, same in zip(parts, again, strict=True):
        assert_array_equal(part.X, same.X)
        weight = WEIGHT[part.X[:, 0].long().numpy()] / WEIGHT.mean()
        assert_allclose(part.weight, weight, rtol=1e-6)
    assert (parts[1].X != other[1].X).any()


@pytest.mark.parametrize(
    ("n_rows", "batch_size", "most"),
    [(1, 64, 1), (5, 64, 2), (40, 64, 16), (900, 256, 20), (20000, 256, 79)],
)
def test_an_epoch_of_few_rows_has_few_steps(n_rows, batch_size, most):
    """An epoch of five rows took 64 steps, and the fit a minute."""
    n_batches = -(-n_rows // batch_size)
    loss = Loss(rows(n_rows, None), batch_size, min_steps=16)
    assert 1 <= loss.count_passes(n_batches) * n_batches <= most


@pytest.mark.parametrize(("n_rows", "weight"), [(10, 0.25), (40, 1.0), (90, 1.0)])
def test_a_small_part_of_a_stream_is_a_fraction_of_a_step(n_rows, weight):
    loss = Loss(rows(n_rows, None), 40)
    assert loss.step_weight == 1
    assert loss.as_part().step_weight == weight
