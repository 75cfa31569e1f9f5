"""Train SimCSE with only transformers and plain PyTorch, and print its STS-B dev scores during training.

    python benchmarks/plain_simcse.py models/small-bert sentences.txt.xz sts.tsv.xz [--lr 3e-5] [--steps 1000]

This checks our trainer against independent code: only the reader of scored pairs and Spearman's correlation come from
contrapose. Each line has the step, the mean loss so far, and 100 × Spearman's correlation on STS-B dev for CLS pooling and for
the mean over tokens.
"""

from __future__ import annotations

import argparse
import lzma
import random
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from transformers import AutoModel, AutoTokenizer, BatchEncoding

from contrapose.lab.modalities.text.evaluation import SentencePair, read_sts, spearman

_REPORTED = (5, 10, 20, 40, 60, 90, 125, 190, 250, 375, 500, 750, 1000, 2000, 3000, 5000)


class Encoder(nn.Module):
    """A transformer with CLS or mean pooling; in training, CLS passes through SimCSE's additional layer."""

    def __init__(self, folder: str, *, pooling: str, dropout: float | None) -> None:
        super().__init__()
        self.network = AutoModel.from_pretrained(folder, dtype=torch.float32)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.pooling, width = pooling, self.network.config.hidden_size
        self.layer = nn.Linear(width, width)
        nn.init.normal_(self.layer.weight, std=0.02)
        nn.init.zeros_(self.layer.bias)
        for module in self.network.modules():
            if isinstance(module, nn.Dropout) and dropout is not None:
                module.p = dropout

    def tokens(self, texts: list[str], length: int) -> BatchEncoding:
        """Return the tokens of texts on the device of the weights."""
        made = self.tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
        return made.to(self.layer.weight.device)

    def pooled(self, tokens: BatchEncoding, pooling: str) -> Tensor:
        """Return the embeddings (n, d)."""
        hidden: Tensor = self.network(**tokens).last_hidden_state
        if pooling == "cls":
            return hidden[:, 0]
        mask = tokens["attention_mask"][..., None].to(hidden.dtype)
        mean: Tensor = (hidden * mask).sum(1) / mask.sum(1)
        return mean

    def forward(self, tokens: BatchEncoding) -> Tensor:
        """Return the unit embeddings (n, d) that the training loss compares."""
        pooled = self.pooled(tokens, self.pooling)
        return normalize(self.layer(pooled).tanh() if self.pooling == "cls" else pooled, dim=1)


@torch.no_grad()
def dev_scores(encoder: Encoder, pairs: list[SentencePair]) -> list[float]:
    """Return the correlations on scored pairs, for CLS pooling and for the mean over tokens."""
    encoder.eval()
    gold, scores = torch.tensor([pair.score for pair in pairs], dtype=torch.float64), []
    batches = [pairs[first : first + 128] for first in range(0, len(pairs), 128)]
    for pooling in ("cls", "mean"):
        cosines = []
        for batch in batches:
            tokens = encoder.tokens([text for pair in batch for text in (pair.first, pair.second)], 64)
            first, second = normalize(encoder.pooled(tokens, pooling).double(), dim=1).unflatten(0, (-1, 2)).unbind(1)
            cosines.append((first * second).sum(1).cpu())
        scores.append(round(100 * spearman(torch.cat(cosines), gold), 2))
    encoder.train()
    return scores


def read_lines(path: Path) -> list[str]:
    """Read a text file, which may be compressed with xz."""
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
        return [line.rstrip("\n") for line in file]


def main() -> None:
    """Train, and print a line at some of the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder", help="folder of transformers")
    parser.add_argument("sentences", type=Path)
    parser.add_argument("sts", type=Path, help="file of scored pairs, as for `contrapose evaluate --sts`")
    parser.add_argument("--lr", type=float, default=3e-5, help="falls linearly to 0")
    parser.add_argument("--temperature", type=float, default=0.05)
    parser.add_argument("--pooling", choices=("cls", "mean"), default="cls")
    parser.add_argument("--dropout", type=float, help="of all layers; default: that of the encoder")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = Encoder(options.encoder, pooling=options.pooling, dropout=options.dropout).to(device).train()
    sentences = read_lines(options.sentences)
    random.shuffle(sentences)
    # By length, so that little of a batch is padding.
    dev = (pair for pair in read_sts(options.sts) if pair.task == "stsb_dev")
    pairs = sorted(dev, key=lambda pair: len(pair.first))
    print("step 0", dev_scores(encoder, pairs), flush=True)
    optimiser = torch.optim.AdamW(encoder.parameters(), lr=options.lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=options.steps)
    total, target = torch.zeros((), device=device), torch.arange(options.batch, device=device)
    for step in range(1, options.steps + 1):
        first = (step - 1) * options.batch % (len(sentences) - options.batch)
        tokens = encoder.tokens(sentences[first : first + options.batch], 32)
        one, other = encoder(tokens), encoder(tokens)
        loss = cross_entropy(one @ other.T / options.temperature, target)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(encoder.network.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        total += loss.detach()
        if step in _REPORTED:
            print(f"step {step}, mean loss {float(total) / step:.4f}", dev_scores(encoder, pairs), flush=True)


if __name__ == "__main__":
    main()
