"""
Several GPUs
============

Each process encodes its share of a batch. ``gather`` collects the embeddings of all processes, so that every anchor is
compared with the whole batch, and ``sharded`` divides the comparisons between the processes. Losses and gradients are those
of one process with the whole batch; this example checks it, with two processes on a CPU.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from contrapose import gather, nt_xent, two_views

# %%
# The training loop is the same for one process and for several. On one process, ``gather`` and ``sharded`` do nothing.


def train(rank: int = 0, world_size: int = 1) -> list[float]:
    """Train for 30 steps with batches of 128 samples in all processes together; return the loss of each step."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    model = DistributedDataParallel(encoder) if world_size > 1 else encoder
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(30):
        x = torch.randn(128, 32)  # the same in every process; a DistributedSampler would give each process its share
        views = [part.chunk(world_size)[rank] for part in (x, x + 0.3 * torch.randn(128, 32))]
        z1, z2 = model(torch.cat(views)).chunk(2)
        loss = nt_xent(two_views(gather(z1), gather(z2)).sharded(), temperature=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# %%
# ``torchrun --nproc-per-node 2 several_gpus.py`` starts this file in two processes, which arrive here. On GPUs, use the backend
# "nccl" and move model and data to ``cuda:{rank}``.

if "RANK" in os.environ:
    dist.init_process_group("gloo")
    losses = train(dist.get_rank(), dist.get_world_size())
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(losses))
    dist.destroy_process_group()
    sys.exit()

# %%
# Without torchrun, the file starts torchrun itself, and compares two processes with one.

with tempfile.TemporaryDirectory() as folder:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, sys.argv[0], f"{folder}/losses.json"], check=True)
    two = torch.tensor(json.loads(Path(f"{folder}/losses.json").read_text()))
one = torch.tensor(train())

import matplotlib.pyplot as plt  # here, since the two processes need no figures

difference = float((one - two).abs().max())
plt.plot(range(1, 31), one, label="one process, 128 samples", linewidth=6, alpha=0.4)
plt.plot(range(1, 31), two, label="two processes, 64 samples each", color="black")
plt.xlabel("training step")
plt.ylabel("NT-Xent, nats")
plt.title(f"One and two processes: losses differ by at most {difference:.0e}")
plt.legend()
plt.show()
