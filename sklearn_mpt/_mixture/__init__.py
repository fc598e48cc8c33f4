"""Mixtures: classes of Gaussians, and of features that are independent in a class."""
