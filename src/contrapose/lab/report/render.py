"""Write a document to files: a self-contained HTML page, the same page as Markdown, and its figures as PNG and SVG."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, groupby, repeat
from pathlib import Path

from contrapose.lab.report.document import (
    Block,
    Chart,
    Document,
    Heat,
    Number,
    Picture,
    RunNote,
    Section,
    Table,
    Text,
    Thumbnails,
)
from contrapose.lab.report.draw import figure, page_figure
from contrapose.lab.report.interactive import plotly, plotly_source
from contrapose.lab.report.page import drawing, image_element, json_element, page, script
from contrapose.lab.report.style import save

_VERDICT_MARKS = {"holds": "✓", "does not hold": "✗", "undecided": "?", "too short to tell": "?"}


def write(document: Document, folder: Path) -> Path:
    """Write index.html, index.md, and a PNG and an SVG file per chart; return the path of index.html.

    The same document always gives the same bytes, so that results under version control change only if the numbers change.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, block in _figures(document):
        if isinstance(block, Picture):
            (folder / f"{name}.png").write_bytes(block.png)
        else:
            for suffix in (".png", ".svg"):
                save(figure(block), folder / f"{name}{suffix}")
    (folder / "index.md").write_text(as_markdown(document), encoding="utf-8", errors="backslashreplace")
    path = folder / "index.html"
    path.write_text(as_html(document), encoding="utf-8", errors="backslashreplace")
    return path


def _figures(document: Document) -> Iterator[tuple[str, Chart | Heat | Picture | Thumbnails]]:
    """Yield each figure with the stem of its file name."""
    for section_number, section in enumerate(document.sections, 1):
        blocks = [block for block in section.blocks if not isinstance(block, Table | Text)]
        for number, block in enumerate(blocks, 1):
            name = section.name or f"section{section_number}"
            yield f"{name}-{number}" if len(blocks) > 1 else name, block


def as_html(document: Document) -> str:
    """Return the document as an HTML page, with interactive charts unless the document has none."""
    parts = [f'<p class="lead">{html.escape(document.lead)}</p>'] if document.lead else []
    judged = [(number, section) for number, section in enumerate(document.sections, 1) if section.verdicts]
    parts += [_html_overview(judged)] if len(judged) > 1 else []
    for number, section in enumerate(document.sections, 1):
        parts += _html_section(section, number, interactive=document.interactive)
    if document.runs:
        parts.append("<h2>The runs behind the numbers</h2>")
        parts += [_html_run(run) for run in document.runs]
    parts.append("<footer>" + "<br>".join(html.escape(line) for line in document.foot) + "</footer>")
    # plotly has several megabytes, which other pages do not need.
    if document.interactive and any(isinstance(block, Chart | Heat) for _, block in _figures(document)):
        parts.append(f"<script>{plotly_source()}</script>")
    return page(document.title, [*parts, script("page.js")])


def _html_overview(sections: Sequence[tuple[int, Section]]) -> str:
    """Return links to the sections with verdicts, each with the number of claims per outcome."""
    items = []
    for number, section in sections:
        counts = Counter(outcome for _, outcome, _ in section.verdicts)
        outcomes = ", ".join(f"{_VERDICT_MARKS.get(outcome, '')} {n} {outcome}" for outcome, n in counts.items())
        items.append(f'<li><a href="#section-{number}">{html.escape(section.title)}</a>: <b>{outcomes}</b></li>')
    return f"<nav><ul>{''.join(items)}</ul></nav>"


def _html_section(section: Section, number: int, *, interactive: bool) -> Iterator[str]:
    if section.title:
        yield f'<h2 id="section-{number}">{html.escape(section.title)}</h2>'
    if section.lead:
        yield f"<p>{html.escape(section.lead)}</p>"
    if section.verdicts:
        items = "".join(
            f'<li class="{outcome.replace(" ", "-")}"><b>{_VERDICT_MARKS.get(outcome, "")} {outcome}</b>: '
            f"{html.escape(statement)}<br><small>{html.escape(evidence)}</small></li>"
            for statement, outcome, evidence in section.verdicts
        )
        yield f'<ul class="verdicts">{items}</ul>'
    for place, (_, blocks) in enumerate(groupby(section.blocks, key=_curves)):
        for first, block in zip(chain((True,), repeat(False)), blocks, strict=False):
            group = f"{number}-{place}"
            yield _html_block(block, interactive=interactive, legend=first, group=group)
    for note in section.notes:
        yield f'<p class="note">{html.escape(note)}</p>'


def _curves(block: Block) -> tuple[object, ...]:
    """Return what successive charts must have in common to share a legend: the curves; no other block shares one."""
    return tuple((s.name, s.printed, s.points) for s in block.series) if isinstance(block, Chart) else (id(block),)


def _html_block(block: Block, *, interactive: bool, legend: bool, group: str) -> str:
    """Return a block as HTML; charts of one `group` have the same curves, and only one of them has a legend."""
    if isinstance(block, Text):
        return "".join(f"<p>{html.escape(line)}</p>" for line in block.lines)
    if isinstance(block, Table):
        return _html_table(block)
    # The title is outside the drawing, where it can wrap; plotly would cut it off on a phone.
    caption = f"<figcaption>{html.escape(block.title)}</figcaption>"
    if isinstance(block, Picture):
        return f"<figure>{image_element(block.png, block.alt or block.title)}{caption}</figure>"
    if isinstance(block, Thumbnails):
        return f"<figure>{caption}{_html_thumbnails(block)}</figure>"
    alt = block.alt or f"{block.title}: {block.y} against {block.x}"
    if not interactive:
        return drawing(page_figure(block, legend=legend), alt, caption=caption)
    return (
        f'<figure role="img" aria-label="{html.escape(alt)}">{caption}<div class="plot" data-group="{group}">'
        f"{json_element(plotly(block, legend=legend))}</div></figure>"
    )


def _html_thumbnails(block: Thumbnails) -> str:
    """Return the groups, each with its name and its images above their captions."""
    groups = []
    for name, images in block.groups:
        cells = "".join(
            f"<figure{f' class={image.mark}' if image.mark else ''}>{image_element(image.image, image.alt)}"
            f"<figcaption>{html.escape(image.caption)}</figcaption></figure>"
            for image in images
        )
        groups.append(f'<p>{html.escape(name)}</p><div class="thumbnails">{cells}</div>')
    return "".join(groups)


def _html_table(table: Table) -> str:
    head = "".join(f"<th scope='col'>{html.escape(name)}</th>" for name in ("", *table.columns))
    body = []
    for name, cells in table.rows:
        row = "".join(_html_cell(cell) for cell in cells)
        body.append(f"<tr><th scope='row'>{html.escape(name)}</th>{row}</tr>")
    return (
        f'<div class="wide" tabindex="0"><table class="sortable"><caption>{html.escape(table.title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _html_cell(cell: Number | str) -> str:
    """Return a table cell: our number with a link to its run and, below it, the paper's number."""
    if isinstance(cell, str):
        return f"<td>{html.escape(cell)}</td>"
    paper = (
        f"<small>paper {cell.printed:.{cell.digits}f}{_difference_text(cell)}</small>"
        if cell.printed is not None
        else ""
    )
    if cell.ours is None:
        return f'<td class="hole"><small>{html.escape(cell.why)}</small> {paper}</td>'
    link = f'<a href="#{html.escape(cell.runs[0])}">{_measured_text(cell)}</a>' if cell.runs else _measured_text(cell)
    # The script sorts by data-value: the number itself, not its rounded text.
    note = f" <small>{html.escape(cell.note)}</small>" if cell.note else ""
    return f'<td data-value="{cell.ours!r}" title="{html.escape(", ".join(cell.runs))}">{link}{note} {paper}</td>'


def _measured_text(cell: Number) -> str:
    spread = f" ± {cell.spread:.{cell.digits}f} ({cell.count})" if cell.count > 1 else ""
    return f"{cell.ours:.{cell.digits}f}{spread}"


def _difference_text(cell: Number) -> str:
    return "" if cell.difference is None else f" ({cell.difference:+.{cell.digits}f})"


def _html_run(run: RunNote) -> str:
    facts = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in run.facts)
    return f'<details id="{html.escape(run.name)}"><summary>{html.escape(run.name)}</summary><dl>{facts}</dl></details>'


def as_markdown(document: Document) -> str:
    """Return the document as Markdown; its figures are the PNG files that `write` puts in the same directory."""
    # The whole page is escaped, because it contains no HTML of ours, and its texts come from users.
    return re.sub(r"<(?=[a-zA-Z!/?])", "&lt;", _markdown(document))


def _markdown(document: Document) -> str:
    lines = [f"# {document.title}", ""]
    lines += [document.lead, ""] if document.lead else []
    # The same names, in the same order, as the files that `write` creates.
    names = iter([name for name, _ in _figures(document)])
    for section in document.sections:
        lines += [f"## {section.title}", ""] if section.title else []
        lines += [section.lead, ""] if section.lead else []
        lines += [f"- **{outcome}**: {statement} — {evidence}" for statement, outcome, evidence in section.verdicts]
        lines += [""] if section.verdicts else []
        for block in section.blocks:
            if isinstance(block, Table):
                lines += [*_markdown_table(block), ""]
            elif isinstance(block, Text):
                lines += [*block.lines, ""]
            else:
                lines += [f"![{block.title}]({next(names)}.png)", ""]
        lines += [line for note in section.notes for line in (f"_{note}_", "")]
    lines += document.foot
    return "\n".join(lines) + "\n"


def _markdown_table(table: Table) -> Iterator[str]:
    yield f"| {' | '.join(['', *map(_cell_text, table.columns)])} |"
    yield f"|{'---|' * (len(table.columns) + 1)}"
    for name, cells in table.rows:
        yield f"| {' | '.join([_cell_text(name), *map(_markdown_cell, cells)])} |"


def _cell_text(text: str) -> str:
    # A "|" would end the cell, and not every Markdown reader knows the escape "\|".
    return re.sub(r"\s*\|\s*", " / ", text)


def _markdown_cell(cell: Number | str) -> str:
    if isinstance(cell, str):
        return _cell_text(cell)
    note = f" ({_cell_text(cell.note)})" if cell.note else ""
    text = _cell_text(cell.why) if cell.ours is None else f"{_measured_text(cell)}{note}"
    return text if cell.printed is None else f"{text}, paper {cell.printed:.{cell.digits}f}{_difference_text(cell)}"
