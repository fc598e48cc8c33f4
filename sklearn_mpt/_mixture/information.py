"""Observed information of the parameters of a mixture, and their standard errors.

The parameters are one vector: logarithms of the weights, means of the Gaussian columns,
locations of the others, and what `Full.free` says of the covariances. The
first and the third are determined up to constants.
"""

from functools import cached_property

import numpy as np
import torch

from sklearn_mpt._information.differences import STEP, central_differences
from sklearn_mpt._information.linear import information_by_hessian, typical_rows
from sklearn_mpt._information.louis import covariance_of
from sklearn_mpt._matrices import identity
from sklearn_mpt._mixture.density import Components, MixtureDensity
from sklearn_mpt._mixture.patterns import pattern_order
from sklearn_mpt._numbers import TINY

# Reported numbers whose joint covariance is returned.
JOINT = ("weights", "means", "locations")


class MixtureParameters:
    """The parameters of a mixture as a vector of p numbers.

    Parameters
    ----------
    components : Components
    layout : MixtureLayout

    Attributes
    ----------
    values : Tensor of shape (p,)
    """

    def __init__(self, components, layout):
        self.layout = layout
        self._like = components
        weights, means, _, locations, *_ = components
        free = layout.form.free(components)
        parts = weights.log(), means, locations, *free
        self._shapes = [part.shape for part in parts]
        self._sizes = [part.numel() for part in parts]
        self.values = torch.cat([part.flatten() for part in parts])

    def components(self, values):
        """Return the components of a vector of parameters."""
        log_weights, means, locations, *free = (
            part.reshape(shape)
            for part, shape in zip(values.split(self._sizes), self._shapes, strict=True)
        )
        covariances = self.layout.form.covariances_of(*free, self._like)
        return Components(
            log_weights.softmax(0), means, covariances, locations, *self._like[4:]
        )

    def log_prob(self, values, X):
        """Return the log-density of each row, (n,)."""
        return MixtureDensity(self.components(values), self.layout).lml(X)[0]

    def proba(self, values, X):
        """Return the probabilities of the components of each row, (n, K)."""
        density = MixtureDensity(self.components(values), self.layout)
        return density.log_responsibility(X).exp()

    @cached_property
    def constraints(self):
        """Gradients of functions of the parameters that are always 0, (q, p)."""
        n_components, n_locations = self._shapes[0][0], self._shapes[2][1]
        end = sum(self._sizes[:3])
        rows = np.zeros((1 + n_components * n_locations, len(self.values)))
        rows[0, :n_components] = 1.0
        if n_locations:
            eye = identity(n_locations, self.values)
            fixed = (eye - self.layout.likelihood.centre(eye)).cpu().numpy()
            tied = np.kron(np.eye(n_components), fixed)
            rows[1:, end - self._sizes[2] : end] = tied
        return rows

    def information(self, X, weight):
        """Return the observed information of rows, (p, p). weight : (n,)."""
        order = pattern_order(~X[:, self.layout.gaussian].isnan())
        X, weight, total = X[order], weight[order], 0.0
        density = MixtureDensity(self._like, self.layout)
        for block in density.blocks(~X.isnan()):
            total = total + information_by_hessian(
                lambda values, block=block: (
                    weight[block] @ self.log_prob(values, X[block])
                ),
                self.values,
            )
        return total

    def expected_information(self, X, information):
        """Return the information expected of rows with the gaps of X, up to a factor.

        information : observed one, (p, p), for the size of a step of each parameter.
        """
        density = MixtureDensity(self._like, self.layout)
        rows = typical_rows(
            X, self._values_of_columns(), len(self.values), density.draw
        )
        curvature = information.diagonal().abs().clamp(min=TINY)
        size = (len(X) / curvature).sqrt().clamp(max=1.0)
        steps = STEP * torch.diag(size)
        scores = central_differences(
            lambda values: self.log_prob(values, rows), self.values, steps
        )
        scores = scores / (STEP * size)[:, None]
        return scores @ scores.T

    def _values_of_columns(self):
        """Return the values that each column takes; None if some take any number."""
        layout = self.layout
        if len(layout.gaussian):
            return None
        return layout.likelihood.values_of_each(layout.n_features)

    def _of_covariances(self, chosen):
        """Return which parameters are of the covariances of some components, (p,).

        chosen : their numbers.
        """
        marks = self._like.weights.new_zeros(len(self._like.weights))
        marks[chosen] = 1.0
        marked = (
            marks.view(-1, *[1] * (part.ndim - 1)).expand_as(part)
            for part in self._like
        )
        free = self.layout.form.free(Components(*marked))
        first = marks.new_zeros(sum(self._sizes[:3]))
        return torch.cat([first, *(part.flatten() for part in free)]).cpu().numpy() > 0

    def covariance(self, X, weight, at_floor):
        """Return the covariance of the estimates, (p, p); NaN if not determined.

        at_floor : numbers of the components whose covariances are at a limit. They are
        taken as known, and have no errors.
        """
        left_out = self._of_covariances(at_floor)
        fixed = np.eye(len(left_out))[left_out]
        information = self.information(X, weight)
        expected = self.expected_information(X, information)
        n_components, n_columns = self._like.means.shape
        n_rotations = self.layout.form.n_rotations(n_columns)
        covariance = covariance_of(
            information.cpu().numpy(),
            constraints=np.concatenate([self.constraints, fixed]),
            expected=expected.cpu().numpy(),
            n_rotations=(n_components - len(at_floor)) * n_rotations,
        )
        covariance[left_out] = covariance[:, left_out] = np.nan
        return covariance

    def reported(self, values):
        """Return what fitted attributes say of a vector of parameters, as tensors."""
        components, layout = self.components(values), self.layout
        locations, means = components.locations, components.means
        reported = {"weights": components.weights, "means": means}
        if layout.likelihood is not None:
            expected = layout.expectations(locations)
            reported["locations"] = layout.likelihood.centre(locations)
            reported["probabilities"] = expected
            others = expected
            if layout.likelihood.n_locations > 1:
                others = means.new_full((len(means), len(layout.others)), torch.nan)
            columns = torch.cat([layout.gaussian, layout.others]).argsort()
            reported["means"] = torch.cat([means, others], 1)[:, columns]
        if len(layout.gaussian):
            reported["covariances"] = layout.form.compress(components.covariances)
        return reported


def standard_deviations(parameters, covariance):
    """Return standard deviations of `reported` numbers, by the delta method.

    covariance : of the parameters, (p, p). The result is a dict of arrays, and the
    covariance of the weights, means and locations, flattened and in this order.
    """
    lost = np.isnan(covariance.diagonal())
    known = np.nan_to_num(covariance)
    deviations, jacobians, joint_deviations = {}, [], []
    for name, value in parameters.reported(parameters.values).items():
        jacobian = torch.autograd.functional.jacobian(
            lambda values, name=name: parameters.reported(values)[name],
            parameters.values,
        )
        jacobian = jacobian.reshape(-1, len(known)).cpu().numpy()
        variance = ((jacobian @ known) * jacobian).sum(axis=1)
        is_lost = value.isnan().flatten().cpu().numpy()
        variance[is_lost | (jacobian[:, lost] != 0).any(axis=1)] = np.nan
        deviations[name] = np.sqrt(variance).reshape(value.shape)
        if name in JOINT:
            jacobians.append(jacobian)
            joint_deviations.append(deviations[name])
    jacobian = np.concatenate(jacobians)
    joint = jacobian @ known @ jacobian.T
    is_lost = np.isnan(np.concatenate([d.flatten() for d in joint_deviations]))
    joint[is_lost] = joint[:, is_lost] = np.nan
    return deviations, joint
