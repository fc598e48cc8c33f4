"""Nets that predict hidden columns from visible ones, trained by masks."""
