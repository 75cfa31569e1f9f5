"""A run says what its loss is: a method's settings depend on the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrapose.lab.cli import main
from contrapose.lab.training import Run
from contrapose.losses import CATALOGUE
from contrapose.losses.parse import parse


def test_the_text_of_an_objective_can_be_given_back() -> None:
    checked = 0
    for name in CATALOGUE:
        try:
            run = Run(data="digits", loss=name)
        except ValueError:  # it needs another framework
            continue
        again = parse(run.objective, run.loss_data)
        wanted = parse(name, run.loss_data)
        assert again.func is wanted.func
        values = {k: repr(v) for k, v in again.keywords.items()}
        assert {k: repr(v) for k, v in wanted.keywords.items()}.items() <= values.items()  # defaults may be added
        checked += 1
    assert checked > 30


@pytest.mark.thorough
def test_simclr_on_texts_and_on_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").write_text("".join(f"first text {i}\tsecond text {i}\n" for i in range(40)))
    main(["train", "--data", "pairs.tsv", "--loss", "simclr", "--epochs", "1", "--batch", "8", "--encoder", "tiny"])
    assert "loss simclr: nt_xent(temperature=0.05" in capsys.readouterr().out
    main(["train", "--data", "digits", "--limit", "64", "--batch", "32", "--epochs", "1", "--dry-run"])
    assert "loss        nt_xent(temperature=0.2)" in capsys.readouterr().out


def test_equal_texts_have_no_negatives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "same.txt"
    file.write_text("the same sentence\n" * 40)
    with pytest.raises(SystemExit):
        main(["train", "--data", str(file), "--epochs", "1", "--batch", "8", "--encoder", "tiny", "--views", "dropout"])
    assert "--data: all 40 sentences in" in (error := capsys.readouterr().err)
    assert "are equal, so none is a negative of another" in error
