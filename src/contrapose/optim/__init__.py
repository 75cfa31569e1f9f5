"""Optimisers that torch does not have."""

from contrapose.optim.lars import LARS

__all__ = ["LARS"]
