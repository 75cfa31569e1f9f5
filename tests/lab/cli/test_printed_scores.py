"""Scores on stdout are one JSON object of rounded numbers; stderr explains the metrics."""

from __future__ import annotations

import json

import pytest

from contrapose.lab.cli.printed_scores import print_metrics, print_scores


def test_scores_are_rounded(capsys: pytest.CaptureFixture[str]) -> None:
    print_scores({"step": 12, "knn_top1": 46.00000083, "uniformity": -0.1881007467, "model": "minilm"})
    expected = {"step": 12, "knn_top1": 46.0, "uniformity": -0.188101, "model": "minilm"}
    assert capsys.readouterr().out == json.dumps(expected) + "\n"


def test_each_metric_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_metrics({"tolerance": 0.95172, "separation_n1": 0.5, "encoder_tolerance": 0.70554})
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [
        "metric         projector    encoder",
        "tolerance         0.9517     0.7055  mean similarity of two samples of one class; higher: classes stay together",
        "separation_n1        0.5             mean similarity of a view to the nearest other sample",
    ]
