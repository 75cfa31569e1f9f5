"""Files that describe data, such as lists of images and annotations: read whole, or refused by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from contrapose.lab.modalities.stored_files import check_regular


def check_file(path: Path, argument: str = "data") -> None:
    """Raise a ValueError that names a path that is a folder, a device, a named pipe, which would never end, or not there."""
    try:
        check_regular(path)
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ValueError(f"{argument}: {path} cannot be read: {reason}") from None


def read_bytes(path: Path, argument: str = "data") -> bytes:
    """Return the content of a file."""
    check_file(path, argument)
    return path.read_bytes()


def read_text(path: Path, argument: str = "data") -> str:
    """Return the text of a file in UTF-8."""
    content = read_bytes(path, argument)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{argument}: {path} is not UTF-8: byte {error.start + 1:,} is 0x{content[error.start]:02x} (convert the file with: "
            f"iconv -f latin1 -t utf-8 {path.name} > NEW)"
        ) from None


def read_json(path: Path, argument: str = "data") -> Any:
    """Return the value in a file of JSON."""
    content = read_bytes(path, argument)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:  # Python's stack limits how deep brackets may be nested
        raise ValueError(f"{argument}: {path} is not JSON: {error}") from None


def as_text(name: str) -> str:
    """Return a file name as text that can be written to any file; bytes that are not UTF-8 are escaped.

    Names are not text: a system accepts almost any bytes, and so do we, in all kinds of data. A name that becomes text, such as
    that of a class, is escaped here, and what is printed or written to a page is escaped by its stream.
    """
    return name.encode("utf-8", "backslashreplace").decode()


def path_inside(folder: Path, name: str) -> Path | None:
    """Return the path of a file by its name relative to a folder; None for a name that leads out of the folder.

    Links inside the folder are followed: they are the user's own, and a name in a file from elsewhere is not.
    """
    path, root = os.path.abspath(folder / name), os.path.abspath(folder)
    # Without "..", which the system would apply to the target of a link.
    return folder / os.path.relpath(path, root) if path.startswith(f"{root.rstrip(os.sep)}{os.sep}") else None
