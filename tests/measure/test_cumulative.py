import joblib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.sparse import coo_array, csc_matrix, csr_array
from sklearn.base import BaseEstimator, DensityMixin, RegressorMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import IsolationForest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.naive_bayes import BernoulliNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import LinearSVC

from sklearn_mpt import CumulativeCV, cumulative_cv_score


class Conjugate(DensityMixin, BaseEstimator):
    """x ~ N(mu, 1), mu ~ N(0, v): scores rows by the posterior predictive."""

    def __init__(self, prior_variance=4.0):
        self.prior_variance = prior_variance

    def fit(self, X, y=None):
        precision = 1 / self.prior_variance + len(X)
        self.mean_ = np.asarray(X).sum(axis=0) / precision
        self.scale_ = np.sqrt(1 + 1 / precision)
        return self

    def score_samples(self, X):
        return stats.norm.logpdf(X, self.mean_, self.scale_).sum(axis=1)

    def log_evidence(self, X):
        covariance = np.eye(len(X)) + self.prior_variance
        joint = stats.multivariate_normal(np.zeros(len(X)), covariance)
        return sum(joint.logpdf(column) for column in np.asarray(X).T)


@pytest.fixture
def X():
    return np.random.default_rng(0).normal(size=(12, 2)) + 0.5


class SparseConjugate(Conjugate):
    def fit(self, X, y=None):
        return super().fit(X.toarray())

    def score_samples(self, X):
        return super().score_samples(X.toarray())


@pytest.mark.parametrize("array", [csr_array, coo_array, csc_matrix])
def test_sparse_rows_have_the_evidence_of_dense_ones(X, array):
    y = (X[:, 0] > 0.5).astype(int)
    classifier = BernoulliNB(binarize=0.3)
    for model, target in ((classifier, y), (Conjugate(), None)):
        dense = cumulative_cv_score(model, X, target, n_orders=2, random_state=0)
        if target is None:
            model = SparseConjugate()
        sparse = cumulative_cv_score(
            model, array(X), target, n_orders=2, random_state=0
        )
        assert_allclose(sparse.scores, dense.scores, rtol=1e-12)


def test_a_conjugate_model_has_its_evidence_along_any_order(X):
    result = cumulative_cv_score(Conjugate(), X, n_start=0, n_orders=3)
    assert_allclose(result.scores, Conjugate().log_evidence(X), rtol=1e-12)
    assert result.std_error < 1e-10
    frame = pd.DataFrame(X, columns=["a", "b"])
    again = cumulative_cv_score(Conjugate(), frame, n_start=0, n_orders=1)
    assert_allclose(again.log_evidence, result.log_evidence)
    assert np.isnan(again.std_error)


def test_after_a_start_it_is_the_evidence_given_that(X):
    options = {"n_start": 5, "n_orders": 4, "random_state": 3}
    with joblib.parallel_config(backend="threading"):
        result = cumulative_cv_score(Conjugate(), X, **options, n_jobs=2)
    starts = []

    class Recording(Conjugate):
        def fit(self, X, y=None):
            starts.extend([X] if len(X) == 5 else [])
            return super().fit(X)

    alone = cumulative_cv_score(Recording(), X, **options)
    assert_array_equal(alone.scores, result.scores)
    whole, seen = Conjugate().log_evidence(X), starts
    expected = [whole - Conjugate().log_evidence(rows) for rows in seen]
    assert_allclose(result.scores, expected)
    assert_allclose(result.std_error, np.std(expected, ddof=1) / 2)
    low, high = result.interval(0.9)
    assert low < result.log_evidence < high


def test_leave_p_out_scores_add_up_to_the_evidence(X):
    result = cumulative_cv_score(Conjugate(), X, n_start=0, n_orders=3, random_state=0)
    total = sum(result.leave_out(p) for p in range(1, 13))
    assert_allclose(total, result.log_evidence)
    # all left out: the prior predictive of one row, averaged over rows that come first
    many = cumulative_cv_score(
        Conjugate(), X, n_start=0, n_orders=300, steps=1, random_state=0
    )
    prior = Conjugate().fit(X[:0]).score_samples(X)
    assert_allclose(many.leave_out(12), prior.mean())
    some = cumulative_cv_score(Conjugate(), X, n_start=2, n_orders=1, steps=5)
    assert_array_equal(some.n_seen, [2, 4, 6, 8, 10])
    assert some.leave_out(10) == some.leave_out(9) == some.predictive_scores[0]
    with pytest.raises(ValueError, match=r"lie in 1\.\.10, as the first 2 rows of 12"):
        some.leave_out(11)


def test_a_gaussian_process_has_its_evidence():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=9)
    model = GaussianProcessRegressor(RBF() + WhiteKernel(0.1), optimizer=None)
    whole = model.fit(X, y).log_marginal_likelihood()
    result = cumulative_cv_score(model, X, y, n_start=1, n_orders=3, random_state=0)
    given_one = whole - stats.norm.logpdf(y, 0, np.sqrt(1.1))  # each row comes first
    off = np.abs(result.scores[:, None] - given_one).min(axis=1)
    assert_allclose(off, 0, atol=1e-5)
    pipeline = make_pipeline(FunctionTransformer(), model)
    again = cumulative_cv_score(pipeline, X, y, n_start=1, n_orders=3, random_state=0)
    assert_allclose(again.scores, result.scores)


def test_noise_that_predictions_leave_out_is_refused():
    """They are those of the function: densities of y were far too low."""
    model = GaussianProcessRegressor(RBF(), alpha=0.1, optimizer=None)
    for estimator in (model, make_pipeline(FunctionTransformer(), model)):
        with pytest.raises(ValueError, match=r"alpha=0.1 is noise .* WhiteKernel"):
            cumulative_cv_score(estimator, np.zeros((8, 1)), np.zeros(8))


def noisy_sine(n_rows):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 1))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n_rows)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("in_pipeline", [False, True])
def test_blocks_of_joint_predictions_have_the_evidence(steps, in_pipeline):
    X, y = noisy_sine(12)
    model = GaussianProcessRegressor(RBF() + WhiteKernel(0.1), optimizer=None)
    if in_pipeline:
        model = make_pipeline(FunctionTransformer(), model)
    options = {"n_start": 2, "n_orders": 2, "random_state": 0}
    exact = cumulative_cv_score(model, X, y, **options)
    blocks = cumulative_cv_score(model, X, y, steps=steps, **options)
    assert_allclose(blocks.scores, exact.scores, rtol=1e-9)


class JointConjugate(Conjugate):
    """Also predicts rows together: their covariance is that of the mean."""

    def joint_log_prob(self, X):
        covariance = np.eye(len(X)) + self.scale_**2 - 1
        joint = [
            stats.multivariate_normal(np.full(len(X), mean), covariance).logpdf(x)
            for mean, x in zip(self.mean_, np.asarray(X).T, strict=True)
        ]
        return sum(joint)


class JointLabels(DummyClassifier):
    """Log-probability of all labels together, by the rule of succession."""

    def joint_log_prob(self, X, y):
        counts, total = np.bincount(self.y_, minlength=2) + 1.0, 0.0
        for label in y:
            total += np.log(counts[label] / counts.sum())
            counts[label] += 1
        return total

    def fit(self, X, y):
        self.y_ = np.asarray(y)
        return super().fit(X, y)


def test_joint_log_probs_of_blocks_are_taken(X):
    options = {"n_start": 2, "n_orders": 2, "random_state": 0}
    exact = cumulative_cv_score(Conjugate(), X, **options)
    for steps in (1, 3):
        single = cumulative_cv_score(Conjugate(), X, steps=steps, **options)
        assert (single.scores < exact.scores - 0.1).all()
        joint = cumulative_cv_score(JointConjugate(), X, steps=steps, **options)
        assert_allclose(joint.scores, exact.scores, rtol=1e-9)
    scaled = make_pipeline(FunctionTransformer(np.log), JointConjugate())
    rows = np.exp(X)
    blocks = cumulative_cv_score(scaled, rows, steps=1, **options)
    assert_allclose(
        blocks.scores, cumulative_cv_score(scaled, rows, **options).scores, rtol=1e-9
    )
    y = np.array([0, 1] * 6)
    classes = [
        cumulative_cv_score(JointLabels(), X, y, steps=s, **options) for s in (None, 3)
    ]
    assert_allclose(classes[0].scores, classes[1].scores, rtol=1e-9)


def test_joint_predictions_that_fail_say_how():
    X, y = np.zeros((8, 1)), np.zeros(8)
    model = GaussianProcessRegressor(RBF(), optimizer=None)
    with pytest.raises(ValueError, match=r"is not positive definite.*WhiteKernel"):
        cumulative_cv_score(model, X, y, n_start=2, steps=2)

    class Wrong(JointConjugate):
        def joint_log_prob(self, X):
            return np.nan

    with pytest.raises(ValueError, match=r"of rows \[?\d+.* is nan after a fit to 2"):
        cumulative_cv_score(Wrong(), y[:, None] + 1, n_start=2, steps=2)


def test_classes_are_scored_by_their_probabilities():
    y = np.array(["a"] * 5 + ["b"] * 3 + ["c"])
    model = DummyClassifier(strategy="prior")
    result = cumulative_cv_score(
        model, np.zeros((9, 1)), y, n_start=3, n_orders=20, steps=1, random_state=0
    )
    # the first three are one of each class; five of six more are a and b
    assert_allclose(result.scores, 6 * np.log(1 / 3))
    with pytest.raises(ValueError, match=r"class '[abc]' is not among the rows seen"):
        cumulative_cv_score(model, np.zeros((9, 1)), y, n_start=1, random_state=0)
    start = cumulative_cv_score(model, np.zeros((90, 1)), np.tile(y, 10), steps=2)
    assert start.n_seen[0] == 9


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_start": "half"}, ValueError, "n_start must be a str among {'auto'} or"),
        ({"n_start": 12}, ValueError, "less than the 12 rows of X, got 12"),
        ({"n_start": -1}, ValueError, "n_start must be .* an int in the range"),
        (
            {"n_start": 8, "steps": 5},
            ValueError,
            "at most the 4 rows after the first 8",
        ),
        ({"n_orders": 0}, ValueError, "n_orders must be an int"),
        ({"y": np.zeros(3)}, ValueError, r"numbers of samples: \[12, 3\]"),
        ({"estimator": LinearSVC()}, TypeError, "score_samples, if y is None"),
        ({"estimator": IsolationForest()}, TypeError, "score_samples, if y is None"),
        (
            {"estimator": LinearSVC(), "y": np.zeros(12)},
            TypeError,
            "classifier with predict_log_proba",
        ),
        (
            {"estimator": LinearRegression(), "y": np.zeros(12)},
            TypeError,
            r"regressor with predict\(X, return_std=True\)",
        ),
    ],
)
def test_bad_arguments_are_named(X, options, error, message):
    arguments = {"estimator": Conjugate(), "X": X, **options}
    with pytest.raises(error, match=message):
        cumulative_cv_score(**arguments)


def test_scores_that_are_none_are_named(X):
    class Wrong(Conjugate):
        def score_samples(self, X):
            return np.full(len(X), np.nan)

    with pytest.raises(ValueError, match=r"row \d+ is nan after a fit to \d+ rows"):
        cumulative_cv_score(Wrong(), X)


def test_the_curve_is_drawn():
    result = CumulativeCV(np.array([2, 6]), -np.ones((2, 2)), 12)
    ax = result.plot(name="model")
    (line,) = ax.lines
    assert_allclose(line.get_xydata(), [[3.5, -0.25], [8.5, -1 / 6]])
    assert line.get_label() == "model: log evidence -2.0"
    assert result.plot(ax) is ax
    plt.close("all")


class TakesAnything(RegressorMixin, BaseEstimator):
    """Some regressors take all arguments, and ignore those that they do not know."""

    def fit(self, X, y):
        self.mean_ = np.mean(y)
        return self

    def predict(self, X, **unknown):
        return np.full(len(X), self.mean_)


def test_predictions_without_deviations_are_not_read_as_such(X):
    y = X.sum(axis=1) + 9  # above zero
    with pytest.raises(
        TypeError, match=r"return_std=True\) must .* returned a ndarray"
    ):
        cumulative_cv_score(TakesAnything(), X, y, n_start=4, steps=4)  # blocks of two
    logarithms = TransformedTargetRegressor(
        BayesianRidge(), func=np.log, inverse_func=np.exp
    )
    with pytest.raises(AttributeError) as raised:
        cumulative_cv_score(logarithms, X, y, n_start=4, steps=4)
    assert "predict(X, return_std=True)" in raised.value.__notes__[0]
