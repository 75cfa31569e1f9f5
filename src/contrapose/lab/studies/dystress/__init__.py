"""Studies of Manna et al., Dynamically Scaled Temperature in Self-Supervised Contrastive Learning (DySTreSS).

To add a study, add one entry to `FIGURES` or `TABLES`, and the paper's numbers to `printed`, under the table's number.

    printed      the numbers of the paper's tables
    methods      losses and settings of its methods, quantities, data sets, and functions that build rows from them
    equation     Figure 2: solutions of the differential equation for τ(s)
    figures      studies of the other figures
    tables       studies of the tables
    long_tails   studies of Tables 4 to 7
    sentences    the study of Table 12
    notes        sentences that several studies share
"""

from __future__ import annotations

from contrapose.lab.studies.dystress.figures import FIGURES
from contrapose.lab.studies.dystress.notes import with_notes
from contrapose.lab.studies.dystress.tables import TABLES

STUDIES = tuple(with_notes(study) for study in (*FIGURES, *TABLES))
