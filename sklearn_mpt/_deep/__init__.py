"""Models whose features depend on latent variables through a net."""
