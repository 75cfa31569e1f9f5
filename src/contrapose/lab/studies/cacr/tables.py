"""Studies of the CACR paper's tables on CIFAR and STL-10."""

from __future__ import annotations

import math
from dataclasses import replace

from contrapose.lab.studies.behaviour.tables import IMAGENET100_CLASSES
from contrapose.lab.studies.cacr import printed
from contrapose.lab.studies.cacr.methods import (
    ACCURACY_AXIS,
    BEST_OF_ONE_POSITIVE,
    CACR_K1,
    CACR_K4,
    CIFAR100,
    CIFAR_AND_STL,
    CIFAR_PRESET,
    CL,
    CMC,
    HALF_SCALE,
    LINEAR,
    LOSSES,
    ONE_POSITIVE,
    RESNET_METHODS,
    SHORT_SCALE,
    SIX_METHODS_CLAIMS,
    STEP_SECONDS,
    STL_RESNET,
    imbalanced,
    positives_row,
    six_methods,
    sweep_t,
    variants,
)
from contrapose.lab.studies.cacr.steps import STEP_DIFFERENCE, is_slower
from contrapose.lab.studies.claims import computed_claim, is_above, is_monotonic, stays_within
from contrapose.lab.studies.report_blocks import curves
from contrapose.lab.studies.results import Results
from contrapose.lab.studies.study import CIFAR10, Study


def _loses_less(results: Results) -> tuple[bool | None, str]:
    """Compare how much accuracy CACR and CL lose on imbalanced data, such as "CIFAR-10, linear", relative to regular data."""
    advantages, evidence = [], []
    for data_set in results.sets:
        regular = data_set.split(",")[0]
        loss_cacr, loss_cl = (
            results.cell(row, "", regular).mean - results.cell(row, "", data_set).mean for row in (CACR_K4, CL)
        )
        if "," in data_set and not math.isnan(loss_cacr) and not math.isnan(loss_cl):
            advantages.append(loss_cl - loss_cacr)
            evidence.append(f"{data_set}: {CACR_K4} loses {loss_cacr:.2f}, {CL} {loss_cl:.2f}")
    yes, no = bool(advantages) and all(a > 0.3 for a in advantages), any(a < -0.3 for a in advantages)
    return True if yes else False if no else None, "; ".join(evidence) or f"no result of both {CACR_K4} and {CL}"


_T_NEG_K4 = sweep_t("K = 4, t⁻", "cacr(t_neg={t})", printed.TABLE13_K4, series="K = 4")


TABLES = (
    Study(name="cacr/table1", title="CL methods and what they contrast", claim="A taxonomy.", diagram=True),
    Study(
        name="cacr/table2",
        title="Linear accuracy after training on regular and imbalanced CIFAR",
        claim="CACR is best, and loses least on imbalanced data.",
        preset=CIFAR_PRESET,
        rows=six_methods(printed.TABLE2),
        quantities=LINEAR,
        sets=(
            CIFAR10,
            CIFAR100,
            *(imbalanced(regular, rule) for rule in ("linear", "exponential") for regular in (CIFAR10, CIFAR100)),
        ),
        claims=(
            is_above(CACR_K1, CL, margin=0.3),
            BEST_OF_ONE_POSITIVE,
            is_above(CACR_K4, CMC, margin=0.3),
            computed_claim(f"{CACR_K4} loses less than {CL} on imbalanced data", _loses_less),
        ),
        short_settings=SHORT_SCALE,
        note="AU-CL on CIFAR-10 is listed with Table 8's 83.39, which agrees with the printed drop; Table 2 has 83.49. CL's "
        "printed drops on CIFAR-100 (3.57 and 12.57) do not follow from its accuracies, which give 3.12 and 12.12. The "
        "printed imbalance rules are garbled; ours are those in the authors' code. The exponential rule leaves "
        "class 0 of CIFAR-10 and the first 30 classes of CIFAR-100 without images. CACR (K=1) is not best in all columns of the "
        "paper: on linear CIFAR-10, HN-CL has 80.51 and CACR (K=1) 80.46.",
    ),
    Study(
        name="cacr/table3",
        title="One positive with twice the epochs, against four positives",
        claim="With 400 epochs one positive is still below four positives with 200.",
        preset=CIFAR_PRESET,
        rows=six_methods(
            printed.TABLE3,
            one_positive={"epochs": 400, "milestones": (310, 340, 370)},
            one_positive_short=HALF_SCALE,
        ),
        quantities=LINEAR,
        sets=CIFAR_AND_STL,
        claims=(is_above(CACR_K4, CACR_K1, margin=0.3), is_above(CMC, CL, margin=0.3)),
        short_settings=SHORT_SCALE,
        note="Two of the paper's numbers are doubtful: CL on CIFAR-100 has the same 55.41 as after 200 epochs, and "
        "HN-CL on STL-10 "
        "(82.41) is below its own number after 200 epochs (83.27). The paper does not say at which of the 400 epochs the "
        "learning rate drops; here it drops at 310, 340 and 370, twice as late as with 200 epochs.",
    ),
    Study(
        name="cacr/table8",
        title="Linear accuracy with AlexNet, 200 epochs",
        claim="CACR is best with one positive and with four.",
        preset=CIFAR_PRESET,
        rows=six_methods(printed.TABLE8),
        quantities=LINEAR,
        sets=CIFAR_AND_STL,
        claims=SIX_METHODS_CLAIMS,
        short_settings=SHORT_SCALE,
    ),
    Study(
        name="cacr/table9",
        title="Linear accuracy with ResNet-50, 400 epochs",
        claim="CACR is best, and more clearly than with AlexNet.",
        preset="cacr/resnet50-cifar10",
        rows=six_methods(printed.TABLE9, RESNET_METHODS, four_positives={"view_count": 5, "batch": 128}),
        quantities=LINEAR,
        sets=(CIFAR10, CIFAR100, STL_RESNET),
        claims=SIX_METHODS_CLAIMS,
        small_settings={"encoder": "resnet18-cifar", "epochs": 100},  # 400 epochs would take more than six minutes
        short_settings={"epochs": 50},
        note="CL and CMC use the temperature 0.5 of Robinson et al., whose settings the paper follows here; augmentation and "
        "linear probe are as in Table 8.",
    ),
    Study(
        name="cacr/table10",
        title="Signs of the conditional distributions",
        claim="Both signs matter; that of π⁻ more.",
        preset=CIFAR_PRESET,
        rows=variants(
            losses={
                "as proposed": LOSSES[CACR_K4],
                "π⁺ reversed": "cacr(t_neg={k4}, attraction='reversed')",
                "π⁻ reversed": "cacr(t_neg={k4}, repulsion='reversed')",
                "both reversed": "cacr(t_neg={k4}, attraction='reversed', repulsion='reversed')",
            },
            table=printed.TABLE10,
        ),
        quantities=LINEAR,
        claims=(
            is_above("as proposed", "π⁺ reversed"),
            is_above("π⁺ reversed", "π⁻ reversed", margin=1.0),
            is_above("π⁻ reversed", "both reversed", margin=1.0),
        ),
        short_settings=SHORT_SCALE,
        note="The paper does not give t⁻ here; its 86.48 is nearest to 86.54, its number for t⁻ = 0.9.",
    ),
    Study(
        name="cacr/table11",
        title="Without the conditional distributions",
        claim="π⁻ matters most; without both little is learned.",
        preset=CIFAR_PRESET,
        rows=variants(
            losses={
                "CACR": "cacr(t_neg=2.0)",
                "without π⁺": "cacr(t_neg=2.0, attraction='uniform')",
                "without π⁻": "cacr(t_neg=2.0, repulsion='uniform')",
                "UAUR": "uaur",
            },
            table=printed.TABLE11,
        ),
        quantities=LINEAR,
        sets=CIFAR_AND_STL,
        claims=(
            is_above("CACR", "without π⁺", margin=0.3),
            is_above("without π⁺", "without π⁻", margin=2.0),
            is_above("without π⁻", "UAUR"),
        ),
        short_settings=SHORT_SCALE,
        note="We use t⁻ = 2, since 85.94 is Table 13's number for it. On CIFAR-100, the paper has 59.51 here and "
        "59.41 in Table 13.",
    ),
    Study(
        name="cacr/table12",
        title="Linear accuracy against t⁺, four positives",
        claim="Small t⁺ are good; large ones lose.",
        preset=CIFAR_PRESET,
        rows=sweep_t("t⁺", "cacr(t_pos={t}, t_neg={k4})", printed.TABLE12),
        quantities=LINEAR,
        sets=CIFAR_AND_STL,
        show=curves("t⁺", ACCURACY_AXIS),
        claims=(is_above("t⁺ = 1", "t⁺ = 3", margin=0.3), is_above("t⁺ = 0.5", "t⁺ = 3")),
        short_settings=SHORT_SCALE,
        note="On CIFAR-100, the paper marks 59.47 as best, although 59.61 (t⁺ = 0.7) is higher.",
    ),
    Study(
        name="cacr/table13",
        title="Linear accuracy against t⁻",
        claim="A small t⁻ loses, most with one positive; 0.9 to 2 is good.",
        preset=CIFAR_PRESET,
        rows=sweep_t("K = 1, t⁻", "cacr(t_neg={t})", printed.TABLE13_K1, changes=ONE_POSITIVE, series="K = 1")
        + _T_NEG_K4,
        quantities=LINEAR,
        sets=CIFAR_AND_STL,
        show=curves("t⁻", ACCURACY_AXIS),
        claims=(
            is_above("K = 1, t⁻ = 2", "K = 1, t⁻ = 0.5", margin=1.0),
            is_above("K = 4, t⁻ = 0.9", "K = 4, t⁻ = 0.5", margin=0.3),
            stays_within([row.name for row in _T_NEG_K4], spread=2.0, what="accuracy with K = 4"),
        ),
        short_settings=SHORT_SCALE,
    ),
    Study(
        name="cacr/table14",
        title="Seconds of a step against the number of positives",
        claim="From K = 1 to 10 the time of a step grows threefold, and the number of images 5.5-fold.",
        preset=CIFAR_PRESET,
        rows=tuple(positives_row(k, {"CIFAR-10": seconds}) for k, seconds in printed.TABLE14.items()),
        quantities=STEP_SECONDS,
        sets=(CIFAR10,),
        show=curves("K", {"seconds of a step": ""}),
        claims=(
            is_monotonic([(float(k), f"K = {k}") for k in printed.TABLE14], up=True, margin=0.0, what="time of a step"),
            *(
                is_slower(f"K = {k}", "K = 1", at_most=printed.TABLE14[k] / printed.TABLE14[1])
                for k in printed.TABLE14
                if k in (4, 10)
            ),
        ),
        small_settings=SHORT_SCALE,  # the time per step does not depend on the number of epochs
        differences=(STEP_DIFFERENCE, "The paper's GPU is a V100."),
    ),
    Study(
        name="cacr/table20",
        title="Euclidean and RBF cost",
        claim="Both costs do about as well.",
        preset=CIFAR_PRESET,
        rows=variants(
            losses={
                "K = 1, Euclidean": "cacr(t_neg=2.0)",
                "K = 1, RBF": "cacr_rbf(t_neg=2.0)",
                "K = 4, Euclidean": "cacr(t_neg=2.0)",
                "K = 4, RBF": "cacr_rbf(t_neg=2.0)",
            },
            table=printed.TABLE20,
            one_positive=("K = 1, Euclidean", "K = 1, RBF"),
        ),
        quantities=LINEAR,
        sets=CIFAR_AND_STL,
        claims=tuple(stays_within((f"{k}, Euclidean", f"{k}, RBF"), spread=1.0, what=k) for k in ("K = 1", "K = 4")),
        short_settings=SHORT_SCALE,
        note="We use t⁻ = 2, for which Table 13 has the same numbers on CIFAR. On STL-10 with K = 1 they differ (83.55 and "
        "84.21).",
    ),
    replace(IMAGENET100_CLASSES, name="cacr/table21"),
)
