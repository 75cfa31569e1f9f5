"""Capture a training step with NCCL's collectives in a CUDA graph, on one GPU, and compare it with eager steps.

    python benchmarks/nccl_capture.py --batch 512 --steps 200

The step gathers embeddings, scatters their gradient back, averages the gradients of the weights and updates them (fused SGD). The
process group has one process, for which `contrapose.gather` leaves collectives out, so they are called directly here. NCCL has
nothing to send to itself: this shows whether its calls are captured and replayed with the results of eager steps, not whether
several GPUs stay in step with each other. Prints a JSON line, and ends with exit code 1 if the step could not be captured or the
results differ. A step that hangs ends the program after `--timeout` seconds, with a traceback.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from contrapose import nt_xent, two_views
from contrapose.distributed import _Gather
from contrapose.lab.cuda.graphs import WARMUP_STEPS, GraphedStep

INPUTS, BATCHES = 3072, 8  # numbers per sample, and different batches


class Step:
    """A training step that reads and writes tensors on the device only."""

    def __init__(self, *, batch: int, steps: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self.batches = torch.randn(BATCHES, 2, batch, INPUTS, device=device)
        # Matrix products give the same bits in each call; the gradients of convolutions may not.
        layers = [nn.Linear(INPUTS, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 128)]
        self.encoder = nn.Sequential(*layers).to(device)
        self.optimiser = torch.optim.SGD(self.encoder.parameters(), lr=0.05, momentum=0.9, fused=True)
        self.place, self.losses = torch.zeros((), dtype=torch.long, device=device), torch.zeros(steps, device=device)

    def __call__(self) -> None:
        """Take the step at `place` and advance."""
        views = self.batches.index_select(0, (self.place % BATCHES).view(1))[0]
        self.optimiser.zero_grad(set_to_none=True)
        z = self.encoder(views.flatten(0, 1)).chunk(2)
        z1, z2 = (_Gather.apply(part, None) for part in z)
        loss = nt_xent(two_views(z1, z2), temperature=0.5)
        loss.backward()
        for parameter in self.encoder.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        self.optimiser.step()
        self.losses.index_copy_(0, self.place.view(1), loss.detach().view(1))
        self.place += 1

    def take(self, graphed: GraphedStep | None, steps: int) -> float:
        """Take steps, the first ones without a graph, and return the milliseconds of each later one."""
        start = 0.0
        for number in range(steps):
            if number == 2 * WARMUP_STEPS:
                torch.cuda.synchronize()
                start = time.perf_counter()
            self() if graphed is None else graphed()
        torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - start) / (steps - 2 * WARMUP_STEPS)


def main() -> None:
    """Take the same steps eagerly and with a graph, and print how they compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds after which a step hangs")
    options = parser.parse_args()
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        parser.error("needs a GPU and NCCL")
    if options.steps <= 2 * WARMUP_STEPS:
        parser.error(f"--steps: expected more than {2 * WARMUP_STEPS}, of which the first ones are not timed")
    faulthandler.dump_traceback_later(options.timeout, exit=True)
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")  # as in training
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    timeout = timedelta(seconds=options.timeout)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)  # type: ignore[attr-defined]
    eager, step = (Step(batch=options.batch, steps=options.steps, device=device) for _ in range(2))
    eager_ms = eager.take(None, options.steps)
    graphed = GraphedStep(step, device, lambda text: print(text, file=sys.stderr))
    graph_ms = step.take(graphed, options.steps)
    weights = zip(eager.encoder.parameters(), step.encoder.parameters(), strict=True)
    loss_difference = float((eager.losses - step.losses).abs().max())
    weight_difference = max(float((one - other).abs().max()) for one, other in weights)
    record = {
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "device": torch.cuda.get_device_name(device),
        "collectives": 4 + len(list(step.encoder.parameters())),  # of one step
        "captured": graphed.graph is not None,
        "eager_ms": round(eager_ms, 3),
        "graph_ms": round(graph_ms, 3),
        "loss_difference": loss_difference,
        "weight_difference": weight_difference,
        "last_loss": float(step.losses[-1]),
    }
    print(json.dumps(record), flush=True)  # before the group ends, which hangs if NCCL still has work
    graphed.discard()  # a communicator must not end while a graph has its calls
    dist.destroy_process_group()
    sys.exit(0 if record["captured"] and max(loss_difference, weight_difference) < 1e-4 else 1)


if __name__ == "__main__":
    main()
