"""Peak memory of each process for a loss of gathered embeddings and for one in a ring, on CPU processes (gloo).

    python benchmarks/ring_memory.py --processes 8 --rows 65536 --width 256

`--rows` are anchors of all processes together; each process has its share. Memory is the peak of a process, less its peak
before the embeddings are made.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from contrapose import around_ring, cross, gather, nt_xent

WAYS = ("gather", "ring")


def peak() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(rank: int, way: str, processes: int, rows: int, width: int, port: int, out: str) -> None:
    """Write memory, seconds and the loss of one step of one process."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=processes)
    torch.manual_seed(rank)
    small = torch.randn(2, 8, width, requires_grad=True)
    step(way, small)  # imports and buffers of the first step
    before = peak()
    z = torch.randn(2, rows // processes, width, requires_grad=True)
    dist.barrier()
    start = time.perf_counter()
    loss = step(way, z)
    seconds = time.perf_counter() - start
    result = {"memory": peak() - before, "seconds": seconds, "loss": float(loss)}
    Path(out, f"{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    os._exit(0)  # gloo's threads can abort a normal exit


def step(way: str, z: torch.Tensor) -> torch.Tensor:
    """Return the loss after its backward pass."""
    pairs = around_ring(cross(*z)) if way == "ring" else cross(gather(z[0]), gather(z[1])).sharded()
    loss = nt_xent(pairs, temperature=0.1)
    loss.backward()
    return loss.detach()


def main() -> None:
    """Print one line of JSON for each way."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--rows", type=int, default=65536)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()
    for way in WAYS:
        with TemporaryDirectory() as folder, socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            probe.close()
            arguments = (way, options.processes, options.rows, options.width, port, folder)
            start_processes(measure, args=arguments, nprocs=options.processes, start_method="spawn")
            found = [json.loads(path.read_text()) for path in sorted(Path(folder).iterdir())]
        print(
            json.dumps(
                {
                    "way": way,
                    **vars(options),
                    "MiB_per_process": round(max(one["memory"] for one in found)),
                    "seconds": round(max(one["seconds"] for one in found), 1),
                    "loss": found[0]["loss"],
                    "torch": torch.__version__,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
