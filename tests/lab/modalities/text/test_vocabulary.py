"""Vocabularies that are trained on texts, and tokenizers in folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contrapose.lab.modalities.text.pretrained import load_tokenizer
from contrapose.lab.modalities.text.vocabulary import save_tokenizer, train_vocabulary

ENGLISH = [
    "The dog walks in the park.",
    "A dog was walking, and a cat was talking!",
    "Café owners talked about walks; cafés closed.",
    "The walker and the talker met the dog's owner.",
] * 3
OTHERS = [
    "他说他不知道。",
    "Собака гуляет в парке.",
    "الكلب يمشي في الحديقة",
    "강아지가 걷는다",
    "犬が歩く",
    "नमस्ते दुनिया",
]


def test_few_texts_of_any_language() -> None:
    tokenizer = train_vocabulary([*ENGLISH, *OTHERS])
    for text in OTHERS:
        ids = tokenizer(text)["input_ids"]
        assert ids[0] == tokenizer.cls_token_id
        assert ids[-1] == tokenizer.sep_token_id
        assert tokenizer.unk_token_id not in ids
    assert tokenizer.tokenize("DOGS walk") == ["dog", "##s", "walk"]
    assert tokenizer.tokenize("café") == tokenizer.tokenize("Cafe")
    assert tokenizer.decode(tokenizer("the dog walks .")["input_ids"], skip_special_tokens=True) == "the dog walks."
    assert tokenizer.tokenize("##s") != ["##s"]  # continuations are not special in a text


def test_special_tokens() -> None:
    tokenizer = train_vocabulary(iter(ENGLISH))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.convert_tokens_to_ids(special) == [0, 1, 2, 3, 4]
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id) == (0, 4)
    assert tokenizer("dog \N{SNOWMAN}")["input_ids"][2] == tokenizer.unk_token_id
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))


def test_the_size_is_an_upper_bound() -> None:
    chinese = ["".join(chr(0x4E00 + 7 * i + j) for j in range(20)) for i in range(200)]
    cyrillic = ["".join(chr(0x0430 + (i * j) % 32) for j in range(20)) for i in range(200)]
    for texts in (chinese, cyrillic, ENGLISH):
        assert len(train_vocabulary(texts, size=100)) <= 100
    assert len(train_vocabulary(chinese, size=1000)) <= 1000
    with pytest.raises(ValueError, match="size: expected a whole number of at least 100, got 99"):
        train_vocabulary(ENGLISH, size=99)


def test_texts_without_letters_are_refused() -> None:
    for texts in ([], ["", " \t"]):
        with pytest.raises(ValueError, match="texts: expected texts with letters to train a vocabulary on, got none"):
            train_vocabulary(texts)


def test_rare_characters_and_long_words_take_no_place() -> None:
    tokenizer = train_vocabulary(["abcdefghij " * 10_000, "abc \N{SNOWMAN}", "z" * 50_000])
    assert "a" in tokenizer.get_vocab()
    assert "\N{SNOWMAN}" not in tokenizer.get_vocab()
    assert max(len(token) for token in tokenizer.get_vocab()) < 20


def test_the_same_texts_give_the_same_vocabulary() -> None:
    """The trainer's hash tables are seeded anew in each call, and a few sentences have many ties."""
    saved = {train_vocabulary(ENGLISH + OTHERS, size=150).backend_tokenizer.to_str() for _ in range(10)}
    assert len(saved) == 1


def test_a_saved_tokenizer_is_the_same(tmp_path: Path) -> None:
    tokenizer = train_vocabulary(ENGLISH)
    tokenizer(ENGLISH, padding="max_length", truncation=True, max_length=4)
    save_tokenizer(tokenizer, tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    assert (content["truncation"], content["padding"]) == (None, None)
    loaded = load_tokenizer(tmp_path)
    assert loaded(ENGLISH, padding=True)["input_ids"] == tokenizer(ENGLISH, padding=True)["input_ids"]
    assert (loaded.pad_token_id, loaded.padding_side) == (0, "right")


def test_folders_without_a_usable_tokenizer_are_refused(tmp_path: Path) -> None:
    save_tokenizer(train_vocabulary(ENGLISH), tmp_path)
    config = tmp_path / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps({key: value for key, value in settings.items() if key != "pad_token"}))
    with pytest.raises(ValueError, match=r"has no padding token; add a pad_token to its tokenizer_config\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not JSON"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="transformers cannot load"):
        load_tokenizer(tmp_path)


def test_code_beside_a_tokenizer_is_not_executed(tmp_path: Path) -> None:
    save_tokenizer(train_vocabulary(ENGLISH), tmp_path)
    marker = tmp_path / "executed"
    (tmp_path / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    config = tmp_path / "tokenizer_config.json"
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
    config.write_text(json.dumps(json.loads(config.read_text()) | own))
    with pytest.raises(ValueError, match="contains custom code"):
        load_tokenizer(tmp_path)
    assert not marker.exists()
