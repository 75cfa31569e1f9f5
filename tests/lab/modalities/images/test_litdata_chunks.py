"""Images in LitData's chunks: written and read by the package itself, read in place by us, and refused if they are damaged."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from streaming import write_folder

from contrapose.extras import MissingPackage
from contrapose.lab.cached_files import cache_folder
from contrapose.lab.cli import main
from contrapose.lab.modalities import recognise
from contrapose.lab.modalities.images.file_list import MemberList
from contrapose.lab.modalities.images.image_shards import write_shards
from contrapose.lab.modalities.images.load import load
from contrapose.lab.modalities.images.previews import image_collection
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.modality import DataSettings
from contrapose.lab.modalities.stored_files import ShardMember

litdata = pytest.importorskip("litdata")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 20 cats and 20 dogs, for training and for test."""
    return write_folder(tmp_path_factory.mktemp("litdata") / "mine")


@pytest.fixture
def chunks(folder: Path, tmp_path: Path) -> Path:
    """Return the folder in chunks of at most 15 images."""
    assert write_shards(folder, tmp_path / "chunks", images_per_file=15, to="litdata") == 6
    return tmp_path / "chunks"


def write(folder: Path, samples: Sequence[Any]) -> Path:
    """Write samples as `litdata.optimize` does."""
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_size=10)
    for number, sample in enumerate(samples):
        writer.add_item(number, sample)
    writer.done()
    writer.merge()
    return folder


def contents(source: Any) -> list[tuple[bytes, int]]:
    """Return the bytes and the label of each image."""
    assert isinstance(source, Files)
    assert source.labels is not None
    files = [path.read_bytes() if isinstance(path, Path) else path.read() for path in source.paths]
    return list(zip(files, source.labels.tolist(), strict=True))


def test_litdata_reads_the_files_and_classes_of_the_folder(folder: Path, chunks: Path) -> None:
    split = load(str(folder))
    for part, source in (("train", split.train), ("test", split.test)):
        samples = [(bytes(content), label) for content, label in litdata.StreamingDataset(str(chunks / part))]
        assert len(samples) == 40
        assert sorted(samples) == sorted(contents(source))
    assert (chunks / "classes.txt").read_text() == "cat\ndog\n"


def test_images_labels_and_order_are_those_of_tars(folder: Path, chunks: Path, tmp_path: Path) -> None:
    write_shards(folder, tmp_path / "tars", images_per_file=15)
    ours, tars = load(str(chunks)), load(str(tmp_path / "tars"))
    assert recognise(str(chunks)) == "images"
    assert ours.train.classes == ("cat", "dog")
    assert contents(ours.train) == contents(tars.train)
    assert contents(ours.test) == contents(tars.test)
    assert isinstance(ours.train, Files)
    assert isinstance(tars.train, Files)
    assert all(torch.equal(ours.train.read(i), tars.train.read(i)) for i in range(40))
    assert isinstance(ours.train.paths, MemberList)
    assert len(ours.train.paths.shard_numbers.unique()) == 3


def test_one_split_is_one_folder_with_the_same_images_held_out_as_from_tars(folder: Path, tmp_path: Path) -> None:
    for to in ("litdata", "webdataset"):
        write_shards(folder / "train", tmp_path / to, images_per_file=15, to=to)
    ours, tars = load(str(tmp_path / "litdata")), load(str(tmp_path / "webdataset"))
    assert (tmp_path / "litdata" / "index.json").is_file()
    assert contents(ours.test) == contents(tars.test)
    assert contents(ours.train) == contents(tars.train)
    assert [note.replace("litdata", "") for note in ours.notes] == [n.replace("webdataset", "") for n in tars.notes]


def test_an_index_on_disk_is_used_until_a_chunk_or_the_layout_changes(
    chunks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load(str(chunks)).train
    assert list((cache_folder() / "shards").glob("chunks-*"))
    with monkeypatch.context() as patched:
        patched.setattr("contrapose.lab.modalities.images.image_shards.list_chunk", None)  # no chunk is listed
        again = load(str(chunks)).train
        assert list(again.paths) == list(before.paths)
        edit(chunks / "train" / "index.json", {"data_spec": spec("image", "width")})
        with pytest.raises(TypeError):
            load(str(chunks))
    edit(chunks / "train" / "index.json", {"data_spec": spec("image", "label")})
    write(chunks / "other", [next(iter(before.paths)).read()] * 3)  # type: ignore[union-attr]
    (chunks / "other" / "chunk-0-0.bin").replace(chunks / "train" / "chunk-0-1.bin")
    with pytest.raises(ValueError, match=r"chunk-0-1\.bin is cut off or damaged"):  # its samples have one leaf, not two
        load(str(chunks))


def test_samples_as_other_programs_write_them(folder: Path, tmp_path: Path) -> None:
    files = sorted((folder / "train").rglob("*.png"))
    layouts: list[tuple[Callable[[Path, int], Any], bool]] = [
        (lambda file, i: {"label": i % 2, "image": litdata.Image(path=str(file)), "width": 60}, True),
        (lambda file, i: {"width": 60, "photo": litdata.File(path=str(file)), "x": litdata.File(bytes=b"")}, False),
        (lambda file, i: [i % 2, file.read_bytes()], True),
        (lambda file, i: file.read_bytes(), False),
        (lambda file, i: (file.read_bytes(), -1), False),
    ]
    for number, (sample, labels) in enumerate(layouts):
        train = load(str(write(tmp_path / str(number), [sample(f, i) for i, f in enumerate(files)])), hold_out=0).train
        assert [path.read() for path in train.paths if isinstance(path, ShardMember)] == [f.read_bytes() for f in files]
        assert (train.labels is not None) == labels
        assert train.labels is None or train.labels.tolist() == [i % 2 for i in range(40)]


@pytest.mark.parametrize(
    ("sample", "problem"),
    [
        ((b"x", b"y", 0), "a sample is bytes, bytes, int; expected one image as a file"),
        ((b"x", 0, 1), "a sample is bytes, int, int; expected .* at most one class as an int"),
        ({"image": litdata.File(bytes=b"x"), "class": "cat"}, r"image \(file\), class \(str\); expected .* class as an int"),
        ({"image": b"x", "label": 0}, r"chunk-0-0\.bin has dictionaries of bytes, .* Arrow"),
        ((b"x", -2), r"class of .*chunk-0-0\.bin/0 is -2, expected a whole number from 0 to 999,999"),
        ((b"x", 2**62), "is 4611686018427387904, expected a whole number from 0 to 999,999"),
        ((3, 4), "a sample is int, int; expected one image"),
    ],
)  # fmt: skip
def test_samples_that_cannot_be_used(sample: Any, problem: str, tmp_path: Path) -> None:
    write(tmp_path / "chunks", [sample] * 3)
    with pytest.raises(ValueError, match=problem):
        load(str(tmp_path / "chunks"))


def test_raw_pixels_are_refused(folder: Path, tmp_path: Path) -> None:
    from PIL import Image

    pixels = Image.open(next(folder.rglob("*.png"))).convert("RGB")
    with pytest.raises(ValueError, match=r"a sample is pil, int; expected one image as a file .*; pil is raw pixels"):
        load(str(write(tmp_path / "chunks", [(pixels, 0)] * 3)))


def spec(*keys: str) -> str:
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    tree = {"type": "builtins.dict", "context": json.dumps(keys), "children_spec": [leaf] * len(keys)}
    return json.dumps([1, tree])


def edit(file: Path, config: dict[str, Any]) -> None:
    """Change settings in index.json."""
    index = json.loads(file.read_bytes())
    index["config"] |= config
    file.write_text(json.dumps(index))


NESTED = json.dumps([1, json.loads('{"type": "builtins.tuple", "children_spec": [' * 400 + "1" + "]}" * 400)])
NOT_AN_INDEX = r"train/index\.json is not an index of LitData, or is damaged"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", NOT_AN_INDEX),
        (b"\xff\xfe\x00", NOT_AN_INDEX),
        (b"[" * 100_000, NOT_AN_INDEX),
        (b"[]", NOT_AN_INDEX),
        (b'{"chunks": [], "config": 3}', NOT_AN_INDEX),
        (b'{"chunks": 3, "config": {}}', NOT_AN_INDEX),
        (b'{"chunks": [{"filename": 3}], "config": {}}', NOT_AN_INDEX),
        (b'{"chunks": [{"filename": "../../x.bin"}]}', "'x.bin', which .* lists, does not exist; copy or download it again"),
        (b'{"chunks": [{"filename": ""}]}', "does not exist"),
        (b'{"chunks": [{"filename": "chunk-\\u0000\\ud800.bin"}]}', "does not exist"),
        ({"data_format": None}, "a sample is empty; expected one image"),
        ({"data_format": 3}, NOT_AN_INDEX),
        ({"data_format": ["bytes"]}, rf"{NOT_AN_INDEX} .*1 formats for 2 leaves"),
        ({"data_spec": None}, NOT_AN_INDEX),
        ({"data_spec": "[1]"}, NOT_AN_INDEX),
        ({"data_spec": spec("image")}, NOT_AN_INDEX),
        ({"data_spec": NESTED}, NOT_AN_INDEX),
        ({"compression": "zstd"}, "are compressed, so images cannot be read in place; write the samples again"),
        ({"encryption": {"algorithm": "fernet"}}, "are encrypted, so images cannot be read in place"),
        ({"item_loader": "TokensLoader"}, "is for 'TokensLoader', expected images"),
        (None, r"train has no index\.json, which LitData writes last; write or copy the folder again"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_damaged_index(content: bytes | dict[str, Any] | None, problem: str, chunks: Path) -> None:
    file = chunks / "train" / "index.json"
    (chunks.parent / "x.bin").write_bytes((chunks / "train" / "chunk-0-0.bin").read_bytes())
    if isinstance(content, bytes):
        config = json.loads(file.read_bytes())["config"]
        file.write_bytes(content)
        if b"filename" in content and b"config" not in content:
            file.write_text(json.dumps(json.loads(content) | {"config": config}))
    elif content is None:
        file.unlink()
    else:
        edit(file, content)
    with pytest.raises(ValueError, match=problem) as error:
        load(str(chunks))
    assert len(str(error.value)) < 1000


def uint32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


@pytest.mark.parametrize("first", [
    b"",
    uint32(0),
    uint32(2**32 - 1, 8),  # as many samples as a number can say
    uint32(2**30),
    uint32(2, 16, 20),  # the offsets are cut off
    uint32(1, 12, 2**32 - 1),  # a sample that ends beyond the file
    uint32(1, 2**32 - 1, 2**32 - 1),
    uint32(2, 16, 40, 30) + bytes(60),  # a sample that ends before it begins
    uint32(1, 8, 30) + bytes(60),  # a sample that begins in the offsets
    uint32(1, 12, 16, 0),  # the same at the end of the file
    uint32(1, 12, 16) + bytes(60),  # a sample that is shorter than the sizes of its leaves
    uint32(1, 12, 30, 2**32 - 1, 8) + bytes(60),  # an image larger than its sample
    uint32(1, 12, 32, 8, 4) + bytes(60),  # a class of four bytes
], ids=lambda content: content.hex()[:60])  # fmt: skip
def test_a_damaged_chunk_is_named(first: bytes, chunks: Path) -> None:
    (chunks / "train" / "chunk-0-1.bin").write_bytes(first)
    with pytest.raises(ValueError, match=r"train/chunk-0-1\.bin is cut off or damaged; copy or download it again"):
        load(str(chunks))


def test_a_sample_in_the_header_of_its_chunk(tmp_path: Path) -> None:
    write(tmp_path, [b"x"])
    (tmp_path / "chunk-0-0.bin").write_bytes(uint32(1, 4, 12))  # an image of four bytes, which are the last offset
    with pytest.raises(ValueError, match="is cut off or damaged"):
        load(str(tmp_path))


def test_every_cut_of_a_chunk_is_noticed(chunks: Path) -> None:
    chunk = chunks / "test" / "chunk-0-2.bin"
    whole = chunk.read_bytes()
    for end in (3, 7, 8, 30, 60, len(whole) // 2, len(whole) - 1):
        chunk.write_bytes(whole[:end])
        with pytest.raises(ValueError, match=r"chunk-0-2\.bin is cut off or damaged"):
            load(str(chunks))


def test_search_lists_the_images_of_both_splits(chunks: Path) -> None:
    assert len(image_collection(DataSettings(data=str(chunks)), None).source) == 80


def test_images_of_a_chunk_that_is_too_large(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "mine" / label).mkdir(parents=True)
        for number in range(2):
            with (tmp_path / "mine" / label / f"{number}.jpg").open("wb") as file:
                file.truncate(1_100_000_000)  # takes no space on disk
    with pytest.raises(ValueError, match=r"4 of these images are 4\.4 GB, .* choose a smaller --images-per-file"):
        write_shards(tmp_path / "mine", tmp_path / "chunks", images_per_file=4, to="litdata")


def test_commands(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["data", "convert", str(folder), "--to", "litdata", "-o", "chunks", "--images-per-file", "25"])
    assert capsys.readouterr().out == "4 chunks in chunks\ntrain with: contrapose train --data chunks --stream\n"
    main(["data", "check", "chunks"])
    assert "train: 40 images, 2 classes: cat 20, dog 20" in capsys.readouterr().out
    for arguments, message in (
        (["train", "--data", "chunks", "--classes", "imagenet100"], "only a folder with one subfolder per class"),
        (["data", "convert", str(folder), "--to", "lit", "-o", "new"], "--to"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err


def test_without_the_package_chunks_can_be_read_but_not_written(
    folder: Path, chunks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("litdata", "litdata.streaming", "litdata.streaming.writer"):
        monkeypatch.setitem(sys.modules, name, None)
    assert len(load(str(chunks)).train) == 40
    with pytest.raises(
        MissingPackage, match=r"litdata, which is not installed; install it with: pip install .*\[litdata\]"
    ):
        write_shards(folder, tmp_path / "new", images_per_file=15, to="litdata")
