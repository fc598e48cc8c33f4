"""Mixtures of Gaussians, latent classes and latent profiles."""
