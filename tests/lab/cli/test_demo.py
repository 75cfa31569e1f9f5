"""`contrapose demo` as a user calls it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from contrapose.lab.cli import main
from contrapose.lab.studies import demo
from contrapose.lab.studies.collect import collect, verdicts
from contrapose.lab.studies.execute import run_tasks
from contrapose.lab.studies.loss_comparison import references
from contrapose.lab.studies.measures import References
from contrapose.lab.studies.scores import INIT, PIXELS, UNTRAINED
from contrapose.lab.studies.task import Task
from contrapose.lab.training import Run, load, prepare
from contrapose.lab.training.weights import export

TINY = demo.Size(digits=64, pretraining_epochs=1, epochs=1, seeds=1, conclusive=False)


@pytest.mark.thorough
def test_demo_on_less_data(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command on less data; `make demo` runs it in full."""
    # A size that takes longer than the limit, so that the smallest one is chosen and says that it is too short.
    monkeypatch.setattr("contrapose.lab.cli.demo.SIZES", (replace(demo.SIZES[1], pretraining_epochs=10**6), TINY))
    arguments = ["demo", "--jobs", "1", "--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "reports")]
    main(arguments)
    output = capsys.readouterr().out
    assert "ms on this machine. Training on 64 digits for 1 epoch, then 1 epoch with each of nine losses" in output
    assert "This is too short to tell whether the dilemma holds. To see it: contrapose demo --minutes " in output
    assert "NT-Xent τ = 0.1" in output
    assert "hard contrastive" in output
    assert "With one seed it is unknown how much of a difference in accuracy is chance" in output
    assert "does not hold" not in output
    assert "too short to tell: tolerance of NT-Xent" in output or "holds: tolerance of NT-Xent" in output
    assert "T, tolerance: " in output
    page = tmp_path / "reports" / "demo" / "index.html"
    assert f"report {page}" in output
    text = page.read_text()
    # The first screen: what was learned, and the picture.
    parts = (
        "<h1>The uniformity-tolerance dilemma</h1>",
        "With one seed",
        "<figure",
        '<ul class="verdicts">',
        "<table",
    )
    order = [text.index(part) for part in (*parts, "Data: digits16")]
    assert text.count("With one seed") == 1
    assert order == sorted(order)
    assert "Spread out, or keep classes together" in text
    assert "All losses start from one encoder, trained for 1 epoch with NT-Xent at τ = 1" in text
    assert "64 training images and " in text
    assert "data:image/png;base64," in text
    for temperature in ("0.1", "1"):
        assert f"t-SNE map of test images, NT-Xent τ = {temperature}: -U " in text
    before = page.read_bytes()
    (weights,) = (tmp_path / "runs").glob("*/encoder.safetensors")
    exported = weights.read_bytes()
    weights.write_bytes(exported[:-1] + bytes([exported[-1] ^ 1]))  # damaged: it is written again
    main(arguments)  # nothing is left to do; the page is the same
    assert page.read_bytes() == before
    assert weights.read_bytes() == exported
    assert "ms on this machine" not in capsys.readouterr().out  # the size of the started demo is kept


@pytest.mark.slow
def test_the_smallest_conclusive_demo_shows_the_dilemma(tmp_path: Path) -> None:
    """Along the temperatures, images spread less and classes stay together more; the losses beat pixels by far."""
    size = next(size for size in reversed(demo.SIZES) if size.conclusive)
    pretraining = Task(replace(size.pretraining_run(), threads=1), (), tmp_path)
    assert not run_tasks([pretraining])
    weights = tmp_path / "encoder.safetensors"
    export(load(pretraining.folder).encoder, weights)
    plan = demo.demo(weights, size, prepare(pretraining.run))
    # Without the losses that the claims are not about, and without the maps.
    rows = tuple(
        replace(row, measures=(References(),) if i == 0 else ()) for i, row in enumerate(plan.study.rows) if row.series
    )
    plan = replace(plan, study=replace(plan.study, rows=rows))
    tasks = [Task(run, plan.measures(data, row), tmp_path) for row, data, run in plan.cells(1)]
    assert not run_tasks(tasks)
    results = collect(plan, 1, tmp_path)
    assert [verdict.outcome for verdict in verdicts(plan, results)] == ["holds", "holds"]
    accuracy = max(results.cell(row.name, "kNN").mean for row in rows)
    before = references(plan.study, results)
    assert accuracy > 80
    assert accuracy > max(before[PIXELS].mean, before[UNTRAINED].mean) + 25
    assert accuracy > before[INIT].mean


def test_the_demo_fits_the_machine() -> None:
    steps = (0.001, 0.03, 0.1, 0.3, 10.0)
    for jobs in (1, 2):
        for minutes in (2.0, 5.0, 60.0):
            chosen = [demo.largest_size(demo.SIZES, step, jobs, minutes) for step in steps]
            order = [demo.SIZES.index(size) for size in chosen]
            assert order == sorted(order)
            assert chosen[0] == demo.SIZES[0]
            assert chosen[-1] == demo.SIZES[-1]
            for size, step in zip(chosen, steps, strict=True):
                assert size == demo.SIZES[-1] or size.seconds(step, jobs) <= 60 * minutes
    # More seeds take more time, so that a smaller size fits.
    nine = tuple(replace(size, seeds=9) for size in demo.SIZES)
    assert demo.largest_size(nine, 0.06, 2, 5.0).digits < demo.largest_size(demo.SIZES, 0.06, 2, 5.0).digits
    # The slowest supported machine: two cores, 60 ms per step.
    assert demo.largest_size(demo.SIZES, 0.06, 2, 5.0) == demo.SIZES[0]


def test_sizes_have_different_encoders() -> None:
    """A demo that was interrupted finds the size that it was started with by the name of its first run."""
    names = {size.pretraining_run().name for size in demo.SIZES}
    assert len(names) == len(demo.SIZES)
    assert all(isinstance(Run(**size.settings), Run) for size in demo.SIZES)
