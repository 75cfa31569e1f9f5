"""`contrapose train`, `evaluate`, `presets`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor
from tyro.conf import Positional, arg

from contrapose.evaluation import PROBES, FineTune, Measures, few_shot
from contrapose.modalities import Split
from contrapose.modalities.images.load import check_name
from contrapose.modalities.images.load import load as load_data
from contrapose.training import PRESETS, Model, Progress, Run, Trainer, load, prepare, preset
from contrapose.training.locks import locked
from contrapose.training.processes import leave
from contrapose.training.stops import ignore_closed_output
from contrapose.validate import check_known
from contrapose.workers import TIMEOUT


@dataclass(frozen=True)
class Train:
    """Train an encoder; the same command again goes on where it stopped. Without arguments: the built-in digits.

    `--preset NAME` starts from a paper's settings, such as dystress/cifar10, behaviour/cifar10, cacr/cifar10-k4 or
    balanced/cifar10 (`contrapose presets` names them all); what is given beside it replaces them.
    """

    run: Annotated[Run, arg(name="")]
    out: Path | None = None
    """Directory of the run (default: runs/ and a name made of its settings)."""
    data_root: Path = Path("data")
    """Where downloaded data sets are, or go."""
    workers: int = 2
    """Processes that decode images, with --stream; they change nothing but the speed."""
    worker_timeout: float = TIMEOUT
    """Seconds without a batch from the workers after which the training fails; the default suits all but very slow disks."""

    def __call__(self) -> None:
        """Train, with a progress bar."""
        with _progress() as (show, tell), ExitStack() as stack:
            watch, say = ignore_closed_output(show), ignore_closed_output(tell)
            run = with_views(self.run, say)
            check_name(run.data)  # before anything is made
            folder = self.out or Path("runs") / run.name
            if not _rank() and not stack.enter_context(locked(folder)):
                raise ValueError(f"out: another process is at work in {folder}")
            trainer = Trainer(
                run,
                folder,
                watch,
                say,
                data_root=self.data_root,
                workers=self.workers,
                worker_timeout=self.worker_timeout,
            )
            say(f"{len(trainer.split.train):,} images of {trainer.split.train.name} on {trainer.device}, into {folder}")
            scores = trainer.train()
            for name, score in scores.items():
                say(f"{name:10} {score:6.2f} %   (last epoch, {run.knn} neighbours)")
            if not scores:
                say(
                    "no score: the data has no labelled training and test images (`contrapose data check` says what it has)"
                )
            say(f"run        {folder}")
        leave()


def _rank() -> int:
    """Of several processes, the first speaks and holds the lock; it has 0."""
    return int(os.environ.get("RANK", "0"))


def with_views(run: Run, say: Callable[[str], None]) -> Run:
    """The run, with views for images where they were left at those of the digits."""
    if run.data == "digits" or run.views != "digits":
        return run
    say("views: simclr-cifar, of 32 pixels, as for any images but the built-in digits (--views says otherwise)")
    return replace(run, views="simclr-cifar")


@dataclass(frozen=True)
class Evaluate:
    """Score a run: kNN and, if asked, a linear probe on its encoder's features."""

    run: Positional[Path]
    """Directory of the run."""
    data: str = ""
    """Another data set to score on (a name, a folder or an .npz file, with labelled training and test images)."""
    knn: int = 0
    """Neighbours; 0: as the run has it."""
    linear: str = ""
    """A linear probe: wang-liu, cacr, cacr-imagenet, moco-v3, dystress-imagenet, balanced-cifar or balanced-imagenet."""
    best: bool = False
    """Report the probe's best epoch too, under that name."""
    finetune: int = 0
    """Epochs of fine-tuning encoder and classifier together; 0: none."""
    metrics: bool = False
    """Measure the embedding on all test images too: uniformity, tolerance, separation and the others."""
    few_shot: bool = False
    """Linear SVMs on a class-balanced subset and on all (Kukleva's long-tail protocol)."""
    data_root: Path = Path("data")
    """Where downloaded data sets are."""

    def __call__(self) -> None:
        """Print the scores as JSON."""
        if self.linear:
            check_known("linear", self.linear, PROBES)
        model = load(self.run)
        split = load_data(self.data, root=self.data_root) if self.data else prepare(model.run, self.data_root)
        scores = model.evaluate(split, self.knn or None)
        if self.metrics:
            scores |= model.measure(split.held_out, Measures(images=0, drawn=1000))
        if not scores:
            _labelled(model, split)
        if self.linear:
            probe = replace(PROBES[self.linear], best=self.best)
            scores |= {f"linear_{name}": score for name, score in probe(*_labelled(model, split)).items()}
        if self.finetune:
            if split.probe is None or split.test is None:
                raise ValueError("finetune: expected labelled images in memory, and this run has none")
            tuned = FineTune(self.finetune)(
                model.encoder, split.probe, split.test, views=model.views, device=model.device
            )
            scores |= {f"finetune_{name}": score for name, score in tuned.items()}
        if self.few_shot:
            scores |= few_shot(*_labelled(model, split))
        print(json.dumps({"step": model.step, **scores}))


def _labelled(model: Model, split: Split) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    labelled = model.labelled_features(split)
    if labelled is None:
        name = split.train.name.removesuffix(" (train)")
        raise ValueError(f"data: {name} has no labelled training and test images to score with")
    return labelled


@dataclass(frozen=True)
class Presets:
    """Name the papers' training settings."""

    def __call__(self) -> None:
        """One line each."""
        for name, settings in PRESETS.items():
            shown = " ".join(
                f"{key}={settings[key]}" for key in ("encoder", "loss", "optimiser", "lr", "batch", "epochs")
            )
            print(f"{name:32} {shown}")


def without_preset(words: list[str]) -> list[str]:
    """`--preset NAME` stands for its settings, which any that follow replace."""
    for place, word in enumerate(words):
        name = word.removeprefix("--preset=") if word.startswith("--preset=") else None
        after = place + 1
        if word == "--preset":
            if after == len(words):
                raise ValueError(f"preset: expected one of {', '.join(PRESETS)}, got nothing")
            name, after = words[after], after + 1
        if name is not None:
            preset(name)  # refuses an unknown one
            meant = [text for key, value in PRESETS[name].items() for text in _as_words(key, value)]
            return [words[0], *meant, *words[1:place], *words[after:]]
    return words


def _as_words(key: str, value: Any) -> list[str]:
    option = key.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", *(str(v) for v in (value if isinstance(value, tuple) else (value,)))]


@contextmanager
def _progress() -> Iterator[tuple[Callable[[Progress], None], Callable[[str], None]]]:
    """A live bar on a terminal; a line for each epoch elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(highlight=False)
    if _rank():
        yield lambda progress: None, lambda text: None
        return
    if not console.is_terminal:
        yield _lines(), lambda text: print(text, flush=True)
        return
    columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"),
               TextColumn("loss {task.fields[loss]:.3f}"), TextColumn("{task.fields[rate]:,.0f} images/s"),
               TimeRemainingColumn())  # fmt: skip
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("train", epoch=0, loss=float("nan"), rate=0.0, total=None)

        def watch(p: Progress) -> None:
            bar.update(task, completed=p.step, total=p.steps, epoch=p.epoch, loss=p.loss, rate=p.images_per_second)

        yield watch, bar.console.print


def _lines() -> Callable[[Progress], None]:
    seen: list[Progress] = []  # of the epoch that is under way

    def over() -> None:
        last, loss = seen[-1], sum(p.loss for p in seen) / len(seen)
        print(f"epoch {last.epoch:4}   loss {loss:.3f}   {last.images_per_second:,.0f} images/s", flush=True)
        seen.clear()

    def watch(p: Progress) -> None:
        if seen and seen[-1].epoch != p.epoch:
            over()
        seen.append(p)
        if p.step == p.steps:
            over()

    return watch
