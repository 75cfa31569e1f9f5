"""The doctor's page: findings with thumbnails or texts, curves, and what was left out; HTML without other files."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contrapose.doctor.curves import CURVES, drawing, short
from contrapose.doctor.finding import Finding
from contrapose.doctor.look import Action, Look

# One stylesheet for all pages that the program writes; it lies where the laboratory's pages are made.
_STYLESHEET = Path(__file__).parents[1] / "lab" / "report" / "page.css"
SHOWN_GROUPS = 4  # pairs of samples that are shown under a finding
_PNG = b"\x89PNG\r\n\x1a\n"
_MARKS = {"error": "does-not-hold", "warning": "undecided", "note": ""}  # classes of the stylesheet
_GRID = "display:grid;gap:0 1.5rem;grid-template-columns:repeat(auto-fill,minmax(min(20rem,100%),1fr))"


def write_page(
    path: Path,
    looks: Sequence[Look],
    findings: Sequence[Finding],
    left_out: Mapping[str, str],
    *,
    samples: Mapping[int, Any] | None = None,
    title: str = "What the doctor found",
) -> Path:
    """Write the page of a training run, and return its path."""
    path.write_text(page(looks, findings, left_out, samples=samples or {}, title=title), encoding="utf-8")
    return path


def page(
    looks: Sequence[Look],
    findings: Sequence[Finding],
    left_out: Mapping[str, str],
    *,
    samples: Mapping[int, Any],
    title: str,
) -> str:
    """Return the page as HTML."""
    parts = [_lead(looks, findings), _list(findings, samples)]
    drawings = [drawing(curve, looks) for curve in CURVES]
    if any(drawings):
        parts += ["<h2>Curves</h2>", f'<div style="{_GRID}">{"".join(drawings)}</div>']
    if looks:
        parts += [f"<h2>The last look, at step {looks[-1].step:,}</h2>", _table(looks[-1])]
    if left_out:
        items = "".join(f"<li>{_text(what)}: {_text(why)}</li>" for what, why in left_out.items())
        parts += [f"<h2>Left out</h2><ul>{items}</ul>"]
    style = _STYLESHEET.read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>\n{style}</style></head>\n'
        f"<body>\n<h1>{_text(title)}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _text(value: object) -> str:
    return html.escape(str(value))


def _lead(looks: Sequence[Look], findings: Sequence[Finding]) -> str:
    count = len(findings)
    found = f"{count} finding{'' if count == 1 else 's'}" if count else "Nothing found"
    seen = f"{len(looks)} look{'' if len(looks) == 1 else 's'}"
    until = f", the last one at step {looks[-1].step:,}" if looks else ""
    return f'<p class="lead">{found} in {seen}{until}.</p>'


def _list(findings: Sequence[Finding], samples: Mapping[int, Any]) -> str:
    if not findings:
        return ""
    items = [
        f'<li class="{_MARKS[finding.severity]}"><h2>{_text(finding.name)}</h2>'
        f"<p><small>{finding.severity}, first seen at step {finding.step:,}</small></p>"
        f"<p><b>Seen:</b> {_text(finding.seen + finding.examples())}.</p><p><b>It means:</b> {_text(finding.means)}</p>"
        f"<p><b>Do:</b> {_text(finding.do)}</p>{_groups(finding, samples)}</li>"
        for finding in findings
    ]
    return f'<ul class="verdicts">{"".join(items)}</ul>'


def _groups(finding: Finding, samples: Mapping[int, Any]) -> str:
    shown = [group for group in finding.rows if all(row in samples for row in group)][:SHOWN_GROUPS]
    return "".join(
        f'<div class="thumbnails">{"".join(_sample(f"{finding.numbered} {row}", samples[row]) for row in group)}</div>'
        for group in shown
    )


def _sample(name: str, value: Any) -> str:
    file = png(value) if isinstance(value, Tensor) and value.ndim in (2, 3) else value
    if isinstance(file, bytes):
        kind, data = "png" if file.startswith(_PNG) else "jpeg", base64.b64encode(file).decode()
        image = f'<img src="data:image/{kind};base64,{data}" alt="{name}" style="width:100%;image-rendering:pixelated">'
        return f"<figure>{image}<figcaption>{name}</figcaption></figure>"
    return f"<p>{name}: <q>{_text(value)}</q></p>"


def png(image: Tensor) -> bytes:
    """Return an image (h, w) or (c, h, w), with 1 or 3 channels, as a PNG file; values beyond 0 to 1 are scaled first."""
    x = image.detach().float().cpu()
    x = x[None] if x.ndim == 2 else x
    x = x[:3] if len(x) >= 3 else x[:1]
    if float(x.min()) < 0 or float(x.max()) > 1:  # normalised for the encoder
        x = (x - x.min()) / (x.max() - x.min()).clamp(min=1e-12)
    pixels = (x * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in pixels)  # 0: no filter

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    colour = 2 if channels == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return _PNG + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _number(value: float | None) -> str | None:
    return None if value is None else short(value)


def _of(part: float, whole: float) -> str:
    return f"{part:.1f} of {whole:.0f}"


def _of_action(text: Callable[[Action], str | None]) -> Callable[[Look], str | None]:
    return lambda look: None if look.action is None else text(look.action)


_ROWS: tuple[tuple[str, Callable[[Look], str | None]], ...] = (
    ("rows of the batch", lambda look: f"{look.batch:,}"),
    ("dimensions", lambda look: f"{look.width:,}"),
    ("similarity of positives", lambda look: _number(look.positive)),
    ("similarity of others", lambda look: _number(look.negative)),
    ("nearest row is a positive", lambda look: None if look.retrieval is None else f"{look.retrieval:.1%}"),
    ("loss of these rows", _of_action(lambda action: _number(action.loss))),
    ("loss of wrong pairs", _of_action(lambda action: _number(action.mismatched))),
    ("loss of perfect embeddings", _of_action(lambda action: _number(action.ideal))),
    (
        "negatives that carry the push",
        _of_action(lambda action: _of(action.effective_negatives, action.negatives)),
    ),
    ("push on the hardest 1 %", _of_action(lambda action: f"{action.hardest_share:.1%}")),
    ("temperature with the same push", _of_action(lambda action: _number(action.temperature))),
    ("effective rank", lambda look: ", ".join(f"{side.rank:.1f}" for side in look.sides)),
    ("deviation", lambda look: ", ".join(f"{side.deviation:.3f}" for side in look.sides)),
    ("length of the rows", lambda look: ", ".join(f"{side.norm:.3g}" for side in look.sides)),
)


def _table(look: Look) -> str:
    rows = ((name, value(look)) for name, value in _ROWS)
    cells = "".join(
        f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows if value is not None
    )
    return f'<div class="wide"><table><tbody>{cells}</tbody></table></div>'
