"""The doctor in the loops of Lightning, sentence-transformers and open_clip."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer import losses as reference
from sentences import bert, columns, static
from torch import Tensor, nn

from contrapose import Doctor, Loss, nt_xent
from contrapose.integrations.lightning import DoctorCallback as LightningCallback
from contrapose.integrations.sentence_transformers import CachedContrastiveLoss, ContrastiveLoss
from contrapose.integrations.trainer import DoctorCallback as TrainerCallback


class _Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2))
        self.unused = nn.Linear(6, 8)
        self.criterion = Loss(nt_xent, temperature=temperature)

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        value: Tensor = self.criterion(self.encoder(batch), self.encoder(batch))
        return value

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.encoder.parameters())


def fit(*callbacks: Any, temperature: float = 0.5, make: type[_Module] = _Module) -> tuple[_Module, list[str]]:
    lightning.seed_everything(0, verbose=False)
    module = make(temperature)
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=list(callbacks), accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(torch.randn(80 * 32, 6), batch_size=32))  # type: ignore[arg-type]
    return module, []


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_lightning(tmp_path: Path) -> None:
    lines: list[str] = []
    callback = LightningCallback(every=20, log=lines.append, report=tmp_path / "doctor.html")
    looked, _ = fit(callback, temperature=100.0)
    plain, _ = fit(temperature=100.0)
    assert all(torch.equal(a, b) for a, b in zip(looked.parameters(), plain.parameters(), strict=True))
    assert callback.doctor is not None
    assert {finding.name for finding in callback.doctor.findings} == {"temperature too high", "frozen part"}
    assert len(lines) == 2
    assert "of unused are unchanged" in "".join(lines)
    assert not looked.criterion._forward_pre_hooks
    assert "temperature too high" in (tmp_path / "doctor.html").read_text()


class _Interrupted(_Module):
    def training_step(self, batch: Tensor, index: int) -> Tensor:
        if index == 3:
            raise RuntimeError("interrupted")
        return super().training_step(batch, index)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_page_of_a_training_that_fails(tmp_path: Path) -> None:
    callback = LightningCallback(report=tmp_path / "page.html", log=None)
    with pytest.raises(RuntimeError, match="interrupted"):
        fit(callback, make=_Interrupted)
    assert (tmp_path / "page.html").exists()
    assert callback.doctor is not None
    assert callback.doctor._hook is None


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_lightning_without_a_criterion() -> None:
    with pytest.raises(ValueError, match="criterion: expected the name of a loss that is a module"):
        fit(LightningCallback("loss_function"))


def train(model: SentenceTransformer, loss: nn.Module, folder: Path, *callbacks: Any, steps: int = 6) -> None:
    from datasets import Dataset

    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=12, learning_rate=1e-2, save_strategy="no",
        report_to="none", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    data = Dataset.from_dict(columns(12))
    SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=data, loss=loss, callbacks=list(callbacks)
    ).train()


Make = Callable[[SentenceTransformer], nn.Module]
LOSSES: dict[str, Make] = {
    "ours": lambda model: ContrastiveLoss(model, temperature=0.05),
    "ours, cached": lambda model: CachedContrastiveLoss(model, temperature=0.05, mini_batch_size=4),
    "theirs": lambda model: reference.MultipleNegativesRankingLoss(model, scale=20.0),
    "theirs, cached": lambda model: reference.CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=4),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", LOSSES)
def test_sentence_transformers(name: str, tmp_path: Path) -> None:
    looked, plain = bert(dropout=0.1), bert(dropout=0.1)
    loss = LOSSES[name](looked)
    callback = TrainerCallback(loss, every=2, report=tmp_path / "doctor.html")
    train(looked, loss, tmp_path, callback)
    train(plain, LOSSES[name](plain), tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(looked.parameters(), plain.parameters(), strict=True))
    doctor = callback.doctor
    assert [look.step for look in doctor.looks] == [1, 2, 4, 6]
    assert doctor.left_out == {}
    action = doctor.looks[-1].action
    assert action is not None
    torch.testing.assert_close(action.temperature, 0.05, rtol=0.05, atol=0.0)
    assert action.negatives == 11
    assert (tmp_path / "doctor.html").is_file()


def test_a_scale_in_place_of_a_temperature_is_found(tmp_path: Path) -> None:
    model = static()
    loss = reference.MultipleNegativesRankingLoss(model, scale=0.05)
    callback = TrainerCallback(loss, every=2, log=None)
    train(model, loss, tmp_path, callback)
    assert [finding.name for finding in callback.doctor.findings] == ["temperature too high"]


def test_the_texts_of_duplicates_are_shown() -> None:
    model = bert()
    loss = reference.MultipleNegativesRankingLoss(model)
    callback = TrainerCallback(loss, every=1, log=None)
    texts = columns(12)
    texts["query"][7] = texts["query"][2]
    features = [model.preprocess(column) for column in texts.values()]
    for _ in range(2):
        loss(copy.deepcopy(features), None)
    (finding,) = [f for f in callback.doctor.findings if f.name == "duplicates"]
    assert finding.rows == ((2, 7),)
    assert callback.doctor.samples == {2: texts["query"][2], 7: texts["query"][2]}


def test_equal_texts_that_the_loss_leaves_out_are_no_duplicates() -> None:
    model = bert()
    loss = ContrastiveLoss(model)
    callback = TrainerCallback(loss, every=1, log=None)
    texts = columns(12)
    texts["query"][7] = texts["query"][2]
    features = [model.preprocess(column) for column in texts.values()]
    for _ in range(2):
        loss(copy.deepcopy(features), None)
    assert callback.doctor.looks[-1].duplicate_share == 0
    assert callback.doctor.left_out == {}


def test_open_clip() -> None:
    """The line that open_clip's loop needs, and the call of its `train_one_epoch`."""
    from open_clip.loss import ClipLoss

    loss = ClipLoss()
    doctor = Doctor(loss, every=1)
    loss = doctor.watch()
    scale = nn.Parameter(torch.tensor(100.0))
    for _ in range(2):
        images, texts = torch.nn.functional.normalize(torch.randn(2, 8, 16), dim=-1)
        output = {"image_features": images, "text_features": texts, "logit_scale": scale}
        assert "contrastive_loss" in loss(**output, output_dict=True)
    assert doctor.looks[-1].action is not None
    assert [finding.name for finding in doctor.findings][:1] == ["no gradient"]
    assert "scale at its bound" in [finding.name for finding in doctor.findings]
