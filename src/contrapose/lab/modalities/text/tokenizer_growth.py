"""How much a tokenizer.json lengthens a text, from its settings: a few short rules in a row can make gigabytes of one word."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contrapose.lab.modalities.input_files import read_json

_MOST = 100.0  # SentencePiece's rules for Unicode have 33 bytes for one character; no text needs more


def check_growth(path: Path) -> None:
    """Raise ValueError if the rules in a tokenizer.json may make a text more than 100 times as long.

    path   the file; nothing is checked if it does not exist
    """
    if not path.exists():
        return
    content = read_json(path, "encoder")
    parts = (content.get(name) for name in ("normalizer", "pre_tokenizer")) if isinstance(content, dict) else ()
    try:
        growth = math.prod(map(_growth, parts))
    # Settings of other types, nested too deep, or text that is not base64
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"encoder: {path} has a normalizer or pre_tokenizer that is damaged") from None
    if growth > _MOST:
        raise ValueError(
            f"encoder: {path}: expected rules that make a text at most {_MOST:g} times as long, got {growth:.3g} times; the "
            "file may be damaged or hostile"
        )


def _growth(rule: Mapping[str, Any] | None) -> float:
    """Return by how much a rule, with the rules inside it, may lengthen a text."""
    if not rule:
        return 1.0
    inner = [*(rule.get("normalizers") or ()), *(rule.get("pretokenizers") or ())]
    growth = math.prod(map(_growth, inner))
    if rule.get("type") == "Replace":
        # A regular expression may match a single character, or nothing.
        replaced = (rule.get("pattern") or {}).get("String") or "?"
        growth *= max(1.0, len(rule.get("content") or "") / len(replaced))
    elif rule.get("type") == "Prepend":
        growth *= 1 + len(rule.get("prepend") or "")
    elif rule.get("type") == "Precompiled":
        table = base64.b64decode(rule.get("precompiled_charsmap") or "")
        # After a search tree, whose size comes first, are the replacements, each of which ends with a zero.
        replacements = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
        growth *= max(1, *map(len, replacements))
    return float(growth)
