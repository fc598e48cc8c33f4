"""What work on many rows costs: memory, engines, streams, start-up.

Run ``python benchmarks/bench_scale.py [part ...]``, with the parts

- ``memory``: for each method the memory resident at its peak, beyond what it was given,
  in MB and as a share of the rows; each in a process of its own.
- ``engines``: for each of joblib's engines that is installed, its start, the time of a
  curve of 40 MB of rows, and the overhead of a task, from which follows how long tasks
  must take on 100 nodes; and the bytes that tasks take along.
- ``stream``: a model of 10^7 x 50 rows with gaps, from a memory map and from a Parquet
  file (``stream 6``: of 10^6), against ``fit`` of the first 10^6.
- ``single``: the same memory and time for rows in double and in single precision.
- ``precision``: what rows in single precision lose, and what computing in it would.
- ``start``: processor time of imports and of a scorer's first call.

Set ``OMP_NUM_THREADS=1`` on a machine that is busy otherwise. The files of ``stream``
go to the folder ``TMPDIR``.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import joblib
import numpy as np

TESTS = Path(__file__).parents[1] / "tests"
MB = 1e6


# ---------------------------------------------------------------- memory


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def rows_of(n, d, kind, dtype=float):
    """Rows without temporary copies: what they take is all that is resident."""
    rng = np.random.default_rng(0)
    X = np.empty((n, d), dtype)
    for part in np.array_split(X, max(1, 8 * X.size // 2**24)):
        part[:] = rng.normal(size=part.shape)
        if kind == "binary":
            part[:] = part < 0
        if kind == "gaps":
            part[rng.random(part.shape) < 0.2] = np.nan
    return X


def model_of(kind, k, X):
    from sklearn_mpt import MPTDeepVAE, MPTLinearVAE, MPTProbabilisticPCA

    few = X[:500]
    if kind == "binary":
        settings = {"likelihood": "bernoulli", "max_iter": 0, "random_state": 0}
        return MPTLinearVAE(k, **settings).fit(few)
    if kind == "deep":
        return MPTDeepVAE(k, max_iter=1, random_state=0).fit(few)
    return MPTProbabilisticPCA(k, init="pca", max_iter=0).fit(few)


def fit(model, X, **settings):
    return type(model)(random_state=0, **settings).fit(X)


def masks_of(X):
    masks = np.zeros(X.shape, dtype=bool)
    masks[::2, 0] = masks[1::2, 1] = True
    return masks


METHODS = {
    "score_samples": lambda model, X: model.score_samples(X),
    "transform": lambda model, X: model.transform(X),
    "inverse_transform": lambda model, X: model.inverse_transform(X[:, :2].copy()),
    "posterior": lambda model, X: model.posterior(X),
    "impute": lambda model, X: model.impute(X),
    "impute, sample": lambda model, X: model.impute(X, "sample"),
    "sample": lambda model, X: model.sample(len(X)),
    "conditionals": lambda model, X: model.conditional_log_prob(
        X, np.arange(X.shape[1]) < 2
    ),
    "conditionals, mask per row": lambda model, X: model.conditional_log_prob(
        X, masks_of(X)
    ),
    "curve": lambda model, X: _curve(model, X),
    "curve, balanced": lambda model, X: _curve(model, X, design="balanced"),
    "curve, independent": lambda model, X: _curve(model, X, design="independent"),
    "lml_samples": lambda model, X: _measure("lml_samples", model, X, 1),
    "contributions": lambda model, X: _measure("feature_contributions", model, X, 2),
    "fit": lambda model, X: fit(model, X, max_iter=2),
    "fit, closed form": lambda model, X: fit(model, X, objective="lml"),
    "partial_fit": lambda model, X: model.partial_fit(X),
    "fit, binary": lambda model, X: model.set_params(max_iter=2).fit(X),
}


def _curve(model, X, **settings):
    from sklearn_mpt import mpt_curve

    return mpt_curve(model, X, n_masks=2, random_state=0, **settings)


def _measure(name, model, X, n_orders):
    import sklearn_mpt

    return getattr(sklearn_mpt, name)(model, X, n_orders=n_orders, random_state=0)


SCORING = [name for name in METHODS if "fit" not in name]
CASES = [
    *[(name, 10**6, 10, "gaussian", 2) for name in SCORING],
    *[
        (name, 10**6, 10, "gaps", 2)
        for name in ("score_samples", "impute", "conditionals", "curve")
    ],
    ("curve, balanced", 10**6, 10, "gaps", 2),
    *[(name, 10**6, 10, "gaussian", 2) for name in ("fit", "partial_fit")],
    *[(name, 10**5, 500, "gaussian", 2) for name in ("fit", "fit, closed form")],
    ("fit", 10**5, 500, "gaps", 2),
    ("partial_fit", 10**5, 500, "gaps", 2),
    ("score_samples", 10**5, 500, "gaps", 2),
    ("curve", 10**6, 4, "gaps", 2),
    ("curve", 10**3, 20, "binary", 2),
    ("score_samples", 10**4, 10, "binary", 2),
    ("conditionals", 10**4, 10, "binary", 2),
    ("score_samples", 100, 10, "binary", 300),
    ("score_samples", 200, 10, "deep", 2),
]


def measure_case(name, n, d, kind, k, dtype="float64"):
    """Run a case in this process; print its numbers for the one that asked."""
    warnings.simplefilter("ignore")
    X = rows_of(int(n), int(d), kind, dtype)
    model = model_of(kind, int(k), X)
    model.score_samples(X[:2])  # what is loaded and compiled once
    before, start = max(resident(), 0), time.process_time()
    result = METHODS[name](model, X)
    seconds = time.process_time() - start
    size = getattr(result, "nbytes", 0)
    print(json.dumps([peak() - before, X.nbytes, size, seconds]))


def chosen(cases, only):
    """Cases of the names or kinds that are asked for, or all."""
    return [case for case in cases if not only or {case[0], case[3]} & set(only)]


def memory(*only):
    print(f"{'':28}{'rows':>16}{'K':>5}{'X MB':>8}{'added':>8}{'/ X':>10}{'s':>8}")
    for case in chosen(CASES, only):
        name, n, d, kind, k = case
        try:
            added, of_rows, _, seconds = apart("measure_case", *case)
        except subprocess.CalledProcessError as error:
            print(f"{name:28}{error.stderr}")
            continue
        what = "" if kind == "gaussian" else f", {kind}"
        print(
            f"{name + what:28}{n:>10}x{d:<5}{k:>5}{of_rows / MB:8.0f}{added / MB:8.0f}"
            f"{added / of_rows:10.2f}{seconds:8.1f}",
            flush=True,
        )


SINGLE_CASES = [
    *[
        (name, 10**6, 10, "gaps", 2)
        for name in ("score_samples", "transform", "impute", "curve")
    ],
    ("inverse_transform", 10**6, 10, "gaussian", 2),
    ("curve", 10**6, 10, "gaussian", 2),
    ("fit", 10**5, 500, "gaussian", 2),
    ("fit", 10**5, 500, "gaps", 2),
    ("partial_fit", 10**5, 500, "gaps", 2),
    ("fit, binary", 10**5, 50, "binary", 2),
]


def single(*only):
    columns = ("X MB", "added", "s")
    print(f"{'':28}{'rows':>13}" + "".join(f"{name:>9}" for name in 2 * columns))
    for case in chosen(SINGLE_CASES, only):
        name, n, d, kind, _ = case
        shown = ""
        for dtype in ("float64", "float32"):
            added, of_rows, _, seconds = apart("measure_case", *case, dtype)
            shown += f"{of_rows / MB:9.0f}{added / MB:9.0f}{seconds:9.2f}"
        what = f"{name}, gaps" if kind == "gaps" else name
        print(f"{what:28}{n:>8}x{d:<4}{shown}", flush=True)


# ---------------------------------------------------------------- engines

N_EMPTY, CURVE_ROWS, CURVE_MASKS = 100, (100_000, 50), 8
NODES, CORES = 100, 16


def seconds_of(function, *args):
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def empty_tasks(n_tasks):
    calls = (joblib.delayed(len)(()) for _ in range(n_tasks))
    joblib.Parallel(batch_size=1)(calls)


def engines(*names):
    sys.path.insert(0, str(TESTS))
    from engines import ENGINES

    columns = ("start", "first", "warm", "task ms", f"{NODES * CORES} busy")
    print(f"{'':10}" + "".join(f"{name:>11}" for name in columns))
    for name in names or ["none", "threading", "loky", *ENGINES]:
        try:
            numbers = measure_engine(name)
        except BaseException as error:  # pytest's Skipped among them
            print(f"{name:10} {error}")
            continue
        print(f"{name:10}" + "".join(f"{x:11.2f}" for x in numbers), flush=True)
    tasks()


def measure_engine(name):
    """Seconds: to start, of a first curve, of a second; ms per task; see `engines`."""
    from contextlib import nullcontext

    from engines import ENGINES, N_WORKERS, started

    warnings.simplefilter("ignore")
    X = rows_of(*CURVE_ROWS, "gaussian")
    model = model_of("gaussian", 2, X)
    local = nullcontext({"backend": name, "n_jobs": N_WORKERS})
    if name == "none":
        local = nullcontext({"n_jobs": 1})
    engine, start = started(name) if name in ENGINES else local, time.perf_counter()
    with engine as options, joblib.parallel_config(**options):
        spent = time.perf_counter() - start
        first, again = (
            seconds_of(lambda: _curve_of(model, X, CURVE_MASKS)) for _ in range(2)
        )
        few, many = (seconds_of(empty_tasks, n) for n in (2, N_EMPTY + 2))
    overhead = (many - few) / N_EMPTY
    # tasks are dispatched one by one: so long must each take to keep all cores busy
    return spent, first, again, 1e3 * overhead, overhead * NODES * CORES


def _curve_of(model, X, n_masks):
    from sklearn_mpt import mpt_curve

    return mpt_curve(model, X, n_masks=n_masks, design="independent", random_state=0)


def tasks():
    """Print the number of tasks, and the bytes of the largest."""
    from engines import counted
    from text_models import TEXTS, make_model, make_tokenizer

    from sklearn_mpt import MPTScorer

    X = rows_of(*CURVE_ROWS, "gaussian")
    model = model_of("gaussian", 2, X)
    loaded = make_model(hidden_size=256, intermediate_size=1024, num_hidden_layers=4)
    texts = [f"{text} {other}" for text in TEXTS for other in TEXTS]
    with tempfile.TemporaryDirectory() as folder:
        loaded.save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        scorers = {
            "a loaded model": MPTScorer(loaded, make_tokenizer(), batch_tokens=64),
            "a folder": MPTScorer(folder, batch_tokens=64),
        }
        work = {f"curve of {X.nbytes / MB:.0f} MB": lambda: _curve_of(model, X, 2)}
        for name, scorer in scorers.items():
            scorer.set_params(n_jobs=4).fit()
            work[f"texts, {name}"] = lambda scorer=scorer: scorer.score_samples(texts)
        n_bytes = sum(tensor.nbytes for tensor in loaded.parameters())
        print(f"\nlanguage model of {n_bytes / MB:.2f} MB, 4 workers")
        print(f"{'':24}{'tasks':>8}{'MB each':>10}")
        for name, function in work.items():
            with counted(n_jobs=4) as sizes:
                function()
            print(f"{name:24}{len(sizes):8}{max(sizes) / MB:10.3f}")


# ---------------------------------------------------------------- stream

N_FEATURES, N_LATENT, BLOCK = 50, 5, 10_000
NAMES = [f"x{j}" for j in range(N_FEATURES)]


def components():
    return np.random.default_rng(0).normal(size=(N_LATENT, N_FEATURES))


def block_of(index, n_rows=BLOCK):
    """A block of rows with 20% missing, in single precision."""
    rng = np.random.default_rng([1, index])
    single = {"dtype": np.float32}
    Z = rng.standard_normal((n_rows, N_LATENT), **single)
    X = Z @ components().astype(np.float32)
    X += np.float32(0.7) * rng.standard_normal(X.shape, **single)
    X[rng.random(X.shape, **single) < 0.2] = np.nan
    return X


def write_map(path, n_blocks):
    shape = (n_blocks * BLOCK, N_FEATURES)
    for index in range(n_blocks):
        mode = "r+" if index else "w+"
        file = np.lib.format.open_memmap(path, mode, dtype=np.float32, shape=shape)
        file[index * BLOCK : (index + 1) * BLOCK] = block_of(index)


def write_parquet(path, n_blocks):
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema([(name, pyarrow.float32()) for name in NAMES])
    settings = {"compression": "none", "use_dictionary": False}
    with parquet.ParquetWriter(path, schema, **settings) as writer:
        for index in range(n_blocks):
            columns = [pyarrow.array(c) for c in block_of(index).T]
            writer.write_table(pyarrow.table(columns, schema=schema))


def read_map(path):
    n_rows = len(np.load(path, mmap_mode="r"))
    for first in range(0, n_rows, BLOCK):  # a new map: pages that were read stay
        yield np.load(path, mmap_mode="r")[first : first + BLOCK]


def read_parquet(path):
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for index in range(file.num_row_groups):
            yield file.read_row_group(index).to_pandas().to_numpy()


def measure_stream(reader, path):
    """Train on a stream in this process; print memory, seconds, and the model."""
    from sklearn_mpt import MPTProbabilisticPCA

    warnings.simplefilter("ignore")
    model = MPTProbabilisticPCA(N_LATENT, init="pca", random_state=0)
    clock, wall = time.process_time(), time.perf_counter()
    for block in globals()[reader](path):
        model.partial_fit(block)
    seconds = time.process_time() - clock, time.perf_counter() - wall
    held_out = model.score(block_of(10**6, 50_000))
    print(json.dumps([peak(), *seconds, held_out]))


def measure_whole(n_rows):
    """Train on rows in memory in this process; print memory, seconds, the score."""
    from sklearn_mpt import MPTProbabilisticPCA

    warnings.simplefilter("ignore")
    X = np.concatenate([block_of(index) for index in range(int(n_rows) // BLOCK)])
    model = MPTProbabilisticPCA(N_LATENT, init="pca", random_state=0)
    clock, wall = time.process_time(), time.perf_counter()
    model.fit(X)
    seconds = time.process_time() - clock, time.perf_counter() - wall
    print(json.dumps([peak(), *seconds, model.score(block_of(10**6, 50_000))]))


def apart(*arguments):
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def stream(power="7"):
    n_rows = 10 ** int(power)
    columns = ("rows", "peak MB", "CPU s", "wall s", "held-out LML")
    print(f"{'':14}" + "".join(f"{name:>13}" for name in columns))

    def show(name, n, numbers):
        most, *rest, score = numbers
        shown = "".join(f"{x:13.1f}" for x in (most / MB, *rest))
        print(f"{name:14}{n:13}{shown}{score:13.4f}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        for kind in ("map", "parquet"):
            path = f"{folder}/rows.{kind}"
            globals()[f"write_{kind}"](path, n_rows // BLOCK)
            found = apart("measure_stream", f"read_{kind}", path)
            show(f"{kind}, {os.path.getsize(path) / 1e9:.2f} GB", n_rows, found)
            os.remove(path)
    n_whole = min(n_rows, 10**6)
    show("fit", n_whole, apart("measure_whole", n_whole))


# ---------------------------------------------------------------- precision


def precision():
    """What rows in single precision lose, beside maths in it; then times of maths."""
    columns = ("score", "curve", "impute", "transform", "fit", "32: score", "transform")
    print(f"{'':24}" + "".join(f"{name:>11}" for name in columns))
    for name, X, k in tables():
        print(f"{name:24}" + "".join(f"{x:11.1e}" for x in losses(X, k)), flush=True)
    time_maths()


def tables():
    from sklearn.datasets import load_breast_cancer, load_digits

    rng = np.random.default_rng(0)

    def with_gaps(X):
        return np.where(rng.random(X.shape) < 0.2, np.nan, X)

    many = rng.normal(size=(500, 10)) @ rng.normal(size=(10, 784))
    yield "digits", with_gaps(load_digits().data), 10
    yield "784 features", with_gaps(many + rng.normal(size=many.shape)), 10
    cancer = load_breast_cancer().data  # of standard deviations from 3e-3 to 569
    yield "cancer, raw", with_gaps(cancer), 5
    yield "cancer, complete", cancer, 5
    yield "cancer, + 1e6", with_gaps(cancer + 1e6), 5


def losses(X, k):
    """Errors in nats, and relative to the largest number filled in, or of z."""
    import torch

    from sklearn_mpt import MPTProbabilisticPCA, mpt_curve
    from sklearn_mpt._gaussian.density import (
        LinearGaussian,
    )

    rows, model = X.astype(np.float32), MPTProbabilisticPCA(k, random_state=0).fit(X)
    fitted = model.components_, model.mean_, np.array(model.noise_variance_)
    maths = LinearGaussian(*(torch.from_numpy(a).float() for a in fitted))
    own = MPTProbabilisticPCA(k, random_state=0).fit(rows)
    gaps, Z = np.isnan(X), model.transform(X)
    score = model.score_samples(X)
    yield np.abs(model.score_samples(rows) - score).max()
    yield abs(np.subtract(*(mpt_curve(model, A, n_masks=2).lml for A in (rows, X))))
    filled = [model.impute(A)[gaps] for A in (rows, X)]
    yield relative(*filled) if gaps.any() else 0.0
    yield relative(model.transform(rows), Z)
    yield abs(own.score(X) - model.score(X))
    rows = torch.from_numpy(rows)
    yield np.abs(maths.lml(rows)[0].numpy() - score).max()
    yield relative(maths.latent_mean(rows).numpy(), Z)


def relative(rough, value):
    return np.abs(rough - value).max() / np.abs(value).max()


def time_maths():
    """Run the maths of PPCA on rows with gaps in both precisions, and compare."""
    import torch

    from sklearn_mpt._gaussian.density import (
        LinearGaussian,
    )
    from sklearn_mpt._gaussian.likelihood import (
        likelihood_sums,
    )
    from sklearn_mpt._optim.natural import (
        Point,
    )

    X = torch.from_numpy(block_of(0, 10_000)).double()

    def measure(k, noise, dtype):
        W = torch.from_numpy(np.random.default_rng(0).normal(size=(k, N_FEATURES)))
        rows, present = X.to(dtype), (~X.isnan()).to(dtype)
        arrays = W, torch.zeros(N_FEATURES), torch.tensor(noise)
        model = LinearGaussian(*(array.to(dtype) for array in arrays))
        coefs = torch.cat([model.components.T, model.mean[:, None]], 1)
        point = Point(coefs, model.noise_variance.log())
        entries = rows.nan_to_num(), present
        return {
            "score_samples": timed_best(lambda: model.lml(rows)),
            "step of a fit": timed_best(
                lambda: likelihood_sums(*entries, point).gradient.coefs
            ),
        }

    print(f"{'K':>4}{'noise':>8}{'':>14}{'s, 64':>9}{'s, 32':>9}{'largest error':>15}")
    for k, noise in [(5, 0.5), (5, 1e-4), (20, 0.5)]:
        double, single = (measure(k, noise, d) for d in (torch.float64, torch.float32))
        for name, (seconds, value) in double.items():
            fast, rough = single[name]
            off = (rough.double() - value).abs().max() / value.abs().max()
            print(f"{k:4}{noise:8.0e}{name:>14}{seconds:9.4f}{fast:9.4f}{off:15.1e}")


def timed_best(function, n_times=5):
    """Least processor time of several runs, and the result."""
    seconds = []
    for _ in range(n_times):
        start = time.process_time()
        result = function()
        seconds.append(time.process_time() - start)
    return min(seconds), result


# ---------------------------------------------------------------- start

IMPORTS = {
    "nothing": "pass",
    "numpy": "import numpy",
    "scikit-learn's base": "import sklearn.base",
    "sklearn_mpt": "import sklearn_mpt",
    "torch": "import torch",
    "torch and sklearn.base": "import torch, sklearn.base",
    "mpt_curve": "from sklearn_mpt import mpt_curve",
    "MPTProbabilisticPCA": "from sklearn_mpt import MPTProbabilisticPCA",
    "MPTLinearVAE": "from sklearn_mpt import MPTLinearVAE",
    "MPTDeepVAE": "from sklearn_mpt import MPTDeepVAE",
    "transformers' BertForMaskedLM": "from transformers import BertForMaskedLM",
    "MPTScorer": "from sklearn_mpt import MPTScorer",
}
LOADED = (
    "from transformers import AutoModelForMaskedLM, AutoTokenizer; "
    "AutoModelForMaskedLM.from_pretrained({0!r}); AutoTokenizer.from_pretrained({0!r})"
)
FITTED = "from sklearn_mpt import MPTScorer; s = MPTScorer({0!r}).fit()"
CLOCK = "; import time; print(time.process_time())"


def start():
    """Print the processor time of imports and first calls: the least of three."""
    sys.path.insert(0, str(TESTS))
    from text_models import make_model, make_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        make_model().save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        first_calls = {
            "transformers loads a folder": LOADED.format(folder),
            "MPTScorer.fit": FITTED.format(folder),
            "MPTScorer.fit, score": FITTED.format(folder) + ".score(['a cat'])",
        }
        time_codes(IMPORTS | first_calls)


def time_codes(codes):
    print(f"{'':32}{'CPU s':>8}{'modules':>10}")
    for name, code in codes.items():
        command = [sys.executable, "-c", f"{code}{CLOCK}; import sys; "]
        command[-1] += "print(len(sys.modules))"
        runs = [
            subprocess.run(command, capture_output=True, text=True, check=True)
            for _ in range(3)
        ]
        least = min(float(run.stdout.split()[-2]) for run in runs)
        print(f"{name:32}{least:8.2f}{runs[0].stdout.split()[-1]:>10}", flush=True)


if __name__ == "__main__":
    name, *arguments = sys.argv[1:] or ["memory"]
    globals()[name](*arguments)
