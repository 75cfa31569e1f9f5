"""The JSON files of a run: one record per epoch, and the environment in which the run was trained."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contrapose import __version__

if TYPE_CHECKING:
    import torch

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BLOCK = 2**14  # bytes to read at a time from the end of a file


class WriteFailed(Exception):
    """The disk is full; everything that was written before is intact."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise `WriteFailed` if the disk is full within this block; the message names the file and says what to do next."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise WriteFailed(
            f"{path} could not be written ({os.strerror(error.errno).lower()}); the last checkpoint is intact: "
            "free some space and run the same command again to resume"
        ) from error


def append(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Append a record to records.jsonl; return it as written, with None for a value that is undefined or infinite."""
    path = folder / "records.jsonl"
    # NaN and infinity are not JSON: other programs could not read the file.
    written = {name: None if _is_undefined(value) else value for name, value in record.items()}
    with writing(path), path.open("a") as file:
        file.write(json.dumps(written, allow_nan=False) + "\n")
    return written


def _is_undefined(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def last_evaluation(folder: Path, step: int) -> dict[str, float]:
    """Return the numbers in the last record with an evaluation, up to a step; empty if there is none."""
    records = [record for record in read_records(folder) if record["step"] <= step]
    evaluated = [record for record in records if record.keys() & {"knn_top1", "uniformity", "text_to_image_recall_1"}]
    last = evaluated[-1] if evaluated else {}
    numbers = {name: value for name, value in last.items() if isinstance(value, int | float)}
    return {name: value for name, value in numbers.items() if name not in ("seconds", "beside")}


def parse_record(line: str) -> dict[str, Any] | None:
    """Return the record in a line of records.jsonl; None if the line is incomplete or not a record."""
    try:
        record = json.loads(line)
        complete = isinstance(record["epoch"], int) and isinstance(record["step"], int) and record["seconds"] >= 0
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return record if complete else None


def read_bytes(path: Path) -> bytes:
    """Return the content of a run's file; raise OSError for a named pipe or a device, which may have no end."""
    if path.exists() and not path.is_file() and not path.is_dir():  # a folder is an OSError of its own
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path.read_bytes()


def read_json(path: Path) -> Any:
    """Return the value in a run's JSON file; raise OSError if it cannot be read, and ValueError if it is damaged."""
    try:
        return json.loads(read_bytes(path))
    except RecursionError as error:  # Python's stack limits how deep brackets may be nested
        raise ValueError("it is not JSON") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if the file does not exist. Raise ValueError if the file is damaged."""
    try:
        content = read_json(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is not JSON") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: expected an object, got {type(content).__name__}")
    return content


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return the records in records.jsonl; lines that are not records, such as an incomplete last line, are skipped."""
    path = folder / "records.jsonl"
    # A line with invalid UTF-8 is treated as a line that is not a record.
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return [record for line in lines if (record := parse_record(line)) is not None]


def read_last_records(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records in records.jsonl, the last one first; only as much of the file is read as is needed."""
    path = folder / "records.jsonl"
    if not path.is_file():
        return
    with path.open("rb") as file:
        position, lines = file.seek(0, os.SEEK_END), [b""]
        while position or lines:
            start = max(0, position - _BLOCK)
            file.seek(start)
            # The first line may continue in the block before, so it is kept for later.
            lines = (file.read(position - start) + lines[0]).split(b"\n")
            complete, lines = (lines[1:], lines[:1]) if start else (lines, [])
            position = start
            for line in reversed(complete):
                if (record := parse_record(line.decode(errors="replace"))) is not None:
                    yield record


def drop_records_after(folder: Path, step: int) -> set[int]:
    """Drop the records of steps that will be repeated, and damaged lines; return the steps of the remaining records."""
    path = folder / "records.jsonl"
    if not path.exists():
        return set()
    kept = [record for record in read_records(folder) if record["step"] <= step]
    # Written to a second file first: if the process is killed here, no record is lost.
    _write_atomically(path, "".join(json.dumps(record) + "\n" for record in kept))
    return {record["step"] for record in kept}


def write_json_atomically(path: Path, content: Any) -> None:
    """Write a JSON file under a temporary name and rename it, so that the file is complete whenever it exists."""
    _write_atomically(path, json.dumps(content, indent=1) + "\n")


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_suffix(".half")
    try:
        with writing(path):
            temporary.write_text(text)
            temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def environment(device: torch.device) -> dict[str, Any]:
    """Return the machine and the software versions, on which a run's numbers depend."""
    import torch  # here, since reading records does not need it

    return {
        "contrapose": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
    }
