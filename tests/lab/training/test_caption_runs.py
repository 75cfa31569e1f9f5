"""Runs on images with captions: which captions they see, how they repeat and divide their steps, and what uses them later."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captioned import COLOURS, SIZE, captions_of, run_of, trainer_of, write_folder, write_tars
from commands import error_message
from processes import run_in_process_group
from torch import Tensor

import contrapose
from contrapose.lab.cli import main
from contrapose.lab.modalities.captions.captions import Captions
from contrapose.lab.modalities.captions.evaluation import embed_both
from contrapose.lab.modalities.captions.views import CaptionViews
from contrapose.lab.modalities.text.pretrained import load_sentence_encoder
from contrapose.lab.training import Model, Run, Trainer, drain, load, prepare
from contrapose.lab.training.eager import EagerSteps
from contrapose.lab.training.graphed import GraphedSteps, TensorStep
from contrapose.lab.training.model import load_any


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("captions") / "data")


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    """The directory of a finished run."""
    trainer_of(run_of(data), data.parent / "trained").train()
    return data.parent / "trained"


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.saved_state.state_dict().items()}


def train(run: Run, folder: Path, **options: Any) -> dict[str, Tensor]:
    trainer = trainer_of(run, folder, **options)
    trainer.train()
    return weights(trainer)


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


class Draws:
    """Which of its captions each training image gets."""

    def __init__(self, data: Path) -> None:
        run = run_of(data)
        views, source = run.view_maker(), prepare(run, data.parent / "cache").train
        assert isinstance(views, CaptionViews)
        assert isinstance(source, Captions)
        self.views, self.source = views, source
        self.reader = source.reader(views, torch.device("cpu"), workers=0, timeout=60)

    def __call__(self, *, seed: int, epoch: int) -> list[int]:
        index = torch.arange(len(self.source))
        (tokens,) = self.views.train_texts(
            self.reader.captions, self.source.first, self.source.number, index, seed=seed, epoch=epoch
        )
        equal = (tokens[0, :, 0, None] == self.reader.captions).all(-1)  # (image, caption)
        assert equal.sum(1).tolist() == [1] * len(index)  # no two captions are equal
        place = equal.long().argmax(1) - self.source.first
        assert bool(((place >= 0) & (place < self.source.number)).all())  # an image's own
        return place.tolist()


def test_captions_are_drawn_anew_in_each_epoch_and_repeated(data: Path) -> None:
    draws = Draws(data)
    epochs = [draws(seed=0, epoch=epoch) for epoch in range(8)]
    assert len(set(map(tuple, epochs))) > 4
    assert epochs == [draws(seed=0, epoch=epoch) for epoch in range(8)]
    assert epochs != [draws(seed=1, epoch=epoch) for epoch in range(8)]


@pytest.mark.thorough
def test_each_caption_is_equally_likely(data: Path) -> None:
    draws, trials = Draws(data), 1500
    drawn = torch.tensor([draws(seed=seed, epoch=3) for seed in range(trials)])
    for image, number in enumerate(draws.source.number.tolist()):
        expected = trials / number
        counts = torch.bincount(drawn[:, image], minlength=number)
        # Five standard deviations of a binomial number.
        assert (counts - expected).abs().max() < 5 * (expected * (1 - 1 / number)) ** 0.5


def test_images_with_a_caption_in_common_share_an_id(data: Path, tmp_path: Path) -> None:
    assert prepare(run_of(data), tmp_path / "cache").train.ids is None
    lines = (data / "captions.tsv").read_text().splitlines()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "images").symlink_to(data / "images")
    # Image 7 has a caption of image 1, and one of image 4: all three become one group.
    shared = [f"07.png\t{caption}\ttrain" for caption in ("a green square", "a white square")]
    (tmp_path / "data" / "captions.tsv").write_text("\n".join([*lines, *shared]) + "\n")
    run = run_of(tmp_path / "data", batch=10, loss="nt_xent(temperature=0.5)", metrics=0)
    trainer = trainer_of(run, tmp_path / "run")
    assert trainer.split.train.ids is not None
    assert trainer.split.train.ids.tolist() == [0, 1, 2, 3, 1, 5, 6, 1, 8, 9]
    index, views = next(iter(EagerSteps(trainer.context).batches(0, 0)))
    trainer.context.loss(views, index)
    latest = trainer.context.latest
    assert latest is not None
    assert latest.ids is not None
    assert latest.ids.tolist() == [1 if i in (1, 4, 7) else i for i in index.tolist()]


@pytest.mark.thorough
def test_an_interrupted_run_resumes_with_the_same_bits(data: Path, tmp_path: Path) -> None:
    for loss in ("clip", "siglip"):
        run = run_of(data, loss=loss, epochs=3)
        whole = train(run, tmp_path / f"whole-{loss}")
        stopped = trainer_of(run, tmp_path / f"stopped-{loss}")
        for _ in stopped.training(stopped.requests):
            break  # after the first epoch
        assert stopped.step < 3 * stopped.steps_per_epoch
        assert_equal(train(run, tmp_path / f"stopped-{loss}"), whole)


@pytest.mark.thorough
def test_training_from_tars_equals_training_from_a_folder(data: Path, tmp_path: Path) -> None:
    tars = write_tars(tmp_path / "tars")
    expected = train(run_of(data), tmp_path / "folder")
    assert_equal(train(run_of(tars), tmp_path / "run"), expected)
    streamed = train(run_of(tars, stream=True), tmp_path / "streamed", workers=0)
    assert_equal(streamed, train(run_of(data, stream=True), tmp_path / "folder-streamed", workers=0))


def test_streamed_views_are_those_in_memory(data: Path, tmp_path: Path) -> None:
    batches = []
    for stream in (False, True):
        trainer = trainer_of(run_of(data, stream=stream), tmp_path / str(stream), workers=0)
        batches.append(list(EagerSteps(trainer.context).batches(1, 0)))
    for (index, (images, texts)), (same_index, (same_images, same_texts)) in zip(*batches, strict=True):
        assert torch.equal(index, same_index)
        assert torch.equal(texts, same_texts)
        torch.testing.assert_close(images, same_images, rtol=0, atol=1e-5)


@pytest.mark.thorough
def test_any_number_of_workers_gives_the_same_weights(data: Path, tmp_path: Path) -> None:
    run = run_of(data, stream=True, epochs=1)
    assert_equal(train(run, tmp_path / "0", workers=0), train(run, tmp_path / "1", workers=1))


def test_a_tensor_step_equals_the_eager_step(data: Path, tmp_path: Path) -> None:
    run = run_of(data, metrics=0)
    eager = trainer_of(run, tmp_path / "eager")
    steps = EagerSteps(eager.context)
    losses = [steps.step([batch], 0, place) for place, batch in enumerate(steps.batches(0, 0))]
    captured = trainer_of(run, tmp_path / "tensors")
    step = TensorStep(captured.context, captured.context.views.train)
    step.begin(0, 0)
    for _ in losses:
        step()
    torch.testing.assert_close(step.losses, torch.tensor(losses), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("loss", ["clip", "siglip", "cacr", "dystress"])
def test_a_graph_on_captions_has_the_losses_of_the_eager_steps(loss: str, tmp_path: Path) -> None:
    run = run_of(Path("shapes"), loss=loss, limit=160, batch=8, precision="bf16", metrics=0, optimiser="sgd", lr=1e-4)
    eager = Trainer(run, tmp_path / "eager", log=lambda text: None, data_root=tmp_path / "cache")
    steps = EagerSteps(eager.context)
    losses = [steps.step([batch], 0, place) for place, batch in enumerate(steps.batches(0, 0))]
    captured = GraphedSteps(
        Trainer(run, tmp_path / "graph", log=lambda text: None, data_root=tmp_path / "cache").context
    )
    graph_losses = drain(captured.epoch(0, 0, lambda *progress: None))
    assert captured.one.graph is not None
    torch.testing.assert_close(torch.tensor(graph_losses), torch.tensor(losses), rtol=0.02, atol=0.02)


def gradients(trainer: Trainer, *, whole: bool) -> list[Tensor]:
    """Return the loss and its gradients in float64 of a run's first step."""
    context = trainer.context
    context.network.double()
    context.criterion.double()
    batches = [
        (index, [view.double() if view.is_floating_point() else view for view in views])
        for index, views in EagerSteps(context).batches(0, 0)
    ][: context.run.accumulate]
    loss = context.whole_loss(batches) if whole else context.loss(batches[0][1], batches[0][0])
    loss.backward()
    return [loss.detach(), *(p.grad for p in context.parameters() if p.grad is not None)]


@pytest.mark.thorough
@pytest.mark.parametrize("frozen", ["", "images"])
def test_a_step_contrasted_as_a_whole_equals_one_large_batch(frozen: str, data: Path, tmp_path: Path) -> None:
    # An encoder of images without batch norm, whose statistics would be those of a small batch; texts keep their dropout.
    run = run_of(data, batch=8, encoder="timm:test_vit", size=32, frozen_tower=frozen)
    large = gradients(trainer_of(run, tmp_path / "large"), whole=False)
    parts = replace(run, batch=2, accumulate=4, grad_cache=True)
    cached = gradients(trainer_of(parts, tmp_path / "parts"), whole=True)
    assert len(large) > 20
    torch.testing.assert_close(cached, large, rtol=1e-9, atol=1e-12)


def train_in_processes(rank: int, world_size: int, out: str) -> None:
    folder = Path(out)
    os.environ["WORLD_SIZE"] = str(world_size)  # as torchrun sets it
    run = Run.load(folder / "described.json")
    trainer = trainer_of(run, folder / f"run{world_size}")
    steps = EagerSteps(trainer.context)
    for place, batch in enumerate(steps.batches(0, 0)):
        steps.step([batch], 0, place)
    if rank == 0:
        learned = trainer.context.network.state_dict() | trainer.context.criterion.state_dict()
        torch.save(learned, folder / f"weights{world_size}.pt")


@pytest.mark.slow
@pytest.mark.parametrize("dims", [(), (4, 16)])
def test_two_processes_take_the_same_steps(dims: tuple[int, ...], data: Path, tmp_path: Path) -> None:
    # SGD: Adam would turn the rounding of tiny gradients into steps of full size.
    run = run_of(data, batch=4, metrics=0, optimiser="sgd", lr=0.05, dims=dims)
    (tmp_path / "described.json").write_text(json.dumps(run.describe()))
    train_in_processes(0, 1, str(tmp_path))
    run_in_process_group(train_in_processes, 2, tmp_path)
    one, two = (torch.load(tmp_path / f"weights{size}.pt") for size in (1, 2))
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-6)
    start = trainer_of(run, tmp_path / "start").context.network.state_dict()
    for name in ("projector.images.weight", "projector.text.weight"):
        assert not torch.allclose(one[name], start[name], atol=1e-4)


def test_a_run_learns_and_its_model_embeds_both_sides(data: Path, tmp_path: Path) -> None:
    trainer = trainer_of(run_of(data, epochs=60, batch=10, lr=3e-3), tmp_path / "run")
    trainer.train()
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert records[-1]["loss"] < 0.5 * records[0]["loss"]
    assert {"image_to_text_recall_1", "text_to_image_recall_1", "modality_gap"} <= records[-1].keys()
    model = contrapose.load(tmp_path / "run", device="cpu")
    assert isinstance(model, Model)
    paths = [data / "images" / f"{number:02d}.png" for number in range(10)]
    images = model.towers["images"].embed(paths)
    texts = model.towers["text"].embed([captions_of(number, colour)[0] for number, colour in enumerate(COLOURS)][:10])
    assert images.shape == texts.shape == (10, 16)
    similarity = torch.nn.functional.cosine_similarity(images[:, None], texts[None], dim=-1)
    own = similarity.diagonal()
    assert float(own.mean()) > float(similarity.mean()) + 0.1
    split = prepare(model.run, tmp_path / "cache", folder=tmp_path / "run")
    assert isinstance(split.train, Captions)
    torch.testing.assert_close(embed_both(model.towers, split.train)[0], images, rtol=1e-5, atol=1e-5)
    assert model.evaluate(split) == trainer.model.evaluate(trainer.split)


def test_evaluate_uses_the_images_that_the_run_held_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if the data has no splits; scores on images that were trained on would be too high."""
    data = write_folder(tmp_path / "data")
    rows = [line.split("\t")[:2] for line in (data / "captions.tsv").read_text().splitlines()]
    (data / "captions.tsv").write_text("".join(f"{image}\t{caption}\n" for image, caption in rows))
    trainer = trainer_of(run_of(data, hold_out=0.25, batch=3), tmp_path / "run")
    scores = trainer.train()
    assert len(trainer.split.held_out) == 3
    main(["evaluate", str(tmp_path / "run")])
    output = capsys.readouterr()
    assert "captions: 3 images with " in output.err
    found = json.loads(output.out)
    assert {name: found[name] for name in scores} == pytest.approx(scores, rel=1e-5)


@pytest.mark.thorough
def test_evaluate_leaves_out_broken_images_with_captions(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_folder(tmp_path / "data")
    with (data / "captions.tsv").open("a") as file:
        file.write("12.png\tno image\ttest\n")
    (data / "images" / "12.png").write_bytes(b"no image")
    evaluate = ["evaluate", str(trained), "--captions", str(data)]
    assert "12.png" in error_message(capsys, *evaluate)
    main([*evaluate, "--skip-broken"])
    found = capsys.readouterr()
    assert "1 broken file is left out" in found.err
    assert "captions: 2 images with " in found.err
    trainer_of(run_of(data, skip_broken=True), tmp_path / "run").train()
    main(["evaluate", str(tmp_path / "run")])  # as the run itself did
    assert "captions: 2 images with " in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize("has_splits", [False, True])
def test_evaluate_refuses_images_with_captions_that_were_trained_on(
    has_splits: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_folder(tmp_path / "data")
    rows = [line.split("\t") for line in (data / "captions.tsv").read_text().splitlines()]
    kept = [row if has_splits else row[:2] for row in rows if not has_splits or row[2] != "test"]
    (data / "captions.tsv").write_text("".join("\t".join(row) + "\n" for row in kept))
    trainer_of(run_of(data, hold_out=0.0), tmp_path / "run").train()
    message = error_message(capsys, "evaluate", str(tmp_path / "run"))
    assert "--data: the run was trained on all images of data, on which its scores would be too high" in message
    main(["evaluate", str(tmp_path / "run"), "--captions", str(data)])
    assert "captions: " in capsys.readouterr().err


@pytest.mark.thorough
def test_embed_marks_the_images_that_the_run_held_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pyarrow import parquet

    data = write_folder(tmp_path / "data")
    rows = [line.split("\t")[:2] for line in (data / "captions.tsv").read_text().splitlines()]
    (data / "captions.tsv").write_text("".join(f"{image}\t{caption}\n" for image, caption in rows))
    trainer = trainer_of(run_of(data, hold_out=0.25, batch=3), tmp_path / "run")
    trainer.train()
    held_out = {str(path) for path in trainer.split.held_out.paths}
    embed = ["embed", str(tmp_path / "run"), str(data), "--data-root", str(tmp_path), "--device", "cpu", "--out"]
    main([*embed, str(tmp_path / "features.npz")])
    arrays = np.load(tmp_path / "features.npz")
    assert set(arrays["train_paths"][arrays["train_held_out"]]) == held_out
    note = f"the run held out 3 of these {len(arrays['train_paths'])} captioned images and was trained on the others"
    assert note in capsys.readouterr().err
    main([*embed, str(tmp_path / "features.parquet")])
    table = parquet.read_table(tmp_path / "features.parquet").to_pydict()
    assert table["held_out"] == [path in held_out for path in table["path"]]
    trained = next(path for path in arrays["train_paths"] if path not in held_out)
    with (data / "captions.tsv").open("a") as file:  # not the data that the run was trained on any more
        file.write(f"{Path(trained).name}\tone more\n")
    main([*embed, str(tmp_path / "changed.npz")])
    assert "train_held_out" not in np.load(tmp_path / "changed.npz")


def test_embed_writes_features_of_images_and_captions(trained: Path, data: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    root = ["--data-root", str(tmp_path), "--device", "cpu"]
    main(["embed", str(trained), str(data), "--out", str(tmp_path / "features.npz"), *root])
    arrays = np.load(tmp_path / "features.npz")
    model = load_any(trained, device="cpu")
    paths = [Path(path) for path in arrays["train_paths"].tolist()]
    texts = arrays["train_texts"].tolist()
    np.testing.assert_allclose(arrays["train_features"], model.towers["images"].embed(paths), atol=1e-5)
    np.testing.assert_allclose(arrays["train_text_features"], model.towers["text"].embed(texts), atol=1e-5)
    owners = arrays["train_image_of_text"].tolist()
    assert [texts[i] for i, owner in enumerate(owners) if owner == 3] == captions_of(3, list(COLOURS)[3])
    assert len(arrays["test_features"]) == 2
    main(["embed", str(trained), str(data), "--out", str(tmp_path / "features.parquet"), *root])
    table = parquet.read_table(tmp_path / "features.parquet").to_pydict()
    assert table["text"] == texts + arrays["test_texts"].tolist()
    assert table["path"][: len(texts)] == [str(paths[owner]) for owner in owners]
    np.testing.assert_allclose(np.array(table["features"])[: len(texts)], arrays["train_features"][owners])
    np.testing.assert_allclose(np.array(table["text_features"])[len(texts) :], arrays["test_text_features"])


def test_export_writes_either_encoder(
    trained: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_any(trained, device="cpu")
    main(["export", str(trained), "--out", str(tmp_path / "images.safetensors")])
    assert "before the projection into the space in which images and texts are compared" in capsys.readouterr().out
    exported = contrapose.load(tmp_path / "images.safetensors", device="cpu")
    paths = [data / "images" / f"{number:02d}.png" for number in range(3)]
    inputs = exported.views.plain(exported.kind.decode(paths, exported.views))
    torch.testing.assert_close(exported.embed(paths), model.towers["images"].encoder(inputs).detach())
    card = (tmp_path / "images.safetensors.md").read_text()
    assert "text_to_image_recall_1: " in card
    assert "A tiny encoder" in card
    main(["export", str(trained), "--out", str(tmp_path / "text")])
    texts = ["a pink square", "cyan paint"]
    tower = model.towers["text"]
    expected = tower.encoder(tower.views.plain(tower.kind.decode(texts, tower.views))).detach()
    torch.testing.assert_close(load_sentence_encoder(tmp_path / "text")(texts), expected, atol=1e-5, rtol=1e-4)
    message = error_message(capsys, "export", str(trained), "--out", str(tmp_path / "weights.pkl"))
    assert "the encoder of" in message
    assert "use .safetensors" in message


@pytest.mark.thorough
def test_the_map_draws_images_and_captions(
    trained: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "map.html")
    arguments = ["map", str(trained), "--method", "pca", "-o", out, "--data-root", str(tmp_path)]
    assert "--data: expected at least 10 points to draw a map, got 4" in error_message(
        capsys, *arguments
    )  # two test images with one caption each
    split = prepare(replace(run_of(data), hold_out=0.0), tmp_path, folder=trained)
    z, labels, nouns = load_any(trained, device="cpu").sample_embeddings(split.train, 100)
    assert z.shape == (20, 16)
    assert nouns == ("images", "captions")
    assert labels is not None
    assert labels.tolist() == [0] * 10 + [1] * 10
    images, texts = embed_both(load_any(trained, device="cpu").towers, split.train)  # type: ignore[arg-type]
    torch.testing.assert_close(z[:10], torch.nn.functional.normalize(images, dim=1))
    first = [0, *torch.tensor([2 + number % 2 for number in range(9)]).cumsum(0).tolist()]
    torch.testing.assert_close(z[10:], torch.nn.functional.normalize(texts[first], dim=1))
    main(["map", str(trained), "--data", "shapes", "--images", "40", *arguments[2:]])
    assert "PCA of the projector output of 40 images and captions\nclip: modality gap " in capsys.readouterr().out
    page = Path(out).read_text()
    points = re.search(r'<script type="application/json" id="points">(.*?)</script>', page)
    assert points is not None
    (drawn,) = json.loads(points[1])["maps"]
    assert len(drawn["x"]) == 40
    assert " background" in page  # a caption


def test_commands_for_one_encoder_refuse_two(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = error_message(capsys, "detect", str(trained), str(tmp_path))
    assert "was trained on captioned images and has two encoders" in message
    assert message.count("\n") == 1
    with pytest.raises(ValueError, match="has two encoders, but this is for runs with one"):
        load(trained)


@pytest.mark.thorough
def test_compare_by_text_to_image_recall(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = (
        "--views captions --size 16 --encoder tiny --text-encoder tiny --text-length 12 --width 16 --batch 5 --epochs 1"
    )
    compare = ["compare", "--data", str(data), *settings.split(), "--metrics", "10", "--jobs", "1", "--seeds", "2"]
    main([*compare, "--losses", "clip,siglip"])
    output = capsys.readouterr().out
    assert "(text-to-image recall@1 on 2 held-out images, 2 seeds" in output
    assert "text-to-image recall@1 is 50.0 % with a random ranking, " in output
    assert "random ranking" in output
    assert "encoders before training" in output
    (report,) = Path("reports").iterdir()
    page = (report / "index.md").read_text()
    assert "10 training images with captions and 2 held-out images." in page
    for run in (path for path in Path("runs").iterdir() if path.is_dir()):
        hits = json.loads((run / "evaluations.json").read_text())["joint_hits_by_sample"]
        record = json.loads((run / "records.jsonl").read_text().splitlines()[-1])
        assert sorted(map(len, hits.split())) == [2, 3]
        assert 100 * hits.count("1") / 5 == pytest.approx(record["text_to_image_recall_1"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frozen_tower": "x"}, "frozen_tower: expected images or text, or nothing to train both, got 'x'"),
        ({"text_encoder": "huge"}, "text_encoder: expected one of tiny, .*got 'huge'"),
        ({"encoder": "huge"}, "encoder: expected one of tiny, .*got 'huge'"),
        ({"framework": "simclr"}, "framework: simclr has one encoder, and the data is captions; use --framework two_towers"),
        ({"view_count": 3}, "view_count: two_towers needs 2, one view of the image and one caption, got 3"),
        ({"text_length": 2}, "text_length: expected at least 3 tokens"),
        ({"text_length": -1}, "text_length: expected a whole number of at least 0, got -1"),
        ({"loss": "tau"}, "loss: tau needs an extra output"),
        ({"views": "captions+local2"}, "views: two_towers takes one view per image, without local crops; use --views captions, got"),
        ({"loss": "barlow_twins"}, "loss: barlow_twins takes embeddings"),
    ],
)  # fmt: skip
def test_settings_that_do_not_suit_captions_are_refused(changes: dict[str, Any], message: str, data: Path) -> None:
    with pytest.raises(ValueError, match=message):
        run_of(data, **changes)


def test_settings_of_captions_are_refused_for_images() -> None:
    with pytest.raises(
        ValueError, match="framework: two_towers has two encoders, and the data is images; use --framework simclr"
    ):
        Run(framework="two_towers")
    for name, value in (("text_encoder", "tiny"), ("text_length", 9), ("frozen_tower", "text")):
        with pytest.raises(ValueError, match=f"{name}: it is for two_towers; the framework is simclr"):
            replace(Run(), **{name: value})  # type: ignore[arg-type]


def test_data_that_does_not_suit_a_run_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="extra_metrics: linear:cacr@1 is for runs with one encoder"):
        trainer_of(run_of(data, extra_metrics=("linear:cacr@1",)), tmp_path / "run")
    with pytest.raises(ValueError, match="imbalance: this setting is only for images with classes"):
        trainer_of(run_of(data, imbalance="exponential-100"), tmp_path / "run")
    with pytest.raises(ValueError, match=r"batch: a step needs 16 captioned images, but the data set has only 10"):
        trainer_of(run_of(data, batch=16), tmp_path / "run")


def test_the_command_line_recognises_captions(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--size", str(SIZE), "--epochs", "1", "--batch", "2", "--accumulate", "4", "--grad-cache"]
    main(["train", "--data", str(data), *options, "--out", "run", "--device", "cpu"])
    run = Run.load(Path("run") / "run.json")
    assert (run.modality, run.framework, run.loss, run.text_encoder) == ("captions", "two_towers", "clip", "tiny")
    assert "10 images with 25 captions" in capsys.readouterr().out
    assert "framework: simclr has one encoder" in error_message(
        capsys, "train", "--data", str(data), "--framework", "simclr"
    )
