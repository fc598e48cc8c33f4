"""Fits: the loop, its steps, masks, and observed information."""
