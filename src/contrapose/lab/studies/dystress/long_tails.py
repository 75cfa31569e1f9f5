"""Studies of the DySTreSS paper's Tables 4 to 7: long-tailed data."""

from __future__ import annotations

from contrapose.lab.studies.claims import is_above
from contrapose.lab.studies.dystress import printed
from contrapose.lab.studies.dystress.methods import (
    CIFAR_LT_SETS,
    CIFAR_METHODS,
    IMAGENET100_LT,
    IMAGENET_METHODS,
    KNN1_AND_KNN10,
    KUKLEVA_PROTOCOL,
    KUKLEVA_SETS,
    LONG_TAIL,
    SHORT_SCALE_LT,
    SMALL_SCALE_KUKLEVA,
    method_rows,
)
from contrapose.lab.studies.study import Study, StudyData


def _long_tail_study(number: int, study_data: StudyData, table: dict[str, tuple[float, float]]) -> Study:
    """Return the study of Table 6 or 7."""
    return Study(
        name=f"dystress/table{number}",
        title=f"{study_data.name}, 500 epochs",
        claim="DySTreSS is about 1 % above SimCLR.",
        preset=f"dystress/{study_data.data}-lt",
        rows=method_rows(CIFAR_METHODS, KNN1_AND_KNN10, (study_data,), table),
        quantities=KNN1_AND_KNN10,
        sets=(study_data,),
        short_settings=SHORT_SCALE_LT,
        claims=tuple(
            is_above(row, "SimCLR", quantity.name) for row in ("DySTreSS", "DySTreSS*") for quantity in KNN1_AND_KNN10
        ),
        note="DySTreSS has the range 0.07–0.2 and DySTreSS* 0.1–0.2. kNN votes are weighted by 1/d, as the paper "
        "says; the authors' code "
        "counts them.",
    )


LONG_TAILS = (
    Study(
        name="dystress/table4",
        title="CIFAR-10-LT and CIFAR-100-LT, 2000 epochs",
        claim="DySTreSS is above the temperature schedule.",
        preset="dystress/table4-cifar10-lt",
        rows=method_rows(CIFAR_METHODS, KUKLEVA_PROTOCOL, KUKLEVA_SETS, printed.TABLE4),
        quantities=KUKLEVA_PROTOCOL,
        sets=KUKLEVA_SETS,
        small_settings=SMALL_SCALE_KUKLEVA,
        claims=tuple(is_above("DySTreSS", "Kukleva et al.", quantity.name) for quantity in KUKLEVA_PROTOCOL),
        note="The paper's numbers are closest to 1-NN accuracy. The paper does not give DySTreSS's range here; we use Table 3's.",
        differences=(
            "The numbers of images are those of Kukleva et al. (11,165 and 9,754), from 4500 or 450 images per class; we choose "
            "the images and the order of the classes at random (--set imbalance=index:FILE takes their lists).",
            "We train on one split; the numbers of Kukleva et al. are means over three splits.",
        ),
    ),
    Study(
        name="dystress/table5",
        title="ImageNet-100-LT",
        claim="DySTreSS is above the temperature schedule.",
        preset="dystress/table5-imagenet100-lt",
        rows=method_rows(IMAGENET_METHODS, KUKLEVA_PROTOCOL, IMAGENET100_LT, printed.TABLE5),
        quantities=KUKLEVA_PROTOCOL,
        sets=IMAGENET100_LT,
        claims=tuple(is_above("DySTreSS", "Kukleva et al.", quantity.name) for quantity in KUKLEVA_PROTOCOL),
        small_settings={
            **SMALL_SCALE_KUKLEVA,
            "views": "kukleva",
            "encoder": "resnet18-cifar",
            "batch": 512,
            "imbalance": LONG_TAIL,
            "probe": "train",
        },
        note="The paper's numbers are closest to few-shot accuracy. The paper does not give DySTreSS's range here; we use that "
        "of Table 1. The augmentation is that of Kukleva et al. We train for 2000 epochs, as the paper says; the code of Kukleva "
        "et al. has 800. The data is a folder with ImageNet-1K or ImageNet-100, which is subsampled.",
        differences=(
            "We use 12,205 images, as Kukleva et al. do, with class sizes from ImageNet-LT's Pareto distribution: our largest "
            "four classes have 846, 606, 508 and 448 images, theirs 1280, 679, 511 and 456.",
            "We choose the images and the order of the classes at random (--set imbalance=index:FILE takes "
            "the published lists).",
        ),
    ),
    _long_tail_study(6, CIFAR_LT_SETS[0], printed.TABLE6),
    _long_tail_study(7, CIFAR_LT_SETS[1], printed.TABLE7),
)
