"""The description on a package index: README.rst, whose files lie elsewhere."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^\.\. image:: (?!https?://)(\S+)\n((?:   \S.*\n)*)\n?", re.M)
LINK = re.compile(r"`([^`<]+) <(?!https?://)([^`>]+)>`__")


class ReadmeHook(MetadataHookInterface):
    """Set the description when wheel and source archive are built."""

    def update(self, metadata):
        text = (Path(self.root) / "README.rst").read_text("utf-8")
        text = for_index(text, metadata.get("urls", {}).get("Repository"))
        metadata["readme"] = {"content-type": "text/x-rst", "text": text}


def for_index(text, repository):
    """Give pictures and links the address of the repository.

    If it has none, leave pictures out, and the texts of links without links.
    """
    if repository is None:
        return LINK.sub(r"``\1``", PICTURE.sub("", text))
    text = PICTURE.sub(rf".. image:: {repository}/raw/HEAD/\1\n\2\n", text)
    return LINK.sub(rf"`\1 <{repository}/blob/HEAD/\2>`__", text)
