"""Train a small BERT by masked language modelling on a file of sentences: an encoder that no contrastive loss has seen.

    python benchmarks/masked_language.py sentences.txt models/small-bert
    contrapose train --data sentences.txt --encoder hf:models/small-bert

The vocabulary is learned from the sentences too. 15 % of the tokens are predicted; of these, 80 % are replaced by [MASK], 10 %
by a random token, and 10 % are kept (Devlin et al., 2019). The choice changes in each step, as a function of seed, step and
sentence. The sentences stay on the device, in buckets of similar length; nothing in a pass waits for the GPU.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from contrapose.lab.modalities.text.files import open_texts
from contrapose.lab.modalities.text.load import learn_tokenizer
from contrapose.lab.modalities.text.tokens import text_lengths, tokenise
from contrapose.lab.modalities.text.vocabulary import save_tokenizer
from contrapose.randomness import permutation, uniform
from contrapose.validate import check_directory

PREDICTED, MASKED, RANDOM = 0.15, 0.8, 0.1
BUCKET = 16  # difference between the lengths of two buckets, in tokens
NOT_PREDICTED = -100  # cross_entropy ignores rows with this label


class Masked(NamedTuple):
    """Sentences (B, L) with masked tokens; the positions (B, k) that are predicted, and their tokens (B, k)."""

    ids: Tensor
    positions: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Masking:
    """How the tokens of a tokenizer are masked."""

    size: int  # of the vocabulary
    special: int  # tokens below this number are special, and are neither predicted nor drawn
    padding: int
    mask: int

    def __call__(self, ids: Tensor, index: Tensor, *, seed: int, step: int) -> Masked:
        """Mask sentences (B, L) with the numbers `index` (B,)."""
        length = ids.shape[1]
        ordinary = ids >= self.special
        # Positions in random order, special tokens last. The first 15 % of the sentence's positions, at least one, are predicted:
        # their maximum number depends only on L, so that shapes are known without reading from the device.
        order = torch.where(ordinary, uniform(index, length, seed, step, 0), 2.0).argsort(dim=1)
        positions = order[:, : max(1, math.ceil(PREDICTED * length))]
        count = (PREDICTED * ordinary.sum(1)).round().clamp(min=1)
        tokens = ids.gather(1, positions)
        ranks = torch.arange(positions.shape[1], device=ids.device)
        predicted = (ranks < count[:, None]) & (tokens >= self.special)
        draw, which = (uniform(index, positions.shape[1], seed, step, key) for key in (1, 2))
        other = self.special + (which * (self.size - self.special)).long()
        replaced = torch.where(draw < MASKED, self.mask, torch.where(draw < MASKED + RANDOM, other, tokens))
        masked = ids.scatter(1, positions, torch.where(predicted, replaced, tokens))
        return Masked(masked, positions, torch.where(predicted, tokens, NOT_PREDICTED))


class MaskedLoss(nn.Module):
    """BERT and its prediction head, as the loss of masked sentences."""

    def __init__(self, model: Any, padding: int) -> None:
        super().__init__()
        self.model, self.padding = model, padding

    def forward(self, batch: Masked) -> Tensor:
        """Return the mean cross-entropy of the predicted tokens."""
        # A mask with four dimensions is used as it is; with two, transformers would ask the device whether the mask is empty.
        mask = (batch.ids != self.padding)[:, None, None, :].expand(-1, 1, batch.ids.shape[1], -1)
        states = self.model.bert(input_ids=batch.ids, attention_mask=mask).last_hidden_state
        # The vocabulary is large: only predicted positions reach its layer.
        chosen = states.gather(1, batch.positions[..., None].expand(-1, -1, states.shape[-1]))
        logits = self.model.cls(chosen).float()
        return cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=NOT_PREDICTED)


def make_buckets(tokens: Tensor, padding: int, *, batch: int, device: torch.device) -> list[Tensor]:
    """Divide sentences (N, L) by length into tensors (n, l) on the device, each with at least one batch."""
    lengths = text_lengths(tokens, padding)
    groups, waiting = list[tuple[int, Tensor]](), torch.empty(0, dtype=torch.long)
    for limit in range(BUCKET, tokens.shape[1] + BUCKET, BUCKET):
        within = ((lengths > limit - BUCKET) & (lengths <= limit)).nonzero()[:, 0]
        waiting = torch.cat([waiting, within])  # too few for a batch join the next longer ones
        if len(waiting) >= batch:
            groups.append((limit, waiting))
            waiting = waiting[:0]
    if not groups:
        raise ValueError(f"batch: {batch} sentences are more than the {len(tokens)} of the file; use a smaller --batch")
    groups[-1] = (tokens.shape[1], torch.cat([groups[-1][1], waiting])) if len(waiting) else groups[-1]
    return [tokens[index, :limit].long().to(device) for limit, index in groups]


def draw_batches(buckets: Sequence[Tensor], batch: int, *, seed: int, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the sentences of a pass (B, l) and their indices (B,), in an order determined by the seed and the pass's number."""
    orders = [permutation(len(b), seed, number, place, device=b.device) for place, b in enumerate(buckets)]
    slices = [(place, start) for place, b in enumerate(buckets) for start in range(0, len(b) - batch + 1, batch)]
    random.Random(f"{seed} {number}").shuffle(slices)
    for place, start in slices:
        index = orders[place][start : start + batch]
        yield buckets[place][index], index


def rate_factor(step: int, *, steps: int, warmup: float = 0.06) -> float:
    """Return the learning rate of a step as a share of its peak: a linear rise, then a linear fall to zero."""
    rise = max(1, round(warmup * steps))
    return min((step + 1) / rise, max(0.0, (steps - step) / max(1, steps - rise)))


def train(
    loss_of: nn.Module, masking: Masking, buckets: Sequence[Tensor], *, batch: int, passes: int, lr: float, seed: int,
    compiled: bool = False, log: Callable[[str], None] = print,
) -> None:  # fmt: skip
    """Train the network in place, and print the mean loss of each pass."""
    device = buckets[0].device
    fused = device.type == "cuda"
    optimiser = torch.optim.AdamW(_groups(loss_of), lr=lr, betas=(0.9, 0.98), fused=fused)
    steps = passes * sum(len(bucket) // batch for bucket in buckets)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_factor(step, steps=steps))
    forward = torch.compile(loss_of, dynamic=False) if compiled else loss_of
    loss_of.train()
    step = 0
    for number in range(passes):
        total, start, count, tokens = torch.zeros((), device=device), time.perf_counter(), 0, 0
        for ids, index in draw_batches(buckets, batch, seed=seed, number=number):
            with torch.autocast(device.type, torch.bfloat16, enabled=fused):
                loss = forward(masking(ids, index, seed=seed, step=step))
            loss.backward()
            nn.utils.clip_grad_norm_(loss_of.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
            total += loss.detach()
            step, count, tokens = step + 1, count + 1, tokens + ids.numel()
        mean = total.item() / count  # the only value that a pass reads from the device
        seconds = time.perf_counter() - start
        log(f"pass {number + 1} of {passes}: loss {mean:.3f}, {seconds:.1f} s, {tokens / seconds:,.0f} tokens/s")


def _groups(network: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters in two groups: matrices, with weight decay, and biases and norms, without."""
    parameters = list(network.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", type=Path, help="file with one sentence a line, compressed or not")
    parser.add_argument("out", type=Path, help="folder to write: config.json, weights and tokenizer")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=16_384, help="largest number of tokens")
    parser.add_argument(
        "--length", type=int, default=64, help="tokens after which a sentence is cut; also the encoder's limit"
    )
    parser.add_argument("--batch", type=int, default=1024, help="sentences")
    parser.add_argument("--passes", type=int, default=30, help="over the sentences")
    parser.add_argument("--lr", type=float, default=5e-4, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="torch.compile, once for each of the lengths")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    from transformers import BertConfig, BertForMaskedLM

    options = parse(arguments)
    check_directory("out", options.out)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(options.seed)
    start = time.perf_counter()
    texts = open_texts(options.sentences)
    tokenizer = learn_tokenizer(texts, size=options.vocabulary)
    tokens = tokenise(texts, tokenizer, length=options.length)[:, 0]
    print(f"{len(tokens):,} sentences, {len(tokenizer):,} tokens: {time.perf_counter() - start:.0f} s", flush=True)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        intermediate_size=4 * options.width,
        max_position_embeddings=options.length,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )
    model = BertForMaskedLM(config).to(device)
    special = len(tokenizer.all_special_ids)  # special tokens come first in a vocabulary from `train_vocabulary`
    masking = Masking(len(tokenizer), special, padding=tokenizer.pad_token_id, mask=tokenizer.mask_token_id)
    buckets = make_buckets(tokens, tokenizer.pad_token_id, batch=options.batch, device=device)
    train(
        MaskedLoss(model, tokenizer.pad_token_id),
        masking,
        buckets,
        batch=options.batch,
        passes=options.passes,
        lr=options.lr,
        seed=options.seed,
        compiled=options.compile,
        log=lambda text: print(text, flush=True),
    )
    model.bert.save_pretrained(options.out)
    save_tokenizer(tokenizer, options.out)
    print(f"wrote {options.out} after {time.perf_counter() - start:.0f} s; train it with --encoder hf:{options.out}")


if __name__ == "__main__":
    main()
