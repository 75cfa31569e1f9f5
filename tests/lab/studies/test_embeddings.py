"""Metrics of a run are of the output and of the images that they name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize

from contrapose.lab.modalities import Split
from contrapose.lab.modalities.images.digits import digits
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.studies import STUDIES
from contrapose.lab.studies.measures import Context, Evaluation, Metric
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.studies.task import Task, run_task
from contrapose.lab.training import Model, Run, Trainer, prepare
from contrapose.lab.training.build import build
from contrapose.lab.training.initial_model import random_views, start
from contrapose.lab.training.weights import export
from contrapose.metrics import local_separation, prototype_deviations
from contrapose.pairs import unit

CPU = torch.device("cpu")
BIAS = Metric("prototype_bias_single", "projector", "train")
TINY = Run(data="digits", limit=96, batch=32, epochs=1, knn=3, metrics=0)
BANK = Run(
    data="digits", limit=96, batch=32, epochs=2, knn=3, metrics=12, framework="memory-bank", view_count=1, head="linear",
    loss="nt_xent(temperature=0.2)",
)  # fmt: skip


class Line(nn.Module):
    """Map each image to a point at an angle that its brightness decides, scaled by `spread`."""

    def __init__(self, spread: float) -> None:
        super().__init__()
        self.spread = spread

    def forward(self, x: Tensor) -> Tensor:
        angle = self.spread * x.flatten(1).mean(1, keepdim=True)
        return torch.cat([angle.cos(), angle.sin()], dim=1)


class Rescale(nn.Module):
    """Multiply the angle of points in the plane."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, z: Tensor) -> Tensor:
        angle = self.factor * torch.atan2(z[:, 1:], z[:, :1])
        return torch.cat([angle.cos(), angle.sin()], dim=1)


def model_of(spread: float, factor: float, run: Run = TINY) -> Model:
    return Model(run, Encoder(Line(spread), 2), Rescale(factor), CPU).eval()


def test_the_projector_can_reverse_the_order_of_two_methods() -> None:
    split = prepare(TINY)
    wide_encoder, wide_projector = model_of(2.0, 0.1), model_of(0.5, 4.0)
    for name in ("uniformity", "interclass_uniformity"):
        encoder, projector = (
            [
                Metric(name, space).evaluate(Context(model, split))[f"metric:{name}:{space}:test"]
                for model in (wide_encoder, wide_projector)
            ]
            for space in ("encoder", "projector")
        )
        assert encoder[0] < encoder[1]  # lower is more uniform
        assert projector[0] > projector[1]


def test_a_larger_bank_has_nearer_negatives() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = normalize(torch.randn(4000, 16, generator=generator), dim=1)
    views = normalize(rows[:100] + 0.1 * torch.randn(100, 16, generator=generator), dim=1)
    nearest = [local_separation(views, rows[:size], torch.arange(100)).nearest[0] for size in (200, 1000, 4000)]
    assert nearest[0] + 0.03 < nearest[1] < nearest[2] - 0.03


def test_separation_is_that_of_new_views_of_all_training_images_from_the_bank() -> None:
    split = prepare(TINY)
    model = model_of(0.5, 1.0)
    bank = normalize(torch.randn(len(split.train), 2, generator=torch.Generator().manual_seed(0)), dim=1)
    with_bank = Model(TINY, model.encoder, model.projector, CPU, bank=3 * bank).eval()
    z = unit(torch.cat([model.project(x) for x in random_views(model, split.train, epoch=1, batch=40)]))
    for measured, rows in ((with_bank, bank), (model, unit(model.features(split.train)))):
        values = Metric("separation_n1", "projector", "bank").evaluate(Context(measured, split))
        similarity = z @ rows.T
        expected = similarity.diagonal().mean()
        assert values["metric:separation_positive:projector:bank"] == pytest.approx(float(expected), rel=1e-4)
        nearest = similarity.fill_diagonal_(-2).topk(10).values.mean(0)
        assert values["metric:separation_n1:projector:bank"] == pytest.approx(float(nearest[0]), rel=1e-4)
        assert values["metric:separation_n10:projector:bank"] == pytest.approx(float(nearest[9]), rel=1e-4)


def test_a_study_measures_against_the_run_s_own_bank(tmp_path: Path) -> None:
    measure = Metric("separation_n1", "projector", "bank")
    task = Task(BANK, (measure,), tmp_path)
    assert run_task(task) == ""
    trainer = Trainer(BANK, task.folder, log=lambda text: None)
    assert trainer.load_latest()
    assert trainer.model.bank is not None
    torch.testing.assert_close(trainer.model.bank, trainer.saved_state.state_dict()["network.rows"])
    directory = RunDirectory(task.folder)
    values = measure.evaluate(Context(trainer.model, trainer.split))
    assert measure.read(directory).value == pytest.approx(values["metric:separation_n1:projector:bank"])
    assert measure.read(directory).value != pytest.approx(directory.records()[-1]["separation_n1"])  # 12 test images


def folder_of(path: Path, count: int = 24) -> Files:
    """Write digits to class folders."""
    data = digits(count)
    assert data.labels is not None
    for number, (pixels, label) in enumerate(zip(data.pixels, data.labels.tolist(), strict=True)):
        (path / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path / str(label) / f"{number:03d}.png")
    return Files.of(path)


def test_prototype_bias_streams_all_training_images(tmp_path: Path) -> None:
    files = folder_of(tmp_path)
    model, split = model_of(2.0, 1.0), Split(train=files, probe=None, test=None)
    values = BIAS.evaluate(Context(model, split))
    in_memory = files.in_memory(model.views)
    same = BIAS.evaluate(Context(model, Split(train=in_memory, probe=None, test=None)))
    assert values == pytest.approx(same, rel=1e-3)  # digits of 32 pixels are not resized
    assert values["metric:prototype_bias_single_error:projector:train"] > 0


def test_both_images_of_the_prototype_bias_get_the_same_augmentation() -> None:
    """Two copies of each image in a class of their own: with one augmentation for both, nothing differs."""
    data = digits(10)
    twice = type(data)("twice", data.pixels.repeat(2, 1, 1, 1), torch.arange(10).repeat(2))
    values = BIAS.evaluate(Context(model_of(2.0, 1.0), Split(twice, None, None)))
    assert values["metric:prototype_bias_single:projector:train"] == pytest.approx(0, abs=1e-5)
    z = normalize(torch.randn(10, 3), dim=1)
    assert prototype_deviations(z, -z).tolist() == pytest.approx([2.0] * 10)


def test_the_network_at_the_start_has_statistics_of_the_data() -> None:
    split = prepare(TINY)
    initial = start(model_of(1.0, 1.0), split)  # the weights depend on the run alone
    (inputs,) = random_views(initial, split.train, epoch=0, batch=96)

    def similarities(*, training: bool) -> Tensor:
        network = build(TINY, len(split.train)).train(training)
        z = unit(network.projector(network.encoder(inputs)))
        return z @ z.T

    with torch.no_grad():
        z = unit(initial.project(inputs))
        assert float((z @ z.T - similarities(training=True)).abs().mean()) < 0.15
        # Without statistics all images look alike.
        assert float(similarities(training=False).mean()) > 0.8


def test_an_encoder_from_a_file_keeps_its_statistics(tmp_path: Path) -> None:
    trainer = Trainer(TINY, tmp_path / "run", log=lambda text: None)
    trainer.train()
    export(trainer.model.encoder, tmp_path / "encoder.safetensors")
    run = replace(TINY, init=str(tmp_path / "encoder.safetensors"))
    initial = start(Model(run, trainer.model.encoder, trainer.model.projector, CPU), trainer.split)
    torch.testing.assert_close(initial.encoder.state_dict(), trainer.model.encoder.state_dict())
    norms = [module for module in initial.projector.modules() if isinstance(module, nn.BatchNorm1d)]
    assert all(norm.running_mean is not None and bool(norm.running_mean.any()) for norm in norms)


def test_no_study_measures_a_sample_where_the_paper_has_all_images() -> None:
    """Entries of the records are of a sample; curves over epochs need them, and then of all training images."""
    entries = [
        (study.name, quantity.measure)
        for study in STUDIES.values()
        for quantity in study.quantities
        if not isinstance(quantity.measure, Evaluation) and quantity.unit == ""
    ]
    of_a_sample = {name for name, _ in entries if name.split("/")[0] != "cacr" and not study_covers_training_set(name)}
    assert {"balanced/figure6"} <= {name for name, _ in entries}
    assert not of_a_sample


def study_covers_training_set(name: str) -> bool:
    run = next(run for _, _, run in STUDIES[name].plan("paper").cells(1))
    return run.metrics_on == "train" and run.metrics == 50_000
