"""Options of `train` besides the settings of a run: --config, --dry-run, refusals, and hints to shorten a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import error_message

from contrapose.lab.cli import main
from contrapose.lab.cli.train import _how_to_shorten, _shorter_runs
from contrapose.lab.training import Run

SMALL = ["--limit", "64", "--batch", "16", "--knn", "3", "--metrics", "0", "--warmup", "0"]


def test_values_that_make_no_sense_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        error_message(capsys, "train", "--epochs", "-3")
        == "contrapose: --epochs: expected a whole number of at least 1, or 0 to have it chosen, got -3\n"
    )
    assert "lr: a learning rate of 0 trains nothing" in error_message(capsys, "train", "--lr", "0")
    assert "workers: expected a whole number of at least 0, got -1" in error_message(capsys, "train", "--workers", "-1")
    assert "--log: expected one of" in (message := error_message(capsys, "train", "--log", "wnadb"))
    assert "did you mean 'wandb'" in message
    assert "images: expected a whole number of at least 10, got -1" in error_message(
        capsys, "map", "x", "--images", "-1"
    )
    assert "contrapose: --worker-timeout: expected a number above 0" in error_message(
        capsys, "train", "--worker-timeout", "0"
    )


def test_options_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line overrides the file, even with a default value; what only the file sets is used."""
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text('epochs = 5\nout = "mine"\nworkers = -1\nlimit = 64\n')
    assert error_message(capsys, "train", "--config", "a.toml").startswith(
        "contrapose: --config: a.toml: workers: expected a whole number"
    )
    # What the command line overrides is not the file's error.
    assert error_message(capsys, "train", "--config", "a.toml", "--epochs", "-3", "--workers", "1").startswith(
        "contrapose: --epochs: expected"
    )
    main(["train", "--config", "a.toml", "--epochs", "1", "--workers", "2", *SMALL])
    assert json.loads(Path("mine/run.json").read_bytes())["epochs"] == 1
    main(["train", "--config", "mine/run.json", "--out", "mine"])  # the same run, which is finished
    assert "finished at step 4" in capsys.readouterr().out
    Path("a.toml").write_text("hold-out = 2\n")
    assert error_message(capsys, "train", "--config", "a.toml").startswith(
        "contrapose: --config: a.toml: hold_out: expected a share below 1"
    )
    Path("a.toml").write_text('workers = "many"\n')
    assert "workers: expected a whole number, got 'many'" in error_message(capsys, "train", "--config", "a.toml")
    Path("a.toml").write_text('device = "gpu"\n')
    assert "--config: a.toml: device: expected cpu" in error_message(capsys, "train", "--config", "a.toml")


def test_a_dry_run_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["train", *SMALL, "--epochs", "4", "--dry-run", "--device", "cpu"])
    lines = capsys.readouterr().out.splitlines()
    assert list(tmp_path.iterdir()) == []
    run = Run(limit=64, batch=16, knn=3, metrics=0, warmup=0.0, epochs=4)
    assert "  data: --limit 64" in lines
    assert "  optimisation: --lr 0.004 --warmup 0.0 --epochs 4 --batch 16" in lines
    assert (
        "data        64 images to train on; kNN accuracy on 200 test images of 10 classes, with 64 labelled ones"
        in lines
    )
    assert "negatives   30 per anchor (--batch 16, --framework simclr)" in lines
    assert "steps       4 per epoch, 16 in 4 epochs" in lines
    (memory,) = (line for line in lines if line.startswith("memory"))
    assert int(memory.split()[1].replace(",", "")) > 50  # MiB
    (duration,) = (line for line in lines if line.startswith("time"))
    assert "on cpu: 16 steps of " in duration
    assert " and 1 evaluation of " in duration
    assert f"directory   runs/{run.name} (new)" in lines


def test_a_dry_run_counts_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = "\n".join(f"question {n}\tanswer {n}" for n in range(40))
    (tmp_path / "pairs.tsv").write_text(f"query\tpositive\n{lines}\n")
    main(["train", "--data", str(tmp_path / "pairs.tsv"), "--batch", "8", "--hold-out", "0.25", "--dry-run"])
    assert "data        30 pairs to train on, and 10 held-out pairs to evaluate on\n" in capsys.readouterr().out


def test_epochs_that_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["train", *SMALL, "--epochs", "0", "--dry-run"])
    assert "--epochs 0 means that it is chosen for the data: 30\n" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_dry_run_of_a_run_that_exists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    main(["train", *SMALL, "--epochs", "1", "--out", str(folder)])
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    capsys.readouterr()
    main(["train", *SMALL, "--epochs", "1", "--out", str(folder), "--dry-run"])
    output = capsys.readouterr().out
    assert f"{folder} (exists, and its training is finished)" in output
    assert "\ntime" not in output
    main(["train", *SMALL, "--epochs", "3", "--out", str(folder), "--dry-run", "--extend"])
    output = capsys.readouterr().out
    assert "training would resume: 1 of 3 epochs are recorded" in output
    assert ": 8 steps of " in output
    # It refuses what training would refuse.
    assert "add --extend" in error_message(capsys, "train", *SMALL, "--epochs", "3", "--out", str(folder), "--dry-run")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"loss": "byol", "predictor": 64}, "none: byol does not contrast samples with each other"),
        ({"framework": "memory-bank"}, "63 per anchor (--batch 16, --framework memory-bank)"),
        ({"framework": "moco", "queue": 32, "momentum": 0.9}, "32 per anchor (--batch 16, --framework moco)"),
    ],
    ids=lambda value: value.get("framework", value.get("loss")) if isinstance(value, dict) else "",
)
@pytest.mark.thorough
def test_negatives_in_a_dry_run(
    settings: dict[str, object], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    main(["train", *SMALL, "--epochs", "1", *options, "--dry-run", "--out", str(tmp_path / "run")])
    assert f"negatives   {expected}\n" in capsys.readouterr().out


def shorter(run: Run, *, samples: int, requested: Run | None = None, recorded: Run | None = None) -> list[str]:
    trainer = SimpleNamespace(run=run, split=SimpleNamespace(train=range(samples)), recorded=recorded)
    return _shorter_runs(requested or run, trainer)  # type: ignore[arg-type]


def test_hints_that_shorten() -> None:
    run = Run(data="digits", epochs=30)
    assert shorter(run, samples=1000) == ["--epochs 10"]
    assert shorter(replace(run, epochs=2), samples=1000) == ["--epochs 1", "--limit 333"]
    assert shorter(replace(run, epochs=1), samples=1000) == ["--limit 333"]
    assert shorter(replace(run, epochs=1, batch=500), samples=1000) == []  # 333 images are no batch
    assert shorter(replace(run, warmup=20), samples=1000) == []  # 10 epochs are fewer than those of the warm-up
    assert shorter(replace(run, keep=(30,)), samples=1000) == []
    assert shorter(replace(run, size=48), samples=1000) == ["--epochs 10", "--size 32"]
    assert shorter(run, samples=1000, recorded=run) == []
    # If the number of epochs is chosen, fewer images would mean more epochs.
    requested = Run(data="my-images")
    assert "epochs" in requested.auto_settings
    assert shorter(replace(run, epochs=1), samples=1000, requested=requested) == ["--epochs 1 --limit 333"]


def test_the_hint_is_for_long_runs() -> None:
    assert _how_to_shorten(119, "CPU", ["--epochs 1"]) == "the training takes about 2 min on this CPU"
    assert _how_to_shorten(600, "CPU", []) == "the training takes about 10 min on this CPU"
    assert _how_to_shorten(600, "CPU", ["--epochs 1", "--size 32"]).endswith("; to shorten it: --epochs 1 or --size 32")
    assert _how_to_shorten(60, "GPU", []) == "the training takes about 60 s on this GPU"


def test_executor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = error_message(capsys, "train", "--executor", "cloud")
    assert "--executor: expected local, slurm:FILE or local:FILE, got 'cloud'" in message
    file = tmp_path / "job.toml"
    file.write_text("hours = 1\ntasks_per_node = 3\n")
    assert "job.tom cannot be read" in error_message(capsys, "train", "--executor", f"slurm:{file}"[:-1])
    pytest.importorskip("submitit", reason="submitit is not installed (the extra `slurm`)")
    options = ("train", "--limit", "64", "--batch", "32", "--epochs", "1", "--executor", f"local:{file}")
    assert "--out: a job needs --out, the directory of its run" in error_message(capsys, *options)
    message = error_message(capsys, *options, "--out", str(tmp_path / "run"))
    assert "--batch: 32 images cannot be shared equally by 3 processes" in message
    assert not (tmp_path / "run").exists()
