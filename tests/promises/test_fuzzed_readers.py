"""Files with random damage are read, or refused with a ValueError; nothing else is raised, and no reader hangs."""

from __future__ import annotations

import io
import json
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from conftest import Promise
from fuzzing import COUNTS, Reader, check_reader, mutate, replace_value
from PIL import Image

from contrapose.lab.cli.runs import _as_json, _cells
from contrapose.lab.modalities import modality
from contrapose.lab.modalities.captions.files import open_captions
from contrapose.lab.modalities.images.archive import read_archive
from contrapose.lab.modalities.images.encoders import tiny
from contrapose.lab.training import Run
from contrapose.lab.training.exported import load_exported
from contrapose.lab.training.records.files import last_evaluation, read_object
from contrapose.lab.training.records.past_run import PastRun
from contrapose.lab.training.weights import export

RECORD = {"epoch": 1, "step": 4, "seconds": 0.5, "loss": 3.25, "knn_top1": 51.5, "uniformity": -1.5}
LOSSES = (
    "nt_xent(temperature=cosine(0.07, 0.2), negatives=hardest(64))",
    "simclr(temperature=learned(0.2, low=0.1))",
    "cacr(t_pos=1.0, t_neg=2.0, repulsion='reversed')",
    "macl(temperature=0.2, alpha=0.5)",
)


def mutate_header(content: bytes, rng: random.Random) -> bytes:
    """Return a .safetensors file with a damaged header whose declared length is right, so that it is parsed."""
    (length,) = struct.unpack("<Q", content[:8])
    header = mutate(content[8 : 8 + length], rng)
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def run_file() -> bytes:
    return json.dumps(Run(loss=LOSSES[0], epochs=4, milestones=(1, 2)).describe()).encode()


def archive_file() -> bytes:
    file = io.BytesIO()
    images = np.arange(4 * 8 * 8 * 3, dtype=np.uint8).reshape(4, 8, 8, 3)
    labels = np.arange(4) % 2
    np.savez(file, train_images=images, train_labels=labels, test_images=images, test_labels=labels, classes=["a", "b"])
    return file.getvalue()


def exported_file(folder: Path) -> bytes:
    path = folder / "weights.safetensors"
    views = modality("images").views("digits", 2)
    export(tiny(), path, {"modality": "images", "encoder": "tiny", **modality("images").describe_input(views)})
    return path.read_bytes()


def captions_file(columns: str) -> bytes:
    return "".join(f"{name}.png{columns}a {name} on grass\n" for name in "abcd").encode()


def captions_lines() -> bytes:
    return "".join(json.dumps({"image": f"{name}.png", "caption": f"a {name}"}) + "\n" for name in "abcd").encode()


def write_images(folder: Path) -> None:
    (folder / "images").mkdir()
    for name in "abcd":
        Image.new("RGB", (8, 8)).save(folder / "images" / f"{name}.png")


def read_losses(path: Path) -> None:
    """Read the settings of a loss as the command line does, which gives text of any kind."""
    Run(loss=path.read_bytes().decode(errors="surrogateescape"))


def list_run(path: Path) -> None:
    """Read a file of a run as `contrapose runs` does, beside a run.json that may be the damaged file itself."""
    settings = path.parent / "run.json"
    if settings != path:
        settings.write_bytes(run_file())
    run = PastRun.read(path.parent)
    _cells(run)
    json.dumps(_as_json(run))


READERS = {
    "run.json": Reader("run.json", lambda folder: [run_file()], Run.load),
    "settings in run.json": Reader("run.json", lambda folder: [run_file()], Run.load, replace_value),
    "environment.json": Reader("environment.json", lambda folder: [b'{"threads": 2, "torch": "2.0"}'], read_object),
    "records.jsonl": Reader("records.jsonl", lambda folder: [2 * (json.dumps(RECORD).encode() + b"\n")],
                            lambda path: last_evaluation(path.parent, 10**9)),
    "values in records.jsonl": Reader("records.jsonl", lambda folder: [json.dumps(RECORD).encode()],
                                      lambda path: last_evaluation(path.parent, 10**9), replace_value),
    "run.json, listed": Reader("run.json", lambda folder: [run_file()], list_run),
    "settings in run.json, listed": Reader("run.json", lambda folder: [run_file()], list_run, replace_value),
    "records.jsonl, listed": Reader("records.jsonl", lambda folder: [2 * (json.dumps(RECORD).encode() + b"\n")], list_run),
    "values in records.jsonl, listed": Reader("records.jsonl", lambda folder: [json.dumps(RECORD).encode()], list_run,
                                              replace_value),
    "npz": Reader("mine.npz", lambda folder: [archive_file()], read_archive),
    "safetensors": Reader("x.safetensors", lambda folder: [exported_file(folder)], load_exported),
    "safetensors header": Reader("x.safetensors", lambda folder: [exported_file(folder)], load_exported, mutate_header),
    "loss": Reader("loss.txt", lambda folder: [text.encode() for text in LOSSES], read_losses),
    "captions.tsv": Reader("captions.tsv", lambda folder: [captions_file("\t"), captions_file("#0\t")], open_captions),
    "captions.csv": Reader("captions.csv", lambda folder: [b"image,caption\n" + captions_file(",")], open_captions),
    "captions.jsonl": Reader("captions.jsonl", lambda folder: [captions_lines()], open_captions),
}  # fmt: skip


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused(name: str, count: int, tmp_path: Path, promise: Promise) -> None:
    write_images(tmp_path)
    check_reader(name, READERS[name], count, tmp_path, promise)


def test_an_error_of_another_kind_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a reader that does not expect damage."""
    careless = Reader("run.json", lambda folder: [run_file()], lambda path: Run(**json.loads(path.read_bytes())))
    monkeypatch.setitem(READERS, "careless", careless)
    with pytest.raises(AssertionError, match="findings in 61 cases, such as TypeError"):
        test_a_damaged_file_is_read_or_refused("careless", 60, tmp_path, Promise())


def test_damage_reaches_the_parsers() -> None:
    """Most damaged files must not be refused for the same reason, or the cases would all be one."""
    rng, reasons = random.Random(0), set[str]()
    for _ in range(100):
        try:
            Run(loss=mutate(LOSSES[0].encode(), rng).decode(errors="surrogateescape"))
        except ValueError as error:
            reasons.add(str(error)[:20])
    assert len(reasons) >= 3
