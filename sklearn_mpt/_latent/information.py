"""Observed information of linear models that are integrated over z, by nodes."""

import torch

from sklearn_mpt._latent.integrals import log_joint
from sklearn_mpt._latent.linear_map import LinearMap
from sklearn_mpt._latent.quadrature import Nodes
from sklearn_mpt._numbers import CHUNK_ENTRIES, TINY, chunk_slices
from sklearn_mpt._optim.information import information_by_hessian


def information_by_nodes(rows, weight, joint, accuracy, *, tol=1e-4, sampling_tol=1e-2):
    """Return the observed information of coefficients and shapes, (p, p)."""
    # Minus the second derivatives of sums over nodes, which do not move. Rules are
    # refined until it changes by less than `tol`, or `sampling_tol` of importance
    # sampling, relative to its diagonal. weight : (n,).
    is_exact, information = accuracy.is_quadrature, None
    for rule in accuracy.rules():
        if rule.is_shared:
            continue
        before, information = information, 0.0
        for part, nodes, index in _blocks(rows, joint, rule, is_exact):
            information = information + _of_block(part, nodes, joint, weight[index])
        if before is None:
            continue
        unit = information.diagonal().clamp(min=TINY).rsqrt()
        difference = ((information - before) * unit * unit[:, None]).abs().max()
        if difference < (tol if is_exact else sampling_tol):
            break
    return information


def _blocks(rows, joint, rule, is_exact):
    """Yield blocks of rows, their nodes, and which rows they are."""
    # Nodes are those of the finest grid, or of all independent scramblings.
    groups = rule.groups[-1:] if is_exact else rule.groups
    n_nodes = sum(len(part) for group in groups for part in group)
    width = joint.components.shape[1] + joint.likelihood.n_shape_params
    for index in chunk_slices(len(rows.X), n_nodes * width, CHUNK_ENTRIES):
        part = rows.take(index)
        posteriors = joint.propose(part)
        placed = [rule.place(group, posteriors, part)[:2] for group in groups]
        yield part, Nodes(*(torch.cat(p, 1) for p in zip(*placed, strict=True))), index


def _of_block(rows, nodes, joint, weight):
    """Return minus the second derivatives of the LML of some rows, (p, p)."""

    def lml(coefs, shape_params):
        W, intercept = coefs[:, :-1].T, coefs[:, -1]
        moved = LinearMap(W, intercept, joint.likelihood.at(shape_params))
        entries = moved.entry_log_prob(rows.X, nodes.z)
        observed = rows.observed.to(entries.dtype)[..., None]
        total = nodes.log_weight + (entries @ observed)[..., 0]
        return weight @ total.logsumexp(1)

    coefs = torch.cat([joint.components.T, joint.intercept[:, None]], 1)
    shape_params = joint.likelihood.shape_params.detach().to(coefs)
    return information_by_hessian(lml, coefs, shape_params)


def information_by_scores(rows, joint, accuracy, *, max_nodes=50**2):
    """Return the sum over rows of s s', with gradients s of log p(x); (p, p)."""
    # The rule is finer than for `information_by_nodes`: directions in which the sum is
    # exactly 0 must be distinguished from others.
    *_, rule = (
        rule
        for rule in accuracy.rules()
        if not rule.is_shared and len(rule.groups[-1][0]) <= max_nodes
    )
    likelihood, total = joint.likelihood, 0.0
    features = torch.as_tensor(likelihood.shape_param_features).long()
    for part, nodes, _ in _blocks(rows, joint, rule, True):
        r = torch.softmax(log_joint(part, nodes, joint), 1)
        location = joint.location(nodes.z)
        on = part.observed.to(r.dtype)[:, None]
        score, _ = likelihood.derivatives(part.X[:, None], location)
        score = r[..., None] * likelihood.to_locations(on) * score
        shape_score = likelihood.shape_scores(part.X[:, None], location)
        if len(features):
            shape_score = on[..., features.to(on.device)] * shape_score
        z1 = torch.cat([nodes.z, torch.ones_like(nodes.z[..., :1])], -1)
        coefs = (score.mT @ z1).flatten(1)
        scores = torch.cat([coefs, (r[:, None] @ shape_score)[:, 0]], 1).detach()
        total = total + scores.T @ scores
    return total
