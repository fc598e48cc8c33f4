"""Forests in fewer bytes, for pickles.

scikit-learn stores 64 bytes for each node of a tree, and 8 for each number that it
predicts. Most of them are small whole numbers. The fields of all nodes of a forest are
packed here, leaves apart from the others, each in the smallest type that holds it
exactly.
"""

import copy
from itertools import pairwise

import numpy as np

TYPES = np.int8, np.int16, np.int32, np.float32
N_NODES, NODES, VALUES = "node_count", "nodes", "values"  # in the state of a tree


def narrowed(array):
    """Return numbers in the smallest type that holds them exactly."""
    with np.errstate(all="ignore"):  # of numbers that a type does not hold
        for dtype in TYPES:
            small = array.astype(dtype)
            if (small == array).all():
                return small
    return array


def round_trees(forest):
    """Round means, variances and thresholds of a fitted forest to single precision.

    Trees compare thresholds with numbers in single precision, so that rows stay in the
    same leaves if thresholds are rounded down.
    """
    for tree in forest.estimators_:
        tree = tree.tree_
        for array in (tree.value, tree.impurity):
            array[:] = array.astype(np.float32)
        rounded = tree.threshold.astype(np.float32)
        below = np.nextafter(rounded, np.float32(-np.inf))
        tree.threshold[:] = np.where(rounded > tree.threshold, below, rounded)


def packed(forest):
    """Return a fitted forest as a dict of a forest without nodes, and arrays."""
    trees = [tree.tree_ for tree in forest.estimators_]
    _, arguments, _ = trees[0].__reduce__()
    states = [tree.__getstate__() for tree in trees]
    nodes, values = (
        np.concatenate([state.pop(name) for state in states])
        for name in (NODES, VALUES)
    )
    is_leaf = nodes["left_child"] < 0
    fields = {name: nodes[name] for name in nodes.dtype.names} | {VALUES: values}
    return {
        "forest": _with_trees(forest, [None] * len(trees)),
        "arguments": arguments,
        "states": states,
        "is_leaf": np.packbits(is_leaf),
        "fields": {
            name: [_narrowest(field[~is_leaf]), _narrowest(field[is_leaf])]
            for name, field in fields.items()
        },
    }


def unpacked(parts):
    """Return the forest of which `packed` returned the parts."""
    from sklearn.tree._tree import Tree  # its import takes long

    def tree_of(state=None):
        tree = Tree(*parts["arguments"])
        if state is not None:
            tree.__setstate__(state)
        return tree

    empty = tree_of().__getstate__()
    ends = np.cumsum([0] + [state[N_NODES] for state in parts["states"]])
    is_leaf = np.unpackbits(parts["is_leaf"], count=ends[-1]).astype(bool)
    nodes = np.zeros(ends[-1], dtype=empty[NODES].dtype)
    values = np.zeros((ends[-1], *empty[VALUES].shape[1:]))
    for name, (inner, leaves) in parts["fields"].items():
        field = values if name == VALUES else nodes[name]
        field[~is_leaf], field[is_leaf] = inner, leaves
    blocks = [slice(*pair) for pair in pairwise(ends)]
    trees = [
        tree_of(state | {NODES: nodes[block], VALUES: values[block]})
        for state, block in zip(parts["states"], blocks, strict=True)
    ]
    return _with_trees(parts["forest"], trees)


def _narrowest(array):
    """Return an array as `narrowed` does; equal rows once."""
    return narrowed(array[:1] if (array == array[:1]).all() else array)


def _with_trees(forest, trees):
    """Return a copy of a forest with other nodes."""
    forest = copy.copy(forest)
    estimators = [copy.copy(tree) for tree in forest.estimators_]
    for estimator, tree in zip(estimators, trees, strict=True):
        estimator.tree_ = tree
    forest.estimators_ = estimators
    return forest
