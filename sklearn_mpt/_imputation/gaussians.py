"""Gaussians of coded rows with gaps, and small mixtures of them, by EM."""

import numpy as np
from scipy.special import softmax
from sklearn.utils.extmath import randomized_svd

# Entries of arrays of inverses that are computed together.
BLOCK_ENTRIES = 4_000_000
# Most indicators of a category whose covariances are used beside their variances.
MAX_BLOCK = 20
# EM ends when expectations change less, in standard deviations of the shrinkage.
CHANGE = 0.03


class Conditioned:
    """A Gaussian given the entries of rows, (n, p), NaN where missing."""

    # Conditional covariances are inverses of blocks of the precision, one for each
    # pattern of gaps; patterns of nearly as many gaps are inverted together.

    def __init__(self, Z, mean, precision, patterns):
        p = Z.shape[1]
        self.gaps, self.mean = np.isnan(Z), mean
        centred = np.where(self.gaps, 0.0, Z - mean)
        pull = centred @ precision
        self.square = (pull * centred).sum(axis=1)
        self.log_det_all = np.linalg.slogdet(precision)[1]
        self.deviation, self.blocks = centred, []
        pull = np.pad(pull, ((0, 0), (0, 1)))
        padded = np.zeros((p + 1, p + 1))
        padded[:p, :p], padded[p, p] = precision, 1.0
        for index, rows, which in patterns:
            matrix = padded[index[:, :, None], index[:, None, :]]
            block, place = np.nonzero(index == p)
            matrix[block, place, :] = matrix[block, :, place] = 0.0
            matrix[block, place, place] = 1.0
            inverse = np.linalg.inv(matrix)
            of_gaps = np.take_along_axis(pull[rows], index[which], axis=1)
            solved = np.matmul(inverse[which], of_gaps[:, :, None])[:, :, 0]
            self.square[rows] -= (of_gaps * solved).sum(axis=1)
            wide = np.zeros((len(rows), p + 1))
            np.put_along_axis(wide, index[which], -solved, axis=1)
            self.deviation[rows] += wide[:, :p]
            inverse[block, place, place] = 0.0
            self.blocks.append((index, rows, which, inverse, matrix))

    @property
    def filled(self):
        """The rows with expectations in the gaps."""
        return self.mean + self.deviation

    def log_prob(self):
        """Return the log-density of what is known of each row, (n,)."""
        n_known = (~self.gaps).sum(axis=1)
        log_det = np.full(len(self.gaps), self.log_det_all)
        for _, rows, which, _, matrix in self.blocks:
            log_det[rows] -= np.linalg.slogdet(matrix)[1][which]
        return 0.5 * (log_det - self.square - n_known * np.log(2 * np.pi))

    def scatter(self, weight):
        """Return the sum of conditional covariances of rows with weights, (p, p)."""
        p = self.gaps.shape[1]
        scatter = np.zeros((p + 1) ** 2)
        for index, rows, which, inverse, _ in self.blocks:
            count = np.bincount(which, weight[rows], len(index))
            flat = index[:, :, None] * (p + 1) + index[:, None, :]
            of_block = (count[:, None, None] * inverse).ravel()
            scatter += np.bincount(flat.ravel(), of_block, (p + 1) ** 2)
        return scatter.reshape(p + 1, p + 1)[:p, :p]

    def covariances(self, columns):
        """Return conditional covariances of a slice of columns, all or none missing."""
        size = columns.stop - columns.start
        if size > MAX_BLOCK:
            found = np.zeros((len(self.gaps), self.gaps.shape[1] + 1))
            for index, rows, which, inverse, _ in self.blocks:
                variances = inverse.diagonal(axis1=1, axis2=2)
                of_rows = np.zeros((len(rows), found.shape[1]))
                np.put_along_axis(of_rows, index[which], variances[which], axis=1)
                found[rows] = of_rows
            return found[:, columns]
        found = np.zeros((len(self.gaps), size, size))
        for index, rows, which, inverse, _ in self.blocks:
            here = (index >= columns.start) & (index < columns.stop)
            has = here.any(axis=1)[which]
            place = here.argmax(axis=1)[which[has], None] + np.arange(size)
            found[rows[has]] = inverse[
                which[has][:, None, None], place[:, :, None], place[:, None, :]
            ]
        return found


def _patterns(gaps):
    """Yield patterns of gaps of nearly one size, as indices padded with p, (q, m)."""
    # Also the rows that have them, and which of the patterns each of these has.
    p = gaps.shape[1]
    packed = np.packbits(gaps, axis=1)
    _, first, pattern = np.unique(
        packed.view(f"V{packed.shape[1]}")[:, 0], return_index=True, return_inverse=True
    )
    sizes = gaps[first].sum(axis=1)
    by_size = sizes.argsort(kind="stable")
    by_size = by_size[sizes[by_size] > 0]
    while len(by_size):
        most = max(1, BLOCK_ENTRIES // max(sizes[by_size[0]], 8) ** 2)
        part = by_size[:most]
        part = part[sizes[part] <= 1.3 * sizes[part[0]] + 2]
        by_size = by_size[len(part) :]
        index = np.full((len(part), sizes[part[-1]]), p)
        of_pattern, column = np.nonzero(gaps[first[part]])
        place = np.arange(len(column)) - np.searchsorted(of_pattern, of_pattern)
        index[of_pattern, place] = column
        position = np.full(len(first), -1)
        position[part] = np.arange(len(part))
        which = position[pattern]
        rows = np.flatnonzero(which >= 0)
        yield index, rows, which[rows]


class Gaussians:
    """A mixture of Gaussians, or one; by EM, warm from others of as many."""

    # shrinkage : variance that each step adds to that of each coded column.

    def __init__(self, n_components, shrinkage, n_steps):
        self.n_components, self.shrinkage, self.n_steps = (
            n_components,
            shrinkage,
            n_steps,
        )

    def fit(self, Z, weight, start=None, responsibility=None):
        """Fit to coded rows."""
        # responsibility : of the components at first, (n, k).
        k = self.n_components
        if start is None:
            self.weights, self.means = np.ones(1), np.nanmean(Z, axis=0)[None]
            self.covariances = np.diag(np.nanvar(Z, axis=0) + self.shrinkage)[None]
        else:
            n_copies = k // len(start.weights)
            self.weights = np.tile(start.weights, n_copies) / n_copies
            self.means = np.tile(start.means, (n_copies, 1))
            self.covariances = np.tile(start.covariances, (n_copies, 1, 1))
        self._invert()
        gaps = np.isnan(Z)
        patterns = list(_patterns(gaps))
        before, tol = 0.0, CHANGE * np.sqrt(self.shrinkage)
        for _ in range(self.n_steps):
            filled = self._step(Z, patterns, weight, responsibility)
            responsibility = None
            change = np.sqrt(np.mean((filled - before)[gaps] ** 2)) if gaps.any() else 0
            before = filled
            if change < tol:
                break
        return self

    def _step(self, Z, patterns, weight, responsibility=None):
        """Maximise the expected log-likelihood; return the expected rows."""
        parts = self._parts(Z, patterns)
        if responsibility is None:
            responsibility = self._responsibility(parts)
        expected, weights, means, covariances = 0.0, [], [], []
        for part, r in zip(parts, responsibility.T, strict=True):
            w, filled = weight * r, part.filled
            mean = w @ filled / w.sum()
            centred = filled - mean
            covariance = ((centred.T * w) @ centred + part.scatter(w)) / w.sum()
            weights.append(w.sum())
            means.append(mean)
            covariances.append(covariance + self.shrinkage * np.eye(len(mean)))
            expected = expected + r[:, None] * filled
        self.weights = np.array(weights) / np.sum(weights)
        self.means, self.covariances = np.array(means), np.array(covariances)
        self._invert()
        return expected

    def _parts(self, Z, patterns):
        return [
            Conditioned(Z, mean, precision, patterns)
            for mean, precision in zip(self.means, self.precisions, strict=True)
        ]

    def _invert(self):
        inverses = np.linalg.inv(self.covariances)
        self.precisions = (inverses + inverses.transpose(0, 2, 1)) / 2

    def _responsibility(self, parts):
        """Return the probability of each component given each row, (n, k)."""
        if len(parts) == 1:
            return np.ones((len(parts[0].gaps), 1))
        log_prob = np.column_stack([part.log_prob() for part in parts])
        return softmax(log_prob + np.log(self.weights), axis=1)

    def conditionals(self, Z, asked):
        """Return probabilities of components, (n, k), and what each expects."""
        # The latter are (filled, covariances of the slices of columns `asked`, those
        # without any entry given, mean) for each.
        parts = self._parts(Z, list(_patterns(np.isnan(Z))))
        return self._responsibility(parts), [
            (
                part.filled,
                [part.covariances(b) for b in asked],
                [_prior(c, b) for b in asked],
                m,
            )
            for part, m, c in zip(parts, self.means, self.covariances, strict=True)
        ]


def _prior(covariance, b):
    of_block = covariance[b, b]
    return of_block.diagonal() if len(of_block) > MAX_BLOCK else of_block


class Factors:
    """A Gaussian of few factors, by EM; warm from one of fewer."""

    def __init__(self, n_factors, n_steps, min_noise=1e-3):
        self.n_factors, self.n_steps, self.min_noise = n_factors, n_steps, min_noise

    def fit(self, Z, weight, start=None):
        p, k = Z.shape[1], self.n_factors
        known = ~np.isnan(Z)
        W = known * weight[:, None]
        count = W.sum(axis=0)
        if start is None:
            self.mean = np.nanmean(Z, axis=0)
            self.loadings = np.zeros((p, 0))
            self.noise = np.nanvar(Z, axis=0) + self.min_noise
        else:
            self.mean, self.loadings, self.noise = (
                start.mean,
                start.loadings,
                start.noise,
            )
        more = k - self.loadings.shape[1]
        if more:
            residual = (
                np.where(known, Z - self._expected(Z), 0.0) * np.sqrt(weight)[:, None]
            )
            _, s, vt = randomized_svd(residual, more, n_iter=2, random_state=0)
            new = vt.T * s / np.sqrt(np.maximum(count, 1).mean())
            self.loadings = np.column_stack([self.loadings, new])
        before = 0.0
        for _ in range(self.n_steps):
            z, covariance = self._factors(Z)
            second = covariance + z[:, :, None] * z[:, None, :]
            ones = np.column_stack([z, np.ones(len(z))])
            moment = np.zeros((len(z), k + 1, k + 1))
            moment[:, :k, :k] = second
            moment[:, k, :], moment[:, :, k] = ones, ones
            left = (W.T @ moment.reshape(len(z), -1)).reshape(p, k + 1, k + 1)
            ridge = np.eye(k + 1)
            ridge[k, k] = 0.0
            left += self.noise[:, None, None] * ridge
            target = np.where(known, Z, 0.0)
            right = (W * target).T @ ones
            coef = np.linalg.solve(left + 1e-9 * np.eye(k + 1), right[:, :, None])[
                :, :, 0
            ]
            squares = (W * target**2).sum(axis=0) - (coef * right).sum(axis=1)
            self.loadings, self.mean = coef[:, :k], coef[:, k]
            self.noise = np.maximum((squares + 0.2) / (count + 2), self.min_noise)
            filled = z @ self.loadings.T + self.mean
            change = np.sqrt(np.mean((filled - before) ** 2))
            before = filled
            if change < 0.01:
                break
        return self

    def _factors(self, Z):
        """Return means and covariances of the factors of rows."""
        known = ~np.isnan(Z)
        k = self.loadings.shape[1]
        scaled = self.loadings / self.noise[:, None]
        outer = (scaled[:, :, None] * self.loadings[:, None, :]).reshape(-1, k * k)
        information = (known @ outer).reshape(-1, k, k) + np.eye(k)
        covariance = np.linalg.inv(information)
        centred = np.where(known, Z - self.mean, 0.0)
        return np.matmul(covariance, (centred @ scaled)[:, :, None])[
            :, :, 0
        ], covariance

    def _expected(self, Z):
        if not self.loadings.shape[1]:
            return np.broadcast_to(self.mean, Z.shape)
        return self._factors(Z)[0] @ self.loadings.T + self.mean

    def conditionals(self, Z, asked):
        z, covariance = self._factors(Z)
        filled = np.where(np.isnan(Z), z @ self.loadings.T + self.mean, Z)
        blocks, priors = [], []
        for b in asked:
            L, noise = self.loadings[b], np.diag(self.noise[b])
            if len(L) > MAX_BLOCK:
                variances = ((L @ covariance) * L).sum(axis=2) + self.noise[b]
                blocks.append(variances)
                priors.append((L**2).sum(axis=1) + self.noise[b])
            else:
                blocks.append(L @ covariance @ L.T + noise)
                priors.append(L @ L.T + noise)
        return np.ones((len(Z), 1)), [(filled, blocks, priors, self.mean)]
