"""Studies of the figures of Wang & Liu and of its supplement."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch

from contrapose.explanation import Subject, relative_penalty
from contrapose.lab.report.document import Block, Chart, Series, Table, points, words
from contrapose.lab.studies.behaviour import printed
from contrapose.lab.studies.behaviour.methods import (
    ACCURACY,
    CONTRASTIVE_ROWS,
    DATA_SETS,
    HARD_CONTRASTIVE,
    HARD_ROWS,
    NT_XENT,
    PRESET,
    SHORT_SCALE,
    TOLERANCE,
    UNIFORMITY,
    axis_points,
    sweep_temperature,
)
from contrapose.lab.studies.claims import (
    Claim,
    computed_claim,
    has_peak,
    is_above,
    is_monotonic,
    on_data_sets,
    stays_within,
)
from contrapose.lab.studies.measures import Map, Metric
from contrapose.lab.studies.report_blocks import curves, maps, table
from contrapose.lab.studies.results import Results
from contrapose.lab.studies.study import CIFAR100, Quantity, Row, Study, StudyData
from contrapose.losses import nt_xent
from contrapose.pairs import two_views

# Figure 1: the loss does not change if two images swap places.


def _swapped_losses() -> list[tuple[str, float, float]]:
    """Return (temperature, loss, loss after two images swapped places) for random embeddings."""
    generator = torch.Generator().manual_seed(0)
    z1, z2 = (torch.randn(8, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    order = torch.tensor([5, 1, 2, 3, 4, 0, 6, 7])
    losses = []
    for tau in (0.07, 0.2, 1.0):
        loss = partial(nt_xent, temperature=tau)
        before, after = float(loss(two_views(z1, z2))), float(loss(two_views(z1[order], z2[order])))
        losses.append((f"τ = {tau:g}", before, after))
    return losses


def _show_swapped(study: Study, results: Results) -> list[Block]:
    rows = tuple((name, (f"{before:.6f}", f"{after:.6f}")) for name, before, after in _swapped_losses())
    return [
        words(
            "Two images change places, each with its own augmentation: the loss does not notice, the semantics would."
        ),
        Table("Loss before and after", ("before", "after"), rows),
    ]


def _same_loss(results: Results) -> tuple[bool, str]:
    worst = max(abs(before - after) for _, before, after in _swapped_losses())
    return worst < 1e-12, f"largest difference {worst:.1e}"


# Figure 3 and the proof in the supplement: the relative penalty of negatives that are spread evenly over all similarities.

_SIMILARITIES = torch.linspace(-1, 1, 201, dtype=torch.float64)
_PENALTY_TEMPERATURES = (0.07, 0.1, 0.2, 0.5, 1.0)


def _penalty(tau: float) -> torch.Tensor:
    return relative_penalty(Subject.of(NT_XENT.format(tau)), _SIMILARITIES)


def _show_penalties(study: Study, results: Results) -> list[Block]:
    x = tuple(_SIMILARITIES.tolist())
    series = tuple(Series(f"τ = {tau:g}", x, tuple(_penalty(tau).tolist())) for tau in _PENALTY_TEMPERATURES)
    return [Chart(title=study.title, x="similarity of a negative", y="relative penalty r", series=series)]


def _is_sharper(results: Results) -> tuple[bool, str]:
    hardest = [float(_penalty(tau)[-1]) for tau in _PENALTY_TEMPERATURES]
    evidence = "share of the hardest: " + ", ".join(f"{share:.3f}" for share in hardest)
    return hardest == sorted(hardest, reverse=True), evidence


def _entropies() -> list[float]:
    """Return the entropy of the relative penalty, in nats, at each temperature."""
    return [float(torch.special.entr(_penalty(tau)).sum()) for tau in printed.TEMPERATURES]


def _show_entropy(study: Study, results: Results) -> list[Block]:
    series = Series("H(r)", printed.TEMPERATURES, tuple(_entropies()))
    return [Chart(title=study.title, x="temperature", y="entropy of r, nats", series=(series,))]


def _entropy_rises(results: Results) -> tuple[bool, str]:
    entropies = _entropies()
    return entropies == sorted(entropies), f"from {entropies[0]:.3f} to {entropies[-1]:.3f} nats"


# Figure 8 and Figures 1 to 7 of the supplement: similarity to the positive and to the nearest negatives.

_NEAREST = tuple(f"n{k}" for k in range(1, 11))


def _separation_quantity(name: str) -> Quantity:
    """Return an entry of the local separation: `positive`, `n1` to `n10` or `gap`."""
    return Quantity(name=name, measure=Metric(f"separation_{name}", "projector", "bank"), unit="")


def _show_separation(study: Study, results: Results) -> list[Block]:
    """Return the similarity to the positive and to the ten nearest negatives, one curve per temperature."""
    series = []
    for row in study.rows:
        values = [results.cell(row.name, name).mean for name in ("positive", *_NEAREST)]
        if not any(math.isnan(value) for value in values):
            series.append(points(row.name, list(enumerate(values))))
    chart = Chart(
        title=study.title,
        x="0: the positive; k: the k-th nearest negative",
        y="mean similarity",
        series=tuple(series),
    )
    return [chart, *table(study, results)]


def _separation_study(name: str, rows: tuple[Row, ...], study_data: StudyData, loss: str) -> Study:
    """Return the study of local separation on one data set."""
    return Study(
        name=name,
        title=f"Local separation on {study_data.name}, {loss} loss",
        claim="As τ falls the positive and the nearest negatives move apart; as it grows positives approach 1.",
        preset=PRESET,
        rows=rows,
        quantities=(
            _separation_quantity("positive"),
            *(_separation_quantity(nearest) for nearest in _NEAREST),
            _separation_quantity("gap"),
        ),
        sets=(study_data,),
        show=_show_separation,
        claims=(
            is_monotonic(
                axis_points(rows), "gap", up=False, margin=0.01, what="the gap between positive and nearest negative"
            ),
            is_monotonic(axis_points(rows), "positive", up=True, margin=0.01, what="the positive's similarity"),
        ),
        short_settings=SHORT_SCALE,
        note="The paper does not say how views are drawn; we draw one random view of each training image and compare it with "
        "the run's memory bank after training.",
    )


# Figures 4 to 7: a quantity against temperature.

_DILEMMA = "Contrastive learning's uniformity falls and its tolerance rises with the temperature."


def _against_temperature(
    name: str, title: str, claim: str, rows: tuple[Row, ...], quantity: Quantity, label: str, check: Claim
) -> Study:
    """Return a study of a quantity against temperature on the four data sets."""
    return Study(
        name=name,
        title=title,
        claim=claim,
        preset=PRESET,
        rows=rows,
        quantities=(quantity,),
        sets=DATA_SETS,
        show=curves("temperature", {label: quantity.name}),
        claims=(check,),
        short_settings=SHORT_SCALE,
        note="The caption lists three data sets; the text lists four, which are used here.",
    )


_BOTH_LOSSES = (
    *sweep_temperature(NT_XENT, printed.SUPPLEMENT_TABLE1, series="contrastive"),
    *sweep_temperature(HARD_CONTRASTIVE, printed.SUPPLEMENT_TABLE2, series="hard"),
)

FIGURES = (
    Study(
        name="behaviour/figure1",
        title="Two layouts with the same loss",
        claim="Swapping two images with their augmentations leaves the loss as it is.",
        show=_show_swapped,
        claims=(computed_claim("the loss is unchanged", _same_loss),),
        differences=(
            "The paper draws four images on a sphere; this study computes the losses of eight random embeddings.",
        ),
    ),
    Study(
        name="behaviour/figure2",
        title="t-SNE of CIFAR-10 at τ = 0.07 and 0.2",
        claim="At τ = 0.07 the embedding is more uniform, at 0.2 more clustered.",
        preset=PRESET,
        rows=tuple(Row(name=f"τ = {t:g}", changes={"loss": NT_XENT.format(t)}) for t in (0.07, 0.2)),
        quantities=(
            Quantity(
                name="map", measure=Map(), unit="", paper="t-SNE of the embeddings of images that it does not name"
            ),
            replace(UNIFORMITY, extra=True),
            replace(TOLERANCE, extra=True),
        ),
        show=maps,
        short_settings=SHORT_SCALE,
        claims=(is_above("τ = 0.07", "τ = 0.2", "-U", margin=0.02), is_above("τ = 0.2", "τ = 0.07", "T", margin=0.01)),
        differences=("-U and tolerance are not in the figure; they are added here to decide the claim.",),
    ),
    Study(
        name="behaviour/figure3",
        title="Relative penalty against similarity",
        claim="The lower the temperature, the more of the penalty is on hard negatives.",
        show=_show_penalties,
        claims=(computed_claim("a lower temperature puts more on the hardest negative", _is_sharper),),
        note="The temperatures are our choice: the paper does not state those of the figure.",
        differences=("The paper samples similarities uniformly from [-1, 1]; ours are 201 evenly spaced values.",),
    ),
    _against_temperature(
        name="behaviour/figure4",
        title="Uniformity against temperature, contrastive loss",
        claim=_DILEMMA,
        rows=CONTRASTIVE_ROWS,
        quantity=UNIFORMITY,
        label="-U",
        check=is_monotonic(axis_points(CONTRASTIVE_ROWS), "-U", up=False, margin=0.05),
    ),
    _against_temperature(
        name="behaviour/figure5",
        title="Tolerance against temperature, contrastive loss",
        claim=_DILEMMA,
        rows=CONTRASTIVE_ROWS,
        quantity=TOLERANCE,
        label="tolerance",
        check=is_monotonic(axis_points(CONTRASTIVE_ROWS), "T", up=True, margin=0.02, what="tolerance"),
    ),
    _against_temperature(
        name="behaviour/figure6",
        title="Uniformity against temperature, hard contrastive loss",
        claim="With hard negatives -U stays near its maximum at any temperature.",
        rows=HARD_ROWS,
        quantity=UNIFORMITY,
        label="-U",
        check=stays_within([row.name for row in HARD_ROWS], "-U", spread=0.2),
    ),
    _against_temperature(
        name="behaviour/figure7",
        title="Tolerance against temperature, hard contrastive loss",
        claim="With hard negatives tolerance rises with τ where classes are many.",
        rows=HARD_ROWS,
        quantity=TOLERANCE,
        label="tolerance",
        check=on_data_sets(
            ("CIFAR-100", "ImageNet-100"),
            is_monotonic(axis_points(HARD_ROWS), "T", up=True, margin=0.005, what="tolerance"),
        ),
    ),
    _separation_study(name="behaviour/figure8", rows=CONTRASTIVE_ROWS, study_data=CIFAR100, loss="contrastive"),
    Study(
        name="behaviour/figure9",
        title="Linear accuracy against temperature",
        claim="Contrastive accuracy peaks at 0.2 or 0.3 and falls on both sides; hard contrastive accuracy is best "
        "at large τ.",
        preset=PRESET,
        rows=_BOTH_LOSSES,
        quantities=(ACCURACY,),
        sets=DATA_SETS,
        show=curves("temperature", {"linear accuracy, %": ""}),
        claims=(
            has_peak(
                axis_points(_BOTH_LOSSES, "contrastive"), low=0.1, high=0.5, margin=0.3, what="contrastive accuracy"
            ),
            is_above("hard τ = 1", "contrastive τ = 1"),
            is_above("hard τ = 0.7", "hard τ = 0.07", margin=1.0),
        ),
        short_settings=SHORT_SCALE,
    ),
)

SUPPLEMENT_FIGURES = (
    *(
        _separation_study(
            name=f"behaviour/supplement-figure{number}",
            rows=CONTRASTIVE_ROWS,
            study_data=DATA_SETS[index],
            loss="contrastive",
        )
        for number, index in ((1, 0), (2, 2), (3, 3))  # CIFAR-100 is Figure 8
    ),
    *(
        _separation_study(
            name=f"behaviour/supplement-figure{number}", rows=HARD_ROWS, study_data=study_data, loss="hard contrastive"
        )
        for number, study_data in enumerate(DATA_SETS, start=4)
    ),
    Study(
        name="behaviour/supplement-proof",
        title="Entropy of the relative penalty",
        claim="H(r) strictly rises with the temperature.",
        show=_show_entropy,
        claims=(computed_claim("H(r) rises with τ", _entropy_rises),),
        differences=("The paper proves this for any similarities; here it is computed for 201 evenly spaced values.",),
    ),
)
