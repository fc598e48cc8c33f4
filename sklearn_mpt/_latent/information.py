"""Observed information of linear models that are integrated over z, by nodes."""

import torch

from sklearn_mpt._latent.integrals import log_joint
from sklearn_mpt._latent.quadrature import Nodes
from sklearn_mpt._likelihoods.base import features_of_locations, rank_among_equals
from sklearn_mpt._numbers import CHUNK_ENTRIES, TINY, chunk_slices
from sklearn_mpt._optim.information import (
    missing_information,
)


def information_by_nodes(rows, weight, joint, accuracy, *, tol=1e-4, sampling_tol=1e-2):
    """Return the observed information by Louis' identity, with sums over nodes."""
    # Rules are refined until the information changes by less than `tol`, or
    # `sampling_tol` of importance sampling, relative to its diagonal. weight : (n,).
    is_exact = accuracy.is_quadrature
    tolerance = tol if is_exact else sampling_tol
    information = None
    for rule in accuracy.rules():
        if rule.is_shared:
            continue
        before = information
        information = _information_by_rule(rows, weight, joint, (rule, is_exact))
        if before is None:
            continue
        unit = information.diagonal().clamp(min=TINY).rsqrt()
        if ((information - before) * unit * unit[:, None]).abs().max() < tolerance:
            break
    return information


def _information_by_rule(rows, weight, joint, rule):
    parts, total = _CompleteData(joint), 0.0
    n_nodes = len(_nodes(rows.take(slice(1)), joint, *rule).z[0])
    row_entries = n_nodes * parts.n_parameters
    for block in chunk_slices(len(rows.X), row_entries, CHUNK_ENTRIES):
        part = rows.take(block)
        nodes = _nodes(part, joint, *rule)
        r = torch.softmax(log_joint(part, nodes, joint), 1)
        total = total + parts.information(part, nodes.z, r, weight[block])
    return total


def information_by_scores(rows, joint, accuracy, *, max_nodes=50**2):
    """Return the sum over rows of s s', with gradients s of log p(x); (p, p)."""
    # The rule is finer than for `information_by_nodes`: directions in which the sum is
    # exactly 0 must be distinguished from others.
    parts = _CompleteData(joint)
    *_, (n_nodes, rule) = (
        (len(rule.groups[-1][0]), rule)
        for rule in accuracy.rules()
        if not rule.is_shared and len(rule.groups[-1][0]) <= max_nodes
    )
    row_entries, total = n_nodes * parts.n_parameters, 0.0
    for block in chunk_slices(len(rows.X), row_entries, CHUNK_ENTRIES):
        part = rows.take(block)
        nodes = _nodes(part, joint, rule, True)
        r = torch.softmax(log_joint(part, nodes, joint), 1)
        scores = parts.mean_scores(part, nodes.z, r)
        total = total + scores.T @ scores
    return total


def _nodes(rows, joint, rule, is_exact):
    """Return the nodes of the finest grid, or of all independent scramblings."""
    posteriors = joint.propose(rows)
    groups = rule.groups[-1:] if is_exact else rule.groups
    placed = [rule.place(group, posteriors, rows)[:2] for group in groups]
    z, log_weight = (torch.cat(parts, 1) for parts in zip(*placed, strict=True))
    return Nodes(z, log_weight)


class _CompleteData:
    """Scores and curvatures of complete data at nodes of z, by parameters."""

    def __init__(self, joint):
        self.joint = joint
        likelihood, W = joint.likelihood, joint.components
        self.width, n_locations = W.shape[0] + 1, W.shape[1]
        features = torch.as_tensor(likelihood.shape_param_features, device=W.device)
        self.shape_param_features = features.long()
        self.shape_params = likelihood.shape_params.detach().to(W)
        self.n_shape_params = len(features)
        self.feature = features_of_locations(likelihood, n_locations, W.device)
        self.n_coefs = n_locations * self.width
        self.n_parameters = self.n_coefs + self.n_shape_params

    def mean_scores(self, rows, z, r):
        """Return the gradient of the log-probability of each row, (n, p)."""
        z1 = torch.cat([z, torch.ones_like(z[..., :1])], -1)
        score, shape_score, *_ = self._scores(rows, self.joint.location(z))
        score, shape_score = score.detach(), shape_score.detach()
        coefs = (r[..., None, None] * score[..., None] * z1[:, :, None]).sum(1)
        return torch.cat([coefs.flatten(1), (r[:, None] @ shape_score)[:, 0]], 1)

    def information(self, rows, z, r, weight):
        """Return the information added up over rows, (p, p)."""
        z1 = torch.cat([z, torch.ones_like(z[..., :1])], -1)
        location = self.joint.location(z).requires_grad_()
        score, shape_score, shape_params = self._scores(rows, location)
        node_weight = weight[:, None, None] * r[..., None]
        complete = self._complete_data_information(
            score, shape_score, location, shape_params, z1, node_weight
        )
        with torch.no_grad():
            scores = torch.cat(
                [(score[..., None] * z1[:, :, None]).flatten(2), shape_score], 2
            )
            return complete - missing_information(scores, r, weight)

    @torch.enable_grad()
    def _scores(self, rows, location):
        """Return derivatives of entries in locations and shapes, and the latter."""
        # All are (n, s, ...), 0 where not observed; shape parameters are repeated for
        # each row and node, so that gradients are taken for each.
        likelihood = self.joint.likelihood
        on = rows.observed.to(location.dtype)[:, None]
        shape = *location.shape[:2], self.n_shape_params
        shape_params = self.shape_params.expand(shape).clone().requires_grad_()
        likelihood = likelihood.at(shape_params) if self.n_shape_params else likelihood
        score, _ = likelihood.derivatives(rows.X[:, None], location)
        score = likelihood.to_locations(on) * score
        if not self.n_shape_params:
            return score, shape_params.detach(), shape_params
        shape_score = likelihood.shape_scores(rows.X[:, None], location)
        return score, on[..., self.shape_param_features] * shape_score, shape_params

    def _complete_data_information(
        self, score, shape_score, location, shape_params, z1, node_weight
    ):
        """Return the curvatures of complete data, averaged over nodes, (p, p)."""
        result = z1.new_zeros(self.n_parameters, self.n_parameters)
        coefs = result[: self.n_coefs, : self.n_coefs]
        blocks = coefs.view(-1, self.width, coefs.shape[1] // self.width, self.width)
        outer = (z1[..., None] * z1[..., None, :]).flatten(2).flatten(0, 1)
        for location_index, partner, chosen in self._partners():
            curvature = -node_weight * _gradient(score[..., chosen].sum(), location)
            sums = curvature.flatten(0, 1).T @ outer
            sums = sums.unflatten(1, (self.width, self.width))
            blocks[location_index, :, partner] += sums[location_index]
        if self.n_shape_params:
            self._add_shape_params(
                result, shape_score, location, shape_params, z1, node_weight
            )
        return result

    def _partners(self):
        """Yield pairs of locations of a feature, for the c-th location in turn."""
        # The derivatives of the scores of all c-th locations take one gradient.
        rank = rank_among_equals(self.feature)
        for c in range(int(rank.max()) + 1):
            chosen = (rank == c).nonzero()[:, 0]
            partner = torch.full_like(rank, -1)
            partner[self.feature[chosen]] = chosen
            partner = partner[self.feature]
            location_index = (partner >= 0).nonzero()[:, 0]
            yield location_index, partner[location_index], chosen

    def _add_shape_params(
        self, result, shape_score, location, shape_params, z1, node_weight
    ):
        """Add the curvatures in shape parameters, for the features in turn."""
        n_coefs, feature = self.n_coefs, self.shape_param_features
        rank = rank_among_equals(feature)
        for c in range(int(rank.max()) + 1):
            chosen = (rank == c).nonzero()[:, 0]  # at most one for each feature
            total = shape_score[..., chosen].sum()
            cross = -node_weight * _gradient(total, location)
            cross = cross.flatten(0, 1).T @ z1.flatten(0, 1)
            within = (-node_weight * _gradient(total, shape_params)).sum((0, 1))
            for i in chosen.tolist():
                for k in (self.feature == feature[i]).nonzero()[:, 0].tolist():
                    part = slice(k * self.width, (k + 1) * self.width)
                    result[part, n_coefs + i] = cross[k]
                    result[n_coefs + i, part] = cross[k]
                same_feature = (feature == feature[i]).nonzero()[:, 0]
                result[n_coefs + same_feature, n_coefs + i] = within[same_feature]


def _gradient(total, at):
    return torch.autograd.grad(total, at, retain_graph=True)[0].detach()
