"""Studies of Zheng et al., Contrastive Attraction and Contrastive Repulsion (CACR).

Small data sets, long tails, MoCo, and variants of the objective. To add a study, add one entry to `FIGURES`, `TABLES` or
`IMAGENET_TABLES`, and the paper's numbers to `printed`, under the table's number.

    printed           the numbers of the paper's tables
    methods           losses and settings of its methods, its data sets, and functions that build rows from them
    figures           studies of the figures
    queries           what Figures 6 and 7 show about one query
    tables            studies of the tables on CIFAR and STL-10
    imagenet_tables   studies of the tables on ImageNet
    transfer          the study of Table 6
    captions          the study of Table 19
    steps             claims about the time of a step
    theorems          studies of the property and the lemmas, computed without training
    baselines         settings of the methods that CACR is compared with on ImageNet
    notes             sentences that several studies share
"""

from __future__ import annotations

from dataclasses import replace

from contrapose.lab.studies.cacr.figures import FIGURES
from contrapose.lab.studies.cacr.imagenet_tables import IMAGENET_TABLES
from contrapose.lab.studies.cacr.methods import LOSS_VALUES
from contrapose.lab.studies.cacr.notes import with_notes
from contrapose.lab.studies.cacr.tables import TABLES
from contrapose.lab.studies.cacr.theorems import THEOREMS

# In the order of the paper.
_TABLES = sorted(
    (*TABLES, *IMAGENET_TABLES), key=lambda study: int(study.name.removeprefix("cacr/table").split("-")[0])
)
STUDIES = tuple(replace(with_notes(study), loss_values=LOSS_VALUES) for study in (*FIGURES, *_TABLES, *THEOREMS))
