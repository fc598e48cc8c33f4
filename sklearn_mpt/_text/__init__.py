"""Masked language models."""

from importlib.util import find_spec

from sklearn_mpt._checks import how_to_install

if find_spec("transformers") is None:
    raise ImportError(
        "What is for texts needs transformers, and to train also accelerate: "
        + how_to_install("text", "text-training")
    )
