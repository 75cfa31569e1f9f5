"""What the files of a run say about it, without loading the run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from contrapose.lab.training.locks import is_locked, lock_directory
from contrapose.lab.training.records import files
from contrapose.lab.training.records.files import read_last_records, read_records
from contrapose.lab.training.records.past_run import PastRun, RunProgress, find_runs, main_score, scores_in

SETTINGS = {"data": "data/mine.npz", "loss": "simclr", "epochs": 4, "batch": 10}


def write_run(folder: Path, *records: dict[str, Any], saved: int = 0, **changes: Any) -> Path:
    """Write the files of a run with 5 steps per epoch; the records are those of epochs 1, 2, …"""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(SETTINGS | changes))
    lines = [
        {"epoch": n, "step": 5 * n, "seconds": 1.0, "loss": 1.0 / n, **record}
        for n, record in enumerate(records, start=1)
    ]
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if saved:
        (folder / "checkpoints" / f"step-{saved:08d}").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("block", [1, 7, 64, 2**14])
@pytest.mark.parametrize("ending", ["", "\n", '\n{"epoch": 3, "st', "\n\n\xff\n"])
def test_records_are_read_from_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, ending: str
) -> None:
    monkeypatch.setattr(files, "_BLOCK", block)
    lines = [json.dumps({"epoch": n, "step": n, "seconds": 0.5, "name": "é" * n}) for n in range(1, 6)]
    (tmp_path / "records.jsonl").write_bytes(("\n".join(lines) + ending).encode("latin1"))
    records = list(read_last_records(tmp_path))
    assert len(records) == 5
    assert records == read_records(tmp_path)[::-1]


def test_only_the_end_of_the_records_is_read(tmp_path: Path) -> None:
    with (tmp_path / "records.jsonl").open("wb") as file:
        file.truncate(2**36)  # a hole, which takes no space on the disk; reading it would take minutes
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"epoch": 7, "step": 7, "seconds": 1}\n')
    assert next(read_last_records(tmp_path))["epoch"] == 7
    assert list(read_last_records(tmp_path / "nothing")) == []


def test_a_finished_and_a_stopped_run(tmp_path: Path) -> None:
    finished = PastRun.read(write_run(tmp_path / "a", {}, {"knn_top1": 30.0}, {}, {"knn_top1": 40.0}, saved=20))
    assert (finished.state, finished.state_in_words) == ("finished", "finished")
    assert finished.main_score == ("knn_top1", "kNN", 40.0)
    stopped = PastRun.read(write_run(tmp_path / "b", {}, {"knn_top1": 30.0}, {}, saved=17))
    assert stopped.state_in_words == "stopped at step 17 of 20"
    assert stopped.main_score == ("knn_top1", "kNN", 30.0)  # of the last evaluation
    assert str(stopped.progress) == "3.4 of 4 epochs (step 17 of 20)"
    # Killed after its last record, before its last checkpoint: the weights are those of step 15.
    killed = PastRun.read(write_run(tmp_path / "c", {}, {}, {}, {}, saved=15))
    assert killed.state_in_words == "stopped at step 15 of 20"
    # Killed in its last evaluation: the weights are complete, the records are not.
    assert PastRun.read(write_run(tmp_path / "d", {}, {}, {}, saved=20)).state == "stopped"
    # A copy without weights, as in results/.
    assert PastRun.read(write_run(tmp_path / "e", {}, {}, {}, {})).state == "finished"


def test_a_run_without_records_knows_its_steps_from_its_data(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", saved=3, parts=2, accumulate=2)
    assert PastRun.read(folder).state_in_words == "stopped at step 3"
    (folder / "data.json").write_text(json.dumps({"images": 120}))
    assert PastRun.read(folder).state_in_words == "stopped at step 3 of 12"
    for damaged in ("[", "{}", '{"images": "many"}'):
        (folder / "data.json").write_text(damaged)
        assert PastRun.read(folder).progress == RunProgress(3, None, 4)


def test_a_run_in_training_holds_its_lock(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {}, saved=5)
    assert not is_locked(folder)
    assert not (tmp_path / ".run.lock").exists()
    with lock_directory(folder) as acquired:
        assert acquired
        assert is_locked(folder)
        assert PastRun.read(folder).state_in_words == "training now, step 5 of 20"
    assert not is_locked(folder)
    assert PastRun.read(folder).state == "stopped"


def test_runs_are_found_newest_first_and_damaged_ones_are_named(tmp_path: Path) -> None:
    for number, name in enumerate(("middle", "new", "old")):
        folder = write_run(tmp_path / name, {})
        os.utime(folder / "records.jsonl", (0, {"old": 1e9, "middle": 1.1e9, "new": 1.2e9}[name] + number))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "file").write_text("")
    for name, content in {"w": "[1]", "x": "{", "y": '{"data": "d", "loss": "l", "epochs": "4"}', "z": "{}"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(content)
    found = list(find_runs(tmp_path))
    assert [run.folder.name for run in found if isinstance(run, PastRun)] == ["new", "middle", "old"]
    errors = [str(error).removeprefix(f"{tmp_path}/") for error in found if isinstance(error, ValueError)]
    assert errors == [
        "w/run.json is damaged: expected an object, got list",
        "x/run.json is damaged: it is not JSON",
        "y/run.json does not describe a run: epochs is '4'",
        "z/run.json does not describe a run: it has no data, epochs, loss",
    ]
    assert [run.folder.name for run in find_runs(tmp_path / "old") if isinstance(run, PastRun)] == ["old"]


def test_the_best_baseline(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {"knn_top1": 50.0, "knn_top5": 60.0})
    assert PastRun.read(folder).best_baseline is None
    baselines = {
        "raw pixels": {"knn_top1": 45.0},
        "untrained encoder": {"knn_top1": 30.0, "knn_top5": 99.0},
        "other": {},
    }
    (folder / "baselines.json").write_text(json.dumps({"knn": 20, "baselines": baselines}))
    assert PastRun.read(folder).best_baseline == ("raw pixels", 45.0)
    for damaged in ("{", "[]", '{"baselines": 3}', '{"baselines": {"raw pixels": 3}}', "{}"):
        (folder / "baselines.json").write_text(damaged)
        assert PastRun.read(folder).best_baseline is None


def test_the_main_score() -> None:
    record = {"loss": 1.0, "stsb_dev": 70.0, "uniformity": -2.0, "recall@10": 50.0, "recall@1": 20.0, "knn_top5": None}
    assert scores_in(record) == {"stsb_dev": 70.0, "recall@10": 50.0, "recall@1": 20.0}
    assert main_score(scores_in(record)) == ("recall@1", "recall@1", 20.0)
    assert main_score({"stsb_dev": 70.0}) == ("stsb_dev", "stsb_dev", 70.0)
    captions = {"image_to_text_recall_1": 1.0, "text_to_image_recall_1": 2.0}
    assert main_score(scores_in(captions)) == ("text_to_image_recall_1", "text-to-image recall@1", 2.0)
    assert main_score({}) is None
