"""`contrapose tune` as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import error_message

from contrapose.lab.cli import main


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
    assert "7 candidates: nt_xent, nt_xent(temperature=0.125), nt_xent(temperature=0.25), " in output
    assert "nt_xent(temperature=cosine(0.25, 1)), nt_xent(negatives=hardest(0.1))" in output
    assert "7 x 1 epochs, 3 x 1, then the best and the default with 2 seeds x 2: at most 18 epochs" in output
    ranked = [line for line in output.splitlines() if line.lstrip().startswith("1 epochs")]
    scores = [float(line.split()[2]) for line in ranked]
    assert len(scores) == 7 + 3
    assert scores[:7] == sorted(scores[:7])
    assert scores[7:] == sorted(scores[7:])
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


def test_what_tune_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "use --seeds" in error_message(capsys, "tune", "--seed", "1")
    assert "barlow_twins has no setting temperature" in error_message(capsys, "tune", "--loss", "barlow_twins")
    config = tmp_path / "config.toml"
    config.write_text("epochs = 3\n")
    message = error_message(capsys, "tune", str(tmp_path), "--config", str(config))
    assert "config: expected either a run or --config, got both" in message
    assert "does not exist" in error_message(capsys, "tune", str(tmp_path / "none"))
