"""A step that is launched as one CUDA graph: launching small operations one by one takes longer than their work."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress

import torch

READY = 4  # times that a step runs as it is, before it is recorded: that makes autograd, cuDNN and compilers ready


class Replayed:
    """A function of nothing but tensors that stay where they are. The first times count: they are the same step, run as it is.

    It has a stream of its own. What it cannot record it goes on with as it is, with the same numbers, and says so.
    """

    def __init__(
        self, step: Callable[[], None], device: torch.device, say: Callable[[str], None] | None = None
    ) -> None:
        self.step, self.say = step, say
        # Above the streams of `beside`: what is done meanwhile fills gaps, and is never another step's own stream.
        self.stream = torch.cuda.Stream(device, priority=-1)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.done = 0

    def __call__(self) -> None:
        """The next step. It is recorded right after the last that runs as it is, while what was compiled is still at hand."""
        with torch.cuda.stream(self.stream):
            self.step() if self.graph is None else self.graph.replay()
        self.done += 1
        if self.done == READY:  # recording runs nothing
            self.graph = self._record()

    def _record(self) -> torch.cuda.CUDAGraph | None:
        gc.collect()  # graphs that are no longer needed must not be freed while another is recorded
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.stream.device)
        # After a failure with work on a second stream, the recording's end complains of that: the step's own error tells more.
        failed: BaseException | None = None
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                try:
                    self.step()
                except BaseException as error:
                    failed = error
                    raise
        except RuntimeError as error:
            torch.cuda.set_stream(before)
            self._recover()
            cause = failed or error
            if not isinstance(cause, RuntimeError) or "out of memory" in str(cause).lower():
                raise cause from None
            if self.say is not None:
                self.say(f"step by step, since it could not be recorded: {str(cause).strip().splitlines()[0]}")
            return None
        return graph

    def _recover(self) -> None:
        """A failed recording leaves the device's random numbers waiting for its end, everywhere; one that succeeds ends it.

        That is so in torch 2.11, where its memory stays taken too; 2.15 needs none of it.
        """
        with suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self.stream):
            torch.zeros((), device=self.stream.device)
