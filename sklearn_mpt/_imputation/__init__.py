"""Gaps filled in by any model."""
