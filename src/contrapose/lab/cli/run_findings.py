"""`contrapose doctor RUN`: what was found in a run while it trained, as text and as a page with curves and samples."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contrapose.doctor import Finding
from contrapose.doctor.doctor import summary
from contrapose.doctor.finding import worst_first
from contrapose.doctor.page import SHOWN_GROUPS, write_page
from contrapose.lab.training.findings import findings_in, looks_in
from contrapose.lab.training.records.files import read_records
from contrapose.lab.training.run import Run
from contrapose.lab.training.sources import load_own_data
from contrapose.validate import check_directory


def show_findings(folder: Path, out: Path | None, data_root: Path) -> None:
    """Print the findings in a run's records, and write the page.

    folder      directory of the run
    out         file of the page; None for doctor.html in the run's directory
    data_root   directory of downloaded data sets, for pictures of the samples that a finding names
    """
    run, records = Run.load(folder / "run.json"), read_records(folder)
    looks, findings = looks_in(records), worst_first(findings_in(records))
    if not looks:
        raise ValueError(
            f"run: nothing was looked at in {folder}: its first epoch has not ended, or it was trained by an earlier version; "
            "train it again with another --out"
        )
    path = folder / "doctor.html" if out is None else out
    check_directory("out", path.parent)
    left_out = {"checks of the gradient": looks[-1].not_asked} if looks[-1].not_asked else {}
    print(summary(looks[-1].step, len(looks), findings, left_out))
    samples = _samples(run, folder, findings, data_root)
    title = f"What the doctor found in {folder.resolve().name}"
    print(f"page {write_page(path, looks, findings, left_out, samples=samples, title=title)}")


def _samples(run: Run, folder: Path, findings: Sequence[Finding], data_root: Path) -> dict[int, Any]:
    """Return the pictures or texts of the samples that the page shows, by their numbers; none if the data has gone."""
    numbers = sorted({row for finding in findings for group in finding.rows[:SHOWN_GROUPS] for row in group})
    if not numbers:
        return {}
    notes: list[str] = []
    try:
        split = load_own_data(run, folder, data_root, notes.append)
    except ValueError as error:
        notes.append(str(error))
    if notes:  # other data has other samples at these numbers
        print(f"contrapose: the page shows no samples: {notes[0]}", file=sys.stderr)
        return {}
    previews = run.kind.previews(split.train.subset(numbers), run.view_maker(folder))
    return {
        number: preview.image or " / ".join(preview.texts) for number, preview in zip(numbers, previews, strict=True)
    }
