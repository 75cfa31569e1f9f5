"""Checkpoints: files, the state of a trainer in them, and weights that are kept."""
