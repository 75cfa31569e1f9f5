"""A cache that is damaged, or that belongs to other data, is noticed, said in one line, and computed again with the same result."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import captioned
import pytest
import streaming
import torch
from conftest import FULL, Promise
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from tiers import first
from torch import Tensor

from contrapose.lab.cached_files import cache_folder
from contrapose.lab.cli import main, search
from contrapose.lab.modalities import DataSettings
from contrapose.lab.modalities.captions.load import list_captions
from contrapose.lab.modalities.captions.load import load as load_captions
from contrapose.lab.modalities.captions.modality import CAPTIONS
from contrapose.lab.modalities.images.image_shards import list_shards, write_shards
from contrapose.lab.modalities.images.layout import split_folder
from contrapose.lab.modalities.images.modality import IMAGES
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.modalities.source import Split
from contrapose.lab.modalities.text.files import open_texts
from contrapose.lab.modalities.text.tokens import tokenise
from contrapose.lab.modalities.text.vocabulary import train_vocabulary
from contrapose.lab.training.embedder import Embedder
from contrapose.lab.training.feature_cache import FeatureCache

VIEWS = Views.named("simclr-cifar", size=16)
SENTENCES = [
    f"the {noun} {number} {verb} the house"
    for number in range(20)
    for noun, verb in (("dog", "sees"), ("cat", "leaves"))
]
FLIPS = 200 if FULL else 5  # bits at random places
TOKENIZER = train_vocabulary(SENTENCES)
Log = Callable[[str], None]
Result = dict[str, Any]


def embedder() -> Embedder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Embedder(IMAGES.encoder("tiny", VIEWS), VIEWS, IMAGES, torch.device("cpu"))


def tokens(data: Path, log: Log) -> Result:
    path = data / "texts.txt"
    path.write_text("\n".join(SENTENCES[len(data.name) :]))
    return {"tokens": tokenise(open_texts(path), TOKENIZER, length=16, cached=True, log=log)}


def captions(data: Path, log: Log) -> Result:
    folder = data / "captioned"
    if not folder.exists():
        captioned.write_folder(folder)
        rows = (folder / "captions.tsv").read_text()
        (folder / "captions.tsv").write_text(rows.replace("square", data.name))
    run = captioned.run_of(folder)
    split = load_captions(run, list_captions(run), TOKENIZER, CAPTIONS.views("captions", 2, size=16), cached=True)
    for note in split.notes:
        log(note)
    return {"tokens": split.train.texts.tokens}  # type: ignore[attr-defined]


def of_split(split: Split) -> Result:
    assert split.train.labels is not None
    return {"labels": split.train.labels, "paths": torch.tensor([list(map(hash, map(repr, split.train.paths)))])}


def index_of_shards(data: Path, log: Log, to: str = "webdataset") -> Result:
    if not (data / to).exists():
        write_shards(images(data), data / to, images_per_file=len(data.name), to=to)
    split = list_shards(data / to, hold_out=0.2)
    for note in split.notes:
        log(note)
    return of_split(split)


def index_of_chunks(data: Path, log: Log) -> Result:
    pytest.importorskip("litdata")
    return index_of_shards(data, log, "litdata")


def images(data: Path) -> Path:
    if not (data / "mine").exists():
        streaming.write_folder(data / "mine")
        for path in (data / "mine" / "train" / "cat").glob(f"*{len(data.name)}.png"):
            path.unlink()
    return data / "mine"


def packed(data: Path, log: Log) -> Result:
    settings = DataSettings(data=str(images(data)))
    for line in IMAGES.pack_to_cache(settings, VIEWS):
        log(line)
    split = IMAGES.load(settings, None, VIEWS)
    for note in split.notes:
        if "read from the packed copy" not in note:
            log(note)
    return of_split(split) | {"pixels": split.train.pixels}  # type: ignore[attr-defined]


def search_embeddings(data: Path, log: Log, capsys: pytest.CaptureFixture[str]) -> Result:
    source = split_folder(images(data), hold_out=0.2).train
    index, embeddings = search._embed(embedder(), source, data / "run" / "search", step=3, skip_broken=False)
    for line in capsys.readouterr().err.splitlines():
        log(line)
    return {"index": torch.tensor(index), "embeddings": embeddings}


def features(data: Path, log: Log) -> Result:
    source = split_folder(images(data), hold_out=0.2).train
    kept = FeatureCache(embedder(), data / "run" / "features", lambda line: log(line) if "cache:" in line else None)
    found = kept(source)
    assert found is not None
    return {"features": found}


# The first ones are in `make test`: each way of using the shared implementation once.
CACHES: dict[str, Callable[..., Result]] = {
    "tokens of texts": tokens,
    "index of tars": index_of_shards,
    "packed copy": packed,
    "features of an evaluation": features,
    "embeddings of a search": search_embeddings,
    "tokens of captions": captions,
    "index of LitData's chunks": index_of_chunks,
}


def changed_tensors(content: bytes, change: Callable[[Tensor], Tensor]) -> bytes:
    """Return a valid file of the same header, whose largest tensor is changed: what no reader of the format can notice."""
    tensors = load_tensors(content)
    name = max(tensors, key=lambda one: tensors[one].nbytes)
    start = content.index(tensors[name].numpy().tobytes())
    new = change(tensors[name].clone()).contiguous().numpy().tobytes()
    return content[:start] + new + content[start + len(new) :]


def flipped(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]


def filled(value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        tensor.view(-1)[0] = value if tensor.is_floating_point() else int(tensor.view(-1)[0]) ^ 1
        return tensor

    return change


def second_row_is_first(tensor: Tensor) -> Tensor:
    rows = tensor.view(len(tensor), -1) if tensor.ndim > 1 else tensor.view(-1, 1)
    other = int((rows != rows[0]).any(1).nonzero()[0])  # a row that differs
    rows[other] = rows[0]
    return tensor


def damages(content: bytes, other: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield damaged contents of a cache file; `other` is the content of the same cache of other data."""
    yield "empty", b""
    yield "cut by a byte", content[:-1]
    yield "cut in the middle", content[: len(content) // 2]
    yield "a byte more", content + b"\0"
    yield "zeros after a crash", content[: len(content) // 2] + bytes(len(content) - len(content) // 2)
    yield "not a cache file", b"\x93NUMPY" + bytes(200)
    yield (
        "without a checksum",
        save_tensors({name: one for name, one in load_tensors(content).items() if name != "checksum"}),
    )
    yield "of other data", other
    yield "a changed number", changed_tensors(content, filled(0.5))
    yield "NaN", changed_tensors(content, filled(float("nan")))
    yield "a row twice", changed_tensors(content, second_row_is_first)
    yield "in another order", changed_tensors(content, lambda tensor: tensor.flip(0))
    random.seed(0)
    size = int.from_bytes(content[:8], "little") + 8
    for number in range(FLIPS):
        place = random.randrange(size) if number % 2 else random.randrange(size, len(content))  # header and tensors
        yield f"bit flipped at {place}", flipped(content, place, random.randrange(8))


@dataclass
class Use:
    """Uses one cache, with the lines that it says."""

    of: Callable[..., Result]
    options: dict[str, Any]

    def __call__(self, data: Path) -> tuple[Result, list[str]]:
        lines: list[str] = []
        result = self.of(data, lines.append, **self.options)
        return {name: value.clone() for name, value in result.items()}, lines


def cache_files(root: Path) -> set[Path]:
    found = [path for folder in (cache_folder(), root) for path in folder.rglob("*.safetensors")]
    return {path for path in found if path.parent.name != "work"}


@pytest.mark.parametrize("name", first(1, CACHES))
def test_every_damage_is_noticed_and_mended(
    name: str, tmp_path: Path, promise: Promise, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONTRAPOSE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    use = Use(CACHES[name], {"capsys": capsys} if CACHES[name] is search_embeddings else {})
    for data in ("first", "second"):
        (tmp_path / data).mkdir()
    use(tmp_path / "second")
    (second,) = cache_files(tmp_path)
    expected, _ = use(tmp_path / "first")
    (file,) = cache_files(tmp_path) - {second}
    content = file.read_bytes()
    for damage, damaged in damages(content, second.read_bytes()):
        if damaged == content:  # the change is none, such as a flipped tensor that is symmetric
            continue
        file.write_bytes(damaged)
        result, lines = use(tmp_path / "first")
        assert [line for line in lines if str(file) in line], f"{damage}: nothing was said, only {lines}"
        assert len(lines) == 1, f"{damage}: {lines}"
        assert result.keys() == expected.keys()
        assert all(torch.equal(result[one], expected[one]) for one in expected), f"{damage}: another result"
        again, lines = use(tmp_path / "first")
        assert lines == [], f"{damage}: not mended: {lines}"
        assert all(torch.equal(again[one], expected[one]) for one in expected)
        promise.case()
    assert cache_files(tmp_path) == {file, second}
    assert list((tmp_path / "work").iterdir()) == []  # the working directory


@pytest.mark.parametrize("name", first(1, [name for name in CACHES if name != "packed copy"]))
def test_a_cache_that_cannot_be_written_is_not_needed(
    name: str, tmp_path: Path, promise: Promise, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result is the same, and a line says so: the folder is below a file, where even root cannot write."""
    use = Use(CACHES[name], {"capsys": capsys} if CACHES[name] is search_embeddings else {})
    results = []
    for cache in ("cache", "file/cache"):
        data = tmp_path / "data"
        data.mkdir(exist_ok=True)
        monkeypatch.setenv("CONTRAPOSE_CACHE", str(tmp_path / cache))
        (tmp_path / "file").touch()
        results.append(use(data)[0])
        if (data / "run").is_dir():
            (data / "run").rename(tmp_path / "kept")
            (data / "run").touch()
    assert all(torch.equal(results[0][one], results[1][one]) for one in results[0])
    promise.case()


@pytest.mark.thorough
def test_a_run_with_damaged_tokens_has_the_same_weights(
    tmp_path: Path, promise: Promise, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONTRAPOSE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "texts.txt").write_text("\n".join(SENTENCES))
    weights = set()
    for number, damage in enumerate([None, filled(0), second_row_is_first]):
        if damage is not None:
            (file,) = cache_files(tmp_path / "cache")
            file.write_bytes(changed_tensors(file.read_bytes(), damage))
        out = tmp_path / f"run{number}"
        options = ["--encoder", "tiny", "--views", "dropout", "--batch", "8", "--epochs", "1", "--metrics", "0"]
        main(["train", "--data", str(tmp_path / "texts.txt"), *options, "--baselines", "none", "--out", str(out)])
        assert ("is damaged" in capsys.readouterr().out) == (damage is not None)
        (tensors,) = out.glob("checkpoints/*/tensors.safetensors")
        weights.add(tensors.read_bytes())
    assert len(weights) == 1
    promise.case()
