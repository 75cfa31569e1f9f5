"""`examples/race.py`, and the tables about it."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples/race.py"
LINES = [json.loads(line) for line in (ROOT / "results/race.jsonl").read_text().splitlines()]
SECTION = (ROOT / "results/README.md").read_text().split("## The race")[1].split("\n## ")[0]


@pytest.fixture
def race() -> Any:
    spec = importlib.util.spec_from_file_location("race", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(cells: int) -> list[list[str]]:
    """Return the rows of the section's tables that have this number of cells."""
    table = [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in SECTION.splitlines() if line[:1] == "|"
    ]
    return [row for row in table if len(row) == cells and re.fullmatch(r"[\d.]+", row[-1])]


def test_the_table_has_the_recorded_runs() -> None:
    runs = [line for line in LINES if line["kind"] == "run"]
    names = ("test_size", "accuracy", "seconds", "classifier_seconds", "compilation_seconds")
    assert len(runs) == len(rows(6)) >= 4
    for row, run in zip(rows(6), runs, strict=True):
        assert int(row[0]) == run["seed"]
        assert [float(cell) for cell in row[1:]] == pytest.approx([run[name] for name in names], abs=0.051)


def test_the_claims_are_those_of_the_recorded_runs() -> None:
    runs = [line for line in LINES if line["kind"] == "run"]
    accuracy, seconds = (torch.tensor([run[name] for run in runs]) for name in ("accuracy", "seconds"))
    mean, time = f"{accuracy.mean():.2f} %", float(seconds.mean())
    header = SCRIPT.read_text().split('"""')[1]
    assert f"to 90 % in {time:.0f} seconds" in header
    assert f"{mean} ({len(runs)} runs: {accuracy.min():.2f} to {accuracy.max():.2f})" in header
    assert f"The mean is {mean} in {time:.1f} s" in SECTION
    assert accuracy.mean() >= 90


def test_the_tables_of_changes_are_those_of_the_records() -> None:
    changes = [line for line in LINES if line["kind"] == "change"]
    written = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if line[:1] == "|"
    ]
    shown = [cells for cells in written if len(cells) == 3 and re.fullmatch(r"[\d.]+", cells[2])]
    first = sum(line["series"] == 1 for line in changes)
    for series, rows_of_series in ((1, shown[:first]), (2, shown[first:])):
        own = [line for line in changes if line["series"] == series]
        accuracies = [
            (line["change"], *(f"{line['accuracy'].get(size, 0):.2f}" for size in ("24", "32"))) for line in own
        ]
        assert sorted((name, small or "0.00", large) for name, small, large in rows_of_series) == sorted(accuracies)


def test_it_uses_only_what_is_public() -> None:
    assert not re.search(r"contrapose\.(lab|reduce)", SCRIPT.read_text())


def test_steps_are_orthogonal(race: Any) -> None:
    values = torch.linalg.svdvals(race.orthogonal(torch.randn(2, 16, 40)).float())
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_weights_keep_their_norm_and_turn_by_the_rate(race: Any) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(16, i, 3, 3).contiguous(memory_format=torch.channels_last) for i in (4, 8)]
    for weight in weights:
        weight *= 4 / weight.norm()
    before = [weight.clone() for weight in weights]
    gradients = [torch.randn_like(weight) for weight in weights]
    race.update_matrices([weights], [gradients], [torch.zeros(2, 16, 72)], torch.tensor(0.1))
    for weight, old, gradient in zip(weights, before, gradients, strict=True):
        assert float(weight.norm()) == pytest.approx(4, rel=1e-5)
        assert 0.05 < float((weight - old).norm() / 4) < 0.12
        assert float(((weight - old) * gradient).sum()) < 0


def test_views_without_changes_are_the_images(race: Any) -> None:
    augment, images = race.Augment(), torch.rand(3, 3, 32, 32)
    race.VIEW_SIZE, race.SMALLEST_CROP = 32, 1.0
    whole = torch.tensor([[0.5, 0.5, 0.5, 0.5, 0.9]]).expand(3, 5)  # all of the area, a ratio of 1, not mirrored
    torch.testing.assert_close(augment.crop(images, whole), images, atol=1e-4, rtol=0)
    torch.testing.assert_close(augment.colours(images, torch.full((3, 6), 0.9)), images, atol=1e-4, rtol=0)
    gray = augment.colours(images, torch.tensor([[0.9, 0, 0, 0, 0, 0.1]]).expand(3, 6))
    torch.testing.assert_close(gray[:, 0], gray[:, 2], atol=5e-3, rtol=0)  # the rows of `YIQ` are rounded
    mirrored = augment.crop(images, whole.clone().index_fill_(1, torch.tensor(4), 0.1))
    torch.testing.assert_close(mirrored, images.flip(3), atol=1e-4, rtol=0)


@pytest.mark.thorough
def test_a_small_encoder_learns(race: Any) -> None:
    """Stripes of random colours: the direction of the stripes is the class, and random features do not show it as well."""
    race.WIDTHS, race.HEAD, race.VIEW_SIZE, race.TEST_SIZE = (8, 16), (32, 16), 16, 16
    torch.manual_seed(0)

    def stripes(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(0, 2, (count,))
        wave = torch.sin(torch.arange(32) * torch.rand(count, 1) + 6.3 * torch.rand(count, 1))
        pattern = torch.where(labels[:, None, None] == 0, wave[:, None, :], wave[:, :, None]).expand(count, 32, 32)
        images = 127 + 60 * pattern[:, None] * torch.rand(count, 3, 1, 1) + 60 * torch.randn(count, 3, 32, 32)
        return images.clamp(0, 255).to(torch.uint8), labels

    data = [*stripes(512), *stripes(200)]
    untrained = race.train(data, "nt_xent(temperature=0.2)", 0, 0, 64)
    result = race.train(data, "nt_xent(temperature=0.2)", 12, 0, 64)
    assert result["accuracy"] > untrained["accuracy"] + 5
    assert result["knn200"] > 60
    assert result["seconds"] > result["classifier_seconds"]
