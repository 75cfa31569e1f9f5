"""The pages of temperatures, negatives, metrics and frameworks: complete, and their examples, pictures and formulas hold."""

from __future__ import annotations

import inspect
import math
import re
import shlex
from pathlib import Path
from typing import Any

import evidence_page
import pytest
import torch
from captioned import write_folder
from test_site import BUILDER, load_module

import contrapose
from contrapose import metrics, pairs, temperature
from contrapose.lab.cli import main
from contrapose.lab.frameworks import FRAMEWORKS, Parts
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.networks.tower import Tower
from contrapose.losses import CATALOGUE
from contrapose.losses.parse import loss_name

PARTS, DRAWINGS = BUILDER.parts, BUILDER.parts.drawings
TEXTS: dict[str, dict[str, Any]] = {kind.name: BUILDER.parts.texts(kind.name) for kind in PARTS.KINDS}
PAGES = [pytest.param(kind, name, id=f"{kind}/{name}") for kind, own in TEXTS.items() for name in own]
FRAMEWORK_TEXTS: dict[str, dict[str, Any]] = BUILDER.parts.texts("frameworks")
KEYS = {
    "temperatures": {"formula", "where", "curve", "force", "slider", "values", "pitfalls"},
    "negatives": {"pairs", "negatives", "setup", "pitfalls"},
    "metrics": {"formula", "where", "range", "direction", "clouds", "setup", "values"},
}


def public_names(kind: str) -> set[str]:
    """Return the public names that pages of a kind must describe."""
    if kind == "metrics":
        return set(metrics.__all__)
    if kind == "temperatures":
        return {name for name, value in vars(temperature).items() if name[0] != "_" and not inspect.ismodule(value)}
    choices = {"Negatives", "Choice", "Hardest", "guided", "self_guided"}
    return choices | {
        name for name in pairs.__all__ if isinstance(getattr(pairs, name), type(pairs.hardest)) and name in _CHOICES
    }


_CHOICES = {
    name
    for name, function in vars(pairs).items()
    if inspect.isfunction(function) and function.__module__ == "contrapose.pairs.negatives"
}


@pytest.mark.parametrize("kind", TEXTS)
def test_every_public_name_has_one_page(kind: str) -> None:
    described = [name for text in TEXTS[kind].values() for name in text["names"]]
    assert sorted(described) == sorted(public_names(kind))


@pytest.mark.parametrize(("kind", "name"), PAGES)
def test_a_text_is_complete(kind: str, name: str) -> None:
    text = TEXTS[kind][name]
    required = {"title", "summary", "names", "does", "use", "paper", "example"}
    assert required <= set(text) <= required | KEYS[kind]
    assert all(sentence.strip().endswith(".") for sentence in [text["does"], text["use"], *text.get("pitfalls", [])])
    assert text["pitfalls"] if kind != "metrics" else text["range"] and text["direction"]
    assert {"curve", "force", "negatives", "clouds", "values"} & set(text), "a page needs a picture or values"


@pytest.mark.parametrize(("kind", "name"), PAGES)
def test_an_example_runs(kind: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    scope: dict[str, Any] = {}
    exec(TEXTS[kind][name]["example"], scope)
    if kind == "metrics":
        assert capsys.readouterr().out or "assert" in TEXTS[kind][name]["example"]
    else:
        assert math.isfinite(scope["loss"].item())


@pytest.mark.parametrize(("kind", "name"), PAGES)
def test_a_page_can_be_made(kind: str, name: str) -> None:
    own = next(own for own in PARTS.KINDS if own.name == kind)
    page = "\n".join(PARTS.page(own, name))
    assert f"# {TEXTS[kind][name]['title']}\n" in page
    assert "nan" not in re.sub(r"[a-z]nan|nan[a-z]", "", page.lower()) or name == "standard_error"
    assert ("<svg" in page) == bool({"curve", "force", "negatives", "clouds", "slider"} & set(TEXTS[kind][name]))


def test_formulas_become_mathml() -> None:
    configuration = load_module("conf.py")
    formulas = [text["formula"] for own in TEXTS.values() for text in own.values() if "formula" in text]
    assert len(formulas) > 25
    for formula in formulas:
        assert configuration.to_mathml(formula, display="block").startswith("<math")


@pytest.mark.parametrize(
    ("name", "count"),
    [("all", 10), ("other_views", 5), ("same_view", 5), ("hardest", 3), ("combined", 2), ("ids", None)],
)
def test_the_picture_of_negatives_shows_what_is_chosen(name: str, count: int | None) -> None:
    compared, similarity, is_chosen = PARTS.chosen(TEXTS["negatives"][name])
    assert similarity.shape == is_chosen.shape == (12, 12)
    expected = [8] * 2 + [10] * 4 if count is None else [count] * 6
    assert is_chosen.sum(1).tolist() == expected * 2
    assert not is_chosen[compared.anchor_id[:, None] == compared.pool_id].any()
    drawing = PARTS.chosen_cells(TEXTS["negatives"][name])
    assert drawing.count("<circle") == int(is_chosen.sum())
    assert drawing.count(">+</text>") == 12  # one positive for each anchor


def test_a_guide_spares_the_samples_of_a_group() -> None:
    compared, _, is_chosen = PARTS.chosen(TEXTS["negatives"]["guided"])
    group = compared.anchor_id[:, None] // 2 == compared.pool_id // 2
    torch.testing.assert_close(is_chosen, ~group)


def test_stored_and_batch_rows_share_the_candidates() -> None:
    compared, _, stored = PARTS.chosen(TEXTS["negatives"]["stored_rows"])
    _, _, batch = PARTS.chosen(TEXTS["negatives"]["batch_rows"])
    assert stored[:, : compared.stored].all()
    assert not (stored & batch).any()
    assert batch.sum(1).tolist() == [5] * 6


def test_statements_about_temperatures() -> None:
    # s / τ(s) of `cosine` rises everywhere only if low / (high - low) is above π/4 - 1/2, and that of `linear` always does.
    s = torch.linspace(-1, 1, 4001, dtype=torch.float64)

    def is_increasing(profile: Any) -> bool:
        return bool(((s / profile(s)).diff() >= 0).all())

    assert is_increasing(contrapose.cosine(0.07, 0.2))
    assert not is_increasing(contrapose.cosine(0.07, 0.5))
    assert is_increasing(contrapose.linear(0.01, 1.0))
    shifted = contrapose.cosine(0.07, 0.2, shift=-0.4)
    assert float(s[shifted(s).argmin()]) == pytest.approx(-0.3, abs=1e-3)
    # At |s| = 0.2 `linear` is a fifth of the way to `high`; at 0.5 `exponential` is most of the way.
    at = torch.tensor([0.2, 0.5], dtype=torch.float64)
    assert float(contrapose.linear(0.0001, 1.0001)(at)[0]) == pytest.approx(0.2, abs=1e-3)
    assert float(contrapose.exponential(0.0001, 1.0001)(at)[1]) > 0.8
    assert float(contrapose.cosine(0.0001, 1.0001)(at)[0]) < 0.1


@pytest.mark.thorough
def test_statements_about_learned_and_individual_temperatures() -> None:
    # The curves of the pages: a learned temperature falls and stops at its bound; crowded samples get a higher one.
    def series(name: str) -> list[list[float]]:
        text = TEXTS["temperatures"][name]["curve"]
        scope = PARTS._scope(text)
        return [[float(y) for y in eval(code, scope)] for _, code in text["series"]]

    free, bounded = series("learned")
    assert free[0] == bounded[0] == pytest.approx(0.3)
    assert free[-1] < 0.1
    assert min(bounded) == pytest.approx(0.1)
    crowded, apart = series("per_sample")
    assert crowded[-1] > 1.1 * apart[-1]


def test_collapsed_embeddings_are_told_apart_by_the_metrics() -> None:
    cloud = PARTS.example_clouds()
    value = {name: {key: float(metrics.__dict__[key](own["z"])) for key in ("uniformity", "effective_rank", "feature_std")}
             for name, own in cloud.items()}  # fmt: skip
    assert value["collapsed"]["uniformity"] > value["grouped"]["uniformity"] > value["even"]["uniformity"]
    assert (
        value["collapsed"]["effective_rank"]
        < value["grouped"]["effective_rank"]
        <= value["even"]["effective_rank"] + 1e-6
    )
    assert value["collapsed"]["feature_std"] < 0.3 < value["grouped"]["feature_std"]
    tolerance = {name: metrics.tolerance(own["z"], own["labels"]) for name, own in cloud.items()}
    assert tolerance["even"] < tolerance["grouped"] < tolerance["collapsed"]


class TestFrameworks:
    def test_every_framework_has_a_text(self) -> None:
        assert set(FRAMEWORK_TEXTS) == set(FRAMEWORKS)
        keys = {
            "title",
            "does",
            "trained",
            "momentum",
            "stops",
            "use",
            "pitfalls",
            "command",
            "paper",
            "boxes",
            "arrows",
        }
        assert all(set(text) == keys for text in FRAMEWORK_TEXTS.values())

    @pytest.mark.parametrize("name", FRAMEWORKS)
    def test_a_diagram_shows_the_components(self, name: str) -> None:
        """A framework is built, and its diagram has a box for each of its components and none for others."""
        row = FRAMEWORKS[name]
        towers = {
            key: Tower(encoder=Encoder(torch.nn.Linear(4, 4), 4), projector=torch.nn.Linear(4, 4), width=4)
            for key in ("image", "text")[: row.tower_count]
        }
        framework = row.build(Parts(towers=towers, samples=8), row.settings())
        text = FRAMEWORK_TEXTS[name]
        kinds = [box["kind"] for box in text["boxes"].values()]
        assert ("momentum" in kinds) == hasattr(framework, "keys")
        assert ("predictor" in text["boxes"]) == hasattr(framework, "predictor")
        assert ("prototypes" in text["boxes"]) == hasattr(framework, "prototypes")
        # SwAV's queue is off by default, and has no rows then.
        stored = [value for key, value in framework.named_buffers() if key in ("rows", "center") and value.numel()]
        assert ("stored" in kinds) == bool(stored)
        assert text["momentum"].startswith("nothing") == (not hasattr(framework, "keys") and name != "memory-bank")
        trained = {key.split(".")[0] for key, value in framework.named_parameters() if value.requires_grad}
        for component in trained:
            assert component.removesuffix("s") in text["trained"], component

    @pytest.mark.parametrize("name", FRAMEWORKS)
    def test_arrows_without_gradient_start_where_none_flows(self, name: str) -> None:
        text = FRAMEWORK_TEXTS[name]
        kinds = {key: box["kind"] for key, box in text["boxes"].items()}
        for start, end, kind in text["arrows"]:
            assert {start, end} <= set(kinds)
            assert kind in ("flow", "stop", "update")
            if kinds[start] in ("momentum", "stored"):
                assert kind != "flow", "no gradient flows back into a momentum copy or stored rows"
            if kinds[start] == "trained" and end == "loss":
                assert kind == "flow"
        columns = {(column, box["at"][1]) for box in text["boxes"].values()
                   for column in range(box["at"][0], box["at"][0] + box.get("span", 1))}  # fmt: skip
        assert len(columns) == sum(box.get("span", 1) for box in text["boxes"].values()), "two boxes overlap"

    @pytest.mark.parametrize("name", FRAMEWORKS)
    def test_losses_that_fit_are_those_of_the_registry(self, name: str) -> None:
        page = "\n".join(BUILDER.frameworks.page(name))
        linked = re.findall(r"\]\(\.\./losses/(\w+)\.md\)", page)
        assert linked == BUILDER.frameworks.suitable_losses(name)
        assert set(FRAMEWORKS[name].losses) <= set(linked) <= set(CATALOGUE)
        (loss,) = re.findall(r"--loss '?([^' ]+)", FRAMEWORK_TEXTS[name]["command"])
        assert loss_name(loss) in linked
        assert f"--framework {name} " in FRAMEWORK_TEXTS[name]["command"]

    @pytest.mark.thorough
    @pytest.mark.parametrize("name", FRAMEWORKS)
    def test_a_command_runs(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "sentences.txt").write_text("\n".join(f"sentence {i} of a list" for i in range(300)))
        if name == "two_towers":
            write_folder(tmp_path)
        # Enough for one batch: a dry run takes a few steps and one evaluation.
        short = ["--batch", "4"] if name == "two_towers" else ["--limit", "256"]
        program, *arguments = shlex.split(FRAMEWORK_TEXTS[name]["command"])
        assert program == "contrapose"
        main([*arguments, "--dry-run", *short])
        assert "dry run" in capsys.readouterr().out.lower()


def test_what_the_page_on_byol_says() -> None:
    assert evidence_page.NO_NEGATIVES.results()[0].name.startswith("BYOL")
    others = [own[0].accuracy for own in (evidence_page.SIMCLR.results(), evidence_page.EACH.results())]
    assert evidence_page.NO_NEGATIVES.results()[0].accuracy > max(others)


def test_drawings_have_no_colours_that_vanish_in_the_dark() -> None:
    drawing = DRAWINGS.diagram(FRAMEWORK_TEXTS["moco"]["boxes"], FRAMEWORK_TEXTS["moco"]["arrows"], "MoCo")
    assert "fill=" not in drawing
    assert "stroke=" not in drawing
