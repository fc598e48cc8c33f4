"""Training: the fit loop and the solvers that it asks."""
