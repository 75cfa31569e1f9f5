"""The number of negatives per anchor, and the settings that it follows from."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.negatives import describe_negatives


@pytest.mark.parametrize(
    ("settings", "world_size", "expected"),
    [
        ({}, 1, "30 per anchor (--batch 16, --framework simclr)"),
        ({}, 4, "30 per anchor (--batch 16 on 4 processes, --framework simclr)"),
        (
            {"accumulate": 2},
            1,
            "30 per anchor (--batch 16, --accumulate 2 adds none; --grad-cache would, --framework simclr)",
        ),
        (
            {"accumulate": 2, "grad_cache": True},
            1,
            "62 per anchor (--batch 16, --accumulate 2 with --grad-cache, --framework simclr)",
        ),
        ({"loss": "barlow_twins"}, 1, "none: barlow_twins does not contrast samples with each other"),
    ],
)
def test_where_negatives_come_from(settings: dict[str, object], world_size: int, expected: str, tmp_path: Path) -> None:
    trainer = Trainer(Run(limit=64, batch=16, epochs=1, **settings), tmp_path, log=lambda text: None)  # type: ignore[arg-type]
    trainer.world_size = world_size
    assert describe_negatives(trainer) == expected
