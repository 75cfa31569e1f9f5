"""Train image and caption towers on Flickr8k with CLIP's loss, with self-masking and with soft targets, and compare recalls.

    python benchmarks/soft_captions.py --data data/flickr8k > benchmarks/soft-captions-h200.jsonl

A ResNet-18 and a small transformer start from scratch. The guide of the soft targets is no other network: it compares the words
of two images' five captions (tf-idf). Its temperature is chosen on the validation images with one seed; then each loss is
trained with each seed, and the test images are used once. Prints JSON lines.
"""

from __future__ import annotations

import argparse
import csv
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from fused import write_record
from torch import Tensor, nn
from torch.nn.functional import normalize
from torchvision.io import ImageReadMode, decode_image
from torchvision.models import resnet18
from torchvision.transforms.v2.functional import center_crop, resize

from contrapose.losses import clip, soft_nt_xent
from contrapose.pairs import cross, guide_targets, self_guided

SIDE, CROP, WORDS, WIDTH = 128, 112, 24, 256
LossOf = Callable[[Tensor, Tensor, Tensor], Tensor]  # images, captions, words of the images' captions


class Split(NamedTuple):
    """Images with five captions each."""

    images: Tensor  # (n, 3, SIDE, SIDE) uint8
    captions: Tensor  # (n, 5, WORDS) numbers of words, 0 for none
    words: Tensor  # (n, words): tf-idf of the five captions together


def read(folder: Path, device: str, limit: int | None) -> dict[str, Split]:
    """Read all splits; the vocabulary holds the words that occur three times in the training captions."""
    texts: dict[str, list[list[str]]] = {}
    with (folder / "captions.tsv").open(encoding="utf-8") as file:
        for name, _, caption in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            texts.setdefault(name, []).append(re.findall(r"[a-z]+", caption.lower()))
    names: dict[str, list[str]] = {}
    for line in (folder / "split.tsv").read_text().splitlines():
        name, split = line.split("\t")
        names.setdefault(split, []).append(name)
    names = {split: some[:limit] for split, some in names.items()}
    counts = Counter(word for name in names["train"] for text in texts[name] for word in text)
    vocabulary = {word: 1 + i for i, word in enumerate(w for w, count in counts.items() if count >= 3)}
    images_with = Counter(word for name in names["train"] for word in {w for text in texts[name] for w in text})
    rarity = torch.tensor([0.0] + [len(names["train"]) / images_with[word] for word in vocabulary]).clamp(min=1).log()
    splits = {}
    for split, some in names.items():
        captions, words = torch.zeros(len(some), 5, WORDS, dtype=torch.long), torch.zeros(len(some), len(rarity))
        for i, name in enumerate(some):
            for k, text in enumerate(texts[name][:5]):
                known = [vocabulary[word] for word in text if word in vocabulary]
                captions[i, k, : len(known[:WORDS])] = torch.tensor(known[:WORDS], dtype=torch.long)
                words[i] += torch.bincount(torch.tensor(known, dtype=torch.long), minlength=len(rarity))
        images = torch.stack([_image(folder / "images" / name) for name in some])
        splits[split] = Split(*(x.to(device) for x in (images, captions, words * rarity)))
    return splits


def _image(path: Path) -> Tensor:
    pixels = decode_image(str(path), mode=ImageReadMode.RGB)
    image: Tensor = center_crop(resize(pixels, [SIDE], antialias=True), [SIDE, SIDE])
    return image


class Towers(nn.Module):
    """An image tower and a caption tower, from scratch."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.image = resnet18(num_classes=WIDTH)
        self.words = nn.Embedding(vocabulary, WIDTH, padding_idx=0)
        self.positions = nn.Parameter(torch.zeros(WORDS, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.1, batch_first=True, norm_first=True)
        self.text = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def embed_images(self, pixels: Tensor) -> Tensor:
        """Map (n, 3, h, w) uint8 to embeddings."""
        z: Tensor = self.image(pixels.float().div(127.5).sub(1))
        return z

    def embed_captions(self, captions: Tensor) -> Tensor:
        """Map (n, WORDS) to embeddings: the mean over words."""
        none = captions == 0
        none[:, 0] = False  # a caption without known words
        z = self.text(self.words(captions) + self.positions, src_key_padding_mask=none)
        some = (~none)[..., None]
        mean: Tensor = (z * some).sum(1) / some.sum(1)
        return mean


def train(train_split: Split, loss_of: LossOf, *, seed: int, epochs: int, batch: int) -> Towers:
    """Train towers: AdamW with warm-up and cosine decay, a random crop, a random mirror image and a random caption."""
    torch.manual_seed(seed)
    images, captions, words = train_split
    device, n = images.device.type, len(images)
    towers = Towers(words.shape[1]).to(device).train()
    steps = epochs * (n // batch)
    optimizer = torch.optim.AdamW(towers.parameters(), lr=1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.1)
    for _ in range(epochs):
        order = torch.randperm(n, device=device)
        for rows in order[: n // batch * batch].split(batch):
            y, x = torch.randint(SIDE - CROP + 1, (2,)).tolist()
            pixels = images[rows, :, y : y + CROP, x : x + CROP]
            pixels = torch.where(torch.rand(batch, 1, 1, 1, device=device) < 0.5, pixels.flip(3), pixels)
            texts = captions[rows, torch.randint(5, (batch,), device=device)]
            with torch.autocast(device, torch.bfloat16):
                z, t = towers.embed_images(pixels), towers.embed_captions(texts)
            optimizer.zero_grad()
            loss_of(z.float(), t.float(), words[rows]).backward()
            optimizer.step()
            schedule.step()
    return towers.eval()


@torch.no_grad()
def recalls(towers: Towers, split: Split) -> dict[str, float]:
    """Return recall@1, 5 and 10 of images for a caption and of captions for an image, in percent, and their mean."""
    edge = (SIDE - CROP) // 2
    pixels = split.images[:, :, edge : edge + CROP, edge : edge + CROP]
    with torch.autocast(split.images.device.type, torch.bfloat16):
        z = torch.cat([towers.embed_images(part) for part in pixels.split(250)])
        t = torch.cat([towers.embed_captions(part) for part in split.captions.flatten(0, 1).split(1000)])
    s = normalize(z.float(), dim=1) @ normalize(t.float(), dim=1).T  # (n, 5n)
    own = torch.arange(len(z), device=z.device)
    right = s.view(len(z), len(z), 5)[own, own]  # (n, 5)
    of_image = (s.view(len(z), len(z), 5) > right).sum(0)
    of_caption = (s > right.max(1, keepdim=True).values).sum(1)
    found = {f"image@{k}": 100 * float((of_image < k).float().mean()) for k in (1, 5, 10)}
    found |= {f"caption@{k}": 100 * float((of_caption < k).float().mean()) for k in (1, 5, 10)}
    return found | {"mean": sum(found.values()) / 6}


def soft(guide_temperature: float) -> LossOf:
    """Return CLIP's loss with soft targets from the words of the captions."""

    def loss(z: Tensor, t: Tensor, words: Tensor) -> Tensor:
        targets = guide_targets(cross(words, words, symmetric=True), temperature=guide_temperature)
        return soft_nt_xent(cross(z, t, symmetric=True), targets=targets, temperature=0.07)

    return loss


def main() -> None:
    """Choose the guide's temperature, and train each loss with each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data/flickr8k"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, help="images of each split, for a trial")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    splits = read(options.data, device, options.limit)
    write_record(
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu", torch=torch.__version__,
        images={name: len(split.images) for name, split in splits.items()}, epochs=options.epochs, batch=options.batch,
    )  # fmt: skip

    def measure(name: str, loss_of: LossOf, seed: int, split: str) -> float:
        start = time.perf_counter()
        towers = train(splits["train"], loss_of, seed=seed, epochs=options.epochs, batch=options.batch)
        found = {key: round(value, 2) for key, value in recalls(towers, splits[split]).items()}
        write_record(loss=name, seed=seed, split=split, **found, seconds=round(time.perf_counter() - start, 1))
        return found["mean"]

    chosen = max((0.1, 0.2, 0.3), key=lambda t: measure(f"soft targets, {t}", soft(t), 0, "val"))
    losses: dict[str, LossOf] = {
        "clip": lambda z, t, words: clip(z, t, temperature=0.07),
        "self-masked": lambda z, t, words: clip(z, t, temperature=0.07, negatives=self_guided(margin=0.1)),
        f"soft targets, {chosen}": soft(chosen),
    }
    for seed in range(options.seeds):
        for name, loss_of in losses.items():
            measure(name, loss_of, seed, "test")


if __name__ == "__main__":
    main()
