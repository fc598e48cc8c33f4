"""Models whose features depend linearly on latent variables."""
