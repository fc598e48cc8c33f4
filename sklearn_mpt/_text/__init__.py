"""Masked language models."""

from importlib.util import find_spec

if find_spec("transformers") is None:
    raise ImportError(
        "What is for texts needs transformers: pip install 'sklearn-mpt[text]', or "
        "'sklearn-mpt[text-training]' to train."
    )
