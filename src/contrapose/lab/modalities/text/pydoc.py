"""The built-in text set `pydoc`: pairs of neighbouring sentences from Python's own documentation, without a download.

The text is what the command `pydoc` shows: docstrings of the standard library, and the language reference. Every Python
installation contains it, under the PSF licence; it differs a little between Python versions. A pair is a sentence and the
next sentence: words that the two share help to match them, but are not enough.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from contrapose.extras import MissingPackage

DESCRIPTION = "sentences of Python's documentation, each with the one that follows it"
# Tests have few docstrings, and site-packages is not part of Python.
_SKIPPED_FOLDERS = {"__pycache__", "dist-packages", "idle_test", "pydoc_data", "site-packages", "test", "tests"}
_HELD_OUT = 6  # one in this many files is held out
_FEWEST_HELD_OUT = 100  # pairs; with fewer, recall is not meaningful
_WORDS = range(4, 51)  # words per sentence; shorter texts are headings and fragments
_DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
_SENTENCE_END = re.compile(r"""(?<=[.!?:])\s+(?=["'(*`]?[A-Z])""")
_SENTENCE = re.compile(r"""["'(*`]?[A-Z].*[\w)"'`][.:!?]["')]?""")
_CODE = re.compile(r">>>|::|==| = |--|\.\.\.|[{}\\|<>$@]")
_FEWEST_LETTERS = 0.8  # smallest share of letters and spaces in a sentence


def pydoc_pairs(library: Path | None = None) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the pairs of neighbouring sentences for training, and the held-out pairs.

    library   folder of a standard library; by default the running Python's

    Pairs are held out by file, so that all docstrings in a module are on the same side. No sentence occurs twice.
    """
    library = library or Path(sysconfig.get_path("stdlib"))
    # Topics in the language reference share paragraphs with each other, so all topics are on the same side.
    texts = [(paragraph, False) for paragraph in _language_reference()] + list(_docstrings(library))
    seen: set[str] = set()
    train: list[tuple[str, str]] = []
    held_out: list[tuple[str, str]] = []
    for text, is_held_out in texts:
        (held_out if is_held_out else train).extend(_neighbours(text, seen))
    if len(held_out) < _FEWEST_HELD_OUT:
        raise ValueError(
            f"data: pydoc needs the source files of Python's standard library, and {library} has almost none; use a Python "
            "installed with them, or give a text file: --data FILE"
        )
    return train, held_out


def _language_reference() -> list[str]:
    """Return the paragraphs of the topics that `help("TOPIC")` shows."""
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError as error:
        raise MissingPackage(
            "data: pydoc needs the module pydoc_data of Python's standard library, which is not installed; use a Python "
            "installed with it, or give a text file: --data FILE",
            name=error.name,
        ) from error
    return [paragraph for topic in sorted(topics) for paragraph in re.split(r"\n\s*\n", topics[topic])]


def _docstrings(library: Path) -> Iterator[tuple[str, bool]]:
    """Yield each text between triple quotes in a folder's modules, and whether it is held out."""
    for folder, folders, files in os.walk(library):
        folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)  # os.walk visits the remaining folders in this order
        for file in sorted(name for name in files if name.endswith(".py")):
            path = Path(folder, file)
            is_held_out = crc32(path.relative_to(library).as_posix().encode()) % _HELD_OUT == 0
            # A few modules contain bytes in another encoding in their comments.
            for match in _DOCSTRING.finditer(path.read_text(encoding="utf-8", errors="replace")):
                yield match[1], is_held_out


def _neighbours(text: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of neighbouring sentences, each sentence in one pair; sentences whose letters were seen before are left out."""
    first = ""
    for sentence in _sentences(text):
        letters = re.sub(r"[^a-z]+", " ", sentence.lower())
        if not _is_prose(sentence) or letters in seen:
            first = ""  # the next sentence is not adjacent to this one
            continue
        seen.add(letters)
        if first:
            yield first, sentence
        first = "" if first else sentence


def _sentences(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        # A line may break at a word's hyphen.
        line = " ".join(re.sub(r"(?<=\w)-\n\s*", "-", paragraph).split())
        yield from _SENTENCE_END.split(line)


def _is_prose(sentence: str) -> bool:
    """Return whether a text is a sentence of words, and not code, a table, a heading or a signature."""
    letters = sum(character.isalpha() or character == " " for character in sentence)
    return (
        _SENTENCE.fullmatch(sentence) is not None
        and len(sentence.split()) in _WORDS
        and letters >= _FEWEST_LETTERS * len(sentence)
        and not _CODE.search(sentence)
    )
