"""Mixtures of orders: conditionals without latent variables."""
