"""Observed information of parameters."""
