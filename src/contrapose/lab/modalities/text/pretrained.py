"""Pretrained sentence encoders in local Hugging Face and sentence-transformers folders.

Nothing is downloaded, and no code in a folder is executed: weights are read from safetensors only, and `trust_remote_code`
is off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contrapose.extras import TEXT_PACKAGES, needs_extra
from contrapose.lab.devices import own_device
from contrapose.lab.memory_budget import OverBudget, model_budget
from contrapose.lab.modalities.progress import progress_bar
from contrapose.lab.modalities.text.folder import EncoderFolder, read_folder, weights_size
from contrapose.lab.modalities.text.tokenizer_growth import check_growth
from contrapose.lab.modalities.text.vocabulary import check_special_tokens, pad_on_the_right
from contrapose.pairs import unit
from contrapose.validate import check_count, check_known

DEFAULT_LENGTH = 128  # tokens, for a folder that specifies no length
_LONGEST = 2**14  # tokens, for a tokenizer that states no limit: transformers then has 10**30
_SAFE = {"local_files_only": True, "trust_remote_code": False}


def _mean(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the states (B, T, d) over each text's tokens, without padding."""
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


def _last(states: Tensor, mask: Tensor) -> Tensor:
    """Return the state of each text's last token, from (B, T, d): with causal attention, only this token attends to all."""
    places = (mask.sum(1) - 1).clamp(min=0)
    return states.gather(1, places[:, None, None].expand(-1, 1, states.shape[-1]))[:, 0]


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": lambda states, mask: states[:, 0],
    "mean": _mean,
    "last": _last,
}


@dataclass(frozen=True)
class SentenceEncoder:
    """Map texts to embeddings (n, d): a transformer and the pooling of its last hidden states."""

    path: Path  # folder
    model: Any
    tokenizer: Any
    pooling: str  # a name in POOLINGS
    length: int  # tokens after which a text is truncated
    normalise: bool  # whether embeddings are scaled to unit length
    device: torch.device

    @torch.no_grad()
    def __call__(self, texts: Sequence[str], *, batch_size: int = 64) -> Tensor:
        """Return the embeddings of the texts on the CPU, in their order; equal texts are encoded once."""
        check_count("batch_size", batch_size, least=1)
        # Texts of similar length share a batch, to save padding. The longest texts come first, so that a lack of memory
        # shows at once.
        distinct = sorted(dict.fromkeys(texts), key=lambda text: (-len(text), text))
        batches = [distinct[start : start + batch_size] for start in range(0, len(distinct), batch_size)]
        with progress_bar("encode sentences", len(batches)) as advance:
            rows = [self._encode(batch, advance) for batch in batches]
        position = {text: row for row, text in enumerate(distinct)}
        width = self.model.config.hidden_size
        return torch.cat([torch.empty(0, width), *rows])[[position[text] for text in texts]]

    def _encode(self, batch: list[str], advance: Callable[[], None]) -> Tensor:
        options = {"padding": True, "truncation": True, "max_length": self.length, "return_tensors": "pt"}
        with loading(
            self.path, task="encode texts with"
        ):  # a damaged tokenizer may name tokens that the model does not have
            inputs = self.tokenizer(batch, **options).to(self.device)
            states = self.model(**inputs).last_hidden_state
        embeddings = POOLINGS[self.pooling](states, inputs["attention_mask"]).float()
        if not bool(embeddings.isfinite().all()):
            row = int((~embeddings.isfinite().all(1)).nonzero()[0])
            raise ValueError(f"encoder: the embedding of {batch[row][:60]!r} is not finite; check the weights")
        advance()
        return (unit(embeddings) if self.normalise else embeddings).cpu()


def load_sentence_encoder(
    path: Path, *, pooling: str = "", length: int = 0, device: torch.device | None = None
) -> SentenceEncoder:
    """Load an encoder from a local folder with config.json, a tokenizer and safetensors weights.

    path      folder saved by transformers or sentence-transformers
    pooling   a name in `POOLINGS`; empty: the pooling that a sentence-transformers folder specifies
    length    tokens after which a text is truncated; 0: the length that the folder specifies, or else 128
    device    device to compute on; by default a GPU if there is one
    """
    folder = read_folder(path)
    pooling = choose_pooling(pooling, folder)
    device = device or own_device()
    with needs_extra("a sentence encoder", "text", TEXT_PACKAGES):
        tokenizer, model = load_tokenizer(folder.transformer), load_transformer(folder.transformer)
        with loading(path):
            limit = min(tokenizer.model_max_length, longest_input(model))
    if length:
        check_count("length", length, least=3)  # a start token, an end token and one token between them
    if length > limit:
        raise ValueError(f"length: expected at most {limit}, the longest input of this encoder, got {length}")
    length = length or min(folder.length or DEFAULT_LENGTH, limit)
    check_special_tokens(tokenizer, length, path)
    encoder = SentenceEncoder(path, model.to(device), tokenizer, pooling, length, folder.normalise, device)
    encoder(["a"])  # settings that contradict each other show only when a text is encoded
    return encoder


def choose_pooling(pooling: str, folder: EncoderFolder, default: str = "") -> str:
    """Return the requested pooling, or else the folder's, or else the default; a default of "" refuses an unspecified pooling."""
    if not pooling and not folder.pooling and default:
        return default
    if not pooling and not folder.pooling:
        raise ValueError(
            f"pooling: {folder.path} does not name its pooling (1_Pooling/config.json); choose --pooling cls or mean"
        )
    if not pooling and folder.pooling not in POOLINGS:
        raise ValueError(
            f"pooling: {folder.path} was trained with pooling {folder.pooling!r}, which is not available; expected one of "
            f"{', '.join(POOLINGS)} (--pooling)"
        )
    check_known("pooling", pooling or folder.pooling, POOLINGS)
    return pooling or folder.pooling


def load_tokenizer(path: Path) -> Any:
    """Load the tokenizer in a folder; raise ValueError if it has no padding token, or makes long texts of short ones."""
    from transformers import AutoTokenizer

    # Before it is loaded: a lack of memory in the tokenizers' Rust code ends the process.
    check_growth(path / "tokenizer.json")
    with loading(path):
        tokenizer = AutoTokenizer.from_pretrained(path, **_SAFE)
        limit = min(tokenizer.model_max_length, _LONGEST)
    check_special_tokens(tokenizer, limit, path)
    pad_on_the_right(tokenizer, path)
    return tokenizer


def load_transformer(path: Path, *, attention: str | None = None) -> Any:
    """Load the transformer in a folder, in evaluation mode; `attention` names one of transformers' attention functions."""
    from transformers import AutoModel

    with loading(path), model_budget(f"encoder: the model in {path}", size=weights_size(path)):
        model, report = AutoModel.from_pretrained(
            path,
            **_SAFE,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            attn_implementation=attention,
        )
    # transformers initialises weights that the file lacks at random. BERT's pooler may be missing: it is not used here.
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise ValueError(
            f"encoder: the weights in {path} lack {len(missing)} parameters of the model in config.json, such as {missing[0]}"
        )
    return model.eval()


def longest_input(model: Any) -> float:
    """Return the number of tokens that a transformer has positions for; infinite if it has no limit."""
    positions = getattr(model.config, "max_position_embeddings", None) or math.inf
    embedding = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    # RoBERTa counts positions from the padding token's id on.
    first = getattr(embedding, "padding_idx", None)
    return positions if first is None else positions - first - 1


@contextmanager
def loading(path: Path, library: str = "transformers", *, task: str = "load") -> Iterator[None]:
    """Turn any error that the library raises in this block into a ValueError that names the folder and the task."""
    try:
        with quiet():
            yield
    except (ModuleNotFoundError, OverBudget, torch.OutOfMemoryError):
        raise
    # Each architecture and tokenizer raises its own types of errors for unreadable files. A panic in the tokenizers' Rust code
    # is not an Exception.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"encoder: {library} cannot {task} {path}: {reason}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Hide transformers' progress bars and warnings in this block: relevant warnings become errors above."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
