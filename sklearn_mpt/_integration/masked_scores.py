r"""Log-probabilities of targets at nodes that rows share, and their derivatives.

A target is a hidden entry, or a visible one given the others. With the posterior
weights :math:`r_s` of the nodes, its log-probability is :math:`\log \sum_s r_s p_{js}`
if it is hidden, and :math:`-\log \sum_s r_s / p_{js}` if it is visible.
"""

import torch

from sklearn_mpt._numbers import TINY


def target_terms(r, indicator, ratio, weight):
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
