"""Contrastive representation learning in which the loss is the subject."""

__version__ = "0.1.0"
