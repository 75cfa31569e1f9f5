"""Measure sentence embeddings on files that the user gives with --data sts=FILE and --data senteval=FILE.

sentences:sts:SCORE         100 · Spearman's correlation on a task of the file, such as sts12 or stsb_dev; sts_mean, the mean of
                            seven tasks; stsb_alignment and stsb_uniformity
sentences:senteval:SCORE    accuracy of logistic regression on a task of the file, such as mr; transfer_mean, the mean of seven
sentences:…:start           of the encoder before its training

A run that keeps its best step (`Run.keep_best`) is measured at that step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from contrapose.lab.modalities import Split
from contrapose.lab.modalities.evaluations import DownstreamData
from contrapose.lab.studies.downstream import MADE
from contrapose.lab.training import Model, Run, build
from contrapose.lab.training.embedder import Embedder
from contrapose.lab.training.kept import best_epoch
from contrapose.lab.training.model import model_of


def sentences(
    model: Model, split: Split, name: str, score: str, weights: str = "", *, downstream: Mapping[str, str],
    root: Path | None = None,
) -> dict[str, float | None]:  # fmt: skip
    """Return all scores of a file of sentences, by the names of their measures; None for one that the file does not have.

    name      sts or senteval
    score     the score that is asked for
    weights   which encoder: the trained one, or "start"
    """
    data = DownstreamData(
        name=name,
        path="" if downstream[name] == MADE else downstream[name],
        split=split,
        device=model.device,
        seed=model.run.seed,
    )
    scores = model.kind.downstream[name]({model.run.modality: _embedder(model, split, weights)}, data)
    suffix = f":{weights}" if weights else ""
    return {f"sentences:{name}:{key}{suffix}": value for key, value in {score: None, **scores}.items()}


def _embedder(model: Model, split: Split, weights: str) -> Embedder:
    """Return the encoder of a measure, with inputs longer than in training, in float32."""
    # The seed, or the folder that a run starts from, gives the same weights again.
    encoder = _at_start(model, split).encoder if weights else _best(model).encoder
    views = model.kind.downstream_views(encoder, model.views)
    embedder = Embedder(encoder, views, model.kind, model.device)
    embedder.evaluation_context = model.evaluation_context
    return embedder


def _at_start(model: Model, split: Split) -> Model:
    return model_of(model.run, build(model.run, len(split.train)).to(model.device), model.device, folder=model.folder)


def _best(model: Model) -> Model:
    """Return the model at the step by which its run is judged: the best one if the run keeps it, else the last one."""
    if not model.run.keep_best or model.folder is None:
        return model
    best = best_epoch(model.folder, model.run.keep_best)
    return model if best is None else model.at_epoch(best[0])


def describe_sentences(measure: str, run: Run) -> str:
    """Return in words what is measured of a run; the names of rows say before or after training."""
    _, name, score = measure.split(":")[:3]
    if score.endswith(("alignment", "uniformity")):
        return f"{score.removeprefix('stsb_')} of STS-B's test pairs"
    if score.endswith("dev"):
        return "the correlation on STS-B dev"
    step = f"best on STS-B dev of {run.epochs} steps" if run.keep_best else "last step"
    if name == "sts":
        return (
            "100 × Spearman's correlation of the encoder's cosine similarities with people's scores, all subsets of a task "
            f"ranked together, {step}"
        )
    return f"accuracy of logistic regression on the encoder's output, SentEval's protocol with 10 folds, {step}"
