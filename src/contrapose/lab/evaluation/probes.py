"""The papers' linear probes by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from contrapose.lab.evaluation.linear import Probe

# Each paper's linear evaluation on features of images without augmentation, with its batch size and learning rate.
_PLAIN: Mapping[str, Probe] = {
    # DySTreSS on ImageNet: lightly's recipe, lr = 0.1 · batch / 256.
    "dystress-imagenet": Probe(lr=0.1, epochs=90),
    # Wang & Liu: lr 30, as in the paper and in run.py, the script of their README
    "wang-liu": Probe(lr=30.0, epochs=100, milestones=(40, 60, 80), gamma=0.2),
    # CACR on small images. Its crops are as large as in training: at least 0.2 of the area on CIFAR, 0.08 on STL-10.
    "cacr": Probe("adam", lr=1e-3, epochs=100, batch=128, milestones=(60, 80), gamma=0.2, smallest_crop=None),
    # CACR on ImageNet with MoCo v2.
    "cacr-imagenet": Probe(lr=30.0, epochs=100, milestones=(60, 80)),
    # MoCo v3: lr = 0.1 · batch / 256 with a ResNet, 3 · batch / 256 with a ViT.
    "moco-v3": Probe(lr=0.4, epochs=90, batch=1024),
    "moco-v3-vit": Probe(lr=12.0, epochs=90, batch=1024),
    # Lee on ImageNet, which follows SimSiam: lr = 0.1 · batch / 256.
    "balanced-imagenet": Probe("lars", lr=1.6, epochs=90, batch=4096),
    # Lee on CIFAR.
    "balanced-cifar": Probe(lr=30.0, epochs=90),
}
# NAME-AUGMENTATION is the same probe on augmented images, as the papers train it. Wang & Liu's augmentation depends on the data:
# flips on CIFAR, colours on SVHN, crops with jitter on ImageNet-100 (authors' code, --aug CJ by default). Lee does not name one;
# SimSiam's code crops.
_AUGMENTED = {
    f"{name}-{augment}": replace(probe, augment=augment)
    for name, probe in _PLAIN.items()
    for augment in (("crops", "flips", "colours", "jittered") if name == "wang-liu" else ("crops",))
}
PROBES: Mapping[str, Probe] = {**_PLAIN, **_AUGMENTED}
