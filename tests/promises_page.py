"""A page of all promises, from promises.jsonl: `python tests/promises_page.py` writes reports/promises.html.

`-o docs/promises.md` writes a table in Markdown instead, such as the one of the last full count.

A promise whose tests have written no line is shown as missing, so that a promise without a test cannot hide.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrapose.lab.report.document import Document, Section, Table
from contrapose.lab.report.render import as_html

Line = dict[str, Any]  # one test, as the fixture `promise` writes it
_COLUMNS = ("promise", "what is promised", "kept", "cases", "tests", "worst figure", "seconds")


@dataclass(frozen=True)
class Row:
    """A promise, and the tests that show it: files of tests/promises, or the beginnings of their tests' names."""

    name: str
    sentence: str
    tests: tuple[str, ...]
    figure: str = ""  # what the worst figure measures; empty if the cases have none


PROMISES = (
    Row("values", "Every loss equals a float64 loop written from its paper, at any shape and temperature.",
        ("test_values.py",), "relative error"),
    Row("gradients", "Every gradient equals that of the formula, on every kind of pairs; higher derivatives are correct or refused.",
        ("test_gradients.py", "test_derivatives.py"), "relative error"),
    Row("identities", "The identities that the papers' arguments rely on hold.", ("test_identities.py",), "relative error"),
    Row("extremes", "Zero vectors, duplicates, low precision and low temperatures give finite values or a clear error.",
        ("test_extremes.py", "test_no_negatives.py"), "relative error"),
    Row("fast = plain", "Reductions in blocks and in Triton kernels are as exact as the dense formula.",
        ("test_fast_paths.py",), "relative error"),
    Row("world size", "1, 2 and 4 processes give the same losses, gradients and steps.",
        ("test_world_size.py", "test_synchronised.py", "test_large_batch.py"), "difference"),
    Row("determinism", "The same run twice, and with any number of loader workers, gives the same weights.",
        ("test_resume.py::test_twice_the_same", "test_workers.py::test_any_number_of_workers")),
    Row("kill -9", "A run that is killed at any moment, even during a write, resumes bit for bit.",
        ("test_resume.py::test_stopped_anywhere", "test_resume.py::test_kill_nine", "test_durable_writes.py::test_a_kill",
         "test_workers.py::test_killed", "test_killed_processes.py", "test_kills.py")),
    Row("SIGTERM", "A signal ends a run within one step and one write, and its progress is saved.",
        ("test_resume.py::test_a_signal",), "seconds to exit"),
    Row("torn write", "A write that fails at any point leaves a readable checkpoint.",
        ("test_checkpoints.py::test_a_failure_at_every_call_of_a_write[killed]", "test_durable_writes.py::test_everything")),
    Row("corruption", "Any change to a checkpoint is detected, and the previous one is used.",
        ("test_checkpoints.py::test_a_damaged_checkpoint", "test_checkpoints.py::test_everything_in_a_checkpoint")),
    Row("caches", "Any damage to a cache, or a cache of other data, is noticed and said, and the cache is computed again.",
        ("test_caches.py",)),
    Row("disk full", "A disk that is full at any point of a write leaves the previous checkpoint intact.",
        ("test_checkpoints.py::test_a_failure_at_every_call_of_a_write[disk full]",)),
    Row("NaN", "NaN or infinity in an image, a loss or a gradient stops the run before the weights change, and the message says where it is.",
        ("test_nan.py",)),
    Row("bad image", "Broken images are reported by name, and unusual ones are read.", ("test_bad_images.py",)),
    Row("dead worker", "A loader worker that dies or hangs ends the run with a clear error, and no process is left.",
        ("test_workers.py::test_a_dead_worker", "test_workers.py::test_a_worker_that_does_not_respond"), "seconds to the error"),
    Row("dead rank", "A process of a run on several that dies or stops ends the run in one line that names it, and the run resumes bit for bit.",
        ("test_ranks.py",), "seconds to the message"),
    Row("read-only", "Read-only data are read, and a directory that cannot be written to is refused in one line.", ("test_read_only.py",)),
    Row("no pickle", "No file can execute code.",
        ("test_checkpoints.py::test_a_pickle", "test_checkpoints.py::test_a_hostile_pth", "test_checkpoints.py::test_the_source")),
    Row("paths", "No setting and no member of an archive writes outside of the run's directory.", ("test_paths.py",)),
    Row("bad settings", "Every wrong setting is refused in one line before any data is read.", ("test_bad_settings.py",)),
    Row("studies", "A study that is killed, or started twice, repeats no run and misses none.", ("test_killed_studies.py",)),
    Row("report", "A report that is deleted and rebuilt has the same bytes.", ("test_rebuilt_report.py",)),
    Row("boundary", "Losses import only torch, and packages import only those of lower layers.", ("test_boundary.py",)),
    Row("threads and jobs", "A run is bit-identical with any number of jobs and any OMP_NUM_THREADS.",
        ("test_threads.py",)),
    Row("earlier versions", "A checkpoint of an earlier version resumes bit for bit.", ("test_earlier_versions.py",)),
    Row("another world size", "A run that resumes on another number of processes takes the same steps, or is refused.",
        ("test_other_world_size.py",), "difference"),
    Row("objects travel", "Pickled, copied, saved, and in spawned and Ray processes, objects compute the same values and gradients.",
        ("test_travelling_objects.py",)),
    Row("isolation", "No program is started, no network is used, and nothing is written outside of the run's directory and the caches.",
        ("test_isolation.py",)),
    Row("readers", "Every damaged file is read or refused with a ValueError.",
        ("test_fuzzed_readers.py", "test_fuzzed_detection.py", "test_fuzzed_tars.py", "test_fuzzed_names.py"), "seconds of a case"),
    Row("model folders", "Every damaged folder of a pretrained model is loaded or refused with a ValueError.", ("test_fuzzed_folders.py",),
        "seconds of a case"),
    Row("memory of hostile files", "No file makes us allocate gigabytes by what it claims to contain.", ("test_hostile_memory.py",),
        "MiB at the peak"),
    Row("memory", "Memory does not grow with the number of steps.", ("test_flat_memory.py",), "KiB per step"),
)  # fmt: skip


def matches(line_name: str, test: str) -> bool:
    """Return whether a line is of this test: a file, or the beginning of a test's name."""
    return line_name.startswith(test)


def read_lines(path: Path) -> list[Line]:
    """Return the last line of each test: a test that ran again replaces its line."""
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    return list({line["name"]: line for line in lines}.values())


def verdict(row: Row, lines: Sequence[Line]) -> str:
    """Return "yes", or why a promise is not shown to be kept."""
    if not lines:
        return "missing: no test has written a line"
    failed = [line["name"] for line in lines if not line["passed"]]
    absent = [test for test in row.tests if not any(matches(line["name"], test) for line in lines)]
    if failed:
        return f"no: {len(failed)} of {len(lines)} tests failed: {', '.join(failed[:3])}"
    return f"incomplete: no line of {', '.join(absent)}" if absent else "yes"


def cells(row: Row, lines: Sequence[Line]) -> tuple[str, ...]:
    """Return verdict, cases, tests, worst figure and seconds of a promise as text."""
    own = [line for line in lines if any(matches(line["name"], test) for test in row.tests)]
    worst = max((line["worst"] for line in own), default=0.0)
    figure = f"{worst:.2g} {row.figure}" if row.figure and own else "–"
    cases, seconds = (sum(line[key] for line in own) for key in ("cases", "seconds"))
    return verdict(row, own), f"{cases:,}", f"{len(own):,}", figure, f"{seconds:,.1f}"


def promises_page(lines: Sequence[Line]) -> str:
    """Return the page: the promises that are not kept, and one row for each promise, whether it has lines or not."""
    texts = [cells(row, lines) for row in PROMISES]
    kept = sum(text[0] == "yes" for text in texts)
    broken = [
        (row.sentence, "does not hold", f"{row.name}: {text[0].removeprefix('no: ')}")
        for row, text in zip(PROMISES, texts, strict=True)
        if text[0].startswith("no:")
    ]
    rows = tuple((row.name, (row.sentence, *text)) for row, text in zip(PROMISES, texts, strict=True))
    section = Section("", verdicts=tuple(broken), blocks=(Table("", _COLUMNS[1:], rows),))
    lead = f"{kept} of {len(PROMISES)} promises are shown to be kept."
    return as_html(Document("What contrapose promises", lead, (section,), foot=tuple(version_texts(lines))))


def promises_table(lines: Sequence[Line]) -> str:
    """Return the same as Markdown."""
    rows = [_COLUMNS, ("---",) * len(_COLUMNS), *((row.name, row.sentence, *cells(row, lines)) for row in PROMISES)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    kept = sum(cells(row, lines)[0] == "yes" for row in PROMISES)
    versions = "\n".join(f"- {text}" for text in version_texts(lines))
    return (
        f"# What contrapose promises\n\nAll cases of the tests that `make promises` runs: {kept} of {len(PROMISES)} promises are shown to be kept.\n\n"
        f"{table}\n\nVersions:\n\n{versions}\n"
    )


def version_texts(lines: Iterable[Line]) -> list[str]:
    """Return the versions with which the lines were written, each combination once."""
    known = [line["versions"] for line in lines if "versions" in line]
    return sorted({", ".join(f"{name} {version}" for name, version in versions.items()) for versions in known})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lines", type=Path, nargs="?", default=Path("promises.jsonl"))
    parser.add_argument("-o", "--out", type=Path, default=Path("reports/promises.html"))
    arguments = parser.parse_args()
    lines = read_lines(arguments.lines)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text((promises_table if arguments.out.suffix == ".md" else promises_page)(lines))
    for row in PROMISES:
        print(f"{row.name:20}{'  '.join(cells(row, lines))}")
    print(f"\n{arguments.out}")


if __name__ == "__main__":
    main()
