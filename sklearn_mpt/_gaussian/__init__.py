"""Gaussians: moments, factors, their likelihood, and rotations."""
