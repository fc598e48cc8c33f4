"""Sizes of steps that fall, and averages of points, in stochastic approximation."""


def falling_size(n_steps, delay=10):
    """Return the size of a step after `n_steps` others, as a fraction of the first."""
    # Sizes add up to infinity, and their squares do not, and averages of points are
    # efficient (Polyak and Juditsky, SIAM Journal on Control and Optimization 30,
    # 1992). delay : number of steps in which the size hardly falls.
    return (1 + n_steps / delay) ** -0.6


def weight_of_last(n_points, power):
    """Return the weight of the last of some points in their average, in (0, 1]."""
    # Each point has about its number to this power as weight.
    return (power + 1) / (n_points + power)
