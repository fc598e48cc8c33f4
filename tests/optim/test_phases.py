"""Short runs of which the best goes on."""

import pytest

from sklearn_mpt._optim.loop import (
    Solver,
    best_of_runs,
)


class Run(Solver):
    """A run with a given loss; it diverges without one."""

    result = None

    def __init__(self, loss):
        self.loss, self.loss_curve = loss, []

    def step(self):
        if self.loss is None:
            raise FloatingPointError
        self.loss_curve.append(self.loss)

    def terminate(self):
        return False


def test_runs_that_diverge_are_left_out():
    runs = [Run(3.0), Run(None), Run(1.0), Run(2.0)]
    assert best_of_runs(runs, 2) is runs[2]
    with pytest.raises(FloatingPointError):
        best_of_runs([Run(None), Run(None)], 1)
