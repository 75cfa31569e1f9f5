"""`contrapose runs` lists and compares past runs, and an unfinished run says that it is not finished."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commands import error_message
from PIL import Image

from contrapose.lab.cli import main
from contrapose.lab.training import Run, Stopped, Trainer

RUN = Run(data="digits16", limit=64, batch=16, epochs=4, knn_every=2, knn=3, metrics=0, keep=(1,))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, and one with another loss that was stopped after two of four epochs."""
    root = tmp_path_factory.mktemp("project") / "runs"
    Trainer(RUN, root / "finished", log=lambda text: None).train()
    trainer = Trainer(replace(RUN, loss="dystress", lr=0.01), root / "stopped", log=lambda text: None)
    with suppress(Stopped):
        for epoch, _ in enumerate(trainer.training(requests := trainer.requests), start=1):
            if epoch == 2:
                requests.append(15)  # as a signal does
    return root


def test_the_table(runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.parent)
    main(["runs"])
    headings, first, second = capsys.readouterr().out.splitlines()
    assert headings.split() == ["run", "data", "loss", "seed", "score", "epochs", "state", "date"]
    assert first.split()[:3] == ["stopped", "digits16", "dystress"]  # the newest first
    assert "2 of 4" in first
    assert "stopped at step 8 of 16" in first
    score = json.loads((runs / "finished" / "records.jsonl").read_text().splitlines()[-1])["knn_top1"]
    for cell in ("finished  digits16", "simclr(temperature=0.2)  0     ", f"kNN {score:.2f}", "4 of 4  finished  "):
        assert cell in second, cell


def test_a_terminal_shows_the_whole_names(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    main(["runs", str(runs)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3  # a row of the table takes several lines
    assert all(len(line) <= 60 for line in lines)
    assert any(line.strip().startswith("loss simclr(temperature=0.2) · score kNN ") for line in lines)


def test_json_for_programs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["runs", str(runs), "--json"])
    stopped, finished = json.loads(capsys.readouterr().out)
    assert stopped["run"] == str(runs / "stopped")
    assert [stopped[name] for name in ("state", "step", "steps", "epochs")] == ["stopped", 8, 16, 4]
    assert (finished["state"], finished["seed"]) == ("finished", 0)
    record = json.loads((runs / "finished" / "records.jsonl").read_text().splitlines()[-1])
    assert finished["scores"] == {name: record[name] for name in ("knn_top1", "knn_top5")}


def test_a_score_is_shown_beside_its_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(RUN.describe()))
        record = {"epoch": 4, "step": 16, "seconds": 1.0, "loss": 1.0, "knn_top1": 85.0}
        (tmp_path / name / "records.jsonl").write_text(json.dumps(record) + "\n")
    baselines = {"raw pixels": {"knn_top1": 80.0}, "untrained encoder": {"knn_top1": 60.0}}
    (tmp_path / "a" / "baselines.json").write_text(json.dumps({"baselines": baselines}))
    main(["runs", str(tmp_path)])
    output = capsys.readouterr().out
    assert "kNN 85.00 (raw pixels 80.00)" in output
    assert "kNN 85.00  " in output
    main(["runs", str(tmp_path / "a"), "--json"])
    assert json.loads(capsys.readouterr().out)[0]["baselines"] == baselines
    main(["runs", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(tmp_path / "a.png")])
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    assert [cell.strip() for cell in next(line for line in lines if line[0] == "best baseline") if cell.strip()] == [
        "best baseline",
        "raw pixels 80.00",
        "–",
    ]
    assert any(line[0] == "no setting differs" for line in lines)


@pytest.mark.parametrize(
    ("score", "references", "baseline"),
    [
        ("knn_top1", {"pixels": 80.0, "untrained": 60.0}, "raw pixels 80.00"),
        ("recall@1", {"words": 20.0, "untrained": 30.0, "init": 40.0}, "encoder before training 40.00"),
        ("text_to_image_recall_1", {"chance": 1.0, "untrained": 1.5}, "untrained encoder 1.50"),
    ],
)
def test_seeds_and_baselines_of_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], score: str, references: dict[str, float], baseline: str
) -> None:
    """Runs of `compare` differ only by their seed, and have their baselines in evaluations.json."""
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps(replace(RUN, seed=seed).describe()))
        (folder / "records.jsonl").write_text(
            json.dumps({"epoch": 4, "step": 16, "seconds": 1.0, "loss": 1.0, score: 85.0}) + "\n"
        )
        (folder / "evaluations.json").write_text(json.dumps({"references": references, "knn_hits": "01"}))
    (tmp_path / "1" / "evaluations.json").write_text('{"references": [1]}')  # damaged
    main(["runs", str(tmp_path)])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert "simclr(temperature=0.2)  0     " in lines["0"]
    assert "simclr(temperature=0.2)  1     " in lines["1"]
    assert f"85.00 ({baseline})  " in lines["0"]
    assert "85.00  " in lines["1"]


@pytest.mark.parametrize("arguments", ["runs .", "runs --help", "--help"])
def test_the_list_does_not_wait_for_torch(tmp_path: Path, arguments: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run.json").write_text(json.dumps(RUN.describe()))
    code = (
        f"import sys; from contrapose.lab.cli import main; main({arguments.split()}); assert 'torch' not in sys.modules"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.DEVNULL, check=False).returncode
        == 0
    )


def test_damaged_runs_are_named_in_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in {"bad": "{", "mine": '{"data": "d", "loss": "l", "epochs": 2}', "other": "{}"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(content)
    main(["runs", str(tmp_path)])
    captured = capsys.readouterr()
    assert [line.split()[0] for line in captured.out.splitlines()] == ["run", "mine"]
    assert "stopped at step 0" in captured.out
    assert captured.err.splitlines() == [
        f"contrapose: {tmp_path}/bad/run.json is damaged: it is not JSON",
        f"contrapose: {tmp_path}/other/run.json does not describe a run: it has no data, epochs, loss",
    ]


def test_a_folder_without_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"`contrapose runs {runs}` lists those in it" in error_message(capsys, "runs", str(runs.parent))
    assert "which `contrapose train` writes" in error_message(capsys, "runs", str(runs / "finished" / "checkpoints"))
    assert "comprae is not a folder" in error_message(capsys, "runs", "comprae")


def test_compare(runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.parent)
    main(["runs", "compare", "finished", str(runs / "stopped"), "-o", "figure.svg"])
    output = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in output.splitlines()}
    assert rows["finished"] == ["stopped"]  # the headings
    assert rows["loss"] == ["simclr(temperature=0.2)", "dystress"]
    assert rows["lr"] == ["0.004", "0.01"]
    assert rows["state"] == ["finished", "stopped", "at", "step", "8", "of", "16"]
    assert len(rows["knn_top1"]) == 2
    assert not rows.keys() & {"epochs", "batch", "data"}  # equal in both
    assert "different losses, whose values are not comparable" in output
    texts = {"".join(node.itertext()) for node in ElementTree.parse("figure.svg").iter() if node.tag.endswith("}text")}
    assert {"Training loss (different losses: not comparable)", "Score of the evaluations: kNN", "epoch"} < texts
    assert {"finished", "stopped"} < texts


def test_compare_refuses_what_it_cannot_compare(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished = str(runs / "finished")
    assert "expected at least two runs, got 1" in error_message(capsys, "runs", "compare", finished, finished)
    assert "nothing is not the directory of a run" in error_message(capsys, "runs", "compare", finished, "nothing")
    out = ("-o", "figure.txt")
    assert "ends in .png, .svg or .pdf" in error_message(capsys, "runs", "compare", finished, finished, *out)


def test_an_unfinished_run_says_so(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = "trained for 2 of 4 epochs (step 8 of 16)"
    message = (
        f"contrapose: {runs / 'stopped'} is not finished: its newest weights were {progress}; run the same `contrapose train` "
        "command again to resume"
    )
    main(["evaluate", str(runs / "stopped")])
    captured = capsys.readouterr()
    assert message in captured.err.splitlines()
    assert json.loads(captured.out)["finished"] is False
    main(["export", str(runs / "stopped"), "-o", str(tmp_path / "stopped.safetensors")])
    assert message in capsys.readouterr().err.splitlines()
    assert f"\n**T{progress[1:]}.**\n" in (tmp_path / "stopped.safetensors.md").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments",
    [
        ("embed", "RUN", "digits16", "-o", "out.npz"),
        ("search", "RUN", "query.png"),
        ("map", "RUN", "--method", "pca", "--images", "20"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_command_on_an_unfinished_run_says_so(
    arguments: tuple[str, ...],
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (16, 16)).save("query.png")
    for name, expected in (("stopped", 1), ("finished", 0)):
        main([str(runs / name) if argument == "RUN" else argument for argument in arguments])
        assert capsys.readouterr().err.count("is not finished: its newest weights were trained for 2 of 4") == expected


def test_a_finished_run_says_nothing(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(runs / "finished")])
    captured = capsys.readouterr()
    assert "finished" not in json.loads(captured.out)
    assert "not finished" not in captured.err
    main(["export", str(runs / "finished"), "-o", str(tmp_path / "a.safetensors")])
    assert "Trained for" not in (tmp_path / "a.safetensors.md").read_text()
    # Weights of an earlier epoch that the user asks for: only the card says how long they were trained.
    main(["export", str(runs / "finished"), "--epoch", "1", "-o", str(tmp_path / "b.safetensors")])
    assert "**Trained for 1 of 4 epochs (step 4 of 16).**" in (tmp_path / "b.safetensors.md").read_text()
    assert "not finished" not in capsys.readouterr().err
