"""Tables in a narrow terminal keep names and numbers in one piece."""

from __future__ import annotations

import pytest

from contrapose.lab.cli.tables import fold, fold_names, print_table

LONG = "nt_xent(temperature=cosine(0.07, 0.2), negatives=hardest(64))"
ROWS = [("digits-simclr-b93e526c", "simclr", "kNN 11.00"), ("digits-nt_xent-0a1b2c3d", LONG, "kNN 12.00")]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            100,
            ["run loss score", "digits-simclr-b93e526c simclr kNN 11.00", f"digits-nt_xent-0a1b2c3d {LONG} kNN 12.00"],
        ),
        (
            80,
            [
                "run score",
                "digits-simclr-b93e526c kNN 11.00",
                "loss simclr",
                "digits-nt_xent-0a1b2c3d kNN 12.00",
                f"loss {LONG}",
            ],
        ),
        (
            30,
            [
                "run",
                "digits-simclr-b93e526c",
                "loss simclr",
                "score kNN 11.00",
                "digits-nt_xent-0a1b2c3d",
                "loss nt_xent(temperature=",
                "cosine(0.07, 0.2),",
                "negatives=hardest(64))",
                "score kNN 12.00",
            ],
        ),
    ],
)
def test_details_go_below_their_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, expected: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(("run", "loss", "score"), ROWS, details=("loss", "score"))
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in lines] == expected
    assert max(map(len, lines)) <= width


def test_a_file_has_one_line_for_each_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    print_table(("run", "loss", "score"), ROWS, details=("loss",))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["run", *(row[0] for row in ROWS)]


def test_a_comparison_in_80_columns_breaks_losses_between_their_settings() -> None:
    headings = ("loss", "kNN, %", "-U (spread out)", "T (classes together)")
    rows = [("simclr", *["10.33 ± 0.94"] * 3), (LONG, *["9.12 ± 0.10"] * 3)]
    assert fold_names(headings, rows, 121) == (headings, rows)
    folded, (first, second) = fold_names(headings, rows, 80)
    assert folded == ("loss", "kNN, %", "-U (spread\nout)", "T (classes\ntogether)")
    assert first == rows[0]
    assert second[0].split("\n") == ["nt_xent(temperature=cosine(", "0.07, 0.2), negatives=hardest(", "64))"]
    assert second[1:] == rows[1][1:]
    assert fold_names(headings, rows, 50) == (headings, rows)  # too narrow for that


@pytest.mark.parametrize("text", [LONG, "one two", "a" * 40, "", "simclr (failed: no memory)"])
def test_folding_loses_nothing(text: str) -> None:
    assert fold(text, 12).replace("\n", "").replace(" ", "") == text.replace(" ", "")
