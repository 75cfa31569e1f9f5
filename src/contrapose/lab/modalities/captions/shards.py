"""WebDataset tars: members with the same key form a sample, such as 000.jpg with 000.txt or 000.json."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from contrapose.lab.modalities.captions.columns import CAPTION, SPLIT, usual_column
from contrapose.lab.modalities.captions.read_report import ReadReport
from contrapose.lab.modalities.images.decoding import ENDINGS
from contrapose.lab.modalities.progress import progress_bar
from contrapose.lab.modalities.shards import MEMBER, splits_by_name
from contrapose.lab.modalities.stored_files import ShardMember
from contrapose.lab.modalities.tars import list_tar
from contrapose.lab.modalities.text.lines import LONGEST, TOO_LONG, BadLine
from contrapose.lab.modalities.text.records import parse_json

_LARGEST = 4 * LONGEST  # bytes per caption: a character takes at most 4 bytes in UTF-8


def read_tars(tars: Sequence[Path], *, source: str, skip_broken: bool) -> ReadReport:
    """List the samples in tars and read their captions; images stay in the tars."""
    advice = (
        "expected samples as WebDataset writes them: KEY.jpg with KEY.txt, or with KEY.json that has a caption, where the key "
        "ends at the first dot; unpack a tar of a folder with captions.tsv, and use the folder"
    )
    reading, splits = ReadReport(source, advice), splits_by_name(tars)
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


def _samples(tar: Path, members: Sequence[ShardMember]) -> dict[str, dict[str, ShardMember]]:
    """Return each key's members, by kind: image, txt or json."""
    samples: defaultdict[str, dict[str, ShardMember]] = defaultdict(dict)
    for member in members:
        match = MEMBER.fullmatch(member.name)
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


def _add(sample: dict[str, ShardMember], split: str, reading: ReadReport, file: BinaryIO) -> str | None:
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


def _text(member: ShardMember, file: BinaryIO) -> str | BadLine:
    """Return the whole content of a member as one text."""
    if member.size > _LARGEST:
        return TOO_LONG
    try:
        return member.read_from(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return BadLine(f"is not UTF-8: byte {error.start + 1} is 0x{error.object[error.start]:02x}")


def _json(member: ShardMember, file: BinaryIO) -> dict[str, Any] | BadLine:
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
