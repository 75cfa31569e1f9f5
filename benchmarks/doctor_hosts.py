"""Loops of Lightning and sentence-transformers with the callback of the doctor."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
from doctor_loops import EVERY
from torch import Tensor, nn
from torch.utils.data import DataLoader

from contrapose import Doctor


class Function(nn.Module):
    """A function as a criterion of a LightningModule."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Tensor) -> Tensor:
        return self.function(*arguments)


def shuffled(rows: Any, size: int = 128, **settings: Any) -> DataLoader[Any]:
    """Return a loader of the rows of a tensor in random order."""
    return DataLoader(rows, batch_size=size, shuffle=True, drop_last=True, **settings)


def fit(
    encoder: nn.Module,
    criterion: nn.Module,
    inputs: Callable[[Any], tuple[Tensor, ...]],  # maps a batch to the criterion's arguments
    loader: DataLoader[Any] | Sequence[DataLoader[Any]],
    steps: int,
) -> Doctor:
    """Train with Lightning and the doctor's callback."""
    import pytorch_lightning as lightning

    from contrapose.integrations.lightning import DoctorCallback

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.criterion = encoder, criterion

        def training_step(self, batch: Any, number: int) -> Tensor:
            value: Tensor = self.criterion(*inputs(batch))
            return value

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.encoder.parameters(), lr=1e-3)

    callback = DoctorCallback(every=EVERY, log=None)
    trainer = lightning.Trainer(
        max_steps=steps, callbacks=[callback], accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), loader)
    assert callback.doctor is not None
    return callback.doctor


def fit_sentences(
    pairs: Sequence[tuple[str, str]],
    steps: int,
    *,
    longest: int | None = None,  # words of a text that are read
    batch: int = 128,
    seed: int = 0,
    **settings: Any,
) -> Doctor:
    """Train with sentence-transformers and the doctor's callback."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    from contrapose.integrations.trainer import DoctorCallback

    torch.manual_seed(seed)
    words = {word: i + 1 for i, word in enumerate(sorted({w for pair in pairs for text in pair for w in text.split()}))}
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, **words}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if longest is not None:
        tokenizer.enable_truncation(longest)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=64)], device="cpu")
    loss = MultipleNegativesRankingLoss(model, **settings)
    callback = DoctorCallback(loss, every=EVERY, log=None)
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=batch, learning_rate=1e-2, save_strategy="no",
            report_to="none", disable_tqdm=True, use_cpu=True, logging_strategy="no", seed=42 + seed,
        )  # fmt: skip
        dataset = Dataset.from_dict({"anchor": [a for a, _ in pairs], "positive": [b for _, b in pairs]})
        SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=dataset, loss=loss, callbacks=[callback]
        ).train()
    return callback.doctor
