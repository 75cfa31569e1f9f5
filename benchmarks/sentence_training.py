"""Compare the speed of training on sentences with sentence-transformers' trainer: same model, batch and precision.

    python benchmarks/sentence_training.py sentences.txt models/small-bert [--batch 64] [--length 32] [--steps 300] [--out FILE]

Both trainers run SimCSE: each sentence twice, with dropout, and a temperature of 0.05. They take turns, and the first steps of
each, which compile or fill caches, are not counted. Token counts include both views, without padding.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from contrapose.lab.modalities.text.files import open_texts
from contrapose.lab.modalities.text.pretrained import load_tokenizer
from contrapose.lab.modalities.text.settings import TEXT_SETTINGS
from contrapose.lab.modalities.text.tokens import text_lengths, tokenise
from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.records.files import environment, read_records

TEMPERATURE = 0.05


def seconds_of_ours(options: argparse.Namespace, device: torch.device) -> float:
    """Return the seconds of `--steps` steps of contrapose: the second of two epochs."""
    settings: dict[str, Any] = dict(TEXT_SETTINGS) | {"head": "none", "views": "dropout", "metrics": 0, "warmup": 0.0}
    run = Run(
        **settings | {"loss": f"simclr(temperature={TEMPERATURE})"},
        data=str(options.sentences),
        encoder=f"hf:{options.encoder}+cls",
        size=options.length,
        batch=options.batch,
        limit=options.batch * options.steps,
        epochs=2,
        lr=3e-5,
        precision=options.precision,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(run, Path(folder) / "run", device=device, data_root=Path(folder))
        trainer.train()
        return float(read_records(trainer.folder)[1]["seconds"])


def seconds_of_theirs(texts: list[str], options: argparse.Namespace, device: torch.device) -> float:
    """Return the seconds of `--steps` steps of sentence-transformers' trainer, after a tenth of them as a warm-up."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import TrainerCallback

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.times: dict[int, float] = {}

        def on_step_end(self, arguments: Any, state: Any, control: Any, **other: Any) -> None:
            if state.global_step in (warm, warm + options.steps):
                if device.type == "cuda":
                    torch.cuda.synchronize()
                self.times[state.global_step] = time.perf_counter()

    warm = max(1, options.steps // 10)
    transformer = Transformer(str(options.encoder), max_seq_length=options.length)
    model = SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), "cls")])
    loss = MultipleNegativesRankingLoss(model.to(device), scale=1 / TEMPERATURE)
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=options.batch,
            max_steps=warm + options.steps,
            bf16=options.precision == "bf16",
            learning_rate=3e-5,
            max_grad_norm=0,  # as ours
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            use_cpu=device.type == "cpu",
            disable_tqdm=True,
        )
        data = Dataset.from_dict({"anchor": texts, "positive": texts})
        clock = Clock()
        SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=data, loss=loss, callbacks=[clock]
        ).train()
    return clock.times[warm + options.steps] - clock.times[warm]


def main() -> None:
    """Time both in alternation and print a line of JSON for each, and the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", type=Path)
    parser.add_argument("encoder", type=Path)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    file = open_texts(options.sentences)
    if len(file) < options.batch * options.steps:
        parser.error(
            f"--steps: {options.steps} steps of {options.batch} sentences are more than the {len(file):,} of the file"
        )
    texts = [row[0] for row, _ in zip(file.rows(), range(2 * options.batch * options.steps), strict=False)]
    tokenizer = load_tokenizer(options.encoder)
    lengths = text_lengths(tokenise(file, tokenizer, length=options.length), tokenizer.pad_token_id)
    tokens = 2 * options.batch * options.steps * float(lengths.double().mean())
    seconds: dict[str, list[float]] = {"contrapose": [], "sentence-transformers": []}
    for _ in range(options.rounds):
        seconds["contrapose"].append(seconds_of_ours(options, device))
        seconds["sentence-transformers"].append(seconds_of_theirs(texts, options, device))
    measured = {name: getattr(options, name) for name in ("batch", "length", "steps", "precision")}
    lines: list[dict[str, Any]] = [environment(device) | measured]
    for name, values in seconds.items():
        median = sorted(values)[len(values) // 2]
        lines.append(
            {
                "trainer": name,
                "seconds": [round(value, 3) for value in values],
                "sentences_per_second": round(options.batch * options.steps / median),
                "tokens_per_second": round(tokens / median),
            }
        )
    lines.append({"ratio": round(lines[1]["tokens_per_second"] / lines[2]["tokens_per_second"], 3)})
    text = "\n".join(json.dumps(line) for line in lines)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
