"""Natural gradient steps with noise, of masks or of parts of a stream."""

from sklearn_mpt._fitting.ascent import Ascent
from sklearn_mpt._fitting.natural_gradient import (
    Curvature,
    Point,
    align,
    apply,
    as_arrays,
    full_step,
    mix,
)
from sklearn_mpt._fitting.noisy_steps import NoisySteps


def ascent_of(objective, point, *, rng, n_iter_no_change, **params):
    """Return the ascent of an objective with noise, or of one without."""
    if not objective.is_noisy:
        return Ascent(objective, point, **params)
    params |= {"rng": rng, "n_iter_no_change": n_iter_no_change}
    return NoisyAscent(objective, point, objective.exact_objective(), **params)


class NoisyAscent(NoisySteps):
    """Maximise an objective whose batches differ."""

    # exact : objective that is maximised after that, from the last point. params : of
    # `NoisySteps`. min_weight : of a batch in the average of the information.

    min_weight = 0.05

    def __init__(self, objective, point, exact=None, **params):
        super().__init__(point, is_followed=exact is not None, **params)
        self.objective, self._exact = objective, exact
        self._information, self.log_scale = None, objective.log_scale

    @classmethod
    def of_part(cls, objective, point, n_before, **params):
        """Return the ascent on a part of a stream, after so many steps."""
        ascent = cls(objective, point, **params)
        ascent._n_steps = ascent._n_falling = n_before
        ascent._is_noise = True
        return ascent

    def batches(self):
        return self.objective.batches(self.rng)

    def move(self, point, batch):
        weight = max(self.min_weight, 1 / (self._n_steps + 1))
        move = full_step(self.objective, point, batch, self._information, weight)
        self._information = move.information
        return move

    def moved(self, point, move, size):
        return apply(point, move, size, self.objective.floor)

    def flat(self, move):
        return move.gradient.flat(), move.step.flat()

    def mixed(self, point, other, weight):
        return mix(point, other, weight)

    def aligned(self, point, reference):
        return align(point, reference)

    def following(self):
        if self._exact is None:
            return None
        return ascent_of(
            self._exact,
            self.point,
            learning_rate=self.learning_rate,
            rng=self.rng,
            tol=self.tol,
            n_iter_no_change=self.n_iter_no_change,
        )

    def state(self):
        information = self._information
        return {
            "n_steps": self._n_steps,
            "point": as_arrays(self.point),
            "average": as_arrays(self._average),
            "information": as_arrays(information.of_each() if information else ()),
        }

    def load(self, state):
        if not state:
            return
        tensor = self.point.coefs.new_tensor
        self.point = Point(*map(tensor, state["point"]))
        self._average = Point(*map(tensor, state["average"]))
        if state["information"]:
            self._information = Curvature(*map(tensor, state["information"]))
        self._n_steps = self._n_falling = state["n_steps"]
