"""`contrapose doctor`: what was found in a run; or what this installation has, and which fast paths are on and why."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from contrapose.lab.devices import DeviceOption

_PACKAGES = (
    "torch", "triton", "torchvision", "transformers", "sentence-transformers", "pytorch-lightning", "open-clip-torch",
    "safetensors", "pyarrow",
)  # fmt: skip
_ROWS, _WIDTHS = 1024, (128, 768)  # of the batches with which engines are chosen
_LITTLE_SPACE = 5  # GiB; checkpoints and packed data need more
_LITTLE_SHARED = 1  # GiB of shared memory, through which workers pass batches


@dataclass(frozen=True)
class Doctor(DeviceOption):
    """Show what was found in a run; without a run, check this installation: versions, GPU, fast paths, decoders, free disk.

    `train` looks at a batch after some epochs, and prints what it finds. `contrapose doctor runs/NAME` prints it again, and
    writes a page with curves and the samples that a finding names. For a training loop of your own, see docs/doctor.md:
    contrapose.Doctor.
    """

    run: Positional[Path | None] = None
    """Directory of a run; without it, the installation is checked."""
    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Page to write; default: doctor.html in the run's directory."""
    data_root: Path = Path("data")
    """Directory of downloaded data sets, for pictures of samples."""

    def __call__(self) -> None:
        """Print the findings and write the page; or print a line for each part of the installation."""
        if self.run is not None:
            from contrapose.lab.cli.run_findings import show_findings

            show_findings(self.run, self.out, self.data_root)
            return
        for name, text in (*_versions(), *_device(), *_engines(), *_machine()):
            print(f"{name:14} {text}")


def _versions() -> Iterator[tuple[str, str]]:
    from contrapose import __version__
    from contrapose.lab.cli.overview import missing_extras

    found = {name: _version(name) for name in _PACKAGES}
    yield "contrapose", f"{__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield "packages", ", ".join(f"{name} {number}" for name, number in found.items() if number)
    yield "extras", missing_extras()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _device() -> Iterator[tuple[str, str]]:
    import torch

    from contrapose.lab.devices import own_device

    device = own_device()
    if device.type != "cuda":
        built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built without CUDA"
        yield "device", f"{device.type}; no GPU is used: {built}, and it sees {torch.cuda.device_count()} GPUs"
        yield "CUDA graphs", "off: there is no GPU"
        return
    properties = torch.cuda.get_device_properties(device)
    capability = f"{properties.major}.{properties.minor}"
    memory = properties.total_memory / 2**30
    yield "device", f"{properties.name}, {memory:.0f} GiB, capability {capability}, CUDA {torch.version.cuda}"
    triton = _version("triton")
    yield (
        "CUDA graphs",
        f"on for runs that can be captured (Triton {triton})" if triton else "off: Triton is not installed",
    )


def _engines() -> Iterator[tuple[str, str]]:
    """Yield the engine of a few losses, as they are chosen for a real batch."""
    import torch

    from contrapose import chosen_engines, cosine, nt_xent, two_views
    from contrapose.lab.devices import own_device

    device = own_device()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for width in _WIDTHS:
        for name, temperature in (("τ = 0.1", 0.1), ("cosine τ", cosine(0.07, 0.2))):
            z1, z2 = torch.randn(2, _ROWS, width, device=device, dtype=dtype)
            with torch.no_grad(), chosen_engines() as chosen:
                nt_xent(two_views(z1, z2), temperature=temperature)
            yield "loss", f"{2 * _ROWS:,} rows of width {width}, {name}: {chosen[-1]}"


def _machine() -> Iterator[tuple[str, str]]:
    import torch

    from contrapose.lab.training.threads import available_cores

    cores, threads = available_cores(), torch.get_num_threads()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    reason = f" (OMP_NUM_THREADS={limit}; a run sets its own number)" if limit else ""
    yield "threads", f"{threads} for {cores} cores{reason}"
    shared = Path("/dev/shm")
    if shared.is_dir():
        size = shutil.disk_usage(shared).free / 2**30
        advice = (
            "; too little for many workers: use docker run --shm-size=8g, or --workers 0"
            if size < _LITTLE_SHARED
            else ""
        )
        yield "workers", f"up to {cores}; {size:.1f} GiB of shared memory are free{advice}"
    else:
        yield "workers", f"up to {cores}"
    yield "decoders", _decoders()
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    yield "disk", f"{free:,.1f} GiB free in {Path.cwd()}{'; little for checkpoints' if free < _LITTLE_SPACE else ''}"


def _decoders() -> str:
    """Return what decodes images."""
    pillow, torchvision = _version("pillow"), _version("torchvision")
    if not pillow:
        return "none: Pillow is not installed"
    if not torchvision:
        return f"Pillow {pillow}; JPEG files are read faster with torchvision"
    return f"torchvision {torchvision} for JPEG, Pillow {pillow} for other files"
