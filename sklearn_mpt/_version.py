"""The version, which pickles carry."""

__version__ = "0.2.0"
