"""A run is extended to more epochs: exactly where no schedule depends on their number, and with its history otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import error_message

from contrapose.lab.cli import main
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.training import Run, Trainer, load
from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.stops import StopRequests

RUN = Run(limit=64, batch=32, epochs=2, knn_every=1, knn=3, metrics=20, schedule="constant")


def train(run: Run, folder: Path, **more: Any) -> list[str]:
    """Train without output; return what was said."""
    messages: list[str] = []
    Trainer(run, folder, log=messages.append, **more).train()
    return messages


def records(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in RunDirectory(folder).records()]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [
        {"loss": "nt_xent(temperature=schedule(0.1, 1.0, 3.0))"},
        pytest.param({}, marks=pytest.mark.thorough),
        pytest.param({"schedule": "step", "milestones": (1, 3)}, marks=pytest.mark.thorough),
    ],
    ids=["scheduled temperature", "constant", "step"],
)
def test_an_extended_run_equals_one_of_all_epochs(change: dict[str, Any], tmp_path: Path) -> None:
    run = replace(RUN, **change)
    longer = replace(run, epochs=4)
    train(longer, tmp_path / "whole")
    train(run, tmp_path / "extended")
    (message,) = train(longer, tmp_path / "extended", extend=True)
    assert message == (
        "extending the run from 2 to 4 epochs after step 4. The result is the same as training for 4 epochs from the start"
    )
    one, other = (checkpoint.latest(tmp_path / name / "checkpoints") for name in ("whole", "extended"))
    assert one is not None
    assert other is not None
    assert one.step == other.step == 8
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name]), name
    assert records(tmp_path / "whole") == records(tmp_path / "extended")


@pytest.mark.thorough
def test_a_cosine_is_extended_on_request_and_remembered(tmp_path: Path) -> None:
    run, folder = replace(RUN, schedule="cosine"), tmp_path / "run"
    train(run, folder)
    (folder / "evaluations.json").write_text('{"linear:cacr": 50.0}')
    longer = replace(run, epochs=4)
    with pytest.raises(
        ValueError, match=r"add --extend to continue it to 4 epochs\. The schedule of the learning rate then"
    ) as no:
        Trainer(longer, folder)
    assert "the result is not that of 4 epochs from the start" in str(no.value)
    assert json.loads((folder / "run.json").read_text())["epochs"] == 2
    (message,) = train(longer, folder, extend=True)
    assert message.startswith("extending the run from 2 to 4 epochs after step 4, with the learning rate going from ")
    assert (
        "to 0.003. The schedule of the learning rate then spans 4 epochs, after steps on one that spanned 2" in message
    )
    assert json.loads((folder / "extensions.json").read_text()) == [{"from_epochs": 2, "to_epochs": 4, "step": 4}]
    assert [record["epoch"] for record in records(folder)] == [1, 2, 3, 4]
    assert (load(folder).step, load(folder).run) == (8, longer)
    # Evaluations of the weights before the extension are kept under a name that nobody reads as the new ones.
    assert RunDirectory(folder).evaluations() == {}
    assert "50.0" in (folder / "evaluations-2-epochs.json").read_text()
    assert train(longer, folder) == ["finished at step 8"]  # a plain run of the extended command resumes
    train(replace(run, epochs=5), folder, extend=True)
    assert [e["step"] for e in json.loads((folder / "extensions.json").read_text())] == [4, 8]


@pytest.mark.thorough
def test_an_unfinished_run_is_extended(tmp_path: Path) -> None:
    run, folder = replace(RUN, epochs=3), tmp_path / "run"
    work = Trainer(run, folder, log=lambda text: None).training(StopRequests())
    next(work)  # one epoch
    work.close()
    train(replace(run, epochs=4), folder, extend=True)
    train(replace(run, epochs=4), tmp_path / "whole")
    assert records(folder) == records(tmp_path / "whole")


def test_a_study_does_not_take_an_extended_run_for_its_own(tmp_path: Path) -> None:
    train(RUN, tmp_path)
    assert RunDirectory(tmp_path).trained(2)
    train(replace(RUN, epochs=3), tmp_path, extend=True)
    assert not RunDirectory(tmp_path).trained(2)
    assert RunDirectory(tmp_path).trained(3)


@pytest.mark.thorough
def test_extend_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "train",
        "--limit",
        "64",
        "--batch",
        "32",
        "--knn",
        "3",
        "--metrics",
        "0",
        "--out",
        str(tmp_path / "run"),
    ]
    assert "extend: " in error_message(capsys, *arguments, "--extend")
    assert not (tmp_path / "run").exists()
    main([*arguments, "--epochs", "2"])
    message = error_message(capsys, *arguments, "--epochs", "3")
    assert "holds this run with 2 epochs; add --extend to continue it to 3 epochs" in message
    for extend in ([], ["--extend"]):
        message = error_message(capsys, *arguments, "--epochs", "1", *extend)
        assert (
            "holds this run with 2 epochs, and a run can only be extended; use another --out to train for 1" in message
        )
    main([*arguments, "--epochs", "3", "--extend"])
    assert "extending the run from 2 to 3 epochs after step 4" in capsys.readouterr().out
    main(["evaluate", str(tmp_path / "run")])
    assert json.loads(capsys.readouterr().out)["step"] == 6
    message = error_message(capsys, *arguments, "--epochs", "4", "--extend", "--lr", "1")
    assert "holds another run: epochs is 3 there and 4 here, lr is 0.004 there and 1.0 here" in message
