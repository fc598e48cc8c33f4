"""The process around an estimator: its modes change no number, and stay the same."""

import functools
import pickle
import re
import signal
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from test_common import MODELS, few, quiet_fit, with_gaps
from text_models import TEXTS, make_model, make_tokenizer

from sklearn_mpt import (
    MPTDeepVAE,
    MPTImputer,
    MPTLinearVAE,
    MPTMixture,
    MPTProbabilisticPCA,
    MPTScorer,
    mpt_curve,
)


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
    "float16": lambda: default_dtype(torch.float16),
    "meta": lambda: torch.device("meta"),
    "errstate": lambda: np.errstate(all="raise"),
}


# one of each way to train and to integrate
ENGINES = ["ppca", "bernoulli linear vae", "gaussian deep vae", "mixture", "items"]
ENGINES += ["masked autoencoder", "network of numbers"]
# Adam counts its steps in the default dtype, if that is double: then it is not exact.
MODES_AT_ONCE = [
    ("inference_mode", "autocast", "float16", "meta", "errstate"),
    ("no_grad", "float64"),
]


def unfitted(name):
    model = MODELS[name][0]()
    if "max_iter" in model.get_params():
        # one epoch of a deep model is many steps, from several starts
        model.set_params(max_iter=1 if "deep" in name else 3)
    return model, few(name)


def numbers(model, X):
    """What a refit and every method return."""
    gaps, mask = with_gaps(X), np.arange(X.shape[1]) < 2
    model = quiet_fit(clone(model), gaps)
    if hasattr(model, "partial_fit"):
        model.partial_fit(X).partial_fit(X)
    rows = []
    if hasattr(model, "inverse_transform"):
        rows.append(model.inverse_transform(model.transform(X)))
    return [
        model.score_samples(gaps),
        model.conditional_log_prob(gaps, mask),
        model.transform(gaps),
        *rows,
        model.impute(gaps),
        model.sample(2),
        mpt_curve(model, gaps, mask_sizes=[2], n_masks=2).scores,
    ]


@functools.cache
def plain_numbers(name):
    return numbers(*unfitted(name))


def state_of_process():
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_autocast_enabled("cpu"),
        np.geterr(),
        [str(rule) for rule in warnings.filters],
    )


@contextmanager
def modes_at_once(modes):
    """Several modes, which what runs in them leaves as they are."""
    before = state_of_process()
    with ExitStack() as stack:
        for mode in modes:
            stack.enter_context(MODES[mode]())
        within = state_of_process()
        yield
        assert state_of_process() == within
    assert state_of_process() == before


@pytest.mark.parametrize(
    ("name", "modes"),
    [(name, MODES_AT_ONCE[0]) for name in ENGINES]
    + [(name, MODES_AT_ONCE[1]) for name in ("ppca", "masked autoencoder")],
)
def test_modes_change_no_number(name, modes):
    expected = plain_numbers(name)
    with modes_at_once(modes):
        found = numbers(*unfitted(name))
    for a, b in zip(found, expected, strict=True):
        # a GPU adds in an order that varies
        is_exact = "float64" not in modes and not torch.cuda.is_available()
        assert_allclose(a, b, rtol=0 if is_exact else 1e-5, atol=0)


@pytest.mark.parametrize(
    ("kinds", "model"),
    [
        (["ordinal", "partial_credit", "gaussian"], MPTLinearVAE(random_state=0)),
        (["categorical", "poisson", "gaussian"], MPTMixture(2, random_state=0)),
        (None, MPTImputer(max_models=2, random_state=0)),
    ],
)
def test_the_default_device_changes_no_number_of_tables(kinds, model):
    X = np.random.default_rng(0).integers(3, size=(30, 3)).astype(float)
    X[:, 2] = np.exp(X.sum(axis=1) / 3)
    gaps = np.where(np.arange(30)[:, None] % 7 == np.arange(3), np.nan, X)
    if kinds:
        model.set_params(likelihood=kinds, max_iter=1)

    def found():
        fitted = quiet_fit(model, gaps)
        filled = fitted.transform(gaps) if kinds is None else fitted.impute(gaps)
        return [filled, fitted.score(gaps)]

    expected = found()
    with torch.device("meta"):
        within = found()
    for a, b in zip(within, expected, strict=True):
        assert_array_equal(a, b)


@pytest.mark.parametrize("modes", MODES_AT_ONCE)
def test_modes_change_no_score_of_a_text(modes):
    model = make_model()

    def scores():
        scorer = MPTScorer(model, make_tokenizer()).fit(TEXTS)
        return scorer.transform(TEXTS), scorer.score_samples(TEXTS)

    expected = scores()
    with modes_at_once(set(modes) - {"meta"}):
        found = scores()
    for a, b in zip(found, expected, strict=True):
        assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("name", ENGINES)
def test_gradients_and_threads_are_as_before_an_error(name):
    model, X = unfitted(name)
    model = quiet_fit(model, X)
    before = state_of_process()
    for method in {"fit", "partial_fit", "score_samples"} & set(dir(model)):
        with pytest.raises(ValueError, match="infinity"):
            getattr(model, method)(np.full_like(X, np.inf))
        assert state_of_process() == before


@pytest.mark.parametrize("name", [n for n in ENGINES if "deep" not in n])
def test_threads_do_not_disturb_one_another(name):
    (model, X), expected = unfitted(name), plain_numbers(name)
    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
        warnings.simplefilter("ignore")  # filters are the process's, not a thread's
        results = list(pool.map(lambda _: numbers(model, X), range(2)))
    for found in results:
        for a, b in zip(found, expected, strict=True):
            assert_array_equal(a, b)


@pytest.mark.no_cover  # what interrupts coverage leaves it locked
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers of signals")
@pytest.mark.parametrize("name", ENGINES)
def test_an_interruption_at_any_moment_leaves_a_fitted_model(name):
    """The model from before, if it raises; otherwise one as far as training came."""

    def interrupt(*_):
        raise KeyboardInterrupt

    factory, X = MODELS[name][0], few(name)
    n_moments = 4 if name == "ppca" else 1
    start = time.process_time()
    model = quiet_fit(factory(), X)
    seconds = time.process_time() - start
    before, handler = state_of_process(), signal.signal(signal.SIGVTALRM, interrupt)
    try:
        for moment in np.random.default_rng(0).uniform(0.01, 0.9, n_moments) * seconds:
            fitted = pickle.loads(pickle.dumps(model))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    signal.setitimer(signal.ITIMER_VIRTUAL, moment)
                    fitted.fit(X)
                except KeyboardInterrupt:
                    assert fitted.score(X) == model.score(X)
                finally:
                    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            assert state_of_process() == before
            assert np.isfinite(fitted.score(X))
    finally:
        signal.signal(signal.SIGVTALRM, handler)


class InterruptIn:
    """A callback that interrupts training in the n-th epoch."""

    def __init__(self, n):
        self.n_left = n

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context):
        self.n_left -= context.parent is not None
        if self.n_left == 0:
            raise KeyboardInterrupt

    def on_fit_task_end(self, estimator, context):
        pass


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("was_fitted", "warm_start", "n_epochs"), [(0, 0, 1), (1, 1, 1), (1, 0, 3)]
)
def test_an_interruption_raises_until_training_has_come_far(
    name, was_fitted, warm_start, n_epochs
):
    """One epoch, or as many as are waited for, if a fitted model is to be replaced."""
    pytest.importorskip("sklearn.callback")
    model, X = MODELS[name][0](), few(name)
    if "warm_start" not in model.get_params():
        pytest.skip(f"{type(model).__name__} has no epochs")
    model.set_params(warm_start=bool(warm_start))
    if "n_iter_no_change" in model.get_params():
        model.set_params(n_iter_no_change=3)
    elif was_fitted:
        pytest.skip(f"{type(model).__name__} ends, or is replaced, after one epoch")
    if "slope_prior" in model.get_params():  # few rows are separated
        model.set_params(slope_prior=4.0)
    if was_fitted:
        quiet_fit(model, X)
    before = vars(model).copy()
    model.set_callbacks(InterruptIn(n_epochs))
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    after = vars(model)
    assert all(after[key] is value for key, value in before.items())
    assert set(after) - set(before) <= {"_skl_callbacks"}
    model.set_callbacks(InterruptIn(n_epochs + 1))
    with pytest.warns(UserWarning, match="interrupted by user") as caught:
        model.fit(X)
    assert caught[-1].filename == __file__
    assert model.n_iter_ == n_epochs
    assert np.isfinite(model.score(X))


def rows_of_rank(n):
    rng = np.random.default_rng(0)
    return rng.normal(size=(40, n)) @ rng.normal(size=(n, 5))


@pytest.mark.parametrize(
    ("model", "X", "match"),
    [
        (MPTProbabilisticPCA(max_iter=2), rows_of_rank(5), "Maximum iterations"),
        (MPTLinearVAE(max_iter=2), rows_of_rank(5), "Maximum iterations"),
        (MPTDeepVAE(max_iter=2), rows_of_rank(5), "Maximum iterations"),
        (MPTDeepVAE(learning_rate=1e30), rows_of_rank(5), "diverged"),
        (MPTProbabilisticPCA(), rows_of_rank(2), "without error"),
        (MPTProbabilisticPCA(mask_rate=1.0), rows_of_rank(5), "hides every feature"),
        (MPTDeepVAE(mask_rate=1.0, max_iter=1), rows_of_rank(5), "hides every"),
        (MPTImputer(MPTLinearVAE()), (rows_of_rank(5) > 0) * 1.0, "only 0 and 1"),
        (MPTLinearVAE(), (rows_of_rank(5) > 0) * 1.0, "only 0 and 1"),
    ],
)
def test_warnings_of_fit_point_at_the_line_that_calls_it(model, X, match):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.set_params(random_state=0).fit(X)
    files = [w.filename for w in caught if re.search(match, str(w.message))]
    assert files == [__file__]


def test_warnings_point_at_the_line_that_calls_whatever_lies_between():
    model, X = MPTProbabilisticPCA(mask_rate=1.0, random_state=0), rows_of_rank(5)
    for call in (
        model.partial_fit,
        make_pipeline(model).fit_transform,
        lambda X: cross_val_score(model, X, cv=2),
    ):
        with pytest.warns(UserWarning, match="hides every feature") as caught:
            call(X)
        assert {w.filename for w in caught} == {__file__}
