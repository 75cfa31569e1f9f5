"""`contrapose data check` on a file of texts shows what training would use, and what looks wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import error_message, printed_lines

from contrapose.lab.modalities.modality import DataSettings
from contrapose.lab.modalities.text.load import held_out_rows, open_data

PAIRS = [f"text number {n}\tits own positive, {n}" for n in range(20)]


def check(path: Path, capsys: pytest.CaptureFixture[str], *options: str, code: int = 0) -> list[str]:
    """Return the lines that `data check` prints; it exits with this code."""
    return printed_lines(capsys, "data", "check", str(path), *options, code=code)


def test_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "two words.txt"
    file.write_text(f"one\ntwo words\nthree words here\nfour words are here\n{'long ' * 31}\n")
    assert check(file, capsys) == [
        "columns: text",
        "train: 5 sentences",
        "test:  none, so runs have no score, except with pairs, or with --extra-metrics sts:FILE@1",
        "length of text: 1 to 31 words, median 3",
        "warning: texts of more than 32 tokens, which are truncated unless --size allows more: at least 1",
        "5 of 5 lines can be used",
        f"train with: contrapose train --data '{file}'",
    ]


def test_pairs_with_bad_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pairs.tsv"
    bad = ["", "only one", "", "caf\xe9\tx", "caf\xe9s\ty"]
    file.write_bytes("\n".join(["sentence1\tsentence2", *PAIRS, *bad, "same\tsame", ""]).encode("latin1"))
    lines = check(file, capsys, code=1)
    assert lines[:3] == ["columns: sentence1, sentence2", "train: 17 pairs", "test:  4 pairs"]
    assert lines[-7:] == [
        "warning: pairs whose first two texts are equal: 1, for example in line 27",
        "line 22 is empty; 1 more like it",
        "line 23 has 1 column, expected 2 as in the first row",
        "line 25 is not UTF-8: byte 4 is 0xe9 (convert the file with: iconv -f latin1 -t utf-8 pairs.tsv > NEW); 1 more "
        "like it",
        "21 of 26 lines can be used",
        "train, evaluate and embed leave the other lines out with --skip-broken; by default, they are an error",
        f"train with: contrapose train --data {file} --skip-broken",
    ]


def test_duplicates_and_leaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("\n".join(PAIRS) + "\n")
    held_out = held_out_rows(open_data(DataSettings(data=str(file))), 20, 0.2).tolist()
    trained = [n for n in range(20) if n not in held_out]
    for one, other, leak in ((trained[0], trained[5], False), (trained[1], held_out[0], True)):
        rows = list(PAIRS)
        rows[other] = rows[one]
        file.write_text("\n".join(rows) + "\n")
        lines = check(file, capsys)
        example = " and ".join(map(str, sorted((one + 1, other + 1))))
        assert f"warning: pairs that repeat an earlier one: 1, for example in lines {example}" in lines
        leaked = "warning: pairs that are in both train and test, so that scores will be too high: 1"
        assert (leaked in lines) is leak


def test_columns_are_chosen_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "triplets.csv"
    file.write_text("id,negative,anchor,positive\n" + "".join(f"{n},no {n},a {n},p {n}\n" for n in range(8)))
    lines = check(file, capsys)
    assert lines[:3] == ["columns: anchor, positive, negative", "train: 6 triplets", "test:  2 triplets"]
    assert f"columns of {file}: anchor, positive, negative; not read: id (--columns chooses others)" in lines
    lines = check(file, capsys, "--columns", "negative")
    assert lines[:2] == ["columns: negative", "train: 8 sentences"]
    assert lines[-1] == f"train with: contrapose train --data {file} --columns negative"


def test_commas_in_a_tsv_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("What is it?,A pen.\nWho is it?,You and me.\n")
    lines = check(file, capsys)
    assert (
        f"{file} has no tab in its first line, so each line is one text; if commas separate columns, rename it to .csv"
        in lines
    )


def test_semicolons_in_a_csv_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text("What is it?;A pen.\nWho is it?;You and me.\n")
    assert any("has no comma in its first line, so each line is one text" in line for line in check(file, capsys))


def test_data_that_cannot_be_used_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("anchor\tpositive\na\t\n\tb\n")
    assert "has no line that can be used" in error_message(capsys, "data", "check", str(file))
    file.write_text("anchor\tpositive\na\tb\n")
    message = error_message(capsys, "data", "check", str(file), "--classes", "imagenet100")
    assert "classes: this setting is only for images" in message
    assert "columns: they are for texts" in error_message(capsys, "data", "check", "digits16", "--columns", "a")


@pytest.mark.thorough
def test_the_built_in_set(capsys: pytest.CaptureFixture[str]) -> None:
    lines = check(Path("pydoc"), capsys)
    assert lines[0] == "columns: anchor, positive"
    assert "pairs" in lines[2]
    assert lines[-1] == "train with: contrapose train --data pydoc"


def test_contradictions_in_triplets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "triplets.tsv"
    triplets = [f"anchor {n}\tpositive {n}\tnegative {n}" for n in range(20)]

    def warnings(*rows: str) -> list[str]:
        file.write_text("\n".join(["anchor\tpositive\tnegative", *triplets, *rows]) + "\n")
        lines = check(file, capsys)
        return [line for line in lines if line.startswith("warning") and "both train and test" not in line]

    assert warnings() == []
    own = "warning: triplets with a negative that equals their first or second text: "
    assert warnings("a\tp\tp", "b\tq\tb") == [f"{own}2, for example in line 22"]
    several = "warning: first texts with several second texts, which are negatives of each other in a batch: 1"
    assert warnings("anchor 3\tother\tnegative") == [f"{several}, for example in lines 5 and 22"]
    assert warnings("anchor 3\tother\tpositive 3") == [
        f"{several}, for example in lines 5 and 22",
        "warning: negatives that are the second text of the same first text in another row: 1, for example in lines 5 and 22",
    ]
    assert warnings("anchor 3\tpositive 3\tanother negative") == []  # several negatives of a pair


def test_the_same_pair_with_another_negative_is_a_leak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "triplets.tsv"
    triplets = [f"anchor {n}\tpositive {n}\tnegative {n}" for n in range(20)]
    file.write_text("\n".join(triplets) + "\n")
    held_out = held_out_rows(open_data(DataSettings(data=str(file))), 20, 0.2).tolist()
    trained = next(n for n in range(20) if n not in held_out)
    triplets[held_out[0]] = f"anchor {trained}\tpositive {trained}\tanother negative"
    file.write_text("\n".join(triplets) + "\n")
    leak = "warning: first two texts of triplets that are in both train and test, so that scores will be too high: 1"
    assert leak in check(file, capsys)
