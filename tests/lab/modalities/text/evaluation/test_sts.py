"""STS: the correlation with ties, the aggregation, alignment and uniformity, and files that cannot be read."""

from __future__ import annotations

import gzip
import lzma
import math
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrapose.lab.modalities.text.evaluation import SentencePair, evaluate_sts, read_sts, spearman
from contrapose.lab.modalities.text.evaluation.sts import STS_TASKS

HEADER = "dataset\tsubset\tsplit\tscore\tsentence1\tsentence2\n"


def spearman_oracle(x: list[float], y: list[float]) -> float:
    """Pearson's correlation of the ranks, where equal values share the mean of their ranks."""

    def ranks(values: list[float]) -> list[float]:
        return [sum(other < v for other in values) + (sum(other == v for other in values) + 1) / 2 for v in values]

    def centred(values: list[float]) -> list[float]:
        return [value - sum(values) / len(values) for value in values]

    a, b = centred(ranks(x)), centred(ranks(y))
    products = sum(p * q for p, q in zip(a, b, strict=True))
    return products / math.sqrt(sum(p * p for p in a) * sum(q * q for q in b))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12))
def test_spearman_with_ties(points: list[tuple[int, int]]) -> None:
    x, y = ([float(point[k]) for point in points] for k in (0, 1))
    if len(set(x)) < 2 or len(set(y)) < 2:
        with pytest.raises(ValueError, match="needs different values"):
            spearman(torch.tensor(x), torch.tensor(y))
    else:
        assert spearman(torch.tensor(x), torch.tensor(y)) == pytest.approx(spearman_oracle(x, y), abs=1e-12)


def encode_angles(texts: Sequence[str]) -> Tensor:
    """A text is an angle in degrees; its vector has that direction, and a length of its own."""
    angles = torch.tensor([float(text) for text in texts]).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1) * (1 + angles[:, None])


def pair(dataset: str, subset: str, score: float, angle: float, split: str = "test") -> SentencePair:
    return SentencePair(dataset, subset, split, score, "0", str(angle))


def test_subsets_are_ranked_together() -> None:
    """Each subset is ranked perfectly, but the second has smaller angles at lower scores."""
    one = [pair("STS12", "a", score, angle) for score, angle in ((5, 40), (4, 50), (3, 60))]
    other = [pair("STS12", "b", score, angle) for score, angle in ((2, 10), (1, 20), (0, 30))]
    assert evaluate_sts(encode_angles, one)["sts12"] == pytest.approx(100)
    assert evaluate_sts(encode_angles, other)["sts12"] == pytest.approx(100)
    both = evaluate_sts(encode_angles, one + other)
    expected = spearman_oracle([-40, -50, -60, -10, -20, -30], [5, 4, 3, 2, 1, 0])
    assert both == {"sts12": pytest.approx(100 * expected)}
    assert both["sts12"] < 0


def test_the_mean_is_that_of_the_seven_test_sets() -> None:
    pairs = [
        pair(task.upper(), "", score, angle)
        for sign, task in zip((1, 1, 1, 1, 1, -1, -1), STS_TASKS, strict=True)
        for score, angle in ((2, 30 - 20 * sign), (1, 30), (0, 30 + 20 * sign))
    ]
    # Neither a dev split nor training pairs count.
    pairs += [pair("STSB", "", score, angle, "dev") for score, angle in ((5, 10), (4.5, 20), (4, 90))]
    pairs += [pair("STSB", "", 5, 120, "train")]
    scores = evaluate_sts(encode_angles, pairs)
    assert scores["sts_mean"] == pytest.approx(100 * 3 / 7)
    assert scores["stsb"] == pytest.approx(-100)
    assert scores["stsb_dev"] == pytest.approx(100)
    assert "stsb_alignment" not in scores  # no test pair has a score above 4
    assert "sts_mean" not in evaluate_sts(encode_angles, [p for p in pairs if p.dataset != "STS14"])


def test_alignment_and_uniformity_of_stsb() -> None:
    """A pair with a score of 4 is not positive; the sentence "0" counts once for each of its pairs."""
    scores = evaluate_sts(encode_angles, [pair("STSB", "", s, a, "dev") for s, a in ((5, 10), (4.5, 20), (4, 90))])

    def squared_distance(a: float, b: float) -> float:
        return 2 - 2 * math.cos(math.radians(a - b))

    assert scores["stsb_dev_alignment"] == pytest.approx(
        (squared_distance(0, 10) + squared_distance(0, 20)) / 2, rel=1e-5
    )
    angles = [0, 10, 0, 20, 0, 90]
    terms = [math.exp(-2 * squared_distance(angles[i], angles[j])) for i in range(6) for j in range(i)]
    assert scores["stsb_dev_uniformity"] == pytest.approx(math.log(sum(terms) / len(terms)), rel=1e-5)


def test_files_may_be_compressed_and_quotation_marks_are_characters(tmp_path: Path) -> None:
    text = HEADER + 'STSB\tx\ttest\t4.5\the said "no\ta line\u2028separator\r\n' + "STSB\tx\ttrain\t0\ta\tb"
    (tmp_path / "a.tsv").write_bytes(text.encode())
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "a.tsv.xz").write_bytes(lzma.compress(text.encode()))
    expected = [
        SentencePair("STSB", "x", "test", 4.5, 'he said "no', "a line\u2028separator"),
        SentencePair("STSB", "x", "train", 0, "a", "b"),
    ]
    for name in ("a.tsv", "a.tsv.gz", "a.tsv.xz"):
        assert read_sts(tmp_path / name) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no rows"),
        (HEADER, "has no rows"),
        ("a,b,c\n1,2,3\n", "line 1: expected the columns dataset, subset, split, score, sentence1, sentence2"),
        (
            HEADER + "STSB\tx\ttest\t1\ta\tb\nSTSB\tx\ttest\t1\ta\n",
            "line 3: expected 6 fields with tabs between them, got 5",
        ),
        (HEADER + "STSB\tx\ttest\thigh\ta\tb\n", "line 2: expected a number as score, got 'high'"),
        (HEADER + "STSB\tx\ttest\tnan\ta\tb\n", "line 2: expected a number as score, got 'nan'"),
        (HEADER + "STSB\tx\ttest\t1\ta\t \n", "line 2: sentence2 is empty"),
        (HEADER + "STSB\tx\ttrain\t1\ta\tb\n", "expected pairs in the split test or dev, got only train"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "file.tsv").write_text(content)
    with pytest.raises(ValueError, match=r"^sts: ") as error:
        read_sts(tmp_path / "file.tsv")
    assert message in str(error.value)


def test_damaged_and_missing_files_are_refused(tmp_path: Path) -> None:
    rows = HEADER + "".join(f"STSB\tx\ttest\t{i}\ta {i}\tb {i}\n" for i in range(2000))
    for name, content in (
        ("short.tsv.xz", lzma.compress(rows.encode())[:-40]),
        ("short.tsv.gz", gzip.compress(rows.encode())[:-40]),
        ("plain.tsv.xz", rows.encode()),
        ("plain.tsv.gz", rows.encode()),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="is damaged or not a"):
            read_sts(tmp_path / name)
    (tmp_path / "latin.tsv").write_bytes(HEADER.encode() + "STSB\tx\ttest\t1\tcafé\tb\n".encode("latin-1"))
    with pytest.raises(ValueError, match="expected UTF-8 text"):
        read_sts(tmp_path / "latin.tsv")
    with pytest.raises(ValueError, match="does not exist"):
        read_sts(tmp_path / "none.tsv")
    with pytest.raises(ValueError, match="is a folder"):
        read_sts(tmp_path)


def test_equal_scores_have_no_correlation() -> None:
    with pytest.raises(ValueError, match="sts: sts12: a rank correlation needs different values"):
        evaluate_sts(encode_angles, [pair("STS12", "", 3, 10), pair("STS12", "", 3, 20)])


@pytest.mark.slow
@pytest.mark.skipif(
    not {"CONTRAPOSE_MINILM", "CONTRAPOSE_STS"} <= set(os.environ),
    reason="needs the folder of all-MiniLM-L6-v2 and a file of STS-B and SICK-R",
)
@pytest.mark.timeout(1800)
def test_minilm() -> None:
    """An independent measurement with the same weights gives 81.99 and 77.14."""
    from contrapose.lab.modalities.text.pretrained import load_sentence_encoder

    pairs = [pair for pair in read_sts(Path(os.environ["CONTRAPOSE_STS"])) if pair.task in ("stsb", "sickr")]
    scores = evaluate_sts(load_sentence_encoder(Path(os.environ["CONTRAPOSE_MINILM"]), pooling="mean"), pairs)
    assert scores["stsb"] == pytest.approx(81.99, abs=0.05)
    assert scores["sickr"] == pytest.approx(77.14, abs=0.05)


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    line = "STS12\ta\ttest\t1\tone\t"
    path = tmp_path / "long.tsv"
    path.write_text(HEADER + line + "x" * (100_000 - len(line)) + "\n")
    assert len(read_sts(path)) == 1
    path.write_text(HEADER + line + "x" * 200_000 + "\n")
    with pytest.raises(ValueError, match=r"long\.tsv, line 2 has more than 100,000 characters"):
        read_sts(path)
    with gzip.open(tmp_path / "bomb.tsv.gz", "wb", compresslevel=1) as file:
        for _ in range(50):
            file.write(b"a" * 10**6)
    with pytest.raises(ValueError, match=r"bomb\.tsv\.gz, line 1 has more than 100,000 characters"):
        read_sts(tmp_path / "bomb.tsv.gz")
