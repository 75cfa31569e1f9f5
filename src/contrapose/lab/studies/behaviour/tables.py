"""Studies of the tables of Wang & Liu, and of Equation 6."""

from __future__ import annotations

import math

from contrapose.lab.modalities.images.imagenet100 import IMAGENET100
from contrapose.lab.report.document import Block, Table
from contrapose.lab.studies.behaviour import printed
from contrapose.lab.studies.behaviour.methods import (
    ACCURACY,
    CONTRASTIVE_ROWS,
    DATA_SETS,
    HARD_CONTRASTIVE,
    NT_XENT,
    PRESET,
    PROBE,
    SHORT_SCALE,
    TOLERANCE,
    UNIFORMITY,
    axis_points,
    sweep_temperature,
)
from contrapose.lab.studies.claims import Claim, computed_claim, describe_cell, has_peak, is_above, is_near_best
from contrapose.lab.studies.measures import BeforeTraining
from contrapose.lab.studies.results import Results, column
from contrapose.lab.studies.study import Quantity, Row, Study

_TABLE1_QUANTITIES = (Quantity(name="accuracy", measure=ACCURACY.measure), UNIFORMITY, TOLERANCE)
_TABLE1_LOSSES = {
    **{f"Contrastive {tau:g}": NT_XENT.format(tau) for tau in (0.07, 0.3, 0.7, 1.0)},
    "Simple": "simple",
    **{f"HardContrastive {tau:g}": HARD_CONTRASTIVE.format(tau) for tau in (0.07, 0.3, 0.7, 1.0)},
    "HardSimple": "hard_simple(negatives=hardest({hardest}))",
}


def _table1_rows() -> tuple[Row, ...]:
    """Return a row for each loss in Table 1, with the paper's three numbers for each data set."""
    rows = []
    for name, loss in _TABLE1_LOSSES.items():
        numbers = {
            column(quantity.name, data_set): value
            for data_set, values in zip(printed.TABLE1_COLUMNS, printed.TABLE1[name], strict=True)
            for quantity, value in zip(_TABLE1_QUANTITIES, values, strict=True)
        }
        rows.append(Row(name=name, changes={"loss": loss}, printed=numbers))
    return tuple(rows)


def _show_classes(study: Study, results: Results) -> list[Block]:
    """Return the WordNet ids, ten per line."""
    rows = tuple((str(k + 1), (" ".join(IMAGENET100[k : k + 10]),)) for k in range(0, 100, 10))
    return [Table("The 100 WordNet ids, also CACR's Table 21", ("ids",), rows)]


def _has_100_classes(results: Results) -> tuple[bool, str]:
    return len(set(IMAGENET100)) == 100, f"{len(set(IMAGENET100))} different ids"


# Equation 6: accuracy after training minus accuracy before training measures what a row has learned.

_TRIPLET, _CONTRASTIVE = "triplet, margin 0", "contrastive τ = 0.2"


def _gains(row: str, *, at_most: float = math.inf, more_than: float = -math.inf) -> Claim:
    """Claim that training raises a row's accuracy by at most `at_most` points, or by more than `more_than` points."""

    def decide(results: Results) -> tuple[bool | None, str]:
        gains, evidence = [], []
        for data_set in results.sets:
            after, before = (results.cell(row, name, data_set) for name in ("accuracy", "before training"))
            gains.append(after.mean - before.mean)
            evidence.append(f"{data_set}: {describe_cell(after)} after training, {describe_cell(before)} before")
        if not gains or any(math.isnan(gain) for gain in gains):
            return None, "; ".join(evidence) or "not run"
        return all(more_than < gain <= at_most for gain in gains), "; ".join(evidence)

    how = f"at most {at_most:g}" if math.isfinite(at_most) else f"more than {more_than:g}"
    return computed_claim(f"{row} gains {how} points over the untrained encoder", decide)


# CACR's Table 21 has the same list.
IMAGENET100_CLASSES = Study(
    name="behaviour/supplement-table3",
    title="The classes of ImageNet-100",
    claim="A list of 100 WordNet ids.",
    show=_show_classes,
    claims=(computed_claim("the list has 100 ids", _has_100_classes),),
)

_CONTRASTIVE_LOSSES = tuple(name for name in printed.TABLE1 if "Contrastive" in name)

TABLES = (
    Study(
        name="behaviour/table1",
        title="Accuracy, uniformity and tolerance of contrastive, simple and hard losses",
        claim="Simple is far below the contrastive loss, and HardSimple competitive; hard losses are uniform at any temperature.",
        preset=PRESET,
        rows=_table1_rows(),
        quantities=_TABLE1_QUANTITIES,
        sets=DATA_SETS,
        claims=(
            is_above("HardSimple", "Simple", "accuracy", margin=2.0),
            is_above("HardSimple", "Simple", "-U", margin=0.3),
            is_above("Contrastive 0.07", "Contrastive 1", "-U", margin=0.1),
            is_above("Contrastive 1", "Contrastive 0.07", "T", margin=0.05),
            is_above("Contrastive 0.3", "Simple", "accuracy", margin=5.0),
            is_near_best("HardSimple", _CONTRASTIVE_LOSSES, "accuracy", within=2.0, of="the contrastive losses"),
        ),
        short_settings=SHORT_SCALE,
        note="ImageNet-100 at τ = 1: 65.49 and 73.78 are taken from the supplement; the paper's own table has 63.57 "
        "and 74.28.",
    ),
    Study(
        name="behaviour/equation6",
        title="The triplet limit as an objective",
        claim="Trained with the limit of τ → 0, max(s_max - s⁺, 0), the model cannot learn any useful information.",
        preset=PRESET,
        rows=(
            Row(name=_TRIPLET, changes={"loss": "triplet"}),
            Row(name=_CONTRASTIVE, changes={"loss": NT_XENT.format(0.2)}),
        ),
        quantities=(
            Quantity(
                name="accuracy", measure=ACCURACY.measure, paper="no number: it says that nothing useful is learned"
            ),
            Quantity(name="before training", measure=BeforeTraining(PROBE), extra=True),
        ),
        claims=(
            _gains(_TRIPLET, at_most=2.0),
            _gains(_CONTRASTIVE, more_than=10.0),
            is_above(_CONTRASTIVE, _TRIPLET, "accuracy", margin=10.0),
        ),
        short_settings=SHORT_SCALE,
        note="Linear probes before and after training show what is learned: even an untrained encoder is above chance.",
        differences=("The accuracies are ours.",),
    ),
    Study(
        name="behaviour/supplement-table1",
        title="Linear accuracy at twelve temperatures, contrastive loss",
        claim="Best at 0.2 or 0.3.",
        preset=PRESET,
        rows=sweep_temperature(NT_XENT, printed.SUPPLEMENT_TABLE1),
        quantities=(ACCURACY,),
        sets=DATA_SETS,
        short_settings=SHORT_SCALE,
        claims=(has_peak(axis_points(CONTRASTIVE_ROWS), low=0.1, high=0.5, margin=0.3, what="accuracy"),),
    ),
    Study(
        name="behaviour/supplement-table2",
        title="Linear accuracy at twelve temperatures, hard contrastive loss",
        claim="Best at large temperatures.",
        preset=PRESET,
        rows=sweep_temperature(HARD_CONTRASTIVE, printed.SUPPLEMENT_TABLE2),
        quantities=(ACCURACY,),
        sets=DATA_SETS,
        short_settings=SHORT_SCALE,
        claims=(is_above("τ = 0.7", "τ = 0.07", margin=1.0),),
    ),
    IMAGENET100_CLASSES,
)
