"""joblib's engines: the numbers of one process, from rows that are sent once."""

import joblib
import numpy as np
import pytest
from engines import ENGINES, N_WORKERS, counted, started
from numpy.testing import assert_allclose
from sklearn.model_selection import GridSearchCV
from sklearn.utils.parallel import delayed
from test_common import with_gaps
from text_models import TEXTS, make_model, make_tokenizer

from sklearn_mpt import (
    MPTProbabilisticPCA,
    MPTScorer,
    compare_lml,
    feature_contributions,
    lml_samples,
    mpt_curve,
)

pytestmark = [
    # what the engines say of themselves and of one another
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Spark local mode doesn't support"),
    pytest.mark.filterwarnings("ignore:Spark session is not provided"),
    pytest.mark.filterwarnings("ignore:.*is greater than the max number"),
]
BYTES = 40_000_000
OVERHEAD = 100_000  # of a task: the model, the masks, and what joblib adds


@pytest.fixture(
    scope="module",
    params=[  # those that start long are for the night
        pytest.param(name, marks=[pytest.mark.slow] * (name != "threads that pickle"))
        for name in ENGINES
    ],
)
def engine(request):
    with started(request.param) as options:
        yield options


@pytest.fixture(scope="module")
def large():
    """A model, and many rows of few features."""
    X = np.random.default_rng(0).normal(size=(BYTES // 40, 5))
    return MPTProbabilisticPCA(2, init="pca", max_iter=0).fit(X[:100]), X


def curve(model, X, **settings):
    curve = mpt_curve(model, X, n_masks=3, random_state=0, **settings)
    return np.stack([curve.scores, curve.std_errors])


def comparison(model, X):
    narrow = MPTProbabilisticPCA(1, init="pca", max_iter=0).fit(X)
    functions = [model.conditional_log_prob, narrow.conditional_log_prob]
    table = compare_lml(functions, X, n_orders=2)
    return np.stack([table.lml, table.lml_std_error, table.lml_diff_std_error])


def search(model, X):
    grid = {"n_components": [1, 2, 3]}
    ppca = MPTProbabilisticPCA(objective="lml")
    return GridSearchCV(ppca, grid, cv=2).fit(X).cv_results_["mean_test_score"]


ROWS = {
    "balanced": curve,
    "gaps": lambda model, X: curve(model, with_gaps(X)),
    "independent": lambda model, X: curve(model, X, design="independent"),
    "neyman": lambda model, X: curve(model, X, allocation="neyman"),
    "function": lambda model, X: curve(model.conditional_log_prob, X),
    "lml_samples": lambda model, X: lml_samples(model, X, n_orders=3, random_state=0),
    "feature_contributions": lambda model, X: feature_contributions(
        model, X, n_orders=4, random_state=0
    ),
    "compare_lml": comparison,
    "GridSearchCV": search,
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_have_the_numbers_of_one_process(name, engine, known):
    expected = ROWS[name](*known)
    with joblib.parallel_config(**engine):
        found = ROWS[name](*known)
    assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert")
    make_model().save_pretrained(path)
    make_tokenizer().save_pretrained(path)
    return path


@pytest.mark.parametrize("is_loaded", [True, False])
def test_texts_have_the_numbers_of_one_process(is_loaded, engine, folder):
    given = (make_model(), make_tokenizer()) if is_loaded else (folder,)
    scorer = MPTScorer(*given, batch_tokens=16).fit(TEXTS)

    def score():
        if is_loaded:
            return mpt_curve(scorer, TEXTS).scores
        return scorer.score_samples(TEXTS)

    expected = score()
    with joblib.parallel_config(**engine):
        scorer.set_params(n_jobs=N_WORKERS)
        assert_allclose(score(), expected, rtol=1e-6)


def test_many_rows_and_few_masks(engine, large):
    expected = mpt_curve(*large, n_masks=2, random_state=0)
    with joblib.parallel_config(**engine):
        found = mpt_curve(*large, n_masks=2, random_state=0)
    assert_allclose(found.scores, expected.scores, rtol=1e-9)


@pytest.mark.slow
def test_workers_refuse_a_folder_that_has_changed(engine, tmp_path, request):
    if engine["backend"] == "spark":
        reason = "joblibspark 0.6 gives joblib the errors of workers as results"
        request.applymarker(pytest.mark.xfail(raises=TypeError, reason=reason))
    make_model().save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    scorer = MPTScorer(tmp_path, n_jobs=N_WORKERS, batch_tokens=32).fit()
    make_model(initializer_range=0.4).save_pretrained(tmp_path)
    with joblib.parallel_config(**engine):
        with pytest.raises(ValueError, match="have changed since the scorer read them"):
            scorer.score_samples(TEXTS)


MEASURES = {
    "balanced": lambda model, X: mpt_curve(model, X, n_masks=4),
    "independent": lambda model, X: mpt_curve(
        model, X, n_masks=4, design="independent"
    ),
    "lml_samples": lambda model, X: lml_samples(model, X, n_orders=4),
    "feature_contributions": lambda model, X: feature_contributions(
        model, X, n_orders=8
    ),
}


@pytest.mark.parametrize("name", MEASURES)
def test_rows_are_sent_to_each_worker_once(name, large):
    model, X = large
    with counted(n_jobs=3) as sizes:
        MEASURES[name](model, X[:20_000])
    n_bytes = 20_000 * 40
    assert len(sizes) == 3
    assert n_bytes < min(sizes) <= max(sizes) < n_bytes + OVERHEAD


def test_rows_are_an_argument_of_their_own(known, monkeypatch):
    """joblib's Dask backend looks no deeper for what is to be scattered."""
    model, X = known
    seen = []

    def spying(function):
        def call(*args):
            seen.append(args)
            return delayed(function)(*args)

        return call

    monkeypatch.setattr("sklearn_mpt._measure.rows.delayed", spying)
    mpt_curve(model, X, n_masks=2)
    assert all(any(value is X for value in args) for args in seen)
    assert len(seen) == 1


def test_a_loaded_model_is_sent_to_each_worker_once():
    model = make_model(hidden_size=64, intermediate_size=256)
    n_bytes = sum(tensor.nbytes for tensor in model.parameters())
    scorer = MPTScorer(model, make_tokenizer(), batch_tokens=16, n_jobs=2).fit()
    scorer.score_samples(TEXTS)
    with counted(n_jobs=2) as sizes:
        scorer.score_samples(TEXTS)
    assert len(sizes) == 2
    assert n_bytes < min(sizes) <= max(sizes) < n_bytes + OVERHEAD


def test_dask_sees_how_large_a_loaded_model_is(folder):
    sizeof = pytest.importorskip("dask.sizeof").sizeof
    model = make_model()
    loaded = MPTScorer(model, make_tokenizer()).fit()
    assert sizeof(loaded._opened[0]) > sum(t.nbytes for t in model.parameters())
    assert sizeof(MPTScorer(folder).fit()._opened[0]) < 1000


def test_a_folder_is_sent_by_its_name(folder):
    scorer = MPTScorer(folder, batch_tokens=16, n_jobs=2).fit()
    with counted(n_jobs=2) as sizes:
        scorer.score_samples(TEXTS)
    n_bytes = sum(t.nbytes for t in make_model().parameters())
    assert len(sizes) > 2
    assert max(sizes) < n_bytes / 2
