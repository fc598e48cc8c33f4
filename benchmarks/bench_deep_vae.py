"""Compare MPTDeepVAE with other autoencoders, and numbers of its components.

Parts:

- ``peers``: IWAE [1]_ and MIWAE [2]_ written plainly in PyTorch, with Adam, the same
  nets and as much processor time as MPT took: complete rows by their test log marginal
  likelihood (of peers, by the bound of 5000 points), mean and standard error over
  seeds, with the mean difference, and by the processor time that it takes, with the
  ratio of both; rows with gaps by the error of imputation. Of four learning rates the
  peer has the one that is best for rows held out of the training rows.
  nltcs, jester and plants are read from a folder of ``debd_<name>.npz``, if given.
- ``capacity``: what more components gain, and categories in place of columns of zeros
  and ones: chains of binary sites, and categories that depend on each other along a
  tree, of which the true density is known.

Run all, some, or small versions::

    OMP_NUM_THREADS=1 python benchmarks/bench_deep_vae.py [--quick] [--data folder]
        [--seeds 3] [--rows 5000] [parts]

References
----------
.. [1] Y. Burda, R. Grosse and R. Salakhutdinov, "Importance weighted autoencoders",
   ICLR 2016.
.. [2] P.-A. Mattei and J. Frellsen, "MIWAE: deep generative modelling and imputation of
   incomplete data sets", ICML 2019.
"""

import itertools
import os
import time
import warnings

import numpy as np
import torch
from measuring import (
    parse_parts,
    parser_of,
    print_machine,
    processor_seconds,
    seconds,
)
from scipy.stats import sem
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split

from sklearn_mpt import MPTDeepVAE

PEER_RATES = 3e-4, 1e-3, 3e-3, 1e-2


def split(X):
    return train_test_split(X, test_size=300, random_state=0)


def print_as_they_come(title, header, rows):
    """Print a table whose rows may take long, in columns of a fixed width."""
    print(f"\n{title}\n")
    for cells in itertools.chain([header.split("|")], rows):
        first, *others = cells
        print(first.ljust(26), *(cell.rjust(16) for cell in others), flush=True)


class Peer(torch.nn.Module):
    """A VAE with an encoder of zero-filled rows, trained by the bound of IWAE.

    With gaps, the bound is on the density of what is present: MIWAE.
    """

    def __init__(self, n_features, n_components, binary, width=128):
        super().__init__()
        silu, linear = torch.nn.SiLU, torch.nn.Linear
        self.encoder = torch.nn.Sequential(
            linear(n_features, width),
            silu(),
            linear(width, width),
            silu(),
            linear(width, 2 * n_components),
        )
        self.decoder = torch.nn.Sequential(
            linear(n_components, width),
            silu(),
            linear(width, width),
            silu(),
            linear(width, n_features),
        )
        self.log_noise = torch.nn.Parameter(torch.zeros(()))
        self.binary = binary

    def features(self, z):
        location = self.decoder(z)
        if self.binary:
            return torch.distributions.Bernoulli(logits=location)
        return torch.distributions.Normal(location, (0.5 * self.log_noise).exp())

    def log_weights(self, X, n_points):
        """Points z of each row (s, n, k), and their log weights (s, n)."""
        present = ~torch.isnan(X)
        filled = torch.nan_to_num(X)
        mean, log_std = self.encoder(filled).chunk(2, 1)
        posterior = torch.distributions.Normal(mean, log_std.exp())
        z = posterior.rsample((n_points,))
        log_prior = torch.distributions.Normal(0, 1).log_prob(z).sum(-1)
        log_prob = (self.features(z).log_prob(filled) * present).sum(-1)
        return z, log_prob + log_prior - posterior.log_prob(z).sum(-1)

    def bound(self, X, n_points):
        _, log_weight = self.log_weights(X, n_points)
        return torch.logsumexp(log_weight, 0) - np.log(n_points)


def train_peer(X, n_components, binary, seconds, seed=0, rate=1e-3, batch_size=100):
    """Train by Adam for that long; return the net, and its bound for held-out rows.

    The parameters are kept that are best for a tenth of the rows; those of the start if
    the rate is so high that training diverges in the first epoch.
    """
    torch.manual_seed(seed)
    X = torch.tensor(X, dtype=torch.float32)
    peer = Peer(X.shape[1], n_components, binary)
    optimizer = torch.optim.Adam(peer.parameters(), lr=rate)
    n_held_out = len(X) // 10
    held_out, X = X[:n_held_out], X[n_held_out:]
    best, kept = -np.inf, {k: v.clone() for k, v in peer.state_dict().items()}
    end = time.process_time() + seconds
    while time.process_time() < end:
        try:
            for rows in torch.randperm(len(X)).split(batch_size):
                loss = -peer.bound(X[rows], 16).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                bound = float(peer.bound(held_out, 100).mean())
        except ValueError:  # of distributions, whose parameters are NaN: it diverged
            break
        if bound > best:
            best, kept = bound, {k: v.clone() for k, v in peer.state_dict().items()}
    peer.load_state_dict(kept)
    return peer, best


def tuned_peer(*of):
    """Return the net of the learning rate that is best for held-out rows, and it."""
    found = [(*train_peer(*of, rate=rate), rate) for rate in PEER_RATES]
    peer, _, rate = max(found, key=lambda each: each[1])
    return peer, rate


@torch.no_grad()
def peer_score(peer, X, n_points=5000):
    """Bound with many points, which are more than MPTDeepVAE takes."""
    rows = torch.tensor(X, dtype=torch.float32)
    return float(
        torch.cat([peer.bound(part, n_points) for part in rows.split(20)]).mean()
    )


@torch.no_grad()
def peer_impute(peer, X, n_points=1000):
    """Expected values of what is missing, by the weights of the points."""
    rows, filled = torch.tensor(X, dtype=torch.float32), []
    for part in rows.split(50):
        z, log_weight = peer.log_weights(part, n_points)
        weight = torch.softmax(log_weight, 0)[..., None]
        filled.append((weight * peer.features(z).mean).sum(0))
    return np.where(np.isnan(X), torch.cat(filled).numpy(), X)


def peer_datasets(folder):
    """Name -> number of components, training rows, test rows; all binary."""
    binary = split((load_digits().data > 7).astype(float))
    found = {"binary digits": (4, *binary)}
    for name in ("nltcs", "jester", "plants"):
        path = os.path.join(folder, f"debd_{name}.npz") if folder else ""
        if os.path.exists(path):
            arrays = np.load(path)
            parts = (arrays[k].astype(float) for k in ("train", "test"))
            found[name] = (4, *parts)
    return found


def bench_peers(quick, folder=None, n_seeds=3, n_rows=5000):
    print_as_they_come(
        "peers: MPT, and IWAE (complete) or MIWAE (gaps) for the same time; "
        f"{n_seeds} seeds, {n_rows} training rows at most.",
        "data|measured|s|MPT|peer|MPT - peer|rate of peer",
        peer_rows({"max_iter": 10} if quick else {}, folder, n_seeds, n_rows),
    )


def peer_rows(changes, folder, n_seeds, n_rows):
    for name, (n_components, train, test) in peer_datasets(folder).items():
        train, test = train[:n_rows], test[:500]
        scores, times, rate = [], [], None
        for seed in range(n_seeds):
            model = MPTDeepVAE(n_components, likelihood="bernoulli", random_state=seed)
            fit_time, _ = processor_seconds(model.set_params(**changes).fit, train)
            of = train, n_components, True, fit_time, seed
            if rate is None:
                peer, rate = tuned_peer(*of)
            else:
                peer, _ = train_peer(*of, rate=rate)
            our_time, ours = processor_seconds(model.score, test)
            their_time, theirs = processor_seconds(peer_score, peer, test)
            scores.append((ours, theirs, ours - theirs))
            times.append((fit_time, our_time, their_time))
        means, errors = np.mean(scores, 0), sem(scores)
        cells = [f"{m:.3f} ± {e:.3f}" for m, e in zip(means, errors, strict=True)]
        fit_time, *scoring = np.mean(times, 0)
        yield name, "test LML", f"{fit_time:.1f}", *cells, f"{rate:g}"
        ratio = f"{scoring[0] / scoring[1]:.1f} : 1"
        yield name, "processor s", ratio, *(f"{each:.2f}" for each in scoring)
    truth = load_digits().data / 16
    hidden = np.random.default_rng(0).random(truth.shape) < 0.3
    gaps = np.where(hidden, np.nan, truth)
    scale = truth.std()  # peers get rows of about unit variance, as MPTDeepVAE does
    model = MPTDeepVAE(10, random_state=0).set_params(**changes)
    fit_time, _ = processor_seconds(model.fit, gaps)
    peer, rate = tuned_peer(gaps / scale, 10, False, fit_time)
    filled = model.impute(gaps), scale * peer_impute(peer, gaps / scale)
    errors = [np.sqrt(np.mean((X - truth)[hidden] ** 2)) for X in filled]
    cells = f"{fit_time:.1f}", *(f"{error:.4f}" for error in errors)
    yield "digits / 16, 30% missing", "imputation RMSE", *cells, "", f"{rate:g}"


def chains(n_samples, rng, n_sites=60, stays=0.85):
    """Sites that are mostly as the one before; rows, and their log-probabilities."""
    differs = rng.random((n_samples, n_sites)) > stays
    differs[:, 0] = rng.random(n_samples) < 0.5
    n_changes = differs[:, 1:].sum(1)
    changed = n_changes * np.log(1 - stays)
    log_prob = changed + (n_sites - 1 - n_changes) * np.log(stays) - np.log(2)
    return (differs.cumsum(1) % 2).astype(float), log_prob


def tree(n_samples, rng, n_features=20, n_categories=5):
    """Categories that each depend on one before; rows, and their log-probabilities."""
    X, log_prob = np.zeros((n_samples, n_features), int), np.zeros(n_samples)
    for j in range(n_features):
        table = rng.dirichlet(np.full(n_categories, 0.3), size=n_categories)
        parent = X[:, rng.integers(j)] if j else np.zeros(n_samples, int)
        prob = table[parent]
        level = rng.random((n_samples, 1))
        X[:, j] = (prob.cumsum(1) < level).sum(1).clip(max=n_categories - 1)
        log_prob += np.log(prob[np.arange(n_samples), X[:, j]])
    return X.astype(float), log_prob


def bench_capacity(quick):
    print_as_they_come(
        "capacity: LML of 500 training rows and of 1000 test rows, and the truth.",
        "data|components|fit s|train|test|truth",
        capacity_rows({"max_iter": 5} if quick else {}),
    )


def capacity_rows(changes):
    rng = np.random.default_rng(0)
    sites, sites_log_prob = chains(3000, rng)
    codes, codes_log_prob = tree(3000, rng)
    columns = np.eye(5)[codes.astype(int)].reshape(len(codes), -1)
    cases = [
        ("chain", "bernoulli", sites, sites_log_prob),
        ("tree, zeros and ones", "bernoulli", columns, codes_log_prob),
        ("tree, categories", "categorical", codes, codes_log_prob),
    ]
    for name, likelihood, X, log_prob in cases:
        for n_components in (4, 16):
            model = MPTDeepVAE(n_components, likelihood=likelihood, random_state=0)
            elapsed = seconds(model.set_params(**changes).fit, X[:2000])[0]
            scores = [model.score(part) for part in (X[:500], X[2000:])]
            cells = [f"{value:.2f}" for value in (*scores, log_prob[2000:].mean())]
            yield name, f"{n_components}", f"{elapsed:.0f}", *cells


PARTS = {
    "peers": bench_peers,
    "capacity": bench_capacity,
}


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="small versions")
    parser.add_argument("--data", help="folder of debd_<name>.npz, for peers")
    parser.add_argument("--seeds", type=int, default=3, help="of peers")
    parser.add_argument("--rows", type=int, default=5000, help="of peers, at most")
    arguments = parse_parts(parser, PARTS)
    warnings.simplefilter("ignore", ConvergenceWarning)
    print_machine()
    for part in arguments.parts:
        of_part = {}
        if part == "peers":
            of_part = {
                "folder": arguments.data,
                "n_seeds": arguments.seeds,
                "n_rows": arguments.rows,
            }
        PARTS[part](arguments.quick, **of_part)


if __name__ == "__main__":
    main()
