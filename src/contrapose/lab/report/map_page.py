"""The interactive page of `contrapose map`: points that show their image or text, and a legend that filters by class."""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections.abc import Sequence

from torch import Tensor

from contrapose.lab.modalities.previews import Preview
from contrapose.lab.report.embedding import NamedEmbedding
from contrapose.lab.report.page import page
from contrapose.lab.report.style import COLOURS

PREVIEW_SIDE = 64  # pixels: the largest thumbnail
_SHEET_PIXELS = 1_600_000  # of all thumbnails of a page together: about half a megabyte
_WIDTH = 1000  # of the drawing, in its own units
_SHAPES = (
    '<circle r="1"/>',
    '<path d="M-.9-.9H.9V.9H-.9Z"/>',
    '<path d="M0-1.2 1.1.8H-1.1Z"/>',
    '<path d="M0-1.3 1.1 0 0 1.3-1.1 0Z"/>',
    '<path d="M0 1.2 1.1-.8H-1.1Z"/>',
)
_STYLE = """
.maps { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)) }
.maps figure { margin: 0 } .maps figure > svg { min-width: 0; max-height: 85vh; touch-action: pan-y pinch-zoom }
.maps line { stroke: #000; stroke-width: 2; stroke-dasharray: 6 4 } .maps .near { stroke: #000; stroke-width: .3 }
.maps g.off { opacity: .05 } .maps g { fill-opacity: .75 }
.legend { display: flex; flex-wrap: wrap; gap: .4rem; margin: 1rem 0; max-height: 11rem; overflow-y: auto }
.legend button { font: inherit; font-size: .85rem; display: flex; gap: .4rem; align-items: center; padding: .25rem .6rem;
  border: 1px solid #8888; border-radius: 1rem; background: none; color: inherit; cursor: pointer; overflow-wrap: anywhere }
.legend button[aria-pressed=true] { background: #8883; border-color: currentColor; font-weight: 600 }
.legend svg { width: .8rem; height: .8rem; flex: none; background: #fff; border-radius: .2rem }
#tip { position: fixed; z-index: 1; max-width: min(20rem, 80vw); padding: .4rem; background: #fff; color: #111; font-size: .85rem;
  line-height: 1.35; border: 1px solid #8888; border-radius: .4rem; pointer-events: none; overflow-wrap: anywhere }
#tip i { display: block; width: 8rem; height: 8rem; margin: 0 auto .2rem; background-repeat: no-repeat }
#tip b { display: block } @media print { .legend, #tip { display: none } }
"""
# The point nearest to the pointer is looked up, because points are too small to be hit with a finger. Points of one sample,
# such as an image and its caption, are connected by a line.
_SCRIPT = """
const data = JSON.parse(document.getElementById('samples').textContent), tip = document.getElementById('tip');
const chosen = new Set(), NS = 'http://www.w3.org/2000/svg', groups = [...document.querySelectorAll('.maps g')];
const isOff = group => chosen.size > 0 && !chosen.has(group.dataset.name);
for (const button of document.querySelectorAll('.legend button')) button.onclick = () => {
  const name = button.dataset.name;
  chosen.has(name) ? chosen.delete(name) : chosen.add(name);
  button.setAttribute('aria-pressed', chosen.has(name));
  groups.forEach(group => group.classList.toggle('off', isOff(group)));
};
document.querySelectorAll('.maps svg').forEach(svg => {
  const samples = data[svg.dataset.samples], marks = svg.appendChild(document.createElementNS(NS, 'g'));
  marks.setAttribute('pointer-events', 'none');
  const points = [...svg.querySelectorAll('use')].map(use => {
    const [x, y] = ['x', 'y'].map(name => Number(use.getAttribute(name)));
    return {x, y, use, n: Number(use.dataset.n), group: use.parentNode};
  });
  const hide = () => { tip.hidden = true; marks.replaceChildren() };
  const show = event => {
    const box = svg.getBoundingClientRect(), at = new DOMPoint(event.clientX, event.clientY)
      .matrixTransform(svg.getScreenCTM().inverse()), scale = svg.viewBox.baseVal.width / box.width;
    let best = null, least = (24 * scale) ** 2;
    for (const point of points) {
      const d = (point.x - at.x) ** 2 + (point.y - at.y) ** 2;
      if (d < least && !isOff(point.group)) { best = point; least = d }
    }
    if (!best) return hide();
    marks.replaceChildren();
    for (const other of points) if (other.n === best.n && other !== best) {
      const line = marks.appendChild(document.createElementNS(NS, 'line'));
      Object.entries({x1: best.x, y1: best.y, x2: other.x, y2: other.y}).forEach(([k, v]) => line.setAttribute(k, v));
    }
    const copy = marks.appendChild(best.use.cloneNode());
    copy.setAttribute('fill', best.group.getAttribute('fill')); copy.setAttribute('class', 'near');
    copy.setAttribute('transform', `translate(${best.x} ${best.y}) scale(1.8) translate(${-best.x} ${-best.y})`);
    tip.replaceChildren();
    if (samples.columns) {
      const picture = tip.appendChild(document.createElement('i')), c = samples.columns, r = samples.rows;
      picture.className = 'sheet-' + svg.dataset.samples;
      picture.style.backgroundSize = 8 * c + 'rem ' + 8 * r + 'rem';
      picture.style.backgroundPosition = -8 * (best.n % c) + 'rem ' + -8 * Math.floor(best.n / c) + 'rem';
    }
    if (best.group.dataset.name) tip.appendChild(document.createElement('b')).textContent = best.group.dataset.name;
    if (samples.texts) tip.appendChild(document.createElement('span')).textContent = samples.texts[best.n];
    tip.hidden = false;
    const left = event.clientX + 14, top = event.clientY + 14;
    tip.style.left = Math.max(4, Math.min(left, innerWidth - tip.offsetWidth - 8)) + 'px';
    tip.style.top = (top + tip.offsetHeight > innerHeight ? Math.max(4, event.clientY - tip.offsetHeight - 14) : top) + 'px';
  };
  svg.addEventListener('pointermove', show); svg.addEventListener('pointerdown', show);
  svg.addEventListener('pointerleave', event => { if (event.pointerType === 'mouse') hide() });
});
"""


def map_page(title: str, embeddings: Sequence[NamedEmbedding], points: Sequence[Tensor]) -> str:
    """Return an HTML page with one map per embedding.

    title        what is drawn: the projection, the output, and the number of samples
    embeddings   embeddings with previews of their samples
    points       (n, 2) each, from `map_points`
    """
    # Runs on the same data show the same samples, which are stored once.
    samples = list(dict.fromkeys(embedding.previews for embedding in embeddings))
    names = list(dict.fromkeys(name for embedding in embeddings for name in _present_classes(embedding)))
    sheets = [_sheet(previews, total=sum(map(len, samples))) for previews in samples]
    data = [
        {**size, "texts": ["\n".join(preview.texts[:1]) for preview in previews] if previews[0].texts else None}
        for previews, (_, size) in zip(samples, sheets, strict=True)
    ]
    style = "".join(
        f".sheet-{number} {{ background-image: url(data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}) }}\n"
        for number, (jpeg, _) in enumerate(sheets)
        if jpeg
    )
    figures = "".join(
        _figure(embedding, rows, names, samples.index(embedding.previews))
        for embedding, rows in zip(embeddings, points, strict=True)
    )
    hint = "Point at a sample, or tap it, to see it."
    hint += " Click names in the legend to show only these classes; click again to show all." if names else ""
    parts = [
        f"<p>{hint} Only the distances between near points have a meaning, not the axes.</p>",
        _legend(names),
        f'<svg width="0" height="0" style="position:absolute"><defs>{_symbols(max(map(len, points)))}</defs></svg>',
        f'<div class="maps">{figures}</div><div id="tip" hidden></div>',
        # "</script>" in a text would end the element early; in JSON, "\u003c" is the same character as "<".
        '<script type="application/json" id="samples">'
        + json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
        + f"</script><script>{_SCRIPT}</script>",
    ]
    return page(title, parts, style=_STYLE + style)


def _class_names(embedding: NamedEmbedding) -> list[str]:
    """Return the name of each point's class; empty names without labels."""
    if embedding.labels is None:
        return [""] * len(embedding.z)
    return [embedding.class_name(label) for label in embedding.labels.tolist()]


def _present_classes(embedding: NamedEmbedding) -> list[str]:
    """Return the names of the classes that have points, in the order of the labels."""
    labels = [] if embedding.labels is None else embedding.labels.unique().tolist()
    return [embedding.class_name(label) for label in labels]


def _legend(names: Sequence[str]) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="false" data-name="{html.escape(name)}"><svg viewBox="-10 -10 20 20" '
        f'aria-hidden="true"><use href="#m{_shape(index)}" fill="{_colour(index)}"/></svg>{html.escape(name)}</button>'
        for index, name in enumerate(names)
    )
    return f'<div class="legend" role="group" aria-label="Classes">{buttons}</div>' if names else ""


def _symbols(points: int) -> str:
    """Return the shapes of points, which are smaller if there are many points."""
    radius = max(4, min(9, round(300 / math.sqrt(points))))
    return "".join(
        f'<g id="m{number}"><g transform="scale({radius})">{shape}</g></g>' for number, shape in enumerate(_SHAPES)
    )


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _shape(index: int) -> int:
    # The shapes shift by one each time the colours repeat, so that the first 50 classes differ in colour or shape.
    return (index + index // len(COLOURS)) % len(_SHAPES)


def _figure(embedding: NamedEmbedding, points: Tensor, names: Sequence[str], samples: int) -> str:
    """Return one map as SVG, with a group of points per class."""
    low, high = points.min(0).values, points.max(0).values
    extent = float((high - low).max()) or 1.0
    margin = 20
    scaled = ((points - low) / extent * (_WIDTH - 2 * margin) + margin).round().int()
    width, height = (int(side) + margin for side in scaled.max(0).values)
    groups: dict[str, list[str]] = {}
    for number, (name, (x, y)) in enumerate(zip(_class_names(embedding), scaled.tolist(), strict=True)):
        shape = _shape(names.index(name)) if name else 0
        sample = number % len(embedding.previews)  # with two towers, all samples occur twice
        use = f'<use href="#m{shape}" data-n="{sample}" x="{x}" y="{height - y}"/>'
        groups.setdefault(name, []).append(use)
    drawn = "".join(
        f'<g data-name="{html.escape(name)}" fill="{_colour(names.index(name) if name else 0)}">{"".join(uses)}</g>'
        for name, uses in groups.items()
    )
    caption = html.escape(embedding.caption)
    return (
        f'<figure><figcaption>{caption}</figcaption><svg viewBox="0 0 {width} {height}" role="img" data-samples="{samples}" '
        f'aria-label="A map of {len(points):,} points. {caption}">{drawn}</svg></figure>'
    )


def _sheet(previews: Sequence[Preview], *, total: int) -> tuple[bytes, dict[str, int]]:
    """Return the images of all samples in one JPEG file, row by row, and the numbers of its columns and rows.

    One file has less overhead than one per image. The thumbnails are smaller if there are many.
    """
    if not previews[0].image:
        return b"", {}
    from PIL import Image, ImageOps

    side = max(16, min(PREVIEW_SIDE, int(math.sqrt(_SHEET_PIXELS / total))))
    columns = math.ceil(math.sqrt(len(previews)))
    rows = math.ceil(len(previews) / columns)
    sheet = Image.new("RGB", (columns * side, rows * side), "white")
    for number, preview in enumerate(previews):
        with Image.open(io.BytesIO(preview.image)) as image:
            cell = ImageOps.pad(image.convert("RGB"), (side, side), color="white")
        sheet.paste(cell, (number % columns * side, number // columns * side))
    buffer = io.BytesIO()
    sheet.save(buffer, "JPEG", quality=70)
    return buffer.getvalue(), {"columns": columns, "rows": rows}
