"""Reject derivatives that the autograd functions do not support, with clear messages: torch's own errors describe internals."""

from __future__ import annotations

import torch
from torch import Tensor

_WAY_OUT = "compute the similarities with torch and pass them to from_similarities(pos, neg), which has all derivatives"


def refuse_second_derivative() -> None:
    """Raise an error if autograd is asked to differentiate this backward pass, which is not supported."""
    if torch.is_grad_enabled():  # inside a backward pass, gradients are enabled only with create_graph=True
        raise RuntimeError(
            "first derivatives only: losses of embeddings have no second derivative; "
            f"call backward without create_graph=True, or {_WAY_OUT}"
        )


def check_backward(*gradients: Tensor) -> None:
    """Raise an error if this backward pass is itself differentiated, or computes several gradients at a time."""
    refuse_second_derivative()
    if not torch.compiler.is_compiling() and any(map(torch._C._functorch.is_legacy_batchedtensor, gradients)):
        raise RuntimeError(
            "is_grads_batched=True, or vectorize=True, is not supported by losses of embeddings; "
            f"call torch.autograd.grad once for each gradient, or {_WAY_OUT}"
        )


def in_transform() -> bool:
    """Return whether a transform of torch.func is active; compilers cannot trace this check."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def refuse_transforms() -> None:
    """Raise inside a transform of torch.func."""
    if in_transform():
        raise RuntimeError(
            "torch.func (grad, vmap, jacrev, …) is not supported by losses of embeddings; "
            f"use backward() or torch.autograd.grad, or {_WAY_OUT}"
        )
