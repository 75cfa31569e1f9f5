"""`contrapose evaluate hf:PATH`: evaluate a sentence encoder of a local Hugging Face folder."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from contrapose.evaluation.sentences import evaluate_sts, evaluate_transfer, read_sts, read_transfer
from contrapose.modalities.text.pretrained import load_sentence_encoder
from contrapose.validate import check_count

PREFIX = "hf:"
_STS = (
    "STS: 100 × Spearman's correlation of cosine similarity, all subsets of a task ranked together (SentEval's \"all\")"
)
_GEOMETRY = "alignment: pairs with a score above 4; uniformity: all sentences, t = 2 (SimCSE)"
_TRANSFER = "Transfer: accuracy in % of logistic regression on frozen embeddings (SentEval's protocol, 10 folds)"


@dataclass(frozen=True)
class SentenceOptions:
    """Options of `contrapose evaluate hf:PATH`, which evaluates a sentence encoder in a local Hugging Face folder. Its weights
    must be safetensors; no code in the folder is executed."""

    sts: Path | None = None
    """File of scored sentence pairs: .tsv, .tsv.gz or .tsv.xz, with the columns dataset, subset, split, score, sentence1 and
    sentence2. Splits test and dev are scored."""
    transfer: Path | None = None
    """File of classification tasks: .tsv, .tsv.gz or .tsv.xz, with the columns task, split, label, text and text2."""
    pooling: str = ""
    """How the hidden states of the tokens become one vector: cls or mean; empty: as a sentence-transformers folder says."""
    length: int = 0
    """Number of tokens after which a text is truncated; 0: the folder's, or 128."""
    batch: int = 64
    """Texts encoded at a time."""
    seed: int = 0
    """Random seed of the folds of --transfer and of the order of its texts."""

    def evaluate(self, path: Path) -> None:
        """Print the scores of an encoder as JSON, and as tables on stderr."""
        if self.sts is None and self.transfer is None:
            raise ValueError("sts: there is nothing to evaluate; give a file with --sts or --transfer")
        check_count("batch", self.batch, least=1)
        # Files are read first, since a wrong one is found in less time than an encoder takes to load.
        pairs = read_sts(self.sts) if self.sts else []
        texts = read_transfer(self.transfer) if self.transfer else []
        encoder = load_sentence_encoder(path, pooling=self.pooling, length=self.length)
        encode = partial(encoder, batch_size=self.batch)
        settings = {"encoder": str(path), "pooling": encoder.pooling, "length": encoder.length}
        scores: dict[str, float] = {}
        if pairs:
            scores |= _show(evaluate_sts(encode, pairs), _STS, _GEOMETRY)
        if texts:
            empty = sum(not text.text.strip() for text in texts)
            if empty:
                print(f'transfer: {empty} empty text{" is" if empty == 1 else "s are"} encoded as "."', file=sys.stderr)
            accuracies = evaluate_transfer(encode, texts, device=encoder.device, seed=self.seed)
            scores |= _show(accuracies, _TRANSFER)
        print(json.dumps({**settings, **scores}))


def _show(scores: dict[str, float], title: str, note: str = "") -> dict[str, float]:
    """Print a table of scores to stderr, since stdout may be for other programs to read; return the scores."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "score", box=None)
    table.columns[1].justify = "right"
    for name, score in scores.items():
        table.add_row(name, f"{score:.2f}" if abs(score) >= 10 else f"{score:.3f}")
    # Lines of their own: a title of the table would be wrapped to its width.
    Console(file=sys.stderr, highlight=False).print(title, table, *([note] if note else []), "", sep="\n")
    return scores
