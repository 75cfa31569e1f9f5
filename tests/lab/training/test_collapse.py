"""A run that collapses is seen: its messages, records, model card and evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contrapose.embeddings import Embeddings, within_batch
from contrapose.lab.cli import main
from contrapose.lab.training import Diverged, Run, Trainer
from contrapose.lab.training.collapse import (
    MEANING,
    collapse_in_words,
    collapsed_outputs,
    describe_collapse,
    follow_collapse,
    records_to_follow,
)
from contrapose.lab.training.records.files import append, read_records

# Nothing keeps embeddings apart: without its other terms VICReg only attracts, and the projector has no batch norm at its end.
ATTRACTION = "vicreg(variance_weight=0, covariance_weight=0)"
RUN = Run(
    limit=256, batch=32, epochs=8, width=32, head="moco-v2", loss=ATTRACTION, lr=0.03, warmup=0.0, schedule="constant",
    metrics=50, knn=5, knn_every=8,
)  # fmt: skip


def quiet(text: str) -> None:
    pass


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return the directory of a run that collapsed, and what was said."""
    folder, messages = tmp_path_factory.mktemp("run"), list[str]()
    Trainer(RUN, folder, log=messages.append).train()
    return folder, messages


@pytest.mark.thorough
def test_the_run_says_when_it_collapsed(collapsed: tuple[Path, list[str]]) -> None:
    folder, messages = collapsed
    records = read_records(folder)
    assert all(0 <= record["batch_feature_std"] < 1 for record in records)
    assert records[-1]["feature_std"] < 0.05
    since = records[-1]["collapsed_since"]
    assert since == next(record["epoch"] for record in records if record["batch_feature_std"] < 0.05)
    (message,) = [text for text in messages if "collapsed" in text]
    assert message.startswith(
        f"the training has collapsed since epoch {since}: the projector's outputs are nearly equal (feature"
    )
    assert message.endswith("with a lower --lr (0.01), or a larger variance_weight and covariance_weight")


@pytest.mark.thorough
def test_a_healthy_run_says_nothing(tmp_path: Path) -> None:
    messages: list[str] = []
    Trainer(replace(RUN, loss="vicreg", lr=0.004), tmp_path, log=messages.append).train()
    assert not [text for text in messages if "collapse" in text]
    assert not any("collapsed_since" in record for record in read_records(tmp_path))
    assert read_records(tmp_path)[-1]["batch_feature_std"] > 0.2


@pytest.mark.thorough
def test_commands_on_a_collapsed_run(collapsed: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    """A resumed run does not say again that it has collapsed, except in the last line of the command."""
    folder, _ = collapsed
    since = read_records(folder)[-1]["collapsed_since"]
    settings = {**vars(RUN), "epochs": 10}
    names = ("limit", "batch", "epochs", "width", "head", "loss", "lr", "warmup", "schedule", "metrics", "knn")
    options = [text for name in names for text in (f"--{name}", str(settings[name]))]
    main(["train", *options, "--knn-every", "8", "--out", str(folder), "--extend"])
    lines = capsys.readouterr().out.splitlines()
    assert [number for number, line in enumerate(lines) if "collapsed" in line] == [len(lines) - 1]
    assert lines[-1].startswith(f"the training has collapsed since epoch {since}: the projector's outputs are nearly")
    assert [record.get("collapsed_since") for record in read_records(folder)][-3:] == [since] * 3
    main(["evaluate", str(folder), "--metrics"])
    output = capsys.readouterr()
    assert json.loads(output.out)["feature_std"] < 0.05
    assert "deviation of the coordinates; 1: spread evenly over the sphere" in output.err
    assert "\nthe projector's outputs are nearly equal (feature_std" in output.err
    main(["export", str(folder), "-o", str(folder / "encoder.safetensors")])
    card = (folder / "encoder.safetensors.md").read_text()
    assert f"**The training collapsed from epoch {since} on.**" in card
    assert "- feature_std of the encoder's features: " in card
    assert f"\n{MEANING}.\n" in card


def record(epoch: int, **values: Any) -> dict[str, Any]:
    return {"epoch": epoch, "step": 100 * epoch, **values}


def test_begin_and_recovery_are_said_once() -> None:
    healthy, equal = {"feature_std": 0.9, "effective_rank": 20.0}, {"feature_std": 0.01, "effective_rank": 1.1}
    records: list[dict[str, Any]] = []
    messages: dict[int, str] = {}
    kept: list[Mapping[str, Any]] = []  # a run keeps less than all of its records
    for epoch, deviation, values in [
        (1, 0.9, {}),
        (2, 0.8, healthy),
        (3, 0.02, {}),  # no evaluation: seen in the batch alone
        (4, 0.01, equal),
        (5, 0.01, {}),
        (6, 0.01, equal),
        (7, 0.30, {}),
        (8, 0.60, healthy),
        (9, 0.80, {}),
    ]:
        now = record(epoch, batch_feature_std=deviation, **values)
        same = dict(now)
        messages[epoch] = follow_collapse(now, records, RUN, evaluated=bool(values))
        assert follow_collapse(same, kept, RUN, evaluated=bool(values)) == messages[epoch]
        assert same == now
        records.append(now)
        kept = records_to_follow(kept, now)
        assert len(kept) == (1 if deviation >= 0.1 else epoch - 1)
    assert [epoch for epoch, message in messages.items() if message] == [4, 8]
    assert "has collapsed since epoch 3: the projector's outputs are nearly equal (feature_std 0.01, effective_rank 1.1)" in messages[4]  # fmt: skip
    assert messages[8] == "no longer collapsed after epoch 8 (projector's outputs: feature_std 0.9, effective_rank 20)"
    assert [r["epoch"] for r in records if r.get("collapsed_since") == 3] == [4, 5, 6, 7]
    assert collapse_in_words(records[:3]) == ""
    assert collapse_in_words(records[:6]) == "collapsed from epoch 3 on"
    assert collapse_in_words(records) == "collapsed from epoch 3 to 7, then recovered"
    assert collapse_in_words([]) == describe_collapse(RUN, []) == describe_collapse(RUN, records) == ""


def test_the_first_steps_are_not_judged() -> None:
    """Running statistics of batch norms follow the weights only after some steps."""
    early = {**record(1, feature_std=0.01), "step": 31}
    assert follow_collapse(early, [], RUN, evaluated=True) == ""
    assert follow_collapse({**early, "step": 32}, [], RUN, evaluated=True)


def test_which_output_and_which_kind() -> None:
    line = {"feature_std": 0.8, "effective_rank": 1.0, "encoder_feature_std": 0.5, "encoder_effective_rank": 12.0}
    (outputs,) = collapsed_outputs(line, RUN)
    assert outputs == "the projector's outputs lie on little more than one line (feature_std 0.8, effective_rank 1)"
    both = collapsed_outputs({**line, "encoder_feature_std": 0.0, "encoder_effective_rank": 0.0}, RUN)
    assert both[1] == "the encoder's outputs are nearly equal (feature_std 0, effective_rank 0)"
    # A low rank may be as it should: in a space of three dimensions, and with two classes that are told apart.
    assert not collapsed_outputs({**line, "effective_rank": 1.9}, replace(RUN, width=3))
    assert not collapsed_outputs(line, replace(RUN, loss="supcon"))
    # Without metrics the batch counts; records from before it was measured say nothing.
    assert collapsed_outputs({"batch_feature_std": 0.0}, RUN)
    assert not collapsed_outputs({"epoch": 3, "loss": 1.0}, RUN)


@pytest.mark.parametrize(
    ("loss", "advice"),
    [
        ("simclr", "with a lower --lr (0.01), or a higher temperature"),
        ("triplet", "with a lower --lr (0.01)"),
        ("barlow_twins", "with a lower --lr (0.01), or a larger weight"),
        ("w_mse(size=16)", "with a lower --lr (0.01), or a larger --batch"),
    ],
)
def test_advice_depends_on_the_loss(loss: str, advice: str) -> None:
    collapse = record(4, feature_std=0.0, collapsed_since=4)
    assert describe_collapse(replace(RUN, loss=loss), [collapse]).endswith(advice)


def test_recorded_runs_are_healthy() -> None:
    """The lowest numbers of the runs in results/: hard negatives at a low temperature, and the simple loss."""
    folders = [path.parent for path in Path("results/runs").glob("*/records.jsonl")]
    assert len(folders) >= 60
    for folder in folders:
        run, evaluations = Run.load(folder / "run.json"), [r for r in read_records(folder) if "feature_std" in r]
        worst = {name: min(record[name] for record in evaluations) for name in ("feature_std", "effective_rank")}
        assert worst["feature_std"] > 0.2
        assert worst["effective_rank"] > 5
        assert not collapsed_outputs(worst, run)


def test_the_deviation_of_a_batch(tmp_path: Path) -> None:
    context = Trainer(RUN, tmp_path, log=quiet).context
    assert context.batch_metrics() == {}  # before the first step
    torch.manual_seed(0)
    for z, deviation in [
        (torch.randn(2, 500, 16), pytest.approx(1, abs=0.02)),
        (torch.ones(2, 8, 16) + 1e-8 * torch.randn(2, 8, 16), pytest.approx(0, abs=1e-6)),
        (torch.zeros(2, 8, 16), 0.0),
    ]:
        context.latest = Embeddings(z=z, compare=within_batch)
        assert context.batch_metrics() == {"batch_feature_std": deviation}
    context.latest = Embeddings(z=torch.full((2, 8, 16), math.nan), compare=within_batch)
    assert context.batch_metrics() == {}


def test_features_that_are_not_finite(tmp_path: Path) -> None:
    messages: list[str] = []
    trainer = Trainer(RUN, tmp_path, log=messages.append)
    norm = next(m for m in trainer.context.network.encoder.modules() if isinstance(m, torch.nn.BatchNorm2d))
    assert norm.running_var is not None
    norm.running_var.fill_(math.nan)
    with pytest.raises(
        Diverged, match="no accuracy after epoch 0: train: features of sample 0 are not finite; start over"
    ):
        trainer.evaluate()
    assert trainer._measures() == {}
    assert messages == ["no metrics after epoch 0: z: embedding 0 is not finite"]


def test_records_are_json(tmp_path: Path) -> None:
    append(tmp_path, record(1, loss=1.0, seconds=1.0, a=math.nan, b=math.inf, c=None))
    line = (tmp_path / "records.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail) == record(1, loss=1.0, seconds=1.0, a=None, b=None, c=None)
