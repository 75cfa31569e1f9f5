"""Sentence encoders of local folders: pooling, batches, and folders that cannot be loaded."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from sentences import SPECIAL, WIDTH, WORDS, bert
from transformers import BertConfig, BertModel

from contrapose.lab.modalities.text.pretrained import load_sentence_encoder

TEXTS = [
    "q1",
    "p1 p2 p3 p4 p5 p6",
    "n3 n4",
    "unknown",
    "",
    "q1",
    " ".join(WORDS[:30]),
]  # the last is longer than the model
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that sentence-transformers saved: BERT with mean pooling."""
    folder = tmp_path_factory.mktemp("encoder") / "saved"
    bert(dropout=0.1).save(str(folder))
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(saved, tmp_path / "folder"))


def edit(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def their_embeddings(model: SentenceTransformer) -> torch.Tensor:
    embeddings: torch.Tensor = model.eval().encode(TEXTS, convert_to_tensor=True, show_progress_bar=False)
    return embeddings.cpu()


@pytest.mark.parametrize("mode", ["mean", "cls"])
@pytest.mark.parametrize("normalise", [False, True])
def test_embeddings_equal_those_of_sentence_transformers(tmp_path: Path, mode: str, normalise: bool) -> None:
    model = SentenceTransformer(modules=[bert()[0], Pooling(WIDTH, mode), *[Normalize()] * normalise], device="cpu")
    model.save(str(tmp_path))
    encoder = load_sentence_encoder(tmp_path, device=CPU)
    assert (encoder.pooling, encoder.normalise, encoder.length) == (mode, normalise, 16)
    torch.testing.assert_close(encoder(TEXTS), their_embeddings(model), atol=1e-6, rtol=0)


def test_embeddings_do_not_depend_on_the_batch(saved: Path) -> None:
    encoder = load_sentence_encoder(saved, device=CPU)
    together = encoder(TEXTS)
    assert together.shape == (len(TEXTS), WIDTH)
    torch.testing.assert_close(encoder(TEXTS, batch_size=2), together, atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.cat([encoder([text]) for text in TEXTS]), together, atol=1e-6, rtol=0)
    assert encoder([]).shape == (0, WIDTH)
    with pytest.raises(ValueError, match="batch_size: expected a whole number of at least 1"):
        encoder(TEXTS, batch_size=0)


def test_texts_are_truncated(saved: Path) -> None:
    encoder = load_sentence_encoder(saved, length=4, device=CPU)  # [CLS], two words, [SEP]
    short, long = encoder(["p1 p2", "p1 p2 p3 p4"])
    torch.testing.assert_close(short, long, atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="length: expected at most 16, the longest input of this encoder, got 17"):
        load_sentence_encoder(saved, length=17)
    with pytest.raises(ValueError, match="length: expected a whole number of at least 3"):
        load_sentence_encoder(saved, length=-1)


def test_a_plain_folder_with_a_wordpiece_vocabulary(tmp_path: Path) -> None:
    """BERT's own files: no pooling is named, and the pooler, which is not used, may be missing."""
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "[MASK]", "walk", "##ing", "the", "dog"]))
    config = BertConfig(
        vocab_size=9, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"does not name its pooling.*choose --pooling cls or mean"):
        load_sentence_encoder(tmp_path)
    encoder = load_sentence_encoder(tmp_path, pooling="cls", device=CPU)
    assert encoder.length == 128
    assert encoder.tokenizer.tokenize("walking the dog") == ["walk", "##ing", "the", "dog"]
    one, other = encoder(["walking", "the dog"])
    assert not torch.allclose(one, other)


def test_padding_on_the_left_does_not_move_the_first_token(folder: Path) -> None:
    expected = load_sentence_encoder(folder, pooling="cls", device=CPU)(TEXTS)
    edit(folder / "tokenizer_config.json", padding_side="left")
    torch.testing.assert_close(load_sentence_encoder(folder, pooling="cls", device=CPU)(TEXTS), expected)


def test_old_pooling_files(folder: Path) -> None:
    path = folder / "1_Pooling" / "config.json"
    path.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}))
    assert load_sentence_encoder(folder).pooling == "cls"
    assert load_sentence_encoder(folder, pooling="mean").pooling == "mean"
    path.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}))
    with pytest.raises(ValueError, match=r"trained with pooling 'cls\+max_tokens', which is not available"):
        load_sentence_encoder(folder)


def refusal(path: Path, **settings: Any) -> str:
    with pytest.raises(ValueError, match=r"^(encoder|pooling): ") as error:
        load_sentence_encoder(path, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_incomplete_folders_are_refused(folder: Path) -> None:
    assert "does not exist; expected a folder with config.json" in refusal(folder / "none")
    assert "is a file" in refusal(folder / "config.json")
    assert "expected one of cls, mean, last, got 'meen'; did you mean 'mean'?" in refusal(folder, pooling="meen")
    (folder / "tokenizer.json").rename(folder / "kept.json")
    assert "has no tokenizer; expected tokenizer.json" in refusal(folder)
    (folder / "kept.json").rename(folder / "tokenizer.json")
    edit(folder / "tokenizer_config.json", pad_token=None)
    assert "has no padding token; add a pad_token" in refusal(folder)
    (folder / "model.safetensors").unlink()
    assert "has no weights; expected model.safetensors" in refusal(folder)
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    assert "has weights only in pytorch_model.bin, a pickle, which can execute code" in refusal(folder)
    (folder / "config.json").unlink()
    assert "has no config.json" in refusal(folder)


def test_other_modules_are_refused(tmp_path: Path) -> None:
    model = bert()
    SentenceTransformer(modules=[*model, Dense(WIDTH, 4)], device="cpu").save(str(tmp_path))
    assert "has a module Dense, which contrapose does not apply" in refusal(tmp_path)


def test_damaged_folders_are_refused(folder: Path) -> None:
    edit(folder / "config.json", num_hidden_layers=2)
    assert "lack 16 parameters of the model in config.json, such as encoder.layer.1." in refusal(folder)
    edit(folder / "config.json", num_hidden_layers=1, hidden_size=8)
    assert "transformers cannot load" in refusal(folder)
    (folder / "model.safetensors").write_bytes(b"no tensors")
    assert "transformers cannot load" in refusal(folder)
    (folder / "config.json").write_text("{")
    assert "config.json is not JSON" in refusal(folder)
    (folder / "modules.json").write_text("{")
    assert "modules.json is not JSON" in refusal(folder)
    for content in ("null", "7", '{"0": {}}', '["a"]', '[{"type": "Transformer"}]'):
        (folder / "modules.json").write_text(content)
        assert "modules.json: expected a" in refusal(folder)


@pytest.mark.parametrize("pooling", [[], [True], "mean", None, 7])
def test_a_pooling_file_that_is_no_object_is_refused(folder: Path, pooling: Any) -> None:
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    assert "1_Pooling/config.json: expected an object of JSON, got" in refusal(folder)


@pytest.mark.parametrize("length", [-1, "long", [512], 0.5])
def test_a_length_that_is_no_number_of_tokens_is_refused(folder: Path, length: Any) -> None:
    edit(folder / "sentence_bert_config.json", max_seq_length=length)
    assert "sentence_bert_config.json: expected a number of tokens, got" in refusal(folder)


@pytest.mark.parametrize(("name", "value"), [("num_attention_heads", 0), ("hidden_size", -12), ("type_vocab_size", 0)])
def test_sizes_that_no_model_has_are_refused(folder: Path, name: str, value: int) -> None:
    edit(folder / "config.json", **{name: value})
    assert "transformers cannot load" in refusal(folder)


def test_a_model_larger_than_its_weights_is_refused_before_it_is_built(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(folder / "config.json", vocab_size=10**10)
    message = refusal(folder)
    assert f"encoder: vocab_size in {folder / 'config.json'} would take 2,385 GiB of memory" in message
    assert "if you trust it, set CONTRAPOSE_FILE_BUDGET=2385 (GiB)" in message
    edit(folder / "config.json", vocab_size=2**21, hidden_size=1200)
    assert f"encoder: the model in {folder} would take 10 GiB of memory" in refusal(folder)
    edit(folder / "config.json", vocab_size=40, hidden_size=12, num_hidden_layers=200_000)
    monkeypatch.setenv("CONTRAPOSE_FILE_BUDGET", "0.06")
    assert f"encoder: the model in {folder} would take 1 GiB of memory" in refusal(folder)
    monkeypatch.delenv("CONTRAPOSE_FILE_BUDGET")
    edit(folder / "config.json", num_hidden_layers=1)
    assert load_sentence_encoder(folder, device=CPU)(["q1"]).shape == (1, WIDTH)
    monkeypatch.setenv("CONTRAPOSE_FILE_BUDGET", "1e-5")
    assert f"encoder: the model in {folder} would take 1 GiB" in refusal(folder)


def test_a_tokenizer_that_panics_is_refused(folder: Path) -> None:
    """A panic of the tokenizers' Rust code is not an Exception."""
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Removed", "invert": False}
    edit(folder / "tokenizer.json", pre_tokenizer=split)
    encoder = load_sentence_encoder(folder, device=CPU)
    with pytest.raises(ValueError, match=r"^encoder: transformers cannot encode texts with .*retry-limit"):
        encoder(["a" * 30 + "b"])


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder: Path) -> None:
    settings = json.loads((folder / "tokenizer.json").read_text())
    settings["model"]["vocab"]["q1"] = 1000
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    encoder = load_sentence_encoder(folder, device=CPU)
    with pytest.raises(ValueError, match=r"^encoder: transformers cannot encode texts with .*index out of range"):
        encoder(["q1"])


def test_code_in_a_folder_is_not_executed(folder: Path) -> None:
    marker = folder / "executed"
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    edit(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModel": "own.Model"})
    assert "transformers cannot load" in refusal(folder)
    assert not marker.exists()


def test_values_that_are_not_finite_are_refused(saved: Path) -> None:
    encoder = load_sentence_encoder(saved, device=CPU)
    encoder.model.embeddings.word_embeddings.weight.data[len(SPECIAL)] = torch.nan  # q0
    with pytest.raises(ValueError, match="the embedding of 'q0 q1' is not finite"):
        encoder(["q1", "q0 q1"])


def replace_q(content: str, pattern: str | dict[str, str] = "q") -> dict[str, Any]:
    return {
        "type": "Replace",
        "pattern": {"String": pattern} if isinstance(pattern, str) else pattern,
        "content": content,
    }


@pytest.mark.parametrize(
    "rules",
    [
        [replace_q("q" * 100)] * 5,
        [{"type": "Sequence", "normalizers": [replace_q("q" * 8)] * 2}, replace_q("qq")],
        [replace_q("a" * 150, {"Regex": "q*"})],
        [{"type": "Prepend", "prepend": "q" * 20}] * 2,
        [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(4) + b"a" * 200).decode()}],
    ],
)
def test_rules_that_make_a_text_long_are_refused(folder: Path, rules: list[dict[str, Any]]) -> None:
    """The tokenizers' Rust code would end the process."""
    edit(folder / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": rules})
    assert f"{folder / 'tokenizer.json'}: expected rules that make a text at most 100 times as long" in refusal(folder)


@pytest.mark.parametrize("normalizer", [5, {"type": "Replace", "pattern": 5}, {"type": "Sequence", "normalizers": 7}])
def test_damaged_rules_are_refused(folder: Path, normalizer: Any) -> None:
    edit(folder / "tokenizer.json", normalizer=normalizer)
    assert "has a normalizer or pre_tokenizer that is damaged" in refusal(folder)


def test_rules_of_usual_length_are_accepted(folder: Path) -> None:
    rules = [replace_q("q"), replace_q("▁", {"Regex": " {2,}"}), {"type": "Prepend", "prepend": " "}]
    edit(folder / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": rules})
    assert load_sentence_encoder(folder, device=CPU)(["q1"]).shape == (1, WIDTH)


@pytest.mark.parametrize(("count", "length"), [(10**5, 16384), (20, 16)])
def test_more_special_tokens_than_a_text_may_have_are_refused(folder: Path, count: int, length: int) -> None:
    special = {"[CLS]": {"id": "[CLS]", "ids": [2] * count, "tokens": ["[CLS]"] * count}}
    one, other = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    single = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, one]
    template = {"type": "TemplateProcessing", "single": single, "pair": [one, other], "special_tokens": special}
    edit(folder / "tokenizer.json", post_processor=template)
    edit(folder / "tokenizer_config.json", model_max_length=None)
    assert f"fewer special tokens around a text than its {length} tokens, got {count:,}" in refusal(folder)
