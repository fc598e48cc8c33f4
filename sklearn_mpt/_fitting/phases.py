"""Training in phases: short runs, masks, and steps without masks."""
# There are local maxima, so several starts are tried. With a uniform mask rate, masked
# scores of all sizes add up to the log marginal likelihood of a row: a few steps with
# masks, which cost less or escape from a poor start, may precede steps without their
# noise.

from sklearn_mpt._fitting.fit_loop import DIVERGENCE, Solver, run


def ends_without_masks(mask_rate, n_masks):
    """Return whether the last epochs draw no masks, given an estimator's parameters."""
    # Not with a number of masks, because the user asks for it, nor with a fixed rate,
    # because the sum over all sizes is another objective.
    return n_masks == "auto" and mask_rate == "uniform"


def best_of_runs(solvers, max_iter):
    """Run each of several solvers, and return the one with the least loss."""
    # Losses are those of the last epochs, with no noise, or all the same. Runs that
    # diverge are left out; if all do, that of the last one is raised.
    finished, divergence = [], None
    for solver in solvers:
        try:
            run(solver, max_iter)
        except DIVERGENCE as error:
            divergence = error
        else:
            finished.append(solver)
    if divergence is not None and not finished:
        raise divergence
    return min(finished, key=lambda solver: solver.loss_curve[-1])


class Phases(Solver):
    """Solvers in turn: where one terminates, the next one goes on."""

    # `following` of a solver returns the next one, or None.

    def __init__(self, first):
        self._solver = first
        self._losses_before = []

    @property
    def loss_curve(self):
        return self._losses_before + self._solver.loss_curve

    @property
    def result(self):
        return self._solver.result

    def init(self, max_iter):
        self._solver.init(max_iter)

    def step(self):
        self._solver.step()

    def terminate(self):
        if not self._solver.terminate():
            return False
        following = self._solver.following()
        if following is None:
            return True
        self._losses_before = self.loss_curve
        self._solver = following
        return False

    def check(self):
        self._solver.check()

    def recover(self):
        self._solver.recover()

    def interrupt(self):
        self._solver.interrupt()

    def close(self):
        self._solver.close()

    def state(self):
        return self._solver.state()
