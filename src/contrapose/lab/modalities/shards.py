"""WebDataset's tars: which tars a path names, which split each belongs to, and the keys of their members."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from contrapose.lab.modalities.tars import DAMAGES, open_tar

# Names of splits. Karpathy's "restval" are COCO validation images that are used for training.
SPLITS = {
    **dict.fromkeys(("train", "training", "restval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
MEMBER = re.compile(
    r"((?:.*/)?[^./][^./]*)\.([^/]*)"
)  # key and ending: as in WebDataset, the key ends at the first dot
_COMPRESSED = re.compile(r"\.(tar\.\w+|tgz|tbz2?|txz)$", re.IGNORECASE)
_BRACES = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}|\{([^{}]*,[^{}]*)\}")
_MOST_TARS = 100_000
_NAMED = 3  # missing tars to name in a message
_LOOKED_AT = 30  # members that tell whether a tar has captions


def names_tar(path: Path) -> bool:
    """Return whether a path looks like a tar, or like a pattern for several tars: shards-{0000..0003}.tar."""
    return path.suffix.lower() == ".tar" or _COMPRESSED.search(path.name) is not None


def find_tars(path: Path) -> list[Path]:
    """Return the tars in a folder, or the tars that a path names; empty for other data."""
    if path.is_dir():
        return sorted(file for file in path.glob("*.tar") if file.is_file() and not file.name.startswith("."))
    if not names_tar(path):
        return []
    tars = [path] if path.exists() else [Path(name) for name in expand_braces(str(path))]
    missing = [str(tar) for tar in tars if not tar.is_file()]
    if missing or not tars:
        raise ValueError(
            f"data: {len(missing):,} of the {len(tars):,} tars that {path} names do not exist: {_some(missing)}; expected "
            "a .tar file, or several as in shards-{0000..0003}.tar"
        )
    if _COMPRESSED.search(path.name):
        raise ValueError(
            f"data: {path} is compressed, so single images cannot be read from it; unpack it (mkdir NEW && tar xf {path.name} "
            "-C NEW), and use the folder if it has captions.tsv, or the .tar files"
        )
    return tars


def expand_braces(pattern: str) -> list[str]:
    """Expand a pattern as a shell does: a{08..10} becomes a08, a09, a10, and {train,val} becomes train, val."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    rest = expand_braces(pattern[match.end() :])
    numbers = range(int(match[1]), int(match[2]) + 1) if match[1] else range(0)
    words = match[3].split(",") if match[3] else ()
    if (len(numbers) + len(words)) * len(rest) > _MOST_TARS:
        raise ValueError(f"data: {pattern!r} names more than {_MOST_TARS:,} tars")
    # Numbers are padded to the width of the first number, which has leading zeros if all numbers do.
    options = words or [f"{number:0{len(match[1])}d}" for number in numbers]
    return [pattern[: match.start()] + option + end for option in options for end in rest]


def first_tar(path: Path) -> Path | None:
    """Return the first tar in a folder, or the first existing one that a path names; None if there is none."""
    if path.is_dir():
        return next(iter(find_tars(path)), None)
    if path.suffix.lower() != ".tar":
        return None
    return next((tar for tar in map(Path, expand_braces(str(path))) if tar.is_file()), None)


def has_captions(tar: Path) -> bool:
    """Return whether the first members of a tar include captions and no classes; True if it cannot be read."""
    try:
        with open_tar(tar) as file:
            endings = {match[2].lower() for info in islice(file, _LOOKED_AT) if (match := MEMBER.fullmatch(info.name))}
    except (OSError, *DAMAGES):
        return True  # reading captions reports what is wrong with it
    return "cls" not in endings and bool(endings & {"txt", "json"})


def splits_by_name(tars: Sequence[Path]) -> dict[Path, str]:
    """Return each tar's split if every name contains one, as in cc3m-train-0000.tar, and not all are equal; else nothing."""
    named = {tar: _splits_in(tar.name) or _splits_in(tar.parent.name) for tar in tars}
    different = set().union(*named.values())
    if len(different) < 2 or any(len(splits) != 1 for splits in named.values()):
        return {}
    return {tar: next(iter(splits)) for tar, splits in named.items()}


def _splits_in(name: str) -> set[str]:
    return {SPLITS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in SPLITS}


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
