"""Scores of sentence embeddings on files of scored or labelled sentences."""

from __future__ import annotations

from dataclasses import dataclass, replace

from contrapose.lab.modalities.evaluations import DownstreamData
from contrapose.lab.studies.measures.downstream import MADE, DownstreamEvaluation
from contrapose.lab.studies.measures.measure import Context, Words
from contrapose.lab.training import Model, Run
from contrapose.lab.training.checkpoints.kept import best_epoch
from contrapose.lab.training.embedder import Embedder
from contrapose.lab.training.initial_model import start_without_data


@dataclass(frozen=True)
class SentenceScore(DownstreamEvaluation):
    """A score of sentence embeddings on the user's file: `data_set` is sts or senteval.

    A run that keeps its best step (`Run.keep_best`) is measured at that step.
    """

    kind = "sentences"
    # sts: 100 · Spearman's correlation on a task of the file, such as sts12 or stsb_dev; sts_mean, the mean of seven tasks;
    # stsb_alignment and stsb_uniformity. senteval: accuracy of logistic regression on a task, such as mr; transfer_mean.
    score: str
    weights: str = ""  # selects the encoder: the trained one (""), or "start"

    def describe(self, run: Run) -> Words:
        """Describe the score and the step; the row's name says whether it is before or after training."""
        if self.score.endswith(("alignment", "uniformity")):
            return Words(f"{self.score.removeprefix('stsb_')} of STS-B's test pairs")
        if self.score.endswith("dev"):
            return Words("the correlation on STS-B dev")
        step = f"best on STS-B dev of {run.epochs} steps" if run.keep_best else "last step"
        if self.data_set == "sts":
            return Words(
                "100 × Spearman's correlation of the encoder's cosine similarities with people's scores, all subsets of a task "
                f"ranked together, {step}"
            )
        return Words(
            f"accuracy of logistic regression on the encoder's output, SentEval's protocol with 10 folds, {step}"
        )

    def evaluate(self, context: Context) -> dict[str, float | None]:
        """Return all scores for the file; None for a score whose task is not in the file."""
        model, path = context.model, context.downstream[self.data_set]
        data = DownstreamData(
            name=self.data_set,
            path="" if path == MADE else path,
            split=context.split,
            device=model.device,
            seed=model.run.seed,
        )
        embedder = _embedder(model, self.weights)
        scores = model.kind.downstream[self.data_set]({model.run.modality: embedder}, data)
        return {replace(self, score=score).key: value for score, value in {self.score: None, **scores}.items()}


def _embedder(model: Model, weights: str) -> Embedder:
    """Return the encoder to measure, in float32, which accepts longer inputs than in training."""
    # The initial weights follow from the seed, or from the folder that the run starts from.
    encoder = start_without_data(model).encoder if weights else _best(model).encoder
    views = model.kind.downstream_views(encoder, model.views)
    embedder = Embedder(encoder, views, model.kind, model.device)
    embedder.evaluation_context = model.evaluation_context
    return embedder


def _best(model: Model) -> Model:
    """Return the model at the step that is evaluated: the best step if the run keeps it, otherwise the last one."""
    if not model.run.keep_best or model.folder is None:
        return model
    best = best_epoch(model.folder, model.run.keep_best)
    return model if best is None else model.at_epoch(best[0])
