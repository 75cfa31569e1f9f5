"""The reference: Python names with links to their pages, commands, presets, conformance, and the verdicts of studies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from inspect import Parameter, Signature, getdoc, isfunction, signature
from io import StringIO
from typing import Any

import conformance

import contrapose
from contrapose import metrics
from contrapose.conformance.findings import Finding, worst
from contrapose.lab.cli import main
from contrapose.lab.cli.commands import COMMANDS
from generated import ROOT, texts
from generated.losses import page_of_objective
from generated.parts import page_of_name

_KINDS = {
    "losses": "Losses",
    "pairs": "Pairs and negatives",
    "temperature": "Temperatures",
    "metrics": "Metrics",
    "": "Other names",
}
_API = """# Python

Everything that `import contrapose` offers, and the metrics in `contrapose.metrics`. In shapes, n is the number of anchors or
embeddings, m of samples, V of views, d of dimensions."""
_CONFORMANCE = """# Conformance

Whether a criterion computes what it should: value and gradient against a dense reference in float64. A cell is the worst result
of a check; [is a contrastive loss correct?](../conformance.md) explains the checks, the cells, and how to check your own loss.
"""
_STUDIES = """# Studies

A study reproduces a table, a figure or a theorem of a paper: `contrapose study run NAME`. There are {count} of them. The
verdicts below are those of the runs that we recorded; [results](results.md) has their commands and all numbers. Studies without a
verdict were not run. "Undecided" means that the difference is smaller than the claim's margin or than two standard errors. "Older
runs" are those of version 0.1, which did not record the study's own quantity, such as the accuracy of the paper's probe; the
verdict is on the quantity that is named instead.

## Recorded verdicts

| study | verdict | claim of the paper | measured |
|---|---|---|---|
{verdicts}

{protocols}"""
# As `contrapose study report` prints them, or in a list
_VERDICT = re.compile(
    r"^(?:    (?P<study>\w+/[\w-]+): |- \*\*)(?P<verdict>holds|does not hold|undecided)(?:\*\*)?: (?P<claim>[^\n]+?)"
    r"(?:\n {8}|: )(?P<figures>[^\n]+)$",
    re.MULTILINE,
)


def public_names() -> dict[str, Any]:
    """Return what `import contrapose` and `contrapose.metrics` offer, by full name."""
    names = {f"contrapose.{name}": getattr(contrapose, name) for name in contrapose.__all__ if name != "CATALOGUE"}
    known = set(map(id, names.values()))
    own = {f"contrapose.metrics.{name}": getattr(metrics, name) for name in metrics.__all__}
    return names | {name: value for name, value in own.items() if id(value) not in known}


def names_by_kind() -> Iterator[tuple[str, list[str]]]:
    """Yield the title of each section of the reference and the names in it."""
    kinds = {name: _kind(value) for name, value in public_names().items()}
    for kind, title in _KINDS.items():
        chosen = [name for name, own in kinds.items() if own == kind or (not kind and own not in _KINDS)]
        yield title, sorted(chosen, key=str.lower)


def api_page() -> str:
    """Return the reference of all public names, by the module that defines them."""
    lines = [_API]
    for title, names in names_by_kind():
        lines += ["", f"## {title}", "", "```{eval-rst}"]
        for name in names:
            is_class = isinstance(public_names()[name], type)
            lines += [f".. {'autoclass' if is_class else 'autofunction'}:: {name}", *["   :members:"] * is_class, ""]
            lines += [f"   {line}" for line in more_on(name)]
        lines.append("```")
    return "\n".join(lines) + "\n"


def api_markdown() -> str:
    """Return the same reference as Markdown: each name with its signature and docstring."""
    lines = [_API]
    for title, names in names_by_kind():
        lines += ["", f"## {title}"]
        for name in names:
            lines += ["", *_described(name, public_names()[name], level=3)]
    return "\n".join(lines) + "\n"


def _described(name: str, value: Any, *, level: int) -> Iterator[str]:
    """Yield a heading with the signature, the docstring, and for a class its public methods."""
    yield from (f"{'#' * level} `{name}{_signature(value)}`", "", getdoc(value) or "")
    members = vars(value).items() if isinstance(value, type) else ()
    for own, member in members:
        if not own.startswith("_") and isfunction(member) and member.__doc__:
            yield from ("", *_described(f"{name}.{own}", member, level=level + 1))


def _signature(value: Any) -> str:
    """Return a signature without types, as in a call."""
    parameters = [one.replace(annotation=Parameter.empty) for one in signature(value).parameters.values()]
    # A function as a default would print the address at which it lies.
    return re.sub(r"<function (\w+) at 0x\w+>", r"\1", str(Signature(parameters)))


def more_on(name: str) -> Iterator[str]:
    """Yield a link to a name's page and, if its docstring has no example, the example of that page."""
    page, example = page_and_example(name)
    if not page:
        return
    if ">>>" not in (getdoc(public_names()[name]) or "") and example:
        yield from (".. code-block:: python", "", *(f"   {line}" for line in example.strip().splitlines()), "")
    yield from (f"More: :doc:`/{page}`", "")


def page_and_example(name: str) -> tuple[str, str]:
    """Return the page that describes a public name, and the example on it; "" without one."""
    short = name.rpartition(".")[2]
    objectives = texts("losses")["objectives"]
    if short in objectives:
        return f"losses/{page_of_objective(short)}", objectives[short]["example"]
    page = page_of_name().get(short, "")
    if not page:
        return "", ""
    kind, _, own = page.partition("/")
    return page, texts(kind)[own]["example"]


def _kind(value: object) -> str:
    module = getattr(value, "__module__", "") or ""
    return module.split(".")[1] if module.count(".") else ""


def commands_page() -> str:
    """Return the help of every command."""
    lines = ["# Commands"]
    for command in COMMANDS:
        lines += ["", f"## contrapose {command}", "", "```text", _run(*command.split(), "--help").rstrip(), "```"]
    return "\n".join(lines) + "\n"


def presets_page() -> str:
    """Return the list of presets."""
    return f"# Presets\n\n`contrapose train --preset NAME`:\n\n```text\n{_run('presets').rstrip()}\n```\n"


def _run(*arguments: str) -> str:
    """Return what a command prints."""
    printed = StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main(list(arguments))
    return printed.getvalue()


def conformance_page() -> str:
    """Return the table of criteria and checks, and all findings that are not ok, from conformance.json."""
    _, findings = _conformance()
    failed = [(name, f) for name, own in findings.items() for group in own.values() for f in group if f.failed]
    lines = [_CONFORMANCE, conformance_table(), "", "## All findings that are not ok", ""]
    lines += [f"- **{name}**, {finding}" for name, finding in failed]
    return "\n".join(lines) + "\n"


def conformance_table() -> str:
    """Return a row per criterion, with the worst finding of each check from conformance.json."""
    record, findings = _conformance()
    checks = list(dict.fromkeys(row["check"] for row in record["rows"]))
    lines = [f"| criterion | version | {' | '.join(checks)} |", "|---" * (2 + len(checks)) + "|"]
    for criterion, own in findings.items():
        promised = record["promised"][criterion]
        cells = [
            conformance.cell(worst(own[check]), promised=check in promised) if check in own else "" for check in checks
        ]
        lines.append(f"| {criterion} | {record['versions'][criterion]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _conformance() -> tuple[dict[str, Any], dict[str, dict[str, list[Finding]]]]:
    """Return conformance.json, and its findings by criterion and check."""
    record = json.loads((ROOT / "benchmarks/conformance.json").read_text())
    findings: dict[str, dict[str, list[Finding]]] = {}
    for row in record["rows"]:
        own = {key: value for key, value in row.items() if key != "criterion"}
        findings.setdefault(row["criterion"], {}).setdefault(row["check"], []).append(Finding(**own))
    return record, findings


def verdicts() -> list[tuple[str, str, str, str]]:
    """Return the recorded verdicts: study, verdict, claim and figures.

    They are read from results/README.md, which a test compares with what `contrapose study report` computes from the records.
    """
    found = []
    for section in (ROOT / "results/README.md").read_text().split("\n## "):
        heading = re.match(r"[^:\n]+: (?P<topic>[^\n(]+) \(`(?P<study>\w+/[\w-]+)`", section)
        for row in _VERDICT.finditer(section):
            # A claim without a run on one side says nothing.
            without_run = "no result" in row["figures"] or "nothing" in row["figures"]
            if heading and not (row["verdict"] == "undecided" and without_run):
                study = f"{row['study'] or heading['study']}, {heading['topic']}"
                found.append((study, row["verdict"], row["claim"], row["figures"]))
    return found


def studies_page(protocols: str) -> str:
    """Return docs/studies.md with the recorded verdicts in front of the protocols."""
    rows = [f"| {study} | {verdict} | {claim} | {figures} |" for study, verdict, claim, figures in verdicts()]
    count = len(re.findall(r"^\| \w+/", protocols, re.MULTILINE))
    # One level lower, since the protocols are a section of this page.
    lower = re.sub(r"^#", "##", protocols, flags=re.MULTILINE)
    page = _STUDIES.format(count=count, verdicts="\n".join(rows), protocols=lower)
    return re.sub(r"^\| ([a-z]+)/(table|figure|section)([\w.-]+)", _in_words, page, flags=re.MULTILINE)


def _in_words(study: re.Match[str]) -> str:
    """Return a study's name as readers search for it, "CACR Table 2", and as commands take it."""
    paper = {"dystress": "DySTreSS", "cacr": "CACR", "behaviour": "Wang & Liu", "balanced": "Lee"}[study[1]]
    return f"| {paper} {study[2].title()} {study[3]}, `{study[1]}/{study[2]}{study[3]}`"
