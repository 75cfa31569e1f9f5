"""results/README.md agrees with its runs, and its commands give the verdicts that it prints."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from statistics import mean, median, stdev

import pytest

from contrapose.lab.cli import main
from contrapose.lab.studies import find
from contrapose.lab.studies.results import column
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.studies.study import Row
from contrapose.lab.training import Run
from contrapose.lab.training.records.files import read_records

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "results" / "README.md").read_text()
SECTIONS = [section for section in TEXT.split("\n## ") if re.search(r"-[0-9a-f]{8} \|", section)]
COMMANDS = [
    command.replace("\\\n", " ") for command in re.findall(r"^    (contrapose study report (?:.*\\\n)*.*)$", TEXT, re.M)
]


def lines() -> list[tuple[list[str], dict[str, str]]]:
    """Return every row of the tables, by its headings, with the studies that its section names."""
    measured = []
    for section in SECTIONS:
        studies = re.findall(r"`(\w+/\w+)`", section.splitlines()[0])
        table = [
            line.strip("| ").split(" | ")
            for line in section.splitlines()
            if line.startswith("| ") and "---" not in line
        ]
        measured += [(studies, dict(zip(table[0], row, strict=True))) for row in table[1:]]
    return measured


def printed(run: Run, studies: list[str]) -> str:
    """Return the number that the paper prints for a run."""
    rows: list[tuple[Row, str, str]] = []
    for study in studies:
        has_cifar100 = any(study_data.data == "cifar100" for study_data in find(study).sets)
        files = ["cifar10=data/cifar10.npz", *(["cifar100=cifar100.npz"] if has_cifar100 else [])]
        plan = find(study).plan("short", files, settings={"norm_views": run.norm_views})
        for row, study_data, planned in plan.cells(2):
            if planned == run:
                rows.append((row, plan.study.quantities[0].name, study_data.name))
    assert rows, f"{run.name} is not of {studies}"
    first, quantity, where = rows[0]
    return str(first.printed.get(column(quantity, where), "none"))


def test_every_run_has_its_row() -> None:
    assert sorted(row["run"] for _, row in lines()) == sorted(path.name for path in (ROOT / "results/runs").iterdir())


@pytest.mark.thorough
@pytest.mark.parametrize(("studies", "row"), lines())
def test_a_row_matches_its_run(studies: list[str], row: dict[str, str]) -> None:
    directory = RunDirectory(ROOT / "results" / "runs" / row["run"])
    run = Run.read(json.loads((directory.folder / "run.json").read_text()))
    assert run.name == row["run"]
    assert directory.trained(run.epochs)
    last, evaluations = directory.records()[-1], directory.evaluations()
    measured = {
        "-U": f"{-last['uniformity']:.2f}",
        "tolerance": f"{last['tolerance']:.2f}",
        "kNN-200, %": f"{last['knn_top1']:.2f}",
        "linear, %": "".join(f"{value:.2f}" for name, value in evaluations.items() if name.startswith("linear:")),
        "seconds": f"{sum(record['seconds'] for record in directory.records()):.0f}",
        "paper, %": printed(run, studies),
    }
    assert {key: value for key, value in row.items() if key in measured} == {
        k: v for k, v in measured.items() if k in row
    }
    assert set(row) <= {"run", "loss", "method", *measured}


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_gives_its_verdicts(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    main([*shlex.split(command)[1:], "-o", str(tmp_path)])
    output = capsys.readouterr().out.split("\nreport ")[0]
    assert re.search(r"\d\.\d", output)  # runs were found
    assert "".join(f"    {line}\n" for line in output.splitlines()) in TEXT


def test_methods_without_negatives_are_those_of_their_runs() -> None:
    section = TEXT.split("## Methods without negatives on CIFAR-10")[1].split("\n## ")[0]
    folders = sorted((ROOT / "results" / "baselines").iterdir())
    assert len(folders) == section.count("| `cifar10.npz-")
    for folder in folders:
        directory, records = RunDirectory(folder), read_records(folder)
        assert Run.read(directory.settings()).name == folder.name
        accuracies = [record["knn_top1"] for record in records if "knn_top1" in record]
        seconds = median(record["seconds"] for record in records)
        (row,) = (line for line in section.splitlines() if f"`{folder.name}`" in line)
        cells = row.strip("| ").split(" | ")
        assert cells[1:3] == [f"{accuracies[-1]:.2f}", f"{max(accuracies):.2f}"]
        assert cells[6] == f"{seconds:.2f}"
        assert records[-1]["epoch"] == 200
        assert records[-1]["encoder_feature_std"] >= 0.65
        assert records[-1]["effective_rank"] >= 13.5


def test_table13_is_that_of_its_runs() -> None:
    section = TEXT.split("## DySTreSS: uniformity of the encoder's output")[1].split("\n## ")[0]
    study, names = find("dystress/table13"), ("uniformity", "alignment_class", "interclass_uniformity")
    for folder in sorted((ROOT / "results" / "table13").iterdir()):
        directory = RunDirectory(folder)
        assert Run.read(directory.settings()).name == folder.name
        (row,) = (row for row in study.rows if row.changes["loss"] == directory.settings()["loss"])
        ours = [f"{directory.value(f'metric:{name}:encoder:test'):.3f}" for name in names]
        paper = [f"{value:.3f}" for column, value in row.printed.items() if column.endswith("CIFAR-10")][:3]
        cells = [text for pair in zip(ours, paper, strict=True) for text in pair]
        assert f"| {row.name} | {' | '.join(cells)} | {directory.value('knn_top1'):.2f} |" in section


def test_table12_is_that_of_its_runs() -> None:
    section = TEXT.split("## DySTreSS: sentences")[1].split("\n## ")[0]
    tasks = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr", "sts_mean")
    folders = [
        folder for name in ("table12", "table12-first") for folder in sorted((ROOT / "results" / name).iterdir())
    ]
    assert len(folders) == section.count("| `enwiki_sentences_418k.txt.xz-")
    files = {"wiki1m": "enwiki_sentences_418k.txt.xz", "sts": "sts12-16_stsb_sickr.tsv.xz"}
    paths = ["encoder=models/small-bert", *(f"{name}=data/{file}" for name, file in files.items())]
    names = {
        run.name: row.name
        for row, _, run in find("dystress/table12").plan("small", paths, settings={"grad_clip": 0.0}).cells(5)
        if row.printed
    }
    later, means = [], dict[str, list[float]]()
    for folder in folders:
        directory, records = RunDirectory(folder), read_records(folder)
        run = Run.read(directory.settings())
        assert run.name == folder.name
        assert directory.trained(run.epochs)
        dev = [record["stsb_dev"] for record in records]
        if dev[0] != max(dev):
            later.append(names[run.name])
        if folder.parent.name == "table12":
            means.setdefault(names[run.name], []).append(float(directory.evaluations()["sentences:sts:sts_mean"]))
        numbers = [directory.value(f"sentences:sts:{task}") for task in tasks]
        cells = [f"{value:.2f}" for value in (*numbers, max(dev), dev[-1])]
        seconds = sum(record["seconds"] for record in records)
        row = f"| {names[run.name]}, {run.seed} | {' | '.join(cells)} | {seconds:.0f} | `{run.name}` |"
        assert row in section
        if names[run.name] == "SimCSE" and folder.parent.name == "table12-first":
            start = [f"{directory.value(f'sentences:sts:{task}:start'):.2f}" for task in tasks]
            assert f"| before training | {' | '.join(start)} |" in section
    assert later == ["MACL", "MACL"]
    assert {name: len(values) for name, values in means.items()} == dict.fromkeys(set(names.values()), 5)
    for name, values in means.items():
        assert re.search(rf"\| {re.escape(name)} \|.* {mean(values):.2f} ± {stdev(values):.2f} \|", section)


def test_captions_are_those_of_their_runs() -> None:
    section = TEXT.split("## CACR: images with captions")[1].split("\n## ")[0]
    folders = sorted((ROOT / "results" / "captions").iterdir())
    assert len(folders) == section.count("| `flickr8k-")
    names = [f"{direction}_recall_{k}" for direction in ("image_to_text", "text_to_image") for k in (1, 5, 10)]
    cells = find("cacr/table19-starts").plan("small", ["flickr8k=data/flickr8k"]).cells(3)
    rows = {run.name: row.name.split(", ", 1) for row, _, run in cells}
    for folder in folders:
        directory = RunDirectory(folder)
        run, last = Run.read(directory.settings()), directory.records()[-1]
        assert run.name == folder.name
        assert directory.trained(run.epochs)
        (loss, start), zero_shot = rows[run.name], directory.evaluations().get("zero_shot:cifar10")
        shown = [f"{last[name]:.1f}" for name in names] + ["" if zero_shot is None else f"{zero_shot:.2f}"]
        seconds = sum(record["seconds"] for record in directory.records())
        row = f"| {start} | {loss}, {run.seed} | {' | '.join(shown)} | {seconds:.0f} | `{run.name}` |"
        assert row in section


def test_compared_losses_are_those_of_their_runs() -> None:
    runs = [json.loads(line) for line in (ROOT / "results" / "compare.jsonl").read_text().splitlines()]
    page = (ROOT / "docs" / "command-line.md").read_text()
    for loss, name in (("simclr", "SimCLR"), ("dystress", "DySTreSS"), ("cacr", "CACR")):
        scores = [run["knn_top1"] for run in runs if run["loss"] == loss]
        assert len(scores) == 3
        score = f"{mean(scores):.2f} ± {stdev(scores):.2f}"
        assert re.search(rf"│ {loss} +│ +{score} │", page)
        assert f"{name} {score}" in TEXT


def test_tuned_losses_are_those_of_their_runs() -> None:
    runs = [json.loads(line) for line in (ROOT / "results" / "tune.jsonl").read_text().splitlines()]
    section = TEXT[TEXT.index("## A temperature for these data") :]
    assert (len(runs), sum(run["findings"] for run in runs)) == (
        69,
        0,
    )  # as benchmarks/README.md says of the doctor's looks
    for data in ("sts_pairs.tsv", "tiny10", "cifar10.npz", "flickr8k"):
        of_data = [run for run in runs if run["data"] == data]
        score = next(name for name in of_data[0] if name.startswith(("knn", "recall", "text_to_image")))
        whole = [run for run in of_data if run["epochs"] == max(run["epochs"] for run in of_data)]
        losses = {run["loss"] for run in whole}
        assert len(losses) == 2
        for loss in losses:
            scores = [run[score] for run in whole if run["loss"] == loss]
            assert len(scores) == 3
            assert f"`{loss}`: {mean(scores):.2f} ± {stdev(scores):.2f} |" in section


def test_runs_on_tiny_imagenet_are_those_of_their_records() -> None:
    last = {}
    for loss, name in (("simclr", "SimCLR, τ = 0.5"), ("dystress", "DySTreSS")):
        for seed in (0, 1):
            directory = RunDirectory(ROOT / "results" / "tiny-imagenet" / f"{loss}-{seed}")
            run, records = Run.read(directory.settings()), directory.records()
            scores = {record["epoch"]: record["knn_top1"] for record in records if "knn_top1" in record}
            assert (run.seed, run.epochs, list(scores)) == (seed, 200, list(range(20, 201, 20)))
            shown = " | ".join(f"{scores[epoch]:.2f}" for epoch in (40, 80, 120, 160, 200))
            assert f"| {name}{f', seed {seed}' if seed else ''} | {shown} |" in TEXT
            last[loss, seed] = scores[200]
    simclr, dystress = ((last[loss, 0] + last[loss, 1]) / 2 for loss in ("simclr", "dystress"))
    assert f"{dystress - simclr:.1f} points above SimCLR ({dystress:.2f} against {simclr:.2f}" in TEXT
