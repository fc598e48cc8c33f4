"""Line search by backtracking: a step is halved until it is accepted."""


def backtrack(attempt, max_tries, size=1.0):
    """Halve a step until it is accepted; return its size, and what it leads to.

    Parameters
    ----------
    attempt : callable
        From the size of a step to what it leads to; None if the step is not accepted.
    max_tries : int
        Largest number of sizes that are tried.
    size : float
        The first of them.

    Returns
    -------
    size : float
    result : object
        None if no step is accepted.
    """
    for _ in range(max_tries):
        result = attempt(size)
        if result is not None:
            return size, result
        size /= 2
    return size, None
