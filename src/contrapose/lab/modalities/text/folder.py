"""The settings in a sentence encoder's folder, read without transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contrapose.lab.memory_budget import check_numbers
from contrapose.lab.modalities import input_files
from contrapose.lab.modalities.text.vocabulary import save_tokenizer
from contrapose.lab.networks.prefixes import Dense
from contrapose.lab.networks.weight_files import set_default_mode, write_tensors

# Without any of these files, transformers builds a BERT tokenizer with an empty vocabulary.
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
# Keys in 1_Pooling/config.json before sentence-transformers 6, which has a single key, pooling_mode.
_OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}


@dataclass(frozen=True)
class EncoderFolder:
    """A folder with config.json, weights and tokenizer, and the settings with which its encoder was trained."""

    path: Path
    transformer: Path  # folder with config.json
    pooling: str = ""  # empty: not specified
    length: int = 0  # 0: not specified
    normalise: bool = False


def read_folder(path: Path, *, weights: bool = True) -> EncoderFolder:
    """Read the settings in a folder, and check that it has all files that an encoder needs; `weights`: including weights."""
    if not path.is_dir():
        problem = "is a file" if path.exists() else "does not exist"
        raise ValueError(f"encoder: {path} {problem}; expected a folder with config.json, after hf:")
    modules = _read_modules(path)
    transformer = path / modules.get("Transformer", "")
    check_files(transformer, weights=weights)
    length = read_json(transformer / "sentence_bert_config.json").get("max_seq_length") or 0
    if type(length) is not int or length < 0:
        raise ValueError(
            f"encoder: max_seq_length in {transformer / 'sentence_bert_config.json'}: expected a number of tokens, got "
            f"{str(length)[:80]!r}"
        )
    return EncoderFolder(
        path=path,
        transformer=transformer,
        pooling=_read_pooling(path / modules.get("Pooling", "1_Pooling") / "config.json"),
        length=length,
        normalise="Normalize" in modules,
    )


def write_folder(
    folder: Path, encoder: Any, tokenizer: Any, *, length: int, weights: bool, last: Dense | None = None
) -> None:
    """Write an encoder in the format of sentence-transformers, with or without its weights.

    encoder   `Transformer`, whose model and pooling are written
    length    tokens after which a text is truncated
    last      a layer after the pooling, whose output is normalised
    """
    modules: list[dict[str, Any]] = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    width = encoder.model.config.hidden_size
    pooling = {key: name == encoder.pooling for key, name in _OLD_POOLINGS.items()}
    files: dict[str, Any] = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": width, **pooling},
        "sentence_bert_config.json": {"max_seq_length": length, "do_lower_case": False},
    }
    if last is not None:
        files |= _dense_files(modules, last)
        (folder / "2_Dense").mkdir(parents=True, exist_ok=True)
        tensors = {"linear.weight": last.weight} | ({} if last.bias is None else {"linear.bias": last.bias})
        write_tensors(folder / "2_Dense" / "model.safetensors", tensors)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
    save_tokenizer(tokenizer, folder)
    if weights:
        encoder.model.save_pretrained(folder, state_dict=_all_weights(encoder.model))
        for file in folder.glob("*.safetensors"):
            set_default_mode(file)
    else:
        encoder.model.config.save_pretrained(folder)


def _dense_files(modules: list[dict[str, Any]], last: Dense) -> dict[str, Any]:
    """Append a dense layer and the normalisation to a list of modules; return the files with their settings."""
    modules += [
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
        {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    dims, width = last.weight.shape
    activation = type(last.activation)
    dense = {
        "in_features": width,
        "out_features": dims,
        "bias": last.bias is not None,
        "activation_function": f"{activation.__module__}.{activation.__name__}",
    }
    return {"2_Dense/config.json": dense, "3_Normalize/config.json": {}}


def _all_weights(model: Any) -> dict[str, Tensor]:
    """Return the weights of a transformer, and zeros for parameters that its class has and the trained encoder lacks.

    BERT's pooler is one: without it, transformers would warn about newly initialised weights and initialise it at random.
    """
    with torch.device("meta"):  # nothing is allocated
        expected = type(model)(model.config).state_dict()
    weights: dict[str, Tensor] = model.state_dict()
    return weights | {
        name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in expected.items() if name not in weights
    }


def _read_modules(path: Path) -> dict[str, str]:
    """Return the folder of each module in a sentence-transformers model, keyed by class name; empty for other folders."""
    if not (path / "modules.json").exists():
        return {}
    listed = read_json(path / "modules.json", list)
    if not all(isinstance(module, dict) and {"type", "path"} <= module.keys() for module in listed):
        raise ValueError(f"encoder: {path / 'modules.json'}: expected a list of modules, each with a type and a path")
    modules = {str(module["type"]).split(".")[-1]: str(module["path"]) for module in listed}
    others = sorted(set(modules) - {"Transformer", "Pooling", "Normalize"})
    if others:  # without this module, a different encoder would be evaluated
        raise ValueError(
            f"encoder: {path} has a module {others[0]}, which contrapose does not apply; expected Transformer, Pooling and "
            "Normalize in modules.json"
        )
    return modules


def _read_pooling(path: Path) -> str:
    settings = read_json(path)
    if "pooling_mode" in settings:
        return str(settings["pooling_mode"])
    modes = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value]
    names = [_OLD_POOLINGS.get(mode, mode.removeprefix("pooling_mode_")) for mode in modes]
    return "+".join(names)  # sentence-transformers concatenates several poolings


def check_files(path: Path, *, weights: bool = True) -> None:
    """Refuse a folder without a usable config.json, a tokenizer or, if they are needed, weights in safetensors."""
    if not (path / "config.json").exists():
        raise ValueError(f"encoder: {path} has no config.json; expected a folder that transformers saved")
    if weights and not any(path.glob("model*.safetensors")):
        pickles = sorted(file.name for pattern in PICKLES for file in path.glob(pattern))
        if pickles:
            raise ValueError(
                f"encoder: {path} has weights only in {pickles[0]}, a pickle, which can execute code when it is read; convert "
                "them with AutoModel.from_pretrained(OLD).save_pretrained(NEW) if you trust the file"
            )
        raise ValueError(f"encoder: {path} has no weights; expected model.safetensors")
    if not any(file for pattern in _TOKENIZERS for file in path.glob(pattern)):
        raise ValueError(
            f"encoder: {path} has no tokenizer; expected tokenizer.json, vocab.txt, vocab.json or a .model file"
        )
    read_json(path / "config.json", size=weights_size(path))


def read_json(path: Path, kind: type = dict, *, size: int = 0) -> Any:
    """Return the object or, for kind=list, the array in a JSON file; empty if there is no file.

    Raise ValueError for any other content, and for numbers that are too large for weights of `size` bytes.
    """
    if not path.exists():
        return kind()
    content = input_files.read_json(path, "encoder")
    if not isinstance(content, kind):
        expected = "an object" if kind is dict else "an array"
        raise ValueError(f"encoder: {path}: expected {expected} of JSON, got {json.dumps(content)[:80]}")
    check_numbers(content, path, size=size)
    return content


def weights_size(path: Path) -> int:
    """Return the size of the weights in a folder, in bytes."""
    return sum(file.stat().st_size for file in path.glob("*.safetensors") if file.is_file())
