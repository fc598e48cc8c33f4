"""How a linear Gaussian model is trained: MPT and LML, with gaps or from moments."""

import torch

from sklearn_mpt._latent.objectives import Objective
from sklearn_mpt._linear.gaussian import LinearGaussian


class GaussianModule(torch.nn.Module):
    r"""A linear Gaussian model, moved in coordinates local to where it stands.

    A gradient step changes the model to

    .. math:: W \leftarrow (I + L) (W + \sigma \, \delta W), \quad
              \mu \leftarrow \mu + \sigma \, \delta\mu + W^\top a, \quad
              \log \sigma^2 \leftarrow \log \sigma^2 + \delta_\sigma,

    and `fold` makes the result the new origin. Steps thus shrink with the noise they
    have to resolve; L, of shape (K, K), and a correct the scale and the mean of the
    latent variables at once, where steps on W and the mean alone would take very long:
    the idea of parameter expansion [1]_.

    References
    ----------
    .. [1] C. Liu, D. B. Rubin and Y. N. Wu, "Parameter expansion to accelerate EM: the
       PX-EM algorithm", Biometrika 85, 1998.
    """

    def __init__(self, model, noise_floor):
        super().__init__()
        components, mean = model.components, model.mean
        self.register_buffer("components", components)
        self.register_buffer("mean", mean)
        excess = torch.clamp(model.noise_variance - noise_floor, min=noise_floor)
        self.register_buffer("log_noise", excess.log())
        self.noise_floor = noise_floor
        self.components_step = torch.nn.Parameter(torch.zeros_like(components))
        self.mean_step = torch.nn.Parameter(torch.zeros_like(mean))
        self.log_noise_step = torch.nn.Parameter(torch.zeros_like(self.log_noise))
        self.latent_scale_step = torch.nn.Parameter(
            components.new_zeros(len(components), len(components))
        )
        self.latent_mean_step = torch.nn.Parameter(
            components.new_zeros(len(components))
        )

    def fix_mean(self, mean):
        """Put the mean where it stays."""
        self.mean.copy_(mean)
        self.mean_step.requires_grad_(False)
        self.latent_mean_step.requires_grad_(False)

    @property
    def now(self):
        """The model after the step taken so far."""
        unit = (0.5 * self.log_noise).exp()
        moved = self.components + unit * self.components_step
        return LinearGaussian(
            moved + self.latent_scale_step @ moved,
            self.mean + unit * self.mean_step + self.latent_mean_step @ moved,
            (self.log_noise + self.log_noise_step).exp() + self.noise_floor,
        )

    @torch.no_grad()
    def fold(self):
        now = self.now
        self.components.copy_(now.components)
        self.mean.copy_(now.mean)
        self.log_noise.add_(self.log_noise_step)
        for step in self.parameters():
            step.zero_()

    def conditional_log_prob(self, X, mask):
        return self.now.conditional_log_prob(X, mask)

    def log_prob(self, X):
        return self.now.log_prob(X)


class MaskedMoments(Objective):
    """Minus D times the masked score over all rows, from their moments."""

    def __init__(self, moments, draw_step_masks):
        self.moments = moments
        self.draw_step_masks = draw_step_masks

    def batches(self, rng):
        yield self.draw_step_masks(rng)

    def losses(self, module, masks):
        return -masks.shape[1] * module.now.moment_scores(self.moments, masks)


class LMLMoments(Objective):
    """Minus the log marginal likelihood over all rows, from their moments."""

    def __init__(self, moments):
        self.moments = moments

    def batches(self, rng):
        yield self.moments

    def losses(self, module, moments):
        return -module.now.mean_log_prob(moments)[None]
