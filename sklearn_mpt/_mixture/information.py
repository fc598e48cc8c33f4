"""Observed information of the parameters of a mixture, and their standard errors.

The parameters are one vector: logarithms of the weights, means of the Gaussian columns,
locations of the others, and what `Full.free` says of the covariances. The
first and the third are determined up to constants.
"""

import numpy as np
import torch
from scipy.linalg import block_diag

from sklearn_mpt._matrices import identity
from sklearn_mpt._mixture.density import Components, MixtureDensity
from sklearn_mpt._mixture.gaussians import pattern_order
from sklearn_mpt._optim.information import (
    covariance_of,
    information_by_hessian,
    row_scores,
    typical_rows,
)

# Reported numbers whose joint covariance is returned.
JOINT = ("weights", "means", "locations")


class MixtureParameters:
    """The parameters of a mixture as a vector of p numbers, `values`."""

    def __init__(self, components, layout):
        self.layout = layout
        self._like = components
        weights, means, _, locations, *_ = components
        parts = weights.log(), means, locations, *layout.form.free(components)
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

    def density(self, values):
        return MixtureDensity(self.components(values), self.layout)

    def covariance(self, X, weight, at_floor):
        """Return the covariance of the estimates, (p, p); NaN if not determined."""
        layout, n_components = self.layout, len(self._like.weights)
        information = self._information(X, weight)
        expected = self._expected_information(X)
        eye = identity(self._shapes[2][1], self.values)
        centred = (eye - layout.likelihood.centre(eye)).cpu().numpy()
        at_limit = torch.zeros(n_components, dtype=torch.bool)
        at_limit[at_floor] = True
        marked = Components(
            *(at_limit.view(-1, *[1] * (p.ndim - 1)).expand_as(p) for p in self._like)
        )
        known = torch.cat([part.flatten() for part in layout.form.free(marked)]).numpy()
        # Functions of the parameters that are always 0: the sum of log-weights, what
        # centring takes from locations, and covariances at a limit.
        fixed = block_diag(
            np.ones((1, n_components)),
            np.zeros((0, self._sizes[1])),
            np.kron(np.eye(n_components), centred),
            np.diag(known),
        )
        n_rotations = layout.form.n_rotations(len(layout.gaussian))
        covariance = covariance_of(
            information.cpu().numpy(),
            constraints=fixed,
            expected=expected.cpu().numpy(),
            n_rotations=(n_components - len(at_floor)) * n_rotations,
        )
        known = sum(self._sizes[:3]) + np.flatnonzero(known)
        covariance[known] = covariance[:, known] = np.nan
        return covariance

    def _information(self, X, weight):
        """Return the observed information of rows, (p, p)."""
        order = pattern_order(~X[:, self.layout.gaussian].isnan())
        X, weight = X[order], weight[order]
        return sum(
            information_by_hessian(
                lambda values, block=block: (
                    weight[block] @ self.density(values).lml(X[block])[0]
                ),
                self.values,
            )
            for block, _ in self.density(self.values).blocks(~X.isnan())
        )

    def _expected_information(self, X):
        """Return the expected information of rows with gaps as in X, up to a factor."""
        draw = MixtureDensity(self._like, self.layout).draw
        rows = typical_rows(X, self.layout.values_of_each, len(self.values), draw)
        scores = row_scores(lambda at: self.density(at).lml(rows)[0], self.values)
        return scores @ scores.T

    def reported(self, values):
        """Return what fitted attributes say of a vector of parameters, as tensors."""
        components, layout = self.components(values), self.layout
        means, locations = layout.means(components), components.locations
        reported = {"weights": components.weights, "means": means}
        if len(layout.others):
            reported["locations"] = layout.likelihood.centre(locations)
            reported["probabilities"] = layout.expectations(locations)
        if len(layout.gaussian):
            reported["covariances"] = layout.form.compress(components.covariances)
        return reported

    def standard_errors(self, X, weight, at_floor):
        """Return errors of `reported` numbers, by the delta method.

        Also the joint covariance of `JOINT`, which are the first of them.
        """

        def all_reported(values):
            return torch.cat(
                [part.flatten() for part in self.reported(values).values()]
            )

        covariance = self.covariance(X, weight, at_floor)
        lost, known = np.isnan(covariance.diagonal()), np.nan_to_num(covariance)
        jacobian = torch.autograd.functional.jacobian(all_reported, self.values)
        jacobian = jacobian.cpu().numpy()
        is_lost = all_reported(self.values).isnan().cpu().numpy()
        is_lost |= (jacobian[:, lost] != 0).any(axis=1)
        variance = ((jacobian @ known) * jacobian).sum(axis=1)
        deviation = np.sqrt(np.where(is_lost, np.nan, variance))
        reported, errors, start = self.reported(self.values), {}, 0
        for name, part in reported.items():
            end = start + part.numel()
            errors[name] = deviation[start:end].reshape(part.shape)
            start = end
        n_joint = sum(reported[name].numel() for name in JOINT if name in reported)
        jacobian, is_lost = jacobian[:n_joint], is_lost[:n_joint]
        joint = jacobian @ known @ jacobian.T
        joint[is_lost] = joint[:, is_lost] = np.nan
        return errors | {"covariance": joint}
