"""
Images and captions (CLIP)
==========================

Two encoders map images and captions to one space. The captions of this small data set name a digit, "a photo of a seven",
so the trained encoders classify images by captions alone.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

from contrapose import Loss, clip, learned, unit

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)
train, test = slice(0, 1400), slice(1400, None)

# %%
# Each image gets one of three captions. A caption is a row of word indices.

names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
templates = ["a photo of a {}", "the digit {}", "someone wrote {}"]
words = sorted({word for template in templates for name in names for word in template.format(name).split()})
sentences = [template.format(name) for name in names for template in templates]  # 30 captions
longest = max(len(sentence.split()) for sentence in sentences)
tokens = torch.zeros(len(sentences), longest, dtype=torch.long)  # 0 is padding
for row, sentence in enumerate(sentences):
    indices = [1 + words.index(word) for word in sentence.split()]
    tokens[row, : len(indices)] = torch.tensor(indices)
caption = 3 * labels + torch.randint(0, 3, labels.shape)  # (1797,): which caption belongs to each image

# %%
# CLIP's loss is symmetric, and its temperature is a parameter: pass it to the optimiser with those of both encoders. Images
# with equal captions are not negatives of each other: equal ``ids`` say so.

image_encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
text_encoder = nn.EmbeddingBag(1 + len(words), 64, padding_idx=0)
criterion = Loss(clip, temperature=learned(0.07, low=0.01))
model = nn.ModuleList([image_encoder, text_encoder, criterion])
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(15):
    for index in torch.randperm(1400).split(200):
        z_image, z_text = image_encoder(images[index]), text_encoder(tokens[caption[index]])
        loss = criterion(z_image, z_text, ids=caption[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %%
# Zero-shot classification: the most similar of ten captions gives the class of a test image.

with torch.no_grad():
    z_image = unit(image_encoder(images[test]))
    z_text = unit(text_encoder(tokens[::3]))  # "a photo of a zero", "a photo of a one", …
similarity = z_image @ z_text.T
accuracy = 100 * (similarity.argmax(1) == labels[test]).float().mean()
by_digit = torch.stack([similarity[labels[test] == digit].mean(0) for digit in range(10)])

plt.imshow(by_digit.numpy(), cmap="RdBu_r", vmin=-1, vmax=1)
plt.colorbar(label="mean cosine similarity")
plt.xticks(range(10), names, rotation=45)
plt.yticks(range(10), names)
plt.xlabel('caption "a photo of a …"')
plt.ylabel("test images of")
plt.title(f"Captions classify {accuracy:.0f} % of the test images")
plt.show()
