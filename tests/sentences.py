"""A tiny sentence-transformers model that needs no download, and sentences for it."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = [f"{kind}{i}" for kind in "qpn" for i in range(12)]
WIDTH = 12


def tokenizer(words: list[str] = WORDS) -> Tokenizer:
    vocabulary = {word: i for i, word in enumerate(SPECIAL + words)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return made


def bert(*, seed: int = 0, dropout: float = 0.0, words: list[str] = WORDS) -> SentenceTransformer:
    """One layer of BERT with random weights and mean pooling."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(SPECIAL + words),
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    with tempfile.TemporaryDirectory() as folder:
        PreTrainedTokenizerFast(tokenizer_object=tokenizer(words), **names).save_pretrained(folder)
        BertModel(config).save_pretrained(folder)
        transformer = Transformer(folder)
    return SentenceTransformer(modules=[transformer, Pooling(WIDTH)], device="cpu").train()


def static(*, seed: int = 0) -> SentenceTransformer:
    """A table of word vectors."""
    torch.manual_seed(seed)
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer(), embedding_dim=WIDTH)], device="cpu")


def columns(count: int = 6, negatives: int = 0) -> dict[str, list[str]]:
    """Sentences of one to three words; none occurs twice."""
    sentences = {
        "query": [f"q{i} q{i // 2}" for i in range(count)],
        "positive": [" ".join([f"p{i}"] * (1 + i % 3)) for i in range(count)],
    }
    return sentences | {f"negative_{k}": [f"n{i} n{k}" for i in range(count)] for k in range(negatives)}


def features(model: SentenceTransformer, sentences: dict[str, list[str]]) -> list[dict[str, Any]]:
    return [model.preprocess(texts) for texts in sentences.values()]
