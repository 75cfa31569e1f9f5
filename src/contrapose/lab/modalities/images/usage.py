"""Python code that uses an exported encoder without contrapose, for its model card."""

from __future__ import annotations

import json

from contrapose.lab.modalities.images.efficientnet_lite import NAME, TIMM_NAME
from contrapose.lab.modalities.images.inputs import InputDescription

_RESNET = """\
network = torchvision.models.{name}()
network.fc = torch.nn.Identity()"""
_CIFAR_STEM = """
network.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)  # the stem for small images
network.maxpool = torch.nn.Identity()"""
_VIT = """\
network = torchvision.models.vit_b_16(image_size={size})
network.heads = torch.nn.Identity()"""
_VIT_SMALL = """\
network = torchvision.models.VisionTransformer({size}, 16, num_layers=12, num_heads=12, hidden_dim=384, mlp_dim=1536)
network.heads = torch.nn.Identity()"""
_TINY = """\
from torch import nn
from torchvision.models.resnet import BasicBlock
def shortcut(width, out):
    return nn.Sequential(nn.Conv2d(width, out, 1, 2, bias=False), nn.BatchNorm2d(out))
network = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
    BasicBlock(16, 16), BasicBlock(16, 32, 2, shortcut(16, 32)), BasicBlock(32, 64, 2, shortcut(32, 64)),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(),
)"""
_SMALL = """\
from torch import nn
from torchvision.models.resnet import BasicBlock
def pooled_block(width, out):
    shortcut = nn.Sequential(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))
    return nn.AvgPool2d(2, ceil_mode=True), BasicBlock(width, out, 1, shortcut)
network = nn.Sequential(
    nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), BasicBlock(32, 32),
    *pooled_block(32, 64), *pooled_block(64, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
)"""
_ALEXNET = """\
from torch import nn
def stage(width, out, *pool):
    return nn.Conv2d(width, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(), *pool
def dense(width):
    return nn.Linear(width, 4096, bias=False), nn.BatchNorm1d(4096), nn.ReLU()
pool = nn.MaxPool2d(3, 2)
network = nn.Sequential(
    *stage(3, 96, pool), *stage(96, 192, pool), *stage(192, 384), *stage(384, 384), *stage(384, 192, pool),
    nn.Flatten(), *dense({inputs}), *dense(4096),
)"""
_NETWORKS = {
    "tiny": _TINY,
    "small": _SMALL,
    "resnet18": _RESNET.format(name="resnet18"),
    "resnet50": _RESNET.format(name="resnet50"),
    "resnet50-zero": _RESNET.format(name="resnet50"),
    "resnet18-cifar": _RESNET.format(name="resnet18") + _CIFAR_STEM,
    "resnet50-cifar": _RESNET.format(name="resnet50") + _CIFAR_STEM,
    "alexnet": _ALEXNET.format(inputs=192 * 3 * 3),
    "alexnet-64": _ALEXNET.format(inputs=192 * 7 * 7),
    "vit-b16": _VIT,
    "vit-b16-moco": _VIT,
    "vit-s16-moco": _VIT_SMALL,
}
_IMAGES = """\
prepare = transforms.Compose([
    transforms.Resize({resize}), transforms.CenterCrop({size}), transforms.ToTensor(),
    transforms.Normalize({mean}, {std}),
])
paths = ["image.jpg"]  # with 8 bits per channel: convert("RGB") turns deeper images white
images = torch.stack([prepare(ImageOps.exif_transpose(Image.open(path)).convert("RGB")) for path in paths])"""
_SAFETENSORS = """\
import torch
{library}
from PIL import Image, ImageOps
from safetensors.torch import load_file
from torchvision import transforms

{network}
network.load_state_dict(load_file({file}))
{images}
with torch.inference_mode():
    features = network.eval()(images)  # (N, {width})
"""
_ONNX = """\
import onnxruntime
import torch
from PIL import Image, ImageOps
from torchvision import transforms

session = onnxruntime.InferenceSession({file})
{images}
(features,) = session.run(["features"], {{"images": images.numpy()}})  # (N, {width})
"""
_DETECTRON2 = """\
from detectron2 import model_zoo

config = model_zoo.get_config("PascalVOC-Detection/faster_rcnn_R_50_C4.yaml")
config.MODEL.WEIGHTS = {file}
config.MODEL.PIXEL_MEAN = {mean}
config.MODEL.PIXEL_STD = {std}
config.INPUT.FORMAT = "RGB"
config.MODEL.RESNETS.STRIDE_IN_1X1 = False  # as in torchvision
config.MODEL.RESNETS.NORM = "SyncBN"
config.MODEL.BACKBONE.FREEZE_AT = 0
"""
_DETECTRON2_RESNET18 = """\
config.MODEL.RESNETS.DEPTH = 18
config.MODEL.RESNETS.RES2_OUT_CHANNELS = 64
"""


def usage(encoder: str, width: int, inputs: InputDescription, file: str) -> str:
    """Return a script that computes the features of files with torchvision or timm, or with onnxruntime for an .onnx file.

    For a .pkl file, the script is a configuration for a detectron2 detector.
    """
    quoted = json.dumps(file)
    if file.endswith(".pkl"):
        mean, std = ([round(255 * value, 3) for value in values] for values in (inputs.mean, inputs.std))
        depth = _DETECTRON2_RESNET18 if encoder == "resnet18" else ""
        return _DETECTRON2.format(file=quoted, mean=mean, std=std) + depth
    images = _IMAGES.format(resize=inputs.resize, size=inputs.size, mean=inputs.mean, std=inputs.std)
    if file.endswith(".onnx"):
        return _ONNX.format(file=quoted, images=images, width=width)
    model = TIMM_NAME if encoder == NAME else encoder.removeprefix("timm:")
    if encoder.startswith("timm:") or encoder == NAME:
        library, network = "import timm", f"network = timm.create_model({model!r}, num_classes=0)"
    else:
        library, network = "import torchvision", _NETWORKS[encoder].replace("{size}", str(inputs.size))
    return _SAFETENSORS.format(library=library, network=network, file=quoted, images=images, width=width)
