"""Configuration of the documentation, built by one command::

python -m sphinx -W --keep-going -b html doc doc/_build/html
"""

import importlib.util
import os
import sys
from pathlib import Path

import joblib

import sklearn_mpt

sys.path.insert(0, str(Path(__file__).parent))  # gallery_order, gallery_figures

from gallery_order import SECTIONS
from sphinx_gallery.sorting import ExplicitOrder

project = "sklearn-mpt"
author = "The sklearn-mpt developers"
project_copyright = f"2026, {author}"
version = release = sklearn_mpt.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",  # formulas without network
]
exclude_patterns = ["_build", "_timings.rst"]  # parts of which pages include
templates_path = ["_templates"]
default_role = "py:obj"

html_theme = "pydata_sphinx_theme"
html_title = f"{project} {version}"
html_show_sourcelink = False
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")
html_static_path = ["_static"]
html_css_files = ["narrow.css"]
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navbar_center": [],  # the menu is in the left sidebar
    "navbar_persistent": ["search-button"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
if "VERSIONS_URL" in os.environ:  # URL of a JSON file that lists all versions
    html_theme_options |= {
        "switcher": {"json_url": os.environ["VERSIONS_URL"], "version_match": version},
        "check_switcher": False,
        "navbar_end": ["version-switcher", "theme-switcher"],
    }
html_sidebars = {"**": ["site-menu"]}

toc_object_entries_show_parents = "hide"
autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say more
numpydoc_show_class_members = False  # the class template lists them
numpydoc_class_members_toctree = False
# Sections that may be missing, and results that have a name beside their type.
numpydoc_validation_checks = {"all", "ES01", "EX01", "RT02", "SA01"}
# Called by scikit-learn and transformers, whose arguments they take.
numpydoc_validation_exclude = {r"LMLMonitor\.", r"LMLTrainerCallback\.on_"}

# The second entry is a local copy of the entries that are used, for offline builds.
intersphinx_timeout = 5
intersphinx_mapping = {
    "sklearn": (
        "https://scikit-learn.org/stable/",
        (None, "_inventories/sklearn.inv"),
    ),
}

# weights of a language model, which pip installs without what rxnmapper depends on
HAS_WEIGHTS = importlib.util.find_spec("rxnmapper") is not None
if not HAS_WEIGHTS:
    print(
        "plot_reactions.py is shown without its output, because its weights are not "
        "here: pip install --no-deps rxnmapper==0.4.3"
    )

sphinx_gallery_conf = {
    "filename_pattern": "/plot_" if HAS_WEIGHTS else "/plot_(?!reactions)",
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "backreferences_dir": "generated/backreferences",
    "doc_module": ("sklearn_mpt",),
    "subsection_order": ExplicitOrder(SECTIONS),
    "within_subsection_order": "gallery_order.ReadingOrder",
    "abort_on_example_error": True,
    "image_scrapers": ("gallery_figures.refuse_empty_axes", "matplotlib"),
    "reset_modules": ("matplotlib", "gallery_order.fail_on_warnings"),
    "parallel": joblib.cpu_count(),
    "show_memory": False,
    "show_signature": False,
    "matplotlib_animations": False,
    "copyfile_regex": r".*\.csv",
    "min_reported_time": 0,
}

FIELD = type(sklearn_mpt.PooledEstimate.df)


def skip_fields(app, what, name, obj, skip, options):
    """Leave out fields of named tuples, which the docstring of the class lists."""
    return True if isinstance(obj, FIELD) else None


def setup(app):
    app.connect("autodoc-skip-member", skip_fields)
