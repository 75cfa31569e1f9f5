"""The text that `contrapose` prints without arguments: one example per use, and which packages are missing."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec

from contrapose import __version__
from contrapose.extras import TEXT_PACKAGES, TRAIN_PACKAGES, install_command

_EXAMPLES = {
    "a demo, five minutes on a CPU": "contrapose demo",
    "see what a loss does": "contrapose explain dystress --vs simclr cacr",
    "train on images, sentences or captions": "contrapose train --data my-images/ --out runs/mine",
    "score, export, draw a run": "contrapose evaluate runs/mine --linear wang-liu",
    "find the loss that suits your data": "contrapose compare --data my-images/ --losses simclr,dystress,cacr",
    "a table or figure of a paper": "contrapose study run behaviour/figure9",
    "a loss in your own loop": "from contrapose import nt_xent, two_views",
}


def overview() -> str:
    """Return ten lines: one example per use, which packages are missing, and where to read more."""
    width = max(map(len, _EXAMPLES))
    lines = [f"contrapose {__version__}: contrastive learning in which the loss is the subject"]
    lines += [f"  {use:{width}}  {example}" for use, example in _EXAMPLES.items()]
    return "\n".join(
        [*lines, missing_extras(), "All commands: contrapose --help; options of one: contrapose train --help"]
    )


def missing_extras() -> str:
    """Return one line that says which packages are missing and how to install them."""
    train, text = _missing(TRAIN_PACKAGES), _missing(TEXT_PACKAGES - TRAIN_PACKAGES)
    if train:
        return f"Not installed: {_names(train)}, which the commands need: {install_command('train')} (sentences: train,text)"
    if text:
        return f"Not installed: {_names(text)}, which sentences and captions need: {install_command('train,text')}"
    return "Installed: everything that images, sentences and captions need"


def _missing(packages: Collection[str]) -> list[str]:
    return [name for name in sorted(packages) if find_spec(name) is None]


def _names(packages: list[str]) -> str:
    return ", ".join(packages[:3]) + (f" and {len(packages) - 3} more" if len(packages) > 3 else "")
