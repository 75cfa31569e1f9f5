"""Studies: every table and figure of the four papers, as a command.

A study consists of runs, quantities to measure, the numbers that the paper prints, and claims that the results decide. Each
paper is a package; a new study is one entry of its `figures` or `tables`, and its printed numbers go to the paper's `printed`.
A new quantity is a subclass of `measures.Evaluation`, beside the study or in `measures`. A new paper is a package with
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
    """Return a study by its name. The error for an unknown name suggests the nearest ones."""
    if name not in STUDIES:
        suggestions = [known for known in STUDIES if known.endswith(f"/{name}")]  # "figure9" without its paper
        suggestions = suggestions or get_close_matches(name, STUDIES, n=3, cutoff=0.4)
        hint = f" did you mean {' or '.join(map(repr, suggestions))}?" if suggestions else ""
        raise ValueError(f"study: there is no {name!r};{hint} `contrapose study list` names all {len(STUDIES)}")
    return STUDIES[name]
