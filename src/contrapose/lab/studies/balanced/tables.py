"""Studies of the tables of the balanced-loss paper."""

from __future__ import annotations

from contrapose.lab.studies.balanced import printed
from contrapose.lab.studies.balanced.methods import (
    BALANCED,
    CIFAR_PRESET,
    IMAGENET,
    IMAGENET_KNN,
    IMAGENET_PRESET,
    IMAGENET_PROBE,
    IMAGENET_SETTINGS,
    KNN,
    LARS_PROBE,
    PROBE_NOTE,
    SGD_PROBE,
    SHORT_SCALE,
    SIMCLR,
    SMALL_SCALE,
)
from contrapose.lab.studies.claims import (
    FAILS,
    HOLDS,
    Claim,
    compare,
    computed_claim,
    describe_cell,
    is_above,
)
from contrapose.lab.studies.results import Results, column
from contrapose.lab.studies.study import Quantity, Row, Study, StudyData

# Tables 2 and 5: the same number of images in total, with uniform or long-tailed class sizes.

_KINDS = ("uniform", "long-tailed")
_DISTRIBUTIONS = (
    StudyData(name="uniform CIFAR-10", data="cifar10", changes={"imbalance": "uniform:12406", "probe": "train"}),
    StudyData(name="long-tailed CIFAR-10", data="cifar10", changes={"imbalance": "exponential:100", "probe": "train"}),
    StudyData(
        name="uniform ImageNet",
        data="imagenet",
        changes={**IMAGENET_SETTINGS, "imbalance": "uniform:115846", "probe": "train"},
        measures=IMAGENET_PROBE,
    ),
    StudyData(
        name="long-tailed ImageNet",
        data="imagenet",
        changes={**IMAGENET_SETTINGS, "imbalance": "pareto", "probe": "train"},
        measures=IMAGENET_PROBE,
    ),
)
_TAIL_NOTE = (
    f"Probes use the encoder's training images. At the smoke scale, both data sets are the digits. {PROBE_NOTE}"
)
_TAIL_DIFFERENCES = (
    "CIFAR-10 is not in the paper; we add a long tail of 12,406 images, and as many images with uniform classes.",
    "Our uniform ImageNet has 115 or 116 images per class; the paper's is a uniform sample of all images.",
    "The long-tailed ImageNet matches ImageNet-LT in total, largest and smallest class (115,846, 1280 and 5 images);"
    " the other class sizes and the images are ours (--set imbalance=index:FILE takes the published list).",
)


def _uniform_and_tail(name: str, loss: str, numbers: tuple[float, float]) -> Row:
    """Return a row with the paper's numbers for uniform and long-tailed ImageNet."""
    columns = {column(SGD_PROBE.name, f"{kind} ImageNet"): n for kind, n in zip(_KINDS, numbers, strict=True)}
    return Row(name=name, changes={"loss": loss}, printed=columns)


def _uniform_is_better(row: str) -> Claim:
    """Claim that uniform classes are better, on each data set that was measured with uniform and long-tailed classes."""

    def decide(results: Results) -> tuple[bool | None, str]:
        outcomes, evidence = [], []
        for data in ("CIFAR-10", "ImageNet"):
            uniform, tail = (results.cell(row, SGD_PROBE.name, f"{kind} {data}") for kind in _KINDS)
            if uniform.values and tail.values:
                outcomes.append(compare(uniform, tail, 0.5))
                evidence.append(f"{data}: {describe_cell(uniform)} against {describe_cell(tail)}")
        return _all_hold(outcomes), "; ".join(evidence) or "not both were measured"

    return computed_claim("uniform classes give a higher accuracy than a long tail of as many images", decide)


def _all_hold(outcomes: list[str]) -> bool | None:
    return False if FAILS in outcomes else True if outcomes and set(outcomes) == {HOLDS} else None


# Table 4: kNN and linear accuracy.


def _linear_is_above_knn(results: Results) -> tuple[bool | None, str]:
    outcomes, evidence = [], []
    for data_set in results.sets:
        linear = results.cell("balanced", SGD_PROBE.name, data_set)
        knn = results.cell("balanced", KNN.name, data_set)
        outcomes.append(compare(linear, knn, 0.5))
        evidence.append(f"{data_set}: {describe_cell(linear)} against {describe_cell(knn)}")
    return _all_hold(outcomes), "; ".join(evidence)


def _seeds_agree(results: Results) -> tuple[bool | None, str]:
    cells = [
        results.cell("balanced", quantity, data_set)
        for data_set in results.sets
        for quantity in (KNN.name, SGD_PROBE.name)
    ]
    spreads = [cell.spread for cell in cells if len(cell.values) > 2]
    if not spreads:
        return None, "fewer than three seeds"
    return max(spreads) <= 0.5, f"largest standard deviation {max(spreads):.2f}"


_TABLE5_ROW = "balanced, α = 2, λ = 1"

TABLES = (
    Study(
        name="balanced/table1",
        title="Similarity measures with and without normalisation",
        claim="Cosine similarity of normalised representations is far better than the others.",
        preset=IMAGENET_PRESET,
        rows=(
            Row(
                name="cosine, normalised",
                changes={"loss": SIMCLR},
                printed={"ImageNet": printed.TABLE1["cosine, normalised"]},
            ),
            *(
                Row(
                    name=name,
                    changes={"loss": SIMCLR, "similarity": similarity},
                    printed={"ImageNet": printed.TABLE1[name]},
                )
                for name, similarity in (("dot product", "dot"), ("negative Euclidean", "neg_euclid"))
            ),
        ),
        quantities=(Quantity(name="", measure=LARS_PROBE.measure),),
        sets=(IMAGENET,),
        claims=(
            is_above("cosine, normalised", "dot product", margin=5.0),
            is_above("cosine, normalised", "negative Euclidean", margin=5.0),
            is_above("negative Euclidean", "dot product"),
        ),
        small_settings=SMALL_SCALE,
        short_settings=SHORT_SCALE,
        note="The distance is squared, as in the paper's footnote. The paper does not give the temperature for "
        "embeddings that are "
        "not normalised; all rows use SimCLR's 0.5.",
    ),
    Study(
        name="balanced/table2",
        title="Uniform classes against a long tail, SimCLR",
        claim="Uniform classes are better.",
        preset=CIFAR_PRESET,
        rows=(_uniform_and_tail("SimCLR", SIMCLR, printed.TABLE2["SimCLR"]),),
        quantities=(SGD_PROBE,),
        sets=_DISTRIBUTIONS,
        claims=(_uniform_is_better("SimCLR"),),
        note=_TAIL_NOTE,
        differences=_TAIL_DIFFERENCES,
    ),
    Study(
        name="balanced/table3",
        title="SimCLR's parts and where the paper derives them",
        claim="A cross-reference.",
        diagram=True,
    ),
    Study(
        name="balanced/table4",
        title="kNN and linear accuracy, five seeds",
        claim="The linear probe is above k-NN, and five runs differ by a few tenths of a point.",
        preset=CIFAR_PRESET,
        rows=(Row(name="balanced", printed=printed.TABLE4),),
        quantities=(KNN, SGD_PROBE),
        sets=(
            StudyData(name="CIFAR-10", data="cifar10", changes={"loss": BALANCED.format(2, 4)}),
            StudyData(
                name="ImageNet",
                data="imagenet",
                changes={**IMAGENET_SETTINGS, "loss": BALANCED.format(4, 2)},
                measures={**IMAGENET_PROBE, **IMAGENET_KNN},
            ),
        ),
        claims=(
            computed_claim("the linear probe is above k-NN", _linear_is_above_knn),
            computed_claim("the standard deviation over seeds is at most 0.5", _seeds_agree),
        ),
        small_settings=SMALL_SCALE,
        short_settings=SHORT_SCALE,
        note="The paper's spreads over five runs (--seeds 5): 0.32 and 0.07 on CIFAR-10, 0.22 and 0.07 on ImageNet. "
        f"k is 1 on CIFAR-10 and 200 on ImageNet. {PROBE_NOTE}",
    ),
    Study(
        name="balanced/table5",
        title="Uniform classes against a long tail, balanced loss",
        claim="Uniform classes are better; the balanced loss is better than SimCLR on both.",
        preset=CIFAR_PRESET,
        rows=(
            _uniform_and_tail(_TABLE5_ROW, BALANCED.format(2, 1), printed.TABLE5[_TABLE5_ROW]),
            _uniform_and_tail("SimCLR, of table 2", SIMCLR, printed.TABLE2["SimCLR"]),
        ),
        quantities=(SGD_PROBE,),
        sets=_DISTRIBUTIONS,
        claims=(
            _uniform_is_better(_TABLE5_ROW),
            is_above(_TABLE5_ROW, "SimCLR, of table 2", SGD_PROBE.name, margin=0.3),
        ),
        note=f"{_TAIL_NOTE} With λ = 1 the balanced loss is half of DCL at τ = 0.5, so it takes smaller steps than "
        "SimCLR.",
        differences=_TAIL_DIFFERENCES,
    ),
)
