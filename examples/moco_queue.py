"""
A queue of negatives (MoCo)
===========================

A small batch has few negatives. MoCo takes them from a queue of earlier embeddings. An encoder changes at every step, so
these embeddings become outdated; MoCo computes them with a slowly changing copy of the encoder. How slowly must it change?
"""

import copy

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from contrapose import nt_xent, queue

images = torch.tensor(load_digits().data / 16, dtype=torch.float32)[:1792]  # (1792, 64): whole batches
batch_size, queue_length = 16, 1024


def view(x: Tensor) -> Tensor:
    """Hide half of the pixels of each image."""
    return x * (torch.rand_like(x) > 0.5)


# %%
# ``queue(q, k, rows)`` compares each query with its key, and with the stored rows as negatives. Only queries get a gradient.
# The loop also keeps the images of the queue's rows, to measure later how outdated the rows are.


def train(momentum: float) -> tuple[nn.Module, Tensor, Tensor]:
    """Train for two epochs; return the copy of the encoder, the queue and the images of its rows."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    key_encoder = copy.deepcopy(encoder).requires_grad_(False)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=2e-3)
    rows, inputs = torch.randn(queue_length, 64), torch.zeros(queue_length, 64)  # replaced in the first steps
    for _ in range(2):
        for batch in images[torch.randperm(len(images))].split(batch_size):
            q, second = encoder(view(batch)), view(batch)
            k = key_encoder(second)
            loss = nt_xent(queue(q, k, rows), temperature=0.2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for old, new in zip(key_encoder.parameters(), encoder.parameters(), strict=True):
                    old.lerp_(new, 1 - momentum)
            rows = torch.cat([k, rows])[:queue_length]  # newest first
            inputs = torch.cat([second, inputs])[:queue_length]
    return key_encoder, rows, inputs


# %%
# Compare each row of the queue with the embedding that the copy would compute now.

oldest = {}
for momentum in (0.0, 0.9, 0.99):
    key_encoder, rows, inputs = train(momentum)
    similarity = torch.cosine_similarity(rows, key_encoder(inputs))
    by_step = similarity.view(-1, batch_size).mean(1)  # rows of one step have the same age
    plt.plot(range(1, len(by_step) + 1), by_step, label=f"momentum {momentum:g}")
    oldest[momentum] = float(by_step[-1])

plt.xlabel("age of a row, training steps")
plt.ylabel("cosine similarity to its embedding now")
plt.title(f"Oldest rows: {oldest[0.0]:.2f} with momentum 0, {oldest[0.99]:.2f} with momentum 0.99")
plt.legend()
plt.show()
