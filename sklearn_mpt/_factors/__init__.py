"""Factor analysis: posteriors, EM with gaps, starts, and rotations."""
