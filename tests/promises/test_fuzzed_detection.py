"""VOC and COCO folders with damaged annotations are read, or refused with a ValueError that names the file."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Promise
from fuzzing import COUNTS, VALUES, Reader, check_reader, mutate, replace_anywhere

from contrapose.lab.evaluation.detection import draw_shapes, read_detection_data

SIDE = 40
COCO, VOC = "annotations/instances_train2017.json", "VOC2007/Annotations/000000.xml"
TEXTS = (
    "",
    "inf",
    "nan",
    "-1",
    "1e400",
    "9" * 400,
    "٣",
    "1_0",
    "many",
    "0",
    "1e9",
    "\u202e",
    "<x/>",
    "&x;",
    "<![CDATA[",
    "../..",
)
MASKS: tuple[Any, ...] = (
    [[]], [[1, 2]], [[1, 2, 3, 4, 5]], [[1e300] * 6], [[float("inf")] * 6], [["1"] * 6], [None], [[[1] * 6]], "polygon", [1] * 6,
    [[-1e9, 0, 1e9, 0, 0, 1e9]], {"size": [SIDE, SIDE], "counts": [1]}, {"size": [SIDE, SIDE], "counts": [2**31, -1]},
    {"size": [10**6, 10**6], "counts": [10**12]}, {"size": [SIDE, SIDE], "counts": "\u0660"}, {"size": [SIDE, SIDE], "counts": "o" * 99},
    {"size": [SIDE, SIDE], "counts": ""}, {"size": SIDE, "counts": []}, {"counts": []}, {"size": [SIDE, SIDE], "counts": "PPP"},
)  # fmt: skip


def read(folder: Path, *, masks: bool = False) -> None:
    """Read all images and boxes as training and its score do."""
    data = read_detection_data(folder, masks=masks)
    for number in range(len(data.train)):
        data.train[number]
    for number in range(len(data.test)):
        data.test.annotated(number)


def damage_json(content: bytes, rng: random.Random) -> bytes:
    """Damage bytes, a value at any depth, several objects alike, or a mask; or nest deeply."""
    match rng.randrange(8):
        case 0:
            return mutate(content, rng)
        case 1:
            return content[:-1] + b', "x": ' + b"[" * 10**5
        case 2 | 3:
            described = json.loads(content)
            rng.choice(described["annotations"])["segmentation"] = rng.choice(MASKS)
            return json.dumps(described).encode()
        case 4:
            described = json.loads(content)
            entries = described[rng.choice(list(described))]
            key, value = rng.choice(list(entries[0])), rng.choice(VALUES)
            for entry in entries:
                entry[key] = value
            return json.dumps(described).encode()
        case _:
            return json.dumps(replace_anywhere(json.loads(content), rng)).encode()


def damage_xml(content: bytes, rng: random.Random) -> bytes:
    """Damage bytes or the text of an element; or nest deeply."""
    match rng.randrange(8):
        case 0 | 1:
            return mutate(content, rng)
        case 2:
            return content.replace(b"<object>", b"<object>" * 20_000, 1)
        case _:
            texts = list(re.finditer(rb">([^<]*)<", content))
            text = rng.choice(texts)
            return content[: text.start(1)] + rng.choice(TEXTS).encode() + content[text.end(1) :]


def drawn(folder: Path, layout: str, file: str) -> list[bytes]:
    """Draw shapes; return the content of a file."""
    draw_shapes(folder / layout, layout=layout, train=4, test=2, size=SIDE)
    return [(folder / layout / file).read_bytes()]


def of_coco(file: str, *, masks: bool) -> Reader:
    return Reader(f"coco/{file}", lambda folder: drawn(folder, "coco", file), lambda path: read(path.parents[1], masks=masks),
                  damage_json, named=True)  # fmt: skip


def of_voc(file: str, damage: Any = mutate) -> Reader:
    root = len(Path(file).parts) - 1
    return Reader(
        f"voc/{file}",
        lambda folder: drawn(folder, "voc", file),
        lambda path: read(path.parents[root]),
        damage,
        named=True,
    )


READERS = {
    "COCO": of_coco(COCO, masks=False),
    "COCO with masks": of_coco(COCO, masks=True),
    "COCO with masks, for the score": of_coco(COCO.replace("train", "val"), masks=True),
    "VOC": of_voc(VOC, damage_xml),
    "VOC, for the score": of_voc(VOC.replace("/0", "/1"), damage_xml),
    "VOC's list of images": of_voc("VOC2007/ImageSets/Main/trainval.txt"),
    "classes.txt": of_voc("classes.txt"),
}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", READERS)
def test_damaged_annotations_are_read_or_refused(name: str, count: int, tmp_path: Path, promise: Promise) -> None:
    check_reader(name, READERS[name], count, tmp_path, promise)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a loop of links"])
def test_what_is_not_a_file_is_refused(name: str, kind: str, tmp_path: Path, promise: Promise) -> None:
    """Opening a named pipe would wait for ever."""
    reader, path = READERS[name], tmp_path / READERS[name].name
    reader.contents(tmp_path)
    path.unlink()
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path)
    with pytest.raises(ValueError, match=re.escape(str(path.parent))):
        reader.read(path)
    promise.case()
