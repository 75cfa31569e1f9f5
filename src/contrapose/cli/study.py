"""`contrapose study list | show | run | report`: the papers' tables and figures."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from contrapose.cli import exits
from contrapose.cli.progress import watching
from contrapose.cli.train import with_views
from contrapose.modalities.images.load import NAMED
from contrapose.modalities.images.load import load as load_data
from contrapose.report.render import write
from contrapose.studies import STUDIES, Plan, Study, find
from contrapose.studies.collect import collect, document, verdicts
from contrapose.studies.dilemma import (
    INTRODUCTION,
    SIZES,
    Size,
    advice,
    comparison,
    demo,
    largest_size,
    measure_step_seconds,
)
from contrapose.studies.execute import perform_all
from contrapose.studies.results import RunDirectory
from contrapose.studies.task import Task
from contrapose.training import Run, load
from contrapose.training.build import prepare
from contrapose.training.processes import own_device
from contrapose.training.weights import export
from contrapose.validate import check_known, nearest


@dataclass(frozen=True)
class StudyList:
    """Name every table and figure of the four papers, and say what cannot run yet."""

    only: Positional[str] = ""
    """Those whose name contains this, such as dystress or cacr/table."""

    def __call__(self) -> None:
        """One line each."""
        chosen = [study for study in STUDIES.values() if self.only in study.name]
        if not chosen:
            papers = ", ".join(dict.fromkeys(name.split("/")[0] for name in STUDIES))
            raise ValueError(
                f"only: no study's name contains {self.only!r}{nearest(self.only, STUDIES, 0.4)} (papers: {papers})"
            )
        paper = ""
        for study in chosen:
            if study.paper != paper:
                paper = study.paper
                print(f"# {paper}")
            print(f"{study.name:28} {study.title}{_state(study)}")


def _state(study: Study) -> str:
    if study.missing:
        return f"   [cannot run: {study.missing}]"
    if study.diagram:
        return "   [nothing to measure]"
    if study.analytic:
        return "   [no training]"
    unbuilt = [row.name for row in study.rows if row.missing]
    return f"   [without {', '.join(unbuilt)}]" if unbuilt else ""


@dataclass(frozen=True)
class StudyShow:
    """What a study claims, its runs, and the paper's numbers."""

    name: Positional[str]
    """A study, such as behaviour/figure9."""

    def __call__(self) -> None:
        """In words."""
        study = find(self.name)
        print(f"{study.name}: {study.title}\n{study.paper}\n\n{study.claim}")
        for line in (study.note, f"Cannot run: {study.missing}." if study.missing else ""):
            if line:
                print(f"\n{line}")
        values = next(iter(study.loss_values.values()), {})  # of its first data set
        for row in study.rows:
            settings = " ".join(f"{k}={v}" for k, v in row.changes.items())
            for name, value in values.items():
                settings = settings.replace(f"{{{name}}}", f"{value:g}")
            what = f"not built: {row.missing}" if row.missing else settings
            printed = ", ".join(f"{column} {value:g}" for column, value in row.printed.items())
            print(f"  {row.name:24} {what}" + (f"\n{'':27}paper: {printed}" if printed else ""))
        if study.rows and not study.missing:
            print()
            for scale in ("smoke", "small", "paper"):
                plan = study.plan(scale)
                where = ", ".join(on.name for on in plan.sets)
                print(f"contrapose study run {study.name} --scale {scale:6}  # {len(plan.runs(1))} runs on {where}")


@dataclass(frozen=True)
class _Chosen:
    """Studies, their runs and where the report goes."""

    names: Positional[tuple[str, ...]]
    """Studies, such as behaviour/figure9."""
    scale: str = "smoke"
    """smoke (seconds, the built-in digits), small (one GPU, minutes, CIFAR-10) or paper (the printed settings)."""
    data: tuple[str, ...] = ()
    """Other data: a name or path for all, or NAME=PATH for one, such as cifar10=cifar10.npz."""
    rows: tuple[str, ...] = ()
    """These rows alone, such as "τ = 0.2": the claims are judged by them."""
    sets: tuple[str, ...] = ()
    """These data sets alone, as the report calls them, such as "CIFAR-10, exponential"."""
    seeds: int = 1
    """Runs of each setting, with seeds 0, 1, …"""
    root: Path = Path("runs")
    """Directory of the runs; `contrapose train` keeps its runs there too."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("reports")
    """Directory of the report."""

    def plans(self) -> list[Plan]:
        return planned(self.names, self.scale, self.data, self.rows, self.sets)

    def report(self, plans: list[Plan]) -> None:
        chosen = "\n".join((*self.rows, "", *self.sets)).strip()
        report(plans, self.seeds, self.root, self.out, f"-part-{zlib.crc32(chosen.encode()):08x}" if chosen else "")


@dataclass(frozen=True)
class StudyRun(_Chosen):
    """Do the runs of studies, each once, and write the report. The same command again goes on where it stopped."""

    jobs: int | None = None
    """Runs at once on this machine: processes on a CPU (without a number 1), in turns on a GPU (2)."""
    on: str = "local"
    """local, or ray: a cluster whose nodes all see the directory of runs."""
    data_root: Path = Path("data")
    """Where downloaded data sets are, or go."""

    def __call__(self) -> None:
        """Run, judge, report; exit code 1 where a run failed."""
        plans = self.plans()
        check_present(plans, self.data_root)
        failures = do(plans, self.seeds, self.root, self.data_root, self.jobs, self.on)
        self.report(plans)
        if failures:
            raise SystemExit(exits.FAILED)


@dataclass(frozen=True)
class StudyReport(_Chosen):
    """Write the report of studies from what their runs have left so far; nothing is trained. Options as given to `study run`."""

    def __call__(self) -> None:
        """Page, Markdown and figures."""
        check_seeds(self.seeds)
        plans = self.plans()
        wanted = {name for plan in plans for name in plan.runs(self.seeds)}
        if wanted and not any((self.root / name).is_dir() for name in wanted):
            there = sorted(
                {RunDirectory(path).settings().get("data", "") for path in self.root.glob("*/") if path.is_dir()} - {""}
            )
            raise ValueError(
                f"root: none of the {len(wanted)} runs is in {self.root}; --scale and --data have to be those of `study run`"
                + (f" (the runs there are on {', '.join(there)})" if there else "")
            )
        self.report(plans)


@dataclass(frozen=True)
class Demo:
    """The uniformity-tolerance dilemma in a few minutes on a CPU: nine losses on the built-in digits, a table and a page."""

    seeds: int = 1
    """Runs of each setting."""
    jobs: int = 2
    """Runs at once."""
    minutes: float | None = None
    """About how long it may take (default: 5); the amount of training is chosen by the speed of this machine."""
    root: Path = Path("runs")
    """Directory of the runs."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("reports")
    """Directory of the report."""

    def size(self) -> Size:
        """The size that was begun here before, or the one that fits this machine."""
        begun = [size for size in SIZES if (self.root / size.pretraining_run().name).is_dir()]
        if begun and self.minutes is None:
            return begun[0]
        if own_device().type == "cuda":
            return SIZES[0]
        step = measure_step_seconds(self.jobs)
        size = largest_size(step, self.jobs, self.minutes or 5.0)
        took = max(1, round(size.seconds(step, self.jobs) / 60))
        print(
            f"A training step takes {1000 * step:.0f} ms here: {size.digits:,} digits, {size.pretraining_epochs} epochs "
            f"for the common start and {size.epochs} for each loss, about {took} min (--minutes allows more or less)"
        )
        return size

    def __call__(self) -> None:
        """Train a common start, go on from it with every loss, report."""
        size = self.size()
        first = Task(size.pretraining_run(), (), self.root)
        weights = first.folder / "encoder.safetensors"
        print("One encoder is trained first; then every loss goes on from it.", flush=True)
        with watching(1) as watch:
            if perform_all([first], watch):
                raise SystemExit(exits.FAILED)
        if not weights.exists():
            half = weights.with_suffix(".half")
            export(load(first.folder).encoder, half)
            half.rename(weights)
        plan = demo(weights, size)
        failures = do([plan], self.seeds, self.root, Path("data"), self.jobs)
        finish(plan, self.seeds, self.root, self.out / "demo", "The uniformity-tolerance dilemma", INTRODUCTION)
        if failures:
            raise SystemExit(exits.FAILED)


@dataclass(frozen=True)
class Compare:
    """Train several losses on your own images and say which to use, with the evidence.

    The folder needs train/ and test/ (or val/) with a folder for each class in both. All settings of `train` can be given.
    """

    run: Annotated[Run, arg(name="")]
    losses: str = "simclr,dystress,cacr,balanced"
    """Losses with commas between them, as in `train --loss`."""
    seeds: int = 1
    """Runs of each loss."""
    jobs: int | None = None
    """Runs at once."""
    root: Path = Path("runs")
    """Directory of the runs."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("reports")
    """Directory of the report."""
    data_root: Path = Path("data")
    """Where downloaded data sets are, or go."""

    def __call__(self) -> None:
        """Run, compare, advise."""
        run = with_views(self.run, print)
        tested = count_tested(run, self.data_root)
        plan = comparison(run, split_losses(self.losses), tested)
        failures = do([plan], self.seeds, self.root, self.data_root, self.jobs)
        name = f"compare-{plan.sets[0].name}"
        finish(plan, self.seeds, self.root, self.out / name, f"Losses on {plan.sets[0].name}", "", tested)
        if failures:
            raise SystemExit(exits.FAILED)


def count_tested(run: Run, data_root: Path) -> int:
    """How many labelled test images a run's data has; none are refused."""
    split = prepare(run, data_root)
    if split.probe is None or split.test is None:
        raise ValueError(
            f"data: {run.data} has no labelled test images to compare by; a folder needs train/ and test/ with a folder for "
            "each class in both"
        )
    return len(split.test)


def split_losses(text: str) -> list[str]:
    """At commas that stand in no brackets; each once."""
    found, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    names = list(dict.fromkeys(loss.strip() for loss in found if loss.strip()))
    if not names:
        raise ValueError("losses: expected at least one loss, such as simclr,dystress")
    return names


def finish(plan: Plan, seeds: int, root: Path, folder: Path, title: str, lead: str, tested: int = 0) -> None:
    """A table in the terminal, the advice, and the path of the page."""
    from rich.console import Console
    from rich.table import Table as Grid

    results = collect(plan, seeds, root)
    grid = Grid(title=title)
    for heading in ("loss", "kNN, %", "-U (spread out)", "T (classes together)"):
        grid.add_column(heading, justify="left" if heading == "loss" else "right")
    for row in plan.study.rows:
        cells = [results.cell(row.name, quantity.name) for quantity in plan.study.quantities]
        why = "; ".join(dict.fromkeys(reason for cell in cells for reason in cell.missing_reasons))
        spread = [f" ± {cell.spread:.2f}" if len(cell.values) > 1 else "" for cell in cells]
        numbers = [f"{cell.mean:.2f}{s}" if cell.values else "–" for cell, s in zip(cells, spread, strict=True)]
        grid.add_row(row.name if not why else f"{row.name} ({why})", *numbers)
    path = write(document([plan], seeds, root, title=title, lead=lead), folder)
    console = Console(highlight=False)
    with console.capture() as table:  # its own way with a closed pipe is to exit
        console.print(grid)
    print(table.get(), end="")
    for verdict in verdicts(plan, results):
        print(f"{verdict.outcome}: {verdict.statement} ({verdict.evidence})")
    print(advice(plan.study, results, tested))
    print(f"report {path}")


def planned(
    names: Sequence[str], scale: str, data: Sequence[str], rows: Sequence[str] = (), sets: Sequence[str] = ()
) -> list[Plan]:
    """The studies at a scale, or some of their rows or data sets; an unknown name or scale is refused."""
    if not names:
        raise ValueError("names: expected at least one study; `contrapose study list` names them")
    studies = [find(name) for name in names]
    known = [row.name for study in studies for row in study.rows]
    if rows and not known:
        raise ValueError(f"rows: {names[0]} has none: nothing is trained for it")
    for row in rows:
        check_known("rows", row, known)
    return [study.select_rows(rows).plan(scale, data).select_data_sets(sets) for study in studies]


def check_present(plans: Sequence[Plan], root: Path) -> None:
    """The data of the runs must be at hand; what torchvision has is downloaded, once."""
    for on in {on.data: on for plan in plans if plan.study.rows for on in plan.sets}.values():
        if on.data in NAMED and on.data != "digits":
            load_data(on.data, root=root)
        if on.data in NAMED or Path(on.data).exists():
            continue
        where = "a folder with train/ and test/ (or val/), class folders inside, or an .npz file"
        if len(Path(on.data).parts) > 1 or Path(on.data).suffix:
            raise ValueError(f"data: there is no {on.data}: expected {where}")
        raise ValueError(
            f"data: {on.name} is not here; get it, and say where it is with --data {on.data}=PATH: {where}"
        )


def check_seeds(seeds: int) -> None:
    """At least one."""
    if seeds < 1:
        raise ValueError(f"seeds: expected at least 1, got {seeds}")


def do(
    plans: Sequence[Plan],
    seeds: int,
    root: Path,
    data_root: Path,
    jobs: int | None,
    on: str = "local",
) -> dict[str, str]:
    """All runs of some plans, with a display; why each failed, by name."""
    check_seeds(seeds)
    tasks = [Task(run, plan.measures, root, data_root) for plan in plans for run in plan.runs(seeds).values()]
    names = {task.name for task in tasks}
    if not names:
        return {}
    with watching(len(names)) as watch:
        return perform_all(tasks, watch, jobs=jobs, on=on)


def report(plans: Sequence[Plan], seeds: int, root: Path, out: Path, part: str = "") -> Path:
    """The page of some plans, and their verdicts in the terminal; that of a part of them does not replace that of all."""
    name = "-".join(plan.study.name.replace("/", "-") for plan in plans)
    name = name if len(name) < 80 else f"{len(plans)}-studies"
    path = write(document(plans, seeds, root), out / f"{name}-{plans[0].scale}{part}")
    for plan in plans:
        for verdict in verdicts(plan, collect(plan, seeds, root)):
            print(f"{plan.study.name}: {verdict.outcome}: {verdict.statement}\n    {verdict.evidence}")
    print(f"report {path}")
    return path
