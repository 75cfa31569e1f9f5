"""
A batch that does not fit into memory (GradCache)
=================================================

A contrastive loss needs the embeddings of a whole batch, but not all of the encoder's activations at once. ``large_batch``
encodes one micro-batch at a time, twice, and the gradients are those of the whole batch, as long as the encoder treats its
samples independently. Layer norm and group norm do; batch norm does not, since its statistics are those of a micro-batch, and
nothing warns of it.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from contrapose import large_batch, nt_xent, two_views

torch.manual_seed(0)
layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU())]
encoder = nn.Sequential(*layers, nn.Linear(256, 64))


# %%
# The two ways differ in one line. Nothing else in a training loop changes.


def plain(x1: Tensor, x2: Tensor) -> None:
    """Encode both views at once."""
    z1, z2 = encoder(x1), encoder(x2)
    nt_xent(two_views(z1, z2), temperature=0.2).backward()


def cached(x1: Tensor, x2: Tensor) -> None:
    """Encode 32 images at a time."""
    z1, z2 = large_batch(encoder, x1, x2, micro_batch=32)
    nt_xent(two_views(z1, z2), temperature=0.2).backward()


# %%
# To measure the memory of activations on a CPU, count the bytes that autograd keeps for the backward pass. On a GPU,
# ``torch.cuda.max_memory_allocated()`` does this.


class Kept:
    """A tensor that autograd keeps; counts the bytes of all that exist."""

    now = most = 0

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        Kept.now += tensor.nbytes
        Kept.most = max(Kept.most, Kept.now)

    def __del__(self) -> None:
        Kept.now -= self.tensor.nbytes


sizes = [32, 64, 128, 256, 512]
memory: dict[str, list[float]] = {"plain": [], "large_batch": []}
differences = []
for size in sizes:
    x1, x2 = torch.randn(2, size, 256)
    gradients = []
    for name, backward in [("plain", plain), ("large_batch", cached)]:
        encoder.zero_grad()
        Kept.now = Kept.most = 0
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            backward(x1, x2)
        memory[name].append(Kept.most / 2**20)
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in encoder.parameters()]))
    differences.append(float((gradients[0] - gradients[1]).norm() / gradients[0].norm()))

for name, values in memory.items():
    plt.plot(sizes, values, marker="o", label=name)
plt.xticks(sizes)
plt.ylim(bottom=0)
plt.xlabel("batch size, images")
plt.ylabel("memory that autograd keeps, MiB")
ratio = memory["plain"][-1] / memory["large_batch"][-1]
plt.title(f"{ratio:.0f} times less memory at {sizes[-1]:,} images; gradients differ by {max(differences):.0e}")
plt.legend()
plt.show()
