"""What a feature is, given its location: one file for each kind."""
