"""In which order the examples are shown."""

from pathlib import Path

from sphinx_gallery.sorting import ExampleTitleSortKey

FIRST = ["plot_digits.py", "plot_natural_steps.py"]


class FirstThenByTitle(ExampleTitleSortKey):
    """A few examples first, the others by their titles."""

    def __call__(self, filename):
        name = Path(filename).name
        place = FIRST.index(name) if name in FIRST else len(FIRST)
        return f"{place} {super().__call__(filename)}"
