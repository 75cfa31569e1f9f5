"""WebDataset tars: members with the same key form a sample, such as 000.jpg with 000.txt or 000.json."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from contrapose.lab.modalities.captions.columns import CAPTION, SPLIT, SPLITS, usual_column
from contrapose.lab.modalities.captions.read_report import ReadReport, first_names
from contrapose.lab.modalities.images.decoding import ENDINGS
from contrapose.lab.modalities.progress import progress_bar
from contrapose.lab.modalities.tars import TarMember, list_tar
from contrapose.lab.modalities.text.lines import LONGEST, TOO_LONG, BadLine
from contrapose.lab.modalities.text.records import parse_json

_COMPRESSED = re.compile(r"\.(tar\.\w+|tgz|tbz2?|txz)$", re.IGNORECASE)
_BRACES = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}|\{([^{}]*,[^{}]*)\}")
_MOST_TARS = 100_000
_MEMBER = re.compile(
    r"((?:.*/)?[^./][^./]*)\.([^/]*)"
)  # key and ending: as in WebDataset, the key ends at the first dot
_LARGEST = 4 * LONGEST  # bytes per caption: a character takes at most 4 bytes in UTF-8


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
            f"data: {len(missing):,} of the {len(tars):,} tars that {path} names do not exist: {first_names(missing)}; expected "
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


def read_tars(tars: Sequence[Path], *, source: str, skip_broken: bool) -> ReadReport:
    """List the samples in tars and read their captions; images stay in the tars."""
    advice = (
        "expected samples as WebDataset writes them: KEY.jpg with KEY.txt, or with KEY.json that has a caption, where the key "
        "ends at the first dot; unpack a tar of a folder with captions.tsv, and use the folder"
    )
    reading, splits = ReadReport(source, advice), _splits_by_name(tars)
    with progress_bar("listing tars", len(tars)) as advance:
        for tar in tars:
            _read_tar(tar, splits.get(tar, ""), reading, skip_broken)
            advance()
    return reading


def _read_tar(tar: Path, split: str, reading: ReadReport, skip_broken: bool) -> None:
    listing = list_tar(tar)
    if listing.problem and not skip_broken:
        raise ValueError(
            f"data: {tar} {listing.problem}; copy or download it again, or use its complete samples with --skip-broken"
        )
    if listing.problem:
        reading.notes.append(f"data: {tar} {listing.problem}; its complete samples are used (--skip-broken)")
    with tar.open("rb") as file:
        for sample in _samples(tar, listing.members).values():
            problem = _add(sample, split, reading, file)
            if problem is not None and not skip_broken:
                raise ValueError(f"data: {problem}; correct it, or leave it out with --skip-broken")
            reading.broken += [problem] if problem is not None else []


def _samples(tar: Path, members: Sequence[TarMember]) -> dict[str, dict[str, TarMember]]:
    """Return each key's members, by kind: image, txt or json."""
    samples: defaultdict[str, dict[str, TarMember]] = defaultdict(dict)
    for member in members:
        match = _MEMBER.fullmatch(member.name)
        ending = match[2].lower() if match else ""
        kind = "image" if f".{ending}" in ENDINGS else ending
        if match is None or kind not in ("image", "txt", "json"):
            continue
        other = samples[match[1]].setdefault(kind, member)
        if other is not member:
            raise ValueError(
                f"data: {tar} has {other.name} and {member.name}, expected one {kind} for each key; write the tar again with "
                "different keys"
            )
    return samples


def _add(sample: dict[str, TarMember], split: str, reading: ReadReport, file: BinaryIO) -> str | None:
    """Add one sample; if a member cannot be used, return the member and the reason."""
    image, texts, values = sample.get("image"), [], {}
    if "json" in sample:
        content = _json(sample["json"], file)
        if isinstance(content, BadLine):
            return f"{sample['json']} {content.reason}"
        values = content
        texts = values["captions"]
    if "txt" in sample:
        text = _text(sample["txt"], file)
        if isinstance(text, BadLine):
            return f"{sample['txt']} {text.reason}"
        texts = [text]
    caption = sample.get("txt", sample.get("json"))
    if caption is None:
        reading.without_caption.append(str(image))
        return None
    split = values.get("split") or split
    problem = reading.assign(image, split) if image is not None and split else None
    if problem is not None:
        return f"{caption} {problem.reason}"
    reading.add(image, str(caption), texts, str(caption))
    if image is not None and image not in reading.captions:
        reading.without_caption.append(str(image))
    return None


def _text(member: TarMember, file: BinaryIO) -> str | BadLine:
    """Return the whole content of a member as one text."""
    if member.size > _LARGEST:
        return TOO_LONG
    try:
        return member.read_from(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return BadLine(f"is not UTF-8: byte {error.start + 1} is 0x{error.object[error.start]:02x}")


def _json(member: TarMember, file: BinaryIO) -> dict[str, Any] | BadLine:
    """Return the captions and the split in a JSON object; an object may have no captions."""
    text = _text(member, file)
    if isinstance(text, BadLine):
        return text
    values = parse_json(text)
    if isinstance(values, BadLine):
        return values
    if not isinstance(values, dict):
        return BadLine("is not a JSON object")
    caption = values.get(usual_column(tuple(values), CAPTION)) or []
    captions = caption if isinstance(caption, list) else [caption]
    if not all(isinstance(text, str) for text in captions):
        return BadLine("has a caption that is not a text")
    return {"captions": captions, "split": str(values.get(usual_column(tuple(values), SPLIT)) or "")}


def _splits_by_name(tars: Sequence[Path]) -> dict[Path, str]:
    """Return each tar's split if every name contains one, as in cc3m-train-0000.tar, and not all are equal; else nothing."""
    named = {tar: _splits_in(tar.name) or _splits_in(tar.parent.name) for tar in tars}
    different = set().union(*named.values())
    if len(different) < 2 or any(len(splits) != 1 for splits in named.values()):
        return {}
    return {tar: next(iter(splits)) for tar, splits in named.items()}


def _splits_in(name: str) -> set[str]:
    return {SPLITS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in SPLITS}
