"""`contrapose tune` as a user calls it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from commands import error_message

from contrapose.lab.cli import main
from contrapose.lab.cli.tune import Tune
from contrapose.lab.studies.tuning import candidates, temperature_at


@pytest.mark.thorough
def test_tune_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trials are listed and ranked, and the report compares the best with the default; the second time nothing is trained."""
    arguments = [
        "tune",
        "--limit",
        "96",
        "--epochs",
        "2",
        "--batch",
        "32",
        "--knn",
        "3",
        "--metrics",
        "20",
        "--seeds",
        "2",
    ]
    arguments += ["--loss", "nt_xent", "--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "out")]
    main(arguments)
    output = capsys.readouterr().out
    assert "the similarities of different samples have a spread of 0." in output
    assert "7 candidates: nt_xent, nt_xent(temperature=0.125), nt_xent(temperature=0.25), " in output
    assert "nt_xent(temperature=cosine(0.25, 1)), nt_xent(negatives=hardest(0.1))" in output
    assert "7 x 1 epochs, 3 x 1, then the best and the default with 2 seeds x 2: at most 18 epochs" in output
    ranked = [line for line in output.splitlines() if line.lstrip().startswith("1 epochs")]
    scores = [float(line.split()[2]) for line in ranked]
    count = int(re.findall(r"^(\d) candidates: nt_xent, ", output, re.MULTILINE)[-1])  # with the measured ones
    assert 7 <= count <= 9
    assert len(scores) == count + 3
    assert scores[:count] == sorted(scores[:count])
    assert scores[count:] == sorted(scores[count:])
    best = ranked[-1].split(maxsplit=3)[3]
    if best == "nt_xent":
        assert "keep it" in output
    else:
        assert "2 seeds" in output
        assert ("keep it" in output) != (f"--loss '{best}'" in output)
        assert next((tmp_path / "out").iterdir()).name.startswith("tune-digits-nt_xent")
    runs = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.safetensors")}
    main(arguments)
    assert capsys.readouterr().out.splitlines()[-1] == output.splitlines()[-1]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.safetensors")} == runs


def test_a_run_gives_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "mine"
    main(["train", "--limit", "64", "--epochs", "1", "--batch", "32", "--baselines", "none", "--out", str(run)])
    capsys.readouterr()
    main(["tune", str(run), "--dry-run", "--epochs", "8"])
    output = capsys.readouterr().out
    assert "7 x 2 epochs, 3 x 4, then the best and the default with 3 seeds x 8: at most 74 epochs" in output
    assert not (tmp_path / "reports").exists()


@pytest.mark.thorough
def test_the_command_at_the_end_has_the_settings_that_were_tuned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"data": "digits", "limit": 64, "batch": 32, "epochs": 2, "keep": (1, 2), "symmetric": True, "queue": 64}
    command = Tune(given=given | {"framework": "moco", "loss": "moco"})._command("nt_xent(temperature=0.2)")
    assert command.endswith("--framework moco --loss 'nt_xent(temperature=0.2)'")
    main([*shlex.split(command)[1:], "--baselines", "none", "--out", str(tmp_path / "run")])
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert {name: run[name] for name in given} == {**given, "keep": [1, 2]}
    command = Tune(given={"epochs": 1}, config=tmp_path / "run" / "run.json")._command("moco")
    assert command == f"contrapose train --config {tmp_path}/run/run.json --epochs 1 --loss moco"
    capsys.readouterr()


def test_what_tune_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "use --seeds" in error_message(capsys, "tune", "--seed", "1")
    assert "barlow_twins has no setting temperature" in error_message(capsys, "tune", "--loss", "barlow_twins")
    config = tmp_path / "config.toml"
    config.write_text("epochs = 3\n")
    message = error_message(capsys, "tune", str(tmp_path), "--config", str(config))
    assert "config: expected either a run or --config, got both" in message
    assert "does not exist" in error_message(capsys, "tune", str(tmp_path / "none"))


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_a_measured_temperature_has_its_share_of_the_push(share: float) -> None:
    """The entropy of a softmax over similarities with a normal distribution, drawn instead of integrated."""
    similarities = 0.1 + 0.07 * torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = (similarities / temperature_at(share, 0.07)).softmax(0)
    carried = torch.special.entr(weights).sum().exp() / len(weights)
    assert float(carried) == pytest.approx(share, rel=0.05)


def test_measured_temperatures_are_candidates() -> None:
    plain = candidates("simclr", "nt_xent(temperature=0.5)")
    measured = candidates("simclr", "nt_xent(temperature=0.5)", spread=0.2)
    assert [text for text in measured if text not in plain] == ["simclr(temperature=0.17)", "simclr(temperature=0.093)"]
    # 0.12 and 0.066 are so close to 0.125 that only the second is tried.
    close = candidates("simclr", "nt_xent(temperature=0.5)", spread=0.1415)
    assert [text for text in close if text not in plain] == ["simclr(temperature=0.066)"]
