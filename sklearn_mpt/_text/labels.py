"""Labels of batches of texts, which carry the weights of their texts."""

import torch

VISIBLE = -100  # means "no label" in transformers and torch


class TextLabels(torch.Tensor):
    """Labels that carry the weight of a hidden token of each text, `weights`.

    They keep these weights when they are moved, joined or split by texts, as loaders of
    iterable datasets do. `Trainer` gives a loss function only the labels of a batch.
    """

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **kwargs)
        if function in MOVES:
            return labels_of(result, args[0].weights)
        if function is torch.Tensor.__getitem__ and isinstance(args[1], slice):
            return labels_of(result, args[0].weights[args[1]])
        if function in JOINS and _is_of_texts(args[1:], kwargs):
            weights = [getattr(part, "weights", None) for part in args[0]]
            if None not in weights:
                return labels_of(result, torch.cat(weights))
        if function in CUTS and _is_of_texts(args[2:], kwargs):
            weights = args[0].weights.split([len(part) for part in result])
            return tuple(map(labels_of, result, weights))
        if function in COMPARISONS and isinstance(args[1], int) and args[1] == VISIBLE:
            return _hidden(result, len(args[0]))
        return result


class HiddenTokens(torch.Tensor):
    """Which tokens of some texts are hidden, or how many, with the number of texts.

    `Trainer` counts the items of one step by ``sum(labels.ne(-100).sum() for ...)``,
    and gives a loss function the sum. `n_texts` adds up with it.
    """

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
        counts = [part.n_texts for part in args if isinstance(part, HiddenTokens)]
        if not counts or not isinstance(result, torch.Tensor):
            return result
        # Trainer also moves, divides and expands the sum, by the number of devices
        return _hidden(result, sum(counts) if function in SUMS else counts[0])


MOVES = {
    torch.Tensor.to,
    torch.Tensor.cpu,
    torch.Tensor.cuda,
    torch.Tensor.pin_memory,
    torch.Tensor.contiguous,
    torch.Tensor.detach,
    torch.Tensor.clone,
}
COMPARISONS = {torch.Tensor.ne, torch.Tensor.__ne__, torch.ne}
SUMS = {torch.Tensor.add, torch.Tensor.__radd__, torch.Tensor.__iadd__, torch.add}
JOINS = {torch.cat, torch.concat, torch.concatenate}
CUTS = {torch.Tensor.chunk, torch.Tensor.split, torch.chunk, torch.split}


def _is_of_texts(more, kwargs):
    """Return whether a function joins or splits along the first axis."""
    return (more[0] if more else kwargs.get("dim", 0)) == 0


def labels_of(tensor, weights):
    labels = tensor.as_subclass(TextLabels)
    labels.weights = weights
    return labels


def _hidden(tensor, n_texts):
    hidden = tensor.as_subclass(HiddenTokens)
    hidden.n_texts = n_texts
    return hidden
