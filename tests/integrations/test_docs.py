"""The examples of docs/integrations.md run as they stand, with the names that they leave to the reader."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
SECTIONS = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
EXAMPLES = {
    section.splitlines()[0]: example
    for section in SECTIONS
    for example in re.findall(r"```python\n(.*?)```", section, re.DOTALL)
}
Names = dict[str, Any]


def sentences() -> Names:
    from datasets import Dataset
    from sentences import bert, columns

    return {"model": bert(dropout=0.1), "dataset": Dataset.from_dict(columns(12, negatives=1))}


def clip() -> Names:
    from open_clip.model import CLIP

    vision = {"image_size": 16, "layers": 1, "width": 16, "head_width": 8, "patch_size": 8}
    text = {"context_length": 8, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1}
    model = CLIP(embed_dim=8, vision_cfg=vision, text_cfg=text, output_dict=True)
    return {"model": model, "images": torch.randn(8, 3, 16, 16), "texts": torch.randint(1, 20, (8, 8))}


def views() -> Names:
    batches: Any = [(torch.randn(8, 5), torch.randn(8, 5)) for _ in range(50)]  # as many as Lightning logs at once
    return {"model": nn.Linear(5, 4), "loader": torch.utils.data.DataLoader(batches, batch_size=None)}


def tasks() -> Names:
    pytest.importorskip("open_clip.task", reason="open_clip 3.3 has no tasks")
    return clip()


def pretraining() -> Names:
    pytest.importorskip("stable_pretraining")
    batches: Any = [{"views": [{"image": view} for view in torch.randn(2, 8, 5)]} for _ in range(5)]
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    return {"backbone": nn.Linear(5, 6), "projector": nn.Linear(6, 4), "loader": loader}


def tokens() -> Names:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    rows: list[dict[str, Tensor]] = [{"input_ids": torch.randint(1, 20, (6,))} for _ in range(16)]
    return {"model": BertModel(BertConfig(vocab_size=20, **sizes)), "dataset": rows}


def towers() -> Names:
    encoders = {"image_encoder": nn.Linear(5, 4), "text_encoder": nn.Linear(7, 4)}
    return {**encoders, "images": torch.randn(12, 5), "texts": torch.randn(12, 7)}


GIVEN: dict[str, Callable[[], Names]] = {
    "sentence-transformers": sentences,
    "sentence-transformers with a gradient cache": sentences,
    "open_clip": clip,
    "open_clip's training tasks": tasks,
    "lightly": views,
    "stable-pretraining": pretraining,
    "PyTorch Lightning": views,
    "Hugging Face Trainer": tokens,
    "A batch that does not fit into memory": towers,
}


def parameters(names: Names) -> Tensor:
    trained = ("model", "backbone", "image_encoder", "text_encoder")
    modules = [value for name, value in names.items() if name in trained]
    return torch.cat([p.detach().cpu().flatten().clone() for module in modules for p in module.parameters()])


@pytest.mark.parametrize("title", EXAMPLES)
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")  # trainers set it, with or without a GPU
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")  # PyTorch Lightning
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")  # a module of stable-pretraining always does
@pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`")  # Lightning, from the indices beside the views
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")  # PyTorch Lightning calls torch so
def test_an_example_trains(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = GIVEN[title]()
    before = parameters(names)
    exec(compile(EXAMPLES[title], str(PAGE), "exec"), names)
    assert not torch.equal(parameters(names), before)


def test_examples_are_short() -> None:
    assert EXAMPLES.keys() == GIVEN.keys()
    for example in EXAMPLES.values():
        assert len(example.splitlines()) <= 20
