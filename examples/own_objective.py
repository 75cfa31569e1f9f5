"""
Your own objective
==================

A loss is a function of pairs. This example writes a focal NT-Xent, which gives well-separated anchors less weight, and
then uses it like any other loss: in a training loop, in a ``Loss`` module and with ``penalties``.
"""

from functools import partial

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from contrapose import Loss, Pairs, from_similarities, learned, nt_xent, penalties, two_views

# %%
# ``reduction="none"`` gives one value per anchor. NT-Xent is -log P, where P is the softmax probability of the positive, so
# ``exp(-value)`` is P. A large similarity matrix is never stored, as in any loss here.


def focal(pairs: Pairs, *, temperature: float = 0.1, gamma: float = 2.0) -> Tensor:
    """Return the mean of (1 - P)^gamma · (-log P) over anchors (the focal loss of Lin et al. with NT-Xent's P)."""
    values = nt_xent(pairs, temperature=temperature, reduction="none")
    return ((1 - torch.exp(-values)) ** gamma * values).mean()


# %%
# Train with it. In ``Loss`` its settings can be learned, as here the temperature.

torch.manual_seed(0)
images = torch.tensor(load_digits().data / 16, dtype=torch.float32)
encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
criterion = Loss(focal, temperature=learned(0.1, low=0.05), gamma=2.0)
optimizer = torch.optim.Adam([*encoder.parameters(), *criterion.parameters()], lr=3e-3)
for epoch in range(5):
    for batch in images[torch.randperm(1797)].split(256):
        z1, z2 = (encoder(batch * (torch.rand_like(batch) > 0.5)) for _ in range(2))
        loss = criterion(two_views(z1, z2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}, temperature {criterion.temperature().item():.3f}")

# %%
# What it does to a positive: the pull is the gradient with respect to its similarity, here beside 255 negatives whose
# similarities are those of random vectors in 100 dimensions: a standard deviation of 0.1.

positive = torch.linspace(-0.5, 1, 61)
negatives = (0.1 * torch.randn(255)).expand(61, 255)
pulls = {}
for gamma in (0.0, 1.0, 2.0):
    result = penalties(partial(focal, gamma=gamma), from_similarities(positive, negatives))
    pulls[gamma] = result.pull[:, 0]
    plt.plot(positive, result.pull[:, 0], label=f"γ = {gamma:g}" + (" (NT-Xent)" if not gamma else ""))
easy = int((positive - 0.9).abs().argmin())
plt.xlabel("cosine similarity of the positive")
plt.ylabel("pull, -∂L/∂s⁺")
plt.title(f"At s = 0.9, the pull is {pulls[0.0][easy]:.2g} with NT-Xent and {pulls[2.0][easy]:.2g} with γ = 2")
plt.legend()
plt.show()
