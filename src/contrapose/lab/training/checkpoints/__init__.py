"""Checkpoint files, the training state that they contain, and weights that are kept after chosen epochs."""
