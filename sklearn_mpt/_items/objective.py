"""The likelihood of answers, with given parameters, groups of people and priors."""

import numpy as np
import torch

from sklearn_mpt._latent.answers import CodedRows
from sklearn_mpt._latent.likelihood_rows import LikelihoodRows
from sklearn_mpt._latent.quadrature import MAX_GRID_DIMS
from sklearn_mpt._likelihoods.base import features_of_locations, rank_among_equals
from sklearn_mpt._optim.natural import Point


class ItemRows(LikelihoodRows):
    """Log marginal likelihood of answers, with priors.

    Up to three abilities are integrated over one grid for all rows. Parameters that are
    given, or fixed in the model of an item, do not move.

    Parameters
    ----------
    model : ItemModel
        Where training starts.
    X, group : ndarrays of shapes (n, d) and (n,)
        Codes of answers, NaN where missing, and of groups.
    weight : ndarray of shape (n,)
    priors : dict
        The parameters `slope_prior` and `guessing_prior`; can be empty.
    device : torch.device
    is_all : bool
        Whether these are all rows, so that answers of none count as given by half a
        person.
    """

    def __init__(self, model, X, weight, group, priors, device, is_all=True):
        items, n_dims = model.items, model.items.n_dims
        moves = model.start("cpu").with_flat(torch.from_numpy(model.moves))
        if not model.is_fixed.any() and priors.get("slope_prior") is None:
            # steps in all answers, of which one is redundant, are nearer to Newton's
            moves.coefs[[rows.start for _, rows in items.nominal]] = True
        self.moves = Point(*(part.to(device) for part in moves))
        self.moves_axes = not (
            len(model.free_population) or items.has_fixed_scale or model.is_fixed.any()
        )
        self.guessing = torch.from_numpy(items.guessing - items.n_coefs).to(device)
        self.guessing_prior = priors.get("guessing_prior")
        super().__init__(
            torch.tensor(X, dtype=torch.float64, device=device),
            items.joint(torch.tensor(model.flat, device=device)).likelihood,
            n_dims,
            batch_size=len(X),
            slope_prior=priors.get("slope_prior"),
            seed=(*model.seed, 1),
            weight=weight,
            group=group,
            is_all=is_all,
        )
        if n_dims <= MAX_GRID_DIMS:
            self.varies, self.unseen = torch.ones_like(self.varies), None
            unseen = torch.from_numpy(model.unseen(X)).to(device) if is_all else None
            args = self.table, self.blocks, self.codes
            self.integrals = [CodedRows(*args, unseen=unseen)]

    def place_nodes(self, point):
        if self.n_dims > MAX_GRID_DIMS:
            return False
        return self.integrals[0].place(point, self.joint(point))

    def priors(self, point):
        gradient, curvature, penalty = super().priors(point)
        if self.guessing_prior is not None:
            mean, deviation = self.guessing_prior
            unit = (point.shape_params[self.guessing] - mean) / deviation
            gradient.shape_params[self.guessing] = unit / deviation
            curvature.shape_params[self.guessing] = deviation**-2
            penalty += 0.5 * float((unit**2).sum())
        return gradient, curvature, penalty

    def completed(self, sums, point):
        """Add priors; parameters that do not move are apart from others."""
        sums = super().completed(sums, point)
        moves, information = self.moves, sums.information
        both = moves.coefs[:, None] & moves.coefs[..., None]
        coefs = torch.where(both, information.coefs, 0.0)
        # bounds steps in flat directions, such as of guessing
        least = 1e-4 * sums.n_rows
        coefs.diagonal(dim1=1, dim2=2).add_(least)
        shape_params, width = information.shape_params.clone(), coefs.shape[1]
        if shape_params.ndim > 1:  # with the cross information of their location
            curvature = self.priors(point)[1].shape_params
            shape_params[:, 0] += sums.n_rows / self.weights.total * curvature
            owner = torch.as_tensor(self.likelihood.shape_param_features).long()
            owner = owner.to(coefs.device)
            args = self.likelihood, self.n_locations, coefs.device
            first = torch.searchsorted(features_of_locations(*args), owner)
            shape_params[:, -width:] *= moves.coefs[first] & moves.shape_params[:, None]
            rank = rank_among_equals(owner)
            shape_params[np.arange(len(rank)), rank] += least
        gradient = Point(
            *(torch.where(m, g, 0.0) for m, g in zip(moves, sums.gradient, strict=True))
        )
        information = information._replace(coefs=coefs, shape_params=shape_params)
        rescaling = None if self.moves_axes else torch.zeros_like(coefs[0])
        return sums._replace(
            gradient=gradient, information=information, rescaling=rescaling
        )
