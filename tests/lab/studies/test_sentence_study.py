"""DySTreSS's Table 12: its files, its best step, and its printed averages."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from commands import error_message

from contrapose import load
from contrapose.lab.cli import main
from contrapose.lab.modalities.text.evaluation import embed_once, evaluate_sts, read_sts
from contrapose.lab.modalities.text.presets import PRESETS as SENTENCES
from contrapose.lab.studies import find
from contrapose.lab.studies.claims import Verdict, needs_seeds
from contrapose.lab.studies.dystress.printed import TABLE12
from contrapose.lab.studies.results import Cell, Results
from contrapose.lab.training.checkpoints.kept import best_epoch, kept_epochs
from contrapose.lab.training.records.files import read_records

SUBJECTS = (
    "a cat",
    "the old dog",
    "my neighbour",
    "one red bird",
    "every child",
    "the tall man",
    "a small fox",
    "her friend",
)
VERBS = ("runs across", "looks at", "walks around", "sleeps near", "sings behind")
PLACES = ("the house", "a green field", "the river", "our garden")


def write_sentences(path: Path) -> Path:
    lines = [f"{subject} {verb} {place} ." for subject in SUBJECTS for verb in VERBS for place in PLACES]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def write_pairs(path: Path) -> Path:
    """Write pairs of all tasks; the score counts the parts that two sentences share."""
    rows = ["dataset\tsubset\tsplit\tscore\tsentence1\tsentence2"]
    tasks = [(task, "test") for task in ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")]
    for number, (task, split) in enumerate([*tasks, ("stsb", "dev")]):
        for i in range(12):
            first = (SUBJECTS[(i + number) % 8], VERBS[i % 5], PLACES[i % 4])
            second = (SUBJECTS[(i + number) % 8], VERBS[(i + i // 4) % 5], PLACES[(i + i // 8) % 4])
            score = 5 * sum(a == b for a, b in zip(first, second, strict=True)) / 3
            rows.append(f"{task}\tmade\t{split}\t{score}\t{' '.join(first)}\t{' '.join(second)}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.mark.thorough
def test_runs_are_measured_at_their_best_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentences, pairs = write_sentences(tmp_path / "sentences.txt"), write_pairs(tmp_path / "pairs.tsv")
    data = [f"wiki1m={sentences}", f"sts={pairs}", "senteval=missing"]
    arguments = ["study", "run", "dystress/table12", "--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "out")]
    arguments += ["--data-root", str(tmp_path / "data"), "--rows", "SimCSE", "before training"]
    assert "data: senteval=missing does not exist" in error_message(capsys, *arguments, "--data", *data)
    main([*arguments, "--data", *data[:2]])
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())  # both rows share one run
    best = best_epoch(folder, "stsb_dev")
    assert best is not None
    assert kept_epochs(folder) == [best[0]]
    values = json.loads((folder / "evaluations.json").read_text())
    expected = evaluate_sts(partial(embed_once, load(folder, epoch=best[0])), read_sts(pairs))
    assert values["sentences:sts:sts_mean"] == pytest.approx(expected["sts_mean"])
    assert values["sentences:sts:stsb_dev"] == pytest.approx(best[1])
    assert values["sentences:sts:stsb_uniformity:start"] != pytest.approx(values["sentences:sts:stsb_uniformity"])
    (page,) = (tmp_path / "out").glob("*/index.md")
    assert f"best on STS-B dev of {len(read_records(folder))} steps" in page.read_text()


@pytest.mark.thorough
def test_smoke_scale_needs_no_files(tmp_path: Path) -> None:
    arguments = ["study", "run", "dystress/table12", "--rows", "0.03–0.05, -0.2"]
    main([*arguments, "--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "out")])
    (path,) = (tmp_path / "runs").glob("*/evaluations.json")
    values = json.loads(path.read_text())
    for quantity in find("dystress/table12").quantities:
        assert isinstance(values[quantity.measure.key], float), quantity.name


def test_paths_fill_the_settings() -> None:
    study = find("dystress/table12")
    data = ["wiki1m=wiki.txt", "encoder=bert", "sts=pairs.tsv"]
    for scale, parts in {"paper": 125, "small": 52, "short": 13}.items():
        for run in study.plan(scale, data).runs(2).values():
            assert (run.data, run.encoder, run.extra_metrics) == ("wiki.txt", "hf:bert", ("sts:pairs.tsv@1",))
            assert (run.epoch_slices, run.epochs, run.keep_best, run.lr) == (parts, parts, "stsb_dev", 3e-5)
    assert {run.encoder for run in study.plan("small", ["encoder=minilm"]).runs(1).values()} == {"minilm"}
    (study_data,) = study.plan("small", ["other.txt", "sts=pairs.tsv"]).sets
    assert (study_data.name, study_data.data) == ("other", "other.txt")
    assert study_data.changes["extra_metrics"] == ("sts:pairs.tsv@1",)


def test_every_row_is_a_preset() -> None:
    losses = {run.loss for run in find("dystress/table12").plan("paper").runs(1).values()}
    assert losses == {settings["loss"] for settings in SENTENCES.values()}


def test_missing_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["study", "run", "dystress/table12", "--scale", "small"]
    assert "none is given; add them with --data NAME=PATH" in error_message(capsys, *arguments)
    sentences, pairs = write_sentences(tmp_path / "sentences.txt"), write_pairs(tmp_path / "pairs.tsv")
    assert "give its path with --data wiki1m=PATH: a file with one sentence a line" in error_message(
        capsys, *arguments, "--data", f"sts={pairs}"
    )
    data = ["--data", f"wiki1m={sentences}", f"sts={pairs}"]
    assert (
        "the encoder that is trained on Wiki1M cannot be downloaded automatically; give its path with --data encoder="
        in (error_message(capsys, *arguments, *data))
    )
    without = ["--data", f"wiki1m={sentences}", f"senteval={pairs}", "encoder=minilm"]
    assert "give its path with --data sts=PATH: a tab-separated file" in error_message(capsys, *arguments, *without)
    assert "data: nowhere does not exist; expected a Hugging Face folder" in error_message(
        capsys, *arguments, *data, "encoder=nowhere"
    )


def test_printed_averages_are_those_of_the_tasks() -> None:
    """After the correction of two misprints."""
    for name, printed in TABLE12.items():
        numbers = [number for number in printed if number is not None]
        for *tasks, average in filter(None, (numbers[:8], numbers[8:])):
            assert sum(tasks) / 7 == pytest.approx(average, abs=0.02), name


def test_few_seeds_decide_nothing() -> None:
    def claim(results: Results) -> Verdict:
        return Verdict("a is above b", "holds", "2 against 1")

    results = Results(seeds=5, sets=("x",), cells={("a", "", "x"): Cell(values=(1.0,) * 5)})
    assert needs_seeds(5, claim)(results).outcome == "holds"
    few = replace(results, cells={**results.cells, ("b", "", "x"): Cell(values=(1.0,) * 4)})
    assert needs_seeds(5, claim)(few) == Verdict("a is above b", "undecided", "2 against 1; 4 of at least 5 seeds")
