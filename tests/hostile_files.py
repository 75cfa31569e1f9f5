"""Files of a few kilobytes that describe gigabytes, and how much memory reading each of them takes.

`python tests/hostile_files.py ADDRESSES` prints a line of JSON for each case: its name, the peak in MiB above what the imports
take, and the outcome. The process imports everything once and forks for each case. Beyond ADDRESSES bytes, allocations fail.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import struct
import sys
import tempfile
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from clip_folders import save_clip, save_open_clip
from PIL import Image
from pyarrow import parquet
from sentences import bert

from contrapose.lab.modalities import modality
from contrapose.lab.modalities.captions.pretrained import load_image_text_model
from contrapose.lab.modalities.images.decoding import attempt, decode, decode_square, readable
from contrapose.lab.modalities.images.encoders import tiny
from contrapose.lab.modalities.text.files import open_texts
from contrapose.lab.modalities.text.pretrained import load_sentence_encoder
from contrapose.lab.training.exported import load_exported
from contrapose.lab.training.weights import export

CPU = torch.device("cpu")
MEGABYTE = b"a" * 10**6


@dataclass(frozen=True)
class Hostile:
    """How a file or folder is written, and how it is read."""

    write: Callable[[Path], object]
    read: Callable[[Path], object]


def edit(path: Path, values: dict[str, Any]) -> None:
    """Replace values in a JSON file; a key such as a/b is a value inside an object."""
    content = json.loads(path.read_text())
    for key, value in values.items():
        *parents, last = key.split("/")
        inner = content
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    path.write_text(json.dumps(content))


def write_table(path: Path, rows: int, **options: Any) -> None:
    texts = pa.table({"text": ["a", *[MEGABYTE.decode()] * rows]})
    parquet.write_table(texts, path, compression="zstd", **options)


def write_archive(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(1500):
            file.write(MEGABYTE)


def read_texts(path: Path) -> None:
    """Read the first 200 rows."""
    rows = open_texts(path, skip_broken=True).read()
    for _ in range(200):
        next(rows, None)


def table(rows: int = 4096, **options: Any) -> Hostile:
    return Hostile(
        lambda folder: write_table(folder / "a.parquet", rows, **options),
        lambda folder: read_texts(folder / "a.parquet"),
    )


def sentence_encoder(**values: Any) -> Hostile:
    def write(folder: Path) -> None:
        bert().save(str(folder))
        edit(folder / "config.json", values)

    return Hostile(write, lambda folder: load_sentence_encoder(folder, device=CPU)(["q1"]))


def image_text(file: str, values: dict[str, Any], image: tuple[int, int] = (16, 16)) -> Hostile:
    save = save_open_clip if file.startswith("open_clip") else save_clip

    def write(folder: Path) -> None:
        save(folder / "model")
        edit(folder / "model" / file, values)

    def read(folder: Path) -> None:
        model = load_image_text_model(folder / "model", device=CPU)
        model.embed_texts(["a dog"])
        model.embed_images([Image.new("RGB", image)] * 2)

    return Hostile(write, read)


def open_clip(**values: Any) -> Hostile:
    return image_text("open_clip_config.json", {key.replace("__", "/"): value for key, value in values.items()})


def write_vocabulary(folder: Path) -> None:
    write_archive(folder / "bpe.gz")
    tokenizer = {"bpe_path": str(folder / "bpe.gz")}
    open_clip(model_cfg__text_cfg__tokenizer_kwargs=tokenizer).write(folder)


def exported(**metadata: str) -> Hostile:
    def write(folder: Path) -> None:
        inputs = modality("images").describe_input(modality("images").views("digits", 2))
        export(tiny(), folder / "x.safetensors", {"modality": "images", "encoder": "tiny", **inputs, **metadata})

    return Hostile(
        write, lambda folder: load_exported(folder / "x.safetensors", device="cpu").embed([Image.new("RGB", (40, 30))])
    )


def write_png_header(path: Path, width: int, height: int) -> None:
    """Write a PNG that claims a size and has no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IEND", b""))


def write_tiff_header(path: Path, side: int) -> None:
    """Write a TIFF whose one strip claims more pixels than it has."""
    Image.new("RGB", (64, 64)).save(path, compression="tiff_adobe_deflate")
    content = bytearray(path.read_bytes())
    (at,) = struct.unpack("<I", content[4:8])
    (count,) = struct.unpack("<H", content[at : at + 2])
    for start in range(at + 2, at + 2 + 12 * count, 12):
        (tag,) = struct.unpack("<H", content[start : start + 2])
        if tag in (256, 257, 278):  # width, height, rows in a strip
            content[start + 2 : start + 12] = struct.pack("<HII", 4, 1, side)
    path.write_bytes(content)


def image(name: str, write: Callable[[Path], object], square: int = 0) -> Hostile:
    read = partial(decode_square, size=square, resized=square) if square else decode
    return Hostile(lambda folder: write(folder / name), lambda folder: readable(0, attempt(read, folder / name)))


def black(size: tuple[int, int], mode: str = "RGB", **options: Any) -> Callable[[Path], object]:
    return lambda path: Image.new(mode, size).save(path, **options)


CASES = {
    "parquet: a dictionary's text in every row": table(),
    "parquet: a prefix in every row": table(1000, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY"),
    "parquet: a page of 1.5 GB": table(1500, use_dictionary=False, data_page_size=2**31 - 1),
    "txt.gz: a line of 1.5 GB": Hostile(
        lambda folder: write_archive(folder / "a.txt.gz"), lambda folder: read_texts(folder / "a.txt.gz")
    ),
    "hf: vocab_size": sentence_encoder(vocab_size=10**10),
    "hf: vocab_size of 3 GB": sentence_encoder(vocab_size=2**20, hidden_size=768),
    "hf: max_position_embeddings": sentence_encoder(max_position_embeddings=10**9),
    "hf: num_hidden_layers": sentence_encoder(num_hidden_layers=10**9),
    "hf: 50,000 layers": sentence_encoder(num_hidden_layers=50_000),
    "hf: num_labels": sentence_encoder(num_labels=10**8),
    "hf: intermediate_size": sentence_encoder(intermediate_size=10**8),
    "clip: width of the text encoder": image_text("config.json", {"text_config/hidden_size": 10**6}),
    "clip: image_size": image_text("config.json", {"vision_config/image_size": 10**6}),
    "clip: size of the processor": image_text("preprocessor_config.json", {"size": {"shortest_edge": 20_000}}),
    "clip: an elongated image": image_text("config.json", {}, (1, 10_000_000)),
    "open_clip: width": open_clip(model_cfg__text_cfg__width=10**6),
    "open_clip: vocab_size": open_clip(model_cfg__text_cfg__vocab_size=10**9),
    "open_clip: context_length": open_clip(model_cfg__text_cfg__context_length=30_000),
    "open_clip: a large model of timm": open_clip(model_cfg__vision_cfg__timm_model_name="vit_giant_patch14_clip_224"),
    "open_clip: size of the images": open_clip(preprocess_cfg__size=20_000),
    "open_clip: a vocabulary of 1.5 GB": Hostile(write_vocabulary, open_clip().read),
    "exported: vit_giant": exported(encoder="timm:vit_giant_patch14_clip_224", size="224", resize="256"),
    "exported: size": exported(size="20000", resize="20000"),
    "exported: resize": exported(resize="20000"),
    "png: 100,000 × 100,000": image("a.png", lambda path: write_png_header(path, 100_000, 100_000)),
    "png: 1 × 4,000,000 as a square": image("a.png", black((1, 4_000_000)), 224),
    "tiff: a header of 81 megapixels": image("a.tiff", lambda path: write_tiff_header(path, 9000)),
    "tiff: 169 megapixels": image("a.tiff", black((13_000, 13_000), compression="tiff_adobe_deflate")),
    "tiff: 81 megapixels": image("a.tiff", black((9000, 9000), compression="tiff_adobe_deflate")),
    "webp: 121 megapixels": image("a.webp", black((11_000, 11_000), lossless=True, method=0)),
    "webp: 81 megapixels": image("a.webp", black((9000, 9000), lossless=True, method=0)),
}


def in_a_fork(work: Callable[[], Any]) -> Any:
    """Return what a function returns in a child process, or its status if it does not return."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.write(writing, json.dumps(work()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        content = file.read()
    status = os.waitpid(child, 0)[1]
    return json.loads(content) if content else [float("inf"), f"ended with status {status}"]


def measure(read: Callable[[Path], object], folder: Path, addresses: int) -> tuple[float, str]:
    """Return the peak memory of a reader in MiB above that of this process, and whether the file was read or refused."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + addresses, resource.RLIM_INFINITY))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read(folder)
        outcome = "read"
    except ValueError as error:
        outcome = f"refused: {error}"
    except BaseException as error:
        outcome = repr(error)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, outcome[:300]


def write(case: Hostile, folder: Path) -> bool:
    case.write(folder)
    return True


def warm_up() -> None:
    """Import what readers import late."""
    for case in (
        sentence_encoder(),
        image_text("config.json", {}),
        open_clip(),
        exported(),
        exported(encoder="alexnet"),
        table(1),
    ):
        with tempfile.TemporaryDirectory() as name:
            case.write(Path(name))
            try:
                case.read(Path(name))
            except ValueError:
                continue


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    chosen = [name for name in CASES if not sys.argv[2:] or name in sys.argv[2:]]
    if chosen == list(CASES):  # a few cases do not pay for it
        warm_up()
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            # Written in a fork of its own, because writing takes memory too.
            in_a_fork(partial(write, CASES[name], Path(folder)))
            print(
                json.dumps([name, *in_a_fork(partial(measure, CASES[name].read, Path(folder), int(sys.argv[1])))]),
                flush=True,
            )


if __name__ == "__main__":
    main()
