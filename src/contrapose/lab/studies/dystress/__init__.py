"""Studies of Manna et al., Dynamically Scaled Temperature in Self-Supervised Contrastive Learning (DySTreSS).

A new study is one entry of `FIGURES` or `TABLES`; the numbers that the paper prints for it go to `printed`, under the number
of its table.

    printed      the numbers of the paper's tables
    methods      losses and settings of its methods, quantities, data sets, and functions that make rows of them
    equation     Figure 2: solutions of the differential equation for τ(s)
    figures      studies of the other figures
    tables       studies of the tables
    long_tails   those of Tables 4 to 7
    sentences    that of Table 12
    notes        sentences that several studies share
"""

from __future__ import annotations

from contrapose.lab.studies.dystress.figures import FIGURES
from contrapose.lab.studies.dystress.notes import with_notes
from contrapose.lab.studies.dystress.tables import TABLES

STUDIES = tuple(with_notes(study) for study in (*FIGURES, *TABLES))
