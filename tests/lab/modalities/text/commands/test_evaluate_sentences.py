"""`contrapose evaluate hf:PATH`: scores of a sentence encoder, and options that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import error_message
from sentences import bert, columns

from contrapose.lab.cli import main


def test_sts_and_transfer_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bert().save(str(tmp_path / "encoder"))
    # Every second pair shares a word, for tf-idf.
    pairs = [(a, f"{b} {a}" if i % 2 else b) for i, (a, b) in enumerate(zip(*columns(6).values(), strict=True))]
    sts = "".join(f"STSB\tx\ttest\t{i}\t{first}\t{second}\n" for i, (first, second) in enumerate(pairs))
    (tmp_path / "sts.tsv").write_text(f"dataset\tsubset\tsplit\tscore\tsentence1\tsentence2\n{sts}")
    tasks = "".join(f"CR\tall\t{label}\t{label}{i % 6}\t\n" for label in "qp" for i in range(12))
    (tmp_path / "transfer.tsv").write_text(f"task\tsplit\tlabel\ttext\ttext2\n{tasks}CR\tall\tq\t\t\n")
    evaluate = ["evaluate", f"hf:{tmp_path / 'encoder'}"]
    capsys.readouterr()
    main([*evaluate, "--sts", str(tmp_path / "sts.tsv"), "--transfer", str(tmp_path / "transfer.tsv")])
    output = capsys.readouterr()
    scores = json.loads(output.out)
    assert scores["pooling"] == "mean"
    assert scores["length"] == 16
    assert -100 <= scores["stsb"] <= 100
    assert 0 <= scores["cr"] <= 100
    assert {"stsb_alignment", "stsb_uniformity"} <= set(scores)
    assert -100 <= scores["tfidf_stsb"] <= 100
    assert f"{scores['tfidf_stsb']:.2f}" in output.err or f"{scores['tfidf_stsb']:.3f}" in output.err
    assert "tf-idf: the same correlation without any training" in output.err
    assert "Spearman's correlation of cosine similarity, all subsets" in output.err
    assert f"{scores['cr']:.2f}" in output.err
    assert '1 empty text is encoded as "."' in output.err
    main([*evaluate, "--sts", str(tmp_path / "sts.tsv"), "--pooling", "cls"])
    assert json.loads(capsys.readouterr().out)["stsb"] != scores["stsb"]


def test_options_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder, sts = f"hf:{tmp_path}", ["--sts", str(tmp_path / "none.tsv")]
    assert "give a file with --sts or --transfer" in error_message(capsys, "evaluate", encoder)
    assert "none.tsv does not exist" in error_message(capsys, "evaluate", encoder, *sts)
    assert "linear: --linear is for runs that contrapose trained" in error_message(
        capsys, "evaluate", encoder, *sts, "--linear", "cacr"
    )
    assert "pooling: --pooling is for hf:FOLDER" in error_message(
        capsys, "evaluate", str(tmp_path), *sts, "--pooling", "cls"
    )
    assert "batch: expected a whole number of at least 1" in error_message(
        capsys, "evaluate", encoder, *sts, "--batch", "0"
    )
