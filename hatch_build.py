"""The description on a package index: README.rst, whose pictures lie elsewhere."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^\.\. image:: (?!https?://)(\S+)\n((?:   \S.*\n)*)\n?", re.M)


class ReadmeHook(MetadataHookInterface):
    """Set the description when wheel and source archive are built."""

    def update(self, metadata):
        text = (Path(self.root) / "README.rst").read_text("utf-8")
        text = for_index(text, metadata.get("urls", {}).get("Repository"))
        metadata["readme"] = {"content-type": "text/x-rst", "text": text}


def for_index(text, repository):
    """Give pictures of the repository its address; leave them out if it has none."""
    if repository is None:
        return PICTURE.sub("", text)
    return PICTURE.sub(rf".. image:: {repository}/raw/HEAD/\1\n\2\n", text)
