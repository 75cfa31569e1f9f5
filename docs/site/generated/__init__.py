"""The pages that `build.py` writes, one module for each kind of page."""

from __future__ import annotations

import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

SITE = Path(__file__).parents[1]
DOCS = SITE.parent
ROOT = DOCS.parent
# Evidence and tables are computed by the scripts that also write their own pages.
sys.path.insert(0, str(ROOT / "benchmarks"))


@cache
def texts(kind: str) -> dict[str, Any]:
    """Return the texts of docs/KIND.toml."""
    return tomllib.loads((DOCS / f"{kind}.toml").read_text(encoding="utf-8"))


def cell(text: str) -> str:
    """Return a text for a cell of a table, where a bar would end the cell."""
    return text.replace("|", r"\|")


def prose(text: str) -> str:
    """Write powers of e in sentences as formulas; code stays as it is."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"e\^\{([^}]*)\}", lambda power: f"$e^{{{_tex(power[1])}}}$", part) for part in parts[::2]]
    return "`".join(parts)


def _tex(text: str) -> str:
    for symbol, command in (("τ", r"\tau "), ("α", r"\alpha "), ("β", r"\beta "), ("⁺", "^+"), ("⁻", "^-")):
        text = text.replace(symbol, command)
    return text.strip()


def raw_html(html: str) -> str:
    """Return HTML as a block of a Markdown page."""
    return f"\n```{{raw}} html\n{html}\n```\n"


def hidden_toctree(names: list[str]) -> str:
    """Return a table of contents that only the sidebar shows."""
    return "\n".join(["", "```{toctree}", ":hidden:", "", *names, "```", ""])
