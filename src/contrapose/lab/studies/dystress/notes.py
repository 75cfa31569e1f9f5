"""Notes that many studies of DySTreSS share: what the paper does not say, and what remains different here."""

from __future__ import annotations

from contrapose.lab.studies.dystress.methods import LINEAR, LONG_TAIL
from contrapose.lab.studies.study import Study
from contrapose.lab.training import PRESETS

_PROBE = "The paper does not describe its linear probe; we use lightly's probe and report its best epoch."
_SIMCLR = "The paper does not give SimCLR's temperature; we use lightly's, 0.5 on CIFAR and 0.1 on ImageNet."
_RATE = "The learning rate is the paper's 0.06, with a momentum of 0.9; the authors' code has 0.2 and no momentum."
_CIFAR100 = "CIFAR-100 is normalised with CIFAR-10's statistics, as in the authors' code."
_DRAW = "The class sizes are those in the authors' code; we choose at random which images of a class are kept."


def with_notes(study: Study) -> Study:
    """Return a study with the notes that apply to its settings, losses and data added."""
    if not study.preset:
        return study
    settings, measures = PRESETS[study.preset], {quantity.measure for quantity in study.quantities}
    notes = {
        _PROBE: LINEAR[0].measure in measures,
        _SIMCLR: any(row.name == "SimCLR" for row in study.rows),
        _RATE: settings["lr"] == 0.06 and not all("lr" in row.changes for row in study.rows),
        _CIFAR100: settings["lr"] == 0.06 and any(study_data.data == "cifar100" for study_data in study.sets),
    }
    differences = {
        _DRAW: any(study_data.changes.get("imbalance") == LONG_TAIL for study_data in study.sets),
    }
    return study.with_sentences(notes=notes, differences=differences)
