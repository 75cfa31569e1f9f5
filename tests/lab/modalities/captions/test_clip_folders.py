"""Local folders of CLIP and SigLIP: embeddings of the libraries themselves, and folders that cannot be loaded."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from clip_folders import LENGTH, WIDTH, save_clip, save_open_clip
from mixed_folder import make_mixed_folder
from PIL import Image
from safetensors.torch import load_file, save_file
from sentences import bert
from torch import Tensor
from transformers import AutoImageProcessor, AutoTokenizer

from contrapose.lab.modalities.captions.pretrained import load_image_text_model
from contrapose.lab.modalities.images.decoding import as_rgb

TEXTS = ["a dog", "a photo of the cat .", "unknown", "a dog", "dog " * 20]  # the last is longer than the models
CPU = torch.device("cpu")
needs_open_clip = pytest.mark.skipif(find_spec("open_clip") is None, reason="open_clip is not installed")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = make_mixed_folder(tmp_path_factory.mktemp("images"), each=4)
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "clip"
    save_clip(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(saved, tmp_path / "folder"))


def pictures(paths: list[Path]) -> list[Image.Image]:
    return [as_rgb(Image.open(path)) for path in paths]


@torch.no_grad()
def their_embeddings(model: Any, folder: Path, paths: list[Path], **padding: Any) -> tuple[Tensor, Tensor]:
    """As the documentation of transformers computes them."""
    processor, tokenizer = AutoImageProcessor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    images = model.get_image_features(**processor(images=pictures(paths), return_tensors="pt"))
    inputs = tokenizer(TEXTS, truncation=True, max_length=LENGTH, return_tensors="pt", **padding)
    texts = model.get_text_features(
        **{name: inputs[name] for name in ("input_ids", "attention_mask") if name in inputs}
    )
    return images.pooler_output, texts.pooler_output


@pytest.mark.parametrize(
    ("kind", "padding"),
    [("clip", {"padding": True}), ("siglip", {"padding": "max_length", "return_attention_mask": False})],
)
def test_embeddings_equal_those_of_transformers(
    tmp_path: Path, paths: list[Path], kind: str, padding: dict[str, Any]
) -> None:
    model = save_clip(tmp_path, kind)
    images, texts = their_embeddings(model, tmp_path, paths, **padding)
    loaded = load_image_text_model(tmp_path, device=CPU)
    torch.testing.assert_close(loaded.embed_images(paths), images, atol=1e-5, rtol=0)
    torch.testing.assert_close(loaded.embed_texts(TEXTS), texts, atol=1e-5, rtol=0)
    assert not torch.allclose(images[0], images[-1], atol=1e-3)
    assert not torch.allclose(texts[0], texts[1], atol=1e-3)


@needs_open_clip
def test_embeddings_equal_those_of_open_clip(tmp_path: Path, paths: list[Path]) -> None:
    import open_clip

    model = save_open_clip(tmp_path / "model")
    _, prepare = open_clip.create_model_from_pretrained(f"local-dir:{tmp_path / 'model'}")
    loaded = load_image_text_model(tmp_path / "model", device=CPU)
    with torch.no_grad():
        images = model.encode_image(torch.stack([prepare(image) for image in pictures(paths)]))
        texts = model.encode_text(open_clip.get_tokenizer(f"local-dir:{tmp_path / 'model'}")(TEXTS))
    torch.testing.assert_close(loaded.embed_images(paths), images, atol=1e-5, rtol=0)
    torch.testing.assert_close(loaded.embed_texts(TEXTS), texts, atol=1e-5, rtol=0)
    assert images.shape == (len(paths), WIDTH)


def test_embeddings_do_not_depend_on_the_batch_or_the_form(saved: Path, paths: list[Path]) -> None:
    model = load_image_text_model(saved, device=CPU)
    expected = model.embed_images(paths)
    torch.testing.assert_close(model.embed_images([str(path) for path in paths], batch_size=3), expected)
    torch.testing.assert_close(model.embed_images(pictures(paths), batch_size=1), expected)
    torch.testing.assert_close(model.embed_texts(TEXTS, batch_size=2), model.embed_texts(TEXTS), atol=1e-6, rtol=0)
    pixels = torch.randint(256, (5, 3, 20, 24), dtype=torch.uint8)
    same = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in pixels]
    torch.testing.assert_close(model.embed_images(pixels), model.embed_images(same))


def test_bad_samples_are_refused(saved: Path, paths: list[Path], tmp_path: Path) -> None:
    model = load_image_text_model(saved, device=CPU)
    (tmp_path / "broken.png").write_bytes(b"no image")
    for call, message in [
        (
            lambda: model.embed_images([*paths, tmp_path / "broken.png"], batch_size=5),
            "image 16, .*broken.png, cannot be read",
        ),
        (lambda: model.embed_images(torch.rand(2, 3, 4, 4)), "image 0 cannot be read: expected uint8 of shape"),
        (lambda: model.embed_images([]), "expected at least one sample"),
        (lambda: model.embed_texts("a dog"), r"expected a list, got one text or path; write \['a dog'\]"),
        (lambda: model.embed_texts(["a"], batch_size=0), "batch_size: expected a whole number of at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()  # type: ignore[no-untyped-call]


def refusal(path: Path) -> str:
    with pytest.raises(ValueError, match=r"^encoder: ") as error:
        load_image_text_model(path, device=CPU)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_incomplete_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    assert "does not exist; expected a folder of transformers or open_clip, after clip:" in refusal(folder / "none")
    (folder / "preprocessor_config.json").rename(tmp_path / "kept.json")
    (folder / "processor_config.json").unlink(missing_ok=True)
    assert "has no preprocessor_config.json, which says how images are resized" in refusal(folder)
    (tmp_path / "kept.json").rename(folder / "preprocessor_config.json")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "weights only in pytorch_model.bin, a pickle, which can execute code" in refusal(folder)
    assert "AutoModel.from_pretrained(OLD).save_pretrained(NEW)" in refusal(folder)
    (folder / "config.json").unlink()
    assert "has no config.json" in refusal(folder)


def test_damaged_folders_are_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["visual_projection.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lack 1 parameters of the model in config.json, such as visual_projection.weight" in refusal(folder)
    (folder / "model.safetensors").write_bytes(b"no tensors")
    assert "transformers cannot load" in refusal(folder)


def test_a_sentence_encoder_is_refused(folder: Path) -> None:
    bert().save(str(folder / "bert"))
    shutil.copy(folder / "preprocessor_config.json", folder / "bert")
    assert "has a BertModel, which does not embed both images and texts; expected CLIP or SigLIP" in refusal(
        folder / "bert"
    )


def test_weights_that_are_not_finite_are_refused(saved: Path, folder: Path, paths: list[Path]) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["text_projection.weight"].fill_(torch.nan)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model = load_image_text_model(folder, device=CPU)
    assert model.embed_images(paths).shape == (len(paths), WIDTH)
    with pytest.raises(ValueError, match="the embedding of text 0 is not finite; check the weights"):
        model.embed_texts(TEXTS)


@needs_open_clip
def test_open_clip_folders_that_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_open_clip(folder)
    safe, pickle = folder / "open_clip_model.safetensors", folder / "open_clip_pytorch_model.bin"
    # open_clip itself would read this pickle in place of the safetensors.
    pickle.write_bytes(b"pickle")
    safe.rename(folder / "epoch_32.safetensors")
    assert load_image_text_model(folder, device=CPU).embed_texts(["a dog"]).shape == (1, WIDTH)
    shutil.copy(folder / "epoch_32.safetensors", folder / "epoch_31.safetensors")
    assert "has 2 files of weights (epoch_31.safetensors, epoch_32.safetensors); name one of them" in refusal(folder)
    for file in folder.glob("epoch_*"):
        file.unlink()
    assert "weights only in open_clip_pytorch_model.bin, a pickle" in refusal(folder)
    assert "save_file(torch.load('open_clip_pytorch_model.bin'), 'open_clip_model.safetensors')" in refusal(folder)
    pickle.unlink()
    assert "has no weights; expected open_clip_model.safetensors" in refusal(folder)
    safe.write_bytes(b"no tensors")
    assert "open_clip cannot load" in refusal(folder)
    config = folder / "open_clip_config.json"
    settings = json.loads(config.read_text())
    settings["model_cfg"]["text_cfg"]["hf_model_name"] = "roberta-base"
    config.write_text(json.dumps(settings))
    assert "takes a tower from the Hugging Face hub, roberta-base, and nothing is downloaded" in refusal(folder)
    config.write_text("{}")
    assert "is not a configuration of open_clip: expected model_cfg with text_cfg and vision_cfg" in refusal(folder)


@needs_open_clip
def test_code_of_an_open_clip_folder_is_not_executed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_open_clip(folder)
    settings = json.loads((folder / "open_clip_config.json").read_text())
    settings["model_cfg"]["text_cfg"] |= {"hf_tokenizer_name": "own", "tokenizer_kwargs": {"trust_remote_code": True}}
    (folder / "open_clip_config.json").write_text(json.dumps(settings))
    marker = folder / "executed"
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["own.Own", None]}}))
    assert "open_clip cannot load" in refusal(folder)
    assert not marker.exists()
