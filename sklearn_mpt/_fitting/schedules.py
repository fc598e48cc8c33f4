"""Sizes of steps that fall, and averages of points, in stochastic approximation."""


def falling_size(n_steps, delay=10):
    """Return the size of a step after `n_steps` others, as a fraction of the first.

    It is (1 + n_steps / delay) ** -0.6: sizes add up to infinity, and their squares do
    not, and averages of points are efficient [1]_.

    delay : number of steps in which the size hardly falls.

    References
    ----------
    .. [1] B. T. Polyak and A. B. Juditsky, "Acceleration of stochastic approximation
       by averaging", SIAM Journal on Control and Optimization 30, 1992.
    """
    return (1 + n_steps / delay) ** -0.6


def weight_of_last(n_points):
    """Return the weight of the last of some points in their average, in (0, 1].

    Each point has its number as weight, so that the first ones count little.
    """
    return 2 / (n_points + 1)


def square_of_weights(n_points):
    """Return the sum of the squared weights of many points in this average.

    So many times the variance of a point is that of the average.
    """
    return 4 / (3 * n_points)
