"""What becomes of the language model when its scorer is pickled or cloned."""

import copy

from sklearn_mpt._text.loading import open_model


class LoadedModelMixin:
    """Open the model that the parameters name, and leave it out of pickles.

    A loaded model that was given as a parameter is pickled, as such.
    """

    def _open(self, *probed):
        self._opened = open_model(self, *probed)
        return self._opened

    def _open_again(self):
        """Return the opened model and its tokenizer; after unpickling, open them."""
        if hasattr(self, "_opened"):
            return self._opened
        return self._open(self.uses_gathered_head_, self._can_pad)

    def __getstate__(self):
        state = super().__getstate__()
        state.pop("_opened", None)
        return state

    def __sklearn_clone__(self):
        """Clone the parameters, but share a loaded model and its tokenizer."""
        light = copy.copy(self).set_params(model=None, tokenizer=None)
        clone = super(LoadedModelMixin, light).__sklearn_clone__()
        return clone.set_params(model=self.model, tokenizer=self.tokenizer)
