"""Write a document to files: a self-contained HTML page, the same page as Markdown, and its figures as PNG and SVG."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
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
from contrapose.lab.report.page import drawing, image_element, page
from contrapose.lab.report.style import save

_VERDICT_MARKS = {"holds": "✓", "does not hold": "✗", "undecided": "?", "too short to tell": "?"}
# Three small scripts: a click on a heading sorts a table, with empty cells last in both orders; a link to a run opens the run's
# details; and each chart is drawn from the JSON in its element.
_SCRIPT = """
for (const table of document.querySelectorAll('table.sortable')) {
  table.querySelectorAll('th').forEach((th, column) => {
    th.tabIndex = 0; th.setAttribute('role', 'button'); th.title = 'Sort by this column';
    const sort = () => {
      const down = th.getAttribute('aria-sort') === 'descending', body = table.tBodies[0];
      table.querySelectorAll('th').forEach(other => other.removeAttribute('aria-sort'));
      th.setAttribute('aria-sort', down ? 'ascending' : 'descending');
      const key = row => { const v = row.cells[column].dataset.value; return v === undefined || v === '' ? NaN : Number(v) };
      const text = row => row.cells[column].textContent;
      [...body.rows].sort((a, b) => {
        const x = key(a), y = key(b), sign = down ? 1 : -1;
        if (isNaN(x) && isNaN(y)) return sign * text(a).localeCompare(text(b));
        return isNaN(x) ? 1 : isNaN(y) ? -1 : sign * (x - y);
      }).forEach(row => body.append(row));
    };
    th.addEventListener('click', sort);
    th.addEventListener('keydown', e => { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); sort() } });
  });
}
const unfold = () => { const run = document.getElementById(location.hash.slice(1)); if (run) run.open = true };
addEventListener('hashchange', unfold); unfold();
for (const div of document.querySelectorAll('div.plot')) {
  const figure = JSON.parse(div.querySelector('script').textContent);
  div.replaceChildren();
  Plotly.newPlot(div, figure.data, figure.layout, {responsive: true, displaylogo: false});
}
"""


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
    (folder / "index.md").write_text(as_markdown(document))
    path = folder / "index.html"
    path.write_text(as_html(document))
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
    parts = [f"<p>{html.escape(document.lead)}</p>"] if document.lead else []
    for section in document.sections:
        parts += _html_section(section, interactive=document.interactive)
    if document.runs:
        parts.append("<h2>The runs behind the numbers</h2>")
        parts += [_html_run(run) for run in document.runs]
    parts.append("<footer>" + "<br>".join(html.escape(line) for line in document.foot) + "</footer>")
    # plotly has several megabytes, which other pages do not need.
    if document.interactive and any(isinstance(block, Chart | Heat) for _, block in _figures(document)):
        parts.append(f"<script>{plotly_source()}</script>")
    return page(document.title, [*parts, f"<script>{_SCRIPT}</script>"])


def _html_section(section: Section, *, interactive: bool) -> Iterator[str]:
    if section.title:
        yield f"<h2>{html.escape(section.title)}</h2>"
    if section.lead:
        yield f"<p>{html.escape(section.lead)}</p>"
    if section.verdicts:
        items = "".join(
            f'<li class="{outcome.replace(" ", "-")}"><b>{_VERDICT_MARKS.get(outcome, "")} {outcome}</b>: '
            f"{html.escape(statement)}<br><small>{html.escape(evidence)}</small></li>"
            for statement, outcome, evidence in section.verdicts
        )
        yield f'<ul class="verdicts">{items}</ul>'
    for block in section.blocks:
        yield _html_block(block, interactive=interactive)
    for note in section.notes:
        yield f'<p class="note">{html.escape(note)}</p>'


def _html_block(block: Block, *, interactive: bool) -> str:
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
        return drawing(page_figure(block), alt, caption=caption)
    # "</script>" would end the element early, and "<!--<script" would extend it to the end of the page; in JSON,
    # "\u003c" is the same character.
    data = json.dumps(plotly(block), ensure_ascii=False).replace("<", "\\u003c")
    return (
        f'<figure role="img" aria-label="{html.escape(alt)}">{caption}<div class="plot">'
        f'<script type="application/json">{data}</script></div></figure>'
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
        f'<div class="wide"><table class="sortable"><caption>{html.escape(table.title)}</caption>'
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
