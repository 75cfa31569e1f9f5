"""Compare time and kept activations of an encoder that keeps them with those of one that recomputes them. Prints one JSON line.

    python benchmarks/recompute.py [--encoder vit-s16-moco] [--size 224] [--images 32] [--repeats 5]

The images are random. Seconds are the least of the repeats of a forward and a backward pass, alternating between both encoders.
Kept bytes are what autograd holds between the passes, without the parameters.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import time

import torch
from torch import Tensor, nn

from contrapose.lab.devices import own_device
from contrapose.lab.modalities.images.encoders import encoder
from contrapose.lab.networks.recompute import recompute_blocks


def seconds(network: nn.Module, images: Tensor) -> float:
    """Return how long a forward and a backward pass take."""
    start = time.perf_counter()
    features = network(images)
    features.sum().backward()
    features.sum().item()  # waits for the device
    return time.perf_counter() - start


def kept_bytes(network: nn.Module, images: Tensor) -> int:
    """Return the bytes that are kept for the backward pass, without the parameters."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        features = network(images)
    own = {p.untyped_storage().data_ptr() for p in network.parameters()}
    found = sum(size for place, size in kept.items() if place not in own)
    features.sum().backward()
    return found


def main() -> None:
    """Print the measurements of both encoders and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", default="vit-s16-moco")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    device = own_device()
    plain = encoder(options.encoder, options.size).to(device)
    again = copy.deepcopy(plain)
    recompute_blocks(again)
    images = torch.randn(options.images, 3, options.size, options.size, device=device)
    times = [(seconds(plain, images), seconds(again, images)) for _ in range(options.repeats + 1)][1:]
    keeps, recomputes = (min(column) for column in zip(*times, strict=True))
    held = [kept_bytes(network, images) for network in (plain, again)]
    found = {"seconds": keeps, "seconds_recompute": recomputes, "ratio": recomputes / keeps}
    found |= {"kept_mib": held[0] / 2**20, "kept_mib_recompute": held[1] / 2**20, "share_kept": held[1] / held[0]}
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    print(json.dumps(found | vars(options) | {"device": machine, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
