r"""Anderson acceleration of steps that converge linearly, as those of EM do.

From a point x the next full step f(x) leads to x + f(x). Near the maximum f is nearly
linear, so the last points and steps predict where it vanishes [1]_:

.. math:: x + f - (\Delta X + \Delta F) \gamma, \qquad
    \gamma = \arg\min \lVert f - \Delta F \gamma \rVert .

The norm is that of the information. A bad prediction lowers the objective; then the
ascent goes back to the full step [2]_.

References
----------
.. [1] H. F. Walker and P. Ni, "Anderson acceleration for fixed-point iterations", SIAM
   Journal on Numerical Analysis 49, 2011.
.. [2] N. C. Henderson and R. Varadhan, "Damped Anderson acceleration with restarts and
   monotonicity control for accelerating EM and EM-like algorithms", Journal of
   Computational and Graphical Statistics 28, 2019.
"""

import torch

MEMORY = 6  # number of steps from which to extrapolate
DAMPING = 1e-6  # ridge of the regression, relative to its largest diagonal entry


class Extrapolation:
    """The last points of an ascent, and the full steps from there."""

    def __init__(self):
        self._points, self._steps = [], []

    def beyond(self, point, ahead, information):
        """Return a point beyond a full step, None if this is the first step.

        point, ahead : `Point` before and after the step. information : the one that the
        step used.
        """
        x, f = _flat(point), _flat(ahead) - _flat(point)
        self._points = [*self._points, x][-MEMORY - 1 :]
        self._steps = [*self._steps, f][-MEMORY - 1 :]
        if len(self._steps) == 1:
            return None
        moved = torch.stack(self._points).diff(dim=0)
        changed = torch.stack(self._steps).diff(dim=0)
        metric = _metric(information, point)
        target, basis = metric(f[None]), metric(changed)
        gram = basis @ basis.T
        gram.diagonal().add_(DAMPING * gram.diagonal().max() + 1e-300)
        share = torch.linalg.solve(gram, basis @ target[0])
        found = x + f - share @ (moved + changed)
        coefs, own = found.tensor_split([point.coefs.numel()])
        return point._replace(
            coefs=coefs.view_as(point.coefs), own=own.reshape(point.own.shape)
        )


def _flat(point):
    return torch.cat([point.coefs.flatten(), point.own.flatten()])


def _metric(information, point):
    """Return a function to vectors (m, p) whose products are those of the information.

    Own parameters are logarithms, for the most part, and have the unit 1.
    """
    root = torch.linalg.cholesky_ex(information.coefs).L

    def of(vectors):
        coefs, own = vectors.tensor_split([point.coefs.numel()], 1)
        coefs = torch.einsum(
            "dij,mdi->mdj", root, coefs.unflatten(1, point.coefs.shape)
        )
        return torch.cat([coefs.flatten(1), own], 1)

    return of
