"""Studies of Lee, Understanding Self-supervised Contrastive Learning through Supervised Objectives: the balanced loss.

To add a study, add one entry to `FIGURES` or `TABLES`, and the paper's numbers to `printed`, under the table's number.

    printed    the numbers of the paper's tables
    methods    losses, probes and data sets
    figures    studies of the figures
    tables     studies of the tables
    theorems   studies of the lemma and the theorems, computed without training
"""

from __future__ import annotations

from dataclasses import replace

from contrapose.lab.studies.balanced.figures import FIGURES
from contrapose.lab.studies.balanced.methods import CIFAR_PRESET
from contrapose.lab.studies.balanced.tables import TABLES
from contrapose.lab.studies.balanced.theorems import THEOREMS

_SCHEDULE = "The paper mentions the cosine schedule only for ImageNet; here, CIFAR-10 uses it too."
STUDIES = tuple(
    replace(study, note=f"{study.note} {_SCHEDULE}".strip()) if study.preset == CIFAR_PRESET else study
    for study in (*FIGURES, *TABLES, *THEOREMS)
)
