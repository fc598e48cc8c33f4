"""Time MPTLinearVAE on binary rows, objective against objective, node against node.

Parts:

- ``objectives``: training by MPT, by the evidence lower bound (ELBO) and by the log
  marginal likelihood (LML) itself, from the same start. Printed are the LML in nats per
  row on training and test rows as wall time passes, and the time of the whole fit.
- ``nodes``: the worst error of a row's LML, by the number of nodes: Gauss-Hermite nodes
  around the posterior, the same nodes around the prior, and a uniform grid on [-5, 5]
  (4 x 4 is the one of the paper's code). The truth are 41 x 41 nodes around the
  posterior.
- ``scoring``: `score_samples` against an epoch of training.
- ``tables``: processor time of fits and scores of tables: 944 rows of six columns of
  seven levels, a yes or no and three numbers, by two factors; and 2,000 rows of 112
  zeros and ones, the levels of 22 columns of a random Bayesian network. The LML, in
  nats per row, is that of the first 300 rows, whose scores are timed.
- ``masks``: epochs, processor time and LML of fits of the first 500 rows by
  ``n_masks="auto"``, which draws masks first, and by ``objective="lml"``.

Run all in a few minutes on two cores, or some of them::

    python benchmarks/bench_linear_vae.py
    python benchmarks/bench_linear_vae.py nodes

The rows are the digits of scikit-learn, 1 where darker than 7 of 16, or with
``--features 784`` simulated ones. One thread is the default.
"""

import time

import numpy as np
import torch
from measuring import parse_parts, parser_of, print_machine
from scipy.special import expit, log_expit, logsumexp
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

from sklearn_mpt import MPTLinearVAE
from sklearn_mpt._latent.integrals import integrate_log_prob, rows_of
from sklearn_mpt._latent.linear_map import LinearMap
from sklearn_mpt._latent.quadrature import GaussHermite
from sklearn_mpt._likelihoods import Bernoulli

CHECKPOINTS = [0.3, 1, 3, 10]  # seconds


class Snapshots:
    """Callback that keeps the parameters of each epoch with the time spent so far."""

    def setup(self, estimator, context):
        self.records, self.start = [], time.perf_counter()
        self.fit = context

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if context.parent is self.fit:
            elapsed = time.perf_counter() - self.start
            self.records.append((elapsed, fitted_estimator))


def rows(n_features):
    if n_features == 64:
        X = (load_digits().data > 7).astype(float)
    else:
        rng = np.random.default_rng(0)
        z = rng.normal(size=(1500, 2))
        logits = z @ rng.normal(size=(2, n_features)) + rng.normal(size=n_features)
        X = (rng.random(logits.shape) < expit(logits)).astype(float)
    return X[: 2 * len(X) // 3], X[2 * len(X) // 3 :]


def bernoulli_model(**parameters):
    return MPTLinearVAE(likelihood="bernoulli", random_state=0, **parameters)


def bench_objectives(n_features):
    train, test = rows(n_features)
    print(f"LML per row on {train.shape} training rows (and test rows) after")
    print("           " + "".join(f"{t:>16} s" for t in CHECKPOINTS) + "     the fit")
    for objective in ("mpt", "elbo", "lml"):
        snapshots = Snapshots()
        start = time.perf_counter()
        model = bernoulli_model(objective=objective).set_callbacks(snapshots)
        model.fit(train)
        elapsed = time.perf_counter() - start
        at = [_last_before(snapshots.records, limit) for limit in CHECKPOINTS]
        cells = [f"{m.score(train):8.3f} ({m.score(test):7.3f})" for m in (*at, model)]
        print(f"{objective:>10} " + " ".join(cells) + f" in {elapsed:.1f} s")


def _last_before(records, limit):
    """The last model of the records before a time, or the first."""
    n_before = sum(elapsed <= limit for elapsed, _ in records)
    return records[max(0, n_before - 1)][1]


def log_likelihood(X, z, model):
    """log p(x | z) for each row and node; (n, s)."""
    logits = z @ model.components_ + model.intercept_
    return X @ log_expit(logits).T + (1 - X) @ log_expit(-logits).T


def prior_grid(n_per_dim):
    u, weight = np.polynomial.hermite_e.hermegauss(n_per_dim)
    return _product(u), _product(np.log(weight / np.sqrt(2 * np.pi))).sum(1)


def uniform_grid(n_per_dim, limit=5.0):
    z = _product(np.linspace(-limit, limit, n_per_dim))
    cell = 2 * np.log(2 * limit / n_per_dim)
    return z, cell - 0.5 * (z**2).sum(1) - np.log(2 * np.pi)


def _product(axis):
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)


def bench_nodes(n_features):
    X, _ = rows(n_features)
    X = X[:200]
    model = bernoulli_model().fit(X)
    truth = adaptive(X, 41, model)
    print("worst error of a row's LML, nats")
    print("nodes      posterior          prior        uniform")
    for n in (2, 3, 4, 5, 7, 10, 20):
        errors = [np.abs(adaptive(X, n, model) - truth).max()]
        for z, log_weight in (prior_grid(n), uniform_grid(n)):
            log_prob = logsumexp(log_likelihood(X, z, model) + log_weight, axis=1)
            errors.append(np.abs(log_prob - truth).max())
        print(f"{n:>2} x {n:<2}" + "".join(f"{error:>15.2g}" for error in errors))


def adaptive(X, n_per_dim, model):
    """The package's rule with one grid."""
    rule = GaussHermite([n_per_dim, n_per_dim], 2, "cpu")
    arrays = torch.tensor(model.components_), torch.tensor(model.intercept_)
    rows = rows_of(torch.tensor(X))
    return integrate_log_prob(rows, rule, LinearMap(*arrays, Bernoulli()))[0].numpy()


def bench_scoring(n_features):
    X, _ = rows(n_features)
    start = time.perf_counter()
    model = bernoulli_model().fit(X)
    epoch = (time.perf_counter() - start) / model.n_iter_
    start = time.perf_counter()
    model.score_samples(X)
    elapsed = time.perf_counter() - start
    print(f"score_samples of {X.shape}: {elapsed / epoch:.1f} epochs ({elapsed:.2f} s)")


def table_of_answers(n_rows=944):
    """Levels, a yes or no, and numbers, by two factors."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n_rows, 2))
    location = z @ rng.normal(size=(2, 10)) + rng.logistic(size=(n_rows, 10))
    levels = [np.searchsorted([-3, -2, -1, 1, 2, 3], column) for column in location.T]
    return np.stack([*levels[:6], location[:, 6] > 0, *location[:, 7:].T], 1)


def levels_of_network(n_rows=2000, n_columns=22, n_levels=112):
    """Zeros and ones, for the levels of the columns of a random Bayesian network."""
    rng = np.random.default_rng(0)
    sizes = 2 + rng.multinomial(n_levels - 2 * n_columns, [1 / n_columns] * n_columns)
    columns = []
    for j, size in enumerate(sizes):
        code, n_states = np.zeros(n_rows, dtype=int), 1
        for parent in rng.permutation(j)[:2]:
            code = code * sizes[parent] + columns[parent]
            n_states *= sizes[parent]
        shares = rng.dirichlet(np.full(size, 0.5), size=n_states).cumsum(1)[code]
        columns.append((rng.random((n_rows, 1)) > shares[:, :-1]).sum(1))
    pairs = zip(sizes, columns, strict=True)
    return np.concatenate([np.eye(size)[column] for size, column in pairs], 1)


def bench_tables(n_features):
    answers, network = table_of_answers(), levels_of_network()
    kinds = {
        "nominal": ["categorical"] * 6 + ["bernoulli"] + ["gaussian"] * 3,
        "ordered": ["ordinal"] * 6 + ["bernoulli"] + ["gaussian"] * 3,
    }
    print("table      K   fit s  epochs  score s        LML")
    tasks = [(name, answers, kinds[name], K) for name in kinds for K in (1, 2, 3)]
    tasks += [("binary", network, "bernoulli", K) for K in (2, 4, 10)]
    for name, X, kind, K in tasks:
        model = MPTLinearVAE(K, likelihood=kind, random_state=0)
        start = time.process_time()
        model.fit(X)
        fitted = time.process_time()
        score = model.score(X[:300])
        cells = f"{fitted - start:>7.1f} {model.n_iter_:>7}"
        elapsed = time.process_time() - fitted
        print(f"{name:<8} {K:>3} {cells} {elapsed:>8.2f} {score:>10.3f}", flush=True)


def bench_masks(n_features):
    X = rows(n_features)[0][:500]
    print("components  objective  epochs  seconds        LML")
    for K in (1, 2, 5):
        for objective in ("mpt", "lml"):
            model = bernoulli_model(n_components=K, objective=objective)
            start = time.process_time()
            model.fit(X)
            seconds = time.process_time() - start
            cells = f"{model.n_iter_:>7} {seconds:>8.1f}"
            print(
                f"{K:>10} {objective:>10} {cells} {model.score(X):>10.4f}", flush=True
            )


PARTS = {
    "objectives": bench_objectives,
    "nodes": bench_nodes,
    "scoring": bench_scoring,
    "tables": bench_tables,
    "masks": bench_masks,
}


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--features", type=int, default=64, help="64: the digits")
    parser.add_argument("--threads", type=int, default=1, help="of torch and BLAS")
    arguments = parse_parts(parser, PARTS)
    torch.set_num_threads(arguments.threads)
    print_machine()
    with threadpool_limits(arguments.threads):
        for part in arguments.parts:
            PARTS[part](arguments.features)
            print(flush=True)


if __name__ == "__main__":
    main()
