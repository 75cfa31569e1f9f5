"""
SimCLR in a plain training loop
===============================

Two views of each image are embedded, and the loss compares every embedding with all others in the batch. The images are
scikit-learn's handwritten digits, and a view hides half of an image's pixels.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from contrapose import nt_xent, two_views

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), digits.target  # (1797, 64), (1797,)
train, test = slice(0, 1400), slice(1400, None)


def view(x: Tensor) -> Tensor:
    """Hide half of the pixels of each image."""
    return x * (torch.rand_like(x) > 0.5)


# %%
# The encoder is measured by the accuracy of its 5 nearest neighbours, on images with hidden pixels.

hidden = view(images)


@torch.no_grad()
def accuracy(encoder: nn.Module) -> float:
    """Return the accuracy of a nearest-neighbour classifier on the test images, in per cent."""
    features = encoder(hidden)
    classifier = KNeighborsClassifier(5, metric="cosine").fit(features[train], labels[train])
    return 100 * classifier.score(features[test], labels[test])


# %%
# The loop is ordinary PyTorch. The loss normalises the embeddings, so the encoder's output is passed as it is.

encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
curve = [accuracy(encoder)]
for _ in range(20):
    for batch in images[train][torch.randperm(1400)].split(200):
        z1, z2 = encoder(view(batch)), encoder(view(batch))
        loss = nt_xent(two_views(z1, z2), temperature=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    curve.append(accuracy(encoder))

# %%
# Compare with the same classifier on the pixels themselves, which needs no training.

pixels = accuracy(nn.Identity())
plt.plot(curve, marker="o", label="encoder")
plt.axhline(pixels, color="gray", linestyle="--", label="pixels")
plt.xlabel("epoch")
plt.ylabel("5-NN accuracy, %")
plt.title(f"After 20 epochs: {curve[-1]:.0f} % with the encoder, {pixels:.0f} % with pixels")
plt.legend()
plt.show()
