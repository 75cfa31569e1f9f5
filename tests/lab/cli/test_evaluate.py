"""`contrapose evaluate` with few shots and with the papers' fine-tuning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import error_message
from mixed_folder import make_mixed_folder

from contrapose.lab.cli import main

TRAIN = ["--limit", "48", "--batch", "16", "--epochs", "1", "--knn", "3", "--metrics", "0"]


@pytest.mark.thorough
def test_few_shots_and_recipes_on_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, folder = tmp_path / "run", make_mixed_folder(tmp_path / "images", each=6)
    main(["train", *TRAIN, "--out", str(run)])
    evaluate = ["evaluate", str(run), "--data", str(folder)]
    capsys.readouterr()
    main([*evaluate, "--shots", "2", "--finetune", "1"])
    few_shot = json.loads(capsys.readouterr().out)
    assert 0 <= few_shot["finetune_2_shot"] <= 100
    assert "finetune_top1" not in few_shot
    main([*evaluate, "--recipe", "dystress-multiclass", "--finetune", "1"])
    assert 0 <= json.loads(capsys.readouterr().out)["finetune_top1"] <= 100
    assert "shots: class 'checks' has 5 training images, fewer than the 6 to draw" in error_message(
        capsys, *evaluate, "--shots", "6"
    )
    assert "pos_weight: expected two classes, 0 and 1, got 4" in error_message(
        capsys, *evaluate, "--recipe", "dystress-binary"
    )
    assert "shots: expected at least 2" in error_message(capsys, *evaluate, "--shots", "1")
    assert "did you mean 'dystress-binary'?" in error_message(capsys, *evaluate, "--recipe", "dystress-binari")
    assert "omit --recipe or --shots" in error_message(capsys, *evaluate, "--recipe", "vit", "--shots", "5")
