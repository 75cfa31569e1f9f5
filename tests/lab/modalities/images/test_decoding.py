"""Files are decoded as a viewer shows them, and evaluation sees what torchvision's transforms make of them."""

from __future__ import annotations

import os
import random
import stat
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from contrapose.lab.cli import main
from contrapose.lab.modalities.images.decoding import (
    Problem,
    attempt,
    decode,
    decode_fast,
    decode_square,
    quiet_decoders,
)
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.images.views import RECIPES, Views

CPU = torch.device("cpu")
# Width and height: square, one pixel off, portrait, landscape, tiny, exactly the size of the views, a panorama.
SIZES = [(64, 64), (33, 32), (32, 33), (40, 97), (97, 40), (8, 8), (96, 96), (111, 110), (2000, 30), (31, 257)]


def noise(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width * 10_000 + height)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    for width, height in SIZES:
        noise(width, height).save(tmp_path / "mine" / f"{width}x{height}.png")
    return tmp_path / "mine"


@pytest.mark.parametrize(
    ("name", "size", "resized"),
    [("simclr-cifar", None, 32), ("simclr-64", None, 64), ("align-uniform-stl", None, 70), ("align-uniform-stl", 32, 35),
     ("moco-v2", 96, 110), ("moco-v2", 97, 111), ("moco-v2", None, 256), ("digits", 8, 8), ("simclr", 65, 74)],
)  # fmt: skip
def test_evaluation_inputs_are_those_of_torchvision(folder: Path, name: str, size: int | None, resized: int) -> None:
    views, files = Views.named(name, size=size), Files.of(folder)
    recipe = views.recipes[0]
    assert recipe.resized == resized
    theirs = transforms.Compose(
        [
            transforms.Resize(resized),
            transforms.CenterCrop(recipe.size),
            transforms.ToTensor(),
            transforms.Normalize(recipe.mean, recipe.std),
        ]
    )
    expected = torch.stack([theirs(Image.open(str(path)).convert("RGB")) for path in files.paths])
    in_memory = torch.cat(list(files.in_memory(views).reader(views, CPU, workers=0, timeout=60).plain()))
    streamed = torch.cat(list(files.reader(views, CPU, workers=0, timeout=60).plain()))
    torch.testing.assert_close(in_memory, expected, rtol=0, atol=1e-6)
    assert torch.equal(streamed, in_memory)
    assert torch.equal(views.light().plain(files.in_memory(views).pixels), in_memory)  # fine-tuning sees the same


def test_workers_decode_the_same_inputs(folder: Path) -> None:
    views, files = Views.named("moco-v2", size=96), Files.of(folder)
    batches = [torch.cat(list(files.reader(views, CPU, workers=n, timeout=60).plain())) for n in (0, 2)]
    assert torch.equal(*batches)


def test_an_icon_changes_no_other_image(folder: Path) -> None:
    views = Views.named("simclr-cifar")
    before = Files.of(folder).in_memory(views)
    noise(8, 8).save(folder / "000-first.png")
    after = Files.of(folder).in_memory(views)
    assert after.size == before.size == 32
    assert torch.equal(after.pixels[1:], before.pixels)


def test_arrays_follow_the_same_rule() -> None:
    """An array of exactly the views' size has a margin like any other, and one of the resized size is only cropped."""
    views = Views.named("moco-v2", size=96)
    raw = torch.randint(0, 256, (2, 3, 110, 110), dtype=torch.uint8)
    cropped = raw[:, :, 7:103, 7:103].float() / 255
    torch.testing.assert_close(
        views.plain(raw), transforms.Normalize(views.recipes[0].mean, views.recipes[0].std)(cropped)
    )
    tensor_transforms = transforms.Compose([transforms.Resize(110, antialias=True), transforms.CenterCrop(96)])
    plain = Views.named("kukleva", size=96).plain  # not normalised
    for height, width in ((96, 96), (50, 131), (113, 110)):
        raw = torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8)
        torch.testing.assert_close(plain(raw), tensor_transforms(raw.float() / 255), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", sorted(RECIPES))
@pytest.mark.parametrize("size", [8, 15, 96])
def test_recipes_work_at_any_size(name: str, size: int) -> None:
    images = torch.randint(0, 256, (2, 3, 20, 24), dtype=torch.uint8)
    views = Views.named(f"{name}+local2", 2, size=size)
    large, small = views.train(images, torch.arange(2), seed=0, epoch=0)
    assert large.shape == (2, 2, 3, size, size)
    assert small.shape[:2] == (2, 2)
    assert large.isfinite().all()
    assert small.isfinite().all()
    assert views.plain(images).shape == (2, 3, size, size)


def test_a_size_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match=r"size: expected 8 to 1024 pixels, .* got 7"):
        Views.named("simclr-cifar", size=7)


def halves() -> Image.Image:
    """Red on the left, blue on the right, 8 × 4 pixels."""
    image = Image.new("RGB", (8, 4), "red")
    image.paste("blue", (4, 0, 8, 4))
    return image


def decoded(image: Image.Image, path: Path, **options: Any) -> np.ndarray[Any, Any]:
    """Save and decode an image; return (H, W, 3)."""
    image.save(path, **options)
    return decode(path).permute(1, 2, 0).numpy()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(orientation: int, tmp_path: Path) -> None:
    upright = noise(8, 4)
    inverse = {
        1: (), 2: (Image.Transpose.FLIP_LEFT_RIGHT,), 3: (Image.Transpose.ROTATE_180,), 4: (Image.Transpose.FLIP_TOP_BOTTOM,),
        5: (Image.Transpose.TRANSPOSE,), 6: (Image.Transpose.ROTATE_90,), 7: (Image.Transpose.TRANSVERSE,),
        8: (Image.Transpose.ROTATE_270,),
    }[orientation]  # fmt: skip
    stored, exif = upright, Image.Exif()
    for step in inverse:
        stored = stored.transpose(step)
    exif[0x0112] = orientation
    assert (decoded(stored, tmp_path / "x.png", exif=exif) == np.asarray(upright)).all()


def test_transparent_pixels_are_drawn_on_white(tmp_path: Path) -> None:
    image = halves().convert("RGBA")
    alpha = Image.new("L", image.size, 255)
    alpha.paste(0, (0, 0, 4, 4))
    alpha.paste(128, (4, 0, 6, 4))
    image.putalpha(alpha)
    pixels = decoded(image, tmp_path / "rgba.png")
    assert (pixels[:, :4] == 255).all()
    assert abs(pixels[:, 4:6].astype(int) - [127, 127, 255]).max() <= 1
    assert (pixels[:, 6:] == [0, 0, 255]).all()
    gray = Image.new("LA", (2, 1), (10, 0))
    gray.putpixel((1, 0), (10, 255))
    assert decoded(gray, tmp_path / "la.png")[0].tolist() == [[255] * 3, [10] * 3]
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.putpixel((1, 0), 1)
    for ending in ("png", "gif"):
        assert decoded(palette, tmp_path / f"p.{ending}", transparency=0)[0].tolist() == [[255] * 3, [0, 255, 0]]
    assert decoded(palette, tmp_path / "opaque.png")[0].tolist() == [[255, 0, 0], [0, 255, 0]]


@pytest.mark.parametrize("ending", ["jpg", "tif"])
def test_cmyk_becomes_rgb(ending: str, tmp_path: Path) -> None:
    pixels = decoded(halves().convert("CMYK"), tmp_path / f"x.{ending}")
    assert abs(pixels.astype(int) - np.asarray(halves())).max() <= (90 if ending == "jpg" else 1)
    assert abs(pixels[:, [0, 7]].astype(int) - [[255, 0, 0], [0, 0, 255]]).max() <= 20


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_16_bits_are_scaled_and_not_clipped(ending: str, tmp_path: Path) -> None:
    values = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    assert decoded(Image.fromarray(values), tmp_path / f"x.{ending}")[0, :, 1].tolist() == [0, 1, 128, 255]


@pytest.mark.parametrize("bits", ["int32", "float32"])
def test_32_bits_are_read_by_one_rule_for_all_images(bits: str, tmp_path: Path) -> None:
    """White is 65,535 or 1.0 whatever else is in the image: a white of its own would make a dark image bright."""
    white = 65535 if bits == "int32" else 1.0
    for top, expected in ((1.0, [0, 51, 255]), (0.12, [0, 6, 31])):
        values = (np.array([[0, 0.2, 1]]) * top * white).astype(bits)
        assert decoded(Image.fromarray(values), tmp_path / "x.tif")[0, :, 0].tolist() == expected


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
def test_a_16_bit_ramp_keeps_all_its_shades(ending: str, tmp_path: Path) -> None:
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    if ending == "pgm":
        (tmp_path / "x.pgm").write_bytes(b"P5 256 256 65535\n" + ramp.astype(">u2").tobytes())
        pixels = decode(tmp_path / "x.pgm").permute(1, 2, 0).numpy()
    else:
        pixels = decoded(Image.fromarray(ramp), tmp_path / f"x.{ending}")
    assert (pixels == (ramp / 257).round()[..., None]).all()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.array([[0, 131_070]], np.int32), "32-bit integers from 0 to 65,535, got 0 to 131070"),
        (np.array([[-1, 9]], np.int32), "32-bit integers from 0 to 65,535, got -1 to 9"),
        (np.array([[0, 1.5]], np.float32), "floating-point numbers from 0 to 1, got 0 to 1.5"),
        (np.array([[-1, 1]], np.float32), "floating-point numbers from 0 to 1, got -1 to 1"),
        (np.array([[0, 255]], np.float32), "floating-point numbers from 0 to 1, got 0 to 255"),
        (np.array([[0, np.nan]], np.float32), "floating-point numbers from 0 to 1, got nan to nan"),
    ],
)
def test_values_without_a_known_white_are_refused(values: Any, reason: str, tmp_path: Path) -> None:
    Image.fromarray(values).save(tmp_path / "x.tif")
    problem = attempt(decode, tmp_path / "x.tif")
    assert isinstance(problem, Problem)
    assert problem.why == f"expected {reason}; convert the file to 8 or 16 bits"


def test_the_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    for ending in ("gif", "webp", "tif", "png"):
        pixels = decoded(frames[0], tmp_path / f"x.{ending}", save_all=True, append_images=frames[1:])
        assert abs(pixels.astype(int) - [255, 0, 0]).max() <= 3


def test_other_formats(tmp_path: Path) -> None:
    for ending in ("bmp", "webp", "ppm"):
        options = {"lossless": True} if ending == "webp" else {}
        assert (decoded(halves(), tmp_path / f"x.{ending}", **options) == np.asarray(halves())).all()
    Image.new("1", (2, 2), 1).save(tmp_path / "bits.png")
    assert (decode(tmp_path / "bits.png") == 255).all()


@pytest.mark.thorough
def test_no_program_is_started(tmp_path: Path) -> None:
    """Pillow hands EPS files to Ghostscript, whatever their name; here they are files of an unknown format."""
    programs, mark = tmp_path / "bin", tmp_path / "started"
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (programs / "gs").chmod(stat.S_IRWXU)
    for ending in ("png", "jpg"):
        (tmp_path / f"x.{ending}").write_bytes(
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
        )
    opened_by_pillow = "from PIL import Image; Image.open({path!r}).load()"
    opened_here = (
        "from pathlib import Path; from contrapose.lab.modalities.images.decoding import attempt, decode; "
        "print(attempt(decode, Path({path!r})).why)"
    )
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    for ending in ("png", "jpg"):
        code = opened_here.format(path=str(tmp_path / f"x.{ending}"))
        output = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
        assert output == "its content is none of PNG, JPEG, BMP, GIF, TIFF, PPM, WEBP\n"
        assert not mark.exists()
    code = opened_by_pillow.format(path=str(tmp_path / "x.png"))
    subprocess.run([sys.executable, "-c", code], env=environment, check=False, capture_output=True)
    assert mark.exists()  # so the test would notice


def test_the_limit_is_a_setting_of_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "mine" / part / name).mkdir(parents=True)
            for i in range(4):
                noise(30, 30 + i).save(tmp_path / "mine" / part / name / f"{i}.png")
    noise(60, 50).save(tmp_path / "mine" / "train" / "cat" / "large.png")
    limit = ("--max-megapixels", "0.001")
    command = ["--data", str(tmp_path / "mine"), "--views", "simclr-cifar", "--encoder", "tiny", "--batch", "4"]
    command = ["train", *command, "--epochs", "1", "--lr", "0.01", "--metrics", "0", "--knn", "2"]
    command += ["--out", str(tmp_path / "run")]
    for stream in ((), ("--stream", "--workers", "0")):
        with pytest.raises(SystemExit):
            main([*command, *stream, *limit])
        message = "large.png, cannot be read: 60 × 50 pixels are more than 0.001 megapixels"
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["data", "check", str(tmp_path / "mine"), *limit])
    assert "large.png: 60 × 50 pixels are more than 0.001 megapixels" in capsys.readouterr().out
    main(["data", "check", str(tmp_path / "mine")])
    main([*command, *limit, "--skip-broken"])
    assert "1 broken file is left out" in capsys.readouterr().out


def test_damaged_metadata_is_no_reason_to_refuse(tmp_path: Path) -> None:
    noise(8, 4).save(tmp_path / "x.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff garbage")
    with quiet_decoders():
        assert decode(tmp_path / "x.jpg").shape == (3, 4, 8)


def test_squares_of_random_sizes_are_torchvisions(tmp_path: Path) -> None:
    rng = random.Random(0)
    for _ in range(60):
        width, height, size = rng.randint(1, 90), rng.randint(1, 90), rng.randint(8, 40)
        resized = rng.randint(size, 50)
        noise(width, height).save(tmp_path / "x.bmp")
        square = decode_square(tmp_path / "x.bmp", size=size, resized=resized)
        assert square.shape == (3, resized, resized)
        crop = transforms.CenterCrop(size)
        expected = transforms.PILToTensor()(crop(transforms.Resize(resized)(Image.open(tmp_path / "x.bmp"))))
        assert torch.equal(crop(square), expected), (width, height, size, resized)


@pytest.mark.parametrize("name", ["plain.jpg", "gray.jpg", "rotated.jpg", "cmyk.jpg", "image.png"])
def test_the_fast_decoder_gives_pillows_pixels(tmp_path: Path, name: str) -> None:
    picture, exif = (
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (37, 50, 3), dtype=np.uint8)),
        Image.Exif(),
    )
    exif[0x0112] = 6 if name == "rotated.jpg" else 1
    mode = {"gray.jpg": "L", "cmyk.jpg": "CMYK"}.get(name, "RGB")
    picture.convert(mode).save(tmp_path / name, exif=exif)
    with quiet_decoders():
        assert torch.equal(decode_fast(tmp_path / name), decode(tmp_path / name))
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:300])
    slow, fast = (attempt(read, tmp_path / name) for read in (decode, decode_fast))
    assert isinstance(fast, Problem)
    assert fast == slow


def write_tiled(path: Path, side: int, kind: str = "I") -> Path:
    """Write a TIFF of 16 × 16 pixels in one tile of any size, whose sides are stored with a type of struct's."""
    pixels = zlib.compress(bytes(side**2 if side < 1000 else 100))
    number = {"I": 4, "f": 11}[kind]
    values = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side, 324: 8, 325: len(pixels)}
    entries = [
        struct.pack(f"<HHI{kind}", tag, number, 1, value)
        if tag in (322, 323)
        else struct.pack("<HHII", tag, 4, 1, value)
        for tag, value in values.items()
    ]
    header = struct.pack("<2sHI", b"II", 42, 8 + len(pixels))
    path.write_bytes(header + pixels + struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4))
    return path


def test_the_tiles_of_a_tiff_are_limited(tmp_path: Path) -> None:
    """A file of 200 bytes would take 732 MiB: whole tiles are unpacked, whatever the size of the image."""
    assert decode(write_tiled(tmp_path / "a.tif", 16)).shape == (3, 16, 16)
    with pytest.raises(ValueError, match=r"^its tiles: 16000 × 16000 pixels are more than 100 megapixels"):
        decode(write_tiled(tmp_path / "a.tif", 16000))
    with pytest.raises(ValueError, match="the size of its tiles is damaged"):
        decode(write_tiled(tmp_path / "a.tif", 16, "f"))
