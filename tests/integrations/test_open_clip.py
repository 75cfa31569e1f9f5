"""`integrations.open_clip` beside open_clip itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from open_clip import loss as reference
from open_clip.model import CLIP
from processes import run_in_process_group
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

from contrapose import clip, cosine, cross, dcl, hardest, nt_xent
from contrapose.integrations.open_clip import ClipLoss, SigLipLoss

PAIRS, WIDTH = 6, 5
Criterion = Callable[..., Any]


def features() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images, texts = torch.randn(2, PAIRS, WIDTH, dtype=torch.float64, generator=generator)
    return images.requires_grad_(), texts.requires_grad_()


def value_and_gradients(criterion: Criterion, *logits: Tensor, **options: Any) -> list[Tensor]:
    """The features are normalised, as in open_clip's models; the gradients are those before it."""
    images, texts = features()
    loss = criterion(normalize(images, dim=-1), normalize(texts, dim=-1), *logits, **options)
    learned = [value for value in logits if value.requires_grad]
    return [loss.detach(), *torch.autograd.grad(loss, [images, texts, *learned])]


def parameter(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("scale", [1.0, 1 / 0.07, 100.0])
def test_clip_equals_open_clips(scale: float) -> None:
    ours = value_and_gradients(ClipLoss(), parameter(scale))
    theirs = value_and_gradients(reference.ClipLoss(), parameter(scale))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("scale", "bias"), [(10.0, -10.0), (100.0, -3.0), (1.0, 0.0)])
@pytest.mark.parametrize(("ours", "theirs"), [(SigLipLoss, reference.SigLipLoss), (ClipLoss, reference.ClipLoss)])
def test_with_a_bias(ours: type[nn.Module], theirs: type[nn.Module], scale: float, bias: float) -> None:
    """In a softmax the bias cancels, and its gradient is zero."""
    results = [value_and_gradients(of(), parameter(scale), parameter(bias)) for of in (ours, theirs)]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_siglip_without_a_bias() -> None:
    images, texts = (normalize(z, dim=-1) for z in features())
    expected = reference.SigLipLoss()(images, texts, 10.0, None)
    torch.testing.assert_close(SigLipLoss()(images, texts, 10.0), expected)


def both_directions(objective: Callable[[Any], Tensor]) -> Tensor:
    images, texts = features()
    return (objective(cross(images, texts)) + objective(cross(texts, images))) / 2


@pytest.mark.parametrize(
    ("criterion", "expected", "scale_has_gradient"),
    [
        (ClipLoss(objective=dcl), lambda p: dcl(p, temperature=0.1), True),
        (ClipLoss(negatives=hardest(2)), lambda p: nt_xent(p, temperature=0.1, negatives=hardest(2)), True),
        (ClipLoss(temperature=cosine(0.1, 0.2)), lambda p: nt_xent(p, temperature=cosine(0.1, 0.2)), False),
        (ClipLoss(objective="dystress"), lambda p: nt_xent(p, temperature=cosine(0.07, 0.2)), False),
    ],
)
def test_any_objective(criterion: ClipLoss, expected: Callable[[Any], Tensor], scale_has_gradient: bool) -> None:
    scale = parameter(10.0)
    loss, *_, gradient = value_and_gradients(criterion, scale)
    torch.testing.assert_close(loss, both_directions(expected))
    # Where another temperature is chosen the scale is not used, but DistributedDataParallel expects its gradient.
    assert (float(gradient) != 0) == scale_has_gradient


@pytest.mark.parametrize("objective", ["clip", "clip + 0.5*dcl(temperature=0.1)", "siglip"])
def test_the_models_scale_replaces_a_methods_own(objective: str) -> None:
    """Nobody would train the learned temperature of a method, since open_clip's optimiser has the model's parameters."""
    gradient = value_and_gradients(ClipLoss(objective=objective), parameter(10.0))[-1]
    assert float(gradient) != 0


def test_the_models_bias_replaces_a_methods_own() -> None:
    expected = value_and_gradients(reference.SigLipLoss(), parameter(10.0), parameter(-5.0))
    actual = value_and_gradients(SigLipLoss(objective="siglip"), parameter(10.0), parameter(-5.0))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    both_sides = value_and_gradients(ClipLoss(objective="siglip"), parameter(10.0), parameter(-5.0))
    torch.testing.assert_close(both_sides[0], expected[0])


def test_a_relative_bias_replaces_the_models() -> None:
    for objective in (SigLipLoss(relative_bias=0.5), SigLipLoss(objective="siglip_relative")):
        loss, *_, bias = value_and_gradients(objective, parameter(10.0), parameter(-5.0))
        assert float(loss) > 0
        assert float(bias) == 0


@pytest.mark.parametrize("objective", ["macl", "moco_v3"])
def test_a_temperature_that_must_be_a_number_stays(objective: str) -> None:
    values = [value_and_gradients(ClipLoss(objective=objective), parameter(scale)) for scale in (10.0, 20.0)]
    torch.testing.assert_close(*values)


def test_repeated_captions_are_no_negatives() -> None:
    ids = torch.tensor([0, 1, 2, 3, 4, 0])
    images, texts = features()
    expected = [nt_xent(cross(a, b, ids=ids), temperature=0.1) for a, b in ((images, texts), (texts, images))]
    torch.testing.assert_close(ClipLoss()(images, texts, 10.0, ids=ids), (expected[0] + expected[1]) / 2)


def teachers_features() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [normalize(g, dim=-1) for g in torch.randn(2, PAIRS, 7, dtype=torch.float64, generator=generator)]


def test_a_teacher_gives_the_soft_targets_of_open_clips_distillation() -> None:
    """The teacher's features have another width, and its logit scale is the temperature of the targets."""
    images, texts = teachers_features()
    teacher: dict[str, Any] = {"dist_image_features": images, "dist_text_features": texts}

    def distilled(*inputs: Tensor) -> Tensor:
        loss: Tensor = reference.DistillClipLoss()(*inputs, **teacher, dist_logit_scale=8.0)[1]
        return loss

    theirs = value_and_gradients(distilled, parameter(10.0))
    of_scale = value_and_gradients(ClipLoss(objective="soft_nt_xent"), parameter(10.0), **teacher, dist_logit_scale=8.0)
    own = ClipLoss(objective="soft_nt_xent", guide_temperature=1 / 8)
    for ours in (of_scale, value_and_gradients(own, parameter(10.0), **teacher, dist_logit_bias=torch.tensor(1.0))):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_teacher_and_an_objective_that_do_not_fit_are_refused() -> None:
    images, texts = teachers_features()
    soft, pair = ClipLoss(objective="soft_nt_xent"), {"dist_image_features": images}
    with pytest.raises(ValueError, match="dist_image_features: expected the embeddings of a guide, since soft_nt_xent"):
        soft(*features(), 10.0)
    with pytest.raises(ValueError, match="dist_text_features: expected the embeddings of a guide"):
        soft(*features(), 10.0, **pair, dist_logit_scale=8.0)
    with pytest.raises(ValueError, match="guide_temperature: expected a number, since there is no dist_logit_scale"):
        soft(*features(), 10.0, **pair, dist_text_features=texts)
    with pytest.raises(ValueError, match='dist_image_features: expected an objective with soft targets, such as "soft'):
        ClipLoss()(*features(), 10.0, **pair, dist_text_features=texts, dist_logit_scale=8.0)


@pytest.mark.parametrize("of", [ClipLoss, SigLipLoss])
def test_a_world_size_without_processes_is_refused(of: type[nn.Module]) -> None:
    with pytest.raises(ValueError, match="world_size: expected the number of processes, 1, got 2"):
        of(world_size=2)(*features(), 10.0)


@pytest.mark.parametrize("flag", [False, True])
def test_the_attributes_of_open_clips_losses(flag: bool) -> None:
    options: dict[str, Any] = {"local_loss": flag, "gather_with_grad": flag, "cache_labels": flag}
    ours, theirs = ClipLoss(**options), reference.ClipLoss(**options)
    for name in (*options, "rank", "world_size", "use_horovod"):
        assert getattr(ours, name) == getattr(theirs, name)
    sigmoid: dict[str, Any] = {"cache_labels": flag, "dist_impl": "gather" if flag else None}
    for name in (*sigmoid, "rank", "world_size"):
        assert getattr(SigLipLoss(**sigmoid), name) == getattr(reference.SigLipLoss(**sigmoid), name)


def test_horovod_is_refused() -> None:
    with pytest.raises(ValueError, match="use_horovod: expected False"):
        ClipLoss(use_horovod=True)


def model(**options: Any) -> CLIP:
    torch.manual_seed(0)
    vision = {"image_size": 16, "layers": 1, "width": 16, "head_width": 8, "patch_size": 8}
    text = {"context_length": 8, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1}
    return CLIP(embed_dim=8, vision_cfg=vision, text_cfg=text, output_dict=True, **options)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 3, 16, 16, generator=generator), torch.randint(1, 20, (8, 8), generator=generator)


@pytest.mark.parametrize(
    ("criterion", "bias", "scale_is_used"),
    [
        (ClipLoss(), None, True),
        (SigLipLoss(), -10.0, True),
        (ClipLoss(temperature=cosine(0.07, 0.2)), None, False),
    ],
)
def test_a_model_of_open_clip_learns(criterion: nn.Module, bias: float | None, scale_is_used: bool) -> None:
    clip = model(init_logit_bias=bias)
    optimiser, losses = torch.optim.Adam(clip.parameters(), lr=3e-3), []
    for _ in range(25):
        loss = criterion(**clip(*batch()), output_dict=True)[
            "contrastive_loss"
        ]  # as open_clip's training loop calls it
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    assert (abs(float(clip.logit_scale.detach()) - math.log(1 / 0.07)) > 1e-3) == scale_is_used
    if bias is not None:
        assert abs(float(clip.logit_bias.detach()) - bias) > 1e-3


SOFT: dict[str, Any] = {"objective": "soft_nt_xent", "guide_temperature": 0.2}


def gradients(criterion: Criterion, bias: float | None, rank: int, world: int) -> list[Tensor]:
    clip: Any = model(init_logit_bias=bias).double()
    clip = DistributedDataParallel(clip) if world > 1 else clip
    own = slice(rank * 8 // world, (rank + 1) * 8 // world)
    images, texts = batch()
    outputs = clip(images[own].double(), texts[own])
    if getattr(criterion, "guide_temperature", None):
        teacher = torch.randn(2, 8, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)[:, own]
        outputs |= {"dist_image_features": teacher[0], "dist_text_features": teacher[1]}
    criterion(**outputs).backward()
    return [p.grad.clone() for p in clip.parameters()]


def work(rank: int, world: int, out: str) -> None:
    position: dict[str, Any] = {"rank": rank, "world_size": world}
    results = {
        "clip": gradients(ClipLoss(**position), None, rank, world),
        "their clip": gradients(reference.ClipLoss(gather_with_grad=True, **position), None, rank, world),
        "soft": gradients(ClipLoss(**SOFT, **position), None, rank, world),
        "clip with local_loss": gradients(ClipLoss(local_loss=True, **position), None, rank, world),
        "siglip": gradients(SigLipLoss(**position), -5.0, rank, world),
        "their siglip": gradients(reference.SigLipLoss(**position), -5.0, rank, world),
    }
    if rank == 0:
        torch.save(results, out)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
def test_two_processes_give_the_gradient_of_one(tmp_path: Path) -> None:
    """Of all parameters, the logit scale and the bias among them."""
    run_in_process_group(work, 2, tmp_path / "gradients")
    results = torch.load(tmp_path / "gradients", weights_only=True)
    for name, values in results.items():
        alone = SigLipLoss() if "siglip" in name else ClipLoss(**SOFT) if name == "soft" else ClipLoss()
        one = gradients(alone, -5.0 if "siglip" in name else None, 0, 1)
        for value, expected in zip(values, one, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize(("name", "objective"), [("clip", clip), ("dcl", dcl)])
def test_logit_scale_replaces_the_number_of_a_method(name: str, objective: Callable[..., Tensor]) -> None:
    """A temperature that the user writes, and a function of similarity, are kept."""
    images, texts, scale = torch.randn(8, 4), torch.randn(8, 4), torch.tensor(14.3)
    expected = ClipLoss(objective=objective)(images, texts, scale)
    torch.testing.assert_close(ClipLoss(objective=name)(images, texts, scale), expected)
    written = ClipLoss(objective=f"{name}(temperature=0.5)")
    torch.testing.assert_close(written(images, texts, scale), written(images, texts, torch.tensor(1.0)))


@pytest.fixture(scope="module")
def tasks() -> Any:
    """open_clip's training tasks."""
    return pytest.importorskip("open_clip.task", reason="they are on open_clip's main branch, not in 3.3")


def step_of(task: Any, name: str = "contrastive_loss") -> list[Tensor]:
    """Return a loss of the task, and its gradients."""
    images, texts = batch()
    losses, _ = task.train()({"image": images.double(), "text": texts})
    parameters = [p for p in task.trainable_module.parameters() if p.requires_grad]
    return [losses[name].detach(), *torch.autograd.grad(losses[name], parameters)]


def assert_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_a_task_takes_the_loss(tasks: Any) -> None:
    theirs = step_of(tasks.CLIPTask(model().double()))
    assert_close(step_of(tasks.CLIPTask(model().double(), loss=ClipLoss())), theirs)
    harder = step_of(tasks.CLIPTask(model().double(), loss=ClipLoss(negatives=hardest(3))))
    assert float(harder[0]) < float(theirs[0])  # fewer negatives


def test_the_loss_of_a_task_can_be_replaced(tasks: Any) -> None:
    task = tasks.CLIPTask(model(init_logit_bias=-5.0).double())
    task.loss = SigLipLoss()
    images, texts = batch()
    expected = SigLipLoss()(**task.trainable_module(images.double(), texts))
    assert_close(step_of(task)[:1], [expected.detach()])


def test_distillation_takes_soft_targets(tasks: Any) -> None:
    torch.manual_seed(1)
    teacher = model().double()
    for parameter in teacher.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    ours = tasks.DistillCLIPTask(model().double(), teacher, loss=ClipLoss(objective="soft_nt_xent"))
    theirs = tasks.DistillCLIPTask(model().double(), teacher)
    assert_close(step_of(ours), step_of(theirs, "distill_loss"))
