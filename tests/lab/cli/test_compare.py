"""`contrapose compare` and `demo` as a user calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import error_message
from PIL import Image

from contrapose.lab.cli import main
from contrapose.lab.cli.compare import Compare, report_name, show_results, split_losses
from contrapose.lab.modalities.images.digits import digits
from contrapose.lab.report.document import Document
from contrapose.lab.studies.collect import collect
from contrapose.lab.studies.loss_comparison import comparison
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.training import Run, prepare


def write_folder(path: Path) -> None:
    """Write a folder of two classes of digits."""
    for part, count in (("train", 60), ("test", 40)):
        data = digits(count, train=part == "train")
        assert data.labels is not None
        for i in range(count):
            folder = path / part / str(int(data.labels[i]) % 2)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(data.pixels[i].permute(1, 2, 0).numpy()).save(folder / f"{i}.png")


@pytest.mark.thorough
def test_compare_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two comparisons on one folder: each has its own page, and the same command writes to the same page again."""
    write_folder(tmp_path / "mine")
    arguments = ["compare", "--data", str(tmp_path / "mine"), "--epochs", "1", "--batch", "16", "--knn", "3"]
    arguments += ["--metrics", "20", "--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "out")]
    main([*arguments, "--losses", "simclr, nt_xent(temperature=0.1)", "--seeds", "2"])
    output = capsys.readouterr().out
    assert "views simclr-cifar" in output
    assert "4 runs: 2 losses with 2 seeds" in output
    assert "(kNN accuracy on 40 test images, 2 seeds" in output
    assert "Use " not in output
    assert "U, uniformity: " in output
    assert "untrained encoder" in output
    (first,) = (tmp_path / "out").iterdir()
    assert first.name.startswith("compare-mine-simclr-nt_xent-")
    assert f"report {first / 'index.html'}" in output
    html = (first / "index.html").read_text()
    assert html.index("kNN accuracy is ") < html.index("<h2>")  # what was learned comes first
    assert len(html) < 1_000_000
    page = (first / "index.md").read_text()
    assert f"Data: {tmp_path / 'mine'}, 60 training images and 40 test images." in page
    assert "Encoder small, 1 epoch in batches of 16" in page
    assert "2 seeds for each loss." in page
    assert "|  | kNN accuracy, % | -U | T |" in page
    assert "| raw pixels | " in page
    assert (first / "compare-2.png").exists()  # the contact sheet
    for folder in (path for path in (tmp_path / "runs").iterdir() if path.is_dir()):
        directory = RunDirectory(folder)  # the answers on single images agree with the accuracy of the records
        hits = directory.evaluations()["knn_hits"]
        assert len(hits) == 40
        assert 100 * hits.count("1") / 40 == pytest.approx(directory.value("knn_top1"))
    before = (first / "index.html").read_bytes()
    main([*arguments, "--losses", "simclr", "--seeds", "1"])
    assert "There is nothing to compare simclr with" in capsys.readouterr().out
    assert len(list((tmp_path / "out").iterdir())) == 2
    assert (first / "index.html").read_bytes() == before
    main([*arguments, "--losses", "simclr, nt_xent(temperature=0.1)", "--seeds", "2"])
    assert len(list((tmp_path / "out").iterdir())) == 2
    assert (first / "index.html").read_bytes() == before


def test_a_comparison_is_named_by_its_runs() -> None:
    run = Run(limit=40, batch=8)
    split = prepare(run)

    def name(losses: list[str], seeds: int = 1, base: Run = run) -> str:
        return report_name(comparison(base, losses, split), seeds)

    names = {
        name(["simclr", "cacr"]),
        name(["simclr", "dystress"]),
        name(["simclr", "cacr"], seeds=2),
        name(["simclr", "cacr"], base=Run(limit=40, batch=8, epochs=2)),
        name(["simclr(temperature=0.1)", "cacr"]),
    }
    assert len(names) == 5
    assert all(text.startswith("compare-digits16-simclr-") for text in names)
    assert name(["simclr", "cacr"]) == name(["simclr", "cacr"])
    assert len(name([f"nt_xent(temperature={t / 10})" for t in range(1, 9)])) < 80


@pytest.mark.parametrize("option", [["--loss", "simclr(temperature=0.2)"], ["--loss=cacr"]])
def test_options_that_would_be_ignored_are_refused(capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    assert "use --losses" in error_message(capsys, "compare", *option)
    assert "seed: compare does not take --seed; use --seeds" in error_message(capsys, "compare", "--seed", "0")


def test_invalid_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'balanced'" in error_message(capsys, "compare", "--losses", "simclr,balancd")
    assert "seeds: expected at least 1" in error_message(capsys, "compare", "--seeds", "0")
    assert "seeds: expected at least 1" in error_message(capsys, "demo", "--seeds", "0")
    assert "jobs: expected" in error_message(capsys, "demo", "--jobs", "0")
    assert "minutes: expected" in error_message(capsys, "demo", "--minutes", "0")


SMALL = {"limit": 64, "epochs": 2, "batch": 16, "knn": 3, "metrics": 0, "warmup": 0}


def write_config(path: Path, **options: object) -> str:
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in {**SMALL, **options}.items()))
    return str(path)


def test_a_dry_run_with_options_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_config(Path("a.toml"), losses="simclr,byol", seeds=2, device="cpu")
    main(["compare", "--config", config, "--dry-run", "--epochs", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert list(tmp_path.iterdir()) == [tmp_path / "a.toml"]
    assert "4 runs: 2 losses with 2 seeds (--seeds changes it)" in lines
    assert "byol: framework byol, head byol-cifar, predictor 1024." in lines
    assert "  optimisation: --lr 0.004 --warmup 0.0 --epochs 3 --batch 16" in lines
    assert not any("--loss " in line or "--seed " in line or line.startswith("  loss") for line in lines)
    assert "steps       4 per epoch, 12 in 3 epochs" in lines
    cells = {line.split()[0]: re.split("  +", line) for line in lines if "about " in line}
    assert cells["simclr"][1] == "30 per anchor (--batch 16, --framework simclr)"
    assert cells["byol"][1] == "none: byol does not contrast samples with each other"
    assert int(next(line for line in lines if line.startswith("memory")).split()[1].replace(",", "")) > 50  # MiB
    assert " on cpu to train one run after another" in next(line for line in lines if line.startswith("time"))
    assert "runs        runs (4 runs, of which none is done)" in lines


def test_a_dry_run_of_runs_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings in a run.json give the same run again, but each loss its own framework."""
    monkeypatch.chdir(tmp_path)
    options = ["--config", write_config(Path("a.toml")), "--device", "cpu"]
    main(["train", *options, "--loss", "simclr", "--baselines", "none"])
    (run,) = Path("runs").glob("*/run.json")
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    main(["compare", "--config", str(run), "--losses", "simclr,byol", "--seeds", "1", "--dry-run"])
    lines = capsys.readouterr().out.splitlines()
    assert "byol: framework byol, head byol-cifar, predictor 1024." in lines
    assert re.split("  +", next(line for line in lines if line.startswith("simclr  ")))[-1] == "done"
    assert "runs        runs (2 runs, of which 1 is done)" in lines
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": -1}, "epochs: expected a whole number of at least 1"),
        ({"seeds": "two"}, "seeds: expected a whole number, got 'two'"),
        ({"seeds": 0}, "seeds: expected at least 1"),
        ({"loss": "simclr"}, "loss: compare does not take --loss; use --losses"),
        ({"temperatures": [[0.1]]}, "temperatures: expected a list of texts"),
    ],
)
def test_errors_name_the_file(
    options: dict[str, object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "a.toml", **options)
    assert f"contrapose: --config: {config}: {message}" in error_message(capsys, "compare", "--config", config)


def test_losses_are_split_outside_of_brackets() -> None:
    assert split_losses("simclr, nt_xent(temperature=cosine(0.1, 0.2)),cacr") == [
        "simclr",
        "nt_xent(temperature=cosine(0.1, 0.2))",
        "cacr",
    ]
    with pytest.raises(ValueError, match="losses: expected at least one loss"):
        split_losses(" , ")


def test_square_brackets_in_names_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(data="digits16", **SMALL)  # type: ignore[arg-type]
    plan = comparison(run, ["simclr"], prepare(run), given={})
    title = "Losses on my [old] pics"
    show_results(plan, collect(plan, 1, tmp_path / "runs"), Document(title, "", ()), tmp_path / "report")
    assert title in capsys.readouterr().out


DEFAULT = "simclr,dystress"


def test_each_loss_at_each_temperature(capsys: pytest.CaptureFixture[str]) -> None:
    assert Compare(given={}).all_losses(DEFAULT) == ["simclr", "dystress"]
    swept = Compare(given={}, temperatures=("0.05,0.1", "0.07:0.2")).all_losses(DEFAULT)
    assert swept == [f"simclr(temperature={t})" for t in ("0.05", "0.1", "cosine(0.07, 0.2)")]
    both = Compare(given={}, losses="dcl,nt_xent(hardness=9.0)", temperatures=("0.1", "0.10", "0.5")).all_losses(
        DEFAULT
    )
    others = "nt_xent(hardness=9.0, temperature=0.1)", "nt_xent(hardness=9.0, temperature=0.5)"
    assert both == ["dcl(temperature=0.1)", "dcl(temperature=0.5)", *others]
    message = error_message(capsys, "compare", "--losses", "simclr,cacr", "--temperatures", "0.1", "0.2")
    assert "--temperatures: cacr has no setting temperature; it has the settings t_pos" in message


@pytest.mark.thorough
def test_each_loss_has_its_own_framework(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Losses with and without negatives on one page, each in its framework; a head that is given is that of all."""
    arguments = ["compare", "--limit", "64", "--epochs", "1", "--batch", "32", "--knn", "3", "--metrics", "20"]
    arguments += ["--seeds", "1", "--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "out")]
    main([*arguments, "--losses", "simclr,byol,barlow_twins,dino", "--head", "hcl"])
    lines = (
        "simclr, barlow_twins: framework simclr, head hcl.\n"
        "byol: framework byol, head hcl, predictor 1024.\n"
        "dino: framework dino, head hcl, prototypes 2048, frozen epochs 0.\n"
    )
    assert lines in capsys.readouterr().out
    (folder,) = (tmp_path / "out").iterdir()
    page = (folder / "index.md").read_text()
    assert lines in page
    for loss in ("simclr", "byol", "barlow_twins", "dino"):
        cells = next(line for line in page.splitlines() if line.startswith(f"| {loss} |")).split("|")[2:-1]
        assert all(float(cell) > 0 for cell in cells)


def test_frameworks_of_losses() -> None:
    run = Run(limit=40, batch=8)
    plan = comparison(run, ["simclr", "simsiam", "w_mse"], prepare(run))
    frameworks = {planned.loss: (planned.framework, planned.head) for planned in plan.runs(1).values()}
    assert frameworks == {
        "simclr": ("simclr", "simclr"), "simsiam": ("simsiam", "simsiam-cifar"), "w_mse": ("simclr", "w-mse"),
    }  # fmt: skip
