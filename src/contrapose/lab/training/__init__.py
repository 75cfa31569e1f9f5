"""Training: a run's description, its trainer, its checkpoints, and the trained model."""

from contrapose.lazy import lazy_names

# Most of these need torch, which takes seconds to import; reading the records of runs does not.
__all__, __getattr__ = lazy_names(__name__, __file__)
