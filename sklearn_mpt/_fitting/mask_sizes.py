"""Masks of rows, with the sizes that the parameter `mask_rate` defines."""

import math

import numpy as np
import torch

from sklearn_mpt._measure.masks import block_keys, fixed_size


class MaskSizes:
    """Draw masks with the sizes that the parameter `mask_rate` defines.

    For a uniform rate, sizes are drawn from 1 to the number of present entries of each
    row, and only present entries are hidden: missing entries contribute 0.

    Parameters
    ----------
    mask_rate : "uniform", float or int
    n_features : int
    blocks : MaskBlocks, default=None
        Features that are hidden together.
    """

    def __init__(self, mask_rate, n_features, blocks=None):
        self.size, self.blocks = None, blocks
        if mask_rate != "uniform":
            self.size = fixed_size(mask_rate, n_features)

    def draw(self, present, generator, n_batches=1):
        """Draw a mask for each row; return the masks and the weights of hidden entries.

        Sizes are stratified over the rows of a batch. The mean over masks of minus the
        weighted sum of hidden log-probabilities is minus the log-density, with a
        uniform rate.

        Parameters
        ----------
        present : bool Tensor of shape (n, d)
        generator : torch.Generator
        n_batches : int, default=1
            Number of batches, each of as many neighbouring rows.

        Returns
        -------
        hidden : bool Tensor of shape (n, d)
        weight : Tensor of shape (n,)
        """
        n, d = present.shape
        where = {
            "generator": generator,
            "device": present.device,
            "dtype": torch.float32,
        }
        keys = self._keys(n, d, where)
        if self.size is not None:
            highest = keys.kthvalue(self.size, 1, keepdim=True).values
            weight = torch.full((n,), d / self.size, device=present.device)
            return keys <= highest, weight.to(torch.float32)
        keys = torch.where(present, keys, math.inf)
        count = present.sum(1).clamp(min=1)
        n_in_batch = n // n_batches
        places = [
            torch.randperm(n_in_batch, generator=generator, device=present.device)
            for _ in range(n_batches)
        ]
        level = (torch.cat(places) + torch.rand(n, **where)) / n_in_batch
        size = torch.minimum((level * count).long() + 1, count)
        highest = _sorted(keys).gather(1, size[:, None] - 1)
        return keys <= highest, count.to(torch.float32) / size

    def _keys(self, n, d, where):
        """Draw keys (n, d); the smallest ones of each row are hidden."""
        if self.blocks is None:
            return torch.rand(n, d, **where)
        # single precision has ties between the keys of a block
        where = where | {"dtype": torch.float64}
        numbers = torch.as_tensor(self.blocks.numbers).to(where["device"])
        blocks = self.blocks._replace(numbers=numbers)
        return block_keys(lambda *shape: torch.rand(shape, **where), n, blocks)


def _sorted(keys):
    """Sort rows; NumPy is ten times as fast as torch on the CPU."""
    if keys.device.type == "cpu":
        return torch.from_numpy(np.sort(keys.numpy(), axis=1))
    return keys.sort(1).values
