"""A second sentence-transformers model that recognises false negatives (GISTEmbed)."""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.gradcache import _create_minibatch, _minibatch_ranges
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn

Features = dict[str, Any]


class Guide(nn.Module):
    """Embeds a model's inputs with another model, without gradient; tokenises texts again if the other model needs it."""

    def __init__(self, trained: SentenceTransformer, model: SentenceTransformer) -> None:
        super().__init__()
        # Not `self.model`: the trainer replaces every module of that name by the model in training.
        self.encoder, self.tokenizer = model, trained.tokenizer
        same_tokens = trained.tokenizer.get_vocab() == model.tokenizer.get_vocab()
        self.tokenise_again = not same_tokens or model.max_seq_length < trained.max_seq_length

    @torch.no_grad()
    def embed(self, columns: list[Features], mini_batch_size: int | None = None) -> list[Tensor]:
        """Return embeddings (n, d) of each column, `mini_batch_size` texts at a time."""
        return [torch.cat([self._embed(part) for part in _parts(column, mini_batch_size)]) for column in columns]

    def _embed(self, features: Features) -> Tensor:
        if self.tokenise_again:
            if "cu_seq_lens_q" in features or features["input_ids"].ndim != 2:
                raise ValueError("guide: expected padded inputs, or a guide with the same tokenizer as the model")
            texts = self.tokenizer.batch_decode(features["input_ids"], skip_special_tokens=True)
            features = batch_to_device(self.encoder.preprocess(texts), self.encoder.device)
        # A copy, since the guide writes its outputs into the features, where wrappers such as MatryoshkaLoss expect the
        # model's outputs.
        embedding: Tensor = self.encoder(dict(features))["sentence_embedding"]
        return embedding


def _parts(features: Features, size: int | None) -> list[Features]:
    if size is None:
        return [features]
    return [_create_minibatch(features, begin, end) for begin, end in _minibatch_ranges(features, size)]
