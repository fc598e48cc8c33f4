"""Integrals over latent variables, by rules that place nodes."""
