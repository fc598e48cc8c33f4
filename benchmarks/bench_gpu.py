"""Seconds of fits and scores on the CPU and on a GPU, side by side in one process.

The number of iterations is fixed, so that both do the same work. Scores by a model that
was fitted on the CPU are compared; fits are not, since a GPU draws other masks. The CPU
uses all its threads. Texts are scored by a BERT of the size of bert-base with random
weights, since time does not depend on them::

    python benchmarks/bench_gpu.py            # three minutes on 16 cores and a GPU
    python benchmarks/bench_gpu.py --small    # a few seconds, to see that it runs
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from text_models import make_tokenizer
from transformers import BertConfig, BertForMaskedLM

from sklearn_mpt import (
    MPTDeepVAE,
    MPTLinearVAE,
    MPTMaskedAutoencoder,
    MPTMixture,
    MPTProbabilisticPCA,
    MPTScorer,
)

warnings.simplefilter("ignore")


def make_rows(n_rows, n_features, share_of_gaps, seed=0):
    """Return rows of three latent variables, and the same ones as 0 and 1."""
    rng = np.random.default_rng(seed)
    z, loadings = rng.normal(size=(n_rows, 3)), rng.normal(size=(3, n_features))
    X = z @ loadings + rng.normal(size=(n_rows, n_features))
    hidden = rng.random(X.shape) < share_of_gaps
    return np.where(hidden, np.nan, X), np.where(hidden, np.nan, X > 0)


def tables(scale):
    """Yield a name, a function that makes an estimator for a device, and rows."""
    settings = {"random_state": 0, "tol": 0.0}
    wide, _ = make_rows(100_000 // scale, 100, 0.1)
    mid, binary = make_rows(20_000 // scale, 50, 0.1)

    def case(estimator_class, *args, **parameters):
        return lambda device: estimator_class(
            *args, device=device, **settings, **parameters
        )

    yield "PPCA", case(MPTProbabilisticPCA, 3, max_iter=5), wide
    yield (
        "factor analysis",
        case(MPTLinearVAE, 3, noise="per_feature", max_iter=5),
        wide,
    )
    yield "binary", case(MPTLinearVAE, 2, likelihood="bernoulli", max_iter=3), binary
    yield "mixture", case(MPTMixture, 5, max_iter=5), mid
    yield "deep", case(MPTDeepVAE, 3, max_iter=3), mid
    yield (
        "deep, binary",
        case(MPTDeepVAE, 3, likelihood="bernoulli", max_iter=3),
        mid > 0,
    )
    yield "autoencoder", case(MPTMaskedAutoencoder, max_iter=3), mid


def timed(function, *args):
    """Return the seconds that a call takes until the GPU is done, and its result."""
    start = time.perf_counter()
    result = function(*args)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def print_line(name, here, there, difference=None):
    compared = "" if difference is None else f"   {difference:.1e}"
    print(f"{name:28s} {here:8.2f} {there:8.2f} {here / there:7.1f}{compared}")


def compare_table(name, make, X, device):
    make(device).fit(X[:200])  # kernels are loaded at first use
    here, model = timed(make("cpu").fit, X)
    there, _ = timed(make(device).fit, X)
    print_line(f"{name}, fit", here, there)
    here, expected = timed(model.score_samples, X[:2000])
    there, scores = timed(model.set_params(device=device).score_samples, X[:2000])
    difference = np.abs(expected - scores).max()
    print_line(f"{name}, 2,000 scores", here, there, difference)


def make_texts(scale):
    """Return a language model, its tokenizer and texts of 60 tokens."""
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    size = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=30_000, **(size if scale > 1 else {}))
    words = [w for w in tokenizer.get_vocab() if w.isalpha()]
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, 60)) for _ in range(4 if scale > 1 else 16)]
    return BertForMaskedLM(config).eval(), tokenizer, texts


def compare_texts(device, scale):
    model, tokenizer, texts = make_texts(scale)

    def score(method, device, dtype):
        scorer = MPTScorer(model, tokenizer, method=method, device=device, dtype=dtype)
        return scorer.fit(texts[:4]).score_samples(texts)

    for method in ("pll", "mpt"):
        here, expected = timed(score, method, "cpu", "float32")
        for dtype in ("float32", "bfloat16"):
            score(method, device, dtype)
            there, scores = timed(score, method, device, dtype)
            difference = np.abs(expected - scores).max()
            print_line(f"texts, {method}, {dtype}", here, there, difference)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="few rows")
    arguments = parser.parse_args()
    scale = 100 if arguments.small else 1
    if arguments.device == "cuda":
        print(torch.cuda.get_device_name(), torch.__version__)
    print(f"{'':28s} {'CPU s':>8s} {'GPU s':>8s} {'ratio':>7s}   difference (nats)")
    for name, make, X in tables(scale):
        compare_table(name, make, X, arguments.device)
    compare_texts(arguments.device, scale)
