"""Check the criteria in contrapose and in installed libraries with `contrapose.conformance`.

python benchmarks/conformance.py                                    # a table of all installed libraries
python benchmarks/conformance.py --peers lightly --details          # one library, with every finding
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from peer import Peer
from peers import PEERS

from contrapose.conformance import CHECKS, Finding
from contrapose.conformance.findings import worst
from contrapose.conformance.processes import start_server
from contrapose.lab.training.records.files import environment, write_json_atomically
from contrapose.validate import check_known

LEGEND = {
    "formula": "value and gradient in float64 against a dense reference. If wrong: it is another loss, or another temperature.",
    "distributed": "gradient of 2 and 4 processes, averaged, and of 2 with FSDP2, against one process with the whole batch; "
    "ours with gathered embeddings and in a ring. × 0.5: with 2 processes right up to this factor, so scale the learning rate. "
    "If wrong: gather with gradients. –: no such option.",
    "duplicates": "the batch holds one sample twice; how much the loss rises as the copies become more similar. "
    "no ids: copies are negatives of each other, so keep them out of a batch.",
    "bf16": "bf16 embeddings against float64 on the same rounded embeddings, views far apart and close together; ok up to 5 %. "
    "If wrong: pass embeddings.float().",
    "fp16": "the same in fp16.",
    "autocast": "float32 embeddings under torch.autocast (CPU, bf16); ok up to 5 %. If wrong: compute the loss outside autocast.",
    "temperature": "float32 embeddings at τ = 0.01, 0.001 and 0.0001. If NaN: exponentials "
    "overflow; use a log-sum-exp. If wrong: the loss of hard samples is cut off.",
    "degenerate": "a zero vector, identical rows, one pair, strided memory, lengths from 1e-30 to 1e30: finite, or a ValueError. "
    "wrong 3e+11: the gradient of a zero vector is that large, so clip gradients or leave such vectors out.",
}
Results = dict[str, dict[str, list[Finding]]]  # by peer and check


@dataclass(frozen=True)
class CheckLibraries:
    """Check contrastive criteria: gradients in several processes, duplicates, low precision, low temperatures, limits.

    The criteria come from contrapose, from plain PyTorch (two forms) and, if installed, from the libraries in peers.py and
    further_peers.py. A dash is not offered; a figure after it was measured although the library does not promise the behaviour.
    The exit code is 1 if a contrapose criterion fails.
    """

    peers: tuple[str, ...] = ()
    """Check only these criteria, such as contrapose, pytorch or lightly."""
    checks: tuple[str, ...] = ()
    """Run only these checks: formula, distributed, duplicates, bf16, fp16, autocast, temperature or degenerate."""
    details: bool = False
    """List every finding that is not ok, with the case in which it was found."""
    json: Path | None = None
    """JSON file for all findings, with machine and versions."""

    def __call__(self) -> None:
        """Print a table of criteria and checks, and what the columns mean."""
        for name in self.peers:
            check_known("peers", name, PEERS)
        for name in self.checks:
            check_known("checks", name, CHECKS)
        if self.json is not None:
            # Before the checks, so that a path that cannot be written fails at once.
            self.json.parent.mkdir(parents=True, exist_ok=True)
        peers = [PEERS[name] for name in self.peers or PEERS]
        checks = self.checks or tuple(CHECKS)
        results = run_checks(peers, checks)
        print(render_table(peers, checks, results), end="")
        for name in checks:
            print(textwrap.fill(f"{name}: {LEGEND[name]}", width=120, subsequent_indent="  "))
        failures = [(name, finding) for name, finding in _all(results) if finding.verdict != "ok"]
        if self.details:
            print("\n" + "\n".join(f"{name}: {finding}" for name, finding in failures))
        if self.json is not None:
            write_json_atomically(self.json, as_record(peers, results))
            print(f"findings written to {self.json}")
        ours = [f"{name}: {finding}" for name, finding in failures if PEERS[name].ours and finding.failed]
        if ours:
            print("contrapose: its own criteria fail: " + "; ".join(ours), file=sys.stderr)
            raise SystemExit(1)


def run_checks(peers: Sequence[Peer], checks: Sequence[str]) -> Results:
    """Return the findings of the installed peers, showing progress."""
    work = [(peer, name) for peer in peers if peer.version for name in checks if name in peer.checks]
    results: Results = {peer.name: {} for peer in peers}
    with _progress(len(work)) as advance:
        if "distributed" in checks:
            modules = {peer.module for peer, _ in work if peer.distributed}
            start_server(sorted(modules | {"peers", "torch.distributed.fsdp"}))
        for peer, name in work:
            advance(f"{peer.name}: {name}")
            results[peer.name][name] = peer.check(name)
    return results


def render_table(peers: Sequence[Peer], checks: Sequence[str], results: Results) -> str:
    """Return the table: a row per criterion, and in each cell the worst finding of a check."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("criterion", "version", *checks):
        table.add_column(heading, no_wrap=True)
    for peer in peers:
        if peer.version:
            findings = results[peer.name]
            cells = [
                cell(worst(findings[name]), promised=name in peer.promised) if name in findings else ""
                for name in checks
            ]
            table.add_row(peer.name, peer.version, *cells)
        else:
            table.add_row(peer.name, "not installed")
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)  # a file has no width, and cells must not be cut off
    with console.capture() as captured:  # printed by `print`, because rich exits the process if the output is closed
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def cell(finding: Finding, *, promised: bool = True) -> str:
    """Return the cell of a finding. What a library does not promise is not wrong: a dash, and what was measured."""
    figure = "" if finding.figure is None else f" {finding.figure:.2g}"
    match finding.verdict:
        case "ok":
            return f"ok {finding.figure:.0e}" if finding.figure and finding.figure > 0 else "ok"
        case "not offered":
            return "no ids" if finding.check == "duplicates" else "–"
        case "scaled":
            return f"×{figure}"
        case "differs":
            return f"wrong{figure}" if promised else f"–{figure}"
        case "not finite":
            return "NaN" if promised else "– NaN"
        case _:
            return "raises" if promised else "– raises"


def as_record(peers: Sequence[Peer], results: Results) -> dict[str, Any]:
    """Return all findings for JSON, with machine and versions."""
    rows = [{"criterion": name, **finding.record()} for name, finding in _all(results)]
    versions = {peer.name: peer.version or "not installed" for peer in peers}
    promised = {peer.name: list(peer.promised) for peer in peers}
    return {"machine": environment(torch.device("cpu")), "versions": versions, "promised": promised, "rows": rows}


def _all(results: Results) -> Iterator[tuple[str, Finding]]:
    for name, by_check in results.items():
        for findings in by_check.values():
            yield from ((name, finding) for finding in findings)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function that announces the next check: on a bar in a terminal, otherwise as a line on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(highlight=False, stderr=True)
    if not console.is_terminal:
        count = iter(range(1, total + 1))
        yield lambda text: print(f"{next(count)} of {total}: {text}", file=sys.stderr, flush=True)
        return
    columns = (BarColumn(), TextColumn("{task.completed} of {task.total}"), TimeElapsedColumn(),
               TextColumn("{task.description}"))  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting processes", total=total)
        count = iter(range(total))  # checks that are done when the next one is announced
        yield lambda text: bar.update(task, completed=next(count), description=text)


if __name__ == "__main__":
    tyro.cli(CheckLibraries)()
