"""Folders of pretrained models and exported files with damaged settings are loaded, or refused with a ValueError."""

from __future__ import annotations

import json
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from clip_folders import save_clip, save_open_clip
from conftest import Promise
from PIL import Image
from safetensors.torch import load_file, save_file
from sentences import bert

from contrapose.lab.modalities import modality
from contrapose.lab.modalities.captions.pretrained import load_image_text_model
from contrapose.lab.modalities.images.encoders import tiny
from contrapose.lab.modalities.text.encoders import encoder
from contrapose.lab.modalities.text.pretrained import load_sentence_encoder
from contrapose.lab.training.exported import load_exported
from contrapose.lab.training.weights import export

SECONDS = 60.0  # of one case, which takes a tenth of a second; a busy machine is slow
ADDRESSES = (
    6 * 2**30
)  # bytes of address space that all cases together may reserve: hostile numbers must not fill the machine
CPU = torch.device("cpu")
TEXTS = ["q1 p2", "unknown", ""]
IMAGE = Image.new("RGB", (20, 14), "teal")
# What no setting expects: other types, and numbers that no model has.
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 7, 2**31, 10**10, 2**70, 0.5, -1e30, 1e308, float("nan"), "", "x", "\ud800", "../..", [], [[]], {}, [None], [1, 2],
    {"a": {}}, "(", "(?<=a", "[a-", "(a+)+$",
)  # fmt: skip
Damage = Callable[[Any, random.Random], Any]


def replace_anywhere(content: Any, rng: random.Random) -> Any:
    """Return a JSON value with one value, at a random depth, that is replaced or missing."""
    if not isinstance(content, dict | list) or not content or rng.random() < 0.1:
        return rng.choice(VALUES)
    key = rng.choice(list(content)) if isinstance(content, dict) else rng.randrange(len(content))
    changed: Any = content.copy()
    if rng.random() < 0.1:
        del changed[key]
    else:
        changed[key] = replace_anywhere(content[key], rng)
    return changed


def damage_file(path: Path, rng: random.Random) -> None:
    """Change one value in a JSON file; truncate it, or flip one of its bits."""
    raw = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.8:
        content = json.loads(raw)
        for _ in range(rng.randint(1, 2)):
            content = replace_anywhere(content, rng)
        path.write_text(json.dumps(content))
        return
    # Half of the changes are at the start, where the tensors' names, types and shapes are.
    at = rng.randrange(min(len(raw), 400)) if rng.random() < 0.5 else rng.randrange(len(raw))
    path.write_bytes(
        raw[:at] if rng.random() < 0.2 else raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :]
    )


def damage_folder(folder: Path, rng: random.Random) -> str:
    """Damage one of the files that are read; return its name and what it contains then."""
    files = sorted(file for file in folder.rglob("*") if file.suffix in (".json", ".safetensors"))
    # Weights and vocabularies are large, and a random change of one rarely reaches the code that reads it.
    chosen = rng.choice([*files, *(file for file in files if "config" in file.name)])
    damage_file(chosen, rng)
    return f"{chosen.relative_to(folder)}: {chosen.read_bytes()[:3000]!r}"


def save_sentence_encoder(folder: Path) -> None:
    bert().save(str(folder))


def save_exported(folder: Path) -> None:
    folder.mkdir()
    views = modality("images").views("digits", 2)
    export(
        tiny(),
        folder / "x.safetensors",
        {"modality": "images", "encoder": "tiny", **modality("images").describe_input(views)},
    )


def damage_metadata(folder: Path, rng: random.Random) -> str:
    """Replace or remove one of the strings that describe an exported encoder."""
    path = folder / "x.safetensors"
    metadata = {
        "modality": "images",
        "encoder": "tiny",
        **modality("images").describe_input(modality("images").views("digits", 2)),
    }
    others = [
        "timm:vit_giant_patch14_dinov2",
        "vit-b16",
        "resnet50",
        "timm:resnet18?width=1e9",
        "[1, 2]",
        "[1e999, 0, 1]",
        "[0, 0, 0]",
        "NaN",
    ]
    values = [*map(str, VALUES[:-6]), *others, "9" * 20, "9" * 5000, "[" * 5000]
    for _ in range(rng.randint(1, 2)):
        metadata[rng.choice([*metadata, "unknown"])] = rng.choice(values).encode(errors="replace").decode()
    save_file(load_file(path), path, metadata=metadata)
    return str(metadata)[:2000]


def read_sentence_encoder(folder: Path) -> torch.Tensor:
    return load_sentence_encoder(folder, device=CPU)(TEXTS)


def start_from_folder(folder: Path) -> torch.Tensor:
    """Build the encoder as `train` does when it starts from the folder."""
    ids = torch.tensor([[2, 4, 3], [2, 5, 3]])
    with torch.no_grad():
        output: torch.Tensor = encoder(f"hf:{folder}")(ids)
    return output


def read_image_text_model(folder: Path) -> torch.Tensor:
    model = load_image_text_model(folder, device=CPU)
    return torch.cat([model.embed_texts(["a dog", "cat"]), model.embed_images([IMAGE])])


def read_exported(folder: Path) -> torch.Tensor:
    embedder = load_exported(folder / "x.safetensors", device="cpu")
    features = embedder.embed([IMAGE])
    assert isinstance(features, torch.Tensor)
    return features


@dataclass(frozen=True)
class Kind:
    """How a valid folder is written, how it is damaged and how it is read."""

    save: Callable[[Path], object]
    read: Callable[[Path], torch.Tensor]
    damage: Callable[[Path, random.Random], str] = damage_folder
    package: str = "transformers"


KINDS = {
    "hf": Kind(save_sentence_encoder, read_sentence_encoder),
    "hf, trained": Kind(save_sentence_encoder, start_from_folder),
    "clip": Kind(save_clip, read_image_text_model),
    "siglip": Kind(lambda folder: save_clip(folder, "siglip"), read_image_text_model),
    "open_clip": Kind(save_open_clip, read_image_text_model, package="open_clip"),
    "exported": Kind(save_exported, read_exported),
    "exported metadata": Kind(save_exported, read_exported, damage_metadata),
}


@contextmanager
def limited_addresses() -> Iterator[None]:
    """Make allocations fail beyond some GiB, so that a case that is not refused cannot take the machine's memory."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESSES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def attempt(kind: Kind, folder: Path) -> str:
    """Read a damaged folder; return what is wrong with the way it is refused, or nothing."""
    try:
        with limited_addresses():
            kind.read(folder)
    except ValueError as error:
        if isinstance(error, UnicodeError) or "\n" in str(error) or "allocate" in str(error):
            return repr(error)
    except Exception as error:
        return repr(error)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"panic: {error!r}"  # of a library in Rust
    return ""


@pytest.mark.parametrize(
    "count",
    [
        4,
        pytest.param(40, marks=pytest.mark.thorough),
        pytest.param(600, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_folder_is_loaded_or_refused(name: str, count: int, tmp_path: Path, promise: Promise) -> None:
    kind, rng, findings = KINDS[name], random.Random(f"{name} {count}"), list[str]()
    if find_spec(kind.package) is None:
        pytest.skip(f"needs {kind.package}")
    kind.save(tmp_path / "saved")
    kind.read(tmp_path / "saved")
    for number in range(count):
        folder = Path(shutil.copytree(tmp_path / "saved", tmp_path / "folder"))
        damage = kind.damage(folder, rng)
        start = time.perf_counter()
        finding = attempt(kind, folder)
        promise.case(time.perf_counter() - start)
        if finding:
            findings.append(f"case {number}: {finding[:500]} of {damage}")
        shutil.rmtree(folder)
    assert not findings, f"{len(findings)} findings in {promise.cases} cases, such as {findings[0]}"
    assert promise.worst < SECONDS
