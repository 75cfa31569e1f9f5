"""The built-in text set: its size, its sentences, what is held out, and that it can be learned but not by words in common."""

from __future__ import annotations

import re
import sys
import sysconfig
from itertools import product
from pathlib import Path
from zlib import crc32

import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor

from contrapose import cross, nt_xent
from contrapose.lab.evaluation import recall_at
from contrapose.lab.modalities.text.pydoc import pydoc_pairs

Pairs = list[tuple[str, str]]


@pytest.fixture(scope="module")
def sides() -> tuple[Pairs, Pairs]:
    return pydoc_pairs()


@pytest.mark.thorough
def test_there_are_enough_pairs_and_they_repeat(sides: tuple[Pairs, Pairs]) -> None:
    train, held_out = sides
    assert len(train) >= 3_000
    assert len(held_out) >= 500
    assert pydoc_pairs() == sides


def test_no_sentence_occurs_twice(sides: tuple[Pairs, Pairs]) -> None:
    sentences = [sentence.lower() for pairs in sides for pair in pairs for sentence in pair]
    assert len(sentences) == len(set(sentences))


def test_texts_are_sentences(sides: tuple[Pairs, Pairs]) -> None:
    for sentence in (sentence for pairs in sides for pair in pairs for sentence in pair):
        assert 4 <= len(sentence.split()) <= 50
        assert sentence == " ".join(sentence.split())
        assert sentence.rstrip("\"')")[-1] in ".:!?"
        assert not any(code in sentence for code in (">>>", "::=", "{", "\\", "=="))


def words_of_module(name: str) -> str:
    source = Path(sysconfig.get_path("stdlib"), name).read_text(encoding="utf-8")
    return " ".join(re.sub(r"(?<=\w)-\n\s*", "-", source).split())


def test_pairs_are_neighbours_and_a_module_is_on_one_side(sides: tuple[Pairs, Pairs]) -> None:
    names = ("argparse", "cmd", "configparser", "doctest", "optparse", "subprocess", "tarfile", "threading")
    held_out_modules = 0
    for module in (words_of_module(f"{name}.py") for name in names):
        train, held_out = (sum(f"{first} {second}" in module for first, second in pairs) for pairs in sides)
        assert train + held_out >= 4
        assert train == 0 or held_out == 0
        held_out_modules += held_out > 0
    assert 0 < held_out_modules < len(names)


def test_words_in_common_do_not_solve_it(sides: tuple[Pairs, Pairs]) -> None:
    train, held_out = sides
    tf_idf = TfidfVectorizer().fit([text for pair in train for text in pair])
    first, second = (
        torch.from_numpy(tf_idf.transform(column).toarray()) for column in map(list, zip(*held_out, strict=True))
    )
    recall = recall_at(first, second)
    assert 5 < recall["recall@1"] < 40
    assert 20 < recall["recall@10"] < 65


def numbers_of_words(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Number each word by a hash of its letters: two tensors (n, 50), padded with zeros."""

    def row(text: str) -> list[int]:
        words = [1 + crc32(word.encode()) % 4095 for word in re.findall(r"[a-z]+", text.lower())][:50]
        return words + [0] * (50 - len(words))

    return torch.tensor([row(first) for first, _ in pairs]), torch.tensor([row(second) for _, second in pairs])


def test_word_vectors_learn_to_find_the_next_sentence(sides: tuple[Pairs, Pairs]) -> None:
    torch.manual_seed(0)
    (first, second), (query, document) = (numbers_of_words(pairs) for pairs in sides)
    words = torch.nn.EmbeddingBag(4096, 64, padding_idx=0)
    before = recall_at(words(query), words(document))["recall@10"]
    optimizer = torch.optim.AdamW(words.parameters(), lr=0.05)
    for _ in range(2):
        for batch in torch.randperm(len(first)).split(256):
            loss = nt_xent(cross(words(first[batch]), words(second[batch])), temperature=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    after = recall_at(words(query), words(document))["recall@10"]
    assert after > before + 10


def docstring(*sentences: str) -> str:
    return f'"""{" ".join(sentences)}"""\n'


def test_a_sentence_that_is_left_out_separates_its_neighbours(tmp_path: Path) -> None:
    words = ["".join(letters) for letters in product("abcdefghij", repeat=3)]  # not digits, which are not compared
    for file in range(50):
        texts = [
            docstring(
                f"The first sentence of {word}.",
                f"The second sentence of {word}.",
                f"Code = {{{word}}}.",
                f"More of {word} follows.",
            )
            for word in words[20 * file : 20 * file + 20]
        ]
        (tmp_path / f"{words[file]}.py").write_text("".join(texts))
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "other.py").write_text(
        docstring("A package of other people.", "It is left out here.")
    )
    train, held_out = pydoc_pairs(tmp_path)
    assert [pair for pair in held_out if not pair[0].startswith("The first sentence of")] == []
    pairs = [pair for pair in train + held_out if "sentence of" in pair[0]]
    assert sorted(pairs) == [(f"The first sentence of {word}.", f"The second sentence of {word}.") for word in words]
    assert not any("other people" in first for first, _ in train)


def test_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"data: pydoc needs the source files .* has almost none; .* --data FILE"):
        pydoc_pairs(tmp_path)
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)  # Python then imports it as if it were not installed
    with pytest.raises(
        ModuleNotFoundError, match="data: pydoc needs the module pydoc_data of Python's standard library"
    ):
        pydoc_pairs(tmp_path)
