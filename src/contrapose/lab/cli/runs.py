"""`contrapose runs` and `runs compare`: list past runs, and compare their settings, scores and curves."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from contrapose.lab.cli.tables import print_table
from contrapose.lab.report.document import Chart, points
from contrapose.lab.training.records.files import read_records
from contrapose.lab.training.records.past_run import PastRun, find_runs, main_score, scores_in

_RUNS_DIR = Path("runs")
_MISSING = "–"


@dataclass(frozen=True)
class Runs:
    """List the runs in a folder, newest first: data, loss, seed, last score, whether the run is finished, and date.

    `contrapose runs compare A B` shows how runs differ.
    """

    folder: Positional[Path] = _RUNS_DIR
    """Folder with one directory per run, such as runs/; or the directory of one run."""
    json: bool = False
    """Print a JSON list, for other programs: one object per run, with all scores of the last evaluation."""

    def __call__(self) -> None:
        """Print one line per run to stdout, and one line per damaged run to stderr."""
        found = list(find_runs(self.folder))
        if not found:
            raise ValueError(_no_runs(self.folder))
        runs = [run for run in found if isinstance(run, PastRun)]
        if self.json:
            print(json.dumps([_as_json(run) for run in runs], indent=1))
        elif runs:
            headings = ("run", "data", "loss", "seed", "score", "epochs", "state", "date")
            print_table(headings, list(map(_cells, runs)), details=("loss", "state", "score", "epochs"))
        for error in found:
            if isinstance(error, ValueError):
                print(f"contrapose: {error}", file=sys.stderr)


def _no_runs(folder: Path) -> str:
    """Return a message that says where runs may be instead."""
    if not folder.is_dir():
        return f"folder: {folder} is not a folder; expected the folder of runs, such as {_RUNS_DIR}"
    inner = next(iter(sorted(folder.glob("*/*/run.json"))), None)
    advice = f"; `contrapose runs {inner.parents[1]}` lists those in it" if inner else ""
    return f"folder: {folder} has no runs{advice or ', which `contrapose train` writes'}"


def _cells(run: PastRun) -> tuple[str, ...]:
    progress = run.progress
    return (
        run.folder.name or str(run.folder.resolve().name),
        Path(str(run.settings["data"])).name,
        str(run.settings["loss"]),
        str(run.settings.get("seed", _MISSING)),
        _score_text(run),
        f"{progress.epoch:.4g} of {progress.epochs}" if progress.steps else f"{progress.epochs}",
        run.state_in_words,
        f"{run.date:%Y-%m-%d %H:%M}",
    )


def _score_text(run: PastRun) -> str:
    """Return the main score and, if it is recorded, the best score without training: "kNN 85.00 (raw pixels 80.00)"."""
    score, baseline = run.main_score, run.best_baseline
    if score is None:
        return _MISSING
    return f"{score.title} {score.value:.2f}" + (f" ({baseline[0]} {baseline[1]:.2f})" if baseline else "")


def _as_json(run: PastRun) -> dict[str, Any]:
    return {
        "run": str(run.folder),
        "data": run.settings["data"],
        "loss": run.settings["loss"],
        "seed": run.settings.get("seed"),
        "scores": dict(run.scores),
        "baselines": {name: dict(scores) for name, scores in run.baselines.items()},
        "state": run.state,
        "step": run.progress.step,
        "steps": run.progress.steps,
        "epochs": run.progress.epochs,
        "date": run.date.astimezone().isoformat(timespec="seconds"),
    }


@dataclass(frozen=True)
class RunsCompare:
    """Compare runs: the settings that differ, the scores side by side, and a figure of losses and scores over epochs."""

    runs: Positional[tuple[Path, ...]]
    """Directories of at least two runs, or their names in --runs-dir."""
    runs_dir: Path = _RUNS_DIR
    """Folder in which runs are looked for by name."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("runs.png")
    """Figure to write: .png, .svg or .pdf."""

    def __call__(self) -> None:
        """Print the table, and write the figure."""
        # Imported here, because matplotlib and torch would slow down `contrapose runs`.
        from contrapose.lab.report.draw import figure_row
        from contrapose.lab.report.style import save
        from contrapose.lab.training import Run

        if self.out.suffix not in (".png", ".svg", ".pdf"):
            raise ValueError(f"out: expected a name that ends in .png, .svg or .pdf, got {self.out}")
        folders = list(dict.fromkeys(map(self._find, self.runs)))
        if len(folders) < 2:
            raise ValueError(f"runs: expected at least two runs, got {len(folders)}; `contrapose runs` lists them")
        past = [PastRun.read(folder) for folder in folders]
        settings = [vars(Run.load(folder / "run.json")) for folder in folders]
        names = short_names(folders)
        print_table(("", *names), [*_different(settings), *_results(past)])
        records = {name: read_records(folder) for name, folder in zip(names, folders, strict=True)}
        losses = {setting["loss"] for setting in settings}
        save(figure_row(curves(records, same_loss=len(losses) == 1)), self.out)
        if len(losses) > 1:
            print("These runs minimise different losses, whose values are not comparable; compare their scores.")
        print(f"figure {self.out}")

    def _find(self, run: Path) -> Path:
        """Return the directory of a run, given by its path or by its name in `runs_dir`."""
        found = next((folder for folder in (run, self.runs_dir / run) if (folder / "run.json").exists()), None)
        if found is None:
            raise ValueError(
                f"runs: {run} is not the directory of a run (it has no run.json); `contrapose runs` lists the runs in {_RUNS_DIR}"
            )
        return found


def short_names(folders: Sequence[Path]) -> list[str]:
    """Return the names of the directories, or their paths if two have the same name."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else list(map(str, folders))


def _different(settings: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each setting that is not equal in all runs."""
    differing = [name for name in settings[0] if any(run[name] != settings[0][name] for run in settings)]
    rows = [(name, *(_setting_text(run[name]) for run in settings)) for name in differing]
    return rows or [("no setting differs", *[""] * len(settings))]


def _setting_text(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text or _MISSING


def _results(runs: Sequence[PastRun]) -> list[tuple[str, ...]]:
    """Return a row for the state of the runs, and one for each score that a run has."""
    scores = dict.fromkeys(name for run in runs for name in run.scores)
    rows = [(name, *(f"{run.scores[name]:.2f}" if name in run.scores else _MISSING for run in runs)) for name in scores]
    baselines = [f"{best[0]} {best[1]:.2f}" if (best := run.best_baseline) else "" for run in runs]
    rows += [("best baseline", *(text or _MISSING for text in baselines))] if any(baselines) else []
    return [("state", *(run.state_in_words for run in runs)), *rows]


def curves(records: Mapping[str, Sequence[Mapping[str, Any]]], *, same_loss: bool) -> list[Chart]:
    """Return charts of the loss and of each kind of main score over epochs, with a curve for each run.

    records     the records of each run, by the run's name
    same_loss   whether all runs have the same loss; otherwise, the title says that the values are not comparable
    """
    main_scores = {
        name: [(record["epoch"], score) for record in own if (score := main_score(scores_in(record))) is not None]
        for name, own in records.items()
    }
    losses = {
        name: [(record["epoch"], record["loss"]) for record in own if record.get("loss") is not None]
        for name, own in records.items()
    }
    charts = [_chart("Training loss" + ("" if same_loss else " (different losses: not comparable)"), "loss", losses)]
    for kind in dict.fromkeys(score.title for own in main_scores.values() for _, score in own):
        own_kind = {
            name: [(epoch, score.value) for epoch, score in own if score.title == kind]
            for name, own in main_scores.items()
        }
        charts.append(_chart(f"Score of the evaluations: {kind}", kind, own_kind))
    return charts


def _chart(title: str, y: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> Chart:
    # A run without values stays in the chart, so that every run has the same colour in all charts.
    return Chart(title, "epoch", y, tuple(points(name, curve) for name, curve in curves.items()))
