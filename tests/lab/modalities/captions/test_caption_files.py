"""Images with captions: folders with a file of captions, WebDataset tars, and data that cannot be used."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from contrapose.lab.modalities.captions.files import CaptionList, is_captions, open_captions
from contrapose.lab.modalities.captions.load import list_captions
from contrapose.lab.modalities.images.inputs import decode
from contrapose.lab.modalities.images.stream import Files, StreamedImages, whole
from contrapose.lab.modalities.images.views import Recipe, Views
from contrapose.lab.modalities.modality import DataSettings
from contrapose.lab.modalities.shards import expand_braces
from contrapose.lab.modalities.stored_files import ShardMember

CAPTIONS = {
    "a.jpg": ("A dog runs .", 'A sign that says " stop'),
    "b.jpg": ("Ein Hund läuft .", "A cat ."),
    "c.png": ("A, b",),
}
ROWS = [(name, text) for name, texts in CAPTIONS.items() for text in texts]
PARTS = {"a.jpg": "train", "b.jpg": "test", "c.png": "val"}


def image_bytes(name: str, size: int = 24) -> bytes:
    """Encode random pixels, which depend on the name; the format is that of its ending."""
    pixels = np.random.default_rng(sum(map(ord, name))).integers(0, 256, (size, size + 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG" if name.endswith(".png") else "JPEG")
    return file.getvalue()


def folder_of(path: Path, files: dict[str, str | bytes], images: Sequence[str] = tuple(CAPTIONS)) -> Path:
    """Write text files and images, which are in images/ unless the name has a folder."""
    for name in images:
        target = path / (name if "/" in name else f"images/{name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(image_bytes(target.name))
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        (path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def samples(count: int, start: int = 0) -> list[tuple[str, bytes]]:
    """Return `count` images, each with a caption."""
    names = [f"{number:04d}" for number in range(start, start + count)]
    return [
        member
        for name in names
        for member in ((f"{name}.jpg", image_bytes(f"{name}.jpg")), (f"{name}.txt", f"caption {name}\n".encode()))
    ]


def by_name(opened: CaptionList) -> dict[str, tuple[str, ...]]:
    return dict(zip((image.name for image in opened.images), opened.captions, strict=True))


def refusal(path: Path, **settings: Any) -> str:
    with pytest.raises(ValueError, match=r"^(data|columns): ") as error:
        open_captions(path, **settings)
    message = str(error.value)
    assert "\n" not in message
    return message


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def json_lines(records: Sequence[Any]) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


FORMS: dict[str, tuple[str, str | bytes]] = {
    "flickr8k": ("captions.tsv", "".join(f"{name}\t{i}\t{text}\n" for i, (name, text) in enumerate(ROWS))),
    "flickr": ("captions.txt", "".join(f"{name}#{i}\t{text}\n" for i, (name, text) in enumerate(ROWS))),
    "kaggle": ("captions.txt", "image,caption\n" + "".join(f"{name},{quoted(text)}\n" for name, text in ROWS)),
    "open_clip": ("captions.csv", "title,filepath\n" + "".join(f"{quoted(text)},{name}\n" for name, text in ROWS)),
    "windows": ("captions.tsv", "\ufeffFile_Name\tText\r\n" + "".join(f".\\images\\{n}\t{t}\r\n" for n, t in ROWS)),
    "json": ("captions.jsonl", json_lines([{"id": 7, "file_name": name, "text": text} for name, text in ROWS])),
    "json lists": ("captions.jsonl", json_lines([{"image": n, "captions": list(t)} for n, t in CAPTIONS.items()])),
    "json arrays": ("captions.ndjson", json_lines([[name, i, text] for i, (name, text) in enumerate(ROWS)])),
    "compressed": ("captions.tsv.gz", gzip.compress("".join(f"images/{n}\t{t}\n" for n, t in ROWS).encode())),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_folder(tmp_path: Path, form: str) -> None:
    folder = folder_of(tmp_path / "mine", dict([FORMS[form]]))
    opened = open_captions(folder)
    assert is_captions(folder)
    assert by_name(opened) == CAPTIONS
    assert opened.images == tuple(folder / "images" / name for name in CAPTIONS)
    assert (opened.name, opened.splits, opened.notes, len(opened)) == ("mine", (), (), 3)
    file = folder / FORMS[form][0]
    assert is_captions(file)
    assert open_captions(file) == opened


def test_parquet(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {})
    names, texts = zip(*ROWS, strict=True)
    parquet.write_table(pa.table({"caption": texts, "image": names}), folder / "captions.parquet")
    assert by_name(open_captions(folder)) == CAPTIONS


def test_images_are_anywhere_in_the_folder(tmp_path: Path) -> None:
    names = ["mine/a.jpg", "mine/train/b.jpg", "mine/.hidden/c.png", "mine/sub/d.jpg", "mine/e.jpg"]
    written = ["./a.jpg", "train/b.jpg", ".hidden/c.png", "x/../sub/d.jpg", str(tmp_path / "mine" / "e.jpg")]
    (tmp_path / "mine").mkdir()
    folder_of(tmp_path, {"mine/captions.csv": "".join(f"{name},text\n" for name in written)}, names)
    assert [image.name for image in open_captions(tmp_path / "mine").images] == [
        "a.jpg", "b.jpg", "c.png", "d.jpg", "e.jpg",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["../other/d.jpg", "../../d.jpg", "images/../../other/d.jpg", "/etc/hostname", "..\\other\\d.jpg"]
)
@pytest.mark.parametrize("table", ["captions.csv", "split.csv"])
def test_a_row_that_leads_out_of_the_folder(name: str, table: str, tmp_path: Path) -> None:
    """A table from elsewhere must not choose which files are read."""
    rows = {"captions.csv": "a.jpg,text\nb.jpg,text\n", "split.csv": "image,split\na.jpg,train\nb.jpg,train\n"}
    rows[table] += f"{name},{'text' if table == 'captions.csv' else 'train'}\n"
    folder_of(
        tmp_path,
        {f"mine/{file}": content for file, content in rows.items()},
        ["mine/images/a.jpg", "mine/images/b.jpg", "other/d.jpg"],
    )
    line = 3 if table == "captions.csv" else 4
    refused = f"{tmp_path}/mine/{table}, line {line} names {name.replace(chr(92), '/')!r}, which is outside of {tmp_path}/mine; correct it"
    with pytest.raises(ValueError, match=re.escape(refused)):
        open_captions(tmp_path / "mine")
    listed = open_captions(tmp_path / "mine", skip_broken=True)
    assert [image.name for image in listed.images] == ["a.jpg", "b.jpg"]
    assert any("rows or members that cannot be used are left out" in note for note in listed.notes)


def test_a_linked_folder_of_images(tmp_path: Path) -> None:
    folder_of(tmp_path / "stored", {})
    folder = folder_of(tmp_path / "mine", dict([FORMS["flickr8k"]]), images=())
    (folder / "images").symlink_to(tmp_path / "stored" / "images")
    assert by_name(open_captions(folder)) == CAPTIONS


def test_parts_of_a_file_beside_the_captions(tmp_path: Path) -> None:
    split = "".join(f"{name}\t{part}\n" for name, part in PARTS.items()) + "absent.jpg\ttrain\n"
    folder = folder_of(tmp_path, dict([FORMS["flickr8k"]]) | {"split.tsv": split})
    assert open_captions(folder).splits == ("train", "test", "val")
    before = open_captions(folder).fingerprint
    (folder / "split.tsv").write_text("split,image\n")
    assert "split.tsv" in refusal(folder)
    (folder / "split.tsv").write_text("image\tsplit\na.jpg\tTraining\nb.jpg\tdev\n")
    opened = open_captions(folder)
    assert opened.splits == ("train", "val")
    assert opened.notes == ("data: images in no split (train, val or test) are left out: 1 (c.png)",)
    assert opened.fingerprint != before
    (folder / "split.tsv").write_text("a.jpg\ttrain\nb.jpg\tholdout\n")
    assert "split.tsv, line 2 has the split 'holdout', expected train, val or test" in refusal(folder)
    (folder / "split.tsv").write_text("a.jpg\ttrain\nimages/a.jpg\ttest\n")
    assert "line 2 has a.jpg in test, but it is in train already" in refusal(folder)
    (folder / "split.tsv").write_text("image\tsplit\na\ttrain\nb\ttest\n")
    assert "split.tsv names no image of" in refusal(folder)
    (folder / "split.tsv").write_text("a.jpg\ttrain\n")
    assert "2 of 3 images of" in refusal(folder)
    assert open_captions(folder, skip_broken=True).splits == ("train",)


def test_every_name_of_a_split_is_known(tmp_path: Path) -> None:
    """Karpathy's restval images are trained on, as in the papers that use the split."""
    for split, names in {
        "train": ("train", "training", "restval"),
        "val": ("val", "valid", "validation", "dev"),
        "test": ("test", "testing"),
    }.items():
        for name in (*names, names[-1].upper()):
            content = f"a.jpg\ttrain\nb.jpg\t{name}\nc.png\ttest\n"
            folder = folder_of(tmp_path / name, dict([FORMS["flickr8k"]]) | {"split.tsv": content})
            assert open_captions(folder).splits == ("train", split, "test")


def test_a_validation_split_is_not_used_where_there_is_a_test_split(tmp_path: Path) -> None:
    def divide(parts: dict[str, str]) -> tuple[list[int], list[int]]:
        split = "".join(f"{name}\t{part}\n" for name, part in parts.items())
        folder = folder_of(tmp_path, dict([FORMS["flickr8k"]]) | {"split.tsv": split})
        listed = list_captions(DataSettings(data=str(folder)))
        return listed.train.tolist(), listed.test.tolist()

    assert divide(PARTS) == ([0], [1])  # the third image, of the validation split, is in neither
    assert divide({**PARTS, "b.jpg": "train"}) == ([0, 1], [2])
    with pytest.raises(ValueError, match="says which images are val or test, and none that are train"):
        divide({**PARTS, "a.jpg": "val"})


def test_parts_of_a_column(tmp_path: Path) -> None:
    rows = "".join(f"{text}\t{name}\t{PARTS[name]}\n" for name, text in ROWS)
    named = folder_of(tmp_path / "named", {"captions.tsv": "caption\tname\tsplit\n" + rows})
    plain = folder_of(tmp_path / "plain", {"captions.tsv": rows})
    assert open_captions(named).splits == ("train", "test", "val")
    assert "cannot tell which column of" in refusal(plain)
    assert open_captions(plain, columns=("2", "1", "3")).splits == ("train", "test", "val")
    assert open_captions(plain, columns=("2", "1")).splits == ()


def test_columns_are_chosen_by_name_or_number(tmp_path: Path) -> None:
    records = [{"image": "x", "picture": name, "caption": "no", "words": text} for name, text in ROWS]
    folder = folder_of(tmp_path, {"captions.jsonl": json_lines(records)})
    for columns in (("picture", "words"), ("2", "4")):
        assert by_name(open_captions(folder, columns=columns)) == CAPTIONS
    assert "columns: expected one of image, picture, caption, words, got 'word'; did you mean 'words'?" in refusal(
        folder, columns=("picture", "word")
    )
    assert "columns: expected two" in refusal(folder, columns=("picture",))
    (folder / "captions.jsonl").write_text(json_lines([{"picture": "a.jpg", "words": "text"}]))
    message = refusal(folder)
    assert "cannot tell which column of" in message
    assert "of picture, words; name the columns" in message
    assert "--columns picture words" in message


def test_a_table_with_the_wrong_separator_is_explained(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"captions.tsv": "image,caption\na.jpg,a dog\n"})
    assert "has one column, expected one of images and one of captions; in a .tsv file a tab separates them" in refusal(
        folder
    )


def test_what_is_left_out_is_counted_and_named(tmp_path: Path) -> None:
    rows = [("a.jpg", "one"), ("a.jpg", "one"), ("b.jpg", "x" * 10_000), ("gone.jpg", "two"), ("a.jpg", "  "), ("", "")]
    rows += [(f"{name}.jpg", "three") for name in "defg"]
    folder = folder_of(
        tmp_path,
        {"captions.tsv": "".join(f"{name}\t{text}\n" for name, text in rows)},
        ["a.jpg", "b.jpg", "c.png", *(f"{name}.jpg" for name in "defg")],
    )
    opened = open_captions(folder)
    assert by_name(opened)["a.jpg"] == ("one", "one")
    assert len(by_name(opened)["b.jpg"]) == 1
    assert len(by_name(opened)["b.jpg"][0]) == 10_000
    assert opened.notes == (
        "data: captions without an image are left out: 1 of 8 (gone.jpg)",
        "data: images without a caption are left out: 1 of 7 (images/c.png)",
        "data: empty captions are left out: 2 (line 5 of captions.tsv, line 6 of captions.tsv)",
        "data: captions of more than 1,000 characters are cut to their first tokens: 1 (line 3 of captions.tsv)",
        "data: images with the same caption twice keep both: 1 (a.jpg)",
    )


def test_more_than_half_is_an_error(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"captions.tsv": "a.jpg\tone\nx\x1b[31m.jpg\ttwo\n"}, ["a.jpg", "b.jpg"])
    assert open_captions(folder).notes[0].endswith(r"left out: 1 of 2 (x\x1b[31m.jpg)")  # half of each is not too much
    (folder / "captions.tsv").write_text("a.jpg\tone\nx.jpg\ttwo\ny.jpg\tthree\n")
    message = refusal(folder)
    assert "2 of 3 captions of" in message
    assert "have no image, for example x.jpg; expected the images beside captions.tsv or in images/" in message
    assert len(open_captions(folder, skip_broken=True)) == 1
    folder_of(tmp_path, {"captions.tsv": "a.jpg\tone\n"}, ["c.jpg"])
    assert "2 of 3 images of" in refusal(folder)
    assert len(open_captions(folder, skip_broken=True)) == 1
    (folder / "captions.tsv").write_text("http://example.org/a.jpg\tone\n")
    assert "download them first, for example with img2dataset" in refusal(folder)
    assert "has no image with a caption (1 captions without image, 3 images" in refusal(folder, skip_broken=True)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("captions.tsv", b"a.jpg\tone\nb.jpg\tEin Hund l\xe4uft\n", "line 2 is not UTF-8: byte 17 is 0xe4"),
        ("captions.tsv", b"a.jpg\tone\nb.jpg\ttwo\tthree\n", "line 2 has 3 columns, expected 2 as in the first row"),
        ("captions.csv", b'a.jpg,one\nb.jpg,"two\n', "line 2 has a quotation mark that is not closed"),
        ("captions.jsonl", b'{"image": "a.jpg", "text": "one"}\n{"image": "b.jpg"', "line 2 is not JSON"),
        ("captions.jsonl", b'{"image": "a.jpg", "text": "one"}\n{"image": 7, "text": "x"}\n', "int instead of a text in"),
        ("captions.jsonl", b'{"image": "a.jpg", "text": "one"}\n{"image": "b.jpg", "text": [{}]}\n', "dict instead of"),
        ("captions.tsv", b"image\ttext\tsplit\na.jpg\tone\ttrain\nb.jpg\ttwo\tfoo\n", "line 3 has the split 'foo'"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_used(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    folder = folder_of(tmp_path, {name: content}, ["a.jpg", "b.jpg"])
    message = refusal(folder)
    assert reason in message
    assert "--skip-broken" in message
    opened = open_captions(folder, skip_broken=True)
    assert by_name(opened) == {"a.jpg": ("one",)}
    assert any(
        f"of {name} " in note and "cannot be used are left out (--skip-broken): 1 (line" in note
        for note in opened.notes
    )


def test_data_that_is_not_there(tmp_path: Path) -> None:
    assert "does not exist; expected a folder with captions.tsv" in refusal(tmp_path / "absent")
    assert "is empty; expected a folder with captions.tsv" in refusal(tmp_path)
    folder = folder_of(tmp_path / "images-only", {"notes.pdf": b"%PDF"})
    assert "has no captions; expected a folder with captions.tsv" in refusal(folder)
    assert "cannot tell the format of" in refusal(folder / "notes.pdf")
    assert not any(map(is_captions, (tmp_path / "absent", tmp_path, folder, folder / "notes.pdf", Path("digits"))))
    (folder / "captions.tsv").write_bytes(b"")
    assert "captions.tsv is empty" in refusal(folder)
    (folder / "captions.tsv").write_bytes("a.jpg\tone\n".encode("utf-16"))
    assert "is UTF-16 text, expected UTF-8" in refusal(folder)
    (folder / "captions.csv").write_text("a.jpg,one\n")
    assert "has captions.tsv and captions.csv; name the one to read, for example --data" in refusal(folder)
    assert by_name(open_captions(folder / "captions.csv", skip_broken=True)) == {"a.jpg": ("one",)}
    texts = folder_of(tmp_path / "texts", {"captions.tsv": "one\ttwo\n"}, images=())
    assert not is_captions(texts / "captions.tsv")  # a file of texts


def test_a_tar(tmp_path: Path) -> None:
    members = [
        *samples(2),
        ("x/0002.JPEG", image_bytes("0002.jpg")),
        ("x/0002.json", json.dumps({"key": "0002", "caption": " a dog "}).encode()),
        ("0003.png", image_bytes("0003.png")),
        ("0003.json", json.dumps({"captions": ["one", "two"]}).encode()),
        ("0003.cls", b"7"),
        ("0004.txt", b"\xef\xbb\xbffirst line\nsecond line\n"),
        ("0004.json", json.dumps({"caption": "not this one", "width": 3}).encode()),
        ("0004.webp", image_bytes("0004.jpg")),
        ("0004.mask.png", b"no image of a sample"),
        ("._0005.jpg", b"metadata of macOS"),
    ]
    opened = open_captions(write_tar(tmp_path / "pairs.tar", members))
    assert by_name(opened) == {
        "0000.jpg": ("caption 0000",),
        "0001.jpg": ("caption 0001",),
        "x/0002.JPEG": ("a dog",),
        "0003.png": ("one", "two"),
        "0004.webp": ("first line\nsecond line",),
    }
    assert (opened.name, opened.splits, opened.notes) == ("pairs.tar", (), ())
    member = opened.images[2]
    assert isinstance(member, ShardMember)
    assert member.read() == image_bytes("0002.jpg")
    assert str(member) == f"{tmp_path}/pairs.tar/x/0002.JPEG"
    assert pickle.loads(pickle.dumps(member)) == member
    assert len(pickle.dumps(opened.images)) < 1000  # without the content
    assert "columns: they are for a file of captions" in refusal(tmp_path / "pairs.tar", columns=("1", "2"))


def test_several_tars(tmp_path: Path) -> None:
    for number, part in enumerate(("train", "train", "val")):
        write_tar(tmp_path / f"s-{part}-{number:04d}.tar", samples(2, start=2 * number))
    opened = open_captions(tmp_path)
    assert is_captions(tmp_path)
    assert [image.name for image in opened.images] == [f"{number:04d}.jpg" for number in range(6)]
    assert opened.splits == ("train",) * 4 + ("val",) * 2
    pattern = tmp_path / "s-train-{0000..0001}.tar"
    assert is_captions(pattern)
    assert open_captions(pattern).images == opened.images[:4]
    assert open_captions(pattern).splits == ()  # one split only, so the names do not tell splits apart
    message = refusal(tmp_path / "s-train-{0001..0003}.tar")
    assert "2 of the 3 tars that" in message
    assert "do not exist: " in message
    folder_of(tmp_path, {})
    assert not is_captions(tmp_path)  # a folder of images with the tars that they were unpacked from


def test_the_split_in_a_json_wins_over_the_name_of_its_tar(tmp_path: Path) -> None:
    own = [("8.jpg", image_bytes("8.jpg")), ("8.json", json.dumps({"caption": "eight", "split": "test"}).encode())]
    write_tar(tmp_path / "s-train.tar", [*samples(2), *own])
    write_tar(tmp_path / "s-val.tar", samples(1, start=5))
    opened = open_captions(tmp_path)
    splits = {image.name: split for image, split in zip(opened.images, opened.splits, strict=True)}
    assert splits == {"0000.jpg": "train", "0001.jpg": "train", "8.jpg": "test", "0005.jpg": "val"}


def test_patterns() -> None:
    assert expand_braces("a{08..10}") == ["a08", "a09", "a10"]
    assert expand_braces("{train,val}/{0..1}.tar") == ["train/0.tar", "train/1.tar", "val/0.tar", "val/1.tar"]
    assert expand_braces("a{b}.tar") == ["a{b}.tar"]
    with pytest.raises(ValueError, match="names more than 100,000 tars"):
        expand_braces("{0..99999}{0..99999}")


def test_samples_that_lack_something(tmp_path: Path) -> None:
    split = json.dumps({"text": "seven", "split": "test"}).encode()
    members = [*samples(4), ("5.txt", b"no image"), ("6.jpg", b""), ("7.jpg", b"?"), ("7.json", split), ("0.txt", b" ")]
    path = write_tar(tmp_path / "a.tar", members)
    assert "4 of 5 images of" in refusal(path)  # are in no split
    notes = open_captions(path, skip_broken=True).notes
    assert notes == (
        f"data: captions without an image are left out: 1 of 6 ({path}/5.txt)",
        f"data: images without a caption are left out: 1 of 6 ({path}/6.jpg)",
        f"data: empty captions are left out: 1 ({path}/0.txt)",
        "data: images in no split (train, val or test) are left out: 4 (0000.jpg, 0001.jpg, 0002.jpg and 1 more)",
    )
    assert "has 1.jpg and 1.png, expected one image for each key" in refusal(
        write_tar(tmp_path / "b.tar", [("1.jpg", b"a"), ("1.png", b"b")])
    )
    no_pairs = write_tar(
        tmp_path / "c.tar", [("captions.tsv", b"1.jpg\tone\n"), ("images/1.jpg", image_bytes("1.jpg"))]
    )
    assert "unpack a tar of a folder with captions.tsv" in refusal(no_pairs)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("9.txt", b"l\xe4uft", "9.txt is not UTF-8: byte 2 is 0xe4"),
        ("9.json", b"{", "9.json is not JSON: "),
        ("9.json", b"[1]", "9.json is not a JSON object"),
        ("9.json", b'{"caption": "\\ud800"}', "9.json has half of a surrogate pair"),
        ("9.json", b'{"caption": 1}', "9.json has a caption that is not a text"),
        ("9.json", b'{"caption": "a", "split": "x"}', "9.json has the split 'x', expected train, val or test"),
        ("9.txt", b"x" * 400_001, "9.txt has more than 100,000 characters"),
    ],
)
def test_a_member_that_cannot_be_used(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    path = write_tar(tmp_path / "a.tar", [*samples(2), ("9.jpg", image_bytes("9.jpg")), (name, content)])
    assert reason in refusal(path)
    opened = open_captions(path, skip_broken=True)
    assert len(opened) == 2
    assert "cannot be used are left out (--skip-broken): 1 (" in opened.notes[0]
    assert reason in opened.notes[0]


@pytest.mark.parametrize("place", ["inside a file", "inside a header", "after a file", "before the end mark"])
def test_a_tar_that_is_cut_off(tmp_path: Path, place: str) -> None:
    path = write_tar(tmp_path / "cut.tar", samples(4))
    with tarfile.open(path) as tar:
        third, last = tar.getmember("0002.txt"), tar.getmember("0003.txt")
    end = {
        "inside a file": third.offset_data + 5,
        "inside a header": third.offset + 100,
        "after a file": third.offset,
        "before the end mark": last.offset_data + 512,
    }[place]
    path.write_bytes(path.read_bytes()[:end])
    complete, name = (4, "0003.txt") if place == "before the end mark" else (2, "0002.jpg")
    problem = f"data: {path} is cut off or damaged after {name}, its last complete file; "
    assert refusal(path).startswith(
        f"{problem}copy or download it again, or use its complete samples with --skip-broken"
    )
    opened = open_captions(path, skip_broken=True)
    assert list(by_name(opened).values()) == [(f"caption {number:04d}",) for number in range(complete)]
    assert opened.notes[0].startswith(problem)


def test_tars_that_cannot_be_read(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", samples(3))
    content = path.read_bytes()
    with tarfile.open(path) as tar:
        header = tar.getmember("0001.txt").offset
    path.write_bytes(content[: header + 124] + b"\xff" * 12 + content[header + 136 :])  # the size is -1
    assert "is cut off or damaged after 0001.jpg" in refusal(path)
    path.write_bytes(gzip.compress(content))
    assert "it is compressed: decompress it first, or unpack it" in refusal(path)
    path.write_bytes(b"no tar" * 1000)
    assert "cannot be read as an uncompressed tar: " in refusal(path)
    path.write_bytes(b"")
    assert "empty file; copy or download it again" in refusal(path)
    packed = tmp_path / "flickr8k.tar.gz"
    packed.write_bytes(gzip.compress(content))
    assert is_captions(packed)
    assert "is compressed, so single images cannot be read from it; unpack it" in refusal(packed)


@pytest.mark.thorough
def test_members_are_decoded_as_files_are(tmp_path: Path) -> None:
    content = samples(6)
    opened = open_captions(write_tar(tmp_path / "a.tar", content))
    for name, data in content[::2]:
        (tmp_path / name).write_bytes(data)
    files = Files("files", tuple(tmp_path / image.name for image in opened.images), None)
    members, views = Files("members", opened.images, None), Views.named("simclr-cifar")
    assert torch.equal(members.in_memory(views).pixels, files.in_memory(views).pixels)
    assert torch.equal(members.read(3), files.read(3))
    assert torch.equal(decode(opened.images[:2], views), decode(files.paths[:2], views))
    assert members.fingerprint == members.in_memory(views).fingerprint != files.fingerprint
    for workers in (0, 1):
        reader = StreamedImages(members, views, torch.device("cpu"), workers, 60.0)
        (streamed,) = reader.stage([[4, 1]], seed=1, epoch=2)
        reader.close()
        (expected,) = StreamedImages(files, views, torch.device("cpu"), 0, 60.0).stage([[4, 1]], seed=1, epoch=2)
        assert all(map(torch.equal, streamed, expected))


def test_a_broken_member_is_named(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "a.tar", [*samples(2), ("b.jpg", b"no image"), ("b.txt", b"x"), ("e.jpg", b""), ("e.txt", b"x")]
    )
    images = open_captions(path).images
    for index, reason in ((2, "its content is none of PNG"), (3, "the file is empty")):
        with pytest.raises(ValueError, match=rf"^data: image 0, .*a\.tar/[be]\.jpg, cannot be read: {reason}"):
            next(whole(Files("members", images[index:], None), Recipe(32), batch=2, workers=0))
    member = images[0]
    assert isinstance(member, ShardMember)
    path.write_bytes(path.read_bytes()[: member.offset + 5])
    with pytest.raises(ValueError, match=r"has changed since it was listed: it ends inside 0000\.jpg"):
        member.read()


def test_tars_of_webdataset_itself(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "own.tar")) as writer:
        for name, texts in CAPTIONS.items():
            pixels = Image.open(io.BytesIO(image_bytes(name)))
            writer.write({"__key__": name[0], "jpg": pixels, "txt": texts[0], "json": {"captions": list(texts)}})
    assert list(open_captions(tmp_path / "own.tar").captions) == [(texts[0],) for texts in CAPTIONS.values()]
