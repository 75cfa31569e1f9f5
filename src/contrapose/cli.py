"""The command line: `contrapose train`, `evaluate`, `embed`, `data`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import OmitArgPrefixes, Positional, arg

from contrapose.data.images import Images
from contrapose.data.stream import WorkerDied
from contrapose.evaluation import PROBES, FineTune, few_shot
from contrapose.training import PRESETS, Diverged, Progress, Run, Stopped, Trainer, preset
from contrapose.training.processes import leave

EXIT_BAD_SETTINGS, EXIT_FAILED, EXIT_STOPPED = 2, 1, 143


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

    def __call__(self) -> None:
        """Train, with a progress bar."""
        folder = self.out or Path("runs") / self.run.name
        with _progress() as (watch, say):
            trainer = Trainer(self.run, folder, watch, say, self.data_root, self.workers)
            say(f"{len(trainer.split.train):,} images of {trainer.split.train.name} on {trainer.device}, into {folder}")
            scores = trainer.train()
            for name, score in scores.items():
                say(f"{name:10} {score:6.2f} %   (last epoch, {self.run.knn} neighbours)")
            say(f"run        {folder}")
        leave()


@dataclass(frozen=True)
class Evaluate:
    """Score a run: kNN and, if asked, a linear probe on its encoder's features."""

    run: Positional[Path]
    """Directory of the run."""
    knn: int = 0
    """Neighbours; 0: as the run has it."""
    linear: str = ""
    """A linear probe: wang-liu, cacr, cacr-imagenet, dystress-imagenet, balanced-cifar or balanced-imagenet."""
    best: bool = False
    """Report the probe's best epoch too, under that name."""
    finetune: int = 0
    """Epochs of fine-tuning encoder and classifier together; 0: none."""
    few_shot: bool = False
    """Linear SVMs on a class-balanced subset and on all (Kukleva's long-tail protocol)."""
    data_root: Path = Path("data")
    """Where downloaded data sets are."""

    def __call__(self) -> None:
        """Print the scores as JSON."""
        trainer = _opened(self.run, self.data_root, knn=self.knn)
        if self.linear and self.linear not in PROBES:
            raise ValueError(f"linear: expected one of {', '.join(PROBES)}, got {self.linear!r}")
        found, scores = trainer.labelled_features(), trainer.evaluate()
        if found is None:
            raise ValueError(f"run: {trainer.run.data} has no labelled training and test images to score with")
        if self.linear:
            probe = replace(PROBES[self.linear], best=self.best)
            scores |= {f"linear_{name}": score for name, score in probe(*found).items()}
        if self.finetune:
            train, test = trainer.split.probe, trainer.split.test
            if not isinstance(train, Images) or not isinstance(test, Images):
                raise ValueError("finetune: expected images in memory, and this run streams them")
            tuned = FineTune(self.finetune)(
                trainer.network.encoder, train, test, recipe=trainer.views.recipes[0], device=trainer.device
            )
            scores |= {f"finetune_{name}": score for name, score in tuned.items()}
        if self.few_shot:
            scores |= few_shot(*found)
        print(json.dumps({"step": trainer.step, **scores}))


@dataclass(frozen=True)
class Embed:
    """Write the features of a data set, by a run's encoder, to an .npz or .parquet file."""

    run: Positional[Path]
    """Directory of the run."""
    data: Positional[str]
    """A data set's name, a folder of images or an .npz file."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """The file to write: .npz with train_features, train_labels, test_features, test_labels, or .parquet with a row each."""
    data_root: Path = Path("data")
    """Where downloaded data sets are."""

    def __call__(self) -> None:
        """Features of every split there is."""
        import numpy as np

        from contrapose.data.load import load

        trainer, split = _opened(self.run, self.data_root), load(self.data, root=self.data_root)
        arrays = {}
        for name, images in (("train", split.train), ("test", split.test)):
            if images is not None:
                arrays[f"{name}_features"] = trainer.features(images).cpu().numpy()
                if images.labels is not None:
                    arrays[f"{name}_labels"] = images.labels.numpy()
        if self.out.suffix == ".parquet":
            _to_parquet(arrays, self.out)
        else:
            np.savez(self.out, **arrays)  # type: ignore[arg-type]
        print(f"{', '.join(f'{name} {array.shape}' for name, array in arrays.items())} in {self.out}")


@dataclass(frozen=True)
class Export:
    """Write a run's encoder as .safetensors, under torchvision's or timm's names, or as .onnx."""

    run: Positional[Path]
    """Directory of the run."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """The file to write; its ending decides: .safetensors or .onnx."""
    data_root: Path = Path("data")
    """Where downloaded data sets are."""

    def __call__(self) -> None:
        """Weights, or a graph with a free batch size."""
        from contrapose.training.weights import export

        trainer = _opened(self.run, self.data_root)
        encoder = trainer.network.encoder.eval()
        if self.out.suffix == ".safetensors":
            export(encoder, self.out)
        elif self.out.suffix == ".onnx":
            _to_onnx(encoder.cpu(), trainer.views.recipes[0].size, self.out)
        else:
            raise ValueError(f"out: expected a name that ends in .safetensors or .onnx, got {self.out}")
        print(f"{trainer.run.encoder}, {encoder.width} features, in {self.out}")


@dataclass(frozen=True)
class Import:
    """Turn a foreign .pth of weights into .safetensors for `--init`. Nothing in the file is executed."""

    file: Positional[Path]
    """A .pth or .pt file of named tensors."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """The .safetensors file to write."""

    def __call__(self) -> None:
        """Names and shapes as they are in the file, without common prefixes."""
        from safetensors.torch import save_file

        from contrapose.training.weights import convert

        tensors = convert(self.file)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(self.out))
        print(f"{len(tensors)} tensors, from {next(iter(tensors))} on, in {self.out}")


@dataclass(frozen=True)
class DataList:
    """Name the data sets that need no path."""

    def __call__(self) -> None:
        """One line each."""
        from contrapose.data.load import NAMED

        for name, classes in NAMED.items():
            print(f"{name:10} {classes:4} classes   {'built in' if name == 'digits' else 'through torchvision'}")
        print(
            "or the path of a folder of images (train/ and test/ inside it, class folders inside those), or of an .npz file"
        )


@dataclass(frozen=True)
class DataCheck:
    """Read every image of a folder once and name every broken file."""

    path: Positional[Path]
    """The folder."""

    def __call__(self) -> None:
        """Exit code 1 if a file is broken."""
        from contrapose.data.folder import check_folder

        count, problems = check_folder(self.path)
        for problem in problems:
            print(f"{problem.path}: {problem.why}")
        print(f"{count - len(problems):,} of {count:,} images can be read")
        if problems:
            raise SystemExit(EXIT_FAILED)


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


COMMANDS: dict[str, Any] = {
    "train": Train,
    "evaluate": Evaluate,
    "embed": Embed,
    "export": Export,
    "import": Import,
    "presets": Presets,
}
DATA_COMMANDS: dict[str, Any] = {"list": DataList, "check": DataCheck}


def main(words: list[str] | None = None) -> None:
    """Parse, run, and say in one line what went wrong."""
    words = sys.argv[1:] if words is None else words
    inner = words[:1] == ["data"] and len(words) > 1
    commands, rest = (DATA_COMMANDS, words[1:]) if inner else (COMMANDS | {"data": DataList}, words)
    try:
        if rest[:1] == ["train"]:
            rest = _without_preset(rest)
        chosen = tyro.extras.subcommand_cli_from_dict(
            commands, args=rest, prog="contrapose data" if inner else "contrapose", config=(OmitArgPrefixes,),
            description="Contrastive representation learning in which the loss is the subject.",
        )  # fmt: skip
        chosen()
    except (ValueError, FileNotFoundError, NotADirectoryError) as error:
        _fail(str(error), EXIT_BAD_SETTINGS)
    except (Diverged, WorkerDied) as error:
        _fail(str(error), EXIT_FAILED)
    except Stopped as error:
        _fail(str(error), EXIT_STOPPED)


def _without_preset(words: list[str]) -> list[str]:
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
    values = [str(v) for v in value] if isinstance(value, tuple) else [str(value)]
    return [f"--{key.replace('_', '-')}", *values]


def _fail(message: str, code: int) -> None:
    print(f"contrapose: {message}", file=sys.stderr)
    raise SystemExit(code)


def _to_parquet(arrays: dict[str, Any], path: Path) -> None:
    """One row for each image: split, label (if there are any) and features."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError("out: writing .parquet needs: pip install 'contrapose[parquet]'") from error
    tables = []
    for part in ("train", "test"):
        if f"{part}_features" in arrays:
            rows = arrays[f"{part}_features"]
            columns = {"split": [part] * len(rows), "features": list(rows)}
            if f"{part}_labels" in arrays:
                columns["label"] = arrays[f"{part}_labels"].tolist()
            tables.append(pa.table(columns))
    parquet.write_table(pa.concat_tables(tables, promote_options="default"), path)


def _to_onnx(encoder: Any, size: int, path: Path) -> None:
    import torch

    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError("out: writing .onnx needs: pip install 'contrapose[onnx]'") from error
    batch = torch.export.Dim("batch")
    images = torch.zeros(2, 3, size, size)
    torch.onnx.export(
        encoder, (images,), str(path), dynamo=True, dynamic_shapes=({0: batch},), input_names=["images"], verbose=False
    )


def _opened(folder: Path, data_root: Path, *, knn: int = 0) -> Trainer:
    """A run's trainer with its newest weights."""
    path = folder / "run.json"
    if not path.exists():
        raise ValueError(f"run: {folder} is not the directory of a run (it has no run.json)")
    described = json.loads(path.read_text())
    described["milestones"] = tuple(described["milestones"])
    trainer = Trainer(Run(**described), folder, say=lambda text: None, data_root=data_root)
    trainer.load_latest()
    if knn:
        trainer.neighbours = knn
    return trainer


@contextmanager
def _progress() -> Iterator[tuple[Callable[[Progress], None], Callable[[str], None]]]:
    """A live bar on a terminal; a line for each epoch elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(highlight=False)
    if int(os.environ.get("RANK", "0")):  # of several processes, one speaks
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
    last: list[Progress] = []

    def watch(p: Progress) -> None:
        if last and last[-1].epoch != p.epoch:
            done = last[-1]
            print(f"epoch {done.epoch:4}   loss {done.loss:.3f}   {done.images_per_second:,.0f} images/s", flush=True)
        last[:] = [p]

    return watch
