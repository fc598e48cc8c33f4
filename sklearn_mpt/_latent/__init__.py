"""All about latent variables that no model needs to know: integrals, training."""
