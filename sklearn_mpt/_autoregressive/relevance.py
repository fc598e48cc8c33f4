r"""Which columns tell most of another one.

Each column is coded by a few orthonormal functions: polynomials of the ranks of
numbers and levels, and indicators of categories. The sum of the squared correlations
of the functions of two columns is Pearson's :math:`\phi^2` (chi-square divided by the
number of rows), of which Cramer's V is a multiple, for any pair of kinds. Under
independence it is about chi-square divided by the number of rows, with as many degrees
of freedom as there are pairs of functions, so what chance gives is taken off. It sees
dependence of pairs; what only two columns together tell of a third is not seen.
"""

import numpy as np

from sklearn_mpt._numbers import ROUNDING, chunk_slices

MAX_ROWS = 2000  # correlations of as many rows have a standard error of 0.02
DEGREE = 3  # of polynomials: trends, extremes in the middle, and one bend more
MAX_INDICATORS = 10  # of the most frequent categories; the others have one together
BLOCK_ENTRIES = 2**22  # of a matrix of correlations, for memory


def most_related(rows, weight, columns, n_related, rng):
    """Return the columns that tell most of each column, in the order of the table."""
    d = rows.shape[1]
    if n_related is None or n_related >= d - 1:
        return [np.delete(np.arange(d), j) for j in range(d)]
    if len(rows) > MAX_ROWS:
        kept = rng.choice(len(rows), MAX_ROWS, replace=False)
        rows, weight = rows[kept], None if weight is None else weight[kept]
    related = []
    for association in associations(rows, weight, columns.kinds):
        best = np.argsort(-association, kind="stable")[:n_related]
        related.append(np.sort(best))
    return related


def associations(rows, weight, kinds):
    """Yield how much other columns tell of each column, -inf for itself; (d,).

    In complete rows with equal weights it is phi^2 less the mean, and a standard
    deviation, of what chance gives.
    """
    weight = np.ones(len(rows)) if weight is None else weight
    # rows of which as many with equal weights have the same standard errors
    weight = weight * (weight.sum() / (weight**2).sum())
    coded = [_functions(x, weight, kind) for x, kind in zip(rows.T, kinds, strict=True)]
    n_functions = np.array([coded_column.shape[1] for coded_column in coded])
    first = np.cumsum([0, *n_functions])
    functions = np.hstack(coded)
    present = (~np.isnan(rows)).astype(np.float32)
    scale = weight[:, None].astype(np.float32)
    entries = functions.shape[1] * n_functions.max()
    for block in chunk_slices(len(coded), entries, BLOCK_ENTRIES):
        within = slice(first[block.start], first[block.stop])
        product = functions.T @ (scale * functions[:, within])
        squares = _sums(_sums(product**2, first[:-1]).T, first[block] - within.start)
        n_rows = (present.T @ (scale * present[:, block])).T
        chance = n_functions[block, None] * n_functions
        bound = chance + np.sqrt(2 * chance)  # mean and deviation of chi-square
        n_rows = np.maximum(n_rows, 1.0)
        association = squares / n_rows**2 - bound / n_rows
        association[np.arange(len(association)), np.arange(len(kinds))[block]] = -np.inf
        yield from association


def _sums(terms, first):
    """Return sums of rows from each of `first` to the next."""
    return np.add.reduceat(terms, first, axis=0)


def _functions(x, weight, kind):
    """Return functions of a column with mean 0 and variance 1, 0 in gaps; float32."""
    present = ~np.isnan(x)
    seen, weight = x[present], weight[present]
    functions = np.zeros((len(x), 0))
    if present.any():
        make = _indicators if kind == "categorical" else _polynomials
        coded_column = make(seen, weight)
        functions = np.zeros((len(x), coded_column.shape[1]))
        functions[present] = coded_column
    if not functions.shape[1]:
        functions = np.zeros((len(x), 1))
    return functions.astype(np.float32)


def _indicators(codes, weight):
    """Return orthonormal functions that span the indicators of categories."""
    _, value_index = np.unique(codes, return_inverse=True)
    frequency = np.bincount(value_index, weight) / weight.sum()
    rank = np.empty(len(frequency), dtype=int)
    rank[np.argsort(-frequency, kind="stable")] = np.arange(len(frequency))
    value_index = np.minimum(rank, MAX_INDICATORS)[value_index]
    frequency = np.bincount(value_index, weight) / weight.sum()
    indicators = value_index[:, None] == np.arange(len(frequency))
    return _orthonormal((indicators - frequency) / np.sqrt(frequency), weight)


def _polynomials(x, weight):
    """Return orthonormal polynomials of ranks; fewer, if x has few values."""
    weight = weight / weight.sum()
    _, value_index = np.unique(x, return_inverse=True)
    frequency = np.bincount(value_index, weight)
    ranks = (np.cumsum(frequency) - frequency / 2)[value_index]
    powers = np.polynomial.legendre.legvander(2 * ranks - 1, DEGREE)[:, 1:]
    return _orthonormal(powers - weight @ powers, weight)


def _orthonormal(centred, weight):
    """Return orthonormal columns that span others, whose mean is 0."""
    fraction = weight[:, None] / weight.sum()
    values, vectors = np.linalg.eigh(centred.T @ (fraction * centred))
    is_function = values > ROUNDING * centred.shape[1]
    return centred @ (vectors[:, is_function] / np.sqrt(values[is_function]))
