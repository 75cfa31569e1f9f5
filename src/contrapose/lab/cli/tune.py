"""`contrapose tune`: find a temperature for a user's own data."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from contrapose.lab.cli import exits
from contrapose.lab.cli.compare import report_name, show_results
from contrapose.lab.cli.config_option import ConfigOption, with_config
from contrapose.lab.cli.run_data import print_notes
from contrapose.lab.cli.study import check_seeds, run_plans
from contrapose.lab.counts import count_of
from contrapose.lab.devices import own_device
from contrapose.lab.modalities import Split
from contrapose.lab.settings import Settings
from contrapose.lab.studies.collect import collect
from contrapose.lab.studies.loss_comparison import comparison, page
from contrapose.lab.studies.scores import score_of
from contrapose.lab.studies.tuning import ROUNDS, Trial, candidates, choose, is_clearly_ahead, round_length
from contrapose.lab.training import Run, resolve
from contrapose.lab.training.build import prepare
from contrapose.lab.training.findings import looks_in
from contrapose.lab.training.options import make_run
from contrapose.lab.training.sources import check_init
from contrapose.validate import check_directory

_IN_CONFIG = {"seeds": "int", "jobs": "int", "device": "str"}


@dataclass(frozen=True)
class Tune(ConfigOption):
    """Find a temperature for your data in short trials, and compare the best with the default over three seeds.

    The trials are the loss itself, four other temperatures, two that suit the similarities that the first trial measures, a
    temperature that depends on similarity, and only the hardest tenth of the negatives. All of them are trained for a quarter
    of the epochs, the best three for half of them, and the best one and the default with all epochs and several seeds. Scores
    are those of `compare`. Run the same command again to resume.
    """

    common: ClassVar[Mapping[str, str]] = {
        "data": "Folder of images, data set's name, file of texts",
        "loss": "Loss to tune, such as simclr",
        "seeds": "Number of seeds in the last comparison",
        "encoder": "Encoder, such as resnet18 or timm:NAME",
        "epochs": "Passes over the data",
        "batch": "Batch size",
        "jobs": "Number of runs at a time",
        "config": "Options from a TOML file, or a run's run.json",
        "out": "Directory of the report",
        "device": "cpu, cuda or one GPU, such as cuda:1",
        "dry_run": "Print the trials; do not train",
    }
    run: Positional[Path | None] = None
    """A run to tune, such as runs/mine: its data and settings are used, as with --config runs/mine/run.json."""
    dry_run: bool = False
    """Print the trials and how many epochs they take together, without training."""
    seeds: int | None = None
    """Number of seeds of the default and of the best trial in the last comparison; default: 3."""
    jobs: int | None = None
    """Number of runs at a time."""
    runs_dir: Path = Path("runs")
    """Directory of all runs."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("reports")
    """Directory of the report."""
    data_root: Path = Path("data")
    """Directory of downloaded data sets; missing ones are downloaded to it."""

    def __call__(self) -> None:
        """Run the trials and the comparison; with --dry-run, print what would be trained."""
        command = self
        if self.run is not None:
            if self.config is not None:
                raise ValueError("config: expected either a run or --config, got both")
            command = replace(self, config=self.run / "run.json")
        with with_config(command, _IN_CONFIG) as (options, config):
            options.tune({name: value for name, value in config.items() if name != "seed"} | options.given)

    def tune(self, given: Settings) -> None:
        """Tune the loss of a run with these settings."""
        if "seed" in given:
            raise ValueError("seed: tune does not take --seed; use --seeds, the number of seeds 0, 1, …: --seeds 3")
        seeds = 3 if self.seeds is None else self.seeds
        check_seeds(seeds)
        check_directory("out", self.out)
        requested = make_run(given)
        check_init(requested, self.runs_dir)
        requested.kind.check_data(requested.data)
        run = resolve(requested, own_device())
        split = prepare(run, self.data_root)
        print_notes(split)
        losses = candidates(run.loss, run.objective)
        _print_candidates(losses, run.epochs, seeds)
        if self.dry_run:
            return
        spread = self._spread(run, losses[0], split, given)
        if spread is not None:
            losses = candidates(run.loss, run.objective, spread=spread)
            print(f"the similarities of different samples have a spread of {spread:.2g} in the first trial")
            _print_candidates(losses, run.epochs, seeds)
        trials = choose(losses, run.epochs, lambda some, epochs: self._scores(run, some, epochs, split, given))
        print(_table(trials), end="", flush=True)
        self._compare(run, losses[0], trials, split, given, seeds)

    def _scores(
        self, run: Run, losses: Sequence[str], epochs: int, split: Split, given: Settings
    ) -> list[float | None]:
        """Train these losses with one seed, and return their scores."""
        plan = comparison(replace(run, epochs=epochs), losses, split, given=given)
        run_plans([plan], 1, self.runs_dir, data_root=self.data_root, jobs=self.jobs)
        results, name = collect(plan, 1, self.runs_dir), score_of(plan.study).name
        cells = [results.cell(row.name, name) for row in plan.study.rows]
        return [cell.mean if cell.values else None for cell in cells]

    def _spread(self, run: Run, default: str, split: Split, given: Settings) -> float | None:
        """Train the default as in the first round, and return the spread of its negatives' similarities."""
        epochs = round_length(ROUNDS[0], run.epochs)
        self._scores(run, [default], epochs, split, given)
        plan = comparison(replace(run, epochs=epochs), [default], split, given=given)
        (records,) = next(iter(collect(plan, 1, self.runs_dir).records.values()))  # one loss, one data set, one seed
        looks = looks_in(records)
        return looks[-1].negative_spread if looks else None

    def _compare(
        self, run: Run, default: str, trials: Sequence[Trial], split: Split, given: Settings, seeds: int
    ) -> None:
        """Compare the best trial with the default over several seeds, and say what to type."""
        best = trials[-1]
        if best.score is None:
            print("No trial has a score: see the reasons above.")
            raise SystemExit(exits.FAILED)
        if best.loss == default:
            print(f"In the short trials nothing scores higher than the default, {default}: keep it.")
            return
        plan = comparison(run, [default, best.loss], split, given=given)
        failures = run_plans([plan], seeds, self.runs_dir, data_root=self.data_root, jobs=self.jobs)
        results = collect(plan, seeds, self.runs_dir)
        folder = self.out / report_name(plan, seeds).replace("compare-", "tune-", 1)
        show_results(plan, results, page(plan, results, self.runs_dir), folder)
        if score_of(plan.study).hits is None:
            print(
                f"Compare the means: whether {best.loss} is better than {default} is not tested for {score_of(plan.study).words}."
            )
        elif not is_clearly_ahead(plan.study, results, best.loss, default):
            print(f"Nothing is clearly better than the default, {default}: keep it, or use more --seeds.")
        else:
            print(f"train with: {self._command(best.loss)}")
            print(
                "The trials and the comparison used the same held-out data, so the gain of the best of "
                f"{count_of(len({trial.loss for trial in trials}), 'candidate')} is a little too high."
            )
        if failures:
            raise SystemExit(exits.FAILED)

    def _command(self, loss: str) -> str:
        """Return the command that trains with a loss and with the settings that were tuned."""
        config = [] if self.config is None else ["--config", str(self.config)]
        return shlex.join(["contrapose", "train", *config, *_options(self.given), "--loss", loss])


def _options(given: Settings) -> Iterator[str]:
    """Yield options of the command line with these settings."""
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if name in ("loss", "temperature"):
            continue
        if isinstance(value, bool):
            yield option if value else option.replace("--", "--no-", 1)
        else:
            yield from (option, *map(str, value if isinstance(value, tuple) else [value]))


def _print_candidates(losses: Sequence[str], epochs: int, seeds: int) -> None:
    print(f"{count_of(len(losses), 'candidate')}: {', '.join(losses)}", flush=True)
    print(_describe_cost(len(losses), epochs, seeds), flush=True)


def _describe_cost(count: int, epochs: int, seeds: int) -> str:
    """Say how many epochs the trials and the comparison take."""
    lengths = [round_length(one, epochs) for one in ROUNDS]
    kept = min(ROUNDS[0][1], count)
    return (
        f"{count} x {lengths[0]} epochs, {kept} x {lengths[1]}, then the best and the default with {seeds} seeds x {epochs}: "
        f"at most {count * lengths[0] + kept * lengths[1] + 2 * seeds * epochs:,} epochs (--epochs, --seeds)"
    )


def _table(trials: Sequence[Trial]) -> str:
    """Return the trials as text, one per line, in the order in which they were ranked."""
    lines = [
        f"{trial.epochs:>6} epochs  {'–' if trial.score is None else f'{trial.score:.2f}':>7}  {trial.loss}"
        for trial in trials
    ]
    return "\n".join(lines) + "\n"
