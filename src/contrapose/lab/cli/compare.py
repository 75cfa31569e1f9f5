"""`contrapose compare`: compare losses on a user's own data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import arg

from contrapose.lab.cli import exits
from contrapose.lab.cli.config_option import ConfigOption, with_config
from contrapose.lab.cli.dry_run import dry_run_comparison
from contrapose.lab.cli.run_data import print_notes
from contrapose.lab.cli.study import check_seeds, run_plans
from contrapose.lab.cli.tables import fold_names
from contrapose.lab.counts import count_of
from contrapose.lab.devices import own_device
from contrapose.lab.frameworks import FrameworkSettings
from contrapose.lab.report.document import Document
from contrapose.lab.report.render import write
from contrapose.lab.settings import Settings
from contrapose.lab.studies import Plan
from contrapose.lab.studies.collect import collect, verdicts
from contrapose.lab.studies.loss_comparison import (
    comparison,
    describe_frameworks,
    describe_objectives,
    learned,
    page,
    references,
)
from contrapose.lab.studies.results import Cell, Results
from contrapose.lab.studies.scores import score_of
from contrapose.lab.training import resolve
from contrapose.lab.training.build import prepare
from contrapose.lab.training.method_settings import method_name
from contrapose.lab.training.options import make_run
from contrapose.lab.training.sources import check_init
from contrapose.losses.parse import with_temperature
from contrapose.validate import check_directory

# Settings of a run that `compare` sets itself, and what to type instead.
_DECIDED = {
    "loss": "--losses, which takes all losses to compare: --losses simclr,dystress",
    "seed": "--seeds, the number of seeds 0, 1, …: --seeds 3",
}
# The options of `compare` itself that a config file may set, with their types in the file.
_IN_CONFIG = {
    "losses": "str",
    "temperatures": "tuple[str, ...]",
    "seeds": "int",
    "jobs": "int",
    "device": "str",
}
# What is not taken from a run.json, because each loss has its own.
_OF_THE_LOSS = {*_DECIDED, "framework", "head", *(field.name for field in fields(FrameworkSettings))}
_DEFAULT_SEEDS = 3
_NAME_LENGTH = 60  # characters in the readable part of a report's folder name; file systems limit its length


@dataclass(frozen=True)
class Compare(ConfigOption):
    """Train with several losses on your own data, and report which losses give a more accurate encoder.

    A folder of images needs one subfolder per class; if the folder has train/ and test/, each of the two needs the subfolders.
    Losses are compared by kNN accuracy on images, by recall@1 on the held-out pairs in a file of text pairs, and by text-to-image
    recall@1 on the held-out images with captions. All settings of a run that `train` takes, except --loss and --seed, are
    available. Each loss is trained with the framework and the head that it needs, unless you set them. From the
    run.json of a run, --config takes all settings except the loss, its framework and head, and the seed. Each comparison writes
    its own report; run the same command again to resume.
    """

    common: ClassVar[Mapping[str, str]] = {
        "data": "Folder of images, data set's name, file of texts",
        "losses": "Losses, with commas; or use --temperatures",
        "seeds": "Number of runs per loss",
        "encoder": "Encoder, such as resnet18 or timm:NAME",
        "epochs": "Passes over the data",
        "batch": "Batch size",
        "jobs": "Number of runs at a time",
        "config": "Options from a TOML file, or a run's run.json",
        "out": "Directory of the report",
        "device": "cpu, cuda or one GPU, such as cuda:1",
        "dry_run": "Print runs, memory and time; do not train",
    }
    # A run has one loss, and errors about it name `loss`; users of this command type --losses.
    option_names: ClassVar[Mapping[str, str]] = {"loss": "losses", "temperature": "temperatures"}
    dry_run: bool = False
    """Print the runs, the settings, the number of negatives of each loss, and estimates of memory and time, without training."""
    losses: str = ""
    """Losses, separated by commas, each as in `train --loss`; default: simclr,dystress,cacr,balanced, for images with captions
    clip,siglip,dystress,cacr, and with --temperatures only the first of them."""
    temperatures: tuple[str, ...] = ()
    """Train each loss at each of these temperatures, such as --temperatures 0.05 0.1 0.2 0.5; LOW:HIGH is cosine(LOW, HIGH)."""
    seeds: int | None = None
    """Number of runs per loss; default: 3. A single run takes a third of the time of three, but cannot show which differences
    are due to chance."""
    jobs: int | None = None
    """Number of runs at a time."""
    runs_dir: Path = Path("runs")
    """Directory of all runs."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("reports")
    """Directory of the report."""
    data_root: Path = Path("data")
    """Directory of downloaded data sets; missing ones are downloaded to it."""

    def __call__(self) -> None:
        """Train with all losses, compare them and write the report; with --dry-run, print what would be done."""
        with with_config(self, _IN_CONFIG) as (options, config):
            if self.config is not None and self.config.suffix == ".json":
                config = {name: value for name, value in config.items() if name not in _OF_THE_LOSS}
            options.compare(config | self.given)

    def compare(self, given: Settings) -> None:
        """Train with the given settings, which are those in a config file and on the command line."""
        check_given(given)
        seed_count = _DEFAULT_SEEDS if self.seeds is None else self.seeds
        check_seeds(seed_count)
        check_directory("out", self.out)
        requested = make_run(given)
        check_init(requested, self.runs_dir)
        requested.kind.check_data(requested.data)
        run = resolve(requested, own_device())
        losses = self.all_losses(run.kind.compared_losses)
        split = prepare(run, self.data_root)
        print_notes(split)
        plan = comparison(run, losses, split, given=given)
        folder = self.out / report_name(plan, seed_count)
        seeds = "one seed" if seed_count == 1 else f"{seed_count} seeds"
        runs = count_of(len(plan.runs(seed_count)), "run")
        print(f"{runs}: {count_of(len(losses), 'loss')} with {seeds} (--seeds changes it)", flush=True)
        print(*describe_frameworks(run, plan.study.rows), *describe_objectives(plan), sep="\n", flush=True)
        if self.dry_run:
            dry_run_comparison(plan, seed_count, self.runs_dir, data_root=self.data_root, report=folder)
            return
        failures = run_plans([plan], seed_count, self.runs_dir, data_root=self.data_root, jobs=self.jobs)
        results = collect(plan, seed_count, self.runs_dir)
        show_results(plan, results, page(plan, results, self.runs_dir), folder)
        if failures:
            raise SystemExit(exits.FAILED)

    def all_losses(self, default: str) -> list[str]:
        """Return the losses to compare: those of --losses or the default ones, at each of --temperatures if there are any."""
        losses = split_losses(self.losses or default)
        if not self.temperatures:
            return losses
        if not self.losses:
            losses = losses[:1]
        return list(dict.fromkeys(with_temperature(loss, t) for loss in losses for t in _separate(self.temperatures)))


def _separate(values: Sequence[str]) -> list[str]:
    """Return values that are separated by spaces or by commas."""
    return [part for value in values for part in value.split(",") if part]


def check_given(given: Settings) -> None:
    """Raise ValueError for options of `train` that `compare` would ignore, whatever their values."""
    for name, instead in _DECIDED.items():
        if name in given:
            raise ValueError(f"{name}: compare does not take --{name}; use {instead}")


def report_name(plan: Plan, seeds: int) -> str:
    """Return the folder name of a comparison: its data, its losses and a hash of its runs."""
    runs = plan.runs(seeds)
    methods = dict.fromkeys(method_name(run.loss) for run in runs.values())
    readable = re.sub(r"[^\w.-]+", "-", "-".join(["compare", plan.sets[0].name, *methods]))
    return f"{readable[:_NAME_LENGTH].rstrip('-')}-{hashlib.sha256(' '.join(runs).encode()).hexdigest()[:8]}"


def split_losses(text: str) -> list[str]:
    """Split a list of losses at the commas outside brackets, and drop duplicates."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    losses = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not losses:
        raise ValueError("losses: expected at least one loss, such as simclr,dystress")
    return losses


def show_results(plan: Plan, results: Results, report: Document, folder: Path) -> None:
    """Write the report to `folder`; print a table, the verdicts, what was learned and the path of the report."""
    path = write(report, folder)
    print(_table(plan, results, report.title), end="")
    for line in score_of(plan.study).definitions:
        print(line)
    for verdict in verdicts(plan, results):
        print(f"{verdict.outcome}: {verdict.statement} ({verdict.evidence})")
    for line in learned(plan.study, results):
        print(line)
    print(f"report {path}")


def _table(plan: Plan, results: Results, title: str) -> str:
    """Return a table for the terminal with the scores of all losses and of the reference methods."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)  # a path may have square brackets
    rows: list[tuple[str, ...]] = []
    for row in plan.study.rows:
        cells = [results.cell(row.name, quantity.name) for quantity in plan.study.quantities]
        reasons = "; ".join(dict.fromkeys(reason for cell in cells for reason in cell.missing_reasons))
        rows.append((row.name if not reasons else f"{row.name} ({reasons})", *map(_cell_text, cells)))
    headings = ("loss", *score_of(plan.study).headings)
    for name, cell in references(plan.study, results).items():
        rows.append((name, _cell_text(cell), *["–"] * (len(headings) - 2)))
    folded_headings, folded_rows = fold_names(headings, rows, console.width)
    table = Table(title=title)
    for number, heading in enumerate(folded_headings):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for number, folded in enumerate(folded_rows):
        table.add_row(*folded, style="" if number < len(plan.study.rows) else "dim")
    with console.capture() as captured:  # printed by `print`, because rich exits the process if the output is closed
        console.print(table)
    return captured.get()


def _cell_text(cell: Cell) -> str:
    spread = f" ± {cell.spread:.2f}" if len(cell.values) > 1 else ""
    return f"{cell.mean:.2f}{spread}" if cell.values else "–"
