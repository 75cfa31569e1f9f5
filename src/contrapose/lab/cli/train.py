"""`contrapose train` and `presets`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from contrapose.lab.cli.display import training_display
from contrapose.lab.cli.progress import format_duration
from contrapose.lab.modalities import MODALITIES, modality, recognise
from contrapose.lab.modalities.progress import allow_progress_bars
from contrapose.lab.training import PRESETS, Run, Trainer, preset, resolve
from contrapose.lab.training.collapse import describe_collapse
from contrapose.lab.training.kept import best_epoch
from contrapose.lab.training.locks import lock_directory
from contrapose.lab.training.method_settings import describe_settings, settings_for_loss
from contrapose.lab.training.processes import leave_process_group, own_device
from contrapose.lab.training.records import read_records
from contrapose.lab.training.sources import check_init
from contrapose.lab.training.stops import ignore_closed_output
from contrapose.lab.workers import TIMEOUT
from contrapose.validate import check_directory


@dataclass(frozen=True)
class Train:
    """Train an encoder, by default on the built-in digits. Run the same command again to resume an interrupted training.

    `--preset NAME` starts from the settings of a paper, such as dystress/cifar10, behaviour/cifar10, cacr/cifar10-k4,
    balanced/cifar10 or byol/cifar10 (`contrapose presets` lists all). Other options override those of the preset. `--loss`
    chooses the framework and the head that it needs, unless these are given.
    """

    run: Annotated[Run, arg(name="")]
    out: Path | None = None
    """Directory of the run; if omitted, a name derived from the settings, in runs/."""
    data_root: Path = Path("data")
    """Directory of downloaded data sets; missing ones are downloaded to it."""
    workers: int = 2
    """Processes that decode images, with --stream. They change the speed, but not the results."""
    worker_timeout: float = TIMEOUT
    """Seconds to wait for a batch from the workers before the training fails. Increase it for very slow disks."""
    extend: bool = False
    """Continue the run in --out to more --epochs than it was started with. A cosine learning rate then follows the schedule
    over all epochs from the current step on."""

    def __call__(self) -> None:
        """Train, with a progress bar on a terminal."""
        with training_display(noun=self.run.kind.noun, silent=_rank() > 0) as display, ExitStack() as stack:
            watch, say = ignore_closed_output(display.show_step), ignore_closed_output(display.print_line)
            # Refuse an unknown name before a directory or lock is created.
            self.run.kind.check_data(self.run.data)
            if self.run.probe_data:
                self.run.kind.check_data(self.run.probe_data, "probe_data")
            world_size = int(os.environ.get("WORLD_SIZE", "1"))
            run = resolve(self.run, own_device(), say=say, folder=self.out, world_size=world_size)
            folder = self.out or Path("runs") / run.name
            check_init(run, folder)
            check_directory("out", folder)
            if self.extend and not (folder / "run.json").exists():
                raise ValueError(f"extend: {folder} holds no run; give the directory of the run to extend with --out")
            # One lock for all processes of torchrun: a lock of their own would be refused.
            if not _rank() and not stack.enter_context(lock_directory(folder)):
                raise ValueError(
                    f"out: another process is training in {folder}; wait for it to end, or use another --out"
                )
            with allow_progress_bars():
                trainer = Trainer(
                    run,
                    folder,
                    watch=watch,
                    say=say,
                    on_evaluation=ignore_closed_output(display.show_evaluation),
                    data_root=self.data_root,
                    workers=self.workers,
                    worker_timeout=self.worker_timeout,
                    extend=self.extend,
                )
            for note in trainer.split.notes:
                say(note)
            say(
                f"{len(trainer.split.train):,} {run.kind.noun} of {trainer.split.train.name} on {trainer.device}, into {folder}"
            )
            if trainer.device.type == "cpu":
                display.on_estimate = lambda seconds: say(_how_to_shorten(run, seconds))
            scores = trainer.train()
            for name, score in scores.items():
                how = f"last epoch, {run.knn} neighbours" if name.startswith("knn") else "last epoch"
                say(f"{name:10} {score:6.2f} %   ({how})")
            if not scores and not run.record:
                say(f"no score: {run.data} {run.kind.unscored}")
            best = best_epoch(folder, run.keep_best)
            if best is not None:
                say(
                    f"{run.keep_best:10} {best[1]:6.2f}     (best epoch, {best[0]}, whose weights are kept: --epoch {best[0]})"
                )
            say(f"run        {folder}")
            collapse = describe_collapse(trainer.run, read_records(folder))
            if collapse:  # last, so that the scores are not taken for a success
                say(collapse)
        leave_process_group()


def _rank() -> int:
    """Return the rank of this process under torchrun, else 0. Only rank 0 prints and holds the lock."""
    return int(os.environ.get("RANK", "0"))


def _how_to_shorten(run: Run, seconds: float) -> str:
    """Return how long the training takes, with options that shorten it if that is long."""
    text = f"the training takes about {format_duration(seconds)} on this CPU"
    if seconds < 120:
        return text
    options = [f"--epochs {max(1, run.epochs // 3)}", *(["--size 32"] if run.size > 32 else [])]
    return f"{text}; to shorten it: {' or '.join(options)}"


@dataclass(frozen=True)
class Presets:
    """List the presets: the papers' training settings, for `train --preset`."""

    def __call__(self) -> None:
        """Print one line per preset, with its main settings."""
        for name, settings in PRESETS.items():
            summary = " ".join(
                f"{key}={settings[key]}" for key in ("encoder", "loss", "optimiser", "lr", "batch", "epochs")
            )
            print(f"{name:32} {summary}")


def expand_preset(arguments: list[str]) -> list[str]:
    """Replace `--preset NAME` by the options of the preset."""
    for position, argument in enumerate(arguments):
        name = argument.removeprefix("--preset=") if argument.startswith("--preset=") else None
        end = position + 1
        if argument == "--preset":
            if end == len(arguments):
                raise ValueError(f"preset: expected one of {', '.join(PRESETS)}, got nothing")
            name, end = arguments[end], end + 1
        if name is not None:
            preset(name)  # raises if it is unknown
            options = [text for key, value in PRESETS[name].items() for text in _as_arguments(key, value)]
            # The last occurrence of an option counts, so those of the preset come first wherever --preset stands.
            return [arguments[0], *options, *arguments[1:position], *arguments[end:]]
    return arguments


def choose_modality(arguments: list[str]) -> list[str]:
    """Insert the settings that suit the kind of `--data`, without those that the user or the preset gives."""
    given = given_options(arguments)
    base = PRESETS.get(given.get("preset", ""), {})
    settings = {**base, **given}
    name = settings.get("modality") or recognise(str(settings.get("data", "")))
    suited = modality(name).settings if name in MODALITIES else {}  # `Run` refuses an unknown one
    if "modality" in base or not suited:
        return arguments
    return _insert({name: value for name, value in suited.items() if name not in settings}, arguments)


def given_options(arguments: list[str]) -> dict[str, str]:
    """Return the options of a command line by name of the setting, with what follows each."""
    following = [*arguments[1:], ""]
    pairs = zip((argument.partition("=") for argument in arguments), following, strict=True)
    return {
        option[2:].replace("-", "_"): value if equals else next_one
        for (option, equals, value), next_one in pairs
        if option.startswith("--")
    }


def choose_framework(arguments: list[str]) -> list[str]:
    """Insert the options that suit `--loss`, without those that the user or the preset gives, and say which in one line."""
    given = given_options(arguments)
    settings = {**PRESETS.get(given.get("preset", ""), {}), **given}
    if "loss" not in given or {"-h", "--help"} & set(arguments):
        return arguments
    chosen = settings_for_loss(given["loss"], framework=str(settings.get("framework", "")), given=settings)
    if not chosen:
        return arguments
    if not _rank():
        say = ignore_closed_output(print)
        say(f"for --loss {given['loss']}: {describe_settings(chosen)}; each can be set (contrapose train --help)")
    return _insert(chosen, arguments)


def _insert(settings: Mapping[str, Any], arguments: list[str]) -> list[str]:
    """Insert settings as options after the command's name, so that options of the user, which follow, override them."""
    options = [text for key, value in settings.items() for text in _as_arguments(key, value)]
    return [arguments[0], *options, *arguments[1:]]


def _as_arguments(key: str, value: Any) -> list[str]:
    option = key.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", *(str(v) for v in (value if isinstance(value, tuple) else (value,)))]
