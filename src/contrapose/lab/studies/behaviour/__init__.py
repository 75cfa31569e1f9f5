"""Studies of Wang & Liu, Understanding the Behaviour of Contrastive Loss.

Hardness, uniformity and tolerance, and the hard contrastive loss. To add a study, add one entry to `FIGURES`, `TABLES` or
`SUPPLEMENT_FIGURES`, and the paper's numbers to `printed`, under the table's number.

    printed    the numbers of the paper's tables
    methods    losses, data sets, and functions that build rows from them
    notes      sentences that many studies share
    figures    studies of the figures
    tables     studies of the tables
"""

from __future__ import annotations

from dataclasses import replace

from contrapose.lab.studies.behaviour.figures import FIGURES, SUPPLEMENT_FIGURES
from contrapose.lab.studies.behaviour.methods import LOSS_VALUES
from contrapose.lab.studies.behaviour.notes import with_notes
from contrapose.lab.studies.behaviour.tables import TABLES

STUDIES = tuple(
    replace(with_notes(study), loss_values=LOSS_VALUES) for study in (*FIGURES, *TABLES, *SUPPLEMENT_FIGURES)
)
