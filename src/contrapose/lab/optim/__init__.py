"""Optimisers that torch does not provide."""

from contrapose.lab.optim.lars import LARS

__all__ = ["LARS"]
