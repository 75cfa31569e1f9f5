"""`contrapose study` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import error_message

from contrapose.lab.cli import main
from contrapose.lab.studies.study import SMOKE

RUNS = Path(__file__).parents[3] / "results" / "runs"


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    main(["study", "list"])
    listing = capsys.readouterr().out
    lines = listing.splitlines()
    assert len([line for line in lines if not line.startswith("#")]) == 98
    assert "# Wang, Liu: Understanding the Behaviour of Contrastive Loss" in lines
    assert "dystress/table12" in listing
    assert "[cannot run" not in listing


def test_invalid_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'dystress/table3'" in error_message(capsys, "study", "run", "dystress/tabl3")
    assert "did you mean 'small'" in error_message(capsys, "study", "run", "dystress/table3", "--scale", "smal")
    assert "cannot be downloaded automatically; give its path with --data imagenet100=PATH" in error_message(
        capsys, "study", "run", "dystress/table14", "--scale", "paper"
    )
    assert "seeds: expected at least 1" in error_message(capsys, "study", "run", "dystress/table3", "--seeds", "0")
    assert "seeds: expected at least 1" in error_message(capsys, "study", "report", "dystress/table3", "--seeds", "0")
    assert "did you mean 'behaviour/figure9' or 'cacr/figure9'?" in error_message(capsys, "study", "show", "figure9")
    assert "none of the 12 runs is in nowhere" in error_message(
        capsys, "study", "report", "behaviour/figure4", "--runs-dir", "nowhere"
    )
    assert "data: my/cifar.npz does not exist; expected a folder" in error_message(
        capsys, "study", "run", "dystress/table3", "--scale", "small", "--data", "cifar10=my/cifar.npz"
    )


@pytest.mark.thorough
def test_selected_rows_of_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = {"limit": 40, "batch": 8, "epochs": 1, "knn": 3, "knn_every": 1, "metrics": 10}
    monkeypatch.setattr("contrapose.lab.studies.study.SMOKE", {**SMOKE, **tiny})
    arguments = ["study", "run", "behaviour/figure4", "--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "out")]
    main([*arguments, "--rows", "τ = 0.2"])
    assert capsys.readouterr().out.startswith(
        "behaviour/figure4 at the smoke scale: on digits; epochs 200 → 1, encoder"
    )
    assert len([path for path in (tmp_path / "runs").iterdir() if path.is_dir()]) == 1
    (part,) = (tmp_path / "out").glob("behaviour-figure4-smoke-part-*")
    page = (part / "index.md").read_text()
    assert page.count("| τ = ") == 2  # in the table of the study, and in that of signs of collapse
    assert "1 of its 12 rows only; the claims are decided by these rows." in page
    assert "did you mean 'τ = 0.2'?" in error_message(capsys, *arguments, "--rows", "τ = 0.21")
    other = ["study", "run", "behaviour/figure4", "behaviour/figure9", "--rows", "τ = 0.2"]
    assert "rows: behaviour/figure9 has none of these" in error_message(capsys, *other)


@pytest.mark.thorough
def test_an_untrained_encoder_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both losses start from the same encoder, and training changes it."""
    tiny = {"limit": 60, "batch": 16, "epochs": 1, "knn": 3, "knn_every": 1, "metrics": 10}
    monkeypatch.setattr("contrapose.lab.studies.study.SMOKE", {**SMOKE, **tiny})
    main(["study", "run", "behaviour/equation6", "--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "out")])
    assert "over the untrained encoder" in capsys.readouterr().out
    evaluations = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/evaluations.json")]
    assert len(evaluations) == 2
    (before,) = {value for found in evaluations for name, value in found.items() if name.startswith("start:linear:")}
    after = {value for found in evaluations for name, value in found.items() if name.startswith("linear:")}
    assert after - {before}


def test_selected_data_sets_of_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A report on one data set is judged by it alone."""
    arguments = [
        "study",
        "report",
        "cacr/table2",
        "--scale",
        "short",
        "--data",
        "cifar10=data/cifar10.npz",
        "--runs-dir",
        str(RUNS),
        "--set",
        "norm_views=together",  # as they were recorded
    ]
    main([*arguments, "-o", str(tmp_path), "--sets", "CIFAR-10, exponential", "--rows", "CL", "CACR (K=1)"])
    output = capsys.readouterr().out
    assert "holds: CACR (K=1) is above CL\n    CIFAR-10, exponential: " in output
    (part,) = tmp_path.glob("cacr-table2-short-part-*")  # another part has another name
    page = (part / "index.md").read_text()
    assert "| CIFAR-10, exponential |" in page
    assert "CIFAR-10, linear" not in page
    assert "did you mean 'CIFAR-10, linear'?" in error_message(capsys, *arguments, "--sets", "CIFAR-10, lineal")
