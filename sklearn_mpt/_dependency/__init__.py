"""Dependency networks: a predictor for each column, trained by random masks."""
