"""Scores of any masked model: it is asked for its conditionals, and nothing else."""
