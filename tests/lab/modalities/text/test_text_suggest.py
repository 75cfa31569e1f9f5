"""Settings chosen for a file of texts: views from which an encoder learns, and a pretrained encoder if one is installed."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch

from contrapose.lab.modalities.modality import DataSettings
from contrapose.lab.modalities.text import suggest as module
from contrapose.lab.modalities.text.suggest import suggest

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def chosen(path: Path, device: torch.device = CPU, **given: Any) -> dict[str, Any]:
    return dict(suggest(DataSettings(modality="text", data=str(path)), given, device).settings)


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"sentence {i}\n" for i in range(40)))
    return path


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the package with MiniLM look installed; it is not needed to choose it."""
    monkeypatch.setattr(module, "find_spec", lambda name: ModuleSpec(name, None))
    monkeypatch.setattr("contrapose.lab.modalities.text.encoders.package_folder", lambda *names: tmp_path)


def test_sentences_for_an_encoder_from_scratch_lose_tokens(sentences: Path) -> None:
    for encoder in ("tiny", "small", "tiny+cls"):
        assert chosen(sentences, encoder=encoder)["views"] == "deletion:0.7"
    assert chosen(sentences, encoder="tiny", views="dropout").get("views") is None  # the user has chosen them


def test_sentences_for_a_pretrained_encoder_have_dropout_views(sentences: Path) -> None:
    settings = chosen(sentences, encoder="hf:somewhere")
    assert (settings["views"], settings["epochs"]) == ("dropout", 1)


def test_pairs_are_the_views(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"a {i}\tb {i}\n" for i in range(40)))
    assert chosen(tmp_path / "a.tsv", encoder="tiny")["views"] == "columns"


@pytest.mark.usefixtures("installed")
def test_an_installed_encoder_is_chosen_unless_it_takes_long(
    sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(sentences)["encoder"] == chosen(sentences, GPU)["encoder"] == "minilm"
    monkeypatch.setattr(module, "_MOST_ON_CPU", 30)
    assert (chosen(sentences)["encoder"], chosen(sentences, GPU)["encoder"]) == ("tiny", "minilm")
    (tmp_path / "a.tsv").write_text("".join(f"a {i}\tb {i}\n" for i in range(20)))
    assert chosen(tmp_path / "a.tsv")["encoder"] == "tiny"
