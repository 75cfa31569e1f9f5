"""Runs that train prefixes of the embedding (`--dims`): their loss, their scores, and what is loaded and exported of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import captioned
import numpy as np
import pytest
import torch
from commands import error_message, printed_lines
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import contrapose
from contrapose.lab.cli import main
from contrapose.lab.evaluation import KNN
from contrapose.lab.modalities.captions.recall import caption_recall
from contrapose.lab.modalities.captions.zero_shot import class_embeddings, zero_shot_scores
from contrapose.lab.modalities.text.evaluation import evaluate_sts, read_sts
from contrapose.lab.modalities.text.settings import TEXT_SETTINGS
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.training import Model, Run, Trainer, prepare
from contrapose.lab.training.eager import EagerSteps
from contrapose.lab.training.model import load_any
from contrapose.losses import nt_xent
from contrapose.pairs import two_views

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "data": "digits",
    "limit": 64,
    "batch": 16,
    "epochs": 1,
    "knn": 3,
    "metrics": 0,
    "epoch_slices": 1,
}
DIMS = (8, 32, 64)
TEXTS = ["the dog follows", "the cat paints a much longer river", "letter"]


def train(folder: Path, **settings: Any) -> Path:
    Trainer(Run(**{**SMALL, **settings}), folder, log=lambda text: None, device=CPU).train()
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("images") / "run", dims=DIMS, width=64)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "a.txt").write_text("".join(f"the {['dog', 'cat', 'river', 'letter'][i % 4]} {i}\n" for i in range(48)))
    settings = {**TEXT_SETTINGS, "data": str(folder / "a.txt"), "encoder": "tiny", "views": "dropout", "batch": 8}
    return train(folder / "run", **settings, lr=1e-3, limit=0, dims=(16, 128))


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captions")
    data = captioned.write_folder(folder / "data")
    # Long enough for scores that differ from those of chance.
    captioned.trainer_of(captioned.run_of(data, dims=(4, 16), epochs=15, batch=10, lr=5e-3), folder / "run").train()
    return folder / "run"


def unit_prefix(z: Tensor, dims: int) -> Tensor:
    """Cut and normalise embeddings row by row."""
    return torch.stack([row[:dims] / row[:dims].square().sum().sqrt() for row in z])


def test_the_loss_is_the_sum_over_prefixes(images: Path) -> None:
    run = Run.load(images / "run.json")
    trainer = Trainer(run, images.parent / "other", log=lambda text: None, device=CPU)
    index, views = next(iter(EagerSteps(trainer.context).batches(0, 0)))
    loss = trainer.context.loss(views, index)
    assert trainer.context.latest is not None
    z1, z2 = trainer.context.latest.z.detach()
    expected = sum(float(nt_xent(two_views(z1[:, :d], z2[:, :d]), temperature=0.2)) for d in DIMS)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    records = [json.loads(line) for line in (images / "records.jsonl").read_text().splitlines()]
    # The summary of penalties is of one matrix of similarities, and each prefix has its own.
    assert "effective_temperature" not in records[-1]


def test_the_option_is_recorded_and_names_the_run_only_if_it_is_used(images: Path) -> None:
    assert json.loads((images / "run.json").read_text())["dims"] == list(DIMS)
    plain = Run(**SMALL)
    assert "dims" not in plain.describe()
    assert plain.name == Run(**SMALL, dims=()).name != Run(**SMALL, dims=DIMS, width=64).name
    assert Run(**SMALL, dims=DIMS).objective == "nested(nt_xent, dims=(8, 32, 64))(temperature=0.2)"


@pytest.mark.thorough
def test_a_prefix_is_loaded_as_unit_vectors(images: Path, captions: Path) -> None:
    samples = torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8)
    whole, cut = contrapose.load(images, device=CPU), contrapose.load(images, dims=8, device=CPU)
    assert isinstance(whole, Model)
    z = whole.project(whole.views.plain(samples)).detach()
    torch.testing.assert_close(cut.embed(samples), unit_prefix(z, 8), rtol=1e-5, atol=1e-6)
    assert whole.embed(samples).shape == (5, 64)  # the encoder's features, which are no prefix
    whole, cut = load_any(captions, device=CPU), load_any(captions, dims=4, device=CPU)
    found, expected = (model.towers["text"].embed(["a red square", "white paint"]) for model in (cut, whole))
    torch.testing.assert_close(found, unit_prefix(expected, 4), rtol=1e-5, atol=1e-6)


def scores_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
    capsys.readouterr()
    scores: dict[str, float] = json.loads(printed_lines(capsys, "evaluate", *arguments)[-1])
    return scores


def test_evaluate_scores_each_prefix_from_one_pass(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoded: list[int] = []

    def count(module: nn.Module, inputs: Any, output: Any) -> None:
        encoded.extend([len(output)] if isinstance(module, Encoder) else [])

    with register_module_forward_hook(count):
        scores = scores_of(capsys, str(images), "--baselines", "none")
    run = Run.load(images / "run.json")
    split = prepare(run)
    assert split.test is not None
    assert split.probe is not None
    assert sum(encoded) == len(split.probe) + len(split.test)
    model = load_any(images, device=CPU)
    labelled = model.labelled_features(split)
    assert labelled is not None
    train_features, train_labels, test_features, test_labels = labelled
    assert [name for name in scores if name.endswith("knn_top1")] == ["knn_top1", *(f"dims_{d}_knn_top1" for d in DIMS)]
    for d in DIMS:
        one, two = (unit_prefix(model.projector(z).detach(), d) for z in (train_features, test_features))
        expected = KNN(run.knn)(one, train_labels, two, test_labels)["top1"]
        assert scores[f"dims_{d}_knn_top1"] == pytest.approx(expected, abs=0.6)  # ties


def test_sts_of_each_prefix(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["dataset\tsubset\tsplit\tscore\tsentence1\tsentence2"]
    words = ["dog", "cat", "river", "letter"]
    rows += [f"STSB\tx\ttest\t{i % 6}\tthe {words[i % 4]} {i}\tthe {words[i % 3]} {2 * i}" for i in range(24)]
    (texts.parent / "sts.tsv").write_text("\n".join(rows) + "\n")
    scores = scores_of(capsys, str(texts), "--sts", str(texts.parent / "sts.tsv"), "--baselines", "none")
    pairs = read_sts(texts.parent / "sts.tsv")
    cut = contrapose.load(texts, dims=16, device=CPU)
    assert scores["dims_16_stsb"] == pytest.approx(evaluate_sts(cut.embed, pairs)["stsb"], rel=1e-3)
    assert scores["dims_128_stsb"] == pytest.approx(scores["stsb"], rel=1e-5)  # --head none: the whole features
    assert scores["dims_16_stsb"] != scores["stsb"]


def test_recall_of_each_prefix(captions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(captions.parent / "data")
    scores = scores_of(capsys, str(captions), "--captions", data)
    model = load_any(captions, dims=4, device=CPU)
    chosen = [number for number, colour in enumerate(captioned.COLOURS) if colour in captioned.TEST]
    names = list(captioned.COLOURS)
    images = model.towers["images"].embed([f"{data}/images/{number:02d}.png" for number in chosen])
    written = [captioned.captions_of(number, names[number]) for number in chosen]
    embedded = model.towers["text"].embed([text for texts in written for text in texts])
    owner = torch.tensor([image for image, texts in enumerate(written) for _ in texts])
    for name, expected in caption_recall(images, embedded, owner).items():
        assert scores[f"dims_4_{name}"] == pytest.approx(expected)


def test_zero_shot_of_each_prefix(captions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for number, colour in enumerate(captioned.COLOURS):
        files.append(tmp_path / "data" / colour / f"{number}.png")
        files[-1].parent.mkdir(parents=True)
        files[-1].write_bytes(captioned.png(colour))
    templates = ("a {} square", "something {} on a wall")
    scores = scores_of(capsys, str(captions), "--zero-shot", str(tmp_path / "data"), "--templates", *templates)
    model, names = load_any(captions, dims=4, device=CPU), sorted(captioned.COLOURS)
    images = model.towers["images"].embed(files)
    labels = torch.tensor([names.index(file.parent.name) for file in files])
    expected = zero_shot_scores(images, labels, class_embeddings(model.towers["text"].embed, names, templates))
    assert {name: scores[f"dims_4_zero_shot_{name}"] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert scores["dims_16_zero_shot_top1"] == scores["zero_shot_top1"] > scores["chance_zero_shot_top1"]
    assert "chance_dims_4_zero_shot_top5" not in scores


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dims": (32, 8)}, "dims: expected ascending widths such as (64, 128, 256), got (32, 8)"),
        ({"dims": (0, 8)}, "dims: expected"),
        ({"dims": 8}, "dims: expected a list of whole numbers, got 8"),
        ({"dims": (8,), "loss": "byol", "framework": "byol"}, "dims: the loss of moco-v3, byol, simsiam, nnclr sees a predictor"),
        ({"dims": (8,), "loss": "swav", "framework": "swav"}, "dims: expected a --loss that is a loss of embeddings or pairs"),
        ({"dims": (8,), "loss": "sogclr"}, "which also needs what it keeps between steps"),
        ({"dims": (8,), "similarity": "neg_euclid", "loss": "nt_xent(temperature=1.0)"}, "dims: expected --similarity cosine"),
    ],
)  # fmt: skip
def test_runs_without_prefixes_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Run(**{**SMALL, **settings})


def test_widths_that_do_not_fit_the_embedding(tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="dims: expected widths up to 128, that of the embedding, got 256"):
        train(tmp_path / "run", dims=(8, 256))
    with pytest.raises(ValueError, match="those after 32 would not be trained; add 128 to --dims, or set --width 32"):
        train(tmp_path / "run", dims=(8, 32))
    assert not (tmp_path / "run").exists()
    with pytest.raises(
        ValueError, match=r"dims: expected one of 8, 32, 64, the prefixes that .* was trained with, got 16"
    ):
        contrapose.load(images, dims=16)
    message = error_message(capsys, "export", str(images), "-o", str(tmp_path / "a.onnx"), "--dims", "16")
    assert "--dims: expected one of 8, 32, 64" in message
    plain = train(tmp_path / "plain")
    with pytest.raises(ValueError, match="was trained without --dims, so that a prefix"):
        contrapose.load(plain, dims=8)


def test_an_exported_prefix_of_images(tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.safetensors"
    message = error_message(capsys, "export", str(images), "-o", str(file), "--dims", "8")
    assert "prefixes of its projector's output (--head simclr), and" in message
    assert not file.exists()
    run = train(tmp_path / "none", dims=(8, 64), head="none")
    main(["export", str(run), "-o", str(file), "--dims", "8"])
    samples = torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8)
    expected = unit_prefix(contrapose.load(run, device=CPU).embed(samples), 8)
    torch.testing.assert_close(contrapose.load(file, device=CPU).embed(samples), expected, rtol=1e-5, atol=1e-6)
    (code, *_) = re.findall(r"```python\n(.*?)```", (tmp_path / "a.safetensors.md").read_text(), re.DOTALL)
    assert code.endswith("features = torch.nn.functional.normalize(features[:, :8], dim=1)\n")
    with pytest.raises(ValueError, match=r"dims: .* is an exported file; `contrapose export RUN --dims 8` writes one"):
        contrapose.load(file, dims=8)
    message = error_message(capsys, "export", str(run), "-o", str(tmp_path / "a.pkl"), "--dims", "8")
    assert "--dims: detectron2 uses feature maps" in message


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
def test_a_graph_of_a_prefix(tmp_path: Path, images: Path, captions: Path) -> None:
    import onnxruntime

    for run, dims, tower, size in ((images, 8, "images", 32), (captions, 4, "images", captioned.SIZE)):
        main(["export", str(run), "-o", str(tmp_path / "a.onnx"), "--dims", str(dims)])
        samples = torch.randint(256, (3, 3, size, size), dtype=torch.uint8)
        embedder = load_any(run, dims=dims, device=CPU).towers[tower]
        session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
        (found,) = session.run(["features"], {"images": embedder.views.plain(samples).numpy()})
        torch.testing.assert_close(torch.from_numpy(found), embedder.embed(samples), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_an_exported_prefix_of_texts(tmp_path: Path, texts: Path, captions: Path) -> None:
    linear = train(tmp_path / "simcse", **{**vars(Run.load(texts / "run.json")), "head": "simcse"})
    for run, dims in ((texts, 16), (linear, 16), (captions, 4)):
        folder = tmp_path / f"{run.parent.name}-{run.name}"
        main(["export", str(run), "-o", str(folder), "--dims", str(dims)])
        theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, convert_to_tensor=True)
        assert theirs.shape == (3, dims)
        ours = load_any(run, dims=dims, device=CPU).towers["text"].embed(TEXTS)
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)


def test_a_text_encoder_with_hidden_layers_after_it(
    tmp_path: Path, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path / "run", **{**vars(Run.load(texts / "run.json")), "head": "simclr"})
    message = error_message(capsys, "export", str(run), "-o", str(tmp_path / "folder"), "--dims", "16")
    assert "train with --head none or --head simcse, or in Python contrapose.load" in message


@pytest.mark.thorough
def test_embed_search_and_mine_cut_to_a_prefix(tmp_path: Path, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, samples = (
        str(texts.parent / "a.txt"),
        [f"the {['dog', 'cat', 'river', 'letter'][i % 4]} {i}" for i in range(48)],
    )
    expected = load_any(texts, dims=16, device="cpu").tower.embed(samples)
    main(["embed", str(texts), data, "-o", str(tmp_path / "f.npz"), "--dims", "16"])
    with np.load(tmp_path / "f.npz") as file:
        torch.testing.assert_close(torch.from_numpy(file["train_features"]), expected)
    capsys.readouterr()
    found: dict[str, float] = {}
    for dims in ("0", "16", "0", "16"):  # the second time, both are read from the run's cache
        lines = printed_lines(
            capsys, "search", str(texts), "the dog 7", "--dims", dims, "-k", "1", "-o", str(tmp_path / "s.html")
        )
        similarity = float(lines[1].split()[1])
        assert found.setdefault(dims, similarity) == similarity
    query = load_any(texts, dims=16, device="cpu").tower.embed(["the dog 7"])
    cosine = (query @ expected.T)[0]
    cosine[7] = -1  # the query itself
    assert found["16"] == pytest.approx(float(cosine.max()), abs=2e-3)
    assert found["0"] != found["16"]
    assert "dims: expected one of 16, 128" in error_message(
        capsys, "embed", str(texts), data, "-o", "x.npz", "--dims", "7"
    )
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{a}\t{b}\n" for a, b in zip(samples[::2], samples[1::2], strict=True)))
    mined = [
        printed_lines(
            capsys,
            "mine",
            str(texts),
            str(pairs),
            "-o",
            str(tmp_path / f"{dims}.tsv"),
            "--dims",
            dims,
            "--margin",
            "None",
        )
        for dims in ("0", "16")
    ]
    assert mined[0] != mined[1]
    assert "--dims works only with runs" in error_message(
        capsys, "mine", f"hf:{tmp_path}", str(pairs), "-o", str(tmp_path / "m.tsv"), "--dims", "16"
    )
