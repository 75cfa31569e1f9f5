"""A page for each temperature, choice of negatives and metric, from docs/KIND.toml; the library computes the pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import contrapose
from contrapose import metrics, pairs, temperature
from contrapose.metrics import penalties
from contrapose.pairs import Pairs, from_similarities
from contrapose.pairs.negatives import STORED
from generated import cell, drawings, hidden_toctree, prose, raw_html, texts


@dataclass(frozen=True)
class Kind:
    """A kind of page."""

    name: str  # of docs/NAME.toml and of the folder of pages
    title: str
    intro: str  # "": another page has the table of the pages


KINDS = (
    Kind("temperatures", "Temperatures", ""),
    Kind(
        "negatives",
        "Choices of negatives",
        """Every objective of pairs takes `negatives=`: which candidates an anchor is pushed away from. In the pictures of their
pages, rows are anchors and columns are candidates. A dot marks a negative, a plus the positive, an empty cell a candidate of the
anchor's own sample, and a plain cell a candidate that is left out. The darker a cell, the more similar the pair. The library
itself computes the pictures.""",
    ),
    Kind(
        "metrics",
        "Metrics",
        """Metrics of embeddings: `from contrapose.metrics import uniformity`. They are exact, and none stores the matrix of
similarities. [My loss does not move](../loss-does-not-move.md) says which of them to look at when training goes wrong.""",
    ),
)
SCOPE: dict[str, Any] = {
    **{name: getattr(contrapose, name) for name in contrapose.__all__},
    **{name: getattr(module, name) for module in (metrics, pairs, temperature) for name in dir(module) if name[0] != "_"},
    "torch": torch,
}  # fmt: skip


FORMS = ("cosine", "linear", "exponential", "monotonic_cosine", "constant")  # of the sliders, as in temperature.js


def write_pages(source: Path) -> None:
    """Write the pages of all kinds, each kind with a table of its pages."""
    for kind in KINDS:
        folder = source / kind.name
        folder.mkdir()
        for name in texts(kind.name):
            (folder / f"{name}.md").write_text("\n".join(page(kind, name)) + "\n")
        if kind.intro:
            index = f"# {kind.title}\n\n{kind.intro}\n\n{table(kind.name)}"
            (folder / "index.md").write_text(index)


def table(kind: str, folder: str = "") -> str:
    """Return a table of the pages of a kind, and a hidden table of contents; links are relative to a page above `folder`."""
    rows = [f"| [{text['title']}]({folder}{name}.md) | {cell(text['summary'])} |" for name, text in texts(kind).items()]
    return "\n".join(["| | |", "|---|---|", *rows, hidden_toctree([folder + name for name in texts(kind)])])


def page_of_name() -> dict[str, str]:
    """Return the page of each public name that a page describes, such as {"cosine": "temperatures/cosine"}."""
    return {
        name: f"{kind.name}/{page}"
        for kind in KINDS
        for page, text in texts(kind.name).items()
        for name in text["names"]
    }


def page(kind: Kind, name: str) -> Iterator[str]:
    """Yield the lines of a page."""
    text = texts(kind.name)[name]
    yield f"# {text['title']}\n\n{text['summary'][0].upper()}{text['summary'][1:]}."
    if "formula" in text:
        yield f"\n```{{math}}\n{text['formula']}\n```\n\n{text.get('where', '')}"
    for key in ("range", "direction"):
        yield f"\n**{key.capitalize()}:** {text[key].rstrip('.')}." if key in text else ""
    yield f"\n## What it does\n\n{prose(text['does'].strip())}"
    yield from pictures(text)
    yield f"\n## When to use it\n\n{text['use'].strip()}\n"
    yield "\n".join(f"- {prose(pitfall)}" for pitfall in text.get("pitfalls", []))
    yield f"\n## Example\n\n```python\n{text['example'].strip()}\n```"
    if "values" in text:
        yield "\n| call | returns |\n|---|---|"
        yield from (f"| `{code}` | `{value}` |" for code, value in values(text).items())
    yield f"\n## Source\n\n{text['paper']}."
    public = [own for own in text["names"] if hasattr(contrapose, own) or own in metrics.__all__]
    if public:
        module = {own: "contrapose" if hasattr(contrapose, own) else "contrapose.metrics" for own in public}
        yield "\nArguments: " + ", ".join(f"[{own}](#{module[own]}.{own})" for own in public) + "."


def values(text: Mapping[str, Any]) -> dict[str, str]:
    """Return what the expressions of a page return, as text."""
    scope = _scope(text)
    return {code: _format(eval(code, scope)) for code in text["values"]}


def pictures(text: Mapping[str, Any]) -> Iterator[str]:
    """Yield the pictures that a page's text describes."""
    if "slider" in text:
        yield raw_html(slider(text["slider"]))
    if "curve" in text:
        yield raw_html(curve(text["curve"]))
    if "force" in text:
        yield "\nShare of NT-Xent's push that negatives of each similarity get, with the positive at 0.8:"
        yield raw_html(force(text["force"]))
    if "negatives" in text:
        yield f"\n`{text['pairs']}` with `negatives={text['negatives']}`, six samples (0 to 5) in two views (a and b):"
        yield raw_html(chosen_cells(text))
        yield "Dot: a negative. Plus: the positive. Empty: the anchor's own sample. Plain: left out. Darker is more similar."
    if "clouds" in text:
        yield "\nThe value for three sets of embeddings of three classes, in two dimensions:"
        yield raw_html(three_clouds(text))


def slider(form: str, static: str = "../_static") -> str:
    """Return sliders for a temperature's range, and axes in which `STATIC/temperature.js` draws it and the push; "": any form."""
    forms = "".join(f"<option>{name}</option>" for name in FORMS)
    choice = (
        f'<input type="hidden" name="form" value="{form}">'
        if form
        else f'<label>form <select name="form">{forms}</select></label>'
    )
    sliders = "".join(
        f'<label><span class="name">{name}</span> '
        f'<input type="range" name="{name}" min="0.02" max="0.5" step="0.01" value="{value}"> '
        f'<span data-for="{name}"></span></label>'
        for name, value in (("low", 0.07), ("high", 0.2))
    )
    return (
        f'<div class="slider">{choice}{sliders}'
        + _axes("tau", "temperature τ(s)", "0.6", "similarity s")
        + _axes("push", "push on a negative, relative to the strongest", "1", "similarity s of the negative")
        + f'<p data-for="push"></p></div><script src="{static}/temperature.js"></script>'
    )


def _axes(name: str, title: str, top: str, bottom: str) -> str:
    """Return empty axes from -1 to 1 and from 0 to `top`."""
    return (
        f'<svg viewBox="0 0 400 210" role="img" aria-label="{title} against {bottom}">'
        '<line x1="40" y1="180" x2="380" y2="180"></line><line x1="40" y1="20" x2="40" y2="180"></line>'
        '<text x="40" y="196" text-anchor="middle">-1</text><text x="210" y="196" text-anchor="middle">0</text>'
        f'<text x="380" y="196" text-anchor="middle">1</text><text x="210" y="208" text-anchor="middle">{bottom}</text>'
        f'<text x="34" y="24" text-anchor="end">{top}</text><text x="34" y="184" text-anchor="end">0</text>'
        f'<text x="46" y="14">{title}</text><path data-for="{name}"></path></svg>'
    )


def curve(text: Mapping[str, Any]) -> str:
    """Draw the curves of a page, expressions of x."""
    scope = _scope(text)
    series = {}
    for label, code in text["series"]:
        count = scope.get("x_points", 101)
        scope["x"] = torch.linspace(text["from"], text["to"], count, dtype=torch.float64)
        series[label] = (scope["x"].tolist(), [float(y) for y in eval(code, scope)])
    return drawings.curves(series, x_label=text["x"], y_label=text["y"])


def force(settings: list[list[str]]) -> str:
    """Draw each negative's share of NT-Xent's push for several temperatures."""
    s = torch.linspace(-1, 1, 41, dtype=torch.float64)
    pairs = from_similarities(torch.tensor([[0.8]], dtype=torch.float64), s[None])
    series = {}
    for label, code in settings:
        objective = partial(contrapose.nt_xent, temperature=eval(code, dict(SCOPE)))
        series[label] = (s.tolist(), penalties(objective, pairs).relative[0].tolist())
    return drawings.curves(series, x_label="similarity s of a negative", y_label="share of the push")


def example_embeddings() -> dict[str, Tensor]:
    """Return the embeddings behind the pictures of negatives: six samples in three groups of two."""
    generator = torch.Generator().manual_seed(5)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    groups = torch.eye(3, dtype=torch.float64).repeat_interleave(2, 0)
    first = groups + 0.35 * noise(6, 3)
    guide = groups + 0.05 * noise(6, 3)
    return {
        "z1": first,
        "z2": first + 0.25 * noise(6, 3),
        "rows": noise(6, 3),
        "hard": (first + 0.4 * noise(6, 3))[:, None],
        "g1": guide,
        "g2": guide + 0.05 * noise(6, 3),
    }


def chosen(text: Mapping[str, Any]) -> tuple[Pairs, Tensor, Tensor]:
    """Return the pairs of a page, and for each anchor and candidate their similarity and whether it is a chosen negative."""
    scope = _scope(text) | example_embeddings()
    pairs = eval(text["pairs"], scope)
    # The simple loss pushes all negatives equally, so exactly the chosen ones have a gradient.
    result = penalties(partial(contrapose.simple, negatives=eval(text["negatives"], scope)), pairs)
    return pairs, result.at.negative, result.push != 0


def chosen_cells(text: Mapping[str, Any]) -> str:
    """Draw which candidates are chosen as negatives of each anchor."""
    pairs, similarity, is_chosen = chosen(text)
    is_positive = (pairs.pool[None, None] - pairs.positive[:, :, None]).abs().amax(-1).lt(1e-9).any(1)
    is_own = pairs.anchor_id[:, None] == pairs.pool_id[None]
    marks = [
        [
            "positive" if is_positive[i, j] else "own" if is_own[i, j] else "chosen" if is_chosen[i, j] else "other"
            for j in range(similarity.shape[1])
        ]
        for i in range(similarity.shape[0])
    ]
    rows = _row_names(pairs.anchor_id, pairs.anchor_view)
    return drawings.matrix(similarity, marks, rows, _row_names(pairs.pool_id, pairs.pool_view))


def _row_names(ids: Tensor, views: Tensor) -> list[str]:
    """Return the sample and view of each row, such as 3a; stored rows are q, rows of no sample h."""
    names = []
    for own, view in zip(ids.tolist(), views.tolist(), strict=True):
        names.append("q" if view == STORED else f"{own}{'ab'[view]}" if 0 <= own < 6 else "h")
    return names


def example_clouds() -> dict[str, dict[str, Tensor]]:
    """Return three sets of embeddings: collapsed, grouped by class, and spread evenly."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(24) % 3

    def around(angle: Tensor, noise: float, *shape: int) -> Tensor:
        angle = angle + noise * torch.randn(*shape, 24, generator=generator)
        return torch.stack([angle.cos(), angle.sin()], -1)

    third = 2 * math.pi / 3
    angles = {
        "collapsed": math.pi / 2 + 0.08 * torch.randn(24, generator=generator),
        "grouped": math.pi / 2 + third * labels + 0.2 * torch.randn(24, generator=generator),
        "even": torch.arange(24) * (2 * math.pi / 24),
    }
    result = {}
    for name, angle in angles.items():
        z = around(angle, 0.0)
        # The partner of a sample is the next one of its class.
        result[name] = {"z": z, "z2": around(angle, 0.05), "draws": around(angle, 0.1, 5), "partner": z.roll(-3, 0)}
        result[name]["labels"] = labels
    return result


def three_clouds(text: Mapping[str, Any]) -> str:
    """Draw three sets of embeddings with the value of a metric below each."""
    examples = []
    for name, cloud in example_clouds().items():
        value = eval(text["clouds"], _scope(text) | cloud)
        own = value if isinstance(value, dict) else {"": value}
        # Rounding errors are shown as 0.
        rounded = {key: 0.0 if abs(number) < 1e-6 else number for key, number in own.items()}
        lines = [f"{key} {number:.3g}".strip() for key, number in rounded.items()]
        examples.append((name, cloud["z"], cloud["labels"], lines))
    return drawings.clouds(examples)


def _scope(text: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names that an expression may use, after the code in `setup`."""
    scope = dict(SCOPE)
    exec(text.get("setup", ""), scope)
    return scope


def _format(value: Any) -> str:
    """Return a value as text with few digits."""
    if isinstance(value, Tensor):
        return _format(value.tolist())
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_format(own)}" for key, own in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_format(own) for own in value) + "]"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)
