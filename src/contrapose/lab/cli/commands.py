"""The commands by name, with a one-line summary each. A command's module imports torch, so it is imported only on use."""

from __future__ import annotations

from contextvars import ContextVar
from importlib import import_module
from typing import Any, NamedTuple


class Command(NamedTuple):
    """The module and class that define a command, and the first paragraph of its docstring for the help text."""

    module: str
    class_name: str
    summary: str

    def load(self) -> Any:
        """Import the class of the command."""
        return getattr(import_module(f"contrapose.lab.{self.module}"), self.class_name)


# The command that is being executed, with its options as they were typed, so that a job can execute it elsewhere.
COMMAND_LINE: ContextVar[tuple[str, ...]] = ContextVar("COMMAND_LINE", default=())
# "GROUP NAME" is a command in a group; the group's name without a command runs the command of that name, if there is one, or
# else the first command in the group.
COMMANDS = {
    "demo": Command(
        "cli.demo",
        "Demo",
        "Show the uniformity-tolerance dilemma in five minutes on a CPU: nine losses on small digits, with a report.",
    ),
    "compare": Command(
        "cli.compare",
        "Compare",
        "Train with several losses on your own data, and report which losses give a more accurate encoder.",
    ),
    "tune": Command(
        "cli.tune",
        "Tune",
        "Find a temperature for your data in short trials, and compare the best with the default over three seeds.",
    ),
    "train": Command(
        "cli.train",
        "Train",
        "Train an encoder, by default on the built-in digits. Run the same command again to resume an interrupted run.",
    ),
    "evaluate": Command(
        "cli.evaluate",
        "Evaluate",
        "Evaluate a run's encoder: kNN accuracy and, on request, a linear probe, fine-tuning, few-shot SVMs and metrics.",
    ),
    "detect": Command(
        "cli.detect",
        "Detect",
        "Fine-tune a run's encoder as the backbone of a detector on VOC or COCO, and print its average precision.",
    ),
    "doctor": Command(
        "cli.doctor",
        "Doctor",
        "Show what was found in a run; without a run, check this installation: versions, GPU, fast paths, decoders, free disk.",
    ),
    "explain": Command(
        "cli.explain",
        "Explain",
        "Explain what a loss does, without training, and compare it with others: a figure, a page and a summary in words.",
    ),
    "map": Command(
        "cli.explain",
        "Map",
        "Draw the projector outputs of runs side by side, coloured by class, with uniformity, tolerance and kNN accuracy.",
    ),
    "embed": Command(
        "cli.files",
        "Embed",
        "Write the features that a run's encoder computes for a data set to an .npz or .parquet file.",
    ),
    "search": Command(
        "cli.search",
        "Search",
        "Find the images that are nearest to an image or, with a run on captions, to a text; with a run on text, nearest texts.",
    ),
    "mine": Command(
        "cli.mine",
        "Mine",
        "Find hard negatives: for each query the most similar documents that are not its own, without likely false negatives.",
    ),
    "export": Command(
        "cli.files",
        "Export",
        "Write a run's encoder as .safetensors, with torchvision's or timm's parameter names, as .onnx, or for detectron2.",
    ),
    "import": Command(
        "cli.files",
        "Import",
        "Convert weights from another project's .pth file to .safetensors, for `train --init`. Nothing in the file is executed.",
    ),
    "presets": Command(
        "cli.train", "Presets", "List the presets: the papers' training settings, for `train --preset`."
    ),
    "runs": Command(
        "cli.runs",
        "Runs",
        "List the runs in a folder, newest first: data, loss, seed, last score, whether the run is finished, and date.",
    ),
    "runs compare": Command(
        "cli.runs",
        "RunsCompare",
        "Compare runs: the settings that differ, the scores side by side, and a figure of losses and scores over epochs.",
    ),
    "data list": Command("cli.data", "DataList", "List the data sets that are known by name."),
    "data check": Command(
        "cli.data",
        "DataCheck",
        "Read a data set of images, texts or images with captions, and show what training would use: splits, classes, sizes, "
        "lengths, duplicates, files or lines that cannot be read, and anything that looks wrong.",
    ),
    "data pack": Command(
        "cli.data",
        "DataPack",
        "Copy a folder of images to one file, decoded and resized once, from which training reads faster.",
    ),
    "data convert": Command(
        "cli.data",
        "DataConvert",
        "Copy a folder of images to WebDataset's tars or LitData's chunks, which network disks and object stores read faster "
        "than single files.",
    ),
    "study list": Command("cli.study", "StudyList", "List every table and figure in the four papers."),
    "study show": Command(
        "cli.study_show",
        "StudyShow",
        "Show what a study claims and measures, the paper's numbers, what each scale changes, and how long its runs took.",
    ),
    "study protocols": Command(
        "cli.study",
        "StudyProtocols",
        "Print a Markdown page of what each table and figure measures, in the paper and here (docs/studies.md).",
    ),
    "study run": Command(
        "cli.study",
        "StudyRun",
        "Train and evaluate the runs of studies and write the report. Run the same command again to resume.",
    ),
    "study report": Command(
        "cli.study",
        "StudyReport",
        "Write the report on studies from existing runs, without training. Use the same options as for `study run`.",
    ),
}
# Commands from earlier releases, and what to run instead.
FORMER = {
    "bench losses": "python benchmarks/loss_timing.py",
    "bench conformance": "python benchmarks/conformance.py",
}
# Options from earlier releases and their current names, with the value if the value changed too.
FORMER_OPTIONS = {
    "--on": "--executor",
    "--root": "--runs-dir",
    "--clip": "--grad-clip",
    "--gamma": "--lr-drop",
    "--parts": "--epoch-slices",
    "--probe-data": "--eval-data",
    "--record": "--extra-metrics",
    "--rising": "--momentum-schedule=cosine",
    "--no-rising": "--momentum-schedule=constant",
    "--contrast=whole": "--grad-cache",
    "--contrast=separate": "--no-grad-cache",
}


def group_commands(group: str) -> list[str]:
    """Return the full names of a group's commands, in order; an empty list if there is no such group."""
    return [name for name in COMMANDS if name.startswith(f"{group} ")]
