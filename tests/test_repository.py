"""The files around the package: workflows, sessions, versions and addresses agree."""

import ast
import builtins
import datetime
import doctest
import re
import runpy
import sys
import textwrap
import tomllib
import types
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import sklearn_mpt
from sklearn_mpt import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
README = (ROOT / "README.rst").read_text("utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ADDRESS = r"sklearn-mpt\.[a-z]+\.[a-z]+|[.]\w+/sklearn-mpt\b"
FOLDERS = [".", "doc", "examples/**", "sklearn_mpt/**", ".github/**"]
TEXTS = {".cff", ".md", ".py", ".rst", ".toml", ".yaml", ".yml"}


JOBS = [
    job
    for path in WORKFLOWS
    for job in yaml.safe_load(path.read_text("utf-8"))["jobs"].values()
]


def read_noxfile():
    """Map the sessions of the noxfile to their Pythons, without nox."""
    known, sessions = {}, {}
    for node in ast.parse((ROOT / "noxfile.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = node.value
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            pythons = node.decorator_list[0].keywords[0].value
            pythons = known.get(getattr(pythons, "id", None), pythons)
            value = ast.literal_eval(pythons)
            sessions[node.name] = [value] if isinstance(value, str) else value
    return sessions


def called_sessions(job):
    """Yield the sessions that a job calls, with the values of its matrix filled in."""
    matrix = job.get("strategy", {}).get("matrix", {})
    for step in job["steps"]:
        for name in re.findall(r'nox -s "?([^"\s]+)"?', step.get("run", "")):
            variable = re.search(r"\$\{(\w+)\}", name)
            if not variable:
                yield name
                continue
            key = re.search(r"matrix\.(\w+)", step["env"][variable[1]])[1]
            values = matrix.get(key) or [row[key] for row in matrix["include"]]
            yield from (name.replace(variable[0], value) for value in values)


def test_workflows_call_every_session_that_exists():
    sessions = read_noxfile()
    names = {*sessions, *(f"{s}-{v}" for s in sessions for v in sessions[s])}
    called = {name for job in JOBS for name in called_sessions(job)}
    assert called <= names
    assert {name.split("-")[0] for name in called} == set(sessions)


def test_pythons_are_the_same_everywhere():
    listed = [c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if ":: 3." in c]
    assert read_noxfile()["tests"] == listed
    assert PROJECT["requires-python"] == f">={listed[0]}"
    tests = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text("utf-8"))
    assert tests["jobs"]["newest"]["strategy"]["matrix"]["python"] == listed


def read_pins(name):
    lines = (ROOT / name).read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and line[0] != "#")


def requirements():
    extras = PROJECT["optional-dependencies"]
    for line in sum(extras.values(), PROJECT["dependencies"]):
        if not line.startswith("sklearn-mpt["):
            yield Requirement(line)


ONLY_FOR_DOC = {"numpydoc", "pydata-sphinx-theme", "sphinx", "sphinx-gallery"}


def test_pins_are_within_the_bounds():
    """The lowest are the bounds; those in between are neither lowest nor newest."""
    files = ("constraints-lowest.txt", "constraints-between.txt", "constraints.txt")
    lowest, between, newest = map(read_pins, files)
    for requirement in requirements():
        name = requirement.name
        assert newest[name] in requirement.specifier
        assert between.get(name, newest[name]) in requirement.specifier
        bounds = [s.version for s in requirement.specifier if s.operator == ">="]
        if bounds and name not in ONLY_FOR_DOC:
            assert Version(lowest[name]) >= Version(bounds[0])
            assert Version(lowest[name]).release[:2] == Version(bounds[0]).release[:2]
    for name in ("numpy", "pandas", "scikit-learn", "scipy", "transformers"):
        pins = [Version(pins[name]) for pins in (lowest, between, newest)]
        assert pins == sorted(set(pins))


def test_no_package_has_an_upper_bound():
    operators = {s.operator for r in requirements() for s in r.specifier}
    assert operators == {">="}


def test_the_page_on_installation_lists_the_versions_that_are_tested():
    page = (ROOT / "doc/install.rst").read_text("utf-8")
    names = ("lowest", "between")
    pins = [read_pins(f"constraints-{name}.txt") for name in names]
    pins.append(read_pins("constraints.txt"))
    listed = re.findall(r"^``([\w-]+)`` +([\d.]+) +([\d.]+) +([\d.]+)$", page, re.M)
    assert {"scikit-learn", "torch", "transformers"} <= {row[0] for row in listed}
    for name, *versions in listed:
        assert versions == [pin[name] for pin in pins]
    required = [r.name for r in map(Requirement, PROJECT["dependencies"])]
    assert set(required) <= {row[0] for row in listed}


def test_there_is_one_way_to_install():
    """The README's; before a first release no package index has the package."""
    paths = [path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.*")]
    paths = [p for p in paths if p.suffix in TEXTS and p.name != "pyproject.toml"]
    text = "\n".join(path.read_text("utf-8") for path in paths)
    known = PROJECT["optional-dependencies"]
    pattern = rf"""["']([\w.-]+)\[((?:{"|".join(known)})[a-z,-]*)\]["']"""
    named = re.findall(pattern, text)
    assert {way for way, _ in named} == {"."}
    extras = {extra for _, names in named for extra in names.split(",")}
    assert extras <= set(known)
    assert not re.search("pip install[^`\n]*sklearn[-_]mpt", text)


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == __version__
    newest = re.search(
        r"^(\d\S*)\n-+$", (ROOT / "doc/whats_new.rst").read_text("utf-8"), re.M
    )
    assert newest[1] == __version__


def test_the_address_of_the_project_stands_in_one_place():
    paths = [path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.*")]
    texts = [path for path in paths if path.suffix in TEXTS]
    found = [path.name for path in texts if re.search(ADDRESS, path.read_text("utf-8"))]
    assert set(found) <= {"pyproject.toml"}


TIMES = (ROOT / "doc/_timings.rst").read_text("utf-8")
PAGES = {path.name: path.read_text("utf-8") for path in ROOT.glob("doc/[a-z]*.rst")}


def test_times_on_pages_are_no_older_than_a_minor_release():
    measured = re.findall(r"with version (\S+) on (\S+)\.", TIMES)
    assert len(measured) == TIMES.count(".. begin ") > 0
    newest = Version(__version__)
    for version, date in measured:
        assert Version(version).major == newest.major
        assert newest.minor - 1 <= Version(version).minor <= newest.minor
        assert datetime.date.fromisoformat(date)


def test_times_on_pages_are_those_that_the_benchmark_wrote():
    parts = re.findall(r"\.\. begin (\w+)\n(?:.*\n)*?\.\. end \1\n", TIMES)
    include = r"_timings\.rst\n +:start-after: \.\. begin (\w+)\n"
    include += r" +:end-before: \.\. end \1\n"
    included = [name for page in PAGES.values() for name in re.findall(include, page)]
    assert sorted(included) == sorted(parts)
    for name, page in PAGES.items():
        if name != "whats_new.rst":
            assert re.findall(r"\d (?:ms|s|seconds)\b", page) == [], name


def test_every_example_has_its_place_in_the_gallery():
    ordered = re.findall(
        r"plot_\w+\.py", (ROOT / "doc/gallery_order.py").read_text("utf-8")
    )
    found = [path.name for path in ROOT.glob("examples/**/plot_*.py")]
    assert sorted(ordered) == sorted(found)


def test_versions_are_printed_for_bug_reports(capsys):
    runpy.run_module("sklearn_mpt", run_name="__main__")
    printed = capsys.readouterr().out
    entries = dict(line.split(": ", 1) for line in printed.splitlines() if ": " in line)
    entries = {name.strip(): value for name, value in entries.items()}
    assert entries["sklearn_mpt"] == __version__
    assert {"python", "torch", "sklearn", "device='auto'"} <= set(entries)


@pytest.mark.parametrize("address", [None, "https://example.org/it"])
def test_a_package_index_shows_no_broken_picture(address, monkeypatch):
    """Relative addresses lead nowhere on its pages."""
    interface = types.ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object  # hatchling is there in builds alone
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["ReadmeHook"]()
    hook.root, metadata = ROOT, {"urls": {"Repository": address} if address else {}}
    hook.update(metadata)
    found, text = metadata["readme"]["text"], README
    (picture,) = re.findall(r"image:: (\S+)", text)
    links = re.findall(r"`([^`<]+) <(doc/[^`>]+)>`__", text)
    assert links
    assert all((ROOT / path).exists() for path in (picture, *(to for _, to in links)))
    assert re.findall(r"image:: (\S+)", found) == (
        [f"{address}/raw/HEAD/{picture}"] if address else []
    )
    for name, path in links:
        full = f"`{name} <{address}/blob/HEAD/{path}>`__" if address else f"``{name}``"
        text = text.replace(f"`{name} <{path}>`__", full)
    assert found.startswith(text[: text.index(".. image::")])
    assert found.endswith(text[text.index("Handwritten digits: ") :])
    assert (":width: 480" in found) == bool(address)


BLOCKS = re.findall(r"code-block:: (\w+)\n\n((?: {4}.*\n|\n)+)", README)


@pytest.mark.parametrize(("language", "block"), BLOCKS)
def test_blocks_of_the_readme_can_be_pasted_alone(language, block):
    """The doctests of the README run them one after the other, in one session."""
    source = textwrap.dedent(block)
    if language == "pycon":
        examples = doctest.DocTestParser().get_examples(source)
        source = "".join(example.source for example in examples)
    nodes = list(ast.walk(ast.parse(source)))
    known = {node.arg for node in nodes if isinstance(node, ast.arg)}
    known |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    known |= {
        alias.asname or alias.name.partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    names = [node for node in nodes if isinstance(node, ast.Name)]
    known |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    assert {node.id for node in names} <= known | set(dir(builtins))


def test_every_public_name_stands_in_the_reference_once():
    page = (ROOT / "doc/api.rst").read_text("utf-8")
    assert sorted(re.findall(r"^   (\w+)$", page, re.M)) == sorted(sklearn_mpt.__all__)


def test_benchmarks_that_are_named_exist():
    paths = [path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.*")]
    texts = [path.read_text("utf-8") for path in paths if path.suffix in TEXTS]
    named = {name for text in texts for name in re.findall(r"\bbench_\w+\.py", text)}
    found = {path.name for path in (ROOT / "benchmarks").glob("bench_*.py")}
    assert named
    assert named <= found
    results = (ROOT / "benchmarks/RESULTS.rst").read_text("utf-8")
    tables = re.findall(r"^(.+)\n[=-]+$", results, re.M)
    lines = [re.sub(r"\n *(# )?", " ", text) for text in texts]  # of wrapped comments
    titles = [t for text in lines for t in re.findall(r'RESULTS\.rst, "([^"]+)"', text)]
    assert titles
    assert all(any(t in title for title in tables) for t in titles), titles


def test_the_map_of_the_house_names_every_part():
    page = (ROOT / "CONTRIBUTING.rst").read_text("utf-8")
    package = ROOT / "sklearn_mpt"
    parts = {path.parent.name for path in package.glob("_*/__init__.py")}
    parts |= {path.stem for path in package.glob("_[a-z]*.py")}
    named = set(re.findall(r"^``(\w+)``$|``(_\w+)``", page, re.M))
    assert parts <= {name for pair in named for name in pair}
    files = set(re.findall(r"\b(_\w+/\w+\.py)\b", page))
    assert files
    assert {name for name in files if not (package / name).exists()} == set()
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    layers = " ".join(layers["importlinter"]["contracts"][0]["layers"])
    assert parts == set(re.findall(r"sklearn_mpt\.(\w+)", layers))
