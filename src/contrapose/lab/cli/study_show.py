"""`contrapose study show`: describe a study in words, what each scale changes, and how long the runs took."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from tyro.conf import Positional

from contrapose.lab.cli.progress import format_duration
from contrapose.lab.counts import count_of
from contrapose.lab.frameworks import FRAMEWORK_DEFAULTS, FRAMEWORKS
from contrapose.lab.studies import SCALES, Row, Study, find
from contrapose.lab.studies.durations import Durations, RecordedRun
from contrapose.lab.studies.protocol import describe_study
from contrapose.lab.studies.scales import describe_changes
from contrapose.lab.studies.study import Settings
from contrapose.lab.training import Run

_WIDTH = 100
_MOST_ROWS = 12  # in studies with more rows, a series without published numbers is shortened
_LONG = 120.0  # seconds of training; shorter estimates are not shown
_RECORDED = Path("results/runs")  # in a clone of the repository: the runs that results/README.md reports


@dataclass(frozen=True)
class StudyShow:
    """Show what a study claims and measures, the paper's numbers, what each scale changes, and how long its runs took."""

    name: Positional[str]
    """Name of a study, such as behaviour/figure9."""
    runs_dir: Path = Path("runs")
    """Directory of all runs, whose records say how long they took. In a clone of the repository, results/runs is read too."""

    def __call__(self) -> None:
        """Print the study, and the commands that run it."""
        study = find(self.name)
        print(f"{study.name}: {study.title}\n{study.paper}")
        for text in (f"Claim: {study.claim}", *_protocol(study), *([f"Note: {study.note}"] if study.note else [])):
            print(f"\n{_wrap(text)}")
        for block in (list(_row_lines(study)), *_printed_tables(study)):
            if block:
                print("", *block, sep="\n")
        if not study.diagram:
            _print_scales(study, self.runs_dir)


def _wrap(text: str, indent: str = "", *, first: str = "") -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first or indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _protocol(study: Study) -> Iterable[str]:
    """Yield sentences on what the paper measures, what we measure, and how the two differ, without repetition."""
    paper, ours, difference = describe_study(study)
    if study.diagram:
        yield "There is nothing to measure."
    elif study.analytic:
        yield "Computed without training."
    elif ours == "the same":
        yield f"The paper and we measure: {paper}."
    else:
        yield f"The paper measures: {paper}."
        yield f"We measure: {ours}."
    if study.differences:
        yield f"Difference: {difference}"


def _row_lines(study: Study) -> Iterable[str]:
    """Yield the rows and their settings; a long series without published numbers is reduced to its first and last rows."""
    described = [row for row in study.rows if row.changes]
    width = max((len(row.name) for row in described), default=0)
    for _, group in groupby(described, key=lambda row: row.series):
        rows = list(group)
        short = len(study.rows) > _MOST_ROWS and not any(row.printed for row in rows) and len(rows) > 3
        for row in (rows[0], rows[-1]) if short else rows:
            if short and row is rows[-1]:
                yield f"  … {len(rows) - 2} more"
            yield _wrap(_describe_row(study, row), " " * (width + 4), first=f"  {row.name:{width}}  ")


def _describe_row(study: Study, row: Row) -> str:
    """Return the settings of a row; placeholders in its loss are filled with the values for the first data set."""
    changes = {**row.changes, **({"local_crops": row.local_crops} if row.local_crops else {})}
    if "framework" in changes:
        # A row with another framework resets the settings of the preset's framework; these resets are not shown.
        reset = {name for name, default in FRAMEWORK_DEFAULTS.items() if changes.get(name) == default}
        changes = {name: value for name, value in changes.items() if name not in reset}
    further = [f"{data_set}: {_describe_settings(settings)}" for data_set, settings in row.changes_on.items()]
    settings = "; ".join((_describe_settings(changes), *further))
    for name, value in next(iter(study.loss_values.values()), {}).items():
        settings = settings.replace(f"{{{name}}}", f"{value:g}")
    return settings


def _describe_settings(settings: Settings) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _printed_tables(study: Study) -> Iterable[list[str]]:
    """Yield the paper's numbers as tables: several tables if the columns do not fit on one line."""
    rows = [row for row in study.rows if row.printed]
    columns = list(dict.fromkeys(column for row in rows for column in row.printed))
    # With only one data set, its name would be repeated in every column.
    suffix = f" {study.sets[0].name}" if len(study.sets) == 1 else ""
    headings = {column: column.removesuffix(suffix) for column in columns}
    name_width = max((len(row.name) for row in rows), default=0) + 2
    while columns:
        widths, count = [max(len(headings[column]), 6) + 2 for column in columns], 1
        while count < len(columns) and name_width + sum(widths[: count + 1]) <= _WIDTH:
            count += 1
        block, columns = columns[:count], columns[count:]
        lines = [
            "  paper".ljust(name_width) + "".join(headings[c].rjust(w) for c, w in zip(block, widths, strict=False))
        ]
        for row in rows:
            numbers = (f"{row.printed[c]:g}" if c in row.printed else "" for c in block)
            cells = "".join(number.rjust(w) for number, w in zip(numbers, widths, strict=False))
            lines.append(f"  {row.name:{name_width - 2}}{cells}".rstrip())
        yield lines


def _print_scales(study: Study, root: Path) -> None:
    """Print each scale's command, what the scale changes, and how long its runs took."""
    if not study.rows:
        print(f"\ncontrapose study run {study.name}")
        return
    if study.downstream_names:
        names = ", ".join(study.downstream_names)
        print(f"\n{_wrap(f'Encoders are evaluated on data that you give with --data NAME=PATH: {names}.')}")
    durations = recorded_durations(root)
    printed: dict[tuple[str, ...], str] = {}  # scales by the names of their runs
    for scale in SCALES:
        plan = study.plan(scale)
        runs = plan.runs(1)
        print(f"\ncontrapose study run {study.name} --scale {scale}")
        earlier = printed.setdefault(tuple(runs), scale)
        if earlier != scale:
            print(f"    the runs of --scale {earlier}")
            continue
        settings = "; the printed settings" if scale == "paper" else ""
        print(_wrap(f"{_count(runs)} {describe_changes(plan)}{settings}", "    "))
        print(_wrap(describe_time(list(runs.values()), durations), "    "))
        for line in _times_of_other_views(list(runs.values()), durations):
            print(_wrap(line, "    "))


def recorded_durations(root: Path) -> Durations:
    """Return the durations of the runs in a directory and, in a clone of the repository, of the recorded runs in results/."""
    return Durations.read(dict.fromkeys((root, _RECORDED)))


def describe_time(runs: Sequence[Run], durations: Durations) -> str:
    """Return how long these runs took if they are recorded; otherwise, how long similar runs took."""
    recorded = [record for run in runs if (record := durations.of(run)) is not None]
    if recorded:
        count = _count(runs) if len(recorded) == len(runs) else f"{len(recorded)} of {_count(runs)}"
        shared = sum(record.shared for record in recorded)
        beside = f", {'all' if shared == len(recorded) else shared} beside another run" if shared else ""
        return f"{count}: {_training_time(recorded)}{beside} (recorded)"
    return f"not run yet{_per_run(runs, durations)}"


def _times_of_other_views(runs: Sequence[Run], durations: Durations) -> Iterable[str]:
    """Yield how long recorded runs took that differ from these only in `norm_views`, whose default has changed."""
    affected = [run for run in runs if FRAMEWORKS[run.framework].uses("norm_views")]
    for norm_views in ("together", "each"):
        others = [replace(run, norm_views=norm_views) for run in affected if run.norm_views != norm_views]
        recorded = [record for run in others if (record := durations.of(run)) is not None]
        if recorded:
            seconds = sorted(round(record.seconds) for record in recorded)
            each = f"{seconds[0]:,} to {seconds[-1]:,} s" if seconds[0] < seconds[-1] else f"{seconds[0]:,} s"
            # The first records do not say whether another run used the device, so a part of the runs would be a wrong count.
            where = _devices(recorded) + (
                ", all beside another run" if all(record.shared for record in recorded) else ""
            )
            yield f"with --set norm_views={norm_views}: {len(recorded)} of {_count(runs)}, {each} each on {where} (recorded)"


def _per_run(runs: Sequence[Run], durations: Durations) -> str:
    estimates = [record for run in runs if (record := durations.estimate(run)) is not None]
    if not estimates:
        return ""
    longest = max(estimates, key=lambda record: record.seconds)
    beside = " beside another run" if longest.shared else ""
    return f"; a run takes up to {format_duration(longest.seconds)} on {_device(longest)}{beside}, like recorded runs of its kind"


def describe_estimate(runs: Sequence[Run], durations: Durations) -> str:
    """Return the training time of these runs, estimated from similar recorded runs; empty if short or unknown."""
    estimates = [record for run in runs if (record := durations.estimate(run)) is not None]
    if sum(record.seconds for record in estimates) < _LONG:
        return ""
    count = _count(runs) if len(estimates) == len(runs) else f"{len(estimates)} of {_count(runs)}"
    return f"{count}: about {_training_time(estimates)}, like recorded runs of their kind"


def _training_time(recorded: Sequence[RecordedRun]) -> str:
    return f"{format_duration(sum(record.seconds for record in recorded))} of training on {_devices(recorded)}"


def _devices(recorded: Sequence[RecordedRun]) -> str:
    return " and ".join(dict.fromkeys(map(_device, recorded)))


def _device(record: RecordedRun) -> str:
    return "a CPU" if record.device == "cpu" else f"one {record.device}"


def _count(runs: Collection[object]) -> str:
    return count_of(len(runs), "run")
