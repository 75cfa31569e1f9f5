"""The doctor as a callback of the trainers of Hugging Face: `Trainer(callbacks=[DoctorCallback(loss)])`.

The losses of sentence-transformers get texts and compute the embeddings themselves; the doctor sees these embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from contrapose.doctor import Doctor

# The methods of sentence-transformers' losses that get embeddings, and those of contrapose.
_OF_EMBEDDINGS = ("_loss", "calculate_loss", "compute_loss_from_embeddings")


class DoctorCallback(TrainerCallback):  # type: ignore[misc]
    """Looks at the loss of a Trainer, prints each finding once, and writes a page at the end.

    loss       the loss given to SentenceTransformerTrainer, or any criterion of embeddings that a Trainer calls
    report     file of the page; None to write none
    settings   settings of `Doctor`, such as every=100
    """

    def __init__(self, loss: nn.Module, *, report: str | Path | None = None, **settings: Any) -> None:
        self.report_path = report
        self.doctor = doctor_of(loss, **{"log": print, **settings})

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Print in one process only."""
        if not state.is_world_process_zero:
            self.doctor.log = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the page."""
        if self.report_path is not None and state.is_world_process_zero:
            self.doctor.report(self.report_path)


def doctor_of(loss: nn.Module, **settings: Any) -> Doctor:
    """Return a doctor that sees each call of a loss, also of a loss of sentence-transformers."""
    model = getattr(loss, "model", None)
    method = next((name for name in _OF_EMBEDDINGS if hasattr(loss, name)), None)
    if method is None or not isinstance(model, nn.Module):
        doctor = Doctor(loss, **settings)
        doctor.watch()
        return doctor
    criterion = None if getattr(loss, "guide", None) is not None else MethodType(_ASKED[method], loss)
    doctor = Doctor(criterion, **{"model": model, **settings})
    texts = _Texts(model)
    loss.register_forward_pre_hook(texts.read, with_kwargs=True)
    compute = getattr(loss, method)

    def seen(embeddings: list[Any], *arguments: Any, **keywords: Any) -> Tensor:
        if loss.training:
            columns = [torch.cat(list(z)) if isinstance(z, list | tuple) else z for z in embeddings]
            labels = _labels(method, arguments, keywords, columns)
            doctor.see(columns, samples=texts, **labels)
        result: Tensor = compute(embeddings, *arguments, **keywords)
        return result

    setattr(loss, method, seen)
    return doctor


def _labels(method: str, arguments: Sequence[Any], keywords: dict[str, Any], columns: list[Tensor]) -> dict[str, Any]:
    """Return what the criterion gets beside embeddings."""
    if method == "_loss":
        from contrapose.integrations.duplicates import group_ids

        hashes = arguments[0].texts
        if hashes is None:
            return {}
        return {"ids": group_ids(hashes[0], hashes[1], hashes[0].new_empty(0))[0]}
    labels = arguments[0] if arguments else keywords.get("labels")
    # Pairs of a data set without labels have none; the trainer may pass an empty tensor.
    return {"labels": labels} if isinstance(labels, Tensor) and len(labels) == len(columns[0]) else {}


def _ask_ours(self: Any, embeddings: list[Tensor], ids: Tensor | None = None) -> Tensor:
    from contrapose.integrations.sentence_transformers import _Batch

    texts = None
    if ids is not None:  # explicit negatives get texts of their own
        others = [-1 - torch.arange(len(ids), device=ids.device) - k * len(ids) for k in range(len(embeddings) - 2)]
        texts = [ids, ids, *others]
    value: Tensor = type(self)._loss(self, embeddings, _Batch(texts=texts))
    return value


def _ask_cached(self: Any, embeddings: list[Tensor], labels: Tensor | None = None) -> Tensor:
    value: Tensor = type(self).calculate_loss(self, [[z] for z in embeddings], labels)
    return value


def _ask_embeddings(self: Any, embeddings: list[Tensor], labels: Tensor | None = None) -> Tensor:
    value: Tensor = type(self).compute_loss_from_embeddings(self, embeddings, labels)
    return value


_ASKED = {"_loss": _ask_ours, "calculate_loss": _ask_cached, "compute_loss_from_embeddings": _ask_embeddings}


class _Texts(Sequence[str]):
    """The texts of the first column of a batch, decoded when a finding names one."""

    def __init__(self, model: Any) -> None:
        self.model, self.tokens = model, torch.empty(0, 0, dtype=torch.long)

    def read(self, loss: nn.Module, arguments: Any, keywords: Any) -> None:
        features = arguments[0] if arguments else keywords.get("sentence_features", ())
        columns = list(features) if isinstance(features, list | tuple) else []
        tokens = columns[0].get("input_ids") if columns and hasattr(columns[0], "get") else None
        if isinstance(tokens, Tensor) and tokens.ndim == 2:
            self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: Any) -> Any:
        tokenizer: Any = getattr(self.model, "tokenizer", None)
        if row >= len(self.tokens) or not hasattr(tokenizer, "decode"):
            return f"row {row}"
        return tokenizer.decode(self.tokens[row], skip_special_tokens=True)
