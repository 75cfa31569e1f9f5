"""Files that a study's runs need in addition to their training data, and that the user gives with --data NAME=PATH.

The settings of a `StudyData` contain names, which a plan replaces by the user's paths:

eval_data   NAME            images to evaluate on during training
encoder      hf:NAME         folder of the encoder to start from, or the name of another encoder, such as minilm
record       sts:NAME@1      scored sentence pairs, by which the best step is chosen
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contrapose.lab.modalities import modality

Settings = Mapping[str, Any]  # fields of Run
# Descriptions of the files in messages; {} is the data set.
IMAGES, ENCODER = "the data that {} is evaluated on", "the encoder that is trained on {}"
PAIRS = "the file of pairs that choose the best step on {}"
_FOLDER, _SCORED = "hf:", "sts:"


def data_name(path: str) -> str:
    """Return the name of the user's data in the report."""
    return Path(path).name.split(".")[0]


def needed_files(changes: Settings) -> dict[str, str]:
    """Return the files that the settings refer to, with descriptions in which {} stands for the data set.

    >>> needed_files({"encoder": "hf:bert", "extra_metrics": ("sts:pairs@1", "entropy:2@1")})
    {'bert': 'the encoder that is trained on {}', 'pairs': 'the file of pairs that choose the best step on {}'}
    """
    files = {changes["eval_data"]: IMAGES} if "eval_data" in changes else {}
    encoder = str(changes.get("encoder", ""))
    if encoder.startswith(_FOLDER):
        files[encoder.removeprefix(_FOLDER)] = ENCODER
    return files | {_pairs(item): PAIRS for item in _records_of_pairs(changes)}


def with_paths(changes: Settings, paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings with file names replaced by the user's paths."""
    filled = dict(changes)
    if "eval_data" in filled:
        filled["eval_data"] = paths.get(filled["eval_data"], filled["eval_data"])
    path = paths.get(str(filled.get("encoder", "")).removeprefix(_FOLDER))
    if path is not None:
        filled["encoder"] = path if _is_encoder(path) else f"{_FOLDER}{path}"
    if "extra_metrics" in filled:
        filled["extra_metrics"] = tuple(
            _filled(item, paths) if item.startswith(_SCORED) else item for item in filled["extra_metrics"]
        )
    return filled


def without_missing_files(changes: Settings, paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings without those whose files the user did not give."""
    missing = needed_files(changes).keys() - paths.keys()
    kept = dict(changes)
    if str(kept.get("encoder", "")).removeprefix(_FOLDER) in missing:
        del kept["encoder"]
    if any(_pairs(item) in missing for item in _records_of_pairs(kept)):
        del kept["extra_metrics"]
        kept.pop("keep_best", None)  # keep_best refers to one of these records
    return kept


def _is_encoder(path: str) -> bool:
    """Return whether a path is an encoder's name. No folder needs to exist, since a report needs only the names of runs."""
    try:
        modality("text").check_encoder(path)
    except ValueError:
        return False
    return True


def _filled(item: str, paths: Mapping[str, str]) -> str:
    name = _pairs(item)
    return f"{_SCORED}{paths.get(name, name)}@{item.rpartition('@')[2]}"


def _records_of_pairs(changes: Settings) -> list[str]:
    return [item for item in changes.get("extra_metrics", ()) if item.startswith(_SCORED)]


def _pairs(item: str) -> str:
    """Return the file of "sts:FILE@1"."""
    return item.removeprefix(_SCORED).rpartition("@")[0]
