"""A training step launched as one CUDA graph, since launching small kernels one by one takes longer than running them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress

import torch

WARMUP_STEPS = 4  # eager calls before the capture, in which autograd, cuDNN and the compiler initialise


class GraphedStep:
    """A step that takes its inputs from tensors and is captured in a CUDA graph after a few calls.

    Input tensors must keep their addresses. The first calls run eagerly and are real steps. A step that cannot be captured
    keeps running eagerly, with the same results, and `log` receives the reason. All calls run on a separate stream.
    """

    def __init__(
        self, step: Callable[[], None], device: torch.device, log: Callable[[str], None] | None = None
    ) -> None:
        self.step, self.log = step, log
        # Streams of higher priority come from another pool, so this stream is never also the second stream of another step.
        self.stream = torch.cuda.Stream(device, priority=-1)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.done = 0

    def __call__(self) -> None:
        """Run the next step. The capture comes right after the last eager call, while the compiled code is still in use."""
        with torch.cuda.stream(self.stream):
            self.step() if self.graph is None else self.graph.replay()
        self.done += 1
        if self.done == WARMUP_STEPS:  # a capture records kernels without running them
            self.graph = self._capture()

    def discard(self) -> None:
        """Discard the captured graph, since the step has changed; the next calls run eagerly, until it is captured again."""
        self.stream.synchronize()
        self.graph, self.done = None, 0

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        gc.collect()  # freeing an old graph during a capture would break it
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.stream.device)
        # If the step failed while a second stream had work, ending the capture raises too; the step's own error says more.
        failure: BaseException | None = None
        try:
            # Other threads may allocate memory meanwhile, since they prepare the next batches on streams of their own.
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                try:
                    self.step()
                except BaseException as error:
                    failure = error
                    raise
        except RuntimeError as error:
            torch.cuda.set_stream(before)
            self._recover()
            cause = failure or error
            if not isinstance(cause, RuntimeError) or "out of memory" in str(cause).lower():
                raise cause from None
            if self.log is not None:
                self.log(f"running eagerly, since the step could not be captured: {str(cause).strip().splitlines()[0]}")
            return None
        return graph

    def _recover(self) -> None:
        """Make the device's random number generator usable again after a failed capture, by running a capture that succeeds.

        Torch 2.11 needs this and keeps the failed graph's memory allocated; torch 2.15 does neither.
        """
        with suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self.stream):
            torch.zeros((), device=self.stream.device)
