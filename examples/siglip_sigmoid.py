"""
A sigmoid for each pair (SigLIP)
================================

CLIP compares a pair with all others by a softmax. SigLIP judges each pair of an image and a text on its own: do they
belong together? Temperature and bias are learned, and the loss needs no sum over the batch.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

from contrapose import Loss, learned, learned_number, siglip, unit

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)  # the "text" of an image is the index of its digit's name
train, test = slice(0, 1400), slice(1400, None)

# %%
# The bias starts at -10, which predicts "no match" for all pairs, since nearly all of the m × m pairs in a batch do not match.
# Images of the same digit have the same text, so they must not be negatives of each other's texts: give them equal ``ids``.

image_encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
text_encoder = nn.Embedding(10, 64)
criterion = Loss(siglip, temperature=learned(0.1), bias=learned_number(-10.0))
model = nn.ModuleList([image_encoder, text_encoder, criterion])
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(20):
    for index in torch.randperm(1400).split(200):
        loss = criterion(image_encoder(images[index]), text_encoder(labels[index]), ids=labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"temperature {criterion.temperature().item():.3f}, bias {criterion.bias().item():.2f}")

# %%
# After training, ``sigmoid(s / temperature + bias)`` is the probability that an image and a text belong together.

with torch.no_grad():
    similarity = unit(image_encoder(images[test])) @ unit(text_encoder.weight).T  # (397, 10)
    probability = torch.sigmoid(similarity / criterion.temperature() + criterion.bias())
matches = labels[test][:, None] == torch.arange(10)
found = 100 * (probability[matches] > 0.5).float().mean()
false = 100 * (probability[~matches] > 0.5).float().mean()

plt.hist(probability[matches], bins=40, range=(0, 1), density=True, alpha=0.6, label="matching")
plt.hist(probability[~matches], bins=40, range=(0, 1), density=True, alpha=0.6, label="other")
plt.yscale("log")
plt.xlabel("predicted probability that image and text match")
plt.ylabel("density of test pairs")
plt.title(f"A match is predicted for {found:.0f} % of matching pairs and {false:.1f} % of the others")
plt.legend()
plt.show()
