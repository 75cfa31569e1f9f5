"""Every table and figure of the four papers, as a command: runs, what they show, the printed numbers and the claim."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from contrapose.studies import balanced, behaviour, cacr, dystress
from contrapose.studies.study import SCALES, On, Plan, Quantity, Row, Study

STUDIES: Mapping[str, Study] = {
    study.name: study for paper in (dystress, behaviour, cacr, balanced) for study in paper.STUDIES
}

__all__ = ["SCALES", "STUDIES", "On", "Plan", "Quantity", "Row", "Study", "find"]


def find(name: str) -> Study:
    """A study by its name; the nearest names for one that is unknown."""
    if name not in STUDIES:
        near = [known for known in STUDIES if known.endswith(f"/{name}")]
        near = near or get_close_matches(name, STUDIES, n=3, cutoff=0.4)
        hint = f" did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ValueError(f"study: there is no {name!r};{hint} `contrapose study list` names all {len(STUDIES)}")
    return STUDIES[name]
