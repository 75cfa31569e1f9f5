"""
Labels as positives (SupCon)
============================

With labels, all images of a class are positives of each other. This example trains the same encoder with NT-Xent, which
knows only views, and with SupCon, and compares the similarities of image pairs.
"""

from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from contrapose import Pairs, nt_xent, supcon, two_views, unit

digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)
train, test = slice(0, 1400), slice(1400, None)


def view(x: Tensor) -> Tensor:
    """Hide half of the pixels of each image."""
    return x * (torch.rand_like(x) > 0.5)


# %%
# ``supcon`` takes the same pairs as ``nt_xent``, and the labels of the batch. A label below 0 means unknown: such an image
# has only its other view as positive, so a partly labelled data set can be used as it is.


def without_labels(pairs: Pairs, labels: Tensor) -> Tensor:
    """Return NT-Xent, whose only positive is the other view."""
    return nt_xent(pairs, temperature=0.2)


def with_labels(pairs: Pairs, labels: Tensor) -> Tensor:
    """Return SupCon, whose positives are all views of the same digit."""
    return supcon(pairs, labels=labels, temperature=0.2)


def train_encoder(criterion: Callable[[Pairs, Tensor], Tensor]) -> nn.Module:
    """Train an encoder for ten epochs; return it."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    for _ in range(10):
        for index in torch.randperm(1400).split(200):
            pairs = two_views(encoder(view(images[index])), encoder(view(images[index])))
            loss = criterion(pairs, labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return encoder


# %%
# Similarities of all pairs of test images, of the same digit and of different digits.

different = torch.ones(397, 397, dtype=torch.bool).triu(diagonal=1)  # each pair once
same = labels[test][:, None] == labels[test]
figure, axes = plt.subplots(2, 1, sharex=True, sharey=True, layout="constrained")
gaps = []
for axis, name, criterion in zip(axes, ["NT-Xent", "SupCon"], [without_labels, with_labels], strict=True):
    encoder = train_encoder(criterion)
    with torch.no_grad():
        z = unit(encoder(images[test]))
    s = z @ z.T
    equal, other = s[different & same], s[different & ~same]
    gaps.append(float(equal.mean() - other.mean()))
    axis.hist(equal, bins=60, range=(-1, 1), density=True, alpha=0.6, label="same digit")
    axis.hist(other, bins=60, range=(-1, 1), density=True, alpha=0.6, label="different digits")
    axis.set_title(name, loc="left")
    axis.set_ylabel("density of test pairs")
axes[0].legend()
axes[1].set_xlabel("cosine similarity")
figure.suptitle(f"Gap between the means: {gaps[0]:.2f} without labels, {gaps[1]:.2f} with labels")
plt.show()
