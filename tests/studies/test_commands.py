"""`contrapose study`, `demo` and `compare` as a user calls them."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import error_message
from PIL import Image

from contrapose.cli import main
from contrapose.cli.study import split_losses
from contrapose.modalities.images.digits import digits
from contrapose.studies import dilemma
from contrapose.studies.results import Cell, Results
from contrapose.studies.study import SMOKE

RUNS = Path(__file__).parents[2] / "results" / "runs"


def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    main(["study", "list"])
    listing = capsys.readouterr().out
    lines = listing.splitlines()
    assert len([line for line in lines if not line.startswith("#")]) == 90
    assert "# Wang, Liu: Understanding the Behaviour of Contrastive Loss" in lines
    assert "dystress/table12" in listing
    assert "[cannot run: text encoders are not built" in listing
    main(["study", "show", "dystress/table3"])
    description = capsys.readouterr().out
    assert "paper: CIFAR-10 85.68, CIFAR-100 56.57" in description
    assert "--scale small   # 8 runs on CIFAR-10" in description


def test_invalid_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'dystress/table3'" in error_message(capsys, "study", "run", "dystress/tabl3")
    assert "text encoders are not built" in error_message(capsys, "study", "run", "dystress/table12")
    assert "did you mean 'small'" in error_message(capsys, "study", "run", "dystress/table3", "--scale", "smal")
    assert "cannot be downloaded automatically; give its path with --data imagenet100=PATH" in error_message(
        capsys, "study", "run", "dystress/table14", "--scale", "paper"
    )
    assert "seeds: expected at least 1" in error_message(capsys, "study", "run", "dystress/table3", "--seeds", "0")
    assert "seeds: expected at least 1" in error_message(capsys, "study", "report", "dystress/table3", "--seeds", "0")
    assert "did you mean 'behaviour/figure9' or 'cacr/figure9'?" in error_message(capsys, "study", "show", "figure9")
    assert "none of the 12 runs is in nowhere" in error_message(
        capsys, "study", "report", "behaviour/figure4", "--root", "nowhere"
    )
    assert "data: my/cifar.npz does not exist; expected a folder" in error_message(
        capsys, "study", "run", "dystress/table3", "--scale", "small", "--data", "cifar10=my/cifar.npz"
    )
    assert "did you mean 'balanced'" in error_message(capsys, "compare", "--losses", "simclr,balancd")


def test_demo_on_less_data(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command on less data; `make demo` runs it in full."""
    tiny = {"batch": 32, "metrics": 60, "knn": 3}
    monkeypatch.setattr(dilemma, "PRETRAINING", {**dilemma.PRETRAINING, **tiny})
    monkeypatch.setattr(dilemma, "CONTINUATION", {**dilemma.CONTINUATION, **tiny})
    monkeypatch.setattr("contrapose.cli.study.SIZES", (dilemma.Size(64, 1, 1),))
    monkeypatch.setattr(dilemma, "SIZES", (dilemma.Size(64, 1, 1),))
    arguments = ["demo", "--jobs", "1", "--root", str(tmp_path / "runs"), "-o", str(tmp_path / "reports")]
    main(arguments)
    output = capsys.readouterr().out
    assert "ms on this machine. Training on 64 digits for 1 epochs, then 1 epochs per loss" in output
    assert "NT-Xent τ = 0.1" in output
    assert "hard contrastive" in output
    page = tmp_path / "reports" / "demo" / "index.html"
    assert f"report {page}" in output
    assert "Spread out, or keep classes together" in page.read_text()
    before = page.read_bytes()
    main(arguments)  # nothing is left to do; the page is the same
    assert page.read_bytes() == before
    assert "ms on this machine" not in capsys.readouterr().out  # the size of the started demo is kept


def test_the_demo_fits_the_machine() -> None:
    for jobs in (1, 2):
        for minutes in (1.0, 5.0, 60.0):
            chosen = [dilemma.largest_size(step, jobs, minutes) for step in (0.001, 0.03, 0.1, 0.3, 10.0)]
            assert [size.digits for size in chosen] == sorted((size.digits for size in chosen), reverse=True)
            assert chosen[0] == dilemma.SIZES[0]
            assert chosen[-1] == dilemma.SIZES[-1]
            for size, step in zip(chosen, (0.001, 0.03, 0.1, 0.3, 10.0), strict=True):
                assert size == dilemma.SIZES[-1] or size.seconds(step, jobs) <= 60 * minutes


def test_compare_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part, count in (("train", 60), ("test", 40)):
        data = digits(count, train=part == "train")
        assert data.labels is not None
        for i in range(count):
            folder = tmp_path / "mine" / part / str(int(data.labels[i]) % 2)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(data.pixels[i].permute(1, 2, 0).numpy()).save(folder / f"{i}.png")
    arguments = ["--epochs", "1", "--batch", "16", "--knn", "3", "--metrics", "20"]
    out = ["--root", str(tmp_path / "runs"), "-o", str(tmp_path / "out")]
    main(
        ["compare", "--data", str(tmp_path / "mine"), "--losses", "simclr, nt_xent(temperature=0.1)", *arguments, *out]
    )
    output = capsys.readouterr().out
    assert "views simclr-cifar" in output
    assert "Use " in output or "No loss stands out" in output
    assert (tmp_path / "out" / "compare-mine" / "index.md").exists()


def test_losses_are_split_outside_of_brackets() -> None:
    assert split_losses("simclr, nt_xent(temperature=cosine(0.1, 0.2)),cacr") == [
        "simclr",
        "nt_xent(temperature=cosine(0.1, 0.2))",
        "cacr",
    ]
    with pytest.raises(ValueError, match="losses: expected at least one loss"):
        split_losses(" , ")


def test_advice() -> None:
    study = dilemma.comparison(dilemma.SIZES[0].pretraining_run(), ["a", "b", "c"], 10_000).study

    def results_of(**rows: tuple[float, ...]) -> Results:
        return Results(sets=("digits",), cells={(name, "kNN", "digits"): Cell(values) for name, values in rows.items()})

    assert dilemma.advice(study, results_of()).startswith("No run has an accuracy")
    assert dilemma.advice(study, results_of(a=(80.0,), b=(79.5,), c=(60.0,))).startswith("Use a: kNN accuracy 80.00")
    assert "b cannot be distinguished from it" in dilemma.advice(study, results_of(a=(80.0,), b=(79.5,), c=(60.0,)))
    assert dilemma.advice(study, results_of(a=(80.0,), b=(79.5,), c=(79.9,))).startswith("No loss stands out")
    few_images = dilemma.advice(study, results_of(a=(83.3,), b=(79.2,), c=(75.0,)), test_images=24)
    assert few_images.startswith("No loss stands out")
    assert "on 24 test images 22 points are chance" in few_images
    assert "nothing to compare it with" in dilemma.advice(study, results_of(a=(83.3,)))


def test_selected_rows_of_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = {"limit": 40, "batch": 8, "epochs": 1, "knn": 3, "knn_every": 1, "metrics": 10}
    monkeypatch.setattr("contrapose.studies.study.SMOKE", {**SMOKE, **tiny})
    arguments = ["study", "run", "behaviour/figure4", "--root", str(tmp_path / "runs"), "-o", str(tmp_path / "out")]
    main([*arguments, "--rows", "τ = 0.2"])
    assert len([path for path in (tmp_path / "runs").iterdir() if path.is_dir()]) == 1
    (part,) = (tmp_path / "out").glob("behaviour-figure4-smoke-part-*")
    page = (part / "index.md").read_text()
    assert page.count("| τ = ") == 1
    assert "1 of its 12 rows alone, and judged by them." in page
    assert "did you mean 'τ = 0.2'?" in error_message(capsys, *arguments, "--rows", "τ = 0.21")
    other = ["study", "run", "behaviour/figure4", "behaviour/figure9", "--rows", "τ = 0.2"]
    assert "rows: behaviour/figure9 has none of these" in error_message(capsys, *other)


def test_selected_data_sets_of_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A report on one data set is judged by it alone."""
    arguments = [
        "study",
        "report",
        "cacr/table2",
        "--scale",
        "small",
        "--data",
        "cifar10=data/cifar10.npz",
        "--root",
        str(RUNS),
    ]
    main([*arguments, "-o", str(tmp_path), "--sets", "CIFAR-10, exponential", "--rows", "CL", "CACR (K=1)"])
    output = capsys.readouterr().out
    assert "holds: CACR (K=1) is above CL\n    CIFAR-10, exponential: " in output
    (part,) = tmp_path.glob("cacr-table2-small-part-*")  # another part has another name
    page = (part / "index.md").read_text()
    assert "| CIFAR-10, exponential |" in page
    assert "CIFAR-10, linear" not in page
    assert "did you mean 'CIFAR-10, linear'?" in error_message(capsys, *arguments, "--sets", "CIFAR-10, lineal")
