"""Studies: every table and figure of the four papers, as a command.

A study consists of runs, quantities to measure, the paper's numbers, and claims that the results confirm or refute. Each
paper is a package. To add a study, add one entry to the package's `figures` or `tables`, and the paper's numbers to `printed`.
A new quantity is a subclass of `measures.Evaluation`, defined next to the study or in `measures`. A new paper is a package with
`STUDIES`, added here and to `study.PAPERS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from contrapose.lab.studies import balanced, behaviour, cacr, dystress
from contrapose.lab.studies.study import SCALES, Plan, Quantity, Row, Study, StudyData

STUDIES: Mapping[str, Study] = {
    study.name: study for paper in (dystress, behaviour, cacr, balanced) for study in paper.STUDIES
}

__all__ = ["SCALES", "STUDIES", "Plan", "Quantity", "Row", "Study", "StudyData", "find"]


def find(name: str) -> Study:
    """Return a study by its name. The error for an unknown name suggests similar names."""
    if name not in STUDIES:
        suggestions = [
            known for known in STUDIES if known.endswith(f"/{name}")
        ]  # the user typed "figure9" without the paper
        suggestions = suggestions or get_close_matches(name, STUDIES, n=3, cutoff=0.4)
        hint = f" did you mean {' or '.join(map(repr, suggestions))}?" if suggestions else ""
        raise ValueError(f"study: there is no {name!r};{hint} `contrapose study list` names all {len(STUDIES)}")
    return STUDIES[name]
