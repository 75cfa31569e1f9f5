"""Files that a GPU decodes: crops and evaluation inputs are those of the CPU, but for the decoders' own difference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from contrapose.lab.modalities.images.gpu_decoding import GpuDecoder, decodes_jpeg
from contrapose.lab.modalities.images.stream import Files, GpuDecodedImages, StreamedImages
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.graphed import GraphedSteps

CUDA = torch.device("cuda")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="need a GPU")


def photograph(seed: int) -> Image.Image:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 8, 8, generator=generator)
    pixels = interpolate(coarse, (120 + seed % 40, 150), mode="bicubic")[0].clamp(0, 1) * 255
    return Image.fromarray(pixels.to(torch.uint8).permute(1, 2, 0).numpy())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """24 files of each of two classes, among them PNG, gray, CMYK, rotated and progressive ones."""
    for number in range(48):
        path = tmp_path / "mine" / "ab"[number % 2] / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 6 if number % 5 == 0 else 1
        image = photograph(number)
        if number % 12 == 3:
            image.save(path.with_suffix(".png"))
        else:
            mode = "L" if number % 12 == 5 else "CMYK" if number % 12 == 7 else "RGB"
            image.convert(mode).save(path, quality=90, exif=exif, progressive=number % 12 == 9)
    return tmp_path / "mine"


def staged(reader: StreamedImages, batches: list[list[int]]) -> list[list[Tensor]]:
    return [[part.cpu() for part in parts] for parts in reader.stage(batches, seed=1, epoch=2)]


def readers(folder: Path, views: Views) -> tuple[StreamedImages, GpuDecodedImages]:
    files = Files.of(folder)
    gpu = files.reader(views, CUDA, workers=4, timeout=60)
    assert isinstance(gpu, GpuDecodedImages)
    return StreamedImages(files, views, torch.device("cpu"), 0, 60.0), gpu


def decoded(gpu: GpuDecodedImages) -> list[Tensor]:
    """Return all images as the GPU decodes them."""
    one_by_one = [[index] for index in range(len(gpu.source))]
    return [image.cpu() for (image,) in gpu.decoder.batches(one_by_one, lambda images, indices: images)]


@on_gpu
def test_decoders_differ_by_few_levels(folder: Path) -> None:
    """The GPU's decoder enlarges colours, which most JPEG files have at half the resolution, without smoothing them."""
    cpu, gpu = readers(folder, Views.named("simclr", size=96))
    for index, image in enumerate(decoded(gpu)):
        difference = (image.float() - cpu.source.read(index)[0].float()).abs()
        assert difference.mean() < 5, cpu.source.paths[index]


@on_gpu
@pytest.mark.parametrize("size", [32, 96])
def test_crops_of_the_same_pixels_are_equal(folder: Path, size: int) -> None:
    _, gpu = readers(folder, Views.named("simclr", size=size))
    images, batch = decoded(gpu), [47, 3, 3, 21]
    (crops,) = staged(gpu, [batch])
    for place, index in enumerate(batch):
        for crop, expected in zip(crops, gpu.views.crop_one(images[index], index, seed=1, epoch=2), strict=True):
            torch.testing.assert_close(crop[place], expected, rtol=0, atol=2e-5)


@on_gpu
def test_evaluation_inputs_of_the_same_pixels_are_equal(folder: Path) -> None:
    _, gpu = readers(folder, Views.named("simclr", size=96))
    inputs = torch.cat([part.cpu() for part in gpu.plain()])
    for ours, image in zip(inputs, decoded(gpu), strict=True):
        torch.testing.assert_close(ours, gpu.views.plain(image[None])[0], rtol=0, atol=2e-4)


@on_gpu
def test_contents_are_read_once(folder: Path) -> None:
    _, gpu = readers(folder, Views.named("simclr", size=96))
    first = staged(gpu, [[0, 1, 2, 4]])
    for path in folder.rglob("*.jpg"):
        path.unlink()
    second = staged(gpu, [[0, 1, 2, 4]])
    assert all(torch.equal(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))


@on_gpu
@pytest.mark.parametrize("damage", ["cut off", "middle", "missing", "text"])
def test_a_broken_file_is_named(folder: Path, tmp_path: Path, damage: str) -> None:
    broken = folder / "a" / "04.jpg"
    content = bytearray(broken.read_bytes())
    if damage == "missing":
        files = Files.of(folder)
        broken.unlink()
    else:
        content = {
            "cut off": content[:300],
            "text": bytearray(b"not an image"),
            "middle": content[:20] + content[400:],
        }[damage]
        broken.write_bytes(content)
        files = Files.of(folder)
    gpu = files.reader(Views.named("simclr", size=96), CUDA, workers=2, timeout=60)
    with pytest.raises(ValueError, match=r"^data: image \d+, .*04\.jpg, cannot be read: "):
        list(gpu.train([list(range(len(files)))], seed=0, epoch=0))


@on_gpu
def test_a_batch_of_many_pixels_is_decoded_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, gpu = readers(folder, Views.named("simclr", size=96))
    whole = staged(gpu, [list(range(12))])
    monkeypatch.setattr("contrapose.lab.modalities.images.gpu_decoding._MOST_PIXELS", 50_000)
    parts = staged(gpu, [list(range(12))])
    assert all(torch.equal(a, b) for a, b in zip(whole[0], parts[0], strict=True))


@on_gpu
@pytest.mark.parametrize("accumulate", [1, 2])
def test_streamed_steps_are_captured(folder: Path, tmp_path: Path, accumulate: int) -> None:
    """Graphed steps on streamed images have the losses of eager steps."""
    run = Run(data=str(folder), stream=True, batch=8, epochs=2, accumulate=accumulate, views="simclr", size=96, knn=3,
              encoder="resnet18", precision="fp32", hold_out=0.0, lr=0.001)  # fmt: skip
    losses = []
    for fast in (True, False):
        trainer = Trainer(run, tmp_path / str(fast), fast=fast, workers=2, log=lambda text: None)
        trainer.train()
        assert isinstance(trainer.steps, GraphedSteps) == fast
        losses.append(trainer.record["loss"] if trainer.record else None)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@on_gpu
def test_a_stopped_epoch_ends_its_threads(folder: Path) -> None:
    _, gpu = readers(folder, Views.named("simclr", size=96))
    coming = gpu.stage([[0, 1]] * 50, seed=0, epoch=0)
    next(coming)
    coming.close()
    with pytest.raises(StopIteration):
        next(coming)


def test_a_cpu_decodes_with_workers(folder: Path) -> None:
    files, views = Files.of(folder), Views.named("simclr", size=48)
    reader = files.reader(views, torch.device("cpu"), workers=0, timeout=60)
    assert type(reader) is StreamedImages
    assert not decodes_jpeg(torch.device("cpu"))
    (batch,) = reader.train([[0, 5]], seed=0, epoch=0)
    (cropped,) = reader.stage([[0, 5]], seed=0, epoch=0)
    assert torch.equal(batch[0], views.finish(cropped, torch.tensor([0, 5]), seed=0, epoch=0)[0])


def test_files_are_read_as_the_gpu_needs_them(folder: Path) -> None:
    """On the CPU: which files are left encoded, and which are decoded."""
    files = Files.of(folder)
    decoder = GpuDecoder(files.paths, torch.device("cpu"), threads=1, max_megapixels=1.0)
    kinds = {path.name: decoder._read_one(index).header for index, path in enumerate(files.paths)}
    decoded = {name for name, header in kinds.items() if header is None}
    assert decoded == {f"{number:02d}.png" for number in (3, 15, 27, 39)} | {f"{n:02d}.jpg" for n in (7, 19, 31, 43)}
    assert len(decoder.kept) == 40
    assert decoder._read_one(1).pixels == files.read(1)[0, 0].numel()
    small = GpuDecoder(files.paths, torch.device("cpu"), threads=1, max_megapixels=0.01)
    with pytest.raises(ValueError, match=r"image 1, .* megapixels \(the setting max_megapixels\)"):
        small._read_one(1)
