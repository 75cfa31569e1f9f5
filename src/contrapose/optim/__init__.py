"""Optimisers that torch does not provide."""

from contrapose.optim.lars import LARS

__all__ = ["LARS"]
