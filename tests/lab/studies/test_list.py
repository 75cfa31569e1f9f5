"""Every table and figure of the four papers has an entry, and every entry can be planned."""

from __future__ import annotations

from typing import Any

import pytest
from tiers import every

from contrapose.lab.cli.study import make_plans
from contrapose.lab.studies import SCALES, STUDIES, find
from contrapose.lab.studies.results import Results, column
from contrapose.lab.training.config_file import read_settings


def numbered(paper: str, kind: str, first: int, last: int) -> set[str]:
    return {f"{paper}/{kind}{k}" for k in range(first, last + 1)}


WANTED = (
    numbered("dystress", "table", 1, 16) | numbered("dystress", "figure", 1, 8) | {"dystress/section5.1"}
    | {"behaviour/table1", "behaviour/equation6", "behaviour/supplement-proof"} | numbered("behaviour", "figure", 1, 9)
    | numbered("behaviour", "supplement-table", 1, 3) | numbered("behaviour", "supplement-figure", 1, 7)
    | numbered("cacr", "table", 1, 21) | numbered("cacr", "figure", 1, 10)
    | numbered("balanced", "table", 1, 5) | numbered("balanced", "figure", 1, 6)
    | {"cacr/property1"} | numbered("cacr", "lemma4.", 1, 3)
    | {"balanced/lemmaA.1", "balanced/theorem4.4", "balanced/theorem4.6"}
)  # fmt: skip


def test_none_is_missing() -> None:
    assert STUDIES.keys() >= WANTED
    assert STUDIES.keys() - WANTED == {"dystress/table13-imagenet", "cacr/table19-starts"}


@pytest.mark.parametrize("scales", [SCALES[:1], pytest.param(SCALES[1:], marks=pytest.mark.thorough)], ids=str)
@pytest.mark.parametrize("name", every(3, STUDIES))
def test_every_study_can_be_planned(name: str, scales: tuple[str, ...]) -> None:
    study = find(name)
    assert study.title
    assert study.claim.endswith(".")
    if study.diagram:
        assert not study.rows
        return
    assert study.claims
    for scale in scales:
        plan = study.plan(scale)
        assert all(run.seed < 2 for run in plan.runs(2).values())
        assert bool(plan.runs(1)) == bool(study.rows)
        built_in = all(run.data in ("digits", "pydoc", "shapes") and run.epochs <= 3 for run in plan.runs(1).values())
        assert built_in or scale != "smoke"
    for claim in study.claims:  # with nothing run, nothing about runs is decided
        verdict = claim(Results())
        assert verdict.statement
        assert verdict.outcome == "undecided" or study.analytic


@pytest.mark.parametrize("name", STUDIES)
def test_printed_numbers_belong_to_a_column(name: str) -> None:
    study = find(name)
    known = {column(quantity.name, study_data.name) for quantity in study.quantities for study_data in study.sets}
    for row in study.rows:
        foreign = row.printed.keys() - known
        assert not foreign, f"{row.name}: {foreign}"


@pytest.mark.thorough
def test_analytic_claims_hold() -> None:
    outcomes: dict[tuple[str, str], str] = {}
    for study in STUDIES.values():
        if study.analytic and study.show is not None:
            assert study.show(study, Results())
            outcomes |= {(study.name, v.statement): v.outcome for v in (claim(Results()) for claim in study.claims)}
    assert len(outcomes) >= 10
    broken = [name for (name, _), outcome in outcomes.items() if outcome != "holds"]
    assert broken == [
        *["dystress/figure2"] * 4,  # one constant for both halves; δ and K beyond a limit; the sign of c⁺
        "cacr/lemma4.2",  # signs of C₁ and C₂ as printed
        "cacr/lemma4.3",  # without 1/τ, as printed
        "balanced/theorem4.6",  # all class means on the other side, which the paper does not exclude
    ]


def test_the_same_run_is_shared() -> None:
    first, second = find("behaviour/figure4").plan("small"), find("behaviour/figure5").plan("small")
    assert first.runs(1).keys() == second.runs(1).keys()
    assert find("behaviour/figure9").plan("small").runs(1).keys() > first.runs(1).keys()


def test_bad_names_get_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"there is no 'behavior/figure9'; did you mean .*'behaviour/figure9'"):
        find("behavior/figure9")
    with pytest.raises(
        ValueError, match=r"scale: expected one of smoke, short, small, paper, got 'smal'; did you mean 'small'"
    ):
        find("behaviour/figure9").plan("smal")


def test_bad_data_is_refused() -> None:
    study = find("dystress/table3")
    with pytest.raises(
        ValueError, match=r"expected PATH or NAME=PATH, where NAME is one of cifar10, cifar100, got 'cifra10=x\.npz'"
    ):
        study.plan("small", ["cifra10=x.npz"])
    with pytest.raises(ValueError, match="would have the same name in the report"):
        study.plan("small", ["a/imgs.npz", "b/imgs.npz"])


def test_the_number_of_hard_negatives_does_not_depend_on_a_name() -> None:
    plan = find("behaviour/table1").plan("paper", ["svhn=somewhere", "imagenet100=elsewhere"])
    hard = [run.loss for run in plan.runs(1).values() if "hard" in run.loss]
    assert hard
    assert all("hardest(4095)" in loss for loss in hard)


def test_other_data() -> None:
    study = find("dystress/table3")
    assert [(study_data.name, study_data.data) for study_data in study.plan("small", ["cifar10=here.npz"]).sets] == [
        ("CIFAR-10", "here.npz")
    ]
    assert [(study_data.name, study_data.data) for study_data in study.plan("paper", ["some/cifar100.npz"]).sets] == [
        ("CIFAR-100", "some/cifar100.npz")
    ]
    assert [(study_data.name, study_data.data) for study_data in study.plan("small", ["photos"]).sets] == [
        ("photos", "photos")
    ]
    assert [study_data.name for study_data in study.plan("paper").sets] == ["CIFAR-10", "CIFAR-100"]


def test_the_small_scale_has_the_printed_epochs() -> None:
    for name, epochs in {
        "dystress/table10": 200,
        "behaviour/figure9": 200,
        "balanced/figure5": 200,
        "cacr/table8": 200,
    }.items():
        short, small = (next(iter(find(name).plan(scale).runs(1).values())) for scale in ("short", "small"))
        assert small.epochs == epochs > short.epochs
    assert [study_data.name for study_data in find("dystress/table3").plan("small").sets] == ["CIFAR-10", "CIFAR-100"]


def test_settings_are_part_of_the_name() -> None:
    table3 = find("dystress/table3")
    changes: list[dict[str, Any]] = [{}, {"precision": "bf16"}, {"precision": "fp16"}, {"norm_views": "together"}]
    assert len({next(iter(table3.plan("paper", settings=change).runs(1))) for change in changes}) == 4
    # A row whose framework does not have the setting keeps its run.
    moco = table3.select_rows(["MoCo v2"])
    assert moco.plan("paper").runs(1) == moco.plan("paper", settings={"norm_views": "together"}).runs(1)


def test_the_commands_take_settings() -> None:
    (plan,) = make_plans(["dystress/table3"], "paper", [], settings=read_settings(["epochs=7", "norm-views=together"]))
    assert {(run.epochs, run.norm_views) for run in plan.runs(1).values()} == {(7, "together")}
    with pytest.raises(ValueError, match=r"precision: expected one of auto, fp32, bf16, fp16, got 'bf17'"):
        make_plans(["dystress/table3"], "paper", [], settings={"precision": "bf17"})
    for text, message in {
        "epoch=7": "set: expected NAME=VALUE with a setting of `contrapose train`, got 'epoch=7'; did you mean 'epochs'",
        "epochs": "set: expected NAME=VALUE with a setting of `contrapose train`, got 'epochs'",
    }.items():
        with pytest.raises(ValueError, match=message):
            read_settings([text])
