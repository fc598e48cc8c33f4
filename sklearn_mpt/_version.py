"""The version, which pickles carry."""

__version__ = "0.1.0"
