"""The script that trains a small BERT by masked language modelling, on a CPU."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertForMaskedLM

from contrapose.lab.modalities.text.pretrained import load_sentence_encoder
from contrapose.lab.training import Run, Trainer

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "masked_language.py"
TINY = ["--layers", "1", "--width", "32", "--heads", "2", "--vocabulary", "200", "--length", "16", "--batch", "16"]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def write_sentences(path: Path) -> Path:
    animals, verbs = ("cat", "dog", "bird", "fox", "horse"), ("runs", "sleeps", "sings", "eats")
    lines = [f"the {a} {v} and the {b} watches" for a in animals for v in verbs for b in animals]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_an_encoder_is_trained_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: dict[str, Any]
) -> None:
    sentences, out = write_sentences(tmp_path / "sentences.txt"), tmp_path / "bert"
    script["main"]([str(sentences), str(out), *TINY, "--passes", "12", "--lr", "0.01"])
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]
    assert len(losses) == 12
    assert losses[-1] < 0.6 * losses[0]
    encoder = load_sentence_encoder(out, pooling="mean")
    assert (encoder.length, encoder(["the cat sings", "a dog"]).shape) == (16, (2, 32))
    run = Run(
        data=str(sentences), modality="text", encoder=f"hf:{out}", views="dropout", size=16, framework="simcse",
        head="simcse", loss="simclr", batch=16, epochs=1, lr=1e-4, metrics=0,
    )  # fmt: skip
    trainer = Trainer(run, tmp_path / "run", log=lambda text: None, data_root=tmp_path / "data")
    weights = trainer.model.encoder.state_dict()["network.model.embeddings.word_embeddings.weight"]
    assert torch.equal(weights, encoder.model.embeddings.word_embeddings.weight)
    trainer.train()


def test_masks_are_a_function_of_seed_step_and_sentence(script: dict[str, Any]) -> None:
    masking = script["Masking"](1000, 5, padding=0, mask=4)
    ids = torch.randint(5, 1000, (2000, 20), generator=torch.Generator().manual_seed(0))
    ids[:, 0], ids[:, 15], ids[:, 16:] = 2, 3, 0  # start, end and padding
    index = torch.arange(2000)
    masked = masking(ids, index, seed=1, step=7)
    part = masking(ids[[30, 4]], index[[30, 4]], seed=1, step=7)
    assert torch.equal(part.ids, masked.ids[[30, 4]])
    assert torch.equal(part.labels, masked.labels[[30, 4]])
    assert not torch.equal(masking(ids, index, seed=1, step=8).ids, masked.ids)
    assert not torch.equal(masking(ids, index, seed=2, step=7).ids, masked.ids)
    # Two of 14 ordinary tokens are predicted, and no special one; their labels are the tokens themselves.
    predicted = masked.labels != script["NOT_PREDICTED"]
    assert (predicted.sum(1) == 2).all()
    assert torch.equal(masked.labels[predicted], ids.gather(1, masked.positions)[predicted])
    assert (masked.labels[predicted] >= 5).all()
    now = masked.ids.gather(1, masked.positions)[predicted]
    assert (now == 4).float().mean().item() == pytest.approx(0.8, abs=0.03)
    assert (now == masked.labels[predicted]).float().mean().item() == pytest.approx(0.1, abs=0.03)
    changed = masked.ids != ids
    assert (changed.sum(1) <= 2).all()
    assert not changed[:, [0, 15, 16, 17, 18, 19]].any()


def test_the_loss_is_that_of_transformers(script: dict[str, Any]) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForMaskedLM(BertConfig(vocab_size=50, **sizes)).eval()
    ids = torch.randint(5, 50, (4, 12))
    ids[1, 7:], ids[2, 5:] = 0, 0
    masked = script["Masking"](50, 5, padding=0, mask=4)(ids, torch.arange(4), seed=0, step=0)
    labels = torch.full_like(ids, -100).scatter(1, masked.positions, masked.labels)
    with torch.no_grad():
        expected = model(input_ids=masked.ids, attention_mask=(masked.ids != 0).long(), labels=labels).loss
        assert_close(script["MaskedLoss"](model, 0)(masked), expected)


def test_a_pass_has_each_sentence_at_most_once(script: dict[str, Any]) -> None:
    tokens = torch.zeros(100, 40, dtype=torch.long)
    for row in range(100):
        tokens[row, : 3 + row % 36] = row + 1
    buckets = script["make_buckets"](tokens, 0, batch=30, device=torch.device("cpu"))
    assert sum(len(bucket) for bucket in buckets) == 100
    assert [bucket.shape[1] for bucket in buckets] == [16, 40]
    batches = [ids[:, 0] for ids, _ in script["draw_batches"](buckets, 30, seed=0, number=0)]
    assert sum(len(batch) for batch in batches) == len(torch.cat(batches).unique()) == 60  # a batch of each bucket
    other = [ids[:, 0] for ids, _ in script["draw_batches"](buckets, 30, seed=0, number=1)]
    assert not torch.equal(torch.cat(batches), torch.cat(other))
    with pytest.raises(ValueError, match="batch: 101 sentences are more than the 100 of the file"):
        script["make_buckets"](tokens, 0, batch=101, device=torch.device("cpu"))


def test_the_learning_rate_rises_and_falls_to_zero(script: dict[str, Any]) -> None:
    factors = [script["rate_factor"](step, steps=100) for step in range(101)]
    assert factors[0] == pytest.approx(1 / 6)
    assert max(factors) == factors[6] == 1.0
    assert factors[100] == 0.0
    assert factors[7:] == sorted(factors[7:], reverse=True)
