"""The name of a run is the name of a directory: it leads nowhere else, whatever the settings."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from commands import error_message

from contrapose.lab.settings import recorded_name
from contrapose.lab.training import Run

SMALL = ["--limit", "64", "--batch", "32", "--epochs", "1", "--knn", "3", "--metrics", "0"]


@pytest.mark.parametrize(
    "loss",
    [
        "simclr#/../../../x",
        "simclr(temperature=0.2)#/../x",
        "(simclr)",
        "# /..\nsimclr",
        "simclr\t",
    ],
)
def test_a_loss_with_a_path_in_a_comment(loss: str) -> None:
    assert re.fullmatch(r"digits16-simclr-[0-9a-f]{8}", Run(loss=loss).name)


@pytest.mark.parametrize("data", ["../..", "a b\nc", "x/..", "-", "…/\u202e$(x)", "/"])
def test_data_with_odd_names(data: str) -> None:
    run = Run(data=data, views="digits", encoder="tiny", epochs=1, batch=2, lr=0.1)
    assert re.fullmatch(r"[\w.-]+-simclr-[0-9a-f]{8}|-simclr-[0-9a-f]{8}", run.name)


def test_names_of_runs_stay() -> None:
    assert Run(data="digits").name == "digits-simclr-a8d7e8b6"
    loss = "nt_xent(temperature=0.3, negatives=hardest(64))"
    assert Run(data="digits", loss=loss).name == "digits-nt_xent-a0c86c09"


# Each setting that was renamed: its present form, and the one that run.json keeps.
RENAMED: list[tuple[dict[str, Any], dict[str, object]]] = [
    ({"grad_clip": 2.0}, {"clip": 2.0}),
    ({"lr_drop": 0.5}, {"gamma": 0.5}),
    ({"epoch_slices": 2}, {"parts": 2}),
    ({"eval_data": "cifar10"}, {"probe_data": "cifar10"}),
    ({"extra_metrics": ("entropy:2@1",)}, {"record": ["entropy:2@1"]}),
    ({"accumulate": 2, "grad_cache": True}, {"accumulate": 2, "contrast": "whole"}),
    (
        {"framework": "byol", "loss": "byol", "momentum_schedule": "cosine"},
        {"framework": "byol", "loss": "byol", "rising": True},
    ),
]


@pytest.mark.parametrize(("settings", "recorded"), RENAMED, ids=lambda settings: list(settings)[-1])
def test_renamed_settings_keep_their_names_in_run_json(settings: dict[str, Any], recorded: dict[str, object]) -> None:
    run, plain = Run(data="digits", **settings), Run(data="digits")
    assert run.describe() == {**plain.describe(), **recorded}
    assert Run.read(run.describe()) == run


def test_every_renamed_setting_is_tested() -> None:
    renamed = {field.name for field in fields(Run) if recorded_name(field) != field.name}
    assert renamed == {name for settings, _ in RENAMED for name in settings} - {"accumulate", "framework", "loss"}


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        ({"contrast": True}, "contrast: expected 'separate' or 'whole', got True"),
        ({"rising": 1}, "rising: expected False or True, got 1"),
        ({"rising": ["cosine"]}, "rising: expected False or True"),
        ({"grad_clip": 1.0}, "unknown settings: grad_clip"),
    ],
)
def test_a_run_json_with_present_names_or_values(recorded: dict[str, object], message: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({**Run(data="digits").describe(), **recorded}))
    with pytest.raises(ValueError, match=re.escape(message)):
        Run.load(tmp_path / "run.json")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--view-count", "1000000"], "--view-count: expected a whole number of at most 256, got 1000000"),
        (["--batch", str(2**31)], f"batch: expected a whole number of at most {2**31 - 1}, got {2**31}"),
        (["--limit", str(2**63)], f"limit: expected a whole number of at most {2**31 - 1}, got {2**63}"),
        (["--seed", str(2**64)], f"seed: expected a whole number of at most {2**63 - 1}, got {2**64}"),
        (["--out", "/"], "out: / is the root of the file system; choose a directory below it with --out"),
        (["--out", "/tmp/.."], "out: /tmp/.. is the root of the file system"),
        (
            ["--loss", "cacr(stop_positive_weights='x')"],
            "stop_positive_weights: expected True or False or None, got 'x'",
        ),
        (["--loss", "dcl(split_views=1)"], "loss: split_views: expected True or False, got 1"),
    ],
)
def test_settings_that_no_machine_can_train(
    options: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in error_message(capsys, "train", *SMALL, *options)
    assert list(tmp_path.iterdir()) == []


def named(data: str) -> Run:
    return Run(data=data, views="digits", encoder="tiny", epochs=1, batch=2, lr=0.1)


@pytest.mark.parametrize("data", ["x" * 255, "é" * 127, "a/" + "日" * 85, "x" * 234])
def test_data_with_a_long_name(data: str, tmp_path: Path) -> None:
    """A file system allows 255 bytes for a name, and the lock of a run has six more than its directory."""
    run = named(data)
    (tmp_path / run.name).mkdir()
    (tmp_path / f".{run.name}.lock").touch()
    assert re.search(r"-simclr-[0-9a-f]{8}$", run.name)
    assert run.name != named(data + "y").name  # what is cut off is in the hash


def test_a_name_that_fits_is_not_cut() -> None:
    assert named("x" * 233).name == f"{'x' * 233}-simclr-" + named("x" * 233).name[-8:]
    assert len(named("x" * 233).name) == 249
