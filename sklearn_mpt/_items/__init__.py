"""Item response models."""
