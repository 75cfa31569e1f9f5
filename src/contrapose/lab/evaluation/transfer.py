"""Transfer of an encoder to other labelled data: the papers' data sets by name, and the protocols that score encoders.

>>> TRANSFER_SETS["voc2007"].metric
'map_11'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from contrapose.lab.evaluation.finetune import FINE_TUNING, FineTune
from contrapose.lab.evaluation.shots import FewShot
from contrapose.lab.modalities import Source, ViewMaker
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.workers import TIMEOUT
from contrapose.randomness import permutation
from contrapose.validate import check_known


@dataclass(frozen=True)
class TransferSet:
    """A data set to transfer to, with its metric in ELEVATER and its class weights in DySTreSS."""

    title: str  # name in the papers' tables
    metric: str = "accuracy"  # metric of few-shot classification; a name in METRICS
    pos_weight: float | None = None  # weight of class 1, the second folder; None: not a binary task
    class_weights: Mapping[str, float] = field(default_factory=dict)  # keyed by class name; empty: equal weights
    trial: bool = False  # whether this is only a trial of the code: one epoch, one sample of shots, two learning rates


TRANSFER_SETS: Mapping[str, TransferSet] = {
    # DySTreSS, Table 11. The weights are the ratios of the numbers of images.
    "mura": TransferSet("MURA", pos_weight=0.7097),
    "chaoyang": TransferSet(
        "Chaoyang", class_weights={"normal": 1.264, "serrated": 1.667, "adenocarcinoma": 1.0, "adenoma": 2.114}
    ),
    "isic2016": TransferSet("ISIC2016", pos_weight=4.24),
    "mhist": TransferSet("MHIST", pos_weight=2.45),
    # ELEVATER's 20 data sets, which CACR's Table 6 uses. Three of the 20 are in DySTreSS's Table 11 too.
    "caltech101": TransferSet("Caltech101", "mean_per_class"),
    "cifar10": TransferSet("CIFAR-10"),
    "cifar100": TransferSet("CIFAR-100"),
    "country211": TransferSet("Country211"),
    "dtd": TransferSet("DescriTextures"),
    "eurosat": TransferSet("EuroSAT"),
    "fer2013": TransferSet("FER2013"),
    "fgvc-aircraft": TransferSet("FGVC Aircraft", "mean_per_class"),
    "food101": TransferSet("Food101"),
    "gtsrb": TransferSet("GTSRB"),
    "hateful-memes": TransferSet("HatefulMemes", "roc_auc"),
    "kitti-distance": TransferSet("KITTI"),
    "mnist": TransferSet("MNIST"),
    "flowers102": TransferSet("Oxford Flowers", "mean_per_class"),
    "oxford-pets": TransferSet("Oxford Pets", "mean_per_class"),
    "pcam": TransferSet("PatchCamelyon"),
    "rendered-sst2": TransferSet("Rendered SST2"),
    "resisc45": TransferSet("RESISC45"),
    "stanford-cars": TransferSet("Stanford Cars"),
    "voc2007": TransferSet("VOC2007", "map_11"),
    # Replaces all other data sets at the smoke scale.
    "digits": TransferSet("digits", trial=True),
}
_TRIAL_IMAGES = 200
# Descriptions of the protocols.
PROTOCOLS: Mapping[str, str] = {
    "dystress": f"accuracy after fine-tuning on other data: {FINE_TUNING['dystress-multiclass'].describe()}, last epoch; "
    f"lr {FINE_TUNING['dystress-binary'].lr:g} and a binary cross-entropy for two classes; weights of the classes on medical "
    "images",
    "elevater-linear": "score on other data of a linear probe on 5 images of each class, mean of 3 samples",
    "elevater-fine-tune": "score on other data after fine-tuning on 5 images of each class, mean of 3 samples",
}


def transfer_score(
    encoder: Encoder,
    train: Source,
    test: Source,
    *,
    to: TransferSet,
    protocol: str,
    views: ViewMaker,
    device: torch.device | str = "cpu",
    seed: int = 0,
    workers: int = 0,
    timeout: float = TIMEOUT,
) -> float:
    """Return the score of an encoder on other data, in per cent; `encoder` is not changed.

    encoder             network to transfer
    train, test         the labelled data sets to learn from and to score on
    to                  description of the data set, such as TRANSFER_SETS["flowers102"]
    protocol            a name in `PROTOCOLS`
    views               how inputs are made
    device              device to compute on
    seed                random seed for fine-tuning on all images; few-shot protocols have their own seeds
    workers, timeout    processes that decode images on disk, and seconds to wait for them
    """
    check_known("protocol", protocol, PROTOCOLS)
    train, test = (_sample(source, _TRIAL_IMAGES) if to.trial else source for source in (train, test))
    if protocol == "dystress":
        scores = dystress_recipe(to, train.classes)(
            encoder, train, test, views=views, device=device, seed=seed, workers=workers, timeout=timeout
        )
        return scores["top1"]
    few_shot = FewShot()
    if to.trial:
        few_shot = FewShot(
            samples=1, training=replace(few_shot.training, epochs=1), lrs=(0.01, 0.1), weight_decays=(1e-4,)
        )
    return few_shot(
        encoder,
        train,
        test,
        views=views,
        fine_tune=protocol == "elevater-fine-tune",
        metric=to.metric,
        device=device,
        workers=workers,
        timeout=timeout,
    ).mean


def dystress_recipe(to: TransferSet, classes: Sequence[str] = ()) -> FineTune:
    """Return the fine-tuning of DySTreSS's Table 11 for a data set, with class weights in the order of `classes`."""
    if to.pos_weight is not None:
        return replace(FINE_TUNING["dystress-binary"], pos_weight=to.pos_weight)
    recipe = FINE_TUNING["dystress-multiclass"]
    if to.trial:
        return replace(recipe, epochs=1)
    if not to.class_weights:
        return recipe
    names = [name.lower() for name in classes] or list(to.class_weights)
    if set(names) != set(to.class_weights):
        expected = ", ".join(to.class_weights)
        raise ValueError(f"data: {to.title} has weights for the class folders {expected}, got {', '.join(classes)}")
    return replace(recipe, class_weights=tuple(to.class_weights[name] for name in names))


def _sample(source: Source, count: int) -> Source:
    return source.subset(permutation(len(source), 0)[:count])
