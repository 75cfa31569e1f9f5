"""`large_batch`: embeddings of a batch whose activations do not fit into memory, with exact gradients (GradCache).

A contrastive loss needs all embeddings of a batch at once, but not all of the encoder's activations. So each micro-batch is
encoded twice: first without a graph, to compute the loss, and again in the backward pass, when the gradient with respect to
its embeddings is known (Gao et al. 2021, https://arxiv.org/abs/2101.06983).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import get_device_states, set_device_states

from contrapose.reduce.derivatives import in_transform

Forward = Callable[[nn.Module, Any], Tensor]
Encoders = nn.Module | Sequence[nn.Module]


def call(encoder: nn.Module, inputs: Any) -> Tensor:
    """Return `encoder(inputs)`."""
    output: Tensor = encoder(inputs)
    return output


@overload
def large_batch(encoder: Encoders, inputs: Any, /, *, micro_batch: int, forward: Forward = call) -> Tensor: ...
@overload
def large_batch(
    encoder: Encoders, first: Any, second: Any, /, *more: Any, micro_batch: int, forward: Forward = call
) -> tuple[Tensor, ...]: ...
def large_batch(
    encoder: Encoders, /, *inputs: Any, micro_batch: int, forward: Forward = call
) -> Tensor | tuple[Tensor, ...]:
    """Return the embeddings of each input, (n, …), with the memory of a micro-batch and the gradients of the whole batch.

    Use these embeddings like any others; `loss.backward()` does the rest:

        z1, z2 = large_batch(encoder, x1, x2, micro_batch=64)
        loss = nt_xent(two_views(z1, z2), temperature=0.1)
        loss.backward()

    The backward pass encodes each micro-batch a second time, with the same dropout and the same autocast, and accumulates the
    parameters' gradients. The cost is this second forward pass; the embeddings and inputs of the whole batch must fit into
    memory. Without gradients (`torch.no_grad()`) each micro-batch is encoded once.

    encoder      a module, or one for each input: `large_batch([image_encoder, text_encoder], images, texts, …)`
    inputs       tensors, or dictionaries, tuples or lists of them, with samples along dimension 0
    micro_batch  number of samples encoded at a time
    forward      how the encoder is called, if `encoder(inputs)` does not return embeddings:
                 `forward=lambda model, batch: model(**batch).last_hidden_state[:, 0]`

    DistributedDataParallel averages gradients once, after the last micro-batch; losses may `gather` the embeddings.
    In training mode, batch norm uses each micro-batch's statistics, and counts each micro-batch once in its running statistics.
    Gradients are exact if the encoder computes the same result twice from the same torch random state; an encoder with spectral
    norm does not. Only `.backward()` computes the parameters' gradients; `torch.autograd.grad` does not.

    >>> encoder = torch.nn.Linear(8, 4)
    >>> z1, z2 = large_batch(encoder, torch.randn(6, 8), torch.randn(6, 8), micro_batch=2)
    >>> z1.shape
    torch.Size([6, 4])
    """
    if isinstance(micro_batch, bool) or not isinstance(micro_batch, int) or micro_batch < 1:
        raise ValueError(f"micro_batch: expected a whole number of at least 1, got {micro_batch!r}")
    encoders = _one_encoder_per_input(encoder, inputs)
    lengths = [_length(f"input {number}", batch) for number, batch in enumerate(inputs, start=1)]

    def embed(module: nn.Module, batch: Any) -> Tensor:
        z = forward(module, batch)
        _check_rows(z, _length("input", batch))
        return z

    micro_batches = [
        MicroBatch(module, _rows(batch, slice(start, start + micro_batch)), embed)
        for module, batch, length in zip(encoders, inputs, lengths, strict=True)
        for start in range(0, length, micro_batch)
    ]
    parts = iter(encode_twice(micro_batches))
    z = tuple(torch.cat([next(parts) for _ in range(0, length, micro_batch)]) for length in lengths)
    return z[0] if len(z) == 1 else z


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Samples that pass through an encoder together."""

    encoder: nn.Module
    inputs: Any
    forward: Forward = call

    def encode(self) -> Tensor:
        """Return the encoder's output."""
        return self.forward(self.encoder, self.inputs)


def encode_twice(micro_batches: Sequence[MicroBatch]) -> tuple[Tensor, ...]:
    """Return the output of each micro-batch without its graph; the backward pass encodes it again."""
    if not torch.is_grad_enabled():
        return tuple(micro_batch.encode() for micro_batch in micro_batches)
    if in_transform():
        raise ValueError(
            "torch.func: large_batch works with backward() only; encode without it under grad, vmap or jacrev"
        )
    if any(tensor.requires_grad for tensor in _inputs(micro_batches)):
        raise ValueError(
            "inputs: expected tensors without gradient, since gradients reach the encoder's parameters only"
        )
    if not any(_learns(encoder) for encoder in _distinct_encoders(micro_batches)):
        raise ValueError("encoder: no parameter requires a gradient; encode under torch.no_grad() if that is intended")
    # Autograd runs a function's backward only if one of the function's inputs requires a gradient.
    outputs: tuple[Tensor, ...] = _EncodeTwice.apply(torch.zeros((), requires_grad=True), micro_batches)
    return outputs


class _EncodeTwice(torch.autograd.Function):
    """Maps micro-batches to embeddings. Its backward pass backpropagates through the encoder, one micro-batch at a time."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, micro_batches: Sequence[MicroBatch]) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.micro_batches, ctx.surroundings, ctx.random_states = micro_batches, _Surroundings(micro_batches), []
        inputs_before, outputs = _versions(_inputs(micro_batches)), []
        for micro_batch in micro_batches:
            ctx.random_states.append(ctx.surroundings.random_state())
            outputs.append(micro_batch.encode())
        # Older versions of torch would reuse the weights that autocast has cast here, without a graph (pytorch#65766).
        torch.clear_autocast_cache()
        # Lazy modules create their parameters in the first pass.
        ctx.versions = inputs_before, _versions(_parameters(micro_batches))
        # A frozen tower is encoded like any other, but needs no second pass.
        ctx.mark_non_differentiable(
            *(z for each, z in zip(micro_batches, outputs, strict=True) if not _learns(each.encoder))
        )
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None]:
        if torch.is_grad_enabled():
            raise ValueError(
                "create_graph: large_batch has no second derivatives; call backward() without create_graph"
            )
        _check_unchanged(
            ctx.versions, (_versions(_inputs(ctx.micro_batches)), _versions(_parameters(ctx.micro_batches)))
        )
        # A micro-batch that the loss does not use has no gradient.
        rest = zip(ctx.micro_batches, ctx.random_states, gradients, strict=True)
        work = [(micro_batch, state, gradient) for micro_batch, state, gradient in rest if gradient is not None]
        last = {id(micro_batch.encoder): place for place, (micro_batch, _, _) in enumerate(work)}
        with torch.enable_grad(), ctx.surroundings.restored(), _spare_buffers(_distinct_encoders(ctx.micro_batches)):
            for place, (micro_batch, random_state, gradient) in enumerate(work):
                is_last = last[id(micro_batch.encoder)] == place
                ctx.surroundings.set_random_state(random_state)
                with ctx.surroundings.reduction(micro_batch.encoder, wanted=is_last):
                    _backpropagate(micro_batch, gradient)
        return None, None


def _backpropagate(micro_batch: MicroBatch, gradient: Tensor) -> None:
    """Encode a micro-batch with its graph and add the gradients of its parameters."""
    torch.clear_autocast_cache()  # autocast's cached weights belong to one micro-batch's graph, which its backward frees
    z = micro_batch.encode()
    if not z.requires_grad:
        raise ValueError(
            "encoder: expected embeddings that depend on its parameters, got a tensor without gradient "
            "(is it detached, or computed under torch.no_grad()?)"
        )
    torch.autograd.backward(z, gradient)
    torch.clear_autocast_cache()


class _Surroundings:
    """The context of the first pass, which the second pass restores: random state, autocast, gradient reduction."""

    def __init__(self, micro_batches: Sequence[MicroBatch]) -> None:
        used = {tensor.device for tensor in [*_inputs(micro_batches), *_parameters(micro_batches)]}
        devices = [device for device in used if device.type not in ("cpu", "meta")]
        self.samples = [torch.empty(0, device=device) for device in devices]  # `get_device_states` takes tensors
        self.device_type = next((device.type for device in devices), "cuda")
        self.autocasts = [
            partial(
                torch.autocast,
                name,
                dtype=torch.get_autocast_dtype(name),
                enabled=torch.is_autocast_enabled(name),
                cache_enabled=torch.is_autocast_cache_enabled(),
            )
            for name in sorted({"cpu", *(device.type for device in devices)})
            if torch.amp.is_autocast_available(name)
        ]
        self.reduces = {
            id(encoder): encoder.require_backward_grad_sync
            for encoder in _distinct_encoders(micro_batches)
            if isinstance(encoder, DistributedDataParallel)
        }

    def random_state(self) -> tuple[Tensor, list[int], list[Tensor]]:
        """Return the random state of the CPU and of the devices in use."""
        return (torch.get_rng_state(), *get_device_states(*self.samples))

    def set_random_state(self, state: tuple[Tensor, list[int], list[Tensor]]) -> None:
        """Set the random state that `random_state` returned."""
        torch.set_rng_state(state[0])
        set_device_states(state[1], state[2], device_type=self.device_type)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore autocast within this block; after it, the random state is as if the block had not run."""
        indices = [sample.get_device() for sample in self.samples]
        with torch.random.fork_rng(indices, device_type=self.device_type), ExitStack() as stack:
            for autocast in self.autocasts:
                stack.enter_context(autocast())
            yield

    @contextmanager
    def reduction(self, encoder: nn.Module, *, wanted: bool) -> Iterator[None]:
        """Let DistributedDataParallel average gradients in this block if `wanted`, unless the first pass ran in no_sync()."""
        if not isinstance(encoder, DistributedDataParallel):
            yield
            return
        before = encoder.require_backward_grad_sync
        encoder.require_backward_grad_sync = wanted and self.reduces[id(encoder)]
        try:
            yield
        finally:
            encoder.require_backward_grad_sync = before


@contextmanager
def _spare_buffers(encoders: Sequence[nn.Module]) -> Iterator[None]:
    """Let encoders write to copies of their buffers in this block, so that running statistics count each micro-batch once."""
    buffers = [
        (module, name, buffer)
        for encoder in encoders
        for module in encoder.modules()
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
    ]
    copies = {id(buffer): buffer.clone() for _, _, buffer in buffers}  # a buffer that two modules share stays shared
    try:
        for module, name, buffer in buffers:
            setattr(module, name, copies[id(buffer)])
        yield
    finally:
        for module, name, buffer in buffers:
            setattr(module, name, buffer)


def _distinct_encoders(micro_batches: Sequence[MicroBatch]) -> list[nn.Module]:
    return list({id(micro_batch.encoder): micro_batch.encoder for micro_batch in micro_batches}.values())


def _learns(encoder: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in encoder.parameters())


def _inputs(micro_batches: Sequence[MicroBatch]) -> list[Tensor]:
    return [tensor for micro_batch in micro_batches for tensor in _tensors(micro_batch.inputs)]


def _parameters(micro_batches: Sequence[MicroBatch]) -> list[Tensor]:
    return [parameter for encoder in _distinct_encoders(micro_batches) for parameter in encoder.parameters()]


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    """Return the number of in-place changes that autograd has counted for each tensor."""
    return [tensor._version for tensor in tensors]


def _check_unchanged(before: tuple[list[int], list[int]], now: tuple[list[int], list[int]]) -> None:
    """Raise an error if values have changed since the first pass: the second pass would give a wrong gradient."""
    for name, first, second in zip(("inputs", "parameters"), before, now, strict=True):
        if first != second:
            raise ValueError(
                f"backward: the {name} were changed in place after large_batch had encoded the batch; "
                "call backward() before optimizer.step() and before the inputs are overwritten"
            )


def _one_encoder_per_input(encoder: Encoders, inputs: Sequence[Any]) -> list[nn.Module]:
    if not inputs:
        raise ValueError("inputs: expected at least one batch to encode, got none")
    if isinstance(encoder, nn.Module) and not isinstance(encoder, nn.ModuleList):
        return [encoder] * len(inputs)
    encoders = list(encoder) if isinstance(encoder, Sequence | nn.ModuleList) else [encoder]
    for each in encoders:
        if not isinstance(each, nn.Module):
            raise ValueError(f"encoder: expected a module, or one for each input, got {type(each).__name__}")
    if len(encoders) != len(inputs):
        raise ValueError(f"encoder: expected one for each of the {len(inputs)} inputs, got {len(encoders)}")
    return encoders


def _tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors in a batch."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, tuple | list):
        for value in batch:
            yield from _tensors(value)


def _rows(batch: Any, rows: slice) -> Any:
    """Return the given rows of every tensor in a batch."""
    if isinstance(batch, Tensor):
        return batch[rows]
    if isinstance(batch, Mapping):
        return {name: _rows(value, rows) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [_rows(value, rows) for value in batch]
        return (
            type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
        )  # a named tuple is built from its fields
    return batch  # a tokeniser's setting, such as the prompt length


def _length(name: str, batch: Any) -> int:
    """Return the number of samples in a batch, after checking that all its tensors have the same number."""
    _check_splits(name, batch)
    lengths = [len(tensor) for tensor in _tensors(batch)]
    if not lengths:
        raise ValueError(f"{name}: expected a tensor, or a dictionary, tuple or list of tensors, got none")
    if min(lengths) != max(lengths) or not lengths[0]:
        raise ValueError(f"{name}: expected tensors with one row per sample, got {', '.join(map(str, lengths))} rows")
    return lengths[0]


def _check_splits(name: str, batch: Any) -> None:
    """Refuse input that cannot be split along dimension 0, such as a list of strings."""
    if isinstance(batch, Mapping):
        for key, value in batch.items():
            if not (value is None or isinstance(value, bool | int | float | str)):
                _check_splits(f"{name}[{key!r}]", value)
    elif isinstance(batch, tuple | list):
        for value in batch:
            _check_splits(name, value)
    elif not isinstance(batch, Tensor) or not batch.ndim:
        received = "a tensor without dimensions" if isinstance(batch, Tensor) else type(batch).__name__
        raise ValueError(f"{name}: expected tensors with samples along dimension 0, got {received}")


def _check_rows(z: Any, count: int) -> None:
    if not isinstance(z, Tensor) or z.ndim < 2 or len(z) != count or not z.is_floating_point():
        received = f"{z.dtype} of shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
        raise ValueError(
            f"encoder: expected embeddings of shape ({count}, d), one row per sample, got {received}; "
            "use `forward=` to select the embeddings from the encoder's output"
        )
