"""Pretrained image-text models in local folders: CLIP and SigLIP from Hugging Face, and models from open_clip.

Nothing is downloaded, and no code in a folder is executed: weights are read from safetensors only, and `trust_remote_code`
is off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from contrapose.extras import TEXT_PACKAGES, needs_extra
from contrapose.lab.devices import own_device
from contrapose.lab.memory_budget import model_budget
from contrapose.lab.modalities.images.decoding import Problem, as_rgb, check_elongation, open_image, read_all
from contrapose.lab.modalities.images.views import LARGEST
from contrapose.lab.modalities.progress import progress_bar
from contrapose.lab.modalities.text.folder import PICKLES, check_files, read_json, weights_size
from contrapose.lab.modalities.text.pretrained import load_tokenizer, load_transformer, loading
from contrapose.validate import check_count

if TYPE_CHECKING:
    from PIL.Image import Image

_OPEN_CLIP = "open_clip_config.json"
# The files of weights to prefer if a folder has several.
_OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors", "model.safetensors")
_IMAGE_SETTINGS = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True)
class ImageTextModel:
    """Map images and texts to embeddings (n, d) in one space. They are not normalised, and are compared by their cosine."""

    image_tower: Callable[[list[Image]], Tensor]  # RGB images of any size -> (b, d)
    text_tower: Callable[[list[str]], Tensor]
    device: torch.device

    @torch.no_grad()
    def embed_images(self, samples: Tensor | Sequence[Any], *, batch_size: int = 64) -> Tensor:
        """Return the embeddings of images on the CPU, in float32.

        samples      a list of paths or PIL images, or uint8 images (n, 3, H, W)
        batch_size   number of images to embed at a time
        """
        _check_samples(samples, batch_size)
        rows: list[Tensor] = []
        # The reader is closed at the first broken file, so that the progress bar ends before the error is printed.
        with closing(read_all(samples, _as_image, "embed images")) as images:  # type: ignore[arg-type]
            while batch := list(islice(images, batch_size)):
                first = batch_size * len(rows)
                readable = [_readable(first + i, samples[first + i], image) for i, image in enumerate(batch)]
                rows.append(self.image_tower(readable).float().cpu())
        return _finite("image", torch.cat(rows))

    @torch.no_grad()
    def embed_texts(self, texts: Sequence[str], *, batch_size: int = 256) -> Tensor:
        """Return the embeddings of texts on the CPU, in float32, in their order; equal texts are embedded once.

        texts        a list of texts
        batch_size   number of texts to embed at a time
        """
        _check_samples(texts, batch_size)
        # Texts of similar length share a batch, to save padding.
        distinct = sorted(dict.fromkeys(texts), key=lambda text: (-len(text), text))
        starts, rows = range(0, len(distinct), batch_size), []
        with progress_bar("embed texts", len(starts)) as advance:
            for start in starts:
                rows.append(self.text_tower(distinct[start : start + batch_size]).float().cpu())
                advance()
        position = {text: row for row, text in enumerate(distinct)}
        return _finite("text", torch.cat(rows)[[position[text] for text in texts]])


def load_image_text_model(path: Path, *, device: torch.device | None = None) -> ImageTextModel:
    """Load an image-text model from a local folder.

    path     folder saved by transformers, with config.json, image settings, a tokenizer and model.safetensors; or by
             open_clip, with open_clip_config.json and weights in safetensors
    device   device to compute on; by default a GPU if there is one
    """
    if not path.is_dir():
        problem = "is a file" if path.exists() else "does not exist"
        raise ValueError(f"encoder: {path} {problem}; expected a folder of transformers or open_clip, after clip:")
    device = device or own_device()
    # A folder may suit both libraries; open_clip is used for folders that transformers cannot read safely.
    for_transformers = (path / "config.json").exists() and any(path.glob("model*.safetensors"))
    load = _load_open_clip if (path / _OPEN_CLIP).exists() and not for_transformers else _load_transformers
    with needs_extra("a model of images and texts", "text", TEXT_PACKAGES):
        model = load(path, device)
    # Settings that contradict each other show only when something is embedded.
    with torch.no_grad():
        model.text_tower(["a"])
        model.image_tower([_as_image(torch.zeros(3, 32, 32, dtype=torch.uint8))])
    return model


def _load_transformers(path: Path, device: torch.device) -> ImageTextModel:
    """Load CLIP, SigLIP, or another transformers model that embeds images and texts by the same two functions."""
    check_files(path)
    if not any((path / name).exists() for name in _IMAGE_SETTINGS):
        raise ValueError(
            f"encoder: {path} has no {_IMAGE_SETTINGS[0]}, which says how images are resized and normalised; copy it from the "
            "model's original folder"
        )
    for name in _IMAGE_SETTINGS:
        _check_sizes(read_json(path / name), path / name)
    from transformers import AutoImageProcessor

    model = load_transformer(path).to(device)
    if not (hasattr(model, "get_image_features") and hasattr(model, "get_text_features")):
        raise ValueError(
            f"encoder: {path} has a {type(model).__name__}, which does not embed both images and texts; expected CLIP or SigLIP"
        )
    tokenizer = load_tokenizer(path)
    with loading(path):
        processor = AutoImageProcessor.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    # SigLIP is trained on texts padded to one length, without a mask.
    siglip = model.config.model_type.startswith("siglip")
    with loading(path):
        length = model.config.text_config.max_position_embeddings
    options = {
        "padding": "max_length" if siglip else True,
        "truncation": True,
        "max_length": length,
        "return_attention_mask": not siglip,
        "return_tensors": "pt",
    }

    def embed_images(images: list[Image]) -> Tensor:
        with loading(path, task="embed images with"):
            return _pooled(model.get_image_features(**processor(images=images, return_tensors="pt").to(device)))

    def embed_texts(texts: list[str]) -> Tensor:
        with loading(path, task="embed texts with"):
            inputs = tokenizer(texts, **options).to(device)
            # Some tokenizers also return token types, which these models do not take.
            names = ("input_ids", "attention_mask")
            return _pooled(model.get_text_features(**{name: inputs[name] for name in names if name in inputs}))

    return ImageTextModel(embed_images, embed_texts, device)


def _pooled(output: Any) -> Tensor:
    """Return a tower's embeddings; transformers returns only embeddings or, in newer versions, further outputs with them."""
    embeddings: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return embeddings


def _load_open_clip(path: Path, device: torch.device) -> ImageTextModel:
    """Load a model through open_clip."""
    text_settings = _check_open_clip(path)
    weights = _open_clip_weights(path)
    with needs_extra("an open_clip folder", "open-clip", {"open_clip"}):
        from open_clip import create_model, get_tokenizer
        from open_clip.factory import load_checkpoint
        from open_clip.transform import PreprocessCfg, image_transform_v2

    # The folder's own settings could allow code execution; open_clip's tokenizer does not know these options.
    safe = {"local_files_only": True, "trust_remote_code": False} if text_settings.get("hf_tokenizer_name") else {}
    what, options = f"encoder: the model in {path}", {"load_weights": False, "pretrained_text": False}
    with loading(path, "open_clip"), _without_logging():
        # Built twice: the first time without memory, since masks of the attention are filled before they are registered.
        with model_budget(what, size=weights_size(path)), torch.device("meta"):
            create_model(f"local-dir:{path}", device="meta", **options)
        # open_clip itself would prefer some pickles to safetensors.
        model = create_model(f"local-dir:{path}", **options)
        load_checkpoint(model, str(weights))
        tokenizer = get_tokenizer(f"local-dir:{path}", **safe)
        prepare = image_transform_v2(PreprocessCfg(**model.visual.preprocess_cfg), is_train=False)
    model = model.to(device).eval()

    def embed_images(images: list[Image]) -> Tensor:
        with loading(path, "open_clip", task="embed images with"):
            embeddings: Tensor = model.encode_image(torch.stack([prepare(image) for image in images]).to(device))
            return embeddings

    def embed_texts(texts: list[str]) -> Tensor:
        with loading(path, "open_clip", task="embed texts with"):
            embeddings: Tensor = model.encode_text(tokenizer(texts).to(device))
            return embeddings

    return ImageTextModel(embed_images, embed_texts, device)


def _check_open_clip(path: Path) -> dict[str, Any]:
    """Return the text tower's settings; refuse a folder whose towers would be downloaded."""
    content = read_json(path / _OPEN_CLIP, size=weights_size(path))
    _check_sizes(content.get("preprocess_cfg"), path / _OPEN_CLIP)
    try:
        settings = content["model_cfg"]
        text, vision = dict(settings["text_cfg"]), dict(settings["vision_cfg"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"encoder: {path / _OPEN_CLIP} is not a configuration of open_clip: expected model_cfg with text_cfg and vision_cfg"
        ) from error
    timm_name = str(vision.get("timm_model_name", ""))
    remote = text.get("hf_model_name") or (timm_name if ":" in timm_name else "")  # timm takes hf-hub:NAME too
    if remote:
        raise ValueError(
            f"encoder: {path} takes a tower from the Hugging Face hub, {remote}, and nothing is downloaded; expected towers of "
            "open_clip or timm"
        )
    if "bpe_path" in (
        text.get("tokenizer_kwargs") or {}
    ):  # open_clip unpacks it whole, and it may lie outside of the folder
        raise ValueError(
            f"encoder: {path} names a vocabulary of its own, bpe_path in {_OPEN_CLIP}, which is not read; expected open_clip's "
            "vocabulary, or hf_tokenizer_name and the tokenizer's files"
        )
    return text


def _check_sizes(settings: Any, path: Path, name: str = "") -> None:
    """Refuse image settings with a size in pixels that no model has: each image of a batch is resized to it."""
    if isinstance(settings, dict):
        for key, value in settings.items():
            # A size may be one number, or a dictionary with height and width, or shortest_edge.
            _check_sizes(value, path, key if "size" in key or not name else name)
    elif isinstance(settings, list):
        for value in settings:
            _check_sizes(value, path, name)
    elif "size" in name and isinstance(settings, int) and settings > LARGEST:
        raise ValueError(f"encoder: {name} in {path}: expected at most {LARGEST} pixels, got {settings}")


def _open_clip_weights(path: Path) -> Path:
    """Return the file of weights in a folder; only safetensors are accepted."""
    files = {file.name: file for file in sorted(path.glob("*.safetensors"))}
    preferred = next((files[name] for name in _OPEN_CLIP_WEIGHTS if name in files), None)
    if preferred is not None or len(files) == 1:
        return preferred or next(iter(files.values()))
    if files:
        raise ValueError(
            f"encoder: {path} has {len(files)} files of weights ({', '.join(files)}); name one of them {_OPEN_CLIP_WEIGHTS[0]}"
        )
    pickles = sorted(file.name for pattern in PICKLES for file in path.glob(pattern))
    if pickles:
        raise ValueError(
            f"encoder: {path} has weights only in {pickles[0]}, a pickle, which can execute code when it is read; if you trust "
            f"the file, convert it with safetensors.torch.save_file(torch.load({pickles[0]!r}), {_OPEN_CLIP_WEIGHTS[0]!r})"
        )
    raise ValueError(f"encoder: {path} has no weights; expected {_OPEN_CLIP_WEIGHTS[0]}")


@contextmanager
def _without_logging() -> Iterator[None]:
    """Disable logging in this block: open_clip warns about missing weights, although they are loaded afterwards."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


def _check_samples(samples: Any, batch_size: int) -> None:
    check_count("batch_size", batch_size, least=1)
    if isinstance(samples, str | Path):
        raise ValueError(f"samples: expected a list, got one text or path; write [{str(samples)!r}]")
    if not len(samples):
        raise ValueError("samples: expected at least one sample, got none")


def _as_image(sample: Any) -> Image:
    """Return a file, PIL image or uint8 tensor (3, H, W) as an upright RGB image."""
    from PIL import Image

    if isinstance(sample, Tensor):
        if sample.dtype != torch.uint8 or sample.ndim != 3 or sample.shape[0] != 3:
            raise ValueError(f"expected uint8 of shape (3, H, W), got {sample.dtype} {tuple(sample.shape)}")
        return Image.fromarray(sample.permute(1, 2, 0).cpu().numpy())
    if isinstance(sample, Image.Image):
        check_elongation(sample.height, sample.width, LARGEST)
        return as_rgb(sample)
    with open_image(Path(sample) if isinstance(sample, str) else sample) as file:
        check_elongation(file.height, file.width, LARGEST)
        return as_rgb(file)


def _readable(index: int, sample: Any, image: Image | Problem) -> Image:
    if isinstance(image, Problem):
        where = "" if isinstance(sample, Tensor) else f", {sample},"
        raise ValueError(f"samples: image {index}{where} cannot be read: {image.why}")
    return image


def _finite(what: str, embeddings: Tensor) -> Tensor:
    finite = embeddings.isfinite().all(1)
    if not bool(finite.all()):
        raise ValueError(
            f"encoder: the embedding of {what} {int((~finite).nonzero()[0])} is not finite; check the weights"
        )
    return embeddings
