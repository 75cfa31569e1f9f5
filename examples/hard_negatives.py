"""
Hard negatives
==============

A negative is hard if it is similar to the anchor. There are four ways to give hard negatives more weight: a lower
temperature, only the hardest candidates of the batch, a weight that grows with similarity, and negatives of your own.
"""

from functools import partial

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from contrapose import cross, hardest, nt_xent, penalties, two_views

torch.manual_seed(0)
images = torch.tensor(load_digits().data / 16, dtype=torch.float32)[:256]
images = images - images.mean(0)  # without this, all similarities would be close to 1
z1, z2 = (images * (torch.rand_like(images) > 0.3) for _ in range(2))  # instead of an encoder's output
pairs = two_views(z1, z2)

# %%
# The first three are arguments of the loss. ``hardest(0.1)`` keeps the most similar 10 % of the negatives, ``hardest(51)`` keeps
# 51 of them.

losses = {
    "temperature 0.5": partial(nt_xent, temperature=0.5),
    "temperature 0.1": partial(nt_xent, temperature=0.1),
    "hardest(0.1)": partial(nt_xent, temperature=0.5, negatives=hardest(0.1)),
    "hardness 5": partial(nt_xent, temperature=0.5, hardness=5.0),  # weights exp(5 s)
}
for name, loss in losses.items():
    print(f"{name}: {loss(pairs):.3f}")

# %%
# If your data has hard negatives, such as answers that look right and are wrong, pass their embeddings: k for each query.

queries, answers, wrong_answers = torch.randn(8, 64), torch.randn(8, 64), torch.randn(8, 3, 64)
nt_xent(cross(queries, answers, negatives=wrong_answers), temperature=0.05)

# %%
# ``penalties`` returns the gradient of a loss with respect to each similarity: how strongly it pushes each negative away.

edges = torch.linspace(-0.6, 1, 17)
centres = (edges[1:] + edges[:-1]) / 2
shares = {}
for name, loss in losses.items():
    result = penalties(loss, pairs)
    is_negative = ~result.at.same_id
    s, push = result.at.negative[is_negative], result.push[is_negative] / result.push.sum()
    bins = torch.bucketize(s, edges[1:-1])
    shares[name] = 100 * float(result.share_of_hardest(0.1).mean())
    label = f"{name}: {shares[name]:.0f} % on the hardest 10 %"
    plt.plot(centres, 100 * torch.zeros(16).index_add(0, bins, push), marker=".", label=label)

plt.xlabel("cosine similarity of anchor and negative")
plt.ylabel("share of the push, % per 0.1 of similarity")
plt.ylim(top=45)  # room for the legend
high, low = (shares[f"temperature {temperature}"] for temperature in (0.5, 0.1))
plt.title(f"The hardest 10 % of negatives get {high:.0f} % of the push at 0.5, {low:.0f} % at 0.1")
plt.legend()
plt.show()
