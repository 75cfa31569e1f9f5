"""The built-in captioned shapes: images show what their captions say, and a tiny model learns to find one by the other."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from contrapose.lab.evaluation import CaptionIndex, caption_chance
from contrapose.lab.modalities.captions.captions import Captions
from contrapose.lab.modalities.captions.files import is_captions, open_captions
from contrapose.lab.modalities.captions.settings import CAPTION_SETTINGS
from contrapose.lab.modalities.captions.shapes import COLOURS, SHAPES, SIDE, Drawing, drawings, labelled_shapes
from contrapose.lab.training import Run, Trainer

DATA = Path("shapes")


def nearest_colour(pixel: tuple[int, ...]) -> str:
    return min(COLOURS, key=lambda name: sum((a - b) ** 2 for a, b in zip(pixel, COLOURS[name], strict=True)))


def pixels(drawing: Drawing) -> Image.Image:
    return Image.open(BytesIO(drawing.read())).convert("RGB")


def test_images_show_what_their_captions_say() -> None:
    for drawing in drawings()[:60]:
        image = pixels(drawing)
        x, y = map(int, drawing.centre)
        centre, corner = image.getpixel((x, y)), image.getpixel((0, SIDE - 1))
        assert isinstance(centre, tuple)
        assert isinstance(corner, tuple)
        colour, background = nearest_colour(centre[:3]), nearest_colour(corner[:3])
        assert drawing.captions == (
            f"a {colour} {drawing.shape} on a {background} background",
            f"{colour} {drawing.shape} on {background}",
        )


def test_shapes_have_their_areas() -> None:
    plain = Drawing(0, "", "black", "white", (1.0, 1.0), (SIDE / 2, SIDE / 2), SIDE / 3, 0.2)
    star = 10 * 0.45 * math.sin(math.pi / 5) / 2
    areas = {"circle": math.pi, "square": 2.0, "triangle": 3 * math.sqrt(3) / 4, "star": star, "cross": 2.0}
    images = {shape: pixels(replace(plain, shape=shape)).convert("L").tobytes() for shape in SHAPES}
    for shape, image in images.items():
        assert sum(value < 128 for value in image) == pytest.approx(areas[shape] * plain.radius**2, rel=0.12), shape
    assert len(set(images.values())) == len(SHAPES)


def test_the_set_is_always_the_same() -> None:
    data = open_captions(DATA)
    assert data == open_captions(DATA)
    assert (data.parts.count("train"), data.parts.count("test"), data.notes) == (2000, 300, ())
    assert len(set(data.captions)) == len(SHAPES) * len(COLOURS) * (len(COLOURS) - 1)
    image = data.images[5]
    assert pickle.loads(pickle.dumps(image)) == image  # workers get it
    assert str(image) == "shapes/0005.png"
    labelled = labelled_shapes()
    assert labelled.paths == tuple(image for image, part in zip(data.images, data.parts, strict=True) if part == "test")
    assert min(labelled.counts()) > 40


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_captions(DATA)
    (tmp_path / "shapes").mkdir()
    assert not is_captions(DATA)
    with pytest.raises(ValueError, match="data: shapes is empty; expected a folder with captions"):
        open_captions(DATA)


def test_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="columns: they are for a file of captions, and shapes has none"):
        open_captions(DATA, columns=("1", "2"))


@pytest.mark.thorough
def test_a_tiny_model_learns_to_find_images_and_captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run(
        **CAPTION_SETTINGS, data="shapes", limit=256, views="captions", size=32, encoder="tiny", text_encoder="tiny",
        text_length=16, width=64, lr=1e-3, warmup=0.0, batch=32, epochs=5, knn_every=5, metrics=0,
    )  # fmt: skip
    trainer = Trainer(run, tmp_path / "run", log=lambda text: None)
    scores = trainer.train()
    test = trainer.split.test
    assert isinstance(test, Captions)
    index = CaptionIndex.of(test.written)
    chance = caption_chance(index.image_of_text, ids=index.ids)
    for name in ("image_to_text_recall_10", "text_to_image_recall_10"):  # 57 and 81 %
        assert scores[name] > 4 * chance[name], name
    assert not (tmp_path / "data").exists()  # nothing is downloaded or kept
