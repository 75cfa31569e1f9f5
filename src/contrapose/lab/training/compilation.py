"""Compilation of a run's views and encoders: whether it is possible, when it pays, and what is compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from contrapose.lab.modalities.source import KernelViewMaker, StagedReader
from contrapose.lab.networks.norms import replace_norms
from contrapose.lab.training.context import StepContext
from contrapose.lab.training.processes import SyncedBatchNorm
from contrapose.lab.training.shards import decision_of_first

LONG_EPOCH = 300.0  # seconds after which a run is compiled within an epoch; otherwise it is compiled between epochs
# On an H200, compilation took 22 to 44 seconds and made steps 27 to 36 % shorter (ResNet-18, ResNet-50 and ViT-S/16 at 224
# pixels); other hosts may take longer.
_COMPILATION_SECONDS, _SHORTER_BY = 60.0, 0.25


def compilation_obstacle(context: StepContext) -> str:
    """Return why the views and encoders of this run, on a GPU, cannot be compiled; empty if they can."""
    if context.is_sharded:
        return "with --shard, parameters are gathered between the blocks of an encoder"
    if context.recomputes:
        return "with --recompute, compiled blocks would not be computed again bit for bit"
    if context.run.grad_cache:
        return "with --grad-cache, compiled code might draw other random numbers when it encodes a batch again"
    if context.reader.resident is None and not isinstance(context.reader, StagedReader):
        return "samples are neither on the GPU nor loaded in batches of one shape"
    if torch._dynamo.config.disable:
        return "TORCHDYNAMO_DISABLE is set"
    return "" if find_spec("triton") is not None else "the compiler needs Triton"


def compilation_pays(seconds: float) -> bool:
    """Return whether compilation saves more time than it takes, if the rest of the run takes `seconds` without it."""
    return seconds * _SHORTER_BY > _COMPILATION_SECONDS


def view_function(context: StepContext) -> Callable[..., list[Tensor]]:
    """Return the function that makes views of raw samples, or of what the reader has staged."""
    reader = context.reader
    return reader.finish if isinstance(reader, StagedReader) and reader.resident is None else context.views.train


class Compilation:
    """Measures the steps of a run, and compiles its views and encoders when that pays."""

    def __init__(self, context: StepContext) -> None:
        self.context = context
        self.is_compiled = self.is_reported = False
        self.step_seconds: float | None = None  # measured in the last epoch, after its first steps

    def measure(self, steps: int, seconds: float) -> None:
        """Keep the length of a step; the first time after a compilation, log it."""
        before, self.step_seconds = self.step_seconds, seconds / steps
        if self.is_compiled and before is not None and not self.is_reported and self.context.rank == 0:
            self.is_reported = True
            self.context.log(f"compiled: a step takes {1000 * self.step_seconds:.1f} ms, {1000 * before:.1f} ms before")

    def pays(self, step: int) -> bool:
        """Return whether to compile before `step` of the run, as its first process has measured; all must call this."""
        if self.is_compiled:
            return False
        context = self.context
        left = (context.run.epochs * context.steps_per_epoch - step) * (self.step_seconds or 0.0)
        # Each process measures other times. If one alone compiled, the others would wait for it in their next collective.
        pays = compilation_pays(left)
        pays = decision_of_first(pays, context.device) if context.world_size > 1 else pays
        if pays and self.step_seconds is not None and context.rank == 0:
            now = f"a step takes {1000 * self.step_seconds:.1f} ms, and the steps left {left / 60:.0f} min"
            context.log(f"compiling, which takes about a minute: {now}")
        return pays

    def compile(self) -> Callable[..., list[Tensor]]:
        """Compile the encoders in place and return the function that makes views, compiled; the first calls take long."""
        context, run = self.context, self.context.run
        _compile_for(
            run.framework,
            run.encoder,
            run.text_encoder,
            run.text_length,
            run.size,
            run.head,
            run.width,
            run.norm_splits,
            run.norm_views,
            run.symmetric,
            run.views,
            run.view_count,
            run.batch,
            run.precision,
            context.world_size,
        )
        views = view_function(context)
        if not (isinstance(context.views, KernelViewMaker) and context.views.uses_kernels(context.device)):
            views = torch.compile(views, dynamic=False)
        # The inner modules are compiled, not DistributedDataParallel around them: the compiler still sees it, and divides the
        # backward pass at its buckets, so that gradients are exchanged meanwhile.
        for network in context.network.compiled_networks():
            if context.world_size > 1:
                # The compiler fuses their operations with the layers around them; it can neither fuse nor trace
                # nn.SyncBatchNorm, which waits for the GPU.
                replace_norms(network, SyncedBatchNorm)
            network.compile(dynamic=False)
        # torch advises to round float32 products, which would change the numbers of a run; `--precision bf16` is the choice here.
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores", category=UserWarning)
        self.is_compiled = True
        return views


@lru_cache(maxsize=1)
def _compile_for(*settings: object) -> None:
    """Reset the compiler unless the previous run had the same settings (networks, views, sizes) and can share its code."""
    torch._dynamo.reset()
