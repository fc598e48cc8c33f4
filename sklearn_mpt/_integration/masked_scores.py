r"""Log-probabilities of targets at nodes that rows share, and their derivatives.

A target is a hidden entry, or a visible one given the others. With the posterior
weights :math:`r_s` of the nodes, its log-probability is :math:`\log \sum_s r_s p_{js}`
if it is hidden, and :math:`-\log \sum_s r_s / p_{js}` if it is visible.
"""

from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._numbers import TINY


class MaskedScores(NamedTuple):
    """Scores of rows, with derivatives; see `masked_scores`."""

    score: torch.Tensor  # weighted sums of logs over the targets of each row, (n,)
    gradient: torch.Tensor  # in log-probabilities at nodes, summed over rows, (s, q)
    node_gradient: torch.Tensor  # in the log weights of nodes, (n, s)
    r: torch.Tensor  # posterior weights of the nodes, (n, s)


def masked_scores(
    indicator, is_hidden, log_prob, log_weight, hidden_weight, visible_weight=None
):
    """Return masked scores of rows that share a mask, at nodes that all rows share.

    Parameters
    ----------
    indicator : Tensor of shape (n, q)
        1.0 for the value that an entry has, else 0.0; a column for each value.
    is_hidden : bool ndarray of shape (q,)
        Columns of hidden features.
    log_prob : Tensor of shape (s, q)
        Log-probability of each value at each node.
    log_weight : Tensor of shape (s,) or (n, s)
        Log weights of the nodes.
    hidden_weight, visible_weight : Tensor of shape (n,)
        Weights of the rows for targets that are hidden, and for those that are visible;
        None if there are no visible ones.

    Returns
    -------
    MaskedScores
    """
    # indices, because the CPU would wait for a GPU to count the entries of a mask
    hidden, visible = (
        torch.from_numpy(np.flatnonzero(columns)).to(indicator.device)
        for columns in (is_hidden, ~is_hidden)
    )
    given, given_log_prob = indicator[:, visible], log_prob[:, visible]
    r = torch.addmm(log_weight, given, given_log_prob.T).softmax(1)
    score, of_hidden, node_gradient = _target_terms(
        r, indicator[:, hidden], log_prob[:, hidden].exp(), hidden_weight
    )
    of_visible = 0.0
    if visible_weight is not None:
        visible_score, of_visible, visible_node_gradient = _target_terms(
            r, given, (-given_log_prob).exp(), visible_weight
        )
        score, node_gradient = (
            score - visible_score,
            node_gradient - visible_node_gradient,
        )
    node_gradient = r * node_gradient
    gradient = torch.empty_like(log_prob)
    gradient[:, hidden] = of_hidden
    gradient[:, visible] = of_visible + node_gradient.T @ given
    return MaskedScores(score, gradient, node_gradient, r)


def _target_terms(r, indicator, ratio, weight):
    """Return logs of averages over nodes, and their derivatives.

    Parameters
    ----------
    r : Tensor of shape (n, s)
        Posterior weights of the nodes.
    indicator : Tensor of shape (n, q)
        1.0 for the value that a target has, else 0.0; a column for each value.
    ratio : Tensor of shape (s, q)
        Probability of each value, or its inverse if targets are visible.
    weight : Tensor of shape (n,)
        Weights of the rows.

    Returns
    -------
    score : Tensor of shape (n,)
        Weighted sums of logs over the targets of each row.
    gradient : Tensor of shape (s, q)
        Derivatives in the logs of the ratios, summed over rows.
    node_gradient : Tensor of shape (n, s)
        Derivatives in the log weights of the nodes, divided by r.
    """
    average = torch.where(indicator > 0, r @ ratio, 1.0).clamp(min=TINY)
    gain = weight[:, None] * indicator / average
    node_gradient = torch.addmm(-(weight * indicator.sum(1))[:, None], gain, ratio.T)
    return weight * average.log().sum(1), ratio * (r.T @ gain), node_gradient
