"""The commands by name, with one line about each. Their modules import torch, so they are imported when a command runs."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Command(NamedTuple):
    """Where a command is defined, and the first paragraph of its docstring, for the help text."""

    module: str
    class_name: str
    summary: str

    def load(self) -> Any:
        """Import the class of the command."""
        return getattr(import_module(f"contrapose.lab.{self.module}"), self.class_name)


# "GROUP NAME" is a command of a group; a group's name alone runs its first command.
COMMANDS = {
    "demo": Command(
        "cli.demo",
        "Demo",
        "Show the uniformity-tolerance dilemma in five minutes on a CPU: nine losses on small digits, with a report.",
    ),
    "compare": Command(
        "cli.compare",
        "Compare",
        "Train with several losses on your own data, and report which of them give a more accurate encoder.",
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
    "explain": Command(
        "cli.explain",
        "Explain",
        "Explain what a loss does, without training, and compare it with others: a figure, a page and a summary in words.",
    ),
    "map": Command(
        "cli.explain",
        "Map",
        "Draw the projector's outputs of runs side by side, coloured by class, with uniformity, tolerance and kNN accuracy.",
    ),
    "embed": Command(
        "cli.files",
        "Embed",
        "Write the features that a run's encoder computes for a data set to an .npz or .parquet file.",
    ),
    "search": Command(
        "modalities.captions.commands.search",
        "Search",
        "Find the pictures that are nearest to a text or to another picture, with a run on images with captions.",
    ),
    "export": Command(
        "cli.files",
        "Export",
        "Write a run's encoder as .safetensors, with torchvision's or timm's parameter names, as .onnx, or for detectron2.",
    ),
    "import": Command(
        "cli.files",
        "Import",
        "Convert a foreign .pth file of weights to .safetensors, for `train --init`. Nothing in the file is executed.",
    ),
    "presets": Command(
        "cli.train", "Presets", "List the presets: the papers' training settings, for `train --preset`."
    ),
    "data list": Command("cli.data", "DataList", "List the data sets that are known by name."),
    "data check": Command(
        "cli.data",
        "DataCheck",
        "Read every image of a data set, and show what training would use: splits, classes, sizes, kinds of images, duplicates, "
        "broken files and what looks wrong.",
    ),
    "study list": Command("cli.study", "StudyList", "List every table and figure of the four papers."),
    "study show": Command(
        "cli.study_show",
        "StudyShow",
        "Show what a study claims and measures, the printed numbers, what each scale changes, and how long it took.",
    ),
    "study protocols": Command(
        "cli.study",
        "StudyProtocols",
        "Print what each table and figure measures in the paper and here, as a page in Markdown (docs/studies.md).",
    ),
    "study run": Command(
        "cli.study",
        "StudyRun",
        "Train and evaluate the runs of studies and write the report. Run the same command again to resume.",
    ),
    "study report": Command(
        "cli.study",
        "StudyReport",
        "Write the report of studies from the runs that exist, without training. Use the same options as for `study run`.",
    ),
}
# Commands of earlier releases, with what to run instead.
FORMER = {
    "bench losses": "python benchmarks/loss_timing.py",
    "bench conformance": "python benchmarks/conformance.py",
}
# Options of an earlier release by their present names, with the value where that changed too.
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
    """Return the full names of the commands of a group, in order; empty if there is no such group."""
    return [name for name in COMMANDS if name.startswith(f"{group} ")]
