"""`contrapose study list | protocols | run | report`: the tables and figures of the papers. `show` is in `study_show`."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from contrapose.lab.cli import exits
from contrapose.lab.cli.progress import progress_display
from contrapose.lab.cli.study_show import describe_estimate, recorded_durations
from contrapose.lab.counts import count_of, is_or_are
from contrapose.lab.modalities import MODALITIES, modality
from contrapose.lab.report.render import write
from contrapose.lab.settings import Settings
from contrapose.lab.studies import STUDIES, Plan, Study, find
from contrapose.lab.studies.collect import collect, document, verdicts
from contrapose.lab.studies.execute import run_tasks
from contrapose.lab.studies.files import ENCODER, PAIRS, needed_files
from contrapose.lab.studies.measures.downstream import MADE
from contrapose.lab.studies.protocol import protocol_page
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.studies.scales import describe_changes
from contrapose.lab.studies.shared_runs import share_runs
from contrapose.lab.studies.task import Task
from contrapose.lab.training.config_file import read_settings
from contrapose.lab.training.run import AUTO
from contrapose.validate import check_directory, check_known, nearest

# What a path should point to; used in messages.
_FILES = {
    ENCODER: "a Hugging Face folder with config.json, or minilm",
    PAIRS: "a tab-separated file of scored pairs, as for `contrapose evaluate --sts`",
}


@dataclass(frozen=True)
class StudyList:
    """List every table and figure in the four papers."""

    only: Positional[str] = ""
    """List only studies whose name contains this text, such as dystress or cacr/table."""

    def __call__(self) -> None:
        """Print one line per study, grouped by paper."""
        selected = [study for study in STUDIES.values() if self.only in study.name]
        if not selected:
            papers = ", ".join(dict.fromkeys(name.split("/")[0] for name in STUDIES))
            raise ValueError(
                f"only: no study's name contains {self.only!r}{nearest(self.only, STUDIES, 0.4)} (papers: {papers})"
            )
        paper = ""
        for study in selected:
            if study.paper != paper:
                paper = study.paper
                print(f"# {paper}")
            print(f"{study.name:28} {study.title}{_status(study)}")


def _status(study: Study) -> str:
    if study.diagram:
        return "   [nothing to measure]"
    return "   [no training]" if study.analytic else ""


@dataclass(frozen=True)
class StudyProtocols:
    """Print a Markdown page of what each table and figure measures, in the paper and here (docs/studies.md)."""

    def __call__(self) -> None:
        """Print the page."""
        print(protocol_page(STUDIES.values()), end="")


@dataclass(frozen=True)
class _StudyOptions:
    """Options shared by `study run` and `study report`."""

    names: Positional[tuple[str, ...]]
    """Names of studies, such as behaviour/figure9."""
    scale: str = "smoke"
    """smoke (seconds, on the built-in digits), short (minutes on one GPU, on CIFAR-10, usually a quarter of the epochs), small
    (one GPU, CIFAR-10 and CIFAR-100, usually the paper's number of epochs) or paper (the paper's settings)."""
    data: tuple[str, ...] = ()
    """Replace the data: a name or path for all data sets, or NAME=PATH for one data set, such as cifar10=cifar10.npz. The same
    form names the data on which encoders are evaluated after training (voc=VOCdevkit; flowers102=flowers102 downloads
    Flowers-102), the files for studies on sentences (encoder=FOLDER sts=PAIRS.tsv) and class names (class_names=NAMES.txt)."""
    rows: tuple[str, ...] = ()
    """Use only these rows, such as "τ = 0.2". Claims are then judged by these rows only."""
    sets: tuple[str, ...] = ()
    """Use only these data sets, named as in the report, such as "CIFAR-10, exponential"."""
    precision: str = ""
    """fp32, bf16 or fp16; overrides the scale's precision. The precision is part of each run's name."""
    set: tuple[str, ...] = ()
    """Change settings of all runs that use them, as NAME=VALUE with the options of `train`, such as norm_views=together or
    epochs=50. They are part of each run's name."""
    seeds: int = 1
    """Number of runs per setting, with random seeds 0, 1, …"""
    runs_dir: Path = Path("runs")
    """Directory of all runs; `contrapose train` uses it too."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("reports")
    """Directory of the report."""

    def plans(self) -> list[Plan]:
        settings = read_settings(self.set) | ({"precision": self.precision} if self.precision else {})
        for name, value in settings.items():
            if AUTO.get(name) == value:
                raise ValueError(f"{name}: a study needs a fixed value, got {value!r}, which means that it is chosen")
        plans = make_plans(self.names, self.scale, self.data, rows=self.rows, sets=self.sets, settings=settings)
        return share_runs(plans, self.seeds, self.runs_dir)

    def report(self, plans: list[Plan]) -> None:
        # A report on a selection gets a name of its own, so that it does not overwrite the full report.
        selection = "\n".join((*self.rows, "", *self.sets, *self.set)).strip()
        suffix = f"-part-{zlib.crc32(selection.encode()):08x}" if selection else ""
        write_report(plans, self.seeds, self.runs_dir, out=self.out, suffix=suffix)


@dataclass(frozen=True)
class StudyRun(_StudyOptions):
    """Train and evaluate the runs of studies and write the report. Run the same command again to resume.

    Runs that are already done are not repeated, even if another study has done them and recorded more. The command first says
    which runs it has found.
    """

    jobs: int | None = None
    """Number of runs at a time on this machine: separate processes on a CPU (default 1); on a GPU, runs that take turns
    (default 2)."""
    executor: str = "local"
    """Where runs are executed: local; ray for a Ray cluster whose nodes share --runs-dir; or slurm:FILE for a Slurm array, with a
    FILE like that of `train --executor`."""
    data_root: Path = Path("data")
    """Directory of downloaded data sets; missing ones are downloaded to it."""

    def __call__(self) -> None:
        """Run and report; exit with 1 if a run failed."""
        plans = self.plans()
        check_directory("out", self.out)  # before hours of training
        check_seeds(self.seeds)
        check_data_available(plans, self.data_root)
        announce_plans(plans, self.seeds, self.runs_dir)
        failures = run_plans(
            plans, self.seeds, self.runs_dir, data_root=self.data_root, jobs=self.jobs, executor=self.executor
        )
        self.report(plans)
        if failures:
            raise SystemExit(exits.FAILED)


@dataclass(frozen=True)
class StudyReport(_StudyOptions):
    """Write the report on studies from existing runs, without training. Use the same options as for `study run`."""

    def __call__(self) -> None:
        """Write the report as HTML and Markdown, with figures."""
        check_seeds(self.seeds)
        plans = self.plans()
        run_names = {name for plan in plans for name in plan.runs(self.seeds)}
        if run_names and not any((self.runs_dir / name).is_dir() for name in run_names):
            # Naming the data sets of the existing runs shows the user if --scale or --data is wrong.
            existing_data = sorted(
                {
                    str(RunDirectory(path).settings().get("data", ""))
                    for path in self.runs_dir.glob("*/")
                    if path.is_dir()
                }
                - {""}
            )
            raise ValueError(
                f"runs_dir: none of the {len(run_names)} runs is in {self.runs_dir}; "
                "use the same --scale and --data as for `study run`"
                + (f" (the runs in it are on {', '.join(existing_data)})" if existing_data else "")
            )
        self.report(plans)


def make_plans(
    names: Sequence[str],
    scale: str,
    data: Sequence[str],
    *,
    rows: Sequence[str] = (),
    sets: Sequence[str] = (),
    settings: Settings | None = None,
) -> list[Plan]:
    """Return the plans of studies at a scale, optionally restricted to some rows or data sets.

    Raise ValueError for unknown names.
    """
    if not names:
        raise ValueError("names: expected at least one study; `contrapose study list` lists them")
    studies = [find(name) for name in names]
    known = [row.name for study in studies for row in study.rows]
    if rows and not known:
        raise ValueError(f"rows: {names[0]} has no rows, because it trains nothing; omit --rows")
    for row in rows:
        check_known("rows", row, known)
    plans = [
        study.select_rows(rows).plan(scale, data, settings=settings or {}).select_data_sets(sets) for study in studies
    ]
    for plan in plans:
        plan.runs(1)  # raises ValueError for settings that a run cannot have
    return plans


def check_data_available(plans: Sequence[Plan], root: Path) -> None:
    """Download missing data sets that torchvision offers; raise ValueError if any other data is missing."""
    _check_downstream_data(plans, root)
    for plan in plans:
        for study_data in plan.sets if plan.study.rows else ():
            sources = {study_data.data: study_data.name, **needed_files(study_data.changes)}
            for source, what in sources.items():
                if not _is_available(source, root):
                    expected = _FILES.get(what) or plan.study.kind.expected_data
                    raise ValueError(_describe_missing(plan, source, what.format(study_data.name), expected))


def _describe_missing(plan: Plan, source: str, what: str, expected: str) -> str:
    """Return a message: the given path is wrong, or users must get the data themselves and pass its path with --data."""
    if source not in plan.study.own_names:
        return f"data: {source} does not exist; expected {expected}"
    return f"data: {what} cannot be downloaded automatically; give its path with --data {source}=PATH: {expected}"


def _is_available(source: str, root: Path) -> bool:
    """Return whether the data is built in or exists, after downloading it if torchvision offers it.

    Raise ValueError if the download fails.
    """
    # Downloaded here, once, because concurrent runs would download the same files at the same time.
    return any(modality(name).has_data(source, root) for name in MODALITIES) or Path(source).exists()


def _check_downstream_data(plans: Sequence[Plan], root: Path) -> None:
    """Download the downstream data that torchvision offers; raise ValueError if a path is wrong or no data is given."""
    for plan in plans:
        cells = [(row, study_data) for row, study_data, _ in plan.cells(1)]
        if plan.study.quantities and cells and not any(plan.measures(data, row) for row, data in cells):
            raise ValueError(
                f"data: {plan.study.name} evaluates encoders on other data sets, and none is given; "
                f"add them with --data NAME=PATH (`contrapose study show {plan.study.name}` lists the names)"
            )
        for name, path in plan.downstream.items():
            if path != MADE and not _is_available(path, root):
                raise ValueError(
                    f"data: {name}={path} does not exist; expected a path or a name from `contrapose data list`"
                )


def check_seeds(seeds: int) -> None:
    """Raise ValueError unless there is at least one seed."""
    if seeds < 1:
        raise ValueError(f"seeds: expected at least 1, got {seeds}")


def announce_plans(plans: Sequence[Plan], seeds: int, root: Path) -> None:
    """Print how the scale differs from the paper, which runs exist and, if training takes long, an estimate of the time."""
    for plan in plans:
        if plan.study.rows:
            print(f"{plan.study.name} at the {plan.scale} scale: {describe_changes(plan)}")
    runs = {name: run for plan in plans for name, run in plan.runs(seeds).items()}
    open_runs = [run for name, run in runs.items() if not RunDirectory(root / name).trained(run.epochs)]
    for line in _describe_found(plans, list(runs), [run.name for run in open_runs], root):
        print(line, flush=True)
    estimate = describe_estimate(open_runs, recorded_durations(root))
    if estimate:
        print(estimate, flush=True)


def _describe_found(plans: Sequence[Plan], runs: list[str], open_runs: list[str], root: Path) -> Iterator[str]:
    """Yield a line for the runs that are trained, for unfinished ones, and for those that take the place of others."""
    trained = [name for name in runs if name not in open_runs]
    resumed = [name for name in open_runs if (root / name / "checkpoints").is_dir()]
    for names, what in (
        (trained, f"{is_or_are(len(trained))} already trained in {root}"),
        (resumed, "will be resumed"),
    ):
        if names:
            yield f"{len(names)} of {count_of(len(runs), 'run')} {what}: {', '.join(names)}"
    shared = {needed: run.name for plan in plans for needed, run in plan.substitutes.items()}
    if shared:
        pairs = ", ".join(f"{name} for {needed}" for needed, name in shared.items())
        are = is_or_are(len(shared))
        yield f"{count_of(len(shared), 'run')} {are} replaced by a run with the same weights that records more: {pairs}"


def run_plans(
    plans: Sequence[Plan], seeds: int, root: Path, *, data_root: Path, jobs: int | None, executor: str = "local"
) -> dict[str, str]:
    """Execute all runs of the given plans with a progress display; return the reason for each failure, keyed by run name."""
    check_seeds(seeds)
    check_directory("runs_dir", root)
    tasks = [
        Task(run, plan.measures(study_data, row), root, data_root, downstream=plan.downstream)
        for plan in plans
        for row, study_data, run in plan.cells(seeds)
    ]
    names = {task.name for task in tasks}  # plans may share runs
    if not names:
        return {}
    with progress_display(len(names)) as display:
        return run_tasks(tasks, display, jobs=jobs, executor=executor)


def write_report(plans: Sequence[Plan], seeds: int, root: Path, *, out: Path, suffix: str = "") -> Path:
    """Write the report on the given plans to a directory in `out`, print the verdicts, and return the report's path."""
    name = "-".join(plan.study.name.replace("/", "-") for plan in plans)
    # File systems limit the length of a name.
    name = name if len(name) < 80 else f"{len(plans)}-studies"
    path = write(document(plans, seeds, root), out / f"{name}-{plans[0].scale}{suffix}")
    for plan in plans:
        for verdict in verdicts(plan, collect(plan, seeds, root)):
            print(f"{plan.study.name}: {verdict.outcome}: {verdict.statement}\n    {verdict.evidence}")
    print(f"report {path}")
    return path
