"""What all estimators share: the base classes and the protocol of densities."""
