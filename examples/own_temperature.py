"""
Your own temperature
====================

A temperature can be any function of similarity. This example writes one that is high above a threshold, where negatives
are likely to show the same digit, and looks at what it changes: the push on such false negatives.
"""

from dataclasses import dataclass
from functools import partial

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from contrapose import Profile, cosine, nt_xent, penalties, two_views

# %%
# Any function that maps a tensor of similarities to positive temperatures works. A ``Profile`` also has a lowest and a highest
# temperature, which are checked, and a name for messages: override ``shape``, which lies between 0 and 1.


@dataclass(frozen=True)
class Step(Profile):
    """Rises smoothly from `low` to `high` at a threshold."""

    threshold: float = 0.5

    def shape(self, s: Tensor) -> Tensor:
        """Return 0 well below the threshold and 1 well above it."""
        return torch.sigmoid((s - self.threshold) / 0.05)


temperatures = {
    "0.1": 0.1,
    "cosine(0.1, 0.5)": cosine(0.1, 0.5),
    "Step(0.1, 0.5)": Step(0.1, 0.5),
    "0.1 + 0.4 s⁴, s > 0": lambda s: 0.1 + 0.4 * s.detach().clamp(min=0) ** 4,
}

# %%
# A batch of digits, centred so that similarities spread. In your loop, these are the encoder's outputs.

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)[:256]
labels = torch.tensor(digits.target)[:256].repeat(2)
images = images - images.mean(0)
pairs = two_views(*(images * (torch.rand_like(images) > 0.2) for _ in range(2)))

# %%
# How much of the push falls on negatives of the same digit, which an encoder should not push away?

s = torch.linspace(-1, 1, 201)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
shares = {}
for name, temperature in temperatures.items():
    push = penalties(partial(nt_xent, temperature=temperature), pairs).push
    shares[name] = 100 * float(push[labels[:, None] == labels].sum() / push.sum())
    left.plot(s, temperature(s) if callable(temperature) else torch.full_like(s, temperature), label=name)
left.set_xlabel("cosine similarity s")
left.set_ylabel("temperature")
left.legend()
right.barh(list(shares), list(shares.values()), color=[f"C{number}" for number in range(4)])
right.invert_yaxis()
right.set_xlabel("push on negatives of the same digit, % of all")
least = min(shares, key=lambda name: shares[name])
figure.suptitle(f"Push on the same digit: {shares['0.1']:.0f} % at 0.1, {shares[least]:.0f} % with {least}")
plt.show()
