"""Convolutions for ARM CPUs, where torch's backward pass is several times slower than its forward pass.

On ARM, oneDNN uses the ARM Compute Library for the forward pass and a generic fallback for both gradients. But the
input's gradient is itself a convolution, which the fast path can compute, and the weights' gradient is a matrix
product.
"""

from __future__ import annotations

import platform
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad
from torch.nn.grad import conv2d_input, conv2d_weight

from contrapose.reduce.derivatives import in_transform

SLOW_BACKWARD = platform.machine() == "aarch64"  # Linux on ARM; macOS, "arm64", does not use oneDNN
_UNFOLDED = 2**23  # largest number of unfolded input elements at a time: 32 MiB of float32 for any batch size


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return conv2d(x, weight, None, stride, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        if (
            torch.is_grad_enabled()
        ):  # create_graph=True needs gradients that are themselves differentiable, as torch's are
            of_x = conv2d_input(x.shape, weight, gradient, ctx.stride, ctx.padding) if needs_x else None
            of_weight = conv2d_weight(x, weight.shape, gradient, ctx.stride, ctx.padding) if needs_weight else None
            return of_x, of_weight, None, None
        return (
            _input_gradient(gradient, x, weight, ctx.stride, ctx.padding) if needs_x else None,
            _weight_gradient(gradient, x, weight, ctx.stride, ctx.padding) if needs_weight else None,
            None,
            None,
        )


def _input_gradient(gradient: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """Convolve the gradient with the mirrored kernel; for a stride, first insert zeros between the gradient's elements."""
    kernel = weight.shape[2]
    if stride > 1:
        # A stride may skip the last rows and columns of the input; their gradient is zero.
        sides = [side + 2 * padding - kernel + 1 for side in x.shape[2:]]
        spread = gradient.new_zeros(*gradient.shape[:2], *sides).to(memory_format=torch.channels_last)
        spread[:, :, ::stride, ::stride] = gradient
        gradient = spread
    mirrored = weight.flip(2, 3).transpose(0, 1).contiguous(memory_format=torch.channels_last)
    return conv2d(gradient, mirrored, None, 1, kernel - 1 - padding)


def _weight_gradient(gradient: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """Multiply the gradient by the input patches under the kernel, a few images at a time."""
    out, channels, kernel, _ = weight.shape
    height, width = gradient.shape[2:]
    size = max(1, _UNFOLDED // (height * width * kernel * kernel * channels))
    total = weight.new_zeros(kernel * kernel * channels, out)
    for images, part in zip(x.split(size), gradient.split(size), strict=True):
        padded = pad(images.permute(0, 2, 3, 1), (0, 0, padding, padding, padding, padding)).contiguous()
        n, row, column, channel = padded.stride()
        patches = padded.as_strided(  # a view: patches are read in place, until `reshape` copies them
            (len(images), height, width, kernel, kernel, channels),
            (n, row * stride, column * stride, row, column, channel),
        )
        # Patches are the first factor: the transposed product takes 1.2 to 1.5 times as long.
        total += patches.reshape(-1, len(total)).t() @ part.permute(0, 2, 3, 1).reshape(-1, out)
    return total.t().reshape(out, kernel, kernel, channels).permute(0, 3, 1, 2)


class FastBackwardConv2d(nn.Conv2d):
    """`nn.Conv2d` with this module's gradients in float32 training on a CPU, and torch's gradients in all other cases."""

    def forward(self, input: Tensor) -> Tensor:
        """Convolve, (B, C, H, W) -> (B, C', H', W')."""
        training = torch.is_grad_enabled() and input.device.type == "cpu" and input.dtype == torch.float32
        if not training or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling() or in_transform():
            return super().forward(input)
        y: Tensor = _Convolution.apply(input, self.weight, self.stride[0], int(self.padding[0]))
        return y if self.bias is None else y + self.bias.view(1, -1, 1, 1)


def speed_up_backward(network: nn.Module) -> None:
    """Replace the gradients of a network's convolutions in place if torch's are slow on this machine."""
    if SLOW_BACKWARD:
        for module in network.modules():
            if type(module) is nn.Conv2d and _supported(module):
                # Changing the object's class keeps parameters, their names and any hooks.
                module.__class__ = FastBackwardConv2d


def _supported(module: nn.Conv2d) -> bool:
    """Return whether kernel, stride and padding are square and there are neither dilation nor groups."""
    kernel, stride, padding = module.kernel_size, module.stride, module.padding
    square = all(isinstance(pair, tuple) and pair[0] == pair[1] for pair in (kernel, stride, padding))
    plain = module.groups == 1 and module.dilation == (1, 1) and module.padding_mode == "zeros"
    return square and plain and int(padding[0]) < kernel[0]
