"""`contrapose search`: what it prints and writes, what it keeps, and what it refuses."""

from __future__ import annotations

import html
import json
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from captioned import run_of
from commands import error_message
from PIL import Image
from torch import Tensor, nn

from contrapose.lab.cli import main
from contrapose.lab.cli.search import Search
from contrapose.lab.modalities.images.digits import digits
from contrapose.lab.modalities.images.modality import IMAGES
from contrapose.lab.modalities.images.views import Recipe, Views
from contrapose.lab.modalities.modality import Modality
from contrapose.lab.modalities.text.modality import TEXT
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.training import Embedder, Run, load

COLOURS = {"red": (1.0, -1.0, -1.0), "green": (-1.0, 1.0, -1.0), "blue": (-1.0, -1.0, 1.0)}
PURE = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


class ColourWords(Embedder):
    """Embeds a text as the colour that it names."""

    def embed(self, samples: Tensor | Sequence[Any]) -> Tensor:
        return torch.tensor([COLOURS[next(word for word in text.split() if word in COLOURS)] for text in samples])


@dataclass
class ColourModel:
    """A model with two towers into the space of colours; images are read, decoded and embedded as those of any run."""

    towers: dict[str, Embedder]
    run: Run
    step: int = 7

    @property
    def kind(self) -> Modality[Any]:
        return self.run.kind

    @property
    def views(self) -> Any:
        return self.run.view_maker()


def colour_model(data: Path) -> Any:
    encoder = Encoder(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), 3)
    views, cpu = Views((Recipe(16, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),)), torch.device("cpu")
    towers = {
        "images": Embedder(encoder, views, IMAGES, cpu),
        "text": ColourWords(encoder, TEXT.views("dropout", 1), TEXT, cpu),
    }
    return ColourModel(towers, run_of(data))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Images of three colours with captions."""
    folder = tmp_path / "colours"
    (folder / "images").mkdir(parents=True)
    lines = ["image\tcaption"]
    for name, colour in PURE.items():
        Image.new("RGB", (20, 16), colour).save(folder / "images" / f"{name}.png")
        lines += [f"{name}.png\ta {name} <thing>", f"{name}.png\tsomething {name}"]
    (folder / "captions.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def printed(capsys: pytest.CaptureFixture[str], command: Search, model: Any) -> list[str]:
    command.search(model)
    return capsys.readouterr().out.splitlines()


def test_texts_and_pictures_find_the_own_pictures_of_a_run(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (9, 9), (0, 10, 250)).save(tmp_path / "photo.jpg")
    queries = ("a red thing", str(tmp_path / "photo.jpg"))
    out = tmp_path / "pages" / "search.html"
    lines = printed(capsys, Search(run, queries, top=2, out=out), colour_model(data))
    assert lines[0] == "a red thing"
    assert lines[1] == f"   1  1.000  {data / 'images' / 'red.png'}"
    assert lines[3] == queries[1]
    assert lines[4].endswith("blue.png")
    assert lines[-1] == f"page {out}"
    assert len(lines) == 2 * 3 + 1
    page = out.read_text()
    assert "3 images of <bdi>colours</bdi>" in page
    assert "a red &lt;thing&gt;" in page
    assert page.count("<img ") == 5
    assert "held-out" not in page  # the run has no records


def test_the_page_shows_the_recall_that_the_run_recorded(data: Path, run: Path, tmp_path: Path) -> None:
    record = {"epoch": 1, "step": 7, "loss": 1.0, "seconds": 1.0, "text_to_image_recall_1": 41.04, "modality_gap": 0.5}
    later = record | {"step": 8, "text_to_image_recall_1": 50.0}  # the weights are those of step 7
    (run / "records.jsonl").write_text(f"{json.dumps(record)}\n{json.dumps(later)}\n")
    Search(run, ("red",), out=tmp_path / "search.html").search(colour_model(data))
    page = (tmp_path / "search.html").read_text()
    assert "On held-out data, the run's last evaluation gave text-to-image recall@1 41.0 %." in html.unescape(page)


def test_an_image_that_is_gone_is_named_on_the_page(
    data: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, embed = colour_model(data), Embedder.features

    def move_after_embedding(tower: Embedder, *arguments: Any, **options: Any) -> Tensor:
        result = embed(tower, *arguments, **options)
        (data / "images" / "red.png").unlink()
        return result

    monkeypatch.setattr(Embedder, "features", move_after_embedding)
    Search(run, ("red",), out=tmp_path / "search.html").search(model)
    page = (tmp_path / "search.html").read_text()
    assert page.count("The image cannot be read.") == 1
    assert f"{data / 'images' / 'red.png'}</bdi>" in page
    assert page.count("<img ") == 2


def test_a_folder_with_the_query_alone(data: Path, run: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    image = (data / "images" / "red.png").rename(tmp_path / "one" / "red.png")
    Search(run, (str(image),), data=tmp_path / "one", out=tmp_path / "search.html").search(colour_model(data))
    page = (tmp_path / "search.html").read_text()
    assert "Nothing was found: there is no sample beside the query." in page
    assert "<ol" not in page


def test_embeddings_are_kept_until_step_or_pictures_change(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, model = Search(run, ("red",), top=1, out=tmp_path / "search.html"), colour_model(data)
    assert "red.png" in printed(capsys, command, model)[1]
    (kept,) = (run / "search").iterdir()
    assert kept.name.startswith("step-00000007-")
    with monkeypatch.context() as patched:
        patched.setattr("contrapose.lab.cli.search._compute", None)
        assert printed(capsys, command, model)[1] == f"   1  1.000  {data / 'images' / 'red.png'}"
    content = kept.read_bytes()
    for damaged in (content[:20], content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]):
        kept.write_bytes(damaged)
        command.search(model)
        output = capsys.readouterr()
        assert "red.png" in output.out
        assert output.err.startswith(f"cache: {kept} ")
        assert kept.read_bytes() == content
    # Other weights at the same step, as of a run that was trained again in the same directory.
    other = colour_model(data)
    other.towers["images"].encoder.network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    command.search(other)
    assert capsys.readouterr().err == f"cache: {kept} was computed from other data or settings; it is computed again\n"
    printed(capsys, command, model)
    assert [path.name for path in (run / "search").iterdir()] == [kept.name]
    # A picture that was edited, at the same size, and another step.
    changed = data / "images" / "red.png"
    Image.new("RGB", (20, 16), PURE["blue"]).save(changed)
    os.utime(changed, ns=(0, 1))
    assert "1.000" not in printed(capsys, command, model)[1]
    assert len(list((run / "search").iterdir())) == 2
    printed(capsys, command, replace(model, step=8))  # those of the earlier step are deleted
    (kept,) = (run / "search").iterdir()
    assert kept.name.startswith("step-00000008-")


def test_a_folder_of_any_layout_and_a_tar(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    (photos / "2019" / "sea").mkdir(parents=True)
    Image.new("RGB", (8, 8), PURE["blue"]).save(photos / "2019" / "sea" / "a.png")
    Image.new("RGB", (8, 8), PURE["red"]).save(photos / os.fsdecode(b"odd\xff\n.png"))  # beside a folder
    command = Search(run, ("blue",), data=photos, out=tmp_path / "search.html")
    lines = printed(capsys, command, colour_model(data))
    assert lines[1] == f"   1  1.000  sea  {photos / '2019' / 'sea' / 'a.png'}"
    assert lines[2].endswith(r"odd\udcff\n.png")
    assert r"odd\udcff\n.png" in (tmp_path / "search.html").read_text()
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for name in PURE:
            (tmp_path / "caption.txt").write_text(f"a {name} one")
            tar.add(data / "images" / f"{name}.png", f"{name}.png")
            tar.add(tmp_path / "caption.txt", f"{name}.txt")
    lines = printed(capsys, replace(command, data=tmp_path / "shard.tar"), colour_model(data))
    assert lines[1].endswith("shard.tar/blue.png")
    assert "a blue one" in (tmp_path / "search.html").read_text()


def test_broken_pictures_are_named_or_left_out(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "images" / "green.png").write_bytes(b"no image")
    command, model = Search(run, ("red",), out=tmp_path / "search.html"), colour_model(data)
    with pytest.raises(ValueError, match=r"green\.png, cannot be read: its content is none of .*--skip-broken"):
        command.search(model)
    for _ in range(2):  # computed, then kept
        lines = printed(capsys, replace(command, skip_broken=True), model)
        assert [Path(line.split()[-1]).name for line in lines[1:-1]] == ["red.png", "blue.png"]


def test_a_run_that_can_only_be_read(data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "search").write_text("a file where the folder would be")
    Search(run, ("red",), out=tmp_path / "search.html").search(colour_model(data))
    output = capsys.readouterr()
    assert "red.png" in output.out
    assert "the next search computes the embeddings again" in output.err


def test_refusals(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, message in (
        ((), "queries: expected at least one image or text, as in contrapose search run photo.jpg"),
        (("  ",), "queries: expected image files or texts, got an empty text"),
        (("a dog", "-k", "0"), "top: expected a whole number of at least 1, got 0"),
        (("a dog", "--out", "page.pdf"), "out: expected a name that ends in .html, got page.pdf"),
        (("a dog",), "run: run is not the directory of a run"),
    ):
        assert message in error_message(capsys, "search", "run", *arguments)
    (tmp_path / "empty").mkdir()
    model = colour_model(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"queries: missing\.JPG is not a file"):
        Search(run, ("missing.JPG",)).search(model)
    for folder, message in (
        ("empty", "data: no images under empty"),
        ("nowhere", "got 'nowhere', which does not exist"),
    ):
        with pytest.raises(ValueError, match=message):
            Search(run, ("red",), data=Path(folder)).search(model)
    with pytest.raises(
        ValueError, match=r"queries: expected text in UTF-8, got 'caf\\udce9' with \\udce9 at character 4"
    ):
        Search(run, ("caf\udce9",)).search(model)
    with pytest.raises(ValueError, match=r"gone, which .* was trained on, does not exist .* with --data"):
        Search(run, ("red",)).search(model)
    assert not (tmp_path / "search.html").exists()


def write_digits(folder: Path, count: int = 12) -> Path:
    """Write some digits as PNG files, in one folder per class."""
    data = digits(count, train=False)
    assert data.labels is not None
    for number, label in enumerate(data.labels.tolist()):
        (folder / f"digit {label}").mkdir(parents=True, exist_ok=True)
        pixels = data.pixels[number].permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(folder / f"digit {label}" / f"{number}.png")
    return folder


def test_an_image_run_finds_images_with_their_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["train", "--limit", "32", "--batch", "16", "--epochs", "1", "--knn", "3", "--metrics", "0", "--out", "run"])
    images = write_digits(tmp_path / "mine")
    query = sorted(images.rglob("*.png"))[3]
    capsys.readouterr()
    main(["search", "run", str(query), "--data", "mine", "-k", "5"])
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert len(lines) == 1 + 5 + 1
    assert str(query.relative_to(tmp_path)) not in "".join(lines[1:])
    assert f"left out of the results: {query}, the query itself" in output.err
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / query.name  # a file with the same name is another image
    copy.write_bytes(query.read_bytes())
    main(["search", "run", str(copy), "--data", "mine", "-k", "1", "-o", "copy.html"])
    output = capsys.readouterr()
    assert output.out.splitlines()[1] == f"   1  1.000  {query.parent.name}  {query.relative_to(tmp_path)}"
    assert "left out" not in output.err
    page = (tmp_path / "search.html").read_text()
    assert "12 images of <bdi>mine</bdi>" in page
    assert f"<b>1</b> · {lines[1].split()[1]} · <bdi>{lines[1].split('  ')[3]}</bdi>" in page
    assert page.count('<img src="data:image/jpeg') == 6
    # The nearest images are those of the encoder's features.
    model = load(tmp_path / "run", device="cpu")
    paths = sorted(images.rglob("*.png"))
    features = torch.nn.functional.normalize(model.embed(paths), dim=1)
    order = (features @ features[3]).topk(6).indices.tolist()[1:]
    assert [line.split("mine/")[-1] for line in lines[1:6]] == [str(paths[i].relative_to(images)) for i in order]
    # Without --data: the run's own images, in memory, of both splits.
    main(["search", "run", str(query), "-k", "3"])
    assert capsys.readouterr().out.splitlines()[1].split()[-1].startswith("digits16[")
    assert "232 images of <bdi>digits16</bdi>" in (tmp_path / "search.html").read_text()
    message = error_message(capsys, "search", "run", "a dog")
    assert "queries: expected an image file, got 'a dog', and run was trained on images alone" in message


def test_another_folder_of_the_same_name_is_not_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data of a run is where it was, even if the working directory has a folder with its name."""
    here, other = tmp_path / "here", tmp_path / "other"
    write_digits(here / "mine")
    Image.new("RGB", (16, 16)).save(write_digits(other / "mine") / "digit 0" / "black.png")
    monkeypatch.chdir(here)
    main(["train", "--data", "mine", "--batch", "4", "--epochs", "1", "--knn", "1", "--metrics", "0", "--out", "run"])
    monkeypatch.chdir(other)
    capsys.readouterr()
    main(["search", "../here/run", "mine/digit 0/black.png", "-k", "20"])
    found = capsys.readouterr().out
    assert str(here / "mine") in found
    assert "black.png" not in found.split("\n", 1)[1]


def test_the_map_of_images_shows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["train", "--limit", "32", "--batch", "16", "--epochs", "1", "--knn", "3", "--metrics", "0", "--out", "run"])
    capsys.readouterr()
    main(["map", "run", "--images", "40", "--method", "pca"])
    output = capsys.readouterr().out
    assert output.startswith("PCA of the projector output of 40 images\n")
    assert output.endswith("figure map.png\npage map.html\n")
    page = (tmp_path / "map.html").read_text()
    data = json.loads(page.partition('id="points">')[2].partition("</script>")[0])
    assert [len(points["x"]) for points in data["maps"]] == [40]
    assert page.count("data:image/jpeg") == 1
    (tmp_path / "map.png").unlink()
    other = str(write_digits(tmp_path / "mine", 80))
    main(["map", "run", "--images", "20", "--method", "pca", "-o", "only.html", "--data", other])
    assert "figure" not in capsys.readouterr().out
    assert not (tmp_path / "map.png").exists()
    assert "expected a name that ends in .png, .svg, .pdf or .html" in error_message(
        capsys, *["map", "run", "-o", "map.gif"]
    )
    message = error_message(capsys, *["map", "run", "-o", "map.html", "--method", "sphere"])
    assert "out: a page shows points in the plane" in message


@pytest.mark.thorough
def test_a_trained_run_is_evaluated_and_searched(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = "--encoder tiny --text-encoder tiny --size 32 --batch 3 --epochs 30 --lr 0.003 --warmup 0 --knn-every 30"
    main(["train", "--data", str(data), "--hold-out", "0", "--metrics", "0", "--out", "run", *settings.split()])
    capsys.readouterr()
    main(
        [
            "evaluate",
            "run",
            "--captions",
            str(data),
            "--sheet",
            "sheet.html",
            "--zero-shot",
            str(_class_folder(tmp_path)),
            "--templates",
            "a {} thing",
        ]
    )
    scores = json.loads(capsys.readouterr().out)
    assert scores["image_to_text_recall_1"] == scores["text_to_image_recall_1"] == 100
    assert scores["chance_text_to_image_recall_1"] < 50
    assert scores["zero_shot_top1"] == 100
    assert (tmp_path / "sheet.html").read_text().count("class=hit") == 6
    main(["search", "run", "something blue", "--top", "1"])
    output = capsys.readouterr()
    assert "blue.png" in output.out
    assert "tokens" not in output.err
    main(["search", "run", "something blue " * 40, "--top", "1"])
    note = "queries: only the beginning of 'something blue something blue something '… is used: it has more tokens than"
    assert note in capsys.readouterr().err
    message = error_message(capsys, "evaluate", "run", "--linear", "cacr")
    assert "linear: --linear is for runs with one encoder; run was trained on captioned images" in message


def _class_folder(tmp_path: Path) -> Path:
    """Make a folder with one image of each colour, as its class."""
    folder = tmp_path / "classes"
    for name, colour in PURE.items():
        (folder / name).mkdir(parents=True)
        Image.new("RGB", (20, 16), colour).save(folder / name / "0.png")
    return folder
