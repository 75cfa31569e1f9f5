"""`contrapose mine`: what it finds, prints and writes for every kind of data, and that `train` reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from captioned import captions_of, run_of, trainer_of, write_folder
from commands import error_message, printed_lines
from sentence_transformers import SentenceTransformer
from sentences import bert

from contrapose.lab.cli import main
from contrapose.lab.modalities.images.digits import digits
from contrapose.lab.modalities.text.files import open_texts
from contrapose.lab.training import Run

PAIRS = [(f"q{i} q{i // 2}", " ".join([f"p{i}"] * (1 + i % 3))) for i in range(10)]
PAIRS += [(PAIRS[0][0], "p11 n3"), ("p4 q1", PAIRS[7][1])]  # a second document, and a document of two queries


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a sentence encoder, pairs, and a corpus."""
    monkeypatch.chdir(tmp_path)
    bert().save(str(tmp_path / "encoder"))
    (tmp_path / "pairs.tsv").write_text("".join(f"{query}\t{document}\n" for query, document in PAIRS))
    (tmp_path / "corpus.txt").write_text("".join(f"n{i} n{i + 1} p{i}\n" for i in range(8)) + f"{PAIRS[3][0]}\n")
    return tmp_path


def rows_of(path: Path) -> list[tuple[str, ...]]:
    return list(open_texts(path).rows())


def expected_rows(folder: Path, count: int, margin: float) -> list[tuple[str, ...]]:
    """Return the rows by loops over sentence-transformers' embeddings."""
    texts = [document for _, document in PAIRS] + (folder / "corpus.txt").read_text().splitlines()
    documents, queries = list(dict.fromkeys(texts)), list(dict.fromkeys(query for query, _ in PAIRS))
    model = SentenceTransformer(str(folder / "encoder"), device="cpu")
    encoded = {text: model.encode(text, normalize_embeddings=True).astype(float) for text in {*documents, *queries}}
    rows = []
    for query in queries:
        own = [document for other, document in PAIRS if other == query]
        cosine = {document: float(encoded[query] @ encoded[document]) for document in documents}
        limit = max(cosine[document] for document in own) * (1 - margin)
        left = [text for text in documents if text not in own and text != query and cosine[text] <= limit]
        negatives = sorted(left, key=lambda text: -cosine[text])[:count]
        rows += [(query, document, *negatives) for document in own if len(negatives) == count]
    return rows


def test_pairs_and_a_corpus(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["-k", "2", "--corpus", "corpus.txt", "--margin", "0.02"]
    expected = expected_rows(folder, 2, 0.02)
    assert len(expected) > 5
    lines = printed_lines(capsys, "mine", "hf:encoder", "pairs.tsv", "-o", "mined.tsv", *options)
    assert rows_of(folder / "mined.tsv") == expected
    assert open_texts(folder / "mined.tsv").columns == ("anchor", "positive", "negative_1", "negative_2")
    assert lines[0].startswith("searched    11 queries, 20 documents, of which 12 pairs belong together")
    assert lines[1].startswith("mined       ")
    assert "that are the query itself" in lines[2]
    assert "too similar (--margin 0.02 of the own similarity)" in lines[2]
    assert lines[-2] == f"mined.tsv: {len(expected)} rows of anchor, positive, negative_1, negative_2"
    assert lines[-1] == "train with them: contrapose train --data mined.tsv --encoder hf:encoder"
    examples = [line for line in lines if line.startswith("  own ")]
    assert len(examples) == 3
    for ending in (".jsonl", ".parquet"):
        main(["mine", "hf:encoder", "pairs.tsv", "-o", f"again{ending}", *options, "--examples", "0"])
        assert rows_of(folder / f"again{ending}") == expected


def test_examples_show_what_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "mine",
        "hf:encoder",
        "pairs.tsv",
        "-o",
        "mined.tsv",
        "-k",
        "2",
        "--margin",
        "None",
        "--examples",
        "100",
    ]
    lines = printed_lines(capsys, *arguments)
    written = {row[0]: row for row in rows_of(folder / "mined.tsv")}
    assert len(written) == 11
    for query, row in written.items():
        start = lines.index(query)
        shown = [line.split(maxsplit=2) for line in lines[start + 1 : start + 4]]
        assert [words[0] for words in shown] == ["own", "1", "2"]
        assert [words[2] for words in shown[1:]] == list(row[2:])
        assert shown[0][2] in [document for other, document in PAIRS if other == query]
        assert 1.001 > float(shown[1][1]) >= float(shown[2][1])


def test_triplets_keep_queries_with_few_negatives(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["mine", "hf:encoder", "pairs.tsv", "-k", "4", "--rank-from", "5", "--no-relative"]
    lines = printed_lines(capsys, *arguments, "-o", "mined.tsv", "--triplets", "--margin", "0.03", "--examples", "0")
    rows = rows_of(folder / "mined.tsv")
    assert open_texts(folder / "mined.tsv").columns == ("anchor", "positive", "negative")
    assert f"mined.tsv: {len(rows)} rows of anchor, positive, negative" in lines
    assert not {(query, negative) for query, _, negative in rows} & set(PAIRS)
    assert "before --rank-from 5" in lines[2]
    assert any(
        line.startswith("note ") and line.endswith("a smaller --margin or fewer --negatives keep more")
        for line in lines
    )
    main([*arguments, "-o", "tuples.tsv", "--margin", "0.03", "--examples", "0"])
    assert {row[0] for row in rows_of(folder / "tuples.tsv")} < {row[0] for row in rows}


def test_triplets_that_repeat_a_pair_are_warned_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["mine", "hf:encoder", "pairs.tsv", "--margin", "None", "-o", "mined.tsv"]
    warning = "warning: rows of several negatives repeat their first two texts"
    for options, expected in (
        (["--triplets", "-k", "2"], True),
        (["--triplets", "-k", "1"], False),
        (["-k", "2"], False),
    ):
        main([*arguments, *options])
        assert (warning in capsys.readouterr().err) is expected


def test_refusals(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mined = ["mine", "hf:encoder", "pairs.tsv", "-o", "mined.tsv"]
    for arguments, message in (
        (["mine", "hf:encoder", "pairs.tsv", "-o", "mined.csv"], "--out: expected a name that ends in .tsv, .jsonl or"),
        ([*mined, "-k", "0"], "--negatives: expected a whole number of at least 1, got 0"),
        (
            [*mined, "-k", "30"],
            "--negatives: expected at most 10, the number of documents without a query's own one, got 30",
        ),
        (
            [*mined, "--margin", "5"],
            "--negatives: no query has 3 negatives among the 11 documents; use a smaller --margin",
        ),
        ([*mined, "--rank-from", "4", "--rank-to", "5"], "--rank-to: expected a whole number of at least 6, got 5"),
        ([*mined, "--epoch", "3"], "--epoch works only with runs that contrapose trained"),
        ([*mined, "--columns", "3", "1"], "--columns: expected one of 1, 2, got '3'"),
        (["mine", "hf:encoder", "corpus.txt", "-o", "mined.tsv"], "expected pairs, a file with two columns of texts"),
        (["mine", "nothing", "pairs.tsv", "-o", "mined.tsv"], "nothing is not the directory of a run"),
    ):
        assert message in error_message(capsys, *arguments)
    assert not (folder / "mined.tsv").exists()


@pytest.mark.thorough
def test_a_run_trains_on_what_a_run_has_mined(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--encoder", "tiny", "--epochs", "1", "--batch", "4", "--metrics", "0", "--warmup", "0"]
    main(["train", "--data", "pairs.tsv", *small, "--out", "first"])
    lines = printed_lines(capsys, "mine", "first", "pairs.tsv", "-o", "mined.jsonl", "--margin", "None", "-k", "2")
    assert lines[-1] == "train with them: contrapose train --data mined.jsonl --encoder tiny"
    assert len(rows_of(folder / "mined.jsonl")) == len(PAIRS)
    main(["train", "--data", "mined.jsonl", *small, "--out", "second"])
    assert Run.load(folder / "second" / "run.json").view_count == 4  # the query, its document and two negatives
    record = json.loads((folder / "second" / "records.jsonl").read_text().splitlines()[-1])
    assert record["loss"] > 0


@pytest.mark.thorough
def test_captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    trainer_of(run_of(write_folder(Path("colours"))), Path("run")).train()
    (tmp_path / "corpus.txt").write_text("a further caption\n")
    options = ["-k", "3", "--margin", "None", "--corpus", "corpus.txt"]
    lines = printed_lines(capsys, "mine", "run", "colours", "-o", "mined.tsv", *options)
    rows = rows_of(tmp_path / "mined.tsv")
    assert {row[0] for row in rows} == {f"colours/images/{number:02d}.png" for number in range(12)}
    names = ["red", "green", "blue", "yellow", "white", "black", "orange", "purple", "brown", "grey", "pink", "cyan"]
    for path, caption, *negatives in rows:
        number = int(Path(path).stem)
        own = captions_of(number, names[number])
        assert caption in own
        assert len(set(negatives) - set(own)) == 3
    assert f"12 images, {len(rows) + 1} captions, of which {len(rows)} pairs belong together" in lines[0]
    assert lines[-1] == "train with them in your own loop: docs/mining.md shows how"
    (tmp_path / "colours" / "images" / "03.png").write_bytes(b"no image")
    message = error_message(capsys, "mine", "run", "colours", "-o", "mined.tsv", *options)
    assert "03.png, cannot be read" in message
    main(["mine", "run", "colours", "-o", "rest.tsv", *options, "--skip-broken"])
    assert {row[0] for row in rows_of(tmp_path / "rest.tsv")} == {row[0] for row in rows} - {"colours/images/03.png"}


@pytest.mark.thorough
def test_labelled_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    main(["train", "--limit", "32", "--batch", "16", "--epochs", "1", "--knn", "3", "--metrics", "0", "--out", "run"])
    capsys.readouterr()
    lines = printed_lines(capsys, "mine", "run", "digits16", "-o", "mined.tsv", "--margin", "None", "-k", "2")
    written = (tmp_path / "mined.tsv").read_text().splitlines()
    labels = digits(2000, name="digits16").labels
    assert labels is not None
    rows = torch.tensor([list(map(int, line.split("\t"))) for line in written[1:]])
    assert rows[:, 0].tolist() == list(range(2000))
    assert torch.equal(labels[rows[:, 1]], labels[rows[:, 0]])
    assert bool((rows[:, 1] != rows[:, 0]).all())
    assert not bool((labels[rows[:, 2:]] == labels[rows[:, :1]]).any())
    assert "of the same class" in lines[2]
    message = error_message(capsys, "mine", "run", "digits16", "-o", "m.tsv", "--corpus", "texts.txt")
    assert "--corpus: a file of texts is for pairs of texts and for captions; leave --corpus out for images" in message
