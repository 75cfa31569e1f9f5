"""Runs on texts: they learn, repeat their dropout when resumed or shared by processes, and can be used elsewhere."""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run_in_process_group
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from tiers import first
from torch import Tensor

import contrapose
from contrapose.lab.modalities.text.evaluation import embed_once
from contrapose.lab.modalities.text.modality import TEXT
from contrapose.lab.modalities.text.settings import TEXT_SETTINGS
from contrapose.lab.training import Model, Run, Trainer, drain, prepare
from contrapose.lab.training.checkpoints.kept import kept_epochs
from contrapose.lab.training.eager import EagerSteps
from contrapose.lab.training.graphed import GraphedSteps, TensorStep
from contrapose.lab.training.records.files import read_records

CPU = torch.device("cpu")
NOUNS = ("dog", "cat", "train", "river", "teacher", "engine", "garden", "letter")
VERBS = ("crosses", "follows", "finds", "paints", "repairs", "watches")


def quiet(text: str) -> None:
    return


def write_sentences(path: Path, count: int = 48) -> Path:
    rows = [f"The {NOUNS[i % 8]} {VERBS[i % 6]} the {NOUNS[i * 3 % 7]} number {i}." for i in range(count)]
    path.write_text("\n".join(rows) + "\n")
    return path


def write_pairs(path: Path, count: int = 60, columns: int = 2) -> Path:
    names = ["anchor", "positive", "negative"][:columns]
    rows = [
        [f"the {NOUNS[i % 8]} {i}", f"{VERBS[i % 6]} {NOUNS[i % 8]} {i}", f"no {NOUNS[(i + 1) % 8]}"][:columns]
        for i in range(count)
    ]
    path.write_text("\n".join("\t".join(row) for row in [names, *rows]) + "\n")
    return path


def run_of(data: Path, **changes: Any) -> Run:
    settings: dict[str, Any] = {
        "batch": 8,
        "epochs": 2,
        "lr": 1e-3,
        "encoder": "tiny",
        "views": "dropout",
        "metrics": 30,
    }
    return Run(data=str(data), **{**TEXT_SETTINGS, **settings, **changes})


def trainer_of(run: Run, folder: Path) -> Trainer:
    return Trainer(run, folder, log=quiet, device=CPU, data_root=folder.parent / "cache")


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.saved_state.state_dict().items()}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    first(
        1,
        [
            {},
            {"views": "deletion"},
            {"views": "cropping", "head": "simcse"},
            {"views": "neighbours"},
            {"epoch_slices": 2},
        ],
    ),
)
def test_a_stopped_run_resumes_with_the_same_dropout(change: dict[str, Any], tmp_path: Path) -> None:
    run = run_of(write_sentences(tmp_path / "a.txt"), **change)
    whole = trainer_of(run, tmp_path / "whole")
    whole.train()
    stopped = trainer_of(run, tmp_path / "stopped")
    for _ in stopped.training(stopped.requests):
        break  # after the first epoch
    resumed = trainer_of(run, tmp_path / "stopped")
    resumed.train()
    assert resumed.step == whole.step == run.epochs * whole.steps_per_epoch
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name


def train_in_processes(rank: int, world_size: int, out: str) -> None:
    folder = Path(out)
    os.environ["WORLD_SIZE"] = str(world_size)  # as torchrun sets it
    run = Run.load(folder / "described.json")
    trainer = Trainer(run, folder / f"run{world_size}", log=quiet, device=CPU, data_root=folder / f"cache{world_size}")
    steps = EagerSteps(trainer.context)
    for place, batch in enumerate(steps.batches(0, 0)):
        steps.step([batch], 0, place)
    if rank == 0:
        torch.save(trainer.context.network.state_dict(), folder / f"weights{world_size}.pt")


@pytest.mark.slow
def test_two_processes_take_the_same_steps(tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "a.tsv", columns=3)
    # SGD: Adam would turn the rounding of tiny gradients into steps of full size.
    run = run_of(data, views="columns", view_count=3, batch=12, metrics=0, optimiser="sgd", lr=0.05)
    (tmp_path / "described.json").write_text(json.dumps(run.describe()))
    for world_size in (1, 2):
        run_in_process_group(train_in_processes, world_size, tmp_path)
    one, two = (torch.load(tmp_path / f"weights{size}.pt") for size in (1, 2))
    start = trainer_of(run, tmp_path / "start").context.network.state_dict()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(
        one["encoder.network.model.embeddings.word_embeddings.weight"],
        start["encoder.network.model.embeddings.word_embeddings.weight"],
        atol=1e-4,
    )


def test_a_tensor_step_on_texts_equals_the_eager_step(tmp_path: Path) -> None:
    run = run_of(write_sentences(tmp_path / "a.txt"))
    eager = trainer_of(run, tmp_path / "eager")
    steps = EagerSteps(eager.context)
    losses = [steps.step([batch], 0, place) for place, batch in enumerate(steps.batches(0, 0))]
    captured = trainer_of(run, tmp_path / "tensors")
    step = TensorStep(captured.context, captured.context.views.train)
    step.begin(0, 0)
    for _ in losses:
        step()
    torch.testing.assert_close(step.losses, torch.tensor(losses), rtol=1e-5, atol=1e-6)


def test_the_loss_of_a_run_is_simcse_s_cross_entropy(tmp_path: Path) -> None:
    trainer = trainer_of(run_of(write_sentences(tmp_path / "a.txt"), loss="simclr"), tmp_path / "run")
    index, views = next(iter(EagerSteps(trainer.context).batches(0, 0)))
    trainer.context.network.double()
    loss = trainer.context.loss(views, index)
    first, second = trainer.context.network.embed(views).detach()
    # A plain loop: cosine similarities of first views with all second ones, divided by τ = 0.05.
    total = 0.0
    for i in range(len(first)):
        similarities = [float(torch.cosine_similarity(first[i], row, 0)) / 0.05 for row in second]
        total += math.log(sum(map(math.exp, similarities))) - similarities[i]
    assert float(loss.detach()) == pytest.approx(total / len(first), rel=1e-9)
    assert not torch.allclose(first, second)


def test_the_loss_of_pairs_and_triplets_is_multiple_negatives_ranking(tmp_path: Path) -> None:
    model = SentenceTransformer(modules=[torch.nn.Identity()], device="cpu")
    for columns in (2, 3):
        data = write_pairs(tmp_path / f"{columns}.tsv", columns=columns)
        run = run_of(data, views="columns", view_count=columns, loss="nt_xent(temperature=0.05)")
        trainer = trainer_of(run, tmp_path / f"run{columns}")
        index, views = next(iter(EagerSteps(trainer.context).batches(0, 0)))
        trainer.context.network.double()
        theirs = MultipleNegativesRankingLoss(model).compute_loss_from_embeddings(
            list(trainer.context.network.embed(views)), None
        )
        assert float(trainer.context.loss(views, index).detach()) == pytest.approx(float(theirs.detach()), rel=1e-9)


def test_texts_of_a_run_are_embedded_as_sentence_transformers_does(tmp_path: Path) -> None:
    run = run_of(write_pairs(tmp_path / "a.tsv"), views="columns", epochs=1)
    scores = trainer_of(run, tmp_path / "run").train()
    assert list(scores) == ["recall@1", "recall@5", "recall@10"]
    model = contrapose.load(tmp_path / "run", device="cpu")
    texts = ["the dog 1", "a much longer text about a teacher and the letter that she repairs", "river"]
    features = model.embed(texts)
    torch.testing.assert_close(embed_once(model, texts), features, rtol=1e-4, atol=1e-5)
    assert isinstance(model, Model)
    model.kind.export(tmp_path / "exported", model.encoder, model.views)
    theirs = SentenceTransformer(str(tmp_path / "exported"), device="cpu").encode(texts, convert_to_tensor=True)
    torch.testing.assert_close(theirs, features, rtol=1e-4, atol=1e-5)
    # And the other way round: a folder of sentence-transformers is the start of a run.
    again = trainer_of(replace(run, encoder=f"hf:{tmp_path / 'exported'}"), tmp_path / "again")
    assert again.split.retrieval is not None
    queries = again.split.retrieval.queries
    torch.testing.assert_close(again.model.features(queries), model.features(queries))
    again.train()
    shutil.rmtree(tmp_path / "exported")  # a trained run needs no more than its own directory
    loaded = contrapose.load(tmp_path / "again", device="cpu")
    torch.testing.assert_close(loaded.embed(texts), again.model.embed(texts))


def test_the_best_weights_by_sts_are_kept(tmp_path: Path) -> None:
    scored = tmp_path / "sts.tsv"
    rows = [f"stsb\tx\tdev\t{i % 5}\tthe {NOUNS[i % 8]} {i}\tthe {NOUNS[i * 5 % 8]} {i}" for i in range(30)]
    scored.write_text("\n".join(["dataset\tsubset\tsplit\tscore\tsentence1\tsentence2", *rows]) + "\n")
    run = run_of(
        write_sentences(tmp_path / "a.txt"),
        epochs=4,
        extra_metrics=(f"sts:{scored}@1",),
        keep_best="stsb_dev",
        keep=(1,),
    )
    trainer_of(run, tmp_path / "run").train()
    values = [record["stsb_dev"] for record in read_records(tmp_path / "run")]
    assert len(values) == 4
    best = 1 + values.index(max(values))
    assert kept_epochs(tmp_path / "run") == sorted({1, best})


def test_parts_of_a_pass_have_each_sample_once(tmp_path: Path) -> None:
    trainer = trainer_of(run_of(write_sentences(tmp_path / "a.txt"), epoch_slices=3, epochs=6), tmp_path / "run")
    assert trainer.steps_per_epoch == 2
    passes = [torch.cat([trainer.context.order(3 * number + part) for part in range(3)]) for number in range(2)]
    for order in passes:
        assert sorted(order.tolist()) == list(range(48))
    assert not torch.equal(*passes)


def test_held_out_pairs_that_are_trained_on_are_noted(tmp_path: Path) -> None:
    """The rows of a file with a row for each negative repeat their first two texts."""
    path = tmp_path / "a.tsv"
    for pairs in (20, 10):
        path.write_text("".join(f"question {i % pairs}\tanswer\tnegative {i}\n" for i in range(20)))
        split = prepare(run_of(path, views="columns", view_count=3, hold_out=0.25), tmp_path / "cache")
        trained, held_out = split.train.texts(), split.held_out.texts()  # type: ignore[attr-defined]
        leaks = sum(text in trained for text in held_out)
        note = f"the first two texts of {leaks} of the 5 held-out rows of 3 texts are in training rows too, so that scores "
        assert [line.startswith(note) for line in split.notes[1:]] == [True] * (leaks > 0), split.notes
        assert (leaks > 0) is (pairs < 20)


def test_equal_documents_are_right_for_each_other_s_queries(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"question number {i}\t{'yes' if i % 2 else 'no'}\n" for i in range(20)))
    split = prepare(run_of(path, views="columns", hold_out=0.5), tmp_path / "cache")
    assert split.retrieval is not None
    answers = split.retrieval.documents.texts()  # type: ignore[attr-defined]
    ids = split.retrieval.ids.tolist()
    assert len(set(ids)) == len(set(answers)) == 2
    assert len(set(zip(ids, answers, strict=True))) == 2


@pytest.mark.parametrize("ending", ["txt", "tsv"])
def test_equal_texts_are_never_negatives(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    lines = [f"the {NOUNS[i % 4]}" if ending == "txt" else f"question {i}\tthe {NOUNS[i % 4]}" for i in range(16)]
    path.write_text("\n".join(lines) + "\n")
    views = "dropout" if ending == "txt" else "columns"
    trainer = trainer_of(
        run_of(path, views=views, batch=16, hold_out=0.0, loss="nt_xent(temperature=0.5)"), tmp_path / "run"
    )
    index, inputs = next(iter(EagerSteps(trainer.context).batches(0, 0)))
    loss = float(trainer.context.loss(inputs, index).detach())
    first, second = trainer.context.network.embed(inputs).detach()
    kinds, total = [i % 4 for i in index.tolist()], 0.0
    for i in range(16):
        similarity = torch.cosine_similarity(first[i], second, 1) / 0.5
        others = [float(similarity[j].exp()) for j in range(16) if kinds[j] != kinds[i]]
        total += math.log(float(similarity[i].exp()) + sum(others)) - float(similarity[i])
    assert loss == pytest.approx(total / 16, rel=1e-4)
    assert trainer_of(run_of(write_sentences(tmp_path / "other.txt")), tmp_path / "other").split.train.ids is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("views", ["dropout", "cropping"])
def test_a_graph_on_texts_has_the_losses_of_the_eager_steps(views: str, tmp_path: Path) -> None:
    run = run_of(write_sentences(tmp_path / "a.txt", 160), views=views, precision="bf16", lr=1e-4, optimiser="sgd")
    eager = Trainer(run, tmp_path / "eager", log=quiet, data_root=tmp_path / "cache")
    steps = EagerSteps(eager.context)
    losses = [steps.step([batch], 0, place) for place, batch in enumerate(steps.batches(0, 0))]
    trainer = Trainer(run, tmp_path / "graph", log=quiet, data_root=tmp_path / "cache")
    graph_losses = drain(GraphedSteps(trainer.context).epoch(0, 0, lambda *progress: None))
    torch.testing.assert_close(torch.tensor(graph_losses), torch.tensor(losses), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("columns", "changes", "message"),
    [
        (1, {"view_count": 3}, "view_count: simcse compares two views, got 3; use --framework simclr"),
        (3, {"view_count": 3, "framework": "simclr"}, "framework: simclr would take the negatives of .* for positives"),
        (1, {"init": "weights.safetensors"}, "init: texts start from a folder; use --encoder hf:FOLDER"),
    ],
)
def test_settings_that_texts_do_not_bear_are_refused(
    columns: int, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    data = write_sentences(tmp_path / "a.txt") if columns == 1 else write_pairs(tmp_path / "a.tsv", columns=columns)
    views = "dropout" if columns == 1 else "columns"
    with pytest.raises(ValueError, match=message):
        trainer_of(run_of(data, views=views, **changes), tmp_path / "run")


def test_columns_may_leave_out_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"question {i}\tanswer {i}\t{i}\n" for i in range(20)))
    TEXT.check_data(str(path))
    assert prepare(run_of(path, views="columns", columns=("1", "2")), tmp_path / "cache").train.tokens.shape[1] == 2  # type: ignore[attr-defined]


def test_a_resumed_run_keeps_its_tokenizer(tmp_path: Path) -> None:
    run = run_of(write_sentences(tmp_path / "a.txt"), epochs=2)
    stopped = trainer_of(run, tmp_path / "run")
    for _ in stopped.training(stopped.requests):
        break
    kept = tmp_path / "run" / "encoder" / "tokenizer.json"
    other = json.loads(kept.read_text())
    other["model"]["vocab"] = {token: number for number, token in enumerate(sorted(other["model"]["vocab"], key=len))}
    kept.write_text(json.dumps(other))
    resumed = trainer_of(run, tmp_path / "run")
    assert resumed.split.train.tokenizer.get_vocab() == other["model"]["vocab"]  # type: ignore[attr-defined]
    resumed._resume()
    assert json.loads(kept.read_text()) == other


def test_too_many_parts_are_refused(tmp_path: Path) -> None:
    run = run_of(write_sentences(tmp_path / "a.txt"), epoch_slices=7)
    message = r"epoch_slices: 7 slices of 48 sentences are too small for a step of 8 \(--epoch-slices 6 would do\)"
    with pytest.raises(ValueError, match=message):
        trainer_of(run, tmp_path / "run")


def test_evaluation_of_a_run_has_the_run_s_own_tokens(tmp_path: Path) -> None:
    """Other data must not bring a vocabulary of its own."""
    run = run_of(write_sentences(tmp_path / "a.txt"), epochs=1)
    trainer_of(run, tmp_path / "run").train()
    other = write_pairs(tmp_path / "other.tsv")
    split = prepare(replace(run, data=str(other)), tmp_path / "cache", folder=tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "encoder" / "tokenizer.json").read_text())["model"]["vocab"]
    assert split.train.tokenizer.get_vocab() == kept  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_built_in_pairs_are_learned(tmp_path: Path) -> None:
    run = run_of(Path("pydoc"), views="columns", batch=128, epochs=5, lr=2e-3, metrics=0, knn_every=5)
    trainer = trainer_of(run, tmp_path / "run")
    before, after = trainer.evaluate(), trainer.train()
    print(f"recall@10 {before['recall@10']:.1f} -> {after['recall@10']:.1f} %")
    assert after["recall@10"] >= before["recall@10"] + 8


def test_neighbours_are_a_line_and_the_next_one(tmp_path: Path) -> None:
    run = run_of(write_sentences(tmp_path / "a.txt"), views="neighbours", limit=20)
    split = prepare(run, tmp_path / "cache")
    whole = prepare(replace(run, views="dropout", limit=0), tmp_path / "cache").train
    assert split.retrieval is None
    rows, tokens = split.train.rows.tolist(), whole.tokens[:, 0]  # type: ignore[attr-defined]
    assert len(rows) == 20
    assert split.train.texts() == [whole.texts()[row] for row in rows]  # type: ignore[attr-defined]
    for row, pair in zip(rows, split.train.tokens, strict=True):  # type: ignore[attr-defined]
        following = row + 1 if row + 1 < len(whole) else row - 1
        assert torch.equal(pair, tokens[[row, following]])
    trainer = trainer_of(run, tmp_path / "run")
    index, (inputs,) = next(iter(EagerSteps(trainer.context).batches(0, 0)))
    shown = inputs[:, :, 0]
    expected = split.train.tokens[index].transpose(0, 1)[..., : shown.shape[-1]]  # type: ignore[attr-defined]
    assert torch.equal(shown[shown >= 0], expected[shown >= 0].long())


def test_neighbours_of_pairs_are_refused_and_other_pairs_are_evaluated(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "a.tsv")
    with pytest.raises(ValueError, match=r"a\.tsv has 2 columns; use --views columns"):
        prepare(run_of(pairs, views="neighbours"), tmp_path / "cache")
    views = TEXT.views("neighbours", 2)
    other = TEXT.load_for_evaluation(run_of(pairs), tmp_path / "cache", views, encoder="tiny")
    assert other.retrieval is not None
    lines = TEXT.load_for_evaluation(
        run_of(write_sentences(tmp_path / "a.txt")), tmp_path / "cache", views, encoder="tiny"
    )
    assert lines.retrieval is None  # lines need not be in order
