"""
Comparing losses on a folder of images
======================================

Which loss suits your images? Train the same encoder with several losses and seeds, and compare accuracies only as far as the
seeds allow. ``contrapose compare --data FOLDER --losses simclr,dystress,cacr,balanced`` does this with convolutional encoders,
augmentations and a report; this example shows the loop behind it.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import to_tensor

from contrapose import Loss

# %%
# Each class has its own subfolder. To have such a folder, write some digits as PNG files.

with tempfile.TemporaryDirectory() as folder:
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images[:1200], digits.target, strict=False)):
        path = Path(folder, str(label), f"{number:04d}.png")
        path.parent.mkdir(exist_ok=True)
        Image.fromarray((pixels * 15.9).astype("uint8")).save(path)
    samples = [(to_tensor(image.convert("L")).flatten(), label) for image, label in ImageFolder(folder)]
images, labels = torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])
test = torch.arange(len(images)) % 5 == 0  # every fifth image


def view(x: Tensor) -> Tensor:
    """Hide half of the pixels of each image."""
    return x * (torch.rand_like(x) > 0.5)


# %%
# ``Loss("dystress")`` is a paper's method with the paper's settings; ``Loss("nt_xent(temperature=0.1)")`` works too.


def accuracy(loss_name: str, seed: int) -> float:
    """Train an encoder for eight epochs; return its 5-NN accuracy on test images with hidden pixels, in per cent."""
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    criterion = Loss(loss_name)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    for _ in range(8):
        for batch in images[~test][torch.randperm(960)].split(160):
            loss = criterion(encoder(view(batch)), encoder(view(batch)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        features = encoder(view(images))
    classifier = KNeighborsClassifier(5, metric="cosine").fit(features[~test], labels[~test])
    return 100 * classifier.score(features[test], labels[test])


names = ["simclr", "dystress", "cacr", "balanced"]
results = torch.tensor([[accuracy(name, seed) for seed in range(3)] for name in names])  # (4, 3)

# %%
# A difference counts only if it is larger than twice its standard error, which the three seeds give.

mean, error = results.mean(1), results.std(1) / 3**0.5
first, second = mean.argsort(descending=True)[:2].tolist()
is_clear = mean[first] - mean[second] > 2 * torch.hypot(error[first], error[second])
verdict = "is ahead of" if is_clear else "is not clearly ahead of"

plt.plot([name for name in names for _ in range(3)], results.flatten(), ".", color="gray", label="one seed")
plt.errorbar(names, mean.numpy(), yerr=2 * error.numpy(), fmt="o", capsize=4, label="mean ± 2 standard errors")
plt.xlabel("loss")
plt.ylabel("5-NN accuracy on 240 test images, %")
plt.title(f"{names[first]} ({mean[first]:.1f} %) {verdict} {names[second]} ({mean[second]:.1f} %)")
plt.legend()
plt.show()
