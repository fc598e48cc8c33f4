"""Line search by backtracking: a step is halved until it is accepted."""


def backtrack(attempt, max_tries, size=1.0):
    """Halve a step until it is accepted; return its size and result, or None."""
    # attempt : from the size of a step to what it leads to; None if it is not accepted.
    for _ in range(max_tries):
        result = attempt(size)
        if result is not None:
            return size, result
        size /= 2
    return size, None
