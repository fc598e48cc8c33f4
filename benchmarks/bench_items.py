"""Time to fit item response models, and the maximum they reach.

Simulated answers, right or wrong, of so many people to so many questions: seconds of
processor time, steps, log-likelihood, and the correlation of slopes with the true ones.
Beside them `MPTLinearVAE`, which is the same model, for fewer than a million answers.
Run all, or some shapes::

    python benchmarks/bench_items.py
    python benchmarks/bench_items.py 100x5000 1000000x40
"""

import argparse
import time
import warnings

import numpy as np
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import sklearn_mpt
from sklearn_mpt import MPTItemResponse, MPTLinearVAE

SHAPES = ["4000x40", "10000x50", "100x5000", "1000000x40"]
MAX_FOR_LINEAR = 10**6  # answers


def simulated_answers(n_people, n_items):
    """Answers of the two-parameter model, and its slopes."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n_people, 1)).astype(np.float32)
    slopes = rng.uniform(0.5, 2, n_items).astype(np.float32)
    logits = z * slopes + rng.normal(size=n_items).astype(np.float32)
    uniform = rng.random(logits.shape, dtype=np.float32)
    return (uniform < expit(logits)).astype(np.float32), slopes


def report(shapes):
    models = {
        "MPTItemResponse": lambda: MPTItemResponse(random_state=0),
        "MPTLinearVAE": lambda: MPTLinearVAE(1, likelihood="bernoulli", random_state=0),
    }
    for shape in shapes:
        X, slopes = simulated_answers(*map(int, shape.split("x")))
        for name, make in models.items():
            if name == "MPTLinearVAE" and X.size >= MAX_FOR_LINEAR:
                continue
            start = time.process_time()
            model = make().fit(X)
            seconds = time.process_time() - start
            found = getattr(model, "discrimination_", None)
            found = model.components_[0] if found is None else found
            total = model.score_samples(X).sum()
            correlation = np.corrcoef(found, slopes)[0, 1]
            print(
                f"{shape:12} {name:16} {seconds:7.2f} s {model.n_iter_:4} steps "
                f"log-likelihood {total:.2f} correlation {correlation:.3f}",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="*", metavar="shape", default=SHAPES)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    print(f"sklearn_mpt {sklearn_mpt.__version__}, {args.threads} thread(s)")
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(args.threads):
        report(args.shapes)


if __name__ == "__main__":
    main()
