"""Epochs for the fit loop, without the callbacks of an estimator."""


class Silence:
    """Does nothing around epochs."""

    def begin(self):
        """Called before each epoch."""

    def end(self):
        """Called after each epoch; returns whether to end training."""
        return False


SILENCE = Silence()
