"""Find the files of a run (data and initial weights) from any working directory, even after the files have moved.

data.json in the run's directory stores the number of training images, their fingerprint, the sizes and hashes of some of the
files, the files' location, and the working directory to which the paths in run.json are relative. These facts are not part of
run.json, so that run names do not depend on them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from contrapose.lab.modalities import Split
from contrapose.lab.modalities.stored_files import StoredFile
from contrapose.lab.training.build import prepare
from contrapose.lab.training.records.files import read_json
from contrapose.lab.training.run import Run

_SAMPLED = (
    100  # number of files whose content is compared when a run resumes; comparing all could mean reading terabytes
)


def describe_data(split: Split, data: str) -> dict[str, Any]:
    """Return the content of data.json: what identifies the training data loaded from `data`, and its location."""
    described = {"images": len(split.train), "fingerprint": split.train.fingerprint, "directory": os.getcwd()}
    described |= {"sample": _describe_files(split.train.paths)} if split.train.paths else {}
    return described | ({"path": os.path.abspath(data)} if os.path.exists(data) else {})


def recorded_data(folder: Path) -> dict[str, Any]:
    """Return the content of a run's data.json; empty if there is none."""
    path = folder / "data.json"
    if not path.exists():
        return {}
    try:
        content = read_json(path)
        if isinstance(content["images"], int) and isinstance(content["fingerprint"], str):
            return dict(content)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise ValueError(
        f"data: {path} is damaged, so the data cannot be compared with those that the run was trained on; "
        "if it is the same, delete the file and run the command again"
    )


def same_data(split: Split, recorded: dict[str, Any]) -> bool:
    """Return whether the training images match a recorded data.json; True if nothing was recorded."""
    if not recorded:
        return True
    current = (len(split.train), split.train.fingerprint)
    return current == (recorded["images"], recorded["fingerprint"]) and replaced_file(split, recorded) is None


def replaced_file(split: Split, recorded: dict[str, Any]) -> Path | StoredFile | None:
    """Return a sampled file whose content differs from the record in data.json; None if there is none."""
    known, paths = recorded.get("sample"), split.train.paths
    if not isinstance(known, dict):  # written by a version that did not sample files, or the samples are not files
        return None
    current = _describe_files(paths)
    return next((paths[int(i)] for i in current if i in known and known[i] != current[i]), None)


def _describe_files(paths: Sequence[Path | StoredFile]) -> dict[str, list[int | str]]:
    """Return the sizes and hashes of regularly spaced files, keyed by file index."""
    step = max(1, -(-len(paths) // _SAMPLED))
    return {str(index): _describe_file(paths[index]) for index in range(0, len(paths), step)}


def _describe_file(path: Path | StoredFile) -> list[int | str]:
    # A broken link or a named pipe, which cannot be read, is described as empty: training reports it by name.
    content = path.read() if not isinstance(path, Path) else path.read_bytes() if path.is_file() else b""
    return [len(content), hashlib.sha256(content).hexdigest()]


def check_same_data(split: Split, run: Run, folder: Path) -> None:
    """Raise ValueError if the data is not what the run was started with, according to its data.json."""
    recorded = recorded_data(folder)
    if not same_data(split, recorded):
        same_names = split.train.fingerprint == recorded["fingerprint"]
        replaced = replaced_file(split, recorded) if same_names else None
        if replaced is not None:
            raise ValueError(
                f"data: the content of {replaced} has changed since {folder} was trained on it; restore the files, or use "
                "another --out to start over"
            )
        raise ValueError(
            f"data: the {len(split.train)} {run.kind.sample_noun(split.train)} in {run.data} are not the {recorded['images']} "
            f"that {folder} was trained on; use another --out to start over"
        )


def starting_points(folder: Path) -> list[Path]:
    """Return the directories to which a run's relative paths may refer, in the order in which they are tried.

    These are the working directory, the directory in which the run was started and, in case the project was moved as a whole,
    the run's own directory and the two directories above it (a project with runs/NAME).
    """
    directory, own = recorded_data(folder).get("directory"), Path(os.path.realpath(folder))
    started = [Path(directory)] if isinstance(directory, str) else []
    starts: dict[Path, Path] = {}
    for start in (Path(), *started, own, *own.parents[:2]):
        starts.setdefault(start.absolute(), start)  # the working directory stays relative, for shorter messages
    return list(starts.values())


def find_file(path: str, folder: Path) -> str:
    """Return the path of a run's file from the first starting point where the file exists; unchanged if there is none."""
    if not path:
        return path
    return next((str(start / path) for start in starting_points(folder) if (start / path).is_file()), path)


def check_init(run: Run, folder: Path) -> None:
    """Raise ValueError if the run's initial weights do not exist, as a file or in an installed package."""
    run.kind.check_initial_weights(run.encoder, run.init)
    if run.init and not Path(find_file(run.init, folder)).is_file():
        raise ValueError(f"init: {run.init} is not a file (relative paths start at the working directory)")


def find_data(run: Run, folder: Path) -> list[str]:
    """Return the possible paths of a run's data, in the order in which to try them; empty for a data set known by name."""
    starts = starting_points(folder)
    here, *others = [start / run.data for start in starts]
    known = [Path(path)] if isinstance(path := recorded_data(folder).get("path"), str) else []
    # Another folder here may have the name of the run's data. The same folder keeps its shorter name in messages.
    is_same = os.path.realpath(here) in map(os.path.realpath, known)
    in_order = (here, *known, *others) if is_same else (*known, here, *others)
    # The directory of a run may have the name of a data set, such as runs/digits.
    existing = (path for path in in_order if path.exists() and not (path / "run.json").exists())
    paths = list(dict.fromkeys(map(str, existing)))
    if not paths:
        _check_named(run, folder, starts)
    return paths


def load_own_data(run: Run, folder: Path, root: Path | None, log: Callable[[str], None]) -> Split:
    """Load the data that a run was trained on, from the first starting point that has the same images.

    If no starting point has the same images, different data with the same name is loaded, and `log` receives a note.
    """
    recorded, starts, paths = recorded_data(folder), starting_points(folder), find_data(run, folder)
    run = _find_further_files(run, folder)
    root = root and next((start / root for start in starts if (start / root).is_dir()), root)
    splits = []
    for path in paths or [run.data]:
        splits.append(prepare(replace(run, data=path), root, folder=folder))
        if same_data(splits[-1], recorded):
            return splits[-1]
    train = splits[0].train
    log(
        f"data: the {len(train)} {run.kind.sample_noun(train)} in {(paths or [run.data])[0]} are not the {recorded['images']} "
        f"that {folder} was trained on; --data PATH evaluates on other data"
    )
    return splits[0]


def _find_further_files(run: Run, folder: Path) -> Run:
    """Return a run with the paths at which the files beside its data exist now."""
    rule, _, file = run.imbalance.rpartition(":")
    imbalance = f"index:{find_file(file, folder)}" if rule == "index" else run.imbalance
    places = (start / run.eval_data for start in starting_points(folder))
    other = run.eval_data and next((str(place) for place in places if place.exists()), run.eval_data)
    return replace(run, classes=find_file(run.classes, folder), imbalance=imbalance, eval_data=other)


def held_out_ids(run: Run, folder: Path, data: str, root: Path | None) -> set[Any]:
    """Return the ids of the samples that a run held out, if `data` is what it was trained on; else none."""
    recorded = recorded_data(folder)
    try:
        paths = find_data(run, folder)
    except ValueError:  # its data no longer exists
        return set()
    is_own = os.path.exists(data) and any(os.path.samefile(data, path) for path in paths)
    if not recorded or not (is_own or data == run.data):
        return set()
    run = replace(_find_further_files(run, folder), data=data, stream=run.kind.can_stream(data))
    split = prepare(run, root, folder=folder)
    # The split of data that has changed since is not the one that the run was trained with.
    return set(run.kind.sample_ids(split.test)) if split.test is not None and same_data(split, recorded) else set()


def _check_named(run: Run, folder: Path, starts: list[Path]) -> None:
    """Raise a ValueError that lists the directories that were tried, unless the data set is known by its name."""
    try:
        run.kind.check_data(run.data)
    except ValueError as error:
        tried = ", ".join(str(start.absolute()) for start in starts)
        raise ValueError(
            f"data: {run.data}, which {folder} was trained on, does not exist (looked in {tried}); "
            "give its path, or the path of other data, with --data"
        ) from error
